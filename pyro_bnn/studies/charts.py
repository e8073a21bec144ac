"""
Curves, landscapes and dots as parts of a picture of a study or a sweep.

A curve has its band in the same colour; what was not measured is thin and dashed. In a landscape the deeper colour is
the higher value, a cross a training that diverged. A dot is a trial, a ring the best of them. Two figures stand side by
side, each under its own key.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, final

from pyro_bnn.analysis.report.svg import label, log_ticks, ticks

__all__ = ["STYLE", "figures"]

_GAP, _EDGE, _PLOT, _LETTER = 20, 16, 168, 6.5
_LEFT = {"curves": 46, "landscape": 60, "dots": 46}  # room for the numbers of y, and for its name
_COLOURS = 8
_LIGHT = ("2f5fd0", "c8691c", "14848f", "8a4fbf", "c2416b", "7d6327", "5b616e", "1d1f24")
_DARK = ("7ea6ff", "f0a35e", "5fc9d3", "c39bf0", "ff8fb0", "d3b770", "a0a6b2", "e9e9ea")


def _classes(colours: Sequence[str]) -> str:
    return " ".join(
        f".c{i} {{ stroke: #{c}; }} .b{i} {{ fill: #{c}; fill-opacity: .15; }}" for i, c in enumerate(colours)
    )


STYLE = f"""
.curve {{ fill: none; stroke-width: 1.8; stroke-linejoin: round; }} .again {{ stroke-dasharray: 7 3; }}
.dot {{ stroke-width: 4.5; stroke-linecap: round; fill: none; }}
.reference {{ fill: none; stroke: #1d1f24; stroke-width: 1.2; stroke-dasharray: 4 3; }}
.heat {{ fill: #2f5fd0; }} .spot {{ stroke: #2f5fd0; stroke-width: .8; }} .frame {{ fill: none; stroke: #a7abb5; }}
.aside {{ font-weight: 400; fill: #5b616e; font-size: 11.5px; }}
.lost {{ stroke: #c2413a; stroke-width: 1.6; fill: none; }}
{_classes(_LIGHT)}
@media (prefers-color-scheme: dark) {{
  .reference {{ stroke: #e9e9ea; }} .heat {{ fill: #7ea6ff; }} .spot {{ stroke: #7ea6ff; }}
  .frame {{ stroke: #555b67; }} .aside {{ fill: #a0a6b2; }}
  .lost {{ stroke: #ff8a80; }} {_classes(_DARK)}
}}
"""


@final
class _Scale:
    """Numbers to places from `start` to `end`."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float, pad: float = 0.04) -> None:
        self.log, self.start, self.end = log, start, end
        numbers = [self._inner(v) for v in values if math.isfinite(v) and (v > 0 or not log)] or [0.0, 1.0]
        low, high = min(numbers), max(numbers)
        space = pad * (high - low) if high > low else 0.5
        self.low, self.high = low - space, high + space
        self.whole = all(float(v).is_integer() for v in values if math.isfinite(v))

    def _inner(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        return self.start + self.share(value) * (self.end - self.start)

    def share(self, value: float) -> float:
        """Return the place of a value from 0 to 1."""
        return (self._inner(value) - self.low) / (self.high - self.low)

    def holds(self, value: float | None) -> bool:
        """Whether a value can be drawn and lies within the limits."""
        if value is None or not math.isfinite(value) or (self.log and value <= 0):
            return False
        return -1e-9 <= self.share(value) <= 1 + 1e-9

    def ticks(self, count: int) -> list[float]:
        """Return round numbers within the limits."""
        if self.log:
            chosen = log_ticks(10**self.low, 10**self.high)
            if len(chosen) > 1:
                return chosen[:: math.ceil(len(chosen) / (count + 1))]
            return ticks(10**self.low, 10**self.high, count)
        chosen = ticks(self.low, self.high, count)
        return [value for value in chosen if float(f"{value:.10g}").is_integer()] if self.whole else chosen


def figures(body: list[str], drawn: Sequence[Mapping[str, Any]], width: float, y: float) -> float:
    """Draw figures, two in a row if there are several; return where the next part begins."""
    columns = 1 if len(drawn) == 1 else 2
    each = (width - 2 * _EDGE - _GAP * (columns - 1)) / columns
    for first in range(0, len(drawn), columns):
        row = drawn[first : first + columns]
        keys = [_key(figure, each) for figure in row]
        top = y + 34 + 16 * max(len(lines) for lines in keys)
        for i, (figure, lines) in enumerate(zip(row, keys, strict=True)):
            left = _EDGE + i * (each + _GAP)
            what = figure["value"] if figure["kind"] == "landscape" else figure["y"]
            words = f'{escape(figure["title"])}<tspan class="aside" dx="8">{escape(what)}</tspan>'
            body.append(f'<text class="head" x="{left:.0f}" y="{y + 16:.0f}">{words}</text>')
            for k, entries in enumerate(lines):
                _draw_key(body, entries, left, y + 34 + 16 * k)
            draw = {"curves": _curves, "landscape": _landscape, "dots": _dots}[figure["kind"]]
            draw(body, figure, left + _LEFT[figure["kind"]], left + each, top)
        y = top + _PLOT + 44
    return y


# -- the key -----------------------------------------------------------------------------------------------------------

_Entry = tuple[str, float, Callable[[float, float], str]]  # words, room for its sign, and the sign


def _key(figure: Mapping[str, Any], width: float) -> list[list[_Entry]]:
    """Return the key's entries in lines that are no wider than the figure."""
    entries = list(_entries(figure))
    lines: list[list[_Entry]] = [[]]
    used = 0.0
    for entry in entries:
        room = entry[1] + 5 + _LETTER * len(entry[0]) + 12
        if lines[-1] and used + room > width + 12:
            lines.append([])
            used = 0.0
        lines[-1].append(entry)
        used += room
    return lines if entries else []


def _entries(figure: Mapping[str, Any]) -> list[_Entry]:
    entries: list[_Entry] = []
    if figure["kind"] == "landscape":
        low, high = _range([v for _, _, v in figure["points"]])
        entries.append((f"{label(_digits(low))} to {label(_digits(high))}", 60, _ramp))
        if any(value is None for _, _, value in figure["points"]):
            entries.append(("diverged", 10, lambda x, y: _cross(x + 5, y - 4)))
    for place, line in _placed(figure["lines"]):
        entries.append((line["name"], 18, _stroke(_look(place, line))))
    return entries


def _stroke(look: str) -> Callable[[float, float], str]:
    return lambda x, y: f'<path class="{look}" d="M{x:.1f},{y - 4:.1f} h18"/>'


def _draw_key(body: list[str], entries: Sequence[_Entry], x: float, y: float) -> None:
    for words, room, sign in entries:
        body.append(sign(x, y))
        body.append(f'<text x="{x + room + 5:.1f}" y="{y:.1f}">{escape(words)}</text>')
        x += room + 5 + _LETTER * len(words) + 12


def _ramp(x: float, y: float) -> str:
    boxes = (
        f'<rect class="heat" fill-opacity="{_depth(i / 4):.2f}" x="{x + 12 * i:.1f}" y="{y - 9:.1f}" width="12" '
        f'height="10"/>'
        for i in range(5)
    )
    return "".join(boxes)


def _placed(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return each line with its number among those that were measured."""
    places, count = [], 0
    for line in lines:
        places.append((count, line))
        count += not line["reference"]
    return places


def _look(place: int, line: Mapping[str, Any]) -> str:
    if line["reference"]:
        return "reference"
    return f"curve c{place % _COLOURS}{' again' if place >= _COLOURS else ''}"


# -- the figures -------------------------------------------------------------------------------------------------------


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None and math.isfinite(v)]


def _range(values: Sequence[float | None]) -> tuple[float, float]:
    numbers = _numbers(values) or [0.0]
    return min(numbers), max(numbers)


def _axes(body: list[str], figure: Mapping[str, Any], x: _Scale, y: _Scale) -> None:
    names = figure.get("names", ())
    for value in range(len(names)) if names else figure.get("ticks") or x.ticks(5):
        at = x(value)
        words = escape(names[int(value)]) if names else _tick(value)
        body.append(f'<path class="grid" d="M{at:.1f},{y.start:.1f} V{y.end:.1f}"/>')
        body.append(f'<text x="{at:.1f}" y="{y.start + 14:.1f}" text-anchor="middle">{words}</text>')
    for value in y.ticks(4):
        at = y(value)
        body.append(f'<path class="grid" d="M{x.start:.1f},{at:.1f} H{x.end:.1f}"/>')
        body.append(f'<text x="{x.start - 5:.1f}" y="{at + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    middle = (x.start + x.end) / 2
    body.append(f'<text x="{middle:.1f}" y="{y.start + 29:.1f}" text-anchor="middle">{escape(figure["x"])}</text>')


def _curves(body: list[str], figure: Mapping[str, Any], left: float, right: float, top: float) -> None:
    lines, log = figure["lines"], figure["log"]
    measured = [line for line in lines if not line["reference"]] or lines
    across = _numbers([v for line in measured for v in line["x"]])
    up = _numbers([v for line in measured for part in ("y", "low", "high") for v in line.get(part, ())])
    x, y = _Scale(across, "x" in log, left, right, 0.02), _Scale(up, "y" in log, top + _PLOT, top)
    _axes(body, figure, x, y)
    for place, line in _placed(lines):
        if "low" in line:
            edge = [
                (x(a), y(low), y(high))
                for a, low, high in zip(line["x"], line["low"], line["high"], strict=True)
                if x.holds(a) and y.holds(low) and y.holds(high)
            ]
            if len(edge) > 1:
                there = " ".join(f"{a:.1f},{b:.1f}" for a, _, b in edge)
                back = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in reversed(edge))
                body.append(f'<path class="b{place % _COLOURS}" d="M{there} {back} Z"/>')
    for place, line in _placed(lines):
        _path(body, line, x, y, _look(place, line))


def _path(body: list[str], line: Mapping[str, Any], x: _Scale, y: _Scale, look: str) -> None:
    """Draw a line, apart where it has no number or leaves the figure; a single point as a dot."""
    parts: list[list[str]] = [[]]
    for a, b in zip(line["x"], line["y"], strict=True):
        if x.holds(a) and y.holds(b):
            parts[-1].append(f"{x(a):.1f},{y(b):.1f}")
        elif parts[-1]:
            parts.append([])
    for part in parts:
        if len(part) > 1:
            body.append(f'<path class="{look}" d="M{" ".join(part)}"/>')
        elif part:
            body.append(f'<path class="{look.replace("curve", "dot")}" d="M{part[0]} h.01"/>')


def _landscape(body: list[str], figure: Mapping[str, Any], left: float, right: float, top: float) -> None:
    points, log = figure["points"], figure["log"]
    xs, ys = sorted({p[0] for p in points}), sorted({p[1] for p in points})
    x = _Scale(xs, "x" in log, left, right)
    y = _Scale(ys, "y" in log, top + _PLOT, top)
    values = _Scale(_numbers([p[2] for p in points]), "v" in log, 0.0, 1.0, 0.0)
    fields = len(xs) > 1 and len(ys) > 1 and len(points) == len(xs) * len(ys)
    if fields:
        x, y = _fields(xs, x), _fields(ys, y)
    _axes(body, figure, x, y)
    for a, b, value in points:
        if value is None:
            body.append(_cross(x(a), y(b)))
            continue
        depth = _depth(values(value) if values.holds(value) else 0.0)
        if fields:
            (x0, x1), (y1, y0) = _around(a, xs, x), _around(b, ys, y)
            body.append(
                f'<rect class="heat" fill-opacity="{depth:.3f}" x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" '
                f'height="{y1 - y0:.1f}"/>'
            )
        else:
            body.append(f'<circle class="heat spot" fill-opacity="{depth:.3f}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="4"/>')
    for place, line in _placed(figure["lines"]):
        _path(body, line, x, y, _look(place, line))
    frame = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{_PLOT}"'
    body.append(f'<rect class="frame" {frame}/>')
    centre = top + _PLOT / 2
    at = left - _LEFT["landscape"] + 9
    body.append(
        f'<text x="{at:.1f}" y="{centre:.1f}" text-anchor="middle" transform="rotate(-90 {at:.1f} {centre:.1f})">'
        f"{escape(figure['y'])}</text>"
    )


def _dots(body: list[str], figure: Mapping[str, Any], left: float, right: float, top: float) -> None:
    points, lost, best = figure["points"], figure["lost"], figure["best"]
    x = _Scale([*(p[0] for p in points), *lost], figure["log"] == "x", left, right)
    y = _Scale([p[1] for p in points], False, top + _PLOT, top + 10, 0.08)
    _axes(body, figure, x, y)
    for a in lost:
        body.append(_cross(x(a), top + 3))
    for a, b in points:
        body.append(f'<circle class="seed" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.2"/>')
    if best is not None:
        body.append(f'<circle class="curve c1" cx="{x(best[0]):.1f}" cy="{y(best[1]):.1f}" r="6"/>')


def _fields(values: Sequence[float], scale: _Scale) -> _Scale:
    """Return the scale whose limits are the outer edges of fields around values."""
    inner = [math.log10(v) if scale.log else v for v in values]
    edges = inner[0] - (inner[1] - inner[0]) / 2, inner[-1] + (inner[-1] - inner[-2]) / 2
    wider = _Scale([10**e if scale.log else e for e in edges], scale.log, scale.start, scale.end, 0.0)
    wider.low, wider.high = edges
    return wider


def _around(value: float, values: Sequence[float], scale: _Scale) -> tuple[float, float]:
    """Return where the field around a value begins and ends: half way to its neighbours."""
    i = values.index(value)
    before = scale.start if i == 0 else (scale(values[i - 1]) + scale(value)) / 2
    after = scale.end if i == len(values) - 1 else (scale(values[i + 1]) + scale(value)) / 2
    return before, after


def _depth(share: float) -> float:
    return 0.06 + 0.92 * min(max(share, 0.0), 1.0)


def _cross(x: float, y: float) -> str:
    return f'<path class="lost" d="M{x - 3:.1f},{y - 3:.1f} l6,6 m0,-6 l-6,6"/>'


def _tick(value: float) -> str:
    return label(float(f"{value:.10g}"))


def _digits(value: float) -> float:
    return float(f"{value:.2g}")
