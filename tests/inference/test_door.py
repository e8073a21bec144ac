"""The door of fit: dtypes, shapes, several inputs, three parts, scales, sites of any name; what is refused there."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyro
import pyro.distributions as dist
import pytest
import torch
from programs import CLASSES, FEATURES, ROWS, classes, same_tensors, stock_fit
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from pyro_bnn.data import Split, Standardiser
from pyro_bnn.data.standardise import plain
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference.checkpoint import parameters_of
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam
from pyro_bnn.posterior import Posterior

X, Y = classes()
REAL = X.sum(1)


def bnn(net: nn.Module | None = None, likelihood: likelihoods.Likelihood | None = None, n: int = ROWS) -> BNN:
    return BNN(net or MLP(FEATURES, CLASSES, [5]), priors.Kaiming(), likelihood or likelihoods.Categorical(), n)


def regression(n: int = ROWS, features: int = FEATURES) -> BNN:
    return bnn(MLP(features, 1, [5]), likelihoods.LearnedGaussian(), n)


def fitted(make: Any, data: Any, **options: Any) -> dict[str, dict[str, Tensor]]:
    """The parameters after two epochs from one seed."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = make()
    guide = AutoMeanFieldNormal(model)
    stock_fit(model, guide, Adam({"lr": 0.01}), data, **{"epochs": 2, "batch_size": 7, "seed": 1, **options})
    return parameters_of(model, guide)


# -- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        (X.numpy().astype(np.float64), Y.numpy()),
        (X.double(), Y),
        (X.numpy().astype(">f8"), Y.numpy().astype(">i2")),
        (X.numpy()[::-1][::-1], Y.to(torch.int32)),
        (X, Y.to(torch.uint8)),
        (X, Y.numpy().astype(np.uint16)),
    ],
)
def test_every_width_of_numbers_trains_to_the_same_bits(data: Any) -> None:
    assert same_tensors(fitted(bnn, data), fitted(bnn, (X, Y)))


@pytest.mark.parametrize("y", [REAL.double(), REAL.double().numpy(), REAL[:, None].double().numpy()])
def test_float64_targets_train_to_the_same_bits(y: Any) -> None:
    assert same_tensors(fitted(regression, (X.double().numpy(), y)), fitted(regression, (X, REAL)))


def test_a_float64_model_keeps_float64() -> None:
    x, y = X.double() + 1e-12, REAL.double()
    found = fitted(lambda: regression().double(), (x.numpy(), y.numpy()))
    assert same_tensors(found, fitted(lambda: regression().double(), (x, y)))
    assert {t.dtype for t in found["guide"].values()} == {torch.float64}


