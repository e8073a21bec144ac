"""
Model cards: what a posterior of the zoo is, how it was trained, and what it scores, from its run folders.

    python -m pyro_bnn.cards --readme README.md     write the table of the zoo between its two markers
    python -m pyro_bnn.cards --verify [NAME ...]    score the shipped posteriors again, beside their cards

The protocol, for every card:

  - S draws, each one weight sample for the whole test set, averaged in log space; beside them the plug-in prediction
    and single draws (mean and sd).
  - ECE with its null: labels drawn from the predictive itself, mean and 95 % point, because ECE is biased upward.
  - The mean mutual information of label and weights, so that a point is not sold as a posterior.
  - A deterministic twin per seed: same network, data, epochs (those of all snapshots; of one member of an ensemble);
    raw, and temperature-scaled on validation. Differences are paired over test rows and over seeds.
  - AUROC of telling unfamiliar inputs from the test rows, by entropy and by mutual information.
  - All seeds are listed. Shipped is the first: every seed has its own validation rows, so that their NLLs do not rank
    the seeds. Its numbers are those of the file that is shipped, with standard deviations in 8 bits and means in 16
    (:mod:`pyro_bnn.posterior.compact`).

A card comes out again if the same draws give an NLL within 5e-4 and at most 5 of 10,000 labels differ. That takes its
data; without them, its predictions for a little noise come out again.
"""

import argparse
import json
import math
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.analysis.report import default_outside
from pyro_bnn.analysis.scores.calibration import fit_temperature, scale_temperature
from pyro_bnn.analysis.scores.evaluation import ClassEvaluation, evaluate_rows
from pyro_bnn.analysis.scores.metrics import classification_metrics, ece_null
from pyro_bnn.analysis.scores.ood import accumulate, auroc, gaussian_noise, ood_scores
from pyro_bnn.assemble import resolve
from pyro_bnn.cards.curve import learning_curves
from pyro_bnn.cards.fair import is_deterministic, unequal
from pyro_bnn.cards.text import markdown, readme_table
from pyro_bnn.cards.tuning import earlier_settings, leaves, setting, settings_tried
from pyro_bnn.common.files import atomic_write, insert_between, write_text
from pyro_bnn.common.manifest import is_sealed, read_listed, remove, seal
from pyro_bnn.common.reading import parse_json
from pyro_bnn.data.npz import parse_npy
from pyro_bnn.methods import make_method
from pyro_bnn.posterior import DESCRIPTION, TENSORS, Posterior
from pyro_bnn.recipe import Recipe, check_name, find_recipe, recipe_names
from pyro_bnn.runs.finished import FinishedRun, open_run, sister_sets
from pyro_bnn.runs.loading import load, shipped_posteriors
from pyro_bnn.version import __version__

__all__ = [
    "Verification",
    "headline",
    "make_card",
    "paired_difference",
    "read_card",
    "shipped_cards",
    "verify",
    "verify_noise",
    "write_readme",
]

CARD, TEXT, CURVE, LABELS, NOISE, TWIN = "card.json", "card.md", "curve.svg", "labels.npy", "noise.npy", "twin"

NLL_TOLERANCE = 5e-4
LABELS_PER_ROW = 5 / 10_000
NOISE_ROWS, NOISE_DRAWS, NOISE_TOLERANCE = 16, 10, 1e-3
SHOWN = ("accuracy", "pred_nll", "ece", "brier", "confidence", "entropy", "epistemic", "gibbs_nll")
_OUTSIDE_ROWS = 2000
_SAME = ("model", "model_args", "data", "data_args", "val_fraction", "likelihood", "batch_size", "patience", "seed")
"""What a twin has in common with its posterior; its rates and its penalty are tuned on their own."""

_SAME_ROWS = ("data", "data_args", "val_fraction", "seed")
"""What decides which rows validate, and how they are standardised."""


# -- one run -----------------------------------------------------------------------------------------------------------


def _shown(column: Mapping[str, float]) -> dict[str, float]:
    wanted = [*SHOWN, *(f"{name}_sd" for name in SHOWN)]
    return {name: column[name] for name in wanted if name in column}


