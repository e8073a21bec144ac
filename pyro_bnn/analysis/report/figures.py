"""The figures of a report: arrays in, a chart with its description in words out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from pyro_bnn.analysis.report.svg import Chart, limits, log_limits
from pyro_bnn.analysis.scores.calibration import Reliability
from pyro_bnn.analysis.scores.evaluation import RealEvaluation
from pyro_bnn.analysis.scores.selective import RejectionCurve
from pyro_bnn.analysis.scores.signal_to_noise import WeightSummary
from pyro_bnn.common.shown import significant

__all__ = ["Figure", "Key"]

_Z = 1.96
_POINTS = 400


@final
@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    style: str
    words: str


@final
@dataclass(frozen=True)
class Figure:
    """A chart with its heading, legend and caption."""

    heading: str
    svg: str
    caption: str
    keys: tuple[Key, ...] = ()


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


# -- training ------------------------------------------------------------------------------------------------------


def training_figures(history: Sequence[Mapping[str, Any]], best_epoch: int | None) -> list[Figure]:
    """Return the curves of nll (train and validation), kl and validation accuracy by epoch; none of a sampler's."""
    lines = [line for line in history if "epoch" in line]
    wanted = (
        ({"nll": "training NLL of single draws", "val_nll": "validation NLL"}, "NLL", True, False),
        ({"kl": "KL(q || p) / N"}, "Divergence from the prior", False, False),
        ({"val_accuracy": "validation accuracy"}, "Validation accuracy", False, True),
    )
    curves = []
    for names, heading, log, percent in wanted:
        there = {key: words for key, words in names.items() if any(line.get(key) is not None for line in lines)}
        if there:
            curves.append(_curve(lines, there, heading, best_epoch, log=log, percent=percent))
    return curves


def _curve(
    lines: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    heading: str,
    best_epoch: int | None,
    *,
    log: bool,
    percent: bool,
) -> Figure:
    parts = [[r for r in lines if r.get("part") == part] for part in dict.fromkeys(r.get("part") for r in lines)]
    values = {key: [[_number(line.get(key)) for line in rows] for rows in parts] for key in names}
    flat = [v for columns in values.values() for column in columns for v in column if math.isfinite(v)]
    log = log and min(flat) > 0
    last = max(float(line["epoch"]) for line in lines)
    each = f" (mean of {len(parts)} members)" if len(parts) > 1 else ""
    said = "; ".join(
        f"{words} goes from {_figure(_mean([c[0] for c in values[key]]), percent)} to "
        f"{_figure(_mean([c[-1] for c in values[key]]), percent)}{each}"
        for key, words in names.items()
    )
    chart = Chart(
        f"{heading} by epoch",
        f"Over {last:.0f} epochs the {said}.",
        "epoch",
        "accuracy" if percent else "nats per row",
        (min(float(line["epoch"]) for line in lines), last),
        log_limits(flat) if log else limits(flat),
        log_y=log,
        percent_y=percent,
    )
    marked = best_epoch is not None and len(parts) == 1 and 1 <= best_epoch <= last
    if marked and best_epoch is not None:
        chart.segment((best_epoch, chart.y_range[0]), (best_epoch, chart.y_range[1]), "faint dashed")
    styles = ("c0", "c1 dashed")
    for style, columns in zip(styles, values.values(), strict=False):
        for rows, column in zip(parts, columns, strict=True):
            chart.line([float(line["epoch"]) for line in rows], column, style + (" thin" if len(parts) > 1 else ""))
    best = f" The dotted line is epoch {best_epoch}, best on validation and kept." if marked else ""
    keys = tuple(Key(style, words) for style, words in zip(styles, names.values(), strict=False))
    return Figure(heading, chart.svg(), f"{said[0].upper()}{said[1:]}.{best}", keys)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _figure(value: float, percent: bool) -> str:
    return _percent(value) if percent else significant(value, 3)


# -- classes -------------------------------------------------------------------------------------------------------


