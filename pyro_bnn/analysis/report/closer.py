"""What a report shows of a posterior beside its main figures: classes, a curve, chains, and who does better."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.analysis.report.figures import Figure, Key
from pyro_bnn.analysis.report.sections import Twin, raw_inputs
from pyro_bnn.analysis.report.svg import Chart, limits
from pyro_bnn.analysis.scores.evaluation import ClassEvaluation, Evaluation, RealEvaluation
from pyro_bnn.analysis.scores.intervals import interval_of
from pyro_bnn.common.contract import contract_of
from pyro_bnn.data.arrays import Inputs
from pyro_bnn.inference.predictive import RealDraw
from pyro_bnn.posterior import Posterior

__all__ = ["chains", "classes", "curve_figure", "glossary", "honestly"]

Section: TypeAlias = dict[str, Any]

_MATRIX = 12
_CLASSES = 20
_PAIRS = 10
_CURVE_ROWS = 200
_CURVE_DRAWS = 100

_WORDS = {
    "Predictive NLL": "minus the mean log probability of the test labels or targets under the averaged predictive; "
    "lower is better. Of numbers it is in raw units and may be negative.",
    "Plug-in": "the one network at the median of the posterior, as if there were no uncertainty.",
    "Draw": "one sampled network; a prediction averages the predictive distributions of many.",
    "Twin": "the same network without uncertainty, trained on the same rows.",
    "Calibration error (ECE)": "how far confidence and accuracy lie apart, averaged over bins of confidence. A finite "
    "test set gives some of it by chance, which is stated beside it.",
    "Brier score": "the mean squared distance of the probabilities from the labels; lower is better.",
    "RMSE": "the root of the mean squared error of the predicted means, in the targets' units.",
    "Coverage": "the share of targets that the predictive intervals of a level hold; it should be the level.",
    "Entropy": "how spread out the averaged probabilities are, in nats: 0 if certain, log K at most.",
    "Aleatoric, epistemic": "the noise that each draw sees itself, and what the draws disagree about. More data "
    "shrinks the second only.",
    "Temperature T": "probabilities are raised to 1 / T and normalised again; fitted on validation rows.",
    "AUROC, FPR95": "how well a score tells the two kinds of rows apart: 0.5 is chance, 1 is perfectly; and the share "
    "of test rows refused when 95 % of the others are found.",
    "Eta": "tempering: the target is p(w) times the likelihood to the power 1 / eta. Below 1 the posterior is narrower "
    "than Bayes' rule says.",
    "KL(q || p) / N": "how far the posterior moved from the prior, in nats per row trained on.",
    "Signal-to-noise": "|mean| / sd of a weight. Weights below 1 can mostly be set to zero.",
    "R-hat, ESS": "whether chains agree (R-hat at most 1.01), and how many independent draws theirs are worth.",
    "Divergence": "a trajectory of HMC or NUTS whose energy went astray: that part of the posterior is not explored.",
}


def glossary(evaluation: Evaluation, *, twin: bool, chains: bool) -> list[tuple[str, str]]:
    """Return the words that this page uses."""
    only_classes = {"Calibration error (ECE)", "Brier score", "Entropy", "Temperature T", "AUROC, FPR95"}
    left_out = {"RMSE", "Coverage"} if isinstance(evaluation, ClassEvaluation) else only_classes
    left_out |= set() if twin else {"Twin"}
    left_out |= set() if chains else {"R-hat, ESS", "Divergence"}
    return [(word, meaning) for word, meaning in _WORDS.items() if word not in left_out]


# -- who does better -----------------------------------------------------------------------------------------------


def honestly(evaluation: Evaluation, twin: Twin | None, others: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a sentence wherever the plug-in network or the twin does better than the average of the draws."""
    own, said = evaluation.table["s_draws"], []
    plug_in = evaluation.table.get("plug_in", {})
    better = [key for key in ("accuracy", "rmse", "pred_nll") if _wins(plug_in, own, key)]
    if better:
        figures = " and ".join(_pair(key, plug_in[key], own[key]) for key in better)
        said.append(
            f"The plug-in network does better here than the average of {evaluation.num_samples} draws: {figures}. One "
            f"pass is enough for that; the draws are what its uncertainty comes from."
        )
    if twin is not None:
        theirs = twin.evaluation.table["s_draws"]
        better = [key for key in ("accuracy", "rmse", "pred_nll") if _wins(theirs, own, key)]
        if better:
            figures = " and ".join(_pair(key, theirs[key], own[key]) for key in better)
            said.append(f"The twin {twin.name!r} wins: {figures}.{_paired(evaluation, twin.evaluation)}")
        scaled = next((c for n, c in others.items() if n.startswith(f"{twin.name}, T = ")), None)
        if scaled is not None and _wins(scaled, own, "pred_nll") and "pred_nll" not in better:
            figures = _pair("pred_nll", scaled["pred_nll"], own["pred_nll"])
            said.append(f"With its temperature fitted the twin {twin.name!r} has the lower NLL: {figures}.")
    return said


