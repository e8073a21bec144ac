"""Averages of a guide or a point over the last part of its training: HWA, low-rank, SWA, EMA."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, final

from pyro_bnn.guides import AutoLowRankNormal, AutoPoint
from pyro_bnn.inference.averaging import EMA, HWA, SWA, Averager, Variance, refresh_batch_norm
from pyro_bnn.posteriors.work import INTERRUPTED, Outcome, Trainer, Work, check_epochs
from pyro_bnn.recipe import Recipe

__all__ = ["Averaged", "Ema", "Hwa", "LowRank", "Swa"]


@dataclass(frozen=True)
class Averaged(Trainer, ABC):
    """
    What averages have in common.

    :param start: epochs before averaging begins; default half of them.
    :param cycle: epochs between snapshots; a fraction of one is fine.
    :param low: where the learning rate ends in every cycle, as a fraction of the recipe's.
    :param schedule: 'sawtooth' is the rate as given, then cycles down to `low`; 'recipe' leaves the recipe's schedule.
    """

    start: float | None = None
    cycle: float = 1.0
    low: float = 0.1
    schedule: Literal["sawtooth", "recipe"] = "sawtooth"

    def __post_init__(self) -> None:
        if self.schedule not in ("sawtooth", "recipe"):
            raise ValueError(f"posterior.schedule={self.schedule!r} is unknown: pass 'sawtooth' or 'recipe'")
        if not self.cycle > 0:
            raise ValueError(f"posterior.cycle={self.cycle} is not a number of epochs: pass one above 0")

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Begin after half of the epochs, if nothing else is said."""
        start = recipe.epochs / 2 if self.start is None else check_epochs("start", self.start, recipe)
        if start + self.cycle > recipe.epochs:
            raise ValueError(
                f"posterior.start={start:g} and cycle={self.cycle:g} leave no snapshot in {recipe.epochs} epochs: "
                f"start earlier or shorten the cycle"
            )
        return replace(self, start=start)

    def guide(self, work: Work) -> Any:
        """Return what is trained and averaged."""
        return work.parts.guide

    @abstractmethod
    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make what takes the snapshots."""

    def finish(self, work: Work, guide: Any, averager: Averager) -> Any:
        """Turn the snapshots into the guide."""
        averager.apply()
        return guide

    def __call__(self, work: Work) -> Outcome:
        """Fit the guide and average it."""
        guide, per_epoch = self.guide(work), work.steps_per_epoch
        start = cast(float, self.start)
        averager = self.averager(
            guide,
            start=round(start * per_epoch),
            cycle=max(1, round(self.cycle * per_epoch)),
            model=work.parts.model,
            data=work.rows,
        )
        recipe = work.recipe
        if self.schedule == "sawtooth":
            saw = {"name": "sawtooth", "start": start, "cycle": self.cycle, "low": self.low}
            recipe = recipe.changed({"schedule": saw})
        optimizer = work.optimizer(recipe, scale=not isinstance(guide, AutoPoint))
        result = work.fit(guide, optim=optimizer, callbacks=[averager])
        if result.reason == INTERRUPTED:
            return work.outcome(None, result)
        return work.outcome(self.finish(work, guide, averager), result)


@final
@dataclass(frozen=True)
class Hwa(Averaged):
    """HWA; `variance` as there."""

    variance: Variance = "total"

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an HWA."""
        return HWA(guide, variance=self.variance, **common)


@final
@dataclass(frozen=True)
class LowRank(Averaged):
    """The low-rank normal of the last `rank` snapshots; `literal` as in `RunningMoments.low_rank`."""

    rank: int = 10
    literal: bool = False
    variance: Variance = "total"

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an HWA that keeps deviations."""
        return HWA(guide, variance=self.variance, rank=self.rank, **common)

    def finish(self, work: Work, guide: Any, averager: Averager) -> Any:
        """Turn the snapshots into the guide."""
        moments = cast(HWA, averager).moments
        averager.apply()
        mean, diag, factor = moments.low_rank(literal=self.literal)
        made = AutoLowRankNormal.from_moments(work.parts.model, mean, diag, factor)
        refresh_batch_norm(work.parts.model, made, work.rows)
        return made


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
            raise ValueError(f"posterior.of={self.of!r} is not averaged here: pass 'svi' or 'map'")

    def guide(self, work: Work) -> Any:
        """Return what is trained and averaged."""
        if self.of == "map":
            return AutoPoint(work.parts.model, init_loc=work.start, kind="map")
        return super().guide(work)


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
    """The exponential average of raw parameters, one snapshot every `cycle` epochs."""

    cycle: float = 0.05
    schedule: Literal["sawtooth", "recipe"] = "recipe"
    decay: float = 0.99

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an EMA."""
        return EMA(guide, decay=self.decay, **common)
