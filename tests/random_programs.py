"""
Random Pyro programs, and the random changes that users make to them between steps.

`random_case(seed)` puts together, deterministically,

    a program   a BNN of a user's network, a function, a callable object, a PyroModule, or a function around a backbone
    a guide     mostly AutoMeanFieldNormal, in all its forms
    a state     where a number lives that the program reads: one of the many places Python has (attributes, closures,
                globals, containers, NumPy memory, buffers, the environment, ...)
    a use       what the program does with it: a factor, an offset, a branch, a slice, a number of repetitions, ...
    a change    what is done to it after some step, or after each one

or a family that has its own way: networks changed in their structure, priors and likelihoods replaced, parameters
frozen, data that decide what is computed, counters, clocks, generators of random numbers. Values of 1 and 0, which
change nothing at first, are frequent on purpose.

Whoever claims to run a program must give, for every case, what the program gives when it is simply run.
"""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import decimal
import enum
import fractions
import functools
import itertools
import operator
import os
import random
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.guides import AutoMeanFieldNormal, AutoPoint
from pyro_bnn.models import BNN, likelihoods, priors

__all__ = ["FAMILIES", "Case", "random_case"]

ROWS, FEATURES, HIDDEN, CLASSES = 24, 4, 6, 3

Host = Any
"""What the program keeps its state on: a network, a function, an object."""

Change = Callable[[Host, Any, Any, int], None]
"""What is done to (host, model, guide) after a step."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, and what happens to it."""

    seed: int
    family: str
    make: Callable[[], tuple[Any, Any, tuple[Tensor, Tensor], int]]
    """Build everything afresh: model, guide, the data (x, y), N."""

    act: Change
    host: Callable[[Any], Host]
    at: int
    """The step after which the change is made (the first, if it is made again and again)."""

    every: bool
    moment: str
    """Who makes the change in `fit`: "step" or "epoch" (callbacks), "augment", "optimizer", "rows" (a dataset)."""

    batches: Callable[[tuple[Tensor, Tensor], int], tuple[Tensor, Tensor]]

    def change(self, model: Any, guide: Any, step: int) -> None:
        """Do what the user does after this step (counted from 0), if anything."""
        if step == self.at or (self.every and step > self.at):
            self.act(self.host(model), model, guide, step)

    def batch(self, data: tuple[Tensor, Tensor], step: int) -> tuple[Tensor, Tensor]:
        """Return the rows of a step."""
        return self.batches(data, step)


# ------------------------------------------------------------------------------------- where a number may live


class Place(NamedTuple):
    """Put a number somewhere, read it from there in the program, and write another one."""

    setup: Callable[[Host, float], Any]
    read: Callable[[Host], Any]
    write: Callable[[Host, float], Any]


def _at(path: str) -> Callable[[Host], Any]:
    return operator.attrgetter(path)


def _bind(make: Callable[[float], Any], read: Callable[[Any], Any]) -> Place:
    """An attribute that is bound to a new object of its kind."""

    def put(host: Host, v: float) -> None:
        host.k = make(v)

    return Place(put, lambda host: read(host.k), put)


def _inside(make: Callable[[float], Any], read: Callable[[Any], Any], write: Callable[[Any, float], Any]) -> Place:
    """An attribute whose object is changed from within."""

    def put(host: Host, v: float) -> None:
        host.k = make(v)

    return Place(put, lambda host: read(host.k), lambda host, v: write(host.k, v))


class Point(NamedTuple):
    beta: float


@dataclasses.dataclass
class Plain:
    beta: float


@dataclasses.dataclass(slots=True)
class Slotted:
    beta: float


@dataclasses.dataclass(frozen=True)
class Frozen:
    beta: float


class Hidden:
    """A number behind every special method that gives one."""

    def __init__(self, v: float) -> None:
        self.__v = v

    def put(self, v: float) -> None:
        self.__v = v

    def __float__(self) -> float:
        return self.__v

    def __call__(self) -> float:
        return self.__v

    def __getitem__(self, key: int) -> float:
        return self.__v

    def __len__(self) -> int:
        return round(4 * self.__v)

    def __bool__(self) -> bool:
        return self.__v > 1.2

    def __iter__(self) -> Iterator[float]:
        yield self.__v

    def __contains__(self, v: float) -> bool:
        return v < self.__v

    def __eq__(self, other: object) -> bool:
        return other == self.__v

    __hash__ = None  # type: ignore[assignment]

    def __mul__(self, other: float) -> float:
        return self.__v * other

    def __getattr__(self, name: str) -> float:
        if name != "beta":
            raise AttributeError(name)
        return self.__v

    def __enter__(self) -> float:
        return self.__v

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    @property
    def computed(self) -> float:
        return self.__v


class Descriptor:
    def __get__(self, owner: Any, kind: Any = None) -> float:
        return vars(self)["v"]  # type: ignore[no-any-return]


class Mode(enum.Enum):
    A = 1.0
    B = 2.0
    C = 3.0


def _nearest(v: float) -> Mode:
    return min(Mode, key=lambda mode: abs(mode.value - v))


def _through_with(k: Any) -> float:
    with k as v:
        return v  # type: ignore[no-any-return]


def _closure(v: float) -> Any:
    def get() -> float:
        return v

    def put(new: float) -> None:
        nonlocal v
        v = new

    get.put = put  # type: ignore[attr-defined]
    return get


def _cached(v: float) -> Any:
    held = [v]
    get: Any = functools.lru_cache(lambda: held[0])

    def put(new: float) -> None:
        held[0] = new
        get.cache_clear()

    get.put = put
    return get


def _default(v: float) -> Any:
    def get(beta: float = v) -> float:
        return beta

    return get


def _keyword_default(v: float) -> Any:
    def get(*, beta: float = v) -> float:
        return beta

    return get


def _constant(v: float) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def get(): return {v!r}", scope)
    return scope["get"]


def _class_with(v: float) -> Any:
    class Base:
        beta = v
        table: dict[str, float] = {"beta": v}  # noqa: RUF012

        @classmethod
        def method(cls) -> float:
            return cls.beta

        @staticmethod
        def static() -> float:
            return v

    class Config(Base):
        inherited = 0

    return Config


def _replace_static(k: Any, v: float) -> None:
    k.static = staticmethod(lambda: v)


def _module(v: float) -> Any:
    name = "random_programs_configuration"
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].beta = v  # type: ignore[attr-defined]
    return name


GLOBAL: Any = 1.0
GLOBALS: dict[str, Any] = {"list": [1.0]}
CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("CONTEXT", default=1.0)
LOCAL = threading.local()
VARIABLE = "RANDOM_PROGRAMS_BETA"


def _set_global(host: Host, v: float) -> None:
    global GLOBAL
    GLOBAL = v


def _set_global_tensor(host: Host, v: float) -> None:
    global GLOBAL
    GLOBAL = torch.tensor(v)


def _file(host: Host, v: float) -> None:
    if not hasattr(host, "k"):
        with tempfile.NamedTemporaryFile(delete=False) as kept:
            weakref.finalize(host, os.unlink, kept.name)
        host.k = kept.name
    Path(host.k).write_text(repr(v))


def _descriptor(host: Host, v: float) -> None:
    descriptor = Descriptor()
    descriptor.v = v  # type: ignore[attr-defined]
    host.k = type("Owner", (), {"beta": descriptor})()


def _rewrite_descriptor(host: Host, v: float) -> None:
    vars(type(host.k))["beta"].v = v


def _set_item(k: Any, v: float, key: Any = 0) -> None:
    k[key] = v


def _only(k: Any, v: float) -> None:
    k.clear()
    k.add(v)


def _cell(k: Any, v: float) -> None:
    k.__closure__[0].cell_contents = v


