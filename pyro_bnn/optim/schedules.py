"""
Learning-rate schedules: small descriptions, put to work by torch's schedulers.

A description such as `Cosine(final=0.01)` knows no optimizer and no length; :class:`Factor` builds torch's scheduler
for it once the number of epochs and steps is known, and yields the number f that multiplies every learning rate.
Working on a factor and not on the rates themselves lets one schedule serve groups with different rates, parameters that
appear late, and optimizers with more than one rate.

Times are in epochs and may be fractions. All schedules but the plateau advance with every optimizer step; the
plateau looks at a metric at the end of each epoch.

- cyclic: L. N. Smith, Cyclical learning rates for training neural networks, 2017
- sawtooth: Izmailov et al., Averaging weights leads to wider optima and better generalization, 2018
- range test: as above, section 3.3
- twin plateau: the NLL steers the rate of the means, the KL that of the standard deviations
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import Optimizer

__all__ = [
    "SCHEDULES",
    "Constant",
    "Cosine",
    "Cyclic",
    "Factor",
    "LRRange",
    "Plateau",
    "SawTooth",
    "Schedule",
    "Step",
    "TwinPlateau",
    "WarmUp",
    "lr_range_test",
    "make_schedule",
    "plot_lr_range",
    "schedule_of",
]


def _require(schedule: object, name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{type(schedule).__name__}: {name}={value!r} is not {allowed}")


def _steps(epochs: float, steps_per_epoch: int) -> int:
    return max(1, round(epochs * steps_per_epoch))


class Schedule(ABC):
    """Abstract description of a schedule."""

    needs_length: ClassVar[bool] = True

    @abstractmethod
    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> lr_scheduler.LRScheduler | None:
        """
        Return torch's scheduler over `unit`, an optimizer of learning rate 1, counting steps.

        :param epochs: of the training.
        :param steps_per_epoch: minibatches of an epoch.
        """


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """The rate as given."""

    needs_length: ClassVar[bool] = False

    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> None:
        """Return no scheduler."""
        return


@final
@dataclass(frozen=True)
class Cosine(Schedule):
    """From the rate down to `final` times the rate over the whole training, along half a cosine; then constant."""

    final: float = 0.0

    def __post_init__(self) -> None:
        _require(self, "final", self.final, 0 <= self.final < 1, "in [0, 1), a fraction of the learning rate")

    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> lr_scheduler.LRScheduler:
        """Return torch's CosineAnnealingLR."""
        return lr_scheduler.CosineAnnealingLR(unit, T_max=_steps(epochs, steps_per_epoch), eta_min=self.final)


@final
@dataclass(frozen=True)
class Cyclic(Schedule):
    """
    Up and down between `low` and `high` times the rate every `period` epochs; "triangular2" halves each cycle.

    :param mode: "triangular" keeps the height of the peaks, "triangular2" halves it.
    """

    period: float = 2.0
    low: float = 0.1
    high: float = 1.0
    mode: Literal["triangular", "triangular2"] = "triangular"

    def __post_init__(self) -> None:
        _require(self, "period", self.period, self.period > 0, "a number of epochs > 0")
        _require(self, "low", self.low, 0 < self.low < self.high, f"between 0 and high={self.high!r}")
        modes = ("triangular", "triangular2")
        _require(self, "mode", self.mode, self.mode in modes, f"one of {', '.join(modes)}")

    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> lr_scheduler.LRScheduler:
        """Return torch's CyclicLR."""
        return lr_scheduler.CyclicLR(
            unit,
            base_lr=self.low,
            max_lr=self.high,
            step_size_up=_steps(self.period / 2, steps_per_epoch),
            mode=self.mode,
            cycle_momentum=False,
        )


@final
@dataclass(frozen=True)
class SawTooth(Schedule):
    """The rate as given until `start`, then every `cycle` epochs down a line that ends at `low` times it."""

    start: float = 0.0
    cycle: float = 1.0
    low: float = 0.1

    def __post_init__(self) -> None:
        _require(self, "start", self.start, self.start >= 0, "a number of epochs >= 0")
        _require(self, "cycle", self.cycle, self.cycle > 0, "a number of epochs > 0")
        _require(self, "low", self.low, 0 <= self.low <= 1, "in [0, 1], a fraction of the learning rate")

    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> lr_scheduler.LRScheduler:
        """Return torch's LambdaLR; step i = 1, 2, ... after `start` has 1 - t + t low, t = (mod(i - 1, c) + 1) / c."""
        start, cycle = round(self.start * steps_per_epoch), _steps(self.cycle, steps_per_epoch)

        def factor(done: int) -> float:
            t = ((done - start) % cycle + 1) / cycle
            return 1.0 if done < start else 1 - t + t * self.low

        return lr_scheduler.LambdaLR(unit, factor)


