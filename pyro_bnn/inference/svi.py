"""
Stochastic variational inference: the training loop.

For every batch b the step minimises, per datum,

    loss_b = mean over the batch of -log p(y | x, w)  +  c_b KL(q || p)

by running any Pyro ELBO under `per_datum(N)` and `scale_kl(N c_b)`; see :mod:`pyro_bnn.inference.kl` for the weights.
The rows live on the device as tensors and an epoch is a walk through index tensors. Logged once per epoch are `nll`
(the expected training NLL of the epoch's steps), `kl` = KL / N without any weight, at the end of the epoch,
`kl_weight` = the mean of N c_b, `loss` (what was optimised), `elbo` = -(nll + kl), the learning rates and the seconds.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final, runtime_checkable

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer import ELBO
from pyro.nn import PyroModule
from pyro.optim import PyroOptim
from pyro.optim.optim import _get_state_dict, _load_state_dict
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_bnn.common.randomness import RandomState
from pyro_bnn.common.renamed import renamed
from pyro_bnn.common.sites import leaf_of
from pyro_bnn.common.turns import Job, alone
from pyro_bnn.data.split import Split
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.data.streams import Rows, Stream
from pyro_bnn.inference.checkpoint import loose_tensors, parameters_of, restore_parameters
from pyro_bnn.inference.door import Standardise, admit
from pyro_bnn.inference.elbo import TraceColdPosterior_ELBO, TraceScoreFunction_ELBO
from pyro_bnn.inference.fitted import Fitted, leave_fitted
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.graph.origin import is_library
from pyro_bnn.inference.kl import KLWeight, kl_divergence, per_datum, scale_kl, uniform
from pyro_bnn.inference.missing import MaskMissing, any_missing
from pyro_bnn.inference.predictive import ClassDraw, observation_log_prob, predictive_draws

__all__ = ["Callback", "Diverged", "FitResult", "FitState", "MinibatchStep", "fit", "validate"]

Augment = Callable[[Tensor], Tensor]

_WORTH_RECORDING = 32
"""Steps of an epoch from which it pays to record anew at each, where a callback of the user's runs in between."""


class Diverged(RuntimeError):
    """The loss stopped being a number."""


class Callback:
    """What a fit calls as it goes; every method may be left out. Setting `state.stop` to a reason ends the fit."""

    def start(self, state: "FitState") -> None:
        """Before the first step, or the first after a resumption."""

    def step(self, state: "FitState") -> None:
        """After every step."""

    def epoch(self, state: "FitState") -> None:
        """After every epoch, with its line in `state.history[-1]`."""

    def end(self, state: "FitState") -> None:
        """After the last epoch, and also when the fit is interrupted or fails."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumption needs, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""


@runtime_checkable
class _Scheduled(Protocol):
    """An optimizer that knows groups and schedules, as those of pyro_bnn.optim do."""

    def prepare(self, epochs: int, steps_per_epoch: int) -> None: ...
    def name_parameters(self, parameters: Mapping[str, Tensor]) -> None: ...
    def end_epoch(self, metrics: Mapping[str, float]) -> None: ...
    def learning_rates(self) -> dict[str, float]: ...


@final
@dataclass
class FitState:
    """Where a fit stands; callbacks read it, and may set `stop`."""

    model: Callable[..., Any]
    guide: Callable[..., Any]
    optim: PyroOptim
    epochs: int
    batch_size: int
    num_data: int
    epoch: int = 0
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    stop: str | None = None
    seconds: float = 0.0
    batch_loss: Tensor | None = None
    batch_nll: Tensor | None = None
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    store_names: tuple[str, ...] = ()
    order: torch.Generator | None = None
    callbacks: tuple[Callback, ...] = ()
    job: Job = field(default_factory=Job)
    elbo: ELBO | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumption needs, as plain data."""
        baselines = self.elbo.state_dict() if isinstance(self.elbo, TraceScoreFunction_ELBO) else {}
        randomness = self.job.run(RandomState.now)
        return {
            "parameters": parameters_of(self.model, self.guide, self.store_names),
            "optim": _relative(_optim_state(self.optim, self.parameters), self.model, self.guide),
            "progress": {
                "epoch": self.epoch,
                "step": self.step,
                "history": list(self.history),
                "best": self.best,
                "seconds": self.seconds,
            },
            "rng": randomness.cpu,
            "cuda_rng": randomness.cuda,
            "order": None if self.order is None else self.order.get_state(),
            "callbacks": {key: kept for key, callback in self._keyed() if (kept := callback.state_dict())},
            "baselines": {site.replace(_serial_name(self.guide), "{guide}"): kept for site, kept in baselines.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        restore_parameters(self.model, self.guide, state["parameters"])
        _restore_optim(self.optim, _absolute(state["optim"], self.model, self.guide), self.parameters)
        for name, value in state["progress"].items():
            setattr(self, name, copy.copy(value))
        self.job.run(RandomState(state["rng"], state.get("cuda_rng", [])).restore)
        if self.order is not None and state["order"] is not None:
            self.order.set_state(state["order"])
        for key, callback in self._keyed():
            if key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][key])
        if isinstance(self.elbo, TraceScoreFunction_ELBO):
            name, kept = _serial_name(self.guide), state.get("baselines", {})
            self.elbo.load_state_dict({site.replace("{guide}", name): value for site, value in kept.items()})

    def _keyed(self) -> list[tuple[str, Callback]]:
        """Return the callbacks by class and place among those of their class, so that others may come and go."""
        names = [type(callback).__name__ for callback in self.callbacks]
        return [(f"{name}-{names[:i].count(name)}", self.callbacks[i]) for i, name in enumerate(names)]


