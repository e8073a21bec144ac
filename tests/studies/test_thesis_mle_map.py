"""The MLE and the MAP of a coin, against a grid and the numbers in print."""

import numpy as np
import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results
from pyro_bnn.studies.thesis_mle_map import estimates


@pytest.mark.parametrize("way", ["formula", "optimizer", "AutoDelta", "point guide"])
def test_the_estimates_are_those_of_a_grid(way: str) -> None:
    p = np.linspace(0, 1, 100_001)
    likelihood = p * (1 - p)
    found = estimates(way, seed=3)
    assert found["mle"] == pytest.approx(p[likelihood.argmax()], abs=2e-5) == pytest.approx(0.5, abs=2e-5)
    with_prior = likelihood * p**2 * (1 - p)
    assert found["map"] == pytest.approx(p[with_prior.argmax()], abs=2e-5) == pytest.approx(0.6, abs=2e-5)
    in_logit = with_prior * p * (1 - p)
    assert found["logit_map"] == pytest.approx(p[in_logit.argmax()], abs=2e-5) == pytest.approx(4 / 7, abs=2e-5)


def test_the_verdict_follows_the_numbers() -> None:
    study = find_study("thesis-mle-map")
    trials = study.design("source")
    right = {"mle": 0.5, "map": 0.6, "logit_map": 4 / 7}
    records = {trial.key(): right for trial in trials}
    findings = study.judge(Results(trials, records))
    assert verdict_of(findings) == "confirmed"
    assert findings[-1].verdict == "contradicted"
    records = {trial.key(): {**right, "map": 4 / 7} for trial in trials}
    assert verdict_of(study.judge(Results(trials, records))) == "contradicted"
