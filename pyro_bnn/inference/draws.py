"""
A draw: what one weight sample says about every row, of classes or of numbers.

Which of the two it is follows from the law of the observations alone (`laws.class_log_probs`), and there is no third:
a law of finitely many labels is a draw of classes, any other a draw of numbers, counts among them. What is asked of a
draw is the same for both: a prediction, log-densities of targets, a sample of them, some of its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from pyro_bnn.common.turns import OwnRandomness
from pyro_bnn.inference import laws as laws_of

__all__ = ["ClassDraw", "Draw", "RealDraw", "draw_of", "joined"]

_MOST_COUNT = 2.0**62


@final
@dataclass(frozen=True)
class ClassDraw:
    """What one weight sample says about classes: log-probabilities (N, K)."""

    log_probs: Tensor

    @property
    def prediction(self) -> Tensor:
        """Probabilities (N, K)."""
        return self.log_probs.exp()

    @property
    def whole_numbers(self) -> bool:
        """Whether targets are whole numbers: labels are."""
        return True

    @property
    def counts(self) -> bool:
        """Whether targets are counts: labels are none."""
        return False

    def rows(self, part: slice) -> "ClassDraw":
        """Return what is said about some of the rows."""
        return ClassDraw(self.log_probs[part])

    def log_prob(self, y: Tensor, *, missing: bool = False, wide: bool = False) -> Tensor:
        """Return log p(y | x, w), (N,), of labels (N,)."""
        return self.log_probs.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Return a label for every row, (N,)."""
        return torch.multinomial(self.log_probs.exp().cpu(), 1, generator=generator)[:, 0]


@final
@dataclass(frozen=True)
class RealDraw:
    """
    What one weight sample says about numbers: mean and standard deviation of the noise, (N, D) each.

    `laws` are the distributions themselves, chunk by chunk, where mean and standard deviation do not say all.
    """

    mean: Tensor
    sd: Tensor
    laws: tuple[Distribution, ...] = ()

    @property
    def prediction(self) -> Tensor:
        """Means (N, D)."""
        return self.mean

    @property
    def whole_numbers(self) -> bool:
        """Whether targets are whole numbers: counts are."""
        return self.counts

    @property
    def counts(self) -> bool:
        """Whether targets are counts."""
        return bool(self.laws) and laws_of.is_discrete(self.laws[0])

    def rows(self, part: slice) -> "RealDraw":
        """Return what mean and standard deviation say about some of the rows; laws are not cut, and refused."""
        if self.laws:
            raise ValueError(f"the law {laws_of.name_of(self.laws[0])} of all rows is not cut: use the whole draw")
        return RealDraw(self.mean[part], self.sd[part])

    def log_prob(self, y: Tensor, *, missing: bool = False, wide: bool = False) -> Tensor:
        """
        Return log p(y | x, w), (N,), of targets (N,) or (N, D).

        :param missing: whether NaN marks elements of y that are not known; they contribute 0.
        :param wide: in float64, and on the CPU where the draw has laws.
        """
        if self.laws:
            parts = y.split([laws_of.shape_of(law)[0] for law in self.laws])
            if not missing and y.is_floating_point() and bool(y.isnan().any()):
                raise ValueError("y contains NaN: leave those rows out, or pass missing=True")
            densities = [laws_of.log_prob(law, part, wide=wide) for law, part in zip(self.laws, parts, strict=True)]
            return torch.cat(densities)
        target = y.unsqueeze(-1) if y.dim() == 1 else y
        known = ~target.isnan() if missing else torch.ones_like(target, dtype=torch.bool)
        mean, sd = (self.mean.double(), self.sd.double()) if wide else (self.mean, self.sd)
        # a draw in the units of one target is (N,), and beside (N, 1) would be taken for N targets
        fn: Any = Normal(mean.reshape(target.shape), sd.expand_as(mean).reshape(target.shape))
        return torch.where(known, fn.log_prob(torch.where(known, target, 0.0)), 0.0).sum(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Return a target for every row in the shape of the mean; of counts int64."""
        if not self.laws:
            return self.mean.cpu() + self.sd.cpu() * torch.randn(self.mean.shape, generator=generator)
        seeded = OwnRandomness(int(torch.randint(2**62, (), generator=generator)))
        drawn = torch.cat([laws_of.samples(law, seeded).cpu() for law in self.laws]).reshape(self.mean.shape)
        # what is beyond any count, as draws of a wide prior may be, is kept from turning negative
        return drawn.double().clamp(max=_MOST_COUNT).long() if self.counts else drawn


Draw: TypeAlias = ClassDraw | RealDraw


def draw_of(law: Distribution) -> Draw:
    """Return what the law of the observations of a batch says of its rows."""
    log_probs = laws_of.class_log_probs(law)
    if log_probs is not None:
        return ClassDraw(log_probs)
    mean, sd = laws_of.moments(law)
    kept = () if laws_of.is_normal(law) else (law,)
    return RealDraw(mean, sd, kept) if mean.dim() > 1 else RealDraw(mean.unsqueeze(-1), sd.unsqueeze(-1), kept)


def joined(parts: Sequence[Draw]) -> Draw:
    """Return the draw of all rows from those of one batch after the other."""
    classes = [part.log_probs for part in parts if isinstance(part, ClassDraw)]
    if classes:
        return ClassDraw(torch.cat(classes))
    real = [part for part in parts if isinstance(part, RealDraw)]
    laws = tuple(law for part in real for law in part.laws)
    return RealDraw(torch.cat([part.mean for part in real]), torch.cat([part.sd for part in real]), laws)
