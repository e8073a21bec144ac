"""
Train a recipe and leave a run folder.

It holds `recipe.toml` (resolved: no default left implicit), `metrics.jsonl` (a line per epoch), `checkpoint/` (last and
best on validation), `posterior.safetensors` with `posterior.json`, `results.json`, and what people look at:
`posterior.nc` for ArviZ and `report.html`. Everything is built and checked before the folder exists, and every file is
replaced in one step.
"""

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, final

import pyro
import torch

from pyro_bnn.analysis.arviz import draws_of
from pyro_bnn.analysis.scores.evaluation import Evaluation, evaluate_rows
from pyro_bnn.assemble import Assembly, assemble, load_rows
from pyro_bnn.common.files import write_text
from pyro_bnn.common.machine import cpu_name
from pyro_bnn.data import Data
from pyro_bnn.inference.svi import Callback
from pyro_bnn.methods import Work
from pyro_bnn.posterior import Posterior
from pyro_bnn.recipe import Recipe, find_recipe
from pyro_bnn.registry import find_saved, look_up
from pyro_bnn.runs.loading import load
from pyro_bnn.version import __version__

__all__ = ["Run", "evaluate", "train"]


def _info(parts: Assembly) -> dict[str, Any]:
    data, recipe = parts.data, parts.recipe
    return {
        "recipe": recipe.model_dump(),
        "data": data.name,
        "task": data.task,
        "input_shape": list(data.input_shape),
        "class_names": None if data.class_names is None else list(data.class_names),
        "standardiser": None if data.standardiser is None else data.standardiser.to_dict(),
        "y_standardiser": None if data.y_standardiser is None else data.y_standardiser.to_dict(),
        "num_data": len(data.train),
        "eta": recipe.eta,
        "temperature": recipe.temperature,
        "method": recipe.method["name"],
    }


@final
@dataclass
class Run:
    """A finished training: its folder, recipe, posterior, results table and history."""

    path: Path | None
    recipe: Recipe
    posterior: Posterior
    results: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = True


def _held_recipe(path: Path) -> Recipe | None:
    held = path / "recipe.toml"
    return Recipe.from_toml(held.read_text(), path.name, saved=True) if held.is_file() else None


def _check_same(held: Recipe, wanted: Recipe, path: Path) -> None:
    old, new = held.model_dump(), wanted.model_dump()
    changed = [f"{key}: {old[key]!r} there, {new[key]!r} now" for key in new if old[key] != new[key]]
    if changed:
        raise ValueError(
            f"{path} holds a run of another recipe ({'; '.join(changed)}): choose another folder with out="
        )


def train(
    recipe: str | Path | Recipe,
    *,
    variant: str | None = None,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
    report: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Run:
    """
    Train a recipe and leave a run folder; a folder with the same recipe, unfinished, is gone on with.

    :param recipe: a name of the catalogue, a .toml file, or a Recipe.
    :param variant: one of the recipe's variants; `pyro-bnn list variants` shows them.
    :param out: the run folder; None writes nothing.
    :param data_root: where data sets by name live; default PYRO_BNN_DATA, else the user's cache.
    :param resume: go on with an unfinished run in `out`; False refuses a folder with an unfinished run.
    :param progress: show a progress bar, or a line per epoch where there is no terminal.
    :param report: write `posterior.nc` and `report.html` into `out`, too: some seconds more.
    :param settings: recipe keys to change, e.g. `epochs=3`; dotted ones as `**{"optim.loc.lr": 1e-3}`.
    """
    path = None if out is None else Path(out)
    parts = assemble(find_recipe(recipe, variant).changed(settings), data_root)
    posterior = Posterior(parts.model, parts.guide, _info(parts))
    if path is not None and (held := _held_recipe(path)) is not None:
        if not resume:
            raise ValueError(f"{path} holds a run already: resume it (--resume) or choose another folder (--out)")
        _check_same(held, parts.recipe, path)
        if (path / "results.json").is_file():
            return _finished(path, held, parts)
    elif path is not None and path.exists() and any(path.iterdir()):
        raise ValueError(f"{path} is a folder with other things in it: choose a new or empty one with out=")
    watchers = list(callbacks)
    if progress:
        from pyro_bnn.runs.progress import ProgressReport

        watchers.append(ProgressReport())
    settled = parts.recipe
    with parts.layers():
        outcome = parts.method(Work(parts, settled, path, watchers))
    if outcome.guide is not None:
        posterior = Posterior(parts.model, outcome.guide, _info(parts))
    if outcome.interrupted:
        if path is not None and outcome.history and outcome.guide is not None:
            posterior.save(path)
        return Run(path, settled, posterior, {}, outcome.history, finished=False)
    started = time.perf_counter()
    test = parts.data.test.to(settled.device)
    draws = draws_of(posterior, settled.num_samples)
    evaluation = evaluate_rows(posterior, test.x, test.y, draws, seed=settled.seed)
    results = {
        "recipe": settled.name,
        "data": settled.data,
        "eta": settled.eta,
        "temperature": settled.temperature,
        "num_samples": draws,
        "num_test": len(test),
        "test": evaluation.table,
        "method": settled.method,
        "facts": outcome.facts,
        "epochs": len(outcome.history),
        "best_epoch": outcome.best_epoch,
        "ended": outcome.reason,
        "seconds": {"train": outcome.seconds, "evaluate": time.perf_counter() - started},
        **_circumstances(),
    }
    if path is not None:
        posterior.save(path)
        write_text(path / "results.json", json.dumps(results, indent=2))
        if report:
            _write_outputs(path, parts.data, posterior, outcome.history, results, evaluation)
    return Run(path, settled, posterior, results, outcome.history)


def _write_outputs(
    path: Path,
    data: Data,
    posterior: Posterior,
    history: Sequence[Mapping[str, Any]],
    results: Mapping[str, Any],
    evaluation: Evaluation,
) -> None:
    from pyro_bnn.analysis.report.outputs import write_outputs

    write_outputs(
        path,
        posterior,
        (data.train.x, data.train.y),
        (data.test.x, data.test.y),
        None if data.val is None else (data.val.x, data.val.y),
        history=history,
        results=results,
        evaluation=evaluation,
    )


def _circumstances() -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "pyro_bnn": __version__,
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "python": platform.python_version(),
        "machine": f"{cpu_name()}, {torch.get_num_threads()} threads",
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def _finished(path: Path, recipe: Recipe, parts: Assembly) -> Run:
    """Return a run that was finished before; what the recipe handed in names is imported already, and so trusted."""
    results = json.loads((path / "results.json").read_text())
    trust = {type(part).__module__ for part in (parts.guide, parts.method)}
    trust.add(look_up("guides", recipe.guide["name"]).__module__)
    return Run(path, recipe, load(path, parts.model, trust=trust), results, _lines(path))


def evaluate(
    path: str | Path, *, data_root: str | Path | None = None, num_samples: int | None = None
) -> dict[str, Any]:
    """Score the posterior in `path` once more on the test rows of its own data."""
    posterior = load(path)
    recipe = posterior.info.get("recipe")
    if recipe is None:
        raise ValueError(
            f"{path} was not trained from a recipe, so its test rows are unknown: use Posterior.evaluate(x, y)"
        )
    settled = Recipe.from_saved(recipe)
    data = load_rows(settled, data_root, find=find_saved)
    samples = draws_of(posterior, num_samples or settled.num_samples)
    table = posterior.evaluate(data.test.x, data.test.y, samples, seed=settled.seed)
    return {"recipe": settled.name, "data": settled.data, "eta": settled.eta, "num_samples": samples, "test": table}
