"""The law of the chains on a quadratic, against scalars and the chains themselves."""

import math

import pytest
import torch

from pyro_bnn.inference.samplers.lmc import quadratic_covariance
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.overparameterised_lmc import chains, regression, stationary
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results


def test_the_stationary_law() -> None:
    h = torch.tensor([[4.0]], dtype=torch.float64)
    for gamma in (0.01, 0.1, 0.4):
        assert float(stationary(h, gamma)) == pytest.approx(0.25 / (1 - 2 * gamma), rel=1e-12)
    hessian, _ = regression()
    gamma = 0.4 / float(torch.linalg.eigvalsh(hessian).max())
    torch.testing.assert_close(stationary(hessian, gamma), quadratic_covariance(hessian, gamma), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("share", [0.4, 0.2])
def test_the_chains_have_that_law(share: float) -> None:
    """60,000 draws of 3 coordinates: the mean variance has a standard error below 0.01, the mean one of 0.004."""
    found = chains(share, 1000, seed=0)
    hessian, _ = regression()
    h = torch.linalg.eigvalsh(hessian)
    exact = float((1 / (1 - share * h / h.max() / 2)).mean()) - 1
    assert found["law"] == pytest.approx(exact, rel=1e-9)
    assert found["formula"] == pytest.approx(exact, rel=1e-9)
    assert found["bias"] == pytest.approx(exact, abs=0.04)
    assert found["mean_bias"] < 0.03
    assert exact > 0.05


@pytest.mark.parametrize(("power", "verdict"), [(1.0, "confirmed"), (2.0, "contradicted")])
def test_the_verdict_follows_the_numbers(power: float, verdict: str) -> None:
    study = find_study("overparameterised-lmc")
    trials = study.design("source")
    records = {}
    for trial in trials:
        share = trial.arguments["share"]
        jitter = 1e-3 * (trial.seed - 2) * (1 + share)  # no two slopes alike
        bias = 0.4 * share**power
        numbers = {"mean_bias": 0.004 + jitter, "bias": bias, "log10_bias": math.log10(bias) + jitter}
        records[trial.key()] = numbers | {"against_law": jitter, "law": 0.1, "formula": 0.1}
    assert verdict_of(study.judge(Results(trials, records))) == verdict
