"""
Where a diverged fit went: the site, the kind of parameter, and the learning rate that moved it.

A step whose loss is not finite is not taken, so that the parameters are those that the loss was computed from. Named is
what is not finite among them, else what is largest: a mean or a standard deviation of a site, where the guide states
them, or a parameter by its name.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.common.contract import contract_of

__all__ = ["NotFinite", "what_diverged"]

_KINDS = {"loc": "means", "scale": "standard deviations", "other": "values"}


class NotFinite(ArithmeticError):
    """The loss of a step, which was not taken, is not finite."""


@torch.no_grad()
def what_diverged(guide: Any, parameters: Mapping[str, Tensor], rates: Mapping[str, float]) -> str:
    """
    Return which parameters went how far, and at which rate.

    :param parameters: of model and guide, by name.
    :param rates: the learning rates in force, by group.
    """
    sizes = {(what, kind): _largest(values) for what, kind, values in _parts(guide, parameters)}
    if not sizes:
        return "there are no parameters"
    (what, kind), size = max(sizes.items(), key=lambda item: item[1])
    rate = next((rate for name, rate in rates.items() if name.partition(":")[0] in (kind, "all")), None)
    moved = "" if rate is None else f" at a learning rate ({kind}) of {rate:g}"
    how_far = f"up to {size:.3g}" if math.isfinite(size) else "that are not finite"
    return f"{what} has {_KINDS[kind]} {how_far}{moved}"


def _parts(guide: Any, parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, str, Tensor]]:
    """Yield what there is by site and kind, and all else by name."""
    promised = contract_of(guide)
    sites = promised.site_names() if promised.is_built else []
    try:
        views = {name: promised.site(name) for name in sites}
    except NotImplementedError:
        views = {}
    for name, view in views.items():
        yield name, "loc", view.loc
        if promised.trains_scales:
            yield name, "scale", view.scale
    for name, parameter in parameters.items():
        if not views or promised.role(name) == "other":
            yield name, promised.role(name), parameter


def _largest(values: Tensor) -> float:
    """Return the largest absolute value, infinity if one is not finite."""
    if not values.numel():
        return 0.0
    return float(values.detach().abs().nan_to_num(math.inf, math.inf).max())
