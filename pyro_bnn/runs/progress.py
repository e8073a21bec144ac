"""What a person sees of a training: a progress bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TextIO, final

from pyro_bnn.inference.progress import ProgressBar, clock, figures_of
from pyro_bnn.inference.svi import FitState

__all__ = ["ProgressReport"]

_FEW_EPOCHS = 20
_SECONDS = 1.0


@final
class ProgressReport(ProgressBar):
    """
    Show nll, kl, validation accuracy and the time left; lines where there is no terminal.

    A line for each epoch if there are few, else at most one in a second.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(sys.stdout if stream is None else stream)
        self._started, self._first_epoch, self._said = 0.0, 0, 0.0

    def start(self, state: FitState) -> None:
        """Open the bar."""
        self._started, self._first_epoch = time.perf_counter(), state.epoch
        super().start(state)

    def epoch(self, state: FitState) -> None:
        """Show the epoch's line."""
        if self.is_shown:
            super().epoch(state)
            return
        now = time.perf_counter()
        if _FEW_EPOCHS < state.epochs != state.epoch and now - self._said < _SECONDS:
            return
        self._said = now
        left = (now - self._started) / (state.epoch - self._first_epoch) * (state.epochs - state.epoch)
        figures = "  ".join(figures_of(state.history[-1]))
        self.say(f"epoch {state.epoch:{len(str(state.epochs))}}/{state.epochs}  {figures}  left {clock(left)}")

    def say(self, line: str) -> None:
        """Write a line where there is no terminal."""
        if not self.is_shown:
            self.stream.write(line + "\n")
            self.stream.flush()
