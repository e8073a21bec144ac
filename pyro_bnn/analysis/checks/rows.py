"""What checks look at: rows on the model's own scale, and a guide that is sure of one set of latent values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.data.split import Split
from pyro_bnn.data.standardise import Standardiser, plain
from pyro_bnn.posterior import Posterior

__all__ = ["At", "Rows"]


@final
@dataclass(frozen=True)
class Rows:
    """
    Some rows of a data set.

    :param x: inputs on the model's own scale, (n, ...).
    :param y: targets likewise, (n, ...).
    :param marked: the same inputs as a tensor that says which scale it is on, as posteriors take it.
    :param raw_y: targets in their own units.
    """

    x: Tensor
    y: Tensor
    marked: Tensor
    raw_y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def some_of(cls, posterior: Posterior, split: Split, most: int, seed: int) -> "Rows":
        """Return at most so many rows, drawn without replacement, as a posterior's model takes them."""
        index = torch.randperm(len(split.y), generator=torch.Generator().manual_seed(seed))[:most].sort().values
        marked = posterior.standardise(split.x[index])
        raw = posterior.raw_targets(split.y[index])
        scale = posterior.info.get("y_standardiser")
        y = raw if scale is None or not raw.is_floating_point() else plain(Standardiser.from_dict(scale).apply(raw))
        return cls(plain(marked), y, marked, raw)


@final
class At:
    """A guide that is sure of one set of latent values."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values = dict(values)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site at its value."""
        return {n: pyro.sample(n, dist.Delta(v, event_dim=v.dim())) for n, v in self.values.items()}