def _calibrated(column: Mapping[str, float], log_probs: Tensor) -> dict[str, Any]:
    return {**_shown(column), "ece_null": ece_null(log_probs)}


def _classes(run: FinishedRun, draws: int) -> ClassEvaluation:
    test = run.data.test
    evaluation = evaluate_rows(run.posterior, test.x, test.y, draws, seed=run.recipe.seed)
    assert isinstance(evaluation, ClassEvaluation)
    return evaluation


def _outside(run: FinishedRun, data_root: str | Path | None) -> dict[str, Tensor]:
    """Return unfamiliar inputs: the sister data sets that are at hand, noise, and shuffled pixels of images."""
    return {**sister_sets(run, _OUTSIDE_ROWS, data_root), **default_outside(run.data.test.x, rows=_OUTSIDE_ROWS)}


def _unfamiliar_scores(
    run: FinishedRun, evaluation: ClassEvaluation, data_root: str | Path | None
) -> dict[str, dict[str, float]]:
    """Return AUROC by unfamiliar set and score (a point has no mutual information), and how sure it is there."""
    inside = {"entropy": evaluation.entropy, "mutual_information": evaluation.epistemic}
    if evaluation.num_samples == 1:
        del inside["mutual_information"]
    table = {}
    for name, x in _outside(run, data_root).items():
        seen = accumulate(run.posterior, x, evaluation.num_samples, run.recipe.seed)
        scores, sure = ood_scores(seen), seen.log_probs.exp().max(-1).values
        table[name] = {score: auroc(values, scores[score]) for score, values in inside.items()}
        table[name] |= {"confidence": float(sure.mean()), "share_above_90": float((sure > 0.9).double().mean())}
    return table


@final
@dataclass(frozen=True)
class _Scored:
    """What one seed gave, as it stands in the card, and the rows that differences are taken of, raw and scaled."""

    numbers: dict[str, Any]
    evaluation: ClassEvaluation
    scaled: Tensor | None


@final
@dataclass(frozen=True)
class _ScoredTwin:
    """Likewise for a twin: predictives (N, K), raw and temperature-scaled (None without validation rows)."""

    numbers: dict[str, Any]
    raw: Tensor
    scaled: Tensor | None


def _score(run: FinishedRun, evaluation: ClassEvaluation, data_root: str | Path | None) -> _Scored:
    table = evaluation.table
    numbers: dict[str, Any] = {
        "seed": run.recipe.seed,
        "epochs": run.results.get("epochs"),
        "best_epoch": run.results.get("best_epoch"),
        "seconds": run.results.get("seconds", {}).get("train"),
        "machine": run.results.get("machine"),
        "date": run.results.get("date"),
        **{column: _shown(table[column]) for column in ("plug_in", "one_draw") if column in table},
        "s_draws": _calibrated(table["s_draws"], evaluation.log_probs),
        "ood": _unfamiliar_scores(run, evaluation, data_root),
    }
    if run.data.val is None:
        return _Scored(numbers, evaluation, None)
    numbers["scaled"], scaled = _at_temperature(run, evaluation, evaluation.num_samples)
    return _Scored(numbers, evaluation, scaled)


def _score_twin(run: FinishedRun, data_root: str | Path | None) -> _ScoredTwin:
    draws, val = run.draws(), run.data.val
    evaluation = _classes(run, draws)
    numbers: dict[str, Any] = {
        "seed": run.recipe.seed,
        "seconds": run.results.get("seconds", {}).get("train"),
        "raw": _calibrated(evaluation.table["s_draws"], evaluation.log_probs),
        "ood": _unfamiliar_scores(run, evaluation, data_root),
    }
    if val is None:
        return _ScoredTwin(numbers, evaluation.log_probs, None)
    numbers["scaled"], scaled = _at_temperature(run, evaluation, draws)
    return _ScoredTwin(numbers, evaluation.log_probs, scaled)


