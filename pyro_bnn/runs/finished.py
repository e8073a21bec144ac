"""
Finished runs: report on a run, compare several.

Beside `training`, this is a file where all rooms meet: it opens a run folder (or a shipped posterior) together with
the data it was trained on, and hands both to `analysis`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from pyro_bnn.analysis.arviz import draws_of, posterior_kind
from pyro_bnn.analysis.checks import Diagnosis
from pyro_bnn.analysis.report import Twin, default_outside, fitted_temperature, write_report
from pyro_bnn.analysis.report.outputs import loo_of
from pyro_bnn.analysis.scores.elpd import compare_held_out, held_out_elpd
from pyro_bnn.analysis.scores.evaluation import ClassEvaluation, Evaluation, evaluate_rows, in_units
from pyro_bnn.analysis.scores.ood import accumulate, auroc, detect
from pyro_bnn.assemble import load_rows
from pyro_bnn.common.errors import border
from pyro_bnn.common.manifest import is_sealed, read_listed, staged
from pyro_bnn.common.reading import parse_json, parse_json_lines
from pyro_bnn.data import Data, load_data
from pyro_bnn.data.standardise import plain
from pyro_bnn.methods.base import HISTORY
from pyro_bnn.posterior import Posterior
from pyro_bnn.recipe import Recipe
from pyro_bnn.registry import find_saved
from pyro_bnn.runs.folder import RESULTS
from pyro_bnn.runs.loading import is_address, load, posterior_folder

__all__ = [
    "Comparison",
    "FinishedRun",
    "compare",
    "default_unfamiliar",
    "detect_unfamiliar",
    "diagnose",
    "open_run",
    "report",
    "sister_sets",
    "unfamiliar",
]

UNFAMILIAR = {
    "mnist-mini": ("fashion-mnist",),
    "mnist": ("fashion-mnist",),
    "fashion-mnist": ("mnist",),
    "cifar10": ("svhn", "cifar100", "mnist", "fashion-mnist"),
    "cifar100": ("svhn", "cifar10", "mnist", "fashion-mnist"),
    "svhn": ("cifar10", "mnist", "fashion-mnist"),
}
"""The sister data sets of a data set, whose inputs are unfamiliar to what was trained on it."""

_ROWS = 500
"""How many rows of another data set a report and a comparison look at; `detect_unfamiliar` takes all."""


@final
@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A posterior with its recipe, its data, and what its folder holds beside."""

    name: str
    path: Path
    posterior: Posterior
    recipe: Recipe
    data: Data
    results: dict[str, Any]
    history: list[dict[str, Any]]

    def draws(self, num_samples: int | None = None) -> int:
        """How many draws to score with: those asked for, else the recipe's; one of a point, which has no more."""
        return draws_of(self.posterior, num_samples or self.recipe.num_samples)

    def evaluate(self, num_samples: int | None = None) -> Evaluation:
        """Score the test rows with `draws(num_samples)`."""
        test = self.data.test
        return evaluate_rows(self.posterior, test.x, test.y, self.draws(num_samples), seed=self.recipe.seed)


@border("the run cannot be opened", "give a run folder as it was written")
def open_run(path: str | Path, data_root: str | Path | None = None) -> FinishedRun:
    """Open a run folder or a shipped posterior with its data."""
    posterior = load(path)
    saved = posterior.info.get("recipe")
    if saved is None:
        raise ValueError(
            f"{path} was not trained from a recipe, so its data are unknown: name them with "
            f"`pyro-bnn report {path} --data FILE`, or score it from Python"
        )
    recipe, folder = Recipe.from_saved(saved), posterior_folder(path) if _is_elsewhere(path) else Path(path)
    data = load_rows(recipe, data_root, find=find_saved)
    results, lines = folder / RESULTS, folder / HISTORY
    return FinishedRun(
        _name(path),
        folder,
        posterior,
        recipe,
        data,
        parse_json(read_listed(folder, [results.name])[results.name], str(results), dict) if results.is_file() else {},
        parse_json_lines(_lines(folder), lines) if lines.is_file() else [],
    )


