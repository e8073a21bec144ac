import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from pyro_bnn.analysis.scores.intervals import (
    Interval,
    coverage,
    mixture_interval,
    mixture_quantile,
    pit,
    predictive_interval,
)
from pyro_bnn.posterior import Posterior


def mixture(s=6, n=4):
    generator = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(s, n, generator=generator, dtype=torch.float64)
    return means, torch.rand(s, n, generator=generator, dtype=torch.float64) + 0.1


def test_one_component_has_the_normal_quantile():
    means, sds = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)
    found = mixture_interval(means, sds, 0.9)
    half = 3 * stats.norm.ppf(0.95)
    assert float(found.lower) == pytest.approx(2 - half, abs=1e-12)
    assert float(found.upper) == pytest.approx(2 + half, abs=1e-12)


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.95])
def test_the_quantile_inverts_the_distribution_function(q):
    means, sds = mixture()
    torch.testing.assert_close(
        pit(means, sds, mixture_quantile(means, sds, q)), torch.full((4,), q, dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_a_single_noise_level_serves_all_draws():
    means, _ = mixture()
    one = mixture_interval(means, torch.tensor(0.5), 0.8)
    torch.testing.assert_close(one.lower, mixture_interval(means, torch.full_like(means, 0.5), 0.8).lower)


def test_coverage_by_hand():
    interval = Interval(torch.tensor([0.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0, 1.0]))
    assert coverage(interval, torch.tensor([-0.1, 0.0, 1.0, 1.1])) == 0.5


class Regressions:
    """M data sets at once: y_m = X_m w_m + noise with weights from the prior N(0, I), and one test point each."""

    def __init__(self, m: int, n: int = 8, d: int = 3, noise: float = 0.7) -> None:
        generator = torch.Generator().manual_seed(7)
        make = {"generator": generator, "dtype": torch.float64}
        w = torch.randn(m, d, **make)
        x = torch.randn(m, n, d, **make)
        y = (x * w[:, None]).sum(-1) + noise * torch.randn(m, n, **make)
        self.x, self.noise, self.shape = torch.randn(m, d, **make), noise, (m, d)
        self.y = (self.x * w).sum(-1) + noise * torch.randn(m, **make)
        precision = x.mT @ x / noise**2 + torch.eye(d, dtype=torch.float64)
        self.mean = torch.linalg.solve(precision, (x.mT @ y[..., None]) / noise**2)[..., 0]
        self.root = torch.linalg.cholesky(torch.linalg.inv(precision))

    def model(self, x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(self.shape, dtype=torch.float64), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal((x * w[: len(x)]).sum(-1), self.noise), obs=y)

    def posterior(self, x: torch.Tensor) -> None:
        pyro.sample("w", dist.MultivariateNormal(self.mean, scale_tril=self.root).to_event(1))


def test_90_percent_intervals_cover_90_percent_of_data_sets_from_the_prior():
    # 400 data sets, one test point each; the central 99.9 % of Binomial(400, 0.9) is the false-alarm rate, 1e-3
    sets = Regressions(400)
    posterior = Posterior(sets.model, sets.posterior)
    interval = predictive_interval(posterior, sets.x, 0.9, num_samples=1000, seed=0)
    hits = round(400 * coverage(interval, sets.y))
    low, high = stats.binom.interval(0.999, 400, 0.9)
    assert low <= hits <= high
    plug_in = Interval(*(((sets.x * sets.mean).sum(-1) + sign * 1.645 * sets.noise) for sign in (-1, 1)))
    assert 400 * coverage(plug_in, sets.y) < low  # the test tells intervals that ignore the weights' uncertainty


def test_intervals_approach_the_exact_predictive():
    sets = Regressions(5)
    posterior = Posterior(sets.model, sets.posterior)
    found = predictive_interval(posterior, sets.x, 0.9, num_samples=4000, seed=0)
    sd = ((sets.root.mT @ sets.x[..., None]).square().sum((-1, -2)) + sets.noise**2).sqrt()
    centre = (sets.x * sets.mean).sum(-1)
    # a 5 % quantile of 4000 draws has a standard error near 0.03 sd: five of them
    for end, sign in ((found.lower, -1), (found.upper, 1)):
        assert float(((end - centre) / sd - sign * stats.norm.ppf(0.95)).abs().max()) < 0.15


@pytest.mark.parametrize("level", [0, 1, 1.5, math.nan])
def test_levels_outside_0_1_are_refused(level):
    with pytest.raises(ValueError, match="level"):
        mixture_interval(*mixture(), level)


def test_classes_have_no_interval(classes):
    with pytest.raises(ValueError, match="predicts classes"):
        predictive_interval(classes.posterior, classes.x, num_samples=2)


def test_targets_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="shape"):
        coverage(Interval(torch.zeros(3), torch.ones(3)), torch.zeros(4))