def _at_temperature(run: FinishedRun, evaluation: ClassEvaluation, draws: int) -> tuple[dict[str, Any], Tensor]:
    """Return the scores of the predictive at the temperature that validation rows give it, and the predictive."""
    val = run.data.val
    assert val is not None
    temperature = fit_temperature(accumulate(run.posterior, val.x, draws, run.recipe.seed).log_probs, val.y)
    scaled = scale_temperature(evaluation.log_probs, temperature)
    scores = _calibrated(classification_metrics(scaled, evaluation.labels), scaled)
    return {"temperature": temperature, **scores}, scaled


# -- several runs ------------------------------------------------------------------------------------------------------


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return mean and, from two rows on, sample sd over seeds of every number."""
    means = {}
    for name in rows[0]:
        values = [row[name] for row in rows if isinstance(row.get(name), float)]
        if len(values) < len(rows) or name.endswith("_sd"):
            continue
        means[name] = sum(values) / len(values)
        if len(values) > 1:
            means[f"{name}_sd"] = math.sqrt(sum((v - means[name]) ** 2 for v in values) / (len(values) - 1))
    return means


def paired_difference(values: Sequence[Tensor], others: Sequence[Tensor]) -> dict[str, float]:
    """
    Return the mean of values - others and its standard errors, over test rows and over seeds.

    :param values: a number per test row (N,) for each seed; `others` likewise, for the same rows and seeds.
    """
    rows = torch.stack([a.double() - b.double() for a, b in zip(values, others, strict=True)])  # (seeds, N)
    per_row, per_seed = rows.mean(0), rows.mean(1)
    difference = {"mean": float(rows.mean()), "se_rows": float(per_row.std() / math.sqrt(len(per_row)))}
    if len(per_seed) > 1:
        difference["se_seeds"] = float(per_seed.std() / math.sqrt(len(per_seed)))
    return difference


def _differences(
    labels: Sequence[Tensor], predictives: Sequence[Tensor], others: Sequence[Tensor]
) -> dict[str, dict[str, float]]:
    """Return accuracy and NLL of predictives (N, K) minus those of others, for the same rows and seeds."""

    def right(of: Sequence[Tensor]) -> list[Tensor]:
        return [(p.argmax(1) == y).double() for p, y in zip(of, labels, strict=True)]

    def nll(of: Sequence[Tensor]) -> list[Tensor]:
        return [-p.gather(1, y[:, None])[:, 0] for p, y in zip(of, labels, strict=True)]

    pairs = {"accuracy": right, "pred_nll": nll}
    return {name: paired_difference(per_row(predictives), per_row(others)) for name, per_row in pairs.items()}


def _check(runs: Sequence[FinishedRun]) -> None:
    if not runs:
        raise ValueError("a card needs at least one run folder")
    for run in runs:
        if run.data.task != "classification":
            raise ValueError(f"{run.name} is a {run.data.task}: cards are for classifiers")
        if "test_size" in run.recipe.data_args:
            rows = run.recipe.data_args["test_size"]
            raise ValueError(f"{run.name} was scored on {rows} test rows: a card needs all")
    seeds = [run.recipe.seed for run in runs]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"the runs have the seeds {seeds}: give runs of different seeds")
    first = _without(runs[0].recipe, "seed")
    for run in runs[1:]:
        other = _without(run.recipe, "seed")
        changed = sorted(key for key in first if first[key] != other[key])
        if changed:
            raise ValueError(
                f"{run.path} differs from {runs[0].path} in {', '.join(changed)}: give runs of one recipe that differ "
                f"in their seed"
            )


def _without(recipe: Recipe, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in recipe.model_dump().items() if key not in keys}


def _pair(runs: Sequence[FinishedRun], twins: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the twins in the order of the runs' seeds; what is no twin is refused."""
    if not twins:
        return []
    _check(twins)
    by_seed = {twin.recipe.seed: twin for twin in twins}
    for run in runs:
        twin = by_seed.get(run.recipe.seed)
        if twin is None:
            raise ValueError(f"no twin of seed {run.recipe.seed}: give one for every seed, or none")
        own, other = run.recipe.model_dump(), twin.recipe.model_dump()
        changed = [key for key in _SAME if own[key] != other[key]]
        if changed:
            raise ValueError(f"{twin.path} is no twin of {run.path}: {', '.join(changed)} differ")
        if not is_deterministic(twin.recipe.model_dump()):
            raise ValueError(
                f"{twin.path} is not deterministic: train the twin with --set method=map, an average of it, or an "
                f"ensemble of such"
            )
        words = unequal(run.recipe.model_dump(), twin.recipe.model_dump())
        if words:
            raise ValueError(
                f"{twin.path} had other chances than {run.path}: the posterior is {', '.join(words)}; train a twin "
                f'with the same, e.g. --set \'method={{name = "swa", of = "map"}}\''
            )
    return [by_seed[run.recipe.seed] for run in runs]


