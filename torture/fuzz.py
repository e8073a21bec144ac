"""Hostile and damaged files, recipes and command lines: every part, its full count, and what came out as figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture import fuzz_checkpoints, fuzz_commands, fuzz_files, fuzz_posteriors, fuzz_recipes
from torture.oracle import Tally

__all__ = ["FUZZ", "fuzzed"]

FUZZ: dict[str, tuple[Callable[[int, int], Tally], int]] = {
    "posterior tensors": (fuzz_posteriors.tensors, 10_000),
    "posterior descriptions": (fuzz_posteriors.descriptions, 10_000),
    "hostile posteriors": (fuzz_posteriors.hostile, 10_000),
    "checkpoints": (fuzz_checkpoints.checkpoints, 10_000),
    "recipes": (fuzz_recipes.recipes, 100_000),
    "command lines": (fuzz_commands.commands, 10_000),
    "data files": (fuzz_files.data, 10_000),
    "predict files": (fuzz_files.predicted, 10_000),
}
"""Name: a function of a count and a seed, and the full count."""


def fuzzed(name: str) -> Callable[[Path, float, int], dict[str, Any]]:
    """Return a part that fuzzes: of a folder, a share and a seed."""
    function, count = FUZZ[name]

    def part(folder: Path, share: float, seed: int) -> dict[str, Any]:
        return figures_of(function(max(1, round(count * share)), seed))

    return part


def figures_of(tally: Tally) -> dict[str, Any]:
    """Return what came out; `words` are those of cases that were not as promised."""
    outcomes = tally.outcomes
    return {
        "cases": sum(outcomes.values()),
        "same": outcomes["same"] + outcomes["accepted"],
        "refused": outcomes["refused"],
        "not as promised": tally.bad,
        "slowest": round(tally.slowest, 2),
        "words": tally.examples,
    }
