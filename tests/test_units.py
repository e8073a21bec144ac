"""What was fitted travels with the guide; raw inputs and targets go in, and raw units come out, everywhere."""

import copy
import functools
import gc
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_bnn.analysis.arviz import NotDefined, loo
from pyro_bnn.analysis.scores.acquisition import acquisition_scores
from pyro_bnn.data import Split, Standardiser
from pyro_bnn.guides import AutoMeanFieldNormal, AutoPoint, Ensemble
from pyro_bnn.inference import fit, kl
from pyro_bnn.inference.elbo import TraceColdPosterior_ELBO
from pyro_bnn.inference.fitted import Fitted, fitted_of
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam
from pyro_bnn.posterior import Posterior, RealPrediction, looks_standardised
from pyro_bnn.runs.predict_file import predict_files

N = 40
G = torch.Generator().manual_seed(0)
RAW_X = torch.randn(N, 3, generator=G) * torch.tensor([1.0, 20.0, 300.0]) + torch.tensor([5.0, 100.0, 2000.0])
RAW_Y = 50 + 10 * torch.randn(N, generator=G)
LABELS = torch.randint(3, (N,), generator=G)
X_SCALE, Y_SCALE = Standardiser.fit(RAW_X), Standardiser.fit(RAW_Y)
X, Y = X_SCALE.apply(RAW_X), Y_SCALE.apply(RAW_Y)


def classifier() -> tuple[BNN, AutoMeanFieldNormal]:
    model = BNN(MLP(3, 3, [4]), priors.Kaiming(), likelihoods.Categorical(), N)
    return model, AutoMeanFieldNormal(model, init_scale=0.3)


def regressor() -> tuple[BNN, AutoMeanFieldNormal]:
    model = BNN(MLP(3, 1, [4]), priors.Kaiming(), likelihoods.LearnedGaussian(0.5), N)
    return model, AutoMeanFieldNormal(model, init_scale=0.3)


def train(model: Any, guide: Any, data: Any, **options: Any) -> Any:
    return fit(model, guide, Adam({"lr": 1e-2}), data, **{"epochs": 1, "batch_size": 10, "seed": 0, **options})


def program(x: Tensor, y: Tensor | None = None) -> None:
    bias = pyro.param("bias", torch.zeros(3))
    w = pyro.sample("w", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    with pyro.plate("data", N, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Categorical(logits=x @ w + bias), obs=y)


def function_guide(x: Tensor, y: Tensor | None = None) -> None:
    loc = pyro.param("loc", torch.zeros(3, 3))
    pyro.sample("w", dist.Normal(loc, 0.1).to_event(2))


class Methods:
    def guide(self, x: Tensor, y: Tensor | None = None) -> None:
        function_guide(x, y)


# -- what was fitted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "eta"),
    [
        (None, 1.0),
        (kl.tempered(0.1), 0.1),
        (kl.tempered(0.1) * kl.tempered(0.5), 0.05),
        (kl.blundell() * kl.tempered(0.2), 0.2),
        (kl.geometric(0), 0.0),
        (kl.annealed("linear", epochs=4), 0.25),  # the second of two epochs
        (kl.annealed("linear", epochs=1) * kl.tempered(0.3), 0.3),
        (kl.balanced(0.5, n_units=10), 2.0),
    ],
)
def test_fit_leaves_eta(weight: Any, eta: float) -> None:
    model, guide = classifier()
    result = train(model, guide, (X, LABELS), epochs=2, kl=weight)
    assert result.fitted.eta == pytest.approx(eta)
    posterior = Posterior(model, guide)
    assert posterior.info["eta"] == pytest.approx(eta)
    assert posterior.info["num_data"] == N
    idata = posterior.to_arviz(X, LABELS, 3, split="train")
    assert idata.attrs["eta"] == pytest.approx(eta)
    if eta != 1:
        with pytest.raises(NotDefined, match="tempered"):
            loo(idata)


