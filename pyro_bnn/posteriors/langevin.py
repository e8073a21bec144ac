"""The draws of Langevin dynamics: SGLD, with cycles, and at full batch."""

import math
from abc import ABC
from dataclasses import dataclass, replace
from typing import Any, cast, final

from pyro_bnn.guides import AutoPoint, StoredDraws
from pyro_bnn.inference.sgld import SGLD, Snapshots
from pyro_bnn.optim import OPTIMIZERS, PerSite
from pyro_bnn.optim.wrappers import TorchOptim
from pyro_bnn.posteriors.work import INTERRUPTED, Outcome, Trainer, Work, check_epochs
from pyro_bnn.recipe import Recipe

__all__ = ["CyclicSgld", "Lmc", "Sampled", "Sgld"]


@final
class _Langevin(TorchOptim):
    """SGLD among the other optimizers, so that a model's own parameters can have another."""

    torch_class = SGLD


@dataclass(frozen=True)
class Sampled(Trainer, ABC):
    """
    What Langevin samplers have in common.

    :param lr: alpha, per datum; default the recipe's rate of the means.
    :param draws: how many draws to keep, evenly over what follows the burn-in.
    """

    lr: float | None = None
    draws: int = 50

    def __post_init__(self) -> None:
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise ValueError(f"posterior.draws={self.draws!r} is not a number of draws: pass at least 1")

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Take the rate of the means, if nothing else is said; the target has to be one that noise can reach."""
        if recipe.kl != "uniform":
            raise ValueError(f"kl={recipe.kl!r} is no posterior that a sampler could draw from: use eta to temper it")
        return self if self.lr is not None else replace(self, lr=recipe.optim.loc.get("lr", 1e-3))

    def sample(
        self, work: Work, kind: str, *, burn_in: int, steps: int, batch_size: int, cycle: int = 0, **numbers: Any
    ) -> Outcome:
        """Run the sampler and collect its draws."""
        recipe, parts = work.recipe, work.parts
        guide = AutoPoint(parts.model, init_loc=work.start)
        sampler = _Langevin(
            {
                "lr": self.lr,
                "num_data": len(parts.data.train),
                "temperature": recipe.eta * recipe.temperature,
                "cycle": cycle,
                **numbers,
            }
        )
        explore = numbers.get("explore", 0.0)
        usable = (steps - burn_in) * (1 - explore)
        thin = max(1, math.floor(usable / self.draws))
        snapshots = Snapshots(guide, burn_in, thin, cycle=cycle, explore=explore)
        own = {key: value for key, value in recipe.optim.other.items() if key not in ("name", "schedule")}
        algorithm = OPTIMIZERS[recipe.optim.other["name"]]
        optim = (
            PerSite(loc=sampler, other=algorithm(own)) if model_has_parameters(parts.model) else PerSite(loc=sampler)
        )
        result = work.fit(guide, optim=optim, callbacks=[snapshots], batch_size=batch_size)
        if result.reason == INTERRUPTED:
            return work.outcome(None, result)
        stored = StoredDraws.from_flat(parts.model, snapshots.draws, kind=kind, states=snapshots.states)
        return work.outcome(stored, result, draws=len(snapshots.draws))


def model_has_parameters(model: Any) -> bool:
    """Return whether a model trains parameters beside its latent sites."""
    return any(parameter.requires_grad for parameter in model.parameters())


@final
@dataclass(frozen=True)
class Sgld(Sampled):
    """SGLD; `burn_in` in epochs, default half of them; `precondition` as in SGLD."""

    burn_in: float | None = None
    precondition: float = 0.0

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Burn in for half of the epochs, if nothing else is said."""
        burn_in = recipe.epochs / 2 if self.burn_in is None else check_epochs("burn_in", self.burn_in, recipe)
        return replace(cast(Sgld, super().resolved(recipe)), burn_in=burn_in)

    def __call__(self, work: Work) -> Outcome:
        """Sample."""
        per_epoch = work.steps_per_epoch
        return self.sample(
            work,
            "sgld",
            burn_in=round(cast(float, self.burn_in) * per_epoch),
            steps=work.recipe.epochs * per_epoch,
            batch_size=work.recipe.batch_size,
            precondition=self.precondition,
        )


@final
@dataclass(frozen=True)
class CyclicSgld(Sampled):
    """SGLD with `cycles` cycles, the first `explore` of each without noise; `precondition` as in SGLD."""

    cycles: int = 4
    explore: float = 0.5
    precondition: float = 0.0

    def __call__(self, work: Work) -> Outcome:
        """Sample."""
        steps = work.recipe.epochs * work.steps_per_epoch
        if not 1 <= self.cycles <= steps:
            raise ValueError(f"posterior.cycles={self.cycles} do not fit {steps} steps: pass 1 to {steps}")
        return self.sample(
            work,
            "cyclic_sgld",
            burn_in=0,
            steps=steps,
            batch_size=work.recipe.batch_size,
            cycle=-(-steps // self.cycles),
            explore=self.explore,
            precondition=self.precondition,
        )


@final
@dataclass(frozen=True)
class Lmc(Sampled):
    """Langevin at full batch, one step to an epoch; `burn_in` in epochs, default half of them."""

    burn_in: float | None = None

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Burn in for half of the epochs, if nothing else is said."""
        burn_in = recipe.epochs / 2 if self.burn_in is None else check_epochs("burn_in", self.burn_in, recipe)
        return replace(cast(Lmc, super().resolved(recipe)), burn_in=burn_in)

    def __call__(self, work: Work) -> Outcome:
        """Sample."""
        return self.sample(
            work,
            "lmc",
            burn_in=round(cast(float, self.burn_in)),
            steps=work.recipe.epochs,
            batch_size=len(work.parts.data.train),
        )
