import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_bnn.analysis.scores.prior_check import prior_posterior, prior_predictive_check
from pyro_bnn.models import BNN, MLP, likelihoods, priors


def linear(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=torch.float64), 2.0).to_event(1))
    with pyro.plate("data", 5, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Normal(x @ w, 0.5), obs=y)


def test_a_linear_program_by_its_closed_form():
    x = torch.randn(40, 3, dtype=torch.float64)
    check = prior_predictive_check(linear, x, torch.zeros(40, dtype=torch.float64), num_samples=4000)
    variance = 4 * x.square().sum(1)
    assert check.mean_sd == pytest.approx(float(variance.sqrt().mean()), rel=0.06)  # 5 se of 4000 draws
    assert check.data_sd == pytest.approx(float((variance + 0.25).sqrt().mean()), rel=0.06)
    assert check.pit is not None
    assert float((check.pit - 0.5).abs().max()) < 0.05  # zero is the middle of a symmetric prior


def test_targets_the_prior_does_not_expect_are_counted():
    x = torch.ones(10, 3, dtype=torch.float64)
    check = prior_predictive_check(linear, x, torch.full((10,), 100.0, dtype=torch.float64), num_samples=50)
    assert "100.0 % of targets outside" in str(check)


def test_classes_of_a_wide_and_a_narrow_prior():
    x = torch.randn(30, 4)

    def check(sd):
        model = BNN(MLP(4, 3, hidden=(8,)), priors.Normal(scale=sd), likelihoods.Categorical(), 30)
        return prior_predictive_check(model, x, num_samples=100)

    narrow, wide = check(0.01), check(10.0)
    assert narrow.confidence == pytest.approx(1 / 3, abs=0.01)
    assert wide.confidence > 0.95
    assert wide.entropy > 1.0  # sure networks that disagree: their average is not sure
    assert float(wide.class_shares.sum()) == pytest.approx(1)
    assert "sure" in str(wide)


def test_numbers_come_in_the_units_of_the_targets(numbers):
    plain = prior_predictive_check(numbers.posterior.model, numbers.x, num_samples=20)
    units = prior_predictive_check(numbers.posterior, numbers.x, num_samples=20)
    sd = numbers.posterior.info["y_standardiser"]["sd"]
    assert units.data_sd == pytest.approx(sd * plain.data_sd, rel=1e-4)


def test_the_prior_is_a_posterior_like_any_other(classes):
    prior = prior_posterior(classes.posterior)
    p = prior.predict(classes.x, 10, seed=0)
    assert p.shape == (40, 3)
    assert not torch.allclose(p, classes.posterior.predict(classes.x, 10, seed=0))
    assert torch.equal(p, prior.predict(classes.x, 10, seed=0))