def test_a_cold_posterior_says_its_temperature() -> None:
    model, guide = classifier()
    assert train(model, guide, (X, LABELS), elbo=TraceColdPosterior_ELBO(temperature=0.5)).fitted.temperature == 0.5
    with pytest.raises(NotDefined, match="cold"):
        loo(Posterior(model, guide).to_arviz(X, LABELS, 3, split="train"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: AutoMeanFieldNormal(program),
        lambda: AutoNormal(program),
        lambda: function_guide,
        lambda: functools.partial(function_guide),
        lambda: Methods().guide,
    ],
    ids=["guide", "stock", "function", "partial", "method"],
)
def test_any_guide_carries_it(make: Any, tmp_path: Path) -> None:
    guide = make()
    train(program, guide, Split(X, LABELS), kl=kl.tempered(0.1))
    found = fitted_of(guide)
    assert isinstance(found, Fitted)
    assert (found.eta, found.num_data, found.input_shape) == (0.1, N, (3,))
    assert found.standardiser is not None
    if not hasattr(guide, "__self__"):
        assert fitted_of(copy.deepcopy(guide)).eta == 0.1  # type: ignore[union-attr]
    posterior = Posterior(program, guide)
    expected = posterior.predict(RAW_X, 4, seed=0)
    posterior.save(tmp_path)
    fresh = make()
    loaded = Posterior.load(tmp_path, model=program, guide=fresh)
    assert loaded.info["eta"] == 0.1
    assert torch.equal(loaded.predict(RAW_X, 4, seed=0), expected)  # type: ignore[arg-type]
    assert fitted_of(fresh).eta == 0.1  # type: ignore[union-attr]


def test_it_is_seen_by_a_posterior_made_before_and_by_an_ensemble(tmp_path: Path) -> None:
    model, _ = classifier()
    points = [AutoPoint(model) for _ in range(2)]
    posterior = Posterior(model, points[0])
    assert "eta" not in posterior.info
    for point in points:
        train(model, point, (X, LABELS), kl=kl.tempered(0.1))
    assert posterior.info["eta"] == 0.1
    together = Posterior(model, Ensemble(model, points))
    assert together.info["standardiser"] == X_SCALE.to_dict()
    assert Posterior.load(together.save(tmp_path)).info == together.info


def test_info_is_checked() -> None:
    model, guide = classifier()
    assert Posterior(model, guide, {"notes": {"mine": 1}}).info["notes"] == {"mine": 1}
    with pytest.raises(ValueError, match="info has no key 'temprature'; did you mean 'temperature'"):
        Posterior(model, guide, {"temprature": 0.5})
    with pytest.raises(ValueError, match=r"info\['eta'\]=-1"):
        Posterior(model, guide, {"eta": -1})


# -- units -------------------------------------------------------------------------------------------------------------


def fitted_regressor() -> Posterior:
    model, guide = regressor()
    train(model, guide, Split(X, Y), epochs=3)
    return Posterior(model, guide)


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_raw_and_standardised_give_the_same_in_raw_units() -> None:
    posterior = fitted_regressor()
    bare = Posterior(posterior.model, posterior.guide, {"standardiser": None, "y_standardiser": None})
    on_scale = bare.predict(X.numpy(), 5, seed=0)
    assert isinstance(on_scale, RealPrediction)
    ways: list[tuple[Any, dict[str, Any]]] = [
        (RAW_X, {}),
        (RAW_X.numpy(), {}),
        (RAW_X.double().numpy(), {}),
        (RAW_X.tolist(), {}),
        (X, {}),
        (posterior.standardise(RAW_X), {}),
        (X.numpy(), {"standardised": True}),
        (Standardiser.fit(RAW_X[:7]).apply(RAW_X), {}),  # standardised by other statistics
        (X + 0, {"standardised": True}),
    ]
    for x, options in ways:
        found = posterior.predict(x, 5, seed=0, **options)
        assert isinstance(found, RealPrediction)
        same(found.mean, Y_SCALE.invert(on_scale.mean))
        same(found.sd, Y_SCALE.invert_sd(on_scale.sd))
        same(posterior.draws(x, 5, seed=0, **options).mean(0), found.mean)
        same(posterior.uncertainty(x, 5, seed=0, **options).total.sqrt().float(), found.sd)
    same(
        acquisition_scores(posterior, RAW_X, "variance", 5, seed=0),
        acquisition_scores(posterior, X, "variance", 5, seed=0),
    )
    with pytest.raises(ValueError, match="x was computed from standardised values"):
        posterior.predict(X + 1, 2)
    with pytest.raises(ValueError, match="y was computed from standardised values"):
        posterior.evaluate(X, Y + 1, 2)


