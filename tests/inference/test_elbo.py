"""Gradient estimators against exact gradients, exact noise formulas, and exact tempered and cold posteriors.

Statistical tests here draw from a fixed seed. Each compares P mean gradients with P exact numbers; under normality of
the means the chance that a correct estimator fails is at most FALSE_ALARM per test (Bonferroni over P). Their
resolution: the standard error of the mean gradient, as a vector, is asserted to be at most 2 % of the gradient's norm.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions.testing.fakes import NonreparameterizedNormal
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal, AutoNormalMessenger
from reference.score_function import decaying, leave_one_out
from scipy import stats
from targets import GaussianMean, MeanField, centred, correlated, kl_normal, softplus_inverse
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.guides import AutoDropout, AutoPoint
from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.inference.elbo import (
    ESTIMATORS,
    TraceColdPosterior_ELBO,
    TracePathDerivative_ELBO,
    TraceScoreFunction_ELBO,
)
from pyro_bnn.inference.gradient_variance import GradientVariance, gradient_variance
from pyro_bnn.inference.kl import per_datum, scale_kl
from pyro_bnn.inference.reparam import flipout, local_reparameterization
from pyro_bnn.models import BNN, MLP, likelihoods, priors

FALSE_ALARM = 1e-4
RESOLUTION = 0.02

LOC = torch.tensor([0.9, -1.2, 0.7], dtype=torch.float64)
SCALE = torch.tensor([0.3, 0.5, 0.4], dtype=torch.float64)


def exact_gradient(loss, loc: Tensor = LOC, scale: Tensor = SCALE) -> dict[str, Tensor]:  # type: ignore[no-untyped-def]
    loc, rho = loc.clone().requires_grad_(), softplus_inverse(scale).requires_grad_()
    gradients = torch.autograd.grad(loss(loc, F.softplus(rho)), (loc, rho))
    return dict(zip(("loc", "rho"), gradients, strict=True))


def assert_unbiased(result: GradientVariance, exact: dict[str, Tensor]) -> None:
    names = list(exact)
    mean = torch.cat([result.mean[n].flatten() for n in names])
    error = torch.cat([result.standard_error()[n].flatten() for n in names])
    target = torch.cat([exact[n].flatten() for n in names])
    assert error.norm() <= RESOLUTION * target.norm(), f"resolution {float(error.norm() / target.norm()):.4f}"
    bound = stats.t.ppf(1 - FALSE_ALARM / (2 * len(mean)), result.draws - 1)
    deviations = (mean - target) / error.clamp_min(1e-12 * target.norm())
    assert deviations.abs().max() < bound, f"{deviations} exceeds {bound:.2f}"


# ---------------------------------------------------------------------------------------------------- unbiased


@pytest.mark.parametrize("make", [centred, correlated])
@pytest.mark.parametrize(("name", "particles", "draws"), [
    ("analytic", 200, 50), ("total", 200, 50), ("path", 200, 50), ("score", 20_000, 25),
])  # fmt: skip
def test_estimators_are_unbiased(name: str, particles: int, draws: int, make) -> None:  # type: ignore[no-untyped-def]
    target = make()
    elbo = ESTIMATORS[name](num_particles=particles, vectorize_particles=True, max_plate_nesting=1)
    with scale_kl(0.7):
        result = gradient_variance(target.model, MeanField(LOC, SCALE), elbo, (target.x, target.y), draws)
    assert_unbiased(result, exact_gradient(lambda loc, scale: target.loss(loc, scale, 0.7)))


@pytest.mark.parametrize("name", ["analytic", "total", "path"])
@pytest.mark.parametrize("handler", [local_reparameterization, flipout])
def test_estimators_stay_unbiased_under_reparameterised_layers(name: str, handler) -> None:  # type: ignore[no-untyped-def]
    target = centred(num_data=200, noise=1.0)
    guide = MeanField(LOC[None], SCALE[None])
    batch = (target.x, target.y)
    with handler():
        result = gradient_variance(target.layer_model, guide, ESTIMATORS[name](), batch, 250)
    exact = exact_gradient(target.loss)
    assert_unbiased(result, {n: g[None] for n, g in exact.items()})


def test_score_function_with_decaying_baseline_is_unbiased() -> None:
    # one particle, 2000 local draws with shared parameters: each draw pays its own cost, the baseline is their average
    y = torch.linspace(0.5, 2.5, 2000, dtype=torch.float64)

    def model() -> None:
        with pyro.plate("units", len(y)):
            z = pyro.sample("z", dist.Normal(torch.zeros_like(y), 1.0))
            pyro.sample("obs", dist.Normal(z, 0.5), obs=y)

    def guide() -> None:
        loc, rho = pyro.param("loc", LOC[0].clone()), pyro.param("rho", softplus_inverse(SCALE[0]))
        with pyro.plate("units", len(y)):
            pyro.sample("z", dist.Normal(loc.expand(len(y)), F.softplus(rho)))

    def loss(loc: Tensor, scale: Tensor) -> Tensor:
        nll = ((y - loc).square() + scale**2) / (2 * 0.5**2)
        return nll.sum() + len(y) * kl_normal(loc, scale, 0.0, 1.0)

    result = gradient_variance(model, guide, TraceScoreFunction_ELBO(), (), 300)
    assert_unbiased(result, exact_gradient(loss, LOC[0], SCALE[0]))


# ------------------------------------------------------------------------- noise: the variance formulas, per draw

MEAN = GaussianMean(torch.tensor([0.5, 1.5, 1.0, 0.2], dtype=torch.float64), noise=0.8)


def mean_guide(loc: float, scale: float):  # type: ignore[no-untyped-def]
    def guide(y: Tensor) -> None:
        mu = pyro.param("loc", torch.tensor(loc, dtype=torch.float64))
        sigma = pyro.param("sigma", torch.tensor(scale, dtype=torch.float64))
        pyro.sample("mu", dist.Normal(mu, sigma))

    return guide


def noise_of(name: str, offset: float, ratio: float, draws: int = 200) -> tuple[Tensor, Tensor, Tensor, float]:
    """The noise e of each draw, and the gradients for mu and sigma; q = N(m + offset s, (ratio s)^2)."""
    m, s = MEAN.posterior()
    loc, scale = float(m + offset * s), float(ratio * s)
    guide, elbo = mean_guide(loc, scale), ESTIMATORS[name]()
    rows = []
    for _ in range(draws):
        recorded = poutine.trace(guide)
        elbo.loss_and_grads(MEAN.model, recorded, MEAN.y)
        store = pyro.get_param_store()
        gradients = [store[n].unconstrained().grad.clone() for n in ("loc", "sigma")]
        for n in ("loc", "sigma"):
            store[n].unconstrained().grad = None
        rows.append([(recorded.trace.nodes["mu"]["value"].detach() - loc) / scale, *gradients])
    noise, g_mu, g_sigma = torch.tensor(rows, dtype=torch.float64).T
    return noise, g_mu, g_sigma, float(s)


@pytest.mark.parametrize("ratio", [0.1, 0.5**0.5, 1.0, 1.6])
@pytest.mark.parametrize("offset", [0.0, 0.7])
def test_gradients_are_the_formulas_draw_by_draw(offset: float, ratio: float) -> None:
    for name, score in (("analytic", 0.0), ("total", 0.0), ("path", 1.0)):
        pyro.clear_param_store()
        e, g_mu, g_sigma, s = noise_of(name, offset, ratio, draws=20)
        sigma = ratio * s
        if name == "analytic":  # only the likelihood is sampled
            likelihood, prior = MEAN.num_data / MEAN.noise**2, MEAN.prior**-2
            mean, _ = MEAN.posterior()
            w = mean + offset * s + sigma * e
            expected_mu = likelihood * (w - MEAN.y.mean()) + prior * (mean + offset * s)
            expected_sigma = likelihood * (w - MEAN.y.mean()) * e + prior * sigma - 1 / sigma
        else:
            expected_mu = (offset * s + sigma * e) / s**2 - score * e / sigma
            expected_sigma = e * (offset * s + sigma * e) / s**2 - torch.where(
                torch.tensor(score == 1), e**2 / sigma, 1 / sigma
            )
        torch.testing.assert_close(g_mu, expected_mu)
        torch.testing.assert_close(g_sigma, expected_sigma)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.70710678, 0.9, 1.0, 1.6])
def test_variance_of_the_location_gradient(ratio: float) -> None:
    variances = {}
    for name in ("path", "total"):
        pyro.clear_param_store()
        e, g_mu, _, s = noise_of(name, 0.3, ratio)
        variances[name] = float(g_mu.var() / e.var()) * s**2  # of unit noise, in units of 1/s^2
    assert variances["path"] == pytest.approx((ratio - 1 / ratio) ** 2, rel=1e-6, abs=1e-12)
    assert variances["total"] == pytest.approx(ratio**2, rel=1e-6)
    if abs(ratio**2 - 0.5) > 1e-6:
        assert (variances["path"] < variances["total"]) == (ratio**2 > 0.5)
    if ratio == 0.1:
        assert (variances["path"], variances["total"]) == pytest.approx((98.01, 0.01))


def test_path_gradient_has_no_noise_at_the_posterior() -> None:
    _, g_mu, g_sigma, s = noise_of("path", 0.0, 1.0)
    assert g_mu.abs().max() < 1e-12 / s
    assert g_sigma.abs().max() < 1e-12 / s
    # it does at the posterior's mean with another width, and at its width with another mean
    pyro.clear_param_store()
    assert noise_of("path", 0.0, 1.1)[1].std() > 0.1 / s
    pyro.clear_param_store()
    assert noise_of("path", 0.5, 1.0)[2].std() > 0.1 / s


def test_loss_at_the_posterior_is_the_evidence_at_every_draw() -> None:
    target = centred()
    guide = MeanField(*target.mean_field_optimum())
    for name in ("total", "path", "score"):
        losses = [ESTIMATORS[name]().loss_and_grads(target.model, guide, target.x, target.y) for _ in range(3)]
        assert losses == pytest.approx([-float(target.log_evidence())] * 3)


# ------------------------------------------------------------------------------- path: structured guides


def test_path_derivative_keeps_every_path_through_a_draw() -> None:
    # q(a) q(b | a) equal to p(a) p(b | a): no noise only if log q(b | a) is differentiated through a
    def model() -> None:
        a = pyro.sample("a", dist.Normal(torch.tensor(1.0), torch.tensor(0.5)))
        pyro.sample("b", dist.Normal(0.7 * a, torch.tensor(0.3)))

    def guide() -> None:
        a = pyro.sample("a", dist.Normal(pyro.param("loc", torch.tensor(1.0)), torch.tensor(0.5)))
        slope = pyro.param("slope", torch.tensor(0.7))
        pyro.sample("b", dist.Normal(slope * a, torch.tensor(0.3)))

    for _ in range(5):
        TracePathDerivative_ELBO().loss_and_grads(model, guide)
    for name in ("loc", "slope"):
        assert pyro.param(name).unconstrained().grad.abs().max() < 1e-5


def test_path_derivative_keeps_the_jacobian_of_a_transformed_site() -> None:
    # AutoNormal on a LogNormal site carries log |dv/dz| in a Delta; at q = p the gradient is 0 at each draw
    def model() -> None:
        pyro.sample("v", dist.LogNormal(torch.tensor(0.5), torch.tensor(2.0)))

    guide = AutoNormal(model, init_scale=2.0, init_loc_fn=lambda site: torch.tensor(0.5).exp())
    for _ in range(5):
        TracePathDerivative_ELBO().loss_and_grads(model, guide)
    for parameter in guide.parameters():
        assert parameter.grad.abs().max() < 1e-5


def test_path_derivative_on_a_full_covariance_guide() -> None:
    torch.set_default_dtype(torch.float64)
    target = correlated()
    guide = AutoMultivariateNormal(target.model)
    guide(target.x, target.y)
    mean, covariance = target.posterior()
    tril = torch.linalg.cholesky(covariance)
    with torch.no_grad():
        guide.loc.copy_(mean)
        guide.scale_unconstrained.copy_(softplus_inverse(tril.diagonal()))
        guide.scale_tril_unconstrained.copy_((tril / tril.diagonal()[:, None]).tril(-1))
    for _ in range(3):
        loss = TracePathDerivative_ELBO().loss_and_grads(target.model, guide, target.x, target.y)
        assert loss == pytest.approx(-float(target.log_evidence()))
    assert max(p.grad.abs().max() for p in guide.parameters()) < 1e-9
    Trace_ELBO().loss_and_grads(target.model, guide, target.x, target.y)
    assert max(p.grad.abs().max() for p in guide.parameters()) > 1e-3


def test_parameters_are_trained_again_after_a_failing_guide() -> None:
    target = centred()
    guide = MeanField(LOC, SCALE)
    calls = []

    def failing(*args: object) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("second pass")
        return guide()

    with pytest.raises(KeyError, match="second pass"):
        TracePathDerivative_ELBO().loss_and_grads(target.model, failing, target.x, target.y)
    assert all(pyro.param(name).unconstrained().requires_grad for name in ("loc", "rho"))


# --------------------------------------------------------------------------------- score function: the baseline


def costs(target, w: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    log_q = dist.Normal(LOC, SCALE).log_prob(w).sum()
    log_p = dist.Normal(torch.zeros_like(w), target.prior).log_prob(w).sum()
    return log_q - log_p - dist.Normal(target.x @ w, target.noise).log_prob(target.y).sum()


def sigma_guide(draws: list[Tensor]):  # type: ignore[no-untyped-def]
    def guide(*args: object) -> None:
        loc, scale = pyro.param("loc", LOC.clone()), pyro.param("scale", SCALE.clone())
        draws.append(pyro.sample("w", dist.Normal(loc, scale).to_event(1)).detach())

    return guide


def take_gradient() -> Tensor:
    leaves = [pyro.param(name).unconstrained() for name in ("loc", "scale")]
    gradient = torch.cat([leaf.grad for leaf in leaves])
    for leaf in leaves:
        leaf.grad = None
    return gradient


@pytest.mark.parametrize("vectorize", [False, True])
def test_leave_one_out_baseline_is_the_reference(vectorize: bool) -> None:
    target, drawn = correlated(), []
    elbo = TraceScoreFunction_ELBO(5, vectorize_particles=vectorize, max_plate_nesting=1)
    elbo.loss_and_grads(target.model, sigma_guide(drawn), target.x, target.y)
    draws = drawn[0][:, 0] if vectorize else torch.stack(drawn)
    assert draws.shape == (5, 3)
    torch.testing.assert_close(take_gradient(), leave_one_out(draws, LOC, SCALE, lambda w: costs(target, w)))


def test_decaying_baseline_is_the_reference_and_never_sees_its_own_draw() -> None:
    target, drawn, gradients = correlated(), [], []
    elbo, guide = TraceScoreFunction_ELBO(baseline_decay=0.6), sigma_guide(drawn)
    for _ in range(6):
        elbo.loss_and_grads(target.model, guide, target.x, target.y)
        gradients.append(take_gradient())
    expected = decaying(torch.stack(drawn), LOC, SCALE, lambda w: costs(target, w), 0.6)
    for gradient, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_point_masses_keep_their_own_gradient() -> None:
    # an AutoDelta guide has nothing to draw: the gradient is that of -log p(y, w), and of the Jacobian it carries
    target = correlated()
    guide = AutoDelta(target.model, init_loc_fn=lambda site: LOC)
    guide(target.x, target.y)
    TraceScoreFunction_ELBO().loss_and_grads(target.model, guide, target.x, target.y)
    w = LOC.clone().requires_grad_()
    log_p = dist.Normal(torch.zeros_like(w), target.prior).log_prob(w).sum()
    log_p = log_p + dist.Normal(target.x @ w, target.noise).log_prob(target.y).sum()
    (exact,) = torch.autograd.grad(-log_p, w)
    torch.testing.assert_close(next(guide.parameters()).grad, exact)


def test_evaluation_does_not_move_the_baseline() -> None:
    target, drawn = correlated(), []
    elbo, guide = TraceScoreFunction_ELBO(), sigma_guide(drawn)
    elbo.loss_and_grads(target.model, guide, target.x, target.y)
    take_gradient()
    for _ in range(3):
        elbo.loss(target.model, guide, target.x, target.y)
    elbo.loss_and_grads(target.model, guide, target.x, target.y)
    used = torch.stack([drawn[0], drawn[-1]])
    torch.testing.assert_close(take_gradient(), decaying(used, LOC, SCALE, lambda w: costs(target, w), 0.9)[1])


def test_baseline_lowers_the_variance() -> None:
    target = centred()
    batch = (target.x, target.y)
    many = TraceScoreFunction_ELBO(8, vectorize_particles=True, max_plate_nesting=1)
    stock_guide = MeanField(LOC, SCALE)

    def unreparameterised(*args: object) -> Tensor:
        loc, scale = pyro.param("loc", LOC.clone()), pyro.param("scale", SCALE.clone())
        return pyro.sample("w", NonreparameterizedNormal(loc, scale).to_event(1))

    with_baseline = gradient_variance(target.model, stock_guide, many, batch, 200).by_kind()["loc"].variance
    pyro.clear_param_store()
    none = Trace_ELBO(8, vectorize_particles=True, max_plate_nesting=1)
    without = gradient_variance(target.model, unreparameterised, none, batch, 200).by_kind()["loc"].variance
    assert with_baseline < 0.5 * without  # the cost's mean is well away from 0


# ------------------------------------------------------------------------------------- score function: discrete


def discrete_model(y: Tensor) -> None:
    z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.3, dtype=torch.float64)))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Bernoulli(0.2 + 0.5 * z))
        pyro.sample("obs", dist.Normal(z + 2 * k, 1.0), obs=y)


def discrete_guide(y: Tensor) -> None:
    a = pyro.param("a", torch.tensor(0.4, dtype=torch.float64))
    b = pyro.param("b", torch.tensor([-0.5, 0.2, 1.0], dtype=torch.float64))
    pyro.sample("z", dist.Bernoulli(logits=a))
    with pyro.plate("data", len(y)):
        pyro.sample("k", dist.Bernoulli(logits=b))


def discrete_loss(a: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """-ELBO by enumeration; k_n are independent given z."""
    loss = torch.zeros((), dtype=torch.float64)
    q_z, q_k, p_z = (dist.Bernoulli(logits=a), dist.Bernoulli(logits=b), dist.Bernoulli(torch.tensor(0.3).double()))
    for z in (torch.tensor(0.0).double(), torch.tensor(1.0).double()):
        inner = q_z.log_prob(z) - p_z.log_prob(z)
        for k in (torch.zeros(3).double(), torch.ones(3).double()):
            term = q_k.log_prob(k) - dist.Bernoulli(0.2 + 0.5 * z).log_prob(k) - dist.Normal(z + 2 * k, 1.0).log_prob(y)
            inner = inner + (q_k.log_prob(k).exp() * term).sum()
        loss = loss + q_z.log_prob(z).exp() * inner
    return loss


def test_score_function_trains_discrete_sites_global_and_local() -> None:
    y = torch.tensor([0.1, 2.5, 3.0], dtype=torch.float64)
    elbo = TraceScoreFunction_ELBO(10_000, vectorize_particles=True, max_plate_nesting=1)
    result = gradient_variance(discrete_model, discrete_guide, elbo, (y,), 40)
    a, b = (pyro.param(n).detach().clone().requires_grad_() for n in ("a", "b"))
    exact = dict(zip(("a", "b"), torch.autograd.grad(discrete_loss(a, b, y), (a, b)), strict=True))
    assert_unbiased(result, exact)


@pytest.mark.parametrize(("elbo", "error"), [
    (TracePathDerivative_ELBO(), ValueError), (TraceColdPosterior_ELBO(0.5), ValueError),
    (TraceMeanField_ELBO(), NotImplementedError),
])  # fmt: skip
def test_reparameterised_estimators_refuse_discrete_sites(elbo, error) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match="reparam"):
        elbo.loss_and_grads(discrete_model, discrete_guide, torch.zeros(3, dtype=torch.float64))


# -------------------------------------------------------------------------------- tempered and cold posteriors


class SigmaPoints(dist.Normal):  # type: ignore[misc]
    """A Normal of D entries that is "drawn" 2 D times as loc +- sqrt(D) scale e_d: exact means of quadratics."""

    def rsample(self, sample_shape: object = ()) -> Tensor:
        dim = self.batch_shape[-1]
        points = math.sqrt(dim) * torch.cat([torch.eye(dim), -torch.eye(dim)]).to(self.loc)  # (2 D, D)
        return self.loc + self.scale * points[:, None]  # (2 D, 1, D)


def fitted(target, elbo, weight: float) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """Minimise the loss that `elbo` reports, with the gradient it reports, free of noise by sigma points."""

    def guide(*args: object) -> None:
        scale = F.softplus(pyro.param("rho", torch.ones(target.dim, dtype=torch.float64)))
        pyro.sample("w", SigmaPoints(pyro.param("loc", torch.zeros_like(scale)), scale).to_event(1))

    def closure() -> float:
        optimizer.zero_grad()
        with per_datum(target.num_data), scale_kl(weight):
            return float(elbo.loss_and_grads(target.model, guide, target.x, target.y))

    guide()
    leaves = [pyro.param(name).unconstrained() for name in ("loc", "rho")]
    optimizer = torch.optim.LBFGS(
        leaves, max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )
    optimizer.step(closure)
    return leaves[0].detach(), F.softplus(leaves[1].detach())


@pytest.mark.parametrize("make", [centred, correlated])
@pytest.mark.parametrize(
    ("eta", "temperature"), [(1.0, 1.0), (0.1, 1.0), (3.0, 1.0), (1.0, 0.01), (1.0, 0.1), (1.0, 2.0)]
)
def test_training_reaches_the_tempered_and_the_cold_posterior(make, eta: float, temperature: float) -> None:  # type: ignore[no-untyped-def]
    target = make()
    options = {"num_particles": 2 * target.dim, "vectorize_particles": True, "max_plate_nesting": 1}
    elbo = TraceMeanField_ELBO(**options) if temperature == 1 else TraceColdPosterior_ELBO(temperature, **options)
    loc, scale = fitted(target, elbo, eta)
    mean, deviation = target.mean_field_optimum(eta, temperature)
    torch.testing.assert_close(loc, mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(scale, deviation, rtol=1e-4, atol=1e-6)
    if make is centred:  # the posterior itself is mean-field
        torch.testing.assert_close(scale.square().diag(), target.posterior(eta, temperature)[1], rtol=1e-4, atol=1e-6)


def test_the_two_targets_differ_unless_the_prior_is_rescaled() -> None:
    target = centred()
    tempered, cold = target.mean_field_optimum(eta=0.25), target.mean_field_optimum(temperature=0.25)
    assert torch.dist(tempered[0], cold[0]) > 0.01
    rescaled = centred(prior=0.5).mean_field_optimum(eta=0.25)
    for a, b in zip(cold, rescaled, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("analytic", [True, False])
def test_cold_loss_is_the_formula(analytic: bool) -> None:
    # E[-log p(y|w)] + T KL(q || p) - (1 - T) E_q log p(w), term by term at the same draw
    target, temperature = centred(), 0.3
    guide = MeanField(LOC, SCALE) if analytic else AutoNormal(target.model, init_scale=0.2)
    guide(target.x, target.y)
    pyro.set_rng_seed(1)
    trace = poutine.trace(guide).get_trace(target.x, target.y)
    model_trace = poutine.trace(poutine.replay(target.model, trace=trace)).get_trace(target.x, target.y)
    pyro.set_rng_seed(1)
    cold = TraceColdPosterior_ELBO(temperature).loss(target.model, guide, target.x, target.y)
    nll = -float(model_trace.nodes["obs"]["fn"].log_prob(target.y).sum().detach())
    if analytic:
        prior = dist.Normal(0.0, target.prior)
        e_log_prior = float((prior.log_prob(LOC) - SCALE**2 / (2 * target.prior**2)).sum())
        kl = float(target.loss(LOC, SCALE) - target.nll(LOC, SCALE))
        expected = nll + temperature * kl - (1 - temperature) * e_log_prior
    else:
        log_p = float(model_trace.nodes["w"]["fn"].log_prob(trace.nodes["w"]["value"]).detach())
        expected = nll + temperature * float(trace.log_prob_sum().detach()) - log_p
    assert cold == pytest.approx(expected, rel=1e-6)


def test_temperature_one_is_the_elbo_and_weights_scale_it() -> None:
    target, guide = centred(), MeanField(LOC, SCALE)

    def loss(elbo: Trace_ELBO, weight: float) -> float:
        pyro.set_rng_seed(0)
        with scale_kl(weight):
            return elbo.loss(target.model, guide, target.x, target.y)

    assert loss(TraceColdPosterior_ELBO(1.0), 0.3) == pytest.approx(loss(TraceMeanField_ELBO(), 0.3), rel=1e-12)
    cold = TraceColdPosterior_ELBO(0.4)
    assert loss(cold, 0.3) == pytest.approx(loss(cold, 0) + 0.3 * (loss(cold, 1) - loss(cold, 0)), rel=1e-12)


# ------------------------------------------------------------------------------------------ every BNN, every way


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("vectorize", [False, True])
def test_estimators_train_a_bnn_with_stock_svi(name: str, vectorize: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data=20)
    guide = AutoMeanFieldNormal(model)
    x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    elbo = ESTIMATORS[name](num_particles=3, vectorize_particles=vectorize)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-2}), elbo)
    guide(x)
    before = {n: p.detach().clone() for n, p in [*guide.named_parameters(), *model.named_parameters()]}
    with per_datum(20), scale_kl(1.0):
        losses = [svi.step(x, y) for _ in range(3)]
        losses.append(svi.evaluate_loss(x, y))
    assert all(math.isfinite(loss) for loss in losses)
    moved = {n for n, p in [*guide.named_parameters(), *model.named_parameters()] if not torch.equal(before[n], p)}
    assert {"loc_unconstrained", "rho_unconstrained"} <= moved
    assert any(n.startswith("deterministic") for n in moved), "the normalisation layer is trained by the same step"


def test_differentiable_loss_has_the_gradient_of_loss_and_grads() -> None:
    target, guide = centred(), MeanField(LOC, SCALE)
    for elbo in (TracePathDerivative_ELBO(2), TraceScoreFunction_ELBO(2), TraceColdPosterior_ELBO(0.5, 2)):
        found = []
        for differentiable in (False, True):
            pyro.clear_param_store()
            pyro.set_rng_seed(0)
            if differentiable:
                loss = elbo.differentiable_loss(target.model, guide, target.x, target.y)
                loss.backward()
            else:
                loss = elbo.loss_and_grads(target.model, guide, target.x, target.y)
            gradients = [pyro.param(n).unconstrained().grad for n in ("loc", "rho")]
            found.append((float(torch.as_tensor(loss).detach()), torch.cat(gradients)))
        assert found[0][0] == pytest.approx(found[1][0])
        torch.testing.assert_close(found[0][1], found[1][1])


def test_monte_carlo_losses_equal_the_stock_one() -> None:
    target, guide = correlated(), MeanField(LOC, SCALE)
    losses = []
    for elbo in (Trace_ELBO(), TracePathDerivative_ELBO(), TraceScoreFunction_ELBO()):
        pyro.set_rng_seed(0)
        with per_datum(target.num_data), scale_kl(0.3):
            losses.append(elbo.loss_and_grads(target.model, guide, target.x, target.y))
    assert losses == pytest.approx([losses[0]] * 3)


@pytest.mark.parametrize("handler", [local_reparameterization, flipout])
def test_score_function_refuses_reparameterised_layers(handler) -> None:  # type: ignore[no-untyped-def]
    target, guide = centred(), MeanField(LOC[None], SCALE[None])
    context: AbstractContextManager[object] = handler()
    with context, pytest.raises(ValueError, match="sampled weights"):
        TraceScoreFunction_ELBO().loss_and_grads(target.layer_model, guide, target.x, target.y)
    with nullcontext():
        TraceScoreFunction_ELBO().loss_and_grads(target.layer_model, guide, target.x, target.y)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TraceColdPosterior_ELBO(0), "temperature=0"),
        (lambda: TraceColdPosterior_ELBO(-1), "temperature=-1"),
        (lambda: TraceColdPosterior_ELBO(math.inf), "temperature=inf"),
        (lambda: TraceScoreFunction_ELBO(baseline_decay=1.0), r"baseline_decay=1.0"),
    ],
)
def test_bad_options_are_refused(build, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        build()


def test_the_path_derivative_refuses_a_guide_with_draws_outside_of_sample_statements() -> None:
    model = BNN(MLP(3, 2, hidden=[4]), priors.Normal(0.0, 1.0), likelihoods.Categorical(), 6)
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    guide = AutoDropout(model, rate=0.5)
    with pytest.raises(ValueError, match=r"AutoDropout puts site 'net\.layers\.1\.weight' elsewhere"):
        TracePathDerivative_ELBO().loss(model, guide, x, y)
    assert math.isfinite(TracePathDerivative_ELBO().loss(model, AutoPoint(model), x, y))


def test_the_path_derivative_trains_a_guide_that_is_a_network() -> None:
    """Its parameters are held fixed while log q is evaluated; Pyro warned of them, and left them out of the step."""
    net = nn.Linear(1, 2)

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.full((2,), 3.0), 1.0).to_event(1))

    def guide() -> None:
        pyro.module("net", net)
        pyro.sample("w", dist.Normal(net(torch.ones(1)), 1.0).to_event(1))

    TracePathDerivative_ELBO(num_particles=3).loss_and_grads(model, guide)
    expected = net(torch.ones(1)) - 3.0  # as narrow as the prior, the estimator has no noise
    assert net.bias.grad is not None
    torch.testing.assert_close(net.bias.grad, expected.detach())
    assert net.weight.requires_grad


@pytest.mark.parametrize("elbo", [TracePathDerivative_ELBO(), TraceScoreFunction_ELBO()])
def test_a_guide_that_runs_the_model_itself_is_refused(elbo: Any) -> None:
    """The score function took its observations for the guide's: the likelihood cancelled."""

    def model() -> None:
        pyro.sample("obs", dist.Normal(pyro.sample("w", dist.Normal(0.0, 1.0)), 1.0), obs=torch.tensor(2.0))

    with pytest.raises(TypeError, match="AutoNormalMessenger and its like"):
        elbo.loss(model, AutoNormalMessenger(model))