NUMBERS: dict[str, Place] = {
    # a name bound to something new
    "float": _bind(float, float),
    "fraction": _bind(lambda v: fractions.Fraction(v), float),
    "decimal": _bind(lambda v: decimal.Decimal(v), float),
    "complex": _bind(lambda v: complex(v, 1), lambda k: k.real),
    "string": _bind(repr, float),
    "bytes": _bind(lambda v: repr(v).encode(), lambda k: float(k.decode())),
    "enum": _bind(_nearest, lambda k: k.value),
    "numpy number": _bind(np.float64, float),
    "numpy float32": _bind(np.float32, lambda k: k.item()),
    "numpy schedule": _bind(lambda v: np.linspace(v, 9, 5)[0], float),
    "numpy array, new": _bind(lambda v: np.array([v]), lambda k: float(k[0])),
    "numpy record": _bind(lambda v: np.array([(v,)], dtype=[("beta", "f8")]), lambda k: float(k["beta"][0])),
    "list, new": _bind(lambda v: [v], lambda k: k[0]),
    "list of lists, new": _bind(lambda v: [[0], [v]], lambda k: k[1][0]),
    "long list, new": _bind(lambda v: [0.0] * 99 + [v], lambda k: k[99]),
    "tuple": _bind(lambda v: (v,), lambda k: k[0]),
    "nested tuple": _bind(lambda v: ((0, (v,)),), lambda k: k[0][1][0]),
    "dict, new": _bind(lambda v: {"beta": v}, lambda k: k["beta"]),
    "mapping proxy": _bind(lambda v: types.MappingProxyType({"beta": v}), lambda k: k["beta"]),
    "deque, new": _bind(lambda v: collections.deque([v, 5.0]), lambda k: k[0]),
    "frozenset": _bind(lambda v: frozenset([v]), max),
    "range": _bind(lambda v: range(round(10 * v), 99), lambda k: k.start / 10),
    "slice": _bind(lambda v: slice(round(10 * v), 99), lambda k: k.start / 10),
    "NamedTuple": _bind(Point, _at("beta")),
    "frozen dataclass": _bind(Frozen, _at("beta")),
    "partial": _bind(lambda v: functools.partial(operator.mul, v), lambda k: k(1.0)),
    "partial with keyword": _bind(
        lambda v: functools.partial(round, ndigits=round(v) - 1), lambda k: 0.5 + 4 * k(0.26)
    ),
    "lambda": _bind(lambda v: lambda: v, lambda k: k()),
    "built from text": _bind(_constant, lambda k: k()),
    "default argument, new": _bind(_default, lambda k: k()),
    "bound method": _bind(lambda v: Hidden(v).__float__, lambda k: k()),
    "getter": _bind(lambda v: operator.attrgetter("real" if v > 1.2 else "imag"), lambda k: 1 + k(2 + 0.5j)),
    "None or a number": _bind(lambda v: None if v == 1.0 else v, lambda k: 1.0 if k is None else k),
    "type": _bind(lambda v: type("T", (), {"beta": v}), _at("beta")),
    "torch transform": _bind(lambda v: dist.transforms.AffineTransform(0.0, v), lambda k: k(torch.tensor(1.0))),
    "torch size": _bind(lambda v: torch.Size([round(10 * v)]), lambda k: k[0] / 10),
    "distribution": _bind(lambda v: dist.Normal(v, 1.0), lambda k: k.mean),
    # an object changed from within
    "list": _inside(lambda v: [v], lambda k: k[0], _set_item),
    "list in a list": _inside(lambda v: [[v]], lambda k: k[0][0], lambda k, v: _set_item(k[0], v)),
    "long list": _inside(lambda v: [v] * 100, lambda k: k[70], lambda k, v: _set_item(k, v, 70)),
    "list appended to": _inside(lambda v: [v], lambda k: k[-1], list.append),
    "list summed up": _inside(lambda v: [v], sum, list.append),
    "list length": _inside(lambda v: [v], len, list.append),
    "dict": _inside(lambda v: {"beta": v}, lambda k: k["beta"], lambda k, v: _set_item(k, v, "beta")),
    "dict, missing key": _inside(lambda v: {}, lambda k: k.get("beta", 1.0), lambda k, v: _set_item(k, v, "beta")),
    "dict, key asked for": _inside(
        lambda v: {}, lambda k: 2.0 if "beta" in k else 1.0, lambda k, v: _set_item(k, v, "beta")
    ),
    "dict, order": _inside(
        lambda v: {"a": 1.0, "b": 2.0}, lambda k: next(iter(k.values())), lambda k, v: k.pop("a", None)
    ),
    "dict of dicts": _inside(lambda v: {"a": {"b": v}}, lambda k: k["a"]["b"], lambda k, v: _set_item(k["a"], v, "b")),
    "defaultdict": _inside(
        lambda v: collections.defaultdict(lambda: 1.0), lambda k: k["beta"], lambda k, v: _set_item(k, v, "beta")
    ),
    "OrderedDict": _inside(
        lambda v: collections.OrderedDict(beta=v), lambda k: k["beta"], lambda k, v: _set_item(k, v, "beta")
    ),
    "Counter": _inside(lambda v: collections.Counter("a"), lambda k: float(k["a"]), lambda k, v: k.update("a")),
    "ChainMap": _inside(
        lambda v: collections.ChainMap({}, {"beta": v}), lambda k: k["beta"], lambda k, v: _set_item(k, v, "beta")
    ),
    "deque": _inside(lambda v: collections.deque([v, 3.0]), lambda k: k[0], lambda k, v: k.rotate(1)),
    "set": _inside(lambda v: {v}, max, _only),
    "array.array": _inside(lambda v: array.array("d", [v]), lambda k: k[0], _set_item),
    "bytearray": _inside(
        lambda v: bytearray([round(10 * v)]), lambda k: k[0] / 10, lambda k, v: _set_item(k, round(10 * v))
    ),
    "numpy array": _inside(lambda v: np.array([v]), lambda k: float(k[0]), _set_item),
    "numpy array as a factor": _inside(lambda v: np.array([v], np.float32), torch.tensor, _set_item),
    "numpy view": _inside(
        lambda v: np.full((3, 4), v)[1:, 2], lambda k: float(k[1]), lambda k, v: _set_item(k.base, v, ...)
    ),
    "dataclass": _inside(Plain, _at("beta"), lambda k, v: setattr(k, "beta", v)),
    "dataclass with slots": _inside(Slotted, _at("beta"), lambda k, v: setattr(k, "beta", v)),
    "frozen dataclass, by force": _inside(Frozen, _at("beta"), lambda k, v: object.__setattr__(k, "beta", v)),
    "namespace": _inside(lambda v: types.SimpleNamespace(v=v), _at("v"), lambda k, v: setattr(k, "v", v)),
    "namespace in a list": _inside(
        lambda v: [types.SimpleNamespace(v=v)], lambda k: k[0].v, lambda k, v: setattr(k[0], "v", v)
    ),
    "object in a dict": _inside(
        lambda v: {"a": Plain(v)}, lambda k: k["a"].beta, lambda k, v: setattr(k["a"], "beta", v)
    ),
    "object in a tuple": _inside(lambda v: (Plain(v),), lambda k: k[0].beta, lambda k, v: setattr(k[0], "beta", v)),
    "float()": _inside(Hidden, float, Hidden.put),
    "call": _inside(Hidden, lambda k: k(), Hidden.put),
    "item": _inside(Hidden, lambda k: k[0], Hidden.put),
    "len()": _inside(Hidden, lambda k: len(k) / 4, Hidden.put),
    "truth": _inside(Hidden, lambda k: 2.0 if k else 0.5, Hidden.put),
    "iteration": _inside(Hidden, lambda k: sum(k), Hidden.put),
    "in": _inside(Hidden, lambda k: 2.0 if 1.2 in k else 0.5, Hidden.put),
    "equality": _inside(Hidden, lambda k: 1.0 if k == 1.0 else 0.4, Hidden.put),
    "operator": _inside(Hidden, lambda k: k * 1.0, Hidden.put),
    "getattr hook": _inside(Hidden, _at("beta"), Hidden.put),
    "with": _inside(Hidden, _through_with, Hidden.put),
    "property": _inside(Hidden, _at("computed"), Hidden.put),
    "property replaced": _inside(
        lambda v: type("P", (), {"beta": property(lambda self: v)})(),
        _at("beta"),
        lambda k, v: setattr(type(k), "beta", property(lambda self: v)),
    ),
    "class of an object": _inside(
        lambda v: type("A", (), {"beta": v})(),
        _at("beta"),
        lambda k, v: setattr(k, "__class__", type("B", (), {"beta": v})),
    ),
    "closure": _inside(_closure, lambda k: k(), lambda k, v: k.put(v)),
    "closure cell": _inside(_closure, lambda k: k(), _cell),
    "default argument": _inside(_default, lambda k: k(), lambda k, v: setattr(k, "__defaults__", (v,))),
    "keyword default": _inside(_keyword_default, lambda k: k(), lambda k, v: setattr(k, "__kwdefaults__", {"beta": v})),
    "code of a function": _inside(_constant, lambda k: k(), lambda k, v: setattr(k, "__code__", _constant(v).__code__)),
    "function attribute": _inside(_closure, lambda k: getattr(k, "v", 1.0), lambda k, v: setattr(k, "v", v)),
    "class attribute": _inside(_class_with, _at("beta"), lambda k, v: setattr(k, "beta", v)),
    "inherited attribute": _inside(_class_with, _at("beta"), lambda k, v: setattr(k.__mro__[1], "beta", v)),
    "attribute of the object's class": _inside(
        lambda v: _class_with(v)(), _at("beta"), lambda k, v: setattr(type(k), "beta", v)
    ),
    "class method": _inside(_class_with, lambda k: k.method(), lambda k, v: setattr(k, "beta", v)),
    "static method replaced": _inside(_class_with, lambda k: k.static(), _replace_static),
    "table of a class": _inside(_class_with, lambda k: k.table["beta"], lambda k, v: _set_item(k.table, v, "beta")),
    "module": _inside(_module, lambda k: sys.modules[k].beta, lambda k, v: setattr(sys.modules[k], "beta", v)),
    "module replaced": _inside(_module, lambda k: sys.modules[k].beta, lambda k, v: _module(v)),
    "module imported": _inside(
        _module,
        lambda k: __import__(k).beta,
        lambda k, v: setattr(sys.modules[k], "beta", v),
    ),
    "weak reference": _inside(
        lambda v: (weakref.ref(c := _class_with(v)), c), lambda k: k[0]().beta, lambda k, v: setattr(k[1], "beta", v)
    ),
    "partial's keywords": _inside(
        lambda v: functools.partial(lambda *, beta: beta, beta=v), lambda k: k(), lambda k, v: k.keywords.update(beta=v)
    ),
    "cached function": _inside(_cached, lambda k: k(), lambda k, v: k.put(v)),
    # the host itself and the world around it
    "private": Place(
        lambda h, v: setattr(h, "_private", {"beta": v}),
        lambda h: h._private["beta"],
        lambda h, v: h._private.update(beta=v),
    ),
    "attribute that appears": Place(
        lambda h, v: None, lambda h: getattr(h, "temperature", 1.0), lambda h, v: setattr(h, "temperature", v)
    ),
    "attribute asked for": Place(
        lambda h, v: None, lambda h: 2.0 if hasattr(h, "on") else 1.0, lambda h, v: setattr(h, "on", True)
    ),
    "vars()": Place(lambda h, v: setattr(h, "k", v), lambda h: vars(h)["k"], lambda h, v: vars(h).update(k=v)),
    "global": Place(_set_global, lambda h: GLOBAL, _set_global),
    "globals()": Place(_set_global, lambda h: globals()["GLOBAL"], _set_global),
    "global list": Place(
        lambda h, v: GLOBALS.update(list=[v]), lambda h: GLOBALS["list"][0], lambda h, v: _set_item(GLOBALS["list"], v)
    ),
    "global dict, new value": Place(
        lambda h, v: GLOBALS.update(beta=v), lambda h: GLOBALS["beta"], lambda h, v: GLOBALS.update(beta=v)
    ),
    "global tensor": Place(_set_global_tensor, lambda h: GLOBAL, _set_global_tensor),
    "environment": Place(
        lambda h, v: os.environ.__setitem__(VARIABLE, repr(v)),
        lambda h: float(os.environ[VARIABLE]),
        lambda h, v: os.environ.__setitem__(VARIABLE, repr(v)),
    ),
    "environment, default": Place(
        lambda h, v: os.environ.pop(VARIABLE, None),
        lambda h: float(os.environ.get(VARIABLE, "1")),
        lambda h, v: os.environ.__setitem__(VARIABLE, repr(v)),
    ),
    "context variable": Place(lambda h, v: CONTEXT.set(v), lambda h: CONTEXT.get(), lambda h, v: CONTEXT.set(v)),
    "thread local": Place(
        lambda h, v: setattr(LOCAL, "beta", v), lambda h: LOCAL.beta, lambda h, v: setattr(LOCAL, "beta", v)
    ),
    "file": Place(_file, lambda h: float(Path(h.k).read_text()), _file),
    "descriptor": Place(_descriptor, lambda h: h.k.beta, _rewrite_descriptor),
    "deadline": Place(
        lambda h, v: setattr(h, "deadline", time.time() + 1e6),
        lambda h: 1.0 if time.time() < h.deadline else 2.5,
        lambda h, v: setattr(h, "deadline", 0.0),
    ),
}
"""Places whose content is a Python number when the program reads it (or, for a few, a tensor without gradient)."""


