"""
max_pool2d(x, 2) by the compiled kernel, for recorded steps: the maxima and their places as torch has them, to the bit.

torch walks through the windows one by one, which shows in a small network's step; the kernel does sixteen at a time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_bnn.inference.native.build import kernel
from pyro_bnn.inference.native.mean_field import MIN_SIZE

__all__ = ["max_pool", "takes_windows"]

_MAX_WIDTH = 1 << 30


def takes_windows(shape: Sequence[int], options: Sequence[object]) -> bool:
    """
    Return whether the kernel pools contiguous float32 images of this shape on a CPU.

    :param options: kernel size, stride, padding, dilation, ceil_mode of torch's operation, as many as were given.
    """
    given: list[object] = [*options, *([], 0, 1, False)[len(options) - 1 :]]
    size, stride, padding, dilation, ceil_mode = given
    windows = _all(size, 2) and (stride == [] or _all(stride, 2)) and _all(padding, 0) and _all(dilation, 1)
    if not windows or ceil_mode or len(shape) < 3 or min(shape[-2:]) < 2 or shape[-1] >= _MAX_WIDTH:
        return False
    return torch.Size(shape).numel() >= MIN_SIZE and (found := kernel()) is not None and found.pools


def _all(numbers: object, number: int) -> bool:
    return all(n == number for n in (numbers if isinstance(numbers, (list, tuple)) else [numbers]))


def max_pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maxima of windows of 2 x 2 pixels (..., H // 2, W // 2), and their places as torch counts them."""
    found = kernel()
    as_recorded = images.dtype is torch.float32 and images.device.type == "cpu" and images.is_contiguous()
    if found is None or not as_recorded:
        return torch.ops.aten.max_pool2d_with_indices(images, [2, 2], [2, 2])  # type: ignore[no-any-return]
    return found.max_pool(images)
