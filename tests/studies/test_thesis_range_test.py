"""The range test on quadratics, where the greatest viable rate is 2 / h."""

import math

import numpy as np
import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results
from pyro_bnn.studies.thesis_range_test import quadratic


@pytest.mark.parametrize("h", [0.5, 2.0, 8.0])
def test_the_loss_is_lowest_at_two_over_the_curvature(h: float) -> None:
    found = quadratic(h, seed=0)
    rates = np.geomspace(1e-5, 10, 200)
    log_loss = np.cumsum(2 * np.log10(np.abs(1 - rates * h)))
    assert found["off"] == 0
    assert found["lowest"] == pytest.approx(rates[log_loss.argmin()])
    assert found["lowest"] < 2 / h < found["lowest"] * (1e6) ** (1 / 199)
    assert found["climb"] == pytest.approx(log_loss[-1] - log_loss.min(), rel=1e-9)
    assert found["fall"] == pytest.approx(log_loss[0] - log_loss.min(), rel=1e-9)


@pytest.mark.parametrize(
    ("off", "climb", "verdict"), [(0.0, 1.0, "confirmed"), (2.0, 1.0, "contradicted"), (0.0, 0.0, "inconclusive")]
)
def test_the_verdict_follows_the_numbers(off: float, climb: float, verdict: str) -> None:
    study = find_study("thesis-range-test")
    trials = study.design("source")
    noise = [0.1, -0.1, 0.05, -0.05, 0.0]
    records = {}
    for trial in trials:
        records[trial.key()] = {"off": off, "lowest": 0.1, "climb": climb + noise[trial.seed]}
        records[trial.key()] |= {"fall": 1 + noise[trial.seed], "slow": 0.02}
    assert verdict_of(study.judge(Results(trials, records))) == verdict
    assert not math.isnan(study.judge(Results(trials, records))[-1].estimate)
