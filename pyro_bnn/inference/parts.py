"""
A step whose batch comes in parts: k of them one after the other (`accumulate`), on each of K ranks, or both.

Part p has B_p of the step's B rows and is differentiated as a batch of its own; the step's gradient is
sum_p (B_p / B) grad loss_p. As the shares sum to 1, every row counts once and so does the KL.

noise = "own"       every part draws weights of its own, as ranks do: the expectation of the gradient is that of the
                    whole batch, its variance smaller
noise = "shared"    every part begins at the same random state, so that all have one draw of the weights, the one that
                    the whole batch would have: the same gradient up to rounding, and the same training. What a network
                    draws row by row (dropout, flipout, local reparameterisation) is then the same in every part.

With batch normalisation a part has the statistics of its own rows (of its rows on all ranks, if they are synchronised).
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from pyro_bnn.common.randomness import RandomState
from pyro_bnn.data.streams import Batch
from pyro_bnn.inference.distributed import Ranks
from pyro_bnn.inference.divergence import NotFinite
from pyro_bnn.inference.minibatch import MinibatchStep

__all__ = ["Noise", "Part", "PartedStep"]

Noise: TypeAlias = Literal["own", "shared"]

Part: TypeAlias = tuple[int, Batch | None]
"""The rows of a part on all ranks, and those of this rank; None where it has none."""


@final
class _FlatGradient:
    """The gradients of all trained parameters in one vector per dtype and device, with loss, nll and who took part."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.trained = [p.requires_grad for p in self.parameters]
        trained = [p for p in self.parameters if p.requires_grad]
        if not trained:
            raise ValueError("no parameter is trained: unfreeze one")
        self.views: dict[int, Tensor] = {}
        self.vectors: list[Tensor] = []
        for i, (dtype, device) in enumerate({(p.dtype, p.device): None for p in trained}):
            same = [p for p in trained if (p.dtype, p.device) == (dtype, device)]
            extra = 2 + len(trained) if i == 0 else 0
            vector = torch.zeros(sum(p.numel() for p in same) + extra, dtype=dtype, device=device)
            self.vectors.append(vector)
            pieces = vector[: len(vector) - extra].split([p.numel() for p in same])
            self.views |= {id(p): piece.view(p.shape) for p, piece in zip(same, pieces, strict=True)}
            if extra:
                self.numbers, self.taking_part = vector[-extra:][:2], vector[-extra:][2:]
        self.place = {id(p): i for i, p in enumerate(trained)}
        self.here: set[int] = set()
        """Which parameters took part on this rank."""

    def fits(self) -> bool:
        """Whether the same parameters are trained as when this was made."""
        return self.trained == [p.requires_grad for p in self.parameters]

    def clear(self) -> None:
        """Begin a step."""
        self.here.clear()
        for vector in self.vectors:
            vector.zero_()

    @torch.no_grad()
    def add(self, params: Sequence[Tensor], loss: Tensor, nll: Tensor, share: float) -> None:
        """Take up the gradients of a part, and leave none on the parameters."""
        self.numbers.add_(torch.stack([loss.double(), nll.double()]).to(self.numbers), alpha=share)
        for parameter in params:
            grad, parameter.grad = parameter.grad, None
            if grad is None:
                continue
            if id(parameter) not in self.views:
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} appeared after the first run of the program: let "
                    "every parameter take part from the first batch on, or train in one process without accumulate"
                )
            self.views[id(parameter)].add_(grad, alpha=share)
            if id(parameter) not in self.here:
                self.here.add(id(parameter))
                self.taking_part[self.place[id(parameter)]] = 1

    def reduce(self, ranks: Ranks | None) -> None:
        """Add up over the ranks."""
        for vector in self.vectors if ranks is not None else ():
            ranks.add_up(vector)  # type: ignore[union-attr]

    def put(self) -> list[Tensor]:
        """Let the parameters that took part anywhere have their gradients; return them."""
        found = [p for p in self.parameters if id(p) in self.views]
        if len(self.here) < len(found):  # else there is nothing to ask, which on a GPU would be to wait
            took = self.taking_part.tolist()
            found = [p for p in found if took[self.place[id(p)]]]
        for parameter in found:
            parameter.grad = self.views[id(parameter)]
        return found


@final
class PartedStep:
    """
    One optimization step on the parts of a batch.

    :param step: what differentiates a part, and has the optimizer.
    :param parameters: all that may be trained, in an order that is the same on every rank.
    :param ranks: the processes that train together; None for one.
    :param noise: whether parts draw weights of their own.
    :param around: opened around the differentiation of a part.
    """

    def __init__(
        self,
        step: MinibatchStep,
        parameters: Sequence[Tensor],
        ranks: Ranks | None,
        noise: Noise,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.step, self.parameters, self.ranks, self.noise, self.around = step, list(parameters), ranks, noise, around
        self._gradient: _FlatGradient | None = None
        self._idle: dict[int, Tensor] = {}

    def __call__(
        self, kl_weight: float, parts: Sequence[Part], within: Callable[[Tensor], AbstractContextManager[Any]]
    ) -> tuple[Tensor, Tensor]:
        """
        Take one step; return loss and NLL of the whole batch, per datum.

        :param within: opened around a part, for its targets.
        """
        if self._gradient is None or not self._gradient.fits():
            self._gradient = _FlatGradient(self.parameters)
        gradient = self._gradient
        gradient.clear()
        rows = sum(size for size, _ in parts)
        before = RandomState.now() if self.noise == "shared" and len(parts) > 1 else None
        for i, (_, batch) in enumerate(parts):
            if batch is None:
                continue
            if before is not None and i:
                before.restore()
            with within(batch[1]), self.around():
                loss, nll, params = self.step.gradients(kl_weight, batch)
            self._idle |= {id(p): p for p in params if p.grad is None}
            gradient.add(params, loss, nll, len(batch[1]) / rows)
        gradient.reduce(self.ranks)
        loss, nll = gradient.numbers.clone()
        if loss.device.type == "cpu" and not math.isfinite(loss):  # elsewhere to look is to wait
            raise NotFinite(str(float(loss)))
        found = gradient.put()
        moved = {id(p) for p in found}
        self.step.update([*found, *(p for key, p in self._idle.items() if key not in moved)])
        return loss, nll
