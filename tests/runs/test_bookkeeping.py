"""When a run writes its state: seldom enough to cost a hundredth of its time, and never so that other bits come out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyro_bnn as pb
from pyro_bnn.inference.svi import Callback, FitState
from pyro_bnn.methods import base
from pyro_bnn.runs.train import train

EPOCHS = 12
EPOCH, COST = 30.0, 1.0
"""Seconds of an epoch, and of writing a state, on the clock of these tests."""

RECIPE = pb.Recipe.build(
    {
        "model": "mlp",
        "model_args": {"hidden": [3]},
        "data": "mnist-mini",
        "data_args": {"train_size": 40, "test_size": 10},
        "epochs": EPOCHS,
        "batch_size": 20,
        "num_samples": 2,
    }
)


class Clock(Callback):
    """Each epoch takes `EPOCH` seconds, the first one excepted, and each writing `COST`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written: list[int] = []

    def epoch(self, state: FitState) -> None:
        self.now += EPOCH


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that runs by the rules above instead of the real one; states are written by time."""
    clock, write = Clock(), base.save_state_of_epoch

    def written(folder: Path, epoch: int, state: Mapping[str, Any], **of: str) -> None:
        write(folder, epoch, state, **of)
        clock.now += COST
        clock.written.append(epoch)

    monkeypatch.setattr(base, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(base, "save_state_of_epoch", written)
    monkeypatch.delenv(base.CHECKPOINTS)
    return clock


def after(epoch: int, do: Callable[[FitState], None]) -> Callback:
    """Return a callback that does something after an epoch."""

    class After(Callback):
        def epoch(self, state: FitState) -> None:
            if state.epoch == epoch:
                do(state)

    return After()


def interrupt(state: FitState) -> None:
    raise KeyboardInterrupt


def run(out: Path, *callbacks: Callback, recipe: pb.Recipe = RECIPE) -> Any:
    return train(recipe, out=out, progress=False, report=False, callbacks=callbacks)


def lines(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines())


def test_a_hundredth_of_the_time_goes_into_writing_and_the_last_epoch_is_written(tmp_path: Path, clock: Clock) -> None:
    assert base.SHARE == 0.01
    run(tmp_path / "run", clock)
    # the first after 5 seconds, then one for each 100 times that a writing takes, counted from the start: 207 s, 308 s
    assert clock.written == [2, 8, 11, EPOCHS]
    assert lines(tmp_path / "run") == EPOCHS


def test_long_epochs_are_written_one_by_one(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.EPOCH", 101 * COST)
    run(tmp_path / "run", clock)
    assert clock.written == list(range(2, EPOCHS + 1))


@pytest.mark.parametrize("by", ["environment", "recipe"])
def test_every_epoch_if_asked_for_or_where_a_divergence_goes_back_to_one(
    by: str, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RECIPE
    if by == "environment":
        monkeypatch.setenv(base.CHECKPOINTS, "epoch")
    else:
        recipe = RECIPE.changed({"on_divergence": {"retries": 1, "factor": 0.1}})
    run(tmp_path / "run", clock, recipe=recipe)
    assert clock.written == list(range(1, EPOCHS + 1))


def test_a_run_that_is_interrupted_between_two_states_goes_on_to_the_same_bits(tmp_path: Path, clock: Clock) -> None:
    run(tmp_path / "whole", clock)
    clock.written.clear()
    assert not run(tmp_path / "run", clock, after(10, interrupt)).finished
    assert clock.written == [2, 8]
    seen: list[int] = []
    look = Callback()
    look.start = lambda state: seen.append(state.epoch)  # type: ignore[method-assign]
    assert run(tmp_path / "run", clock, look).finished
    assert seen == [8]
    assert lines(tmp_path / "run") == EPOCHS
    bits = [(tmp_path / name / "posterior.safetensors").read_bytes() for name in ("whole", "run")]
    assert bits[0] == bits[1]


def test_the_epoch_that_a_later_callback_made_the_last_is_written(tmp_path: Path, clock: Clock) -> None:
    run(tmp_path / "run", clock, after(4, lambda state: setattr(state, "stop", "enough")))
    assert clock.written == [2, 4]
    assert lines(tmp_path / "run") == 4


def test_a_word_that_is_neither_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(base.CHECKPOINTS, "hourly")
    with pytest.raises(ValueError, match="PYRO_BNN_CHECKPOINTS='hourly' in the environment: it is 'time'"):
        run(tmp_path / "run")
