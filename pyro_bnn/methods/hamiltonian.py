"""The draws of Hamiltonian chains: NUTS and HMC, and whether they may stand for the posterior."""

import logging
import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, final

import torch

from pyro_bnn.common.manifest import Damaged, is_sealed
from pyro_bnn.data.split import Split
from pyro_bnn.guides import AutoPoint, StoredDraws
from pyro_bnn.inference.checkpoint import load_state, older_version, save_state
from pyro_bnn.inference.predictive import predictive_draws
from pyro_bnn.inference.progress import ProgressBar, ProgressLine
from pyro_bnn.inference.samplers.mcmc import (
    MIN_CHAINS,
    MIN_DRAWS,
    STARTS,
    Start,
    check_sampled,
    convergence,
    run_chain,
)
from pyro_bnn.methods.base import (
    INTERRUPTED,
    Method,
    Outcome,
    Work,
    check_count,
    check_number,
    checkpoints,
    make_folder_below,
    recipe_point,
    write_history,
)
from pyro_bnn.recipe import Recipe

if TYPE_CHECKING:
    from pyro_bnn.assemble import Assembly

log = logging.getLogger(__name__)

__all__ = ["Hamiltonian", "Hmc", "Nuts"]


@dataclass(frozen=True)
class Hamiltonian(Method, ABC):
    """
    What HMC and NUTS have in common; epochs and batches are not used.

    :param chains: run one after another, or side by side.
    :param warmup: adaptation steps of each.
    :param draws: of each, at least 4: fewer say nothing about convergence.
    :param target_accept: the acceptance that the step size is adapted to.
    :param start: where chains begin: 'uniform' on (-2, 2) in unconstrained space, or 'prior', at a draw of it.
    """

    chains: int = MIN_CHAINS
    warmup: int = 500
    draws: int = 500
    target_accept: float = 0.8
    start: Start = "uniform"

    def __post_init__(self) -> None:
        for name, least in (("chains", 1), ("warmup", 1), ("draws", MIN_DRAWS)):
            check_count(name, getattr(self, name), least)
        check_number("target_accept", self.target_accept, "between 0 and 1", lambda v: 0 < v < 1)
        if self.start not in STARTS:
            raise ValueError(f"method.start={self.start!r} is unknown: pass {' or '.join(map(repr, STARTS))}")

    def resolved(self, recipe: Recipe) -> Method:
        """Refuse another device before anything is drawn: chains of small networks run in float64 on the CPU."""
        if recipe.device != "cpu":
            raise ValueError(f"device={recipe.device!r}: chains are drawn on the CPU: leave device at 'cpu'")
        if recipe.kl != "uniform":
            raise ValueError(f"kl={recipe.kl!r} is no posterior that a sampler could draw from: use eta to temper it")
        return self

    def make_guide(self, recipe: Recipe, model: Any) -> AutoPoint:
        """Return a point, which stands for the chains until they have their draws."""
        return recipe_point(recipe, model)

    def check(self, parts: "Assembly") -> None:
        """Refuse a model that the chains cannot sample."""
        check_sampled(parts.model, cast(Split, parts.data.train))

    def units(self) -> list[str]:
        """Return the chains."""
        return [f"chain-{c + 1}" for c in range(self.chains)]

    def do_unit(self, work: Work, name: str) -> None:
        """Run a chain."""
        if name not in self.units():
            super().do_unit(work, name)
        self._kept_chain(work, self.units().index(name))

    @abstractmethod
    def kernel(self) -> tuple[Literal["nuts", "hmc"], dict[str, Any]]:
        """Return the kernel's name and its own numbers."""

    def __call__(self, work: Work) -> Outcome:
        """Run the chains, each kept in the run folder when it is done, and judge them by what they predict."""
        parts, (kernel, _) = work.parts, self.kernel()
        chains, stats, history, seconds = [], [], list(work.history), 0.0
        for c in range(self.chains):
            try:
                done = self._kept_chain(work, c)
            except KeyboardInterrupt:
                return Outcome(None, history, None, INTERRUPTED, seconds)
            chains.append(done["samples"])
            stats.append(done.get("stats"))  # none in what an earlier version left
            seconds += done["line"]["seconds"]
            history.append({**done["line"], "seconds": seconds})
            if work.folder is not None:
                write_history(work.folder, history)
        noted = [s for s in stats if s is not None]
        names = list(noted[0]) if len(noted) == self.chains else []
        guide = StoredDraws(
            parts.model, num_draws=self.chains * self.draws, chains=self.chains, kind=kernel, states=False, stats=names
        )
        guide.build(parts.data.train.x)
        with torch.no_grad():
            flat = torch.cat([guide.flatten(samples) for samples in chains])  # (chains draws, P)
            guide.draws.copy_(flat)
            for name in names:
                guide.get_buffer(f"stat_{name}").copy_(torch.cat([s[name] for s in noted]))
        facts = {"divergences": sum(line["divergences"] for line in history)}
        facts |= _convergence(work, guide)
        return Outcome(guide, history, None, f"all {self.chains} chains done", seconds, facts)

    def _kept_chain(self, work: Work, c: int) -> dict[str, Any]:
        """Return a chain, from the run folder if it was finished before."""
        if work.folder is None:
            return self._chain(work, c)
        folder, part = checkpoints(work.folder, work.part), f"{work.part}/chain-{c + 1}".strip("/")
        kept = folder / f"chain-{c + 1}"
        if kept.with_suffix(".pt").is_file():
            raise older_version(kept.with_suffix(".pt"))
        if is_sealed(kept):
            try:
                return load_state(kept, runs=work.runs, part=part)
            except Damaged as error:
                log.warning("%s; it is drawn again", str(error).partition(";")[0])
        done = self._chain(work, c)
        make_folder_below(work.folder, folder)
        save_state(kept, done, run=work.runs[0], part=part)
        return done

    def _chain(self, work: Work, c: int) -> dict[str, Any]:
        recipe, (kernel, numbers) = work.recipe, self.kernel()
        started = time.perf_counter()
        shown = [one for one in work.callbacks if isinstance(one, ProgressBar) and one.is_shown]
        words, total = f"chain {c + 1} of {self.chains}, draw", self.warmup + self.draws
        bar = ProgressLine(words, total, shown[0].stream) if shown else None
        chain = run_chain(
            work.parts.model,
            work.rows_at_hand.to("cpu"),
            kernel=kernel,
            warmup=self.warmup,
            draws=self.draws,
            seed=recipe.seed * 1000 + c,
            eta=recipe.eta,
            temperature=recipe.temperature,
            target_accept=self.target_accept,
            start=self.start,
            hook=None if bar is None else lambda _: bar.advance(),
            **numbers,
        )
        if bar is not None:
            bar.end()
        line = {
            "chain": c + 1,
            "divergences": chain.divergences,
            "acceptance": chain.acceptance,
            "step_size": chain.step_size,
            "seconds": time.perf_counter() - started,
        }
        stats = {"energy": chain.energy, "diverging": chain.diverging}
        return {"samples": chain.samples, "stats": stats, "line": line}


