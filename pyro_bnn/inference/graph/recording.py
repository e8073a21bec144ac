"""
Record the tensor operations of a function as a graph while it runs.

A :class:`Recorder` is a TorchDispatchMode: it sees every operation below autograd with the tensors it works on, forward
and backward alike, and notes operation, arguments and results as a straight-line `torch.fx.Graph`. A tensor that is
neither an input nor the result of a recorded operation is held by reference, and read where it lies.

It refuses what a graph cannot repeat for other data: taking a value out of a tensor, tensors of other classes,
generators of a user's own. What runs inside :func:`unrecorded` is not noted: its results are constants. :class:`Writes`
keeps what was in the memory that a function writes to.
"""

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

from pyro_bnn.inference.graph.private import private

__all__ = [
    "Look",
    "NotRecordable",
    "Recorder",
    "Writes",
    "computed",
    "look",
    "record",
    "unrecorded",
    "written_arguments",
]

tree_leaves = private("tree_leaves")
TorchDispatchMode: Any = private("TorchDispatchMode")
WeakTensorKeyDictionary = private("WeakTensorKeyDictionary")

aten = torch.ops.aten

_FORBIDDEN = {aten.set_, aten.resize_, aten.resize_as_}


class NotRecordable(Exception):
    """A graph would not compute what the function does."""


class Look(NamedTuple):
    """What is known of a tensor before it is computed."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def numel(self) -> int:
        """The number of elements."""
        return self.shape.numel()


def look(tensor: Tensor) -> Look:
    """Return shape, strides, dtype and device of a tensor."""
    return Look(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def written_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes to; batch norms do not declare theirs."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return []
    undeclared = "batch_norm" in schema.name and "backward" not in schema.name
    written: list[Any] = []
    for i, parameter in enumerate(schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(parameter.name)
        declared = parameter.alias_info is not None and parameter.alias_info.is_write
        if value is not None and (declared or (undeclared and parameter.name in ("running_mean", "running_var"))):
            written.extend(value if isinstance(value, (list, tuple)) else [value])
    return written


def _strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor's memory as one vector that shares neither autograd history nor version counter."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


@final
class Writes(TorchDispatchMode):  # type: ignore[misc]
    """Keeps the former content of every memory that was there before and is written to."""

    def __init__(self) -> None:
        super().__init__()
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        for tensor in written_arguments(func, args, kwargs):
            key = tensor.untyped_storage().data_ptr()
            if key not in self._own and key not in self._before:
                self._before[key] = (_whole(tensor), _whole(tensor).clone())
        inputs = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if _strided(t)}
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if _strided(tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                self._own.add(tensor.untyped_storage().data_ptr())
        return result

    def memories(self) -> set[int]:
        """Return the memories written to."""
        return set(self._before)

    def content(self) -> list[Tensor]:
        """Return a copy of what the memories written to hold now."""
        return [memory.clone() for memory, _ in self._before.values()]

    def restore(self, content: Sequence[Tensor] | None = None) -> None:
        """Put back `content`, or else what was there before."""
        for i, (memory, before) in enumerate(self._before.values()):
            memory.copy_(before if content is None else content[i])


@final
class _NoPeeking(TorchFunctionMode):
    """Refuses the ways out of a tensor that are not operations."""

    _WAYS = frozenset([Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._WAYS and not _here.unrecorded:
            raise NotRecordable(f"values are taken out of a tensor with {func.__name__}")
        return func(*args, **(kwargs or {}))


class _Here(threading.local):
    """What this thread records."""

    def __init__(self) -> None:
        self.unrecorded = 0
        self.at_work: list[Recorder] = []


_here = _Here()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Run operations that a recorder does not note; what they make are constants to it, and values may be looked at."""
    _here.unrecorded += 1
    try:
        yield
    finally:
        _here.unrecorded -= 1


def computed(tensor: Tensor) -> bool:
    """Return whether a tensor is an input of the recording under way, or comes of its operations."""
    return any(recorder.computed(tensor) for recorder in _here.at_work)


@final
class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """
    Notes every operation that runs inside it.

    :param inputs: the tensors that will be others when the graph runs, or may hold other values.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.inputs: list[fx.Node] = []
        self.constants: dict[fx.Node, Tensor] = {}
        self._nodes: Any = WeakTensorKeyDictionary()
        self._no_peeking = _NoPeeking()
        for tensor in inputs:
            self.add_input(tensor)

    def __enter__(self) -> "Recorder":
        self._no_peeking.__enter__()  # type: ignore[no-untyped-call]
        try:
            super().__enter__()
        except BaseException:
            self._no_peeking.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            raise
        _here.at_work.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        _here.at_work.remove(self)
        try:
            super().__exit__(*exc)
        finally:
            self._no_peeking.__exit__(*exc)  # type: ignore[no-untyped-call]

    def computed(self, tensor: Tensor) -> bool:
        """Return whether a tensor is an input, or comes of the operations so far."""
        node = self._nodes.get(tensor)
        return node is not None and node.op != "get_attr"

    def add_input(self, tensor: Tensor) -> None:
        """Make a tensor an input of the graph."""
        node = self.graph.placeholder(f"input{len(self.inputs)}")
        self._note(tensor, node)
        self.inputs.append(node)

    def finish(self, results: Sequence[Tensor]) -> None:
        """End the recording: these tensors are what the graph returns."""
        self.graph.output(tuple(self._node(t) for t in results))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note it."""
        kwargs = kwargs or {}
        if _here.unrecorded:
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default:  # a tensor made from Python numbers: a copy, which may be written to
            func = aten.lift_fresh_copy.default
        if func.overloadpacket in _FORBIDDEN:
            raise NotRecordable(f"{func} changes what a tensor is")
        if torch.Tag.data_dependent_output in func.tags:
            raise NotRecordable("a value is taken out of a tensor: control flow may depend on the data")
        noted_args, noted_kwargs = map_aggregate((args, kwargs), self._argument)
        result = func(*args, **kwargs)
        node = self.graph.call_function(func, noted_args, dict(noted_kwargs))
        self._note_result(result, node)
        return result

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            raise NotRecordable("it draws from a generator of its own")
        return self._node(value) if isinstance(value, Tensor) else value

    def _node(self, tensor: Tensor) -> fx.Node:
        node = self._nodes.get(tensor)
        if node is None:
            if type(tensor) not in (Tensor, nn.Parameter):
                raise NotRecordable(f"a tensor is a {type(tensor).__name__}")
            node = self.graph.create_node("get_attr", f"constant{len(self.constants)}")
            self.constants[node] = tensor
            self._note(tensor, node)
        return node  # type: ignore[no-any-return]

    def _note(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["look"] = look(tensor) if _strided(tensor) else None
        self._nodes[tensor] = node

    def _note_result(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, Tensor):
            self._note(result, node)
            return
        for i, part in enumerate(result if isinstance(result, (list, tuple)) else ()):
            if isinstance(part, Tensor):
                self._note(part, self.graph.call_function(operator.getitem, (node, i)))
            elif part is not None and not isinstance(part, (bool, int, float)):
                raise NotRecordable(f"{node.target} returns a {type(part).__name__}")


def record(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> Recorder:
    """Run a function of tensors, and return what it did as the graph of its results."""
    recorder = Recorder(inputs)
    with recorder:
        results = function(*inputs)
    recorder.finish(results)
    return recorder
