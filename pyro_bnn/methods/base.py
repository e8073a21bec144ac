"""
What every method is given and leaves: the work, its run folder, and the base of the methods.

A method is a frozen dataclass of its numbers, and a function of the work to be done that returns what it leaves. What
follows from the recipe (half of the epochs, the steps of a cycle) is spelled out by `resolved`. Each unit of work (a
fit, a member, a chain) keeps its own checkpoint, and a unit that is finished is not done again on resumption.
"""

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import torch
from pyro.optim import PyroOptim

from pyro_bnn.common.calls import misfit
from pyro_bnn.common.files import sync_folder, write_text
from pyro_bnn.data.on_disk import MappedRows
from pyro_bnn.data.split import Split
from pyro_bnn.data.standardise import plain
from pyro_bnn.guides import AutoPoint
from pyro_bnn.inference.checkpoint import (
    hold_interrupts,
    newest_state,
    parameters_of,
    restore_parameters,
    save_state_of_epoch,
)
from pyro_bnn.inference.distributed import DataParallel, Ranks, together
from pyro_bnn.inference.kl import KLWeight
from pyro_bnn.inference.svi import Callback, FitResult, FitState, fit
from pyro_bnn.optim import PerSite
from pyro_bnn.recipe import Recipe
from pyro_bnn.registry import look_up
from pyro_bnn.tracking.base import Tracker

if TYPE_CHECKING:
    from pyro_bnn.assemble import Assembly

__all__ = [
    "HISTORY",
    "INTERRUPTED",
    "Outcome",
    "RunFolder",
    "Method",
    "Work",
    "check_count",
    "check_epochs",
    "check_number",
    "checkpoints",
    "history_text",
    "labelled",
    "make_folder_below",
    "refuse_patience",
    "steps_per_epoch",
    "write_history",
]


INTERRUPTED = "interrupted"
HISTORY = "metrics.jsonl"

CHECKPOINTS = "PYRO_BNN_CHECKPOINTS"
"""When states are written, in the environment: "time", or after every "epoch"."""

SHARE = 0.01
"""The share of the time of a training that may go into writing states and lines."""

FIRST_COST = 0.05
"""Seconds that the first writing is taken to cost: five seconds of training go before it."""


# -- the run folder ------------------------------------------------------------------------------------------------