# ------------------------------------------------------------------------------------- where a tensor may live


def _full(v: float) -> Tensor:
    return torch.full((CLASSES,), v)


@torch.no_grad()
def _fill(t: Tensor, v: float) -> None:
    t.fill_(v)


def _fill_data(t: Tensor, v: float) -> None:
    t.data.fill_(v)


def _swap_data(t: Tensor, v: float) -> None:
    t.data = _full(v)


def _fill_part(t: Tensor, v: float) -> None:
    t[: CLASSES - 1] = v


def _through_numpy(t: Tensor, v: float) -> None:
    t.numpy()[:] = v


def _through_detach(t: Tensor, v: float) -> None:
    t.detach().fill_(v)


def _other_storage(t: Tensor, v: float) -> None:
    t.set_(_full(v))  # type: ignore[call-overload]


def _through_storage(t: Tensor, v: float) -> None:
    t.untyped_storage().copy_(_full(v).untyped_storage())


def _memory(v: float) -> Any:
    memory = np.full(CLASSES, v, np.float32)
    return types.SimpleNamespace(memory=memory, tensor=torch.from_numpy(memory))


def _window(v: float) -> Any:
    base = torch.full((4, CLASSES), v)
    return types.SimpleNamespace(base=base, tensor=base[2])


def _buffer(host: Host, v: float) -> None:
    if isinstance(host, nn.Module):
        host.register_buffer("k", _full(v))
    else:
        host.k = _full(v)


def _load(host: Host, v: float) -> None:
    if isinstance(host, nn.Module) and "k" in host._buffers:
        host.load_state_dict({**host.state_dict(), "k": _full(v)})
    else:
        host.k.copy_(_full(v))


def _grow(host: Host, v: float) -> None:
    host.k = torch.cat([torch.full((CLASSES - 1,), v), torch.ones(1)])


_TENSOR_WRITES: dict[str, Callable[[Tensor, float], Any]] = {
    "fill_": _fill,
    ".data": _fill_data,
    ".data = other": _swap_data,
    "a part": _fill_part,
    "numpy()": _through_numpy,
    "detach()": _through_detach,
    "set_": _other_storage,
    "storage": _through_storage,
}

TENSORS: dict[str, Place] = {
    "tensor, new": _bind(_full, lambda k: k),
    "0-dimensional tensor, new": _bind(torch.tensor, lambda k: k),
    "tensor in a tuple": _bind(lambda v: (_full(v),), lambda k: k[0]),
    "tensor in a list, new": _bind(lambda v: [_full(v)], lambda k: k[0]),
    "tensor in a list": _inside(lambda v: [_full(v)], lambda k: k[0], lambda k, v: _set_item(k, _full(v))),  # type: ignore[arg-type]
    "tensor in a dict": _inside(lambda v: {"a": _full(v)}, lambda k: k["a"], lambda k, v: k.update(a=_full(v))),
    "tensor in a dict, filled": _inside(lambda v: {"a": _full(v)}, lambda k: k["a"], lambda k, v: _fill(k["a"], v)),
    "tensor in a closure": _inside(lambda v: _closure(_full(v)), lambda k: k(), lambda k, v: k.put(_full(v))),  # type: ignore[arg-type]
    "tensor's attribute": _inside(_full, lambda k: k * getattr(k, "beta", 1.0), lambda k, v: setattr(k, "beta", v)),
    **{f"tensor, {name}": _inside(_full, lambda k: k, write) for name, write in _TENSOR_WRITES.items()},
    **{
        f"tensor through a function, {name}": _inside(_full, lambda k: (k + 1).log() * 1.4, write)
        for name, write in _TENSOR_WRITES.items()
    },
    "tensor's number": _inside(_full, lambda k: k[0].item(), _fill),
    "memory of NumPy": _inside(_memory, _at("tensor"), lambda k, v: k.memory.fill(v)),
    "memory of NumPy, copied": _inside(_memory, lambda k: torch.tensor(k.memory), lambda k, v: k.memory.fill(v)),
    "memory of NumPy, taken": _inside(_memory, lambda k: torch.as_tensor(k.memory), lambda k, v: k.memory.fill(v)),
    "view of a tensor": _inside(_window, _at("tensor"), lambda k, v: _fill(k.base, v)),
    "view of a tensor, .data": _inside(_window, _at("tensor"), lambda k, v: _fill_data(k.base, v)),
    "buffer": Place(_buffer, lambda h: h.k, lambda h, v: _fill(h.k, v)),
    "buffer, new": Place(_buffer, lambda h: h.k, lambda h, v: setattr(h, "k", _full(v))),
    "buffer, .data": Place(_buffer, lambda h: h.k, lambda h, v: _fill_data(h.k, v)),
    "buffer, loaded": Place(_buffer, lambda h: h.k, _load),
    "buffer, registered again": Place(_buffer, lambda h: h.k, _buffer),
    "mask that grows": Place(_buffer, lambda h: h.k, _grow),
    "double tensor": _bind(lambda v: _full(v).double(), lambda k: k.float()),
    "other dtype": _bind(lambda v: _full(v).double() if v != 1.0 else _full(v), lambda k: k.float()),
    "strided tensor": _bind(lambda v: torch.full((2 * CLASSES,), v)[::2], lambda k: k),
}
"""Places whose content is a tensor (K,) or ()."""


# ----------------------------------------------------------------------------- what a program does with a number


def _column(h: Tensor) -> Tensor:
    return torch.linspace(-1, 1, h.shape[-1])


def _leaky(v: Any, h: Tensor) -> Tensor:
    return F.leaky_relu(h, float(v))


def _branch(v: Any, h: Tensor) -> Tensor:
    return torch.tanh(h) if float(v) > 1.2 else h


def _repeat(v: Any, h: Tensor) -> Tensor:
    for _ in range(max(1, round(float(v)))):
        h = h - 0.3 * torch.tanh(h)
    return h


def _cut(v: Any, h: Tensor) -> Tensor:
    kept = max(1, min(h.shape[-1], round(float(v))))
    return torch.cat([h[..., :kept], 0.1 * h[..., kept:]], -1)


def _name(v: Any, h: Tensor) -> Tensor:
    result: Tensor = getattr(torch, "tanh" if float(v) > 1.2 else "sin")(h)
    return result


def _look_up(v: Any, h: Tensor) -> Tensor:
    return {True: torch.relu, False: torch.sigmoid}[float(v) > 1.2](h)


