"""
Mixed precision: the network of a step in bfloat16, everything else as it is.

Inside `network_in("bf16", model, elbo)` a network that says how (:class:`CastsNetwork`, as a BNN does) runs under
torch's autocast: matrix products and convolutions take their inputs and the draw of the weights as bfloat16, and what
leaves the network is float32 again. The draw itself, means and deviations, the KL, the log-likelihood, the gradients of
parameters and the optimizer's state stay in float32: bfloat16 has 8 bits of mantissa, so that a step of less than 1/256
of a mean would be lost in it. Predictions and validation are made in float32.

Reference: Micikevicius et al. 2018, Mixed precision training (weights and their updates in single precision). bfloat16
has the range of float32, so that no scaling of the loss is needed.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import torch
from pyro.infer import ELBO
from torch import nn

from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO

__all__ = ["CastsNetwork", "Precision", "network_in"]

Precision: TypeAlias = Literal["float32", "bf16"]


@runtime_checkable
class CastsNetwork(Protocol):
    """A model whose network can run in another precision than all else."""

    def network_in(self, dtype: torch.dtype) -> AbstractContextManager[None]:
        """Run the network in `dtype` within the block."""
        ...


@contextmanager
def network_in(precision: Precision, model: Any, elbo: ELBO) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Yield what puts a precision in force for some steps; what was recorded in another is forgotten."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision={precision!r} is unknown: pass 'float32' or 'bf16'")
    if precision == "float32":
        yield nullcontext
        return
    if not isinstance(model, CastsNetwork):
        raise ValueError(
            f"precision='bf16' is for networks, and {type(model).__name__} does not say where its network is: use "
            "torch.autocast in the program, around the network alone, and precision='float32'"
        )
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()} if isinstance(model, nn.Module) else set()
    if dtypes - {torch.float32}:
        raise ValueError(f"precision='bf16' is for models in float32, and this one has {sorted(map(str, dtypes))}")
    _forget(elbo)
    try:
        yield lambda: model.network_in(torch.bfloat16)
    finally:
        _forget(elbo)


def _forget(elbo: ELBO) -> None:
    if isinstance(elbo, FlatMeanField_ELBO):
        elbo.forget_recordings()
