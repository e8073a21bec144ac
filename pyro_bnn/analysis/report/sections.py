"""The sections of a report as plain values, ready for its template."""

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from pyro_bnn.analysis.report import figures
from pyro_bnn.analysis.scores.calibration import adaptive_ece, reliability, scale_temperature
from pyro_bnn.analysis.scores.evaluation import ClassEvaluation, Evaluation, RealEvaluation
from pyro_bnn.analysis.scores.metrics import classification_metrics
from pyro_bnn.analysis.scores.ood import accumulate, ood_scores, ood_table
from pyro_bnn.analysis.scores.prior_check import prior_posterior
from pyro_bnn.analysis.scores.selective import rejection_curve
from pyro_bnn.analysis.scores.signal_to_noise import WeightSummary
from pyro_bnn.common.shown import significant
from pyro_bnn.data.arrays import Inputs, first_rows
from pyro_bnn.data.standardise import plain, standardiser_of
from pyro_bnn.inference.predictive import ClassDraw
from pyro_bnn.posterior import Posterior

__all__ = ["Twin"]

Section: TypeAlias = dict[str, Any]
Intervals: TypeAlias = Mapping[str, tuple[float, float]]

_CASES = 12
_ERRORS = 10
_PRIOR_ROWS = 200
_PRIOR_DRAWS = 50
_QUANTILE_VALUES = 10**6