def write_history(folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the lines so far."""
    write_text(folder / HISTORY, history_text(lines), sync=False, make=False)


def history_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines as they are written, one JSON object each."""
    return "".join(json.dumps(line) + "\n" for line in lines)


@final
class RunFolder(Callback):
    """
    Keep a run folder up to date: the state of the fit, and a line for every epoch so far.

    They are written after the last epoch, and after one before it where all writing so far, and once more what it
    took on average, is no more than `SHARE` of the time of the fit: after every epoch where epochs are long, and
    after some of them where they are short. PYRO_BNN_CHECKPOINTS=epoch in the environment writes after every epoch
    whatever it costs.

    :param path: the folder.
    :param run: the hash of the run's recipe, which the states carry.
    :param part: the name of the unit of work, whose states are in a folder of their own; "" if there is a single unit.
    :param before: the lines of the units before it.
    :param lines: whether to write the lines, too: not where several processes work in the folder.
    :param every: whether to write after every epoch, so that what a state is of does not depend on the clock.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        part: str = "",
        before: Sequence[Mapping[str, Any]] = (),
        *,
        lines: bool = True,
        every: bool = False,
    ) -> None:
        self.path = path
        self.run = run
        self.before = list(before)
        self.part = part
        self.lines = lines
        self.every = every or _asked_for_every_epoch()
        self._began, self._spent, self._times, self._epoch = 0.0, 0.0, 0, -1

    @property
    def checkpoint(self) -> Path:
        """The folder of the states."""
        return checkpoints(self.path, self.part)

    def start(self, state: FitState) -> None:
        """Begin to count the time."""
        self._began, self._epoch = time.perf_counter(), state.epoch

    def epoch(self, state: FitState) -> None:
        """Write where the fit stands, if it is time."""
        cost = self._spent / self._times if self._times else FIRST_COST
        due = SHARE * (time.perf_counter() - self._began) >= self._spent + cost
        if due or self.every or state.stop is not None or state.epoch == state.epochs:
            self._write(state)

    def end(self, state: FitState) -> None:
        """Write the last epoch, if a callback made it the last after `epoch` here; not the middle of one."""
        if state.stop not in (None, INTERRUPTED) and state.epoch != self._epoch:
            self._write(state)

    def _write(self, state: FitState) -> None:
        started = time.perf_counter()
        with hold_interrupts():
            make_folder_below(self.path, self.checkpoint)
            save_state_of_epoch(self.checkpoint, state.epoch, state.state_dict(), run=self.run, part=self.part)
            if self.lines:
                write_history(self.path, [*self.before, *labelled(state.history, self.part)])
        self._epoch, self._times = state.epoch, self._times + 1
        self._spent += time.perf_counter() - started


def _asked_for_every_epoch() -> bool:
    asked = os.environ.get(CHECKPOINTS, "time")
    if asked not in ("time", "epoch"):
        raise ValueError(f"{CHECKPOINTS}={asked!r} in the environment: it is 'time' (the default) or 'epoch'")
    return asked == "epoch"


def checkpoints(run: Path, part: str = "") -> Path:
    """Return the folder of the states of a run, or of a unit of its work."""
    return run / "checkpoint" / part if part else run / "checkpoint"


def make_folder_below(run: Path, folder: Path) -> None:
    """Make a folder inside a run folder; one that has gone meanwhile is not made again, and a link is not followed."""
    for name in reversed([folder, *folder.parents]):
        if name.is_relative_to(run) and name != run and not name.is_dir():
            os.mkdir(name)
            sync_folder(name.parent)
    if folder.resolve() != run.resolve() / folder.relative_to(run):
        raise ValueError(f"{folder} leads out of the run folder, by a link: remove it")


@final
class _NewRates(Callback):
    """Put other learning rates in force when a fit goes on, by group."""

    def __init__(self, optim: PyroOptim) -> None:
        groups = optim.groups if isinstance(optim, PerSite) else {}
        self.rates = {name: group.base_learning_rate() for name, group in groups.items()}

    def start(self, state: FitState) -> None:
        """Set the rates, after the state of the fit has brought its own."""
        for name, rate in self.rates.items():
            cast(PerSite, state.optim).set_learning_rate(rate, name)


def labelled(lines: Sequence[Mapping[str, Any]], part: str) -> list[dict[str, Any]]:
    """Return the lines with the unit of work they belong to, if there are several."""
    return [{"part": part, **line} if part else dict(line) for line in lines]


@final
class _Best(Callback):
    """Hold the parameters of the best epoch on validation; the last epoch's where there is no validation."""

    def __init__(self) -> None:
        self.parameters: dict[str, dict[str, torch.Tensor]] | None = None

    def epoch(self, state: FitState) -> None:
        if state.best is None or state.best["epoch"] == state.epoch:
            self.parameters = parameters_of(state.model, state.guide, state.store_names)

    def state_dict(self) -> dict[str, Any]:
        return {"parameters": self.parameters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.parameters = state["parameters"]


# -- the work --------------------------------------------------------------------------------------------------------


@final
@dataclass
class Outcome:
    """
    What a training leaves: the guide (None after an interruption before there was a guide) and how it went.

    :param guide: the guide that was made.
    :param history: a line per epoch or chain.
    :param best_epoch: the epoch that was kept, if one was chosen.
    :param reason: why it ended.
    :param seconds: of training.
    :param facts: what else is worth writing into the results.
    """

    guide: Any
    history: list[dict[str, Any]]
    best_epoch: int | None
    reason: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        """Whether the training did not come to its end."""
        return self.reason == INTERRUPTED


@final
@dataclass
class Work:
    """
    A recipe put together, and where and how to do it.

    :param parts: what the recipe names.
    :param run: the recipe of the whole run, of which this may be a part.
    :param folder: the run folder, if anything is kept.
    :param callbacks: what every fit calls.
    :param part: the unit of work this is.
    :param history: lines of earlier parts of the training.
    :param runs: the hash of the run's recipe, and of those it had before its rates were changed.
    :param side_by_side: whether other processes do other parts of the run in the same folder.
    """

    parts: "Assembly"
    run: Recipe
    folder: Path | None = None
    callbacks: Sequence[Callback] = ()
    part: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    runs: tuple[str, ...] = ("",)
    side_by_side: bool = False

    @property
    def recipe(self) -> Recipe:
        """The recipe, resolved."""
        return self.parts.recipe

    @property
    def rows(self) -> Split | MappedRows:
        """The training rows, on the recipe's device if they are at hand."""
        rows = self.parts.data.train
        if isinstance(rows, MappedRows):
            return rows
        rows = rows.to(self.recipe.device)
        return replace(rows, x=plain(rows.x), y=plain(rows.y))

    @property
    def rows_at_hand(self) -> Split:
        """The training rows of a method that `fit` does not train, which takes none on disk."""
        return cast(Split, self.rows)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a walk through the training rows."""
        return steps_per_epoch(self.parts)

    def fit(
        self,
        guide: Any,
        *,
        optim: PyroOptim | None = None,
        kl: KLWeight | None = None,
        callbacks: Sequence[Callback] = (),
        keep_best: bool = False,
        batch_size: int | None = None,
    ) -> FitResult:
        """
        Train `guide` as the recipe says, going on from its checkpoint, if it exists.

        :param optim: default the recipe's.
        :param kl: default the recipe's.
        :param callbacks: beside those of the work.
        :param keep_best: go back to the epoch of the lowest validation NLL at the end.
        :param batch_size: default the recipe's.
        """
        parts, recipe = self.parts, self.recipe
        best, optim = _Best(), parts.optimizer(guide) if optim is None else optim
        watchers: list[Callback] = [*([best] if keep_best else []), *callbacks]
        found, ranks = None, Ranks.here()
        with together(ranks):
            if self.folder is not None:  # of several ranks the first one's
                keeper = RunFolder(
                    self.folder,
                    self.runs[0],
                    self.part,
                    self.history,
                    lines=not self.side_by_side,
                    every=bool(recipe.on_divergence),
                )
                watchers.append(keeper)
                found = newest_state(keeper.checkpoint, self.runs, self.part)
        saved, new_rates = (None, False) if found is None else (found[0], found[1] != self.runs[0])
        if ranks is not None:
            saved, new_rates = ranks.told((saved, new_rates))
        if new_rates:
            watchers.append(_NewRates(optim))
        for callback in self.callbacks:
            if isinstance(callback, Tracker):
                callback.part = self.part
        result = fit(
            parts.model,
            guide,
            optim,
            parts.data.train,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size if batch_size is None else batch_size,
            val=parts.data.val,
            kl=parts.kl if kl is None else kl,
            elbo=parts.elbo(guide),
            callbacks=[*watchers, *self.callbacks],
            seed=recipe.seed,
            augment=parts.augment,
            patience=recipe.patience or None,
            val_samples=recipe.val_samples,
            device=recipe.device,
            resume=saved,
            progress=False,
            accumulate=recipe.accumulate,
            noise=recipe.noise,
            precision=recipe.precision,
            distributed=DataParallel(batch_norm=recipe.batch_norm),
        )
        if best.parameters is not None:
            restore_parameters(parts.model, guide, best.parameters)
        return result

    def outcome(self, guide: Any, result: FitResult, *, best: bool = False, **facts: Any) -> Outcome:
        """
        Return what a fit leaves.

        :param guide: the guide that was made.
        :param result: what `fit` returned.
        :param best: whether the best epoch was kept.
        """
        history = [*self.history, *labelled(result.history, self.part)]
        return Outcome(guide, history, result.best_epoch if best else None, result.reason, result.seconds, facts)


@dataclass(frozen=True)
class Method(ABC):
    """The abstract base of the methods."""

    @abstractmethod
    def __call__(self, work: Work) -> Outcome:
        """Do the work."""

    def make_guide(self, recipe: Recipe, model: Any) -> Any:
        """
        Return a new guide to train, from the random state as it is: the recipe's, or another.

        :param model: the program.
        """
        return recipe_guide(recipe, model)

    def resolved(self, recipe: Recipe) -> "Method":
        """Return the method with what follows from the recipe spelled out; what does not fit it is refused."""
        return self

    def check(self, parts: "Assembly") -> None:  # noqa: B027
        """
        Refuse what would end without a posterior on these rows and with this model, before anything is trained.

        :param parts: the recipe put together; see :class:`pyro_bnn.assemble.Assembly`.
        """

    def units(self) -> list[str]:
        """Return the names of the units of work that begin anew each, and may be done side by side; usually none."""
        return []

    def do_unit(self, work: Work, name: str) -> None:
        """
        Do one of `units` alone and leave its state in the run folder, where the whole work finds it done.

        :param name: of the unit, one of `units()`.
        """
        raise ValueError(f"{type(self).__name__} has no unit of work {name!r}: it has {self.units() or 'none'}")

    def trains_by_fit(self) -> bool:
        """Whether all of its training is `fit`'s, so that it has accumulated batches, bfloat16 and several ranks."""
        return False

    def spec(self) -> dict[str, Any]:
        """Return the numbers that are given."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def recipe_guide(recipe: Recipe, model: Any) -> Any:
    """Return the guide that a recipe names."""
    numbers = {key: value for key, value in recipe.guide.items() if key != "name"}
    make = look_up("guides", recipe.guide["name"])
    wrong = misfit(make, numbers, [model])
    if wrong is not None:
        raise ValueError(f"guide {recipe.guide['name']!r} with {numbers}: {wrong}")
    try:
        return make(model, **numbers)
    except TypeError as error:
        raise ValueError(f"guide {recipe.guide['name']!r} with {numbers}: {error}") from error


def recipe_point(recipe: Recipe, model: Any, kind: str = "map") -> AutoPoint:
    """Return a point that starts where the recipe's means do."""
    return AutoPoint(model, init_loc=start_of_means(recipe), kind=kind)


def start_of_means(recipe: Recipe) -> str:
    """Return the recipe's choice of initial means."""
    return str(recipe.guide.get("init_loc", "default"))


def steps_per_epoch(parts: "Assembly") -> int:
    """Steps of a walk through the training rows."""
    batches = -(-len(parts.data.train) // parts.recipe.batch_size)
    return -(-batches // parts.recipe.accumulate)


def refuse_patience(recipe: Recipe, what: str) -> None:
    """Raise where early stopping could end a training before it has what it is for."""
    if recipe.patience:
        raise ValueError(
            f"patience={recipe.patience} could end the training before {what}: set patience to 0, or take a "
            f"method that keeps its best epoch (svi, map)"
        )


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise unless method.<name> is an integer of at least that."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"method.{name}={value!r} is not allowed: pass an integer of at least {least}")


def check_number(name: str, value: Any, allowed: str, holds: Callable[[float], bool]) -> None:
    """Raise unless method.<name> is a number for which `holds`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not holds(value):
        raise ValueError(f"method.{name}={value!r} is not allowed: pass a number {allowed}")


def check_epochs(name: str, value: float, recipe: Recipe) -> float:
    """Return a number of epochs that leaves some of the recipe's; refuse another."""
    if not 0 <= value < recipe.epochs:
        raise ValueError(
            f"method.{name}={value} is not a number of epochs of {recipe.epochs}: pass one from 0 to less than that"
        )
    return value
