"""Curves and landscapes: their numbers, what the outcome keeps of them, and how they are drawn."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pyro_bnn.studies import charts
from pyro_bnn.studies.figures import Curves, Landscape, Line, after_each_epoch, interval, line_of
from pyro_bnn.studies.picture import picture
from pyro_bnn.studies.run import find_study, outcome_text, study_names
from pyro_bnn.studies.study import Results, Trial


def results(**records: list[dict[str, Any]]) -> Results:
    trials = [
        Trial(cell, s, compute="x:y", arguments={"cell": cell})
        for cell, given in records.items()
        for s in range(len(given))
    ]
    given = [record for cell in records.values() for record in cell]
    return Results(trials, {trial.key(): record for trial, record in zip(trials, given, strict=True)})


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_band_is_the_interval_of_the_mean_at_each_point() -> None:
    table = np.array([[1.0, 4.0], [2.0, 4.0], [6.0, np.nan]])
    line = line_of("a", [1, 2], table)
    half = stats.t.ppf(0.975, 2) * table[:, 0].std(ddof=1) / math.sqrt(3)
    assert (line.y[0], line.low[0], line.high[0]) == pytest.approx((3.0, 3 - half, 3 + half))
    assert (line.y[1], line.low[1], line.high[1]) == (4.0, 4.0, 4.0)
    assert all(math.isnan(number) for number in interval(np.array([np.nan])))


def test_curves_are_read_from_trainings_and_from_computations() -> None:
    history = [{"history": [{"nll": 3.0 + s}, {"nll": 1.0 + s}]} for s in range(2)]
    found = after_each_epoch(
        results(a=[*history, {"diverged": "nan"}], b=[{"epochs_nll": [5.0, 4.0, 3.0]}, {"epochs_nll": [7.0]}], c=[{}]),
        "nll",
        {"A": "a", "b": "b", "c": "c"},
    )
    assert [line.name for line in found] == ["A", "b"]  # nothing was measured of c
    assert list(found[0].x) == [1, 2]
    assert list(found[0].y) == [3.5, 1.5]
    assert list(found[1].y) == [6.0, 4.0, 3.0]  # of those that came so far


def test_a_landscape_averages_seeds_and_keeps_five_digits() -> None:
    points = [(0.1, 1.0, 1 / 3), (0.1, 1.0, 2 / 3), (0.2, 1.0, 0.123456789), (0.3, 1.0, 1.0), (0.3, 1.0, math.nan)]
    kept = Landscape("L", "x", "y", "v", points, [Line("edge", [0.1, 0.2], [1.0, math.inf])]).to_dict()
    assert kept["points"] == [[0.1, 1.0, 0.5], [0.2, 1.0, 0.12346], [0.3, 1.0, None]]
    assert kept["lines"][0]["y"] == [1.0, None]
    json.dumps(kept, allow_nan=False)


def test_a_line_has_as_many_of_each() -> None:
    with pytest.raises(ValueError, match=r"'a' has parts of \[1, 2\] points"):
        Line("a", [1, 2], [1])
    with pytest.raises(ValueError, match="as many of each"):
        Line("a", [1, 2], [1, 2], low=[0, 1])


def test_an_outcome_as_text_is_the_same_outcome() -> None:
    outcome = {
        "claim": 'a range [0, 1)\n[\n1,\n2\n], and "quotes"',
        "cells": [{"values": [0.5, None, -1e-07, 3]}, {"values": []}],
        "points": [[1.0, 2.0], [3.0, None]],
        "names": ["a", "b"],
    }
    text = outcome_text(outcome)
    assert json.loads(text) == outcome
    assert '"values": [0.5, null, -1e-07, 3]' in text
    assert "[3.0, null]" in text


# -- the picture -------------------------------------------------------------------------------------------------------


def drawn(*figures: Any) -> ElementTree.Element:
    body: list[str] = []
    height = charts.figures(body, [figure.to_dict() for figure in figures], 640, 38.0)
    return ElementTree.fromstring(f'<svg height="{height}">{"".join(body)}</svg>')


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [node for node in root.iter() if name in node.get("class", "").split()]


def test_points_of_a_grid_are_fields_that_fill_the_frame() -> None:
    points = [(10.0**i, float(j), float(i + j)) for i in range(3) for j in range(2)]
    root = drawn(Landscape("L", "x", "y", "v", points, log="x"))
    (frame,) = of_class(root, "frame")
    fields = of_class(root, "heat")[5:]  # after the key's ramp
    assert len(fields) == 6
    area = sum(float(f.get("width", 0)) * float(f.get("height", 0)) for f in fields)
    assert area == pytest.approx(float(frame.get("width", 0)) * float(frame.get("height", 0)), rel=2e-3)
    depths = [float(f.get("fill-opacity", 0)) for f in fields]
    assert depths == pytest.approx([charts._depth((i + j) / 3) for i in range(3) for j in range(2)], abs=1e-3)


def test_other_points_are_dots_and_what_diverged_is_crossed() -> None:
    points = [(0.1, 0.5, 0.2), (0.4, 0.1, 0.9), (0.7, 0.3, math.nan)]
    root = drawn(Landscape("L", "x", "y", "v", points))
    dots = of_class(root, "spot")
    assert [float(dot.get("fill-opacity", 0)) for dot in dots] == pytest.approx([0.06, 0.98])
    assert float(dots[0].get("cx", 0)) < float(dots[1].get("cx", 0))
    assert float(dots[0].get("cy", 0)) < float(dots[1].get("cy", 0))  # y grows upwards
    assert len(of_class(root, "lost")) == 2  # in the key, and in the figure
    assert "diverged" in "".join(root.itertext())


def test_a_curve_breaks_where_there_is_no_number_and_stays_inside() -> None:
    line = Line("a", [1, 2, 3, 4, 5], [0.0, 1.0, math.nan, 2.0, 4.0])
    far = Line("theory", [1, 2, 3, 4, 5], [0.0, 2.0, 3.0, 50.0, 100.0], reference=True)
    root = drawn(Curves("C", "x", "y", [line, far]))
    paths = [node.get("d", "") for node in of_class(root, "curve")[1:]]  # after the key's
    assert [path.count(",") for path in paths] == [2, 2]
    (theory,) = (node.get("d", "") for node in of_class(root, "reference")[1:])
    assert theory.count(",") == 3  # what lies beyond the measured is not drawn
    heights = [float(y) for path in (*paths, theory) for y in re.findall(r",(\d+\.\d)", path)]
    assert min(heights) >= 38
    assert max(heights) <= float(root.get("height", 0))


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float, str]]:
    """Return where words stand, by a cautious width of a letter."""
    found = []
    for node in root.iter("text"):
        words = "".join(node.itertext())
        if node.get("transform"):
            continue
        width, x, y = 6.2 * len(words), float(node.get("x", 0)), float(node.get("y", 0))
        left = {"middle": x - width / 2, "end": x - width}.get(node.get("text-anchor", ""), x)
        found.append((left, y - 9, left + width, y + 2, words))
    return found


def overlaps(root: ElementTree.Element) -> list[tuple[str, str]]:
    places = boxes(root)
    return [
        (a[4], b[4])
        for i, a in enumerate(places)
        for b in places[i + 1 :]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_words_do_not_overlap(count: int) -> None:
    lines = [Line(f"a name of some length {i}", [1, 2, 3], [1e-3 * i, 2.0, 3.5]) for i in range(9)]
    edge = Line("rate / (1 - mu) = 1.9, the source's", [0.1, 0.9], [0.2, 0.3], reference=True)
    points = [(0.01 * i, 1e-6 * 10**i, float("nan") if i == 3 else i / 7) for i in range(8)]
    one = Curves("A figure", "epoch", "held-out accuracy", lines)
    two = Landscape("Another", "learning rate", "momentum", "test accuracy", points, [edge], "y")
    root = drawn(*[one, two, one][:count])
    assert overlaps(root) == []
    assert max(box[2] for box in boxes(root)) <= 640


def test_the_shipped_pictures_have_no_words_over_others() -> None:
    """Of every study whose outcome holds figures."""
    seen = 0
    for path in (Path(__file__).parents[2] / "docs" / "studies").glob("*.json"):
        outcome = json.loads(path.read_text())
        if path.name.count(".") == 2 and "figures" in outcome:
            body: list[str] = []
            charts.figures(body, outcome["figures"], 640, 38.0)
            root = ElementTree.fromstring(f"<svg>{''.join(body)}</svg>")
            assert overlaps(root) == [], path.name
            seen += 1
    assert seen > 10


def test_cells_of_a_data_set_have_their_axis_and_a_seed_that_diverged_does_not_stretch_it() -> None:
    cells = [
        {"cell": "mnist, a", "values": [0.98, 0.99], "mean": 0.985, "low": 0.98, "high": 0.99},
        {"cell": "mnist, b", "values": [0.1, None], "mean": 0.1, "low": -2.0, "high": 2.0},
        {"cell": "cifar10, a", "values": [0.5, 0.6], "mean": 0.55, "low": 0.5, "high": 0.6},
    ]
    outcome = {
        **{"study": "s", "scale": "cpu", "verdict": "confirmed", "claim": "", "metric": ["a", "b"]},
        **{"cells": cells, "findings": []},
    }
    root = ElementTree.fromstring(picture(outcome))
    parts = [node for node in root.iter() if node.get("class") in ("seed", "mean")]
    dots = [float(node.attrib["cx"]) for node in parts if node.tag.endswith("circle")]
    triangles = [node for node in parts if node.tag.endswith("path")]
    assert (len(dots), len(triangles)) == (6, 2)  # what lies outside points to the left
    assert all(node.attrib["d"].startswith("M210.0,") for node in triangles)
    assert dots[:2] == dots[3:5]  # the least and the greatest of each data set lie at the same places
    bars = [node.attrib["d"] for node in root.iter() if node.get("class") == "bar"]
    assert bars[1].startswith("M210.0,")
    assert bars[1].endswith("H616.0")


def test_epochs_are_whole() -> None:
    root = drawn(Curves("C", "epoch", "y", [Line("a", [1, 2], [0.0, 1.0])]))
    below = [node.text for node in root.iter("text") if node.get("text-anchor") == "middle"]
    assert below == ["1", "2", "epoch"]


class _Anything(dict[str, Any]):
    """A record that has whatever a study asks for."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def __contains__(self, key: object) -> bool:
        return key != "diverged"

    def get(self, key: str, default: Any = None) -> Any:
        if key == "history":
            return [{metric: 0.5 / (e + 1) + 0.01 * self.seed for metric in _HISTORY} for e in range(3)]
        if key.startswith("epochs_"):
            return [0.5, 0.3 + 0.01 * self.seed]
        return [0.1 + 1e-4 * i for i in range(300)] if key == "rates" else 0.3 + 0.01 * self.seed

    def __getitem__(self, key: str) -> Any:
        return self.get(key)


_HISTORY = ("nll", "kl", "loss", "val_nll", "val_accuracy")


@pytest.mark.parametrize("name", [name for name in study_names() if find_study(name).figures is not None])
def test_every_study_with_figures_draws_what_it_measured(name: str) -> None:
    study = find_study(name)
    assert study.figures is not None
    trials = study.design("smoke")
    given = Results(trials, {trial.key(): _Anything(trial.seed) for trial in trials})
    found = [figure.to_dict() for figure in study.figures(given)]
    assert found
    for figure in found:
        assert any(number is not None for line in figure["lines"] for number in line["y"]) or figure["points"]
    outcome = {
        **{"study": name, "scale": "smoke", "verdict": "confirmed", "claim": "", "metric": ["a", "b"]},
        **{"cells": [], "findings": [], "figures": json.loads(json.dumps(found, allow_nan=False))},
    }
    root = ElementTree.fromstring(picture(outcome))
    style = next(node for node in root.iter() if node.tag.endswith("style")).text or ""
    assert style.count("prefers-color-scheme: dark") == 2
