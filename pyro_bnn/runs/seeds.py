"""The seeds of a card: one recipe trained from several seeds, side by side, each in a run folder of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyro_bnn.assemble import assemble
from pyro_bnn.recipe import Recipe
from pyro_bnn.runs.jobs import Task, WorkerDied, side_by_side

__all__ = ["parse_seeds", "seed_folder", "train_seeds"]


def parse_seeds(text: str) -> list[int]:
    """
    Read seeds as they are typed, `0,1,5` or `0-4`.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.strip().isdecimal() or (dash and not high.strip().isdecimal()):
            raise ValueError(f"--seeds {text!r} is not a list of seeds: write whole numbers as 0,1,5 or 0-4")
        seeds += range(int(low), int(high) + 1) if dash else [int(low)]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds {text!r} has no seed or one twice: write each once, as in 0-4")
    return seeds


def seed_folder(out: Path, seed: int) -> Path:
    """Return where a seed's run is."""
    return out / f"seed-{seed}"


def train_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    out: str | Path,
    *,
    jobs: int = 1,
    ray: str | None = None,
    data_root: str | Path | None = None,
    resume: bool | None = None,
    report: bool = True,
    done: Callable[[str], None] = lambda name: None,
) -> dict[int, dict[str, Any]]:
    """
    Train a recipe from every seed into `out`/seed-N and return the results tables; what is finished stays.

    :param jobs: seeds at a time, in processes of their own with one thread each.
    :param ray: "local" or the address of a Ray cluster that trains them, whose machines all see `out`.
    :param resume: as `train` has it, of each.
    :param done: told the name of each that is done.
    """
    folder = Path(out).absolute()
    chosen = [recipe.changed({"seed": seed}) for seed in seeds]
    assemble(chosen[0], data_root)  # refuses here what would be refused in every process
    folder.mkdir(parents=True, exist_ok=True)
    common = {"data_root": data_root, "resume": resume, "report": report, "meeting": folder}
    tasks = [
        Task(f"seed-{seed}", _train_seed, {"recipe": one, "folder": seed_folder(folder, seed), **common})
        for seed, one in zip(seeds, chosen, strict=True)
    ]
    found: dict[str, dict[str, Any]] = {}
    for ended in side_by_side(tasks, jobs, ray=ray):
        try:
            found[ended.task.name] = ended.result()
        except WorkerDied as error:
            raise WorkerDied(f"{error}; what was trained is kept in {folder}: start again to go on") from None
        done(ended.task.name)
    return {seed: found[f"seed-{seed}"] for seed in seeds}


def _train_seed(
    recipe: Recipe, folder: Path, meeting: Path, data_root: str | Path | None, resume: bool | None, report: bool
) -> dict[str, Any]:
    from pyro_bnn.runs.train import train

    if not meeting.is_dir():
        raise FileNotFoundError(f"{meeting} is not there: choose a folder that all machines see with --out (out=)")
    run = train(recipe, out=folder, data_root=data_root, resume=resume, progress=False, report=report)
    if not run.finished:
        raise KeyboardInterrupt
    return run.results