def reliability_figure(bins: Reliability, words: str) -> Figure:
    """Return accuracy against confidence with 95 % intervals per bin, and the diagonal of a calibrated model."""
    chart = Chart(
        "Reliability diagram", words, "confidence", "accuracy", (0, 1), (0, 1), percent_x=True, percent_y=True
    )
    chart.segment((0, 0), (1, 1), "faint dashed")
    rows = zip(bins.count.tolist(), bins.confidence.tolist(), bins.accuracy.tolist(), strict=True)
    filled = [row for row in rows if row[0]]
    chart.line([c for _, c, _ in filled], [a for _, _, a in filled], "c0 thin")
    for count, confidence, accuracy in filled:
        low, high = wilson(accuracy, count)
        tip = f"{count:.0f} rows: confidence {_percent(confidence)}, accuracy {_percent(accuracy)}"
        chart.segment((confidence, low), (confidence, high), "c0 whisker")
        chart.points([confidence], [accuracy], "c0", 2 + 4 * (count / float(bins.count.max())) ** 0.5, [tip])
    keys = (Key("c0", "this posterior, with 95 % intervals"), Key("faint dashed", "calibrated"))
    return Figure("Reliability", chart.svg(), words, keys)


def wilson(share: float, count: float) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share of `count` rows."""
    centre = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def histogram_figure(
    groups: Mapping[str, Tensor],
    heading: str,
    x_label: str,
    top: float,
    words: str,
    *,
    percent: bool = False,
    bottom: float = 0.0,
) -> Figure:
    """Return overlaid histograms of scores in [bottom, top], each summing to one; values beyond count at the ends."""
    bins = 24
    edges = torch.linspace(bottom, top, bins + 1, dtype=torch.float64)
    heights = {}
    for name, values in groups.items():
        place = torch.bucketize(values.double().clamp(bottom, top).cpu(), edges[1:-1], right=True)
        heights[name] = (torch.bincount(place, minlength=bins).double() / len(values)).tolist()
    highest = max(max(h) for h in heights.values())
    chart = Chart(
        heading, words, x_label, "share of rows", (bottom, top), (0, highest * 1.05), percent_x=percent, percent_y=True
    )
    for i, h in enumerate(heights.values()):
        chart.steps(edges.tolist(), h, f"c{i}")
    return Figure(heading, chart.svg(), words, tuple(Key(f"c{i}", name) for i, name in enumerate(heights)))


def rejection_figure(curves: Mapping[str, RejectionCurve]) -> Figure:
    """Return accuracy on the kept rows against the share refused, one line per score."""
    lowest, lines = 1.0, {}
    for name, curve in curves.items():
        rejected, accuracy = _thin(curve.rejected, curve.accuracy, 0.9)
        lines[name] = (rejected, accuracy)
        lowest = min(lowest, *accuracy)
    first = next(iter(curves.values()))
    words = (
        f"Keeping all rows {_percent(first.accuracy_at(0), 2)} are right; refusing the 10 % with the highest "
        f"{next(iter(curves))} leaves {_percent(first.accuracy_at(0.1), 2)} right, refusing 20 % leaves "
        f"{_percent(first.accuracy_at(0.2), 2)}."
    )
    low = lowest - 0.05 * (1 - lowest) if lowest < 1 else 0.9
    chart = Chart(
        "Accuracy against rejection", words, "share refused", "accuracy on the rest", (0, 0.9), (low, 1),
        percent_x=True, percent_y=True,
    )  # fmt: skip
    styles = ("c0", "c1 dashed", "c2 dotted")
    for (rejected, accuracy), style in zip(lines.values(), styles, strict=False):
        chart.line(rejected, accuracy, style)
    return Figure(
        "Refusing to answer", chart.svg(), words, tuple(Key(s, n) for n, s in zip(lines, styles, strict=False))
    )


def _thin(x: Tensor, y: Tensor, most: float) -> tuple[list[float], list[float]]:
    kept = x <= most
    x, y = x[kept], y[kept]
    places = torch.linspace(0, len(x) - 1, min(len(x), 200)).long()
    return x[places].tolist(), y[places].tolist()


def prior_figure(before: Tensor, after: Tensor) -> Figure:
    """Return histograms of the confidence of single networks from the prior, and of the posterior's average."""
    words = (
        f"Before any data a single network is {_percent(float(before.mean()))} sure on average; the averaged "
        f"posterior is {_percent(float(after.mean()))} sure."
    )
    groups = {"posterior, averaged": after, "prior, single networks": before}
    return histogram_figure(groups, "Prior and posterior", "confidence", 1.0, words, percent=True)


