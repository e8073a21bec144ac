"""
Run a Pyro program once, keep the tensor graph of the step, and run that from then on.

A step is a function (model, guide, arguments) -> (loss, nll) of the parameters. Its first call with new shapes

    1. runs the program as it is, and notes its parameters, its modules and what it writes to,
    2. captures loss and gradients as a graph of tensor operations (torch.fx, make_fx), twice from one random state,
    3. runs the graph from that random state and compares the result with that of 1; simplifies it (lowering.py), and
       does the same once more.

What is returned is the graph's result from the first step on, so that a run resumed in between ends in the same bits.

A graph is used only where that is certain to be the same computation. It is captured again when one of its guards
(guards.py) fails: another parameter or buffer object, another shape, dtype or device, requires_grad, a module's mode,
any other plain value that the program can be seen to read. The program keeps running eagerly, and says so once, when

    - a value is taken out of a tensor (control flow that depends on the data), or a shape depends on the data;
    - two captures from one random state differ, or the program uses Python's or NumPy's random numbers, or changes the
      Python values it reads (a counter): its result depends on what a graph cannot see;
    - the graph does not reproduce the program's loss, gradients, buffers and random state, at capture or on the batch
      after it;
    - hooks are attached, autocast is on, or a handler or mode is active that is not known to be harmless.

Random draws stay in the graph and use the global generator; writes to buffers (BatchNorm) stay in it, too. What no
guard sees, and no graph repeats, are effects outside of tensors, such as printing.
"""

import functools
import operator
import random
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple, TypeAlias, cast, final
from weakref import ref

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions import constraints
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_PARAM_STORE, _PYRO_STACK, effectful
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, fx, nn
from torch.distributions import transform_to
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from pyro_bnn.inference.guards import Guards, Inspector, hooks_of, is_plain
from pyro_bnn.inference.kl import _PerDatum, _ScaleKL
from pyro_bnn.inference.lowering import Lowered, Unsupported, lower, written_arguments

__all__ = ["GraphCache", "ParamSite", "Program", "StepResult", "param_sites"]

log = getLogger("pyro_bnn")

Program: TypeAlias = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], tuple[Tensor, Tensor]]
"""(model, guide, args, kwargs) -> (loss, nll), both 0-dimensional; the loss is differentiated."""

_MAX_KEYS = 16
_MAX_PER_KEY = 4
_MAX_CAPTURES = 32
_SAME_KERNELS = {torch.float64: 1e-10, torch.float32: 1e-5}  # the captured graph, as it is
_OTHER_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-2}  # simplified: a unit near zero may fall to the other side


@dataclass(frozen=True)
class ParamSite:
    """One Pyro parameter: its name, its unconstrained tensor, its constraint."""

    name: str
    unconstrained: Tensor
    constraint: Any


class StepResult(NamedTuple):
    """Loss and nll as 0-dimensional tensors, the leaves with their gradients, and the Pyro parameters met."""

    loss: Tensor
    nll: Tensor
    leaves: list[Tensor]
    grads: list[Tensor]
    params: list[ParamSite]


class _NotTraceable(Exception):
    """Raised while capturing: a graph would not compute what the program does."""


@final
class _Unsettled(_NotTraceable):
    """The same, where a first run that sets things up could be the cause."""


# ------------------------------------------------------------------------------------------------------ parameters


def param_sites(trace: Any) -> list[ParamSite]:
    """Return the parameters of a Pyro trace in order of appearance, each tensor once."""
    sites: dict[int, ParamSite] = {}
    for name, node in trace.nodes.items():
        if node["type"] == "param":
            value: Any = node["value"]  # a bare nn.Parameter under `module_local_params` is its own leaf
            leaf = value.unconstrained() if hasattr(value, "unconstrained") else value
            constraint = node["kwargs"].get("constraint", constraints.real)
            if isinstance(constraint, type(constraints.real)):
                constraint = constraints.real
            sites.setdefault(id(leaf), ParamSite(name, leaf, constraint))
    return list(sites.values())