def _convergence(work: Work, guide: StoredDraws, rows: int = 50) -> dict[str, Any]:
    """Return R-hat and ESS of what the chains predict at some training rows."""
    x = work.parts.data.first_rows(rows).x
    predictions = []
    alone = StoredDraws.from_flat(work.parts.model, guide.draws[:1], x)
    for s in range(guide.num_draws):
        with torch.no_grad():
            alone.draws.copy_(guide.draws[s : s + 1])
        draw = next(iter(predictive_draws(work.parts.model, alone, x, 1)))
        predictions.append(draw.prediction)
    return convergence(torch.stack(predictions).unflatten(0, (guide.chains, -1))).to_dict()


@final
@dataclass(frozen=True)
class Nuts(Hamiltonian):
    """
    The no-U-turn sampler.

    :param max_tree_depth: a trajectory is doubled at most so often.
    """

    max_tree_depth: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_tree_depth", self.max_tree_depth)

    def kernel(self) -> tuple[Literal["nuts", "hmc"], dict[str, Any]]:
        """Return NUTS and its depth."""
        return "nuts", {"max_tree_depth": self.max_tree_depth}


@final
@dataclass(frozen=True)
class Hmc(Hamiltonian):
    """
    Plain HMC.

    :param trajectory_length: of one proposal: step size times leapfrog steps.
    """

    trajectory_length: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("trajectory_length", self.trajectory_length, "above 0", lambda v: 0 < v < math.inf)

    def kernel(self) -> tuple[Literal["nuts", "hmc"], dict[str, Any]]:
        """Return HMC and its trajectory."""
        return "hmc", {"trajectory_length": self.trajectory_length}