def prior_data_figure(drawn: Tensor, observed: Tensor) -> Figure:
    """Return histograms of targets drawn from the prior predictive and of the observed ones."""
    low, high = (float(v) for v in torch.cat([drawn.flatten(), observed.flatten()]).quantile(_tails(drawn)))
    words = (
        f"Targets drawn before any data have a standard deviation of {significant(float(drawn.std()), 3)}, the "
        f"observed ones {significant(float(observed.std()), 3)}."
    )
    groups = {"observed": observed.flatten(), "drawn from the prior": drawn.flatten()}
    return histogram_figure(groups, "Prior predictive", "target", high, words, bottom=low)


def _tails(like: Tensor) -> Tensor:
    return torch.tensor([0.005, 0.995], dtype=like.dtype)


# -- weights -------------------------------------------------------------------------------------------------------


def signal_figure(summary: Mapping[str, WeightSummary]) -> Figure:
    """Return the histogram of log10 of the signal-to-noise over all weights."""
    ratios = torch.cat([s.signal_to_noise.flatten().cpu() for s in summary.values()]).double().clamp(1e-4, 1e4)
    below = float((ratios < 1).double().mean())
    words = (
        f"Of {len(ratios):,} weights {_percent(below)} have a mean smaller than their standard deviation "
        f"(signal-to-noise below 1); the median is {float(ratios.median()):.2g}."
    )
    values = ratios.log10()
    low, high = float(values.quantile(0.001) if len(values) < 1e6 else values.min()), float(values.max())
    low, high = math.floor(low * 2) / 2, math.ceil(high * 2) / 2
    edges = torch.linspace(low, high if high > low else low + 1, 41, dtype=torch.float64)
    place = torch.bucketize(values, edges[1:-1], right=True)
    heights = (torch.bincount(place, minlength=40).double() / len(values)).tolist()
    marks = [(float(k), f"{10.0**k:g}") for k in range(math.ceil(low), math.floor(float(edges[-1])) + 1)]
    chart = Chart(
        "Signal-to-noise of the weights", words, "|mean| / sd", "share of weights", (low, float(edges[-1])),
        (0, max(heights) * 1.05), percent_y=True, x_ticks=marks,
    )  # fmt: skip
    chart.steps(edges.tolist(), heights, "c0")
    if low < 0 < float(edges[-1]):
        chart.segment((0, 0), (0, chart.y_range[1]), "faint dashed")
    return Figure("Signal-to-noise of the weights", chart.svg(), words)


def pruning_figure(rows: Sequence[Mapping[str, float]], metric: str, num_rows: int) -> Figure:
    """Return the metric against the share of weights removed, those of lowest signal-to-noise first."""
    percent = metric == "accuracy"
    fractions, values = [r["fraction"] for r in rows], [r[metric] for r in rows]
    pairs = zip(fractions[1:], values[1:], strict=True)
    said = ", ".join(f"{_figure(v, percent)} without {_percent(f, 0)}" for f, v in pairs)
    name = {"accuracy": "accuracy", "pred_nll": "predictive NLL"}.get(metric, metric.upper())
    words = (
        f"On {num_rows:,} test rows the {name} is {_figure(values[0], percent)} with all weights, {said} of them; "
        f"those of lowest signal-to-noise go first."
    )
    chart = Chart(
        "Pruning by signal-to-noise", words, "share of weights removed", name, (0, 1),
        (0, 1) if percent else limits([0, *values]), percent_x=True, percent_y=percent,
    )  # fmt: skip
    chart.line(fractions, values, "c0")
    chart.points(fractions, values, "c0", 3.5)
    return Figure("Pruning by signal-to-noise", chart.svg(), words)


# -- numbers -------------------------------------------------------------------------------------------------------