@final
@dataclass(frozen=True)
class Step(Schedule):
    """Times `factor` every `every` epochs, or at each of the `milestones` (in epochs)."""

    every: float | None = None
    factor: float = 0.1
    milestones: Sequence[float] = ()

    def __post_init__(self) -> None:
        if (self.every is None) == (len(self.milestones) == 0):
            raise ValueError(
                f"Step: every={self.every!r} and milestones={list(self.milestones)!r}; give exactly one, in epochs"
            )
        if self.every is not None:
            _require(self, "every", self.every, self.every > 0, "a number of epochs > 0")
        rising = list(self.milestones) == sorted(set(self.milestones)) and all(m > 0 for m in self.milestones)
        _require(self, "milestones", self.milestones, rising, "a rising list of epochs > 0")
        _require(self, "factor", self.factor, 0 < self.factor < 1, "between 0 and 1")

    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> lr_scheduler.LRScheduler:
        """Return torch's StepLR or MultiStepLR."""
        if self.every is not None:
            return lr_scheduler.StepLR(unit, step_size=_steps(self.every, steps_per_epoch), gamma=self.factor)
        milestones = [_steps(milestone, steps_per_epoch) for milestone in self.milestones]
        return lr_scheduler.MultiStepLR(unit, milestones=milestones, gamma=self.factor)


@final
@dataclass(frozen=True)
class WarmUp(Schedule):
    """Rise from `start` times the rate to the rate over the first `epochs`, then follow the schedule `then`."""

    epochs: float = 1.0
    start: float = 0.01
    then: Schedule = Constant()

    def __post_init__(self) -> None:
        _require(self, "epochs", self.epochs, self.epochs > 0, "a number of epochs > 0")
        _require(self, "start", self.start, 0 < self.start < 1, "between 0 and 1")
        if not isinstance(self.then, (Constant, Cosine, Cyclic, Step)):
            raise ValueError(
                f"WarmUp: then={self.then!r} cannot follow a warm-up; use constant, cosine, cyclic or step"
            )

    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> lr_scheduler.LRScheduler:
        """Return torch's LinearLR, followed by the other schedule's scheduler."""
        if self.epochs >= epochs:
            raise ValueError(f"WarmUp: epochs={self.epochs!r} of warm-up do not fit into {epochs} epochs of training")
        rising = _steps(self.epochs, steps_per_epoch)
        warm = lr_scheduler.LinearLR(unit, start_factor=self.start, total_iters=rising)
        after = self.then.build(unit, epochs - rising / steps_per_epoch, steps_per_epoch)
        return warm if after is None else lr_scheduler.SequentialLR(unit, [warm, after], milestones=[rising])


@final
@dataclass(frozen=True)
class Plateau(Schedule):
    """
    Times `factor` when `metric` has not improved for more than `patience` epochs.

    `metric` is a key of the epoch's metrics, all lower-is-better; None is val_nll, or nll without validation.

    :param threshold: what counts as better: a fall by this share of the best value.
    :param min_factor: the rate never falls below this share of its first value.
    """

    metric: str | None = None
    factor: float = 0.1
    patience: int = 1
    threshold: float = 1e-4
    min_factor: float = 0.0

    needs_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _require(self, "factor", self.factor, 0 < self.factor < 1, "between 0 and 1")
        _require(self, "patience", self.patience, self.patience >= 0, "a number of epochs >= 0")
        _require(self, "threshold", self.threshold, self.threshold >= 0, ">= 0")
        _require(self, "min_factor", self.min_factor, 0 <= self.min_factor < 1, "in [0, 1)")

    def pick(self, metrics: Mapping[str, float]) -> float:
        """
        Return the watched metric of an epoch.

        :param metrics: the line of an epoch.
        """
        name = self.metric or ("val_nll" if "val_nll" in metrics else "nll")
        if name not in metrics:
            known = ", ".join(sorted(metrics)) or "none"
            raise ValueError(f"Plateau watches {name!r}, which this epoch's metrics ({known}) do not have")
        return float(metrics[name])

    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> lr_scheduler.LRScheduler:
        """Return torch's ReduceLROnPlateau."""
        return lr_scheduler.ReduceLROnPlateau(
            unit,
            factor=self.factor,
            patience=self.patience,
            threshold=self.threshold,
            min_lr=self.min_factor,
            eps=0.0,
        )


