"""Predictive draws: one weight sample for the whole set, streamed, in eval mode, for any program."""

import math
import weakref
from collections.abc import Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from programs import CLASSES, FEATURES, ROWS, batch_norm, classes, grouped, hierarchical_logistic
from pyro.infer.autoguide import AutoNormal
from targets import centred
from torch import Tensor, nn

from pyro_bnn.data import Split
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference.predictive import (
    ClassDraw,
    RealDraw,
    evaluation_mode,
    observation,
    observation_log_prob,
    predictive_draws,
    rows_per_pass,
)
from pyro_bnn.inference.svi import validate
from pyro_bnn.models import BNN, MLP, likelihoods, priors


@pytest.fixture(params=[False, True], ids=["global", "module_local"])
def store(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pyro.settings.context(module_local_params=request.param):
        yield request.param


def network(net: nn.Module | None = None, likelihood: likelihoods.Likelihood | None = None) -> BNN:
    return BNN(net or MLP(FEATURES, CLASSES, [5]), priors.Normal(), likelihood or likelihoods.Categorical(), ROWS)


def guide_for(model: Any, x: Tensor) -> AutoMeanFieldNormal:
    guide = AutoMeanFieldNormal(model, init_scale=0.3)
    guide(x)
    return guide


def draws_of(model: Any, guide: Any, x: Tensor, num_samples: int, **options: Any) -> list[Any]:
    torch.manual_seed(4)
    return list(predictive_draws(model, guide, x, num_samples, **options))


def test_a_draw_is_one_weight_sample_for_the_whole_set(store: bool) -> None:
    """Equal rows get equal predictions, in whatever chunk they are."""
    model = network()
    x = classes(1)[0].expand(10 * ROWS, FEATURES)
    guide = guide_for(model, x)
    found = draws_of(model, guide, x, 3, chunk=7)
    for draw in found:
        assert draw.log_probs.shape == (10 * ROWS, CLASSES)
        torch.testing.assert_close(draw.log_probs, draw.log_probs[:1].expand_as(draw.log_probs))
    assert not torch.allclose(found[0].log_probs, found[1].log_probs)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_change_nothing(chunk: int) -> None:
    model, x = network(batch_norm()), classes()[0]
    guide = guide_for(model, x)
    whole, parts = (draws_of(model, guide, x, 3, chunk=c) for c in (ROWS, chunk))
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a.log_probs, b.log_probs)


def test_a_draw_is_what_its_weights_say() -> None:
    model, x = network(), classes()[0]
    guide = guide_for(model, x)
    torch.manual_seed(4)
    with torch.no_grad():
        weights = {name.removeprefix("net."): value for name, value in guide(x[:1]).items()}
        expected = model.output(x, weights).log_softmax(-1)
    torch.testing.assert_close(draws_of(model, guide, x, 1)[0].log_probs, expected)


def test_plug_in_is_the_median() -> None:
    x = grouped()[0]
    guide = guide_for(hierarchical_logistic, x)
    (draw,) = draws_of(hierarchical_logistic, guide, x, 1, plug_in=True)
    median = guide.median(x)
    logits = median["alpha"][x[:, -1].long()] + x[:, :-1] @ median["beta"]
    torch.testing.assert_close(draw.log_probs[:, 1], torch.sigmoid(logits).log(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(draw.log_probs.exp().sum(-1), torch.ones(ROWS))


def test_more_rows_than_n(store: bool) -> None:
    x = torch.randn(50 * ROWS, FEATURES)
    model = network()
    assert draws_of(model, guide_for(model, x), x, 1)[0].log_probs.shape == (50 * ROWS, CLASSES)
    x[:, -1] = 0
    guide = guide_for(hierarchical_logistic, x[:5])
    assert draws_of(hierarchical_logistic, guide, x, 1)[0].log_probs.shape == (50 * ROWS, 2)


def test_drawing_is_in_eval_mode_and_restores_every_module_s_mode() -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 50), nn.BatchNorm1d(50), nn.Dropout(0.5), nn.Linear(50, CLASSES))
    model = network(net).train()
    model.template[2].eval()  # type: ignore[index]
    modes = [m.training for m in model.modules()]
    x = classes(1)[0].expand(ROWS, FEATURES)
    guide = guide_for(model, x)
    stream = predictive_draws(model, guide, x, 2)
    draw = next(stream)
    assert [m.training for m in model.modules()] == modes  # also between two draws
    torch.testing.assert_close(draw.log_probs, draw.log_probs[:1].expand_as(draw.log_probs))  # type: ignore[union-attr]
    assert int(model.template[1].num_batches_tracked) == 0  # type: ignore[index]


