"""Priors: moments and densities against the formulas, shapes, and what they refuse."""

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import constraints

from pyro_bnn.assemble import build_prior
from pyro_bnn.models import BNN, MLP, LeNet5, likelihoods, priors
from pyro_bnn.models.priors import fans, torch_fan_in

CONV = nn.Conv2d(3, 8, (4, 5))  # 60 inputs and 160 outputs
DENSE = nn.Linear(7, 2)


@pytest.mark.parametrize(
    ("module", "parameter", "expected"),
    [
        (CONV, CONV.weight, (60, 160)),
        (CONV, CONV.bias, (60, 160)),
        (DENSE, DENSE.weight, (7, 2)),
        (DENSE, DENSE.bias, (7, 2)),
        (nn.LayerNorm(5), nn.LayerNorm(5).weight, (1, 1)),
        (None, torch.zeros(()), (1, 1)),
    ],
)
def test_fans_count_the_weights_that_feed_one_unit(module: Any, parameter: Tensor, expected: tuple[int, int]) -> None:
    assert fans(module, parameter) == expected


def used_weights(conv: Any) -> tuple[int, int]:
    """Count, by changing them one at a time, the weights that feed one output far from the border, and one input."""
    spatial = len(conv.kernel_size)
    x = torch.zeros(1, conv.in_channels, *[9] * spatial)
    centre = (slice(None), 0, *[4] * spatial)
    x[centre] = 1.0
    weight = conv.weight.detach().clone().requires_grad_()
    call = {True: "conv_transpose", False: "conv"}["Transpose" in type(conv).__name__] + f"{spatial}d"
    run = getattr(torch.nn.functional, call)
    out = run(x, weight, groups=conv.groups)
    (leaving,) = torch.autograd.grad(out.sum(), weight)
    out = run(torch.ones_like(x), weight, groups=conv.groups)
    (feeding,) = torch.autograd.grad(out[(0, 0, *[n // 2 for n in out.shape[2:]])], weight)
    return int((feeding != 0).sum()), int((leaving != 0).sum())


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
)
def test_fans_of_convolutions_count_the_weights_in_use(kind: Any, groups: int) -> None:
    conv = kind(4, 8, 3, groups=groups)
    expected = used_weights(conv)
    taps = 3 ** len(conv.kernel_size)
    assert expected == (4 // groups * taps, 8 // groups * taps)
    assert fans(conv, conv.weight) == fans(conv, conv.bias) == expected
    torch.testing.assert_close(
        priors.Kaiming()("bias", conv, conv.bias).stddev, torch.full((8,), math.sqrt(2 / expected[0]))
    )


def test_the_bias_of_a_recurrent_layer_has_the_fans_of_its_own_weight() -> None:
    layer = nn.LSTM(3, 5, num_layers=2)
    assert fans(layer, layer.bias_ih_l0) == fans(layer, layer.weight_ih_l0) == (3, 20)
    assert fans(layer, layer.bias_hh_l0) == fans(layer, layer.weight_hh_l0) == (5, 20)
    assert fans(layer, layer.bias_ih_l1) == fans(layer, layer.weight_ih_l1) == (5, 20)


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d, nn.ConvTranspose2d])
def test_torch_fan_in_is_that_of_pytorchs_own_start(kind: Any) -> None:
    layer = kind(4, 9, *(() if kind is nn.Linear else (3,)))
    bound = 1 / math.sqrt(torch_fan_in(layer, layer.weight))
    assert 0.8 * bound < float(layer.weight.detach().abs().max()) <= bound


@pytest.mark.parametrize(
    ("prior", "module", "sd"),
    [
        (priors.Normal(scale=0.3), DENSE, 0.3),
        (priors.Kaiming(), DENSE, math.sqrt(2 / 7)),
        (priors.Kaiming(), CONV, math.sqrt(2 / 60)),
        (priors.Kaiming(a=1.0), CONV, math.sqrt(1 / 60)),
        (priors.Kaiming(a=0.5), DENSE, math.sqrt(2 / (1.25 * 7))),
        (priors.Xavier(), DENSE, math.sqrt(2 / 9)),
        (priors.Xavier(), CONV, math.sqrt(2 / 220)),
        (priors.FanIn(), DENSE, math.sqrt(1 / 7)),
        (priors.FanIn(gain=3.0), CONV, math.sqrt(3 / 60)),
        (priors.Laplace(scale=0.4), DENSE, 0.4 * math.sqrt(2)),
        (priors.ScaleMixture(0.25, 2.0, 0.1), DENSE, math.sqrt(0.25 * 4 + 0.75 * 0.01)),
    ],
)
@pytest.mark.parametrize("which", ["weight", "bias"])
def test_standard_deviations(prior: priors.Prior, module: nn.Module, sd: float, which: str) -> None:
    parameter = module.get_parameter(which)
    found = prior(f"layer.{which}", module, parameter)
    assert found.batch_shape == ()
    assert found.event_shape == parameter.shape
    torch.testing.assert_close(found.stddev, torch.full(parameter.shape, sd))


def test_densities_are_the_printed_ones() -> None:
    w = torch.linspace(-2, 2, 14).reshape(2, 7)
    v = w.double()
    weight = DENSE.weight

    def normal(scale: float, loc: float = 0.0) -> Tensor:
        return -((v - loc) ** 2) / (2 * scale**2) - math.log(scale * math.sqrt(2 * math.pi))

    expected = {
        priors.Normal(0.5, 0.3): normal(0.3, 0.5),
        priors.Laplace(0.4): -v.abs() / 0.4 - math.log(0.8),
        priors.ScaleMixture(0.25, 2.0, 0.1): (0.25 * normal(2.0).exp() + 0.75 * normal(0.1).exp()).log(),
    }
    for prior, log_density in expected.items():
        torch.testing.assert_close(
            prior("w", DENSE, weight).log_prob(w).double(), log_density.sum(), rtol=1e-5, atol=1e-5
        )


def test_mixture_has_real_support_and_its_draws_the_mixture_s_variance() -> None:
    prior = priors.ScaleMixture(0.25, 2.0, 0.1)("w", DENSE, torch.zeros(400, 100))
    assert prior.support.base_constraint is constraints.real  # type: ignore[attr-defined]
    draws = prior.sample().double()
    variance, fourth = 0.25 * 4 + 0.75 * 0.01, 3 * (0.25 * 16 + 0.75 * 1e-4)
    z = (draws.square().mean() - variance) / math.sqrt((fourth - variance**2) / draws.numel())
    assert abs(z) < 4.9  # false alarm 1e-6


def test_per_layer_takes_the_first_match() -> None:
    rule = priors.PerLayer({"fc3.*": priors.Normal(scale=0.1), "*.bias": priors.Normal(scale=2.0)}, priors.FanIn())
    model = BNN(LeNet5(), rule, likelihoods.Categorical(), 10)
    found = model.priors()
    assert float(found["fc3.bias"].stddev[0]) == pytest.approx(0.1)
    assert float(found["fc1.bias"].stddev[0]) == pytest.approx(2.0)
    assert float(found["fc1.weight"].stddev[0, 0]) == pytest.approx(1 / 20)


@pytest.mark.parametrize(
    "prior",
    [
        priors.Normal(0.1, 2.0),
        priors.Kaiming(0.5),
        priors.Xavier(),
        priors.FanIn(2.0),
        priors.Laplace(0.3),
        priors.ScaleMixture(0.1, 1.0, 0.2),
        priors.PerLayer({"*.bias": priors.Normal()}, priors.Laplace(2.0)),
    ],
)
def test_spec_builds_the_same_prior(prior: priors.Prior) -> None:
    assert build_prior(prior.spec()) == prior


def test_priors_follow_the_network_s_dtype() -> None:
    model = BNN(MLP(3, 2), priors.ScaleMixture(), likelihoods.Categorical(), 10).double()
    assert {prior.sample().dtype for prior in model.priors().values()} == {torch.float64}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priors.Normal(scale=0.0), "scale=0.0 .* above 0"),
        (lambda: priors.Normal(scale=math.inf), "scale=inf .* finite"),
        (lambda: priors.Kaiming(a=math.nan), "a=nan .*0 for the ReLU"),
        (lambda: priors.FanIn(gain=-1.0), "gain=-1.0 .* above 0"),
        (lambda: priors.Laplace(scale=-0.5), "scale=-0.5 .* above 0"),
        (lambda: priors.ScaleMixture(pi=1.0), "pi=1.0 .* between 0 and 1"),
        (lambda: priors.ScaleMixture(scale2=0.0), "scale2=0.0 .* above 0"),
    ],
)
def test_bad_input_names_value_and_remedy(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rule_must_return_one_event() -> None:
    def rule(name: str, module: Any, parameter: Tensor) -> Any:
        return dist.Normal(torch.zeros_like(parameter), 1.0)

    with pytest.raises(ValueError, match=r"prior of 'layers.0.weight' .*to_event"):
        BNN(MLP(3, 2), rule, likelihoods.Categorical(), 10)  # type: ignore[arg-type]
