"""
Guards: what a captured graph took for granted about the Python state around it, checked before each run.

    entries       attributes of modules and objects, closure cells and globals of functions: plain values (numbers,
                  strings, functions, ...) by value, whatever else is followed by identity; parameters, buffers and
                  submodules by identity
    containers    public lists, dicts and sets of plain values, by value
    storages      shape, strides, dtype and device of every tensor that a graph reads where it lies
    attributes    requires_grad of parameters, versions of tensors that constants were computed from
    hooks         none on modules or parameters

The program is followed from the model and the guide through attributes, closures, globals, defaults and the modules
that were seen to run; not into the insides of torch, Pyro, NumPy and this package's own functions. Of a user's own
objects only those attributes count whose names its functions mention, so that a counter kept beside the program does
no harm. All entries are compared in one pass at the speed of C, for they are checked at every step.
"""

import functools
import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

__all__ = ["Guards", "Inspector", "hooks_of", "inspect", "is_plain"]

_PLAIN = frozenset(
    [
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        torch.dtype,
        torch.device,
        torch.Size,
        torch.layout,
        torch.memory_format,
        types.FunctionType,
        types.BuiltinFunctionType,
        types.MethodType,
    ]
)
_LIBRARIES = frozenset(
    ["torch", "torchvision", "pyro", "builtins", "numpy", "functools", "collections", "weakref", "abc", "typing"]
)
_OURS = _LIBRARIES | {"pyro_bnn"}
_ALWAYS = frozenset(["forward", "__call__", "training"])
_DYNAMIC = frozenset(["__dict__", "vars", "getattr", "attrgetter", "eval", "exec", "locals"])
"""A function that mentions one of these may read any attribute."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MAX_DEPTH = 5
_MAX_CONTAINER = 64


def is_plain(value: Any) -> bool:
    """Return whether a value is compared by value: immutable, and free of tensors."""
    return type(value) in _PLAIN or isinstance(value, type) or (type(value) is tuple and all(map(is_plain, value)))


def hooks_of(module: nn.Module) -> list[Any]:
    """Return the collections of hooks on a module."""
    return [getattr(module, name) for name in _HOOKS]


def _token(value: Any) -> Any:
    """Return the plain content of a container."""
    if is_plain(value):
        return type(value), value
    if isinstance(value, (list, tuple, set, frozenset, Mapping)) and len(value) > _MAX_CONTAINER:
        return type(value), len(value)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_token, value))
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(_token, value))
    if isinstance(value, Mapping):
        return type(value), tuple((k, _token(v)) for k, v in value.items())
    return None


def _look(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _package(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").partition(".")[0]


@final
class Guards:
    """A snapshot of Python state; :meth:`changed` names the first thing that is not as it was."""

    def __init__(self) -> None:
        self._dicts: list[dict[Any, Any]] = []
        self._names: list[Any] = []
        self._values: list[Any] = []
        self._labels: list[str] = []
        self._sized: list[tuple[Any, int, str]] = []
        self._cells: list[tuple[Any, Any, str]] = []
        self._containers: list[tuple[Any, Any, str]] = []
        self._contents: list[Any] = []
        self._probes: list[tuple[Callable[[], Any], Any, str]] = []
        self._tensors: list[Tensor] = []
        self._pointers: list[int] = []
        self._looks: list[Any] = []
        self._hooks: list[Any] = []
        self._leaves: list[Tensor] = []
        self._leaf_flags: list[bool] = []
        self._versioned: list[Tensor] = []
        self._versions: list[int] = []

    # -- taking the snapshot -------------------------------------------------------------------------------------

    def entry(self, names: dict[Any, Any], name: Any, label: str) -> None:
        """Watch one entry of a namespace."""
        self._dicts.append(names)
        self._names.append(name)
        self._values.append(names.get(name))
        self._labels.append(label)

    def size(self, container: Any, label: str) -> None:
        """Watch the number of entries."""
        self._sized.append((container, len(container), label))

    def cell(self, cell: Any, label: str) -> None:
        """Watch what a closure refers to."""
        self._cells.append((cell, _content(cell), label))

    def container(self, container: Any, label: str) -> None:
        """Watch the plain content of a list, dict or set."""
        self._containers.append((container, _token(container), label))
        self._contents.append(container.copy())

    def probe(self, get: Callable[[], Any], label: str) -> None:
        """Watch the identity of what a function returns."""
        self._probes.append((get, get(), label))

    def storages(self, tensors: Iterable[Tensor]) -> None:
        """Watch the look of tensors; a new memory of the same look is fine."""
        self._tensors.extend(tensors)
        self._pointers = list(map(Tensor.data_ptr, self._tensors))
        self._looks = list(map(_look, self._tensors))

    def leaves(self, leaves: Sequence[Tensor]) -> None:
        """Watch requires_grad, and hooks, of parameters."""
        self._leaves.extend(leaves)
        self._leaf_flags = [leaf.requires_grad for leaf in self._leaves]

    def modules(self, modules: Iterable[nn.Module]) -> None:
        """Watch modules for hooks."""
        self._hooks.extend(hooks for module in modules for hooks in hooks_of(module))

    def versions(self, tensors: Iterable[Tensor]) -> None:
        """Watch tensors for writes."""
        self._versioned.extend(tensors)
        self._versions = [t._version for t in self._versioned]

    # -- checking ------------------------------------------------------------------------------------------------

    def changed(self) -> str | None:
        """Return what is not as it was, or None."""
        if not all(map(operator.is_, map(dict.get, self._dicts, self._names), self._values)):
            reason = self._changed_entry()
            if reason is not None:
                return reason
        for container, size, label in self._sized:
            if len(container) != size:
                return label
        if list(map(Tensor.data_ptr, self._tensors)) != self._pointers:
            now = list(map(_look, self._tensors))
            if now != self._looks:
                return "the shape, dtype or device of a parameter or buffer"
            self._pointers = list(map(Tensor.data_ptr, self._tensors))
        if any(map(len, self._hooks)):
            return "hooks"
        for leaf, flag in zip(self._leaves, self._leaf_flags, strict=True):
            if leaf.requires_grad is not flag:
                return "requires_grad of a parameter"
            if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
                return "hooks"
        for cell, value, label in self._cells:
            if _differ(_content(cell), value):
                return label
        for container, token, label in self._containers:
            if _token(container) != token:
                return label
        for get, value, label in self._probes:
            if get() is not value:
                return label
        if self.overwritten():
            return "the content of a constant tensor"
        return None

    def restore(self) -> None:
        """Put entries, closures and containers back to what they were."""
        for names, name, value in zip(self._dicts, self._names, self._values, strict=True):
            if names.get(name) is not value:
                names[name] = value
        for cell, value, _ in self._cells:
            if value is not _EMPTY and _content(cell) is not value:
                cell.cell_contents = value
        for (container, token, _), content in zip(self._containers, self._contents, strict=True):
            if _token(container) != token:
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(content)

    def overwritten(self) -> list[Tensor]:
        """Return the watched tensors that have been written to."""
        return [t for t, v in zip(self._versioned, self._versions, strict=True) if t._version != v]

    def _changed_entry(self) -> str | None:
        for i, (names, name, value) in enumerate(zip(self._dicts, self._names, self._values, strict=True)):
            now = names.get(name)
            if now is not value:
                if _differ(now, value):
                    return self._labels[i]
                self._values[i] = now
        return None


def _differ(a: Any, b: Any) -> bool:
    return a is not b and (type(a) is not type(b) or not is_plain(a) or bool(a != b))


_EMPTY = object()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


@final
class Inspector:
    """
    Follows the Python state that functions and modules can be seen to read, and puts guards on it.

    :param captured: the tensors that a graph reads where they lie.
    :param names: the names that the program's functions are known to mention; see `inspect`.
    """

    def __init__(self, captured: Iterable[Tensor] = (), names: frozenset[str] = frozenset()) -> None:
        self.guards = Guards()
        self.modules: list[nn.Module] = []
        self.mentioned: set[str] = set()
        """The names that the functions followed so far mention."""
        self._captured = set(map(id, captured))
        self._names = names
        self._all_names = not names.isdisjoint(_DYNAMIC)
        self._seen: dict[int, Any] = {}
        self._followed: set[int] = set()

    def visit(self, value: Any, label: str, depth: int = 0) -> None:
        """Follow one value."""
        if depth > _MAX_DEPTH or id(value) in self._seen or isinstance(value, (Tensor, types.ModuleType)):
            return
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            for name, module in value.named_modules():
                self._module(module, f"{label}.{name}" if name else label, depth)
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self.visit(part, label, depth)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__, label, depth)
            self.visit(value.__self__, label, depth)
        elif isinstance(value, types.FunctionType):
            self._function(value, label, depth)
        elif isinstance(value, (list, tuple, dict, set)):
            self._container(value, label, depth)
        elif not isinstance(value, type) and isinstance(getattr(value, "__dict__", None), dict):
            self._object(value, label, depth)

    def _object(self, value: Any, label: str, depth: int) -> None:
        if depth == 0 or isinstance(value, Messenger) or _package(type(value)) not in _LIBRARIES:
            self._namespace(vars(value), label, depth, type(value))
            self._class(type(value), label, depth)

    def _module(self, module: nn.Module, label: str, depth: int) -> None:
        if id(module) in self._followed:
            return
        self._followed.add(id(module))
        self._seen[id(module)] = module
        self.modules.append(module)
        for part in (module._modules, module._parameters, module._buffers):
            for name in part:
                self.guards.entry(part, name, f"{label}.{name}")
            self.guards.size(part, f"the parts of {label}")
        self._namespace(vars(module), label, depth, type(module))
        self._class(type(module), label, depth)

    def _mentions(self, name: str) -> bool:
        return self._all_names or name in self._names or name in _ALWAYS

    def _class(self, kind: type, label: str, depth: int) -> None:
        for base in kind.__mro__:
            if _package(base) in _OURS:
                continue
            for name, member in vars(base).items():
                function = getattr(member, "__func__", getattr(member, "fget", member))
                if not self._mentions(name):
                    continue
                if isinstance(function, types.FunctionType):
                    self.visit(function, f"{label}.{name}", depth + 1)
                elif is_plain(member):
                    self.guards.probe(functools.partial(getattr, base, name), f"{label}.{name}")

    def _namespace(self, names: dict[str, Any], label: str, depth: int, kind: type) -> None:
        known = _package(kind) in _OURS
        for name, value in list(names.items()):
            if name.startswith("_") and _package(kind) in _LIBRARIES:
                continue
            if not known and not self._mentions(name):
                continue
            full = f"{label}.{name}"
            if self._cares(value):
                self.guards.entry(names, name, full)
            if isinstance(value, (list, dict, set)) and name.startswith("_"):
                continue  # an object's own bookkeeping
            self.visit(value, full, depth + 1)

    def _cares(self, value: Any) -> bool:
        """Return whether an entry must stay the same; libraries' objects may be replaced by their like."""
        if isinstance(value, Tensor):
            return id(value) in self._captured
        if is_plain(value):
            return True
        if isinstance(value, (list, dict, set, tuple, types.ModuleType)):
            return False
        return isinstance(value, nn.Module) or _package(type(value)) not in _LIBRARIES

    def _container(self, value: Any, label: str, depth: int) -> None:
        if not isinstance(value, tuple):
            self.guards.container(value, label)
        if len(value) <= _MAX_CONTAINER:
            for item in list(value.values()) if isinstance(value, dict) else list(value):
                self.visit(item, label, depth + 1)
            if isinstance(value, dict):
                for name, item in value.items():
                    if isinstance(item, Tensor) and id(item) in self._captured:
                        self.guards.entry(value, name, f"{label}[{name!r}]")
            elif isinstance(value, list):
                for i, item in enumerate(value):
                    if isinstance(item, Tensor) and id(item) in self._captured:
                        self.guards.probe(functools.partial(_item, value, i), f"{label}[{i}]")

    def _function(self, function: types.FunctionType, label: str, depth: int) -> None:
        code, cells = function.__code__, function.__closure__ or ()
        for name, cell in zip(code.co_freevars, cells, strict=True):
            value = _content(cell)
            if self._cares(value):
                self.guards.cell(cell, f"{label}: {name}")
            self.visit(value, f"{label}: {name}", depth + 1)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(value, label, depth + 1)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.visit(wrapped, label, depth)
        if _package(function) in _OURS:
            return
        mentioned = _names_of(code)
        self.mentioned |= mentioned
        for name in sorted(mentioned):
            if name in function.__globals__:
                value = function.__globals__[name]
                if self._cares(value):
                    self.guards.entry(function.__globals__, name, f"{label}: {name}")
                self.visit(value, name, depth + 1)


def _item(values: list[Any], i: int) -> Any:
    return values[i] if i < len(values) else _EMPTY


def _names_of(code: types.CodeType) -> set[str]:
    """Return the names that a function mentions: globals, attributes, and strings, which getattr may take."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_of(constant)
        elif isinstance(constant, str):
            names.add(constant)
    return names


def inspect(programs: Mapping[str, Any], modules: Iterable[nn.Module], captured: Sequence[Tensor]) -> Inspector:
    """
    Put guards on everything that these programs, and the modules that were seen to run, can be seen to read.

    Functions are found by the names that other functions mention, so that this goes on until no new name turns up.
    """
    names: frozenset[str] = frozenset()
    modules = list(modules)
    while True:
        inspector = Inspector(captured, names)
        for label, program in programs.items():
            inspector.visit(program, label)
        for module in modules:
            inspector.visit(module, type(module).__name__)
        if inspector.mentioned <= names:
            return inspector
        names |= inspector.mentioned
