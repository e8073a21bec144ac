"""
Contracts that everything in a table keeps, with Pyro's global parameter store and with module-local parameters.

A newcomer adds one row: a guide to GUIDES, a kind of model to MODELS, a likelihood to LIKELIHOODS, an optimizer to
OPTIMIZERS (by registering it), a network to NETWORKS (by exporting it).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.poutine as poutine
import pytest
import torch
from programs import (
    CLASSES,
    FEATURES,
    ROWS,
    Attention,
    Recurrent,
    Tied,
    batch_norm,
    classes,
    grouped,
    hierarchical_logistic,
    stock_fit,
    with_parameter,
)
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoLowRankMultivariateNormal, AutoNormal
from torch import Tensor, nn

from pyro_bnn.guides import AutoFullRankNormal, AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint
from pyro_bnn.inference import FlatMeanField_ELBO, kl_divergence, per_datum, predictive_draws, scale_kl
from pyro_bnn.inference.checkpoint import parameters_of
from pyro_bnn.inference.draws import ClassDraw, draw_of
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import OPTIMIZERS
from pyro_bnn.posterior import Posterior
from pyro_bnn.registry import BUILT_IN, look_up


@dataclass(frozen=True)
class GuideRow:
    """How a guide is built for a model; whether it is this library's; whether it has a spread to draw from."""

    make: Callable[[Any], Any]
    own: bool = True
    spread: bool = True


@dataclass(frozen=True)
class ModelRow:
    """A program with N rows of data for it."""

    make: Callable[[], tuple[Any, Tensor, Tensor]]
    network: bool = True


def skip_what_pyro_refuses(model_name: str, store: bool, guide_name: str = "", stock: bool = False) -> None:
    """Module-local parameters have gaps of Pyro's own."""
    if store and model_name == "hand-written, with a parameter":
        pytest.skip("Pyro refuses pyro.param inside a PyroModule under module_local_params")
    if store and stock and guide_name in ("Pyro's AutoDiagonalNormal", "Pyro's AutoLowRank"):
        pytest.skip("Pyro's SVI finds no unconstrained value of these guides' parameters under module_local_params")


def hidden(model: Any) -> Any:
    """The model as Pyro's own guides take it: without its observed site, nor the plate of rows."""
    return poutine.block(model, hide=["obs", "data"])


GUIDES: dict[str, GuideRow] = {
    "mean field": GuideRow(AutoMeanFieldNormal),
    "mean field per site": GuideRow(lambda model: AutoMeanFieldNormal(model, groups="site", init_scale=0.1)),
    "mean field capped": GuideRow(lambda model: AutoMeanFieldNormal(model, max_scale=0.2, init_loc="zeros")),
    "low rank": GuideRow(lambda model: AutoLowRankNormal(model, rank=2)),
    "full rank": GuideRow(AutoFullRankNormal),
    "point": GuideRow(AutoPoint, spread=False),
    "Pyro's AutoNormal": GuideRow(lambda model: AutoNormal(hidden(model)), own=False),
    "Pyro's AutoDelta": GuideRow(lambda model: AutoDelta(hidden(model)), own=False, spread=False),
    "Pyro's AutoDiagonalNormal": GuideRow(lambda model: AutoDiagonalNormal(hidden(model)), own=False),
    "Pyro's AutoLowRank": GuideRow(lambda model: AutoLowRankMultivariateNormal(hidden(model), rank=2), own=False),
}
OWN = [name for name, row in GUIDES.items() if row.own]


def network(net: nn.Module, likelihood: likelihoods.Likelihood | None = None, **options: Any) -> Any:
    return BNN(net, priors.Kaiming(), likelihood or likelihoods.Categorical(), ROWS, **options), *classes()


def regression(likelihood: likelihoods.Likelihood, outputs: int = 1) -> Any:
    model, x, _ = network(MLP(FEATURES, outputs, [4]), likelihood)
    return model, x, x.sum(-1)


MODELS: dict[str, ModelRow] = {
    "mlp": ModelRow(lambda: network(MLP(FEATURES, CLASSES, [5]))),
    "mixture prior": ModelRow(
        lambda: (
            BNN(MLP(FEATURES, CLASSES, [5]), priors.ScaleMixture(), likelihoods.Categorical(), ROWS),
            *classes(),
        )
    ),
    "batch norm": ModelRow(lambda: network(batch_norm())),
    "random batch norm": ModelRow(lambda: network(batch_norm(), random="*")),
    "layer norm": ModelRow(
        lambda: network(nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.Linear(5, CLASSES)))
    ),
    "tied": ModelRow(lambda: network(Tied())),
    "attention": ModelRow(lambda: network(Attention())),
    "recurrent": ModelRow(lambda: network(Recurrent())),
    "learned noise": ModelRow(lambda: regression(likelihoods.LearnedGaussian())),
    "hand-written, with plates": ModelRow(lambda: (hierarchical_logistic, *grouped()), network=False),
    "hand-written, with a parameter": ModelRow(
        lambda: (with_parameter, classes()[0], classes()[0].sum(-1)), network=False
    ),
}
NETWORKS = [name for name, row in MODELS.items() if row.network]