USES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "factor": lambda v, h: h * v,
    "divisor": lambda v, h: h / (v + 0.01 if isinstance(v, Tensor) else max(v, 0.01)),
    "offset": lambda v, h: h + v * _column(h),
    "offset from one": lambda v, h: h + (v - 1.0) * _column(h),
    "mixture": lambda v, h: h * v + (1 - v) * 0.5,
    "branch": _branch,
    "leaky": _leaky,
    "repeat": _repeat,
    "cut": _cut,
    "name": _name,
    "look up": _look_up,
}
TENSOR_USES = ("factor", "divisor", "offset", "offset from one", "mixture")


# --------------------------------------------------------------------------------------------------- the programs


class Network(nn.Module):
    """A user's network with something of everything that is changed later."""

    def __init__(self, use: Callable[[Host, Tensor], Tensor], options: dict[str, Any]) -> None:
        super().__init__()
        hidden = options["hidden"]
        self.use = use
        self.first = nn.Linear(FEATURES, hidden)
        self.act: Any = nn.Tanh()
        self.norm = {"none": nn.Identity(), "layer": nn.LayerNorm(hidden), "batch": nn.BatchNorm1d(hidden)}[
            options["norm"]
        ]
        self.drop = nn.Dropout(options["dropout"])
        self.blocks = nn.ModuleList(nn.Identity() for _ in range(2))
        self.table = nn.ModuleDict({"a": nn.Identity(), "b": nn.Tanh()})
        self.key = "a"
        self.out = nn.Linear(hidden, options["outputs"])
        self.at_end = options["at_end"]

    def body(self, h: Tensor) -> Tensor:
        return self.drop(self.norm(self.act(h)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.first(x))
        for block in self.blocks:
            h = block(h)
        h = self.table[self.key](h)
        if not self.at_end:  # what is changed stands in the middle of the network, and sees K columns of it
            h = torch.cat([self.use(self, h[..., :CLASSES]), h[..., CLASSES:]], -1)
            return self.out(h)  # type: ignore[no-any-return]
        return self.use(self, self.out(h))


def _network(use: Callable[[Host, Tensor], Tensor], options: dict[str, Any]) -> nn.Module:
    """Return a network of a class of its own, so that a change of the class stays in its case."""
    kind: Any = type("Network", (Network,), {"beta": 1.0})
    return kind(use, options)  # type: ignore[no-any-return]


Use = Callable[[Host, Tensor], Tensor]


_LIKELIHOODS: dict[str, Callable[[], Any]] = {
    "categorical": likelihoods.Categorical,
    "gaussian": lambda: likelihoods.Gaussian(noise=0.7),
    "learned": lambda: likelihoods.LearnedGaussian(),
}
_PRIORS: dict[str, Callable[[], Any]] = {
    "kaiming": priors.Kaiming,
    "normal": lambda: priors.Normal(0.0, 0.8),
    "laplace": lambda: priors.Laplace(0.5),
}


def _bnn(use: Use, options: dict[str, Any]) -> Any:
    return BNN(
        _network(use, options), _PRIORS[options["prior"]](), _LIKELIHOODS[options["likelihood"]](), options["rows"]
    )


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
}


def _of_torch(use: Use, options: dict[str, Any]) -> Any:
    """A BNN all of whose parts are torch's own: what may be recorded without being asked for."""
    hidden = options["hidden"]
    norm = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}[options["norm"]]
    first: list[tuple[str, nn.Module]] = [("first", nn.Linear(FEATURES, hidden))]
    if options.get("convolution"):
        conv = nn.Conv2d(1, hidden, 2, padding=1)
        pool = nn.AdaptiveAvgPool2d(1)
        first = [("image", nn.Unflatten(1, (1, 2, 2))), ("first", conv), ("pool", pool), ("flat", nn.Flatten())]
    parts = [
        *first,
        ("act", _ACTIVATIONS[options["activation"]]()),
        ("norm", norm(hidden)),
        ("drop", nn.Dropout(options["dropout"])),
        ("out", nn.Linear(hidden, options["outputs"])),
        ("last", nn.Identity()),
    ]
    prior, likelihood = _PRIORS[options["prior"]](), _LIKELIHOODS[options["likelihood"]]()
    return BNN(nn.Sequential(collections.OrderedDict(parts)), prior, likelihood, options["rows"])


def _observe(logits: Tensor, y: Tensor | None, options: dict[str, Any], noise: Any = 0.7) -> None:
    fn: Any = dist.Categorical(logits=logits)
    if options["likelihood"] != "categorical":
        fn = dist.Normal(logits, noise).to_event(1)
    with pyro.plate("data", options["rows"], subsample=torch.arange(len(logits))):
        pyro.sample("obs", fn, obs=y)


def _weights(options: dict[str, Any], inputs: int) -> Tensor:
    """The latent sites of a hand-written program; returns (D, K)."""
    scale: Any = 1.0
    if options["hierarchy"]:
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
    if options["in_plate"]:
        with pyro.plate("features", inputs):
            w = pyro.sample("w", dist.Normal(torch.zeros(inputs, CLASSES), scale).to_event(1))
    else:
        w = pyro.sample("w", dist.Normal(torch.zeros(inputs, CLASSES), scale).to_event(2))
    if options["bias"]:
        w = w + pyro.sample("b", dist.Normal(torch.zeros(CLASSES), 2.0).to_event(1))
    if options["parameter"]:
        w = w * pyro.param("gain", torch.tensor(0.9), constraint=dist.constraints.positive)
    return w


def _function(use: Use, options: dict[str, Any]) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        _observe(use(model, x @ _weights(options, FEATURES)), y, options)

    return model


class Callable_:
    """A program that is an object."""

    def __init__(self, use: Use, options: dict[str, Any]) -> None:
        self.use, self.options = use, options

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        _observe(self.use(self, x @ _weights(self.options, FEATURES)), y, self.options)


def _object(use: Use, options: dict[str, Any]) -> Any:
    return Callable_(use, options)


class Lifted(PyroModule):
    """A program that is a PyroModule."""

    def __init__(self, use: Use, options: dict[str, Any]) -> None:
        super().__init__()
        self.use, self.options = use, options
        self.linear = PyroModule[nn.Linear](FEATURES, CLASSES)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([CLASSES, FEATURES]).to_event(2))
        self.noise = PyroParam(torch.tensor(0.6), dist.constraints.positive)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        _observe(self.use(self, self.linear(x)), y, self.options, self.noise)


def _lifted(use: Use, options: dict[str, Any]) -> Any:
    return Lifted(use, options)


def _backbone(use: Use, options: dict[str, Any]) -> Any:
    network = _network(use, {**options, "outputs": FEATURES, "at_end": False})

    def model(x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("backbone", network)
        _observe(network(x) @ _weights(options, FEATURES), y, options)

    model.backbone = network  # type: ignore[attr-defined]
    return model


def _template(model: Any) -> Host:
    return model.template


def _itself(model: Any) -> Host:
    return model


def _of_backbone(model: Any) -> Host:
    return model.backbone


PROGRAMS: dict[str, tuple[Callable[[Use, dict[str, Any]], Any], Callable[[Any], Host]]] = {
    "BNN": (_bnn, _template),
    "function": (_function, _itself),
    "object": (_object, _itself),
    "PyroModule": (_lifted, _itself),
    "backbone": (_backbone, _of_backbone),
    "torch": (_of_torch, _template),
}
_STATEFUL = ("BNN", "function", "object", "PyroModule", "backbone")
"""The programs that use what lives on them."""


def _guide(model: Any, kind: str) -> Any:
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "site": {"groups": "site"},
        "wide": {"init_scale": 0.3},
        "capped": {"max_scale": 0.5, "init_scale": 0.1},
        "frozen": {},
    }
    if kind == "point":
        return AutoPoint(model)
    if kind == "stock":
        return AutoNormal(model, init_scale=0.2)
    return AutoMeanFieldNormal(model, **options[kind])


# ------------------------------------------------------------------------------------------------- the families


@dataclasses.dataclass
class Draft:
    """What a family decides; the rest is drawn."""

    use: Use
    act: Change
    setup: Callable[[Host], Any] = lambda host: None
    programs: tuple[str, ...] = _STATEFUL
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    wrap: Callable[[Any], Any] = lambda model: model
    guides: tuple[str, ...] = ()
    every: bool | None = None
    after_guide: Callable[[Any, Any], Any] = lambda model, guide: None
    batches: Callable[[tuple[Tensor, Tensor], int], tuple[Tensor, Tensor]] | None = None


def _nothing(host: Host, h: Tensor) -> Tensor:
    return h


def _leave(host: Host, model: Any, guide: Any, step: int) -> None:
    """Make no change: the program changes by itself."""


def _of_place(place: Place, uses: tuple[str, ...]) -> Callable[[random.Random], Draft]:
    def family(rng: random.Random) -> Draft:
        use = USES[rng.choice(uses)]
        before, *after = rng.choice([(1.0, 3.0), (1.0, 2.0), (0.5, 2.0), (2.0, 0.5), (1.0, 1.6, 2.2), (3.0, 0.4)])
        return Draft(
            use=lambda host, h: use(place.read(host), h),
            setup=lambda host: place.setup(host, before),
            act=lambda host, model, guide, step: place.write(host, after[step % len(after)]),
            every=len(after) > 1,
        )

    return family


