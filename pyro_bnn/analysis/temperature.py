"""
A temperature for a whole posterior's predictive, fitted on validation rows.

Classes: p_T(k) = p_k^(1/T) / sum_j p_j^(1/T) of the averaged predictive p, with the T of the lowest NLL
(:mod:`pyro_bnn.analysis.scores.calibration`).

Numbers: the power p^(1/T) of a Normal is the Normal whose deviation is sqrt(T) times as large, about the same mean; a
mixture of Normals has no such power in closed form, and is stretched about its mean m(x) likewise,

    p_T(y) = p(m + (y - m) / r) / r,    r = sqrt(T),

which is again a mixture, of N(m + r (m_s - m), r^2 sd_s^2). Its NLL on the validation rows is smooth in log r, and is
minimised there by a golden section search between r = 1/32 and r = 32.

T above 1 says that the posterior was too sure of itself. The mean, and the ranking of classes, stay as they are. Rows
that fit T must be neither trained on nor calibrate anything else (`conformal_intervals`).
"""

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from pyro_bnn.analysis.scores.calibration import fit_temperature, scale_temperature
from pyro_bnn.analysis.scores.intervals import Interval, mixture_interval
from pyro_bnn.analysis.scores.metrics import log_mean_exp, mixture_nll
from pyro_bnn.inference.predictive import ClassDraw
from pyro_bnn.posterior import Posterior, RealPrediction

__all__ = ["TemperedPosterior", "at_temperature", "with_temperature"]

_WIDEST = math.log(32)
_SECTIONS = 60
_GOLDEN = (math.sqrt(5) - 1) / 2


@final
@dataclass(frozen=True, eq=False)
class TemperedPosterior:
    """
    A posterior whose predictive has a temperature; `with_temperature` fits it.

    :param posterior: what predicts.
    :param temperature: T; 1 changes nothing.
    :param num_samples: draws of a prediction.
    :param seed: of the draws.
    """

    posterior: Posterior
    temperature: float
    num_samples: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature={self.temperature} is none: pass a finite number above 0")

    def predict(self, x: Any) -> Tensor | RealPrediction:
        """Return probabilities (N, K), or means and deviations (N,), of raw inputs x (N, ...)."""
        drawn = _drawn(self.posterior, x, self.num_samples, self.seed)
        if isinstance(drawn, Tensor):
            return scale_temperature(drawn, self.temperature).exp()
        means, sds = at_temperature(*drawn, self.temperature)
        mean = means.mean(0)
        return RealPrediction(mean, (sds.square().mean(0) + means.var(0, correction=0)).sqrt())

    def interval(self, x: Any, level: float = 0.9) -> Interval:
        """
        Return the ends of the central predictive interval of a level, (N,) each.

        :param x: raw inputs (N, ...).
        """
        drawn = _drawn(self.posterior, x, self.num_samples, self.seed)
        if isinstance(drawn, Tensor):
            raise ValueError("the model predicts classes, which have no interval: use predict")
        return mixture_interval(*at_temperature(*drawn, self.temperature), level)


def at_temperature(means: Tensor, sds: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """
    Return the mixture of N(m_s, sd_s^2), draws (S, N, ...), stretched about its mean by sqrt(T).

    :param means: the draws' means (S, N) or (S, N, D).
    :param sds: their standard deviations, in the shape of `means`.
    :param temperature: T, above 0.

    >>> import torch
    >>> means, sds = at_temperature(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]]), 4.0)
    >>> means.flatten().tolist(), sds.flatten().tolist()
    ([-1.0, 3.0], [2.0, 2.0])
    """
    root = math.sqrt(temperature)
    centre = means.mean(0)
    return centre + root * (means - centre), root * sds


def with_temperature(
    posterior: Posterior, x: Any, y: Any, num_samples: int = 100, *, seed: int = 0
) -> TemperedPosterior:
    """
    Fit the temperature of a posterior's predictive on validation rows, and return the posterior at it.

    :param posterior: the posterior; it stays as it is.
    :param x: raw inputs of the validation rows, (N, ...).
    :param y: their labels (N,), or raw targets (N,).
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; the global random state is left as it is.

    >>> import pyro_bnn as pb
    >>> posterior, digits = pb.load("lenet5-mnist-mini"), pb.load_data("mnist-mini").test
    >>> tempered = with_temperature(posterior, digits.x[:100], digits.y[:100], num_samples=5)
    >>> tempered.temperature > 0, tempered.predict(digits.x[:2]).shape
    (True, torch.Size([2, 10]))
    """
    drawn = _drawn(posterior, x, num_samples, seed)
    targets = posterior.raw_targets(y).cpu()
    if isinstance(drawn, Tensor):
        return TemperedPosterior(posterior, fit_temperature(drawn, targets.long()), num_samples, seed)
    means, sds = drawn
    if targets.shape != means.shape[1:] or not bool(targets.isfinite().all()):
        raise ValueError(f"y has shape {tuple(targets.shape)}: pass a finite target for each row, {means.shape[1:]}")
    targets = targets.double()

    def loss(log_root: float) -> float:
        return mixture_nll(*at_temperature(means, sds, math.exp(2 * log_root)), targets)

    return TemperedPosterior(posterior, math.exp(2 * _lowest(loss, -_WIDEST, _WIDEST)), num_samples, seed)


def _lowest(loss: Any, low: float, high: float) -> float:
    """Return where a function of one valley is lowest, by golden sections."""
    first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_first, at_second = loss(first), loss(second)
    for _ in range(_SECTIONS):
        if at_first <= at_second:
            high, second, at_second = second, first, at_first
            first = high - _GOLDEN * (high - low)
            at_first = loss(first)
        else:
            low, first, at_first = first, second, at_second
            second = low + _GOLDEN * (high - low)
            at_second = loss(second)
    return (low + high) / 2


def _drawn(posterior: Posterior, x: Any, num_samples: int, seed: int) -> Tensor | tuple[Tensor, Tensor]:
    """Return log-probabilities of the averaged predictive (N, K), or means and deviations of draws (S, N), float64."""
    log_probs, means, sds = [], [], []
    for draw in posterior.stream(x, num_samples, seed=seed):
        if isinstance(draw, ClassDraw):
            log_probs.append(draw.log_probs.cpu().double())
        elif draw.laws:
            raise ValueError("the observations are no Normals: a temperature is for classes and Normals")
        else:
            means.append(draw.mean.cpu().double())
            sds.append(draw.sd.cpu().double())
    return log_mean_exp(torch.stack(log_probs)) if log_probs else (torch.stack(means), torch.stack(sds))
