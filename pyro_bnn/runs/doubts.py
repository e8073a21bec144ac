"""
Whether a finished run is of any use: what it says of the test rows, beside what one can say without a network.

    classes   its predictive NLL is above log K, that of naming every class as likely
    numbers   its predictive NLL is above that of one normal with the mean and deviation of the training targets
    both      it is above that of the prior's predictive, on the first rows and with few draws
    guide     most standard deviations of the weights are below 1e-6 or above 100: the guide is at its bounds

A run in doubt is kept and scored; its results, its table, its report and the command's last line say so.
"""

import math

import torch
from torch import Tensor

from pyro_bnn.analysis.scores.evaluation import ClassEvaluation, Evaluation, evaluate_rows
from pyro_bnn.analysis.scores.prior_check import prior_posterior
from pyro_bnn.common.contract import contract_of
from pyro_bnn.data import Data
from pyro_bnn.posterior import Posterior

__all__ = ["doubts"]

_PRIOR_ROWS, _PRIOR_DRAWS = 200, 10
_NARROW, _WIDE = 1e-6, 100.0


def doubts(posterior: Posterior, data: Data, evaluation: Evaluation) -> list[str]:
    """Return why this posterior is in doubt, a sentence each; nothing if it is not."""
    found = []
    nll = evaluation.table["s_draws"]["pred_nll"]
    plain, words = _without_network(posterior, data, evaluation)
    if plain is not None and not nll <= plain:
        found.append(f"its NLL on the test rows, {nll:.4g}, is above the {plain:.4g} of {words}")
    first = -float(evaluation.log_density[:_PRIOR_ROWS].double().nanmean())
    prior = _of_prior(posterior, data)
    if not first <= prior:
        found.append(f"its NLL on the first test rows, {first:.4g}, is above the prior's {prior:.4g}")
    sigma = _deviations(posterior)
    if sigma is not None:
        for share, what in (
            (float((sigma < _NARROW).double().mean()), f"below {_NARROW:g}: it is a point"),
            (float((~(sigma < _WIDE)).double().mean()), f"above {_WIDE:g}: it drowns in noise"),
        ):
            if share > 0.5:
                found.append(f"{100 * share:.0f} % of its standard deviations are {what}")
    return found


def _without_network(posterior: Posterior, data: Data, evaluation: Evaluation) -> tuple[float | None, str]:
    """Return the NLL of saying the same of every test row, and what that is; None of counts, which have no normal."""
    if isinstance(evaluation, ClassEvaluation):
        classes = evaluation.log_probs.shape[1]
        return math.log(classes), f"naming all {classes} classes as likely"
    if evaluation.cdf is not None and evaluation.below is not None and not evaluation.cdf.equal(evaluation.below):
        return None, ""
    train = posterior.raw_targets(data.train_targets()).double().cpu()
    train = train.reshape(len(train), -1)  # (N, D)
    test = evaluation.y.double().cpu().reshape(len(evaluation.y), -1)
    mean = train.nanmean(0)
    sd = (train - mean).square().nanmean(0).sqrt().clamp_min(1e-12)
    nll = -torch.distributions.Normal(mean, sd).log_prob(test.nan_to_num(0.0)).where(~test.isnan(), 0.0)
    return float(nll.sum(1).mean()), "one normal for all rows"


def _of_prior(posterior: Posterior, data: Data) -> float:
    x, y = (rows[:_PRIOR_ROWS] for rows in (data.test.x, data.test.y))
    evaluation = evaluate_rows(prior_posterior(posterior), x, y, _PRIOR_DRAWS)
    return -float(evaluation.log_density.double().nanmean())


def _deviations(posterior: Posterior) -> Tensor | None:
    guide = contract_of(posterior.guide)
    if not guide.trains_scales or not guide.site_names():
        return None
    try:
        return torch.cat([guide.site(name).scale.detach().reshape(-1).cpu() for name in guide.site_names()])
    except NotImplementedError:
        return None