def _emit(sites: Sequence[ParamSite]) -> None:
    """Send the param message of every site, so that `SVI.step` finds the parameters of a step that ran as a graph."""
    for site in sites:
        leaf = site.unconstrained
        value: Any = leaf if site.constraint is constraints.real else transform_to(site.constraint)(leaf)
        value.unconstrained = ref(leaf)
        effectful(functools.partial(_first, value), type="param")(name=site.name, constraint=site.constraint)


def _first(value: Tensor, **_: Any) -> Tensor:
    return value


def _graph_leaves(loss: Tensor) -> list[Tensor]:
    """Return every leaf tensor that a backward pass from `loss` would give a gradient."""
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        stack.extend(n for n, _ in node.next_functions)
    return list(found.values())


# ------------------------------------------------------------------------------------------------- the surroundings


@final
class _Scale:
    """A number times KL weights that enter the graph: a scale whose equality shows while capturing."""

    def __init__(self, factor: float, weights: tuple[Tensor, ...]) -> None:
        self.factor = factor
        self.weights = weights

    def _key(self) -> tuple[float, tuple[int, ...]]:
        return self.factor, tuple(sorted(map(id, self.weights)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Scale) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, _Scale):
            return _Scale(self.factor * other.factor, self.weights + other.weights)
        if isinstance(other, (int, float)):
            return _Scale(self.factor * other, self.weights)
        return functools.reduce(operator.mul, self.weights, self.factor) * other

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self * (1 / other)


class _Surroundings(NamedTuple):
    """The state a step runs in, the handlers that bring KL weights, and whether anyone listens for parameters."""

    key: tuple[Any, ...]
    weights: list[_ScaleKL]
    heard: bool


def _surroundings() -> _Surroundings | str:
    """Return what is around the step, or why a graph cannot stand in for what that does."""
    key: list[Any] = []
    weights: list[_ScaleKL] = []
    heard = False
    handler: Any
    for handler in _PYRO_STACK:
        kind = type(handler)
        if kind is _ScaleKL:
            key.append("scale_kl")
            weights.append(handler)
        elif kind is _PerDatum:
            key.append(handler.num_data)
        elif kind is TraceMessenger and handler.param_only:
            heard = True
        else:
            return f"the handler {kind.__name__} is active"
    if not torch.is_grad_enabled():
        return "gradients are switched off"
    if torch._C._len_torch_function_stack() and not all(
        isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack()
    ):
        return "a TorchFunctionMode is active"
    if _get_current_dispatch_mode_stack():
        return "a TorchDispatchMode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a torch.func transform is active"
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "autocast is on"
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "global module hooks are attached"
    state = (torch.get_default_dtype(), torch.get_default_device(), pyro.settings.get("module_local_params"))
    return _Surroundings((*key, *state), weights, heard)


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], list[Tensor]] | str:
    """Return what of the arguments a graph depends on, and their tensors; or why a graph cannot take them."""
    if not kwargs and all(type(a) is Tensor or is_plain(a) for a in args):
        leaves, spec = list(args), None
    else:
        leaves, spec = tree_flatten((args, kwargs))
    key: list[Any] = [spec]
    tensors: list[Tensor] = []
    places: dict[int, int] = {}
    for leaf in leaves:
        if type(leaf) is Tensor:
            if leaf.requires_grad:
                return "an argument requires a gradient"
            if leaf.layout is not torch.strided:
                return "an argument is a sparse tensor"
            place = places.setdefault(id(leaf), len(tensors))
            key.append((place, leaf.shape, leaf.stride(), leaf.dtype, leaf.device))
            if place == len(tensors):
                tensors.append(leaf)
        elif is_plain(leaf):
            key.append((type(leaf), leaf))
        else:
            return f"an argument is a {type(leaf).__name__}"
    return tuple(key), tensors


def _identity(program: Any) -> tuple[int, int]:
    if isinstance(program, types.MethodType):
        return id(program.__self__), id(program.__func__)
    return id(program), 0


