"""
The modules that a Pyro program runs, whether or not it is a module itself.

A program that is an `nn.Module` has its modules below it. One that is a function runs those that its closure, its
globals, its defaults or its arguments lead to; a module in a plain list is below nothing. Two ways together find them:
what can be reached from the program is looked through beforehand, and a hook at every module's call catches the others
before their forward runs. So `evaluation_mode` holds for every module that is called, and `untouched` puts back the
buffers of every one.
"""

import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

__all__ = ["evaluation_mode", "reachable_modules", "untouched"]

_LIBRARIES = ("torch", "pyro", "numpy", "builtins")
"""Functions of these lead to no module of a user's."""

_DEEPEST = 12
_MOST = 20_000
"""How far is looked, and at how many things; the hook sees the modules beyond."""


def _parts(thing: Any) -> list[Any]:
    """Return what a function, a method, a partial, a container or an object leads to."""
    if isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
        named = [thing.__globals__[name] for name in _names(thing.__code__) if name in thing.__globals__]
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return [*cells, *named, *defaults, *vars(thing).values()]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values(), *vars(thing).values()]
    if isinstance(thing, Mapping):
        return list(thing.values())
    if isinstance(thing, (list, tuple, set, frozenset)):
        return list(thing)[:_MOST]
    plain = isinstance(thing, (Tensor, types.ModuleType, type)) or _of_a_library(type(thing))
    return [] if plain else list(getattr(thing, "__dict__", {}).values())


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names(code: types.CodeType) -> Iterator[str]:
    """Return the global names that a function uses, with those of the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_a_library(thing: Any) -> bool:
    home = getattr(thing, "__module__", None)
    return isinstance(home, str) and home.partition(".")[0] in _LIBRARIES


def reachable_modules(*programs: Any) -> list[nn.Module]:
    """Return every module that can be reached from the programs, each once."""
    modules: dict[int, nn.Module] = {}
    seen: set[int] = set()
    kept: list[Any] = []  # objects that come up on the way must outlive their ids
    todo = [(program, 0) for program in programs]
    while todo and len(seen) < _MOST:
        thing, depth = todo.pop()
        if id(thing) in seen or depth > _DEEPEST:
            continue
        seen.add(id(thing))
        kept.append(thing)
        if isinstance(thing, nn.Module):
            for module in thing.modules():
                modules.setdefault(id(module), module)
                if id(module) not in seen or module is thing:
                    seen.add(id(module))
                    todo += [(part, depth + 1) for name, part in vars(module).items() if name not in _MODULE_PARTS]
            continue
        if isinstance(thing, types.FunctionType) and _of_a_library(thing):
            continue
        todo += [(part, depth + 1) for part in _parts(thing)]
    return list(modules.values())


_MODULE_PARTS = frozenset(vars(nn.Module()))
"""What every module has; its own modules, parameters and buffers among them are known already."""


@contextmanager
def _at_each_call(first_seen: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call `first_seen` with every module of this thread before its forward runs."""
    here = threading.get_ident()

    def hook(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == here:
            first_seen(module)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global hooks")
        handle = register_module_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()


@contextmanager
def evaluation_mode(*programs: Any, known: Sequence[nn.Module] | None = None) -> Iterator[None]:
    """
    Put every module that the programs run into eval mode, and afterwards back into the mode each of them was in.

    :param known: `reachable_modules` of the programs, if that is at hand.
    """
    were: dict[int, tuple[nn.Module, bool]] = {}

    def still(module: nn.Module) -> None:
        if id(module) in were:
            return
        for part in module.modules():
            if id(part) not in were:
                were[id(part)] = part, part.training
                part.training = False

    def back() -> None:
        for module, training in list(were.values()):
            module.training = training

    try:
        try:
            for module in reachable_modules(*programs) if known is None else known:
                still(module)
            with _at_each_call(still):
                yield
        finally:
            back()
    finally:
        back()


@contextmanager
def untouched(*programs: Any) -> Iterator[None]:
    """Leave the buffers of every module that the programs run, and the random state, as they were."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module) -> None:
        for buffer in module.buffers():
            if id(buffer) not in kept and not is_lazy(buffer):
                kept[id(buffer)] = buffer, buffer.clone()

    try:
        with torch.random.fork_rng():
            for module in reachable_modules(*programs):
                keep(module)
            with _at_each_call(keep):
                yield
    finally:
        with torch.no_grad():
            for buffer, value in kept.values():
                buffer.copy_(value)