def _zero_mask(rng: random.Random) -> Draft:
    """A mask of ones or an offset of zeros, changed in some of its entries: what constant folding drops."""
    value, use = rng.choice([(1.0, "factor"), (1.0, "divisor"), (0.0, "offset")])
    write = _TENSOR_WRITES[rng.choice(["fill_", ".data", "a part", "numpy()", "detach()"])]
    after = rng.choice([0.0, 2.0]) if use == "factor" else 2.0
    apply = {
        "factor": lambda t, h: h * t,
        "divisor": lambda t, h: h / t,
        "offset": lambda t, h: h + t,
    }[use]

    def setup(host: Host) -> None:
        host.mask = torch.full((CLASSES,), value)

    return Draft(
        use=lambda host, h: apply(host.mask, h),
        setup=setup,
        act=lambda host, model, guide, step: write(host.mask, after),
    )


# -- the network changed in its structure -----------------------------------------------------------------------


def _structure(change: Callable[[Any], Any], every: bool = False, **fixed: Any) -> Callable[[random.Random], Draft]:
    def family(rng: random.Random) -> Draft:
        return Draft(
            use=_nothing,
            act=lambda host, model, guide, step: change(host),
            programs=("BNN", "backbone"),
            fixed=fixed,
            every=every,
        )

    return family


def _double_output(module: Any, inputs: Any, output: Tensor) -> Tensor:
    return 2 * output


def _double_input(module: Any, inputs: Any) -> Any:
    return (2 * inputs[0],)


def _replace_forward(net: Any) -> None:
    first, out = net.first, net.out
    net.forward = lambda x: out(torch.sin(first(x)))


def _replace_class_forward(net: Any) -> None:
    type(net).forward = lambda self, x: self.out(torch.sin(self.first(x)))


def _replace_method(net: Any) -> None:
    net.body = lambda h: torch.sin(h)


def _replace_class_method(net: Any) -> None:
    type(net).body = lambda self, h: torch.sin(h)


def _other_class(net: Any) -> None:
    net.__class__ = type("Other", (type(net),), {"body": lambda self, h: torch.sin(h)})


def _momentum(net: Any) -> None:
    net.norm.momentum = 0.9
    net.norm.train(not net.norm.training)  # so that the statistics are used at every other step


def _pop(net: Any) -> None:
    del net.blocks[1]


def _swap_in_modules(net: Any) -> None:
    net._modules["act"] = nn.ReLU()


STRUCTURES: dict[str, Callable[[random.Random], Draft]] = {
    "activation swapped": _structure(lambda net: setattr(net, "act", nn.ReLU())),
    "activation swapped for a function": _structure(lambda net: (delattr(net, "act"), setattr(net, "act", torch.relu))),
    "activation swapped underneath": _structure(_swap_in_modules),
    "block swapped": _structure(lambda net: net.blocks.__setitem__(0, nn.Tanh())),
    "block appended": _structure(lambda net: net.blocks.append(nn.Tanh())),
    "block inserted": _structure(lambda net: net.blocks.insert(0, nn.Sigmoid())),
    "block removed": _structure(lambda net: (net.blocks.__setitem__(0, nn.Tanh()), _pop(net))),
    "key of a table": _structure(lambda net: setattr(net, "key", "b")),
    "module of a table": _structure(lambda net: net.table.update({"a": nn.Sigmoid()})),
    "forward hook": _structure(lambda net: net.act.register_forward_hook(_double_output)),
    "forward hook of a leaf": _structure(lambda net: net.drop.register_forward_hook(_double_output)),
    "forward pre-hook": _structure(lambda net: net.act.register_forward_pre_hook(_double_input)),
    "hook of the network": _structure(lambda net: net.register_forward_hook(_double_output)),
    "dropout's p": _structure(lambda net: setattr(net.drop, "p", 0.6), dropout=0.1),
    "dropout's p from nothing": _structure(lambda net: setattr(net.drop, "p", 0.5), dropout=0.0),
    "dropout's p to nothing": _structure(lambda net: setattr(net.drop, "p", 0.0), dropout=0.5),
    "eval mode with dropout": _structure(lambda net: net.eval(), dropout=0.5),
    "eval mode of the dropout": _structure(lambda net: net.drop.eval(), dropout=0.5),
    "eval mode with batch norm": _structure(lambda net: net.eval(), norm="batch"),
    "batch norm's momentum": _structure(_momentum, every=True, norm="batch"),
    "batch norm's eps": _structure(lambda net: setattr(net.norm, "eps", 1.0), norm="batch"),
    "batch norm's statistics": _structure(lambda net: (net.eval(), net.norm.running_mean.fill_(2.0)), norm="batch"),
    "batch norm reset": _structure(lambda net: (net.norm.reset_running_stats(), net.norm.eval()), norm="batch"),
    "layer norm's eps": _structure(lambda net: setattr(net.norm, "eps", 1.0), norm="layer"),
    "training flag alone": _structure(lambda net: setattr(net.drop, "training", False), dropout=0.5),
    "forward replaced": _structure(_replace_forward),
    "forward of the class replaced": _structure(_replace_class_forward),
    "method replaced": _structure(_replace_method),
    "method of the class replaced": _structure(_replace_class_method),
    "class replaced": _structure(_other_class),
    "class attribute shadowed": _structure(lambda net: setattr(net, "at_end", net.at_end), at_end=True),
}


def _torch_only(change: Callable[[Any, Any], Any], **fixed: Any) -> Callable[[random.Random], Draft]:
    """A change of a BNN of torch's own layers."""

    def family(rng: random.Random) -> Draft:
        return Draft(
            use=_nothing,
            act=lambda host, model, guide, step: change(host, model),
            programs=("torch",),
            fixed=fixed,
            every=False,
        )

    return family


def _reorder(net: Any, model: Any) -> None:
    net._modules["act"] = net._modules.pop("act")


def _insert(net: Any, model: Any) -> None:
    parts = list(net._modules.items())
    net._modules.clear()
    net._modules.update([parts[0], ("inserted", nn.Sigmoid()), *parts[1:]])


def _other_prior(net: Any, model: Any) -> None:
    name = model.random_names[0]
    shape = net.get_parameter(name).shape
    model.priors()[name] = dist.Normal(torch.full(shape, 0.5), 0.2).to_event(len(shape))


def _by_force(net: Any, model: Any) -> None:
    object.__setattr__(model.likelihood, "noise", 0.2)


TORCH: dict[str, Callable[[random.Random], Draft]] = {
    "torch: nothing": _torch_only(lambda net, model: None),
    "torch: slope": _torch_only(lambda net, model: setattr(net.act, "negative_slope", 0.9), activation="leaky"),
    "torch: alpha": _torch_only(lambda net, model: setattr(net.act, "alpha", 3.0), activation="elu"),
    "torch: beta": _torch_only(lambda net, model: setattr(net.act, "beta", 3.0), activation="softplus"),
    "torch: threshold": _torch_only(lambda net, model: setattr(net.act, "threshold", -5.0), activation="softplus"),
    "torch: approximation": _torch_only(lambda net, model: setattr(net.act, "approximate", "tanh"), activation="gelu"),
    "torch: padding": _torch_only(lambda net, model: setattr(net.first, "padding", (0, 0)), convolution=True),
    "torch: padding's mode": _torch_only(
        lambda net, model: (
            setattr(net.first, "padding_mode", "replicate")
            or setattr(net.first, "_reversed_padding_repeated_twice", [1, 1, 1, 1])
        ),
        convolution=True,
    ),
    "torch: p": _torch_only(lambda net, model: setattr(net.drop, "p", 0.6), dropout=0.2),
    "torch: p from nothing": _torch_only(lambda net, model: setattr(net.drop, "p", 0.6), dropout=0.0),
    "torch: eval": _torch_only(lambda net, model: model.eval(), dropout=0.4, norm="batch"),
    "torch: eval of a part": _torch_only(lambda net, model: net.norm.eval(), norm="batch"),
    "torch: swapped": _torch_only(lambda net, model: setattr(net, "act", nn.Sigmoid())),
    "torch: swapped at the end": _torch_only(lambda net, model: setattr(net, "last", nn.Tanh())),
    "torch: appended": _torch_only(lambda net, model: net.append(nn.Tanh())),
    "torch: inserted": _torch_only(_insert),
    "torch: removed": _torch_only(lambda net, model: net._modules.pop("act")),
    "torch: reordered": _torch_only(_reorder),
    "torch: hook": _torch_only(lambda net, model: net.act.register_forward_hook(_double_output)),
    "torch: pre-hook": _torch_only(lambda net, model: net.out.register_forward_pre_hook(_double_input)),
    "torch: forward is torch.sin": _torch_only(lambda net, model: setattr(net.act, "forward", torch.sin)),
    "torch: another class": _torch_only(lambda net, model: setattr(net.act, "__class__", nn.Sigmoid)),
    "torch: eps": _torch_only(lambda net, model: setattr(net.norm, "eps", 1.0), norm="layer"),
    "torch: statistics": _torch_only(lambda net, model: (net.eval(), net.norm.running_mean.fill_(2.0)), norm="batch"),
    "torch: statistics, .data": _torch_only(
        lambda net, model: (net.eval(), net.norm.running_var.data.fill_(9.0)), norm="batch"
    ),
    "torch: likelihood": _torch_only(
        lambda net, model: setattr(model, "likelihood", likelihoods.Gaussian(noise=0.2)), likelihood="gaussian"
    ),
    "torch: likelihood, by force": _torch_only(_by_force, likelihood="gaussian"),
    "torch: another link": _torch_only(
        lambda net, model: setattr(model, "likelihood", likelihoods.Categorical("sigmoid")), likelihood="categorical"
    ),
    "torch: prior": _torch_only(_other_prior),
    "torch: rows": _torch_only(lambda net, model: setattr(model, "num_data", 2 * ROWS)),
    "torch: parameters written to": _torch_only(
        lambda net, model: [p.data.mul_(0.5) for p in model.deterministic.parameters()], norm="layer"
    ),
    "torch: parameters frozen": _torch_only(lambda net, model: model.deterministic.requires_grad_(False), norm="layer"),
}