def _name(program: Any) -> str:
    return getattr(program, "_pyro_name", "") or getattr(program, "__name__", type(program).__name__)


# --------------------------------------------------------------------------------------------------- random state


class _RandomState(NamedTuple):
    cpu: Tensor
    cuda: list[Tensor]

    @staticmethod
    def now() -> "_RandomState":
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return _RandomState(torch.get_rng_state(), cuda)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    def same(self, other: "_RandomState") -> bool:
        return torch.equal(self.cpu, other.cpu) and all(map(torch.equal, self.cuda, other.cuda))


def _python_random() -> tuple[Any, str]:
    return random.getstate(), repr(np.random.get_state(legacy=False))  # noqa: NPY002


# ---------------------------------------------------------------------------------------------------- watching a run


@final
class _Writes(TorchDispatchMode):
    """Keeps the former content of every memory that was there before and is written to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Any]] = {}
        self.read: list[Tensor] = []
        """Tensors from outside whose value was taken out."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in written_arguments(func, args, kwargs):
            key = tensor.untyped_storage()._cdata
            if key not in self._own and key not in self._before:
                with disable_proxy_modes_tracing():
                    self._before[key] = (_whole(tensor), _whole(tensor).clone())
        inputs = {t.untyped_storage()._cdata: t for t in tree_leaves((args, kwargs)) if _strided(t)}
        if torch.Tag.data_dependent_output in func.tags:
            self.read.extend(t for key, t in inputs.items() if key not in self._own)
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if _strided(tensor) and tensor.untyped_storage()._cdata not in inputs:
                self._own.add(tensor.untyped_storage()._cdata)
        return result

    def memories(self) -> set[int]:
        """Return the memories written to."""
        return set(self._before)

    def content(self) -> list[Tensor]:
        """Return a copy of what the memories written to hold now."""
        return [memory.clone() for memory, _ in self._before.values()]

    def restore(self, content: Sequence[Tensor] | None = None) -> None:
        """Put back `content`, or else what was there before the run."""
        for i, (memory, before) in enumerate(self._before.values()):
            memory.copy_(before if content is None else content[i])


def _strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor's memory as one vector that shares neither autograd history nor version counter."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


