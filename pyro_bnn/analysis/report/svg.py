"""
Small charts as SVG text: lines, steps, bars, points and ranges on one pair of axes.

Charts are drawn for about 360 px of width, so that on a phone and in a column of a wide page text has its own size.
Colours are CSS classes (`c0`, `c1`, ...): the page decides them, for light, dark and print alike. Every chart carries a
title and a description in words for those who do not see it.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape as html_escape
from typing import final

from pyro_bnn.common.shown import visible

__all__ = ["Chart", "ticks"]

WIDTH, HEIGHT = 360, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 40

_SERIAL = itertools.count(1)


def escape(words: str) -> str:
    """Return words as they stand in SVG: no markup, nothing that turns or hides others."""
    return html_escape(visible(words))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers from low to high."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= 0.7 * raw)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten from low to high, and 2 and 5 times them where there are few."""
    span = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**k for k in span if low <= 10.0**k <= high]
    if len(tens) >= 3:
        return tens[:: math.ceil(len(tens) / 6)]
    return [m * 10.0**k for k in span for m in (1, 2, 5) if low <= m * 10.0**k <= high]


def label(value: float) -> str:
    """Write a tick's number shortly."""
    if value == 0:
        return "0"
    if abs(value) >= 1e4 or abs(value) < 1e-3:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.4g}"


