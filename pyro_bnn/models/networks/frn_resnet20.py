"""
ResNet-20 with filter response normalisation and SiLU: the network of Izmailov et al. 2021, whose posterior HMC drew.

Filter response normalisation (Singh and Krishnan 2020, arXiv:1911.09737) looks at one image and one map at a time, so
that a row's prediction does not depend on the other rows, and every parameter can be random:

    nu2 = mean of x^2 over the map,     y = gamma x / sqrt(nu2 + eps) + beta,     z = max(y, tau)

with gamma = 1, beta = tau = 0 at first, for each map. A layer is conv 3x3 - normalisation - SiLU; a block is such a
layer and one without SiLU, plus its input, then a SiLU; three stages of three blocks with 16, 32 and 64 maps. Where the
second and third stage begin, stride is 2 and the shortcut is conv 1x1 - normalisation. Convolutions have biases. An
average over 8x8 and one dense layer follow: 274,042 parameters at 3x32x32 and K = 10, 2,352 of them of normalisation.

As in the source's code (Izmailov et al. 2021, arXiv:2104.14421): eps is fixed at 1e-6 and not |eps| with a learned one;
SiLU comes after max(y, tau), which the paper of the normalisation has in its place; "same" padding with stride 2 adds
the row and the column behind the image only.

Convolutions and the dense layer start from Kaiming's normal (fan_in, truncated at two deviations), as there.
"""

import math
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.models.networks import sizes

__all__ = ["FRNResNet20", "FilterResponseNorm", "filter_response_norm"]

EPS = 1e-6
_CUT = 0.87962566103423978
"""The standard deviation of a standard normal truncated at two deviations."""


def filter_response_norm(x: Tensor, gamma: Tensor, beta: Tensor, tau: Tensor, eps: float = EPS) -> Tensor:
    """
    Return max(gamma x / sqrt(mean of x^2 over the map + eps) + beta, tau), (B, C, H, W).

    :param x: maps (B, C, H, W).
    :param gamma: scales (C,).
    :param beta: shifts (C,).
    :param tau: least values (C,).
    :param eps: added to the mean square.
    """
    nu2 = x.square().mean((2, 3), keepdim=True)  # (B, C, 1, 1)
    factor = gamma.view(-1, 1, 1) * torch.rsqrt(nu2 + eps)  # first, of few numbers: one pass less over the maps
    above = torch.addcmul((beta - tau).view(-1, 1, 1), x, factor)
    return F.relu(above) + tau.view(-1, 1, 1)  # max(y, tau) with a cheaper gradient than torch.maximum's


@final
class FilterResponseNorm(nn.Module):
    """
    Filter response normalisation of maps, with a learned scale, shift and least value for each.

    :param channels: C, how many maps.
    :param eps: added to the mean square.

    >>> import torch
    >>> FilterResponseNorm(1)(torch.full((1, 1, 2, 2), 3.0)).flatten().round(decimals=4).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, channels: int, eps: float = EPS) -> None:
        super().__init__()
        if channels < 1 or not (math.isfinite(eps) and eps > 0):
            raise ValueError(f"channels={channels}, eps={eps}: pass at least 1 map, and a finite eps above 0")
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.tau = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """
        Return normalised maps (B, C, H, W).

        :param x: maps (B, C, H, W).
        """
        return filter_response_norm(x, self.gamma, self.beta, self.tau, self.eps)


@final
class _Layer(nn.Module):
    """A convolution with "same" padding, then the normalisation."""

    def __init__(self, in_channels: int, channels: int, kernel_size: int = 3, stride: int = 1) -> None:
        super().__init__()
        behind = kernel_size - stride if stride > 1 else 0  # with stride 2 on an even side: all padding is behind
        self.behind = max(0, behind)
        padding = 0 if stride > 1 else kernel_size // 2
        self.conv = nn.Conv2d(in_channels, channels, kernel_size=kernel_size, stride=stride, padding=padding)
        self.norm = FilterResponseNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps (B, channels, H / stride, W / stride)."""
        if self.behind:
            x = F.pad(x, (0, self.behind, 0, self.behind))
        return self.norm(self.conv(x))  # type: ignore[no-any-return]


@final
class _Block(nn.Module):
    """Two layers with a shortcut around them."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = _Layer(in_channels, channels, stride=stride)
        self.second = _Layer(channels, channels)
        self.shortcut = _Layer(in_channels, channels, kernel_size=1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return maps (B, channels, H / stride, W / stride)."""
        return F.silu(self.shortcut(x) + self.second(F.silu(self.first(x))))


@final
class FRNResNet20(nn.Module):
    """
    ResNet-20 with filter response normalisation and SiLU; it maps images (B, C, H, W) to logits (B, K).

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param width: the maps of the first stage; the next two have twice and four times as many.

    >>> import torch
    >>> net = FRNResNet20()
    >>> sum(p.numel() for p in net.parameters()), net(torch.zeros(2, 3, 32, 32)).shape
    (274042, torch.Size([2, 10]))
    """

    sized_for = staticmethod(sizes.channels)

    def __init__(self, in_channels: int = 3, num_classes: int = 10, width: int = 16) -> None:
        super().__init__()
        if min(in_channels, num_classes, width) < 1:
            raise ValueError(
                f"in_channels={in_channels}, num_classes={num_classes} and width={width} must be at least 1"
            )
        self.config: dict[str, Any] = dict(in_channels=in_channels, num_classes=num_classes, width=width)
        self.first = _Layer(in_channels, width)
        self.stage1 = nn.Sequential(*(_Block(width, width, 1) for _ in range(3)))
        self.stage2 = nn.Sequential(_Block(width, 2 * width, 2), *(_Block(2 * width, 2 * width, 1) for _ in range(2)))
        self.stage3 = nn.Sequential(
            _Block(2 * width, 4 * width, 2), *(_Block(4 * width, 4 * width, 1) for _ in range(2))
        )
        self.fc = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                sd = math.sqrt(2 / module.weight[0].numel()) / _CUT
                nn.init.trunc_normal_(module.weight, std=sd, a=-2 * sd, b=2 * sd)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """
        Return logits (B, K) for images (B, C, H, W) whose sides are multiples of 4.

        :param x: images (B, C, H, W).
        """
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)  # maps last in memory, as convolutions on a CPU like it
        x = F.silu(self.first(x))  # (B, 16, H, W)
        x = self.stage3(self.stage2(self.stage1(x)))  # (B, 64, H / 4, W / 4)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]
