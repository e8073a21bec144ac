"""
Calibration of class probabilities: reliability bins, adaptive ECE, temperature scaling.

With confidence c_i = max_k p_ik and r_i = 1 where that class is the label:

    reliability   per bin of confidence: count, mean c, mean r; the gap |mean r - mean c| is what ECE averages
    adaptive ECE  sum_b n_b/N |mean_b r - mean_b c| over bins of equal count instead of equal width
    temperature   p_T(k) = p_k^(1/T) / sum_j p_j^(1/T),  T = argmin over T > 0 of -mean_i log p_T(y_i)

The temperature acts on the log of the averaged predictive, not on the draws' logits: it keeps the ranking of classes
and so the accuracy. It is fitted on validation rows. The NLL is convex in b = 1/T, with

    d/db    = mean_i (E_b[log p_i] - log p_i,y_i)          E_b, Var_b: over classes, under p_T
    d2/db2  = mean_i Var_b[log p_i],

so Newton's method inside a shrinking bracket finds its minimum to the last digits. T is held within 1e-3 and 1e3, the
ends of which rows that are all right and mostly wrong reach; where every T gives the same, it is 1. A label of
probability 0 has an infinite NLL at every T and is refused. Guo et al. 2017, arXiv:1706.04599; Nixon et al. 2019,
arXiv:1904.01685 (adaptive bins). Confidences that tie may fall into two bins of equal count.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pyro_bnn.analysis.scores.metrics import BINS, check_bins, check_predictions
from pyro_bnn.common.mixtures import check_log_probs

__all__ = ["Reliability", "adaptive_ece", "fit_temperature", "reliability", "scale_temperature"]

_LIMITS = (1e-3, 1e3)
"""Inverse temperatures searched."""


@final
@dataclass(frozen=True)
class Reliability:
    """
    Bins of confidence: edges (B + 1,), counts (B,), mean confidence and accuracy (B,), NaN where a bin is empty.

    :param edges: ends of the bins, (B + 1,).
    :param count: rows in each, (B,).
    :param confidence: mean confidence in each, (B,).
    :param accuracy: share of right answers in each, (B,).
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def ece(self) -> float:
        """Expected calibration error over these bins."""
        gap = (self.accuracy - self.confidence).abs().nan_to_num(0)
        return float((self.count * gap).sum() / self.count.sum())


def _confidence(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    labels = check_predictions(log_probs, labels)
    top, guess = log_probs.double().max(1)
    return top.exp(), (guess == labels).double()


def _gather(place: Tensor, edges: Tensor, confidence: Tensor, right: Tensor) -> Reliability:
    bins = len(edges) - 1
    count = torch.bincount(place, minlength=bins).double()
    sums = [torch.zeros_like(count).index_add_(0, place, v) for v in (confidence, right)]
    return Reliability(edges, count, sums[0] / count, sums[1] / count)


def reliability(log_probs: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """
    Return bins of equal width [b/B, (b+1)/B) of the confidence of (N, K) log-probabilities; 1 is in the last.

    :param log_probs: log-probabilities (N, K).
    :param labels: the right classes (N,), whole numbers from 0.
    :param bins: how many bins of confidence.
    """
    check_bins(bins)
    confidence, right = _confidence(log_probs, labels)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    place = torch.bucketize(confidence, edges[1:-1].to(confidence.device), right=True)
    return _gather(place, edges, confidence, right)


def adaptive_ece(log_probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """
    Expected calibration error over bins that hold equally many rows (N, K); fewer rows than bins: one bin each.

    :param log_probs: log-probabilities (N, K).
    :param labels: the right classes (N,), whole numbers from 0.
    :param bins: how many bins of confidence.
    """
    check_bins(bins)
    confidence, right = _confidence(log_probs, labels)
    order = confidence.argsort(stable=True)
    parts = zip(confidence[order].tensor_split(bins), right[order].tensor_split(bins), strict=True)
    return float(sum(len(c) * abs(r.mean() - c.mean()) for c, r in parts if len(c))) / len(labels)


def scale_temperature(log_probs: Tensor, temperature: float) -> Tensor:
    """
    Return log p_T (N, K): above 1 flatter, below 1 sharper.

    :param log_probs: log-probabilities (N, K).
    :param temperature: T, above 0.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature={temperature} divides no logits: pass a finite number above 0")
    check_log_probs(log_probs, shape="(..., K)")
    return (log_probs / temperature).log_softmax(-1)


def fit_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """
    Return the temperature from 1e-3 to 1e3 with the lowest NLL on validation rows.

    :param log_probs: log of the averaged predictive, (N, K).
    :param labels: their labels, (N,).
    """
    labels = check_predictions(log_probs, labels)
    values = log_probs.double() - log_probs.double().amax(1, keepdim=True)  # (N, K), the highest of each row is 0
    of_label = values.gather(1, labels[:, None])[:, 0]
    if not bool(of_label.isfinite().all()):
        row = int((~of_label.isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"row {row} gives its label probability 0, and so it does at every temperature: leave such rows out, or "
            "take logarithms of probabilities before they round to 0 (log_softmax)"
        )
    finite = values.clamp(min=-torch.finfo(torch.float64).max)  # what is -inf has p = 0

    def slope_and_curvature(b: float) -> tuple[float, float]:
        p = (b * values).softmax(1)
        mean = (p * finite).sum(1)
        spread = torch.where(p > 0, p * (finite - mean[:, None]).square(), torch.zeros_like(p)).sum(1)
        return float((mean - of_label).mean()), float(spread.mean())

    low, high = _LIMITS
    if slope_and_curvature(1.0)[0] == 0:
        return 1.0
    if slope_and_curvature(low)[0] >= 0:
        return 1 / low
    if slope_and_curvature(high)[0] <= 0:
        return 1 / high
    b = 1.0
    for _ in range(200):
        slope, curvature = slope_and_curvature(b)
        low, high = (b, high) if slope < 0 else (low, b)
        if slope == 0 or high / low < 1 + 1e-14:
            break
        step = b - slope / curvature if curvature > 0 else low
        b, before = (step if low < step < high else (low * high) ** 0.5), b
        if abs(b / before - 1) < 1e-14:
            break
    return 1 / b
