"""
Run a Pyro program once, keep the tensor operations of the step, and run those from then on.

A step is a function (model, guide, arguments) -> (loss, nll) of the parameters. Its first call with new shapes

    1. runs the program as it is, and notes its parameters, its modules and what it writes to,
    2. records loss and gradients as a graph of tensor operations (recording.py), twice from one random state,
    3. simplifies the graph (lowering.py), runs it from that random state and compares the result with that of 1.

On the CPU the graph's result is the program's, bit for bit, so that it does not matter which of them runs.

A graph is used only where that is certain to be the same computation. It is captured again when one of its guards
(guards.py) fails: another parameter or buffer object, another shape, dtype or device, requires_grad, a module's mode,
any other plain value that the program can be seen to read. The program keeps running eagerly, and says so once, when

    - a value is taken out of a tensor (control flow that depends on the data), or a shape depends on the data;
    - two recordings from one random state differ, or the program uses Python's or NumPy's random numbers, or changes
      the Python values it reads (a counter): its result depends on what a graph cannot see;
    - the graph does not reproduce the program's loss, gradients, buffers and random state, at capture or on the batch
      after it;
    - hooks are attached, autocast is on, or a handler or mode is active that is not known to be harmless.

Random draws stay in the graph and use the global generator; writes to buffers (BatchNorm) stay in it, too. The weight
on the KL is an input of the graph. What no guard sees, and no graph repeats, are effects outside of tensors, such as
printing; what a first step does to Python values out of the guards' sight, it does three times.
"""

import functools
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
from torch import Tensor, nn
from torch.distributions import transform_to
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from pyro_bnn.inference.guards import Guards, hooks_of, inspect, is_plain
from pyro_bnn.inference.kl import _PerDatum, _ScaleKL
from pyro_bnn.inference.lowering import Lowered, lower
from pyro_bnn.inference.recording import NotRecordable, Recorder, Writes, same_recording

__all__ = ["GraphCache", "ParamSite", "Program", "StepResult", "param_sites"]

log = getLogger("pyro_bnn")

Program: TypeAlias = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], tuple[Tensor, Tensor]]
"""(model, guide, args, kwargs) -> (loss, nll), both 0-dimensional; the loss is differentiated."""

_MAX_KEYS = 16
_MAX_PER_KEY = 4
_MAX_CAPTURES = 32
_MAX_NUMBERS = 64
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
"""On the CPU results are equal; this leaves room for kernels whose rounding depends on how memory is aligned."""


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


@final
class _Unsettled(NotRecordable):
    """A graph would not compute what the program does, which a first run that sets things up may explain."""


# ------------------------------------------------------------------------------------------------------ parameters


def param_sites(*traces: Any) -> list[ParamSite]:
    """Return the parameters of Pyro traces in order of appearance, each tensor once."""
    sites: dict[int, ParamSite] = {}
    for trace in traces:
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


_Chain: TypeAlias = tuple[tuple[str, float], ...]
"""A product as it is evaluated: ("by", number), ("over", number) and ("weight", i), from left to right."""


def _evaluate(chain: _Chain, weights: Sequence[float | Tensor]) -> Any:
    """Return the value of a chain in Python's arithmetic, in the order in which Pyro's handlers would compute it."""
    result: Any = chain[0][1]
    for kind, operand in chain[1:]:
        if kind == "over":
            result = result / operand
        else:
            result = result * (weights[int(operand)] if kind == "weight" else operand)
    return result


@final
class _Scales:
    """The scales with a KL weight in them that a recording met: each becomes an input of the graph."""

    def __init__(self, weights: Sequence[float | Tensor], recorder: Recorder) -> None:
        self.weights = weights
        self.chains: list[tuple[_Chain, torch.dtype]] = []
        self._recorder = recorder
        self._tensors: dict[tuple[_Chain, torch.dtype], Tensor] = {}

    def tensor(self, chain: _Chain, like: Tensor) -> Tensor:
        """Return the scale in the precision of `like`; in a coarser one it would be rounded, which a number is not."""
        if like.dtype not in _TOLERANCE:
            raise NotRecordable(f"a KL weight multiplies {like.dtype}")
        key = (chain, like.dtype)
        if key not in self._tensors:
            value = float(_evaluate(chain, self.weights))
            self._tensors[key] = torch.full((), value, dtype=like.dtype, device=like.device)
            self._recorder.add_input(self._tensors[key])
            self.chains.append(key)
        return self._tensors[key]