@final
@dataclass(frozen=True)
class TwinPlateau(Schedule):
    """
    Two plateaus for `PerSite`: the NLL steers the rate of the means, the KL that of the standard deviations.

    :param factor: a rate is multiplied by it.
    :param patience: epochs without a better value before that.
    :param threshold: what counts as better: a fall by this share of the best value.
    :param min_factor: the rate never falls below this share of its first value.
    """

    factor: float = 0.1
    patience: int = 1
    threshold: float = 1e-4
    min_factor: float = 0.0

    needs_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _ = self.loc  # checks the numbers

    @property
    def loc(self) -> Plateau:
        """The plateau of the means: val_nll, or nll without validation."""
        return Plateau(None, self.factor, self.patience, self.threshold, self.min_factor)

    @property
    def scale(self) -> Plateau:
        """The plateau of the standard deviations."""
        return Plateau("kl", self.factor, self.patience, self.threshold, self.min_factor)

    def build(self, unit: Optimizer, epochs: float, steps_per_epoch: int) -> lr_scheduler.LRScheduler:
        """Refuse: one optimizer cannot hold two plateaus."""
        raise ValueError("TwinPlateau has one plateau for loc and one for scale: give it to PerSite(schedule=...)")


SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "cyclic": Cyclic,
    "plateau": Plateau,
    "sawtooth": SawTooth,
    "step": Step,
    "twin_plateau": TwinPlateau,
    "warmup": WarmUp,
}
"""Schedules by the name that a recipe gives."""


