"""The exact ELBO of a wide layer: its moments against draws of the network, its optima against golden numbers."""

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import kl_divergence

from pyro_bnn.models.networks.one_hidden_layer import OneHiddenLayer
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.overparameterised_kl_collapse import PRIOR_SD, divergence, moments, optimum, relu_moments, rows
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results


def test_the_moments_of_a_relu_are_those_of_quadrature() -> None:
    m, s = torch.tensor([-1.5, 0.0, 0.7], dtype=torch.float64), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    weight = torch.exp(-z.square() / 2)
    values = (m[:, None] + s[:, None] * z).relu()
    first, second = relu_moments(m, s)
    torch.testing.assert_close(first, (values * weight).sum(1) / weight.sum(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(second, (values.square() * weight).sum(1) / weight.sum(), rtol=1e-8, atol=1e-10)


def test_the_moments_of_the_output_are_those_of_draws_of_the_network() -> None:
    """Each of 60 comparisons is within 5 standard errors: fails by chance in less than 1 of 10,000 seeds."""
    torch.manual_seed(0)
    units, draws = 7, 40_000
    loc = torch.randn(units, 3, dtype=torch.float64)
    sd = torch.rand(units, 3, dtype=torch.float64)
    x, _ = rows()
    mean, variance = moments(loc, sd, x)
    w = loc + sd * torch.randn(draws, units, 3, dtype=torch.float64)
    net = OneHiddenLayer(2, 1, units=units, bias=False).double()
    weights = {"inner.weight": w[..., 1:], "outer.weight": w[..., :1].transpose(-1, -2)}
    f = torch.func.vmap(lambda p: torch.func.functional_call(net, p, (x,)))(weights).squeeze(-1)  # (S, p)
    error = (f.var(0) / draws).sqrt()
    assert ((f.mean(0) - mean).abs() < 5 * error).all()
    fourth = (f - mean).pow(4).mean(0)
    assert ((f.var(0) - variance).abs() < 5 * ((fourth - variance.square()) / draws).sqrt()).all()
    q, p = dist.Normal(loc, sd), dist.Normal(torch.zeros_like(loc), PRIOR_SD)
    torch.testing.assert_close(divergence(loc, sd), kl_divergence(q, p).sum())


@pytest.mark.parametrize(("units", "kl", "mean"), [(10, 0.508383, 0.038459), (100, 0.038273, 0.003124)])
def test_the_collapse(units: int, kl: float, mean: float) -> None:
    for seed in (0, 1):
        found = optimum(units, "eta = 1", seed)
        assert found["kl"] == pytest.approx(kl, abs=1e-5)
        assert found["largest_mean"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(("units", "kl"), [(10, 7.4755), (100, 7.0397)])
def test_the_balanced_temperature_holds_the_kl_of_a_unit(units: int, kl: float) -> None:
    found = optimum(units, "balanced", 0)
    assert found["kl_per_unit"] == pytest.approx(kl, abs=5e-3)
    assert found["mse"] == pytest.approx(0.162, abs=5e-4)


def test_the_verdict_follows_the_numbers() -> None:
    study = find_study("overparameterised-kl-collapse")
    trials = study.design("source")

    def outcome(power: float) -> str:
        records = {}
        for trial in trials:
            units = trial.arguments["units"]
            records[trial.key()] = {"kl": 5 * units**-power, "largest_mean": 0.4 / units}
            records[trial.key()] |= {"kl_per_unit": 7 + units**-0.5, "mse": 0.16}
        return verdict_of(study.judge(Results(trials, records)))

    assert outcome(1.05) == "confirmed"
    assert outcome(0.0) == "contradicted"
