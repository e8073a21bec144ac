"""
Record a function of tensors with its gradients, and run the recording from then on.

The function is f(x_1, ..., x_n) -> (r_1, ..., r_m) of tensors of fixed shapes that draws nothing and writes to nothing,
with r_1 (K,) to be summed and differentiated with respect to `leaves`. The first call runs it as it is, records it, and
compares; so do the second run, and every one whose number is a power of two or a multiple of 1024. Where the two
differ, or the function cannot be recorded, it runs as it is from then on.

What may be recorded without being asked for is said in :mod:`pyro_bnn.inference.graph.step`; here the caller says so.
"""

from collections.abc import Callable, Sequence
from logging import getLogger
from typing import TypeAlias, final

import torch
from torch import Tensor

from pyro_bnn.inference.graph.lowering import Lowered, lower
from pyro_bnn.inference.graph.origin import watching
from pyro_bnn.inference.graph.private import private
from pyro_bnn.inference.graph.recording import NotRecordable, Recorder

__all__ = ["RecordedFunction", "with_gradients"]

log = getLogger("pyro_bnn")

Function: TypeAlias = Callable[..., tuple[Tensor, ...]]

_below_autograd = private("_AutoDispatchBelowAutograd")
_CHECK_EVERY = 1024
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def with_gradients(function: Function, leaves: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the function's results, detached, and the gradients of the sum of the first."""
    first, *others = function(*inputs)
    grads = torch.autograd.grad(first.sum(), list(leaves))
    return [first.detach(), *(other.detach() for other in others), *grads]


@final
class RecordedFunction:
    """
    A function with its gradients, recorded at its first call.

    :param function: what to record.
    :param leaves: what to differentiate with respect to; they are read where they lie.
    """

    def __init__(self, function: Function, leaves: Sequence[Tensor]) -> None:
        self.function, self.leaves = function, list(leaves)
        self._lowered: Lowered | None = None
        self._shapes: list[torch.Size] = []
        self._given_up = False
        self._runs = 0

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the function's results and the gradients of the sum of the first."""
        if self._given_up:
            return with_gradients(self.function, self.leaves, inputs)
        if self._lowered is None or [tensor.shape for tensor in inputs] != self._shapes:
            return self._record(inputs)
        with _below_autograd():
            results = self._lowered(inputs)
        self._runs += 1
        if self._runs & (self._runs - 1) and self._runs % _CHECK_EVERY:
            return results
        return self._checked(with_gradients(self.function, self.leaves, inputs), results)

    def _record(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        with watching() as foreign:
            eager = with_gradients(self.function, self.leaves, inputs)
        try:
            other = foreign()
            if other is not None:
                raise NotRecordable(f"{other} is not code of torch, Pyro or this library")
            recorder = Recorder([*self.leaves, *inputs])
            with recorder:
                results = with_gradients(self.function, self.leaves, inputs)
            recorder.finish(results)
            layouts = [None] * (len(results) - len(self.leaves)) + [leaf.stride() for leaf in self.leaves]
            self._lowered = lower(recorder, dict(enumerate(self.leaves)), layouts)
            self._shapes, self._runs = [tensor.shape for tensor in inputs], 0
            with _below_autograd():
                return self._checked(eager, self._lowered(inputs))
        except Exception as error:  # whatever goes wrong while recording, the eager run is right
            return self._give_up(f"it cannot be recorded ({type(error).__name__}: {error})", eager)

    def _checked(self, eager: list[Tensor], recorded: list[Tensor]) -> list[Tensor]:
        """Return the recording's results if they are the function's, else these, and give up."""
        if all(map(_same, eager, recorded)):
            return recorded
        return self._give_up("its recording does not reproduce it", eager)

    def _give_up(self, reason: str, eager: list[Tensor]) -> list[Tensor]:
        self._given_up, self._lowered = True, None
        log.warning("a batched program runs eagerly, not as a recording, for %s", reason)
        return eager


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether `b` is `a` up to rounding, and not finite where it is not."""
    finite = torch.isfinite(a)
    if a.shape != b.shape or not torch.equal(finite, torch.isfinite(b)):
        return False
    apart = float((a[finite].double() - b[finite].double()).norm())
    return apart <= _TOLERANCE.get(a.dtype, 2e-2) * float(a[finite].double().norm())