def _built_in(name: str) -> type[Schedule]:
    if name not in SCHEDULES:
        raise ValueError(f"schedule {name!r} is unknown; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


def make_schedule(name: str, **numbers: Any) -> Schedule:
    """Return the schedule of that name; `then` may itself be a name or a table with the key `name`."""
    return schedule_of({"name": name, **numbers}, _built_in)


def schedule_of(table: Mapping[str, Any], find: Callable[[str], Callable[..., Schedule]]) -> Schedule:
    """
    Return the schedule that `{name, numbers...}` describes; `find` says what a name stands for.

    :param table: a name and its numbers.
    """
    numbers = {key: value for key, value in table.items() if key != "name"}
    name, then = table["name"], numbers.get("then")
    make = find(name)
    if isinstance(then, str):
        numbers["then"] = schedule_of({"name": then}, find)
    elif isinstance(then, Mapping):
        numbers["then"] = schedule_of(then, find)
    try:
        return make(**numbers)
    except TypeError:
        known = ", ".join(getattr(make, "__dataclass_fields__", {}))
        raise ValueError(
            f"schedule {name!r} takes {known or 'no numbers'}, and was given {', '.join(numbers)}"
        ) from None


@final
class Factor:
    """A schedule at work: the number that multiplies every learning rate now."""

    def __init__(self, schedule: Schedule, epochs: int | None = None, steps_per_epoch: int | None = None) -> None:
        if schedule.needs_length and (epochs is None or steps_per_epoch is None):
            raise ValueError(
                f"{type(schedule).__name__} needs the length of the training: call optim.prepare(epochs, "
                "steps_per_epoch) before the first step (fit does)"
            )
        self.schedule = schedule
        self.length = (epochs, steps_per_epoch)
        self.count = 0
        self._unit = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._scheduler = schedule.build(self._unit, epochs or 1, steps_per_epoch or 1)
        self._unit.step()  # moves nothing; torch's schedulers want a step of the optimizer before theirs
        holds = isinstance(schedule, Cosine) or (isinstance(schedule, WarmUp) and isinstance(schedule.then, Cosine))
        self._last = _steps(epochs or 1, steps_per_epoch or 1) if holds else math.inf
        self.per_step = self._scheduler is not None and not isinstance(schedule, Plateau)

    @property
    def value(self) -> float:
        """The factor now."""
        return float(self._unit.param_groups[0]["lr"])

    def step(self) -> None:
        """Advance by one optimizer step."""
        if not self.per_step or self._scheduler is None:
            return
        self.count += 1
        if self.count <= self._last:
            self._scheduler.step()

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an epoch to a plateau."""
        if isinstance(self.schedule, Plateau) and isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
            self._scheduler.step(self.schedule.pick(metrics))

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule stands, as plain numbers."""
        scheduler = {} if self._scheduler is None else dict(self._scheduler.state_dict())
        return {"length": self.length, "count": self.count, "value": self.value, "scheduler": scheduler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Go back to where `state_dict` was taken.

        Under another length than the saved one the schedule is walked to the same step of the new length.
        """
        if self._scheduler is None:
            return
        if self.per_step and tuple(state["length"]) != self.length:
            while self.count < state["count"]:
                self.step()
            return
        self.count = state["count"]
        self._scheduler.load_state_dict(dict(state["scheduler"]))
        self._unit.param_groups[0]["lr"] = state["value"]


@final
@dataclass(frozen=True)
class LRRange:
    """
    The outcome of a learning-rate range test.

    `suggestion` is a tenth of the rate with the lowest smoothed loss, None if the loss never fell. (The steepest fall,
    the other usual choice, lies in the noise of the first steps where they are noisy.)

    :param lrs: the rates, one per step.
    :param losses: the loss of each step.
    :param smoothed: the same, smoothed.
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None


def _smooth(losses: Sequence[float], beta: float) -> list[float]:
    average, smoothed = 0.0, []
    for t, loss in enumerate(losses, start=1):
        average = beta * average + (1 - beta) * loss
        smoothed.append(average / (1 - beta**t))
    return smoothed


def _below_the_lowest(lrs: Sequence[float], smoothed: Sequence[float]) -> float | None:
    """Return a tenth of the rate at which the loss is lowest: still falling there, with room for noise."""
    lowest = int(np.argmin(smoothed))
    return None if lowest == 0 else max(lrs[0], lrs[lowest] / 10)


def lr_range_test(
    step_fn: Callable[[], float],
    set_lr: Callable[[float], None],
    *,
    low: float = 1e-6,
    high: float = 1.0,
    num_steps: int = 100,
    smoothing: float = 0.9,
    stop_factor: float = 4.0,
) -> LRRange:
    """
    Train while the learning rate rises geometrically from `low` to `high`.

    :param step_fn: takes one training step and returns its loss. The parameters do move: start from a copy.
    :param set_lr: sets the learning rate of the next step.
    :param num_steps: from `low` to `high`.
    :param smoothing: the losses are averaged with this factor before they are judged.
    :param stop_factor: the test ends early when the smoothed loss exceeds its minimum by this many times the fall seen
        so far (at least the minimum's own size), or is not finite.
    """
    if not 0 < low < high < math.inf:
        raise ValueError(f"low={low!r} and high={high!r}: the range of learning rates needs 0 < low < high")
    if num_steps < 4:
        raise ValueError(f"num_steps={num_steps!r} is too few to see a slope: use at least 4, usually 100")
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing={smoothing!r} is not in [0, 1); a usual value is 0.9")
    lrs: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    for lr in np.geomspace(low, high, num_steps).tolist():
        set_lr(lr)
        loss = float(step_fn())
        if not math.isfinite(loss):
            break
        lrs.append(lr)
        losses.append(loss)
        smoothed = _smooth(losses, smoothing)
        best = min(smoothed)
        if smoothed[-1] - best > stop_factor * max(smoothed[0] - best, abs(best)):
            break
    if not lrs:
        raise ValueError(f"the first loss, at lr={low!r}, is not finite: check the data and the initial parameters")
    return LRRange(tuple(lrs), tuple(losses), tuple(smoothed), _below_the_lowest(lrs, smoothed))


def plot_lr_range(result: LRRange, ax: Any = None) -> Any:
    """
    Draw loss against learning rate; return matplotlib's axes.

    :param result: what `lr_range_test` returned.
    :param ax: matplotlib's axes to draw on; default new ones.
    """
    from matplotlib import pyplot

    if ax is None:
        _, ax = pyplot.subplots()
    ax.plot(result.lrs, result.losses, color="0.75", linewidth=1, label="loss")
    ax.plot(result.lrs, result.smoothed, color="#2f6fb2", linewidth=2, label="smoothed")
    if result.suggestion is not None:
        ax.axvline(result.suggestion, linestyle="--", color="#d9722e", label=f"suggestion {result.suggestion:.2g}")
    low, high = min(result.smoothed), result.smoothed[0]
    margin = 0.1 * max(high - low, abs(low), 1e-12)
    ax.set(xscale="log", xlabel="learning rate", ylabel="loss", ylim=(low - margin, high + 4 * margin))
    ax.legend(frameon=False)
    return ax
