"""
Distribution functions of any law: what one draw says of a target, and quantiles of a mixture of draws.

F(y) = P(Y <= y) and F(y-) = P(Y < y) of each element of y (N,) or (N, D), in float64:

    Student's t, Beta       SciPy's functions, which torch has not
    Poisson(r)              F(k) = Q(k + 1, r)               the regularised upper incomplete gamma function
    negative binomial       F(k) = I_{1-p}(r, k + 1)         the regularised incomplete beta function
    binomial                F(k) = I_{1-p}(n - k, k + 1)
    multivariate Normals    their marginals
    monotone transforms     F of the base at the value turned back, 1 - F where the transform falls
    other laws              their own `cdf`; of counts the sum of their probabilities up to y <= 1000; and where there
                            is neither, the share among 1000 samples of each draw, from a fixed seed

Counts have F(y-) = F(y - 1).
"""

from collections.abc import Callable, Sequence
from typing import Any, cast, final

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, TransformedDistribution

from pyro_bnn.analysis.scores.metrics import Scored
from pyro_bnn.common.turns import OwnRandomness
from pyro_bnn.inference import laws as laws_of
from pyro_bnn.inference.predictive import RealDraw

__all__ = ["Scorer", "cdf", "mixture_quantile_of_laws"]

_SAMPLES = 1000
_SAMPLES_AT_ONCE = 50
_MOST_TERMS = 1000
_HALVINGS = 100
_DOUBLINGS = 200


def _special(name: str, *arguments: Tensor) -> Tensor:
    """Return a function of SciPy's, element by element."""
    from scipy import special

    arrays = np.broadcast_arrays(*(a.double().numpy() for a in arguments))
    return torch.from_numpy(np.asarray(getattr(special, name)(*arrays), dtype=np.float64))


def _poisson(law: Any, k: Tensor) -> Tensor:
    return cast(Tensor, torch.special.gammaincc(k + 1, law.rate))


def _negative_binomial(law: Any, k: Tensor) -> Tensor:
    return _special("betainc", law.total_count, k + 1, torch.sigmoid(-law.logits))


def _gamma_poisson(law: Any, k: Tensor) -> Tensor:
    return _special("betainc", law.concentration, k + 1, law.rate / (1 + law.rate))


def _binomial(law: Any, k: Tensor) -> Tensor:
    below = k < law.total_count
    left = torch.where(below, law.total_count - k, 1.0)
    return torch.where(below, _special("betainc", left, k + 1, 1 - law.probs), 1.0)


_KNOWN: dict[type, Callable[[Any, Tensor], Tensor]] = {
    torch.distributions.Beta: lambda law, y: _special("betainc", law.concentration1, law.concentration0, y),
    torch.distributions.Binomial: _binomial,
    torch.distributions.Geometric: lambda law, k: -torch.expm1((k + 1) * torch.log1p(-law.probs)),
    torch.distributions.LowRankMultivariateNormal: lambda law, y: _normal(law.mean, law.stddev, y),
    torch.distributions.MultivariateNormal: lambda law, y: _normal(law.mean, law.stddev, y),
    torch.distributions.NegativeBinomial: _negative_binomial,
    torch.distributions.Normal: lambda law, y: _normal(law.loc, law.scale, y),
    torch.distributions.Poisson: _poisson,
    torch.distributions.StudentT: lambda law, y: _special("stdtr", law.df, (y - law.loc) / law.scale),
    dist.GammaPoisson: _gamma_poisson,
}


def _normal(mean: Tensor, sd: Tensor, y: Tensor) -> Tensor:
    return cast(Tensor, torch.special.ndtr((y - mean) / sd))


def cdf(law: Distribution, y: Tensor) -> Tensor | None:
    """Return F(y) of a law in float64 (`widened`), in y's shape, or None where there is no way but sampling."""
    base = laws_of.peeled(law)
    known = next((function for kind, function in _KNOWN.items() if isinstance(base, kind)), None)
    own = getattr(type(base), "cdf", None)
    turned = isinstance(base, TransformedDistribution) and own is TransformedDistribution.cdf
    if turned and not laws_of.elementwise(base):
        return None
    support = laws_of.support_of(base)
    lower, upper = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if laws_of.is_discrete(base):
        y = y.floor()
    at = y
    if lower is not None or upper is not None:
        fits = laws_of.inside(base, y)
        at = y if bool(fits.all()) else torch.where(fits, y, laws_of.samples(base, OwnRandomness(0)).to(y))
    try:
        if turned:
            cumulative = _through(base, at)
        elif known is not None:
            cumulative = known(base, at)
        elif base.event_shape:
            return None
        else:
            cumulative = base.cdf(at)
    except NotImplementedError:
        cumulative = _summed(base, at) if laws_of.is_discrete(base) and not base.event_shape else None
    if cumulative is None:
        return None
    cumulative = torch.where(y < lower, 0.0, cumulative) if lower is not None else cumulative
    return (torch.where(y >= upper, 1.0, cumulative) if upper is not None else cumulative).clamp(0, 1)


