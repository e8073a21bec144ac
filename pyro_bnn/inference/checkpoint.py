"""
The whole state of a fit, so that a killed run goes on to the same bits as a run that was never interrupted.

A state is plain data (tensors, numbers, strings, dicts, lists): `torch.save` writes it and `torch.load` reads it with
`weights_only=True`. Names in it are relative to the model and the guide, for the full names carry a serial number that
another process counts differently. Files are replaced in one step, so that a reader finds the old one or the new one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_bnn.common.files import atomic_write
from pyro_bnn.common.turns import hold_interrupts

__all__ = [
    "atomic_write",
    "hold_interrupts",
    "is_serial",
    "load_state",
    "loose_tensors",
    "parameters_of",
    "restore_parameters",
    "save_state",
    "store_with",
    "synchronise",
]


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


def is_serial(name: str) -> bool:
    """Whether a name in Pyro's store is of a model or guide of this library, which no other ever has."""
    return re.match(r"(BNN|Auto[A-Za-z]+|StoredDraws)\d+\.", name) is not None


def loose_tensors(names: Iterable[str]) -> dict[str, tuple[Tensor, Any]]:
    """Return those of the names that live in Pyro's store and another program may use: tensors and constraints."""
    state = pyro.get_param_store().get_state()
    params, constraints = state["params"], state["constraints"]
    return {name: (params[name], constraints[name]) for name in names if name in params and not is_serial(name)}


@contextmanager
def store_with(tensors: Mapping[str, tuple[Tensor, Any]], *, alone: bool = False) -> Iterator[dict[str, Any]]:
    """
    Let Pyro's store hold these tensors under their names, and afterwards what it held before; yield its state.

    :param alone: nothing else is in it meanwhile; what the block adds is in the state.
    """
    store = pyro.get_param_store()
    there = store.get_state()
    if not alone and all(there["params"].get(name) is tensor for name, (tensor, _) in tensors.items()):
        yield cast(dict[str, Any], there)
        return
    own: dict[str, Any] = {"params": {}, "constraints": {}}
    if not alone:
        own = {key: dict(cast(Any, there)[key]) for key in own}
    own["params"] |= {name: tensor for name, (tensor, _) in tensors.items()}
    own["constraints"] |= {name: constraint for name, (_, constraint) in tensors.items()}
    with store.scope(cast(Any, own)):
        yield own


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
