"""Names that were given up or moved to another module: they work for one version, with a warning that says the new."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["rehoused", "renamed"]


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


def rehoused(module: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """
    Return the `__getattr__` of a module some of whose names are in other modules now.

    :param module: the module, `__name__`.
    :param homes: module -> the names that moved there.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} has moved to {home_of[name]}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(home_of[name]), name)

    return get
