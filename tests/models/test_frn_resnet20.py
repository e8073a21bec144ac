"""ResNet-20 with filter response normalisation: its size, a literal twin in float64, its rows, its start."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pyro_bnn.models import BNN, FRNResNet20, likelihoods, priors
from pyro_bnn.models.networks.frn_resnet20 import FilterResponseNorm, filter_response_norm


def test_size_is_the_sources() -> None:
    """Convolutions with biases: 448, 13,920, 50,880 + 544, 203,136 + 2,112; 784 maps with three numbers; 650."""
    net = FRNResNet20()
    assert sum(p.numel() for p in net.parameters()) == 274_042
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == 19 + 2
    assert sum(p.numel() for m in net.modules() if isinstance(m, FilterResponseNorm) for p in m.parameters()) == 2_352
    assert net.config == {"in_channels": 3, "num_classes": 10, "width": 16}


def literal(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """One number after another, as the equations are printed."""
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            pixels = [float(v) for v in x[b, c].flatten()]
            nu2 = math.fsum(v * v for v in pixels) / len(pixels)
            for i in range(x.shape[2]):
                for j in range(x.shape[3]):
                    y = float(gamma[c]) * float(x[b, c, i, j]) / math.sqrt(nu2 + 1e-6) + float(beta[c])
                    out[b, c, i, j] = max(y, float(tau[c]))
    return out


def test_normalisation_is_its_literal_twin_in_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    numbers = [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(3)]
    found = filter_response_norm(x, *numbers)
    torch.testing.assert_close(found, literal(x, *numbers), rtol=1e-12, atol=1e-14)
    assert bool((found == numbers[2].view(-1, 1, 1)).any())  # some are at their least value
    assert torch.autograd.gradcheck(filter_response_norm, (x.requires_grad_(), *(n.requires_grad_() for n in numbers)))


def test_the_network_is_a_chain_of_the_sources_layers_in_float64() -> None:
    torch.manual_seed(0)
    net = FRNResNet20(width=2).double()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.5)
    p = dict(net.named_parameters())

    def layer(x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        weight = p[f"{name}.conv.weight"]
        padded = x
        if weight.shape[-1] == 3:  # "same": with stride 2 on an even side one row and column behind, none before
            padded = F.pad(x, (0, 1, 0, 1) if stride == 2 else (1, 1, 1, 1))
        out = F.conv2d(padded, weight, p[f"{name}.conv.bias"], stride)
        return literal(out, p[f"{name}.norm.gamma"], p[f"{name}.norm.beta"], p[f"{name}.norm.tau"])

    def silu(x: torch.Tensor) -> torch.Tensor:
        return x / (1 + torch.exp(-x))

    images = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        x = silu(layer(images, "first"))
        for stage in (1, 2, 3):
            for block in range(3):
                name, stride = f"stage{stage}.{block}", 2 if stage > 1 and block == 0 else 1
                y = layer(silu(layer(x, f"{name}.first", stride)), f"{name}.second")
                shortcut = layer(x, f"{name}.shortcut", stride) if stride == 2 else x
                x = silu(shortcut + y)
        expected = x.mean((2, 3)) @ p["fc.weight"].T + p["fc.bias"]
        torch.testing.assert_close(net(images), expected, rtol=1e-10, atol=1e-12)


def test_a_row_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    net, x = FRNResNet20(width=2).double(), torch.randn(3, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(net(x)[1:2], net(x[1:2]), rtol=1e-9, atol=1e-12)
    assert torch.equal(net.train()(x), net.eval()(x))


def test_everything_is_random_also_the_normalisation() -> None:
    model = BNN(FRNResNet20(width=1), priors.Normal(0.0, 0.2**0.5), likelihoods.Categorical(), num_data=4)
    assert not model.deterministic_names
    assert "stage2.0.shortcut.norm.tau" in model.random_names


def test_starts_as_the_source_does() -> None:
    torch.manual_seed(0)
    weight = FRNResNet20().stage3[1].first.conv.weight.detach()  # of 36,864 numbers
    sd = math.sqrt(2 / (64 * 9))
    assert float(weight.std()) == pytest.approx(sd, rel=0.02)  # 5 standard errors
    assert float(weight.abs().max()) <= 2 * sd / 0.8796 + 1e-6


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match="width=0"):
        FRNResNet20(width=0)
    with pytest.raises(ValueError, match="eps=0"):
        FilterResponseNorm(3, eps=0)
