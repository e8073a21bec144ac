"""One run of a kind, what it leaves, and whether another leaves the same."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torture.kinds import recipe_of
from torture.process import Ended, child, wait

__all__ = ["check_same", "fingerprint", "finish", "train_in"]


def train_in(folder: Path, kind: str, *, report: bool | None = None) -> int:
    """Train a kind in a folder, going on with what is there; with a report if the kind is called so."""
    from pyro_bnn.runs.train import train

    train(recipe_of(kind), out=folder, progress=False, report=kind == "report" if report is None else report)
    return 0


def finish(folder: Path, kind: str, log: Path) -> None:
    """Train to the end, in a child."""
    code = wait(child(lambda: train_in(folder, kind), log))
    if code:
        raise Ended(f"{kind}: not to be gone on with, exit code {code}: {last_words(log)}")


def last_words(log: Path) -> str:
    """Return the last line that a child wrote."""
    lines = log.read_text().splitlines() if log.is_file() else []
    return lines[-1][:300] if lines else "no words"


def fingerprint(folder: Path, kind: str) -> dict[str, Any]:
    """Return what a finished run leaves, but for times; a file that is damaged, missing or left over is an error."""
    from pyro_bnn.common.files import is_leftover
    from pyro_bnn.common.manifest import damaged

    wrong = damaged(folder)
    left = [str(path) for path in folder.rglob("*") if is_leftover(path.name)]
    lacking = [name for name in ("posterior.nc", "report.html") if kind == "report" and not (folder / name).is_file()]
    if wrong or left or lacking:
        raise Ended(f"{kind}: damaged {wrong}, left over {left}, lacking {lacking}")
    results = json.loads((folder / "results.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "posterior": hashlib.sha256((folder / "posterior.safetensors").read_bytes()).hexdigest(),
        "test": results["test"],
        "changes": [change["rates"] for change in results["changes"]],
        "history": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
    }


def check_same(found: dict[str, Any], wanted: dict[str, Any], kind: str) -> None:
    """Raise where two runs did not leave the same."""
    for key, value in wanted.items():
        if found[key] != value:
            raise Ended(f"{kind}: another {key} than that of the run that nobody killed")
