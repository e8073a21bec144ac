"""
The outcome of a study as one small picture: its figures, every cell's seeds, mean and 95 % interval, and the findings.

A landscape shows every trial already, so that the cells are left out below it. A finding is drawn as its estimate and
interval against 0 and, for a claim of equality, its margin. SVG with colours for light and for dark pages.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pyro_bnn.analysis.report.svg import label, ticks
from pyro_bnn.data.sources import DATASETS
from pyro_bnn.studies import charts

__all__ = ["STYLE", "picture"]

_WIDTH, _LEFT, _RIGHT, _ROW, _HEAD = 640, 210, 24, 26, 30
STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif; }
.paper { fill: #ffffff; } text { font-size: 11.5px; fill: #5b616e; } .name { fill: #1d1f24; }
.title { fill: #1d1f24; font-weight: 600; font-size: 14px; }
.head { fill: #1d1f24; font-weight: 600; font-size: 12px; } .grid { stroke: #e3e1db; } .zero { stroke: #5b616e; }
.seed { fill: #2f5fd0; fill-opacity: .38; } .mean { fill: #2f5fd0; } .bar { stroke: #2f5fd0; stroke-width: 2; }
.margin { fill: #8a93a6; fill-opacity: .16; }
.confirmed { stroke: #1f8a5b; fill: #1f8a5b; } .contradicted { stroke: #c2413a; fill: #c2413a; }
.inconclusive { stroke: #8a7434; fill: #8a7434; } .interval { stroke-width: 2; }
.control { opacity: .6; } .title { stroke: none !important; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #1c1f25; } text { fill: #a0a6b2; } .name, .head, .title { fill: #e9e9ea; } .grid { stroke: #2e323a; }
  .zero { stroke: #a0a6b2; } .seed, .mean { fill: #7ea6ff; } .bar { stroke: #7ea6ff; } .margin { fill: #a0a6b2; }
  .confirmed { stroke: #5cc796; fill: #5cc796; } .contradicted { stroke: #ff8a80; fill: #ff8a80; }
  .inconclusive { stroke: #d9bf6a; fill: #d9bf6a; }
}
"""


class _Axis:
    """Numbers to places on the page."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        pad = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
        self.low, self.high = low - pad, high + pad

    def __call__(self, value: float) -> float:
        return _LEFT + (value - self.low) / (self.high - self.low) * (_WIDTH - _LEFT - _RIGHT)

    def drawn(self, top: float, bottom: float) -> list[str]:
        parts = []
        for value in ticks(self.low, self.high):
            x = self(value)
            parts.append(f'<path class="grid" d="M{x:.1f},{top:.1f} V{bottom:.1f}"/>')
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 14:.1f}" text-anchor="middle">{label(round(value, 10))}</text>'
            )
        return parts


def picture(outcome: Mapping[str, Any]) -> str:
    """Return the picture of an outcome as SVG text."""
    cells = [cell for cell in outcome["cells"] if cell["mean"] is not None]
    findings = [f for f in outcome["findings"] if f["estimate"] is not None]
    title = f"{outcome['study']}, {outcome['scale']} scale"
    body = [
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
        f'<text class="title {outcome["verdict"]}" x="{_WIDTH - _RIGHT}" y="26" text-anchor="end">'
        f"{outcome['verdict']}</text>",
    ]
    y = 38.0
    figures = outcome.get("figures", [])
    if figures:
        y = charts.figures(body, figures, _WIDTH, y)
    if cells and all(figure["kind"] != "landscape" for figure in figures):
        y = _cells(body, cells, outcome["metric"][1], y)
    if findings:
        y = _findings(body, findings, y)
    style = STYLE + (charts.STYLE if figures else "")
    said = f"{outcome['study']} ({outcome['scale']} scale): {outcome['verdict']}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {y:.0f}" width="{_WIDTH}" '
        f'height="{y:.0f}"><title>{escape(said)}</title><desc>{escape(outcome["claim"])}</desc><style>{style}</style>'
        f'<rect class="paper" width="{_WIDTH}" height="{y:.0f}" rx="6"/>{"".join(body)}</svg>\n'
    )


def _cells(body: list[str], cells: Sequence[Mapping[str, Any]], words: str, y: float) -> float:
    """Draw every cell's seeds, mean and interval, those of each data set on an axis of their own."""
    body.append(f'<text class="head" x="{_LEFT}" y="{y + 16:.0f}">{escape(words)}</text>')
    y += _HEAD
    for _, group in itertools.groupby(cells, lambda cell: _data_set(cell["cell"])):
        y = _group(body, list(group), y)
    return y


