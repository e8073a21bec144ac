"""
Run a training step once, keep its tensor operations, and run those from then on.

A step is a function (model, guide, arguments) -> (loss, nll) of the parameters. To record a step,

    1. run it as it is, and note its parameters, what it writes to, and whose code runs (origin.py),
    2. run it again from the same random state and record loss and gradients as tensor operations (recording.py),
    3. simplify these (lowering.py), run them from that random state, and compare the result with that of 1.

From then on the recording runs in the place of the program. Its inputs are the arguments' tensors and the weight on
the KL; parameters, buffers and every other tensor are read where they lie; random draws and writes to buffers
(BatchNorm) stay in it. On the CPU its result is the program's, bit for bit. The second run after, and every one whose
number is a power of two or a multiple of 1024, is made by the program as well, and compared.

What a recording takes for granted is that the Python between the tensors would do the same again. The caller vouches
for that in one of two ways:

    certain     only Python of torch, Pyro and this library runs in the step, as seen in 1, and between two of its runs,
                as `fit` sees to; everything else is refused
    by name     the user asked for it: the contract of torch.jit.trace

Refused in both: values taken out of a tensor, shapes that depend on data, hooks, autocast, handlers and modes around
the step that are not known to be harmless. What is refused runs eagerly, and says so once.
"""

import functools
import math
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple, TypeAlias, cast, final
from weakref import ref

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions import constraints
from pyro.poutine.runtime import effectful
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn
from torch.distributions import transform_to

from pyro_bnn.common.randomness import RandomState
from pyro_bnn.common.turns import hold_interrupts
from pyro_bnn.inference.graph.lowering import Lowered, lower
from pyro_bnn.inference.graph.origin import is_library, watching
from pyro_bnn.inference.graph.private import private
from pyro_bnn.inference.graph.recording import NotRecordable, Recorder, Writes
from pyro_bnn.inference.kl import _PerDatum, _ScaleKL
from pyro_bnn.inference.native.build import kernel
from pyro_bnn.inference.native.mean_field import KEPT_SIZE, Deferred, Digest, checking, recording_run, without_gradients
from pyro_bnn.inference.reparam import Flipout, LocalReparameterization, calls_of
from pyro_bnn.inference.sites import ParamSite, StepResult, param_sites

__all__ = ["Program", "RecordedSteps", "emit", "surroundings"]

log = getLogger("pyro_bnn")

Program: TypeAlias = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], tuple[Tensor, Tensor]]
"""(model, guide, args, kwargs) -> (loss, nll), both 0-dimensional; the loss is differentiated."""

_MAX_RECORDINGS = 16
_MAX_FAILURES = 2
_MAX_CHANGES = 16
_CHECK_EVERY = 1024
_PIECE = 1 << 18
_HOOKS = "hooks are attached to parameters"
_NO_LIBRARY = (
    "is not code of torch, Pyro or this library (FlatMeanField_ELBO(trace=True), in a recipe estimator.trace, records "
    "it all the same)"
)
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
"""On the CPU results are equal; this leaves room for kernels whose rounding depends on how memory is aligned."""

tree_flatten, tree_map_only = private("tree_flatten"), private("tree_map_only")
_PYRO_STACK: list[Any] = private("_PYRO_STACK")
_function_modes, _dispatch_modes = (
    private("_get_current_function_mode_stack"),
    private("_get_current_dispatch_mode_stack"),
)
_transforms = private("_functorch.peek_interpreter_stack")
DeviceContext = private("DeviceContext")
_below_autograd = private("_AutoDispatchBelowAutograd")
_no_function_modes = private("DisableTorchFunction")


# ------------------------------------------------------------------------------------------------ around the step


class Surroundings(NamedTuple):
    """What is around a step: its part of the key, the handlers that bring KL weights, and who listens for params."""

    key: tuple[Any, ...]
    weights: list[_ScaleKL]
    heard: bool