# -- priors, likelihoods, plates, parameters, guides ------------------------------------------------------------


def _prior_family(make: Callable[[], Any], change: Callable[[Any], Any]) -> Callable[[random.Random], Draft]:
    """A program whose prior lives on itself, as in continual learning: the last posterior is the next prior."""

    def family(rng: random.Random) -> Draft:
        def build(model: Any) -> Any:
            state = make()

            def program(x: Tensor, y: Tensor | None = None) -> None:
                prior = program.prior  # type: ignore[attr-defined]
                w = pyro.sample("w", prior() if isinstance(prior, types.FunctionType) else prior)
                _observe(x @ w, y, model.options)

            program.prior = state  # type: ignore[attr-defined]
            return program

        return Draft(
            use=_nothing,
            act=lambda host, model, guide, step: change(model),
            programs=("object",),
            wrap=build,
            every=False,
        )

    return family


def _normal_prior(mean: float = 0.0, sd: float = 1.0) -> Any:
    return dist.Normal(torch.full((FEATURES, CLASSES), mean), torch.full((FEATURES, CLASSES), sd)).to_event(2)


def _held_prior() -> Any:
    log_sd = torch.zeros(FEATURES, CLASSES)

    def prior() -> Any:
        return dist.Normal(torch.zeros(FEATURES, CLASSES), prior.log_sd.exp()).to_event(2)  # type: ignore[attr-defined]

    prior.log_sd = log_sd  # type: ignore[attr-defined]
    return prior


def _base(model: Any) -> Any:
    return model.prior.base_dist


PRIORS: dict[str, Callable[[random.Random], Draft]] = {
    "prior replaced": _prior_family(_normal_prior, lambda m: setattr(m, "prior", _normal_prior(1.0, 0.3))),
    "prior of another kind": _prior_family(
        _normal_prior,
        lambda m: setattr(m, "prior", dist.Laplace(torch.zeros(FEATURES, CLASSES), 0.5).to_event(2)),
    ),
    "prior's mean in place": _prior_family(_normal_prior, lambda m: _fill(_base(m).loc, 1.0)),
    "prior's scale in place": _prior_family(_normal_prior, lambda m: _fill(_base(m).scale, 0.2)),
    "prior's mean, .data": _prior_family(_normal_prior, lambda m: _fill_data(_base(m).loc, 1.0)),
    "prior's scale, .data": _prior_family(_normal_prior, lambda m: _fill_data(_base(m).scale, 0.2)),
    "prior's scale, numpy()": _prior_family(_normal_prior, lambda m: _through_numpy(_base(m).scale, 0.2)),
    "prior's mean, other tensor": _prior_family(
        _normal_prior, lambda m: setattr(_base(m), "loc", torch.ones(FEATURES, CLASSES))
    ),
    "prior's scale, other tensor": _prior_family(
        _normal_prior, lambda m: setattr(_base(m), "scale", torch.full((FEATURES, CLASSES), 0.2))
    ),
    "empirical Bayes": _prior_family(_held_prior, lambda m: _fill(m.prior.log_sd, -1.5)),
    "empirical Bayes, .data": _prior_family(_held_prior, lambda m: _fill_data(m.prior.log_sd, -1.5)),
    "empirical Bayes, new": _prior_family(
        _held_prior, lambda m: setattr(m.prior, "log_sd", torch.full((FEATURES, CLASSES), -1.5))
    ),
}


def _continual(rng: random.Random) -> Draft:
    """The guide's own moments become the prior of what comes next."""

    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        view = guide.site("w")
        model.prior = dist.Normal(view.loc, view.scale + 0.05).to_event(2)

    draft = _prior_family(_normal_prior, lambda m: None)(rng)
    return dataclasses.replace(draft, act=act, guides=("plain", "site", "wide"), every=rng.random() < 0.3)


def _pyro_sample(rng: random.Random) -> Draft:
    new = rng.choice(
        [
            dist.Normal(0.0, 0.3).expand([CLASSES, FEATURES]).to_event(2),
            dist.Normal(1.0, 2.0).expand([CLASSES, FEATURES]).to_event(2),
            dist.Laplace(0.0, 0.3).expand([CLASSES, FEATURES]).to_event(2),
        ]
    )

    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        model.linear.weight = PyroSample(new)

    return Draft(use=_nothing, act=act, programs=("PyroModule",), every=False)


def _likelihood_of_bnn(rng: random.Random) -> Draft:
    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        model.likelihood = likelihoods.Gaussian(noise=0.2)

    return Draft(use=_nothing, act=act, programs=("BNN",), fixed={"likelihood": "gaussian"}, every=False)


def _noise(rng: random.Random) -> Draft:
    """A hand-written program's noise, on the program."""

    def build(model: Any) -> Any:
        def program(x: Tensor, y: Tensor | None = None) -> None:
            _observe(x @ _weights(model.options, FEATURES), y, model.options, program.noise)  # type: ignore[attr-defined]

        program.noise = rng.choice([1.0, torch.tensor(1.0)])  # type: ignore[attr-defined]
        return program

    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        model.noise = model.noise * 0.5

    return Draft(use=_nothing, act=act, programs=("object",), wrap=build, fixed={"likelihood": "gaussian"})


def _more_sites(rng: random.Random) -> Draft:
    """A factor or a second observation that appears."""
    kind = rng.choice(["factor", "observation", "deterministic"])

    def use(host: Host, h: Tensor) -> Tensor:
        if getattr(host, "more", False):
            if kind == "factor":
                pyro.factor("penalty", -0.1 * h.square().sum())
            elif kind == "observation":
                pyro.sample("second", dist.Normal(h.mean(), 1.0), obs=torch.tensor(0.7))
            else:
                h = pyro.deterministic("twice", 2 * h)
        return h

    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        host.more = not getattr(host, "more", False)

    return Draft(use=use, act=act, programs=("function", "object", "PyroModule"))


def _handler(rng: random.Random) -> Draft:
    """A program inside one of Pyro's handlers, whose number is changed."""
    before, after = rng.choice([(1.0, 2.0), (0.5, 1.0), (2.0, 0.1)])

    kind = rng.choice(["scale", "mask", "condition"])

    def wrap(model: Any) -> Any:
        def program(x: Tensor, y: Tensor | None = None) -> None:
            if kind == "scale":
                poutine.scale(model, scale=program.number)(x, y)  # type: ignore[attr-defined]
            elif kind == "mask":
                poutine.mask(model, mask=torch.tensor(program.number > 0.7))(x, y)  # type: ignore[attr-defined]
            else:
                poutine.condition(model, data={"obs": y * program.number})(x)  # type: ignore[attr-defined, operator]

        program.number = before  # type: ignore[attr-defined]
        return program

    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        model.number = after

    return Draft(use=_nothing, act=act, programs=("object", "function"), wrap=wrap, fixed={"likelihood": "gaussian"})


def _written(write: Callable[[Tensor], Any]) -> Callable[[random.Random], Draft]:
    """A parameter in Pyro's store, written to by the user."""

    def family(rng: random.Random) -> Draft:
        def act(host: Host, model: Any, guide: Any, step: int) -> None:
            write(pyro.param("gain").unconstrained())

        return Draft(use=_nothing, act=act, programs=("function", "object"), fixed={"parameter": True}, every=False)

    return family


def _stored(rng: random.Random) -> Draft:
    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        pyro.get_param_store()["gain"] = torch.tensor(0.4)

    return Draft(use=_nothing, act=act, programs=("function", "object"), fixed={"parameter": True}, every=False)


def _frozen(flag: bool) -> Callable[[random.Random], Draft]:
    """The backbone's parameters, frozen or unfrozen on the way."""

    def family(rng: random.Random) -> Draft:
        which = rng.choice(["all", "first", "out"])

        def part(net: Any) -> Any:
            return net if which == "all" else getattr(net, which)

        return Draft(
            use=_nothing,
            setup=lambda host: part(host).requires_grad_(not flag),
            act=lambda host, model, guide, step: part(host).requires_grad_(flag),
            programs=("backbone",),
            every=False,
        )

    return family


def _backbone_written(rng: random.Random) -> Draft:
    way = rng.choice(["data", "no_grad", "load"])

    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        if way == "data":
            host.first.weight.data.mul_(0.5)
        elif way == "no_grad":
            with torch.no_grad():
                host.first.weight.mul_(0.5)
        else:
            state = {name: 0.5 * value for name, value in host.state_dict().items()}
            host.load_state_dict(state)

    return Draft(use=_nothing, act=act, programs=("backbone",), every=False)


def _constant_of_the_net(rng: random.Random) -> Draft:
    """A deterministic parameter of a BNN (layer norm), frozen or written to."""
    way = rng.choice(["freeze", "write", "data"])

    def act(host: Host, model: Any, guide: Any, step: int) -> None:
        for parameter in model.deterministic.parameters():
            if way == "freeze":
                parameter.requires_grad_(False)
            elif way == "data":
                parameter.data.mul_(0.5)
            else:
                with torch.no_grad():
                    parameter.mul_(0.5)

    return Draft(use=_nothing, act=act, programs=("BNN",), fixed={"norm": "layer"}, every=False)