def _through(law: TransformedDistribution, y: Tensor) -> Tensor | None:
    rises: Any = 1
    for transform in reversed(law.transforms):
        y = cast(Any, transform).inv(y)
        rises = rises * cast(Any, transform).sign
    inner = cdf(law.base_dist, y)
    return None if inner is None else torch.where(torch.as_tensor(rises) > 0, inner, 1 - inner)


def _summed(law: Distribution, y: Tensor) -> Tensor | None:
    """Return the sum of the probabilities up to y, if that is not too many."""
    least = getattr(laws_of.support_of(law), "lower_bound", None)
    if least is None or isinstance(least, Tensor) or float(y.max()) - least > _MOST_TERMS:
        return None
    total = torch.zeros_like(y)
    for k in range(int(least), int(y.max()) + 1):
        here = torch.full_like(y, k)
        fits = laws_of.inside(law, here)
        total += torch.where(fits & (y >= k), law.log_prob(torch.where(fits, here, y)).exp(), 0.0)
    return total


@final
class Scorer:
    """What draw after draw says of targets y (N,) or (N, D), for laws that are not Normal."""

    def __init__(self, y: Tensor) -> None:
        self.y = y.detach().cpu().double()
        self._randomness = OwnRandomness(0)

    def of(self, draw: RealDraw) -> Scored:
        """Return log-density, F(y) and F(y-) under one draw."""
        parts = self.y.split([laws_of.shape_of(law)[0] for law in draw.laws])
        scored = [self._of(law, part) for law, part in zip(draw.laws, parts, strict=True)]
        density, upto, below = (torch.cat(column) for column in zip(*scored, strict=True))
        return Scored(density, upto.reshape(self.y.shape), below.reshape(self.y.shape))

    def _of(self, law: Distribution, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        laws_of.check_values(law, y)
        density = laws_of.log_prob(law, y, wide=True).double()
        law = laws_of.widened(law)
        y = y.reshape(laws_of.shape_of(law))
        upto = cdf(law, y)
        if not laws_of.is_discrete(law):
            upto = self._sampled(law, y)[0] if upto is None else upto
            return density, upto.double(), upto.double()
        below = None if upto is None else cdf(law, y - 1)
        if upto is None or below is None:
            upto, below = self._sampled(law, y)
        return density, upto.double(), below.double()

    def _sampled(self, law: Distribution, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares of samples that are at most y, and below it."""
        upto, below = torch.zeros_like(y), torch.zeros_like(y)
        for _ in range(_SAMPLES // _SAMPLES_AT_ONCE):
            drawn = laws_of.samples(law, self._randomness, _SAMPLES_AT_ONCE)  # (R, N, ...)
            upto += (drawn <= y).sum(0)
            below += (drawn < y).sum(0)
        return upto / _SAMPLES, below / _SAMPLES


def mixture_quantile_of_laws(draws: Sequence[RealDraw], q: float) -> Tensor:
    """
    Return the smallest y with F(y) >= q, of the equal mixture of draws, in the shape of their means.

    By bisection where the laws have distribution functions, whole numbers of counts; else of 1000 samples in all, and
    at least 20 of each draw.
    """
    return torch.cat([_quantile([d.laws[i] for d in draws], q) for i in range(len(draws[0].laws))]).reshape(
        draws[0].mean.shape
    )


def _quantile(laws: Sequence[Distribution], q: float) -> Tensor:
    laws = [laws_of.widened(law) for law in laws]
    randomness = OwnRandomness(0)
    each = max(20, -(-_SAMPLES // len(laws)))
    low = torch.stack([laws_of.samples(law, randomness, 20).double().amin(0) for law in laws]).amin(0)
    high = torch.stack([laws_of.samples(law, randomness, 20).double().amax(0) for law in laws]).amax(0)
    if cdf(laws[0], low) is None:
        drawn = torch.cat([laws_of.samples(law, randomness, each) for law in laws]).double()
        ranked = drawn.sort(0).values
        return ranked[min(int(np.ceil(q * len(ranked))), len(ranked)) - 1]

    def mixture(y: Tensor) -> Tensor:
        return torch.stack([cast(Tensor, cdf(law, y)) for law in laws]).mean(0)

    counts = laws_of.is_discrete(laws[0])
    low, high = (low.floor() - 1, high.ceil()) if counts else (low, high)
    step = (high - low).clamp(min=1.0 if counts else 1e-300)
    for _ in range(_DOUBLINGS):
        short, far = mixture(high) < q, mixture(low) >= q
        if not bool((short | far).any()):
            break
        low, high = torch.where(far, low - step, low), torch.where(short, high + step, high)
        step = 2 * step
    for _ in range(_HALVINGS):
        middle = ((low + high) / 2).floor() if counts else (low + high) / 2
        if bool(((middle <= low) | (middle >= high)).all()):
            break
        reached = mixture(middle) >= q
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high
