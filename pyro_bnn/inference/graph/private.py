"""
The private names of torch and Pyro that recording a step uses, all of them, in one table.

An installation that lacks one of them records nothing: `MISSING` then names it, every step runs eagerly, and the first
that would have been recorded says so. Nothing outside of this room depends on them.
"""

from importlib import import_module
from typing import Any

__all__ = ["MISSING", "NAMES", "private"]

NAMES: dict[str, str] = {
    "TorchDispatchMode": "torch.utils._python_dispatch",  # sees the operations below autograd
    "_get_current_dispatch_mode_stack": "torch.utils._python_dispatch",  # whether another mode is active
    "_get_current_function_mode_stack": "torch.overrides",
    "_AutoDispatchBelowAutograd": "torch._C",  # runs a recording without autograd's bookkeeping
    "DisableTorchFunction": "torch._C",  # ... and without function modes, which were there when it was recorded
    "_functorch.peek_interpreter_stack": "torch._C",  # whether torch.func transforms the step
    "DeviceContext": "torch.utils._device",  # the one function mode that does no harm
    "tree_flatten": "torch.utils._pytree",
    "tree_leaves": "torch.utils._pytree",
    "tree_map_only": "torch.utils._pytree",
    "WeakTensorKeyDictionary": "torch.utils.weak",
    "_PYRO_STACK": "pyro.poutine.runtime",  # which handlers are around the step
}
"""Name -> the module that holds it."""

MISSING: list[str] = []
"""Which of them this installation lacks."""

_FOUND: dict[str, Any] = {}

for _name, _module in NAMES.items():
    try:
        _FOUND[_name] = import_module(_module)
        for _part in _name.split("."):
            _FOUND[_name] = getattr(_FOUND[_name], _part)
    except (ImportError, AttributeError):
        MISSING.append(f"{_module}.{_name}")


def private(name: str) -> Any:
    """Return one of `NAMES`; ImportError if this installation lacks it."""
    if name in NAMES and f"{NAMES[name]}.{name}" in MISSING:
        raise ImportError(f"{NAMES[name]}.{name} is not in this version of torch or Pyro")
    return _FOUND[name]