# -- how it was trained ------------------------------------------------------------------------------------------------


def _settings(recipe: Recipe, run: FinishedRun) -> list[str]:
    """Return the `--set` arguments that turn the catalogue's recipe into this recipe."""
    catalogued = find_recipe(recipe.name)
    given = [] if recipe.budget == catalogued.budget else [f"budget={recipe.budget}"]
    catalogued = _resolved(catalogued.changed({"budget": recipe.budget}), run)
    catalogue, own = leaves(catalogued.model_dump()), leaves(recipe.model_dump())
    keys = [key for key, value in own.items() if key not in catalogue or catalogue[key] != value]
    kind = recipe.method["name"]
    if kind != catalogued.method["name"]:  # its numbers follow from the recipe, unless they were given
        usual = _resolved(recipe.changed({"method": {"name": kind}}), run)
        keys = [key for key in keys if not key.startswith("method.")]
        given += [f"method={kind}"]
        keys += [f"method.{key}" for key in recipe.method if usual.method.get(key) != recipe.method[key]]
    if recipe.optim.other == recipe.optim.loc:
        keys = [key for key in keys if not key.startswith("optim.other")]
    not_settings = {"seed", "description", "source", "paper"}
    keys = [key for key in keys if key.partition(".")[0] not in not_settings]
    keys.sort(key=lambda key: not key.endswith(".name"))
    return [*given, *(setting(key, own[key]) for key in keys)]


def _resolved(recipe: Recipe, run: FinishedRun) -> Recipe:
    method = make_method(recipe.method).resolved(recipe)
    recipe = recipe.changed({"method": {"name": recipe.method["name"], **method.spec()}})
    return resolve(recipe, run.data)


def _command(run: FinishedRun) -> str:
    """Return the command that trains this run again."""
    recipe = run.recipe
    if recipe.name not in recipe_names():
        return f"pyro-bnn train {recipe.name}.toml --set seed={recipe.seed}"
    settings = [f"--set {shlex.quote(given)}" for given in [*_settings(recipe, run), f"seed={recipe.seed}"]]
    return " ".join(["pyro-bnn train", recipe.name, *settings])


def _ship(run: FinishedRun, folder: Path, draws: int) -> tuple[dict[str, Any], FinishedRun, ClassEvaluation]:
    """Write the compact posterior; return what there is to say of it, the run with what was written, and its scores."""
    exact = _classes(run, draws)
    run.posterior.save(folder, compact=True)
    kept = replace(run, posterior=load(folder))
    evaluation = _classes(kept, draws)
    with atomic_write(folder / LABELS) as file:
        np.save(file, evaluation.guess.numpy().astype(np.uint8 if run.data.num_outputs <= 256 else np.int64))
    with atomic_write(folder / NOISE) as file:
        np.save(file, predict_noise(kept.posterior).numpy())
    shipped = {
        "seed": run.recipe.seed,
        "num_samples": draws,
        "accuracy": evaluation.table["s_draws"]["accuracy"],
        "pred_nll": evaluation.table["s_draws"]["pred_nll"],
        "unrounded_pred_nll": exact.table["s_draws"]["pred_nll"],
        "bytes": sum((folder / name).stat().st_size for name in (TENSORS, DESCRIPTION)),
    }
    return shipped, kept, evaluation


