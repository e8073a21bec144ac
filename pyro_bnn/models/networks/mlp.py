"""Multi-layer perceptrons: dense layers with one activation between them."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, Literal, final

from torch import Tensor, nn

from pyro_bnn.models.networks import sizes

__all__ = ["MLP"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}


@final
class MLP(nn.Module):
    """
    Dense layers of the given widths; inputs of any shape are flattened to D = prod(in_features).

    :param in_features: D, the numbers of an input, or their shape.
    :param out_features: K, the number of outputs.
    :param hidden: the widths of the hidden layers; none is a linear model.
    :param activation: "relu", "tanh" or "silu".
    """

    sized_for = staticmethod(sizes.flat)

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: int,
        hidden: Sequence[int] = (100,),
        activation: Literal["relu", "tanh", "silu"] = "relu",
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation={activation!r} is unknown: pass one of {sorted(_ACTIVATIONS)}")
        size = in_features if isinstance(in_features, int) else prod(in_features)
        widths = [size, *hidden, out_features]
        if min(widths) < 1:
            raise ValueError(f"layer widths {widths} are not all positive: every layer needs at least one unit")
        self.config: dict[str, Any] = dict(
            in_features=size, out_features=out_features, hidden=list(hidden), activation=activation
        )
        self.layers = nn.ModuleList(nn.Linear(d, k) for d, k in pairwise(widths))
        self.activation = _ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """
        Return outputs (B, K) for inputs (B, ...).

        :param x: inputs (B, ...).
        """
        x = x.flatten(1)  # (B, D)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]
