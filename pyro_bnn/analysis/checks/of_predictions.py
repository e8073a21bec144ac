"""
Checks of predictions: better than knowing nothing, calibrated, like the data, stable when a row is left out, chains.

    below prior   the predictive NLL against the entropy of the labels, or of a normal at the targets' mean and sd
    calibration   the expected calibration error against its distribution if the predictive were true
    replicated    p = P[T(y_rep) <= T(y)] with T the mean log density under the predictive (Gelman, Meng and Stern 1996)
    Pareto-k      of leaving each training row out (Vehtari, Gelman and Gabry 2017, arXiv:1507.04544)
    chains        rank-normalised split R-hat and ESS of predictions (Vehtari et al. 2021, arXiv:1903.08008)
"""

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.analysis.checks.check import Check
from pyro_bnn.analysis.checks.of_weights import pareto_k
from pyro_bnn.analysis.checks.rows import At, Rows
from pyro_bnn.analysis.scores.metrics import ece as expected_calibration_error
from pyro_bnn.analysis.scores.metrics import ece_null
from pyro_bnn.common.contract import contract_of
from pyro_bnn.common.mixtures import PredictiveAccumulator
from pyro_bnn.inference.draws import ClassDraw, Draw
from pyro_bnn.inference.predictive import observation_log_prob, predictive_draws
from pyro_bnn.inference.samplers.mcmc import MAX_RHAT, MIN_ESS, convergence
from pyro_bnn.posterior import Posterior

__all__ = [
    "check_against_nothing",
    "check_calibration",
    "check_chains",
    "check_leave_one_out",
    "check_replicated",
    "drawn_from",
]


def drawn_from(posterior: Posterior, rows: Rows, draws: int, seed: int) -> list[Draw]:
    """Return what single draws say on the model's own scale."""
    with posterior.turn(rows.x[:1]), torch.no_grad():
        return list(predictive_draws(posterior.model, posterior.guide, rows.x, draws, seed=seed))


def _log_lik(drawn: list[Draw], y: Tensor) -> Tensor:
    """Return log p(y_i | x_i, w_s), (S, n)."""
    return torch.stack([observation_log_prob(draw, y, missing=True).double() for draw in drawn])


def check_against_nothing(drawn: list[Draw], rows: Rows, train: Rows) -> Check:
    """Check that the predictive is better than the shares of the classes, or than one normal for all rows."""
    name = "has learned"
    density = _log_lik(drawn, rows.y).logsumexp(0) - math.log(len(drawn))
    nll = -float(density.mean())
    if isinstance(drawn[0], ClassDraw):
        classes = drawn[0].log_probs.shape[-1]
        shares = torch.bincount(train.y.long(), minlength=classes).double() + 1
        blind = -(shares / shares.sum()).log()[rows.y.long()]
        what = "the shares of the classes"
    elif drawn[0].laws:
        return Check(name, "not checked", "Asked of classes and of normal noise only.")
    else:
        y, seen = rows.y.double(), train.y.double()
        law = torch.distributions.Normal(seen.mean(0), seen.std(0).clamp_min(1e-12))
        blind = -law.log_prob(y).reshape(len(y), -1).sum(1)
        what = "one normal for all rows"
    gain = blind + density  # (n,)
    mean, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain))
    words = f"The predictive NLL is {nll:.4g}, {mean:.3g} +- {error:.2g} nats a row below that of {what}."
    threshold = "not above 0 is bad, by 2 standard errors"
    if mean > 2 * error:
        return Check(name, "good", words, threshold, mean)
    words += " The posterior predicts no better than if it had seen no input: a rate that was too high, a collapse?"
    return Check(name, "bad", words, threshold, mean)


def check_calibration(drawn: list[Draw], rows: Rows) -> Check:
    """Check the predictive's calibration on held-out rows."""
    name = "calibration"
    threshold = "outside of the null's 95 % is doubtful, above twice of it bad (own marks; 5 % false alarms)"
    if isinstance(drawn[0], ClassDraw):
        accumulated = PredictiveAccumulator()
        for draw in drawn:
            assert isinstance(draw, ClassDraw)
            accumulated.update(draw.log_probs)
        log_probs = accumulated.log_probs
        ece, null = float(expected_calibration_error(log_probs, rows.y)), ece_null(log_probs)
        limit = float(null["upper"])
        confidence = float(log_probs.exp().max(-1).values.mean())
        accuracy = float((log_probs.argmax(-1) == rows.y).double().mean())
        side = "sure of itself" if confidence > accuracy else "doubtful"
        words = f"ECE is {ece:.4f} where a calibrated predictive has at most {limit:.4f} in 95 % of cases."
        if ece <= limit:
            return Check(name, "good", words, threshold, ece)
        words += (
            f" It is too {side} ({confidence:.1%} sure, {accuracy:.1%} right): scale its temperature on validation."
        )
        return Check(name, "bad" if ece > 2 * limit else "doubtful", words, threshold, ece)
    if drawn[0].laws:
        return Check(name, "not checked", "Asked of classes and of normal noise only.")
    y = rows.y.unsqueeze(-1) if rows.y.dim() == 1 else rows.y
    cdf = torch.stack([torch.distributions.Normal(d.mean, d.sd).cdf(y.reshape(d.mean.shape)) for d in drawn])  # type: ignore[union-attr]
    u = cdf.double().mean(0)  # (n, D)
    inside = ((u > 0.05) & (u < 0.95)).double()
    covered, error = float(inside.mean()), math.sqrt(0.09 / len(y))
    words = f"{covered:.1%} of the held-out targets lie within the predictive's central 90 %."
    off = abs(covered - 0.9) / error
    marks = "2 standard errors from 90 % is doubtful (5 % false alarms), 4 bad"
    if off < 2:
        return Check(name, "good", words, marks, covered)
    words += " It is too sure of itself." if covered < 0.9 else " It is too doubtful."
    return Check(name, "bad" if off >= 4 else "doubtful", words, marks, covered)