def make_card(
    runs: Sequence[str | Path],
    *,
    twins: Sequence[str | Path] = (),
    name: str | None = None,
    out: str | Path | None = None,
    num_samples: int | None = None,
    tried: Sequence[str | Path] = (),
    twin_tried: Sequence[str | Path] = (),
    data_root: str | Path | None = None,
) -> Path:
    """
    Make a card and a compact posterior from the run folders of one recipe, and return their folder.

    Its twin goes into the folder `twin`, where a report of the posterior finds it.

    :param runs: run folders that differ in their seed; the first is shipped.
    :param twins: a deterministic run for every seed.
    :param name: default the recipe's.
    :param out: the folder to write; default cards/NAME.
    :param num_samples: S; default the recipe's.
    :param tried: run folders of the other settings that were tried on validation, finished or not.
    :param twin_tried: likewise of the twin.

    What was tried for a card that is in the folder already, or else for the shipped one of that name, goes on counting.
    """
    if twin_tried and not twins:
        raise ValueError("twin_tried has settings of a twin, but there are no twins: give a twin for every seed")
    if twins and len(tried) != len(twin_tried):
        raise ValueError(
            f"tried= has {len(tried)} other settings and twin_tried= {len(twin_tried)}: posterior and twin are tuned "
            f"equally, so give the run folders of as many of both"
        )
    opened = [open_run(path, data_root) for path in runs]
    _check(opened)
    pairs = _pair(opened, [open_run(path, data_root) for path in twins])
    first = opened[0]
    draws = first.draws(num_samples)
    name = check_name(name or first.recipe.name)
    folder = Path("cards") / name if out is None else Path(out)
    former = _former(name, folder)
    folder.mkdir(parents=True, exist_ok=True)
    shipped, kept, evaluation = _ship(first, folder, draws)
    scored = [_score(kept, evaluation, data_root)]
    scored += [_score(run, _classes(run, draws), data_root) for run in opened[1:]]
    card = {
        "name": name,
        "title": f"{name} (eta = {first.recipe.eta:g})",
        **_origin(first),
        "num_samples": draws,
        "tried": _tried(first, tried, num_samples, data_root),
        "seeds": [run.recipe.seed for run in opened],
        "shipped": shipped,
        "results": [score.numbers for score in scored],
        "mean": {
            column: _means([score.numbers[column] for score in scored])
            for column in ("plug_in", "one_draw", "s_draws", "scaled")
            if column in scored[0].numbers
        },
    }
    if pairs:
        pairs[0].posterior.save(folder / TWIN, compact=True)
        card |= _beside(scored, [_score_twin(twin, data_root) for twin in pairs], _command(pairs[0]))
        card["twin"]["tried"] = _tried(pairs[0], twin_tried, None, data_root)
    elif is_sealed(folder / TWIN):
        remove(folder / TWIN)  # of the card that was here before
    for now, before in ((card, former), (card.get("twin", {}), former.get("twin", {}))):
        if now and before:
            same = card["recipe"] == former["recipe"] and now["command"] == before["command"]
            now["earlier"] = earlier_settings(before, former["made"]["date"], now["tried"], same)
    curve = learning_curves(name, [run.history for run in opened], [twin.history for twin in pairs])
    if curve is None:
        (folder / CURVE).unlink(missing_ok=True)
    else:
        write_text(folder / CURVE, curve)
        card["curve"] = CURVE
    write_text(folder / CARD, json.dumps(card, indent=2, allow_nan=False) + "\n")
    write_text(folder / TEXT, markdown(card))
    seal(folder)
    return folder


def _former(name: str, folder: Path) -> dict[str, Any]:
    """Return the card that is made anew, nothing if there was none."""
    if (folder / CARD).is_file():
        return read_card(folder)
    return read_card(name) if name in shipped_cards() else {}


def _validated(run: FinishedRun, num_samples: int | None) -> ClassEvaluation | None:
    """Return the scores of the finished posterior on its validation rows."""
    val = run.data.val
    if val is None:
        return None
    evaluation = evaluate_rows(run.posterior, val.x, val.y, run.draws(num_samples), seed=run.recipe.seed)
    assert isinstance(evaluation, ClassEvaluation)
    return evaluation


