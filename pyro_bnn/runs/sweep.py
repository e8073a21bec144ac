"""
A sweep: one recipe trained with many settings, drawn at random or all of a grid, and compared on validation rows.

Trial n has the settings that follow from the sweep's seed and n (:mod:`pyro_bnn.runs.vary`) and a run folder of its
own. When it is trained, its posterior is scored on the validation rows, and that is the record it leaves; test rows
decide nothing, and are in no table of the sweep. A sweep that was killed in whatever way goes on when it is started
again: trials with a record are not repeated, trials that were begun go on from their last epoch. A trial that failed
is tried again; one that diverged is done, and has no score.

    OUT/sweep.json         what is swept: another sweep is refused in this folder, more runs of this one are not
    OUT/trial-007/         a run folder
    OUT/records/007.json   the record of the trial
    OUT/trials.csv         a line for each, and trials.parquet where pyarrow is installed
    OUT/sweep.svg          the score over each varied key

Trials run in processes of their own with one thread each (:mod:`pyro_bnn.runs.jobs`), or through Ray Tune
(:mod:`pyro_bnn.runs.tune`). Either way a trial gives the same bits.
"""

import csv
import importlib.util
import io
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from pyro_bnn.common.errors import summary
from pyro_bnn.common.files import atomic_write, make_folder, write_text
from pyro_bnn.common.limits import check_limit
from pyro_bnn.recipe import Recipe, find_recipe
from pyro_bnn.runs.folder import Busy, locked
from pyro_bnn.runs.jobs import Task, check_jobs, side_by_side
from pyro_bnn.runs.vary import Vary, parse_vary

__all__ = ["METRIC", "Plan", "Sweep", "read_record", "run_trial", "sweep", "trial_folder", "write_record"]

METRIC = "val_nll"
"""What trials are compared by: the predictive NLL of the posterior on its validation rows."""

FINISHED, DIVERGED, STOPPED, FAILED = "finished", "diverged", "stopped", "failed"
DONE = (FINISHED, DIVERGED, STOPPED)
"""What a trial may be that is not run again."""

RETRIES = 2
"""How often a trial whose process died goes on in a new one."""

_PATIENCE = 60.0
"""Seconds to wait for a process of an earlier start that has not noticed yet that it is alone."""


@final
@dataclass(frozen=True)
class Plan:
    """
    What is swept.

    :param runs: how many trials; in a grid the number of its points.
    :param grid: whether the trials are all combinations of lists, in their order, and not draws.
    """

    recipe: Recipe
    vary: tuple[Vary, ...]
    runs: int
    seed: int = 0
    grid: bool = False

    @classmethod
    def of(cls, recipe: Recipe, vary: Sequence[Vary], runs: int | None, seed: int = 0) -> "Plan":
        """Return the plan of a sweep; without a number of runs it is the grid of its lists."""
        keys = [one.key for one in vary]
        if not vary or len(set(keys)) < len(keys):
            raise ValueError(f"--vary has the keys {keys}: name at least one key, and each once")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"--seed {seed!r} is not allowed: pass a whole number of at least 0")
        if runs is None:
            drawn = [str(one) for one in vary if one.law]
            if drawn:
                raise ValueError(f"--vary {drawn[0]} is drawn at random: say how often with --runs")
            runs = math.prod(len(one.choices) for one in vary)
            plan = cls(recipe, tuple(vary), runs, seed, grid=True)
        else:
            if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
                raise ValueError(f"--runs {runs!r} is not a number of trials: pass at least 1")
            plan = cls(recipe, tuple(vary), runs, seed)
        check_limit("members", runs, "trials of a sweep")
        plan.check()
        return plan

    def check(self) -> None:
        """Refuse settings that the recipe refuses, and trials without validation rows."""
        for number in range(self.runs):
            try:
                recipe = self.settled(number)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"trial {number} has {_words(self.settings(number))}, and {error}; a law may be given bounds: "
                    f"normal(mean,sd,low,high)"
                ) from None
            if not recipe.val_fraction:
                raise ValueError(
                    f"val_fraction=0 in trial {number}: a sweep chooses by validation rows: set it above 0"
                )

    def settings(self, number: int) -> dict[str, Any]:
        """Return what is changed in a trial."""
        if self.grid:
            points = itertools.product(*(one.choices for one in self.vary))
            point = next(itertools.islice(points, number, None))
            return {one.key: value for one, value in zip(self.vary, point, strict=True)}
        return {one.key: one.draw(self.seed, number) for one in self.vary}

    def settled(self, number: int) -> Recipe:
        """Return the recipe of a trial."""
        return self.recipe.changed(self.settings(number))

    def described(self) -> dict[str, Any]:
        """Return what is written down of the plan, but for the number of runs."""
        words = [str(one) for one in self.vary]
        return {"recipe": self.recipe.model_dump(), "vary": words, "seed": self.seed, "grid": self.grid}


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())


