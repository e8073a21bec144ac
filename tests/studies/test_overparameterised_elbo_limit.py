"""The gap between the ELBO and its limit: exact for the square loss, and by Pyro's own ELBO."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.overparameterised_elbo_limit import gap, parameters
from pyro_bnn.studies.overparameterised_kl_collapse import moments
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results


def test_the_gap_is_that_of_pyros_elbo() -> None:
    """By 1,500 draws, within 5 standard errors; targets at E f leave the least noise, and the gap is theirs alone."""
    units, rows = 10, 10
    loc, sd, x = parameters(units, rows, seed=0)
    mean, _ = moments(loc, sd, x)
    y = mean

    def outputs(w: Tensor) -> Tensor:
        return (w[..., None, :, 0] * (w[..., 1:] @ x.T).relu().transpose(-1, -2)).mean(-1)

    def guide(y: Tensor) -> Tensor:
        return pyro.sample("w", dist.Normal(loc, sd).to_event(2))

    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros_like(loc), 0.2**0.5).to_event(2))
        with pyro.plate("data", rows, dim=-1):
            pyro.sample("y", dist.Normal(outputs(w), 1.0), obs=y)

    pyro.set_rng_seed(0)
    losses = np.array([TraceMeanField_ELBO().loss(model, guide, y) for _ in range(1500)])
    q, p = dist.Normal(loc, sd), dist.Normal(torch.zeros_like(loc), 0.2**0.5)
    kl = torch.distributions.kl_divergence(q, p).sum()
    limit = float(kl - dist.Normal(mean, 1.0).log_prob(y).sum())
    expected = gap(units, rows, "square", 0, seed=0)["gap"]
    assert abs(losses.mean() - limit - expected) < 5 * losses.std() / len(losses) ** 0.5
    assert expected > 10 * losses.std() / len(losses) ** 0.5


def test_the_square_gap_halves_as_the_layer_doubles() -> None:
    loc, sd, x = parameters(20, 10, seed=1)
    _, variance = moments(loc, sd, x)
    _, twice = moments(torch.cat([loc, loc]), torch.cat([sd, sd]), x)
    torch.testing.assert_close(twice, variance / 2, rtol=1e-12, atol=0)


def test_the_logistic_gap_is_half_the_curvature_times_the_variance() -> None:
    loc, sd, x = parameters(300, 10, seed=0)
    mean, variance = moments(loc, sd, x)
    p = torch.sigmoid(mean)
    expected = float((p * (1 - p) * variance).sum()) / 2
    assert gap(300, 10, "logistic", 2000, seed=0)["gap"] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("power", "verdict"), [(1.0, "confirmed"), (0.5, "contradicted"), (0.97, "inconclusive")])
def test_the_verdict_follows_the_numbers(power: float, verdict: str) -> None:
    study = find_study("overparameterised-elbo-limit")
    trials = study.design("source")
    records = {}
    for trial in trials:
        n, p = trial.arguments["units"], trial.arguments["rows"]
        swing = 0.0 if verdict != "inconclusive" else (trial.seed - 2) * 0.1
        records[trial.key()] = {"log10_gap": np.log10(p) - (power + swing) * np.log10(n)}
    assert verdict_of(study.judge(Results(trials, records))) == verdict
