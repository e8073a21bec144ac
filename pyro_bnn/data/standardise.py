"""
Standardisation: (x - mean) / sd, per channel for images (N, C, H, W), per feature for tables (N, D).

Means and population standard deviations are taken in float64 over the training rows alone. A feature or channel that
never varies keeps sd = 1, so that it becomes 0 and not NaN. The same class serves regression targets, (N,) or (N, T).
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

__all__ = ["Standardiser"]

_ROWS_AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class Standardiser:
    """A mean and a standard deviation per channel or feature: shape (C,), (D,), (T,) or () for scalar targets."""

    mean: Tensor
    sd: Tensor

    def __post_init__(self) -> None:
        if self.mean.shape != self.sd.shape or self.mean.ndim > 1:
            raise ValueError(
                f"mean has shape {tuple(self.mean.shape)} and sd {tuple(self.sd.shape)}; "
                "both need the same shape, () or (number of channels or features,)"
            )
        if not bool(torch.isfinite(self.mean).all()) or not bool((torch.isfinite(self.sd) & (self.sd > 0)).all()):
            raise ValueError("mean must be finite and sd finite and > 0; fit the standardiser on finite data")

    @classmethod
    def fit(cls, values: Tensor) -> "Standardiser":
        """Fit on rows `values`: (N,), (N, D), (N, C, H, W)."""
        over = tuple(d for d in range(values.ndim) if d != 1)  # everything but channels or features
        count = values.numel() // (values.shape[1] if values.ndim > 1 else 1)
        shape = values.shape[1:2]  # (C,), (D,), or () for (N,)
        total, square = (torch.zeros(shape, dtype=torch.float64, device=values.device) for _ in range(2))
        for part in torch.split(values, _ROWS_AT_ONCE):
            total += part.double().sum(over)
        mean = total / count
        for part in torch.split(values, _ROWS_AT_ONCE):
            square += (part.double() - _spread(mean, values.ndim)).square_().sum(over)
        sd = (square / count).sqrt()
        # rounding leaves about 1e-16 |mean| where a column is constant
        sd = torch.where(sd > 1e-12 * mean.abs(), sd, torch.ones_like(sd))
        return cls(mean, sd)

    def apply(self, values: Tensor) -> Tensor:
        """Return (values - mean) / sd, in the dtype of `values`."""
        self._check(values)
        mean, sd = self._like(values)
        return (values - mean).div_(sd)

    def invert(self, values: Tensor) -> Tensor:
        """Return values * sd + mean: the inverse of `apply`."""
        self._check(values)
        mean, sd = self._like(values)
        return (values * sd).add_(mean)

    def invert_sd(self, values: Tensor) -> Tensor:
        """Return values * sd: a standard deviation on the standardised scale, back in the data's own units."""
        self._check(values)
        return values * self._like(values)[1]

    def to_dict(self) -> dict[str, Any]:
        """Return {"mean": ..., "sd": ...} with plain numbers or lists, for JSON."""
        return {"mean": self.mean.tolist(), "sd": self.sd.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Standardiser":
        """Build from what `to_dict` gave."""
        if set(values) != {"mean", "sd"}:
            raise ValueError(f"a standardiser has the keys mean and sd; got {sorted(values)}")
        return cls(*(torch.tensor(values[key], dtype=torch.float64) for key in ("mean", "sd")))

    def _check(self, values: Tensor) -> None:
        if self.mean.ndim == 1 and (values.ndim < 2 or values.shape[1] != len(self.mean)):
            raise ValueError(
                f"values have shape {tuple(values.shape)}; this standardiser was fitted on {len(self.mean)} channels "
                f"or features: give shape (N, {len(self.mean)}, ...)"
            )
        if not values.is_floating_point():
            raise TypeError(f"values are {values.dtype}; give floating-point numbers (8-bit images: divide by 255)")

    def _like(self, values: Tensor) -> tuple[Tensor, Tensor]:
        mean, sd = (_spread(m, values.ndim).to(values.device, values.dtype) for m in (self.mean, self.sd))
        return mean, sd


def _spread(values: Tensor, ndim: int) -> Tensor:
    """Append dimensions to (C,) so that it broadcasts along dimension 1 of an ndim-dimensional tensor."""
    return values if values.ndim == 0 else values.reshape(-1, *[1] * (ndim - 2))
