"""
ResNet-34 for small images (He et al. 2016, with the stem that CIFAR repositories give it).

The blocks are torchvision's BasicBlock, in its four stages of 3, 4, 6 and 3. Departure for images of 32x32 pixels: the
7x7 convolution of stride 2 and the max pool in front of the stages become one 3x3 convolution of stride 1. 21,282,122
parameters at 3x32x32 and K = 10, as in the code that AdaBound's and AdaBayes' authors measured with; `width` scales the
maps of all stages.

Convolutions start from Kaiming's normal (fan_out), as in torchvision.
"""

from typing import Any, final

from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.models.networks import sizes

__all__ = ["ResNet34"]

_BLOCKS = (3, 4, 6, 3)


def _stage(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    """Return one stage: its first block changes the maps and the size, and its shortcut is a 1x1 convolution then."""
    from torchvision.models.resnet import BasicBlock, conv1x1  # inside: it costs a second that others need not pay

    shortcut = None
    if stride > 1 or in_channels != channels:
        shortcut = nn.Sequential(conv1x1(in_channels, channels, stride), nn.BatchNorm2d(channels))
    first = BasicBlock(in_channels, channels, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(channels, channels) for _ in range(blocks - 1)))


@final
class ResNet34(nn.Module):
    """
    ResNet-34; it maps images (B, C, H, W) to logits (B, K).

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param width: the maps of the first stage; each further one has twice as many.
    """

    sized_for = staticmethod(sizes.channels)

    def __init__(self, in_channels: int = 3, num_classes: int = 10, width: int = 64) -> None:
        super().__init__()
        if min(in_channels, num_classes, width) < 1:
            raise ValueError(
                f"in_channels={in_channels}, num_classes={num_classes} and width={width} must be at least 1"
            )
        self.config: dict[str, Any] = dict(in_channels=in_channels, num_classes=num_classes, width=width)
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, _BLOCKS[0], stride=1)
        self.layer2 = _stage(width, 2 * width, _BLOCKS[1], stride=2)
        self.layer3 = _stage(2 * width, 4 * width, _BLOCKS[2], stride=2)
        self.layer4 = _stage(4 * width, 8 * width, _BLOCKS[3], stride=2)
        self.fc = nn.Linear(8 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """
        Return logits (B, K) for images (B, C, H, W).

        :param x: images (B, C, H, W).
        """
        x = F.relu(self.bn1(self.conv1(x)))  # (B, 64, H, W)
        x = self.layer2(self.layer1(x))  # (B, 128, H / 2, W / 2)
        x = self.layer4(self.layer3(x))  # (B, 512, H / 8, W / 8)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]