def test_metrics_are_in_raw_units() -> None:
    posterior = fitted_regressor()
    bare = Posterior(posterior.model, posterior.guide, {"standardiser": None, "y_standardiser": None})
    on_scale = bare.evaluate(X.numpy(), Y.numpy(), 5)["s_draws"]
    table = posterior.evaluate(RAW_X, RAW_Y, 5)["s_draws"]
    sd = float(Y_SCALE.sd)
    assert table["rmse"] == pytest.approx(sd * on_scale["rmse"], rel=1e-4)
    assert table["pred_nll"] == pytest.approx(on_scale["pred_nll"] + math.log(sd), rel=1e-4)
    assert table["coverage_0.9"] == on_scale["coverage_0.9"]
    for x, y, options in (
        (X, Y, {}),
        (X, RAW_Y.numpy(), {}),
        (RAW_X.numpy(), Y, {}),
        (RAW_X.tolist(), RAW_Y.tolist(), {}),
        (X.numpy(), Y.numpy(), {"standardised": True}),
    ):
        other = posterior.evaluate(x, y, 5, **options)["s_draws"]  # type: ignore[arg-type]
        assert other == pytest.approx(table, rel=1e-3)


def test_exports_are_in_raw_units() -> None:
    posterior = fitted_regressor()
    raw = posterior.to_arviz(RAW_X, RAW_Y, 3)
    for x, y, options in (
        (X, Y, {}),
        (RAW_X.numpy(), RAW_Y.tolist(), {}),
        (X.numpy(), Y.numpy(), {"standardised": True}),
    ):
        idata = posterior.to_arviz(x, y, 3, **options)
        for group, name in (
            ("observed_data", "obs"),
            ("constant_data", "x"),
            ("log_likelihood", "obs"),
            ("predictions", "mean"),
        ):
            np.testing.assert_allclose(idata[group][name], raw[group][name], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(raw.constant_data["x"], RAW_X, rtol=1e-5)
    np.testing.assert_allclose(raw.observed_data["obs"], RAW_Y, rtol=1e-5)


def test_labels_as_arrays_and_lists() -> None:
    model, guide = classifier()
    posterior = Posterior(model, guide)
    expected = posterior.evaluate(RAW_X, LABELS, 3)
    for y in (LABELS.numpy(), LABELS.tolist(), LABELS.numpy().astype(np.int32)):
        assert posterior.evaluate(RAW_X, y, 3) == expected
        assert posterior.to_arviz(RAW_X, y, 2).observed_data["obs"].values.tolist() == LABELS.tolist()
    with pytest.raises(TypeError, match="y holds <U1; pass numbers"):
        posterior.evaluate(RAW_X, list("abc"), 2)


def test_arrays_that_look_standardised_are_said_or_refused(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    assert looks_standardised(X, X_SCALE)
    assert not looks_standardised(RAW_X, X_SCALE)
    model, guide = classifier()
    train(model, guide, (X, LABELS))
    posterior = Posterior(model, guide)
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        posterior.predict(RAW_X, 1)
        assert not caplog.records
        posterior.predict(X.numpy(), 1)
    assert "looks standardised already" in caplog.text
    np.save(tmp_path / "x.npy", X.numpy())
    np.save(tmp_path / "raw.npy", RAW_X.numpy())
    with pytest.raises(ValueError, match="looks standardised already"):
        predict_files(posterior, tmp_path / "x.npy", num_samples=3)
    said = predict_files(posterior, tmp_path / "x.npy", num_samples=3, standardised=True)
    raw = predict_files(posterior, tmp_path / "raw.npy", num_samples=3)
    assert [row["probability"] for row in said] == pytest.approx([row["probability"] for row in raw], rel=1e-4)
    direct = posterior.predict(RAW_X, 3, seed=0)
    assert isinstance(direct, Tensor)
    assert [row["probability"] for row in raw] == pytest.approx(direct.amax(1).tolist(), rel=1e-4)


def test_images_of_eight_bits_are_as_good_as_scaled_ones() -> None:
    images = torch.randint(256, (N, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    scale = Standardiser.fit(images.float() / 255)
    model = BNN(MLP((1, 4, 4), 3, [4]), priors.Kaiming(), likelihoods.Categorical(), N)
    posterior = Posterior(model, AutoMeanFieldNormal(model), {"standardiser": scale.to_dict()})
    same(posterior.predict(images, 3, seed=0), posterior.predict(images.float() / 255, 3, seed=0))


# -- every posterior its own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: AutoMeanFieldNormal(program), lambda: AutoNormal(program)], ids=["ours", "stock"]
)
def test_posteriors_of_one_program_do_not_mix(make: Any, tmp_path: Path) -> None:
    folders, expected = [], []
    for i in range(2):
        pyro.clear_param_store()
        guide = make()
        train(program, guide, (X, (LABELS + i) % 3), epochs=10 * (i + 1))
        posterior = Posterior(program, guide)
        expected.append(posterior.predict(RAW_X, 4, seed=0))
        folders.append(posterior.save(tmp_path / str(i)))
    for clear in (True, False):
        if clear:
            pyro.clear_param_store()
        else:
            pyro.param("bias", torch.ones(3))
        before = {name: value.clone() for name, value in pyro.get_param_store().items()}
        loaded = [Posterior.load(folder, model=program, guide=make()) for folder in folders]
        for _ in range(2):
            for one, wanted in zip(loaded, expected, strict=True):
                assert torch.equal(one.predict(RAW_X, 4, seed=0), wanted)  # type: ignore[arg-type]
        after = dict(pyro.get_param_store().items())
        assert all(torch.equal(after[name], value) for name, value in before.items())
        loaded[0].save(tmp_path / "again")
        again = Posterior.load(tmp_path / "again", model=program, guide=make())
        assert torch.equal(again.predict(RAW_X, 4, seed=0), expected[0])  # type: ignore[arg-type]


def test_a_fit_of_one_program_is_not_another_s() -> None:
    """Without saving: the first posterior keeps its parameters though the store was cleared and filled anew."""
    posteriors, expected = [], []
    for i in range(2):
        pyro.clear_param_store()
        guide = AutoNormal(program)
        train(program, guide, (X, (LABELS + i) % 3), epochs=5)
        posteriors.append(Posterior(program, guide))
        expected.append(posteriors[-1].predict(RAW_X, 4, seed=0))
    pyro.clear_param_store()
    for posterior, wanted in zip(posteriors, expected, strict=True):
        assert torch.equal(posterior.predict(RAW_X, 4, seed=0), wanted)


def test_loaded_posteriors_are_freed(tmp_path: Path) -> None:
    model, guide = classifier()
    Posterior(model, guide).save(tmp_path)
    gc.collect()
    before = set(pyro.get_param_store().keys())
    for _ in range(3):
        loaded = Posterior.load(tmp_path)
        loaded.predict(RAW_X, 2)
        loaded.guide.site("net.layers.0.weight")
        del loaded
    gc.collect()
    assert set(pyro.get_param_store().keys()) <= before


def test_a_program_loads_as_its_docstring_says(tmp_path: Path) -> None:
    guide = AutoMeanFieldNormal(program)
    train(program, guide, (X, LABELS))
    posterior = Posterior(program, guide)
    expected = posterior.predict(RAW_X, 3, seed=0)
    posterior.save(tmp_path)
    found = Posterior.load(tmp_path, model=program).predict(RAW_X, 3, seed=0)
    assert torch.equal(found, expected)  # type: ignore[arg-type]


def test_a_stock_guide_of_a_classifier_loads(tmp_path: Path) -> None:
    model = BNN(nn.Linear(3, 3), priors.Kaiming(), likelihoods.Categorical(), N)
    guide = AutoNormal(model)
    train(model, guide, (X, LABELS))
    expected = Posterior(model, guide).predict(X, 3, seed=0)
    Posterior(model, guide).save(tmp_path)
    fresh = BNN(nn.Linear(3, 3), priors.Kaiming(), likelihoods.Categorical(), N)
    found = Posterior.load(tmp_path, model=fresh, guide=AutoNormal(fresh)).predict(X, 3, seed=0)
    assert torch.equal(found, expected)  # type: ignore[arg-type]


def test_programs_with_plates_of_their_own_are_exported() -> None:
    def grouped(x: Tensor, y: Tensor | None = None) -> None:
        with pyro.plate("groups", 3):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(x @ w, 1.0), obs=y)

    guide = AutoMeanFieldNormal(grouped)
    train(grouped, guide, (X, Y))
    idata = Posterior(grouped, guide).to_arviz(RAW_X, RAW_Y, 4)
    assert list(idata.posterior.data_vars) == ["w"]
    assert idata.posterior["w"].shape == (1, 4, 3)
    w = torch.from_numpy(idata.posterior["w"].values[0])
    expected = dist.Normal(0.0, 1.0).log_prob(w).sum(1)
    np.testing.assert_allclose(idata.log_prior["w"].values[0], expected, rtol=1e-5)
