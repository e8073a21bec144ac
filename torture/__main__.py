"""
Torture the library: kill it, crash it, fill its disk, start it twice, let it run for long; count what was lost.

    python -m torture                             everything: about forty minutes on two idle cores
    python -m torture --share 0.05 --only kills   a twentieth of one part
    python -m torture --json figures.json         the figures for the documents, too; those of other parts stay
    python -m torture --json figures.json --document docs/trust.md     run nothing; put its figures into that page

Prints a table of figures and, where something went wrong, what; the exit code is 1 then.
"""

import argparse
import importlib
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyro_bnn.common.files import insert_between, write_text
from pyro_bnn.common.limits import Limits
from torture.crashes import crashes, folder_gone, full_disk, read_only
from torture.fuzz import FUZZ, fuzzed
from torture.kills import kills
from torture.ranks import rank_kills
from torture.soak import soak
from torture.together import together

PARTS: dict[str, Callable[[Path, float, int], dict[str, Any]]] = {
    "kills": kills,
    "ranks": rank_kills,
    "crashes": crashes,
    "full disk": full_disk,
    "read-only folder": read_only,
    "folder gone": folder_gone,
    "together": together,
    "soak": soak,
    **{name: fuzzed(name) for name in FUZZ},
}


def _ready() -> None:
    """
    Import what children need, and compute with one thread: what has threads is not to be forked.

    With it goes what is otherwise imported when it is first used, or children would do little else: a kill is to meet
    a training, and not its imports. And the export for ArviZ gets a tenth of its draws: its files are made by the same
    calls, and it would take most of the time. Runs write their state after every epoch: these are over before the
    first one would be due.
    """
    import torch

    from pyro_bnn.methods.base import CHECKPOINTS

    os.environ[CHECKPOINTS] = "epoch"
    torch.set_num_threads(1)
    for name in _USED_LATE:
        importlib.import_module(name)
    from pyro_bnn.analysis.report import outputs

    outputs._DRAWS, outputs._PRIOR_DRAWS = 20, 5


_USED_LATE = (
    "pyro_bnn.analysis.report.outputs",
    "pyro_bnn.cli",
    "pyro_bnn.runs.train",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "arviz",
    "h5netcdf.legacyapi",
    "jinja2",
    "matplotlib.pyplot",
    "torch._dynamo",
    "torchmetrics",
)


def _cpu_seconds() -> float:
    """Return what this process and its children have computed, whatever else the machine does."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table in Markdown, a row for each part that was run."""
    lines = ["| part | share | figures | gone wrong | on |", "|---|--:|---|--:|---|"]
    for name, part in figures.items():
        said = ", ".join(f"{key} {value}" for key, value in part.items() if key not in _ABOUT)
        lines.append(f"| {name} | {part['share']:g} | {said} | {len(part['words'])} | {part['date']} |")
    return "\n".join(lines)


def limits_table() -> str:
    """Return every limit with its default, from the table in the source."""
    said = dict(re.findall(r":param (\w+): (.*?)(?=\n\s*:param|\Z)", str(Limits.__doc__), flags=re.DOTALL))
    rows = [f"| `{f.name}` | {f.default:,} | {' '.join(said[f.name].split())} |" for f in fields(Limits)]
    return "\n".join(["| limit | default | of what |", "|---|--:|---|", *rows])


_ABOUT = ("words", "share", "seed", "date")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m torture", description="Faults on purpose.")
    parser.add_argument("--share", type=float, default=1.0, help="how much of it, from 0 to 1")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="this part; repeat")
    parser.add_argument("--json", type=Path, help="the file for the figures; what it holds of other parts stays")
    parser.add_argument("--document", type=Path, help="run nothing: the page into which the figures of --json go")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if not 0 < given.share <= 1:
        parser.error(f"--share {given.share:g} is not allowed: pass a number above 0, up to 1")
    figures: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.is_file() else {}
    if given.document is not None:
        page = insert_between(given.document.read_text(), "torture", table(figures))
        write_text(given.document, insert_between(page, "limits", limits_table()))
        return 0
    if given.only is None:
        minutes = max(1, round(40 * given.share))
        print(f"about {minutes} minutes on two idle cores; parts by themselves: --only", flush=True)
    _ready()
    failed = False
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        for name in given.only or PARTS:
            began, computed = time.monotonic(), _cpu_seconds()
            figures[name] = PARTS[name](Path(folder) / name.replace(" ", "-"), given.share, given.seed)
            figures[name] |= {"seconds": round(time.monotonic() - began, 1)}
            figures[name] |= {"of computing": round(_cpu_seconds() - computed, 1)}
            figures[name] |= {"share": given.share, "seed": given.seed}
            figures[name]["date"] = datetime.now(timezone.utc).date().isoformat()
            failed = failed or bool(figures[name]["words"])
            shown = ", ".join(f"{key} {value}" for key, value in figures[name].items() if key != "words")
            print(f"{name:10} {shown}", flush=True)
            for words in figures[name]["words"]:
                print(f"{'':10} {words}", flush=True)
            if given.json is not None:
                write_text(given.json, json.dumps(figures, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