@final
@dataclass(frozen=True)
class FitResult:
    """
    What a fit leaves: a line per epoch, the best one on validation, why it ended, and what it fitted with.

    `standardiser` and `y_standardiser` are what inputs and targets are on their scale by.
    """

    history: list[dict[str, Any]]
    best_epoch: int | None
    reason: str
    seconds: float
    fitted: Fitted | None = None

    @property
    def standardiser(self) -> Standardiser | None:
        """What inputs are on their scale by, if anything."""
        return None if self.fitted is None else self.fitted.standardiser

    @property
    def y_standardiser(self) -> Standardiser | None:
        """What targets are on their scale by, if anything."""
        return None if self.fitted is None else self.fitted.y_standardiser


def _serial_name(guide: Any) -> str:
    """Return the name that this process gave a guide, which its auxiliary sites carry."""
    return (guide._pyro_name if isinstance(guide, PyroModule) else "") or "{guide}"


def _prefixes(model: Any, guide: Any) -> dict[str, str]:
    named = {"model": model, "guide": guide}
    return {key: program._pyro_name for key, program in named.items() if isinstance(program, PyroModule)}


def _relative(state: Mapping[str, Any], model: Any, guide: Any) -> dict[str, Any]:
    """Replace the serial names of model and guide at the start of keys by 'model' and 'guide'."""
    renamed = {}
    for name, value in state.items():
        for short, full in _prefixes(model, guide).items():
            if full and name.startswith(f"{full}."):
                name = f"{short}.{name.removeprefix(full + '.')}"
        renamed[name] = value
    return renamed


def _absolute(state: Mapping[str, Any], model: Any, guide: Any) -> dict[str, Any]:
    """Undo `_relative`, with the names that this process gave."""
    prefixes = _prefixes(model, guide)
    renamed = {}
    for name, value in state.items():
        short, _, rest = name.partition(".")
        renamed[f"{prefixes[short]}.{rest}" if prefixes.get(short) and rest else name] = value
    return renamed