@final
@dataclass(frozen=True)
class Sweep:
    """
    A sweep that was run: its folder, and a row for every trial in their order.

    A row has `trial`, the varied keys, `status` (finished, diverged, stopped by ASHA, failed), the scores on validation
    rows `val_nll`, `val_accuracy` or `val_rmse`, ..., and how the training went.
    """

    folder: Path
    rows: list[dict[str, Any]]

    @property
    def best(self) -> dict[str, Any] | None:
        """The finished trial with the lowest predictive NLL on validation rows."""
        scored = [row for row in self.rows if row["status"] == FINISHED and row.get(METRIC) is not None]
        return min(scored, key=lambda row: row[METRIC], default=None)


def trial_folder(folder: Path, number: int) -> Path:
    """Return the run folder of a trial."""
    return folder / f"trial-{number:03d}"


def _record(folder: Path, number: int) -> Path:
    return folder / "records" / f"{number:03d}.json"


def read_record(folder: Path, number: int) -> dict[str, Any] | None:
    """Return what a trial left, None if it left nothing."""
    path = _record(folder, number)
    if not path.is_file():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def write_record(folder: Path, number: int, record: Mapping[str, Any]) -> None:
    """Keep what a trial left."""
    write_text(_record(folder, number), json.dumps(record, sort_keys=True) + "\n")


