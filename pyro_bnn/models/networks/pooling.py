"""
2x2 max pooling that is fast in prediction, too.

torch's max_pool2d on a CPU looks at one element after another. Without a gradient to keep, the same maxima are taken of
whole rows and then of whole columns, many numbers at a time. (Steps that are recorded pool by a compiled kernel:
:mod:`pyro_bnn.inference.native.max_pool`.)
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["MaxPool2x2", "max_pool_2x2"]


def max_pool_2x2(x: Tensor) -> Tensor:
    """Return the maxima of 2x2 squares, (..., H // 2, W // 2) for (..., H, W), without an odd last row or column."""
    if x.requires_grad and torch.is_grad_enabled():
        return F.max_pool2d(x, 2)
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    rows = torch.maximum(x[..., 0:height:2, :], x[..., 1:height:2, :])  # (..., H // 2, W)
    return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


@final
class MaxPool2x2(nn.MaxPool2d):
    """`max_pool_2x2` as a layer, for networks that are chains of layers."""

    def __init__(self) -> None:
        super().__init__(kernel_size=2)

    def forward(self, input: Tensor) -> Tensor:
        """Return the maxima of 2x2 squares."""
        return max_pool_2x2(input)
