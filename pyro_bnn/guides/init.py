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

A prior without finite moments (Cauchy) starts from one of its draws instead, and so does `uniform` in constrained
space, where the matching interval may leave the support.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

__all__ = ["INIT_LOCS", "initial_loc", "is_real"]


def is_real(support: Any) -> bool:
    """Whether a support is the real line, under any number of event dimensions."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support is constraints.real


def _moments(prior: Distribution) -> tuple[Tensor, Tensor] | None:
    try:
        mean, sd = prior.mean, prior.stddev
    except NotImplementedError:
        return None
    return (mean, sd) if bool(torch.isfinite(mean).all() and torch.isfinite(sd).all()) else None


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
        raise ValueError("init_loc='net' needs a network's own values, which only the weights of a BNN have")
    return hints["value"].clone()  # type: ignore[no-any-return]


INIT_LOCS: dict[str, Callable[[Distribution, dict[str, Any]], Tensor]] = {
    "uniform": _uniform,
    "normal": _normal,
    "torch": _torch,
    "net": _net,
    "zeros": _zeros,
}


def initial_loc(how: str, prior: Distribution, hints: dict[str, Any]) -> Tensor:
    """Return the initial value of a site in its own space."""
    return INIT_LOCS[how](prior, hints)
