"""Targets that are not known: the posterior is that of the known ones, to the last digit of a float64 gradient."""

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from programs import FEATURES, ROWS, Watch, classes, stock_fit
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import FlatMeanField_ELBO, kl_divergence, per_datum
from pyro_bnn.inference.missing import MaskMissing
from pyro_bnn.inference.samplers.mcmc import run_chain
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import Posterior

X = classes()[0].double()
Y = torch.stack([X.sum(1), X.prod(1)], 1)
GONE = torch.arange(ROWS) % 4 == 1
KNOWN = ~GONE
ONE = Y[:, 0].masked_fill(GONE, torch.nan)


def bnn(n: int, targets: int = 1) -> BNN:
    return BNN(MLP(FEATURES, targets, [5]), priors.Kaiming(), likelihoods.LearnedGaussian(), n).double()


def normal(n: int) -> Any:
    def program(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("data", n, subsample=torch.arange(len(x))):
            pyro.sample("visits", dist.Normal(x @ w, 1.0), obs=y)

    return program


def gamma(n: int) -> Any:
    """A law whose support does not hold 0."""

    def program(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("data", n, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Gamma(2.0, (x @ w).exp()), obs=y)

    return program


def poisson(n: int) -> Any:
    def program(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("data", n, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Poisson((x @ w).exp()), obs=y)

    return program


def joint(n: int) -> Any:
    def program(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES, 2, dtype=torch.float64), 1.0).to_event(2))
        covariance = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
        with pyro.plate("data", n, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.MultivariateNormal(x @ w, covariance), obs=y)

    return program


def gradients(make: Any, x: Tensor, y: Tensor, elbo: Any, n: int, weights: Any = None) -> dict[str, Tensor]:
    """N times the loss of one full step, and N times its gradients."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = make(n)
    guide = AutoMeanFieldNormal(model)
    found: dict[str, Tensor] = {}
    optim = pyro.optim.SGD({"lr": 1.0})

    def keep(state: Any) -> None:
        found.update({name: p.detach().clone() for name, p in guide.named_parameters()})
        found["loss"] = state.batch_loss * n
        found["nll"] = state.batch_nll * n

    guide(x, y)
    start = {name: p.detach().clone() for name, p in guide.named_parameters()}
    stock_fit(model, guide, optim, (x, y), epochs=1, batch_size=n, callbacks=[Watch(keep)], elbo=elbo, seed=1,
              weights=weights)  # fmt: skip
    return {name: n * (start[name] - p) if name in start else p for name, p in found.items()}


def alike(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert bool(torch.isfinite(value).all())
        torch.testing.assert_close(value.double(), two[name].double(), rtol=1e-10, atol=1e-10)


ELBOS = {"flat": FlatMeanField_ELBO, "mean field": TraceMeanField_ELBO, "sampled": Trace_ELBO}


@pytest.mark.parametrize("elbo", list(ELBOS))
@pytest.mark.parametrize(
    ("make", "y"),
    [
        (bnn, ONE),
        (bnn, ONE[:, None]),
        (normal, ONE),
        (gamma, ONE.abs() + 0.1),
        (poisson, ONE.abs().round()),
        (joint, Y.masked_fill(GONE[:, None], torch.nan)),
        (lambda n: bnn(n, 2), Y.masked_fill(GONE[:, None], torch.nan)),
    ],
)
def test_rows_without_a_target_give_what_the_others_give_alone(make: Any, y: Tensor, elbo: str) -> None:
    masked = gradients(make, X, y, ELBOS[elbo](), ROWS)
    alone = gradients(make, X[KNOWN], y[KNOWN], ELBOS[elbo](), int(KNOWN.sum()))
    alike(masked, alone)


@pytest.mark.parametrize("elbo", list(ELBOS))
def test_elements_are_masked_one_by_one(elbo: str) -> None:
    """Two targets of one network, each half known, are as much as the two networks' gradients added up."""
    y = Y.clone()
    y[GONE, 0] = torch.nan
    y[KNOWN, 1] = torch.nan
    found = gradients(lambda n: bnn(n, 2), X, y, ELBOS[elbo](), ROWS)
    model_nll = []
    for column, rows in ((0, KNOWN), (1, GONE)):
        only = torch.full_like(Y, torch.nan)
        only[rows, column] = Y[rows, column]
        model_nll.append(gradients(lambda n: bnn(n, 2), X, only, ELBOS[elbo](), ROWS)["nll"])
    torch.testing.assert_close(found["nll"].double(), sum(model_nll).double(), rtol=1e-10, atol=0)  # type: ignore[union-attr]


def test_the_masked_log_likelihood_by_hand() -> None:
    y = Y.clone()
    y[3, 0] = y[5, 1] = y[7, 0] = y[7, 1] = torch.nan
    model = bnn(ROWS, 2)
    with MaskMissing():
        trace = poutine.trace(model).get_trace(X, y)
        trace.compute_log_prob()
    mean = trace.nodes["_RETURN"]["value"]
    by_hand = dist.Normal(mean, 1.0).log_prob(Y)
    wanted = torch.where(y.isnan(), 0.0, by_hand).sum(-1)
    torch.testing.assert_close(trace.nodes["obs"]["log_prob"], wanted, rtol=1e-12, atol=0)


def test_weights_and_missing_targets_go_together() -> None:
    weights = torch.linspace(0, 2, ROWS, dtype=torch.float64)
    masked = gradients(bnn, X, ONE, TraceMeanField_ELBO(), ROWS, weights=weights)
    alone = gradients(bnn, X[KNOWN], ONE[KNOWN], TraceMeanField_ELBO(), int(KNOWN.sum()), weights=weights[KNOWN])
    alike(masked, alone)


def test_batches_add_up_and_a_loader_gives_the_same_steps() -> None:
    lines = []
    for data, size in (((X, ONE), ROWS), ((X, ONE), 5), (DataLoader(TensorDataset(X, ONE), batch_size=5), None)):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = bnn(ROWS)
        guide = AutoMeanFieldNormal(model, init_scale=1e-12)
        still = pyro.optim.SGD({"lr": 0.0})
        lines.append(stock_fit(model, guide, still, data, epochs=1, batch_size=size).history[0])
    assert lines[0]["nll"] == pytest.approx(lines[1]["nll"], rel=1e-8)
    assert lines[0]["nll"] == pytest.approx(lines[2]["nll"], rel=1e-8)
    assert float(kl_divergence(model, guide, X)) == pytest.approx(ROWS * lines[2]["kl"])


def test_rows_that_are_all_known_are_not_touched() -> None:
    a = gradients(bnn, X, Y[:, 0], FlatMeanField_ELBO(), ROWS)
    with MaskMissing():
        b = gradients(bnn, X, Y[:, 0], TraceMeanField_ELBO(), ROWS)
    alike(a, b)


def test_validation_leaves_them_out() -> None:
    def val_nll(x: Tensor, y: Tensor) -> float:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = bnn(ROWS, y.shape[1] if y.ndim > 1 else 1)
        guide = AutoMeanFieldNormal(model)
        train = Y if y.ndim > 1 else Y[:, 0]
        return float(stock_fit(model, guide, pyro.optim.SGD({"lr": 0.0}), (X, train), epochs=1, val=(x, y)).history[0][
            "val_nll"
        ])  # fmt: skip

    assert val_nll(X, ONE) == pytest.approx(val_nll(X[KNOWN], ONE[KNOWN]), rel=1e-12)
    both = Y.clone()
    both[:, 1] = torch.nan
    first = val_nll(X, both)
    both = torch.cat([both, torch.full_like(both, torch.nan)])
    assert val_nll(torch.cat([X, X]), both) == pytest.approx(first, rel=1e-12)
    with pytest.raises(ValueError, match="val y holds no known target"):
        val_nll(X, ONE * torch.nan)


def test_scores_refuse_what_is_not_known() -> None:
    model = bnn(ROWS)
    posterior = Posterior(model, AutoMeanFieldNormal(model))
    for use in (posterior.evaluate, posterior.to_arviz):
        with pytest.raises(ValueError, match=r"y holds NaN or infinity in 6 of 24 rows \(first: row 1\).*drop"):
            use(X, ONE.numpy(), 2)


def test_fit_trains_on_arrays_with_gaps() -> None:
    x = X.float().numpy()
    y = x.sum(1)
    y[::5] = np.nan
    model = bnn(ROWS).float()
    guide = AutoMeanFieldNormal(model)
    result = stock_fit(model, guide, pyro.optim.Adam({"lr": 0.02}), (x, y), epochs=40, batch_size=6, seed=0)
    assert result.history[-1]["nll"] < result.history[0]["nll"]
    with per_datum(ROWS), pytest.raises(ValueError, match=r"support|NaN|nan"):
        TraceMeanField_ELBO().loss(model, guide, torch.from_numpy(x), torch.from_numpy(y))  # stock: not masked


def test_what_stays_refused() -> None:
    x = X.clone()
    x[2, 1] = torch.nan
    part = Y.clone()
    part[4, 1] = torch.nan
    infinite = ONE.clone()
    infinite[0] = torch.inf
    for make, data, message in (
        (bnn, (x, ONE), r"x holds NaN or infinity in 1 of 24 rows \(first: row 2\)"),
        (bnn, (X, infinite), r"y holds NaN or infinity in 1 of 24 rows \(first: row 0\)"),
        (joint, (X, part), "row 4 of y is known in part.*MultivariateNormal"),
    ):
        model = make(ROWS)
        with pytest.raises(ValueError, match=message):
            stock_fit(model, AutoMeanFieldNormal(model), pyro.optim.Adam({"lr": 0.01}), data, epochs=1)
    model = BNN(MLP(FEATURES, 1, [5]), priors.Normal(1.0), likelihoods.Gaussian(), ROWS)
    with pytest.raises(ValueError, match="y holds NaN"):
        run_chain(model, (X, ONE), warmup=1, draws=1, seed=0)
