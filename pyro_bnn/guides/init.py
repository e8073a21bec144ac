"""
Where a guide starts: the initial means of a site.

With s the prior's standard deviation, m its mean, and n_in the inputs of the layer (known for the weights of a BNN):

    uniform   U(m - sqrt(3) s, m + sqrt(3) s): the uniform law that matches the prior; with a Kaiming prior this is
              uniform Kaiming initialisation
    normal    N(m, s^2): the prior itself
    torch     U(-1/sqrt(n_in), 1/sqrt(n_in)): PyTorch's default, which has a third of the variance of a 1/n_in prior
              (PyTorch takes n_out for the n_in of a transposed convolution, and so does this)
    net       the values of the network handed to the model: its own initialisation, or a pre-trained network
    zeros     the prior's mean m
    typical   0 in unconstrained space, or the prior's median where the prior all but excludes 0, moved a little
    default   uniform for the weights of a BNN, typical for every other site

A prior without finite moments (Cauchy) starts from one of its draws instead, and so do `uniform` and `zeros` in
constrained space, where the matching interval may leave the support, and `zeros` where there is no mean.

A draw is a poor start for a program written by hand: a HalfCauchy scale of 1000 now and then, and every site that it
scales with it. `typical` starts at 0 of the unconstrained space, as Pyro's own guides do, so at 1 for a scale; but a
prior with less than e^-4.5 of its density (as of the unconstrained value) there than at its median, 3 deviations of a
normal one, starts at the median. A real site with moments is then moved by U(-r, r), r = sqrt(3) min(s, 0.01), for the
units of a network written by hand would stay alike from equal numbers. The priors of later sites are those at the
starts of the sites before them, not at their draws.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to, constraints
from torch.nn import functional as F

from pyro_bnn.common.sites import innermost

__all__ = [
    "DEFAULT_LOC",
    "DEFAULT_RHO",
    "INIT_LOCS",
    "any_start",
    "default_scale",
    "initial_loc",
    "is_real",
    "start_of",
    "starts_matter",
    "starts_overwritten",
]

DEFAULT_LOC = "default"
"""The default start of the means."""

DEFAULT_RHO = -4.0
"""The default start of rho for a BNN: sigma = softplus(-4) = 0.0181, small beside the usual priors."""

DEFAULT_SCALE = 0.1
"""The default start of sigma for the sites of other programs."""

MOST_NUDGE = 0.01
"""The largest standard deviation of what moves a typical start off its place."""

LEAST_DENSITY = math.exp(-4.5)
"""How much of its density at the median a prior must have at 0 for 0 to be a start."""

MEDIAN_DRAWS = 101


def is_real(support: Any) -> bool:
    """Whether a support is the real line, under any number of event dimensions."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


def _moments(prior: Distribution) -> tuple[Tensor, Tensor] | None:
    try:
        mean, sd = prior.mean, prior.stddev
    except NotImplementedError:
        return None
    return (mean, sd) if all(bool(torch.isfinite(_once(part)).all()) for part in (mean, sd)) else None


def _once(tensor: Tensor) -> Tensor:
    """Return the numbers of an expanded tensor once."""
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]


def _uniform(prior: Distribution, hints: dict[str, Any]) -> Tensor:
    moments = _moments(prior)
    if moments is None or not is_real(prior.support):
        return prior.sample()
    mean, sd = moments
    return mean + math.sqrt(3) * sd * (2 * torch.rand_like(sd) - 1)


def _normal(prior: Distribution, hints: dict[str, Any]) -> Tensor:
    return prior.sample()


def _zeros(prior: Distribution, hints: dict[str, Any]) -> Tensor:
    moments = _moments(prior)
    return prior.sample() if moments is None else moments[0].clone()


def _torch(prior: Distribution, hints: dict[str, Any]) -> Tensor:
    if "fan_in" not in hints:
        raise ValueError("init_loc='torch' needs a layer's fan-in, which only the weights of a BNN know: use 'uniform'")
    shape = prior.batch_shape + prior.event_shape
    return (2 * torch.rand(shape) - 1) / math.sqrt(hints["fan_in"])


