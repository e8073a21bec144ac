"""
Torture the library: kill it, crash it, fill its disk, start it twice, let it run for long; count what was lost.

    python -m torture                             everything: about half an hour on two cores
    python -m torture --share 0.05 --only kills   a twentieth of one part
    python -m torture --json figures.json         the figures for the documents, too

Prints a table of figures and, where something went wrong, what; the exit code is 1 then.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.crashes import crashes, full_disk
from torture.kills import kills
from torture.soak import soak
from torture.together import together

PARTS: dict[str, Callable[[Path, float, int], dict[str, Any]]] = {
    "kills": kills,
    "crashes": crashes,
    "full disk": full_disk,
    "together": together,
    "soak": soak,
}


def _ready() -> None:
    """Import what children need, and compute with one thread: what has threads is not to be forked."""
    import torch

    torch.set_num_threads(1)
    import pyro_bnn.analysis.report.outputs
    import pyro_bnn.cli
    import pyro_bnn.runs.train  # noqa: F401


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m torture", description="Faults on purpose.")
    parser.add_argument("--share", type=float, default=1.0, help="how much of it, from 0 to 1")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="this part; repeat")
    parser.add_argument("--json", type=Path, help="the file for the figures")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if not 0 < given.share <= 1:
        parser.error(f"--share {given.share:g} is not allowed: pass a number above 0, up to 1")
    _ready()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        for name in given.only or PARTS:
            began = time.monotonic()
            figures[name] = PARTS[name](Path(folder) / name.replace(" ", "-"), given.share, given.seed)
            figures[name]["seconds"] = round(time.monotonic() - began, 1)
            shown = ", ".join(f"{key} {value}" for key, value in figures[name].items() if key != "words")
            print(f"{name:10} {shown}", flush=True)
            for words in figures[name]["words"]:
                print(f"{'':10} {words}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"share": given.share, "seed": given.seed, **figures}, indent=1) + "\n")
    return 1 if any(part["words"] for part in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
