"""
What is asked of every case: the same result, or one of the library's own errors; in 5 s, in 1 GB more than there is.

A case is a function without arguments. It returns what it has; the judge compares. The watch on time is an alarm, that
on memory a limit on the address space of the process, so that cases run one after another in one process, quickly.
"""

import contextlib
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from pyro_bnn.common.errors import is_own

SECONDS, ASLEEP = 5.0, 60.0
"""Of computing, and by the clock: a machine may have other work, and who waits for a pipe computes nothing."""

BYTES = 2**30
GOOD = ("same", "accepted", "refused")


class Hang(BaseException):
    """A case took too long."""


@dataclass
class Tally:
    """What came out, how often; a few examples of each that should not have."""

    outcomes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    slowest: float = 0.0

    @property
    def bad(self) -> int:
        return sum(count for outcome, count in self.outcomes.items() if outcome not in GOOD)

    def note(self, outcome: str, what: str, seconds: float = 0.0) -> None:
        self.outcomes[outcome] += 1
        self.slowest = max(self.slowest, seconds)
        if outcome not in GOOD and len(self.examples) < 40:
            self.examples.append(f"{outcome}: {what}")


def _ring(number: int, frame: FrameType | None) -> None:
    raise Hang


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


@contextlib.contextmanager
def watched(extra: int = 0) -> Iterator[None]:
    """Raise Hang after 5 s of computing, and let no more than 1 GB (and `extra` bytes) be taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    usual = [(number, signal.signal(number, _ring)) for number in (signal.SIGALRM, signal.SIGPROF)]
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + BYTES + extra, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, ASLEEP)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in usual:
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _short_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def judge(tally: Tally, case: Callable[[], Any], what: str, same: Callable[[Any], bool] | None = None) -> None:
    """Run a case and note its outcome; `same` says whether its result is what it was before the damage."""
    started = time.process_time()
    outcome, said = "", what
    try:
        with watched(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = case()
        outcome = "accepted" if same is None else "same" if same(result) else "different"
    except Hang:
        outcome = "hang"
    except Exception as error:
        outcome = "memory" if _short_of_memory(error) else "refused" if is_own(error) else "foreign"
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{what}: {type(error).__name__}: {str(error)[:160]} ({last.filename.rpartition('/')[2]}:{last.lineno})"
    tally.note(outcome, said, time.process_time() - started)
