"""Posterior: predictions from draws, uncertainty that adds up, and files that load to the same predictions."""

import json
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from programs import (
    CLASSES,
    FEATURES,
    GROUPS,
    ROWS,
    Attention,
    batch_norm,
    classes,
    grouped,
    hierarchical_logistic,
    stock_fit,
    with_parameter,
)
from pyro.infer.autoguide import AutoDiagonalNormal, AutoNormal
from torch import Tensor, nn

from pyro_bnn.assemble import build_guide, build_model
from pyro_bnn.common.manifest import MANIFEST, seal
from pyro_bnn.data import Standardiser
from pyro_bnn.guides import AutoMeanFieldNormal, program
from pyro_bnn.inference.predictive import observation_log_prob, predictive_draws
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import DESCRIPTION, TENSORS, Posterior, RealPrediction
from pyro_bnn.posterior import posterior as posterior_module


@pytest.fixture(params=[False, True], ids=["global", "module_local"])
def store(request: pytest.FixtureRequest) -> Any:
    with pyro.settings.context(module_local_params=request.param):
        yield request.param


def network(net: nn.Module | None = None, likelihood: likelihoods.Likelihood | None = None) -> BNN:
    return BNN(net or MLP(FEATURES, CLASSES, [5]), priors.Normal(), likelihood or likelihoods.Categorical(), ROWS)


def classifier(**options: Any) -> Posterior:
    model = network()
    return Posterior(model, AutoMeanFieldNormal(model, init_scale=0.4, **options))


def regressor(outputs: int = 1, info: dict[str, Any] | None = None) -> Posterior:
    model = network(MLP(FEATURES, outputs, [5]), likelihoods.LearnedGaussian(0.5))
    return Posterior(model, AutoMeanFieldNormal(model, init_scale=0.4), info)


def adam() -> Any:
    return pyro.optim.Adam({"lr": 0.05})


X, Y = classes()


# -- predicting ------------------------------------------------------------------------------------------------------


def test_probabilities_are_the_mean_of_the_draws() -> None:
    post = classifier()
    probs, draws = post.predict(X, 30, seed=1), post.draws(X, 30, seed=1)
    assert isinstance(probs, Tensor)
    assert draws.shape == (30, ROWS, CLASSES)
    torch.testing.assert_close(probs, draws.mean(0))
    torch.testing.assert_close(probs.sum(-1), torch.ones(ROWS))
    assert not torch.allclose(draws[0], draws[1])


def test_extreme_logits_stay_finite_probabilities() -> None:
    post = classifier()
    probs = post.predict(1e4 * X, 5, seed=1)
    assert isinstance(probs, Tensor)
    assert bool(torch.isfinite(probs).all())
    torch.testing.assert_close(probs.sum(-1), torch.ones(ROWS))


def test_arrays_are_as_good_as_tensors() -> None:
    post = classifier()
    a, b = post.predict(X, 3, seed=1), post.predict(X.double().numpy(), 3, seed=1)
    assert isinstance(a, Tensor)
    assert isinstance(b, Tensor)
    assert torch.equal(a, b)


