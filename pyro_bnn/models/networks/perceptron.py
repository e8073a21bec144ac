"""One unit: phi(w . x + b), the smallest network there is."""

from typing import Any, Literal, final

from torch import Tensor, nn

from pyro_bnn.models.networks import sizes

__all__ = ["Perceptron"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"identity": nn.Identity, "relu": nn.ReLU}


@final
class Perceptron(nn.Module):
    """
    One dense unit per output with an activation, by default the ReLU.

    :param in_features: D, the numbers of an input, or their shape.
    :param out_features: K, the number of outputs.
    :param activation: "relu" or "identity".
    """

    sized_for = staticmethod(sizes.flat)

    def __init__(
        self, in_features: int = 2, out_features: int = 1, activation: Literal["identity", "relu"] = "relu"
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation={activation!r} is unknown: pass one of {sorted(_ACTIVATIONS)}")
        self.config: dict[str, Any] = dict(in_features=in_features, out_features=out_features, activation=activation)
        self.unit = nn.Linear(in_features, out_features)
        self.activation = _ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """
        Return outputs (B, K) for inputs (B, D).

        :param x: inputs (B, D).
        """
        return self.activation(self.unit(x.flatten(1)))  # type: ignore[no-any-return]
