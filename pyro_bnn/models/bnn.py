"""
Any network as a Pyro program.

    for every random parameter:   net.<name> ~ prior(name, module, parameter)
    plate "data" of size N:       obs ~ likelihood(net(x; weights)),   scaled by N / B for a batch of B

The network handed in is copied and never changed. Its forward pass runs with a draw in the place of the copy's weights,
so tied weights, shared modules and attention layers work as they are. What is not random (normalisation layers by
default, and a learned noise level) is an ordinary Pyro parameter that the same optimizer step trains.

What a network computes again in the backward pass (checkpoints), or looks up there (a hook, an autograd Function that
holds on to a module), has to find the weights of its draw, and the module holds its own again by then. A network
that is seen to do so runs on a copy of its modules that keeps the draw's weights, one copy per call; buffers are
shared. A reentrant checkpoint, which cannot reach the guide's parameters, is refused.

Batch normalisation asks for narrow posteriors. In training, a batch's own statistics undo what a draw of the weights
does to the scale of a layer, so the deviations may grow at no cost; in prediction, the running statistics are those of
no draw in particular, and every draw is normalised a little wrongly. Where single draws predict much worse than the
training NLL says, lower eta and the initial deviations (the recipes of residual networks do), or use another norm.
"""

import copy
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, cast, final

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide.utils import deep_setattr
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.distributions import Distribution, constraints
from torch.func import vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from pyro_bnn.common.as_written import as_written
from pyro_bnn.common.randomness import RandomState
from pyro_bnn.models.likelihoods import Likelihood
from pyro_bnn.models.priors import Prior, torch_fan_in
from pyro_bnn.models.reach import LayerWatch, reached
from pyro_bnn.registry import described

__all__ = ["BNN", "NORM_LAYERS", "Selector"]

NORM_LAYERS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

Selector: TypeAlias = str | type[nn.Module] | Callable[[str, nn.Module, Tensor], bool]
"""A glob pattern on parameter names, a module type, or a predicate of (name, module, parameter)."""

Inputs: TypeAlias = Tensor | tuple[Tensor, ...]
"""One tensor (B, ...), or a tuple of several for a network that is called `net(x1, x2)`."""

_SERIAL = itertools.count(1)


