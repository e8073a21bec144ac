"""
A saved posterior as it is read, by somebody who does not know who wrote it: what it says is checked before it is built.

`posterior.json` is plain data of known keys and types. `posterior.safetensors` is read whole, and what it holds is an
upper bound for what is built from the description: a network of more numbers than there are, or a guide of more draws
or members than there are, is refused before memory is taken for it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as safetensors_load
from torch import Tensor, nn

from pyro_bnn.common.errors import BadFile, border
from pyro_bnn.common.limits import check_limit, in_words
from pyro_bnn.common.own_state import KeepsTensors
from pyro_bnn.common.reading import check_plain, parse_json
from pyro_bnn.data.checks import check_class_names
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.posterior.compact import decode

__all__ = ["FORMAT", "check_guide", "check_info", "check_kinds", "read_description", "read_tensors"]

FORMAT = 1

_AS_WRITTEN = "give it as Posterior.save wrote it"
_TABLES = {"model": (dict, type(None)), "guide": (dict, type(None)), "info": (dict,), "encoding": (dict,)}
_TYPES: dict[str, tuple[type, ...]] = {
    "recipe": (dict,),
    "data": (str,),
    "task": (str,),
    "input_shape": (list,),
    "class_names": (list,),
    "columns": (list,),
    "standardiser": (dict,),
    "y_standardiser": (dict,),
    "num_data": (int,),
    "eta": (int, float),
    "temperature": (int, float),
    "method": (str,),
}
_DIMENSIONS = 8


def read_description(content: bytes, path: Path) -> dict[str, Any]:
    """Return what a `posterior.json` holds, checked."""
    check_limit("json_bytes", len(content), f"bytes of {path}", so=in_words(len(content)))
    held: dict[str, Any] = parse_json(content, str(path), dict)
    if held.get("format") != FORMAT:
        raise ValueError(f"{path.parent} has format {held.get('format')!r:.80}; this version reads format {FORMAT}")
    for key, kinds in _TABLES.items():
        if not isinstance(held.setdefault(key, {} if key == "encoding" else None), kinds):
            raise BadFile(f"{path}: {key} is {held[key]!r:.80}, and no table: {_AS_WRITTEN}")
    sites = held.setdefault("sites", None)
    if sites is not None and not (isinstance(sites, list) and all(isinstance(site, str) for site in sites)):
        raise BadFile(f"{path}: sites are {sites!r:.80}, and no names: {_AS_WRITTEN}")
    _check_info(held["info"], str(path))
    return held


def check_info(info: Mapping[str, Any], where: str) -> None:
    """Refuse what a posterior says of itself if its types, shapes and names cannot be."""
    check_plain({key: value for key, value in info.items() if key not in ("standardiser", "y_standardiser")}, where)
    for key, kinds in _TYPES.items():
        value = info.get(key)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise BadFile(f"{where}: info[{key!r}] is {value!r:.80}, a {type(value).__name__}: {_AS_WRITTEN}")
    shape = info.get("input_shape") or []
    if len(shape) > _DIMENSIONS or not all(type(size) is int and size > 0 for size in shape):
        raise BadFile(f"{where}: info['input_shape'] is {shape!r:.80}, no shape of an input: {_AS_WRITTEN}")
    for size in shape:
        check_limit("size", size, f"a size of inputs in {where}")
    if info.get("num_data") is not None and info["num_data"] < 1:
        raise BadFile(f"{where}: info['num_data'] is {info['num_data']!r}, no number of rows: {_AS_WRITTEN}")
    if info.get("task", None) not in (None, "classification", "regression"):
        raise BadFile(f"{where}: info['task'] is {info['task']!r:.80}: {_AS_WRITTEN}")
    names = info.get("class_names") or []
    if not all(isinstance(name, (str, int)) for name in names):
        raise BadFile(f"{where}: info['class_names'] are no words: {_AS_WRITTEN}")
    check_class_names([str(name) for name in names], where)
    columns = info.get("columns")
    if columns is not None:
        words = all(isinstance(column, str) for column in columns)
        if not words or len(set(columns)) < len(columns) or (shape and list(shape) != [len(columns)]):
            raise BadFile(f"{where}: info['columns'] are {columns!r:.80}, no name for each input: {_AS_WRITTEN}")


def _check_info(info: Mapping[str, Any], path: str) -> None:
    check_info(info, path)
    for key in ("standardiser", "y_standardiser"):
        if info.get("recipe") is not None and key not in info:
            raise BadFile(
                f"{path} does not say whether there is a {key}, without which numbers are of no scale: {_AS_WRITTEN}"
            )
        if info.get(key) is not None:
            with border(f"{path}: the {key} cannot be read", _AS_WRITTEN):
                Standardiser.from_dict(info[key])


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return bool(torch.isfinite(tensor).all())
    return all(map(math.isfinite, torch.aminmax(tensor)))  # NaN is passed on; a tenth of isfinite's time


def read_tensors(content: bytes, description: Mapping[str, Any], path: Path) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a `posterior.safetensors` by part (model, guide, store) and name."""
    encoding = description["encoding"]
    with border(f"{path} cannot be read", "give the file as it was written"):
        tensors = safetensors_load(content)
        for name, how in encoding.items():
            if name not in tensors:
                raise BadFile(f"{path} lacks the tensor {name!r:.80}, which the description says how to read")
            numbers = [how[key] for key in ("low", "high") if key in how]
            if how["dtype"] not in ("float16", "bfloat16", "float32", "float64"):
                raise BadFile(f"{path}: {name!r:.80} is said to be {how['dtype']!r:.40}, and no kind of number")
            if numbers and not (len(numbers) == 2 and -750 < numbers[0] <= numbers[1] < 750):
                raise BadFile(f"{path}: {name!r:.80} is encoded from {numbers}, no range of ln sigma")
            stored = torch.uint8 if numbers else torch.float16
            if tensors[name].dtype != stored:
                raise BadFile(f"{path}: {name!r:.80} is {tensors[name].dtype}, and would be {stored}: {_AS_WRITTEN}")
        held = decode(tensors, encoding)
    state: dict[str, dict[str, Tensor]] = {"model": {}, "guide": {}, "store": {}}
    for key, tensor in held.items():
        part, _, name = key.partition(":")
        if part not in state:
            raise BadFile(f"{path} holds {key!r:.80}, which is of no part of a posterior: {_AS_WRITTEN}")
        if part == "guide" and not _is_finite(tensor):
            raise BadFile(f"{path}: {name!r:.80} holds NaN or infinity, from which nothing can be predicted")
        state[part][name] = tensor
    return state


