"""
The work everybody does: networks with their batches, and a set of images to predict on.

    lenet5     LeNet-5, 61,706 weights, batch 100 of 1x28x28
    resnet20   ResNet-20, 268,346 random weights and 38 BatchNorm tensors, batch 128 of 3x32x32
    mlp100     100 dense layers of 32 units, 200 tensors, 128,938 weights, batch 100 of 784: the cost per site
    wide-W     784-W-W-10, batch 100 of 784: many weights for their arithmetic
    encoder    a transformer encoder of 6 layers of 256, 4.8 million weights, batch 32 of 28 rows of 28
    vgg16      VGG-16, 14.7 million weights, batch 32 of 3x32x32
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from pyro_bnn.models.networks.lenet5 import LeNet5
from pyro_bnn.models.networks.resnet20 import ResNet20
from pyro_bnn.models.networks.vgg import VGG

LEARNING_RATE = 1e-4
NUM_CLASSES = 10


@dataclass(frozen=True)
class Work:
    """A network, a batch, and the number of rows in the data set that the batch comes from."""

    name: str
    title: str
    net: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    num_data: int


def _batch(size: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(size, *shape, generator=generator),
        torch.randint(NUM_CLASSES, (size,), generator=generator),
    )


def _mlp100() -> nn.Module:
    torch.manual_seed(0)
    widths = [784, *[32] * 99, NUM_CLASSES]
    layers = [layer for d, k in pairwise(widths) for layer in (nn.Linear(d, k), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _lenet5() -> nn.Module:
    torch.manual_seed(0)
    return LeNet5(in_channels=1, num_classes=NUM_CLASSES)


def _resnet20() -> nn.Module:
    torch.manual_seed(0)
    return ResNet20(in_channels=3, num_classes=NUM_CLASSES)


def wide(units: int) -> nn.Module:
    """Return an MLP with two hidden layers of so many units."""
    torch.manual_seed(0)
    widths = [784, units, units, NUM_CLASSES]
    layers = [layer for d, k in pairwise(widths) for layer in (nn.Linear(d, k), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _encoder() -> nn.Module:
    """A transformer encoder over the rows of an image; without dropout, and of torch's own layers alone."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 8, 4 * 256, dropout=0.0, batch_first=True)
    layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(28, 256), layers, nn.Flatten(), nn.Linear(28 * 256, NUM_CLASSES))


def _vgg16() -> nn.Module:
    torch.manual_seed(0)
    return VGG(in_channels=3, num_classes=NUM_CLASSES, depth=16)


def _wide_work(units: int) -> Work:
    title = f"MLP 784-{units}-{units}-10, batch 100"
    return Work(f"wide-{units}", title, partial(wide, units), *_batch(100, 784), 60_000)


def works() -> dict[str, Work]:
    """Return the training work by name."""
    return {
        "lenet5": Work("lenet5", "LeNet-5, batch 100", _lenet5, *_batch(100, 1, 28, 28), 60_000),
        "resnet20": Work("resnet20", "ResNet-20, batch 128", _resnet20, *_batch(128, 3, 32, 32), 50_000),
        "mlp100": Work("mlp100", "100-layer MLP, batch 100", _mlp100, *_batch(100, 784), 60_000),
        **{f"wide-{units}": _wide_work(units) for units in (400, 1200, 3000)},
        "encoder": Work("encoder", "Transformer encoder, batch 32", _encoder, *_batch(32, 28, 28), 60_000),
        "vgg16": Work("vgg16", "VGG-16, batch 32", _vgg16, *_batch(32, 3, 32, 32), 50_000),
    }


def images(count: int) -> Tensor:
    """Return the images to predict on, (N, 1, 28, 28)."""
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def digits(count: int) -> Tensor:
    """Return the rows that wide networks predict on, (N, 784)."""
    return images(count).flatten(1)
