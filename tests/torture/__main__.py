"""
The torture, or a share of it: a table on the screen, and the figures as JSON.

    python -m tests.torture                      all of it: about an hour
    python -m tests.torture --share .01          a hundredth of every count
    python -m tests.torture --only recipes       one row; repeat for others
    python -m tests.torture --document docs/trust.md     put the figures of the last run into that page
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from pyro_bnn.common.files import insert_between
from tests.torture import fuzz_checkpoints, fuzz_commands, fuzz_files, fuzz_posteriors, fuzz_recipes
from tests.torture.oracle import Tally

ROWS: list[tuple[str, Callable[[int, int], Tally], int]] = [
    ("posterior, tensors damaged", fuzz_posteriors.tensors, 10_000),
    ("posterior, description or manifest damaged", fuzz_posteriors.descriptions, 10_000),
    ("posterior, by a hostile author", fuzz_posteriors.hostile, 10_000),
    ("checkpoints damaged", fuzz_checkpoints.checkpoints, 10_000),
    ("recipes", fuzz_recipes.recipes, 100_000),
    ("command lines", fuzz_commands.commands, 10_000),
    ("data files", fuzz_files.data, 10_000),
    ("files to predict for", fuzz_files.predicted, 10_000),
]
"""Name, function of a count and a seed, and the full count."""

FIGURES = Path("docs/torture.json")


def table(figures: dict[str, dict[str, object]]) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        "| tried | cases | same or accepted | refused | not as promised | slowest | on |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for name, row in figures.items():
        cells = (name, f"{row['cases']:,}", f"{row['same']:,}", f"{row['refused']:,}", f"{row['bad']:,}")
        lines.append("| " + " | ".join((*cells, f"{row['slowest']:.1f} s", str(row["date"]))) + " |")
    return "\n".join(lines)


def figures_of(tally: Tally, seconds: float) -> dict[str, object]:
    """Return what came out as plain data."""
    outcomes = dict(sorted(tally.outcomes.items()))
    return {
        "cases": sum(outcomes.values()),
        "same": outcomes.get("same", 0) + outcomes.get("accepted", 0),
        "refused": outcomes.get("refused", 0),
        "bad": tally.bad,
        "outcomes": outcomes,
        "slowest": round(tally.slowest, 2),
        "seconds": round(seconds, 1),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "python": platform.python_version(),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if anything was not as promised."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of every count, up to 1")
    parser.add_argument("--only", action="append", help="rows whose name begins so; repeat")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the file of figures; rows that ran are replaced")
    parser.add_argument("--document", type=Path, help="run nothing; put the table between the marks of this page")
    given = parser.parse_args(arguments)
    figures = json.loads(given.figures.read_text()) if given.figures.is_file() else {}
    if given.document is not None:
        page = insert_between(given.document.read_text(), "torture", table(figures))
        given.document.write_text(page)
        return 0
    bad = 0
    for name, function, count in ROWS:
        if given.only and not any(name.startswith(start) for start in given.only):
            continue
        started = time.perf_counter()
        tally = function(max(1, round(count * given.share)), given.seed)
        figures[name] = figures_of(tally, time.perf_counter() - started)
        bad += tally.bad
        print(table({name: figures[name]}).splitlines()[-1], dict(tally.outcomes), flush=True)
        for example in tally.examples:
            print(f"    {example}", flush=True)
        given.figures.parent.mkdir(parents=True, exist_ok=True)
        given.figures.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
