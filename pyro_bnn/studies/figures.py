"""
What a study's picture shows beside its cells and findings: curves, and landscapes of two quantities.

A curve is a number after each epoch (or along anything else), its mean over seeds and the 95 % interval of that. A
landscape is a metric over two varied quantities, at the points where it was measured, with the lines that the source
draws into it. Both are kept in the outcome's JSON, numbers to five digits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pyro_bnn.studies.study import Results

__all__ = ["Curves", "Figure", "Landscape", "Line", "after_each_epoch", "interval", "line_of"]

Numbers: TypeAlias = Sequence[float] | NDArray[np.float64]


@final
@dataclass(frozen=True)
class Line:
    """
    A line through points, with a band from `low` to `high` if they are given.

    :param reference: what theory or the source says, and was not measured: drawn thin and dashed.
    """

    name: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    reference: bool = False

    def __post_init__(self) -> None:
        sizes = {len(self.x), len(self.y), *(len(edge) for edge in (self.low, self.high) if len(edge))}
        if len(sizes) > 1 or len(self.low) != len(self.high):
            raise ValueError(f"line {self.name!r} has parts of {sorted(sizes)} points: give as many of each")

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        parts = {key: short(getattr(self, key)) for key in ("x", "y", "low", "high")}
        return {"name": self.name, **{key: part for key, part in parts.items() if part}, "reference": self.reference}


@final
@dataclass(frozen=True)
class Curves:
    """
    Lines over one x.

    :param title: what is shown, in a few words.
    :param log: which axes are logarithmic: "", "x", "y" or "xy".
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        words = {"kind": "curves", "title": self.title, "x": self.x, "y": self.y, "log": self.log}
        return {**words, "lines": [line.to_dict() for line in self.lines]}


@final
@dataclass(frozen=True)
class Landscape:
    """
    A metric over two quantities.

    :param value: the metric's name.
    :param points: x, y and the metric of each point; nan where a training diverged. Points that fill a grid become its
        fields, others dots; several at one place are averaged.
    :param lines: borders of regions.
    :param log: which of x, y and v (the metric) are logarithmic.
    """

    title: str
    x: str
    y: str
    value: str
    points: Sequence[tuple[float, float, float]]
    lines: Sequence[Line] = ()
    log: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        places: dict[tuple[float, float], list[float]] = {}
        for x, y, value in self.points:
            places.setdefault((x, y), []).append(value)
        means = [(x, y, float(np.mean(values))) for (x, y), values in places.items()]  # nan if any diverged
        words = {"kind": "landscape", "title": self.title, "x": self.x, "y": self.y, "value": self.value}
        return {
            **words,
            "log": self.log,
            "points": [short(point) for point in means],
            "lines": [line.to_dict() for line in self.lines],
        }


Figure: TypeAlias = Curves | Landscape


def short(values: Numbers) -> list[float | None]:
    """Return numbers to five digits as JSON has them."""
    return [float(f"{float(v):.5g}") if math.isfinite(float(v)) else None for v in values]


def interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean of the finite values and its 95 % interval, which is the mean alone for fewer than two."""
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return math.nan, math.nan, math.nan
    mean = float(finite.mean())
    if len(finite) < 2 or np.ptp(finite) == 0:
        return mean, mean, mean
    between = stats.ttest_1samp(finite, 0.0).confidence_interval(0.95)
    return mean, float(between.low), float(between.high)


def line_of(name: str, x: Numbers, by_seed: NDArray[np.float64]) -> Line:
    """Return the line through the means of `by_seed`, (seeds, points), with the band of their intervals."""
    mean, low, high = zip(*(interval(column) for column in np.asarray(by_seed, dtype=float).T), strict=True)
    return Line(name, x, mean, low, high)


def after_each_epoch(results: Results, metric: str, cells: Mapping[str, str] | Sequence[str]) -> list[Line]:
    """
    Return a line for every cell: the metric after each epoch, over the seeds that did not diverge.

    :param metric: as in a record's `history`, or in the list `epochs_METRIC` of a computation.
    :param cells: the cells, or what to call them -> the cells.
    """
    named = dict(cells) if isinstance(cells, Mapping) else {cell: cell for cell in cells}
    lines = []
    for name, cell in named.items():
        curves = [curve for curve in _curves(results, cell, metric) if curve]
        if not curves:
            continue
        longest = max(map(len, curves))
        table = np.full((len(curves), longest), np.nan)
        for row, curve in zip(table, curves, strict=True):
            row[: len(curve)] = [math.nan if value is None else value for value in curve]
        lines.append(line_of(name, range(1, longest + 1), table))
    return lines


def _curves(results: Results, cell: str, metric: str) -> list[list[float]]:
    computed = [results.record(cell, seed).get(f"epochs_{metric}", []) for seed in results.seeds(cell)]
    return computed if any(computed) else results.curve(cell, metric)
