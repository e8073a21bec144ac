"""
Where a fit stands, what it leaves, and what it calls as it goes.

`FitState.state_dict` is all that a resumption needs, as plain data: parameters, the optimizer, progress, every random
state, the order of the rows, the callbacks' own. Names in it are relative to model and guide, so that another process,
in which Pyro gave them other serial names, reads them.
"""

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from pyro.infer import ELBO
from pyro.nn import PyroModule
from pyro.optim import PyroOptim
from pyro.optim.optim import _get_state_dict, _load_state_dict
from torch import Tensor

from pyro_bnn.common.randomness import RandomState
from pyro_bnn.common.turns import Job
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.inference.checkpoint import parameters_of, restore_parameters
from pyro_bnn.inference.divergence import what_diverged
from pyro_bnn.inference.elbo import TraceScoreFunction_ELBO
from pyro_bnn.inference.fitted import Fitted

__all__ = ["Callback", "Diverged", "FitResult", "FitState", "Scheduled", "optim_state", "owned", "relative"]


class Diverged(RuntimeError):
    """The loss stopped being a number."""


class Callback:
    """What a fit calls as it goes; every method may be left out. Setting `state.stop` to a reason ends the fit."""

    def start(self, state: "FitState") -> None:
        """
        Before the first step, or the first after a resumption.

        :param state: where the fit stands.
        """

    def step(self, state: "FitState") -> None:
        """
        After every step.

        :param state: where the fit stands.
        """

    def epoch(self, state: "FitState") -> None:
        """After every epoch, with its line in `state.history[-1]`."""

    def end(self, state: "FitState") -> None:
        """
        After the last epoch, and also when the fit is interrupted or fails.

        :param state: where the fit stands.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumption needs, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Take up what `state_dict` returned.

        :param state: what `state_dict` returned.
        """


@runtime_checkable
class Scheduled(Protocol):
    """An optimizer that knows groups and schedules, as those of pyro_bnn.optim do."""

    def prepare(self, epochs: int, steps_per_epoch: int) -> None:
        """Hear how long the training will be, before its first step."""
        ...

    def name_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Hear what it will train."""
        ...

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Hear an epoch's numbers."""
        ...

    def learning_rates(self) -> dict[str, float]:
        """Return the rates in force, by group."""
        ...


@final
@dataclass
class FitState:
    """
    Where a fit stands; callbacks read it, and may set `stop`.

    :param model: the Pyro program in training.
    :param guide: the guide in training.
    :param optim: the optimizer.
    :param epochs: how many there will be.
    :param batch_size: rows of a step.
    :param num_data: N, the number of rows.
    :param epoch: how many are done.
    :param step: how many steps are done.
    :param history: a line per epoch that is done.
    :param best: the best epoch so far, and its value.
    :param seconds: of training so far.
    :param batch_loss: the loss of the last step.
    :param batch_nll: its NLL per datum.
    :param parameters: everything that is trained, by name.
    :param store_names: the names of these in Pyro's parameter store.
    :param order: the generator of the rows' order.
    :param callbacks: all callbacks of the fit.
    :param job: the turn that the fit holds; see :mod:`pyro_bnn.common.turns`.
    :param elbo: what estimates the loss.
    :param accumulate: batches of a step.
    :param rank: of this process among those that train together; what writes does so on rank 0.
    :param other_ranks: what the other ranks hold of their own, after the last epoch.
    """

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
    accumulate: int = 1
    rank: int = 0
    other_ranks: Sequence[Mapping[str, Any]] = ()

    def call(self, event: str) -> None:
        """
        Call `start`, `step`, `epoch` or `end` of every callback.

        :param event: "start", "step", "epoch" or "end".
        """
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def diverged(self, what: str) -> Diverged:
        """Return the error that says so, where it shows, and what to do."""
        rates = self.optim.learning_rates() if isinstance(self.optim, Scheduled) else {}
        where = what_diverged(self.guide, relative(self.parameters, self.model, self.guide), rates)
        remedy = "lower the learning rate, start with a smaller sigma, or standardise the inputs"
        return Diverged(f"{what} (epoch {self.epoch + 1}), where {where}: {remedy}")

    def end_epoch(self, line: dict[str, Any], monitor: str, patience: int | None) -> None:
        """
        Take up an epoch's line; remember the best, and stop if there has been none for `patience` epochs.

        :param monitor: the key of the line that is to fall.
        """
        self.epoch += 1
        self.history.append(line)
        if monitor in line:
            if self.best is None or line[monitor] < self.best["value"]:
                self.best = {"epoch": self.epoch, "value": line[monitor]}
            self.stop = self.stop or self.stale(monitor, patience)

    def stale(self, monitor: str, patience: int | None) -> str | None:
        """Say so if `monitor` has been no better than its best for `patience` epochs."""
        if patience is None or self.best is None or self.epoch - self.best["epoch"] < patience:
            return None
        return f"{monitor} has not improved for {patience} epochs"

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumption needs, as plain data."""
        others = {"ranks": list(self.other_ranks)} if self.other_ranks else {}
        return {
            "parameters": parameters_of(self.model, self.guide, self.store_names),
            "optim": relative(optim_state(self.optim, self.parameters), self.model, self.guide),
            "progress": {
                "epoch": self.epoch,
                "step": self.step,
                "history": list(self.history),
                "best": self.best,
                "seconds": self.seconds,
            },
            "order": None if self.order is None else self.order.get_state(),
            "callbacks": {key: kept for key, callback in self._keyed() if (kept := callback.state_dict())},
            **self.of_this_rank(),
            **others,
        }

    def of_this_rank(self) -> dict[str, Any]:
        """Return what each of several processes that train together has of its own: random states, baselines."""
        baselines = self.elbo.state_dict() if isinstance(self.elbo, TraceScoreFunction_ELBO) else {}
        randomness = self.job.run(RandomState.now)
        return {
            "rng": randomness.cpu,
            "cuda_rng": randomness.cuda,
            "host_rng": _host_randomness(),
            "baselines": {site.replace(_serial_name(self.guide), "{guide}"): kept for site, kept in baselines.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Go back to where `state_dict` was taken.

        :param state: what `state_dict` returned.
        """
        restore_parameters(self.model, self.guide, state["parameters"])
        _restore_optim(self.optim, _absolute(state["optim"], self.model, self.guide), self.parameters)
        for name, value in state["progress"].items():
            setattr(self, name, copy.copy(value))
        if self.order is not None and state["order"] is not None:
            self.order.set_state(state["order"])
        for key, callback in self._keyed():
            if key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][key])
        self.load_rank(state)

    def load_rank(self, state: Mapping[str, Any]) -> None:
        """
        Take up what `of_this_rank` returned.

        :param state: what it returned.
        """
        self.job.run(RandomState(state["rng"], state.get("cuda_rng", [])).restore)
        _restore_host_randomness(state.get("host_rng"))
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
    What a fit leaves: a line per epoch, the best epoch on validation, why it ended, and what it fitted with.

    `standardiser` and `y_standardiser` are what inputs and targets are on their scale by.

    :param history: a line per epoch: nll, kl, kl_weight, loss, elbo, val_nll, the rates, the seconds.
    :param best_epoch: the epoch with the lowest monitored value; None without validation.
    :param reason: "all epochs done", "interrupted", or why it was stopped.
    :param seconds: of the training, by the clock.
    :param fitted: what the guide was fitted with; `guide.fitted` holds it too.
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