@final
class _Scale:
    """A scale with a KL weight in it, while recording: equal scales are equal, and tensors times it use the input."""

    def __init__(self, scales: _Scales, chain: _Chain) -> None:
        self.scales = scales
        self.chain = chain

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Scale) and self.chain == other.chain

    def __hash__(self) -> int:
        return hash(self.chain)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, _Weight):
            return _Scale(self.scales, (*self.chain, ("weight", other.index)))
        if isinstance(other, (int, float)):
            return _Scale(self.scales, (*self.chain, ("by", other)))
        return other * self.scales.tensor(self.chain, other)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> "_Scale":
        return _Scale(self.scales, (*self.chain, ("over", other)))


@final
class _Weight:
    """What a `scale_kl` handler multiplies by while recording."""

    def __init__(self, scales: _Scales, index: int) -> None:
        self.scales = scales
        self.index = index

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, (int, float)):
            return _Scale(self.scales, (("by", other), ("weight", self.index)))
        return _Scale(self.scales, (("by", 1.0), ("weight", self.index))) * other


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
            if isinstance(handler.weight, Tensor) and handler.weight.requires_grad:
                return "a KL weight requires a gradient"
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
def _weights_in(scales: _Scales, handlers: Sequence[_ScaleKL]) -> Iterator[None]:
    """Let the handlers multiply by inputs of the graph instead of numbers."""
    kept = [handler.weight for handler in handlers]
    try:
        for i, handler in enumerate(handlers):
            handler.weight = cast(Tensor, _Weight(scales, i))
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
    writes: Writes
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
        graded = [(leaf, torch.empty_like(leaf).copy_(g)) for leaf, g in self._graded()]
        return StepResult(self.loss, self.nll, [leaf for leaf, _ in graded], [g for _, g in graded], self.params)

    def _graded(self) -> Iterator[tuple[Tensor, Tensor]]:
        for leaf, grad in zip(self.leaves, self.grads, strict=True):
            if grad is not None:
                yield leaf, grad


def _run_eagerly(program: Callable[[], tuple[Tensor, Tensor]]) -> _Run:
    before = _RandomState.now()
    writes = Writes()
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
    chains: list[tuple[_Chain, torch.dtype]]
    device: torch.device
    on_probation: bool = True
    """Until it has been compared with the program on a second batch."""
    numbers: dict[Any, Tensor] = field(default_factory=dict)

    def run(self, tensors: Sequence[Tensor], handlers: Sequence[_ScaleKL]) -> StepResult:
        scales = [self._scale(chain, dtype, handlers) for chain, dtype in self.chains]
        with torch._C._AutoDispatchBelowAutograd():
            loss, nll, *grads = self.lowered([*tensors, *scales])
        return StepResult(loss, nll, self.leaves, grads, self.params)

    def checked(self, run: _Run, tensors: Sequence[Tensor], handlers: Sequence[_ScaleKL]) -> StepResult | str:
        """Run the step from where `run` began; return the result, or in what it differs."""
        run.rewind()
        result = self.run(tensors, handlers)
        difference = _difference(run, result)
        return result if difference is None else difference

    def _scale(self, chain: _Chain, dtype: torch.dtype, handlers: Sequence[_ScaleKL]) -> Tensor:
        value = _evaluate(chain, [handler.weight for handler in handlers])
        if isinstance(value, Tensor):
            return value.detach().to(self.device, dtype)
        key = (value, dtype)
        if key not in self.numbers:
            if len(self.numbers) >= _MAX_NUMBERS:
                self.numbers.clear()
            self.numbers[key] = torch.full((), value, dtype=dtype, device=self.device)
        return self.numbers[key]


def _difference(run: _Run, result: StepResult) -> str | None:
    """Return in what a graph's result is not that of the eager run; the state must be what the graph left."""
    grads = list(zip((g for _, g in run._graded()), result.grads, strict=True))
    largest = max((_norm(g) for g, _ in grads), default=0.0)
    pairs = [("the loss", run.loss, result.loss, 0.0), ("the nll", run.nll, result.nll, 0.0)]
    pairs += [("a gradient", a, b, 0.01 * largest) for a, b in grads]
    pairs += [("a buffer", a, b, 0.0) for a, b in zip(run.content, run.writes.content(), strict=True)]
    for what, a, b, around in pairs:
        if not _close(a, b, around):
            return what
    return None if run.after.same(_RandomState.now()) else "the number of random draws"


