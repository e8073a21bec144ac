"""What a step leaves: loss, gradients and the Pyro parameters that took part."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from pyro.distributions import constraints
from torch import Tensor

from pyro_bnn.common.sites import leaf_of

__all__ = ["ParamSite", "StepResult", "leaf_of", "param_sites"]


@dataclass(frozen=True)
class ParamSite:
    """One Pyro parameter: its name, its unconstrained tensor, its constraint."""

    name: str
    unconstrained: Tensor
    constraint: Any


class StepResult(NamedTuple):
    """
    Loss and nll as 0-dimensional tensors, the leaves with their gradients, and the Pyro parameters met.

    `deferred` are gradients of further leaves that have still to be made, of those that may be left so.
    """

    loss: Tensor
    nll: Tensor
    leaves: list[Tensor]
    grads: list[Tensor]
    params: list[ParamSite]
    deferred: Any = None


def param_sites(*traces: Any) -> list[ParamSite]:
    """Return the parameters of Pyro traces in order of appearance, each tensor once."""
    sites: dict[int, ParamSite] = {}
    for trace in traces:
        for name, node in trace.nodes.items():
            if node["type"] == "param":
                leaf = leaf_of(node["value"])
                constraint = node["kwargs"].get("constraint", constraints.real)
                if isinstance(constraint, type(constraints.real)):
                    constraint = constraints.real
                sites.setdefault(id(leaf), ParamSite(name, leaf, constraint))
    return list(sites.values())
