import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_bnn.guides import AutoLowRankNormal, AutoMeanFieldNormal
from pyro_bnn.guides.low_rank import LowRankNormal, kl_to_normal, log_prob_at_draw, low_rank_entropy, low_rank_log_prob
from pyro_bnn.inference import TraceLowRank_ELBO, per_datum, scale_kl
from pyro_bnn.inference import kl_divergence as guide_kl
from pyro_bnn.inference.elbo import TracePathDerivative_ELBO
from pyro_bnn.models import BNN, MLP, likelihoods, priors

P, R = 7, 3


def parts(dtype=torch.float64):
    loc, sd, factor = torch.randn(P, dtype=dtype), torch.rand(P, dtype=dtype) + 0.1, torch.randn(P, R, dtype=dtype)
    return loc, sd.square(), factor


def dense(loc, diag, factor):
    return MultivariateNormal(loc, torch.diag(diag) + factor @ factor.T)


def test_log_prob_and_entropy_are_those_of_the_dense_normal():
    loc, diag, factor = parts()
    q = dense(loc, diag, factor)
    values = torch.randn(5, P, dtype=torch.float64)
    torch.testing.assert_close(low_rank_log_prob(values, loc, diag, factor), q.log_prob(values), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(low_rank_entropy(diag, factor), q.entropy(), rtol=1e-12, atol=1e-12)
    z1, z2 = torch.randn(5, P, dtype=torch.float64), torch.randn(5, R, dtype=torch.float64)
    drawn = loc + diag.sqrt() * z1 + z2 @ factor.T
    torch.testing.assert_close(log_prob_at_draw(diag, factor, z1, z2), q.log_prob(drawn), rtol=1e-10, atol=1e-10)


def test_kl_to_a_factorised_normal_is_that_of_the_dense_one():
    loc, diag, factor = parts()
    m, s = torch.randn(P, dtype=torch.float64), torch.rand(P, dtype=torch.float64) + 0.2
    expected = kl_divergence(dense(loc, diag, factor), MultivariateNormal(m, torch.diag(s.square())))
    torch.testing.assert_close(kl_to_normal(loc, diag, factor, m, s), expected, rtol=1e-11, atol=1e-11)


def test_without_columns_it_is_the_mean_field_normal():
    loc, diag, _ = parts()
    m, s = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    expected = kl_divergence(torch.distributions.Normal(loc, diag.sqrt()), torch.distributions.Normal(m, s)).sum()
    torch.testing.assert_close(kl_to_normal(loc, diag, torch.zeros(P, 2, dtype=torch.float64), m, s), expected)
    torch.testing.assert_close(kl_to_normal(loc, diag, torch.zeros(P, 0, dtype=torch.float64), m, s), expected)


def test_covariance_of_draws_is_the_dense_one():
    loc, diag, factor = parts()
    q = LowRankNormal(loc, diag.sqrt(), factor)
    n = 40_000
    draws = q.rsample((n,))
    expected = torch.diag(diag) + factor @ factor.T
    found = torch.cov(draws.T)
    # the entry (i, j) of a sample covariance has variance (v_ii v_jj + v_ij^2) / n; 5 sd of 28 entries: under 2e-5
    sd = ((expected.diag().outer(expected.diag()) + expected.square()) / n).sqrt()
    assert bool(((found - expected).abs() < 5 * sd).all())
    assert bool(((draws.mean(0) - loc).abs() < 5 * (expected.diag() / n).sqrt()).all())
    torch.testing.assert_close(q.variance, expected.diag())


@pytest.mark.parametrize("column", [4.5e-5, 1e-2])
def test_float32_is_accurate_at_the_size_and_scale_of_a_narrow_lenet5(column):
    size, sd = 61_706, 4.5e-5
    loc = 0.1 * torch.randn(size)
    q = LowRankNormal(loc, torch.full((size,), sd), column * torch.randn(size, 10))
    w = q.rsample()
    _, z1, z2 = q._drawn
    exact = log_prob_at_draw(q.sd.double().square(), q.factor.double(), z1.double(), z2.double())
    assert q.log_prob(w).dtype == torch.float32
    assert abs(float(q.log_prob(w)) - float(exact)) < 0.1
    again = LowRankNormal(q.loc, q.sd, q.factor)  # knows nothing of the noise
    assert abs(float(again.log_prob(w)) - float(exact)) < 1.0
    if column > sd:  # what this class is for
        stock = torch.distributions.LowRankMultivariateNormal(q.loc, q.factor, q.sd.square())
        assert abs(float(stock.log_prob(w)) - float(exact)) > 10_000


def test_the_kept_noise_serves_its_own_draw_only():
    loc, diag, factor = parts()
    q = LowRankNormal(loc, diag.sqrt(), factor)
    first = q.rsample()
    q.rsample()
    torch.testing.assert_close(q.log_prob(first), dense(loc, diag, factor).log_prob(first), rtol=1e-10, atol=1e-10)


def make_model(prior=None, n=20):
    return BNN(MLP(3, 2, hidden=[4]), prior or priors.Normal(0.1, 0.8), likelihoods.Categorical(), n)


def data(n=20):
    return torch.randn(n, 3), torch.randint(0, 2, (n,))


def perturb(guide):
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(0.5 * torch.randn_like(p))


def test_the_guides_kl_is_the_dense_one_and_pyros_elbos_agree_on_average():
    model, (x, y) = make_model(), data()
    guide = AutoLowRankNormal(model, rank=2, init_scale=0.3)
    perturb(guide)
    q = guide.distribution()
    size = len(q.loc)
    p = MultivariateNormal(torch.full((size,), 0.1), 0.64 * torch.eye(size))
    exact = float(kl_divergence(dense(q.loc, q.sd.square(), q.factor), p).detach())
    assert guide.kl_to_normal(torch.tensor(0.1), torch.tensor(0.8)).item() == pytest.approx(exact, rel=1e-5)
    w = q.rsample((4000,)).detach()
    sd = (q.log_prob(w) - p.log_prob(w)).detach().std().item()
    # two-sided 5 sd: false alarm under 1e-6
    assert abs(float(guide_kl(model, guide, x, y, num_samples=400)) - exact) < 5 * sd / 20


@pytest.mark.parametrize("weight", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("stock", [Trace_ELBO, TraceMeanField_ELBO, TracePathDerivative_ELBO])
def test_closed_form_elbo_has_the_mean_of_pyros_with_less_noise(stock, weight):
    model, (x, y) = make_model(), data()
    guide = AutoLowRankNormal(model, rank=2, init_scale=0.3)
    perturb(guide)

    def losses(elbo):
        with per_datum(20), scale_kl(weight):
            return torch.tensor([elbo.loss(model, guide, x, y) for _ in range(120)])

    ours, theirs = losses(TraceLowRank_ELBO()), losses(stock())
    error = float((ours.var() / 120 + theirs.var() / 120).sqrt())
    assert abs(float(ours.mean() - theirs.mean())) < 5 * error
    if weight == 1.0:
        assert float(ours.var()) < float(theirs.var())


def test_closed_form_elbo_gradient_is_the_mean_of_the_sampled_ones():
    model, (x, y) = make_model(), data()
    guide = AutoLowRankNormal(model, rank=2, init_scale=0.3)
    perturb(guide)
    guide(x)

    def gradients(elbo, n):
        found = []
        for _ in range(n):
            guide.zero_grad()
            elbo.loss_and_grads(model, guide, x, y)
            found.append(torch.cat([p.grad.reshape(-1) for p in guide.parameters()]))
        return torch.stack(found)

    ours, theirs = gradients(TraceLowRank_ELBO(), 200), gradients(TraceMeanField_ELBO(), 200)
    z = (ours.mean(0) - theirs.mean(0)) / ((ours.var(0) + theirs.var(0)) / 200).sqrt()
    assert float(z.abs().max()) < 5  # about 130 entries: false alarm under 1e-4


def test_mixed_priors_take_the_closed_form_where_there_is_one():
    x, y = data()
    model = make_model(priors.PerLayer({"*bias": priors.Laplace(0.5)}, priors.Normal(0.0, 0.8)))
    guide = AutoLowRankNormal(model, rank=2, init_scale=0.3)
    ours = torch.tensor([TraceLowRank_ELBO().loss(model, guide, x, y) for _ in range(500)])
    theirs = torch.tensor([Trace_ELBO().loss(model, guide, x, y) for _ in range(500)])
    assert abs(float(ours.mean() - theirs.mean())) < 5 * float((ours.var() / 500 + theirs.var() / 500).sqrt())
    assert float(ours.var()) < float(theirs.var())


def test_hierarchical_and_constrained_programs():
    def model(x=None):
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), scale).to_event(1))
        pyro.sample("obs", dist.Normal(w.sum(), 1.0), obs=torch.tensor(0.5))

    guide = AutoLowRankNormal(model, rank=1, init_scale=0.4)
    guide()
    perturb(guide)
    # by hand: E_q [log q(u) - log |dT/du| - log p(T(u)) - log p(y | w)] over u = (log scale, w)
    q = guide.distribution()
    u = q.rsample((100_000,)).detach()
    scale, w = u[:, 0].exp(), u[:, 1:]
    log_q = low_rank_log_prob(u, q.loc, q.sd.square(), q.factor) - u[:, 0]
    log_p = dist.LogNormal(0.0, 0.5).log_prob(scale) + dist.Normal(0.0, scale[:, None]).log_prob(w).sum(-1)
    log_p = log_p + dist.Normal(w.sum(-1), 1.0).log_prob(torch.tensor(0.5))
    expected = (log_q - log_p).detach()
    for elbo in (Trace_ELBO(), TraceMeanField_ELBO(), TraceLowRank_ELBO()):
        found = torch.tensor([elbo.loss(model, guide) for _ in range(800)])
        error = float((found.var() / 800 + expected.var() / len(expected)).sqrt())
        assert abs(float(found.mean()) - float(expected.mean())) < 5 * error, type(elbo)


