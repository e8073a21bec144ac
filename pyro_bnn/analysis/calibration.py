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

so Newton's method inside a shrinking bracket finds its minimum to the last digits. Guo et al. 2017, arXiv:1706.04599;
Nixon et al. 2019, arXiv:1904.01685 (adaptive bins). Confidences that tie may fall into two bins of equal count.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pyro_bnn.analysis.metrics import BINS

__all__ = ["Reliability", "adaptive_ece", "fit_temperature", "reliability", "scale_temperature"]

_LIMITS = (1e-3, 1e3)
"""Inverse temperatures searched: outside them a predictive is a uniform or a one-hot distribution in all but name."""


@final
@dataclass(frozen=True)
class Reliability:
    """Bins of confidence: edges (B + 1,), counts (B,), mean confidence and accuracy (B,), NaN where a bin is empty."""

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
    if log_probs.ndim != 2 or len(log_probs) != len(labels) or len(labels) == 0:
        raise ValueError(f"log_probs have shape {tuple(log_probs.shape)} for {len(labels)} labels; give (N, K), N >= 1")
    top, guess = log_probs.double().max(1)
    return top.exp(), (guess == labels).double()


def _gather(place: Tensor, edges: Tensor, confidence: Tensor, right: Tensor) -> Reliability:
    bins = len(edges) - 1
    count = torch.bincount(place, minlength=bins).double()
    sums = [torch.zeros_like(count).index_add_(0, place, v) for v in (confidence, right)]
    return Reliability(edges, count, sums[0] / count, sums[1] / count)


def reliability(log_probs: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Return bins of equal width [b/B, (b+1)/B) of the confidence of (N, K) log-probabilities; 1 is in the last."""
    confidence, right = _confidence(log_probs, labels)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    place = torch.bucketize(confidence, edges[1:-1].to(confidence.device), right=True)
    return _gather(place, edges, confidence, right)


def adaptive_ece(log_probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error over bins that hold equally many rows (N, K); fewer rows than bins: one bin each."""
    confidence, right = _confidence(log_probs, labels)
    order = confidence.argsort(stable=True)
    parts = zip(confidence[order].tensor_split(bins), right[order].tensor_split(bins), strict=True)
    return float(sum(len(c) * abs(r.mean() - c.mean()) for c, r in parts if len(c))) / len(labels)


def scale_temperature(log_probs: Tensor, temperature: float) -> Tensor:
    """Return log p_T (N, K): above 1 flatter, below 1 sharper."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} is not one: pass a number above 0")
    return (log_probs / temperature).log_softmax(-1)


def fit_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """
    Return the temperature with the lowest NLL on validation rows.

    :param log_probs: log of the averaged predictive, (N, K).
    :param labels: their labels, (N,).
    """
    _confidence(log_probs, labels)
    values = log_probs.double().clamp(min=math.log(torch.finfo(torch.float64).tiny))  # (N, K), finite
    of_label = values.gather(1, labels[:, None].long())[:, 0].mean()
    low, high = _LIMITS
    b = 1.0
    for _ in range(200):
        p = (b * values).softmax(1)
        mean = (p * values).sum(1)
        slope = float(mean.mean() - of_label)
        low, high = (b, high) if slope < 0 else (low, b)
        if slope == 0 or high / low < 1 + 1e-14:
            break
        curvature = float(((p * values.square()).sum(1) - mean.square()).mean())
        step = b - slope / curvature if curvature > 0 else low
        b, before = (step if low < step < high else (low * high) ** 0.5), b
        if abs(b / before - 1) < 1e-14:
            break
    return 1 / b
