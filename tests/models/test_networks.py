"""Networks: their sizes, their sums and what they refuse."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.models import MLP, LeNet5, Perceptron
from pyro_bnn.models.networks.pooling import MaxPool2x2, max_pool_2x2


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def macs(net: nn.Module, x: Tensor) -> int:
    """Multiply-accumulates of one row: outputs times inputs of each, for convolutions and dense layers."""
    total = 0

    def add(module: nn.Module, args: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            total += output[0].numel() * module.weight[0].numel()

    for module in net.modules():
        module.register_forward_hook(add)
    net(x)
    return total


@pytest.mark.parametrize(
    ("shape", "weights", "multiplications"), [((1, 28, 28), 61_706, 416_520), ((3, 32, 32), 62_006, 651_720)]
)
def test_lenet5_has_the_printed_size(shape: tuple[int, int, int], weights: int, multiplications: int) -> None:
    net = LeNet5(in_channels=shape[0], num_classes=10, image_size=shape[1])
    assert count(net) == weights
    assert macs(net, torch.zeros(1, *shape)) == multiplications
    assert net(torch.zeros(7, *shape)).shape == (7, 10)


def test_lenet5_is_conv_relu_max_pool_twice_then_dense() -> None:
    net, x = LeNet5(), torch.randn(2, 1, 28, 28)
    p = dict(net.named_parameters())
    h = F.max_pool2d(F.relu(F.conv2d(x, p["conv1.weight"], p["conv1.bias"], padding=2)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, p["conv2.weight"], p["conv2.bias"])), 2).flatten(1)
    for layer in ("fc1", "fc2"):
        h = F.relu(h @ p[f"{layer}.weight"].T + p[f"{layer}.bias"])
    torch.testing.assert_close(net(x), h @ p["fc3.weight"].T + p["fc3.bias"])


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
def test_mlp_is_dense_layers_with_an_activation_between(activation: Any) -> None:
    net, x = MLP((2, 3), 4, [5, 6], activation), torch.randn(7, 2, 3)
    h = x.flatten(1)
    for i in range(3):
        h = h @ net.layers[i].weight.T + net.layers[i].bias
        h = getattr(torch, activation, getattr(F, activation))(h) if i < 2 else h
    torch.testing.assert_close(net(x), h)
    assert [tuple(layer.weight.shape) for layer in net.layers] == [(5, 6), (6, 5), (4, 6)]


def test_relu_perceptron_can_be_and() -> None:
    net = Perceptron()
    with torch.no_grad():
        net.unit.weight.copy_(torch.tensor([[1.0, 1.0]]))
        net.unit.bias.copy_(torch.tensor([-1.0]))
    rows = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert net(rows).squeeze(-1).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert count(net) == 3


@pytest.mark.parametrize(
    "net", [LeNet5(3, 7, 32), MLP((1, 4, 4), 3, [8], "tanh"), MLP(5, 2, []), Perceptron(4, 2, "identity")]
)
def test_config_builds_the_same_network(net: Any) -> None:
    again = type(net)(**net.config)
    assert again.config == net.config
    assert [(n, p.shape) for n, p in again.named_parameters()] == [(n, p.shape) for n, p in net.named_parameters()]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeNet5(image_size=29), "image_size=29 .* 28 or 32"),
        (lambda: MLP(3, 2, activation="gelu"), "activation='gelu'.*'relu'"),  # type: ignore[arg-type]
        (lambda: MLP(3, 2, hidden=[4, 0]), r"\[3, 4, 0, 2\] .* at least one unit"),
        (lambda: MLP(0, 2), "at least one unit"),
        (lambda: Perceptron(activation="tanh"), "activation='tanh'.*'relu'"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_names_value_and_remedy(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (2, 2)])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_pooling_is_torchs(size: tuple[int, int], with_gradient: bool) -> None:
    x = torch.randn(3, 2, *size, generator=torch.Generator().manual_seed(0), requires_grad=with_gradient)
    assert torch.equal(max_pool_2x2(x), F.max_pool2d(x, 2))
    assert torch.equal(MaxPool2x2()(x), F.max_pool2d(x, 2))
    with torch.no_grad():
        assert torch.equal(max_pool_2x2(x), F.max_pool2d(x, 2))
