"""Simulation-based calibration: exact posteriors pass, and what is wrong with others is said."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import nn

import pyro_bnn as pb
from pyro_bnn.analysis.checks.sbc import RankCheck, _band, _holm
from pyro_bnn.guides import AutoMeanFieldNormal, StoredDraws
from pyro_bnn.inference.samplers.mcmc import run_chain
from pyro_bnn.models import BNN, likelihoods, priors

NOISE = 0.5
X = torch.randn(12, 1, generator=torch.Generator().manual_seed(3)) + 1.5  # slope and intercept are correlated


def model(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(w[0] + w[1] * x[:, 0], NOISE), obs=y)


def exact(x, y):
    inputs = torch.stack([torch.ones(len(x)), x[:, 0]], dim=1).double()
    precision = torch.eye(2).double() + inputs.T @ inputs / NOISE**2
    covariance = torch.linalg.inv(precision)
    return covariance @ inputs.T @ y.double() / NOISE**2, covariance


def gaussian(width=1.0, shift=0.0):
    def make(x, y, seed):
        mean, covariance = exact(x, y)
        law = dist.MultivariateNormal(
            (mean + shift * covariance.diag().sqrt()).float(), (width**2 * covariance).float()
        )
        return pb.Posterior(model, lambda *args: pyro.sample("w", law))

    return make


def mean_field(x, y, seed):
    """The best independent normals in KL(q || p): the deviations are those of the precision's diagonal."""
    mean, covariance = exact(x, y)
    law = dist.Normal(mean.float(), torch.linalg.inv(covariance).diag().rsqrt().float()).to_event(1)
    return pb.Posterior(model, lambda *args: pyro.sample("w", law))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (gaussian(), "calibrated"),
        (gaussian(width=0.4), "too narrow"),
        (gaussian(width=2.5), "too wide"),
        (gaussian(shift=1.0), "leaning"),
    ],
)
def test_what_is_wrong_with_a_posterior_is_said(make, shape):
    check = pb.sbc(model, make, X, at=X[:2], datasets=60, draws=29, level=0.01, seed=2)
    assert check.shape == shape, str(check)
    assert check.calibrated == (shape == "calibrated")
    assert str(check).startswith(shape)


def test_mean_field_fails_as_theory_says():
    """Of slope and intercept with correlation rho the best independent normals have sqrt(1 - rho^2) of the sd."""
    covariance = exact(X, torch.zeros(len(X)))[1]
    rho = float(covariance[0, 1] / covariance.diag().prod().sqrt())
    assert rho < -0.8
    check = pb.sbc(model, mean_field, X, quantity=lambda w: w["w"], datasets=200, draws=49, seed=0)
    assert check.shape == "too narrow"
    # u = Phi(z / f) for z ~ N(0, 1) and f = sqrt(1 - rho^2), but for L finite draws: 12 E (u - 1/2)^2 by quadrature
    z = np.linspace(-8, 8, 4001)
    expected = 12 * np.trapezoid((stats.norm.cdf(z / math.sqrt(1 - rho**2)) - 0.5) ** 2 * stats.norm.pdf(z), z)
    # the sd of 12 (u - 1/2)^2 is below 1.1, so 5 sd of a mean over 200 are below .39
    assert np.abs(check.spread() - expected).max() < 0.39


def test_false_alarms_are_as_rare_as_declared():
    """400 checks of uniform ranks of four quantities at level .05: 3 to 36 alarms (.05 expected; false alarm 1e-4)."""
    rng = np.random.default_rng(5)
    checks = [RankCheck(rng.integers(0, 50, size=(60, 4)), 49, seed=i) for i in range(400)]
    alarms = sum(not check.calibrated for check in checks)
    assert 4 <= alarms <= 36
    leans = sum(check.lean().min() <= 0.05 for check in checks)
    assert 4 <= leans <= 36


def test_the_band_holds_whole_curves():
    grid = np.arange(1, 50) / 50
    low, high = _band(60, grid, 0.05)
    ecdf = (np.random.default_rng(1).uniform(size=(1000, 60))[:, :, None] <= grid).mean(1)
    inside = ((ecdf >= low) & (ecdf <= high)).all(1).mean()
    assert 0.92 < inside < 0.98  # .95 within 4 sd of 1,000 curves


