"""KL weights: shares that sum to one, weights that act exactly, and the unweighted KL that is logged."""

import math
from fractions import Fraction

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from targets import MeanField, centred, kl_normal, softplus_inverse
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.inference import kl
from pyro_bnn.models import BNN, likelihoods, priors

EVEN = [100] * 6
SHORT = [100] * 5 + [37]


def shares(weight: kl.KLWeight, sizes: list[int]) -> list[float]:
    n, m = sum(sizes), len(sizes)
    return [weight.pi(batch=b, batch_size=size, num_batches=m, num_data=n) for b, size in enumerate(sizes)]


def weights(weight: kl.KLWeight, sizes: list[int], epoch: float = 0) -> list[float]:
    n, m = sum(sizes), len(sizes)
    return [
        weight.weight(batch=b, batch_size=size, epoch=epoch, num_batches=m, num_data=n) for b, size in enumerate(sizes)
    ]


# ------------------------------------------------------------------------------------------------------- shares


@pytest.mark.parametrize("sizes", [EVEN, SHORT, [100] * 500, [100] * 599 + [1], [7]])
@pytest.mark.parametrize(
    "weight",
    [kl.uniform(), kl.blundell(), *(kl.geometric(lam) for lam in (1e-3, 0.5, 0.97, 1 - 1e-12, 1.0, 1.03, 2.0, 1e3))],
)
def test_shares_of_an_epoch_sum_to_one(weight: kl.KLWeight, sizes: list[int]) -> None:
    assert sum(shares(weight, sizes)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("sizes", [EVEN, SHORT, [100] * 600])
@pytest.mark.parametrize("weight", [kl.uniform(), kl.blundell(), kl.geometric(2.0)])
def test_weights_of_an_epoch_charge_one_kl(weight: kl.KLWeight, sizes: list[int]) -> None:
    # loss_b is per datum and carries c_b = w_b / N: sum_b B_b c_b KL = KL, whatever the batch sizes
    n = sum(sizes)
    charged = sum(size * w / n for size, w in zip(sizes, weights(weight, sizes), strict=True))
    assert charged == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("num_batches", [1, 2, 7, 60])
def test_blundell_is_geometric_one_half_and_the_printed_formula(num_batches: int) -> None:
    sizes = [3] * num_batches
    printed = [Fraction(2 ** (num_batches - i), 2**num_batches - 1) for i in range(1, num_batches + 1)]
    assert shares(kl.blundell(), sizes) == pytest.approx([float(p) for p in printed], rel=1e-14)
    assert kl.blundell() == kl.geometric(0.5)


@pytest.mark.parametrize("lam", [0.3, 0.97, 1.0, 1.03, 2.0])
def test_geometric_is_the_printed_formula(lam: float) -> None:
    powers = [Fraction(lam) ** i for i in range(1, 10)]
    assert shares(kl.geometric(lam), [1] * 9) == pytest.approx([float(p / sum(powers)) for p in powers], rel=1e-13)


@pytest.mark.parametrize("num_batches", [500, 600, 5000])
@pytest.mark.parametrize("lam", [0.5, 2.0, 1e30])
def test_many_batches_do_not_overflow(num_batches: int, lam: float) -> None:
    values = shares(kl.geometric(lam), [100] * num_batches)
    assert all(math.isfinite(v) for v in values)
    assert max(values) == pytest.approx(max(1 - lam, 1 - 1 / lam), rel=1e-12)
    assert (values[0] > values[-1]) == (lam < 1)


def test_effective_number_of_batches_at_one_half() -> None:
    assert 1 / sum(p**2 for p in shares(kl.blundell(), [100] * 500)) == pytest.approx(3.0, rel=1e-12)


def test_share_above_even_as_computed_from_the_formula() -> None:
    values = shares(kl.geometric(0.5), [100] * 500)
    assert sum(v > 1 / 500 for v in values) / 500 == pytest.approx(0.016)
    assert sum(v > 1 / 500**2 for v in values) / 500 == pytest.approx(0.034)
    for lam, fraction in ((0.97, 0.178), (1.03, 0.182)):
        assert sum(v > 1 / 500 for v in shares(kl.geometric(lam), [100] * 500)) / 500 == pytest.approx(
            fraction, abs=5e-3
        )


def test_lambda_zero_means_no_kl() -> None:
    assert shares(kl.geometric(0), EVEN) == [0.0] * 6
    assert weights(kl.geometric(0), EVEN) == [0.0] * 6


def test_uniform_weight_is_exactly_one_for_every_batch() -> None:
    assert weights(kl.uniform(), SHORT) == [1.0] * 6
    assert weights(kl.KLWeight(), SHORT) == [1.0] * 6


# ------------------------------------------------------------------------------------------- factors, composition


def test_annealing() -> None:
    assert [kl.annealing_linear(e, 4) for e in (0, 1, 2, 4, 9)] == [0, 0.25, 0.5, 1, 1]
    assert [kl.annealing_cosine(e, 4) for e in (0, 1, 2, 3, 4, 9)] == pytest.approx(
        [0, 0.5 - math.sqrt(0.125), 0.5, 0.5 + math.sqrt(0.125), 1, 1]
    )
    assert weights(kl.annealed("cosine", epochs=4), SHORT, epoch=2) == pytest.approx([0.5] * 6)


def test_balanced_charges_tau_over_units() -> None:
    n = sum(SHORT)
    for weight in (kl.balanced(0.1, n_units=50), kl.balanced(0.1, n_params=50)):
        assert [w / n for w in weights(weight, SHORT)] == pytest.approx([0.1 / 50] * 6)


def test_composition_multiplies() -> None:
    parts = kl.geometric(0.97), kl.annealed("linear", epochs=8), kl.tempered(0.1), kl.tempered(0.5)
    composed = parts[1] * parts[0] * parts[2] * parts[3]
    expected = [w * 0.25 * 0.05 for w in weights(parts[0], SHORT)]
    assert weights(composed, SHORT, epoch=2) == pytest.approx(expected)
    assert shares(composed, SHORT) == shares(parts[0], SHORT)


def test_two_shares_cannot_be_composed() -> None:
    with pytest.raises(ValueError, match="both spread the KL"):
        kl.uniform() * kl.annealed(epochs=2) * kl.blundell()


def test_from_spec() -> None:
    assert kl.from_spec("uniform") == kl.uniform()
    assert kl.from_spec({"name": "geometric", "lam": 2}) == kl.geometric(2.0)
    spec = ["blundell", {"name": "annealed", "shape": "cosine", "epochs": 3}, {"name": "tempered", "eta": 0.1}]
    assert kl.from_spec(spec) == kl.blundell() * kl.annealed("cosine", epochs=3) * kl.tempered(0.1)
    assert kl.from_spec(kl.blundell()) == kl.blundell()
    assert set(kl.KL_WEIGHTS) == {"uniform", "geometric", "blundell", "annealed", "tempered", "balanced"}


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: kl.geometric(-0.1), ValueError, "lam=-0.1"),
        (lambda: kl.geometric(math.inf), ValueError, "lam=inf"),
        (lambda: kl.geometric("2"), TypeError, "not a number"),
        (lambda: kl.tempered(0), ValueError, r"geometric\(0\)"),
        (lambda: kl.tempered(math.nan), ValueError, "eta=nan"),
        (lambda: kl.annealed("sigmoid", epochs=3), ValueError, "cosine.*linear"),
        (lambda: kl.annealed("linear", epochs=0), ValueError, "epochs=0"),
        (lambda: kl.balanced(0.1), ValueError, "n_units.*n_params"),
        (lambda: kl.balanced(0.1, n_units=3, n_params=4), ValueError, "exactly one"),
        (lambda: kl.balanced(-1, n_units=3), ValueError, "tau=-1"),
        (lambda: kl.balanced(0.1, n_units=0), ValueError, "n_units=0"),
        (lambda: kl.balanced(0.1, n_params=2.5), TypeError, "n_params=2.5"),
        (lambda: kl.from_spec("unifrom"), ValueError, "unifrom.*uniform"),
        (lambda: kl.from_spec({"lam": 3}), ValueError, "None"),
        (lambda: kl.from_spec("geometric"), ValueError, "lam is missing"),
        (lambda: kl.from_spec({"name": "tempered", "T": 3}), ValueError, "no 'T'; it takes eta"),
        (lambda: kl.from_spec(3), TypeError, "3"),
        (lambda: kl.scale_kl(-0.1), ValueError, "KL weight=-0.1"),
        (lambda: kl.scale_kl(torch.ones(2)), ValueError, "one number"),
        (lambda: kl.scale_kl("1"), TypeError, "not a number"),
        (lambda: kl.per_datum(0), ValueError, "num_data=0"),
        (lambda: kl.per_datum(10.0), TypeError, "num_data=10.0"),
        (lambda: weights(kl.uniform(), EVEN, epoch=-1), ValueError, "epoch=-1"),
        (lambda: kl.uniform().pi(batch=6, batch_size=1, num_batches=6, num_data=9), ValueError, "batch=6"),
        (lambda: kl.uniform().pi(batch=0, batch_size=10, num_batches=6, num_data=9), ValueError, "batch_size=10"),
    ],
)
def test_bad_values_are_refused_with_a_remedy(build, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        build()


# ----------------------------------------------------------------------------------------------------- handlers

TARGET = centred()
LOC = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
SCALE = torch.tensor([0.2, 0.3, 0.4], dtype=torch.float64)
GUIDE = MeanField(LOC, SCALE)


def loss_and_gradient(elbo: Trace_ELBO, weight: float | torch.Tensor) -> tuple[float, torch.Tensor]:
    pyro.clear_param_store()
    pyro.set_rng_seed(3)
    with kl.scale_kl(weight):
        loss = elbo.loss_and_grads(TARGET.model, GUIDE, TARGET.x, TARGET.y)
    store = pyro.get_param_store()
    return loss, torch.cat([store[name].unconstrained().grad for name in ("loc", "rho")])


@pytest.mark.parametrize("weight", [0.0, 0.3, 2.0, torch.tensor(0.3, dtype=torch.float64)])
def test_the_weight_multiplies_the_kl_and_nothing_else(weight: float | torch.Tensor) -> None:
    # analytic: the difference is the closed form; total derivative: log q - log p at the same draw
    for elbo in (TraceMeanField_ELBO(), Trace_ELBO()):
        none, none_gradient = loss_and_gradient(elbo, 0.0)
        full, full_gradient = loss_and_gradient(elbo, 1.0)
        loss, gradient = loss_and_gradient(elbo, weight)
        assert loss == pytest.approx(none + float(weight) * (full - none), rel=1e-12)
        torch.testing.assert_close(gradient, none_gradient + weight * (full_gradient - none_gradient))
        if isinstance(elbo, TraceMeanField_ELBO):
            assert full - none == pytest.approx(float(kl_normal(LOC, SCALE, 0.0, TARGET.prior)), rel=1e-12)


def test_weight_zero_trains_to_the_least_squares_solution() -> None:
    svi = SVI(TARGET.model, GUIDE, pyro.optim.Adam({"lr": 0.05}), TraceMeanField_ELBO())
    for _ in range(400):
        with kl.per_datum(TARGET.num_data), kl.scale_kl(0.0):
            svi.step(TARGET.x, TARGET.y)
    least_squares = torch.linalg.lstsq(TARGET.x, TARGET.y[:, None]).solution[:, 0]
    assert torch.dist(pyro.param("loc"), least_squares) < 0.05 * torch.dist(LOC, least_squares)
    scale = nn.functional.softplus(pyro.param("rho").detach())
    assert float(scale.max()) < float(SCALE.min())  # the noise is unlearned


def test_per_datum_divides_loss_and_gradient_by_n() -> None:
    for elbo in (TraceMeanField_ELBO(), Trace_ELBO()):
        loss, gradient = loss_and_gradient(elbo, 0.3)
        with kl.per_datum(TARGET.num_data):
            mean_loss, mean_gradient = loss_and_gradient(elbo, 0.3)
        assert mean_loss == pytest.approx(loss / TARGET.num_data, rel=1e-12)
        torch.testing.assert_close(mean_gradient, gradient / TARGET.num_data)


def test_batches_of_an_epoch_average_to_the_full_batch_loss() -> None:
    # with w fixed, sum_b (B_b / N) loss_b is the full batch's loss, with a short last batch too
    def fixed(*args: object) -> None:
        pyro.sample("w", dist.Delta(LOC, event_dim=1))

    def loss(rows: slice) -> float:
        with kl.per_datum(TARGET.num_data), kl.scale_kl(1.0):
            return Trace_ELBO().loss(TARGET.model, fixed, TARGET.x[rows], TARGET.y[rows])

    batches = [slice(0, 5), slice(5, 10), slice(10, 12)]
    sizes = [5, 5, 2]
    averaged = sum(size / TARGET.num_data * loss(rows) for size, rows in zip(sizes, batches, strict=True))
    assert averaged == pytest.approx(loss(slice(0, 12)), rel=1e-12)


def scales(program, handler) -> dict[str, float]:  # type: ignore[no-untyped-def]
    with handler:
        trace = poutine.trace(program).get_trace()
    return {name: float(site["scale"]) for name, site in trace.nodes.items() if site["type"] == "sample"}


def hierarchical() -> None:
    pyro.sample("global", dist.Normal(0.0, 1.0))
    pyro.sample("auxiliary", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
    pyro.sample("seen", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))
    with pyro.plate("units", 3):
        pyro.sample("unit", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 10, subsample=torch.arange(4)):
        pyro.sample("local", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Normal(0.0, 1.0), obs=torch.zeros(4))


def test_only_unobserved_global_sites_are_scaled() -> None:
    latent = {"global": 0.3, "auxiliary": 0.3, "units": 1, "unit": 0.3}
    expected = {**latent, "seen": 1, "data": 1, "local": 2.5, "obs": 2.5}
    assert scales(hierarchical, kl.scale_kl(0.3)) == pytest.approx(expected)


def test_per_datum_reaches_every_site() -> None:
    expected = {"global": 0.1, "auxiliary": 0.1, "seen": 0.1, "unit": 0.1, "local": 0.25, "obs": 0.25}
    found = scales(hierarchical, kl.per_datum(10))
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_nested_weights_multiply_and_per_datum_refuses_to_nest() -> None:
    with kl.scale_kl(0.5):
        assert scales(hierarchical, kl.scale_kl(0.3))["global"] == pytest.approx(0.15)
    with kl.per_datum(3), pytest.raises(ValueError, match="divide the loss by N twice"), kl.per_datum(3):
        pass
    assert scales(hierarchical, kl.scale_kl(1.0))["global"] == 1.0


def test_a_tensor_weight_can_be_traced() -> None:
    def loss(weight: torch.Tensor) -> torch.Tensor:
        with kl.per_datum(TARGET.num_data), kl.scale_kl(weight):
            model_trace = poutine.trace(poutine.replay(TARGET.model, trace=fixed)).get_trace(TARGET.x, TARGET.y)
        return -model_trace.log_prob_sum()

    fixed = poutine.trace(GUIDE).get_trace()
    with pyro.validation_enabled(False):
        graph = make_fx(loss)(torch.tensor(1.0, dtype=torch.float64))
        for weight in (0.0, 0.3, 2.0):
            w = torch.tensor(weight, dtype=torch.float64)
            torch.testing.assert_close(graph(w), loss(w))


# -------------------------------------------------------------------------------------------------- KL(q || p)


def test_kl_is_the_golden_number() -> None:
    def model(y: torch.Tensor | None = None) -> None:
        pyro.sample("w", dist.Normal(0.0, 0.7))

    def guide(y: torch.Tensor | None = None) -> None:
        pyro.sample("w", dist.Normal(0.4, 0.3))

    with kl.scale_kl(0.1), kl.per_datum(7):  # no weight reaches it
        assert float(kl.kl_divergence(model, guide)) == pytest.approx(0.6024, abs=5e-5)


def test_kl_leaves_everything_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data=9)
    guide = AutoMeanFieldNormal(model)
    x, y = torch.randn(9, 3), torch.zeros(9, dtype=torch.long)
    guide(x)
    before = {k: v.clone() for k, v in [*model.state_dict().items(), *guide.state_dict().items()]}
    state = torch.get_rng_state()
    first = kl.kl_divergence(model, guide, x, y)
    assert torch.equal(state, torch.get_rng_state())
    assert not first.requires_grad
    assert all(torch.equal(before[k], v) for k, v in [*model.state_dict().items(), *guide.state_dict().items()])
    assert all(p.grad is None for p in guide.parameters())
    exact = sum(
        kl_normal(view.loc, view.scale, 0.0, float(model.priors()[name].base_dist.scale.flatten()[0]))
        for name in model.random_names
        for view in [guide.site(f"net.{name}")]
    )
    torch.testing.assert_close(first, exact)
    torch.testing.assert_close(kl.kl_divergence(model, guide, x), first)  # without y too