def check_guide(spec: Mapping[str, Any], model: Any, entries: int, path: Path) -> None:
    """
    Refuse the description of a guide that holds more numbers than there are.

    :param entries: how many numbers the file of tensors holds.
    """
    weights = 1
    if isinstance(model, nn.Module) and isinstance(model, KeepsTensors):
        kept = model.kept_tensors()
        weights = sum(tensor.numel() for name, tensor in model.state_dict().items() if name not in kept)
    with border(f"{path}: the guide cannot be built", _AS_WRITTEN):
        needed = _numbers_of(spec, weights)
        if needed > entries:
            raise BadFile(
                f"{path} describes a guide of {needed:,} numbers or more, and the tensors beside it hold {entries:,}: "
                f"{_AS_WRITTEN}"
            )


def _numbers_of(spec: Mapping[str, Any], weights: int) -> int:
    """Return how many numbers a guide of this library holds at the least."""
    if spec["name"] == "Ensemble":
        return sum(_numbers_of(member, weights) for member in spec["members"])
    times = {"StoredDraws": "num_draws", "AutoLowRankNormal": "rank"}.get(spec["name"])
    count = 1 if times is None else spec.get(times, 1)
    if type(count) is not int or count < 1:
        raise BadFile(f"{times}={count!r:.80} is no number of them")
    return count * weights


def check_kinds(part: str, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse tensors of another shape, or of another kind of number, than model or guide have."""
    for name, tensor in expected.items():
        saved = found[name]
        if saved.shape != tensor.shape:
            raise BadFile(
                f"the saved {part} has {name!r} of shape {tuple(saved.shape)}, and it is {tuple(tensor.shape)}"
                f": pass the {part} it was saved from"
            )
        same = saved.dtype == tensor.dtype or (saved.is_floating_point() and tensor.is_floating_point())
        if not same:
            raise BadFile(f"the saved {part} has {name!r} as {saved.dtype}, and it is {tensor.dtype}: {_AS_WRITTEN}")
