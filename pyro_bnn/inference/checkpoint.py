"""
The whole state of a fit, so that a killed run goes on to the same bits as a run that was never interrupted.

A state is plain data: tensors, numbers, strings, dicts, lists. It is written as a folder: the tensors as
`state.safetensors`, all else as `state.json`, where a tensor stands by its name, and `manifest.json` with their SHA-256
(:mod:`pyro_bnn.common.manifest`). Nothing is pickled. Of a unit of work the two last states are kept, `epoch-7` and
`epoch-8`; where the last is damaged the one before it leads to the same bits. A state says which run it is of, and is
refused by another.

Names in a state are relative to the model and the guide, for the full names carry a serial number that another process
counts differently.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyro
import torch
from pyro.nn import PyroModule
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor, nn

from pyro_bnn.common.files import atomic_write, sync_folder
from pyro_bnn.common.manifest import MANIFEST, Damaged, is_sealed, read_listed, remove, sealed
from pyro_bnn.common.turns import hold_interrupts

__all__ = [
    "atomic_write",
    "hold_interrupts",
    "is_serial",
    "load_state",
    "loose_tensors",
    "newest_state",
    "older_version",
    "packed",
    "parameters_of",
    "restore_parameters",
    "save_state",
    "save_state_of_epoch",
    "store_with",
    "synchronise",
    "unpacked",
]

log = logging.getLogger(__name__)

FORMAT = 2
"""1 was `last.pt`, torch's zip of a pickle."""

TENSORS, TREE = "state.safetensors", "state.json"
KEPT = 2

# -- files -------------------------------------------------------------------------------------------------------------


def save_state(folder: Path, state: Mapping[str, Any], *, run: str = "", part: str = "") -> None:
    """
    Write a state as a folder, whole or not at all, even if a Ctrl-C arrives meanwhile.

    :param run: the run that it is of, by a hash of its recipe.
    :param part: likewise the unit of work.
    """
    tensors: dict[str, Tensor] = {}
    with hold_interrupts():
        held = {"format": FORMAT, "run": run, "part": part, "state": _encoded(state, "", tensors)}
        with sealed(folder) as new:
            (new / TENSORS).write_bytes(safetensors_save(tensors))
            (new / TREE).write_text(json.dumps(held))


def load_state(folder: Path, *, runs: Collection[str] | None = None, part: str | None = None) -> dict[str, Any]:
    """
    Read a state that `save_state` wrote.

    :param runs: the runs whose states are taken, default of any; a state of another is refused.
    :param part: likewise the unit of work.
    """
    return _loaded(folder, runs, part)[0]


def _loaded(folder: Path, runs: Collection[str] | None, part: str | None) -> tuple[dict[str, Any], str]:
    if not is_sealed(folder):
        raise FileNotFoundError(f"{folder} holds no whole state: it has no {MANIFEST}")
    contents = read_listed(folder, [TENSORS, TREE])
    try:
        held = json.loads(contents[TREE])
        version, run, its_part = held["format"], str(held["run"]), held["part"]
        state = _decoded(held["state"], safetensors_load(contents[TENSORS])) if version == FORMAT else {}
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder} holds no state of a fit ({type(error).__name__}: {error}); remove it") from None
    if version != FORMAT:
        raise ValueError(f"{folder} has format {version!r}; this version reads format {FORMAT}")
    if (runs is not None and run not in runs) or (part is not None and its_part != part):
        raise ValueError(f"{folder} is a state of another run: it was put there from elsewhere; remove it")
    return state, run


def packed(state: Mapping[str, Any]) -> bytes:
    """Return a state as bytes: the length of its JSON, the JSON, the tensors as safetensors."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_encoded(state, "", tensors)).encode()
    return len(tree).to_bytes(8, "big") + tree + safetensors_save(tensors)


def unpacked(content: bytes) -> dict[str, Any]:
    """Undo `packed`."""
    end = 8 + int.from_bytes(content[:8], "big")
    return cast(dict[str, Any], _decoded(json.loads(content[8:end]), safetensors_load(content[end:])))


def save_state_of_epoch(folder: Path, epoch: int, state: Mapping[str, Any], *, run: str = "", part: str = "") -> None:
    """Write the state after an epoch into a folder of states, of which the two last are kept."""
    save_state(folder / f"epoch-{epoch}", state, run=run, part=part)
    sync_folder(folder)
    for other in folder.glob("epoch-*"):
        if other not in _states(folder)[:KEPT]:
            remove(other)


def newest_state(folder: Path, runs: Collection[str], part: str = "") -> tuple[dict[str, Any], str] | None:
    """
    Return the last whole state of a folder and its run; None if there is none.

    A damaged one is named in a warning and passed over: the one before it leads to the same bits.
    """
    found = _states(folder)
    if not found and (folder / "last.pt").is_file():
        raise older_version(folder / "last.pt")
    wrong = []
    for path in found:
        try:
            state = _loaded(path, runs, part)
        except Damaged as error:
            wrong.append(str(error).partition(";")[0])
            continue
        if wrong:
            log.warning("%s; going on from the state before, %s", "; ".join(wrong), path.name)
        return state
    if wrong:
        raise Damaged(f"{'; '.join(wrong)}; there is no whole state: remove {folder} to begin anew")
    return None


def older_version(path: Path) -> ValueError:
    """Return the error that refuses a state of format 1."""
    return ValueError(
        f"{path} is a state of an earlier version (format 1) and a pickle, which this version does not read: finish "
        f"the run with the version that began it, or begin anew in another folder"
    )


def _states(folder: Path) -> list[Path]:
    """Return the folders of whole states, the last epoch first."""
    numbers = {path: re.fullmatch(r"epoch-(\d{1,9})", path.name) for path in folder.glob("epoch-*") if is_sealed(path)}
    return sorted((p for p, number in numbers.items() if number), key=lambda p: -int(p.name.partition("-")[2]))


def _encoded(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON holds it; tensors are put into `tensors` under the names of where they were."""
    if isinstance(value, Tensor):
        name = name if name not in tensors else f"{name}#{len(tensors)}"
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": name}
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Mapping):
        items = {key: _encoded(inner, f"{name}/{key}" if name else str(key), tensors) for key, inner in value.items()}
        plain = all(isinstance(key, str) and not key.startswith("$") for key in items)
        return items if plain else {"$items": [[_encoded(key, "", tensors), inner] for key, inner in items.items()]}
    if isinstance(value, (list, tuple)):
        listed = [_encoded(inner, f"{name}/{i}", tensors) for i, inner in enumerate(value)]
        return listed if isinstance(value, list) else {"$tuple": listed}
    raise TypeError(f"{name} of the state is a {type(value).__name__}: a state is tensors, numbers, text, dicts, lists")


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `_encoded`."""
    if isinstance(value, list):
        return [_decoded(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$float" in value:
        return float(value["$float"])
    if "$tuple" in value:
        return tuple(_decoded(value["$tuple"], tensors))
    if "$items" in value:
        return {_decoded(key, tensors): _decoded(inner, tensors) for key, inner in value["$items"]}
    return {key: _decoded(inner, tensors) for key, inner in value.items()}


# -- programs ----------------------------------------------------------------------------------------------------------


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