def test_evaluation_mode_restores_after_a_failure() -> None:
    net = batch_norm().train()

    def fail() -> None:
        with evaluation_mode(net, None, lambda: None):
            assert not net.training
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert all(m.training for m in net.modules())


def test_draws_are_streamed() -> None:
    """No draw is held once the next one is asked for."""
    model, x = network(), classes()[0]
    earlier: list[weakref.ref[Any]] = []
    for draw in predictive_draws(model, guide_for(model, x), x, 6):
        assert sum(ref() is not None for ref in earlier) <= 1  # the loop variable's last value
        earlier.append(weakref.ref(draw))
    assert len(earlier) == 6


def test_nothing_drawn_has_a_graph() -> None:
    model, x = network(), classes()[0]
    assert not draws_of(model, guide_for(model, x), x, 1)[0].log_probs.requires_grad


def test_predictive_moments_of_linear_regression() -> None:
    """Over draws the mean at x has mean x m and variance x^2 s^2."""
    target = centred(num_data=40)
    model = BNN(nn.Linear(3, 1, bias=False), priors.Normal(), likelihoods.Gaussian(0.5), 40).double()
    guide = AutoMeanFieldNormal(model, init_scale=0.2)
    site = guide.site("net.weight")
    draws = draws_of(model, guide, target.x, 2000)
    means = torch.stack([d.mean.squeeze(-1) for d in draws])  # (S, N)
    variance = target.x.square() @ site.scale[0].square()
    z = (means.mean(0) - target.x @ site.loc[0]) / (variance / 2000).sqrt()
    assert float(z.abs().max()) < 5.6  # 40 comparisons, false alarm 1e-6
    assert float((means.var(0) / variance - 1).abs().max()) < 5.6 * math.sqrt(2 / 2000)
    assert all(bool((d.sd == 0.5).all()) for d in draws[:2])


LIKELIHOODS = {
    "categorical": (likelihoods.Categorical(), CLASSES, ClassDraw, CLASSES),
    "sigmoid": (likelihoods.Categorical(link="sigmoid"), CLASSES, ClassDraw, CLASSES),
    "bernoulli": (likelihoods.Bernoulli(), 1, ClassDraw, 2),
    "clamped": (likelihoods.Bernoulli(link="clamp"), 1, ClassDraw, 2),
    "gaussian": (likelihoods.Gaussian(0.3), 2, RealDraw, 2),
    "learned": (likelihoods.LearnedGaussian(0.3), 1, RealDraw, 1),
    "heteroscedastic": (likelihoods.HeteroscedasticGaussian(), 4, RealDraw, 2),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_draws_and_scores(name: str) -> None:
    likelihood, outputs, kind, width = LIKELIHOODS[name]
    model, x = network(MLP(FEATURES, outputs, [5]), likelihood), classes()[0]
    guide = guide_for(model, x)
    (draw,) = draws_of(model, guide, x, 1)
    assert isinstance(draw, kind)
    y = torch.arange(ROWS) % width if kind is ClassDraw else torch.randn(ROWS, width)
    torch.manual_seed(4)
    with torch.no_grad():
        fn: Any = model.observation(x, guide(x[:1]))
        expected = fn.log_prob(likelihood.shape_target(y, torch.zeros(ROWS, outputs)))
    torch.testing.assert_close(observation_log_prob(draw, y), expected, rtol=1e-4, atol=1e-4)
    if isinstance(draw, ClassDraw):
        torch.testing.assert_close(draw.log_probs.exp().sum(-1), torch.ones(ROWS), rtol=1e-4, atol=1e-4)
    else:
        assert draw.mean.shape == (ROWS, width)


def counts(x: Tensor, y: Tensor | None = None) -> None:
    """Poisson regression: numbers that are not Normal."""
    w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 0.3).to_event(1))
    with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Poisson(torch.exp(x @ w)), obs=y)