def _host_randomness() -> dict[str, Any]:
    """Return the global random states of Python and NumPy, which augmentations and loaders of a user may draw from."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    inner = numpy_state["state"]
    plain = {**numpy_state, "state": {**inner, "key": torch.from_numpy(inner["key"].astype(np.int64))}}
    return {"python": random.getstate(), "numpy": plain}


def _restore_host_randomness(state: Mapping[str, Any] | None) -> None:
    if state is None:
        return
    random.setstate(state["python"])
    inner = state["numpy"]["state"]
    key = inner["key"].numpy().astype(np.uint32)
    np.random.set_state({**state["numpy"], "state": {**inner, "key": key}})  # noqa: NPY002


def _serial_name(guide: Any) -> str:
    """Return the name that this process gave a guide, which its auxiliary sites carry."""
    return (guide._pyro_name if isinstance(guide, PyroModule) else "") or "{guide}"


def _prefixes(model: Any, guide: Any) -> dict[str, str]:
    named = {"model": model, "guide": guide}
    return {key: program._pyro_name for key, program in named.items() if isinstance(program, PyroModule)}


def relative(state: Mapping[str, Any], model: Any, guide: Any) -> dict[str, Any]:
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


def optim_state(optim: Any, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return an optimizer's state by parameter name; Pyro's own knows no names under `module_local_params`."""
    if isinstance(optim, Scheduled):
        return dict(optim.get_state())  # type: ignore[attr-defined]
    names = {id(parameter): name for name, parameter in parameters.items()}
    known = {names[id(p)]: per_tensor for p, per_tensor in optim.optim_objs.items() if id(p) in names}
    return {name: copy.deepcopy(_get_state_dict(per_tensor)) for name, per_tensor in known.items()}


def _restore_optim(optim: Any, state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Undo `optim_state`."""
    if isinstance(optim, Scheduled):
        optim.set_state(state)  # type: ignore[attr-defined]
        return
    for name, saved in state.items():
        parameter = parameters[name]
        optim.optim_objs[parameter] = optim._get_optim(parameter)
        optim.grad_clip[parameter] = optim._get_grad_clip(parameter)
        _load_state_dict(optim.optim_objs[parameter], copy.deepcopy(saved))


def owned(name: str, model: Any, guide: Any) -> bool:
    """Return whether a parameter of Pyro's store is the model's or the guide's by its name."""
    return any(name.startswith(f"{full}.") for full in _prefixes(model, guide).values() if full)
