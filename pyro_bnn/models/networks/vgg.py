"""
VGG with 11, 13, 16 or 19 layers (Simonyan and Zisserman 2014), with a width multiplier and a head for small images.

The convolutions are torchvision's (configurations A, B, D and E: 3x3, padded, in five stages with a max pool after
each). Departures, for images of 32x32 pixels and less: the head is one global average and one dense layer in place of
three, so that VGG-19 holds its 16 convolutions and 17 weights in all (20,029,514 parameters at 3x32x32 and K = 10,
biases included); a pool that would leave less than one pixel is left out; `width` multiplies the number of maps.

Convolutions start from Kaiming's normal (fan_out), dense layers from N(0, 0.01^2), biases at 0, as in torchvision.
"""

from typing import Any, Literal, cast, final

from torch import nn

from pyro_bnn.models.networks import sizes
from pyro_bnn.models.networks.pooling import MaxPool2x2

__all__ = ["VGG"]

_CONFIGURATIONS = {11: "A", 13: "B", 16: "D", 19: "E"}


def _stages(depth: int, width: float, image_size: int) -> list[str | int]:
    """Return torchvision's configuration with scaled maps and without the pools the image has no pixels for."""
    from torchvision.models.vgg import cfgs  # inside, because it costs a second that other models need not pay

    stages: list[str | int] = []
    side = image_size
    for item in cfgs[_CONFIGURATIONS[depth]]:
        if item != "M":
            stages.append(max(1, round(cast(int, item) * width)))
        elif side >= 2:
            stages.append("M")
            side //= 2
    return stages


@final
class VGG(nn.Sequential):
    """
    VGG as one chain; it maps images (B, C, H, W) to logits (B, K).

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param image_size: H = W, the pixels of a side.
    :param depth: 11, 13, 16 or 19.
    :param width: multiplies the maps of every convolution (64 to 512 at 1).
    :param batch_norm: normalise after every convolution.
    """

    sized_for = staticmethod(sizes.square_images)

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 10,
        image_size: int = 32,
        depth: Literal[11, 13, 16, 19] = 19,
        width: float = 1.0,
        batch_norm: bool = False,
    ) -> None:
        if depth not in _CONFIGURATIONS:
            raise ValueError(f"depth={depth} is no VGG: pass one of {sorted(_CONFIGURATIONS)}")
        if not width > 0:
            raise ValueError(f"width={width} leaves no maps: pass a multiplier above 0, such as 1 or 0.125")
        if min(in_channels, num_classes, image_size) < 1:
            raise ValueError(
                f"in_channels={in_channels}, num_classes={num_classes}, image_size={image_size}: pass numbers above 0"
            )
        super().__init__()
        self.config: dict[str, Any] = dict(
            in_channels=in_channels,
            num_classes=num_classes,
            image_size=image_size,
            depth=depth,
            width=width,
            batch_norm=batch_norm,
        )
        from torchvision.models.vgg import make_layers

        stages = _stages(depth, width, image_size)
        layers = make_layers(stages, batch_norm=batch_norm)
        self.features = nn.Sequential(*(MaxPool2x2() if isinstance(m, nn.MaxPool2d) else m for m in layers))
        if in_channels != 3:
            first = cast(nn.Conv2d, self.features[0])
            self.features[0] = nn.Conv2d(in_channels, first.out_channels, kernel_size=3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        maps = [item for item in stages if isinstance(item, int)]
        self.classifier = nn.Linear(maps[-1], num_classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(cast(nn.Parameter, module.bias))
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)
