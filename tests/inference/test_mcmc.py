import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_bnn.inference import convergence, run_chain
from pyro_bnn.inference.samplers.mcmc import STARTS, Potential
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from tests.targets import LinearRegression


def target():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(15, 2, dtype=torch.float64, generator=generator)
    y = x.sum(-1) + torch.randn(15, dtype=torch.float64, generator=generator)
    return LinearRegression(x, y, 1.0, 1.0)


@pytest.mark.parametrize(
    ("kernel", "eta", "temperature"), [("nuts", 1.0, 1.0), ("nuts", 0.2, 1.0), ("nuts", 1.0, 0.3), ("hmc", 1.0, 1.0)]
)
def test_draws_have_the_exact_moments(kernel, eta, temperature):
    problem = target()
    mean, covariance = problem.posterior(eta, temperature)
    chain = run_chain(
        problem.model,
        (problem.x, problem.y),
        kernel=kernel,
        warmup=80,
        draws=400,
        seed=1,
        eta=eta,
        temperature=temperature,
        trajectory_length=1.5,
    )
    draws = chain.samples["w"]
    assert draws.dtype == torch.float64
    ess = convergence(draws.unsqueeze(0)).ess_bulk
    assert ess > 50
    # 5 sd of 2 means and 3 covariances at the effective number of draws
    assert bool(((draws.mean(0) - mean).abs() < 5 * (covariance.diag() / ess).sqrt()).all())
    d = covariance.diag()
    sd = ((d.outer(d) + covariance.square()) / ess).sqrt()
    assert bool(((torch.cov(draws.T) - covariance).abs() < 5 * sd).all())
    assert chain.divergences == 0
    assert 0.4 < chain.acceptance <= 1


@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
def test_acceptance_is_the_mean_probability_that_the_step_was_adapted_to(kernel):
    """Not the share of transitions that moved, which NUTS does nearly always."""
    problem = target()
    low, high = (
        run_chain(
            problem.model,
            (problem.x, problem.y),
            kernel=kernel,
            warmup=200,
            draws=200,
            seed=2,
            target_accept=accept,
            trajectory_length=1.5,
        ).acceptance
        for accept in (0.5, 0.9)
    )
    # the step adapts to within a tenth or so of the target in 200 steps
    assert low == pytest.approx(0.5, abs=0.2)
    assert high == pytest.approx(0.9, abs=0.09)


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_short_chains_end(draws):
    problem = target()
    chain = run_chain(problem.model, (problem.x, problem.y), warmup=5, draws=draws)
    assert chain.samples["w"].shape == (draws, 2)
    assert 0 <= chain.acceptance <= 1