def test_sampled_kl_keeps_the_jacobian() -> None:
    # LogNormal against LogNormal: KL is that of the Normals beneath. AutoNormal samples a Delta beside them.
    def model() -> None:
        pyro.sample("v", dist.LogNormal(torch.tensor(0.5), torch.tensor(2.0)))

    guide = AutoNormal(model, init_scale=0.3, init_loc_fn=lambda site: torch.tensor(2.0))
    guide()
    loc, scale = guide.locs.v.item(), guide.scales.v.item()
    exact = float(kl_normal(torch.tensor(loc), torch.tensor(scale), 0.5, 2.0))
    estimate = float(kl.kl_divergence(model, guide, num_samples=2000))
    # per-draw deviation of log q - log p: -e^2/2 + ((loc - .5 + scale e) / 2)^2 / 2, about 0.74; 5 standard errors
    assert estimate == pytest.approx(exact, abs=5 * 0.74 / math.sqrt(2000))


def test_point_mass_pays_minus_log_prior() -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(torch.tensor(0.0), torch.tensor(2.0)))

    guide = AutoDelta(model, init_loc_fn=lambda site: torch.tensor(1.0))
    expected = -dist.Normal(0.0, 2.0).log_prob(torch.tensor(1.0))
    torch.testing.assert_close(kl.kl_divergence(model, guide), expected)


def test_kl_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="num_samples=0"):
        kl.kl_divergence(TARGET.model, GUIDE, TARGET.x, num_samples=0)


def test_softplus_inverse_of_the_target_guide() -> None:
    torch.testing.assert_close(nn.functional.softplus(softplus_inverse(SCALE)), SCALE)
