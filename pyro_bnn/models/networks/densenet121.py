"""
DenseNet-121 for small images (Huang et al. 2017, with the stem that CIFAR repositories give it).

Dense blocks, transitions and head are torchvision's: bottleneck layers (1x1 to 4 k maps, 3x3 to k maps) in blocks of 6,
12, 24 and 16, each layer's maps added to those of all before it in its block, with k = `growth`. Departure for images
of 32x32 pixels: the 7x7 convolution of stride 2 becomes a 3x3 one of stride 1, and the max pool behind it goes.
6,956,426 parameters at 3x32x32 and K = 10.

Convolutions start from Kaiming's normal (fan_in), as in torchvision.
"""

from collections.abc import Sequence
from typing import Any, cast, final

from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.models.networks import sizes

__all__ = ["DenseNet121"]


@final
class DenseNet121(nn.Module):
    """
    DenseNet-121; it maps images (B, C, H, W) to logits (B, K).

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param growth: k, the maps that every layer adds; the stem has twice as many.
    :param blocks: layers of each of the four blocks; 121 counts the published ones, two weights each, with the rest.
    """

    sized_for = staticmethod(sizes.channels)

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 10,
        growth: int = 32,
        blocks: Sequence[int] = (6, 12, 24, 16),
    ) -> None:
        super().__init__()
        if min(in_channels, num_classes, growth) < 1:
            raise ValueError(
                f"in_channels={in_channels}, num_classes={num_classes} and growth={growth} must be at least 1"
            )
        if len(blocks) != 4 or min(blocks) < 1:
            raise ValueError(f"blocks={list(blocks)} are no four dense blocks: pass four counts of at least 1")
        self.config: dict[str, Any] = dict(
            in_channels=in_channels, num_classes=num_classes, growth=growth, blocks=list(blocks)
        )
        from torchvision.models.densenet import DenseNet  # inside: it costs a second that others need not pay

        net = DenseNet(growth, cast(Any, tuple(blocks)), 2 * growth, num_classes=num_classes)
        stem = nn.Conv2d(in_channels, 2 * growth, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight)
        net.features.conv0 = stem
        del net.features.pool0
        self.features = net.features
        self.classifier = net.classifier

    def forward(self, x: Tensor) -> Tensor:
        """
        Return logits (B, K) for images (B, C, H, W).

        :param x: images (B, C, H, W).
        """
        x = F.relu(self.features(x))  # (B, 1024, H / 8, W / 8)
        return self.classifier(x.mean((2, 3)))  # type: ignore[no-any-return]
