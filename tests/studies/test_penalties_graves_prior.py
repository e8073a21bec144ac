"""Graves' prior as a penalty, and the weights of the penalties, against formulas and draws."""

import math

import pytest
import torch

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.penalties_graves_prior import divergence, variance_by_quadrature, weights
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results


@pytest.mark.parametrize(("kind", "size", "factor"), [("L2", 1, 0.5), ("L1", 1, 2.0), ("group", 1, 2.0)])
def test_the_variances_of_a_single_weight(kind: str, size: int, factor: float) -> None:
    """1 / (2 lambda) of the normal, 2 / lambda^2 of the Laplace; a group of a single weight is a Laplace."""
    rate = 3.0
    assert variance_by_quadrature(kind, rate, size) == pytest.approx(factor / rate ** (1 if kind == "L2" else 2))


@pytest.mark.parametrize("size", [2, 9, 64])
def test_the_variance_of_a_group(size: int) -> None:
    """The norm is a gamma of shape D; 100,000 draws are within 3 % of (D + 1) / lambda^2: 6 standard errors or more."""
    torch.manual_seed(0)
    norm = torch.distributions.Gamma(torch.tensor(float(size)), 2.0).sample((100_000,))
    found = variance_by_quadrature("group", 2.0, size)
    assert found == pytest.approx((size + 1) / 4, rel=1e-9)
    assert float(norm.square().mean()) / size == pytest.approx(found, rel=0.03)


def test_the_weights_and_the_divergence() -> None:
    found = weights(seed=0)
    assert max(value for name, value in found.items() if name.endswith("rule")) < 1e-12
    assert max(value for name, value in found.items() if name.endswith("variance")) < 1e-9
    assert found["glorot"] == pytest.approx((9 + 36) / 2 / 9 - 1)  # the first layer
    for seed in range(2):
        kl = divergence(seed)
        assert abs(kl["kl_error"]) < 1e-12
        assert abs(kl["penalty_error"]) < 1e-12
        assert kl["weights"] == 4 * 9 + 4 + 4 * 36 + 4 + 64 * 8 + 8 + 8 * 3 + 3
    assert math.isfinite(divergence(0)["kl"])


def test_the_verdict_follows_the_numbers() -> None:
    study = find_study("penalties-graves-prior")
    trials = study.design("source")
    numbers = {**weights(0), **divergence(0)}
    findings = study.judge(Results(trials, {trial.key(): numbers for trial in trials}))
    assert verdict_of(findings) == "confirmed"
    assert findings[-1].verdict == "contradicted"
    wrong = {**numbers, "penalty_error": 0.5}
    assert verdict_of(study.judge(Results(trials, {trial.key(): wrong for trial in trials}))) == "contradicted"