def _optim_state(optim: Any, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return an optimizer's state by parameter name; Pyro's own knows no names under `module_local_params`."""
    if isinstance(optim, _Scheduled):
        return dict(optim.get_state())  # type: ignore[attr-defined]
    names = {id(parameter): name for name, parameter in parameters.items()}
    known = {names[id(p)]: per_tensor for p, per_tensor in optim.optim_objs.items() if id(p) in names}
    return {name: copy.deepcopy(_get_state_dict(per_tensor)) for name, per_tensor in known.items()}


def _restore_optim(optim: Any, state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Undo `_optim_state`."""
    if isinstance(optim, _Scheduled):
        optim.set_state(state)  # type: ignore[attr-defined]
        return
    for name, saved in state.items():
        parameter = parameters[name]
        optim.optim_objs[parameter] = optim._get_optim(parameter)
        optim.grad_clip[parameter] = optim._get_grad_clip(parameter)
        _load_state_dict(optim.optim_objs[parameter], copy.deepcopy(saved))


@final
class _NllRecorder(Messenger):
    """Add up minus the scaled log-probability of the observed sites: the batch's expected NLL under `per_datum`."""

    def __init__(self) -> None:
        super().__init__()
        self.nll: Tensor | None = None

    @torch.no_grad()
    def _pyro_post_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            return
        log_prob = msg["fn"].log_prob(msg["value"])
        if msg["mask"] is not None:
            log_prob = torch.where(torch.as_tensor(msg["mask"]), log_prob, torch.zeros_like(log_prob))
        nll = -(log_prob * msg["scale"]).sum()
        self.nll = nll if self.nll is None else self.nll + nll


@final
class MinibatchStep:
    """One optimization step with any ELBO, without a read-back from the device when the ELBO returns tensors."""

    def __init__(
        self, model: Any, guide: Any, optim: PyroOptim, elbo: ELBO, num_data: int, *, undisturbed: bool = False
    ) -> None:
        self.model, self.guide, self.optim = model, guide, optim
        self.elbo: Any = elbo
        self.per_datum = per_datum(num_data)
        self.flat = isinstance(elbo, FlatMeanField_ELBO)
        self.undisturbed = undisturbed
        """Whether nobody's Python but libraries' runs between two steps, so that the ELBO may record them."""
        self.first = True

    def __call__(self, kl_weight: float, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Take one step; return the batch's loss and NLL, per datum."""
        with self.per_datum, scale_kl(kl_weight):
            loss, nll, params = self._tensors(batch) if self.flat else self._traced(batch)
        self.optim(params)
        for parameter in params:
            parameter.grad = None
        return loss, nll

    def _tensors(self, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        self.elbo.undisturbed = self.undisturbed and not self.first  # the optimizer asks its arguments after the first
        try:
            result = self.elbo.step_tensors(self.model, self.guide, *batch)
        finally:
            self.elbo.undisturbed, self.first = False, False
        return result["loss"], result["nll"], result["params"]

    def _traced(self, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        recorder = _NllRecorder()
        with recorder, poutine.trace(param_only=True) as capture:
            loss = self.elbo.loss_and_grads(self.model, self.guide, *batch)
        sites: list[tuple[str, Any]] = sorted(capture.trace.nodes.items())
        params = list({id(p): p for p in (leaf_of(site["value"]) for _, site in sites)}.values())
        nll = torch.zeros(()) if recorder.nll is None else recorder.nll / self.elbo.num_particles
        return torch.as_tensor(loss, dtype=torch.float64), nll, params


def _optim_is_library(optim: PyroOptim) -> bool:
    """Return whether a step of an optimizer runs libraries' code only; it asks for arguments at its first step."""
    held = [value for name, value in vars(optim).items() if name != "pt_optim_args"]
    parts = [part for value in held for part in (value.values() if isinstance(value, dict) else [value])]
    return is_library(type(optim)) and all(
        _optim_is_library(part) if isinstance(part, PyroOptim) else is_library(part, deep=True) for part in parts
    )


def _between_steps_is_library(
    callbacks: Sequence[Callback], optim: PyroOptim, kl: KLWeight, augment: Augment | None
) -> bool:
    """Return whether what `fit` calls between two steps is libraries' code."""
    return (
        _optim_is_library(optim)
        and is_library(kl, deep=True)
        and (augment is None or is_library(augment, deep=True))
        and all(is_library(getattr(callback.step, "__func__", callback.step)) for callback in callbacks)
    )


def _check(epochs: int, optim: Any, elbo: Any) -> None:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"epochs={epochs!r} is not a number of epochs: pass an integer of at least 1")
    if not isinstance(optim, PyroOptim):
        raise TypeError(
            f"optim is a {type(optim).__name__}; pass one of pyro_bnn.optim or pyro.optim, e.g. Adam({{'lr': 1e-3}})"
        )
    if isinstance(elbo, type) or not isinstance(elbo, ELBO):
        raise TypeError(f"elbo={elbo!r} is not an ELBO object; pass e.g. TraceMeanField_ELBO()")


@final
class _Checks:
    """Pyro's and torch's argument checks, and how many fits are under way: they are put back by the last of them."""

    fits = 0
    torch_on = True
    pyro_on = True


@contextmanager
def _validate_first_only() -> Iterator[Callable[[], None]]:
    """Leave Pyro's and torch's argument checks on until the callable is called; restore them at the end."""
    with alone():
        if _Checks.fits == 0:
            _Checks.torch_on = torch.distributions.Distribution._validate_args
            _Checks.pyro_on = pyro.infer.util.is_validation_enabled()
        _Checks.fits += 1

    def off() -> None:
        pyro.enable_validation(False)

    try:
        yield off
    finally:
        with alone():
            _Checks.fits -= 1
            if _Checks.fits == 0:
                pyro.enable_validation(_Checks.pyro_on)
                torch.distributions.Distribution.set_default_validate_args(_Checks.torch_on)


@torch.no_grad()
def validate(
    model: Callable[..., Any], guide: Callable[..., Any], split: Split, *, num_samples: int = 1, seed: int = 0
) -> dict[str, float]:
    """Return `val_nll`, -mean_i log mean_s p(y_i | x_i, w_s), and for classes `val_accuracy`, with S fixed draws."""
    total: Tensor | None = None
    probs: Tensor | None = None
    for draw in predictive_draws(model, guide, split.x, num_samples, seed=seed):
        log_prob = observation_log_prob(draw, split.y, missing=True)  # (N,)
        total = log_prob if total is None else torch.logaddexp(total, log_prob)
        if isinstance(draw, ClassDraw):
            probs = draw.log_probs.exp() if probs is None else probs + draw.log_probs.exp()

    assert total is not None
    nll = torch.log(torch.tensor(float(num_samples))) - total  # (N,)
    result = {"val_nll": float(nll.mean())}
    if probs is not None:
        result["val_accuracy"] = float((probs.argmax(-1) == split.y).float().mean())
    return result


def fit(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    optim: PyroOptim,
    data: Any,
    *,
    epochs: int,
    batch_size: int | None = None,
    val: Any = None,
    weights: Any = None,
    standardise: Standardise = False,
    num_data: int | None = None,
    kl: KLWeight | None = None,
    elbo: ELBO | None = None,
    callbacks: Sequence[Callback] = (),
    seed: int | None = None,
    augment: Augment | None = None,
    patience: int | None = None,
    monitor: str = "val_nll",
    val_samples: int = 1,
    device: torch.device | str | None = None,
    resume: Mapping[str, Any] | None = None,
) -> FitResult:
    """
    Train a guide (and the model's own parameters) by stochastic variational inference.

    :param model: any Pyro program `model(x, y)` with its observed site in `pyro.plate("data", N, subsample=...)`.
    :param guide: any guide for it.
    :param optim: one of :mod:`pyro_bnn.optim` or of `pyro.optim`; rates are for the loss per datum.
    :param data: the training rows: (x, y), a Split, a Dataset or a DataLoader. x and y are tensors, NumPy arrays, or
        frames and series of pandas or polars; several inputs are a tuple, ((x1, x2), y). Rows that come as a Dataset or
        DataLoader are read anew in every epoch, in the loader's own batches; see :mod:`pyro_bnn.data.streams`. NaN in y
        marks targets that are not known; see :mod:`pyro_bnn.inference.missing`.
    :param batch_size: rows per step; default 100, or all if there are fewer. A DataLoader has its own.
    :param val: validation rows in the same forms, read once; scored after each epoch, with the draws of one seed.
    :param weights: how often each row counts, (N,); default once. A loader's batches (x, y, weights) bring their own.
    :param standardise: put x and numbers in y on the scale of mean 0 and sd 1 of the training rows, "x" and "y" one of
        them; the result keeps both standardisers.
    :param num_data: N, for a DataLoader that does not say how many rows it has.
    :param kl: the weight on the KL, e.g. `kl.tempered(0.1)`; default `kl.uniform()`.
    :param elbo: any Pyro ELBO; default `FlatMeanField_ELBO()`, the analytic one.
    :param callbacks: see :class:`Callback`.
    :param seed: seeds Pyro and the order of the rows; without it both go on from the global random state.
    :param augment: changes a batch of inputs (B, ...) before a step.
    :param patience: end when `monitor` has not improved for so many epochs; needs `val`, unless another is monitored.
    :param monitor: the lower-is-better number of an epoch's line that decides what is best.
    :param val_samples: draws per row when scoring validation.
    :param device: where to put rows and programs; default where they are.
    :param resume: the `state_dict` of an earlier fit's FitState, to go on from.

    >>> import torch
    >>> from pyro_bnn.guides import AutoMeanFieldNormal
    >>> from pyro_bnn.inference import fit, kl
    >>> from pyro_bnn.models import BNN, MLP, likelihoods, priors
    >>> from pyro_bnn.optim import Adam, PerSite
    >>> x = torch.linspace(-1, 1, 50).unsqueeze(-1)
    >>> model = BNN(MLP(1, 1, [8]), priors.FanIn(), likelihoods.Gaussian(0.1), num_data=50)
    >>> guide = AutoMeanFieldNormal(model)
    >>> optim = PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 1e-2}))
    >>> result = fit(model, guide, optim, (x, x.square()), epochs=20, kl=kl.tempered(0.5), seed=0)
    >>> len(result.history), result.history[-1]["loss"] < result.history[0]["loss"]
    (20, True)
    >>> guide.fitted.eta
    0.5
    """
    elbo = FlatMeanField_ELBO() if elbo is None else elbo
    kl = uniform() if kl is None else kl
    _check(epochs, optim, elbo)
    if patience is not None and (patience < 1 or (val is None and monitor.startswith("val"))):
        raise ValueError(
            f"patience={patience} with monitor={monitor!r} cannot stop this fit: pass val=(x, y) and a patience >= 1"
        )
    if device is not None:
        for program in (model, guide):
            if isinstance(program, nn.Module):
                program.to(device)
    job = Job()
    if seed is not None:
        job.run(pyro.set_rng_seed, seed)
    for program in (model, guide):
        if isinstance(program, nn.Module):
            program.train()
    admitted = job.run(
        admit,
        model,
        guide,
        data,
        val,
        batch_size=batch_size,
        weights=weights,
        standardise=standardise,
        num_data=num_data,
        device=device,
    )
    stream, first, validation, n = admitted.stream, admitted.first, admitted.validation, admitted.num_data
    parameters = admitted.parameters
    if isinstance(optim, _Scheduled):
        optim.name_parameters(_relative(parameters, model, guide))
        optim.prepare(epochs, stream.num_batches)
    order = stream.generator
    if order is None:
        order = torch.Generator()
        order.manual_seed(int(job.run(torch.randint, 2**62, ())) if seed is None else seed)
    state = FitState(
        model, guide, optim, epochs, stream.batch_size, n, order=order, callbacks=tuple(callbacks), job=job, elbo=elbo
    )
    state.parameters = parameters
    state.store_names = tuple(name for name in parameters if not _owned(name, model, guide))
    if resume is not None:
        state.load_state_dict(resume)
        state.stop = _stale(state, patience, monitor)
    fitted = Fitted(
        n,
        tuple(first[0].shape[1:]) if isinstance(first[0], Tensor) else None,
        temperature=elbo.temperature if isinstance(elbo, TraceColdPosterior_ELBO) else 1.0,
        standardiser=admitted.standardiser,
        y_standardiser=admitted.y_standardiser,
        class_names=_class_names(data),
        tensors=loose_tensors(parameters),
    )
    undisturbed = type(stream) is Rows and _between_steps_is_library(state.callbacks, optim, kl, augment)
    disturbed_after_epochs = not all(is_library(getattr(c.epoch, "__func__", c.epoch)) for c in state.callbacks)
    if disturbed_after_epochs and stream.num_batches < _WORTH_RECORDING:
        undisturbed = False
    step = MinibatchStep(model, guide, optim, elbo, n, undisturbed=undisturbed)

    def take_step(kl_weight: float, batch: Sequence[Any], masked: AbstractContextManager[Any]) -> tuple[Tensor, Tensor]:
        with job.turn(), masked:
            return step(kl_weight, batch)

    try:
        with _validate_first_only() as stop_validating:
            for callback in state.callbacks:
                callback.start(state)
            while state.epoch < epochs and state.stop is None:
                started = time.perf_counter()
                line = _epoch(state, take_step, kl, stream, _in_turns(augment, job), stop_validating)
                line["kl"] = float(job.run(kl_divergence, model, guide, *first)) / n
                if not math.isfinite(line["kl"]):
                    raise _diverged(f"KL(q || p) / N is {line['kl']} after step {state.step}", state)
                line["elbo"] = -(line["nll"] + line["kl"])
                if validation is not None:
                    line |= validate(model, guide, validation, num_samples=val_samples)
                if isinstance(optim, _Scheduled):
                    line["learning_rates"] = optim.learning_rates()
                    optim.end_epoch({k: v for k, v in line.items() if isinstance(v, float)})
                state.seconds += time.perf_counter() - started
                line["seconds"] = state.seconds
                state.epoch += 1
                state.history.append(line)
                if monitor in line:
                    if state.best is None or line[monitor] < state.best["value"]:
                        state.best = {"epoch": state.epoch, "value": line[monitor]}
                    state.stop = state.stop or _stale(state, patience, monitor)
                for callback in state.callbacks:
                    callback.epoch(state)
                if disturbed_after_epochs and isinstance(elbo, FlatMeanField_ELBO):
                    elbo.forget_recordings()
    except KeyboardInterrupt:
        state.stop = "interrupted"
    finally:
        fitted = replace(fitted, eta=kl.eta(epoch=max(state.epoch - 1, 0), num_data=n))
        leave_fitted(guide, fitted)
        job.done()
        for callback in state.callbacks:
            callback.end(state)
    best = None if state.best is None else int(state.best["epoch"])
    return FitResult(state.history, best, state.stop or "all epochs done", state.seconds, fitted)


def _class_names(data: Any) -> tuple[str, ...] | None:
    """Return the names that data say their classes have, as data sets of torchvision do."""
    names = data.class_names if isinstance(data, Split) else getattr(data, "classes", None)
    return None if names is None else tuple(str(name) for name in names)


def _in_turns(augment: Augment | None, job: Job) -> Augment | None:
    if augment is None:
        return None
    change = augment
    return lambda x: job.run(change, x)


def _stale(state: FitState, patience: int | None, monitor: str) -> str | None:
    """Say so if `monitor` has been no better than its best for `patience` epochs."""
    if patience is None or state.best is None or state.epoch - state.best["epoch"] < patience:
        return None
    return f"{monitor} has not improved for {patience} epochs"


def _diverged(what: str, state: FitState) -> Diverged:
    remedy = "lower the learning rate, start with a smaller sigma, or standardise the inputs"
    return Diverged(f"{what} (epoch {state.epoch + 1}): {remedy}")


def _owned(name: str, model: Any, guide: Any) -> bool:
    return any(name.startswith(f"{full}.") for full in _prefixes(model, guide).values() if full)


def _masked(stream: Stream, y: Tensor) -> AbstractContextManager[Any]:
    """Return what masks targets that are not known: for all batches of rows at hand, or for those of a loader."""
    return MaskMissing() if stream.some_missing or (stream.may_miss and any_missing(y)) else nullcontext()


def _epoch(
    state: FitState,
    step: Callable[[float, Sequence[Any], AbstractContextManager[Any]], tuple[Tensor, Tensor]],
    kl: KLWeight,
    stream: Stream,
    augment: Augment | None,
    stop_validating: Callable[[], None],
) -> dict[str, Any]:
    """Walk through the rows once; return the epoch's line."""
    n = state.num_data
    losses, nlls, weights, lengths = [], [], [], []
    for b, batch in enumerate(stream.epoch(state.order)):
        size = len(batch[1])
        w = kl.weight(batch=b, batch_size=size, epoch=state.epoch, num_batches=stream.num_batches, num_data=n)
        if augment is not None:
            batch = (augment(batch[0]), *batch[1:])
        loss, nll = step(w, batch, _masked(stream, batch[1]))
        if b == 0:
            stop_validating()
        losses.append(loss)
        nlls.append(nll)
        weights.append(w)
        lengths.append(size)
        state.step += 1
        state.batch_loss, state.batch_nll = loss, nll
        for callback in state.callbacks:
            callback.step(state)
    sizes = torch.tensor(lengths, dtype=torch.float64)
    share = sizes / sizes.sum()  # (M,)
    loss_b, nll_b = torch.stack(losses).double().cpu(), torch.stack(nlls).double().cpu()  # (M,)
    if not bool(torch.isfinite(loss_b).all()):
        at = int((~torch.isfinite(loss_b)).nonzero()[0])
        raise _diverged(f"the loss is {float(loss_b[at])} at step {state.step - len(losses) + at + 1}", state)
    return {
        "epoch": state.epoch + 1,
        "step": state.step,
        "nll": float((share * nll_b).sum()),
        "loss": float((share * loss_b).sum()),
        "kl_weight": float((share * torch.tensor(weights, dtype=torch.float64)).sum()),
    }


__getattr__ = renamed(__name__, {"Step": "MinibatchStep"})
