"""Whether a module still does what its class was written to do: nothing replaced on it, and no hooks."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

__all__ = ["as_written"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in (*_HOOKS, "_forward_hooks_always_called"))


def as_written(module: nn.Module, written: Mapping[str, Any]) -> bool:
    """
    Return whether calling `module` runs the methods `written` by its class, and those only.

    :param written: name -> function, taken from the class where it was defined.
    """
    own, everybody, methods = vars(module), vars(torch_module), vars(type(module))
    for name in _HOOKS:
        if own.get(name, True):
            return False
    for name in _GLOBAL_HOOKS:
        if everybody.get(name, True):
            return False
    return all(name not in own and methods.get(name) is function for name, function in written.items())