def _norm(tensor: Tensor) -> float:
    return float(tensor[torch.isfinite(tensor)].double().norm())


def _close(a: Tensor, b: Tensor, around: float) -> bool:
    """Return whether `b` is `a` up to rounding, in an expression whose terms are of size `around`."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return False
    tolerance = _TOLERANCE.get(a.dtype, 2e-2) if a.device.type == "cpu" else 2e-2  # elsewhere sums are in any order
    difference = float((a[finite].double() - b[finite].double()).norm())
    return difference <= tolerance * max(_norm(a), around)


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
                if graph.on_probation:
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
                raise NotRecordable("hooks are attached")
            if python_random != _python_random():
                raise NotRecordable("it draws random numbers with Python or NumPy")
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
        graded = [g is not None for g in run.grads]
        programs = {"model": model, "guide": guide}
        inspector = inspect(programs, run.modules, ())
        try:
            recorder, scales = self._record(run, step, tensors, handlers)
            again, _ = self._record(run, step, tensors, handlers)
            changed = inspector.guards.changed()
        finally:
            inspector.guards.restore()
        if changed is not None:
            raise _Unsettled(f"it changes {changed} when it runs")
        if not same_recording(recorder, again):
            raise NotRecordable("two runs from the same random state differ")
        captured = list(recorder.constants.values())
        known = {id(t) for m in inspector.modules for t in (*m.parameters(False), *m.buffers(False))}
        leaves = [leaf for leaf, has in zip(run.leaves, graded, strict=True) if has]
        lowered = lower(
            recorder,
            dict(enumerate(run.leaves)),
            live=lambda t: isinstance(t, nn.Parameter) or id(t) in known or t in self._volatile or t.is_inference(),
            layouts=[None, None, *(leaf.stride() for leaf in leaves)],
        )
        inspector = inspect(programs, run.modules, captured)
        guards = inspector.guards
        guards.modules(inspector.modules)
        guards.leaves([site.unconstrained for site in run.params])
        guards.leaves(run.leaves)
        guards.storages([*run.leaves, *(site.unconstrained for site in run.params), *captured])
        guards.versions([*lowered.watched, *recorder.read])
        for site in run.params:
            if _stored(site.name) is site.unconstrained:
                guards.probe(functools.partial(_stored, site.name), f"the parameter {site.name}")
        return _Graph(lowered, leaves, run.params, guards, scales.chains, run.loss.device)

    def _record(
        self,
        run: _Run,
        step: Callable[[], tuple[Tensor, Tensor]],
        tensors: list[Tensor],
        handlers: Sequence[_ScaleKL],
    ) -> tuple[Recorder, _Scales]:
        """Run the step from where `run` began, and leave things as they were then."""
        run.rewind()
        writes = Writes()
        recorder = Recorder([*run.leaves, *tensors])
        scales = _Scales([handler.weight for handler in handlers], recorder)
        with ExitStack() as stack:
            stack.callback(writes.restore)
            stack.enter_context(pyro.validation_enabled(False))
            stack.enter_context(_Unvalidated())
            stack.enter_context(_weights_in(scales, handlers))
            stack.enter_context(writes)
            stack.enter_context(recorder)
            loss, nll = step()
            grads = torch.autograd.grad(loss, run.leaves, allow_unused=True) if run.leaves else ()
            nll = torch.as_tensor(nll)
        if [g is not None for g in grads] != [g is not None for g in run.grads]:
            raise _Unsettled("another set of parameters takes part each time")
        if writes.memories() != run.writes.memories():
            raise _Unsettled("it writes to other tensors each time")
        recorder.finish([loss, nll, *(g for g in grads if g is not None)])
        return recorder, scales

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
        graph.on_probation = False
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


def _stored(name: str) -> Tensor | None:
    return _PYRO_PARAM_STORE._params.get(name)


def _why(error: Exception) -> str:
    if isinstance(error, NotRecordable):
        return str(error)
    first = str(error).strip().partition("\n")[0]
    return f"it cannot be recorded ({type(error).__name__}: {first})"
