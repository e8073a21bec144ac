"""
Out-of-distribution detection: scores, and how well they tell unfamiliar inputs from familiar ones.

Scores, all high for unfamiliar inputs and all always reported:

    entropy              H(p), total uncertainty
    mutual_information   I(y; w | x), epistemic uncertainty
    max_probability      1 - max_k p_k

Out-of-distribution is the positive class. AUROC is the chance that a random unfamiliar input scores above a random
familiar input (ties count half). FPR95 is the share of familiar inputs refused when the threshold lets 95 % of the
unfamiliar ones be found. Hendrycks and Gimpel 2017, arXiv:1610.02136. Both are torchmetrics'; it takes scores outside
[0, 1] for logits and squashes them, so it is handed their ranks.

The unfamiliar set goes through the standardiser of the familiar data, as it would in use; its own would hide exactly
the shift that is to be found. Handed in raw, or standardised with any statistics that it says, it does.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_bnn.common.mixtures import PredictiveAccumulator
from pyro_bnn.data.arrays import Inputs
from pyro_bnn.data.standardise import plain, standardiser_of
from pyro_bnn.inference.predictive import ClassDraw
from pyro_bnn.posterior import Posterior

__all__ = ["auroc", "detect", "fpr95", "gaussian_noise", "ood_scores", "ood_table", "shuffled_pixels"]


def ood_scores(predictive: PredictiveAccumulator) -> dict[str, Tensor]:
    """
    Return every score (N,), high for unfamiliar inputs, of predictions that were accumulated.

    :param predictive: what took the draws in.
    """
    return {
        "entropy": predictive.total,
        "mutual_information": predictive.epistemic,
        "max_probability": 1 - predictive.log_probs.amax(1).exp(),
    }


def _ranked(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets' ranks in (0, 1), equal scores sharing one, and the target: 1 where out of distribution."""
    if inside.ndim != 1 or outside.ndim != 1 or len(inside) == 0 or len(outside) == 0:
        raise ValueError(
            f"scores have shapes {tuple(inside.shape)} (in distribution) and {tuple(outside.shape)} (out); "
            "both need (N,) with at least one row"
        )
    scores = torch.cat([inside, outside]).double()
    if bool(torch.isnan(scores).any()):
        raise ValueError("scores contain NaN: every input needs a place in the order")
    values, places = torch.unique(scores, return_inverse=True)
    ranks = (places.double() + 1) / (len(values) + 1)
    return ranks, torch.cat([torch.zeros_like(inside), torch.ones_like(outside)]).long()


def auroc(inside: Tensor, outside: Tensor) -> float:
    """
    Area under the ROC curve of scores (N,) and (M,); out of distribution is the positive class.

    :param inside: scores of familiar inputs, (N,).
    :param outside: scores of unfamiliar ones, (M,).

    >>> import torch
    >>> import pyro_bnn as pb
    >>> pb.auroc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.35, 0.9]))  # 7 of 8 pairs are in order
    0.875
    """
    from torchmetrics.functional.classification import binary_auroc

    return float(binary_auroc(*_ranked(inside, outside), thresholds=None))


def fpr95(inside: Tensor, outside: Tensor) -> float:
    """
    Share of in-distribution inputs above the threshold that finds at least 95 % of the out-of-distribution ones.

    :param inside: scores of familiar inputs, (N,).
    :param outside: scores of unfamiliar ones, (M,).
    """
    from torchmetrics.functional.classification import binary_specificity_at_sensitivity

    ranks, target = _ranked(inside, outside)
    specificity, _ = binary_specificity_at_sensitivity(ranks, target, min_sensitivity=0.95, thresholds=None)
    return 1 - float(specificity)


def ood_table(inside: Mapping[str, Tensor], outside: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """
    Return AUROC and FPR95 by score: {"entropy": {"auroc": ..., "fpr95": ...}, ...}.

    :param inside: scores of familiar inputs (N,), by name.
    :param outside: scores of unfamiliar ones (M,), by name.
    """
    if inside.keys() != outside.keys():
        raise ValueError(
            f"the scores are {', '.join(inside)} in distribution and {', '.join(outside)} out of it: give both the same"
        )
    return {
        name: {"auroc": auroc(inside[name], outside[name]), "fpr95": fpr95(inside[name], outside[name])}
        for name in inside
    }


def accumulate(posterior: Posterior, x: Inputs, num_samples: int, seed: int | None) -> PredictiveAccumulator:
    """Return the predictive of the rows of x, draw by draw, on the CPU."""
    result = PredictiveAccumulator()
    for draw in posterior.stream(x, num_samples, seed=seed):
        if not isinstance(draw, ClassDraw):
            raise ValueError("the model predicts numbers; these scores are for classes")
        result.update(draw.log_probs.cpu())
    return result


def detect(
    posterior: Posterior, inside: Tensor, outside: Tensor, num_samples: int = 100, *, seed: int | None = 0
) -> dict[str, dict[str, float]]:
    """
    Score familiar and unfamiliar inputs with a posterior and return AUROC and FPR95 of every score.

    :param posterior: the fitted posterior.
    :param inside: familiar inputs, raw or as `Standardised` tensors.
    :param outside: likewise unfamiliar ones.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; the global random state is left as it is.
    """
    scores = [ood_scores(accumulate(posterior, x, num_samples, seed)) for x in (inside, outside)]
    return ood_table(*scores)


def gaussian_noise(like: Tensor, *, seed: int = 0) -> Tensor:
    """
    Return inputs of the same shape drawn from N(0, 1), which is what standardised data have per channel.

    :param like: inputs whose shape is taken.
    :param seed: of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(like.shape, generator=generator).to(plain(like))
    scale = standardiser_of(like)
    return noise if scale is None else scale.mark(noise)


def shuffled_pixels(x: Tensor, *, seed: int = 0) -> Tensor:
    """
    Return the rows of x with the values of each put into a random order of its own: same histogram, no shape.

    :param x: inputs (N, ...).
    :param seed: of the orders.
    """
    generator = torch.Generator().manual_seed(seed)
    flat = x.flatten(1)
    order = torch.rand(flat.shape, generator=generator).argsort(1).to(x.device)
    return flat.gather(1, order).view_as(x)