def _tried(
    run: FinishedRun, others: Sequence[str | Path], num_samples: int | None, data_root: str | Path | None
) -> list[dict[str, Any]]:
    """Return the run's setting and the others', paired with it where the validation rows are the same."""
    own = _validated(run, num_samples)

    def numbers_of(evaluation: ClassEvaluation) -> dict[str, float]:
        table, null = evaluation.table["s_draws"], ece_null(evaluation.log_probs)
        return {"val_nll": table["pred_nll"], "val_ece": table["ece"], "val_ece_upper": null["upper"]}

    def score(folder: Path) -> dict[str, float] | None:
        if folder == run.path:
            return {} if own is None else numbers_of(own)
        if not (folder / TENSORS).is_file():
            return None
        opened = open_run(folder, data_root)
        evaluation = _validated(opened, num_samples)
        if evaluation is None or own is None:
            return {}
        row = numbers_of(evaluation)
        if all(getattr(opened.recipe, key) == getattr(run.recipe, key) for key in _SAME_ROWS):
            difference = paired_difference([-evaluation.log_density], [-own.log_density])
            row |= {"difference": difference["mean"], "se": difference["se_rows"]}
        return row

    return settings_tried(run.path, [Path(path) for path in others], score)


def _origin(run: FinishedRun) -> dict[str, Any]:
    """Return where a run comes from: recipe, command, data, versions, machine."""
    recipe, results = run.recipe, run.results
    return {
        "description": recipe.description,
        "source": recipe.source,
        "command": _command(run),
        "recipe": recipe.model_dump(),
        "kind": recipe.method["name"],
        "eta": recipe.eta,
        "temperature": recipe.temperature,
        "data": _data(run),
        "made": {
            "date": results.get("date"),
            "pyro_bnn": results.get("pyro_bnn", __version__),
            "torch": results.get("torch", torch.__version__),
            "pyro": results.get("pyro"),
            "python": results.get("python", platform.python_version()),
            "machine": results.get("machine"),
        },
    }


def _beside(scored: Sequence[_Scored], twins: Sequence[_ScoredTwin], command: str) -> dict[str, Any]:
    """Return what a card says of its twins."""
    rows = [twin.numbers for twin in twins]
    labels, own = ([getattr(s.evaluation, name) for s in scored] for name in ("labels", "log_probs"))
    differences = {"raw": _differences(labels, own, [twin.raw for twin in twins])}
    scaled = [twin.scaled for twin in twins if twin.scaled is not None]
    own_scaled = [score.scaled for score in scored if score.scaled is not None]
    if len(scaled) == len(twins):
        differences["scaled"] = _differences(labels, own, scaled)
        if len(own_scaled) == len(scored):
            differences["both_scaled"] = _differences(labels, own_scaled, scaled)
    means = {column: _means([row[column] for row in rows]) for column in ("raw", "scaled") if column in rows[0]}
    return {"twin": {"command": command, "results": rows, "mean": means}, "differences": differences, "unequal": []}


def _data(run: FinishedRun) -> dict[str, Any]:
    data = run.data
    return {
        "name": data.name,
        "train": len(data.train),
        "val": 0 if data.val is None else len(data.val),
        "test": len(data.test),
        "classes": list(data.class_names or ()),
    }


# -- reading them ------------------------------------------------------------------------------------------------------


def _weights() -> Path:
    return Path(str(files("pyro_bnn") / "weights"))


def _folder(name: str | Path) -> Path:
    return Path(name) if Path(name).is_dir() else _weights() / str(name)


def read_card(name: str | Path) -> dict[str, Any]:
    """Return the card of a shipped posterior, or of a folder that `make_card` wrote."""
    path = _folder(name)
    if not (path / CARD).is_file():
        known = ", ".join(shipped_cards()) or "none"
        raise FileNotFoundError(f"no card {str(name)!r}: give a folder that has {CARD}, or one of {known}")
    card: dict[str, Any] = parse_json(read_listed(path, [CARD])[CARD], str(path / CARD), dict)
    return card