def surroundings() -> Surroundings | str:
    """Return what is around the step, or why a recording cannot stand in for what that does."""
    key: list[Any] = []
    weights: list[_ScaleKL] = []
    heard = False
    layers: Any = None
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
        elif kind in (LocalReparameterization, Flipout) and layers is None:
            layers = handler
            key.append(handler.label)
        else:
            return f"the handler {kind.__name__} is active"
    if not torch.is_grad_enabled():
        return "gradients are switched off"
    modes = _function_modes()
    if not all(isinstance(mode, DeviceContext) or (layers and calls_of(mode) is layers) for mode in modes):
        return "a TorchFunctionMode is active"
    if _dispatch_modes():
        return "a TorchDispatchMode is active"
    if _transforms() is not None:
        return "a torch.func transform is active"
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "autocast is on"
    state = (torch.get_default_dtype(), torch.get_default_device(), pyro.settings.get("module_local_params"))
    return Surroundings((*key, *state), weights, heard)


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], list[Tensor]] | str:
    """Return what of the arguments a recording depends on, and their tensors; or why it cannot take them."""
    key: list[Any]
    if not kwargs and all(type(arg) is Tensor for arg in args):  # what nearly every step is called with
        leaves, key = list(args), [len(args)]
    else:
        leaves, spec = tree_flatten((args, kwargs))
        key = [_structure(spec)]
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
        elif leaf is None or type(leaf) in (bool, int, float, str):
            key.append((type(leaf), leaf))
        else:
            return f"an argument is a {type(leaf).__name__}"
    return tuple(key), tensors


def _structure(spec: Any) -> Any:
    """Return what tree_flatten says of the structure as a key; in torch 2.6 dictionaries have no hash."""
    try:
        hash(spec)
    except TypeError:
        return repr(spec)
    return spec


def _identity(program: Any) -> tuple[int, int]:
    if isinstance(program, types.MethodType):
        return id(program.__self__), id(program.__func__)
    return id(program), 0


def _name(program: Any) -> str:
    return getattr(program, "_pyro_name", "") or getattr(program, "__name__", type(program).__name__)


def _trains(params: Sequence[ParamSite]) -> list[bool]:
    return [site.unconstrained.requires_grad for site in params]


def emit(sites: Sequence[ParamSite]) -> None:
    """Send the param message of every site, so that `SVI.step` finds the parameters of a step it did not see."""
    for site in sites:
        leaf = site.unconstrained
        value: Any = leaf if site.constraint is constraints.real else transform_to(site.constraint)(leaf)
        value.unconstrained = ref(leaf)
        effectful(functools.partial(_first, value), type="param")(name=site.name, constraint=site.constraint)


def _first(value: Tensor, **_: Any) -> Tensor:
    return value


# ----------------------------------------------------------------------------------------------------- an eager run


class _Run(NamedTuple):
    """One eager run of the step from a known state, and what it left behind."""

    loss: Tensor
    nll: Tensor
    leaves: list[Tensor]
    grads: list[Tensor | None]
    params: list[ParamSite]
    writes: Writes
    content: list[Tensor]
    before: RandomState
    after: RandomState
    foreign: str | None
    digest: Digest | None = None

    def rewind(self) -> None:
        """Go back to the state before the run."""
        self.writes.restore()
        self.before.restore()

    def finish(self) -> None:
        """Go to the state that the run left."""
        self.writes.restore(self.content)
        self.after.restore()

    def graded(self) -> list[tuple[Tensor, Tensor]]:
        """Return the leaves that have a gradient, with it."""
        return [(leaf, grad) for leaf, grad in zip(self.leaves, self.grads, strict=True) if grad is not None]

    def result(self) -> StepResult | None:
        """
        Go to the state that the run left, and return the step as its caller wants it, gradients laid out as leaves.

        Of a run whose gradients were not kept, go back before it and return None: it is to run again.
        """
        if self.digest is not None:
            self.rewind()
            return None
        self.finish()
        graded = [(leaf, torch.empty_like(leaf).copy_(g)) for leaf, g in self.graded()]
        return StepResult(self.loss, self.nll, [leaf for leaf, _ in graded], [g for _, g in graded], self.params)


