"""
How large a network would be, before it is built: a network of this library is made on torch's device "meta", where a
tensor has a shape and no memory, and counted as it grows. One of more modules than the limit `layers` is refused on the
way. What a network of another package does when it is built is its own affair: it is not built twice.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from pyro_bnn.common.errors import border
from pyro_bnn.common.limits import check_limit
from pyro_bnn.common.randomness import RandomState

__all__ = ["entries_of"]


def entries_of(make: Callable[..., Any], numbers: Mapping[str, Any], what: str) -> int | None:
    """Return how many numbers the parameters and buffers of a network hold; None for another package's network."""
    if not str(getattr(make, "__module__", "")).startswith("pyro_bnn."):
        return None
    _check_numbers(numbers, what)
    count, thread = [0], threading.get_ident()

    def counted(module: nn.Module, name: str, child: nn.Module | None) -> None:
        if threading.get_ident() == thread:
            count[0] += 1
            check_limit("layers", count[0], f"modules of {what}")

    state = RandomState.now()
    hook = register_module_module_registration_hook(counted)
    try:
        with torch.device("meta"), border(what, "give sizes that a network can have"):
            net = make(**numbers)
    finally:
        hook.remove()
        state.restore()
    return sum(int(tensor.numel()) for tensor in (*net.parameters(), *net.buffers()))


def _check_numbers(numbers: Any, what: str) -> None:
    if isinstance(numbers, Mapping):
        numbers = list(numbers.values())
    if isinstance(numbers, (list, tuple)):
        check_limit("layers", len(numbers), f"numbers of {what}")
        for number in numbers:
            _check_numbers(number, what)
    elif isinstance(numbers, int):
        check_limit("size", abs(numbers), f"a size in {what}")
