"""The theorem there and back, with a deconvolution done by hand where there is one."""

import math

import numpy as np
import pytest
import torch

from pyro_bnn.penalties import implied_prior
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.penalties_theorem import _penalty, conditions, divergence, log_kappa, naive, recovered
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results

MU = np.array([-2.0, -0.3, 0.0, 1.1])


def test_the_penalties_are_those_of_closed_forms() -> None:
    sd = 0.3
    normal = (sd**2 / 0.49 + (MU - 0.4) ** 2 / 0.49 - 1 - math.log(sd**2 / 0.49)) / 2
    np.testing.assert_allclose(divergence("normal", MU, sd), normal, rtol=1e-10)
    damped = 0.5 * math.exp(-((3 * sd) ** 2) / 2) * np.cos(3 * MU)
    wave = (MU**2 + sd**2) / 2 - damped - 0.5 * math.log(2 * math.pi * math.e * sd**2) + log_kappa("wave")
    np.testing.assert_allclose(divergence("wave", MU, sd), wave, rtol=1e-10)


@pytest.mark.parametrize("prior", ["normal", "even mixture", "wave"])
def test_there_and_back(prior: str) -> None:
    found = recovered(prior, seed=0)
    assert found["l1"] < 1e-4
    assert found["constant"] == pytest.approx(0, abs=1e-5)  # K, for r is the divergence itself
    assert (naive(prior, seed=0)["l1"] > 1e-3) == (prior != "normal")  # smoothing a parabola lifts it, no more
    smaller = implied_prior(_penalty(prior), 0.1).prior.log_prob(torch.zeros((), dtype=torch.float64))
    larger = implied_prior(_penalty(prior), 0.3).prior.log_prob(torch.zeros((), dtype=torch.float64))
    assert float(smaller) == pytest.approx(float(larger), abs=1e-4)  # A does not depend on the scale


def test_the_conditions() -> None:
    assert set(conditions(seed=0).values()) == {1.0}


@pytest.mark.parametrize(("l1", "holds", "verdict"), [(1e-5, 1.0, "confirmed"), (0.1, 1.0, "contradicted")])
def test_the_verdict_follows_the_numbers(l1: float, holds: float, verdict: str) -> None:
    study = find_study("penalties-theorem")
    trials = study.design("source")
    held = {"conditions": dict.fromkeys(conditions(0), holds)}
    records = {trial.key(): held.get(trial.cell, {"l1": l1, "log10_l1": math.log10(l1)}) for trial in trials}
    assert verdict_of(study.judge(Results(trials, records))) == verdict
    records = {k: {**r, "absolute value": 0.0} for k, r in records.items()}
    assert verdict_of(study.judge(Results(trials, records))) == "contradicted"
