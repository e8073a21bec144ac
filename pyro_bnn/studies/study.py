"""
What a study is: a claim, trials that test it, and a rule fixed before any of them runs.

A trial is one training (a recipe, a variant, changes) or one computation (a function of this package), for one seed.
Its `cell` is the arm of the comparison that it belongs to; trials of one seed in different cells are pairs: they share
the seed, and with it the rows, their order and the start.
"""

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from pyro_bnn.recipe import Recipe, find_recipe
from pyro_bnn.studies.findings import Finding

if TYPE_CHECKING:
    from pyro_bnn.studies.figures import Figure

__all__ = ["Results", "Scale", "Study", "Trial"]

Scale: TypeAlias = Literal["smoke", "cpu", "source"]
"""The size of a study: a look at whether it runs, what a CPU does in reasonable time, the source's own."""

_NO_PART_OF_A_RESULT = ("name", "description", "source", "device", "budget", "paper")


@final
@dataclass(frozen=True)
class Trial:
    """
    One run of one cell.

    :param cell: the arm of the comparison.
    :param seed: the pair that it belongs to.
    :param recipe: the recipe it trains; its test rows are scored by `num_samples` draws, as the recipe says.
    :param variant: of the recipe.
    :param changes: recipe keys to change, dotted.
    :param compute: in the place of a recipe, "package.module:function", called with `arguments` and `seed`; it returns
        numbers by name.
    """

    cell: str
    seed: int
    recipe: str = ""
    variant: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    compute: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.recipe) == bool(self.compute):
            raise ValueError(f"trial {self.cell!r}: give a recipe or a function to compute, one of them")

    def settled(self) -> Recipe:
        """Return the recipe with variant, changes and seed."""
        return find_recipe(self.recipe, self.variant).changed({**self.changes, "seed": self.seed})

    def content(self) -> dict[str, Any]:
        """Return all that the result depends on; trials of the same content are one."""
        if self.compute:
            code = _code_of(self.compute.partition(":")[0])
            return {"compute": self.compute, "arguments": dict(self.arguments), "seed": self.seed, "code": code}
        recipe = self.settled().model_dump()
        left_out = {*_NO_PART_OF_A_RESULT, *(() if recipe["on_divergence"] else ("on_divergence",))}
        return {key: value for key, value in recipe.items() if key not in left_out}

    def key(self) -> str:
        """Return the hash of the content."""
        return hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()[:20]

    def command(self) -> str:
        """Return the command that trains the same."""
        if self.compute:
            return (
                f"{self.compute}({', '.join(f'{k}={v!r}' for k, v in {**self.arguments, 'seed': self.seed}.items())})"
            )
        variant = f" --variant {self.variant}" if self.variant else ""
        changes = "".join(f" --set '{key}={_toml(value)}'" for key, value in self.changes.items())
        return f"pyro-bnn train {self.recipe}{variant}{changes} --set seed={self.seed}"


def _code_of(module: str) -> str:
    """Return the hash of a module's source: a function that was changed is another trial."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:20]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


@final
class Results:
    """The numbers of all trials, by cell, seed and metric; what diverged or was never measured is nan."""

    def __init__(self, trials: Sequence[Trial], records: Mapping[str, Mapping[str, Any]]) -> None:
        self.trials = tuple(trials)
        self._records = {(trial.cell, trial.seed): records[trial.key()] for trial in trials}
        if len(self._records) != len(self.trials):
            raise ValueError("two trials have the same cell and seed")
        self.cells = tuple(dict.fromkeys(trial.cell for trial in trials))

    def seeds(self, cell: str) -> list[int]:
        """Return the seeds of a cell, in order."""
        return sorted(trial.seed for trial in self.trials if trial.cell == cell)

    def values(self, cell: str, metric: str) -> NDArray[np.float64]:
        """Return a metric of a cell's trials, by seed."""
        found = [self._records[cell, seed].get(metric) for seed in self.seeds(cell)]
        return np.array([np.nan if value is None else float(value) for value in found])

    def paired(self, a: str, b: str, metric: str) -> NDArray[np.float64]:
        """Return a - b over the seeds that both have."""
        seeds = [seed for seed in self.seeds(a) if (b, seed) in self._records]
        if not seeds:
            raise ValueError(f"cells {a!r} and {b!r} share no seed")
        at = {cell: dict(zip(self.seeds(cell), self.values(cell, metric), strict=True)) for cell in (a, b)}
        return np.array([at[a][seed] - at[b][seed] for seed in seeds])

    def curve(self, cell: str, metric: str) -> list[list[float]]:
        """Return a metric after each epoch, a list for each seed."""
        return [[line[metric] for line in self._records[cell, seed].get("history", ())] for seed in self.seeds(cell)]

    def record(self, cell: str, seed: int) -> Mapping[str, Any]:
        """Return all that one trial left."""
        return self._records[cell, seed]

    def diverged(self) -> list[str]:
        """Return which trials ended without numbers, and why."""
        return [f"{cell}, seed {seed}: {r['diverged']}" for (cell, seed), r in self._records.items() if "diverged" in r]


@final
@dataclass(frozen=True)
class Study:
    """
    A claim and how it is tested.

    :param name: what the command calls it.
    :param claim: in the source's words and symbols, as far as they are right.
    :param source: author, title and year.
    :param place: where in the source.
    :param varied: what differs between the cells.
    :param measured: what is compared.
    :param rule: when the claim is confirmed, contradicted or neither, in words.
    :param not_done: what the source did that is not done here, by scale where it differs.
    :param design: scale -> trials.
    :param judge: results -> findings; the claim's own first, the controls' after them (`decides=False`).
    :param metric: what the picture shows, and its name.
    :param scales: at which scales it can be run; the largest is a source's own size.
    :param explained: two sentences about a contradiction, or what a reader should know of the outcome.
    :param figures: results -> curves and landscapes that the picture shows, too; a landscape in the place of the cells.
    """

    name: str
    claim: str
    source: str
    place: str
    varied: str
    measured: str
    rule: str
    not_done: str
    design: Callable[[Scale], list[Trial]]
    judge: Callable[[Results], list[Finding]]
    metric: tuple[str, str] = ("accuracy", "test accuracy")
    scales: tuple[Scale, ...] = ("smoke", "cpu", "source")
    explained: str = ""
    figures: "Callable[[Results], Sequence[Figure]] | None" = None
