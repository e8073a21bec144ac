"""
The law of an observation, p(y | x, w) of one weight sample: density, samples and units of any distribution.

A law has batch and event dimensions (N,) or (N, D). What is asked here is answered by its distribution alone:

    class_log_probs     log-probabilities (N, K) of its labels, where it is a law of classes
    log_prob    log p(y_n | x_n, w), (N,); -inf outside the support, in float64 where the law can be taken there
    samples     drawn with a random state of their own
    in_units    the law of s y + m, where the program was trained on (y - m) / s
    moments     mean and standard deviation, of a thousand of its own samples where no formula is known

Counts are whole numbers: a law of counts is never rescaled, and values that are no count are refused.
"""

import copy
from typing import Any, Protocol, TypeVar, cast, final, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Distribution,
    Independent,
    Normal,
    TransformedDistribution,
    constraints,
    transforms,
)
from torch.nn import functional as F

from pyro_bnn.common.turns import OwnRandomness
from pyro_bnn.data.standardise import Standardiser

__all__ = [
    "OfClasses",
    "check_values",
    "class_log_probs",
    "elementwise",
    "in_units",
    "inside",
    "is_discrete",
    "is_normal",
    "log_prob",
    "moments",
    "name_of",
    "peeled",
    "samples",
    "shape_of",
    "support_of",
    "widened",
]

T = TypeVar("T")

_SAMPLES = 1000


def peeled(law: Any) -> Any:
    """Return the law of single elements, without the dimensions that were declared to be one event."""
    while isinstance(law, Independent):
        law = law.base_dist
    return law


def name_of(law: Distribution) -> str:
    """Return what the law of an element is called."""
    return type(peeled(law)).__name__


def shape_of(law: Distribution) -> torch.Size:
    """Return the shape of an observation of all rows, (N,) or (N, D)."""
    return torch.Size(law.batch_shape + law.event_shape)


def support_of(law: Any) -> Any:
    """Return the support of single elements; all numbers where a law does not say."""
    try:
        support = law.support
    except NotImplementedError:
        return constraints.real
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def is_discrete(law: Distribution) -> bool:
    """Return whether the law is one of counts."""
    return bool(support_of(law).is_discrete)


def is_normal(law: Distribution) -> bool:
    """Return whether mean and standard deviation say all: a Normal alone is known by them, so it is asked for."""
    return isinstance(peeled(law), Normal)


@runtime_checkable
class OfClasses(Protocol):
    """A law that says itself that it is one of classes; any other of finitely many labels is asked for each."""

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities (..., K), normalised to the last digit."""


def class_log_probs(law: Distribution) -> Tensor | None:
    """
    Return the normalised log-probabilities (B, K) of a law of classes, None of any other.

    A law is one of classes if it says so (`OfClasses`), or if its values are finitely many labels: no and yes, or
    numbers that have no mean, as torch's Categorical says. Binomial counts have a mean, and stay counts.
    """
    base = peeled(law)
    if isinstance(base, OfClasses):
        return base.log_probs
    if base.event_shape or not base.has_enumerate_support:
        return None
    yes_or_no = support_of(base) is constraints.boolean
    if yes_or_no and isinstance(base, Bernoulli):  # log(1 - p) from its logits keeps the digits that log p(0) loses
        return torch.stack([F.logsigmoid(-base.logits), F.logsigmoid(base.logits)], dim=-1)
    if not yes_or_no and _has_mean(base):
        return None
    values = base.enumerate_support(expand=False)  # (K, 1)
    return torch.log_softmax(base.log_prob(values).movedim(0, -1), -1)  # torch's are off by a rounding of large logits


def _has_mean(law: Any) -> bool:
    try:
        return not bool(law.mean.isnan().all())
    except NotImplementedError:
        return False


def elementwise(law: TransformedDistribution) -> bool:
    """Return whether a transformed law transforms each element by itself, one to one."""
    return all(t.bijective and t.domain.event_dim == 0 for t in law.transforms)


# -- precision -----------------------------------------------------------------------------------------------------


@final
class _NotPlainError(Exception):
    """A law that holds a network: its tensors are not all in sight."""


def widened(law: Distribution) -> Distribution:
    """Return the law on the CPU and in float64; a law that holds a network stays as it is."""
    try:
        return _wide(law)
    except _NotPlainError:
        return law


def _wide(value: T) -> T:
    if isinstance(value, nn.Module):
        raise _NotPlainError
    if isinstance(value, Tensor):
        here = value.detach().cpu()
        return cast(T, here.double() if here.is_floating_point() else here)
    if isinstance(value, transforms._InverseTransform):
        return cast(T, _wide(value.inv).inv)
    if isinstance(value, (Distribution, transforms.Transform)):
        other = copy.copy(value)
        for name, held in list(vars(other).items()):
            other.__dict__[name] = None if name == "_inv" else _wide(held)
        if isinstance(other, transforms.Transform):
            other._cached_x_y = None, None
        return cast(T, other)
    kept: Any = value
    if type(kept) is list:
        kept = [_wide(part) for part in kept]
    elif type(kept) is tuple:
        kept = tuple(_wide(part) for part in kept)
    return cast(T, kept)


def _dtype(law: Distribution) -> torch.dtype | None:
    """Return the floating-point dtype that a law is written in, None if none shows."""
    for held in vars(law).values():
        if isinstance(held, Tensor) and held.is_floating_point():
            return held.dtype
    for held in vars(law).values():
        dtype = _dtype(held) if isinstance(held, Distribution) else None
        if dtype is not None:
            return dtype
    return None


# -- values --------------------------------------------------------------------------------------------------------


def inside(law: Any, y: Tensor) -> Tensor:
    """Return which elements of y lie in the support, in y's shape; of a law of vectors which rows, (N,)."""
    law = peeled(law)
    turned = isinstance(law, TransformedDistribution) and type(law).log_prob is TransformedDistribution.log_prob
    if turned and elementwise(law):  # the support that it states is that of its last transform alone
        fits = cast(Tensor, support_of(law).check(y))
        for transform in reversed(law.transforms):
            y = transform.inv(y)
        return fits & inside(law.base_dist, y) & ~y.isnan()
    return cast(Tensor, (law.support if law.event_shape else support_of(law)).check(y))


