"""Rows of docs/posteriors.md that are made again: each takes the place of the row of its name, in its table."""

import pytest

from benchmarks.posteriors import COLUMNS, with_rows

PAGE = """# Posteriors compared

| posterior | accuracy % |
|---|---:|
| mean field (SVI) | old |
| low rank 5 (SVI) | old |

## Distance from NUTS

| posterior | Wasserstein-1 |
|---|---:|
| mean field (SVI) | old |
| low rank 5 (SVI) | old |
"""
ROW = {key: 0.5 for key in COLUMNS}
FOUND = {"low rank 5 (SVI)": {"wasserstein": 0.25, "mean": 0.5, "sd_ratio": 1.0, "seconds": 2.0}}


def test_a_row_takes_the_place_of_its_own() -> None:
    rows = {"mean field (SVI)": [ROW, ROW], "low rank 5 (SVI)": [ROW, ROW]}
    text = with_rows(PAGE, ["low rank 5 (SVI)"], rows, FOUND)
    digits, functions = text.split("## Distance from NUTS")
    assert "| mean field (SVI) | old |" in digits
    assert "| mean field (SVI) | old |" in functions
    assert "| low rank 5 (SVI) | 50.00 ± 0.00 |" in digits
    assert "| low rank 5 (SVI) | 0.250 | 0.500 | 1.00 | 2.0 |" in functions
    assert text.count("old") == 2
    assert with_rows(PAGE, ["low rank 5 (SVI)"], {}, {}) == PAGE


def test_a_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has 0 rows 'low rank 5"):
        with_rows(PAGE.replace("low rank 5", "low rank 6"), ["low rank 5 (SVI)"], {}, FOUND)
