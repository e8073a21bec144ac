"""What a person sees of a training: a progress bar on a terminal, plain lines elsewhere."""

import math
import time
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pyro_bnn.inference.svi import Callback, FitState

__all__ = ["ProgressReport"]

_REFRESH_SECONDS = 0.25


def _figures(line: dict[str, float]) -> str:
    parts = [f"nll {line['nll']:.4f}", f"kl {line['kl']:.3f}"]
    if "val_nll" in line:
        parts.append(f"val nll {line['val_nll']:.4f}")
    if "val_accuracy" in line:
        parts.append(f"val acc {100 * line['val_accuracy']:.2f} %")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@final
class ProgressReport(Callback):
    """Show nll, kl, validation accuracy and the time left; one line per epoch where there is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bar: Progress | None = None
        self._started = 0.0
        self._first_epoch = 0
        self._seen = 0.0

    def start(self, state: FitState) -> None:
        """Open the bar."""
        self._started, self._first_epoch = time.perf_counter(), state.epoch
        if not self.console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("[bold]epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
        )
        self._bar.start()
        self._task = self._bar.add_task("train", total=state.epochs, completed=state.epoch, figures="")

    def step(self, state: FitState) -> None:
        """Move the bar a few times a second; the loss is read from the device only then."""
        now = time.perf_counter()
        if self._bar is None or now - self._seen < _REFRESH_SECONDS:
            return
        self._seen = now
        batches = math.ceil(state.num_data / state.batch_size)
        figures = "" if state.batch_nll is None else f"nll {float(state.batch_nll):.4f}"
        if state.history:
            figures = f"{_figures(state.history[-1])}  [dim]now {figures}[/dim]"
        self._bar.update(self._task, completed=state.step / batches, figures=figures)

    def epoch(self, state: FitState) -> None:
        """Show the epoch's line."""
        line = state.history[-1]
        if self._bar is not None:
            self._bar.update(self._task, completed=state.epoch, figures=_figures(line))
            return
        done = state.epoch - self._first_epoch
        left = (time.perf_counter() - self._started) / done * (state.epochs - state.epoch)
        width = len(str(state.epochs))
        self.console.print(
            f"epoch {state.epoch:{width}}/{state.epochs}  {_figures(line)}  left {_clock(left)}", highlight=False
        )

    def end(self, state: FitState) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