def fit_figure(evaluation: RealEvaluation) -> Figure:
    """Return predicted against observed, with the predictive standard deviation as bars."""
    y, mean, sd = (t.reshape(-1) for t in (evaluation.y, evaluation.mean, evaluation.sd))
    places = torch.linspace(0, len(y) - 1, min(len(y), _POINTS)).long()
    observed, predicted, spread = (t[places].tolist() for t in (y, mean, sd))
    both = limits([*observed, *predicted])
    correlation = float(torch.corrcoef(torch.stack([y, mean]))[0, 1]) if len(y) > 2 else math.nan
    words = (
        f"{len(places)} of {len(y)} test targets; bars are one predictive standard deviation to either side. "
        f"The correlation of prediction and truth is {correlation:.3f}."
    )
    chart = Chart("Predicted against observed", words, "observed", "predicted", both, both)
    chart.segment((both[0], both[0]), (both[1], both[1]), "faint dashed")
    for a, m, s in zip(observed, predicted, spread, strict=True):
        chart.segment((a, max(m - s, both[0])), (a, min(m + s, both[1])), "c0 whisker")
    chart.points(observed, predicted, "c0", 2)
    return Figure("Predicted against observed", chart.svg(), words)


def coverage_figure(evaluation: RealEvaluation) -> Figure:
    """Return the share of targets inside central intervals against the level of the intervals."""
    distance = 2 * (evaluation.pit - 0.5).abs().reshape(-1)  # inside the central interval of any level above it
    levels = [i / 40 for i in range(41)]
    shares = [float((distance <= level).double().mean()) for level in levels]
    words = (
        f"The 50 % intervals hold {_percent(float((distance <= 0.5).double().mean()))} of the targets, the 90 % "
        f"intervals {_percent(float((distance <= 0.9).double().mean()))}, the 95 % intervals "
        f"{_percent(float((distance <= 0.95).double().mean()))}."
    )
    chart = Chart(
        "Coverage of predictive intervals", words, "level of the interval", "targets inside", (0, 1), (0, 1),
        percent_x=True, percent_y=True,
    )  # fmt: skip
    band = [_Z * math.sqrt(p * (1 - p) / len(distance)) for p in levels]
    low, high = ([min(1.0, max(0.0, p + s * b)) for p, b in zip(levels, band, strict=True)] for s in (-1, 1))
    chart.area(levels, low, high, "faint")
    chart.segment((0, 0), (1, 1), "faint dashed")
    chart.line(levels, shares, "c0")
    keys = (Key("c0", "this posterior"), Key("faint dashed", "calibrated, with the 95 % band of chance"))
    return Figure("Coverage", chart.svg(), words, keys)


def error_rejection_figure(evaluation: RealEvaluation) -> Figure:
    """Return the RMSE of the kept rows against the share refused by predictive standard deviation."""
    if not bool(evaluation.sd.isfinite().all()):
        words = "The observations have no finite standard deviation, by which rows could be refused."
        return Figure("Refusing to answer", "", words)
    order = evaluation.sd.reshape(len(evaluation.y), -1).mean(1).argsort()
    squares = (evaluation.mean - evaluation.y).square().reshape(len(evaluation.y), -1).mean(1)[order]
    kept = torch.arange(1, len(squares) + 1, dtype=torch.float64)
    errors, rejected = (squares.cumsum(0) / kept).sqrt().flip(0), (1 - kept / len(squares)).flip(0)
    x, y = _thin(rejected, errors, 0.9)
    at = [y[next(i for i, r in enumerate(x) if r >= share)] for share in (0.0, 0.2, 0.5)]
    words = (
        f"The RMSE is {significant(at[0], 3)} on all rows, {significant(at[1], 3)} without the 20 % of largest "
        f"predictive standard deviation, {significant(at[2], 3)} without half of them."
    )
    chart = Chart("Error against rejection", words, "share refused", "RMSE of the rest", (0, 0.9), (0, max(y) * 1.05),
                  percent_x=True)  # fmt: skip
    chart.line(x, y, "c0")
    return Figure("Refusing to answer", chart.svg(), words)