def test_uncertainty_is_entropy_split_in_two() -> None:
    post = classifier()
    u, draws = post.uncertainty(X, 30, seed=1), post.draws(X, 30, seed=1).double()

    def entropy(p: Tensor) -> Tensor:
        return -torch.xlogy(p, p).sum(-1)

    torch.testing.assert_close(u.total.double(), entropy(draws.mean(0)), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(u.aleatoric.double(), entropy(draws).mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(u.total, u.aleatoric + u.epistemic, rtol=1e-5, atol=1e-6)
    assert float(u.epistemic.min()) > 0
    alone = post.uncertainty(X, 1, seed=1)
    torch.testing.assert_close(alone.epistemic, torch.zeros_like(alone.epistemic), atol=1e-6, rtol=0)


def test_regression_moments_are_those_of_the_mixture() -> None:
    post = regressor()
    found, means = post.predict(X, 30, seed=1), post.draws(X, 30, seed=1).double()
    assert isinstance(found, RealPrediction)
    assert means.shape == (30, ROWS)
    variance = means.var(0, unbiased=False) + 0.25
    torch.testing.assert_close(found.mean.double(), means.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.sd.double(), variance.sqrt(), rtol=1e-5, atol=1e-5)
    u = post.uncertainty(X, 30, seed=1)
    torch.testing.assert_close(u.aleatoric.double(), torch.full((ROWS,), 0.25, dtype=torch.float64), rtol=1e-5, atol=0)
    torch.testing.assert_close(u.total.double(), variance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_numbers_come_back_in_the_targets_units(outputs: int) -> None:
    plain = regressor(outputs)
    shape = (outputs,) if outputs > 1 else ()
    scale = Standardiser(torch.full(shape, 100.0).double(), torch.full(shape, 7.0).double())
    post = Posterior(plain.model, plain.guide, {"y_standardiser": scale.to_dict()})
    a, b = plain.predict(X, 10, seed=1), post.predict(X, 10, seed=1)
    assert isinstance(a, RealPrediction)
    assert isinstance(b, RealPrediction)
    assert b.mean.shape == ((ROWS, outputs) if outputs > 1 else (ROWS,))
    torch.testing.assert_close(b.mean, 100 + 7 * a.mean, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(b.sd, 7 * a.sd, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(post.draws(X, 3, seed=1), 100 + 7 * plain.draws(X, 3, seed=1), rtol=1e-4, atol=1e-3)
    u, v = plain.uncertainty(X, 10, seed=1), post.uncertainty(X, 10, seed=1)
    torch.testing.assert_close(v.epistemic, 49 * u.epistemic, rtol=1e-3, atol=1e-4)


def test_evaluation_in_units_shifts_the_density_only() -> None:
    """The rmse is multiplied by the unit and the NLL shifted by its logarithm; coverage stays."""
    plain = regressor()
    scale = Standardiser(torch.tensor(100.0).double(), torch.tensor(7.0).double())
    post = Posterior(plain.model, plain.guide, {"y_standardiser": scale.to_dict()})
    y = X[:, 0].double()
    a, b = plain.evaluate(X, y, 10), post.evaluate(X, scale.invert(y), 10)
    assert post.evaluate(X, scale.mark(y), 10) == post.evaluate(X, y.numpy(), 10, standardised=True)
    for column in ("plug_in", "one_draw", "s_draws"):
        assert b[column]["rmse"] == pytest.approx(7 * a[column]["rmse"], rel=1e-4)
        assert b[column]["pred_nll"] == pytest.approx(a[column]["pred_nll"] + math.log(7), rel=1e-4)
        assert b[column]["coverage_0.9"] == a[column]["coverage_0.9"]


def test_standardising_inputs() -> None:
    scale = Standardiser(torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([2.0, 4.0, 8.0]).double())
    post = Posterior(network(), None, {"standardiser": scale.to_dict()})  # type: ignore[arg-type]
    torch.testing.assert_close(post.standardise(scale.invert(X)), X)
    assert classifier().standardise(X) is X


def test_evaluation_is_a_table_of_plug_in_one_draw_and_s_draws() -> None:
    post = classifier()
    table = post.evaluate(X, Y, 12, seed=3)
    probs = post.draws(X, 12, seed=3).double()
    rows = torch.arange(ROWS)
    assert table["s_draws"]["pred_nll"] == pytest.approx(-float(probs.mean(0)[rows, Y].log().mean()), rel=1e-5)
    single = -probs[:, rows, Y].log().mean(1)  # (S,)
    assert table["one_draw"]["pred_nll"] == pytest.approx(float(single.mean()), rel=1e-5)
    assert table["one_draw"]["pred_nll_sd"] == pytest.approx(float(single.std()), rel=1e-4)
    assert table["s_draws"]["accuracy"] == pytest.approx(float((probs.mean(0).argmax(-1) == Y).double().mean()))
    (point,) = predictive_draws(post.model, post.guide, X, 1, plug_in=True)
    expected = -float(observation_log_prob(point, Y).mean())
    assert table["plug_in"]["pred_nll"] == pytest.approx(expected, rel=1e-5)


def test_a_guide_without_a_median_has_no_plug_in_column() -> None:
    model = network()
    guide = AutoMeanFieldNormal(model)
    table = Posterior(model, lambda *args: guide(*args)).evaluate(X, Y, 3)
    assert set(table) == {"one_draw", "s_draws"}


def test_a_seed_fixes_the_draws_and_leaves_the_global_state() -> None:
    post = classifier()
    before = torch.get_rng_state()
    first = post.draws(X, 3, seed=1)
    post.predict(X, 3, seed=1), post.uncertainty(X, 3, seed=1), post.evaluate(X, Y, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, post.draws(X, 3, seed=1))
    assert not torch.equal(first, post.draws(X, 3, seed=2))
    assert not torch.equal(post.draws(X, 3), post.draws(X, 3))
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_failure_puts_the_random_state_back_too() -> None:
    post, wrong = classifier(), torch.randn(3, FEATURES + 1)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        post.predict(wrong, 2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("call", ["predict", "uncertainty", "evaluate"])
def test_memory_does_not_grow_with_the_draws(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two draws exist at any time, whatever their number."""
    alive: list[weakref.ref[Any]] = []
    most = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal most
        for draw in predictive_draws(*args, **options):
            alive.append(weakref.ref(draw))
            most = max(most, sum(ref() is not None for ref in alive))
            yield draw

    monkeypatch.setattr(posterior_module, "predictive_draws", counted)
    for post in (classifier(), regressor()):
        y = (Y if post.model.likelihood == likelihoods.Categorical() else X[:, 0],) if call == "evaluate" else ()
        alive.clear()
        getattr(post, call)(X, *y, num_samples=20)
        assert len(alive) >= 20
        assert most <= 3  # a draw, its successor and the plug-in


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.predict("x"), TypeError, "x is a str; pass a tensor or a NumPy array"),
        (lambda p: p.predict(torch.zeros(2, 5)), ValueError, r"x has shape \(2, 5\); .* \(N, 3\)"),
        (lambda p: p.predict(torch.full((2, 3), math.nan)), ValueError, "NaN or infinity"),
        (lambda p: p.predict(X, 0), ValueError, "num_samples=0"),
        (lambda p: p.predict(X, chunk=0), ValueError, "chunk=0"),
        (lambda p: p.evaluate(X, Y[:5], 2), ValueError, "x has 24 rows and y has 5"),
        (lambda p: p.evaluate(X, Y.float(), 2), ValueError, "targets are numbers but the model predicts classes"),
        (lambda p: p.evaluate(X, Y + 1, 2), ValueError, r"labels lie in 1..4.* 0..3"),
    ],
)
def test_bad_input_names_value_and_remedy(call: Any, error: type[Exception], message: str) -> None:
    post = classifier()
    post.info["input_shape"] = [FEATURES]
    with pytest.raises(error, match=message):
        call(post)


def test_labels_for_a_regression_are_refused() -> None:
    with pytest.raises(ValueError, match="labels are classes but the model predicts numbers"):
        regressor().evaluate(X, Y, 2)


# -- saving and loading ----------------------------------------------------------------------------------------------


def same_predictions(a: Posterior, b: Posterior, x: Tensor) -> bool:
    first, second = a.draws(x, 5, seed=1), b.draws(x, 5, seed=1)
    return first.shape == second.shape and torch.equal(first, second)


CASES: dict[str, Any] = {
    "classes": lambda: (network(), {}),
    "per site, capped, frozen": lambda: (
        network(),
        {"groups": "site", "max_scale": 0.5, "init_scale": 0.3, "freeze": "scale"},
    ),
    "groups": lambda: (network(), {"groups": {"biases": "*.bias"}, "relative_scale": 0.2}),
    "double": lambda: (network().double(), {"init_rho": -1.0}),
    "learned noise": lambda: (network(MLP(FEATURES, 1, [4], "tanh"), likelihoods.LearnedGaussian(0.4)), {}),
    "partly random": lambda: (
        BNN(
            MLP(FEATURES, CLASSES, [5]),
            priors.PerLayer({"*.bias": priors.Laplace(0.2)}, priors.ScaleMixture()),
            likelihoods.Categorical(link="sigmoid"),
            ROWS,
            random="layers.1.*",
        ),
        {"init_loc": "net"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_network_that_says_how_it_was_built_loads_on_its_own(case: str, store: bool, tmp_path: Path) -> None:
    model, options = CASES[case]()
    guide = AutoMeanFieldNormal(model, **options)
    y = X[:, 0] if "noise" in case else Y
    x = X.double() if case == "double" else X
    stock_fit(model, guide, adam(), (x, y), epochs=2, batch_size=8)
    post = Posterior(model, guide, {"class_names": ["a", "b"], "eta": 0.1})
    assert post.save(tmp_path / "p") == tmp_path / "p"
    before = torch.get_rng_state()
    again = Posterior.load(tmp_path / "p", build_model=build_model, build_guide=build_guide)
    assert torch.equal(torch.get_rng_state(), before)
    assert again.info == post.info
    assert same_predictions(post, again, X)
    assert again.guide.spec() == guide.spec()
    site = guide.site_names()[0]
    assert torch.equal(again.guide.site(site).scale, guide.site(site).scale)


def test_saved_are_two_files_of_tensors_and_text(tmp_path: Path) -> None:
    classifier().save(tmp_path / "p")
    assert sorted(f.name for f in (tmp_path / "p").iterdir()) == sorted([DESCRIPTION, TENSORS, MANIFEST])
    description = json.loads((tmp_path / "p" / DESCRIPTION).read_text())
    assert description["model"]["net"]["name"] == "MLP"
    assert description["guide"]["name"] == "AutoMeanFieldNormal"
    header = (tmp_path / "p" / TENSORS).read_bytes()
    names = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    assert set(names) - {"__metadata__"} == {"guide:loc_unconstrained", "guide:rho_unconstrained"}


@pytest.mark.parametrize("net", [batch_norm, Attention])
def test_a_network_of_one_s_own_is_handed_over(net: Any, store: bool, tmp_path: Path) -> None:
    """Running statistics and norm weights are saved, the weights it was built with are not."""
    model = network(net())
    guide = AutoMeanFieldNormal(model)
    stock_fit(model, guide, adam(), (X, Y), epochs=2, batch_size=8)
    post = Posterior(model, guide)
    post.save(tmp_path / "p")
    with pytest.raises(ValueError, match=r"does not say how its model was built.*pass model="):
        Posterior.load(tmp_path / "p", build_model=build_model, build_guide=build_guide)
    again = Posterior.load(tmp_path / "p", model=network(net()), build_guide=build_guide)
    assert same_predictions(post, again, X)


PROGRAMS: dict[str, Any] = {
    "hierarchical": (hierarchical_logistic, *grouped()),
    "with a parameter": (with_parameter, X, X.sum(-1)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("make", [AutoMeanFieldNormal, AutoNormal, AutoDiagonalNormal])
def test_a_hand_written_program_loads_into_the_program(name: str, make: Any, tmp_path: Path) -> None:
    program, x, y = PROGRAMS[name]
    guide = make(poutine.block(program, hide=["obs", "data"]) if make is not AutoMeanFieldNormal else program)
    stock_fit(program, guide, adam(), (x, y), epochs=4, batch_size=8)
    post = Posterior(program, guide)
    expected = post.predict(x, 4, seed=1)
    post.save(tmp_path / "p")
    pyro.clear_param_store()  # another process
    fresh = make(poutine.block(program, hide=["obs", "data"]) if make is not AutoMeanFieldNormal else program)
    again = Posterior.load(tmp_path / "p", model=program, guide=fresh)
    found = again.predict(x, 4, seed=1)
    for field in ("mean", "sd") if isinstance(expected, RealPrediction) else ("T",):
        assert torch.equal(getattr(expected, field), getattr(found, field))
    again.save(tmp_path / "q")
    assert (tmp_path / "q" / TENSORS).read_bytes() == (tmp_path / "p" / TENSORS).read_bytes()


def test_loading_leaves_other_live_programs_alone(tmp_path: Path) -> None:
    x, y = X, X.sum(-1)
    guide = AutoMeanFieldNormal(with_parameter)
    stock_fit(with_parameter, guide, adam(), (x, y), epochs=2, batch_size=8)
    model = network(batch_norm())
    own = AutoMeanFieldNormal(model)
    stock_fit(model, own, adam(), (X, Y), epochs=1, batch_size=8)
    post = Posterior(model, own)
    post.save(tmp_path / "p")
    with torch.no_grad():
        pyro.get_param_store()._params["noise"].fill_(3.0)
    noise = float(pyro.param("noise").detach())
    again = Posterior.load(tmp_path / "p", model=network(batch_norm()), build_guide=build_guide)
    assert again.guide.site("net.0.weight").loc.equal(own.site("net.0.weight").loc)
    assert same_predictions(post, again, X)
    assert float(pyro.param("noise").detach()) == noise


def test_a_program_is_saved_after_its_first_prediction_only(tmp_path: Path) -> None:
    x, y = grouped()
    guide = AutoMeanFieldNormal(hierarchical_logistic)
    guide(x)
    Posterior(hierarchical_logistic, guide).save(tmp_path / "p")
    again = Posterior.load(tmp_path / "p", model=hierarchical_logistic, build_guide=build_guide)
    with pytest.raises(RuntimeError, match="predict once, then save"):
        again.save(tmp_path / "q")
    assert not (tmp_path / "q").exists()
    assert len(y) == len(x)


class Normalised(pyro.nn.PyroModule):
    """A hand-written program with batch normalisation, which takes no statistics from one row."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = pyro.nn.PyroModule[nn.BatchNorm1d](FEATURES, affine=False)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
        with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(self.norm(x) @ w, 1.0), obs=y)


def test_a_program_with_batch_norm_is_filled_in_eval_mode(tmp_path: Path) -> None:
    model = Normalised()
    guide = AutoMeanFieldNormal(model)
    stock_fit(model, guide, adam(), (X, X[:, 0]), epochs=2, batch_size=8)
    post = Posterior(model, guide)
    post.save(tmp_path / "p")
    again = Posterior.load(tmp_path / "p", model=Normalised(), build_guide=build_guide)
    assert same_predictions(post, again, X)
    assert again.model.training
    assert torch.equal(again.model.norm.running_mean, model.norm.running_mean)


def test_a_failed_first_prediction_loses_nothing(tmp_path: Path) -> None:
    x = grouped()[0]
    guide = AutoMeanFieldNormal(hierarchical_logistic)
    guide(x)
    post = Posterior(hierarchical_logistic, guide)
    post.save(tmp_path / "p")
    again = Posterior.load(tmp_path / "p", model=hierarchical_logistic, build_guide=build_guide)
    wrong = x.clone()
    wrong[:, -1] = GROUPS + 5  # a group that does not exist
    with pytest.raises(IndexError):
        again.predict(wrong, 2)
    a, b = post.predict(x, 4, seed=1), again.predict(x, 4, seed=1)
    assert isinstance(a, Tensor)
    assert isinstance(b, Tensor)
    assert torch.equal(a, b)


def test_another_guide_or_model_is_refused(tmp_path: Path) -> None:
    classifier().save(tmp_path / "p")
    model = network()
    with pytest.raises(ValueError, match=r"saved guide is another one: missing .*pass the guide it was saved from"):
        Posterior.load(tmp_path / "p", model=model, guide=AutoMeanFieldNormal(model, groups="site"))
    with pytest.raises(ValueError, match="saved model is another one"):
        Posterior.load(tmp_path / "p", model=network(batch_norm()), build_guide=build_guide)
    turned = network(nn.Sequential(nn.Linear(FEATURES, CLASSES, bias=False), nn.Linear(CLASSES, 8, bias=False)))
    assert sum(prior.event_shape.numel() for prior in turned.priors().values()) == 44  # as many as it was saved from
    with pytest.raises(ValueError, match=r"saved guide is of another model.*pass the model it was saved from"):
        Posterior.load(tmp_path / "p", model=turned, build_guide=build_guide)


def test_folders_that_hold_no_posterior_say_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"holds no posterior: it needs {DESCRIPTION} and {TENSORS}"):
        Posterior.load(tmp_path)
    classifier().save(tmp_path / "p")
    description = json.loads((tmp_path / "p" / DESCRIPTION).read_text())
    (tmp_path / "p" / DESCRIPTION).write_text(json.dumps({**description, "format": 99}))
    seal(tmp_path / "p")
    with pytest.raises(ValueError, match="format 99; this version reads format 1"):
        Posterior.load(tmp_path / "p")


@pytest.mark.parametrize("info", [{"eta": math.nan}, {"what": object()}, {"x": np.float32(1.0)}])
def test_what_json_cannot_hold_leaves_nothing_half_written(info: dict[str, Any], tmp_path: Path) -> None:
    post = classifier()
    post.info.update(info)
    with pytest.raises((ValueError, TypeError)):
        post.save(tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_plain_function_as_a_guide(tmp_path: Path) -> None:
    def guide(x: Tensor, y: Tensor | None = None) -> None:
        loc = pyro.param("layer1.loc", lambda: torch.zeros(FEATURES))
        pyro.sample("w", dist.Normal(loc, 0.1).to_event(1))

    x, y = X, X.sum(-1)
    stock_fit(with_parameter, guide, adam(), (x, y), epochs=3, batch_size=8)
    post = Posterior(with_parameter, guide)
    expected = post.predict(x, 3, seed=1)
    post.save(tmp_path / "p")
    pyro.clear_param_store()
    again = Posterior.load(tmp_path / "p", model=with_parameter, guide=guide)
    found = again.predict(x, 3, seed=1)
    assert isinstance(expected, RealPrediction)
    assert isinstance(found, RealPrediction)
    assert torch.equal(expected.mean, found.mean)
    assert torch.equal(expected.sd, found.sd)


def _counts(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 0.3).to_event(1))
    with pyro.plate("data", 12, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Poisson(torch.exp(x @ w)), obs=y)


def test_numbers_that_are_not_normal_are_not_scored_as_normals() -> None:
    x, y = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12.0) % 3
    guide = AutoMeanFieldNormal(_counts)
    guide(x)
    posterior = Posterior(_counts, guide)
    (draw,) = posterior.stream(x, 1, seed=0)
    expected = torch.distributions.Poisson(posterior.predict(x, num_samples=1, seed=0).mean).log_prob(y)
    torch.testing.assert_close(observation_log_prob(draw, y), expected)
    found = posterior.evaluate(x, y, 1, seed=0)["s_draws"]["pred_nll"]
    assert found == pytest.approx(-float(expected.double().mean()), rel=1e-5)
    exported = posterior.to_arviz(x, y, 1, seed=0).log_likelihood["obs"].values[0, 0]
    torch.testing.assert_close(torch.from_numpy(exported), expected)


def test_what_is_loaded_draws_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guide that started from the network's own values is loaded without these, and without drawing others."""
    model = BNN(MLP(4, 3, [5]), priors.Kaiming(), likelihoods.Categorical(), 20)
    Posterior(model, AutoMeanFieldNormal(model, init_loc="net")).save(tmp_path / "p")
    monkeypatch.setattr(program, "initial_loc", lambda *args: pytest.fail("a start was made"))
    before = torch.get_rng_state()
    loaded = Posterior.load(tmp_path / "p")
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.randn(6, 4)
    wanted = Posterior(model, Posterior.load(tmp_path / "p").guide).predict(x, 3, seed=1)
    assert torch.equal(loaded.predict(x, 3, seed=1), wanted)
    assert torch.equal(loaded.guide.marginals()[0][:20], model.template.get_parameter("layers.0.weight").flatten())
