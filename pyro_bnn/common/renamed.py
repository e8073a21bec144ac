"""Names that were given up: they work for one version, with a warning that names the new one."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["renamed"]


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """
    Return the `__getattr__` of a module whose names have changed.

    :param module: the module, `__name__`.
    :param names: old name -> new name in the same module.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is called {names[name]} now", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), names[name])

    return get