INTEGERS = torch.arange(ROWS * FEATURES).reshape(ROWS, FEATURES) % 7


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_become_floats_for_a_network_that_wants_floats(dtype: torch.dtype) -> None:
    x = INTEGERS.to(dtype)
    assert same_tensors(fitted(bnn, (x, Y)), fitted(bnn, (x.float(), Y)))
    assert same_tensors(fitted(bnn, (x.numpy(), Y)), fitted(bnn, (x.float(), Y)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        assert not x.is_floating_point()
        return self.out(self.embed(x).mean(1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_stay_integers_for_an_embedding(dtype: torch.dtype) -> None:
    data = (INTEGERS.to(dtype).numpy(), Y)
    assert same_tensors(fitted(lambda: bnn(Words()), data), fitted(lambda: bnn(Words()), (INTEGERS, Y)))


def test_prediction_takes_the_integers_that_training_took() -> None:
    for net in (None, Words()):
        model = bnn(net)
        guide = AutoMeanFieldNormal(model)
        stock_fit(model, guide, Adam({"lr": 0.01}), (INTEGERS.to(torch.uint8), Y), epochs=1)
        posterior = Posterior(model, guide)
        wanted: Any = posterior.predict(INTEGERS if net else INTEGERS.float(), 3, seed=0)
        before = torch.get_rng_state()
        found: Any = posterior.predict(INTEGERS.to(torch.uint8).numpy(), 3, seed=0)
        assert torch.equal(found, wanted)
        assert torch.equal(torch.get_rng_state(), before)


def bernoulli(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
    with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float64])
def test_labels_of_two_classes_in_any_dtype(dtype: torch.dtype) -> None:
    y = Y > 1
    assert same_tensors(fitted(lambda: bernoulli, (X, y.to(dtype))), fitted(lambda: bernoulli, (X, y.float())))
    make = lambda: bnn(MLP(FEATURES, 1, [5]), likelihoods.Bernoulli())  # noqa: E731
    assert same_tensors(fitted(make, (X, y.to(dtype))), fitted(make, (X, y.float())))


def test_a_float64_program_keeps_float64_tensors() -> None:
    seen = []

    def program(x: Tensor, y: Tensor | None = None) -> None:
        seen.append(x.dtype)
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(x @ w, 1.0), obs=y)

    stock_fit(program, AutoMeanFieldNormal(program), Adam({"lr": 0.01}), (X.double(), REAL.double()), epochs=1)
    assert set(seen) == {torch.float64}


def test_a_program_left_half_way_leaves_no_parameter_of_the_wrong_dtype() -> None:
    def program(x: Tensor, y: Tensor | None = None) -> None:
        shift = pyro.param("shift", lambda: x[0].clone())
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
        with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal((x - shift) @ w, 1.0), obs=y)

    stock_fit(program, AutoMeanFieldNormal(program), Adam({"lr": 0.01}), (X.double(), REAL.double()), epochs=1)
    assert pyro.param("shift").dtype == torch.float32


def test_what_no_dtype_mends_is_one_sentence() -> None:
    model = bnn()
    with pytest.raises(ValueError, match=r"x \(24, 4\) of float32 and y \(24,\) of int64: .*mat1") as caught:
        stock_fit(model, AutoMeanFieldNormal(model), Adam({"lr": 0.01}), (torch.randn(ROWS, 4), Y), epochs=1)
    assert "\n" not in str(caught.value)


def test_a_default_batch_is_100_rows_or_all() -> None:
    found = []
    for n in (3, 100, 250):
        model = regression(n)
        x = torch.randn(n, FEATURES)
        stock_fit(
            model, AutoMeanFieldNormal(model), Adam({"lr": 0.01}), (x, x.sum(1)), epochs=1,
            augment=lambda rows: found.append(len(rows)) or rows,
        )  # fmt: skip
    assert found == [3, 100, 100, 100, 50]


# -- shapes ----------------------------------------------------------------------------------------------------------


def normal(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
    with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Normal(x @ w, 1.0), obs=y)


def column(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES, 1), 1.0).to_event(2))
    with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Normal(x @ w, 1.0), obs=y)


@pytest.mark.parametrize(("program", "y"), [(normal, REAL[:, None]), (column, REAL)])
def test_targets_that_would_broadcast_are_refused(program: Any, y: Tensor) -> None:
    with pytest.raises(ValueError, match=r"'obs' has log-probabilities of shape \(24, 24\).*\[:, 0\]") as caught:
        stock_fit(program, AutoMeanFieldNormal(program), Adam({"lr": 0.01}), (X, y), epochs=1)
    assert "\n" not in str(caught.value)


