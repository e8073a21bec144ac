import math

import pyro
import pytest
import torch
from scipy import stats

from pyro_bnn.guides import AutoPoint, StoredDraws
from pyro_bnn.inference import SGLD, Callback, Diverged, Snapshots, fit, kl, lmc
from pyro_bnn.inference.samplers.lmc import quadratic_covariance
from pyro_bnn.inference.samplers.sgld import cyclical_step, explores, langevin_step
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from tests.targets import LinearRegression

HESSIAN = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)
CENTRE = torch.tensor([1.0, -3.0], dtype=torch.float64)


def covariance_within(found, expected, n, sds=5.0):
    """Every entry of a sample covariance of n independent normal draws within `sds` standard deviations."""
    d = expected.diag()
    sd = ((d.outer(d) + expected.square()) / n).sqrt()
    return bool(((found - expected).abs() < sds * sd).all())


# ------------------------------------------------------------------------------------------------- Langevin


@pytest.mark.parametrize("gamma", [0.05, 0.4, 0.8])
def test_lmc_on_a_quadratic_has_the_known_covariance_and_no_bias_in_the_mean(gamma):
    n = 20_000  # independent chains: false alarm under 1e-5 per test
    start = CENTRE + torch.randn(n, 2, dtype=torch.float64)
    slowest = 1 - gamma * float(torch.linalg.eigvalsh(HESSIAN).min())
    steps = math.ceil(math.log(1e-8) / math.log(abs(slowest)))
    last = list(lmc(lambda w: (w - CENTRE) @ HESSIAN, start, gamma, steps, burn_in=steps - 1))[-1]
    exact = quadratic_covariance(HESSIAN, gamma)
    assert covariance_within(torch.cov(last.T), exact, n)
    assert bool(((last.mean(0) - CENTRE).abs() < 5 * (exact.diag() / n).sqrt()).all())
    if gamma >= 0.4:  # and it is not the target's
        assert not covariance_within(torch.cov(last.T), torch.linalg.inv(HESSIAN), n)


def test_the_stationary_covariance_solves_its_equation():
    for gamma in (0.01, 0.3):
        s = quadratic_covariance(HESSIAN, gamma)
        contraction = torch.eye(2, dtype=torch.float64) - gamma * HESSIAN
        torch.testing.assert_close(contraction @ s @ contraction.T + 2 * gamma * torch.eye(2, dtype=torch.float64), s)
    torch.testing.assert_close(quadratic_covariance(HESSIAN, 1e-9), torch.linalg.inv(HESSIAN), rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match=r"gamma=1\.0 is unstable"):
        quadratic_covariance(HESSIAN, 1.0)


@pytest.mark.parametrize("commute", [True, False])
def test_the_documented_covariance_under_minibatch_noise(commute):
    """V = (I - aH) V (I - aH) + 2aT/N I + a^2 S; the closed form holds exactly where S and H commute."""
    h = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    s = 0.3 * h @ h + 0.1 * h if commute else torch.diag(torch.tensor([0.3, 0.1], dtype=torch.float64))
    n, a, one = 200, 0.2, torch.eye(2, dtype=torch.float64)
    v, contraction = torch.zeros_like(one), one - a * h
    for _ in range(2000):
        v = contraction @ v @ contraction + 2 * a / n * one + a**2 * s
    closed = (one / n + a * s / 2) @ torch.linalg.inv(h) @ torch.linalg.inv(one - a * h / 2)
    assert torch.allclose(v, closed, rtol=1e-10, atol=0) == commute


def test_lmc_refuses_and_stops():
    start = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="gamma=0"):
        list(lmc(lambda w: w, start, 0, 10))
    with pytest.raises(ValueError, match="no draw would be taken"):
        list(lmc(lambda w: w, start, 0.1, 10, burn_in=10))
    with pytest.raises(Diverged, match=r"step \d+: lower gamma"):
        list(lmc(lambda w: w**3, start + 10, 1.0, 30))


def test_sgld_and_lmc_are_one_step_on_two_scales():
    """Alpha = gamma N on the loss per datum."""
    w, g, noise = torch.randn(3, 4, dtype=torch.float64)
    n, gamma = 50, 0.003
    torch.testing.assert_close(
        langevin_step(w, g / n, gamma * n, n, noise), w - gamma * g + math.sqrt(2 * gamma) * noise, rtol=1e-12, atol=0
    )


def run_optimizer(gradient, start, steps, **arguments):
    w = torch.nn.Parameter(start.clone())
    optim = SGLD([w], **arguments)
    for _ in range(steps):
        w.grad = gradient(w.detach())
        optim.step()
    return w.detach()