def _misfit(net: nn.Module, config: Mapping[Any, Any]) -> str:
    """Return why a network's `config` cannot be the arguments it was built with, as words; empty if it can."""
    try:
        taken = inspect.signature(type(net)).parameters
    except (TypeError, ValueError):
        return "its constructor does not say what it takes"
    open_ended = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    wanted = {name for name, p in taken.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    missing = sorted(wanted - set(config))
    unknown = [] if open_ended else sorted(str(key) for key in set(config) - wanted)
    reserved = sorted({"name", "class"} & set(config))
    objects = sorted(str(key) for key, value in config.items() if not _is_plain(value))
    reasons = {
        "it lacks {}": missing,
        "the constructor takes no {}": unknown,
        "{} is a word of the file itself": reserved,
        "{} is no name, number, or list of them": objects,
    }
    return "; ".join(words.format(", ".join(map(repr, keys))) for words, keys in reasons.items() if keys)


def _is_plain(value: Any) -> bool:
    """Whether a file keeps a value as it is, but for tuples, which come back as lists."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))


def _owners(net: nn.Module) -> dict[str, tuple[nn.Module, nn.Parameter]]:
    """Return owner and parameter by name; a parameter shared by several modules stands under its first name."""
    modules = dict(net.named_modules())
    return {name: (modules[name.rpartition(".")[0]], p) for name, p in net.named_parameters()}


def _places(net: nn.Module) -> dict[str, tuple[str, ...]]:
    """
    Return by a parameter's first name the names of all places that hold it.

    A module with two names counts once.
    """
    first: dict[int, str] = {}
    places: dict[str, tuple[str, ...]] = {}
    for prefix, module in net.named_modules():
        for attribute, parameter in module.named_parameters(prefix, recurse=False):
            name = first.setdefault(id(parameter), attribute)
            places[name] = (*places.get(name, ()), attribute)
    return places


def _matches(selector: Selector, name: str, module: nn.Module, parameter: Tensor) -> bool:
    if isinstance(selector, str):
        return fnmatchcase(name, selector)
    if isinstance(selector, type):
        return isinstance(module, selector)
    return bool(selector(name, module, parameter))


def _select(
    owners: Mapping[str, tuple[nn.Module, nn.Parameter]], selectors: Selector | Iterable[Selector], argument: str
) -> set[str]:
    """Return the names any of `selectors` picks; a selector that picks nothing is a mistake."""
    if isinstance(selectors, (str, type)) or callable(selectors):
        selectors = [selectors]
    chosen: set[str] = set()
    for selector in selectors:
        hits = {name for name, (module, p) in owners.items() if _matches(selector, name, module, p)}
        if not hits:
            raise ValueError(
                f"{argument}: {selector!r} matches no parameter; pass a module type, a predicate, or a pattern for one "
                f"of {', '.join(list(owners)[:12])}{', ...' if len(owners) > 12 else ''}"
            )
        chosen |= hits
    return chosen


def _uses_batch_statistics(net: nn.Module) -> bool:
    return any(isinstance(m, _NormBase) and m.training and m.track_running_stats for m in net.modules())


def _arguments(x: Inputs) -> tuple[Tensor, ...]:
    """Return what the network is called with: one input, or each of several."""
    return x if isinstance(x, tuple) else (x,)


def _inputs(x: Any) -> Inputs:
    """Refuse inputs that are no tensors, or several of different lengths; a list becomes a tuple."""
    x = tuple(x) if isinstance(x, list) else x
    if isinstance(x, tuple) and not x:
        raise ValueError("x is empty: pass a tensor, or a tuple of tensors for a network of several inputs")
    for member in _arguments(x):
        if not isinstance(member, Tensor):
            given = type(x).__name__ if member is x else f"{type(x).__name__} with a {type(member).__name__}"
            raise TypeError(f"x is a {given}: pass a tensor, or a tuple of tensors for a network of several inputs")
    lengths = [len(member) for member in _arguments(x)]
    if len(set(lengths)) > 1:
        raise ValueError(f"the inputs have {lengths} rows: give each a row per row of the data")
    return cast(Inputs, x)


_RECOMPUTES = "pyro_bnn: the network saves tensors for a recomputation in the backward pass"


@final
class _HookWatch(TorchFunctionMode):
    """Notices whether hooks are put on tensors."""

    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or func is Tensor.register_hook
        return func(*args, **(kwargs or {}))


@contextmanager
def _without_saved_tensors_hooks() -> Iterator[None]:
    """Let a checkpoint within the block raise; where such hooks are active around it, torch raises at once."""
    try:
        guard = disable_saved_tensors_hooks(_RECOMPUTES)
        guard.__enter__()
    except RuntimeError as error:
        raise RuntimeError(_RECOMPUTES) from error
    try:
        yield
    finally:
        guard.__exit__(None, None, None)


def _python_nodes(output: Tensor, weights: Iterable[Tensor]) -> Iterator[Any]:
    """Yield the nodes between weights and an output that run Python code in the backward pass."""
    todo: list[Any] = [output.grad_fn]
    seen: set[Any] = {weight.grad_fn for weight in weights}
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            yield node
        todo.extend(following for following, _ in node.next_functions)


def _holds_module(node: Any) -> bool:
    held = [getattr(value, "__self__", value) for value in vars(node).values()]
    return any(isinstance(value, nn.Module) for value in held)


def _has_backward_hooks(net: nn.Module) -> bool:
    return any(m._backward_hooks or m._backward_pre_hooks for m in net.modules())


@contextmanager
def _in_place(net: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Put tensors in the place of a network's parameters, as torch.func.functional_call does, in half of its time."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, value in values.items():
            path, _, last = name.rpartition(".")
            parameters = net.get_submodule(path)._parameters
            if last not in parameters:
                raise ValueError(f"the network has no parameter {name!r} any more: build a BNN of the changed network")
            kept.append((parameters, last, parameters[last]))
            parameters[last] = value  # type: ignore[assignment]
        yield
    finally:
        for parameters, last, parameter in kept:
            parameters[last] = parameter


@final
class _BatchByBatch(nn.Module):
    """A network's outputs for several batches, so that its weights are put in place once."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *batches: Inputs) -> Tensor:
        return torch.cat([self.net(*_arguments(batch)) for batch in batches], dim=-2)  # (..., B, K)


@final
class BNN(PyroModule):
    """
    The Pyro program of a Bayesian neural network.

    :param net: any module mapping x (B, ...), or several inputs, to outputs (B, K); it is copied.
    :param prior: a rule from (name, module, parameter) to a distribution; see :mod:`pyro_bnn.models.priors`.
    :param likelihood: what an output says about a label; see :mod:`pyro_bnn.models.likelihoods`.
    :param num_data: N, the number of rows trained on (after a validation set is taken out).
    :param random: which parameters are random: patterns, module types or predicates. Default: all but those of
        normalisation layers.
    :param deterministic: which of those to leave out again.
    :param keep_values: whether the copy keeps the random parameters' own values, one number per weight. They are where
        a guide with `init_loc="net"` starts; nothing else needs them, once the priors are made.

    >>> import torch
    >>> from pyro_bnn.models import BNN, likelihoods, priors
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data=100)
    >>> model.random_names
    ('0.weight', '0.bias', '2.weight', '2.bias')
    >>> x, y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    >>> model(x, y).shape  # weights from the prior, the labels observed
    torch.Size([5, 2])
    """

    def __init__(
        self,
        net: nn.Module,
        prior: Prior,
        likelihood: Likelihood,
        num_data: int,
        *,
        random: Selector | Sequence[Selector] | None = None,
        deterministic: Selector | Sequence[Selector] | None = None,
        keep_values: bool = True,
    ) -> None:
        super().__init__(name=f"BNN{next(_SERIAL)}")
        if not isinstance(keep_values, bool):
            raise TypeError(f"keep_values={keep_values!r} is not allowed: give True or False")
        if isinstance(num_data, bool) or not isinstance(num_data, int) or num_data < 1:
            raise ValueError(f"num_data={num_data!r} is not a number of rows: pass the size of the training set, >= 1")
        if not isinstance(net, nn.Module):
            raise TypeError(f"net is a {type(net).__name__}; pass a torch.nn.Module")
        if isinstance(likelihood, type) or not isinstance(likelihood, Likelihood):
            raise TypeError(f"likelihood={likelihood!r} is not a Likelihood; pass e.g. likelihoods.Categorical()")
        if isinstance(prior, type) or not callable(prior):
            raise TypeError(f"prior={prior!r} is not a rule; pass e.g. priors.Kaiming()")
        self.num_data = num_data
        self.prior = prior
        self.likelihood = likelihood
        lazy = [name for name, p in net.named_parameters() if is_lazy(p)]
        if lazy:
            raise ValueError(f"net's {lazy[0]!r} has no shape yet: run the lazy network once on a batch, then pass it")
        template = copy.deepcopy(net).requires_grad_(False)
        owners = _owners(template)
        if not owners:
            raise ValueError("net has no parameters: a Bayesian network needs at least one")
        chosen = (
            {name for name, (module, _) in owners.items() if not isinstance(module, NORM_LAYERS)}
            if random is None
            else _select(owners, random, "random")
        )
        if deterministic is not None:
            chosen -= _select(owners, deterministic, "deterministic")
        if not chosen:
            raise ValueError("no parameter is random: choose at least one with random=")
        self.random_names = tuple(name for name in owners if name in chosen)
        self.deterministic_names = tuple(name for name in owners if name not in chosen)
        self._places = _places(template)
        self._dims = {name: owners[name][1].dim() for name in self.random_names}
        self.add_module("net", template)
        self.add_module("deterministic", PyroModule())
        for name in self.deterministic_names:
            deep_setattr(self._modules["deterministic"], name, PyroParam(owners[name][1].detach().clone()))
        self.add_module("noise", PyroModule())
        for name, (value, constraint) in likelihood.parameters().items():
            setattr(self._modules["noise"], name, PyroParam(torch.tensor(value), constraint))
        self._name_parameters()
        self._priors: dict[str, Any] = {}
        self._hints: dict[str, dict[str, Any]] = {}  # what a guide may start from: fan_in and the network's own value
        self._priors_at: tuple[torch.device, torch.dtype, Any] | None = None
        self._indices: dict[tuple[int, torch.device], Tensor] = {}
        self._vmaps: dict[bool, bool] = {}  # whether vmap goes through the network, by training mode
        self._keeps = _has_backward_hooks(template)  # whether the backward pass needs the weights in the modules
        self._network_dtype: torch.dtype | None = None  # of the network's own arithmetic; None: as it is
        self._ran: set[bool] = set()  # the training modes in which gradients were asked for before
        self._reach_known = False  # whether it was looked at which weights the output depends on
        self._keeps_values = keep_values
        self.priors()
        self._forget_values()
        config = getattr(template, "config", None)
        misfit = _misfit(template, config) if isinstance(config, dict) else ""
        if misfit:
            warnings.warn(
                f"the config of {type(net).__name__} is not what it was built with ({misfit}), so that a saved "
                "posterior does not say how to build it: let config hold the arguments of the constructor, or load "
                "with model=",
                stacklevel=2,
            )

    @property
    def template(self) -> nn.Module:
        """The copied network; the weights it holds are the ones it was built with (zeros without `keep_values`)."""
        return cast(nn.Module, self._modules["net"])

    def priors(self) -> dict[str, Any]:
        """Return the prior of every random parameter by its name in the network."""
        first = self.template.get_parameter(self.random_names[0])
        place = (first.device, first.dtype, self.prior)
        known = self._priors_at
        if known is None or known[:2] != place[:2] or known[2] is not self.prior:
            owners = _owners(self.template)
            self._priors = {name: self._prior_of(name, *owners[name]) for name in self.random_names}
            self._hints = {name: {"fan_in": torch_fan_in(*owners[name])} for name in self.random_names}
            for name, hints in self._hints.items() if self._keeps_values else ():
                hints["value"] = owners[name][1].detach()
            self._priors_at = place
        return self._priors

    def _forget_values(self) -> None:
        """Let the network's random parameters be one zero each in their shapes, unless their values are kept."""
        for name in () if self._keeps_values else self.random_names:
            parameter = self.template.get_parameter(name)
            parameter.data = parameter.new_zeros(()).expand(parameter.shape)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """
        Copy a state dict into the model, as torch does; values that are not kept go nowhere.

        :param state_dict: what `state_dict` returned.
        :param strict: whether names must agree.
        :param assign: whether to take the tensors themselves.
        """
        if self._keeps_values:
            return super().load_state_dict(state_dict, strict, assign)
        places = [(place, self.template.get_parameter(n)) for n in self.random_names for place in self._places[n]]
        room = {place: nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device=p.device), False) for place, p in places}
        with _in_place(self.template, room):
            return super().load_state_dict(state_dict, strict, assign)

    def sample_weights(self) -> dict[str, Tensor]:
        """Run the latent part of the program: sample every random parameter from its prior."""
        priors = self.priors()
        return {
            name: pyro.sample(f"net.{name}", prior, infer=cast(Any, {"init": self._hints[name]}))
            for name, prior in priors.items()
        }

    def forward(self, x: Inputs, y: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """
        Run the program on a batch and return the network's output, (B, K).

        :param x: inputs (B, ...); a tuple (x1, x2, ...) for a network that is called `net(x1, x2, ...)`.
        :param y: labels (B,) or targets (B, D); None to predict.
        :param weights: how often each row counts, (B,); default once.
        """
        x = _inputs(x)
        rows = _arguments(x)[0]
        output, fn, observed = self._law(x, y, self.sample_weights())
        with pyro.plate("data", self.num_data, subsample=self._subsample(rows)):
            if weights is None:
                pyro.sample("obs", fn, obs=observed)
            else:
                counted: Any = weights > 0  # poutine.scale refuses 0
                with poutine.scale(scale=weights.where(counted, 1.0)), poutine.mask(mask=counted):
                    pyro.sample("obs", fn, obs=observed)
        return output

    def _law(self, x: Inputs, y: Tensor | None, sampled: Mapping[str, Tensor]) -> tuple[Tensor, Any, Tensor | None]:
        """Return the network's output (..., B, K), the distribution of the labels, and these in its shape."""
        output = self.output(x, sampled)
        if not isinstance(output, Tensor) or output.dim() < 2:
            returned = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            rows = len(_arguments(x)[0])
            raise ValueError(f"net returns {returned} for {rows} rows; it must return one tensor (B, K): wrap it")
        fn: Any = self.likelihood.distribution(output, self._noise())
        return output, fn, None if y is None else self.likelihood.shape_target(y, output)

    def is_plain(self) -> bool:
        """Return whether `plain_nll` says what `forward` says: nothing replaced, no hooks."""
        return as_written(self, _WRITTEN)

    def plain_nll(self, values: Mapping[str, Tensor], scale: Callable[[Any], Any], x: Inputs, y: Tensor) -> Tensor:
        """
        Return minus the log-likelihood of a batch, times N / B and what `scale` makes of it; values by site.

        :param x: inputs (B, ...).
        :param y: labels or targets of the batch.
        """
        x = _inputs(x)
        with self._pyro_context:
            _, fn, observed = self._law(x, y, {name: values[f"net.{name}"] for name in self.random_names})
        log_prob: Tensor = fn.log_prob(observed)  # (B,)
        nll: Tensor = -(log_prob * scale(1.0 * self.num_data / len(_arguments(x)[0]))).sum()
        return nll

    def output(self, x: Inputs, sampled: Mapping[str, Tensor]) -> Tensor:
        """
        Return the network's output (..., B, K) for weights with any leading draw dimensions.

        :param x: inputs (B, ...).
        :param sampled: weights by site, each (..., *shape) with the draws in front.
        """
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._output([x], sampled)
        if not self._keeps:
            output = self._output_unless_kept(x, sampled)
            if output is not None:
                return output
        output = self._output([x], sampled)
        self._needs_kept_weights(output, sampled)
        return output

    def _output_unless_kept(self, x: Inputs, sampled: Mapping[str, Tensor]) -> Tensor | None:
        """Return the output, or None, with everything as it was, if the backward pass needs the weights in place."""
        mode = self.template.training
        first = mode not in self._ran
        before = [(b, b.clone()) for b in self.template.buffers()] if first else []
        state = RandomState.now() if first else None
        watch = _HookWatch() if first else None
        unsure = (
            {name: value for name, value in sampled.items() if value.requires_grad} if not self._reach_known else {}
        )
        layers = LayerWatch(unsure) if unsure else None
        try:
            with _without_saved_tensors_hooks(), layers or nullcontext(), watch or nullcontext():
                output = self._output([x], sampled)
        except RuntimeError as error:
            if _RECOMPUTES not in str(error):
                raise
        else:
            self._ran.add(mode)
            if not self._needs_kept_weights(output, sampled) and not (watch is not None and watch.found):
                if layers is not None:
                    self._check_reach(output, unsure, layers.replaced)
                return output
        self._keeps = True
        if state is None:
            raise RuntimeError(
                "the network began to recompute or to look up weights in the backward pass after its first step (a "
                "checkpoint, or an autograd Function that holds a module): take the step again"
            )
        state.restore()
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
        return None

    def _check_reach(self, output: Any, weights: Mapping[str, Tensor], replaced: set[str]) -> None:
        """Warn once of weights that the output does not depend on; refuse a network whose output depends on none."""
        found = reached(output, weights) | replaced if isinstance(output, Tensor) else set(weights)
        lost = [name for name in weights if name not in found]
        kind = type(self.template).__name__
        if len(lost) == len(self.random_names):
            raise ValueError(
                f"the output of {kind} has no gradient with respect to any random parameter: it cuts the gradient "
                "(detach, no_grad, argmax), or calls layers that are not modules below it (what runs is a copy of the "
                "network, and a closure leads to the layers of the original)"
            )
        self._reach_known = True
        if lost:
            warnings.warn(
                f"the output of {kind} has no gradient with respect to {', '.join(lost)}: there the guide learns the "
                "prior alone. A layer has to be called through a module below the network, and not under detach or "
                "no_grad; for what is not used pass deterministic=",
                stacklevel=2,
            )

    def _needs_kept_weights(self, output: Any, sampled: Mapping[str, Tensor]) -> bool:
        """Whether Python code of the backward pass may look into modules; a reentrant checkpoint is refused."""
        needs = False
        for node in _python_nodes(output, sampled.values()) if isinstance(output, Tensor) else ():
            if type(node).__name__ == "CheckpointFunctionBackward":
                raise RuntimeError(
                    "the network checkpoints with use_reentrant=True, whose recomputation in the backward pass finds "
                    "other weights than the draw's and gives the guide no gradient: pass use_reentrant=False to "
                    "torch.utils.checkpoint"
                )
            needs = needs or _holds_module(node)
        return needs

    def _output(self, parts: Sequence[Inputs], sampled: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs over the rows of several batches."""
        fixed = {name: self._deterministic(name) for name in self.deterministic_names}
        draws = {name: value.dim() - self._dims[name] for name, value in sampled.items()}
        if not any(draws.values()):
            return self._call(parts, {**sampled, **fixed})
        lead = max((v.shape[: draws[n]] for n, v in sampled.items()), key=len)  # the draw dimensions, e.g. (S, 1)
        flat = {
            name: value.expand(*lead, *value.shape[draws[name] :]).flatten(0, len(lead) - 1)
            for name, value in sampled.items()
        }  # (S, *shape)
        output = self._output_per_draw(parts, flat, fixed)  # (S, B, K)
        if len(lead) > 1 and lead[-1] == 1:  # the last leading dimension stands where the data plate puts B
            lead = lead[:-1]
        return output.reshape(*lead, *output.shape[1:])

    def observation(self, x: Inputs, latents: Mapping[str, Tensor]) -> Distribution:
        """
        Return p(y | x, weights) for latent values by site name, without running the program.

        :param latents: weights by site.
        """
        return self.observation_in_parts([x], latents)

    def observation_in_parts(self, x: Sequence[Inputs], latents: Mapping[str, Tensor]) -> Distribution:
        """
        Return p(y | x, weights) over the rows of several batches of inputs, run one after another.

        :param latents: weights by site.
        """
        with self._pyro_context, poutine.block():
            output = self._output(x, {name: latents[f"net.{name}"] for name in self.random_names})
            return self.likelihood.distribution(output, self._noise())

    def unstackable(self) -> str | None:
        """Return why this model cannot run beside others like it as one batched program, as words; None if it can."""
        kept = [type(m).__name__ for m in self.template.modules() if any(True for _ in m.buffers(recurse=False))]
        if kept:
            return f"{kept[0]} keeps buffers, which every member would have to have of its own"
        random = [type(m).__name__ for m in self.template.modules() if isinstance(m, _DropoutNd)]
        if random:
            return f"{random[0]} draws random numbers in the network"
        if self._keeps:
            return "the network looks its weights up in the backward pass"
        return None if self.is_plain() else "a method of the model was replaced, or has hooks"

    def structure(self) -> dict[str, Any]:
        """Return what models must have in common to run as one."""
        return {
            "network": (repr(self.template), getattr(self.template, "config", None)),
            "likelihood": self.likelihood.spec(),
            "random parameters": self.random_names,
            "shapes": [tuple(p.shape) for p in self.template.parameters()],
        }

    def own_constraints(self) -> dict[str, constraints.Constraint]:
        """Return the constraints of the model's own parameters: of layers that are not random, of the noise."""
        of_noise = {f"noise.{name}": constraint for name, (_, constraint) in self.likelihood.parameters().items()}
        return {f"deterministic.{name}": constraints.real for name in self.deterministic_names} | of_noise

    def law_at(
        self, x: Inputs, y: Tensor, values: Mapping[str, Tensor], own: Mapping[str, Tensor]
    ) -> tuple[Distribution, Tensor]:
        """
        Return p(y | x, weights) and the labels in its shape, of weights by site and `own` parameters that are given.

        Nothing but these is read, so that torch.func maps it over many of them.

        :param values: weights by site.
        """
        weights = {name: values[f"net.{name}"] for name in self.random_names}
        weights |= {name: own[f"deterministic.{name}"] for name in self.deterministic_names}
        output = self._call_plainly(x, weights)
        noise = {name: own[f"noise.{name}"] for name in self.likelihood.parameters()}
        return self.likelihood.distribution(output, noise), self.likelihood.shape_target(y, output)

    def _call_plainly(self, x: Inputs, weights: Mapping[str, Tensor]) -> Tensor:
        with _in_place(self.template, {place: v for name, v in weights.items() for place in self._places[name]}):
            return cast(Tensor, self.template(*_arguments(x)))

    def spec(self) -> dict[str, Any] | None:
        """Return the model as names and numbers, or None if the network or the prior does not say how it was built."""
        config = getattr(self.template, "config", None)
        prior = self.prior.spec() if isinstance(self.prior, Prior) else None
        if not isinstance(config, dict) or prior is None or _misfit(self.template, config):
            return None
        return {
            "net": described(self.template, {"name": type(self.template).__name__, **config}),
            "prior": described(self.prior, prior),
            "likelihood": described(self.likelihood, self.likelihood.spec()),
            "num_data": self.num_data,
            "random": list(self.random_names),
        }

    def expects_unit_targets(self) -> bool:
        """Return whether targets far from mean 0 and sd 1 are a mistake; see the likelihood."""
        return self.likelihood.expects_unit_targets()

    def kept_tensors(self) -> set[str]:
        """Return the names in the state dict that a saved posterior keeps: all but the initial weights."""
        initial = {f"net.{name}" for name, _ in self.template.named_parameters(remove_duplicate=False)}
        return set(self.state_dict()) - initial

    @contextmanager
    def network_in(self, dtype: torch.dtype) -> Iterator[None]:
        """Run the network in `dtype` (torch's autocast) within the block; its output is float32 again."""
        before, self._network_dtype = self._network_dtype, dtype
        try:
            yield
        finally:
            self._network_dtype = before

    def _call(self, parts: Sequence[Inputs], values: Mapping[str, Tensor]) -> Tensor:
        if self._network_dtype is None:
            return self._call_as_it_is(parts, values)
        device = _arguments(parts[0])[0].device.type
        with torch.autocast(device, self._network_dtype, cache_enabled=False):
            output = self._call_as_it_is(parts, values)
        return output.float() if isinstance(output, Tensor) else output

    def _call_as_it_is(self, parts: Sequence[Inputs], values: Mapping[str, Tensor]) -> Tensor:
        if self._keeps and torch.is_grad_enabled():
            return self._call_on_copy(parts, values)
        with _in_place(self.template, {place: v for name, v in values.items() for place in self._places[name]}):
            if len(parts) == 1:
                return cast(Tensor, self.template(*_arguments(parts[0])))
            return cast(Tensor, _BatchByBatch(self.template)(*parts))

    def _call_on_copy(self, parts: Sequence[Inputs], values: Mapping[str, Tensor]) -> Tensor:
        """Run the network on a copy of its modules that holds these weights for good; its buffers are the network's."""
        template = self.template
        kept: dict[int, Any] = {id(buffer): buffer for buffer in template.buffers()}
        kept |= {id(template.get_parameter(name)): value for name, value in values.items()}
        net = copy.deepcopy(template, kept)
        output = net(*_arguments(parts[0])) if len(parts) == 1 else _BatchByBatch(net)(*parts)
        for own, copied in zip(template.modules(), net.modules(), strict=True):
            own._buffers.update(copied._buffers)
            for name, value in vars(copied).items():
                if isinstance(value, (bool, int, float, str)):
                    setattr(own, name, value)
        return cast(Tensor, output)

    def _output_per_draw(
        self, parts: Sequence[Inputs], flat: Mapping[str, Tensor], fixed: Mapping[str, Tensor]
    ) -> Tensor:
        template = self.template

        def one(weights: Mapping[str, Tensor]) -> Tensor:
            return self._call(parts, {**weights, **fixed})

        keeps = self._keeps and torch.is_grad_enabled()
        if not keeps and not _uses_batch_statistics(template) and self._vmaps.get(template.training, True):
            try:
                return self._mapped(one, flat)
            except (RuntimeError, NotImplementedError, UserWarning):
                self._vmaps[template.training] = False  # a layer without a batching rule; its own errors show up below
        size = next(iter(flat.values())).shape[0]
        return torch.stack([one({name: value[s] for name, value in flat.items()}) for s in range(size)])

    def _mapped(self, one: Callable[[dict[str, Tensor]], Tensor], flat: Mapping[str, Tensor]) -> Tensor:
        mapped = vmap(one, randomness="different")
        if self.template.training in self._vmaps:
            return mapped(dict(flat))
        with warnings.catch_warnings():  # the first time, take torch's warning of a slow fallback for a refusal
            warnings.filterwarnings("error", message="There is a performance drop", category=UserWarning)
            output = mapped(dict(flat))
        self._vmaps[self.template.training] = True
        return output

    def _noise(self) -> dict[str, Tensor]:
        return {name: getattr(self._modules["noise"], name) for name in self.likelihood.parameters()}

    def _deterministic(self, name: str) -> Tensor:
        module: Any = self._modules["deterministic"]
        for part in name.split("."):
            module = getattr(module, part)
        return cast(Tensor, module)

    def _prior_of(self, name: str, module: nn.Module, parameter: Tensor) -> Distribution:
        prior = self.prior(name, module, parameter)
        if prior.batch_shape or prior.event_shape != parameter.shape:
            raise ValueError(
                f"prior of {name!r} has batch shape {tuple(prior.batch_shape)} and event shape "
                f"{tuple(prior.event_shape)}; the rule must return one event of shape {tuple(parameter.shape)}: use "
                f".expand(parameter.shape).to_event(parameter.dim())"
            )
        part: Any = prior
        while part is not None:  # `expand` would fix today's validation flag for the life of the model
            vars(part).pop("_validate_args", None)
            part = getattr(part, "base_dist", None)
        return prior

    def _subsample(self, x: Tensor) -> Tensor:
        key = (len(x), x.device)
        if key not in self._indices:
            self._indices[key] = torch.arange(len(x), device=x.device)
        return self._indices[key]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy a name of its own, so that it shares no parameter with the original."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        name = f"BNN{next(_SERIAL)}"
        for path, module in self.named_modules():
            if isinstance(module, PyroModule):
                module._pyro_name = f"{name}.{path}" if path else name
        self._name_parameters()
        self._forget_values()

    def _name_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                full = f"{self._pyro_name}.{name.removesuffix('_unconstrained')}"
                parameter.pyro_bnn_name = full  # type: ignore[attr-defined]


_WRITTEN = {
    name: vars(BNN)[name] for name in ("forward", "sample_weights", "priors", "_law", "output", "_output", "_subsample")
}