def run_trial(
    folder: Path, number: int, recipe: Recipe, data_root: str | Path | None, callbacks: Sequence[Any] = ()
) -> dict[str, Any]:
    """Train a trial, or go on with it, and return the record that it leaves; one that is done is not run."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: choose a folder that all machines see with --out (out=)")
    kept = read_record(folder, number)
    if kept is None or kept["status"] not in DONE:
        kept = _trained(folder, number, recipe, data_root, callbacks)
        write_record(folder, number, kept)
    return kept


def _trained(
    folder: Path, number: int, recipe: Recipe, data_root: str | Path | None, callbacks: Sequence[Any]
) -> dict[str, Any]:
    from pyro_bnn.inference.fit_state import Diverged

    begun = time.monotonic()
    while True:
        try:
            return _scored(trial_folder(folder, number), recipe, data_root, callbacks)
        except Busy as error:
            if time.monotonic() - begun > _PATIENCE:
                return {"status": FAILED, "error": summary(error)}
            time.sleep(0.5)
        except Diverged as error:
            why, _, _ = str(error).partition("; to go on from")
            return {"status": DIVERGED, "error": why}
        except Exception as error:
            return {"status": FAILED, "error": summary(error, 400)}


def _scored(path: Path, recipe: Recipe, data_root: str | Path | None, callbacks: Sequence[Any]) -> dict[str, Any]:
    """Train into a run folder and score the posterior on the validation rows."""
    from pyro_bnn.analysis.arviz import draws_of
    from pyro_bnn.analysis.scores.evaluation import evaluate_rows
    from pyro_bnn.assemble import load_rows
    from pyro_bnn.runs.train import train

    run = train(recipe, out=path, data_root=data_root, progress=False, report=False, callbacks=callbacks)
    if not run.finished:
        raise KeyboardInterrupt
    val = load_rows(run.recipe, data_root).val
    assert val is not None  # the plan has looked
    draws = draws_of(run.posterior, run.recipe.num_samples)
    table = evaluate_rows(run.posterior, val.x, val.y, draws, seed=run.recipe.seed).table["s_draws"]
    shown = ("pred_nll", "accuracy", "ece", "brier", "rmse")
    last = run.history[-1] if run.history else {}
    return {
        "status": FINISHED,
        **{METRIC if key == "pred_nll" else f"val_{key}": _finite(table[key]) for key in shown if key in table},
        **{f"train_{key}": _finite(last[key]) for key in ("nll", "kl", "loss") if key in last},
        "epochs": run.results["epochs"],
        "best_epoch": run.results["best_epoch"],
        "seconds": round(run.results["seconds"]["train"], 3),
    }


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


# -- the whole of it -----------------------------------------------------------------------------------------------


def sweep(
    recipe: str | Path | Recipe,
    vary: Sequence[str] | Mapping[str, str],
    *,
    runs: int | None = None,
    variant: str | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    ray: str | None = None,
    asha: bool = False,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> Sweep:
    """
    Train a recipe with many settings and compare them on validation rows; a folder with this sweep is gone on with.

    :param vary: "key=law(numbers)" or "key=value,value,...", or a mapping key -> the rest; see `pyro_bnn.runs.vary`.
    :param runs: trials to draw; default all combinations, if only lists are varied.
    :param settings: other keys of the recipe to change, in every trial.
    :param seed: of the draws; that of the trainings is the recipe's key `seed`, and may be varied.
    :param jobs: trials at a time, in processes of their own with one thread each; default the processors of this
        machine, or of the cluster.
    :param ray: through Ray Tune: "local" or the address of a Ray cluster, whose machines all see `out`.
    :param asha: let Ray Tune's ASHA stop trials early that are worse after an epoch; needs `ray`.
    :param out: the folder; default runs/sweep-RECIPE.
    :param done: told how many trials are done, and of how many.
    """
    if jobs is not None:
        check_jobs(jobs)
    elif ray in (None, "local"):
        jobs = os.cpu_count() or 1
    texts = [f"{key}={law}" for key, law in vary.items()] if isinstance(vary, Mapping) else list(vary)
    chosen = find_recipe(recipe, variant).changed(settings or {})
    plan = Plan.of(chosen, [parse_vary(text) for text in texts], runs, seed)
    if asha and ray is None:
        raise ValueError("asha=True is Ray Tune's: run through Ray (--ray local, with pip install 'pyro-bnn[ray]')")
    from pyro_bnn.assemble import assemble

    assemble(plan.settled(0), data_root)  # refuses here what would be refused in every process
    folder = (Path("runs") / f"sweep-{chosen.name}" if out is None else Path(out)).absolute()
    make_folder(folder)
    with locked(folder) as lock:
        if lock is None:
            raise PermissionError(f"{folder} cannot be written to: choose another folder with out= (--out)")
        _begin(folder, plan)
        finished = [n for n in range(plan.runs) if (read_record(folder, n) or {}).get("status") in DONE]
        count = len(finished)
        done(count, plan.runs)

        def told(number: int, record: Mapping[str, Any] | None) -> None:
            """Count a trial that has ended, and keep the failure of one that left nothing."""
            nonlocal count
            if record is not None:
                write_record(folder, number, record)
            count += 1
            done(count, plan.runs)

        missing = [number for number in range(plan.runs) if number not in finished]
        try:
            if missing and ray is not None:
                from pyro_bnn.runs.tune import tune_trials

                tune_trials(folder, plan, missing, told, jobs=jobs, address=ray, data_root=data_root, asha=asha)
            elif missing:
                _in_processes(folder, plan, missing, told, jobs or 1, data_root)
        finally:
            ended = Sweep(folder, _rows(folder, plan))
            _write_tables(folder, plan, ended.rows)
    return ended


def _begin(folder: Path, plan: Plan) -> None:
    """Write down what is swept; refuse a folder with another sweep, or with other things."""
    path, described = folder / "sweep.json", plan.described()
    if path.is_file():
        held = json.loads(path.read_text())
        other = [key for key, value in described.items() if held.get(key) != json.loads(json.dumps(value))]
        if other:
            raise ValueError(
                f"{folder} holds a sweep with another {' and '.join(other)}: choose another folder with --out (out=)"
            )
    elif {entry.name for entry in folder.iterdir()} - {".lock"}:
        raise ValueError(f"{folder} has other things in it: choose a new or empty folder with --out (out=)")
    write_text(path, json.dumps({**described, "runs": plan.runs}, indent=1) + "\n")


def _in_processes(
    folder: Path,
    plan: Plan,
    missing: Sequence[int],
    told: Callable[[int, Mapping[str, Any] | None], None],
    jobs: int,
    data_root: str | Path | None,
) -> None:
    tasks = {
        f"trial-{n}": Task(
            f"trial-{n}", run_trial, {"folder": folder, "number": n, "recipe": plan.settled(n), "data_root": data_root}
        )
        for n in missing
    }
    for ended in side_by_side(list(tasks.values()), jobs, retries=RETRIES, apart=True):
        if isinstance(ended.error, KeyboardInterrupt):
            raise ended.error
        number = int(ended.task.arguments["number"])
        told(number, None if ended.error is None else {"status": FAILED, "error": summary(ended.error, 400)})


# -- what is left to look at ---------------------------------------------------------------------------------------


def _rows(folder: Path, plan: Plan) -> list[dict[str, Any]]:
    rows = []
    for number in range(plan.runs):
        record = read_record(folder, number) or {"status": "missing"}
        rows.append({"trial": number, **plan.settings(number), **record})
    return rows


_ORDER = ("status", METRIC, "val_accuracy", "val_rmse", "val_ece", "val_brier", "train_nll", "train_kl", "train_loss")
_LAST = ("epochs", "best_epoch", "seconds", "error")


def _write_tables(folder: Path, plan: Plan, rows: Sequence[Mapping[str, Any]]) -> None:
    from pyro_bnn.runs.sweep_picture import picture

    present = {key for row in rows for key in row}
    keys = [one.key for one in plan.vary]
    columns = ["trial", *keys, *(key for key in (*_ORDER, *_LAST) if key in present and key not in keys)]
    flat = [{key: _cell(row.get(key)) for key in columns} for row in rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_text(folder / "trials.csv", text.getvalue())
    if importlib.util.find_spec("pyarrow") is not None:
        _write_parquet(folder / "trials.parquet", columns, flat)
    write_text(folder / "sweep.svg", picture(plan.recipe.name, plan.vary, rows))


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {}
    for key in columns:
        values = [row[key] for row in rows]
        kinds = {type(value) for value in values if value is not None}
        if kinds - {int, float} and len(kinds) > 1:  # such as "auto" and 3
            values = [None if value is None else str(value) for value in values]
        arrays[key] = pyarrow.array([float(v) for v in values] if kinds == {int, float} else values)
    with atomic_write(path) as file:
        pyarrow.parquet.write_table(pyarrow.table(arrays), file)
