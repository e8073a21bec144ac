"""
Whose code runs: the question that decides whether a step may be recorded without being asked to.

A recording repeats tensor operations and nothing else. It is certain to be what the program says if all the Python it
stands for belongs to torch, torchvision, Pyro or this library (which keep no state of their own from step to step but
tensors), and if nobody else's Python runs between two of its runs. `watching` notes every function that runs;
`is_library` looks at an object that the training loop will call.

A user's network, prior or likelihood is a user's code. So is a lambda, a hook, a method that replaced a library's one,
and anything that reads a clock, the environment or a random number outside of torch.
"""

import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

__all__ = ["is_library", "watching"]

LIBRARIES = frozenset(["torch", "torchvision", "pyro", "pyro_bnn"])
_DATA = frozenset(["builtins", "numpy", "collections", "_weakref", "weakref", "threading", "_thread", "pathlib"])
"""Where the classes of plain data live."""
_STANDARD = frozenset(
    """__future__ _collections_abc _frozen_importlib _weakrefset abc ast builtins collections contextlib copy copyreg
    dataclasses enum functools importlib inspect itertools keyword linecache logging math numbers operator re reprlib
    string threading tokenize traceback types typing warnings weakref""".split()  # noqa: SIM905
)
"""Parts of the standard library that know neither clock nor environment nor random numbers."""
_WORLD = frozenset(["time", "posix", "nt", "os", "random", "_random", "secrets", "socket", "_socket", "uuid"])


def _package(name: Any) -> str:
    return str(name or "").partition(".")[0]


def is_library(value: Any, *, deep: bool = False) -> bool:
    """
    Return whether calling a value, or a method of it, runs a library's code only.

    :param deep: look at what its attributes hold as well.
    """
    return _is_library(value, deep, set())


def _is_library(value: Any, deep: bool, seen: set[int]) -> bool:
    if id(value) in seen or isinstance(value, Tensor):
        return True
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        return _package(value.__globals__.get("__name__")) in LIBRARIES
    parts: Iterable[Any] = ()
    if isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        parts = (value.__func__, value.__self__)
    elif isinstance(value, (tuple, list, set, frozenset)):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    else:
        kind = value if isinstance(value, type) else type(value)
        if _package(kind.__module__) not in LIBRARIES | _DATA:
            return False
        if kind is not value:
            own = getattr(value, "__dict__", {}).values()
            parts = own if deep else [v for v in own if isinstance(v, (types.FunctionType, types.MethodType))]
    return all(_is_library(part, deep, seen) for part in parts)


@contextmanager
def watching() -> Iterator[Callable[[], str | None]]:
    """
    Note the functions that run inside; the callable returns the first that is no library's, as words, or None.

    A profiler that is at work would be disturbed: then that is what is found.
    """
    if sys.getprofile() is not None:
        yield lambda: "a profiler"
        return
    foreign: list[str] = []

    def note(frame: types.FrameType, event: str, argument: Any) -> None:
        package = _package(frame.f_globals.get("__name__"))
        if event == "call" and package not in LIBRARIES | _STANDARD and not package.startswith("namedtuple_"):
            code = frame.f_code
            foreign.append(f"{frame.f_globals.get('__name__')}.{getattr(code, 'co_qualname', code.co_name)}()")
        if event == "c_call" and package not in _STANDARD:
            owner = getattr(argument, "__self__", None)
            if _package(getattr(argument, "__module__", None)) in _WORLD or isinstance(owner, random.Random):
                foreign.append(f"{argument.__name__}()")

    sys.setprofile(note)
    try:
        yield lambda: foreign[0] if foreign else None
    finally:
        sys.setprofile(None)
