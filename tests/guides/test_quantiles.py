"""Quantiles of guides, and guides of single points drawn side by side."""

from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_bnn.guides import AutoDropout, AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint, Ensemble, StoredDraws
from pyro_bnn.models import BNN, likelihoods, priors

LEVELS = [0.05, 0.5, 0.95]


def positive(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    below = pyro.sample(
        "below", dist.TransformedDistribution(dist.Gamma(2.0, 1.0), dist.transforms.AffineTransform(1, -1))
    )
    with pyro.plate("groups", 2):
        pyro.sample("g", dist.Normal(below, scale))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ w, scale), obs=y)


def network() -> BNN:
    return BNN(
        nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), priors.Kaiming(), likelihoods.Categorical(), 40
    )


X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "make", [lambda m: AutoMeanFieldNormal(m, init_scale=0.4), lambda m: AutoLowRankNormal(m, init_scale=0.4)]
)
def test_quantiles_are_those_of_draws(make: Any) -> None:
    guide = make(positive)
    guide(X)
    found = guide.quantiles(LEVELS)
    loc, sd = guide.site("w")
    torch.testing.assert_close(found["w"][2], loc + 1.6448536 * sd)
    loc, sd = guide.site("scale")
    torch.testing.assert_close(found["scale"][0], (loc - 1.6448536 * sd).exp())
    draws: dict[str, list[Tensor]] = {name: [] for name in found}
    for _ in range(2000):
        for name, value in guide(X).items():
            draws[name].append(value.detach())
    for name, values in draws.items():
        share = (torch.stack(values) <= found[name][0]).double().mean(0)
        # false alarm 1e-6 per entry: 5 standard errors of a share of .05 in 2,000 draws
        assert bool(((share - 0.05).abs() < 5 * (0.05 * 0.95 / 2000) ** 0.5).all()), name


@pytest.mark.parametrize("guide_class", [AutoMeanFieldNormal, AutoLowRankNormal])
def test_quantiles_of_constrained_sites_that_are_vectors(guide_class: Any) -> None:
    """`to_event` leaves the map of an entry as it is."""

    def model() -> None:
        pyro.sample("a", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
        pyro.sample("b", dist.Beta(2.0, 2.0).expand([2, 3]).to_event(2))
        pyro.sample("c", dist.Dirichlet(torch.ones(3)))

    guide = guide_class(poutine.block(model, hide=["c"]), init_scale=0.3)
    guide()
    for name, bend in (("a", torch.exp), ("b", torch.sigmoid)):
        loc, sd = guide.site(name)
        torch.testing.assert_close(guide.quantiles(LEVELS)[name][2], bend(loc + 1.6448536 * sd))
    guide = guide_class(poutine.block(model, expose=["c"]))
    with pytest.raises(ValueError, match="takes entries together"):
        guide.quantiles(LEVELS)


def test_quantiles_agree_with_stock() -> None:
    guide, stock = AutoMeanFieldNormal(positive, init_scale=0.1), AutoNormal(positive, init_scale=0.1)
    guide(X), stock(X, torch.zeros(8))
    for name in ("w", "scale", "g"):
        assert guide.quantiles(LEVELS)[name].shape == torch.as_tensor(stock.quantiles(LEVELS)[name]).shape
    with pytest.raises(ValueError, match="no levels"):
        guide.quantiles([1.5])


def test_quantiles_of_points_masks_and_stored_draws() -> None:
    model = network()
    point = AutoPoint(model)
    for value in point.quantiles([0.0, 0.3, 1.0])["net.0.weight"]:
        assert torch.equal(value, point.site("net.0.weight").loc)
    size = point.loc.numel()
    draws = torch.randn(5, size)
    stored = StoredDraws.from_flat(model, draws)
    torch.testing.assert_close(
        stored.quantiles([0.5])["net.2.bias"][0], stored.values(draws.median(0).values)["net.2.bias"]
    )
    dropout = AutoDropout(model, rate=0.3)
    found, weights = dropout.quantiles([0.1, 0.5, 0.9])["net.2.weight"], dropout.site("net.2.weight").loc
    assert bool((found[0][weights > 0] == 0).all())
    torch.testing.assert_close(found[1], weights / 0.7)
    assert bool((found[2][weights < 0] == 0).all())


def guides(model: BNN) -> dict[str, Any]:
    size = sum(p.numel() for p in model.template.parameters())
    return {
        "dropout": AutoDropout(model, rate=0.5),
        "stored": StoredDraws.from_flat(model, torch.randn(50, size)),
        "ensemble": Ensemble(model, [AutoPoint(model) for _ in range(5)]),
    }


@pytest.mark.parametrize("kind", ["dropout", "stored", "ensemble"])
def test_parallel_samples_are_draws_of_their_own(kind: str) -> None:
    model = network()
    guide = guides(model)[kind]
    x = torch.randn(8, 5)
    sites = ("net.0.weight", "net.2.weight", "obs")
    found = Predictive(model, guide=guide, num_samples=50, parallel=True, return_sites=sites)(x)
    assert found["obs"].shape == (50, 8)
    first, second = (found[name].reshape(50, -1) for name in sites[:2])
    distinct = len(torch.unique(torch.cat([first, second], 1), dim=0))
    if kind == "dropout":
        assert distinct > 20
        kept = (second.unflatten(1, (3, 6)) != 0).any(1)  # (50, 6): whole units are dropped, anew for each sample
        assert 100 < int(kept.sum()) < 200  # 150 of 300 expected, sd 8.7: 6 of them
        return
    # whole draws at a time, dealt each once before any comes again; Predictive makes some for itself beforehand
    assert distinct == len(torch.unique(second, dim=0))
    assert distinct >= {"stored": 40, "ensemble": 5}[kind]


def test_parallel_samples_that_bring_a_model_s_state_are_refused() -> None:
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), 40)
    state = {name: value for name, value in model.state_dict().items() if name in model.kept_tensors()}
    guide = Ensemble(model, [AutoPoint(model), AutoPoint(model)], [state, state])
    with pytest.raises(ValueError, match="use parallel=False"):
        Predictive(model, guide=guide, num_samples=4, parallel=True)(torch.randn(8, 5))


def test_parallel_samples_of_sites_in_plates() -> None:
    def grouped(x: Tensor, y: Tensor | None = None) -> None:
        with pyro.plate("groups", 3):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal((w.unsqueeze(-2) * x).sum(-1), 1.0), obs=y)

    guide = StoredDraws.from_flat(grouped, torch.arange(12.0).reshape(4, 3), X)
    found = Predictive(grouped, guide=guide, num_samples=4, parallel=True)(X)
    stored = torch.arange(12.0).reshape(4, 3).tolist()
    assert all(row in stored for row in found["w"].reshape(4, 3).tolist())
    assert len(torch.unique(found["w"].reshape(4, 3), dim=0)) > 1
