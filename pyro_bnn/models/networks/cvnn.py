"""
CVNN: the small convolutional network of two convolutions and two dense layers for CIFAR-like images.

    conv 3x3, 32 maps, padded - ReLU - max pool 2 - conv 3x3, 64 maps, padded - ReLU - max pool 2 - dense 128 - ReLU -
    dense K

Wolinski, Charpiat and Ollivier (2022) compare penalties on "a simple convolutional NN (CVNN)" and do not print its
layout; the widths here are ours. 545,098 parameters at 3x32x32 and K = 10.
"""

from typing import Any, final

from torch import nn

from pyro_bnn.models.networks import sizes
from pyro_bnn.models.networks.pooling import MaxPool2x2

__all__ = ["CVNN"]


@final
class CVNN(nn.Sequential):
    """
    Two convolutions and two dense layers, as one chain; it maps images (B, C, H, W) to logits (B, K).

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param image_size: height and width in pixels, 4 or more.
    :param width: maps of the first convolution; the second has twice as many.
    :param hidden: units of the first dense layer.
    """

    sized_for = staticmethod(sizes.square_images)

    def __init__(
        self, in_channels: int = 3, num_classes: int = 10, image_size: int = 32, width: int = 32, hidden: int = 128
    ) -> None:
        if image_size < 4:
            raise ValueError(f"image_size={image_size} leaves nothing after two pools: pass 4 or more")
        if min(in_channels, num_classes, width, hidden) < 1:
            raise ValueError(
                f"in_channels={in_channels}, num_classes={num_classes}, width={width}, hidden={hidden}: every layer "
                f"needs at least one unit"
            )
        side = image_size // 2 // 2
        super().__init__()
        self.config: dict[str, Any] = dict(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size, width=width, hidden=hidden
        )
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, width, kernel_size=3, padding=1),
            nn.ReLU(),
            MaxPool2x2(),  # (B, width, H / 2, W / 2)
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            MaxPool2x2(),  # (B, 2 width, side, side)
        )
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Linear(2 * width * side * side, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
        )