@final
@dataclass(frozen=True)
class _Number:
    """How a metric is called and written."""

    words: str
    digits: int
    percent: bool = False

    def write(self, value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return "–"
        return f"{100 * value:.{self.digits}f} %" if self.percent else self._plain(value)

    def between(self, interval: tuple[float, float] | None) -> str:
        if interval is None:
            return ""
        if self.percent:
            return " – ".join(f"{100 * v:.{self.digits}f}" for v in interval) + " %"
        return " – ".join(self._plain(v) for v in interval)

    def _plain(self, value: float) -> str:
        """Return a number with its digits after the point, which thousands need none of."""
        return f"{value:.{self.digits}f}" if abs(value) < 1000 else significant(value, 5)


_NUMBERS = {
    "accuracy": _Number("Accuracy", 2, percent=True),
    "rmse": _Number("RMSE", 4),
    "pred_nll": _Number("Predictive NLL", 4),
    "brier": _Number("Brier score", 4),
    "ece": _Number("Calibration error (ECE)", 4),
    "confidence": _Number("Mean confidence", 2, percent=True),
    "coverage_0.5": _Number("Targets in 50 % intervals", 1, percent=True),
    "coverage_0.9": _Number("Targets in 90 % intervals", 1, percent=True),
    "coverage_0.95": _Number("Targets in 95 % intervals", 1, percent=True),
    "entropy": _Number("Mean entropy", 4),
    "sd": _Number("Mean predictive sd", 4),
    "aleatoric": _Number("Aleatoric part", 4),
    "epistemic": _Number("Epistemic part", 4),
}
_TILES = ("accuracy", "rmse", "pred_nll", "ece", "coverage_0.9", "brier")
SCORES = {"entropy": "entropy", "mutual_information": "mutual information", "max_probability": "1 − max probability"}


@final
@dataclass(frozen=True, eq=False)
class Twin:
    """
    Another model on the same test rows to put beside the posterior, usually its deterministic twin.

    :param name: what the report calls it.
    :param posterior: the model.
    :param evaluation: its scores on these rows.
    :param temperature: fitted on validation, if there is one.
    """

    name: str
    posterior: Posterior
    evaluation: Evaluation
    temperature: float | None = None


# -- numbers -------------------------------------------------------------------------------------------------------


def other_columns(
    evaluation: Evaluation, temperature: float | None, twin: Twin | None
) -> dict[str, Mapping[str, float]]:
    """Return the columns beside the posterior's own: at its fitted temperature, and its twin's, raw and scaled."""
    columns: dict[str, Mapping[str, float]] = {}
    if temperature is not None and isinstance(evaluation, ClassEvaluation):
        columns[f"{evaluation.num_samples} draws, T = {temperature:.2f}"] = _at_temperature(evaluation, temperature)
    if twin is not None:
        columns[twin.name] = twin.evaluation.table["s_draws"]
        if twin.temperature is not None and isinstance(twin.evaluation, ClassEvaluation):
            scaled = _at_temperature(twin.evaluation, twin.temperature)
            columns[f"{twin.name}, T = {twin.temperature:.2f}"] = scaled
    return columns


def _at_temperature(evaluation: ClassEvaluation, temperature: float) -> dict[str, float]:
    return classification_metrics(scale_temperature(evaluation.log_probs, temperature), evaluation.labels)


def result_table(evaluation: Evaluation, intervals: Intervals, others: Mapping[str, Mapping[str, float]]) -> Section:
    """Return columns and rows: plug-in, one draw, all draws with intervals, and the others."""
    table = evaluation.table
    columns = [{"name": f"{evaluation.num_samples} draws", "main": "yes"}, *({"name": name} for name in others)]
    columns += [{"name": "Plug-in"}] if "plug_in" in table else []
    columns += [{"name": "One draw"}]
    rows = []
    for key, number in _NUMBERS.items():
        if key not in table["s_draws"]:
            continue
        main = number.write(table["s_draws"][key])
        cells = [{"value": main, "more": number.between(intervals.get(key)), "main": "yes"}]
        cells += [{"value": number.write(column.get(key))} for column in others.values()]
        cells += [{"value": number.write(table["plug_in"].get(key))}] if "plug_in" in table else []
        single = table["one_draw"]
        spread = f"± {number.write(single[f'{key}_sd'])}" if f"{key}_sd" in single else ""
        cells.append({"value": number.write(single.get(key)), "more": spread})
        variance = isinstance(evaluation, RealEvaluation) and key in ("aleatoric", "epistemic")
        rows.append({"name": f"{number.words} (variance)" if variance else number.words, "cells": cells})
    return {"columns": columns, "rows": rows}


def tiles(
    evaluation: Evaluation, intervals: Intervals, null: Mapping[str, float], twin: Twin | None
) -> list[dict[str, str]]:
    """Return the main figures with their intervals, the twin's, and for ECE what chance gives."""
    entries = []
    for key in (k for k in _TILES if k in evaluation.table["s_draws"]):
        number = _NUMBERS[key]
        more = [f"95 % interval {number.between(intervals[key])}"] if key in intervals else []
        if key == "ece":
            more.append(f"by chance {null['mean']:.4f}, up to {null['upper']:.4f}")
        if twin is not None:
            more.append(f"{twin.name} {number.write(twin.evaluation.table['s_draws'].get(key))}")
        entries.append({"name": number.words, "value": number.write(evaluation.table["s_draws"][key]), "more": more})
    return entries  # type: ignore[return-value]


def verdict(evaluation: Evaluation) -> str:
    """Return the main result in a few sentences."""
    s = evaluation.table["s_draws"]
    if isinstance(evaluation, RealEvaluation):
        # a law without a mean, such as Cauchy's, has no RMSE
        error = f"an RMSE of {significant(s['rmse'])}" if "rmse" in s else f"a predictive NLL of {s['pred_nll']:.4g}"
        return (
            f"On {len(evaluation.y):,} test rows the average of {evaluation.num_samples} networks has {error}, and its "
            f"90 % intervals hold {100 * s['coverage_0.9']:.1f} % of the targets."
        )
    gap = 100 * (s["confidence"] - s["accuracy"])
    sure = f"{abs(gap):.1f} points {'more' if gap > 0 else 'less'} sure than it is right"
    curve = rejection_curve(evaluation.entropy, evaluation.correct)
    return (
        f"On {len(evaluation.labels):,} test rows the average of {evaluation.num_samples} networks is right "
        f"{100 * s['accuracy']:.2f} % of the time and, on the whole, "
        f"{'as sure as it should be' if abs(gap) < 0.5 else sure}. Allowed to refuse the tenth it is least sure of, it "
        f"is right {100 * curve.accuracy_at(0.1):.2f} % of the time."
    )


# -- classes -------------------------------------------------------------------------------------------------------


def calibration(evaluation: Evaluation, null: Mapping[str, float]) -> list[figures.Figure]:
    """Return reliability and confidence for classes, coverage and fit for numbers."""
    if isinstance(evaluation, RealEvaluation):
        covered = figures.coverage_figure(evaluation)
        return [covered, figures.fit_figure(evaluation)] if "rmse" in evaluation.table["s_draws"] else [covered]
    error = evaluation.table["s_draws"]["ece"]
    judged = "nothing here speaks against it" if error <= null["upper"] else "it is not calibrated exactly"
    words = (
        f"The calibration error is {error:.4f} over 15 bins of equal width and "
        f"{adaptive_ece(evaluation.log_probs, evaluation.labels):.4f} over 15 of equal count. Were every probability "
        f"exact, it would be {null['mean']:.4f} on average and at most {null['upper']:.4f} on 95 % of test sets of "
        f"this size: {judged}."
    )
    confidence, right = evaluation.log_probs.amax(1).exp(), evaluation.correct
    groups = {"right": confidence[right], "wrong": confidence[~right]}
    groups = {name: values for name, values in groups.items() if len(values)}
    said = " and ".join(f"{_mean(v)} on the {len(v):,} {name} predictions" for name, v in groups.items())
    title = "Confidence, right and wrong"
    return [
        figures.reliability_figure(reliability(evaluation.log_probs, evaluation.labels), words),
        figures.histogram_figure(groups, title, "confidence", 1.0, f"Mean confidence is {said}.", percent=True),
    ]


def _mean(shares: Tensor) -> str:
    return f"{100 * float(shares.mean()):.1f} %"


def rejection(evaluation: Evaluation) -> figures.Figure:
    """Return accuracy (RMSE) on the rows that are not refused."""
    if isinstance(evaluation, RealEvaluation):
        return figures.error_rejection_figure(evaluation)
    curves = {SCORES[k]: rejection_curve(v, evaluation.correct) for k, v in scores_of(evaluation).items()}
    return figures.rejection_figure(curves)


def scores_of(evaluation: ClassEvaluation) -> dict[str, Tensor]:
    """Return every score (N,) of the test rows, high where the model is unsure."""
    return {
        "entropy": evaluation.entropy,
        "mutual_information": evaluation.epistemic,
        "max_probability": 1 - evaluation.log_probs.amax(1).exp(),
    }


def out_of_distribution(
    posterior: Posterior, evaluation: ClassEvaluation, outside: Mapping[str, Tensor], twin: Twin | None, seed: int
) -> Section:
    """Return confidence and entropy in and out of distribution, and a table of AUROC and FPR95 for every score."""
    scores = scores_of(evaluation)
    outer = {name: accumulate(posterior, x, evaluation.num_samples, seed) for name, x in outside.items()}
    sure = {
        "test rows": 1 - scores["max_probability"],
        **{n: f.log_probs.amax(1).exp() for n, f in outer.items()},
    }
    spread = {"test rows": scores["entropy"], **{n: f.total for n, f in outer.items()}}
    said = ", ".join(f"{_mean(v)} on {name}" for name, v in sure.items())
    nats = ", ".join(f"{float(v.mean()):.2f} on {name}" for name, v in spread.items())
    where, top = "in and out of distribution", math.log(evaluation.log_probs.shape[1])
    rows = [_ood_row(n, len(x), ood_table(scores, ood_scores(outer[n]))) for n, x in outside.items()]
    if twin is not None and isinstance(twin.evaluation, ClassEvaluation):
        theirs = scores_of(twin.evaluation)
        for name, x in outside.items():
            other = ood_scores(accumulate(twin.posterior, x, twin.evaluation.num_samples, seed))
            point = "mutual_information" if twin.evaluation.num_samples == 1 else ""  # one draw does not disagree
            rows.append(_ood_row(f"{name}, {twin.name}", len(x), ood_table(theirs, other), point))
    return {
        "figures": [
            figures.histogram_figure(sure, f"Confidence {where}", "confidence", 1.0, f"Mean: {said}.", percent=True),
            figures.histogram_figure(spread, f"Entropy {where}", "entropy (nats)", top, f"Mean in nats: {nats}."),
        ],
        "rows": rows,
    }


def _ood_row(name: str, count: int, table: Mapping[str, Mapping[str, float]], left_out: str = "") -> Section:
    cells = [
        {"name": SCORES[score], "auroc": f"{cell['auroc']:.4f}", "fpr95": f"{100 * cell['fpr95']:.1f} %"}
        for score, cell in table.items()
        if score != left_out
    ]
    return {"name": name, "count": count, "scores": cells}


def mistakes(posterior: Posterior, x: Inputs, evaluation: ClassEvaluation) -> list[Section]:
    """Return the wrong predictions of highest probability."""
    wrong = (~evaluation.correct).nonzero()[:, 0]
    order = evaluation.log_probs[wrong].amax(1).argsort(descending=True)
    return [_case(posterior, x, evaluation, i) for i in wrong[order][:_CASES].tolist()]


def most_uncertain(posterior: Posterior, x: Inputs, evaluation: ClassEvaluation) -> list[Section]:
    """Return the rows of highest entropy."""
    order = evaluation.entropy.argsort(descending=True)
    return [_case(posterior, x, evaluation, i) for i in order[:_CASES].tolist()]


def _case(posterior: Posterior, x: Inputs, evaluation: ClassEvaluation, i: int) -> Section:
    """What a card about row i shows: its image, label, guess, bars of the likeliest classes, uncertainty."""
    p, label, guess = evaluation.log_probs[i].exp(), int(evaluation.labels[i]), int(evaluation.guess[i])
    names = [str(name) for name in posterior.info.get("class_names") or range(len(p))]
    top = p.topk(min(3, len(p)))
    return {
        "row": i,
        "image": png(raw_inputs(posterior, x[i : i + 1])[0]) if isinstance(x, Tensor) and is_image(x) else None,
        "label": names[label],
        "bars": [
            {"name": names[k], "share": share, "right": k == label}
            for share, k in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ],
        "entropy": float(evaluation.entropy[i]),
        "epistemic": max(float(evaluation.epistemic[i]), 0.0),
        "words": f"Test row {i}, labelled {names[label]}, predicted {names[guess]} with {float(top.values[0]):.2f}.",
    }


def is_image(x: Tensor) -> bool:
    """Whether inputs (N, ...) can be shown as pictures."""
    return x.ndim == 4 and x.shape[1] in (1, 3)


def raw_inputs(posterior: Posterior, x: Tensor) -> Tensor:
    """Return inputs as they were before they were standardised, if they say that they are."""
    scale = standardiser_of(posterior.standardise(x))
    return plain(x) if scale is None else scale.invert(posterior.standardise(x))


def png(image: Tensor) -> str:
    """Return an image (C, H, W) with values in [0, 1] as a data address; others are stretched to that range."""
    from PIL import Image

    low, high = float(image.min()), float(image.max())
    if low < -1e-3 or high > 1 + 1e-3:
        image = (image - low) / (high - low)
    pixels = (image.clamp(0, 1) * 255).round().byte().cpu()
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


# -- numbers and weights -------------------------------------------------------------------------------------------


def largest_errors(evaluation: RealEvaluation) -> list[dict[str, str]]:
    """Return the rows whose target is furthest from the mean in predictive standard deviations, where these are."""
    if not bool(evaluation.sd.isfinite().all()):
        return []
    y, mean, sd = (t.reshape(len(evaluation.y), -1)[:, 0] for t in (evaluation.y, evaluation.mean, evaluation.sd))
    distance = ((y - mean) / sd).abs()
    return [
        {
            "row": str(i),
            "observed": significant(float(y[i])),
            "predicted": f"{significant(float(mean[i]))} ± {significant(float(sd[i]), 2)}",
            "distance": f"{float(distance[i]):.1f} sd",
        }
        for i in distance.argsort(descending=True)[:_ERRORS].tolist()
    ]


def prior_predictive(posterior: Posterior, x: Inputs, evaluation: Evaluation, seed: int) -> figures.Figure:
    """Return what the prior says about some test rows beside what came of it."""
    confidences, targets = [], []
    generator = torch.Generator().manual_seed(seed)
    for draw in prior_posterior(posterior).stream(first_rows(x, _PRIOR_ROWS), _PRIOR_DRAWS, seed=seed):
        if isinstance(draw, ClassDraw):
            confidences.append(draw.log_probs.amax(1).exp().cpu())
        else:
            targets.append(draw.sample(generator))
    if isinstance(evaluation, ClassEvaluation):
        return figures.prior_figure(torch.cat(confidences), evaluation.log_probs.amax(1).exp())
    return figures.prior_data_figure(torch.cat(targets).double(), evaluation.y)


def layers(posterior: Posterior, summary: Mapping[str, WeightSummary]) -> list[Section]:
    """Return per site its size, prior sd, and 5 %, 50 %, 95 % quantiles of sigma and signal-to-noise."""
    priors: Mapping[str, Any] = getattr(posterior.model, "priors", dict)()
    rows: list[Section] = []
    sigmas, ratios, marks = [], [], []
    for name, site in summary.items():
        prior = priors.get(name.removeprefix("net."))
        sigma, ratio = (_sample(t) for t in (site.sd, site.signal_to_noise))
        sigmas.append(_quantiles(sigma))
        ratios.append(_quantiles(ratio.clamp(max=1e6)))
        marks.append(None if prior is None else float(prior.stddev.double().mean()))
        rows.append({"name": name, "size": site.sd.numel(), "below": float((ratio < 1).double().mean())})
    place_sigma = _log_places([*(v for q in sigmas for v in q), *(m for m in marks if m is not None)])
    place_ratio = _log_places([1.0, *(v for q in ratios for v in q)])
    for row, sd, snr, mark in zip(rows, sigmas, ratios, marks, strict=True):
        row |= {"sigma": sd, "ratio": snr, "prior": mark, "one_at": place_ratio(1.0)}
        row |= {"sigma_at": [place_sigma(v) for v in sd], "ratio_at": [place_ratio(v) for v in snr]}
        row["prior_at"] = None if mark is None else place_sigma(mark)
    return rows


def _sample(values: Tensor) -> Tensor:
    """At most a million of the values, evenly spaced."""
    flat = values.flatten()
    return flat[:: math.ceil(len(flat) / _QUANTILE_VALUES)].double().cpu()


def _quantiles(values: Tensor) -> list[float]:
    quantiles: list[float] = values.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    return quantiles


def _log_places(values: Sequence[float]) -> Callable[[float], float]:
    """Return the map from positive values to percent of the width of a bar."""
    positive = [v for v in values if v > 0] or [1.0]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    low, high = (low - 0.5, high + 0.5) if high - low < 1e-6 else (low, high)
    return lambda v: round(2 + 96 * (math.log10(max(v, 10**low)) - low) / (high - low), 1)