def _wins(other: Mapping[str, float], own: Mapping[str, float], key: str) -> bool:
    if key not in other or key not in own or not math.isfinite(other[key]):
        return False
    return other[key] > own[key] if key == "accuracy" else other[key] < own[key]


def _pair(key: str, other: float, own: float) -> str:
    if key == "accuracy":
        return f"{100 * other:.2f} % right against {100 * own:.2f} %"
    words = {"rmse": "an RMSE", "pred_nll": "an NLL"}[key]
    return f"{words} of {other:.4f} against {own:.4f}"


def _paired(evaluation: Evaluation, other: Evaluation) -> str:
    """Say how large the difference in NLL is beside its standard error over paired rows."""
    difference = (evaluation.log_density - other.log_density).double()
    if len(difference) < 2 or not bool(difference.isfinite().all()):
        return ""
    se = float(difference.std()) / math.sqrt(len(difference))
    return f" Row by row its NLL differs by {float(difference.mean()):+.4f} ± {se:.4f} (standard error)."


# -- classes -------------------------------------------------------------------------------------------------------


def classes(posterior: Posterior, evaluation: Evaluation) -> Section | None:
    """Return the confusion matrix, or the commonest confusions of many classes, and the figures of each class."""
    if not isinstance(evaluation, ClassEvaluation):
        return None
    k = evaluation.log_probs.shape[1]
    names = [str(name) for name in posterior.info.get("class_names") or range(k)]
    counts = torch.zeros(k, k, dtype=torch.int64)
    counts.index_put_((evaluation.labels, evaluation.guess), torch.ones((), dtype=torch.int64), accumulate=True)
    return {
        "matrix": _matrix(counts, names) if k <= _MATRIX else None,
        "pairs": _pairs(counts, names),
        "rows": _per_class(evaluation, counts, names),
        "all": k <= _CLASSES,
    }


def _matrix(counts: Tensor, names: Sequence[str]) -> Section:
    """Rows are labels, columns predictions; a cell is shaded by its share of the row."""
    share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    rows = []
    for i, name in enumerate(names):
        cells = [
            {
                "count": int(counts[i, j]),
                "shade": round(100 * (float(share[i, j]) if i == j else float(share[i, j]) ** 0.5)),
                "right": i == j,
            }
            for j in range(len(names))
        ]
        rows.append({"name": name, "cells": cells})
    return {"names": list(names), "rows": rows}


def _pairs(counts: Tensor, names: Sequence[str]) -> list[dict[str, str]]:
    wrong = counts.clone().fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True)[:_PAIRS].tolist()
    found = [(divmod(place, len(names)), int(wrong.flatten()[place])) for place in order]
    return [{"label": names[i], "guess": names[j], "count": f"{count:,}"} for (i, j), count in found if count]


def _per_class(evaluation: ClassEvaluation, counts: Tensor, names: Sequence[str]) -> list[dict[str, str]]:
    """The classes of lowest recall first where not all are shown."""
    recall = counts.diag().double() / counts.sum(1)
    precision = counts.diag().double() / counts.sum(0)
    order = range(len(names)) if len(names) <= _CLASSES else recall.nan_to_num(2.0).argsort()[:_CLASSES].tolist()
    rows = []
    for i in order:
        here = evaluation.labels == i
        confidence = evaluation.log_probs[here].amax(1).exp().mean() if bool(here.any()) else math.nan
        nll = -evaluation.log_probs[here, i].mean() if bool(here.any()) else math.nan
        rows.append(
            {
                "name": names[i],
                "count": f"{int(here.sum()):,}",
                "recall": _percent(float(recall[i])),
                "precision": _percent(float(precision[i])),
                "confidence": _percent(float(confidence)),
                "nll": "–" if math.isnan(float(nll)) else f"{float(nll):.3f}",
            }
        )
    return rows


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