def _guide_family(change: Callable[[Any], Any], *guides: str) -> Callable[[random.Random], Draft]:
    def family(rng: random.Random) -> Draft:
        return Draft(
            use=_nothing,
            act=lambda host, model, guide, step: change(guide),
            programs=tuple(PROGRAMS),
            guides=guides or ("plain", "site", "wide"),
            every=False,
        )

    return family


@torch.no_grad()
def _halve(guide: Any) -> None:
    for parameter in guide.parameters():
        parameter.mul_(0.5)


def _halve_data(guide: Any) -> None:
    for parameter in guide.parameters():
        parameter.data.mul_(0.5)


def _assign(guide: Any) -> None:
    name = guide.site_names()[0]
    view = guide.site(name)
    guide.assign(name, 0.5 * view.loc, 0.7 * view.scale)


def _method_of_guide(guide: Any) -> None:
    guide.scale_of = lambda rho: 0.5 * F.softplus(rho)


GUIDES: dict[str, Callable[[random.Random], Draft]] = {
    "guide's means frozen": _guide_family(lambda g: g.freeze("loc")),
    "guide's deviations frozen": _guide_family(lambda g: g.freeze("scale")),
    "guide written to": _guide_family(_halve, "plain", "site", "wide", "point"),
    "guide written to, .data": _guide_family(_halve_data, "plain", "site", "wide", "point"),
    "guide's site assigned": _guide_family(_assign),
    "guide's method replaced": _guide_family(_method_of_guide),
    "guide frozen as a module": _guide_family(lambda g: g.requires_grad_(False)),
    "guide unfrozen": _guide_family(lambda g: (g.unfreeze("loc"), g.unfreeze("scale")), "frozen"),
}


# -- programs that change by themselves -------------------------------------------------------------------------


def _by_itself(use: Use, setup: Callable[[Host], Any] = lambda host: None) -> Callable[[random.Random], Draft]:
    def family(rng: random.Random) -> Draft:
        return Draft(use=use, act=_leave, setup=setup, every=False)

    return family


def _count_attribute(host: Host, h: Tensor) -> Tensor:
    host.calls += 1
    return 2 * h if host.calls > 3 else h


def _count_every(host: Host, h: Tensor) -> Tensor:
    host.calls += 1
    return h * (1 + 0.1 * host.calls)


def _count_list(host: Host, h: Tensor) -> Tensor:
    host.log.append(float(h.detach().abs().mean()) * 0)
    return 2 * h if len(host.log) > 4 else h


def _count_global(host: Host, h: Tensor) -> Tensor:
    GLOBALS["calls"] += 1
    return torch.tanh(h) if GLOBALS["calls"] > 3 else h


def _count_tensor(host: Host, h: Tensor) -> Tensor:
    host.calls += 1
    return h * (1 + 0.1 * host.calls)


def _count_tensor_branch(host: Host, h: Tensor) -> Tensor:
    host.calls += 1
    return torch.tanh(h) if host.calls > 3 else h


def _iterate(host: Host, h: Tensor) -> Tensor:
    return h * next(host.iterator)


def _keep_average(host: Host, h: Tensor) -> Tensor:
    host.mean = 0.9 * host.mean + 0.1 * h.detach().mean(0)
    return h - host.mean


@torch.no_grad()
def _update_average(host: Host, h: Tensor) -> None:
    host.mean.mul_(0.9).add_(0.1 * h.mean(0))


def _keep_average_in_place(host: Host, h: Tensor) -> Tensor:
    _update_average(host, h)
    return h - host.mean.clone()


def _remember(host: Host, h: Tensor) -> Tensor:
    last = host.last
    host.last = h.detach().mean()
    return h if last is None else h + 0.1 * last


def _random_number(host: Host, h: Tensor) -> Tensor:
    return h * (0.5 + random.random())


def _random_branch(host: Host, h: Tensor) -> Tensor:
    return torch.tanh(h) if random.random() < 0.5 else h


def _numpy_number(host: Host, h: Tensor) -> Tensor:
    return h * float(0.5 + np.random.rand())  # noqa: NPY002


def _numpy_array(host: Host, h: Tensor) -> Tensor:
    return h + torch.from_numpy(np.random.randn(h.shape[-1]).astype(np.float32))  # noqa: NPY002


def _own_generator(host: Host, h: Tensor) -> Tensor:
    return h * (0.5 + host.generator.random())


def _own_torch_generator(host: Host, h: Tensor) -> Tensor:
    return h + 0.3 * torch.randn(h.shape[-1], generator=host.generator)


def _torch_noise(host: Host, h: Tensor) -> Tensor:
    return h + 0.3 * torch.randn_like(h)


def _torch_noise_number(host: Host, h: Tensor) -> Tensor:
    return h * (0.5 + float(torch.rand(())))


def _shuffled(host: Host, h: Tensor) -> Tensor:
    order = list(range(h.shape[-1]))
    random.shuffle(order)
    return h[..., order]


def _permuted(host: Host, h: Tensor) -> Tensor:
    return h[..., torch.randperm(h.shape[-1])]


def _identity(host: Host, h: Tensor) -> Tensor:
    return h * (1.0 if id(h) else 2.0)


def _clock(host: Host, h: Tensor) -> Tensor:
    return h * (1.0 if time.perf_counter() >= host.started else 5.0)


COUNTERS: dict[str, Callable[[random.Random], Draft]] = {
    "calls counted": _by_itself(_count_attribute, lambda h: setattr(h, "calls", 0)),
    "calls counted, every one matters": _by_itself(_count_every, lambda h: setattr(h, "calls", 0)),
    "calls logged": _by_itself(_count_list, lambda h: setattr(h, "log", [])),
    "calls counted in a global": _by_itself(_count_global, lambda h: GLOBALS.update(calls=0)),
    "calls counted in a tensor": _by_itself(_count_tensor, lambda h: setattr(h, "calls", torch.tensor(0.0))),
    "calls counted in a tensor, branch": _by_itself(
        _count_tensor_branch, lambda h: setattr(h, "calls", torch.tensor(0))
    ),
    "iterator": _by_itself(_iterate, lambda h: setattr(h, "iterator", itertools.cycle([1.0, 2.0, 0.5]))),
    "counter of itertools": _by_itself(_iterate, lambda h: setattr(h, "iterator", itertools.count(1, 0.1))),
    "generator": _by_itself(_iterate, lambda h: setattr(h, "iterator", (1 + 0.1 * i for i in range(10**6)))),
    "running mean, new tensors": _by_itself(_keep_average, lambda h: setattr(h, "mean", torch.zeros(CLASSES))),
    "running mean, in place": _by_itself(_keep_average_in_place, lambda h: setattr(h, "mean", torch.zeros(CLASSES))),
    "last output remembered": _by_itself(_remember, lambda h: setattr(h, "last", None)),
    "random.random": _by_itself(_random_number),
    "random.random, branch": _by_itself(_random_branch),
    "random.shuffle": _by_itself(_shuffled),
    "np.random number": _by_itself(_numpy_number),
    "np.random array": _by_itself(_numpy_array),
    "generator of Python": _by_itself(_own_generator, lambda h: setattr(h, "generator", random.Random(1))),
    "generator of NumPy": _by_itself(_own_generator, lambda h: setattr(h, "generator", np.random.default_rng(1))),
    "generator of torch": _by_itself(
        _own_torch_generator, lambda h: setattr(h, "generator", torch.Generator().manual_seed(1))
    ),
    "torch noise": _by_itself(_torch_noise),
    "torch noise as a number": _by_itself(_torch_noise_number),
    "torch permutation": _by_itself(_permuted),
    "clock": _by_itself(_clock, lambda h: setattr(h, "started", time.perf_counter())),
    "id()": _by_itself(_identity),
}


# -- data that decide what is computed --------------------------------------------------------------------------


def _of_data(see: Callable[[Tensor], Tensor]) -> Callable[[random.Random], Draft]:
    """What the program computes depends on the inputs, which differ from batch to batch."""

    def family(rng: random.Random) -> Draft:
        def wrap(model: Any) -> Any:
            if isinstance(model, BNN):
                net, forward = model.template, model.template.forward
                net.forward = lambda x: forward(see(x))
                return model

            def program(x: Tensor, y: Tensor | None = None) -> Any:
                return model(see(x), y)

            return program

        return Draft(use=_nothing, act=_leave, wrap=wrap, programs=("BNN", "function", "object"), every=False)

    return family


def _split(x: Tensor) -> Tensor:
    a, b = torch.tensor_split(x, (x[:, 0] > 0).sum().clamp(1, len(x) - 1).reshape(1))
    return torch.cat([2 * a, b])


def _standardised(x: Tensor) -> Tensor:
    moments = torch.tensor([x.mean(), x.std()])
    return (x - moments[0]) / moments[1]


def _repeated(x: Tensor) -> Tensor:
    for _ in range(1 + int(x[0, 0] > 0)):
        x = 1.3 * torch.tanh(x)
    return x


def _selected(x: Tensor) -> Tensor:
    x = x.clone()
    x[x[:, 0] > 0] *= 2
    return x


