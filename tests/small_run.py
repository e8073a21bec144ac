"""A training that takes a moment, and what interrupts it: what tests of run folders share."""

import pyro_bnn as pb
from pyro_bnn.inference.svi import Callback, FitState

__all__ = ["RECIPE", "Stop"]

RECIPE = pb.Recipe.build(
    {
        "model": "mlp",
        "model_args": {"hidden": [4]},
        "data": "mnist-mini",
        "data_args": {"train_size": 100, "test_size": 20},
        "epochs": 3,
        "batch_size": 45,
        "num_samples": 2,
    }
)


class Stop(Callback):
    """Interrupt after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.at = epoch

    def epoch(self, state: FitState) -> None:
        """Be the Ctrl-C."""
        if state.epoch == self.at:
            raise KeyboardInterrupt
