"""
A small transformer encoder on image patches (Dosovitskiy et al. 2021, ViT), for images of 28x28 or 32x32 pixels.

    L patches of P x P pixels, each mapped to D numbers - a class token in front, learned positions added - blocks of
    norm, attention with `heads` heads, norm and a GELU layer of `hidden` units, each around a shortcut - norm - dense K
    on the class token

It is torchvision's VisionTransformer in a small size, without dropout. Departures: images of any number of channels,
and a head that starts as PyTorch's dense layers do (torchvision's starts at 0, which leaves the rest without a gradient
if the guide starts from the network's own values). 546,186 parameters at 3x32x32 and K = 10 with the sizes below.
"""

from typing import Any, final

from torch import Tensor, nn

from pyro_bnn.models.networks import sizes

__all__ = ["PatchTransformer"]


@final
class PatchTransformer(nn.Module):
    """
    A vision transformer; it maps images (B, C, H, W) to logits (B, K).

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param image_size: height and width in pixels, a multiple of `patch_size`.
    :param width: D, a multiple of `heads`.
    :param depth: how many blocks of attention.
    :param hidden: units between the two dense layers of a block.
    """

    sized_for = staticmethod(sizes.square_images)

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 10,
        image_size: int = 32,
        patch_size: int = 4,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        hidden: int = 256,
    ) -> None:
        super().__init__()
        sizes: dict[str, Any] = dict(
            in_channels=in_channels,
            num_classes=num_classes,
            image_size=image_size,
            patch_size=patch_size,
            width=width,
            depth=depth,
            heads=heads,
            hidden=hidden,
        )
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if image_size % patch_size:
            raise ValueError(f"patch_size={patch_size} does not divide image_size={image_size}: pass one that does")
        if width % heads:
            raise ValueError(f"heads={heads} does not divide width={width}: pass a number that does")
        self.config = sizes
        from torchvision.models.vision_transformer import VisionTransformer  # inside: it costs a second

        self.net = VisionTransformer(image_size, patch_size, depth, heads, width, hidden, num_classes=num_classes)
        self.net.conv_proj = nn.Conv2d(in_channels, width, kernel_size=patch_size, stride=patch_size)
        self.net.heads = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """
        Return logits (B, K) for images (B, C, H, W).

        :param x: images (B, C, H, W).
        """
        return self.net(x)  # type: ignore[no-any-return]