def test_a_network_is_sampled_in_float64_and_left_as_it_was():
    model = BNN(MLP(2, 1, hidden=[3]), priors.Normal(), likelihoods.Gaussian(0.5), 10)
    x = torch.randn(10, 2)
    state = torch.get_rng_state()
    runs = [run_chain(model, (x, x.sum(-1)), warmup=10, draws=5, seed=s, max_tree_depth=3) for s in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    assert next(model.template.parameters()).dtype == torch.float32
    assert model.template.training
    name = next(iter(runs[0].samples))
    assert runs[0].samples[name].dtype == torch.float64
    assert torch.equal(runs[0].samples[name], runs[1].samples[name])
    assert not torch.equal(runs[0].samples[name], runs[2].samples[name])


def test_convergence_is_what_arviz_says_and_the_bar_is_high():
    import arviz as az

    good = torch.randn(4, 600, 3, dtype=torch.float64)
    found = convergence(good)
    assert found.rhat == pytest.approx(max(float(az.rhat(good[..., i].numpy())) for i in range(3)))
    assert found.ess_bulk == pytest.approx(min(float(az.ess(good[..., i].numpy(), method="bulk")) for i in range(3)))
    assert found.is_reference
    assert not convergence(good[:3]).is_reference  # three chains
    assert not convergence(good[:, :80]).is_reference  # too few draws
    apart = good + torch.tensor([0.0, 0.0, 0.0, 1.0])[:, None, None]
    assert convergence(apart).rhat > 1.01
    assert not convergence(apart).is_reference
    assert math.isnan(convergence(good[:1]).rhat)
    assert not convergence(good[:1]).is_reference
    assert convergence(good).to_dict().keys() == {"rhat", "ess_bulk", "chains", "reference"}


def test_what_is_refused():
    problem = target()
    data = (problem.x, problem.y)
    with pytest.raises(ValueError, match="kernel='gibbs'"):
        run_chain(problem.model, data, kernel="gibbs")
    with pytest.raises(ValueError, match="warmup=0"):
        run_chain(problem.model, data, warmup=0)
    with pytest.raises(ValueError, match="tempered or cold, not both"):
        run_chain(problem.model, data, eta=0.5, temperature=0.5)
    learned = BNN(MLP(2, 1, hidden=[3]), priors.Normal(), likelihoods.LearnedGaussian(), 15)
    with pytest.raises(ValueError, match=r"noise.*give the noise as a number"):
        run_chain(learned, data)
    with pytest.raises(ValueError, match="3 draws per chain"):
        convergence(torch.randn(4, 3, 2))

    def wide(x, y):
        pyro.sample("w", dist.Normal(torch.zeros(6000), 1.0).to_event(1))
        with pyro.plate("data", 15):
            pyro.sample("obs", dist.Normal(0.0, 1.0), obs=y)

    with pytest.raises(ValueError, match="6000 latent numbers"):
        run_chain(wide, data)


@pytest.mark.parametrize("trace", [None, True])
def test_the_potential_is_that_of_the_program(trace):
    problem = target()
    with pyro.validation_enabled(False):
        potential = Potential(problem.model, (problem.x, problem.y), trace=trace)
    assert potential.compiled == (trace is True)  # a program written by hand: only by name
    for _ in range(3):
        u = torch.randn(2, dtype=torch.float64, requires_grad=True)
        exact = 0.5 * (u @ u) + 0.5 * (problem.y - problem.x @ u).square().sum() + 17 * 0.5 * math.log(2 * math.pi)
        torch.testing.assert_close(potential({"u": u}).detach(), exact.detach())
        ours, theirs = (torch.autograd.grad(e, u)[0] for e in (potential({"u": u}), exact))
        torch.testing.assert_close(ours, theirs)


def test_a_network_of_the_library_is_compiled_without_being_asked():
    model = BNN(MLP(2, 1, hidden=[3]), priors.Normal(), likelihoods.Gaussian(0.5), 15)
    args = (torch.randn(15, 2), torch.randn(15, 1))
    with pyro.validation_enabled(False):
        compiled, plain = Potential(model, args), Potential(model, args, trace=False)
    assert compiled.compiled
    assert not plain.compiled
    u = torch.randn(13)
    torch.testing.assert_close(compiled({"u": u}), plain({"u": u}))


def test_a_program_whose_structure_changes_is_run_every_time():
    def model(y):
        w = pyro.sample("w", dist.LogNormal(torch.zeros((), dtype=torch.float64), 1.0))
        scale = 1.0 if w.item() > 1 else 2.0
        with pyro.plate("data", 2):
            pyro.sample("obs", dist.Normal(w, scale), obs=y)

    potential = Potential(model, (torch.zeros(2, dtype=torch.float64),), trace=True)
    assert not potential.compiled
    for u in (-1.0, 1.0):
        w, scale = math.exp(u), 1.0 if u > 0 else 2.0
        exact = -float(dist.Normal(0.0, 1.0).log_prob(torch.tensor(u))) - 2 * float(
            dist.Normal(w, scale).log_prob(torch.tensor(0.0))
        )
        found = potential({"u": torch.tensor([u], dtype=torch.float64)})
        assert found.item() == pytest.approx(exact, rel=1e-5)
    torch.testing.assert_close(potential.values(torch.tensor([[0.3]]))["w"], torch.tensor([0.3]).exp())


def test_a_chain_begins_at_a_draw_of_the_prior_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prior of width 1e-3 about 5: a uniform start is thousands of its deviations away, a draw of it a few."""

    def narrow(x, y=None):
        pyro.sample("w", dist.Normal(5.0 * torch.ones(3), 1e-3 * torch.ones(3)).to_event(1))

    starts = {start: Potential(narrow, (None,), start=start).start for start in STARTS}
    assert ((starts["prior"] - 5).abs() < 5e-3).all()
    assert (starts["uniform"].abs() <= 2).all()
    with pytest.raises(ValueError, match="start='mode' is unknown: pass 'uniform' or 'prior'"):
        run_chain(narrow, (torch.zeros(1), torch.zeros(1)), start="mode")