def _net(prior: Distribution, hints: dict[str, Any]) -> Tensor:
    if "value" not in hints:
        raise ValueError(
            "init_loc='net' needs a network's own values, which only the weights of a BNN have that keeps them "
            "(keep_values=True)"
        )
    return hints["value"].clone()  # type: ignore[no-any-return]


def _median(prior: Distribution) -> Tensor:
    """Return the mean of real numbers, and the median of draws where there is none or the numbers are constrained."""
    if is_real(prior.support):
        try:
            mean: Tensor = prior.mean
        except NotImplementedError:
            mean = torch.tensor(math.nan)
        if bool(torch.isfinite(mean).all()):
            return mean.clone()
    draws = prior.sample((MEDIAN_DRAWS,))
    return draws.median(0).values


def _typical(prior: Distribution, hints: dict[str, Any]) -> Tensor:
    prior = innermost(prior)
    transform = biject_to(prior.support)
    drawn = transform.inv(prior.sample())
    value: Tensor = transform(torch.zeros_like(drawn))
    if not prior.event_shape or is_real(prior.support):  # else there is no median
        median = _median(prior)
        u = transform.inv(median)
        known = torch.isfinite(u)
        u = torch.stack([torch.zeros_like(drawn), u.where(known, 0.0)])  # (2, ...)
        density = prior.log_prob(transform(u))
        if not is_real(prior.support):
            density = density + transform.log_abs_det_jacobian(u, transform(u))
        far = density[0] < density[1] + math.log(LEAST_DENSITY)
        value = torch.where(far.reshape(far.shape + (1,) * (value.dim() - far.dim())) & known, median, value)
    moments = _moments(prior)
    if moments is None or not is_real(prior.support):
        return value
    nudge = moments[1].clamp_max(MOST_NUDGE)
    return value + math.sqrt(3) * nudge * (2 * torch.rand_like(nudge) - 1)


def _default(prior: Distribution, hints: dict[str, Any]) -> Tensor:
    return _uniform(prior, hints) if hints else _typical(prior, hints)


INIT_LOCS: dict[str, Callable[[Distribution, dict[str, Any]], Tensor]] = {
    "uniform": _uniform,
    "normal": _normal,
    "torch": _torch,
    "net": _net,
    "zeros": _zeros,
    "typical": _typical,
    DEFAULT_LOC: _default,
}


def initial_loc(how: str, prior: Distribution, hints: dict[str, Any]) -> Tensor:
    """Return the initial value of a site in its own space."""
    return INIT_LOCS[how](prior, hints)


class _Starts(threading.local):
    """Whether it matters in this thread where guides start."""

    matter = True


_starts = _Starts()


@contextmanager
def starts_overwritten() -> Iterator[None]:
    """Build guides inside whose parameters are about to be overwritten: no start is drawn for the weights of a BNN."""
    before, _starts.matter = _starts.matter, False
    try:
        yield
    finally:
        _starts.matter = before


def any_start(prior: Distribution) -> Tensor:
    """Return some value of a site, in little memory."""
    if not is_real(prior.support):
        return prior.sample()
    try:
        mean: Tensor = prior.mean
    except NotImplementedError:
        return prior.sample()
    return mean.new_zeros(()).expand(prior.batch_shape + prior.event_shape)


def starts_matter() -> bool:
    """Return whether guides are built to be trained, not to be overwritten."""
    return _starts.matter


def start_of(model: Any, how: str) -> str:
    """Return the scheme called `how` for a model, refusing an unknown one; a BNN's default has a name of its own."""
    if how not in INIT_LOCS:
        raise ValueError(f"init_loc={how!r} is unknown: pass one of {sorted(INIT_LOCS)}")
    return "uniform" if how == DEFAULT_LOC and says_its_weights(model) else how


def says_its_weights(model: Any) -> bool:
    """Whether a model samples its latent sites without data, as a BNN does with `sample_weights`."""
    return callable(getattr(model, "sample_weights", None))


def default_scale(hints: dict[str, Any]) -> float:
    """Return the default start of sigma for a site, which has hints if it is a weight of a BNN."""
    return float(F.softplus(torch.tensor(DEFAULT_RHO, dtype=torch.float64))) if hints else DEFAULT_SCALE
