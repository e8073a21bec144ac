"""
Augmentations of a batch of images: (B, C, H, W) in, (B, C, H, W) out, each image with its own random numbers.

`flip` is a mirror image with probability 1/2, for networks too small to profit from more. `crop_flip` is the usual one
for CIFAR: a random crop of the original size from the image padded by 4, then the same. The padding is 0, which for
standardised images is each channel's mean. Random numbers come from `generator` (on the CPU, the same on every device),
or from the global one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["AUGMENTATIONS", "crop_flip", "flip", "none"]

PADDING = 4


def none(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """
    Return the images as they are.

    :param images: a batch (B, C, H, W).
    :param generator: where the numbers come from; default torch's global one.
    """
    return images


def _check(images: Tensor, name: str) -> None:
    if images.ndim != 4:
        raise ValueError(f"images have shape {tuple(images.shape)}; {name} needs (B, C, H, W): augment images only")


def flip(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """
    Mirror each image, left to right, with probability 1/2.

    :param images: a batch (B, C, H, W).
    :param generator: where the numbers come from; default torch's global one.
    """
    _check(images, "flip")
    mirrored = torch.randint(0, 2, (len(images), 1, 1, 1), generator=generator).to(images.device).bool()
    return torch.where(mirrored, images.flip(3), images)


def crop_flip(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """
    Shift each image by -4..4 pixels along both axes, filling with 0, and mirror it with probability 1/2.

    :param images: a batch (B, C, H, W).
    :param generator: where the numbers come from; default torch's global one.
    """
    _check(images, "crop_flip")
    b, _, h, w = images.shape
    shift = torch.randint(0, 2 * PADDING + 1, (2, b, 1), generator=generator).to(images.device)
    mirrored = torch.randint(0, 2, (b, 1), generator=generator).to(images.device).bool()
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)  # (B, C, H + 8, W + 8)
    rows = shift[0] + torch.arange(h, device=images.device)  # (B, H)
    columns = torch.arange(w, device=images.device)
    columns = shift[1] + torch.where(mirrored, columns.flip(0), columns)  # (B, W)
    image = torch.arange(b, device=images.device)[:, None, None]
    picked = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
    return picked.permute(0, 3, 1, 2).contiguous()


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator | None], Tensor]] = {
    "none": none,
    "flip": flip,
    "crop_flip": crop_flip,
}
"""Augmentations by the name that a recipe gives."""
