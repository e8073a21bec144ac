"""
One hidden layer with 1/N output scaling, the network of mean-field limits.

    f(x) = 1/N sum_j a_j s(<b_j, x> + c_j),   N hidden units, a_j in R^K, s = ReLU or tanh; no bias at the output

With weights of order 1 the sum over units is an average, so that the network has a limit for N -> infinity. In it the
KL to the prior collapses unless it is tempered by eta = tau * N_data / N: `kl.balanced(tau, n_units=N)` (Huix,
Majewski, Durmus, Moulines and Korba 2022, arXiv:2207.03859). The prior belongs to this scaling: there N(0, 1/5) for
every weight.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, final

from torch import Tensor, nn

from pyro_bnn.models.networks import sizes

__all__ = ["OneHiddenLayer"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


@final
class OneHiddenLayer(nn.Module):
    """
    One hidden layer whose output is the mean over units; inputs of any shape are flattened.

    :param in_features: D, or a shape to be flattened.
    :param out_features: K, the number of outputs.
    :param units: N.
    :param activation: "relu" or "tanh".
    :param bias: whether the hidden units have one, c_j.
    """

    sized_for = staticmethod(sizes.flat)

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: int,
        units: int = 100,
        activation: Literal["relu", "tanh"] = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation={activation!r} is unknown: pass one of {sorted(_ACTIVATIONS)}")
        size = in_features if isinstance(in_features, int) else prod(in_features)
        if min(size, out_features, units) < 1:
            raise ValueError(
                f"in_features={size}, out_features={out_features} and units={units} must be at least 1 each"
            )
        self.config: dict[str, Any] = dict(
            in_features=size, out_features=out_features, units=units, activation=activation, bias=bias
        )
        self.units = units
        self.inner = nn.Linear(size, units, bias=bias)
        self.activation = _ACTIVATIONS[activation]()
        self.outer = nn.Linear(units, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """
        Return outputs (B, K) for inputs (B, ...).

        :param x: inputs (B, ...).
        """
        hidden = self.activation(self.inner(x.flatten(1)))  # (B, N)
        return self.outer(hidden) / self.units  # type: ignore[no-any-return]