@final
class _NoPeeking(TorchFunctionMode):
    """Refuses the ways out of a tensor that a graph does not notice."""

    _WAYS = frozenset([Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._WAYS:
            raise _NotTraceable(f"values are taken out of a tensor with {func.__name__}")
        return func(*args, **(kwargs or {}))


@contextmanager
def _modules_called() -> Iterator[list[nn.Module]]:
    modules: list[nn.Module] = []
    seen: set[int] = set()

    def note(module: nn.Module, _: Any) -> None:
        if id(module) not in seen:
            seen.add(id(module))
            modules.append(module)

    handle = torch_module.register_module_forward_pre_hook(note)
    try:
        yield modules
    finally:
        handle.remove()


@final
class _Unvalidated(Messenger):
    """Switches off the argument checks of distributions that were made while checks were on."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[tuple[Any, bool]] = []

    def _pyro_sample(self, msg: Any) -> None:
        stack = [msg["fn"]]
        while stack:
            fn = stack.pop()
            if isinstance(fn, torch.distributions.Distribution):
                if vars(fn).get("_validate_args"):
                    self._kept.append((fn, True))
                    fn._validate_args = False
                stack.extend(vars(fn).values())

    def __exit__(self, *exc: Any) -> None:
        for fn, flag in self._kept:
            fn._validate_args = flag
        self._kept.clear()
        super().__exit__(*exc)


@contextmanager
def _weights_as(handlers: Sequence[_ScaleKL], weights: Sequence[Tensor]) -> Iterator[None]:
    """Let the handlers multiply by graph inputs instead of numbers."""
    kept = [handler.weight for handler in handlers]
    try:
        for handler, weight in zip(handlers, weights, strict=True):
            handler.weight = cast(Tensor, _Scale(1.0, (weight,)))
        yield
    finally:
        for handler, number in zip(handlers, kept, strict=True):
            handler.weight = number


# ------------------------------------------------------------------------------------------------------------ graphs


class _Run(NamedTuple):
    """One eager run of the program from a known state, and what it left behind."""

    loss: Tensor
    nll: Tensor
    leaves: list[Tensor]
    grads: list[Tensor | None]
    params: list[ParamSite]
    modules: list[nn.Module]
    writes: _Writes
    content: list[Tensor]
    before: _RandomState
    after: _RandomState
    hooked: bool

    def rewind(self) -> None:
        """Go back to the state before the run."""
        self.writes.restore()
        self.before.restore()

    def finish(self) -> None:
        """Go to the state that the run left."""
        self.writes.restore(self.content)
        self.after.restore()

    def result(self) -> StepResult:
        graded = [(leaf, g.clone(memory_format=torch.contiguous_format)) for leaf, g in self._graded()]
        return StepResult(self.loss, self.nll, [leaf for leaf, _ in graded], [g for _, g in graded], self.params)

    def _graded(self) -> Iterator[tuple[Tensor, Tensor]]:
        for leaf, grad in zip(self.leaves, self.grads, strict=True):
            if grad is not None:
                yield leaf, grad


def _run_eagerly(program: Callable[[], tuple[Tensor, Tensor]]) -> _Run:
    before = _RandomState.now()
    writes = _Writes()
    with _modules_called() as modules, poutine.trace(param_only=True) as recorder, writes:
        loss, nll = program()
        params = param_sites(recorder.trace)
        leaves = _graph_leaves(loss)
        order = {id(site.unconstrained): i for i, site in enumerate(params)}
        leaves.sort(key=lambda leaf: order.get(id(leaf), len(order)))
        hooked = any(map(_hooked, leaves)) or any(any(map(len, hooks_of(module))) for module in modules)
        grads: list[Tensor | None] = []
        if hooked:  # they want to be called, so the gradients go where they always go
            loss.backward()
            leaves = []
        elif leaves:
            grads = list(torch.autograd.grad(loss, leaves, allow_unused=True))
    content = writes.content()
    loss, nll = loss.detach(), torch.as_tensor(nll).detach()
    after = _RandomState.now()
    return _Run(loss, nll, leaves, grads, params, modules, writes, content, before, after, hooked)


def _hooked(leaf: Any) -> bool:
    return bool(leaf._backward_hooks or leaf._post_accumulate_grad_hooks)


@dataclass
class _Graph:
    """A captured step and everything it took for granted."""

    lowered: Lowered
    leaves: list[Tensor]
    params: list[ParamSite]
    guards: Guards
    weight_like: Tensor
    raw: Callable[..., list[Tensor]] | None
    """The graph as it was captured, until it has been compared with the program on a second batch."""
    inputs: list[Tensor]
    weights: dict[float, Tensor] = field(default_factory=dict)

    def run(self, tensors: Sequence[Tensor], handlers: Sequence[_ScaleKL]) -> StepResult:
        with torch._C._AutoDispatchBelowAutograd():
            loss, nll, *grads = self.lowered([*tensors, *(self._weight(h.weight) for h in handlers)])
        return StepResult(loss, nll, self.leaves, grads, self.params)

    def checked(self, run: _Run, tensors: Sequence[Tensor], handlers: Sequence[_ScaleKL]) -> StepResult | str:
        """Run the step again from where `run` began; return the result, or in what it differs."""
        assert self.raw is not None
        run.rewind()
        with torch.no_grad():
            loss, nll, *grads = self.raw(*self.inputs, *tensors, *(self._weight(h.weight) for h in handlers))
        difference = _difference(run, StepResult(loss, nll, self.leaves, grads, self.params), _SAME_KERNELS)
        if difference is not None:
            return difference
        run.rewind()
        result = self.run(tensors, handlers)
        difference = _difference(run, result, _OTHER_ROUNDING)
        return result if difference is None else difference

    def _weight(self, weight: float | Tensor) -> Tensor:
        if isinstance(weight, Tensor):
            return weight.detach().to(self.weight_like)
        if weight not in self.weights:
            if len(self.weights) >= _MAX_CAPTURES:
                self.weights.clear()
            self.weights[weight] = torch.full_like(self.weight_like, weight)
        return self.weights[weight]


def _difference(run: _Run, result: StepResult, tolerances: dict[torch.dtype, float]) -> str | None:
    """Return in what a graph's result is not that of the eager run; the state must be what the graph left."""
    grads = list(zip((g for _, g in run._graded()), result.grads, strict=True))
    largest = max((_norm(g) for g, _ in grads), default=0.0)
    pairs = [("the loss", run.loss, result.loss, 0.0), ("the nll", run.nll, result.nll, 0.0)]
    pairs += [("a gradient", a, b, 0.01 * largest) for a, b in grads]
    pairs += [("a buffer", a, b, 0.0) for a, b in zip(run.content, run.writes.content(), strict=True)]
    for what, a, b, around in pairs:
        if not _close(a, b, around, tolerances.get(a.dtype, 2e-2)):
            return what
    return None if run.after.same(_RandomState.now()) else "the number of random draws"


def _norm(tensor: Tensor) -> float:
    return float(tensor[torch.isfinite(tensor)].double().norm())


def _close(a: Tensor, b: Tensor, around: float, tolerance: float) -> bool:
    """Return whether `b` is `a` up to rounding, in an expression whose terms are of size `around`."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return False
    difference = float((a[finite].double() - b[finite].double()).norm())
    return difference <= tolerance * max(_norm(a), around)


def _fingerprint(graph_module: fx.GraphModule) -> list[Any]:
    """Return a captured graph as comparable values; captured tensors by identity or, if new, by content."""
    names: dict[fx.Node, int] = {}
    lines: list[Any] = []
    for node in graph_module.graph.nodes:
        names[node] = len(names)
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: ("node", names[n]))
        constant = getattr(graph_module, node.target) if node.op == "get_attr" else None
        lines.append((node.op, None if constant is not None else str(node.target), repr(arguments), constant))
    return lines


def _same_graph(a: fx.GraphModule, b: fx.GraphModule) -> bool:
    first, second = _fingerprint(a), _fingerprint(b)
    return len(first) == len(second) and all(
        x[:3] == y[:3] and (x[3] is y[3] or (x[3] is not None and y[3] is not None and _equal(x[3], y[3])))
        for x, y in zip(first, second, strict=True)
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


@final
class GraphCache:
    """The graphs of one ELBO, by what they depend on; the least recently used are dropped."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[Any, list[_Graph]] = OrderedDict()
        self._owners: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()  # keeps their ids from being used again
        self._eager: dict[Any, str] = {}
        self._captures: dict[Any, int] = {}
        self._said: set[str] = set()
        self._volatile: Any = WeakTensorKeyDictionary()

    def __deepcopy__(self, memo: Any) -> "GraphCache":
        return GraphCache()

    def __reduce__(self) -> Any:
        return GraphCache, ()

    def __len__(self) -> int:
        return sum(map(len, self._graphs.values()))

    def step(
        self,
        program: Program,
        variant: Any,
        model: Any,
        guide: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> StepResult | None:
        """
        Run one step as a graph, capturing it first if need be; None if it has to run eagerly.

        :param program: the step; it must not depend on anything but its arguments and `variant`.
        :param variant: options of the program that a graph depends on.
        """
        owner = (variant, _identity(model), _identity(guide))
        if owner in self._eager:
            return None
        surroundings = _surroundings()
        if isinstance(surroundings, str):
            self._refuse(surroundings)
            return None
        signature = _signature(args, kwargs)
        if isinstance(signature, str):
            self._refuse(signature)
            return None
        key = (owner, signature[0], surroundings.key)
        graphs = self._graphs.get(key)
        reason = None
        for graph in graphs or ():
            reason = graph.guards.changed()
            if reason is None:
                if graph.raw is not None:
                    return self._on_probation(graph, owner, program, model, guide, args, kwargs)
                result = graph.run(signature[1], surroundings.weights)
                if surroundings.heard:
                    _emit(graph.params)
                return result
            for tensor in graph.guards.overwritten():
                self._volatile[tensor] = True
        return self._first_step(key, reason, program, model, guide, args, kwargs, surroundings)

    # -- capturing -----------------------------------------------------------------------------------------------

    def _first_step(
        self,
        key: Any,
        reason: str | None,
        program: Program,
        model: Any,
        guide: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        surroundings: _Surroundings,
    ) -> StepResult | None:
        owner = key[0]
        self._remember(owner, model, guide)
        self._captures[owner] = self._captures.get(owner, 0) + 1
        if self._captures[owner] > _MAX_CAPTURES:
            changed = reason or "what it is called with"
            self._give_up(owner, model, f"{changed} changed again after {_MAX_CAPTURES} captures")
            return None
        aliases: dict[int, Tensor] = {}

        def alias(tensor: Tensor) -> Tensor:  # an object of its own: what the program holds itself is another tensor
            return aliases.setdefault(id(tensor), tensor.detach())

        args, kwargs = tree_map_only(Tensor, alias, (args, kwargs))
        python_random = _python_random()
        run = _run_eagerly(lambda: program(model, guide, args, kwargs))
        try:
            if run.hooked:
                raise _NotTraceable("hooks are attached")
            if python_random != _python_random():
                raise _NotTraceable("it draws random numbers with Python or NumPy")
            step = functools.partial(program, model, guide, args, kwargs)
            graph = self._capture(run, step, model, guide, list(aliases.values()), surroundings.weights)
            result = graph.checked(run, list(aliases.values()), surroundings.weights)
            if isinstance(result, str):
                raise _Unsettled(f"the graph does not reproduce {result}")
        except Exception as error:  # whatever goes wrong while capturing, the eager run is right
            if not isinstance(error, _Unsettled) or self._captures[owner] > 1:
                self._give_up(owner, model, _why(error))
            run.finish()
            return run.result()
        graphs = self._graphs.setdefault(key, [])
        graphs.insert(0, graph)
        del graphs[_MAX_PER_KEY:]
        self._graphs.move_to_end(key)
        while len(self._graphs) > _MAX_KEYS:
            self._graphs.popitem(last=False)
        again = f" again, for {reason} changed" if reason else ""
        log.info("captured %s%s: a graph of %d operations", _name(model), again, graph.lowered.operations)
        return result

    def _capture(
        self,
        run: _Run,
        step: Callable[[], tuple[Tensor, Tensor]],
        model: Any,
        guide: Any,
        tensors: list[Tensor],
        handlers: Sequence[_ScaleKL],
    ) -> _Graph:
        weight_like = torch.empty((), dtype=run.loss.dtype, device=run.loss.device)
        weights = [torch.full_like(weight_like, float(h.weight)) for h in handlers]
        graded = [g is not None for g in run.grads]
        inspector = _inspect(model, guide, run.modules, ())
        inputs = (*run.leaves, *tensors, *weights)

        def traced(*inputs: Tensor) -> list[Tensor]:
            with _weights_as(handlers, inputs[len(inputs) - len(handlers) :]):
                loss, nll = step()
                grads = torch.autograd.grad(loss, run.leaves, allow_unused=True) if run.leaves else ()
            if [g is not None for g in grads] != graded:
                raise _Unsettled("another set of parameters takes part each time")
            return [loss.detach(), torch.as_tensor(nll).detach(), *(g for g in grads if g is not None)]

        captures = []
        read: list[Tensor] = []
        for _ in range(2):
            run.rewind()
            writes = _Writes()
            with ExitStack() as stack:
                stack.callback(writes.restore)
                stack.enter_context(pyro.validation_enabled(False))
                stack.enter_context(_Unvalidated())
                stack.enter_context(_NoPeeking())
                stack.enter_context(writes)
                captures.append(make_fx(traced)(*inputs))
            if writes.memories() != run.writes.memories():
                raise _Unsettled("it writes to other tensors each time")
            read = writes.read
        if not _same_graph(*captures):
            raise _NotTraceable("two runs from the same random state differ")
        changed = inspector.guards.changed()
        if changed is not None:
            raise _Unsettled(f"it changes {changed} when it runs")
        captured = [getattr(captures[0], n.target) for n in captures[0].graph.nodes if n.op == "get_attr"]
        known = {id(t) for m in inspector.modules for t in (*m.parameters(False), *m.buffers(False))}
        lowered = lower(
            captures[0],
            dict(enumerate(run.leaves)),
            live=lambda t: isinstance(t, nn.Parameter) or id(t) in known or t in self._volatile or t.is_inference(),
        )
        inspector = _inspect(model, guide, run.modules, captured)
        guards = inspector.guards
        guards.modules(inspector.modules)
        guards.leaves([site.unconstrained for site in run.params])
        guards.leaves(run.leaves)
        guards.storages([*run.leaves, *(site.unconstrained for site in run.params), *captured])
        guards.versions([*lowered.watched, *read])
        for site in run.params:
            if _stored(site.name) is site.unconstrained:
                guards.probe(functools.partial(_stored, site.name), f"the parameter {site.name}")
        leaves = [leaf for leaf, has in zip(run.leaves, graded, strict=True) if has]
        return _Graph(lowered, leaves, run.params, guards, weight_like, captures[1], run.leaves)

    def _on_probation(
        self,
        graph: _Graph,
        owner: Any,
        program: Program,
        model: Any,
        guide: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> StepResult:
        """Run the second step both ways, now that data and noise are others."""
        surroundings, signature = _surroundings(), _signature(args, kwargs)
        assert not isinstance(surroundings, str)
        assert not isinstance(signature, str)
        with pyro.validation_enabled(False):
            run = _run_eagerly(lambda: program(model, guide, args, kwargs))
        result = graph.checked(run, signature[1], surroundings.weights)
        if isinstance(result, str):
            self._give_up(owner, model, f"the graph does not reproduce {result} on other data")
            run.finish()
            return run.result()
        graph.raw = None
        return result

    # -- bookkeeping ---------------------------------------------------------------------------------------------

    def _remember(self, owner: Any, model: Any, guide: Any) -> None:
        self._owners[owner] = (model, guide)
        self._owners.move_to_end(owner)
        while len(self._owners) > _MAX_KEYS:
            self._forget(next(iter(self._owners)))

    def _forget(self, owner: Any) -> None:
        for key in [k for k in self._graphs if k[0] == owner]:
            del self._graphs[key]
        self._owners.pop(owner, None)
        self._eager.pop(owner, None)
        self._captures.pop(owner, None)

    def _give_up(self, owner: Any, model: Any, reason: str) -> None:
        for key in [k for k in self._graphs if k[0] == owner]:
            del self._graphs[key]
        self._eager[owner] = reason
        log.warning("%s runs eagerly, for %s", _name(model), reason)

    def _refuse(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log.info("a step runs eagerly, for %s", reason)


def _inspect(model: Any, guide: Any, modules: Sequence[nn.Module], captured: Sequence[Tensor]) -> Inspector:
    inspector = Inspector(captured)
    inspector.visit(model, "model")
    inspector.visit(guide, "guide")
    for module in modules:
        inspector.visit(module, type(module).__name__)
    return inspector


def _stored(name: str) -> Tensor | None:
    return _PYRO_PARAM_STORE._params.get(name)


def _why(error: Exception) -> str:
    if isinstance(error, (_NotTraceable, Unsupported)):
        return str(error)
    if "data-dependent" in str(error) or "get value out of a tracing tensor" in str(error):
        return "a value is taken out of a tensor, as control flow that depends on the data does"
    first = str(error).strip().partition("\n")[0]
    return f"it cannot be captured ({type(error).__name__}: {first})"
