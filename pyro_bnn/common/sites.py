"""What a site of a Pyro trace is: its law unwrapped, the tensor behind a parameter, a choice of rows, a KL."""

from typing import Any

import torch
from pyro.distributions import Delta
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

__all__ = ["closed_kl", "innermost", "is_point_mass", "is_subsample", "leaf_of", "sample_sites"]


def innermost(fn: Any) -> Any:
    """Return the law inside any number of Independent, which only say what dimensions are one event."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn


def is_point_mass(fn: Any) -> bool:
    """Whether `fn` is a Delta, under any number of reinterpreted dimensions."""
    return isinstance(innermost(fn), Delta)


def leaf_of(value: Any) -> Tensor:
    """Return the tensor that an optimizer moves; a bare nn.Parameter under `module_local_params` is its own."""
    leaf: Tensor = value.unconstrained() if hasattr(value, "unconstrained") else value
    return leaf


def is_subsample(site: Any) -> bool:
    """Whether a sample site is a plate's choice of rows, and no random variable."""
    return bool(site_is_subsample(site))


def sample_sites(trace: Any) -> dict[str, Any]:
    """Return the sample sites of a trace by name, without the plates' choices of rows."""
    return {name: site for name, site in trace.nodes.items() if site["type"] == "sample" and not is_subsample(site)}


def closed_kl(q: Any, p: Any) -> Tensor | None:
    """Return KL(q || p) of two laws, one number for each element of their batch; None where torch has no formula."""
    try:
        kl: Any = torch.distributions.kl_divergence(q, p)
    except NotImplementedError:
        return None
    return kl if isinstance(kl, Tensor) else torch.full(q.batch_shape, float(kl))