LIKELIHOODS: dict[str, tuple[likelihoods.Likelihood, int, Callable[[], Tensor]]] = {
    "categorical": (likelihoods.Categorical(), CLASSES, lambda: classes()[1]),
    "normalised sigmoid": (likelihoods.Categorical(link="sigmoid"), CLASSES, lambda: classes()[1]),
    "bernoulli": (likelihoods.Bernoulli(), 1, lambda: classes()[1] % 2),
    "clamped bernoulli": (likelihoods.Bernoulli(link="clamp", eps=0.01), 1, lambda: classes()[1] % 2),
    "gaussian": (likelihoods.Gaussian(0.5), 2, lambda: classes()[0][:, :2]),
    "learned gaussian": (likelihoods.LearnedGaussian(), 1, lambda: classes()[0][:, 0]),
    "heteroscedastic gaussian": (likelihoods.HeteroscedasticGaussian(), 4, lambda: classes()[0][:, :2]),
    "student t": (likelihoods.StudentT(), 2, lambda: classes()[0][:, :2]),
    "poisson": (likelihoods.Poisson(), 1, lambda: classes()[1].float()),
    "negative binomial": (likelihoods.NegativeBinomial(), 1, lambda: classes()[1].float()),
}


@pytest.fixture(params=[False, True], ids=["global", "module_local"])
def store(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pyro.settings.context(module_local_params=request.param):
        yield request.param


def adam(lr: float = 0.02) -> Any:
    return pyro.optim.Adam({"lr": lr})


def trained(model: Any, guide: Any) -> dict[str, Tensor]:
    """Every tensor that an optimizer may move, by name."""
    found = {
        f"{part}.{name}": p
        for part, program in (("model", model), ("guide", guide))
        if isinstance(program, nn.Module)
        for name, p in program.named_parameters()
        if p.requires_grad
    }
    return found | {name: p for name, p in pyro.get_param_store()._params.items() if name == "noise"}


# -- guides and models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("guide_name", GUIDES)
def test_fit_moves_every_parameter_and_the_posterior_predicts(guide_name: str, model_name: str, store: bool) -> None:
    skip_what_pyro_refuses(model_name, store)
    model, x, y = MODELS[model_name].make()
    guide = GUIDES[guide_name].make(model)
    guide(x), model(x, y)
    before = {name: p.detach().clone() for name, p in trained(model, guide).items()}
    assert len(before) >= 1
    result = stock_fit(model, guide, adam(), (x, y), epochs=2, batch_size=7, seed=0, val=(x, y))
    assert all(
        torch.isfinite(torch.tensor([line[key] for key in ("loss", "nll", "kl", "val_nll")])).all()
        for line in result.history
    )
    after = trained(model, guide)
    assert after.keys() == before.keys()
    still = [name for name in before if torch.equal(before[name], after[name].detach())]
    assert still == []
    many = x.repeat(5, 1)  # more rows than N
    predicted: Any = Posterior(model, guide).predict(many, 3, seed=0)
    predicted = predicted if isinstance(predicted, Tensor) else predicted.mean
    assert len(predicted) == 5 * ROWS
    torch.testing.assert_close(predicted[:ROWS], predicted[-ROWS:])  # one weight sample for the whole set


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("guide_name", GUIDES)
def test_stock_svi_trains_it(guide_name: str, model_name: str, store: bool) -> None:
    skip_what_pyro_refuses(model_name, store, guide_name, stock=True)
    model, x, y = MODELS[model_name].make()
    guide = GUIDES[guide_name].make(model)
    guide(x), model(x, y)
    before = {name: p.detach().clone() for name, p in trained(model, guide).items()}
    svi = SVI(model, guide, adam(), TraceMeanField_ELBO())
    loss = svi.step(x[:7], y[:7])
    with per_datum(ROWS), scale_kl(0.5):
        scaled = svi.step(x[:7], y[:7])
    assert torch.isfinite(torch.tensor([loss, scaled])).all()
    assert abs(scaled) < abs(loss)
    assert all(not torch.equal(before[name], p.detach()) for name, p in trained(model, guide).items())


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("guide_name", OWN)
def test_two_guides_of_one_class_share_nothing(guide_name: str, model_name: str, store: bool) -> None:
    skip_what_pyro_refuses(model_name, store)
    model, x, y = MODELS[model_name].make()
    first, second = (GUIDES[guide_name].make(model) for _ in range(2))
    first(x), second(x)
    kept = {name: p.detach().clone() for name, p in second.named_parameters()}
    stock_fit(model, first, adam(), (x, y), epochs=1, batch_size=8)
    second(x)
    assert all(torch.equal(kept[name], p) for name, p in second.named_parameters())
    assert list(first.state_dict()) == list(second.state_dict())  # saved names are relative


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("guide_name", OWN)
def test_building_a_guide_needs_no_labels_and_leaves_buffers_alone(guide_name: str, model_name: str) -> None:
    model, x, _ = MODELS[model_name].make()
    buffers = [b.clone() for b in model.buffers()] if isinstance(model, nn.Module) else []
    guide = GUIDES[guide_name].make(model)
    sites = guide(x)
    assert "obs" not in sites
    if isinstance(model, nn.Module):
        assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))
        assert model.training


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("guide_name", [name for name in OWN if GUIDES[name].spread])
def test_draws_differ_and_the_logged_kl_is_finite(guide_name: str, model_name: str) -> None:
    model, x, y = MODELS[model_name].make()
    guide = GUIDES[guide_name].make(model)
    guide(x)
    a, b = predictive_draws(model, guide, x, 2)
    field = "log_probs" if hasattr(a, "log_probs") else "mean"
    assert not torch.equal(getattr(a, field), getattr(b, field))
    state = torch.get_rng_state()
    assert bool(torch.isfinite(kl_divergence(model, guide, x, y)))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("model_name", NETWORKS)
