"""
Trials are run once: each leaves a record under the hash of its content, which every study finds again.

A record is a dictionary of numbers: of a training the results table of its test rows (`s_draws`), the last epoch's
`train_nll`, `train_kl`, `train_loss`, and `history`, a line per epoch; of a computation what it returns. A training
that diverged leaves the reason under `diverged`. Records hold no dates and no times, so that the same seed gives the
same record; the seconds that a processor computed for it are written beside them (`KEY.cpu_seconds`; `KEY.seconds`, by
the clock, are those of earlier trials). Records of another version of the library are not used.

Trials run side by side, one thread each (:mod:`pyro_bnn.runs.jobs`).
"""

import importlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_bnn.common.files import write_text
from pyro_bnn.runs.jobs import Task, check_jobs, environment, side_by_side
from pyro_bnn.studies.study import Trial
from pyro_bnn.version import __version__

if TYPE_CHECKING:
    from pyro_bnn.runs.train import Run

__all__ = ["default_store", "run_trials", "stored", "took"]

_EPOCH = ("nll", "kl", "loss", "val_nll", "val_accuracy")


def default_store() -> Path:
    """Return where records are kept: PYRO_BNN_STUDIES, else runs/studies."""
    return Path(os.environ.get("PYRO_BNN_STUDIES", "runs/studies"))


def run_trials(
    trials: Sequence[Trial],
    store: Path,
    *,
    jobs: int = 1,
    ray: str | None = None,
    data_root: str | Path | None = None,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> dict[str, dict[str, Any]]:
    """
    Return the record of every trial by its key; run those that have none.

    :param store: the folder of the records.
    :param jobs: processes side by side.
    :param ray: "local" or the address of a Ray cluster, whose machines all see the store.
    :param done: told the number of trials finished, and of all, after each.
    """
    check_jobs(jobs)
    wanted = {trial.key(): trial for trial in trials}
    records = {key: found for key in wanted if (found := _read(store, key)) is not None}
    missing = [trial for key, trial in wanted.items() if key not in records]
    done(len(records), len(wanted))
    for trial, record in _each(missing, store, jobs, data_root, ray):
        records[trial.key()] = record
        done(len(records), len(wanted))
    return records


def _each(
    trials: Sequence[Trial], store: Path, jobs: int, data_root: str | Path | None, ray: str | None
) -> Iterator[tuple[Trial, dict[str, Any]]]:
    named = {f"{trial.cell}, seed {trial.seed} ({trial.key()})": trial for trial in trials}
    where = {"store": store.absolute() if ray else store, "data_root": data_root}
    tasks = [Task(name, _run, {"trial": trial, **where}) for name, trial in named.items()]
    for done in side_by_side(tasks, jobs, ray=ray):
        yield named[done.task.name], done.result()


def _read(store: Path, key: str) -> dict[str, Any] | None:
    path = store / f"{key}.json"
    if not path.is_file():
        return None
    kept: dict[str, Any] = json.loads(path.read_text())
    if kept.get("pyro_bnn") != __version__:  # another version may compute something else
        return None
    found: dict[str, Any] = kept["record"]
    return found


def stored(trial: Trial, store: Path) -> dict[str, Any] | None:
    """Return the record of a trial, None if it was not run."""
    return _read(store, trial.key())


def took(trials: Sequence[Trial], store: Path) -> dict[str, float]:
    """Return the seconds that trials took, added up: `cpu_seconds`, and `seconds` by the clock where that is all."""
    sums: dict[str, float] = {}
    for key in sorted({trial.key() for trial in trials}):
        for kind in ("cpu_seconds", "seconds"):
            path = store / f"{key}.{kind}"
            if path.is_file():
                sums[kind] = sums.get(kind, 0.0) + float(path.read_text())
                break
    return {kind: round(value, 3) for kind, value in sums.items()}


def _run(trial: Trial, store: Path, data_root: str | Path | None) -> dict[str, Any]:
    started = time.process_time()
    record = _computed(trial, data_root) if trial.compute else _trained(trial, store, data_root)
    write_text(store / f"{trial.key()}.cpu_seconds", f"{time.process_time() - started:.3f}\n")
    kept = {"content": trial.content(), "record": record, "pyro_bnn": __version__}
    write_text(store / f"{trial.key()}.json", json.dumps(kept, sort_keys=True) + "\n")
    return record


def _computed(trial: Trial, data_root: str | Path | None) -> dict[str, Any]:
    module, _, name = trial.compute.partition(":")
    function = getattr(importlib.import_module(module), name)
    with environment(PYRO_BNN_DATA=None if data_root is None else str(data_root)):
        return {key: _number(value) for key, value in function(**trial.arguments, seed=trial.seed).items()}


def _trained(trial: Trial, store: Path, data_root: str | Path | None) -> dict[str, Any]:
    from pyro_bnn.inference.fit_state import Diverged
    from pyro_bnn.runs.train import train

    folder = store / "unfinished" / trial.key()

    def begin() -> "Run":
        return train(trial.settled(), out=folder, data_root=data_root, progress=False, report=False)

    try:
        try:
            run = begin()
        except (ValueError, OSError):  # what is there cannot be gone on with, such as what another version left
            if not folder.is_dir():
                raise
            shutil.rmtree(folder)
            run = begin()
    except Diverged as error:
        shutil.rmtree(folder, ignore_errors=True)
        why, _, _ = str(error).partition("; to go on from")  # which would name this folder
        return {"diverged": why}
    if not run.finished:
        raise KeyboardInterrupt
    test: Mapping[str, Any] = run.results["test"]
    record: dict[str, Any] = {key: _number(value) for key, value in test["s_draws"].items()}
    last = run.history[-1] if run.history else {}
    record |= {f"train_{key}": _number(last[key]) for key in ("nll", "kl", "loss") if key in last}
    record["history"] = [{key: _number(line[key]) for key in _EPOCH if key in line} for line in run.history]
    shutil.rmtree(folder, ignore_errors=True)
    return record


def _number(value: Any) -> Any:
    """Return a value as JSON has it: no nan, and no infinity."""
    if isinstance(value, (list, tuple)):
        return [_number(inner) for inner in value]
    if isinstance(value, (str, bool, int)):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