def _checks_bounds(support: Any) -> bool:
    bounds = [getattr(support, bound, 0) for bound in ("lower_bound", "upper_bound")]
    return bool(support.is_discrete) and not support.event_dim and not any(isinstance(b, Tensor) for b in bounds)


def check_values(law: Distribution, y: Tensor) -> None:
    """Refuse targets that are no numbers of a law of counts; NaN marks what is not known."""
    support = support_of(law)
    if not _checks_bounds(support):
        return
    y = y.detach().cpu()
    values = y.double()
    outside = (~support.check(values) & ~values.isnan()).reshape(len(y), -1).any(-1)  # (N,)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"y[{row}]={y[row].tolist()} is no value of {name_of(law)}, which takes {support}: pass counts as they "
            "were counted, not standardised"
        )


def log_prob(law: Distribution, y: Tensor, *, wide: bool = False) -> Tensor:
    """
    Return log p(y | x, w), (N,), of targets (N,) or (N, D); NaN marks elements that are not known, which contribute 0.

    :param wide: in float64 and on the CPU, where the law allows it.
    """
    law = widened(law) if wide else law
    dtype = _dtype(law)
    y = y.reshape(shape_of(law))
    y = y.cpu() if wide else y
    y = y if dtype is None else y.to(dtype)
    base, known = peeled(law), ~y.isnan()
    fits = inside(law, torch.where(known, y, 0.0))  # (N, D), or (N,) of a law of vectors
    whole = bool(base.event_shape) and fits.shape != y.shape
    known_part = known.reshape(len(y), -1).all(-1) if whole else known
    good = fits & known_part
    spread = good.unsqueeze(-1).expand_as(y) if whole else good
    if not bool(spread.all()):
        y = torch.where(spread, y, samples(law, OwnRandomness(0)).to(y))  # values of the support, masked below
    density: Tensor = base.log_prob(y)
    if density.shape != good.shape:  # of vectors whose elements are checked one by one
        good, fits, known_part = (m.reshape(len(y), -1).all(-1) for m in (good, fits, known_part))
    density = torch.where(good, density, torch.where(known_part, -torch.inf, 0.0).to(density))
    return density.reshape(len(y), -1).sum(-1)


def samples(law: Distribution, randomness: OwnRandomness, number: int | None = None) -> Tensor:
    """Return an observation of all rows, (N,) or (N, D), or a number of them, (R, N, ...)."""
    with randomness.turn(), torch.no_grad():
        return law.sample() if number is None else law.sample(torch.Size([number]))


def moments(law: Any) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation in the shape of an observation."""
    try:
        return law.mean, law.stddev
    except NotImplementedError:
        drawn = samples(law, OwnRandomness(0), _SAMPLES)
        return drawn.mean(0), drawn.std(0)


def in_units(law: Distribution, scale: Standardiser) -> Distribution:
    """Return the law of targets in the units that a standardiser took them from; counts have no other units."""
    if is_discrete(law):
        raise ValueError(
            f"the observations are {name_of(law)} and the posterior has a y_standardiser, but counts are never "
            "standardised: train on the counts as they are (standardise='x')"
        )
    like = _dtype(law) or torch.get_default_dtype()
    mean, sd = (values.to(dtype=like) for values in (scale.mean, scale.sd))
    base = peeled(law)
    joint = len(law.event_shape) - len(base.event_shape)
    raw = TransformedDistribution(base, [AffineTransform(mean, sd)], validate_args=False)
    return Independent(raw, joint, validate_args=False) if joint else raw
