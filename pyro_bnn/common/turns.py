"""
Turns: one thread at a time with what Pyro and torch hold once per process.

Pyro's handlers and its parameter store, torch's random state, the weights that a network is called with and the modes
of modules belong to the process, not to a thread. Everything of this library that uses them does so in a turn, under
one re-entrant lock: a draw of a prediction, a step of a fit, a validation draw, a load. A turn ends as it began: the
stack of handlers is put back, whatever happened, and a Ctrl-C takes effect at its end (a second one at once).

`OwnRandomness` is for draws from a seed: their random numbers are those of the seed, whoever draws in between, and the
global state is left alone. `Job` is for a fit: it goes on with the random state that its last turn left, so that what
other threads draw meanwhile changes nothing in it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, final

import torch
from pyro.poutine.runtime import _PYRO_STACK

from pyro_bnn.common.interrupts import hold_interrupts
from pyro_bnn.common.randomness import RandomState

__all__ = ["Job", "OwnRandomness", "alone", "hold_interrupts", "in_turn"]

P = ParamSpec("P")
R = TypeVar("R")

_LOCK = threading.RLock()
_PAUSE = 2e-4
"""Seconds in which a thread that waits can take the lock from one that has turn after turn."""


@final
class _Shared:
    """Who waits for the lock, and whose random state is the global one."""

    waiting = 0
    job: "Job | None" = None


@contextmanager
def alone() -> Iterator[None]:
    """Have a turn: no other thread is in one, and the handlers are afterwards what they were before."""
    with hold_interrupts(insist=True):
        _Shared.waiting += 1
        try:
            _LOCK.acquire()
        finally:
            _Shared.waiting -= 1
        try:
            stack = list(_PYRO_STACK)
            job = _Shared.job
            if job is not None and job.thread != threading.get_ident():
                job.state, _Shared.job = RandomState.now(), None
            try:
                yield
            finally:
                _PYRO_STACK[:] = stack
        finally:
            _LOCK.release()


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that has a turn for each call of this function; it keeps its name and its words."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with alone():
            return function(*args, **kwargs)

    call.__name__, call.__qualname__, call.__doc__ = function.__name__, function.__qualname__, function.__doc__
    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


@final
class OwnRandomness:
    """
    The random numbers of a seed, turn after turn; the global state is put back after each.

    :param seed: None draws from the global state.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._state: RandomState | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have a turn that draws on from where the last one ended."""
        with alone():
            if self.seed is None:
                yield
                return
            before = RandomState.now()
            try:
                if self._state is None:
                    torch.manual_seed(self.seed)
                else:
                    self._state.restore()
                yield
                self._state = RandomState.now()
            finally:
                before.restore()


@final
class Job:
    """A long piece of work in many turns, such as a fit: from the global random state on, and leaving its own there."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.state: RandomState | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have a turn with the random state that the last one left; threads that wait come first."""
        if _Shared.waiting:
            time.sleep(_PAUSE)
        with alone():
            if _Shared.job is not self:
                if _Shared.job is not None:  # of this thread: a fit within another's callback
                    _Shared.job.state = RandomState.now()
                if self.state is not None:
                    self.state.restore()
                self.thread, _Shared.job = threading.get_ident(), self
            yield

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in a turn."""
        with self.turn():
            return function(*args, **kwargs)

    def done(self) -> None:
        """Let the global random state belong to nobody again."""
        with alone():
            if _Shared.job is self:
                _Shared.job = None