def _is_elsewhere(path: str | Path) -> bool:
    """Whether a run is fetched or unpacked into the cache, where nothing is written beside it."""
    return is_address(path) or (Path(path).suffix == ".zip" and Path(path).is_file())


def _name(path: str | Path) -> str:
    """Return what a run is called where several are shown."""
    if is_address(path):
        return str(path).partition("#")[0].rstrip("/").rpartition("/")[2]
    return Path(path).name or str(path)


def diagnose(
    path: str | Path, *, num_samples: int | None = None, settle: bool = True, data_root: str | Path | None = None
) -> Diagnosis:
    """
    Check a run folder or a shipped posterior against its data: what speaks for and against it, in words.

    :param num_samples: draws of a prediction; default as in the recipe, and at least 100.
    :param settle: whether it is fitted on for 200 steps to see what they gain; the run stays as it is.
    """
    return _diagnosis(open_run(path, data_root), num_samples, settle)


def _diagnosis(run: FinishedRun, num_samples: int | None, settle: bool) -> Diagnosis:
    rows = run.data
    draws = max(run.draws(num_samples), 10) if num_samples else max(run.draws(), 100)
    return run.posterior.diagnose(
        rows.train, test=rows.test, history=run.history, num_samples=draws, settle=settle, seed=run.recipe.seed
    )


def _lines(folder: Path) -> bytes:
    """Return the lines of a training; those of one that goes on are listed when it is done."""
    listed = (folder / RESULTS).is_file()
    return read_listed(folder, [HISTORY])[HISTORY] if listed else (folder / HISTORY).read_bytes()


def unfamiliar(
    posterior: Posterior, name: str, data_root: str | Path | None = None, *, download: bool = True
) -> Tensor:
    """
    Return the test inputs of another data set, standardised with the statistics of the posterior's own rows.

    Grey images go to a colour network with three equal channels, small ones to a larger with a black margin.
    """
    shape = posterior.info["input_shape"]
    raw = _fitted(load_data(name, root=data_root, standardise=False, download=download).test.x, shape)
    if list(raw.shape[1:]) != list(shape):
        raise ValueError(
            f"{name} has inputs of shape {tuple(raw.shape[1:])}, this posterior takes {tuple(shape)}: choose another"
        )
    return posterior.standardise(raw)