@final
@dataclass
class Chart:
    """
    One pair of axes; add marks, then `svg()`.

    :param title: what it is; read out first, not drawn.
    :param description: what it shows, in a sentence with the main numbers; read out next.
    :param x_range: limits of x; likewise `y_range`.
    :param log_y: a logarithmic y axis.
    :param percent_x: write x ticks as percentages; likewise `percent_y`.
    """

    title: str
    description: str
    x_label: str
    y_label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log_y: bool = False
    percent_x: bool = False
    percent_y: bool = False
    width: int = WIDTH
    height: int = HEIGHT
    x_ticks: Sequence[tuple[float, str]] | None = None
    _marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.x_range, self.y_range = _open(self.x_range), _open(self.y_range)

    # -- places ------------------------------------------------------------------------------------------------------

    def x(self, value: float) -> float:
        """Return where a value of x lies, in px."""
        low, high = self.x_range
        return _LEFT + (value - low) / (high - low) * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return where a value of y lies, in px."""
        low, high = self.y_range
        if self.log_y:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low * 1e-3))
        return self.height - _BOTTOM - (value - low) / (high - low) * (self.height - _TOP - _BOTTOM)

    def _path(self, points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{'M' if i == 0 else 'L'}{self.x(a):.1f},{self.y(b):.1f}" for i, (a, b) in enumerate(points))

    # -- marks -------------------------------------------------------------------------------------------------------

    def line(self, x: Sequence[float], y: Sequence[float], style: str) -> None:
        """Draw a line through points; numbers that are not finite are left out."""
        points = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
        if points:
            self._marks.append(f'<path class="line {style}" d="{self._path(points)}"/>')
            if len(points) == 1:
                self.points(x, y, style)

    def area(self, x: Sequence[float], low: Sequence[float], high: Sequence[float], style: str) -> None:
        """Fill between two lines."""
        edge = [*zip(x, high, strict=True), *reversed(list(zip(x, low, strict=True)))]
        self._marks.append(f'<path class="area {style}" d="{self._path(edge)} Z"/>')

    def steps(self, edges: Sequence[float], heights: Sequence[float], style: str) -> None:
        """Draw a histogram's outline, filled."""
        base = self.y_range[0]
        top = [(e, h) for (a, b), h in zip(itertools.pairwise(edges), heights, strict=True) for e in (a, b)]
        closed = f"{self._path([(edges[0], base), *((x, h) for x, h in top), (edges[-1], base)])} Z"
        self._marks.append(
            f'<path class="area {style}" d="{closed}"/><path class="line {style}" d="{self._path(top)}"/>'
        )

    def bar(
        self, left: float, right: float, height: float, style: str, tip: str = "", base: float | None = None
    ) -> None:
        """Draw one bar."""
        low = self.y_range[0] if base is None else base
        x, w = self.x(left), self.x(right) - self.x(left)
        top, bottom = sorted((self.y(height), self.y(low)))
        self._marks.append(
            f'<rect class="bar {style}" x="{x + 0.75:.1f}" y="{top:.1f}" width="{max(w - 1.5, 0.5):.1f}" '
            f'height="{bottom - top:.1f}">{_tip(tip)}</rect>'
        )

    def points(
        self, x: Sequence[float], y: Sequence[float], style: str, radius: float = 3, tips: Sequence[str] = ()
    ) -> None:
        """Draw points."""
        for i, (a, b) in enumerate(zip(x, y, strict=True)):
            tip = _tip(tips[i]) if tips else ""
            self._marks.append(
                f'<circle class="dot {style}" cx="{self.x(a):.1f}" cy="{self.y(b):.1f}" r="{radius}">{tip}</circle>'
            )

    def segment(self, start: tuple[float, float], end: tuple[float, float], style: str) -> None:
        """Draw a straight line between two points."""
        self._marks.append(f'<path class="line {style}" d="{self._path([start, end])}"/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        """Write words at a point."""
        self._marks.append(
            f'<text class="note" x="{self.x(x):.1f}" y="{self.y(y):.1f}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    # -- all together ------------------------------------------------------------------------------------------------

    def svg(self) -> str:
        """Return the chart."""
        n = next(_SERIAL)
        right, bottom = self.width - _RIGHT, self.height - _BOTTOM
        parts = [
            f'<svg class="chart" role="img" viewBox="0 0 {self.width} {self.height}" '
            f'aria-labelledby="chart-{n}-title chart-{n}-text">',
            f'<title id="chart-{n}-title">{escape(self.title)}</title>',
            f'<desc id="chart-{n}-text">{escape(self.description)}</desc>',
        ]
        for value in log_ticks(*self.y_range) if self.log_y else ticks(*self.y_range):
            y = self.y(value)
            parts.append(f'<path class="grid" d="M{_LEFT},{y:.1f} H{right}"/>')
            parts.append(
                f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">'
                f"{_number(value, self.percent_y)}</text>"
            )
        marked = (
            [(v, _number(v, self.percent_x)) for v in ticks(*self.x_range)] if self.x_ticks is None else self.x_ticks
        )
        for value, words in marked:
            place = f'x="{self.x(value):.1f}" y="{bottom + 15}"'
            parts.append(f'<text class="tick" {place} text-anchor="middle">{escape(words)}</text>')
        parts.append(f'<path class="axis" d="M{_LEFT},{bottom} H{right}"/>')
        parts += self._marks
        middle = (_LEFT + right) / 2
        place = f'x="{middle:.0f}" y="{self.height - 6}"'
        parts.append(f'<text class="label" {place} text-anchor="middle">{escape(self.x_label)}</text>')
        centre = (_TOP + bottom) / 2
        parts.append(
            f'<text class="label" x="11" y="{centre:.0f}" text-anchor="middle" transform="rotate(-90 11 {centre:.0f})">'
            f"{escape(self.y_label)}</text></svg>"
        )
        return "".join(parts)


def _open(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = limits
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0.0, 1.0
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _tip(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""


def _number(value: float, percent: bool) -> str:
    return f"{label(round(100 * value, 6))} %" if percent else label(value)


def log_limits(values: Iterable[float]) -> tuple[float, float]:
    """Return limits of a logarithmic axis around positive values."""
    return _limits(values, lambda low, high: (low / 1.25, high * 1.25), positive=True)


def limits(values: Iterable[float]) -> tuple[float, float]:
    """Return limits of an axis around values, with a little air."""
    return _limits(values, lambda low, high: (low - 0.05 * (high - low), high + 0.05 * (high - low)))


def _limits(
    values: Iterable[float], widen: Callable[[float, float], tuple[float, float]], positive: bool = False
) -> tuple[float, float]:
    kept = [v for v in values if math.isfinite(v) and (v > 0 or not positive)]
    return widen(min(kept), max(kept)) if kept else (1e-1 if positive else 0.0, 1.0)
