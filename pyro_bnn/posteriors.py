"""
The kinds of posterior a recipe can name (`posterior = {name = "hwa", start = 12}`): for each, how it is trained.

    svi            the recipe's guide by SVI; the best epoch on validation is kept (any kind that says so below)
    map, ml        a point, with and without the prior; best epoch
    mc_dropout     one point and masks over it; best epoch
    laplace        draws of the normal that fits the curvature at the MAP; needs the package laplace-torch
    hwa            the means and deviations of the guide, averaged over the snapshots of its last epochs
    low_rank       the same snapshots as a low-rank normal (by SVI: guide = "low_rank")
    swa, ema       the raw parameters of the guide, averaged
    ensemble       members of any of these kinds, trained apart from seeds that follow one another
    sgld, cyclic_sgld, lmc    the draws of Langevin dynamics; lmc at full batch
    nuts, hmc      the draws of chains over all rows, in float64; for small networks

A kind is a frozen dataclass of its numbers, and a function of the work to be done that returns what it leaves. What
follows from the recipe (half of the epochs, the steps of a cycle) is spelled out by `resolved`. Each unit of work (a
fit, a member, a chain) keeps its own checkpoint, and one that is finished is not done again on resumption.
"""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, final

import pyro
import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.optim import PyroOptim

from pyro_bnn.guides import AutoDropout, AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint, Ensemble, StoredDraws
from pyro_bnn.guides.flat import load_model_state, model_state
from pyro_bnn.inference.averaging import EMA, HWA, SWA, Averager, Variance, refresh_batch_norm
from pyro_bnn.inference.checkpoint import atomic_write, load_state, parameters_of, restore_parameters, save_state
from pyro_bnn.inference.kl import KLWeight, geometric
from pyro_bnn.inference.laplace import import_laplace, laplace_draws
from pyro_bnn.inference.low_rank_elbo import TraceLowRank_ELBO
from pyro_bnn.inference.mcmc import MIN_CHAINS, convergence, run_chain
from pyro_bnn.inference.predictive import ClassDraw, predictive_draws
from pyro_bnn.inference.sgld import SGLD, Snapshots
from pyro_bnn.inference.svi import Callback, FitResult, FitState, fit
from pyro_bnn.optim import OPTIMIZERS, PerSite
from pyro_bnn.optim.wrappers import TorchOptim
from pyro_bnn.recipe import Recipe

if TYPE_CHECKING:
    from pyro_bnn.training import Assembly

__all__ = ["POSTERIORS", "Outcome", "RunFolder", "Trainer", "Work", "make_trainer"]

INTERRUPTED = "interrupted"
_POINTS = (AutoPoint, AutoDropout)


# -- the run folder ------------------------------------------------------------------------------------------------


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