def _run_eagerly(step: Callable[[], tuple[Tensor, Tensor]], *, watch: bool) -> _Run:
    before = RandomState.now()
    writes = Writes()
    kernel()  # compiled before anybody looks whose code runs
    watched = watching() if watch else nullcontext()
    with poutine.trace(param_only=True) as recorder, writes, checking() as digests, watched as foreign:
        loss, nll = step()
        params = param_sites(recorder.trace)
        leaves = _leaves_behind(loss)
        order = {id(site.unconstrained): i for i, site in enumerate(params)}
        leaves.sort(key=lambda leaf: order.get(id(leaf), len(order)))
        grads: list[Tensor | None] = list(torch.autograd.grad(loss, leaves, allow_unused=True)) if leaves else []
    content = writes.content()
    loss, nll = loss.detach(), torch.as_tensor(nll).detach()
    seen = None if foreign is None else foreign()
    digest = digests[0] if digests else None
    return _Run(loss, nll, leaves, grads, params, writes, content, before, RandomState.now(), seen, digest)


def _leaves_behind(loss: Tensor) -> list[Tensor]:
    """Return every leaf tensor that a backward pass from `loss` would give a gradient."""
    leaves: dict[int, Tensor] = {}
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        stack.extend(n for n, _ in node.next_functions)
    return list(leaves.values())


def _hooked(leaves: Sequence[Tensor]) -> bool:
    return any(leaf._backward_hooks or leaf._post_accumulate_grad_hooks for leaf in leaves)


# ------------------------------------------------------------------------------------------------------ recordings


