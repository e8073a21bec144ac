"""The UCI sets: the scores of a mixture, what a trial leaves, the judge's verdicts, the table."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn.studies import _uci_apart
from pyro_bnn.studies._uci import crps, log_density, one_set, scores_of
from pyro_bnn.studies._uci_published import PUBLISHED, SETS
from pyro_bnn.studies._uci_table import as_csv, as_markdown, picture, rows_of
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.uci import STUDY
from tests.studies.made_up import made_up


def mixture() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    return mean, 0.2 + torch.rand(7, 4, generator=generator, dtype=torch.float64), torch.tensor([0.3, -1.0, 4.0, 0.0])


def test_crps_is_the_integral_of_the_squared_distance() -> None:
    """CRPS = integral of (F(t) - 1{t >= y})^2 dt, by the trapezoidal rule."""
    mean, sd, y = mixture()
    t = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    for n in range(4):
        below = (0.5 * (1 + torch.erf((t - mean[:, n : n + 1]) / (sd[:, n : n + 1] * math.sqrt(2))))).mean(0)
        expected = torch.trapezoid((below - (t >= y[n]).double()).square(), t)
        assert float(crps(mean, sd, y)[n]) == pytest.approx(float(expected), abs=1e-4)


def testlog_density_and_coverage_are_those_of_the_mixture() -> None:
    mean, sd, y = mixture()
    law = torch.distributions.Normal(mean, sd)
    assert torch.allclose(log_density(mean, sd, y.double()), law.log_prob(y.double()).exp().mean(0).log())
    inside = ((law.cdf(y.double()).mean(0) - 0.5).abs() <= 0.25).double().mean()
    assert scores_of(mean, sd, y.double())["cover50"] == float(inside)


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set in the layout of the UCI files: y = 1000 (x + noise of .1), five splits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = 5000 + 1000 * (x[:, 0] + 0.1 * rng.normal(size=120))
    split = np.ones((5, 120), dtype=np.int8)
    for row in split:
        row[rng.permutation(120)[:24]] = 2
    np.savez(tmp_path / "line.npz", x=x, y=y, split=split)
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))


@pytest.mark.parametrize("guide", ["local", "map"])
def test_a_trial_scores_every_split_in_the_units_of_the_data(line: None, guide: str) -> None:
    record = one_set("line", guide=guide, splits=3, members=2, epochs=60, batch_size=16, hidden=[10])
    assert record["rows"] == [96] * 3
    assert set(record["eta"]) <= {0.1, 0.3, 1.0}
    exact = -math.log(100) - 0.5 * math.log(2 * math.pi) - 0.5  # of the law that made y
    assert exact - 0.6 < record["ll_mean"] < exact + 0.4
    assert 80 < record["rmse_mean"] < 200
    assert all(len(record[name]) == 3 for name in ("ll", "single_ll", "crps", "cover95"))
    assert record["ll_se"] == pytest.approx(float(np.std(record["ll"], ddof=1)) / math.sqrt(3))


@pytest.mark.parametrize("method", ["hwa", "low-rank", "nuts"])
def test_a_method_that_is_not_batched_has_the_same_scores(line: None, method: str) -> None:
    record = _uci_apart.one_set("line", method, splits=2, etas=[0.3, 1.0], epochs=60, batch_size=16, hidden=[10])
    assert record["rows"] == [96] * 2
    assert record["eta"][0] in (0.3, 1.0)
    exact = -math.log(100) - 0.5 * math.log(2 * math.pi) - 0.5  # of the law that made y
    assert exact - 0.6 < record["ll_mean"] < exact + 0.4
    assert 80 < record["rmse_mean"] < 200
    assert record["ll_se"] == pytest.approx(float(np.std(record["ll"], ddof=1)) / math.sqrt(2))
    with pytest.raises(ValueError, match="method='nut' is unknown"):
        _uci_apart.one_set("line", "nut")


def record_of(trial: Trial, gain: dict[str, float]) -> dict[str, Any]:
    data = str(trial.arguments["data"])
    best = max(
        p.ll[data] for name, p in PUBLISHED.items() if name in ("VI", "MC dropout, grid", "SLANG") and data in p.ll
    )
    ll = best + gain.get(data, gain["all"])
    scores = {name: [value, value] for name, value in (("rmse", 1.0), ("crps", 0.5), ("cover50", 0.5))}
    scores |= {"cover90": [0.9, 0.9], "cover95": [0.95, 0.95], "ll": [ll - 0.01, ll + 0.01]}
    scores |= {f"single_{name}": value for name, value in scores.items()}
    return {**scores, "ll_mean": ll, "ll_se": 0.01, "rmse_mean": 1.0}


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ({"all": 0.1}, "confirmed"),
        ({"all": 0.1, "boston": 0.0, "wine": 0.0}, "confirmed"),  # level on two
        ({"all": 0.0}, "contradicted"),  # level, and ahead on too few
        ({"all": 0.1, "boston": -2.0}, "contradicted"),  # behind VI on one
    ],
)
def test_verdicts(gain: dict[str, float], verdict: str) -> None:
    results = made_up(STUDY, lambda trial: record_of(trial, gain))
    assert verdict_of(STUDY.judge(results)) == verdict


def test_every_set_is_in_the_design_once() -> None:
    assert [trial.arguments["data"] for trial in STUDY.design("cpu")] == list(SETS)
    assert {trial.arguments["splits"] for trial in STUDY.design("cpu") if trial.arguments["data"] != "protein"} == {20}


def test_the_table_keeps_apart_what_has_other_splits() -> None:
    records = {("yacht", "ensemble"): record_of(STUDY.design("cpu")[-1], {"all": 0.2})}
    rows = rows_of(records, {})
    assert [(row["set"], row["method"]) for row in rows] == [("yacht", "ensemble"), ("yacht", "single")]
    tables = as_markdown(rows)
    head = tables["published"].splitlines()[0]
    assert "MC dropout, grid (the same splits)" in head
    assert head.count("not the same splits") == len(PUBLISHED) - 1
    lines = list(csv.DictReader(as_csv(rows).splitlines()))
    assert {row["splits"] for row in lines if row["method"] == "VI"} == {"not the same splits"}
    assert float(lines[0]["ll"]) == pytest.approx(rows[0]["ll"])
    assert picture(rows).count("<circle") == 4 + len(PUBLISHED) + 2  # the legend, the published, ours


def test_above_is_not_ahead() -> None:
    """Yacht: MC dropout's grid is the best of the three, and the difference is a hundredth, as the errors are."""
    records = {("yacht", "ensemble"): record_of(STUDY.design("cpu")[-1], {"all": 0.01})}
    counted = as_markdown(rows_of(records, {}))["counts"].splitlines()[2:5]
    assert counted == [
        "| ensemble | VI | 1 | 1 | 1 | 1 |",
        "| ensemble | MC dropout, grid | 1 | 1 | 1 | 0 |",
        "| ensemble | SLANG | 1 | 1 | 1 | 1 |",
    ]
