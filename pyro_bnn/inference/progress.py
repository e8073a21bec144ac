"""
A progress bar of one line, whole at the width of any terminal.

    epoch  3/10 ━━━━━━━━━━────────────────── nll 0.1234  kl 1.201  0:12, 0:40 left

Count and times come first, then the bar, and as many figures as there is room for. Where there is no terminal there is
no bar.
"""

import math
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO, final

from pyro_bnn.inference.fit_state import Callback, FitState

__all__ = ["ProgressBar", "ProgressLine", "bar_for", "bar_text", "clock", "figures_of"]

_REFRESH_SECONDS = 0.25
_SHORTEST_BAR, _LONGEST_BAR = 8, 30


def clock(seconds: float) -> str:
    """Return a time as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def figures_of(line: dict[str, Any]) -> list[str]:
    """Return the figures of an epoch, those first that are shown where there is little room."""
    parts = [f"nll {line['nll']:.4f}", f"kl {line['kl']:.3f}"]
    if "val_nll" in line:
        parts.append(f"val nll {line['val_nll']:.4f}")
    if "val_accuracy" in line:
        parts.append(f"val acc {100 * line['val_accuracy']:.2f} %")
    return parts


def bar_text(
    words: str, done: float, total: int, figures: Sequence[str], seconds: float, width: int, *, first: float = 0
) -> str:
    """Return the line, of at most `width` characters; `first` were done before the seconds began."""
    share = min(max(done / total, 0.0), 1.0) if total else 1.0
    left = f", {clock(seconds * (total - done) / (done - first))} left" if first < done < total else ""
    head = f"{words} {min(math.floor(done), total):{len(str(total))}}/{total}"
    times = f"{clock(seconds)}{left}"
    shown = list(figures)
    while shown and len(head) + len("  ".join(shown)) + len(times) + _SHORTEST_BAR + 5 > width:
        shown.pop()
    said = "  ".join([*shown, times])
    room = max(0, min(_LONGEST_BAR, width - len(head) - len(said) - 3))
    filled = round(room * share)
    return f"{head} {'━' * filled}{'─' * (room - filled)} {said}"[:width]


@final
class ProgressLine:
    """The line of one piece of work, drawn over itself a few times a second."""

    def __init__(self, words: str, total: int, stream: TextIO | None = None, *, done: float = 0) -> None:
        self.words, self.total = words, total
        self.stream = sys.stderr if stream is None else stream
        self.done = done
        self._first, self._started, self._seen = done, time.perf_counter(), -math.inf

    def due(self) -> bool:
        """Return whether it is time to draw it again."""
        return time.perf_counter() - self._seen >= _REFRESH_SECONDS

    def advance(self) -> None:
        """Note that a unit more is done, and draw the line if it is time, or the end."""
        self.done += 1
        if self.due() or self.done >= self.total:
            self.show(self.done)

    def show(self, done: float, figures: Sequence[str] = ()) -> None:
        """Draw it."""
        self._seen = time.perf_counter()
        width = shutil.get_terminal_size((80, 24)).columns - 1  # a full line would wrap in some terminals
        seconds = self._seen - self._started
        text = bar_text(self.words, done, self.total, figures, seconds, width, first=self._first)
        self._write(f"\r{text}\x1b[K")

    def end(self) -> None:
        """Leave it as it is and go to the next line."""
        self._write("\n")

    def _write(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        self.stream.write(text.encode(encoding, "replace").decode(encoding))
        self.stream.flush()


class ProgressBar(Callback):
    """
    Show epochs, figures and the time left of a fit on a terminal; nothing elsewhere.

    :param stream: where to; default stderr.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.line: ProgressLine | None = None

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal."""
        return self.stream.isatty()

    def start(self, state: FitState) -> None:
        """Open the bar."""
        if self.is_shown:
            self.line = ProgressLine("epoch", state.epochs, self.stream, done=state.epoch)

    def step(self, state: FitState) -> None:
        """Move the bar a few times a second; the loss is read from the device only then."""
        if self.line is None or not self.line.due():
            return
        now = [] if state.batch_nll is None else [f"now {float(state.batch_nll):.4f}"]
        figures = [*figures_of(state.history[-1]), *now] if state.history else [f"nll {n[4:]}" for n in now]
        self.line.show(state.step / math.ceil(state.num_data / state.batch_size), figures)

    def epoch(self, state: FitState) -> None:
        """Show the epoch's figures."""
        if self.line is not None and (self.line.due() or state.epoch == state.epochs):
            self.line.show(state.epoch, figures_of(state.history[-1]))

    def end(self, state: FitState) -> None:
        """Close the bar."""
        if self.line is not None:
            self.line.end()
            self.line = None


def bar_for(progress: bool | None, callbacks: Sequence[Callback]) -> list[Callback]:
    """Return the bar of a fit: if asked for, or by default where stderr is a terminal; none beside another."""
    if progress is False or any(isinstance(callback, ProgressBar) for callback in callbacks):
        return []
    return [ProgressBar()] if progress or sys.stderr.isatty() else []