# -- numbers -------------------------------------------------------------------------------------------------------


def curve_figure(posterior: Posterior, x: Inputs, evaluation: Evaluation, seed: int) -> Figure | None:
    """Return the curve with its bands for one number over one input, and a little beyond its rows."""
    if not isinstance(evaluation, RealEvaluation) or evaluation.y.ndim > 1 or isinstance(x, tuple):
        return None
    if x.reshape(len(x), -1).shape[1] != 1:
        return None
    raw = raw_inputs(posterior, x).reshape(-1).double().cpu()
    low, high = float(raw.min()), float(raw.max())
    margin = 0.15 * (high - low)
    grid = torch.linspace(low - margin, high + margin, _CURVE_ROWS, dtype=raw.dtype)
    rows = grid.reshape(-1, *x.shape[1:]).float()
    drawn = posterior.stream(rows, _CURVE_DRAWS, seed=seed, standardised=False)
    draws = [draw for draw in drawn if isinstance(draw, RealDraw)]
    middle = torch.stack([draw.mean for draw in draws]).double().mean(0).cpu()
    wide, narrow = (interval_of(draws, level) for level in (0.9, 0.5))
    observed = evaluation.y.double().cpu()
    places = torch.linspace(0, len(raw) - 1, min(len(raw), 400)).long()
    ends = [*wide.lower.tolist(), *wide.upper.tolist(), *observed[places].tolist()]
    words = (
        f"The mean of {_CURVE_DRAWS} networks with its 50 % and 90 % predictive intervals, and {len(places)} of "
        f"{len(raw)} test rows. The curve goes on beyond the rows by 15 % to either side."
    )
    chart = Chart("The curve with its bands", words, "input", "target", (float(grid[0]), float(grid[-1])), limits(ends))
    for band in (wide, narrow):
        chart.area(grid.tolist(), band.lower.tolist(), band.upper.tolist(), "c0")
    chart.points(raw[places].tolist(), observed[places].tolist(), "c1", 1.6)
    chart.line(grid.tolist(), middle.tolist(), "c0")
    keys = (Key("c0", "mean, 50 % and 90 % intervals"), Key("c1", "test rows"))
    return Figure("The curve with its bands", chart.svg(), words, keys)


# -- chains --------------------------------------------------------------------------------------------------------


def chains(posterior: Posterior, history: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> Section | None:
    """Return what is known about a sampler's chains: agreement, divergences, energy; None of another posterior."""
    promised = contract_of(posterior.guide)
    if promised.by_site() is None:
        return None
    facts = dict(results.get("facts") or {})
    lines = [line for line in history if "chain" in line and "epoch" not in line]
    stats = promised.sample_stats()
    shown = []
    if "rhat" in facts:
        shown.append(("R-hat of the predictions", f"{facts['rhat']:.3f}", "at most 1.01"))
    if "ess_bulk" in facts:
        shown.append(("Bulk ESS of the predictions", f"{facts['ess_bulk']:.0f}", "at least 400"))
    diverged = int(stats["diverging"].sum()) if "diverging" in stats else facts.get("divergences")
    if diverged is not None:
        shown.append(("Divergences", f"{diverged}", "none"))
    if "energy" in stats and stats["energy"].shape[1] > 2:
        shown.append(("Lowest E-BFMI of a chain", f"{min(_bfmi(e) for e in stats['energy']):.2f}", "above 0.3"))
    keys = [key for key in ("acceptance", "step_size", "divergences") if any(key in line for line in lines)]
    rows = [[str(line["chain"]), *(f"{line[key]:.3g}" for key in keys)] for line in lines]
    if not shown and not rows:
        return None
    stands = facts.get("reference")
    words = "" if stands is None else (
        "By these figures the draws may stand for the posterior."
        if stands
        else "By these figures the draws may NOT stand for the posterior: run more or longer chains."
    )  # fmt: skip
    return {"shown": shown, "keys": [key.replace("_", " ") for key in keys], "rows": rows, "words": words}


def _bfmi(energy: Tensor) -> float:
    """Betancourt's E-BFMI: the mean squared step of the energy over its variance."""
    energy = energy.double()
    return float(energy.diff().square().mean() / energy.var(correction=0))
