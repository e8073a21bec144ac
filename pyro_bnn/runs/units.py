"""
The units of one training side by side: members of an ensemble, chains of a sampler, each in a process of its own.

A process does its unit in the run folder and leaves there what the run would keep of it anyway. The run then goes the
usual way and finds every unit done, so that it ends with the bits that it has one by one, and a killed one is resumed
as any other. A number of threads changes the last bits of some sums: the same bits are those of one thread
(OMP_NUM_THREADS=1), which is what each process has.

A divergence counts where it would one by one: units before it are finished, those behind it are thrown away, for they
would have been trained at other rates.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyro_bnn.assemble import Assembly, assemble
from pyro_bnn.inference.fit_state import Diverged
from pyro_bnn.methods import Work
from pyro_bnn.methods.base import checkpoints
from pyro_bnn.recipe import Recipe
from pyro_bnn.runs.folder import Place, joined
from pyro_bnn.runs.jobs import Done, Task, WorkerDied, side_by_side

__all__ = ["check_units", "train_units"]


def check_units(parts: Assembly) -> None:
    """Refuse a method whose work is one piece."""
    if len(parts.method.units()) < 2:
        raise ValueError(
            f"method {parts.recipe.method['name']!r} here is one piece of work, with nothing to do side by side: leave "
            f"out jobs and ray (--jobs, --ray); members of an ensemble, chains of nuts and hmc, seeds (--seeds) and "
            f"trials of a sweep have that"
        )


def train_units(
    place: Place,
    parts: Assembly,
    *,
    jobs: int,
    ray: str | None,
    data_root: str | Path | None,
    say: Callable[[str], None],
) -> None:
    """Do all units of a run, and leave them in its folder."""
    names, started = parts.method.units(), time.perf_counter()
    common = {"recipe": place.recipe, "runs": place.runs, "data_root": data_root, "holder": place.share()}
    common["folder"] = place.path.absolute()
    tasks = [Task(name, _train_unit, {"unit": name, **common}) for name in names]
    diverged: dict[str, Diverged] = {}
    for count, done in enumerate(side_by_side(tasks, jobs, ray=ray, apart=True), start=1):
        if isinstance(done.error, Diverged):
            diverged[done.task.name] = done.error
        else:
            _result(done, place.path)
        seconds = time.perf_counter() - started
        say(f"{done.task.name} {'diverged' if done.error else 'done'}, {count} of {len(names)}, {seconds:.1f} s")
    if diverged:
        first = min(names.index(name) for name in diverged)
        for name in names[first + 1 :]:
            shutil.rmtree(checkpoints(place.path, name), ignore_errors=True)
        raise diverged[names[first]]


def _result(done: Done, folder: Path) -> Any:
    try:
        return done.result()
    except WorkerDied as error:
        raise WorkerDied(f"{error}; what was trained is kept in {folder}: go on with --resume (resume=True)") from None


def _train_unit(
    recipe: Recipe, folder: Path, unit: str, runs: tuple[str, ...], holder: str, data_root: str | Path | None
) -> None:
    """Do one unit, in its process."""
    with joined(folder, holder):
        parts = assemble(recipe, data_root)
        with parts.layers():
            parts.method.do_unit(Work(parts, parts.recipe, folder, runs=runs, side_by_side=True), unit)