def test_numbers_that_are_not_normal_are_scored_by_their_own_law() -> None:
    x, y = classes()[0], torch.arange(ROWS).float() % 3
    guide = guide_for(counts, x)
    (draw,) = draws_of(counts, guide, x, 1, chunk=7)
    torch.testing.assert_close(draw.sd, draw.mean.sqrt())
    expected = torch.distributions.Poisson(draw.mean.squeeze(-1)).log_prob(y)
    torch.testing.assert_close(observation_log_prob(draw, y), expected)


@pytest.mark.parametrize("num_samples", [1, 5])
def test_validation_is_the_log_mean_over_draws(num_samples: int) -> None:
    model = network()
    x, y = classes()
    guide = guide_for(model, x)
    before = torch.get_rng_state()
    found = validate(model, guide, Split(x, y), num_samples=num_samples, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    probs = torch.stack([d.log_probs.double().exp() for d in draws_of(model, guide, x, num_samples)]).mean(0)
    assert found["val_nll"] == pytest.approx(-float(probs[torch.arange(ROWS), y].log().mean()), rel=1e-5)
    assert found["val_accuracy"] == pytest.approx(float((probs.argmax(-1) == y).double().mean()))


def test_validation_of_numbers_has_no_accuracy() -> None:
    model = network(MLP(FEATURES, 1, [5]), likelihoods.Gaussian())
    x, _ = classes()
    assert set(validate(model, guide_for(model, x), Split(x, x[:, 0]))) == {"val_nll"}


@pytest.mark.parametrize("arguments", [{"num_samples": 0}, {"chunk": 0}, {"x": torch.zeros(0, FEATURES)}])
def test_nothing_to_draw_is_refused(arguments: dict[str, Any]) -> None:
    model, x = network(), classes()[0]
    good = {"x": x, "num_samples": 1, "chunk": 5}
    with pytest.raises(ValueError, match=r"pass at least (1|one)"):
        next(predictive_draws(model, guide_for(model, x), **{**good, **arguments}))


def test_a_program_without_obs_and_a_guide_without_median_say_so() -> None:
    def program(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))

    x = classes()[0]
    with pytest.raises(ValueError, match="no site 'obs'"):
        observation(program, {"w": torch.zeros(())}, x)
    guide = guide_for(hierarchical_logistic, grouped()[0])
    with pytest.raises(ValueError, match=r"no median\(\)"):
        next(predictive_draws(hierarchical_logistic, lambda x: guide(x), x, 1, plug_in=True))


def test_stock_guides_draw_too() -> None:
    model, x = network(), classes()[0]
    guide = AutoNormal(poutine.block(model, hide=["obs"]))
    guide(x)
    (draw,) = draws_of(model, guide, x, 1)
    assert draw.log_probs.shape == (ROWS, CLASSES)


@pytest.mark.parametrize(("shape", "rows"), [((1, 28, 28), 250), ((3, 32, 32), 130), ((3,), 1000), ((3, 900, 900), 1)])
def test_a_pass_is_as_large_as_the_cache_allows(shape: tuple[int, ...], rows: int) -> None:
    assert rows_per_pass(torch.zeros(2, *shape)) == rows