def _indexed(x: Tensor) -> Tensor:
    return x * (1 + x.abs().argmax().item() / x.numel())


def _python_list(x: Tensor) -> Tensor:
    return torch.tensor([[max(v, -0.5) for v in row] for row in x.tolist()])


def _numpy_round(x: Tensor) -> Tensor:
    return torch.from_numpy(np.round(x.numpy(), 1))


def _tried(x: Tensor) -> Tensor:
    try:
        torch._assert(bool((x[:, 0] > -0.5).any()) and bool(x.sum() > 0), "no")
    except AssertionError:
        return -x
    return x


def _nonzero(x: Tensor) -> Tensor:
    return x * (1 + 0.1 * len(torch.nonzero(x[:, 1] > 0)))


def _loop_while(x: Tensor) -> Tensor:
    while float(x.norm()) > 5:
        x = 0.7 * x
    return x


def _sorted_rows(x: Tensor) -> Tensor:
    scale = sorted(x[:, 0].tolist())[0]
    return x + 0.1 * scale


def _dict_of_rows(x: Tensor) -> Tensor:
    table = {True: 1.5, False: 0.5}
    return x * torch.tensor([[table[bool(v)]] for v in x[:, 0] > 0])


def _item_assignment(x: Tensor) -> Tensor:
    moments = torch.empty(2)
    moments[0], moments[1] = float(x.mean()), float(x.std())
    return (x - moments[0]) / moments[1]


def _as_numbers(x: Tensor) -> Tensor:
    low, high = x.min().item(), x.max().item()
    return x.clamp(0.5 * low, 0.5 * high)


def _bincount(x: Tensor) -> Tensor:
    counts = torch.bincount((x[:, 0] > 0).long(), minlength=2)
    return x * (1 + 0.05 * int(counts[1]))


DATA: dict[str, Callable[[random.Random], Draft]] = {
    "data: if": _of_data(lambda x: torch.tanh(x) if x.mean() > 0 else x),
    "data: float()": _of_data(lambda x: x / float(x.abs().max())),
    "data: tensor_split": _of_data(_split),
    "data: torch.tensor of numbers": _of_data(_standardised),
    "data: numbers assigned": _of_data(_item_assignment),
    "data: min and max": _of_data(_as_numbers),
    "data: for": _of_data(_repeated),
    "data: while": _of_data(_loop_while),
    "data: mask": _of_data(_selected),
    "data: argmax": _of_data(_indexed),
    "data: tolist": _of_data(_python_list),
    "data: numpy": _of_data(_numpy_round),
    "data: numpy mean": _of_data(lambda x: x - float(np.mean(x.numpy()))),
    "data: try": _of_data(_tried),
    "data: nonzero": _of_data(_nonzero),
    "data: sorted": _of_data(_sorted_rows),
    "data: dict": _of_data(_dict_of_rows),
    "data: bincount": _of_data(_bincount),
    "data: where (a control)": _of_data(lambda x: torch.where(x > 0, x, 0.1 * x)),
    "data: unique": _of_data(lambda x: x * (1 + 0.01 * len(torch.unique(x.round())))),
}


# -- rows ---------------------------------------------------------------------------------------------------------


def _rows_family(batches: Callable[[tuple[Tensor, Tensor], int], tuple[Tensor, Tensor]]) -> Any:
    def family(rng: random.Random) -> Draft:
        return Draft(use=_nothing, act=_leave, batches=batches, every=False)

    return family


def _take(data: tuple[Tensor, Tensor], step: int, size: int) -> tuple[Tensor, Tensor]:
    rows = [(5 * step + i) % ROWS for i in range(size)]
    return data[0][rows], data[1][rows]


def _strided(data: tuple[Tensor, Tensor], step: int) -> tuple[Tensor, Tensor]:
    x, y = _take(data, step, 8)
    return (x.T.contiguous().T if step % 2 else x), y


def _int_labels(data: tuple[Tensor, Tensor], step: int) -> tuple[Tensor, Tensor]:
    x, y = _take(data, step, 8)
    return x, (y.int() if step > 3 and not y.is_floating_point() else y)


def _same_memory(data: tuple[Tensor, Tensor], step: int) -> tuple[Tensor, Tensor]:
    """One pair of tensors, overwritten at each step, as a loader with pinned memory does."""
    x, y = data[0][:8], data[1][:8]
    new_x, new_y = _take((data[0].clone(), data[1].clone()), step + 1, 8)
    x.copy_(new_x)
    y.copy_(new_y)
    return x, y


ROW_FAMILIES: dict[str, Callable[[random.Random], Draft]] = {
    "rows: other sizes": _rows_family(lambda data, step: _take(data, step, [8, 8, 5, 8, 3, 8, 12, 5][step % 8])),
    "rows: a single one": _rows_family(lambda data, step: _take(data, step, 8 if step < 4 else 1)),
    "rows: growing": _rows_family(lambda data, step: _take(data, step, 4 + step)),
    "rows: all": _rows_family(lambda data, step: data),
    "rows: strides": _rows_family(_strided),
    "rows: integer labels": _rows_family(_int_labels),
    "rows: the same memory": _rows_family(_same_memory),
    "rows: the same object": _rows_family(lambda data, step: (data[0], data[1])),
}


# ------------------------------------------------------------------------------------------------------- all of it

_ANY_USE = tuple(USES)
FAMILIES: dict[str, Callable[[random.Random], Draft]] = {
    **{name: _of_place(place, _ANY_USE) for name, place in NUMBERS.items()},
    **{name: _of_place(place, TENSOR_USES) for name, place in TENSORS.items()},
    "neutral mask": _zero_mask,
    **STRUCTURES,
    **TORCH,
    **PRIORS,
    "continual learning": _continual,
    "PyroSample replaced": _pyro_sample,
    "likelihood replaced": _likelihood_of_bnn,
    "noise on the program": _noise,
    "sites that appear": _more_sites,
    "handler's number": _handler,
    "parameter written to": _written(lambda t: _fill(t, -0.7)),
    "parameter written to, .data": _written(lambda t: _fill_data(t, -0.7)),
    "parameter frozen": _written(lambda t: t.requires_grad_(False)),
    "parameter stored anew": _stored,
    "backbone frozen": _frozen(False),
    "backbone unfrozen": _frozen(True),
    "backbone written to": _backbone_written,
    "deterministic parameters": _constant_of_the_net,
    **GUIDES,
    **COUNTERS,
    **DATA,
    **ROW_FAMILIES,
}
"""Every family by name; a seed takes them in turn."""


def _data(seed: int, likelihood: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, FEATURES, generator=generator)
    if likelihood == "categorical":
        return x, torch.randint(CLASSES, (ROWS,), generator=generator)
    return x, torch.randn(ROWS, CLASSES, generator=generator)


def random_case(seed: int) -> Case:
    """Return the case of a seed: the same program and the same change whenever it is asked for."""
    names = list(FAMILIES)
    random.Random(0).shuffle(names)  # so that the first seeds see every kind of family
    family = names[seed % len(names)]
    rng = random.Random(seed)
    draft = FAMILIES[family](rng)
    kind = rng.choice(draft.programs)
    likelihoods_of = ["categorical", "gaussian"] + (["learned"] if kind in ("BNN", "torch") else [])
    options: dict[str, Any] = {
        "rows": ROWS,
        "outputs": CLASSES,
        "hidden": rng.choice([3, HIDDEN]),
        "norm": rng.choice(["none", "none", "none", "layer", "batch"]),
        "dropout": rng.choice([0.0, 0.0, 0.0, 0.2]),
        "at_end": rng.random() < 0.5,
        "activation": rng.choice(list(_ACTIVATIONS)),
        "convolution": rng.random() < 0.2,
        "prior": rng.choice(["kaiming", "kaiming", "normal", "laplace"]),
        "likelihood": rng.choice(likelihoods_of),
        "hierarchy": rng.random() < 0.2,
        "in_plate": rng.random() < 0.2,
        "bias": rng.random() < 0.4,
        "parameter": rng.random() < 0.3,
        **draft.fixed,
    }
    if family == "rows: a single one" and options["norm"] == "batch":
        options["norm"] = "layer"
    guide_kind = rng.choice(draft.guides or ("plain", "plain", "plain", "site", "wide", "capped", "point", "stock"))
    build, host_of = PROGRAMS[kind]
    at = rng.choice([2, 3, 4])
    every = draft.every if draft.every is not None else rng.random() < 0.2
    moment = rng.choice(["step", "step", "epoch", "augment", "optimizer", "rows"])
    size = rng.choice([6, 8, 24])

    def make() -> tuple[Any, Any, tuple[Tensor, Tensor], int]:
        model = build(draft.use, options)
        draft.setup(host_of(model))
        model = draft.wrap(model)
        guide = _guide(model, guide_kind)
        data = _data(seed, options["likelihood"])
        if guide_kind == "frozen":
            guide(*data)
            guide.freeze("loc")
            guide.freeze("scale")
        draft.after_guide(model, guide)
        return model, guide, data, ROWS

    def host(model: Any) -> Host:
        try:
            return host_of(model)
        except AttributeError:  # a program inside another keeps its state on itself
            return model

    batches = draft.batches or (lambda data, step: _take(data, step, size))
    return Case(seed, family, make, draft.act, host, at, bool(every), moment, batches)