def test_vectorised_particles():
    model, (x, y) = make_model(), data()
    guide = AutoLowRankNormal(model, rank=2, init_scale=0.3)
    one = torch.tensor([TraceLowRank_ELBO().loss(model, guide, x, y) for _ in range(400)])
    many = TraceLowRank_ELBO(num_particles=400, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
    assert abs(float(one.mean()) - many) < 5 * float(one.std()) * math.sqrt(2 / 400)


def test_other_guides_get_the_stock_loss():
    model, (x, y) = make_model(), data()
    guide = AutoMeanFieldNormal(model)
    losses = []
    for elbo in (TraceLowRank_ELBO(), TraceMeanField_ELBO()):
        torch.manual_seed(3)
        losses.append(elbo.loss(model, guide, x, y))
    assert losses[0] == losses[1]


def test_svi_finds_the_correlation_of_a_linear_regression():
    torch.manual_seed(0)
    x = torch.randn(50, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.44]])
    y = x.sum(-1) + 0.5 * torch.randn(50)

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 50, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(x @ w, 0.5), obs=y)

    precision = x.T @ x / 0.25 + torch.eye(2)
    guide = AutoLowRankNormal(model, rank=1, init_scale=0.1)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.995}), TraceLowRank_ELBO())
    with per_datum(50):
        for _ in range(800):
            svi.step(x, y)
    q = guide.distribution()
    found = (torch.diag(q.sd.square()) + q.factor @ q.factor.T).detach()
    torch.testing.assert_close(found, torch.linalg.inv(precision), rtol=0.15, atol=5e-4)
    assert float(found[0, 1]) < -0.3 * float(found.diag().prod().sqrt())  # mean field would have 0


