"""AutoMeanFieldNormal: exact KL, storage in groups, constrained sites, and what stays untouched."""

import copy
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from programs import CLASSES, FEATURES, ROWS, batch_norm, classes, grouped, hierarchical_logistic
from pyro.infer import SVI, TraceMeanField_ELBO
from targets import kl_normal
from torch import Tensor, nn

from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.guides.mean_field import DEFAULT_RHO, inverse_softplus
from pyro_bnn.inference import kl_divergence
from pyro_bnn.models import BNN, MLP, LeNet5, likelihoods, priors


def network(prior: priors.Prior | None = None, net: nn.Module | None = None) -> BNN:
    return BNN(net or MLP(FEATURES, CLASSES, [5]), prior or priors.Kaiming(), likelihoods.Categorical(), ROWS)


def one_site(fn: Any) -> Any:
    """A program with one latent site `s` and data that do not depend on it."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("s", fn)
        with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(x[:, 0], 1.0), obs=y)

    return model


def built(model: Any, x: Tensor | None = None, **options: Any) -> AutoMeanFieldNormal:
    guide = AutoMeanFieldNormal(model, **options)
    guide(classes()[0] if x is None else x)
    return guide


def put(guide: AutoMeanFieldNormal, loc: float | Tensor, scale: float) -> None:
    """Set every mean and every sigma of a guide without groups."""
    with torch.no_grad():
        guide.get_parameter("loc_unconstrained").copy_(torch.as_tensor(loc, dtype=torch.float64))
        rho = guide.get_parameter("rho_unconstrained")
        rho.copy_(inverse_softplus(torch.tensor(scale, dtype=torch.float64)))


# -- sigma -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_softplus_of_minus_ten(dtype: torch.dtype, tolerance: float) -> None:
    guide = AutoMeanFieldNormal(network().to(dtype), init_rho=-10.0)
    scale = guide.site("net.layers.0.weight").scale
    assert scale.dtype == dtype
    expected = torch.full_like(scale, 4.539889921686465e-05)
    torch.testing.assert_close(scale, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("sigma", [1e-7, 4.54e-5, 0.0181, 1.0, 30.0])
def test_initial_sigma_by_value(sigma: float) -> None:
    scale = AutoMeanFieldNormal(network(), init_scale=sigma).site("net.layers.0.bias").scale
    torch.testing.assert_close(scale, torch.full_like(scale, sigma), rtol=3e-6, atol=0)


def test_initial_sigma_relative_to_the_prior_and_by_default() -> None:
    model = network(priors.Kaiming())
    guide = AutoMeanFieldNormal(model, relative_scale=0.1)
    for name, prior in model.priors().items():
        torch.testing.assert_close(guide.site(f"net.{name}").scale, 0.1 * prior.stddev, rtol=1e-5, atol=0)
    default = AutoMeanFieldNormal(model).site("net.layers.0.weight").scale
    assert float(default[0, 0]) == pytest.approx(math.log1p(math.exp(DEFAULT_RHO)))


def test_inverse_softplus_inverts_softplus() -> None:
    rho = torch.linspace(-30, 30, 61, dtype=torch.float64)
    torch.testing.assert_close(inverse_softplus(torch.nn.functional.softplus(rho)), rho, rtol=1e-9, atol=1e-9)


def test_max_scale_caps_sigma_and_keeps_a_gradient() -> None:
    guide = AutoMeanFieldNormal(network(), init_scale=0.05, max_scale=0.1)
    start = guide.site("net.layers.0.weight").scale
    torch.testing.assert_close(start, torch.full_like(start, 0.05))
    rho = torch.linspace(-20, 1, 200, dtype=torch.float64, requires_grad=True)
    sigma = guide.scale_of(rho)
    sigma.sum().backward()
    assert float(sigma.detach().max()) <= 0.1
    assert bool((sigma.detach().diff() > 0).all())
    assert rho.grad is not None
    assert float(rho.grad.min()) > 0
    torch.testing.assert_close(sigma[0], torch.nn.functional.softplus(rho[0]), rtol=1e-7, atol=0)


def test_max_scale_holds_in_training() -> None:
    model = network(priors.Normal(scale=10.0))
    guide = AutoMeanFieldNormal(model, init_scale=0.05, max_scale=0.1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.5}), TraceMeanField_ELBO())
    for _ in range(30):
        svi.step(*classes())
    assert all(float(guide.site(name).scale.max()) <= 0.1 + 1e-8 for name in guide.site_names())
    assert float(guide.site("net.layers.0.weight").scale.max()) > 0.08


# -- the KL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_kl_of_one_normal_to_another(dtype: torch.dtype, tolerance: float) -> None:
    model = one_site(dist.Normal(torch.zeros((), dtype=dtype), 0.7))
    guide = built(model)
    put(guide, 0.4, 0.3)
    exact = math.log(0.7 / 0.3) + (0.3**2 + 0.4**2) / (2 * 0.7**2) - 0.5
    assert round(exact, 4) == 0.6024
    assert float(kl_divergence(model, guide, *classes())) == pytest.approx(exact, rel=tolerance)


@pytest.mark.parametrize("groups", [None, "site", {"biases": "*.bias"}])
def test_kl_to_the_prior_is_the_closed_form_without_noise(groups: Any) -> None:
    model = network(priors.Normal(0.1, 0.7)).double()
    guide = AutoMeanFieldNormal(model, groups=groups, relative_scale=0.3)
    exact = sum(
        kl_normal(site.loc - 0.1, site.scale, 0.0, 0.7) for site in (guide.site(name) for name in guide.site_names())
    )
    first = kl_divergence(model, guide, *classes())
    torch.testing.assert_close(first, torch.as_tensor(exact), rtol=1e-6, atol=0)
    assert float(first) == float(kl_divergence(model, guide, *classes()))


def test_stock_elbo_takes_the_analytic_kl() -> None:
    """Without data the stock loss is the KL itself, the same number at every call."""
    model = network().double()
    guide = AutoMeanFieldNormal(model, relative_scale=0.5)
    exact = sum(
        float(
            kl_normal(guide.site(f"net.{name}").loc, guide.site(f"net.{name}").scale, 0.0, float(p.stddev.flatten()[0]))
        )
        for name, p in model.priors().items()
    )
    losses = [TraceMeanField_ELBO().loss(lambda *_: model.sample_weights(), guide, *classes()) for _ in range(3)]
    assert losses[0] == losses[1] == losses[2]
    assert losses[0] == pytest.approx(exact, rel=1e-6)


def gamma_case(loc: float, sd: float) -> tuple[Any, float]:
    """KL(LogNormal(loc, sd) || Gamma(2, 3))."""
    entropy = loc + 0.5 + math.log(sd * math.sqrt(2 * math.pi))
    cross = 2 * math.log(3) - math.lgamma(2) + loc - 3 * math.exp(loc + sd**2 / 2)
    return dist.Gamma(2.0, 3.0), -entropy - cross


def half_normal_case(loc: float, sd: float) -> tuple[Any, float]:
    """KL(LogNormal(loc, sd) || HalfNormal(0.5))."""
    entropy = loc + 0.5 + math.log(sd * math.sqrt(2 * math.pi))
    cross = 0.5 * math.log(2 / (math.pi * 0.25)) - math.exp(2 * loc + 2 * sd**2) / (2 * 0.25)
    return dist.HalfNormal(0.5), -entropy - cross


@pytest.mark.parametrize("case", [gamma_case, half_normal_case])
def test_sampled_kl_of_a_positive_site_is_unbiased(case: Any) -> None:
    loc, sd, draws = -0.7, 0.4, 100_000
    prior, exact = case(loc, sd)
    model = one_site(prior)
    guide = built(model)
    put(guide, loc, sd)
    fn: Any = poutine.trace(guide).get_trace().nodes["s"]["fn"]
    with torch.no_grad():
        s = fn.rsample((draws,))
        terms = (fn.log_prob(s) - prior.log_prob(s)).double()
    assert abs(float(terms.mean()) - exact) < 4.9 * float(terms.std()) / math.sqrt(draws)  # false alarm 1e-6
    logged = kl_divergence(model, guide, classes()[0], num_samples=400)
    assert abs(float(logged) - exact) < 4.9 * float(terms.std()) / 20


CONSTRAINED: dict[str, Any] = {
    "positive": dist.HalfNormal(1.0),
    "positive vector": dist.Gamma(2.0, 1.0).expand([3]).to_event(1),
    "interval": dist.Beta(2.0, 2.0),
    "simplex": dist.Dirichlet(torch.ones(3)),
    "matrix of simplices": dist.Dirichlet(torch.ones(3)).expand([2]).to_event(1),
    "correlation": dist.LKJCholesky(3),
    "real": dist.StudentT(5.0).expand([2]).to_event(1),
    "real vector": dist.MultivariateNormal(torch.zeros(2), torch.eye(2)),
    "mixture": priors.ScaleMixture()("w", None, torch.zeros(2, 3)),
}


@pytest.mark.parametrize("kind", CONSTRAINED)
def test_every_draw_is_in_the_support_with_its_density(kind: str) -> None:
    prior = CONSTRAINED[kind]
    guide = built(one_site(prior))
    put(guide, guide.get_parameter("loc_unconstrained").detach(), 0.5)
    trace = poutine.trace(guide).get_trace()
    site = trace.nodes["s"]
    assert site["value"].shape == prior.batch_shape + prior.event_shape
    assert site["fn"].batch_shape == prior.batch_shape
    assert site["fn"].event_shape == prior.event_shape
    with torch.no_grad():
        draws = site["fn"].rsample((200,))
    assert bool(prior.support.check(draws).all())
    assert torch.isfinite(site["fn"].log_prob(site["value"])).all()
    assert bool(prior.support.check(guide.median()["s"]).all())


def test_density_of_a_transformed_site_integrates_to_one() -> None:
    guide = built(one_site(dist.Beta(2.0, 2.0)))
    put(guide, 0.3, 0.8)
    fn: Any = poutine.trace(guide).get_trace().nodes["s"]["fn"]
    grid = torch.linspace(1e-6, 1 - 1e-6, 20_001)
    with torch.no_grad():
        assert float(torch.trapezoid(fn.log_prob(grid).exp(), grid)) == pytest.approx(1.0, abs=1e-4)


def test_mixture_prior_s_kl_is_unbiased() -> None:
    """Against the trapezoidal integral of q log(q / p) for one weight."""
    prior = priors.ScaleMixture(0.25, 1.0, 0.1)("w", None, torch.zeros(1))
    model = one_site(prior)
    guide = built(model)
    put(guide, 0.15, 0.2)
    grid = torch.linspace(-2, 2.3, 20_001)
    q = torch.distributions.Normal(0.15, 0.2).log_prob(grid)
    p = torch.logaddexp(
        math.log(0.25) + torch.distributions.Normal(0.0, 1.0).log_prob(grid),
        math.log(0.75) + torch.distributions.Normal(0.0, 0.1).log_prob(grid),
    )
    exact = float(torch.trapezoid(q.exp() * (q - p), grid))
    variance = float(torch.trapezoid(q.exp() * (q - p - exact) ** 2, grid))
    found = float(kl_divergence(model, guide, classes()[0], num_samples=900))
    assert abs(found - exact) < 4.9 * math.sqrt(variance / 900)  # false alarm 1e-6


# -- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [None, "site"])
def test_draws_have_the_stated_moments(groups: Any) -> None:
    model = network(net=MLP(20, 10, []))
    guide = AutoMeanFieldNormal(model, groups=groups, init_scale=0.5)
    site = guide.site("net.layers.0.weight")
    with torch.no_grad():
        draws = torch.stack([guide()["net.layers.0.weight"] for _ in range(200)])
    z = ((draws - site.loc) / site.scale).double().reshape(-1)
    assert abs(float(z.mean())) < 4.9 / math.sqrt(len(z))  # false alarm 1e-6 each
    assert abs(float(z.square().mean()) - 1) < 4.9 * math.sqrt(2 / len(z))


def test_a_site_s_distribution_can_be_drawn_from_again() -> None:
    """Its first draw is a slice of one flat draw; the next ones are its own."""
    site = poutine.trace(AutoMeanFieldNormal(network(), init_scale=0.5)).get_trace().nodes["net.layers.0.weight"]
    first, second = site["fn"].rsample(), site["fn"].rsample()
    assert first.shape == second.shape == site["value"].shape
    assert not torch.equal(first, second)
    assert not torch.equal(first, site["value"])


def test_vectorised_particles_are_independent_draws() -> None:
    guide = AutoMeanFieldNormal(network(net=MLP(20, 10, [])), init_scale=0.5)
    site = guide.site("net.layers.0.weight")
    with torch.no_grad(), pyro.plate("particles", 500, dim=-2):
        draws = guide()["net.layers.0.weight"]
    assert draws.shape == (500, 1, 10, 20)
    z = ((draws.squeeze(1) - site.loc) / site.scale).double()
    assert abs(float(z.mean())) < 4.9 / math.sqrt(z.numel())
    assert abs(float(z.square().mean()) - 1) < 4.9 * math.sqrt(2 / z.numel())
    assert abs(float((z[0] * z[1]).mean())) < 4.9 / math.sqrt(200)


# -- groups, freezing, looking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "sizes"),
    [
        (None, {"loc": 44, "rho": 44}),
        (
            {"first": "net.layers.0.*", "last": ["net.layers.1.weight", "net.layers.1.bias"]},
            {"first.loc": 20, "first.rho": 20, "last.loc": 24, "last.rho": 24},
        ),
        (
            {"first": "net.layers.0.*"},
            {"first.loc": 20, "first.rho": 20, "rest.loc": 24, "rest.rho": 24},
        ),
    ],
)
def test_groups_are_flat_vectors(groups: Any, sizes: dict[str, int]) -> None:
    guide = AutoMeanFieldNormal(network(), groups=groups)
    found = {name.removesuffix("_unconstrained"): p.numel() for name, p in guide.named_parameters()}
    assert found == sizes
    assert all(p.dim() == 1 for p in guide.parameters())


def test_one_pair_per_site() -> None:
    guide = AutoMeanFieldNormal(network(), groups="site")
    names = {name.removesuffix("_unconstrained") for name, _ in guide.named_parameters()}
    assert names == {f"{site}.{which}" for site in guide.site_names() for which in ("loc", "rho")}


def test_groups_change_the_storage_and_nothing_else() -> None:
    model = network()
    found = []
    for groups in (None, "site", {"biases": "*.bias"}):
        torch.manual_seed(3)
        guide = AutoMeanFieldNormal(model, groups=groups, relative_scale=0.2)
        found.append({name: guide.site(name) for name in guide.site_names()})
    for other in found[1:]:
        assert all(torch.equal(a, b) for name in found[0] for a, b in zip(found[0][name], other[name], strict=True))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(("which", "moves"), [("loc", "scale"), ("scale", "loc")])
def test_freezing_one_part_trains_the_other(which: str, moves: str, local: bool) -> None:
    with pyro.settings.context(module_local_params=local):
        model = network()
        guide = AutoMeanFieldNormal(model, freeze=which)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
        before = guide.site("net.layers.0.weight")
        svi.step(*classes())
        after = guide.site("net.layers.0.weight")
        assert torch.equal(getattr(before, which), getattr(after, which))
        assert not torch.equal(getattr(before, moves), getattr(after, moves))
        guide.unfreeze(which)
        svi.step(*classes())
        assert not torch.equal(getattr(before, which), getattr(guide.site("net.layers.0.weight"), which))


def test_freezing_waits_for_a_program_s_first_call() -> None:
    guide = built(hierarchical_logistic, grouped()[0], freeze=["scale"])
    assert {n: p.requires_grad for n, p in guide.named_parameters()} == {
        "loc_unconstrained": True,
        "rho_unconstrained": False,
    }


def test_median_of_constrained_sites_is_mapped() -> None:
    guide = built(hierarchical_logistic, grouped()[0])
    median = guide.median(grouped()[0])
    assert float(median["tau"]) == pytest.approx(math.exp(float(guide.site("tau").loc)))
    assert torch.equal(median["alpha"], guide.site("alpha").loc)


def test_site_views_are_detached_copies() -> None:
    guide = AutoMeanFieldNormal(network())
    view = guide.site("net.layers.0.weight")
    assert view.loc.shape == (5, FEATURES)
    assert not view.loc.requires_grad
    view.loc.zero_()
    assert not torch.equal(guide.site("net.layers.0.weight").loc, view.loc)


def test_set_state_of_the_store_reaches_site() -> None:
    model = network()
    guide = AutoMeanFieldNormal(model)
    guide()
    state = pyro.get_param_store().get_state()
    state["params"] = {name: value.detach().clone() + 1 for name, value in state["params"].items()}
    before = guide.site("net.layers.0.weight").loc
    pyro.get_param_store().set_state(state)
    torch.testing.assert_close(guide.site("net.layers.0.weight").loc, before + 1)
    torch.testing.assert_close(guide.median()["net.layers.0.weight"], before + 1)
    SVI(model, guide, pyro.optim.SGD({"lr": 1e-3}), TraceMeanField_ELBO()).step(*classes())
    assert not torch.equal(guide.site("net.layers.0.weight").loc, before + 1)


# -- what stays untouched --------------------------------------------------------------------------------------------


def test_building_leaves_buffers_and_random_state() -> None:
    model = network(net=batch_norm()).train()
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    state = torch.get_rng_state()
    AutoMeanFieldNormal(model, init_loc="zeros")
    built(hierarchical_logistic, grouped()[0], init_loc="zeros", init_scale=0.1)
    program = network(net=batch_norm()).train()
    torch.set_rng_state(state)
    AutoMeanFieldNormal(lambda x, y=None: program(x, y), init_loc="zeros")._setup_prototype(classes()[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())


def test_building_puts_buffers_back_after_a_failure() -> None:
    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(FEATURES)

        def forward(self, x: Tensor, y: Tensor | None = None) -> None:
            pyro.sample("s", dist.Normal(0.0, 1.0))
            self.norm(x)
            raise RuntimeError("on purpose")

    model = Program()
    guide = AutoMeanFieldNormal(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="on purpose"):
            guide(classes()[0])
    assert int(model.norm.num_batches_tracked) == 0


def test_building_needs_no_labels_and_hides_the_observed_site() -> None:
    guide = built(hierarchical_logistic, grouped()[0])
    assert guide.site_names() == ["mu", "tau", "alpha", "beta"]


def test_no_graph_tensor_is_kept() -> None:
    model = network()
    guide = AutoMeanFieldNormal(model)
    TraceMeanField_ELBO().loss_and_grads(model, guide, *classes())

    def graphs(value: Any, depth: int = 0) -> list[Any]:
        if isinstance(value, Tensor):
            return [] if value.is_leaf else [value]
        if isinstance(value, dict):
            return [g for v in value.values() for g in graphs(v, depth + 1)]
        if isinstance(value, (list, tuple)):
            return [g for v in value for g in graphs(v, depth + 1)]
        if depth < 4 and hasattr(value, "__dict__"):
            return [g for v in vars(value).values() for g in graphs(v, depth + 1)]
        return []

    assert graphs(torch.ones(1, requires_grad=True) * 2)  # the search finds one
    assert graphs(vars(guide)) == []


@pytest.mark.parametrize("local", [False, True])
def test_two_guides_of_one_class_keep_their_parameters(local: bool) -> None:
    with pyro.settings.context(module_local_params=local):
        model = network()
        first, second = AutoMeanFieldNormal(model), AutoMeanFieldNormal(model)
        first(), second()
        before = second.site("net.layers.0.weight")
        svi = SVI(model, first, pyro.optim.Adam({"lr": 0.1}), TraceMeanField_ELBO())
        start = first.site("net.layers.0.weight")
        for _ in range(3):
            svi.step(*classes())
        second()
        after = second.site("net.layers.0.weight")
        assert torch.equal(before.loc, after.loc)
        assert torch.equal(before.scale, after.scale)
        assert not torch.equal(start.loc, first.site("net.layers.0.weight").loc)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("groups", [None, "site"])
def test_a_deep_copy_shares_no_parameter(groups: Any, local: bool) -> None:
    with pyro.settings.context(module_local_params=local):
        model = network()
        guide = AutoMeanFieldNormal(model, groups=groups)
        guide()
        twin = copy.deepcopy(guide)
        twin()
        before = twin.site("net.layers.0.weight")
        SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), TraceMeanField_ELBO()).step(*classes())
        twin()
        assert torch.equal(before.loc, twin.site("net.layers.0.weight").loc)
        assert not torch.equal(before.loc, guide.site("net.layers.0.weight").loc)
        assert list(twin.state_dict()) == list(guide.state_dict())


def test_saved_names_are_relative() -> None:
    first, second = AutoMeanFieldNormal(network()), AutoMeanFieldNormal(network())
    assert list(first.state_dict()) == list(second.state_dict()) == ["loc_unconstrained", "rho_unconstrained"]


def test_a_deep_network_is_one_pair_of_vectors() -> None:
    guide = AutoMeanFieldNormal(BNN(LeNet5(), priors.Kaiming(), likelihoods.Categorical(), 60_000))
    assert [p.numel() for p in guide.parameters()] == [61_706, 61_706]


# -- what is refused -------------------------------------------------------------------------------------------------


def discrete(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("s", dist.Bernoulli(0.5))


def sequential(x: Tensor, y: Tensor | None = None) -> None:
    for i in pyro.plate("groups", 2):
        pyro.sample(f"s{i}", dist.Normal(0.0, 1.0))


def local_site(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("rows", ROWS, subsample=torch.arange(5)):
        pyro.sample("s", dist.Normal(0.0, 1.0))


def in_data_plate(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
        pyro.sample("s", dist.Normal(0.0, 1.0))


def nothing(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("obs", dist.Normal(0.0, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (discrete, "site 's' is discrete"),
        (sequential, "sequential plate 'groups'.*with pyro.plate"),
        (local_site, "subsampled plate 'rows'"),
        (in_data_plate, "plate 'data'"),
        (nothing, "no latent site"),
    ],
)
def test_programs_that_do_not_fit_say_so_each_time(model: Any, message: str) -> None:
    guide = AutoMeanFieldNormal(model)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            guide(classes()[0])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"init_loc": "xavier"}, ValueError, "init_loc='xavier' .*'uniform'"),
        ({"init_scale": 0.1, "init_rho": -3.0}, ValueError, "pass one of them"),
        ({"init_scale": 0.0}, ValueError, "init_scale=0.0 .* above 0"),
        ({"init_scale": math.nan}, ValueError, "init_scale=nan .* finite"),
        ({"relative_scale": -1.0}, ValueError, "relative_scale=-1.0 .* above 0"),
        ({"init_rho": math.inf}, ValueError, "init_rho=inf .* -4"),
        ({"max_scale": 0.0}, ValueError, "max_scale=0.0 .* above 0"),
        ({"max_scale": 0.01, "init_scale": 0.02}, ValueError, r"max_scale=0.01 .* 0.02.*raise one"),
        ({"groups": "layer"}, ValueError, "groups='layer' .* 'site'"),
        ({"groups": {}}, ValueError, "dict of group name"),
        ({"groups": {"a-b": "*"}}, ValueError, "'a-b' cannot name"),
        ({"groups": {"conv": "conv*"}}, ValueError, "'conv\\*' .* matches no site.*net.layers.0.weight"),
        ({"groups": {"a": "*.weight", "b": "net.layers.0.*"}}, ValueError, "is in 'a' and in 'b'; pick one"),
        ({"groups": {"model": "*"}}, ValueError, "'model' begins with the name of an attribute"),
        ({"groups": {"train": "*"}}, ValueError, "'train' begins with"),
        ({"freeze": "sigma"}, ValueError, "'sigma' .* 'loc' or 'scale'"),
        ({"freeze": ["loc", "rho"]}, ValueError, "'rho' .* 'loc' or 'scale'"),
    ],
)
def test_bad_input_names_value_and_remedy(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AutoMeanFieldNormal(network(), **options)


def test_other_mistakes_say_what_to_do() -> None:
    with pytest.raises(TypeError, match="model is a str; pass a Pyro program"):
        AutoMeanFieldNormal("lenet5")
    guide = AutoMeanFieldNormal(hierarchical_logistic)
    with pytest.raises(RuntimeError, match="call it once"):
        guide.site("mu")
    guide(grouped()[0])
    with pytest.raises(KeyError, match=r"no site 'gamma'.*'mu'"):
        guide.site("gamma")


@pytest.mark.parametrize("prior", [dist.LKJCholesky(3), dist.HalfNormal(1.0), dist.Cauchy(0.0, 1.0)])
def test_relative_scale_needs_a_deviation_to_be_relative_to(prior: Any) -> None:
    with pytest.raises(ValueError, match=r"site 's' .* init_scale instead"):
        built(one_site(prior), relative_scale=0.1)
