"""
Which arguments suit which data: what a network's class says with `sized_for`.

A network that a recipe names may have `sized_for(input_shape, outputs)`, a static function from the shape of one input
and the number of outputs to arguments of its constructor. The recipe's own `model_args` come on top. A network without
it is built from `model_args` alone.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

__all__ = ["channels", "flat", "square_images"]


def channels(input_shape: Sequence[int], outputs: int) -> dict[str, Any]:
    """
    Return arguments for images of any size (C, H, W).

    :param input_shape: the shape of one input, without the rows.
    :param outputs: K, how many outputs are needed.
    """
    if len(input_shape) != 3:
        raise ValueError(f"the data have inputs of shape {tuple(input_shape)}, not images: use model='mlp'")
    return {"in_channels": input_shape[0], "num_classes": outputs}


def square_images(input_shape: Sequence[int], outputs: int) -> dict[str, Any]:
    """
    Return arguments for images (C, H, H).

    :param input_shape: the shape of one input, without the rows.
    :param outputs: K, how many outputs are needed.
    """
    sizes = channels(input_shape, outputs)
    _, height, width = input_shape
    if height != width:
        raise ValueError(f"the data have images of {height}x{width}; this network takes square ones")
    return {**sizes, "image_size": height}


def flat(input_shape: Sequence[int], outputs: int) -> dict[str, Any]:
    """
    Return arguments for inputs that are laid out as one vector.

    :param input_shape: the shape of one input, without the rows.
    :param outputs: K, how many outputs are needed.
    """
    return {"in_features": prod(input_shape), "out_features": outputs}