def _write_history(folder: Path, recipe: Recipe, lines: Sequence[Mapping[str, Any]]) -> None:
    _write(folder / "recipe.toml", recipe.to_toml())
    _write(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


@final
class RunFolder(Callback):
    """
    Keep a run folder up to date: the recipe, a line per epoch, the last state and the best on validation.

    :param part: the name of the unit of work, whose checkpoint is in a folder of its own; "" if there is but one.
    :param before: the lines of the units before it.
    """

    def __init__(self, path: Path, recipe: Recipe, part: str = "", before: Sequence[Mapping[str, Any]] = ()) -> None:
        self.path = path
        self.recipe = recipe
        self.before = list(before)
        self.part = part

    @property
    def checkpoint(self) -> Path:
        """The folder of the states."""
        return self.path / "checkpoint" / self.part

    def epoch(self, state: FitState) -> None:
        """Write the epoch."""
        _write_history(self.path, self.recipe, [*self.before, *_labelled(state.history, self.part)])
        if state.best is None or state.best["epoch"] == state.epoch:
            best = parameters_of(state.model, state.guide, state.store_names)
            save_state(self.checkpoint / "best.pt", {"epoch": state.epoch, "parameters": best})
        save_state(self.checkpoint / "last.pt", state.state_dict())


def _labelled(lines: Sequence[Mapping[str, Any]], part: str) -> list[dict[str, Any]]:
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
    """What a training leaves: the guide (None if it was interrupted before there was one) and how it went."""

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
    :param optimizer: makes the optimizers of a recipe, new ones at each call; `scale=False` leaves out the one of the
        standard deviations, which a point has not.
    :param folder: the run folder, if there is one.
    :param callbacks: what every fit calls.
    :param part: the unit of work this is.
    """

    parts: "Assembly"
    run: Recipe
    optimizer: Callable[..., PyroOptim]
    folder: Path | None = None
    callbacks: Sequence[Callback] = ()
    part: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def recipe(self) -> Recipe:
        """The recipe, resolved."""
        return self.parts.recipe

    @property
    def steps_per_epoch(self) -> int:
        """Batches of the training rows."""
        return -(-len(self.parts.data.train) // self.recipe.batch_size)

    @property
    def start(self) -> str:
        """The recipe's choice of initial means."""
        return str(self.recipe.guide.get("init_loc", "uniform"))

    def estimator(self, guide: Any) -> ELBO:
        """Return the recipe's ELBO, and for `analytic` the one that has this guide's KL in closed form."""
        if self.recipe.estimator["name"] != "analytic" or self.recipe.temperature != 1:
            return self.parts.elbo
        particles = self.parts.elbo.num_particles
        if isinstance(guide, AutoLowRankNormal):
            return TraceLowRank_ELBO(num_particles=particles)  # type: ignore[no-untyped-call]
        return self.parts.elbo if isinstance(guide, AutoMeanFieldNormal) else TraceMeanField_ELBO(particles)

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
        """Train `guide` as the recipe says, going on from a checkpoint if there is one."""
        parts, recipe = self.parts, self.recipe
        best = _Best()
        watchers: list[Callback] = [*([best] if keep_best else []), *callbacks]
        saved = None
        if self.folder is not None:
            keeper = RunFolder(self.folder, self.run, self.part, self.history)
            watchers.append(keeper)
            if (keeper.checkpoint / "last.pt").is_file():
                saved = load_state(keeper.checkpoint / "last.pt")
        result = fit(
            parts.model,
            guide,
            self.optimizer(recipe, scale=not isinstance(guide, _POINTS)) if optim is None else optim,
            parts.data.train,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size if batch_size is None else batch_size,
            val=parts.data.val,
            kl=parts.kl if kl is None else kl,
            elbo=self.estimator(guide),
            callbacks=[*watchers, *self.callbacks],
            seed=recipe.seed,
            augment=parts.augment,
            patience=recipe.patience or None,
            val_samples=recipe.val_samples,
            device=recipe.device,
            resume=saved,
        )
        if best.parameters is not None:
            restore_parameters(parts.model, guide, best.parameters)
        return result

    def outcome(self, guide: Any, result: FitResult, *, best: bool = False, **facts: Any) -> Outcome:
        """Return what a fit leaves."""
        history = [*self.history, *_labelled(result.history, self.part)]
        return Outcome(guide, history, result.best_epoch if best else None, result.reason, result.seconds, facts)


@dataclass(frozen=True)
class Trainer(ABC):
    """The abstract base of the kinds."""

    @abstractmethod
    def __call__(self, work: Work) -> Outcome:
        """Do the work."""

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Return the kind with what follows from the recipe spelled out; what does not fit it is refused."""
        return self

    def spec(self) -> dict[str, Any]:
        """Return the numbers that are given."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def _epochs(name: str, value: float, recipe: Recipe, *, zero: bool = True) -> float:
    if not (0 <= value < recipe.epochs) or (value == 0 and not zero):
        raise ValueError(
            f"posterior.{name}={value} is not a number of epochs of {recipe.epochs}: pass one from 0 to less than that"
        )
    return value


# -- guides by SVI, and points ---------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Svi(Trainer):
    """The recipe's guide."""

    def __call__(self, work: Work) -> Outcome:
        """Fit it."""
        guide = work.parts.guide
        return work.outcome(guide, work.fit(guide, keep_best=True), best=True)


@final
@dataclass(frozen=True)
class Map(Trainer):
    """A point, with the prior."""

    def __call__(self, work: Work) -> Outcome:
        """Fit it."""
        guide = AutoPoint(work.parts.model, init_loc=work.start, kind="map")
        return work.outcome(guide, work.fit(guide, keep_best=True), best=True)


@final
@dataclass(frozen=True)
class MaximumLikelihood(Trainer):
    """A point, without the prior."""

    def __call__(self, work: Work) -> Outcome:
        """Fit it, with no weight on the KL."""
        guide = AutoPoint(work.parts.model, init_loc=work.start, kind="ml")
        return work.outcome(guide, work.fit(guide, kl=geometric(0), keep_best=True), best=True)


@final
@dataclass(frozen=True)
class McDropout(Trainer):
    """Masks over a point; `rate` and `sites` as those of AutoDropout."""

    rate: float = 0.1
    sites: Sequence[str] | None = None

    def __call__(self, work: Work) -> Outcome:
        """Fit it."""
        guide = AutoDropout(work.parts.model, rate=self.rate, sites=self.sites, init_loc=work.start)
        return work.outcome(guide, work.fit(guide, keep_best=True), best=True)


@final
@dataclass(frozen=True)
class Laplace(Trainer):
    """A MAP and the draws of a Laplace approximation around it; `structure` as in `laplace_draws`."""

    structure: Literal["kron", "diag", "full"] = "kron"
    draws: int = 100

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Refuse what has no curvature of this kind, and a package that is not there, before anything is trained."""
        if recipe.temperature != 1 or recipe.kl != "uniform":
            raise ValueError(
                f"temperature={recipe.temperature}, kl={recipe.kl!r}: a Laplace approximation knows eta, no more"
            )
        import_laplace()
        return self

    def __call__(self, work: Work) -> Outcome:
        """Fit the point, then look at its surroundings."""
        parts, recipe = work.parts, work.recipe
        guide = AutoPoint(parts.model, init_loc=work.start, kind="map")
        result = work.fit(guide, keep_best=True)
        if result.reason == INTERRUPTED:
            return work.outcome(None, result)
        started = time.perf_counter()
        drawn = laplace_draws(
            parts.model,
            guide,
            parts.data.train,
            draws=self.draws,
            structure=self.structure,
            eta=recipe.eta,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
        )
        stored = StoredDraws.from_flat(parts.model, drawn, kind="laplace")
        return work.outcome(stored, result, best=True, laplace_seconds=time.perf_counter() - started)


# -- averages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Averaged(Trainer, ABC):
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
        start = recipe.epochs / 2 if self.start is None else _epochs("start", self.start, recipe)
        if start + self.cycle > recipe.epochs:
            raise ValueError(
                f"posterior.start={start:g} and cycle={self.cycle:g} leave no snapshot in {recipe.epochs} epochs: "
                f"start earlier or shorten the cycle"
            )
        return replace(self, start=start)

    @abstractmethod
    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make what takes the snapshots."""

    def finish(self, work: Work, guide: Any, averager: Averager) -> Any:
        """Turn the snapshots into the guide."""
        averager.apply()
        return guide

    def __call__(self, work: Work) -> Outcome:
        """Fit the recipe's guide and average it."""
        guide, per_epoch = work.parts.guide, work.steps_per_epoch
        start = cast(float, self.start)
        averager = self.averager(
            guide,
            start=round(start * per_epoch),
            cycle=max(1, round(self.cycle * per_epoch)),
            model=work.parts.model,
            data=work.parts.data.train,
        )
        recipe = work.recipe
        if self.schedule == "sawtooth":
            saw = {"name": "sawtooth", "start": start, "cycle": self.cycle, "low": self.low}
            recipe = recipe.changed({"schedule": saw})
        result = work.fit(guide, optim=work.optimizer(recipe), callbacks=[averager])
        if result.reason == INTERRUPTED:
            return work.outcome(None, result)
        return work.outcome(self.finish(work, guide, averager), result)


@final
@dataclass(frozen=True)
class Hwa(_Averaged):
    """HWA; `variance` as there."""

    variance: Variance = "total"

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an HWA."""
        return HWA(guide, variance=self.variance, **common)


@final
@dataclass(frozen=True)
class LowRank(_Averaged):
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
        refresh_batch_norm(work.parts.model, made, work.parts.data.train)
        return made


@final
@dataclass(frozen=True)
class Swa(_Averaged):
    """The plain average of raw parameters."""

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an SWA."""
        return SWA(guide, **common)


@final
@dataclass(frozen=True)
class Ema(_Averaged):
    """The exponential average of raw parameters, one snapshot every `cycle` epochs."""

    cycle: float = 0.05
    schedule: Literal["sawtooth", "recipe"] = "recipe"
    decay: float = 0.99

    def averager(self, guide: Any, **common: Any) -> Averager:
        """Make an EMA."""
        return EMA(guide, decay=self.decay, **common)


# -- ensembles -------------------------------------------------------------------------------------------------------


def _named(value: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"name": value} if isinstance(value, str) else dict(value)


def make_trainer(spec: str | Mapping[str, Any]) -> Trainer:
    """Build the kind that `{name, numbers...}` describes."""
    numbers = _named(spec)
    name = numbers.pop("name")
    if name not in POSTERIORS:
        raise ValueError(f"unknown posterior {name!r}; choose one of {', '.join(sorted(POSTERIORS))}")
    try:
        return POSTERIORS[name](**numbers)
    except TypeError as error:
        raise ValueError(f"posterior {name!r} with {numbers}: {error}") from error


@final
@dataclass(frozen=True)
class DeepEnsemble(Trainer):
    """
    Members trained apart.

    :param of: the kind of the members, a name or a table.
    :param members: how many; each trains for the recipe's epochs, member m from seed + m.
    """

    of: str | Mapping[str, Any] = "map"
    members: int = 5

    def __post_init__(self) -> None:
        if isinstance(self.members, bool) or not isinstance(self.members, int) or self.members < 1:
            raise ValueError(f"posterior.members={self.members!r} is not a number of members: pass at least 1")
        make_trainer(self.of)

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Spell out the members' kind."""
        kind = _named(self.of)
        return replace(self, of={"name": kind["name"], **make_trainer(kind).resolved(recipe).spec()})

    def __call__(self, work: Work) -> Outcome:
        """Train one after the other, each from the model's first state and a guide of its own."""
        parts, trainer = work.parts, make_trainer(self.of)
        first = model_state(parts.model)
        guides, states = [], []
        history, seconds = list(work.history), 0.0
        for m in range(self.members):
            load_model_state(parts.model, first)
            seed = work.recipe.seed + m
            if m:  # the first member starts where its kind alone would
                pyro.set_rng_seed(seed)
            member = replace(
                parts,
                recipe=work.recipe.changed({"seed": seed}),
                guide=parts.new_guide() if m else parts.guide,
            )
            name = f"{work.part}/member-{m + 1}".strip("/")
            done = trainer(replace(work, parts=member, part=name, history=history))
            history, seconds = done.history, seconds + done.seconds
            if done.interrupted:
                return Outcome(None, history, None, done.reason, seconds)
            guides.append(done.guide)
            states.append(model_state(parts.model))
        guide = Ensemble(parts.model, guides, states if first else None)
        return Outcome(guide, history, None, f"all {self.members} members done", seconds)


# -- Langevin dynamics -----------------------------------------------------------------------------------------------


@final
class _Langevin(TorchOptim):
    """SGLD among the other optimizers, so that a model's own parameters can have another."""

    torch_class = SGLD


@dataclass(frozen=True)
class _Sampled(Trainer, ABC):
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
class Sgld(_Sampled):
    """SGLD; `burn_in` in epochs, default half of them; `precondition` as in SGLD."""

    burn_in: float | None = None
    precondition: float = 0.0

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Burn in for half of the epochs, if nothing else is said."""
        burn_in = recipe.epochs / 2 if self.burn_in is None else _epochs("burn_in", self.burn_in, recipe)
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
class CyclicSgld(_Sampled):
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
class Lmc(_Sampled):
    """Langevin at full batch, one step to an epoch; `burn_in` in epochs, default half of them."""

    burn_in: float | None = None

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Burn in for half of the epochs, if nothing else is said."""
        burn_in = recipe.epochs / 2 if self.burn_in is None else _epochs("burn_in", self.burn_in, recipe)
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


# -- Hamiltonian Monte Carlo -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hamiltonian(Trainer, ABC):
    """
    What HMC and NUTS have in common; epochs and batches are not used.

    :param chains: run one after another.
    :param warmup: adaptation steps of each.
    :param draws: of each.
    """

    chains: int = MIN_CHAINS
    warmup: int = 500
    draws: int = 500
    target_accept: float = 0.8

    def __post_init__(self) -> None:
        for name in ("chains", "warmup", "draws"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"posterior.{name}={value!r} is not a count: pass an integer of at least 1")

    def run(self, work: Work, kernel: Literal["nuts", "hmc"], **numbers: Any) -> Outcome:
        """Run the chains, each kept in the run folder when it is done, and judge them by what they predict."""
        recipe, parts = work.recipe, work.parts
        if recipe.kl != "uniform":
            raise ValueError(f"kl={recipe.kl!r} is no posterior that a sampler could draw from: use eta to temper it")
        found, history, seconds = [], list(work.history), 0.0
        for c in range(self.chains):
            kept = None if work.folder is None else work.folder / "checkpoint" / work.part / f"chain-{c + 1}.pt"
            held = kept is not None and kept.is_file()
            try:
                done = load_state(cast(Path, kept)) if held else self._chain(work, c, kernel, numbers)
            except KeyboardInterrupt:
                return Outcome(None, history, None, INTERRUPTED, seconds)
            found.append(done["samples"])
            seconds += done["line"]["seconds"]
            history.append({**done["line"], "seconds": seconds})
            if kept is not None and work.folder is not None and not held:
                save_state(kept, done)
                _write_history(work.folder, work.run, history)
        guide = StoredDraws(
            parts.model, num_draws=self.chains * self.draws, chains=self.chains, kind=kernel, states=False
        )
        with torch.no_grad():
            flat = torch.cat([guide.flatten(samples) for samples in found])  # (chains draws, P)
            guide.draws.copy_(flat)
        facts = {"divergences": sum(line["divergences"] for line in history)}
        if self.draws >= 4:
            facts |= _convergence(work, guide)
        return Outcome(guide, history, None, f"all {self.chains} chains done", seconds, facts)

    def _chain(self, work: Work, c: int, kernel: Literal["nuts", "hmc"], numbers: Mapping[str, Any]) -> dict[str, Any]:
        recipe = work.recipe
        started = time.perf_counter()
        chain = run_chain(
            work.parts.model,
            work.parts.data.train,
            kernel=kernel,
            warmup=self.warmup,
            draws=self.draws,
            seed=recipe.seed * 1000 + c,
            eta=recipe.eta,
            temperature=recipe.temperature,
            target_accept=self.target_accept,
            **numbers,
        )
        line = {
            "chain": c + 1,
            "divergences": chain.divergences,
            "acceptance": chain.acceptance,
            "step_size": chain.step_size,
            "seconds": time.perf_counter() - started,
        }
        return {"samples": chain.samples, "line": line}


def _convergence(work: Work, guide: StoredDraws, rows: int = 50) -> dict[str, Any]:
    """Return R-hat and ESS of what the chains predict at some training rows."""
    x = work.parts.data.train.x[:rows]
    found = []
    for s in range(guide.num_draws):
        one = StoredDraws.from_flat(work.parts.model, guide.draws[s : s + 1])
        draw = next(iter(predictive_draws(work.parts.model, one, x, 1)))
        found.append(draw.log_probs.exp() if isinstance(draw, ClassDraw) else draw.mean)
    return convergence(torch.stack(found).unflatten(0, (guide.chains, -1))).to_dict()


@final
@dataclass(frozen=True)
class Nuts(_Hamiltonian):
    """The no-U-turn sampler."""

    max_tree_depth: int = 8

    def __call__(self, work: Work) -> Outcome:
        """Sample."""
        return self.run(work, "nuts", max_tree_depth=self.max_tree_depth)


@final
@dataclass(frozen=True)
class Hmc(_Hamiltonian):
    """Plain HMC."""

    trajectory_length: float = 1.0

    def __call__(self, work: Work) -> Outcome:
        """Sample."""
        return self.run(work, "hmc", trajectory_length=self.trajectory_length)


POSTERIORS: dict[str, type[Trainer]] = {
    "cyclic_sgld": CyclicSgld,
    "ema": Ema,
    "ensemble": DeepEnsemble,
    "hmc": Hmc,
    "hwa": Hwa,
    "laplace": Laplace,
    "lmc": Lmc,
    "low_rank": LowRank,
    "map": Map,
    "mc_dropout": McDropout,
    "ml": MaximumLikelihood,
    "nuts": Nuts,
    "sgld": Sgld,
    "svi": Svi,
    "swa": Swa,
}