def headline(name: str) -> dict[str, Any]:
    """Return the few numbers of a shipped posterior that a list has room for; nothing if it has no card."""
    if name not in shipped_cards():
        return {}
    card = read_card(name)
    ship = next(row for row in card["results"] if row["seed"] == card["shipped"]["seed"])
    return {
        "description": card["description"],
        "data": card["data"]["name"],
        "kind": card["kind"],
        "eta": card["eta"],
        **{key: ship["s_draws"][key] for key in ("accuracy", "pred_nll", "ece", "epistemic")},
        "num_samples": card["num_samples"],
        "bytes": card["shipped"]["bytes"],
    }


def shipped_cards() -> list[str]:
    """Return the names of the shipped posteriors that have a card."""
    return [name for name in shipped_posteriors() if (_weights() / name / CARD).is_file()]


@final
@dataclass(frozen=True)
class Verification:
    """What scoring a shipped posterior again gave, beside its card."""

    name: str
    pred_nll: float
    card_pred_nll: float
    labels_differ: int
    rows: int

    @property
    def comes_out_again(self) -> bool:
        """Whether the NLL is within 5e-4 and at most 5 of 10,000 labels differ."""
        close = abs(self.pred_nll - self.card_pred_nll) <= NLL_TOLERANCE
        return close and self.labels_differ <= LABELS_PER_ROW * self.rows


def predict_noise(posterior: Posterior) -> Tensor:
    """Return the predictive (16, K) of noise of the inputs' shape, by 10 draws: the same whenever it is asked for."""
    rows = gaussian_noise(torch.empty(NOISE_ROWS, *posterior.info["input_shape"]))
    return posterior.draws(rows, num_samples=NOISE_DRAWS, seed=0, standardised=True).mean(0)


def _array(folder: Path, name: str) -> Any:
    return parse_npy(read_listed(folder, [name])[name], str(folder / name))


def verify_noise(name: str | Path) -> float:
    """Return how far the predictions of a card's posterior for noise are from those it was shipped with."""
    folder = _folder(name)
    shipped = torch.from_numpy(_array(folder, NOISE))
    return float((predict_noise(load(folder)).double() - shipped.double()).abs().max())


def verify(name: str | Path, data_root: str | Path | None = None) -> Verification:
    """Score the posterior of a card again, with the same draws on the same rows."""
    card = read_card(name)
    folder = _folder(name)
    run = open_run(folder, data_root)
    evaluation = _classes(run, card["shipped"]["num_samples"])
    labels = torch.from_numpy(_array(folder, LABELS).astype(np.int64))
    differ = int((labels != evaluation.guess).sum())
    nll = evaluation.table["s_draws"]["pred_nll"]
    return Verification(card["name"], nll, card["shipped"]["pred_nll"], differ, len(labels))


# -- the README and the command ----------------------------------------------------------------------------------------


def write_readme(path: str | Path) -> None:
    """Put the table of the shipped cards between the two markers of a file."""
    file = Path(path)
    table = readme_table([read_card(name) for name in shipped_cards()])
    try:
        text = insert_between(file.read_text(), "zoo", table.rstrip("\n"))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    write_text(file, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m pyro_bnn.cards", description="The cards of the zoo.")
    parser.add_argument("--readme", type=Path, help="the file to write the table into")
    parser.add_argument("--verify", nargs="*", metavar="NAME", help="score shipped posteriors again; default all")
    parser.add_argument("--data-root", type=Path, help="where data sets by name live")
    given = parser.parse_args(arguments)
    if given.readme is None and given.verify is None:
        parser.error("nothing to do: give --readme FILE or --verify")
    if given.readme is not None:
        write_readme(given.readme)
    failed = 0
    for name in given.verify or (shipped_cards() if given.verify is not None else ()):
        again = verify(name, given.data_root)
        failed += not again.comes_out_again
        print(
            f"{again.name}: NLL {again.pred_nll:.6f}, card {again.card_pred_nll:.6f}; {again.labels_differ} of "
            f"{again.rows} labels differ: {'comes out again' if again.comes_out_again else 'does NOT come out again'}"
        )
    return 1 if failed else 0
