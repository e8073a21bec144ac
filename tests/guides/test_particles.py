"""
Every guide of one flat draw, or of one draw per site, against the loss worked out by hand at its own draws.

Programs with sites outside of plates, in one and in two nested plates, real and constrained; one particle, several one
after the other and several at once; Pyro's Predictive one by one and in parallel.
"""

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor
from torch.distributions import MultivariateNormal, biject_to

from pyro_bnn.guides import AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint
from pyro_bnn.inference import FlatMeanField_ELBO, TraceLowRank_ELBO
from pyro_bnn.inference.elbo import TracePathDerivative_ELBO

GUIDES: dict[str, Callable[[Any], Any]] = {
    "mean field": lambda model: AutoMeanFieldNormal(model, init_loc="normal", init_scale=0.3),
    "mean field per site": lambda model: AutoMeanFieldNormal(model, groups="site", init_loc="normal", init_scale=0.3),
    "low rank": lambda model: AutoLowRankNormal(model, rank=2, init_loc="normal", init_scale=0.4),
    "point": AutoPoint,
}


def everywhere() -> None:
    """Real sites outside of plates, as a number and as a vector."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", 4):
        pyro.sample("obs", dist.Normal(a + w.sum(-1), 0.5), obs=torch.arange(4.0))


def in_a_plate() -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("groups", 3):
        z = pyro.sample("z", dist.Normal(a, 0.7))
        v = pyro.sample("v", dist.Normal(torch.zeros(3, 2), 1.0).to_event(1))
        pyro.sample("obs", dist.Normal(z + v.sum(-1), 0.5), obs=torch.ones(3))


def in_two_plates() -> None:
    with pyro.plate("columns", 3, dim=-1):
        c = pyro.sample("c", dist.Normal(torch.zeros(3), 1.0))
        with pyro.plate("lines", 2, dim=-2):
            z = pyro.sample("z", dist.Normal(c, 0.7))
            pyro.sample("obs", dist.Normal(z, 0.5), obs=torch.arange(6.0).reshape(2, 3))
    with pyro.plate("lines again", 2, dim=-2):
        pyro.sample("r", dist.Normal(torch.zeros(2, 1), 1.0))


def constrained() -> None:
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("groups", 3):
        s = pyro.sample("s", dist.LogNormal(torch.zeros(3), 0.5))
        q = pyro.sample("q", dist.Dirichlet(torch.ones(3, 2)))
        z = pyro.sample("z", dist.Normal(0.0, tau))
        pyro.sample("obs", dist.Normal(z + q[..., 0] + p[..., 0], s), obs=torch.ones(3))


def constrained_in_two_plates() -> None:
    with pyro.plate("columns", 3, dim=-1), pyro.plate("lines", 2, dim=-2):
        s = pyro.sample("s", dist.Gamma(2.0, 1.0))
        pyro.sample("obs", dist.Normal(0.0, s), obs=torch.ones(2, 3))


PROGRAMS = [everywhere, in_a_plate, in_two_plates, constrained, constrained_in_two_plates]
PARTICLES = {"one": (1, False), "three one by one": (3, False), "three at once": (3, True)}


def built(program: Callable[[], None], name: str) -> Any:
    guide = GUIDES[name](program)
    guide()
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return guide


def draws_of(trace: Any, shapes: dict[str, torch.Size], number: int) -> list[dict[str, Tensor]]:
    """The values of each site by particle: particles stand in the outermost dimension."""
    values = {name: trace.nodes[name]["value"] for name in shapes}
    return [
        {
            name: (v.expand(number, *v.shape) if v.shape == shapes[name] else v)[s].reshape(shapes[name])
            for name, v in values.items()
        }
        for s in range(number)
    ]


def log_q(guide: Any, program: Callable[[], None], values: dict[str, Tensor]) -> Tensor:
    """Log q in the space of the values, from the textbook densities."""
    if isinstance(guide, AutoPoint):
        return torch.tensor(0.0)
    prior = poutine.trace(poutine.condition(program, data=values)).get_trace()
    u, jacobian = {}, torch.tensor(0.0)
    for name, value in values.items():
        transform = biject_to(prior.nodes[name]["fn"].support)
        u[name] = transform.inv(value)
        jacobian = jacobian + transform.log_abs_det_jacobian(u[name], value).sum() * (u[name] is not value)
    if isinstance(guide, AutoLowRankNormal):
        q = guide.distribution()
        covariance = torch.diag(q.sd.square()) + q.factor @ q.factor.T
        flat = torch.cat([u[name].reshape(-1) for name in guide.site_names()])
        return MultivariateNormal(q.loc.double(), covariance.double()).log_prob(flat.double()) - jacobian
    views = {name: guide.site(name) for name in values}
    terms = [dist.Normal(views[n].loc, views[n].scale).log_prob(u[n]).sum() for n in values]
    return torch.stack(terms).sum() - jacobian


@pytest.mark.parametrize("number", PARTICLES)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", GUIDES)
def test_the_loss_is_the_one_worked_out_at_the_same_draws(name: str, program: Callable[[], None], number: str) -> None:
    particles, at_once = PARTICLES[number]
    guide = built(program, name)
    shapes = {site: value.shape for site, value in guide.median().items()}
    elbo: Any = Trace_ELBO(num_particles=particles, vectorize_particles=at_once)
    elbo.loss(program, guide)  # guesses the nesting of plates, from draws
    pyro.set_rng_seed(1)
    loss = elbo.loss(program, guide)
    pyro.set_rng_seed(1)
    traces = [guide_trace for _, guide_trace in elbo._get_traces(program, guide, (), {})]
    draws = [d for t in traces for d in draws_of(t, shapes, particles if at_once else 1)]
    assert len(draws) == particles
    expected = []
    for values in draws:
        p = poutine.trace(poutine.condition(program, data=values)).get_trace()
        expected.append(log_q(guide, program, values) - p.log_prob_sum())
    assert loss == pytest.approx(float(torch.stack(expected).detach().mean()), rel=1e-4, abs=1e-3)


ELBOS: dict[str, list[Any]] = {
    "mean field": [TraceMeanField_ELBO, FlatMeanField_ELBO, TracePathDerivative_ELBO],
    "low rank": [TraceMeanField_ELBO, TraceLowRank_ELBO, TracePathDerivative_ELBO],
    "point": [TraceMeanField_ELBO, TracePathDerivative_ELBO],
}


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in ELBOS.items() for kind in kinds])
def test_every_estimator_has_the_mean_of_pyro_s_own(
    name: str, kind: Any, program: Callable[[], None], at_once: bool
) -> None:
    """60 losses of each, two-sided 5.5 sd: false alarm under 1e-6."""
    guide = built(program, name)
    stock = torch.tensor([Trace_ELBO().loss(program, guide) for _ in range(60)])
    elbo = kind(num_particles=3, vectorize_particles=at_once)
    ours = torch.tensor([elbo.loss(program, guide) for _ in range(60)])
    error = float((stock.var() / 60 + ours.var() / 60).sqrt())
    assert abs(float(ours.mean() - stock.mean())) <= 5.5 * error + 1e-4 * abs(float(stock.mean()))


@pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "parallel"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", GUIDES)
def test_pyro_s_predictive_draws_from_every_guide(name: str, program: Callable[[], None], parallel: bool) -> None:
    """Means and deviations of 400 draws in unconstrained space, two-sided 5.5 sd each: false alarm under 1e-5."""
    if parallel and program is everywhere:
        pytest.skip("Pyro takes the event dimension of a vector outside of plates for a plate, with its own guides too")
    guide = built(program, name)
    number = 400
    found = Predictive(program, guide=guide, num_samples=number, parallel=parallel)()
    prior = poutine.trace(program).get_trace()
    for site, value in guide.median().items():
        draws = found[site]
        assert draws.numel() == number * value.numel()
        u = biject_to(prior.nodes[site]["fn"].support).inv(draws.reshape(number, *value.shape)).double()
        view = guide.site(site)
        error = view.scale / number**0.5
        assert bool(((u.mean(0) - view.loc).abs() <= 5.5 * error + 1e-5).all())
        assert bool(((u.std(0) - view.scale).abs() <= 5.5 * error + 1e-5).all())


def test_plates_around_the_guide_where_a_site_has_its_own_are_refused() -> None:
    guide = built(in_a_plate, "low rank")
    with pytest.raises(ValueError, match=r"'z' of shape \(3,\).*further to the left"), pyro.plate("outer", 3, dim=-1):
        guide()
