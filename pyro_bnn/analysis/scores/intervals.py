"""
Predictive intervals of a regression, and how often they hold the truth.

The predictive is the equal mixture of draws N(m_s, v_s), s = 1..S, with distribution function

    F(y) = mean_s Phi((y - m_s) / sd_s),

and the central interval of a level has the ends F^-1((1 - level)/2) and F^-1((1 + level)/2). F is increasing, so its
quantile comes by bisection between the smallest and the largest quantile of the components, in float64.

Coverage needs no quantile: y lies in the interval exactly when F(y) does in [(1 - level)/2, (1 + level)/2]; F(y) is
the probability integral transform, uniform for a calibrated model. `Posterior.evaluate` uses this form.

Laws that are not Normal have the same interval with their own distribution functions; see `laws`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pyro_bnn.analysis.scores.laws import mixture_quantile_of_laws
from pyro_bnn.analysis.scores.metrics import check_targets
from pyro_bnn.common.mixtures import check_moments
from pyro_bnn.inference.predictive import RealDraw
from pyro_bnn.posterior import Posterior

__all__ = ["Interval", "coverage", "interval_of", "mixture_interval", "mixture_quantile", "pit", "predictive_interval"]

_HALVINGS = 200


class Interval(NamedTuple):
    """Ends of a central predictive interval, (N,) or (N, D)."""

    lower: Tensor
    upper: Tensor


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not the level of an interval: pass a number between 0 and 1, such as 0.9")


def _check_mixture(means: Tensor, sds: Tensor) -> None:
    if means.ndim == 0 or len(means) == 0:
        raise ValueError(f"means have shape {tuple(means.shape)}; give draws first: (S, N, ...), S >= 1")
    try:
        fits = torch.broadcast_shapes(means.shape, sds.shape) == means.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"sds have shape {tuple(sds.shape)} and means {tuple(means.shape)}; give one sd per mean")
    check_moments(means, sds)


def pit(means: Tensor, sds: Tensor, y: Tensor) -> Tensor:
    """
    Return F(y) of the mixture of draws (S, N, ...) at y (N, ...).

    :param means: the draws' means (S, N) or (S, N, D).
    :param sds: their standard deviations, in the shape of `means`.
    :param y: targets in the shape of the predictions.
    """
    _check_mixture(means, sds)
    check_targets(y, means[0])
    return cast(Tensor, torch.special.ndtr((y.double() - means.double()) / sds.double())).mean(0)


def mixture_quantile(means: Tensor, sds: Tensor, q: float) -> Tensor:
    """
    Return F^-1(q) of the equal mixture of N(m_s, sd_s^2): draws (S, N, ...) -> (N, ...) in float64.

    :param means: the draws' means (S, N) or (S, N, D).
    :param sds: their standard deviations, in the shape of `means`.
    :param q: the probability, between 0 and 1.
    """
    _check_level(q)
    _check_mixture(means, sds)
    means, sds = means.double(), sds.double().expand_as(means)
    ends = means + sds * torch.special.ndtri(torch.tensor(q, dtype=torch.float64, device=means.device))  # (S, N, ...)
    low, high = ends.amin(0), ends.amax(0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if bool(((middle <= low) | (middle >= high)).all()):  # neighbouring numbers: no halving is left
            break
        below = torch.special.ndtr((middle - means) / sds).mean(0) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return cast(Tensor, (low + high) / 2)


def mixture_interval(means: Tensor, sds: Tensor, level: float = 0.9) -> Interval:
    """
    Return the central interval of a level of the equal mixture of N(m_s, sd_s^2), draws (S, N, ...).

    :param means: the draws' means (S, N) or (S, N, D).
    :param sds: their standard deviations, in the shape of `means`.
    :param level: the share that is to lie within, between 0 and 1.
    """
    _check_level(level)
    return Interval(mixture_quantile(means, sds, (1 - level) / 2), mixture_quantile(means, sds, (1 + level) / 2))


def predictive_interval(
    posterior: Posterior,
    x: Any,
    level: float = 0.9,
    num_samples: int = 1000,
    *,
    seed: int | None = None,
    standardised: bool | None = None,
) -> Interval:
    """
    Return central predictive intervals for the rows of x, in the units of the targets; memory grows as S times N.

    :param posterior: the fitted posterior.
    :param x: raw inputs (N, ...).
    :param level: the share that is to lie within, between 0 and 1.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: fixes the draws and leaves the global random state alone.
    :param standardised: whether x is on the model's scale already; default what x says, and raw if it does not.

    >>> import torch
    >>> import pyro_bnn as pb
    >>> posterior = pb.train("mlp-toy-cubic", epochs=1, num_samples=2, progress=False).posterior
    >>> interval = pb.predictive_interval(posterior, torch.tensor([[0.0], [1.0]]), level=0.5, num_samples=20, seed=0)
    >>> (interval.lower < interval.upper).tolist()
    [True, True]
    """
    _check_level(level)
    draws = []
    for draw in posterior.stream(x, num_samples, seed=seed, standardised=standardised):
        if not isinstance(draw, RealDraw):
            raise ValueError("the model predicts classes, which have no interval: use predict or uncertainty")
        draws.append(draw)
    return interval_of(draws, level)


def interval_of(draws: Sequence[RealDraw], level: float = 0.9) -> Interval:
    """
    Return the central interval of a level of the equal mixture of draws, in the shape of their means.

    :param draws: what `Posterior.stream` yields.
    :param level: the share that is to lie within, between 0 and 1.
    """
    _check_level(level)
    if draws[0].laws:
        return Interval(*(mixture_quantile_of_laws(draws, q) for q in ((1 - level) / 2, (1 + level) / 2)))
    return mixture_interval(torch.stack([d.mean.cpu() for d in draws]), torch.stack([d.sd.cpu() for d in draws]), level)


def coverage(interval: Interval, y: Tensor) -> float:
    """
    Share of the targets y that lie in their interval.

    :param interval: its ends.
    :param y: targets in the shape of the predictions.
    """
    if y.shape != interval.lower.shape:
        raise ValueError(f"y has shape {tuple(y.shape)} and the intervals {tuple(interval.lower.shape)}: pass one each")
    check_targets(y, interval.lower)
    if bool((interval.lower.isnan() | interval.upper.isnan()).any()):
        raise ValueError("the intervals have ends that are NaN, which hold nothing: check the quantiles")
    return float(((interval.lower <= y) & (y <= interval.upper)).double().mean())
