import math
import xml.etree.ElementTree as ElementTree

import pytest

from pyro_bnn.analysis.report.svg import Chart, label, limits, log_limits, log_ticks, ticks


def chart(**options):
    return Chart("A title", "Some <words>.", "x & x", "y", (0, 10), (0, 1), **options)


def test_ticks_are_round_numbers_inside_the_range():
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(1, 24) == [5, 10, 15, 20]
    assert ticks(-0.3, 0.31) == pytest.approx([-0.2, 0, 0.2])
    assert ticks(2, 2) == [2]
    for low, high in ((0, 7e-5), (3, 1e6), (-5, 5)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 9
        assert all(low <= t <= high * (1 + 1e-9) for t in found)


def test_log_ticks():
    assert log_ticks(0.05, 200) == pytest.approx([0.1, 1, 10, 100])
    assert log_ticks(0.3, 6) == pytest.approx([0.5, 1, 2, 5])


@pytest.mark.parametrize(("value", "words"), [(0, "0"), (0.25, "0.25"), (12000, "1e4"), (2e-5, "2e-5"), (1500, "1500")])
def test_labels_are_short(value, words):
    assert label(value) == words


def test_it_is_xml_with_a_title_and_a_description():
    drawing = chart()
    drawing.line([0, 5, 10], [0, 0.5, 1], "c0")
    drawing.steps([0, 5, 10], [0.2, 0.8], "c1")
    drawing.points([5], [0.5], "c2", tips=["a & b"])
    drawing.area([0, 10], [0, 0], [1, 1], "faint")
    drawing.segment((0, 0), (10, 1), "faint dashed")
    root = ElementTree.fromstring(drawing.svg())
    assert root.get("role") == "img"
    named = {e.get("id"): e.text for e in root.iter() if e.get("id")}
    assert [named[i] for i in root.get("aria-labelledby").split()] == ["A title", "Some <words>."]
    assert {e.text for e in root.iter("text")} >= {"x & x", "y", "0", "10", "0.2"}


def test_two_charts_do_not_share_ids():
    one, other = (set(e.get("id") for e in ElementTree.fromstring(chart().svg()).iter()) - {None} for _ in range(2))
    assert one.isdisjoint(other)


def test_points_lie_where_the_axes_say():
    drawing = chart()
    assert drawing.x(0) < drawing.x(5) < drawing.x(10)
    assert drawing.x(5) == pytest.approx((drawing.x(0) + drawing.x(10)) / 2)
    assert drawing.y(0) > drawing.y(1)
    log = Chart("t", "d", "x", "y", (0, 1), (0.01, 100), log_y=True)
    assert log.y(1) == pytest.approx((log.y(0.01) + log.y(100)) / 2)


def test_numbers_that_are_not_finite_are_left_out():
    drawing = chart()
    drawing.line([0, 1, 2], [0.1, math.nan, 0.3], "c0")
    assert "nan" not in drawing.svg()
    assert limits([1.0, math.inf, 3.0]) == pytest.approx((0.9, 3.1))
    assert log_limits([0.0, 1.0, 10.0]) == pytest.approx((0.8, 12.5))
    assert limits([]) == (0, 1)


def test_an_empty_range_is_opened():
    drawing = Chart("t", "d", "x", "y", (3, 3), (math.nan, 1))
    assert drawing.x_range == (2.5, 3.5)
    assert drawing.y_range == (0, 1)
