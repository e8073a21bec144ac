"""
ResNet-20 for small images (He et al. 2016, section 4.2): three stages of three blocks with 16, 32 and 64 maps.

A block is torchvision's BasicBlock, conv3x3 - norm - ReLU - conv3x3 - norm, plus its input, then a ReLU; a stage after
the first begins with stride 2. The shortcut there is the paper's option A: every second pixel, with zero maps added, so
that it has no parameters. A global average and one dense layer follow: 269,722 parameters at 3x32x32 and K = 10,
1,376 of them in the normalisation layers.

Convolutions start from Kaiming's normal (fan_out), as in torchvision.
"""

from typing import Any, final

from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.models.networks import sizes

__all__ = ["ResNet20"]


@final
class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.added = channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return maps (B, channels, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.stride > 1 or self.added:
            x = x[:, :, :: self.stride, :: self.stride]  # (B, in_channels, H / stride, W / stride)
            x = F.pad(x, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))
        return F.relu(out + x, inplace=True)


@final
class ResNet20(nn.Module):
    """
    ResNet-20; it maps images (B, C, H, W) to logits (B, K).

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param width: the maps of the first stage; the next two have twice and four times as many.
    """

    sized_for = staticmethod(sizes.channels)

    def __init__(self, in_channels: int = 3, num_classes: int = 10, width: int = 16) -> None:
        super().__init__()
        if min(in_channels, num_classes, width) < 1:
            raise ValueError(
                f"in_channels={in_channels}, num_classes={num_classes} and width={width} must be at least 1"
            )
        self.config: dict[str, Any] = dict(in_channels=in_channels, num_classes=num_classes, width=width)
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.stage1 = nn.Sequential(*(_Block(width, width, 1) for _ in range(3)))
        self.stage2 = nn.Sequential(_Block(width, 2 * width, 2), *(_Block(2 * width, 2 * width, 1) for _ in range(2)))
        self.stage3 = nn.Sequential(
            _Block(2 * width, 4 * width, 2), *(_Block(4 * width, 4 * width, 1) for _ in range(2))
        )
        self.fc = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """
        Return logits (B, K) for images (B, C, H, W).

        :param x: images (B, C, H, W).
        """
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)  # maps last in memory, as convolutions on a CPU like it
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)  # (B, 16, H, W)
        x = self.stage3(self.stage2(self.stage1(x)))  # (B, 64, H / 4, W / 4)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]
