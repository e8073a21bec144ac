"""
The whole state of a fit, so that a killed run goes on to the same bits as one that was never interrupted.

A state is plain data (tensors, numbers, strings, dicts, lists): `torch.save` writes it and `torch.load` reads it with
`weights_only=True`. Names in it are relative to the model and the guide, for the full names carry a serial number that
another process counts differently. Files are replaced in one step, so that a reader finds the old one or the new one.
"""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

__all__ = [
    "atomic_write",
    "hold_interrupts",
    "load_state",
    "parameters_of",
    "restore_parameters",
    "save_state",
    "synchronise",
]


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """
    Let a Ctrl-C within the block take effect at its end.

    `torch.save` turns an interrupt in the middle of a file into an error of its own, and the interrupt would be lost.
    Only the main thread receives interrupts, and only Python's own handling of them is put off.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if held:
        signal.default_int_handler(*held[-1])


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once it is whole; a failure leaves `path` as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state, atomically and whole, even if a Ctrl-C arrives meanwhile."""
    with hold_interrupts(), atomic_write(path) as file:
        torch.save(dict(state), file)


def load_state(path: Path) -> dict[str, Any]:
    """Read a state that `save_state` wrote."""
    return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


def synchronise(module: Any) -> None:
    """Let a PyroModule hold the tensors of Pyro's store, which a `set_state` of the store replaces."""
    if not isinstance(module, PyroModule):
        return
    store = pyro.get_param_store()
    for path, sub in module.named_modules():
        if not isinstance(sub, PyroModule):
            continue
        for name in sub._pyro_params:
            full = ".".join(part for part in (module._pyro_name, path, name) if part)
            if full in store:
                value = store._params[full]
                held = getattr(sub, f"{name}_unconstrained")
                if value is not held:
                    held.data = value.data


def parameters_of(
    model: Callable[..., Any], guide: Callable[..., Any], store_names: Iterable[str] = ()
) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of model and guide, parameters and buffers, and the named ones of the store."""
    state: dict[str, dict[str, Tensor]] = {}
    for part, program in (("model", model), ("guide", guide)):
        if isinstance(program, nn.Module):
            synchronise(program)
            state[part] = {name: value.detach().clone() for name, value in program.state_dict().items()}
    store = pyro.get_param_store()._params
    state["store"] = {name: store[name].detach().clone() for name in store_names if name in store}
    return state


@torch.no_grad()
def restore_parameters(
    model: Callable[..., Any], guide: Callable[..., Any], state: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Copy the tensors of `parameters_of` back in place; model and guide must have been run once."""
    for part, program in (("model", model), ("guide", guide)):
        if isinstance(program, nn.Module):
            synchronise(program)
            program.load_state_dict(state[part])
    store = pyro.get_param_store()._params
    for name, value in state["store"].items():
        if name in store:
            store[name].copy_(value)
