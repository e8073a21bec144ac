"""A step of Adam in numbers: what an optimizer says of its next one, and whoever takes it has to know."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["AdamNumbers"]


class AdamNumbers(NamedTuple):
    """A step of plain Adam on one parameter: its numbers, how many steps there were (a tensor), both moments."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    steps: Tensor
    mean: Tensor
    square: Tensor
