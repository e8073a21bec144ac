"""What a contender is, and what several of them share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.work import Work

Step = Callable[[], object]
Predictor = Callable[[Tensor, int], Tensor]

CHUNK = 250
"""Rows per forward pass when predicting, for everybody: what plain PyTorch is fastest with."""


@dataclass(frozen=True)
class Contender:
    """A library, or a way of using it."""

    title: str
    distribution: str
    training_step: Callable[[Work], Step]
    predictor: Callable[[Work], Predictor] | None = None
    imports: str | None = None


def replace(net: nn.Module, kind: type[nn.Module], build: Callable[[nn.Module], nn.Module]) -> None:
    """Replace every layer of a kind inside `net` by what `build` makes of it."""
    for name, child in net.named_children():
        if isinstance(child, kind):
            setattr(net, name, build(child))
        else:
            replace(child, kind, build)


def average(draw: Callable[[Tensor], Tensor], x: Tensor, num_samples: int) -> Tensor:
    """Average class probabilities over S passes of a network that draws its weights anew in each."""
    total = torch.zeros(())
    with torch.no_grad():
        for _ in range(num_samples):
            total = total + torch.cat([draw(part).softmax(-1) for part in x.split(CHUNK)]).as_subclass(Tensor)
    return total / num_samples
