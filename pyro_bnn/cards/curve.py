"""The learning curves of a model card as one picture: validation NLL and accuracy by epoch, seed by seed."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pyro_bnn.analysis.report.svg import Chart, limits, log_limits

__all__ = ["learning_curves"]

History = Sequence[Mapping[str, Any]]

_GAP, _HEAD = 24, 34
_STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif; }
.paper { fill: #ffffff; }
text { font-size: 11px; fill: #5b616e; } .label, .key { font-size: 11.5px; fill: #1d1f24; }
.grid { stroke: #e3e1db; fill: none; } .axis { stroke: #5b616e; fill: none; }
.line { fill: none; stroke: currentColor; stroke-width: 1.4; stroke-linejoin: round; } .dot { fill: currentColor; }
.c0 { color: #2f5fd0; } .c1 { color: #d2691e; } .dashed { stroke-dasharray: 6 4; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #1c1f25; } text { fill: #a0a6b2; } .label, .key { fill: #e9e9ea; }
  .grid { stroke: #2e323a; } .axis { stroke: #a0a6b2; } .c0 { color: #7ea6ff; } .c1 { color: #f2a25c; }
}
"""
_PANELS = (("val_nll", "Validation NLL", ", nats per row"), ("val_accuracy", "Validation accuracy", ""))


def _lines(history: History, key: str) -> list[list[tuple[float, float]]]:
    """Return points (epoch, value): a line for every member trained apart, each from its own first epoch."""
    lines: dict[Any, list[tuple[float, float]]] = {}
    for row in history:
        if row.get(key) is not None and math.isfinite(row[key]):
            line = lines.setdefault(row.get("part"), [])
            line.append((len(line) + 1.0, float(row[key])))
    return list(lines.values())


def learning_curves(name: str, posteriors: Sequence[History], twins: Sequence[History] = ()) -> str | None:
    """
    Return the picture as SVG text, readable on light and dark pages; nothing if no run has validation rows.

    :param name: the card's, for the title.
    :param posteriors: per seed, a row per epoch with `val_nll` and `val_accuracy`; `part` tells members apart.
    :param twins: likewise, of the deterministic twins.
    """
    kinds = (("c0", "posterior", posteriors), ("c1 dashed", "deterministic twin", twins))
    charts = []
    for key, heading, unit in _PANELS:
        drawn = [(style, words, [line for h in runs for line in _lines(h, key)]) for style, words, runs in kinds]
        points = [point for _, _, lines in drawn for line in lines for point in line]
        if not points:
            continue
        accuracy = key == "val_accuracy"
        values = [value for _, value in points]
        log = not accuracy and min(values) > 0
        chart = Chart(
            f"{heading} by epoch",
            _said(drawn, heading, best=max if accuracy else min, percent=accuracy),
            "epoch",
            heading + unit,
            (1.0, max(epoch for epoch, _ in points)),
            log_limits(values) if log else limits(values),
            log_y=log,
            percent_y=accuracy,
        )
        for style, _, lines in drawn:
            for line in lines:
                chart.line([epoch for epoch, _ in line], [value for _, value in line], style)
        charts.append(chart)
    return _beside(f"{name}: learning curves", charts, [kind for kind in kinds if kind[2]]) if charts else None


def _said(
    drawn: Sequence[tuple[str, str, list[list[tuple[float, float]]]]], heading: str, best: Any, percent: bool
) -> str:
    phrases = []
    for _, words, lines in drawn:
        if lines:
            ends, tops = [line[-1][1] for line in lines], [best(value for _, value in line) for line in lines]
            end, top = (f"{100 * v:.1f} %" if percent else f"{v:.3f}" for v in (_mean(ends), _mean(tops)))
            phrases.append(f"of the {words} best {top}, in the last epoch {end}")
    return f"{heading}, mean over the lines: {'; '.join(phrases)}."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _beside(title: str, charts: Sequence[Chart], kinds: Sequence[tuple[str, str, Any]]) -> str:
    width = sum(chart.width for chart in charts) + _GAP * (len(charts) + 1)
    height = max(chart.height for chart in charts) + _HEAD + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f'<rect class="paper" width="{width}" height="{height}" rx="12"/>'
    ]
    left = _GAP
    for style, words, runs in kinds:
        members = sum(len(_lines(history, "val_nll")) for history in runs)
        count = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
        count += f", {members} members" if members > len(runs) else ""
        parts.append(
            f'<path class="line {style}" d="M{left},20 h24"/><text class="key" x="{left + 30}" y="24">'
            f"{escape(words)}, {count}</text>"
        )
        left += 240
    left = _GAP
    for chart in charts:
        inner = chart.svg().replace(
            "<svg ", f'<svg x="{left}" y="{_HEAD}" width="{chart.width}" height="{chart.height}" ', 1
        )
        parts.append(inner)
        left += chart.width + _GAP
    return "".join(parts) + "</svg>\n"
