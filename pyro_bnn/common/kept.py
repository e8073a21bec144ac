"""
What the draws of one prediction have in common, computed once: tensors that follow from a parameter alone.

Who draws many times owns a :class:`Kept` and opens it around each draw; who computes such a tensor asks `kept`. A
parameter that was written to, or replaced, is another one. Where gradients are asked for, or nothing is open, every
call computes.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

__all__ = ["Kept", "kept"]


@final
class Kept:
    """The tensors of one prediction, by the parameter that they follow from."""

    def __init__(self) -> None:
        self.tensors: dict[int, tuple[Tensor, tuple[int, int], Tensor]] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let what is computed inside, in this thread, be kept here."""
        before, _here.kept = _here.kept, self
        try:
            yield
        finally:
            _here.kept = before


class _Here(threading.local):
    """What is open in this thread."""

    kept: Kept | None = None


_here = _Here()


def kept(compute: Callable[[Tensor], Tensor], parameter: Tensor) -> Tensor:
    """
    Return compute(parameter), which nobody may write to; of one parameter always with the same `compute`.

    :param compute: a function of the parameter alone.
    :param parameter: a tensor of any shape.
    """
    here = _here.kept
    if here is None or torch.is_grad_enabled() or not isinstance(parameter, nn.Parameter) or parameter.is_inference():
        return compute(parameter)
    written = parameter._version, parameter.data_ptr()
    known = here.tensors.get(id(parameter))  # which is nobody else's, for the parameter is held
    if known is None or known[1] != written:
        known = here.tensors[id(parameter)] = parameter, written, compute(parameter)
    return known[2]