def test_targets_outside_a_support_are_refused() -> None:
    def positive(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
        with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.LogNormal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match="'obs' is LogNormal and some of its values lie outside its support") as caught:
        stock_fit(positive, AutoMeanFieldNormal(positive), Adam({"lr": 0.01}), (X, -REAL.abs()), epochs=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", [-100, CLASSES])
def test_a_label_that_means_missing_elsewhere_is_out_of_range(label: int) -> None:
    y = Y.clone()
    y[3] = label
    with pytest.raises(ValueError, match=rf"y\[3\]={label} is no label"):
        fitted(bnn, (X, y))


def test_none_among_the_labels_is_refused() -> None:
    y = np.array([0] * (ROWS - 1) + ["dog"], dtype=object)
    with pytest.raises(TypeError, match=r"y holds text or objects \(row 23 is 'dog'\)"):
        fitted(bnn, (X, y))
    with pytest.raises(ValueError, match="is no label"):
        fitted(bnn, (X, np.array([1.0] * (ROWS - 1) + [-100.0])))


# -- several inputs --------------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(3, 2), nn.Linear(FEATURES + 2, CLASSES)

    def forward(self, x: Tensor, group: Tensor) -> Tensor:
        return self.out(torch.cat([x, self.embed(group)], -1))


class Packed(nn.Module):
    """The same network of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(3, 2), nn.Linear(FEATURES + 2, CLASSES)

    def forward(self, both: Tensor) -> Tensor:
        return self.out(torch.cat([both[:, :FEATURES], self.embed(both[:, FEATURES].long())], -1))


GROUP = torch.arange(ROWS) % 3
PACKED = torch.cat([X, GROUP[:, None].float()], 1)


@pytest.mark.parametrize(
    "data",
    [
        ((X, GROUP), Y),
        ([X, GROUP], Y),
        Split((X, GROUP), Y),
        ((X.double().numpy(), GROUP.numpy().astype(np.int16)), Y.numpy()),
        ((pandas.DataFrame(X.numpy()).rename(columns=str), pandas.Series(GROUP.numpy())), Y),
    ],
)
@pytest.mark.parametrize("likelihood", ["bnn", "fast"])
def test_two_inputs_train_and_predict_as_one_that_holds_both(data: Any, likelihood: str) -> None:
    from pyro_bnn.inference import FlatMeanField_ELBO

    options = {"elbo": FlatMeanField_ELBO()} if likelihood == "fast" else {}
    found = []
    for net, rows, x in ((Two, data, (X, GROUP)), (Packed, (PACKED, Y), PACKED)):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = bnn(net())
        guide = AutoMeanFieldNormal(model)
        result = stock_fit(model, guide, Adam({"lr": 0.01}), rows, val=rows, epochs=2, batch_size=7, seed=1, **options)
        posterior = Posterior(model, guide)
        p: Any = posterior.predict(x, 5, chunk=5, seed=0)
        table = posterior.evaluate(x, Y.numpy(), 5)
        found.append((parameters_of(model, guide)["guide"], result.history[-1]["val_nll"], p, table))
    (one, two) = found
    assert all(torch.equal(one[0][name], two[0][name]) for name in one[0])
    assert one[1] == two[1]
    assert torch.equal(one[2], two[2])
    assert one[3] == two[3]


def test_a_program_of_two_inputs() -> None:
    def program(x: Any, y: Tensor | None = None) -> None:
        rows, group = x
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
        alpha = pyro.sample("alpha", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", ROWS, subsample=torch.arange(len(rows))):
            pyro.sample("obs", dist.Normal(rows @ w + alpha[group], 1.0), obs=y)

    guide = AutoMeanFieldNormal(program)
    stock_fit(program, guide, Adam({"lr": 0.01}), ((X, GROUP), REAL), epochs=2, batch_size=7, val=((X, GROUP), REAL))
    found: Any = Posterior(program, guide).predict((X, GROUP), 3, chunk=7, seed=0)
    assert found.mean.shape == (ROWS,)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (((X, GROUP[:5]), Y), ValueError, r"2 inputs in x have \[24, 5\] rows"),
        (({"x": X, "g": GROUP}, Y), TypeError, r"x is a dict; give several inputs as a tuple, \(x, g\)"),
        ((((X, 3)), Y), TypeError, "x is a tuple of other things"),
        ((X, Y), TypeError, r"missing 1 required positional argument.*several inputs go in a tuple"),
        ((X, GROUP, Y), ValueError, r"third part .*int64 .* weights=.*\(\(x1, x2\), y\)"),
        ((X, X, REAL.abs()), ValueError, r"second part .* \(24, 3\).*sample weights or.*weights="),
        ((X, GROUP, REAL), ValueError, r"weights\[\d+\] is -.*>= 0.*\(\(x1, x2\), y\)"),
        ((X, GROUP, REAL.abs()), TypeError, "missing 1 required positional argument.*several inputs go in a tuple"),
    ],
)
def test_what_is_no_pair_of_inputs_is_refused(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fitted(lambda: bnn(Two()), data)


def test_a_program_whose_third_argument_is_y_takes_no_three_parts() -> None:
    def program(x: Tensor, g: Tensor, y: Tensor | None = None) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="third argument is 'y'"):
        stock_fit(program, lambda *_: None, Adam({"lr": 0.01}), (X, GROUP, REAL.abs()), epochs=1)
    with pytest.raises(ValueError, match="third argument is 'y'"):
        stock_fit(program, lambda *_: None, Adam({"lr": 0.01}), TensorDataset(X, GROUP, REAL.abs()), epochs=1)


def test_weights_by_keyword_are_weights_as_the_third_part() -> None:
    weights = torch.linspace(0, 1, ROWS)
    wanted = fitted(bnn, (X, Y, weights))
    assert same_tensors(fitted(bnn, (X, Y), weights=weights.double().numpy()), wanted)
    assert not same_tensors(fitted(bnn, (X, Y)), wanted)
    counts = torch.arange(ROWS) % 3
    assert same_tensors(fitted(bnn, (X, Y), weights=counts), fitted(bnn, (X, Y, counts.float())))
    with pytest.raises(ValueError, match="given twice"):
        fitted(bnn, (X, Y, weights), weights=weights)


# -- scales ----------------------------------------------------------------------------------------------------------

TABLE = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5 + 1e6
PRICES = 300 + 40 * (TABLE[:, 0] - 1e6) + torch.arange(60)


def test_standardised_in_fit_is_standardised_before() -> None:
    x, y = Standardiser.fit(TABLE), Standardiser.fit(PRICES)
    wanted = fitted(lambda: regression(60, 2), (x.apply(TABLE).float(), y.apply(PRICES).float()))
    frame = pandas.DataFrame(TABLE.numpy(), columns=["a", "b"])
    for data in ((TABLE, PRICES), (TABLE.numpy(), PRICES.numpy()), (frame, pandas.Series(PRICES.numpy()))):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = regression(60, 2)
        guide = AutoMeanFieldNormal(model)
        options: dict[str, Any] = {"epochs": 2, "batch_size": 7, "seed": 1, "standardise": True}
        result = stock_fit(model, guide, Adam({"lr": 0.01}), data, val=data, **options)
        found = parameters_of(model, guide)
        for name, tensor in wanted["guide"].items():
            # float64 rows are standardised before they are rounded, as those were
            torch.testing.assert_close(found["guide"][name], tensor, rtol=0, atol=0)
        assert result.standardiser is not None
        assert result.y_standardiser is not None
        assert torch.equal(result.standardiser.mean, x.mean)
        assert torch.equal(result.y_standardiser.sd, y.sd)
        assert result.history[-1]["val_nll"] < 10


@pytest.mark.parametrize(("what", "x", "y"), [("x", True, False), ("y", False, True), (False, False, False)])
def test_one_side_alone(what: Any, x: bool, y: bool) -> None:
    model = regression(60, 2)
    rows = (TABLE, plain(Standardiser.fit(PRICES).apply(PRICES)))
    result = stock_fit(model, AutoMeanFieldNormal(model), Adam({"lr": 0.01}), rows, epochs=1, standardise=what)
    assert (result.standardiser is not None, result.y_standardiser is not None) == (x, y)


def test_classes_are_left_alone_and_missing_targets_left_out() -> None:
    model = bnn()
    result = stock_fit(model, AutoMeanFieldNormal(model), Adam({"lr": 0.01}), (X, Y), epochs=1, standardise=True)
    assert result.standardiser is not None
    assert result.y_standardiser is None
    with pytest.raises(ValueError, match="standardise='y' is for real targets"):
        fitted(bnn, (X, Y), standardise="y")
    y = torch.stack([PRICES, PRICES.flip(0)], 1)
    y[::3, 0] = torch.nan
    model = bnn(MLP(2, 2, [5]), likelihoods.LearnedGaussian(), 60)
    found = stock_fit(model, AutoMeanFieldNormal(model), Adam({"lr": 0.01}), (TABLE, y), epochs=1, standardise=True)
    assert found.y_standardiser is not None
    known = y[~y[:, 0].isnan(), 0]
    assert found.y_standardiser.mean.tolist() == [float(Standardiser.fit(known).mean), float(PRICES.mean())]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((X, Y), {"standardise": "z"}, "standardise='z' is unknown"),
        (((X, GROUP), Y), {"standardise": True}, "2 inputs: standardise them with"),
        ((torch.randn(ROWS, 2, 3), Y), {"standardise": "x"}, r"x has shape \(24, 2, 3\)"),
        ((X, Y), {"num_data": ROWS}, "num_data=24 is for a DataLoader"),
    ],
)
def test_what_cannot_be_standardised_is_refused(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(bnn, data, **options)


@pytest.mark.parametrize(
    "y", [PRICES, PRICES / PRICES.std() + 100, PRICES / 1e6, torch.stack([PRICES * 0, PRICES], 1).float()]
)
def test_raw_targets_are_warned_about(y: Tensor) -> None:
    x = Standardiser.fit(TABLE).apply(TABLE)
    d = 1 if y.ndim == 1 else 2
    for likelihood in (likelihoods.Gaussian(), likelihoods.LearnedGaussian(0.1), likelihoods.HeteroscedasticGaussian()):
        outputs = 2 * d if isinstance(likelihood, likelihoods.HeteroscedasticGaussian) else d
        model = bnn(MLP(2, outputs, [5]), likelihood, 60)
        guide = AutoMeanFieldNormal(model)
        with pytest.warns(UserWarning, match="targets have mean .*standardise=True") as caught:
            stock_fit(model, guide, Adam({"lr": 0.01}), (x, y), epochs=1)
        assert len(caught) == 1
        assert Path(caught[0].filename).name == "programs.py"  # whoever called fit


def test_right_scales_known_noise_and_programs_are_not_warned_about() -> None:
    x = Standardiser.fit(TABLE).apply(TABLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for y in (Standardiser.fit(PRICES).apply(PRICES), 2 + torch.randn(60), torch.full((60,), 0.5)):
            fitted(lambda: regression(60, 2), (x, y))
        fitted(lambda: bnn(MLP(2, 1, [5]), likelihoods.Gaussian(noise=40.0), 60), (x, PRICES))
        fitted(lambda: normal, (X, 1000 + REAL))
        fitted(lambda: regression(60, 2), (x, PRICES), standardise="y")


# -- sites of any name -----------------------------------------------------------------------------------------------


def counts(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
    pyro.deterministic("twice", 2 * w)
    with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
        pyro.sample("visits", dist.Normal(x @ w, 1.0), obs=y)


def two_sites(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
    with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Normal(x @ w, 1.0), obs=y)
        pyro.sample("again", dist.Normal(x @ w, 2.0), obs=y)


def test_the_observed_site_may_have_any_name() -> None:
    found: list[Any] = []
    for program in (counts, normal):
        pyro.set_rng_seed(0)
        guide = AutoMeanFieldNormal(program)
        line = stock_fit(program, guide, Adam({"lr": 0.01}), (X, REAL), epochs=2, val=(X, REAL), seed=0).history[-1]
        posterior = Posterior(program, guide)
        prediction: Any = posterior.predict(X, 5, seed=0)
        found.append((line["val_nll"], prediction.mean, posterior.evaluate(X, REAL.numpy(), 5)))
        export = posterior.to_arviz(X, REAL.numpy(), 4)
        assert export.posterior_predictive["obs"].shape == (1, 4, ROWS)
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


def test_several_observed_sites_train_and_are_refused_where_one_is_scored() -> None:
    guide = AutoMeanFieldNormal(two_sites)
    assert stock_fit(two_sites, guide, Adam({"lr": 0.01}), (X, REAL), epochs=1).history
    with pytest.raises(ValueError, match="val= scores one observed site, and the program observes 'obs', 'again'"):
        stock_fit(two_sites, guide, Adam({"lr": 0.01}), (X, REAL), epochs=1, val=(X, REAL))
    posterior = Posterior(two_sites, guide)
    for use in (lambda: posterior.predict(X, 2), lambda: posterior.evaluate(X, REAL, 2)):
        with pytest.raises(ValueError, match="sites 'obs', 'again' beside the guide's"):
            use()


def test_a_latent_per_row_is_refused_by_fit_which_shuffles() -> None:
    def program(x: Tensor, y: Tensor | None = None) -> None:
        with pyro.plate("data", ROWS):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("obs", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(ValueError, match="site 'z' has a value for each row, and fit shuffles"):
        stock_fit(program, AutoMeanFieldNormal(program), Adam({"lr": 0.01}), (X, REAL), epochs=1)


def test_logits_of_a_network_of_two_inputs_by_hand() -> None:
    model = bnn(Two())
    weights = {name.removeprefix("net."): p.detach() for name, p in model.template.named_parameters(prefix="net")}
    table = weights["embed.weight"][GROUP]
    wanted = F.linear(torch.cat([X, table], -1), weights["out.weight"], weights["out.bias"])
    torch.testing.assert_close(model.output((X, GROUP), weights), wanted)
    several = {name: w.expand(3, *w.shape) for name, w in weights.items()}
    torch.testing.assert_close(model.output((X, GROUP), several), wanted.expand(3, *wanted.shape))
    with pytest.raises(TypeError, match="x is a dict: pass a tensor, or a tuple"):
        model({"x": X})
    with pytest.raises(ValueError, match=r"the inputs have \[24, 5\] rows"):
        model((X, GROUP[:5]))
