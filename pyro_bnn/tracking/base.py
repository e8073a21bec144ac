"""
What every tracker has in common: the contract of those who write one, and what a training may rely on.

A tracker is a callback of `fit` that hands on each epoch's line of numbers. One of your own says how to open a run of
the tracking tool, write to it and close it (the abstract methods below), and nothing else. This is promised for all:

- A training is the same, to the bit, with and without it: what a tracker draws from the random states of torch, NumPy
  and Python is put back, and between two steps nothing of it runs, so that steps are recorded as without it.
- A tracker that fails never stops a training: it is said once, and the tracker is left alone from then on.
- A resumed training goes on with the curves of the one before. The name of the run is in the states of the fit; epochs
  that the tracker holds are not written again, and those that it lacks, because the process was killed between saving
  the state and telling the tracker, are written from the history. An epoch that was written and is done again, as after
  a damaged state, keeps its first value.
- The members of an ensemble and other parts of one training are apart: `part` is "member-1", or "" if there are none.
"""

import importlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pyro_bnn.common.errors import summary
from pyro_bnn.common.randomness import RandomState
from pyro_bnn.inference.fit_state import Callback, FitState

__all__ = ["Tracker", "import_tool", "scalars"]

log = logging.getLogger(__name__)


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """
    Return the numbers of an epoch's line under the names of curves; `nll` comes last, so that where it is, all are.

    >>> scalars({"epoch": 3, "step": 30, "nll": 0.5, "kl": 2.0, "learning_rates": {"loc": 0.01}})
    {'kl': 2.0, 'learning_rate/loc': 0.01, 'nll': 0.5}
    """
    rates = {f"learning_rate/{group}": rate for group, rate in line.get("learning_rates", {}).items()}
    numbers = {key: value for key, value in line.items() if key not in ("epoch", "step", "nll")}
    found = {**numbers, **rates, "nll": line["nll"]}
    return {k: float(v) for k, v in found.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def import_tool(module: str, extra: str) -> Any:
    """Return the module of a tracking tool, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f'{extra} is not installed: pip install "pyro-bnn[{extra}]"') from error


class Tracker(Callback, ABC):
    """
    The abstract base of the trackers.

    :param facts: names and numbers that say what is trained, for the tool to show beside the curves; what every fit
        knows of itself (epochs, batch_size, num_data, model, guide) is added.
    """

    def __init__(self, facts: Mapping[str, Any] | None = None) -> None:
        self.facts: dict[str, Any] = dict(facts or {})
        self.run = ""
        self.part = ""
        self.was_opened = False
        self._is_open = self._failed = self._held_open = False
        self._written: dict[str, int] = {}

    # -- what a tracker of your own says ---------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def for_run(cls, name: str, folder: Path | None, facts: Mapping[str, Any]) -> "Tracker":
        """
        Return the tracker of a training that is named on the command line (`--log`) or in `pb.train(trackers=)`.

        :param name: the recipe's.
        :param folder: the run folder, if there is one.
        :param facts: the recipe, flat: {"optim.loc.lr": 0.001, ...}.
        """

    @abstractmethod
    def open(self, run: str) -> str:
        """
        Begin a run of the tool, or go on with one, and return the name by which it is found again.

        :param run: the name of the one to go on with; "" for a new one.
        """

    @abstractmethod
    def write(self, part: str, epoch: int, values: Mapping[str, float]) -> None:
        """Write an epoch's numbers, `nll` last; epochs count from 1 in every part."""

    @abstractmethod
    def close(self) -> None:
        """End the run; what was written is on its way."""

    def last_epoch(self, part: str) -> int | None:
        """Return the last epoch of a part that the open run holds, 0 if it holds none; None if it cannot say."""
        return None

    # -- what fit calls --------------------------------------------------------------------------------------------

    def start(self, state: FitState) -> None:
        """Open the run, and write what it lacks of the epochs before a resumption."""
        self._unharmed(self._start, state)

    def epoch(self, state: FitState) -> None:
        """Write the epoch's line."""
        self._unharmed(self._write, state.history[-1])

    def end(self, state: FitState) -> None:
        """Close the run, unless a longer training goes on with it."""
        if not self._held_open:
            self._unharmed(self._close)

    def state_dict(self) -> dict[str, Any]:
        """Return the name of the run, and how far each part was written."""
        return {"run": self.run, "written": dict(self._written)} if self.run else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the run of the training before; one that is open already stays."""
        if not self._is_open:
            self.run = str(state["run"])
        for part, epoch in state["written"].items():
            self._written[part] = max(int(epoch), self._written.get(part, 0))

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Within the block, keep the run open from one fit to the next, as for the members of an ensemble."""
        self._held_open = True
        try:
            yield
        finally:
            self._held_open = False
            self._unharmed(self._close)

    def _start(self, state: FitState) -> None:
        known = {"epochs": state.epochs, "batch_size": state.batch_size, "num_data": state.num_data}
        names = {"model": type(state.model).__name__, "guide": type(state.guide).__name__}
        self.facts = {**known, **names, **self.facts}
        if not self._is_open:
            self.run = self.open(self.run)
            self._is_open = self.was_opened = True
        if state.history:
            held = self.last_epoch(self.part)
            if held is not None:
                self._written[self.part] = held
            for line in state.history:
                self._write(line)

    def _write(self, line: Mapping[str, Any]) -> None:
        epoch = int(line["epoch"])
        if self._is_open and epoch > self._written.get(self.part, 0):
            self.write(self.part, epoch, scalars(line))
            self._written[self.part] = epoch

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.close()

    def _unharmed(self, act: Callable[..., None], *arguments: Any) -> None:
        """Let the tracker act, without an effect on the training."""
        if self._failed:
            return
        randomness, host, numpys = RandomState.now(), random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            act(*arguments)
        except Exception as error:
            self._failed = True
            log.warning(
                "%s failed and is left alone from now on, the training goes on: %s", type(self).__name__, summary(error)
            )
        finally:
            randomness.restore()
            random.setstate(host)
            np.random.set_state(numpys)  # noqa: NPY002
