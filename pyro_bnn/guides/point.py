"""
A point: q(w) = delta(w - theta). Maximum a posteriori, and maximum likelihood.

With a point the KL weight c_b multiplies -log p(theta), and the loss per datum is

    MAP    mean over the batch of -log p(y | x, theta)  -  c_b log p(theta)
    ML     mean over the batch of -log p(y | x, theta),   c_b = 0:  `fit(..., kl=kl.geometric(0))`

so that the same guide serves both and the weight on the KL decides. The density of a constrained site is taken in the
site's own space: its MAP depends on the parametrisation, as every MAP does. What is logged as `kl` is -log p(theta);
the divergence itself is infinite, and constant.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from pyro_bnn.guides.base import Role
from pyro_bnn.guides.flat import FlatGuide
from pyro_bnn.guides.init import DEFAULT_LOC

__all__ = ["AutoPoint"]


@final
class AutoPoint(FlatGuide):
    """
    A point guide with flat storage.

    :param model: any Pyro program.
    :param init_loc: where the point starts; see :mod:`pyro_bnn.guides.init`.
    :param kind: 'map' or 'ml', what it is trained as; a label, the KL weight of the training makes the difference.
    """

    roles: ClassVar[Mapping[str, Role]] = {"loc": "loc"}
    has_median = True
    loc: Tensor

    def __init__(self, model: Any, *, init_loc: str = DEFAULT_LOC, kind: str = "map") -> None:
        if kind not in ("map", "ml"):
            raise ValueError(f"kind={kind!r} is unknown: pass 'map' or 'ml'")
        super().__init__(model, init_loc)
        self.kind = kind
        self._build_if_known()

    def spec(self) -> dict[str, Any]:
        """Return the guide as names and numbers."""
        return {"name": "AutoPoint", "kind": self.kind, "init_loc": self._init_loc}

    def _register(self, loc: Tensor, sites: Mapping[str, Any]) -> None:
        self._add_parameter("loc", loc)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site: a point mass each."""
        self.build(*args, **kwargs)
        return self._sample_at(self.loc, *args, **kwargs)

    def unstackable(self) -> str | None:
        """Return why this guide cannot run beside others like it as one batched program, as words; None if it can."""
        return None if self._all_real() else "a site is constrained or in a plate"

    def noise(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """
        Return what a draw is made from: nothing is drawn.

        :param like: a tensor whose dtype and device it takes.
        :param generator: not used.
        """
        return torch.zeros_like(like)

    def draw_at(self, own: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """
        Return the point that is given, (..., P).

        :param own: the guide's own parameters by name.
        :param noise: not used.
        """
        return own["loc"]

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return the point, and zeros."""
        return self.loc, torch.zeros_like(self.loc)
