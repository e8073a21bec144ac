"""The global random state of torch, of the CPU and of every CUDA device: taken, put back, compared."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["RandomState"]


class RandomState(NamedTuple):
    """The state of the CPU's generator, and one for each CUDA device."""

    cpu: Tensor
    cuda: list[Tensor]

    @staticmethod
    def now() -> "RandomState":
        """Return the state as it is."""
        return RandomState(torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])

    def restore(self) -> None:
        """Put the state back; devices that are not there any more are left out."""
        torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(self.cuda[: torch.cuda.device_count()])

    def same(self, other: "RandomState") -> bool:
        """Whether two states are equal."""
        devices = len(self.cuda) == len(other.cuda) and all(map(torch.equal, self.cuda, other.cuda))
        return devices and torch.equal(self.cpu, other.cpu)
