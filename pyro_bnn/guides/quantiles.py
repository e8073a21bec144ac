"""
Quantiles of a guide's sites, entry by entry.

An entry u ~ N(loc, scale^2) of unconstrained space has the quantile loc + scale Phi^-1(q), and its image under a map T
that works entry by entry has T of it, with 1 - q in place of q where T falls. An entry of a site whose map takes
several entries together (a simplex, a Cholesky factor) has no quantile that could be read off the Normal.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions.transforms import IndependentTransform

__all__ = ["as_quantiles", "normal_quantiles"]


def as_quantiles(quantiles: Any, like: Tensor) -> Tensor:
    """Return levels as a vector (Q,); refuse what is no probability."""
    q = torch.as_tensor(quantiles, dtype=like.dtype, device=like.device).reshape(-1)
    if not len(q) or not bool(((q >= 0) & (q <= 1)).all()):
        raise ValueError(f"quantiles={quantiles!r} are no levels: pass numbers from 0 to 1, such as [0.05, 0.5, 0.95]")
    return q


def normal_quantiles(name: str, loc: Tensor, scale: Tensor, transform: Any, q: Tensor) -> Tensor:
    """Return the quantiles (Q, *shape) of a site that is the image of N(loc, scale^2) under `transform`, or itself."""
    levels = q.reshape(-1, *(1,) * loc.dim())  # (Q, 1, ...)
    if transform is None:
        return _at(loc, scale, levels)
    while isinstance(transform, IndependentTransform):  # `to_event`: the same map, entry by entry
        transform = transform.base_transform
    if transform.domain.event_dim or transform.codomain.event_dim:
        raise ValueError(
            f"site {name!r} has no quantiles by entry: its support {transform.codomain} takes entries together; "
            f"take them of draws"
        )
    values: Tensor = transform(_at(loc, scale, levels))
    ends = transform(_at(loc, scale, torch.tensor([0.25, 0.75], dtype=q.dtype).to(q).reshape(-1, *(1,) * loc.dim())))
    if bool((ends[1] < ends[0]).any()):  # a map that falls, such as that to numbers below a bound
        values = transform(_at(loc, scale, 1 - levels))
    return values


def _at(loc: Tensor, scale: Tensor, levels: Tensor) -> Tensor:
    """Return loc + scale Phi^-1(q), and loc itself where the scale is 0, at levels 0 and 1 too."""
    spread = scale * torch.special.ndtri(levels)
    return loc + torch.where(scale == 0, torch.zeros_like(spread), spread)
