"""The draws of Langevin dynamics: SGLD, with cycles, and at full batch."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, final

from pyro_bnn.guides import AutoPoint, StoredDraws
from pyro_bnn.inference.samplers.sgld import SGLD, Snapshots, takes_draw
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
from pyro_bnn.optim.wrappers import TorchOptim
from pyro_bnn.recipe import Recipe

if TYPE_CHECKING:
    from pyro_bnn.assemble import Assembly

__all__ = ["CyclicSgld", "Lmc", "Sampled", "Sgld"]


@final
class _Langevin(TorchOptim):
    """SGLD among the other optimizers, so that a model's own parameters can have another."""

    torch_class = SGLD


@final
@dataclass(frozen=True)
class Plan:
    """The steps of a sampler: how many, of how many rows, and which of them give draws."""

    burn_in: int
    steps: int
    batch_size: int
    cycle: int = 0
    explore: float = 0.0

    def thin(self, draws: int) -> int:
        """Return the steps between draws, of which there are to be so many."""
        return max(1, math.floor((self.steps - self.burn_in) * (1 - self.explore) / draws))


@dataclass(frozen=True)
class Sampled(Method, ABC):
    """
    What Langevin samplers have in common.

    :param lr: alpha, per datum; default the recipe's rate of the means.
    :param draws: how many draws to keep, evenly over what follows the burn-in.
    """

    lr: float | None = None
    draws: int = 50

    def __post_init__(self) -> None:
        check_count("draws", self.draws)
        if self.lr is not None:
            check_number("lr", self.lr, "above 0", lambda v: 0 < v < math.inf)

    def resolved(self, recipe: Recipe) -> "Method":
        """Take the rate of the means, if nothing else is said; the target has to be one that noise can reach."""
        if recipe.kl != "uniform":
            raise ValueError(f"kl={recipe.kl!r} is no posterior that a sampler could draw from: use eta to temper it")
        refuse_patience(recipe, "the first draw is taken")
        return self if self.lr is not None else replace(self, lr=recipe.optim.loc.get("lr", 1e-3))

    @abstractmethod
    def plan(self, parts: "Assembly") -> Plan:
        """
        Return the steps that this takes.

        :param parts: the recipe put together; see :class:`pyro_bnn.assemble.Assembly`.
        """

    def check(self, parts: "Assembly") -> None:
        """Refuse a burn-in, cycles or an exploring share that leave no step to draw from."""
        plan = self.plan(parts)
        thin = plan.thin(self.draws)
        steps = range(plan.burn_in + 1, plan.steps + 1)
        if not any(takes_draw(step, plan.burn_in, thin, plan.cycle, plan.explore) for step in steps):
            raise ValueError(
                f"method={parts.recipe.method} leaves no draw in {plan.steps} steps: burn in for less, take "
                f"fewer cycles, explore a smaller share of them, or train for more epochs"
            )

    def make_guide(self, recipe: Recipe, model: Any) -> AutoPoint:
        """Return the point that moves."""
        return recipe_point(recipe, model)

    def sample(self, work: Work, kind: str, **numbers: Any) -> Outcome:
        """
        Run the sampler and collect its draws.

        :param work: the training that is under way.
        :param kind: what the draws are called.
        """
        recipe, parts = work.recipe, work.parts
        plan = self.plan(parts)
        guide = parts.guide
        sampler = _Langevin(
            {
                "lr": self.lr,
                "num_data": len(parts.data.train),
                "temperature": recipe.eta * recipe.temperature,
                "cycle": plan.cycle,
                "explore": plan.explore,
                **numbers,
            }
        )
        snapshots = Snapshots(guide, plan.burn_in, plan.thin(self.draws), cycle=plan.cycle, explore=plan.explore)
        optim = parts.optimizer(guide, recipe.changed({"schedule": "constant"}), loc=sampler)
        result = work.fit(guide, optim=optim, callbacks=[snapshots], batch_size=plan.batch_size)
        if result.reason == INTERRUPTED:
            return work.outcome(None, result)
        stored = StoredDraws.from_flat(parts.model, snapshots.draws, work.rows.x, kind=kind, states=snapshots.states)
        return work.outcome(stored, result, draws=len(snapshots.draws))


@final
@dataclass(frozen=True)
class Sgld(Sampled):
    """SGLD; `burn_in` in epochs, default half of them; `precondition` as in SGLD."""

    burn_in: float | None = None
    precondition: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("precondition", self.precondition, "from 0 to less than 1, 0 for none", lambda v: 0 <= v < 1)

    def resolved(self, recipe: Recipe) -> "Method":
        """Burn in for half of the epochs, if nothing else is said."""
        burn_in = recipe.epochs / 2 if self.burn_in is None else check_epochs("burn_in", self.burn_in, recipe)
        return replace(cast(Sgld, super().resolved(recipe)), burn_in=burn_in)

    def plan(self, parts: "Assembly") -> Plan:
        """Return the steps of the recipe's epochs."""
        per_epoch = steps_per_epoch(parts)
        burn_in = round(cast(float, self.burn_in) * per_epoch)
        return Plan(burn_in, parts.recipe.epochs * per_epoch, parts.recipe.batch_size)

    def __call__(self, work: Work) -> Outcome:
        """Sample."""
        return self.sample(work, "sgld", precondition=self.precondition)


@final
@dataclass(frozen=True)
class CyclicSgld(Sampled):
    """SGLD with `cycles` cycles, the first `explore` of each without noise; `precondition` as in SGLD."""

    cycles: int = 4
    explore: float = 0.5
    precondition: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("cycles", self.cycles)
        check_number("explore", self.explore, "from 0 to less than 1, a share of a cycle", lambda v: 0 <= v < 1)
        check_number("precondition", self.precondition, "from 0 to less than 1, 0 for none", lambda v: 0 <= v < 1)

    def plan(self, parts: "Assembly") -> Plan:
        """Return the steps of the recipe's epochs, in cycles."""
        steps = parts.recipe.epochs * steps_per_epoch(parts)
        if self.cycles > steps:
            raise ValueError(f"method.cycles={self.cycles} do not fit {steps} steps: pass 1 to {steps}")
        return Plan(0, steps, parts.recipe.batch_size, -(-steps // self.cycles), self.explore)

    def __call__(self, work: Work) -> Outcome:
        """Sample."""
        return self.sample(work, "cyclic_sgld", precondition=self.precondition)


@final
@dataclass(frozen=True)
class Lmc(Sampled):
    """Langevin at full batch, one step to an epoch; `burn_in` in epochs, default half of them."""

    burn_in: float | None = None

    def resolved(self, recipe: Recipe) -> "Method":
        """Burn in for half of the epochs, if nothing else is said."""
        burn_in = recipe.epochs / 2 if self.burn_in is None else check_epochs("burn_in", self.burn_in, recipe)
        return replace(cast(Lmc, super().resolved(recipe)), burn_in=burn_in)

    def plan(self, parts: "Assembly") -> Plan:
        """Return one step to an epoch."""
        return Plan(round(cast(float, self.burn_in)), parts.recipe.epochs, len(parts.data.train))

    def __call__(self, work: Work) -> Outcome:
        """Sample."""
        return self.sample(work, "lmc")
