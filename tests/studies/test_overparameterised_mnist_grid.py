"""The study of width and temperature: its grid, its fits, and the verdicts on results of all three kinds."""

import numpy as np
import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.overparameterised_mnist_grid import STUDY, vertex
from pyro_bnn.studies.study import Results

NOISE = (0.0, 0.03, -0.02, 0.01, -0.03)


def _results(power, spread=0.0):
    """NLL is a parabola in log10 eta with its optimum at -1 - power (log10 N - log10 20), noisy in its place."""
    trials = STUDY.design("cpu")
    records = {}
    for trial in trials:
        units, half = trial.changes["model_args"]["units"], np.log10(trial.changes["eta"])
        place = (
            -1.05
            - power * np.log10(units / 20)
            + NOISE[(trial.seed + units) % 5]
            + spread * (trial.seed - 2) * (units > 50)
        )
        away = half - place
        records[trial.key()] = {
            "pred_nll": 0.5 + 0.2 * away**2,
            "accuracy": 0.9 - 0.2 * away**2,
            "confidence": 0.1 + 0.001 * trial.seed,
        }
    return Results(trials, records)


@pytest.mark.parametrize("scale", STUDY.scales)
def test_all_cells_have_the_same_seeds_and_equal_tau_are_points_of_the_grid(scale):
    trials = STUDY.design(scale)
    results = Results(trials, {trial.key(): {} for trial in trials})
    assert len({tuple(results.seeds(cell)) for cell in results.cells}) == 1
    assert len(results.seeds(results.cells[0])) == (2 if scale == "smoke" else 5)
    widths = np.array(sorted({trial.changes["model_args"]["units"] for trial in trials}))
    halves = 2 * np.log10(widths / widths[0])
    assert halves == pytest.approx(np.round(halves), abs=0.02)


def test_the_vertex_of_a_parabola_is_its_optimum():
    x = np.arange(-3.5, 0.5, 0.5)
    assert vertex(x, 2 + 3 * (x + 1.37) ** 2) == pytest.approx(-1.37)
    assert np.isnan(vertex(x, x))
    assert np.isnan(vertex(x, np.where(x < -3, np.nan, x**2)))


def test_a_temperature_that_follows_the_width_is_confirmed():
    findings = STUDY.judge(_results(1.0))
    assert verdict_of(findings) == "confirmed"
    assert findings[1].estimate == pytest.approx(0.0, abs=0.05)


def test_a_temperature_that_does_not_is_contradicted():
    findings = STUDY.judge(_results(0.0))
    assert [f.verdict for f in findings[1:3]] == ["contradicted", "contradicted"]
    assert verdict_of(findings) == "contradicted"


def test_a_slope_that_seeds_disagree_on_is_inconclusive():
    assert verdict_of(STUDY.judge(_results(1.0, spread=0.3))) == "inconclusive"
