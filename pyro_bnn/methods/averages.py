"""Averages of a guide or a point over the last part of its training: HWA, low-rank, SWA, EMA."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, final, get_args

from pyro_bnn.guides import AutoLowRankNormal
from pyro_bnn.inference.averaging import EMA, HWA, SWA, Averager, Variance, refresh_batch_norm
from pyro_bnn.methods.base import (
    INTERRUPTED,
    Method,
    Outcome,
    Work,
    check_count,
    check_epochs,
    check_number,
    recipe_point,
    refuse_patience,
    steps_per_epoch,
)
from pyro_bnn.recipe import Recipe

if TYPE_CHECKING:
    from pyro_bnn.assemble import Assembly

__all__ = ["Averaged", "Ema", "Hwa", "LowRank", "Swa"]


@dataclass(frozen=True)
class Averaged(Method, ABC):
    """
    What averages have in common.

    :param start: epochs before averaging begins; default half of them.
    :param cycle: epochs between snapshots; may be a fraction.
    :param low: where the learning rate ends in every cycle, as a fraction of the recipe's.
    :param schedule: 'sawtooth' is the rate as given, then cycles down to `low`; 'recipe' leaves the recipe's schedule.
    """

    start: float | None = None
    cycle: float = 1.0
    low: float = 0.1
    schedule: Literal["sawtooth", "recipe"] = "sawtooth"
    least: ClassVar[int] = 1
    """Snapshots it takes to make a posterior."""

    def __post_init__(self) -> None:
        if self.schedule not in ("sawtooth", "recipe"):
            raise ValueError(f"method.schedule={self.schedule!r} is unknown: pass 'sawtooth' or 'recipe'")
        check_number("cycle", self.cycle, "of epochs above 0", lambda v: 0 < v < math.inf)
        check_number("low", self.low, "from 0 to 1, a fraction of the rate", lambda v: 0 <= v <= 1)

    def resolved(self, recipe: Recipe) -> "Method":
        """Begin after half of the epochs, if nothing else is said."""
        refuse_patience(recipe, "the first snapshot is taken")
        start = recipe.epochs / 2 if self.start is None else check_epochs("start", self.start, recipe)
        if start + self.cycle > recipe.epochs:
            raise ValueError(
                f"method.start={start:g} and cycle={self.cycle:g} leave no snapshot in {recipe.epochs} epochs: "
                f"start earlier or shorten the cycle"
            )
        return replace(self, start=start)

    def check(self, parts: "Assembly") -> None:
        """Refuse a start and a cycle that leave too few snapshots, counted in steps."""
        start, cycle = self._steps(steps_per_epoch(parts))
        total = parts.recipe.epochs * steps_per_epoch(parts)
        snapshots = max(0, total - start) // cycle
        if snapshots < self.least:
            raise ValueError(
                f"method.start={self.start:g} and cycle={self.cycle:g} leave {snapshots} of the {self.least} snapshots "
                f"needed: {total} steps, one snapshot every {cycle} after step {start}: start earlier, shorten the "
                f"cycle or train for more epochs"
            )

    def trains_by_fit(self) -> bool:
        """Yes."""
        return True

    def _steps(self, per_epoch: int) -> tuple[int, int]:
        """Return start and cycle in steps."""
        return round(cast(float, self.start) * per_epoch), max(1, round(self.cycle * per_epoch))

    @abstractmethod
    def averager(self, guide: Any, **common: Any) -> Averager:
        """
        Make what takes the snapshots.

        :param guide: the guide in training.
        """

    def finish(self, work: Work, guide: Any, averager: Averager) -> Any:
        """
        Turn the snapshots into the guide.

        :param work: the training that is under way.
        :param averager: what took them.
        """
        averager.apply()
        return guide

    def __call__(self, work: Work) -> Outcome:
        """Fit the guide and average it."""
        guide = work.parts.guide
        start, cycle = self._steps(work.steps_per_epoch)
        averager = self.averager(
            guide,
            start=start,
            cycle=cycle,
            model=work.parts.model,
            data=work.rows,
        )
        recipe = work.recipe
        if self.schedule == "sawtooth":
            saw = {"name": "sawtooth", "start": self.start, "cycle": self.cycle, "low": self.low}
            recipe = recipe.changed({"schedule": saw})
        optimizer = work.parts.optimizer(guide, recipe)
        result = work.fit(guide, optim=optimizer, callbacks=[averager])
        if result.reason == INTERRUPTED:
            return work.outcome(None, result)
        return work.outcome(self.finish(work, guide, averager), result)


def _check_variance(variance: str) -> None:
    if variance not in get_args(Variance):
        raise ValueError(f"method.variance={variance!r} is unknown: pass one of {', '.join(get_args(Variance))}")


@final
@dataclass(frozen=True)
class Hwa(Averaged):
    """
    The average of means and deviations along the training: HWA of variational hyper-parameters.

    :param variance: which deviations the average has: "total", "within", "trajectory" or "literal"; see
        :class:`pyro_bnn.inference.HWA`.
    """

    variance: Variance = "total"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_variance(self.variance)

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an HWA."""
        return HWA(guide, variance=self.variance, **common)


@final
@dataclass(frozen=True)
class LowRank(Averaged):
    """
    The low-rank normal of the last `rank` snapshots; `literal` as in `RunningMoments.low_rank`.

    :param variance: as in :class:`Hwa`.
    """

    rank: int = 10
    literal: bool = False
    variance: Variance = "total"
    least: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("rank", self.rank, 2)
        _check_variance(self.variance)

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an HWA that keeps deviations."""
        return HWA(guide, variance=self.variance, rank=self.rank, **common)

    def finish(self, work: Work, guide: Any, averager: Averager) -> Any:
        """Turn the snapshots into the guide."""
        moments = cast(HWA, averager).moments
        averager.apply()
        mean, diag, factor = moments.low_rank(literal=self.literal)
        low_rank = AutoLowRankNormal.from_moments(work.parts.model, mean, diag, factor, work.rows.x)
        refresh_batch_norm(work.parts.model, low_rank, work.rows)
        return low_rank


@dataclass(frozen=True)
class _RawAveraged(Averaged, ABC):
    """
    Averages of raw parameters, which a point has, too.

    :param of: 'svi' is the recipe's guide; 'map' is a point, the network without uncertainty (Izmailov et al. 2018).
    """

    of: Literal["svi", "map"] = "svi"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of not in ("svi", "map"):
            raise ValueError(f"method.of={self.of!r} is not averaged here: pass 'svi' or 'map'")

    def make_guide(self, recipe: Recipe, model: Any) -> Any:
        """Return what is trained and averaged."""
        return recipe_point(recipe, model) if self.of == "map" else super().make_guide(recipe, model)


@final
@dataclass(frozen=True)
class Swa(_RawAveraged):
    """The plain average of raw parameters."""

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an SWA."""
        return SWA(guide, **common)


@final
@dataclass(frozen=True)
class Ema(_RawAveraged):
    """
    The exponential average of raw parameters, one snapshot every `cycle` epochs.

    :param decay: the share of the old average that stays at a snapshot.
    """

    cycle: float = 0.05
    schedule: Literal["sawtooth", "recipe"] = "recipe"
    decay: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("decay", self.decay, "between 0 and 1, both excluded", lambda v: 0 < v < 1)

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an EMA."""
        return EMA(guide, decay=self.decay, **common)