@pytest.mark.parametrize("guide_name", GUIDES)
def test_vectorised_particles_train_every_network(guide_name: str, model_name: str) -> None:
    model, x, y = MODELS[model_name].make()
    guide = GUIDES[guide_name].make(model)
    guide(x)
    elbo = TraceMeanField_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1)
    before = [p.detach().clone() for p in guide.parameters()]
    assert torch.isfinite(torch.tensor(SVI(model, guide, adam(), elbo).step(x, y)))
    assert not any(torch.equal(a, b) for a, b in zip(before, guide.parameters(), strict=True))


@pytest.mark.parametrize("model_name", NETWORKS)
@pytest.mark.parametrize("parallel", [False, True])
def test_pyro_s_predictive_takes_every_network(model_name: str, parallel: bool, store: bool) -> None:
    model, x, _ = MODELS[model_name].make()
    guide = AutoMeanFieldNormal(model)
    model.eval()
    found = Predictive(model, guide=guide, num_samples=4, parallel=parallel)(x.repeat(3, 1))
    assert found["obs"].shape[:2] == (4, 3 * ROWS)


@pytest.mark.parametrize("model_name", [name for name in NETWORKS if name != "recurrent"])
def test_many_particles_have_the_expected_loss_of_one(model_name: str) -> None:
    """The loss of 400 vectorised particles against the mean of 100 single ones: a mean over draws, not a sum."""
    model, x, y = MODELS[model_name].make()
    model.eval()  # batch statistics are of one draw each
    guide = AutoMeanFieldNormal(model, init_scale=0.05)
    single = torch.tensor([TraceMeanField_ELBO().loss(model, guide, x, y) for _ in range(100)]).double()
    together = TraceMeanField_ELBO(400, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
    error = float(single.std()) * (1 / 100 + 1 / 400) ** 0.5
    assert abs(together - float(single.mean())) < 5.5 * error  # t with 99 degrees of freedom: false alarm below 1e-6


# -- the fast ELBO is the stock one ----------------------------------------------------------------------------------


QUICK_TO_CAPTURE = ("batch norm", "tied", "hand-written, with a parameter")


@pytest.mark.parametrize(
    "model_name",
    [name if name in QUICK_TO_CAPTURE else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_the_flat_elbo_trains_to_the_same_parameters(model_name: str) -> None:
    """Three epochs from the same noise, by the captured step and by Pyro's; the short last batch included."""
    found = []
    for elbo in (TraceMeanField_ELBO(), FlatMeanField_ELBO()):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model, x, y = MODELS[model_name].make()
        guide = AutoMeanFieldNormal(model)
        sgd = pyro.optim.SGD({"lr": 0.05})
        result = stock_fit(model, guide, sgd, (x, y), epochs=3, batch_size=7, seed=1, elbo=elbo)
        found.append((parameters_of(model, guide), [line["loss"] for line in result.history]))
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4)
    for part in ("model", "guide"):
        for name, value in found[0][0].get(part, {}).items():
            torch.testing.assert_close(found[1][0][part][name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, FlatMeanField_ELBO])
def test_sample_weights_and_particles_through_both(elbo: Any) -> None:
    losses = []
    for weights in (torch.ones(ROWS), torch.arange(ROWS) % 3.0):
        model, x, y = MODELS["mlp"].make()
        pyro.set_rng_seed(0)
        guide = AutoMeanFieldNormal(model)
        still = pyro.optim.SGD({"lr": 0.0})
        result = stock_fit(model, guide, still, (x, y, weights), epochs=1, batch_size=8, seed=1, elbo=elbo(2))
        losses.append(result.history[0])
        assert losses[-1]["loss"] == pytest.approx(losses[-1]["nll"] + losses[-1]["kl"], rel=1e-5)
    assert losses[0]["nll"] != pytest.approx(losses[1]["nll"], rel=1e-3)


# -- likelihoods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("guide_name", ["mean field", "Pyro's AutoNormal"])
def test_every_likelihood_learns_predicts_and_is_scored(name: str, guide_name: str, store: bool) -> None:
    likelihood, outputs, labels = LIKELIHOODS[name]
    pyro.set_rng_seed(1)
    model = BNN(MLP(FEATURES, outputs, [8]), priors.Kaiming(), likelihood, ROWS)
    guide = GUIDES[guide_name].make(model)
    x, y = classes()[0], labels()
    lines = stock_fit(model, guide, adam(0.03), (x, y), epochs=30, batch_size=ROWS, seed=0, val=(x, y)).history
    early, late = (sum(line["loss"] for line in part) for part in (lines[:5], lines[-5:]))
    assert late < early
    post = Posterior(model, guide)
    predicted: Any = post.predict(x, 5, seed=0)
    if y.is_floating_point():
        assert predicted.mean.shape == y.shape == predicted.sd.shape
        assert bool((predicted.sd > 0).all())
    else:
        torch.testing.assert_close(predicted.sum(-1), torch.ones(ROWS), rtol=1e-4, atol=1e-4)
    assert set(post.evaluate(x, y, 3)) == {"plug_in", "one_draw", "s_draws"}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_law_of_a_likelihood_is_of_its_task(name: str) -> None:
    """Classes, counts and numbers are told apart by the law alone, and its densities and samples are the draw's."""
    likelihood, outputs, labels = LIKELIHOODS[name]
    pyro.set_rng_seed(2)
    output, y = torch.randn(ROWS, outputs), labels()
    numbers = {name: torch.tensor(value) for name, (value, _) in likelihood.parameters().items()}
    law: Any = likelihood.distribution(output, numbers)
    draw = draw_of(law)
    assert isinstance(draw, ClassDraw) == (likelihood.task == "classification")
    assert draw.counts == (likelihood.task == "counts")
    torch.testing.assert_close(draw.log_prob(y), law.log_prob(likelihood.shape_target(y, output)))
    drawn = draw.sample(torch.Generator().manual_seed(0))
    assert drawn.is_floating_point() != draw.whole_numbers
    support = law.support.base_constraint if law.event_shape else law.support
    assert bool(support.check(drawn).all())


def test_the_table_of_likelihoods_is_complete() -> None:
    exported = {look_up("likelihoods", name) for name in BUILT_IN["likelihoods"]}
    assert {type(row[0]) for row in LIKELIHOODS.values()} == exported


# -- optimizers ------------------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, dict[str, Any]] = {"adabayes": {"batch_size": 8}, "adabayes_fp": {"batch_size": 8}}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_model_and_guide(name: str, store: bool) -> None:
    model, x, y = MODELS["batch norm"].make()
    guide = AutoMeanFieldNormal(model)
    before = {n: p.detach().clone() for n, p in trained(model, guide).items()}
    optimizer = OPTIMIZERS[name]({"lr": 1e-3, **ARGUMENTS.get(name, {})})
    result = stock_fit(model, guide, optimizer, (x, y), epochs=2, batch_size=8, seed=0)
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in result.history)
    assert all(not torch.equal(before[n], p.detach()) for n, p in trained(model, guide).items())
    rates = result.history[-1]["learning_rates"]
    assert rates
    assert all(rate > 0 for rate in rates.values())
