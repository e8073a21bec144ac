"""The full-rank normal guide against the dense normal, exact posteriors, and itself saved and loaded."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from targets import collinear
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_bnn.guides import AutoFullRankNormal, AutoLowRankNormal
from pyro_bnn.guides.full_rank import MAX_SIZE, FullRankNormal
from pyro_bnn.inference import TraceLowRank_ELBO, fit
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam, PerSite, make_schedule
from pyro_bnn.posterior import Posterior


def classifier(**options):
    return BNN(MLP(3, 2, hidden=[4]), priors.Normal(0.1, 0.8), likelihoods.Categorical(), 20, **options)


def perturbed(guide):
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(0.5 * torch.randn_like(p))
    return guide


def test_kl_to_independent_normals_is_that_of_the_dense_one():
    lower = torch.randn(6, 6, dtype=torch.float64).tril()
    lower.diagonal().abs_().add_(0.1)
    q = FullRankNormal(torch.randn(6, dtype=torch.float64), scale_tril=lower)
    m, s = torch.randn(6, dtype=torch.float64), torch.rand(6, dtype=torch.float64) + 0.2
    expected = kl_divergence(q, MultivariateNormal(m, torch.diag(s.square())))
    torch.testing.assert_close(q.kl_to_normal(m, s), expected, rtol=1e-12, atol=1e-12)
    one = torch.tensor(1.0)
    alone = kl_divergence(q, MultivariateNormal(torch.ones(6).double(), torch.eye(6).double()))
    torch.testing.assert_close(q.kl_to_normal(one, one), alone, rtol=1e-12, atol=1e-12)


def test_the_start_has_the_deviations_asked_for_and_no_correlations():
    q = AutoFullRankNormal(classifier(), init_scale=0.3).distribution()
    torch.testing.assert_close(q.covariance_matrix, 0.09 * torch.eye(26), rtol=1e-5, atol=1e-8)


def test_the_exact_loss_has_its_minimum_at_the_exact_correlated_posterior():
    _x, y, full, precision = collinear(0.95)
    guide = AutoFullRankNormal(BNN(nn.Linear(5, 1), priors.Normal(0.0, 1.0), likelihoods.Gaussian(noise=0.5), 20))
    optimizer = torch.optim.Adam(guide.parameters(), lr=2e-2)
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    for _ in range(2000):
        q = guide.distribution()
        residual = (y - full.float() @ q.loc).square().sum()
        spread = (full.float() @ q.scale_tril).square().sum()
        loss = ((residual + spread) / (2 * 0.25) + q.kl_to_normal(zero, one)) / 20
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    exact = torch.linalg.inv(precision)
    found = guide.distribution().covariance_matrix.detach().double()
    assert float(precision.diag().rsqrt().div(exact.diag().sqrt()).min()) < 0.55  # what a diagonal q finds
    torch.testing.assert_close(found.diag().sqrt(), exact.diag().sqrt(), rtol=0.02, atol=0)
    torch.testing.assert_close(found, exact, rtol=0, atol=0.03 * float(exact.diag().max()))


def test_fit_finds_the_correlated_posterior_from_draws():
    """Means of the ratios to the exact deviations: 0.52 for a diagonal q. A fixed seed."""
    x, y, _, precision = collinear(0.8)
    exact = torch.linalg.inv(precision).diag().sqrt().float()
    guide = AutoFullRankNormal(BNN(nn.Linear(5, 1), priors.Normal(0.0, 1.0), likelihoods.Gaussian(noise=0.5), 20))
    rates = {part: Adam({"lr": 0.03}, schedule=make_schedule("cosine")) for part in ("loc", "scale")}
    fit(guide.model, guide, PerSite(**rates), (x, y), epochs=1200, batch_size=20, seed=0, elbo=TraceLowRank_ELBO())
    found = torch.cat([guide.site(site).scale.reshape(-1) for site in guide.site_names()])
    assert float((found / exact).mean()) == pytest.approx(1.0, abs=0.05)
    assert float((found / exact - 1).abs().max()) < 0.12


def test_the_closed_form_loss_is_the_low_rank_guide_s_at_the_same_gaussian():
    model, x, y = classifier(), torch.randn(20, 3), torch.randint(0, 2, (20,))
    low = perturbed(AutoLowRankNormal(model, rank=26, init_scale=0.3))
    full = AutoFullRankNormal(model)
    q = low.distribution()
    lower = torch.linalg.cholesky(torch.diag(q.sd.square()) + q.factor @ q.factor.T)
    with torch.no_grad():
        full.loc.copy_(q.loc)
        full.rho.copy_(lower.diagonal().expm1().log())
        units = lower / lower.diagonal().unsqueeze(-1)
        full.whitened_scale_tril.copy_(units[tuple(torch.tril_indices(26, 26, -1))])
    torch.testing.assert_close(full.distribution().covariance_matrix, lower @ lower.T, rtol=1e-4, atol=1e-5)

    def loss(guide):
        return torch.tensor([TraceLowRank_ELBO().loss(model, guide, x, y) for _ in range(300)])

    mine, theirs = loss(full), loss(low)
    error = float((mine.var() / 300 + theirs.var() / 300).sqrt())
    assert abs(float(mine.mean() - theirs.mean())) < 5 * error  # two-sided 5 sd: false alarm under 1e-6
    prior = torch.tensor(0.1), torch.tensor(0.8)
    torch.testing.assert_close(full.distribution().kl_to_normal(*prior), q.kl_to_normal(*prior), rtol=1e-4, atol=0)


def test_a_constrained_site_is_a_point_of_the_unconstrained_space():
    def model():
        pyro.sample("scale", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("w", dist.Normal(0.0, 1.0))

    guide = AutoFullRankNormal(model)
    values = guide()
    assert bool((values["scale"] > 0).all())
    assert set(guide.median()) == {"scale", "w"}
    assert guide.site("scale").scale.shape == (2,)


def test_it_is_saved_and_loaded_to_the_same_bits(tmp_path):
    guide = perturbed(AutoFullRankNormal(classifier(), init_scale=0.3))
    posterior = Posterior(guide.model, guide)
    again = Posterior.load(posterior.save(tmp_path / "post"))
    x = torch.randn(4, 3)
    assert torch.equal(again.predict(x, 5, seed=0), posterior.predict(x, 5, seed=0))


def test_too_many_weights_and_bad_starts_are_refused():
    wide = BNN(nn.Linear(MAX_SIZE, 1), priors.Normal(), likelihoods.Gaussian(1.0), 10)
    with pytest.raises(ValueError, match=r"5001 latent numbers.*AutoLowRankNormal"):
        AutoFullRankNormal(wide)
    with pytest.raises(ValueError, match="init_scale=0"):
        AutoFullRankNormal(classifier(), init_scale=0)