def test_from_moments_and_views():
    model, (x, _) = make_model(), data()
    size = sum(p.numel() for p in model.template.parameters())
    mean, diag, factor = torch.randn(size), torch.rand(size) + 0.01, torch.randn(size, 3)
    guide = AutoLowRankNormal.from_moments(model, mean, diag, factor)
    q = guide.distribution()
    torch.testing.assert_close(q.loc, mean)
    torch.testing.assert_close(q.sd.square(), diag)
    torch.testing.assert_close(q.factor, factor)
    first = guide.site_names()[0]
    cut = guide.slice_of(first)
    torch.testing.assert_close(guide.site(first).scale.reshape(-1).square(), (diag + factor.square().sum(-1))[cut])
    torch.testing.assert_close(guide.median()[first].reshape(-1), mean[cut])
    assert guide(x).keys() == guide.median().keys()


def test_what_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="rank=0"):
        AutoLowRankNormal(model, rank=0)
    with pytest.raises(ValueError, match="init_scale=-1"):
        AutoLowRankNormal(model, init_scale=-1)
    with pytest.raises(ValueError, match="is no covariance"):
        AutoLowRankNormal.from_moments(model, torch.zeros(26), -torch.ones(26), torch.zeros(26, 2))
    with pytest.raises(ValueError, match="do not fit a model of 26 weights"):
        AutoLowRankNormal.from_moments(model, torch.zeros(5), torch.ones(5), torch.zeros(5, 2))


def test_quantiles_are_those_of_the_marginals():
    """With standard deviations sqrt(d + rowsum W^2), mapped to the support of a constrained site."""

    def model():
        pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("b", dist.LogNormal(0.0, 1.0))

    guide = AutoLowRankNormal(model, rank=2, init_scale=0.4)
    found = guide.quantiles([0.25, 0.5])
    sd = (guide.distribution().sd.square() + guide.distribution().factor.square().sum(-1)).sqrt().detach()
    low = guide.loc.detach() - 0.6744897501960817 * sd
    torch.testing.assert_close(found["a"], torch.stack([low[:2], guide.loc.detach()[:2]]))
    torch.testing.assert_close(found["b"], torch.stack([low[2], guide.loc.detach()[2]]).exp())