@dataclass
class _Recorded:
    """A recorded step."""

    lowered: Lowered
    leaves: list[Tensor]
    params: list[ParamSite]
    trained: list[bool]
    deferrable: bool = False
    runs: int = 0
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def run(self, tensors: Sequence[Tensor], weights: Sequence[Tensor], *, may_defer: bool = False) -> StepResult:
        """Run the tensor operations on these arguments and KL weights."""
        with (
            _below_autograd(),
            _no_function_modes() if _function_modes() else nullcontext(),  # they have been listened to when recording
            recording_run(self.buffers, defer=may_defer and self.deferrable),
        ):
            loss, nll, *grads = self.lowered([*tensors, *weights])
        if not (may_defer and self.deferrable):
            return StepResult(loss, nll, self.leaves, grads, self.params)
        (deferred,) = {grad for grad in grads if isinstance(grad, Deferred)}
        made = [(leaf, g) for leaf, g in zip(self.leaves, grads, strict=True) if g is not deferred]
        return StepResult(loss, nll, [leaf for leaf, _ in made], [g for _, g in made], self.params, deferred)

    def give_back(self) -> None:
        """Give back the memory that long vectors of the last run lie in: another run is about to need as much."""
        for name in [name for name, buffer in self.buffers.items() if buffer.numel() > KEPT_SIZE]:
            del self.buffers[name]

    def run_beside(self, run: _Run, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> StepResult:
        """Run on what an eager run was made on, with gradients left out where that has none to compare with."""
        if run.digest is not None and not self.deferrable:
            raise NotRecordable("the gradients of its weights are changed before they are used")
        return self.run(tensors, weights, may_defer=run.digest is not None)

    def made(self, result: StepResult, may_defer: bool) -> StepResult:
        """Return a result with the gradients that were left to be made, unless they may be."""
        if result.deferred is None or may_defer:
            return result
        gradients = dict(zip(map(id, result.leaves), result.grads, strict=True))
        pair = (result.deferred.loc, result.deferred.rho)
        gradients |= zip(map(id, pair), result.deferred.gradients(), strict=True)
        grads = [gradients[id(leaf)] for leaf in self.leaves]
        return StepResult(result.loss, result.nll, self.leaves, grads, result.params)

    def due(self) -> bool:
        """Return whether this run is to be compared with the program: 1, 2, 4, 8, ..., and every 1024th."""
        self.runs += 1
        return self.runs & (self.runs - 1) == 0 or self.runs % _CHECK_EVERY == 0


def _difference(run: _Run, result: StepResult) -> str | None:
    """Return in what a recording's result is not that of the eager run; the state must be what the recording left."""
    graded = run.graded()
    if run.digest is not None:
        found = _of_digest(run, result)
        if found is not None:
            return found
        graded = [(leaf, g) for leaf, g in graded if g.data_ptr() not in run.digest.places]
    if [id(leaf) for leaf, _ in graded] != [id(leaf) for leaf in result.leaves]:
        return "the set of parameters"
    grads = list(zip((g for _, g in graded), result.grads, strict=True))
    largest = max((_norm(g) for g, _ in grads), default=0.0)
    pairs = [("the loss", run.loss, result.loss, 0.0), ("the nll", run.nll, result.nll, 0.0)]
    pairs += [("a gradient", a, b, 0.01 * largest) for a, b in grads]
    pairs += [("a buffer", a, b, 0.0) for a, b in zip(run.content, run.writes.content(), strict=True)]
    for what, a, b, around in pairs:
        if not _close(a, b, around):
            return what
    return None if run.after.same(RandomState.now()) else "the number of random draws"


def _of_digest(run: _Run, result: StepResult) -> str | None:
    """Return in what the gradients differ that were not kept, the recording's being deferred."""
    deferred, digest = result.deferred, cast(Digest, run.digest)
    places = [g.data_ptr() for leaf, g in run.graded() if leaf is deferred.loc or leaf is deferred.rho]
    if sorted(places) != sorted(digest.places):  # something was added to them
        return "what the gradients are made of"
    other = deferred.digest()
    same = _close(digest.norms, other.norms, 0.0) and _close(digest.sample, other.sample, 0.0)
    return None if same else "a gradient"


def _norm(tensor: Tensor) -> float:
    """Return the norm of what is finite."""
    return _distance(tensor, None)[1]


def _distance(a: Tensor, b: Tensor | None) -> tuple[float, float]:
    """
    Return |a - b| and |a|, in double precision, of the entries of `a` that are finite.

    The first is infinite where `b` is finite in other places. A long vector is looked at piece by piece.
    """
    apart, size = 0.0, 0.0
    own = a.reshape(-1).split(_PIECE)
    for i, x in enumerate(own):
        y = x if b is None else b.reshape(-1)[i * _PIECE : i * _PIECE + len(x)]
        x, y = x.double(), y.double()
        difference = x if b is None else x - y
        squares, wide = float(x.dot(x)), float(difference.dot(difference))
        if not (math.isfinite(squares) and math.isfinite(wide)):
            finite = torch.isfinite(x)
            if not torch.equal(finite, torch.isfinite(y)):
                return math.inf, size
            x, y = x[finite], y[finite]
            squares, wide = float(x.dot(x)), float((x - y).dot(x - y))
        size, apart = size + squares, apart + (0.0 if b is None else wide)
    return math.sqrt(apart), math.sqrt(size)


def _close(a: Tensor, b: Tensor, around: float) -> bool:
    """Return whether `b` is `a` up to rounding, in an expression whose terms are of size `around`."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    tolerance = _TOLERANCE.get(a.dtype, 2e-2) if a.device.type == "cpu" else 2e-2  # elsewhere sums are in any order
    apart, size = _distance(a, b)
    return math.isfinite(apart) and apart <= tolerance * max(size, around)


@final
class RecordedSteps:
    """The recordings of one ELBO, by what they depend on; the least recently used are dropped."""

    def __init__(self) -> None:
        self._recorded: OrderedDict[Any, _Recorded] = OrderedDict()
        self._owners: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()  # keeps their ids from being used again
        self._eager: dict[Any, str] = {}
        self._failures: dict[Any, int] = {}
        self._changes: dict[Any, int] = {}
        self._weights: dict[float, Tensor] = {}

    def __deepcopy__(self, memo: Any) -> "RecordedSteps":
        return RecordedSteps()

    def __reduce__(self) -> Any:
        return RecordedSteps, ()

    def __len__(self) -> int:
        return len(self._recorded)

    def forget(self) -> None:
        """Drop every recording, so that the next step is recorded anew."""
        self._recorded.clear()

    def step(
        self,
        program: Program,
        variant: Any,
        model: Any,
        guide: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        by_name: bool,
        may_defer: bool = False,
    ) -> StepResult | None:
        """
        Run one step as a recording, of this step if there is none yet; None if it has to run eagerly.

        :param program: the step; it must not depend on anything but its arguments and `variant`.
        :param variant: options of the program that a recording depends on.
        :param by_name: whether the user asked for it; else only what is certain is recorded.
        :param may_defer: whether the result may have gradients that have still to be made.
        """
        owner = (variant, _identity(model), _identity(guide))
        if owner in self._eager:
            return None
        around, signature = surroundings(), _signature(args, kwargs)
        if isinstance(around, str) or isinstance(signature, str):
            _say_once(_name(model), around if isinstance(around, str) else cast(str, signature))
            return None
        training = [program.training for program in (model, guide) if isinstance(program, nn.Module)]
        key = (owner, signature[0], around.key, *training)
        weights = [self._weight(handler.weight) for handler in around.weights]
        step = functools.partial(program, model, guide)
        recorded = self._recorded.get(key)
        if recorded is None or recorded.trained != _trains(recorded.params):  # frozen or unfrozen since
            with hold_interrupts():  # no mode and no weight of a recording that was broken off may stay behind
                return self._record(key, step, (model, guide), args, kwargs, around, weights, by_name, may_defer)
        if recorded.due():
            with hold_interrupts():
                return self._compare(
                    recorded, key, functools.partial(step, args, kwargs), signature[1], weights, may_defer
                )
        result = recorded.run(signature[1], weights, may_defer=may_defer)
        if around.heard:
            emit(recorded.params)
        return result

    # -- recording -----------------------------------------------------------------------------------------------

    def _record(
        self,
        key: Any,
        program: Callable[..., tuple[Tensor, Tensor]],
        programs: tuple[Any, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        around: Surroundings,
        weights: list[Tensor],
        by_name: bool,
        may_defer: bool,
    ) -> StepResult | None:
        owner = key[0]
        self._remember(owner, programs)
        if _hooked([p for program in programs if isinstance(program, nn.Module) for p in program.parameters()]):
            self._give_up(owner, _HOOKS)
            return None
        if not by_name:
            foreign = _foreign_module(programs)
            if foreign is not None:
                self._give_up(owner, f"{foreign} {_NO_LIBRARY}")
                return None
        aliases: dict[int, Tensor] = {}

        def alias(tensor: Tensor) -> Tensor:  # an object of its own: what the program holds itself is another tensor
            return aliases.setdefault(id(tensor), tensor.detach())

        step = functools.partial(program, *tree_map_only(Tensor, alias, (args, kwargs)))
        tensors = list(aliases.values())
        run = _run_eagerly(step, watch=not by_name)
        try:
            if run.foreign is not None:
                raise NotRecordable(f"{run.foreign} {_NO_LIBRARY}")
            recorded = self._recorded_from(run, step, tensors, around.weights, weights)
            run.rewind()
            result = recorded.run_beside(run, tensors, weights)
            difference = _difference(run, result)
            if difference is not None:
                raise NotRecordable(f"the recording does not reproduce {difference}")
        except Exception as error:  # whatever goes wrong while recording, the eager run is right
            self._failures[owner] = self._failures.get(owner, 0) + 1
            if self._failures[owner] >= _MAX_FAILURES:  # a first run may differ, for it sets things up
                self._give_up(owner, _why(error))
            return run.result()
        self._recorded[key] = recorded
        while len(self._recorded) > _MAX_RECORDINGS:
            self._recorded.popitem(last=False)
            self._changes[owner] = self._changes.get(owner, 0) + 1
            if self._changes[owner] > _MAX_CHANGES:
                self._give_up(owner, "what it is called with changes at every step")
        log.info("recorded %s: %d operations", _name(programs[0]), recorded.lowered.operations)
        return recorded.made(result, may_defer)

    def _recorded_from(
        self,
        run: _Run,
        step: Callable[[], tuple[Tensor, Tensor]],
        tensors: list[Tensor],
        handlers: Sequence[_ScaleKL],
        weights: list[Tensor],
    ) -> _Recorded:
        """Run the step from where `run` began with tensors for KL weights, note what it does, and leave no trace."""
        if _hooked(run.leaves):
            raise NotRecordable(_HOOKS)
        run.rewind()
        writes = Writes()
        recorder = Recorder([*run.leaves, *tensors, *weights])
        given = [handler.weight for handler in handlers]
        try:
            for handler, weight in zip(handlers, weights, strict=True):
                handler.weight = weight
            with pyro.validation_enabled(False), without_gradients(), writes, recorder:
                loss, nll = step()
                grads = torch.autograd.grad(loss, run.leaves, allow_unused=True) if run.leaves else ()
                nll = torch.as_tensor(nll)
        finally:
            for handler, number in zip(handlers, given, strict=True):
                handler.weight = number
            writes.restore()
        if [g is not None for g in grads] != [g is not None for g in run.grads]:
            raise NotRecordable("another set of parameters takes part each time")
        if writes.memories() != run.writes.memories():
            raise NotRecordable("it writes to other tensors each time")
        recorder.finish([loss, nll, *(g for g in grads if g is not None)])
        leaves = [leaf for leaf, _ in run.graded()]
        layouts = [None, None, *(leaf.stride() for leaf in leaves)]
        lowered = lower(recorder, dict(enumerate(run.leaves)), layouts)
        deferrable = bool(lowered.pair) and all(leaves[i - 2] is leaf for i, leaf in lowered.pair.items())
        return _Recorded(lowered, leaves, run.params, _trains(run.params), deferrable)

    def _compare(
        self,
        recorded: _Recorded,
        key: Any,
        step: Callable[[], tuple[Tensor, Tensor]],
        tensors: list[Tensor],
        weights: list[Tensor],
        may_defer: bool,
    ) -> StepResult | None:
        """Run a step both ways; if they differ, the program is right, and the recording is not used again."""
        recorded.give_back()
        with pyro.validation_enabled(False):
            run = _run_eagerly(step, watch=False)
        run.rewind()
        result = recorded.run_beside(run, tensors, weights)
        difference = _difference(run, result)
        if difference is None:
            return recorded.made(result, may_defer)
        self._give_up(key[0], f"its recording does not reproduce {difference} any more")
        return run.result()

    def _weight(self, value: float | Tensor) -> Tensor:
        """Return a KL weight as an input, in double precision, for it is rounded where it multiplies."""
        if isinstance(value, Tensor):
            return value.detach().double()
        if value not in self._weights:
            if len(self._weights) >= 1024:
                self._weights.clear()
            self._weights[value] = torch.tensor(value, dtype=torch.float64, device="cpu")
        return self._weights[value]

    # -- bookkeeping ---------------------------------------------------------------------------------------------

    def _remember(self, owner: Any, programs: tuple[Any, Any]) -> None:
        self._owners[owner] = programs
        self._owners.move_to_end(owner)
        while len(self._owners) > _MAX_RECORDINGS:
            oldest = next(iter(self._owners))
            self._drop(oldest)
            for kept in (self._owners, self._eager, self._failures, self._changes):
                kept.pop(oldest, None)

    def _drop(self, owner: Any) -> None:
        for key in [k for k in self._recorded if k[0] == owner]:
            del self._recorded[key]

    def _give_up(self, owner: Any, reason: str) -> None:
        self._drop(owner)
        self._eager[owner] = reason
        _say_once(_name(self._owners[owner][0]), reason)


_SAID: set[str] = set()


def _say_once(name: str, reason: str) -> None:
    """Say why a step is not recorded, once per process."""
    if reason not in _SAID:
        _SAID.add(reason)
        log.warning("%s runs eagerly, not as a recording, for %s", name, reason)


def _foreign_module(programs: tuple[Any, Any]) -> str | None:
    """Return the name of a part that is not a library's, before anything runs."""
    for program in programs:
        if not isinstance(program, nn.Module):
            return _name(program)
        for module in program.modules():
            if not is_library(module):
                return type(module).__qualname__
    return None


def _why(error: Exception) -> str:
    if isinstance(error, NotRecordable):
        return str(error)
    first = str(error).strip().partition("\n")[0]
    return f"it cannot be recorded ({type(error).__name__}: {first})"