def test_holm_multiplies_the_smallest_by_the_number_and_never_falls():
    assert _holm([0.04, 0.01, 0.9]).tolist() == pytest.approx([0.08, 0.03, 0.9])
    assert _holm([0.02, 0.019]).tolist() == pytest.approx([0.038, 0.038])


def test_ties_are_broken_at_random():
    def point(x, y, seed):
        return pb.Posterior(model, lambda *args: pyro.sample("w", dist.Delta(torch.zeros(2), event_dim=1)))

    check = pb.sbc(model, point, X, quantity=lambda w: 0 * w["w"], datasets=200, draws=9)
    assert check.calibrated
    assert set(np.unique(check.ranks)) == set(range(10))


def test_a_network_is_compared_by_its_predictions():
    net = BNN(nn.Linear(1, 3), priors.Normal(0.0, 1.0), likelihoods.Categorical(), num_data=4)

    def prior(x, y, seed):
        guide = AutoMeanFieldNormal(net, init_loc="zeros", init_scale=1.0)
        return pb.Posterior(net, guide)

    check = pb.sbc(net, prior, X[:4], at=X[:2], datasets=40, draws=19, seed=2)
    assert check.ranks.shape == (40, 4)  # two inputs, two of three probabilities
    assert check.calibrated  # the prior is calibrated as well: nothing here says that a posterior has learned


def test_the_same_seed_gives_the_same_ranks_and_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    first, second = (pb.sbc(model, gaussian(), X, at=X[:1], datasets=5, draws=9, seed=4) for _ in range(2))
    assert np.array_equal(first.ranks, second.ranks)
    assert torch.equal(before, torch.get_rng_state())


def test_posteriors_made_together_are_those_made_one_by_one():
    def all_of_them(x, ys, seeds):
        assert len(set(seeds)) == len(ys) == 5
        return [gaussian()(x, y, s) for y, s in zip(ys, seeds, strict=True)]

    settings = {"at": X[:2], "datasets": 5, "draws": 9, "seed": 4}
    one_by_one = pb.sbc(model, gaussian(), X, **settings)
    assert np.array_equal(pb.sbc(model, all_of_them, X, together=True, **settings).ranks, one_by_one.ranks)
    with pytest.raises(ValueError, match="returned 4 posteriors for 5 data sets"):
        pb.sbc(model, lambda *args: all_of_them(*args)[:4], X, together=True, **settings)


def test_the_plot_has_a_band_and_a_line_per_quantity():
    ax = pb.sbc(model, gaussian(), X, at=X[:5], datasets=10, draws=9).plot()
    assert len(ax.lines) == 5 + 1
    assert len(ax.collections) == 1
    assert ax.get_title() == "calibrated"


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(ValueError, match="no site 'obs'"):
        pb.sbc(lambda x, y=None: pyro.sample("z", dist.Normal(0.0, 1.0)), gaussian(), X, datasets=2)
    with pytest.raises(TypeError, match="make_posterior returned a NoneType"):
        pb.sbc(model, lambda x, y, seed: None, X, datasets=2)
    with pytest.raises(ValueError, match="datasets=1"):
        pb.sbc(model, gaussian(), X, datasets=1)


@pytest.mark.slow
def test_nuts_passes_on_the_linear_model():
    net = BNN(nn.Linear(1, 1), priors.Normal(0.0, 1.0), likelihoods.Gaussian(NOISE), num_data=len(X))

    def nuts(x, y, seed):
        chain = run_chain(net, (x, y), warmup=150, draws=196, seed=seed)
        flat = StoredDraws(net, num_draws=49)
        thinned = {name: values[::4] for name, values in chain.samples.items()}
        return pb.Posterior(net, StoredDraws.from_flat(net, flat.flatten(thinned).float(), kind="nuts"))

    check = pb.sbc(net, nuts, X, datasets=100, draws=49, seed=0)
    assert check.calibrated, str(check)
