"""Where a guide starts: the moments of every scheme, and never outside a support."""

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_bnn.guides.init import INIT_LOCS, initial_loc, is_real
from pyro_bnn.models import BNN, LeNet5, likelihoods, priors

SHAPE = (200, 100)
LIMIT = 4.9  # standard errors; false alarm 1e-6 per comparison


def check_moments(values: Tensor, mean: float, variance: float, fourth: float) -> None:
    """Compare mean and variance of independent values with their law's, in standard errors."""
    v = values.double().reshape(-1)
    n = len(v)
    assert abs(float(v.mean()) - mean) < LIMIT * math.sqrt(variance / n)
    assert abs(float((v - mean).square().mean()) - variance) < LIMIT * math.sqrt((fourth - variance**2) / n)


def prior(loc: float = 0.5, scale: float = 0.3) -> Any:
    return dist.Normal(loc, scale).expand(SHAPE).to_event(2)


def test_uniform_matches_the_prior_s_moments_inside_its_bounds() -> None:
    values = initial_loc("uniform", prior(), {})
    assert values.shape == SHAPE
    assert float((values - 0.5).abs().max()) <= 0.3 * math.sqrt(3)
    check_moments(values, 0.5, 0.09, 0.3**4 * 9 / 5)


def test_normal_is_the_prior() -> None:
    check_moments(initial_loc("normal", prior(), {}), 0.5, 0.09, 3 * 0.3**4)


def test_torch_is_pytorch_s_default() -> None:
    values = initial_loc("torch", prior(), {"fan_in": 25})
    assert float(values.abs().max()) <= 1 / 5
    check_moments(values, 0.0, 1 / 75, (1 / 5) ** 4 / 5)


def test_zeros_is_the_prior_s_mean_and_net_the_network_s_value() -> None:
    assert torch.equal(initial_loc("zeros", prior(), {}), torch.full(SHAPE, 0.5))
    value = torch.randn(SHAPE)
    found = initial_loc("net", prior(), {"value": value})
    assert torch.equal(found, value)
    assert found.data_ptr() != value.data_ptr()


def test_a_bnn_s_hints_are_its_layers_fan_in_and_values() -> None:
    net = LeNet5()
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), 10)
    hints = {name: hint for name, hint in model._hints.items()}
    assert {name: h["fan_in"] for name, h in hints.items() if name.endswith("weight")} == {
        "conv1.weight": 25,
        "conv2.weight": 150,
        "fc1.weight": 400,
        "fc2.weight": 120,
        "fc3.weight": 84,
    }
    assert hints["fc1.bias"]["fan_in"] == 400
    assert all(torch.equal(hints[name]["value"], p) for name, p in net.named_parameters())


@pytest.mark.parametrize("how", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize(
    "law",
    [
        dist.LogNormal(0.0, 1.0).expand([1000]).to_event(1),
        dist.Exponential(1.0).expand([1000]).to_event(1),
        dist.HalfNormal(1.0).expand([1000]).to_event(1),
        dist.Beta(0.5, 0.5).expand([1000]).to_event(1),
        dist.Uniform(-1.0, 1.0).expand([1000]).to_event(1),
        dist.Dirichlet(torch.ones(4)).expand([1000]).to_event(1),
        dist.LKJCholesky(3),
        dist.Cauchy(0.0, 1.0).expand([1000]).to_event(1),
        dist.HalfCauchy(1.0).expand([1000]).to_event(1),
        dist.StudentT(1.5).expand([1000]).to_event(1),
    ],
    ids=lambda law: type(getattr(law, "base_dist", law)).__name__,
)
def test_every_start_is_inside_the_support(how: str, law: Any) -> None:
    value = initial_loc(how, law, {})
    assert bool(law.support.check(value).all())
    assert bool(torch.isfinite(value).all())


@pytest.mark.parametrize(
    ("support", "real"),
    [
        (constraints.real, True),
        (constraints.real_vector, True),
        (constraints.independent(constraints.real_vector, 1), True),
        (constraints.positive, False),
        (constraints.independent(constraints.unit_interval, 2), False),
        (constraints.simplex, False),
    ],
)
def test_real_under_any_number_of_event_dimensions(support: Any, real: bool) -> None:
    assert is_real(support) is real


@pytest.mark.parametrize(("how", "message"), [("torch", "fan-in"), ("net", "own values")])
def test_schemes_of_a_network_need_one(how: str, message: str) -> None:
    assert how in INIT_LOCS
    with pytest.raises(ValueError, match=message):
        initial_loc(how, prior(), {})