def _data_set(cell: str) -> str:
    first = cell.partition(", ")[0]
    return first if first in DATASETS else ""


def _group(body: list[str], cells: Sequence[Mapping[str, Any]], y: float) -> float:
    whole = [cell for cell in cells if None not in cell["values"]] or cells  # where a seed diverged, intervals are wide
    axis = _Axis([v for cell in whole for v in (*cell["values"], cell["low"], cell["high"]) if v is not None])
    top, bottom = y, y + _ROW * len(cells)
    body += axis.drawn(top, bottom)
    for i, cell in enumerate(cells):
        middle = top + _ROW * (i + 0.5)
        body.append(_name(cell["cell"], middle))
        body += [_mark(axis, value, middle, "seed", 3.2) for value in cell["values"] if value is not None]
        ends = [axis(min(max(cell[end], axis.low), axis.high)) for end in ("low", "high")]
        body.append(f'<path class="bar" d="M{ends[0]:.1f},{middle:.1f} H{ends[1]:.1f}"/>')
        body.append(_mark(axis, cell["mean"], middle, "mean", 4.2))
    return bottom + 26


def _mark(axis: _Axis, value: float, y: float, look: str, radius: float) -> str:
    """Return a dot, or at the end of the axis a triangle that points to where the value would be."""
    if axis.low <= value <= axis.high:
        return f'<circle class="{look}" cx="{axis(value):.1f}" cy="{y:.1f}" r="{radius}"/>'
    tip, back = (axis(axis.low), 2 * radius) if value < axis.low else (axis(axis.high), -2 * radius)
    return f'<path class="{look}" d="M{tip:.1f},{y:.1f} l{back:.1f},{-radius} v{2 * radius} z"/>'


def _findings(body: list[str], findings: Sequence[Mapping[str, Any]], y: float) -> float:
    """Draw each finding on an axis of its own, for their units differ."""
    body.append(f'<text class="head" x="16" y="{y + 16:.0f}">What follows</text>')
    y += _HEAD
    for finding in findings:
        numbers = [v for k in ("estimate", "low", "high") if (v := finding[k]) is not None and math.isfinite(v)]
        margin = finding["margin"]
        exact = finding["pairs"] == 0 and finding["p"] is None
        axis = _Axis([*numbers, *(() if exact else (0.0,)), *((-margin, margin) if margin and not exact else ())])
        aside = "" if finding["decides"] else " (beside the verdict)"
        body.append("<g>" if finding["decides"] else '<g class="control">')
        for line in _wrapped(f"{finding['statement']}: {finding['verdict']}{aside}", 92):
            body.append(f'<text class="name" x="16" y="{y + 12:.0f}">{escape(line)}</text>')
            y += 16
        middle, kind = y + 12, finding["verdict"]
        if margin and not exact:
            width = axis(margin) - axis(-margin)
            body.append(
                f'<rect class="margin" x="{axis(-margin):.1f}" y="{y + 2:.1f}" width="{width:.1f}" height="20"/>'
            )
        if not exact:
            body.append(f'<path class="zero" d="M{axis(0.0):.1f},{y + 2:.1f} v20"/>')
        if len(numbers) == 3:
            span = f"M{axis(finding['low']):.1f},{middle:.1f} H{axis(finding['high']):.1f}"
            body.append(f'<path class="interval {kind}" d="{span}"/>')
        body.append(f'<circle class="{kind}" cx="{axis(finding["estimate"]):.1f}" cy="{middle:.1f}" r="4"/>')
        body.append(f'<text x="{_LEFT - 12}" y="{middle + 4:.1f}" text-anchor="end">{_interval(finding)}</text></g>')
        y += 34
    return y + 4


def _interval(finding: Mapping[str, Any]) -> str:
    if finding["low"] is None or finding["low"] == finding["high"]:
        return f"{finding['estimate']:.4g}"
    return f"{finding['estimate']:.3g} [{finding['low']:.3g}, {finding['high']:.3g}]"


def _name(words: str, y: float) -> str:
    short = words if len(words) <= 34 else words[:33] + "…"
    return f'<text class="name" x="{_LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(short)}</text>'


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