@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_minibatch_noise_widens_sgld_by_the_stated_bias(noise):
    """(T / N + alpha S / 2) / h / (1 - alpha h / 2) for curvature h per datum and gradient noise of variance S."""
    chains, n, h, alpha, temperature = 20_000, 10, 0.8, 0.3, 0.7

    def gradient(w):
        return h * w + noise * torch.randn_like(w)

    start = torch.randn(chains, dtype=torch.float64)
    w = run_optimizer(gradient, start, 80, lr=alpha, num_data=n, temperature=temperature)
    expected = (temperature / n + alpha * noise**2 / 2) / (h * (1 - alpha * h / 2))
    assert abs(w.var().item() / expected - 1) < 5 * math.sqrt(2 / chains)  # false alarm under 1e-6
    assert abs(w.mean().item()) < 5 * math.sqrt(expected / chains)


def test_a_preconditioner_that_follows_the_weights_bends_the_target():
    """Without Gamma the draws follow exp(-U) / G: here U = w^2 / 2 and G = 1 / (eps + |w|), so (eps + |w|) exp(-U)."""
    chains, eps = 20_000, 0.5
    grid = torch.linspace(-12, 12, 200_001, dtype=torch.float64)

    def second_moment(log_density):
        weight = torch.softmax(log_density, 0)
        return float((weight * grid.square()).sum())

    right, bent = second_moment(-grid.square() / 2), second_moment(torch.log(eps + grid.abs()) - grid.square() / 2)
    assert right == pytest.approx(1, abs=1e-6)
    assert bent > 1.4
    start = torch.randn(chains, dtype=torch.float64)
    # beta -> 0 makes v the present squared gradient; N = 1, a small step against the discretisation
    w = run_optimizer(lambda w: w, start, 800, lr=0.01, num_data=1, precondition=1e-12, eps=eps)
    assert w.square().mean().item() == pytest.approx(bent, rel=0.04)
    slow = run_optimizer(
        lambda w: torch.ones_like(w) * 0 + w, start[:2000], 1500, lr=0.02, num_data=1, precondition=0.9999
    )
    assert abs(slow.square().mean().item() - right) < abs(bent - right) / 2


def test_preconditioning_by_hand():
    w = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optim = SGLD([w], lr=0.1, num_data=5, precondition=0.9, eps=0.01)
    v, expected = torch.zeros(2, dtype=torch.float64), w.detach().clone()
    for k, g in enumerate(([0.3, -1.0], [0.5, 0.2]), start=1):
        g = torch.tensor(g, dtype=torch.float64)
        w.grad = g
        torch.manual_seed(k)
        optim.step()
        torch.manual_seed(k)
        v = 0.9 * v + 0.1 * g * g
        scale = 1 / (0.01 + torch.sqrt(v / (1 - 0.9**k)))
        expected = expected - 0.1 * scale * g + torch.sqrt(2 * 0.1 * scale / 5) * torch.randn_like(expected)
        torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=0)


def test_cycles():
    steps = [cyclical_step(k, 4, 0.8) for k in range(1, 10)]
    half = math.cos(math.pi / 4)
    expected = [0.8, 0.4 * (half + 1), 0.4, 0.4 * (1 - half)]
    assert steps[:4] == pytest.approx(expected)
    assert steps[4:8] == pytest.approx(expected)
    assert [explores(k, 4, 0.5) for k in range(1, 9)] == [True, True, False, False] * 2
    w = run_optimizer(torch.zeros_like, torch.zeros(3), 2, lr=0.1, num_data=2, cycle=4, explore=0.5)
    assert torch.equal(w, torch.zeros(3))  # exploring is without noise
    w = run_optimizer(torch.zeros_like, torch.zeros(3), 3, lr=0.1, num_data=2, cycle=4, explore=0.5)
    assert not torch.equal(w, torch.zeros(3))


# ----------------------------------------------------------------------------------------- through fit


@pytest.mark.parametrize("eta", [1.0, 0.3])
def test_full_batch_draws_have_the_posteriors_moments(eta):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, dtype=torch.float64, generator=generator)
    target = LinearRegression(x, x.sum(-1) + torch.randn(20, dtype=torch.float64, generator=generator), 1.0, 1.0)
    mean, covariance = target.posterior(eta)
    hessian = torch.linalg.inv(covariance)  # of the sum
    alpha = 0.2
    guide = AutoPoint(target.model)
    guide(x, target.y)
    optim = pyro.optim.PyroOptim(SGLD, {"lr": alpha, "num_data": 20, "temperature": eta})
    keep = Snapshots(guide, burn_in=50, thin=2)
    fit(
        target.model,
        guide,
        optim,
        (x, target.y),
        epochs=2450,
        batch_size=20,
        kl=kl.tempered(eta),
        callbacks=[keep],
        seed=1,
    )
    draws = keep.draws
    assert draws.shape == (1200, 2)
    exact = quadratic_covariance(hessian, alpha * eta / 20)
    # autocorrelation: the slowest mode keeps 1 - gamma lambda per step, which costs this many draws for one
    slow = (1 - alpha * eta / 20 * float(torch.linalg.eigvalsh(hessian).min())) ** 2
    effective = len(draws) * (1 - slow) / (1 + slow)
    assert bool(((draws.mean(0) - mean).abs() < 5 * (exact.diag() / effective).sqrt()).all())
    assert covariance_within(torch.cov(draws.T), exact, effective)


