"""From a trained network to a posterior: each rule of the module's docstring, and what must stay as it is."""

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pyro_bnn as pb
from pyro_bnn.methods.bayesianize import MEAN_TRAVEL
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import RealPrediction


class HeadFirst(nn.Module):
    """A network that registers its last layer first, with batch normalisation and dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.body = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def rows(n: int = 600) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2)
    return x, (x @ torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]]) + torch.randn(n, 3)).argmax(-1)


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int = 300) -> nn.Module:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) if not y.is_floating_point() else F.mse_loss(net(x)[:, 0], y)).backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Any, Any, Any]:
    torch.manual_seed(0)
    train, val, test = rows(), rows(), rows(2000)
    return trained(HeadFirst(), *train), train, val, test


def notes(posterior: pb.Posterior) -> dict[str, Any]:
    found: dict[str, Any] = posterior.info["notes"]["bayesianize"]
    return found


def test_the_rules(case: Any) -> None:
    net, train, val, _ = case
    before = {name: value.clone() for name, value in net.state_dict().items()}
    posterior = pb.bayesianize(net, train, val=val)
    model, guide = posterior.model, posterior.guide
    assert isinstance(model, BNN)
    names = ("head.weight", "head.bias", "body.0.weight", "body.0.bias")
    assert model.random_names == names
    for name in names:
        rms = before[name].square().mean().sqrt()
        prior: Any = model.priors()[name]
        assert torch.allclose(prior.stddev, rms.expand(prior.event_shape))
        assert bool((prior.mean == 0).all())
    middle = sorted(float(before[name].square().mean().sqrt()) for name in names)[2]
    for name in names:
        moved = (guide.site(f"net.{name}").loc - before[name]).abs().max()
        assert float(moved) <= MEAN_TRAVEL * middle * 1.01
    said = notes(posterior)
    assert said["eta"] == posterior.info["eta"] == min(1, 600 / (27 + 24)) / 10
    assert (said["epochs"], said["steps"], said["weights"]) == (9, 54, 51)
    assert 0 <= said["kept_epoch"] <= 9

    for name, value in net.state_dict().items():  # the network is as it was
        assert torch.equal(value, before[name])
    assert not any(module.training for module in net.modules())


def test_what_is_not_random_stays_and_statistics_are_those_of_the_network(case: Any) -> None:
    net, train, val, _ = case
    posterior = pb.bayesianize(net, train, "last", val=val)
    model: Any = posterior.model
    assert model.random_names == ("head.weight", "head.bias")  # runs last, though it is registered first
    for name in model.deterministic_names:
        assert torch.equal(model._deterministic(name), net.get_parameter(name))
    for name, value in net.named_buffers():
        assert torch.equal(model.template.get_buffer(name), value)
    patterns = pb.bayesianize(net, train, ["body.0.*"], val=val, epochs=1)
    assert patterns.model.random_names == ("body.0.weight", "body.0.bias")  # type: ignore[attr-defined]
    assert notes(patterns)["layers"] == ["body.0.*"]


def test_it_predicts_as_well_as_the_scaled_network(case: Any) -> None:
    net, train, val, (x, y) = case
    posterior = pb.bayesianize(net, train, val=val)
    said = notes(posterior)["val_nll"]
    assert said["posterior"] < said["network"] + 0.01
    with torch.no_grad():
        logits = net(x)
    scores = posterior.evaluate(x, y, num_samples=50)["s_draws"]
    assert scores["accuracy"] > float((logits.argmax(-1) == y).float().mean()) - 0.01
    assert scores["pred_nll"] < float(F.cross_entropy(logits, y)) + 0.01


def test_the_temperature_has_the_lowest_nll_on_validation(case: Any) -> None:
    net, train, val, _ = case
    posterior = pb.bayesianize(net, train, val=val, num_samples=8, seed=3)
    model: Any = posterior.model
    chosen = model.likelihood.temperature
    assert chosen == notes(posterior)["temperature"] != 1
    nlls = {}
    for factor in (0.95, 1.0, 1.05):
        model.likelihood = likelihoods.Categorical(temperature=factor * chosen)
        p = posterior.predict(val[0], 8, seed=3)
        nlls[factor] = float(-p.gather(1, val[1][:, None]).log().mean())
    assert min(nlls, key=lambda factor: nlls[factor]) == 1.0
    assert nlls[1.0] == pytest.approx(notes(posterior)["val_nll"]["posterior"], abs=1e-5)


def test_a_temperature_divides_outputs() -> None:
    output = torch.tensor([[2.0, 0.0, -1.0]])
    law: Any = likelihoods.Categorical(temperature=4.0).distribution(output)
    assert torch.allclose(law.probs, (output / 4).softmax(-1))
    with pytest.raises(ValueError, match="temperature"):
        likelihoods.Categorical(temperature=0.0)


def test_overconfidence_is_found(case: Any) -> None:
    net, train, val, _ = case
    sure = copy.deepcopy(net)
    with torch.no_grad():
        sure.head.weight.mul_(5)
        sure.head.bias.mul_(5)
    said = notes(pb.bayesianize(sure, train, val=val))
    assert said["temperature"] > 3
    assert said["val_nll"]["posterior"] < said["val_nll"]["network"] - 0.2


def test_regression_sets_the_noise() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(900, 1, generator=random)
    y = x[:, 0].sin() + 0.3 * torch.randn(900, generator=random)
    net = trained(MLP(1, 1, [16], activation="tanh"), x[:300], y[:300])
    posterior = pb.bayesianize(net, (x[:300], y[:300]), val=(x[300:600], y[300:600]))
    predicted = posterior.predict(x[600:], seed=0)
    assert isinstance(predicted, RealPrediction)
    assert float((((predicted.mean - y[600:]) / predicted.sd).square()).mean()) == pytest.approx(1, abs=0.25)
    with torch.no_grad():
        error = (net(x[600:])[:, 0] - y[600:]).square().mean().sqrt()
    assert float((predicted.mean - y[600:]).square().mean().sqrt()) < float(error) + 0.01


def test_it_is_saved_with_its_temperature(tmp_path: Path) -> None:
    x, y = rows(300)
    net = trained(MLP(2, 3, [8]), x, y, 100)
    posterior = pb.bayesianize(net, (x[:200], y[:200]), val=(x[200:], y[200:]), epochs=1)
    again = pb.load(posterior.save(tmp_path / "posterior"))
    assert torch.equal(again.predict(x, 5, seed=0), posterior.predict(x, 5, seed=0))
    assert again.info["notes"] == posterior.info["notes"]


def test_rows_are_held_out_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    x, y = rows(200)
    net = MLP(2, 3, [8])
    with caplog.at_level(logging.WARNING):
        posterior = pb.bayesianize(net, (x, y), epochs=1)
    assert "20 of the 200 rows are held out" in caplog.text
    assert posterior.info["num_data"] == 180


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"net": lambda x: x}, "pass the trained"),
        ({"epochs": 0}, "epochs=0"),
        ({"layers": "nothing*"}, "matches no parameter"),
        ({"data": (torch.randn(5, 2), torch.zeros(5).long())}, "leave none to hold out"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], message: str) -> None:
    given = {"net": MLP(2, 3, [8]), "data": rows(50), **arguments}
    with pytest.raises((TypeError, ValueError), match=message):
        pb.bayesianize(**given)


def test_zero_biases_have_the_usual_scale() -> None:
    net = MLP(2, 3, [8])
    with torch.no_grad():
        net.layers[0].bias.zero_()
    posterior = pb.bayesianize(net, rows(100), val=rows(50), epochs=1)
    prior = posterior.model.prior  # type: ignore[attr-defined]
    assert isinstance(prior, priors.PerLayer)
    scales = {
        name: float(p.detach().square().mean().sqrt()) for name, p in net.named_parameters() if "0.bias" not in name
    }
    assert float(posterior.model.priors()["layers.0.bias"].stddev[0]) == pytest.approx(  # type: ignore[attr-defined]
        sorted(scales.values())[1]
    )
