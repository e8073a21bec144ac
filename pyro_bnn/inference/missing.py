"""
Targets that are not known: NaN in an observed value contributes nothing to the log-likelihood.

    log p(y | w)  =  sum over the known y_nd of log p(y_nd | x_n, w)

An observed site's missing entries are replaced by a value of its support, so that nothing that is computed of them is
NaN, and then masked: by row for targets (B,), by element for targets (B, D) whose law is independent over D. A row is
masked as a whole where its law is of all D together (a multivariate Normal, say); a row that is known in part is then
refused.

The number of rows N stays what it is: masked rows count among the N that the loss is divided by and that the plate
scales a batch to. N times the loss of all rows is thus N' times the loss of the N' known rows alone: the same
posterior, at a rate that is per row given and not per row known.
"""

from typing import Any, final

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution, constraints, transform_to

from pyro_bnn.common.sites import innermost

__all__ = ["MaskMissing", "any_missing", "check_known_as_a_whole", "elements"]


def any_missing(y: Tensor) -> bool:
    """Whether some target is NaN."""
    return y.is_floating_point() and bool(y.isnan().any())


def _inside(support: Any, like: Tensor) -> Tensor:
    """Return values of the support in the shape of `like`."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    zeros = torch.zeros_like(like)
    if support.is_discrete:
        return zeros + getattr(support, "lower_bound", 0)
    return transform_to(support)(zeros)  # type: ignore[no-any-return]


def elements(fn: Distribution) -> tuple[Any, int]:
    """Return the law of single elements and how many dimensions of them are one event; a law of vectors as it is."""
    base = innermost(fn)
    return base, len(fn.event_shape) - len(base.event_shape)


def check_known_as_a_whole(fn: Distribution, y: Tensor) -> None:
    """Refuse rows of targets (N, D) that are known in part, where the law of a row has no law of its elements."""
    base, _ = elements(fn)
    if not y.is_floating_point() or not base.event_shape:
        return
    missing = y.isnan().reshape(len(y), -1)  # (N, D)
    part = (missing.any(1) & ~missing.all(1)).nonzero()
    if len(part):
        raise ValueError(
            f"row {int(part[0])} of y is known in part, and the observed site is {type(base).__name__} over whole "
            "rows, of which no element can be left out: give NaN in all of the row, or fill it in"
        )


@final
class MaskMissing(Messenger):
    """Mask the missing entries of every observed site; put it around model and guide alike."""

    def _pyro_sample(self, msg: Any) -> None:
        value = msg["value"]
        if not msg["is_observed"] or not isinstance(value, Tensor) or not value.is_floating_point():
            return
        if msg["infer"].get("_deterministic"):
            return
        fn = msg["fn"]
        missing = value.isnan()
        msg["value"] = torch.where(missing, _inside(fn.support, value), value)
        base, joint = elements(fn)
        for _ in base.event_shape:
            missing = missing.any(-1)
        if joint:
            msg["fn"] = base.mask(~missing).to_event(joint)
            return
        msg["mask"] = ~missing if msg["mask"] is None else torch.as_tensor(msg["mask"], device=value.device) & ~missing