def small(n=40):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(n, 3, generator=generator), torch.randint(0, 2, (n,), generator=generator)
    model = BNN(MLP(3, 2, hidden=[4]), priors.Normal(), likelihoods.Categorical(), n)
    return model, AutoPoint(model), (x, y)


def optimizer(n=40, lr=0.1, **arguments):
    return pyro.optim.PyroOptim(SGLD, {"lr": lr, "num_data": n, **arguments})


def test_a_diverging_sampler_is_stopped_with_the_step_and_the_remedy():
    generator = torch.Generator().manual_seed(1)
    x = 30 * torch.randn(40, 3, generator=generator)
    model = BNN(MLP(3, 1, hidden=[4]), priors.Normal(), likelihoods.Gaussian(0.01), 40)
    guide = AutoPoint(model)
    with pytest.raises(Diverged, match=r"at step \d+.*lower the learning rate"):
        fit(model, guide, optimizer(lr=10.0), (x, x.sum(-1)), epochs=3, batch_size=10)


def test_snapshots_are_taken_when_they_should():
    model, guide, data = small()
    points = []

    class Watch(Callback):
        def step(self, state):
            points.append(guide.get_parameter("loc_unconstrained").detach().clone())

    keep, cyclic = Snapshots(guide, burn_in=5, thin=3), Snapshots(guide, cycle=10, explore=0.8)
    fit(model, guide, optimizer(), data, epochs=5, batch_size=10, callbacks=[Watch(), keep, cyclic], seed=0)
    assert torch.equal(keep.draws, torch.stack([points[k - 1] for k in (8, 11, 14, 17, 20)]))
    assert torch.equal(cyclic.draws, torch.stack([points[k - 1] for k in (9, 10, 19, 20)]))
    assert keep.states is None


def test_draws_are_a_posterior_and_resume_to_the_same_bits():
    def once(epochs, resume=None, states=None):
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        model, guide, data = small()
        keep = Snapshots(guide, burn_in=4, thin=2)

        class Keep(Callback):
            def epoch(self, state):
                if states is not None:
                    states.append(state.state_dict())

        options = dict(callbacks=[keep, Keep()], seed=0, resume=resume)
        fit(model, guide, optimizer(precondition=0.9), data, epochs=epochs, batch_size=10, **options)
        return model, keep.draws

    _, whole = once(6)
    states = []
    once(3, states=states)
    model, resumed = once(6, resume=states[-1])
    assert torch.equal(whole, resumed)
    guide = StoredDraws.from_flat(model, resumed, kind="sgld")
    assert guide.by_site()[guide.site_names()[0]].shape[:2] == (1, 10)


def test_learned_noise_stays_with_its_draw():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=generator)
    model = BNN(MLP(3, 1, hidden=[4]), priors.Normal(), likelihoods.LearnedGaussian(), 40)
    guide = AutoPoint(model)
    keep = Snapshots(guide, burn_in=4, thin=4)
    quiet = pyro.optim.PyroOptim(
        SGLD, lambda name: {"lr": 0.02, "num_data": 40, "temperature": 1.0 if name.endswith("loc") else 0.0}
    )
    fit(model, guide, quiet, (x, x.sum(-1)), epochs=4, batch_size=10, callbacks=[keep], seed=0)
    noises = [float(state["noise.noise_unconstrained"]) for state in keep.states]
    assert len(set(noises)) == 3
    stored = StoredDraws.from_flat(model, keep.draws, kind="sgld", states=keep.states)
    seen = set()
    for _ in range(3):
        drawn = stored()
        s = int((stored.draws == stored.flatten({k: v for k, v in drawn.items()})).all(-1).nonzero())
        assert float(model.state_dict()["noise.noise_unconstrained"]) == noises[s]
        seen.add(s)
    assert seen == {0, 1, 2}


def test_what_is_refused():
    w = [torch.nn.Parameter(torch.zeros(2))]
    for name, value, allowed in (
        ("lr", 0.0, "learning rate"),
        ("num_data", 0, "number of rows"),
        ("temperature", -1.0, "at least 0"),
        ("precondition", 1.0, r"in \[0, 1\)"),
        ("eps", 0.0, "above 0"),
        ("cycle", -1, "number of steps"),
        ("explore", 1.0, "share of a cycle"),
    ):
        with pytest.raises(ValueError, match=f"{name}={value}.*{allowed}"):
            SGLD(w, **{"num_data": 5, name: value})
    with pytest.raises(TypeError, match="not a flat point guide"):
        Snapshots(lambda x: x)
    with pytest.raises(RuntimeError, match="no draw was taken"):
        _ = Snapshots(small()[1], burn_in=100).draws


def test_normality_of_the_noise():
    w = run_optimizer(torch.zeros_like, torch.zeros(4000, dtype=torch.float64), 1, lr=0.5, num_data=8, temperature=2.0)
    assert stats.kstest(w.numpy() / math.sqrt(2 * 0.5 * 2.0 / 8), "norm").pvalue > 1e-6
