"""A small share of the torture: nothing that is not as promised."""

import json

import pytest

from pyro_bnn.recipe import Recipe
from torture.__main__ import main, table
from torture.fuzz import FUZZ, figures_of
from torture.oracle import BYTES, Tally, judge

COUNTS = {"recipes": 150, "command lines": 15, "data files": 60, "predict files": 60}


@pytest.mark.parametrize(("name", "function"), [(name, function) for name, (function, _) in FUZZ.items()])
def test_nothing_but_the_same_or_a_word_of_the_library(name, function):
    tally = function(COUNTS.get(name, 20), 1)
    assert tally.bad == 0, "\n".join(tally.examples)
    assert sum(tally.outcomes.values()) == COUNTS.get(name, 20)


def test_the_judge_tells_errors_apart():
    tally = Tally()
    judge(tally, lambda: Recipe.build({"model": "mlp"}), "own")
    judge(tally, lambda: {}["x"], "foreign")
    judge(tally, lambda: int("x"), "a ValueError that nobody raised on purpose")
    judge(tally, lambda: json.loads("["), "another library's ValueError")
    judge(tally, lambda: bytearray(2 * BYTES), "memory")
    judge(tally, lambda: 1, "same", lambda got: got == 1)
    judge(tally, lambda: 2, "different", lambda got: got == 1)
    assert tally.outcomes == {"refused": 1, "foreign": 3, "memory": 1, "same": 1, "different": 1}
    assert tally.bad == 5


def test_a_hang_is_ended(monkeypatch):
    monkeypatch.setattr("torture.oracle.SECONDS", 0.1)
    tally = Tally()

    def turn():
        while True:
            pass

    judge(tally, turn, "turns")
    assert tally.outcomes == {"hang": 1}


def test_figures_go_into_a_page(tmp_path):
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    tally = Tally()
    tally.note("refused", "x", 0.5)
    figures.write_text(json.dumps({"recipes": {**figures_of(tally), "share": 0.1, "date": "today"}}))
    page.write_text(
        "before\n<!-- torture:start -->\nold\n<!-- torture:end -->\n<!-- limits:start -->\n<!-- limits:end -->\n"
    )
    assert main(["--json", str(figures), "--document", str(page)]) == 0
    written = page.read_text()
    assert (
        "| recipes | 0.1 | cases 1, same 0, refused 1, not as promised 0, slowest 0.5 | 0 | today |" in page.read_text()
    )
    assert "| `epochs` | 1,000,000 |" in written
    assert table(json.loads(figures.read_text())) in written
