"""
Split-conformal intervals: intervals of a regression that hold the truth as often as they say, whatever the model.

Rows (x_i, y_i), i = 1..n, that were not trained on are given scores s_i = s(x_i, y_i). If they and the next row are
exchangeable, the score of the next row is at most the conformal quantile

    q = the k-th smallest of s_1..s_n,    k = ceil((n + 1) level),

with a probability of at least `level`, and at most level + 1 / (n + 1) if no scores tie. With k > n no number is large
enough, and q is infinite: 10 rows cannot promise 95 %. The interval of a row is the set of all y with s(x, y) <= q:

    normalised   s = |y - m(x)| / sd(x)                       m(x) - q sd(x)   to  m(x) + q sd(x)
    cqr          s = max(lower(x) - y, y - upper(x))          lower(x) - q     to  upper(x) + q

m and sd are those of the averaged predictive, lower and upper its central interval of the same level. A q below 0
narrows intervals that were too wide; where ends of such an interval would cross, no y has a score that small, and the
interval is a point in its middle, which holds more and never less.

What is promised holds on average over rows and over calibration sets, not for each kind of row, and not after the data
have shifted. The calibration rows must be neither trained on nor have chosen anything (early stopping, a temperature).

References: Papadopoulos, Proedrou, Vovk, Gammerman 2002 (split conformal prediction); Lei et al. 2018 (normalised
residuals, the upper bound); Romano, Patterson, Candes 2019, arXiv:1905.03222 (CQR).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from pyro_bnn.analysis.scores.intervals import Interval, predictive_interval
from pyro_bnn.common.mixtures import check_moments
from pyro_bnn.posterior import Posterior, RealPrediction

__all__ = [
    "ConformalIntervals",
    "IntervalScore",
    "conformal_intervals",
    "conformal_quantile",
    "conformal_rank",
    "cqr_scores",
    "fewest_rows",
    "normalised_scores",
]

IntervalScore: TypeAlias = Literal["normalised", "cqr"]
"""How far a target is from its prediction: in standard deviations, or beyond the ends of the interval."""

_FINEST = 10**9
"""Levels are taken as the fraction that they were written as: 0.9 is nine tenths."""


def _as_written(level: float) -> Fraction:
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not the level of an interval: pass a number between 0 and 1, such as 0.9")
    return Fraction(level).limit_denominator(_FINEST)


def conformal_rank(rows: int, level: float) -> int:
    """
    Return k = ceil((n + 1) level), in whole numbers.

    :param rows: n, the calibration rows.
    :param level: the share that is to lie within, between 0 and 1.

    >>> conformal_rank(9, 0.9), conformal_rank(8, 0.9), conformal_rank(99, 0.57)  # 0.57 * 100 > 57 in floats
    (9, 9, 57)
    """
    return math.ceil((rows + 1) * _as_written(level))


def fewest_rows(level: float) -> int:
    """
    Return how many calibration rows a level needs at least: the smallest n with ceil((n + 1) level) <= n.

    :param level: the share that is to lie within, between 0 and 1.

    >>> fewest_rows(0.9), fewest_rows(0.95)
    (9, 19)
    """
    exact = _as_written(level)
    return math.ceil(exact / (1 - exact))


def conformal_quantile(scores: Tensor, level: float) -> float:
    """
    Return the k-th smallest score (n,), k = ceil((n + 1) level); infinity where there are fewer than k.

    :param scores: the calibration rows' scores (n,).
    :param level: the share that is to be held.

    >>> import torch
    >>> conformal_quantile(torch.arange(1.0, 10.0), 0.9), conformal_quantile(torch.arange(1.0, 9.0), 0.9)
    (9.0, inf)
    """
    rank = conformal_rank(len(scores), level)
    if scores.ndim != 1 or len(scores) == 0 or bool(scores.isnan().any()):
        raise ValueError(
            f"scores have shape {tuple(scores.shape)}; pass one number per calibration row, (n,), none NaN"
        )
    return math.inf if rank > len(scores) else float(scores.double().kthvalue(rank).values)


def check_enough(rows: int, level: float, too_few: Literal["refuse", "infinite"]) -> None:
    """Refuse calibration rows that are too few for a level, unless an infinite quantile is asked for."""
    if too_few not in ("refuse", "infinite"):
        raise ValueError(f"too_few={too_few!r} is unknown: pass 'refuse' or 'infinite'")
    if too_few == "refuse" and conformal_rank(rows, level) > rows:
        raise ValueError(
            f"{rows} calibration rows cannot promise a level of {level:g}: pass at least {fewest_rows(level)}, a lower "
            "level, or too_few='infinite' for answers that leave nothing out"
        )


def normalised_scores(mean: Tensor, sd: Tensor, y: Tensor) -> Tensor:
    """
    Return |y - mean| / sd, (n,).

    :param mean: predicted means (n,).
    :param sd: predicted standard deviations (n,).
    :param y: targets (n,).
    """
    _check_same_rows(y, mean, sd)
    check_moments(mean, sd)
    return (y.double() - mean.double()).abs() / sd.double()


def cqr_scores(lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """
    Return max(lower - y, y - upper), (n,): below 0 inside of the interval.

    :param lower: the lower end of each row's interval.
    :param upper: the upper end.
    :param y: targets (n,).
    """
    _check_same_rows(y, lower, upper)
    return torch.maximum(lower.double() - y.double(), y.double() - upper.double())


def _check_same_rows(y: Tensor, *others: Tensor) -> None:
    if y.ndim != 1 or any(other.shape != y.shape for other in others):
        shapes = ", ".join(str(tuple(value.shape)) for value in (y, *others))
        raise ValueError(f"targets and predictions have shapes {shapes}: a conformal interval is of one target, (n,)")
    if not bool(y.isfinite().all()):
        raise ValueError("y contains NaN or infinity: leave out the calibration rows whose target is not known")


@final
@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """
    Calibrated intervals of a posterior; `conformal_intervals` makes them.

    :param posterior: what predicts.
    :param level: how often an interval holds the truth.
    :param score: "normalised" or "cqr".
    :param quantile: q, infinite where the calibration rows were too few.
    :param rows: n, the calibration rows.
    :param num_samples: draws of a prediction.
    :param seed: of the draws; the scores were taken with the same.
    """

    posterior: Posterior
    level: float
    score: IntervalScore
    quantile: float
    rows: int
    num_samples: int
    seed: int

    def __call__(self, x: Any) -> Interval:
        """Return the ends for raw inputs x (N, ...), in the units of the targets."""
        if math.isinf(self.quantile):
            rows = len(x[0]) if isinstance(x, tuple) else len(x)
            ends = torch.full((rows,), math.inf, dtype=torch.float64)
            return Interval(-ends, ends)
        first, second = _bands(self.posterior, x, self.level, self.score, self.num_samples, self.seed)
        if self.score == "normalised":
            return Interval(first - self.quantile * second, first + self.quantile * second)
        lower, upper = first - self.quantile, second + self.quantile
        middle = (lower + upper) / 2
        return Interval(torch.minimum(lower, middle), torch.maximum(upper, middle))


def conformal_intervals(
    posterior: Posterior,
    x: Any,
    y: Any,
    level: float = 0.9,
    score: IntervalScore = "normalised",
    *,
    num_samples: int = 100,
    seed: int = 0,
    too_few: Literal["refuse", "infinite"] = "refuse",
) -> ConformalIntervals:
    """
    Calibrate the intervals of a posterior on rows that it was not trained on.

    :param posterior: the fitted posterior.
    :param x: raw inputs of the calibration rows, (n, ...).
    :param y: their raw targets, (n,).
    :param level: how often an interval shall hold the truth.
    :param score: "normalised" stretches the standard deviation, "cqr" moves the ends of the predictive interval.
    :param num_samples: draws of a prediction.
    :param seed: of the draws; the global random state is left as it is.
    :param too_few: what to do where n rows cannot promise the level: refuse, or make every interval infinite.

    >>> import torch
    >>> from pyro_bnn.guides import AutoMeanFieldNormal
    >>> from pyro_bnn.inference import fit
    >>> from pyro_bnn.models import BNN, MLP, likelihoods, priors
    >>> from pyro_bnn.optim import Adam
    >>> from pyro_bnn.posterior import Posterior
    >>> x = torch.linspace(-1, 1, 120).unsqueeze(-1)[torch.randperm(120)]
    >>> y = x[:, 0] ** 2 + 0.1 * torch.randn(120)
    >>> model = BNN(MLP(1, 1, [8]), priors.FanIn(), likelihoods.Gaussian(0.02), num_data=60)  # too sure of itself
    >>> guide = AutoMeanFieldNormal(model)
    >>> _ = fit(model, guide, Adam({"lr": 1e-2}), (x[:60], y[:60]), epochs=100, seed=0)
    >>> intervals = conformal_intervals(Posterior(model, guide), x[60:], y[60:], level=0.9)
    >>> intervals.quantile > 1.645  # which a deviation that is right would have
    True
    >>> lower, upper = intervals(torch.tensor([[0.5]]))
    >>> bool(lower < 0.25 < upper)
    True
    """
    if score not in ("normalised", "cqr"):
        raise ValueError(f"score={score!r} is unknown: pass 'normalised' or 'cqr'")
    targets = posterior.raw_targets(y).cpu().double()
    check_enough(len(targets), level, too_few)
    first, second = _bands(posterior, x, level, score, num_samples, seed)
    scores = (normalised_scores if score == "normalised" else cqr_scores)(first, second, targets)
    q = conformal_quantile(scores, level)
    return ConformalIntervals(posterior, level, score, q, len(targets), num_samples, seed)


def _bands(
    posterior: Posterior, x: Any, level: float, score: str, num_samples: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each row, or the ends of its predictive interval, in float64."""
    if score == "cqr":
        ends = predictive_interval(posterior, x, level, num_samples, seed=seed)
        return ends.lower.cpu().double(), ends.upper.cpu().double()
    prediction = posterior.predict(x, num_samples, seed=seed)
    if not isinstance(prediction, RealPrediction):
        raise ValueError("the model predicts classes, which have no interval: use conformal_sets")
    return prediction.mean.cpu().double(), prediction.sd.cpu().double()