def check_replicated(drawn: list[Draw], rows: Rows, seed: int) -> Check:
    """Check whether targets drawn from the predictive are as likely under it as those at hand."""
    name = "replicated data"
    generator = torch.Generator().manual_seed(seed)
    actual = float(_log_lik(drawn, rows.y).logsumexp(0).mean())
    again = [float(_log_lik(drawn, d.sample(generator).to(rows.y)).logsumexp(0).mean()) for d in drawn]
    p = sum(value <= actual for value in again) / len(again)
    threshold = "below .005 or above .995 is bad, below .025 or above .975 doubtful (a two-sided predictive p-value)"
    words = f"Of {len(again)} data sets drawn from the predictive, {p:.0%} are less likely than the data."
    tail = min(p, 1 - p)
    if tail >= 0.025:
        return Check(name, "good", words, threshold, p)
    words += (
        " The predictive is surer than it is right." if p < 0.5 else " The predictive expects more noise than there is."
    )
    return Check(name, "bad" if tail < 0.005 else "doubtful", words, threshold, p)


def check_leave_one_out(posterior: Posterior, drawn: list[Draw], train: Rows) -> Check:
    """Check how much single training rows decide."""
    name = "Pareto-k of LOO"
    info, spread = posterior.info, contract_of(posterior.guide).trains_scales
    if info.get("eta", 1.0) != 1 or info.get("temperature", 1.0) != 1:
        eta, t = info.get("eta", 1.0), info.get("temperature", 1.0)
        return Check(name, "not checked", f"Not defined for a tempered posterior (eta = {eta:g}, T = {t:g}).")
    if not spread and not contract_of(posterior.guide).decks():
        return Check(name, "not checked", "The posterior is a point.")
    if len(drawn) < 100:
        return Check(name, "not checked", f"Needs 100 draws and has {len(drawn)}.")
    ratios = -_log_lik(drawn, train.y)  # (S, n)
    ks = torch.tensor([pareto_k(column.numpy()) for column in ratios.T])
    high = float((ks > 0.7).double().mean())
    threshold = "k above .7 (Vehtari, Gelman and Gabry 2017) for 1 % of the rows is doubtful, for 10 % bad (own marks)"
    words = f"{high:.1%} of {len(train)} training rows have a k above .7."
    if high > 0.01:
        words += " Leaving one of them out changes the posterior: LOO is not to be trusted, held-out rows are."
    return Check(name, "bad" if high > 0.1 else "doubtful" if high > 0.01 else "good", words, threshold, high)


def check_chains(posterior: Posterior, rows: Rows) -> Check:
    """Check R-hat and ESS of predictions, chain by chain."""
    name, promised = "chains", contract_of(posterior.guide)
    if promised.chains < 2:
        return Check(name, "not checked", "The posterior is not made of several chains.")
    stored = promised.by_site()
    if stored is None:
        return Check(name, "not checked", "The chains do not show their draws.")
    draws = next(iter(stored.values())).shape[1]
    predictions = []
    with posterior.turn(rows.x[:1]), torch.no_grad():
        for c, s in product(range(promised.chains), range(draws)):
            one = At({site: values[c, s] for site, values in stored.items()})
            predictions.append(next(iter(predictive_draws(posterior.model, one, rows.x[:50], 1))).prediction)
    seen: Any = convergence(torch.stack(predictions).unflatten(0, (promised.chains, -1)))
    worst = f"the worst R-hat of a prediction is {seen.rhat:.3f}, the smallest ESS {seen.ess_bulk:.0f}"
    words = f"{promised.chains} chains: {worst}."
    threshold = f"R-hat {MAX_RHAT} and ESS {MIN_ESS:g} (Vehtari et al. 2021); R-hat 1.1 is bad"
    if seen.rhat <= MAX_RHAT and seen.ess_bulk >= MIN_ESS:
        return Check(name, "good", words, threshold, seen.rhat)
    words += " Sample longer."
    return Check(name, "bad" if seen.rhat > 1.1 else "doubtful", words, threshold, seen.rhat)
