"""
Monte Carlo dropout as a posterior over masks: q(w) is the law of W = M diag(z) / (1 - p), z_j ~ Bernoulli(1 - p).

z has one entry per input of a layer (input channel of a convolution), so that a draw drops whole units: a mask set, one
draw for all rows and all layers. Biases, and by default the first weight matrix (whose inputs are data), are not
dropped. M is learned. The loss is the cross-entropy part of KL(q || p),

    E_z [-log p(y | x, W) - c_b log p(W)],        for N(0, s^2) priors  -E_z log p(W) = |M|^2 / (2 (1 - p) s^2) + const

the entropy of the masks does not depend on M. What is logged as `kl` is -log p(W).

Reference: Gal and Ghahramani 2016.

Departures. Dropout in a network's forward pass draws masks row by row; here the rows of a batch share one, in training
as in prediction, which is the same objective with more noise. Predictions then come from weight samples like all
others here, however the rows are chunked.
"""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from pyro_bnn.common.turns import in_turn
from pyro_bnn.guides.apart import apart
from pyro_bnn.guides.base import Role
from pyro_bnn.guides.flat import FlatGuide
from pyro_bnn.guides.quantiles import as_quantiles

__all__ = ["AutoDropout"]


@final
class AutoDropout(FlatGuide):
    """
    A guide over dropout masks.

    :param model: any Pyro program.
    :param rate: p, the probability that a unit is dropped.
    :param sites: patterns of the sites whose inputs are dropped; default all of two or more dimensions but the first.
    :param init_loc: where M starts; see :mod:`pyro_bnn.guides.init`.
    """

    kind = "mc_dropout"
    roles: ClassVar[Mapping[str, Role]] = {"loc": "loc"}
    has_median = True
    loc: Tensor

    def __init__(
        self, model: Any, *, rate: float = 0.1, sites: str | Sequence[str] | None = None, init_loc: str = "uniform"
    ) -> None:
        if not 0 < rate < 1:
            raise ValueError(f"rate={rate} is not a dropout rate: pass a number between 0 and 1, both excluded")
        super().__init__(model, init_loc)
        self.rate = rate
        self.sites = [sites] if isinstance(sites, str) else None if sites is None else list(sites)
        self._dropped: list[str] = []
        self._build_if_known()

    def spec(self) -> dict[str, Any]:
        """Return the guide as names and numbers."""
        sites = {} if self.sites is None else {"sites": self.sites}
        return {"name": "AutoDropout", "rate": self.rate, "init_loc": self._init_loc, **sites}

    def _register(self, loc: Tensor, sites: Mapping[str, Any]) -> None:
        matrices = [name for name, place in self._places.items() if len(place.shape) > 1 and place.transform is None]
        if self.sites is None:
            self._dropped = matrices[1:]
        else:
            self._dropped = [n for n in matrices if any(fnmatchcase(n, pattern) for pattern in self.sites)]
        if not self._dropped:
            raise ValueError(f"sites={self.sites!r} drops nothing; the weight matrices are {matrices}")
        self._add_parameter("loc", loc)

    def unstackable(self) -> str | None:
        """Return why this guide cannot run beside others like it as one batched program, as words; None if it can."""
        return None if self._all_real() else "a site is constrained or in a plate"

    def noise(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """
        Return what a draw is made from, (P,): the masks that `forward` draws from a generator in this state.

        :param like: a tensor (P,) whose dtype and device it takes.
        """
        return self._masks(like, generator)

    def draw_at(self, own: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """
        Return the weights of M that is given under masks, (..., P).

        :param own: the guide's own parameters by name.
        :param noise: what `noise` returned, (..., P).
        """
        return own["loc"] * noise

    def _masks(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return z / (1 - p) spread over the flat vector, (P,)."""
        keep = 1 - self.rate
        pieces = []
        for name, place in self._places.items():
            if name in self._dropped:
                z = torch.bernoulli(like.new_full(place.shape[1:2], keep), generator=generator) / keep
                spread = z.reshape(1, -1, *(1,) * (len(place.shape) - 2)).expand(place.shape)  # (out, in, ...)
                pieces.append(spread.reshape(-1))
            else:
                pieces.append(like.new_ones(place.size))
        return torch.cat(pieces)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw one mask set and sample every site as the masked weights."""
        self.build(*args, **kwargs)
        loc = self.loc

        def masked() -> dict[str, Tensor]:
            return self._sample_at(loc * self._masks(loc.detach()), *args, **kwargs)

        return apart(str(self._pyro_name), masked)  # type: ignore[no-any-return]

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return M, and |M| sqrt(p / (1 - p)) where inputs are dropped."""
        sd = torch.zeros_like(self.loc)
        for name in self._dropped:
            cut = self.slice_of(name)
            sd[cut] = self.loc[cut].abs() * math.sqrt(self.rate / (1 - self.rate))
        return self.loc, sd

    @in_turn
    @torch.no_grad()
    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return quantiles (Q, *shape) of every site: a dropped weight is 0 with probability p, else M / (1 - p)."""
        self.build(*args, **kwargs)
        with self._pyro_context:
            loc = self.loc.detach()
        q = as_quantiles(quantiles, loc)
        flat = loc.expand(len(q), -1).clone()  # (Q, P)
        for name in self._dropped:
            cut = self.slice_of(name)
            kept = loc[cut] / (1 - self.rate)
            low = torch.where(kept < 0, 1 - self.rate, self.rate)  # the probability of the lower of the two values
            flat[:, cut] = torch.where(q[:, None] <= low, kept.clamp(max=0), kept.clamp(min=0))
        return self.values(flat)