def _fitted(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Return images (N, 1, h, w) as (N, C, H, W), in every channel and amid a black margin; others as they are."""
    if images.ndim != 4 or len(shape) != 3 or images.shape[1] not in (1, shape[0]):
        return images
    (channels, *size), (h, w) = shape, images.shape[2:]
    rows, columns = size[0] - h, size[1] - w
    if rows < 0 or columns < 0:
        return images
    margins = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
    return torch.nn.functional.pad(images.expand(-1, channels, -1, -1), margins)


def sister_sets(run: FinishedRun, rows: int, data_root: str | Path | None = None) -> dict[str, Tensor]:
    """Return the first rows of the sister data sets, as far as they are on this machine."""
    sets = {}
    for name in UNFAMILIAR.get(run.data.name, ()):
        try:
            sets[name] = unfamiliar(run.posterior, name, data_root, download=False)[:rows]
        except FileNotFoundError:
            continue
    return sets


def default_unfamiliar(run: FinishedRun, data_root: str | Path | None = None) -> dict[str, Tensor]:
    """Return the unfamiliar inputs of a report: the sister data sets that are there, noise, shuffled pixels."""
    return {**sister_sets(run, _ROWS, data_root), **default_outside(run.data.test.x, run.recipe.seed)}


def detect_unfamiliar(
    path: str | Path, name: str, *, num_samples: int | None = None, data_root: str | Path | None = None
) -> dict[str, dict[str, float]]:
    """
    Tell all test rows of a run from all those of another data set; AUROC and FPR95 of every score.

    :param name: the other data set, such as "fashion-mnist" for a run on "mnist".
    :param num_samples: draws; default the recipe's, and one for a point.
    """
    run = open_run(path, data_root)
    outside = unfamiliar(run.posterior, name, data_root)
    return detect(run.posterior, run.data.test.x, outside, run.draws(num_samples), seed=run.recipe.seed)


@border("the run cannot be reported on", "give a run folder as it was written")
def report(
    path: str | Path,
    *,
    out: str | Path | None = None,
    twin: str | Path | None = None,
    ood: Sequence[str] = (),
    num_samples: int | None = None,
    data_root: str | Path | None = None,
    data: str | Path | None = None,
) -> Path:
    """
    Write `report.html` of a run, or of any posterior with data, and return where it is.

    :param out: the folder to write to, made where it is not there; default the run folder.
    :param data: a data set's name or file whose test rows are scored; default those of the run's recipe. A posterior
        that was not trained from a recipe needs it.
    :param twin: another run on the same data to show beside, usually deterministic; default the run's folder `twin`.
    :param ood: data sets to tell apart from the test rows; default see `default_unfamiliar`.
    """
    if out is None and _is_elsewhere(path):
        raise ValueError(f"{path} is no folder to write a report into: say where to with --out (out=)")
    if data is not None:
        if twin is not None:
            raise ValueError("a twin is shown beside a run on its own data: leave out --data (data=) or --twin (twin=)")
        return _report_on(load(path), Path(path) if out is None else Path(out), data, ood, num_samples, data_root)
    run = open_run(path, data_root)
    folder = run.path if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    if is_sealed(folder):
        with staged(folder) as stage:
            _report(run, stage, path, twin, ood, num_samples, data_root)
        return folder / "report.html"
    return _report(run, folder, path, twin, ood, num_samples, data_root)


def _report_on(
    posterior: Posterior,
    folder: Path,
    data: str | Path,
    ood: Sequence[str],
    num_samples: int | None,
    data_root: str | Path | None,
) -> Path:
    """Write the report of any posterior on the test rows of any data set, raw as they come."""
    raw = load_data(str(data), root=data_root, standardise=False)
    options: dict[str, Any] = {} if num_samples is None else {"num_samples": draws_of(posterior, num_samples)}
    if ood:
        options["outside"] = {name: unfamiliar(posterior, name, data_root)[:_ROWS] for name in ood}
    return posterior.report(folder, raw, **options)


def _report(
    run: FinishedRun,
    folder: Path,
    path: str | Path,
    twin: str | Path | None,
    ood: Sequence[str],
    num_samples: int | None,
    data_root: str | Path | None,
) -> Path:
    outside = None
    if run.data.task == "classification":
        named = {name: unfamiliar(run.posterior, name, data_root)[:_ROWS] for name in ood}
        outside = named or default_unfamiliar(run, data_root)
    own_twin = posterior_folder(path) / "twin"
    if twin is None and (own_twin / "posterior.json").is_file():
        twin = own_twin
    test, val, export = run.data.test, run.data.val, run.path / "posterior.nc"
    trained = f"{run.name}/recipe.toml" if (run.path / "recipe.toml").is_file() else run.recipe.name
    return write_report(
        folder,
        run.posterior,
        (test.x, test.y),
        None if val is None else (val.x, val.y),
        history=run.history,
        results=run.results,
        evaluation=run.evaluate(num_samples),
        outside=outside,
        twin=None if twin is None else _twin(run, open_run(twin, data_root)),
        recipe_toml=run.recipe.to_toml(),
        command=f"pyro-bnn train {trained} --out {run.name}-again",
        loo=loo_of(export) if export.is_file() else None,
        diagnosis=_diagnosis(run, num_samples, settle=False),
        seed=run.recipe.seed,
        run=run.path,
    )


def _twin(run: FinishedRun, other: FinishedRun) -> Twin:
    _check_same_test(run, other)
    evaluation, temperature = other.evaluate(), None
    if isinstance(evaluation, ClassEvaluation) and other.data.val is not None:
        val = (other.data.val.x, other.data.val.y)
        temperature = fitted_temperature(other.posterior, val, evaluation.num_samples, other.recipe.seed)
    return Twin(other.name, other.posterior, evaluation, temperature)


# -- comparing -----------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs side by side, best held-out elpd first: metrics by name, and the table of `compare_held_out`."""

    rows: list[dict[str, Any]]
    held_out: Any


def _raw(run: FinishedRun) -> tuple[Tensor, Tensor]:
    x, y = run.data.test.x, run.data.test.y
    x = plain(x) if run.data.standardiser is None else run.data.standardiser.invert(x)
    return x, in_units(run.posterior, y)


def _check_same_test(first: FinishedRun, other: FinishedRun) -> None:
    """Refuse runs that were scored on different classes or rows."""
    a, b = first.data, other.data
    if a.task != b.task:
        raise ValueError(f"{first.name} is a {a.task} and {other.name} a {b.task}: compare runs on the same data")
    if a.class_names != b.class_names:
        raise ValueError(
            f"{first.name} knows the classes {', '.join(a.class_names or ())} and {other.name} "
            f"{', '.join(b.class_names or ())}: compare runs on the same classes"
        )
    (x, y), (x_other, y_other) = _raw(first), _raw(other)
    same = x.shape == x_other.shape and y.shape == y_other.shape and torch.allclose(y, y_other, atol=1e-4)
    if not same or not torch.allclose(x, x_other, atol=1e-4):
        raise ValueError(
            f"{first.name} ({a.name}, {len(y)} test rows) and {other.name} ({b.name}, {len(y_other)}) were scored on "
            f"different test rows: compare runs with the same data, split and test size"
        )


@border("the runs cannot be compared", "give run folders as they were written")
def compare(
    paths: Sequence[str | Path],
    *,
    num_samples: int | None = None,
    ood: str | None = None,
    data_root: str | Path | None = None,
) -> Comparison:
    """
    Score runs on the same test rows: metrics, held-out elpd with paired differences, and seconds of training.

    :param ood: a data set to tell apart from the test rows, for a column of AUROC by entropy; default the sister set
        if it is at hand, else noise.
    """
    if len(paths) < 2:
        raise ValueError(f"{len(paths)} run to compare: give at least two")
    if len({str(p) for p in paths}) < len(paths):
        raise ValueError("the same run is given twice: give different ones")
    runs = [open_run(path, data_root) for path in paths]
    for other in runs[1:]:
        _check_same_test(runs[0], other)
    names = [run.name for run in runs]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]
    evaluations = {name: run.evaluate(num_samples) for name, run in zip(names, runs, strict=True)}
    table = compare_held_out({name: held_out_elpd(e.log_density, e.num_samples) for name, e in evaluations.items()})
    rows = []
    for name in table.index:
        run, evaluation = runs[names.index(name)], evaluations[name]
        row: dict[str, Any] = {
            "run": name,
            "kind": posterior_kind(run.posterior),
            "num_samples": evaluation.num_samples,
        }
        row |= {k: v for k, v in evaluation.table["s_draws"].items() if k in _COMPARED}
        if isinstance(evaluation, ClassEvaluation):
            against, x = _unfamiliar_for(run, ood, data_root)
            outside = accumulate(run.posterior, x, evaluation.num_samples, run.recipe.seed)
            row |= {"ood": against, "ood_auroc": auroc(evaluation.entropy, outside.total)}
        row |= {key: float(table.loc[name, key]) for key in table.columns}
        row["seconds"] = run.results.get("seconds", {}).get("train")
        rows.append(row)
    return Comparison(rows, table)


_COMPARED = ("accuracy", "pred_nll", "ece", "brier", "rmse", "coverage_0.9")


def _unfamiliar_for(run: FinishedRun, ood: str | None, data_root: str | Path | None) -> tuple[str, Tensor]:
    if ood is not None:
        return ood, unfamiliar(run.posterior, ood, data_root)[:_ROWS]
    return next(iter(default_unfamiliar(run, data_root).items()))
