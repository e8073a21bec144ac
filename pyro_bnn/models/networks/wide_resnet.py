"""
Wide residual networks (Zagoruyko and Komodakis 2016): WRN-d-k with n = (d - 4) / 6 blocks in each of three stages.

    conv 3x3, 16 maps - stages of 16 k, 32 k and 64 k maps, the second and third at stride 2 - norm - ReLU - global
    average - dense K

A block normalises before it convolves: norm - ReLU - conv3x3 - norm - ReLU - conv3x3, plus a shortcut around it; where
maps or size change, the shortcut is a 1x1 convolution of the first norm and ReLU. No dropout. WRN-28-10 has 36,479,194
parameters at 3x32x32 and K = 10. torchvision's wide ResNets are another family (bottlenecks, for ImageNet).

Convolutions start from Kaiming's normal (fan_out), the dense layer as in PyTorch.
"""

from typing import Any, final

from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.models.networks import sizes

__all__ = ["WideResNet"]


@final
class _Block(nn.Module):
    """Two normalised 3x3 convolutions with a shortcut around them."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        changes = stride > 1 or in_channels != channels
        self.shortcut = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Return maps (B, channels, H / stride, W / stride)."""
        out = F.relu(self.bn1(x))
        if self.shortcut is not None:
            x = self.shortcut(out)
        out = self.conv2(F.relu(self.bn2(self.conv1(out))))
        return x + out  # type: ignore[no-any-return]


def _stage(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = _Block(in_channels, channels, stride)
    return nn.Sequential(first, *(_Block(channels, channels, 1) for _ in range(blocks - 1)))


@final
class WideResNet(nn.Module):
    """
    WRN-depth-widen; it maps images (B, C, H, W) to logits (B, K).

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param depth: 6 n + 4, for instance 10, 16, 22, 28 or 40.
    :param widen: k, by which the maps of every stage are multiplied.
    """

    sized_for = staticmethod(sizes.channels)

    def __init__(self, in_channels: int = 3, num_classes: int = 10, depth: int = 28, widen: int = 10) -> None:
        super().__init__()
        if min(in_channels, num_classes, widen) < 1:
            raise ValueError(
                f"in_channels={in_channels}, num_classes={num_classes} and widen={widen} must be at least 1"
            )
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"depth={depth} is no wide ResNet: pass 6 n + 4 with n >= 1, such as 10, 16 or 28")
        self.config: dict[str, Any] = dict(in_channels=in_channels, num_classes=num_classes, depth=depth, widen=widen)
        n = (depth - 4) // 6
        self.conv1 = nn.Conv2d(in_channels, 16, kernel_size=3, padding=1, bias=False)
        self.stage1 = _stage(16, 16 * widen, n, stride=1)
        self.stage2 = _stage(16 * widen, 32 * widen, n, stride=2)
        self.stage3 = _stage(32 * widen, 64 * widen, n, stride=2)
        self.bn = nn.BatchNorm2d(64 * widen)
        self.fc = nn.Linear(64 * widen, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """
        Return logits (B, K) for images (B, C, H, W).

        :param x: images (B, C, H, W).
        """
        x = self.stage1(self.conv1(x))  # (B, 16 k, H, W)
        x = self.stage3(self.stage2(x))  # (B, 64 k, H / 4, W / 4)
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))  # type: ignore[no-any-return]
