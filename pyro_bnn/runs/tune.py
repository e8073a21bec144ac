"""
The trials of a sweep through Ray Tune, on a cluster of this machine or on a running one.

Ray Tune decides when and where a trial runs and starts one whose process died again; what a trial is, where it keeps
its state and whether it is done is as it is without Ray (:mod:`pyro_bnn.runs.sweep`), so that a sweep may be begun one
way and gone on with the other. A killed sweep is taken up from its own records, and Tune is given the trials that have
none.

ASHA (asynchronous successive halving, Li et al. 2020) compares trials after 1, r, r^2, ... epochs by the NLL on
validation rows and stops those that are not among the best 1/r; the rungs are those of a training that keeps one batch
of validation draws per epoch (`val_samples`). On resumption all trials are handed in again and tell ASHA the epochs
that they had, without training, so that it knows what it knew.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from pyro_bnn.inference.svi import Callback, FitState
from pyro_bnn.methods.base import HISTORY
from pyro_bnn.recipe import Recipe
from pyro_bnn.runs.jobs import environment, started_ray
from pyro_bnn.runs.sweep import (
    DONE,
    FAILED,
    METRIC,
    RETRIES,
    STOPPED,
    Plan,
    read_record,
    run_trial,
    trial_folder,
)

__all__ = ["tune_trials"]

_REDUCTION = 3

_LOOK = 5.0
"""Seconds between two looks at the machines of a cluster."""


def tune_trials(
    folder: Path,
    plan: Plan,
    missing: Sequence[int],
    told: Callable[[int, Mapping[str, Any] | None], None],
    *,
    jobs: int | None,
    address: str,
    data_root: str | Path | None,
    asha: bool,
) -> None:
    """Run the trials that have no record, and tell of each that ended."""
    with environment(TUNE_DISABLE_SIGINT_HANDLER="1"), started_ray(address, jobs) as ray:
        from ray import tune
        from ray.tune.schedulers import ASHAScheduler

        longest = max(plan.settled(number).epochs for number in missing)
        scheduler = None
        if asha:
            scheduler = ASHAScheduler(
                time_attr="epoch", metric=METRIC, mode="min", max_t=longest + 1, reduction_factor=_REDUCTION
            )
        numbers = range(plan.runs) if asha else missing
        common = {"folder": str(folder), "data_root": None if data_root is None else str(data_root), "asha": asha}
        trials = [{"number": n, "recipe": plan.settled(n).to_toml(), **common} for n in numbers]
        own = folder / ".tune"
        shutil.rmtree(own, ignore_errors=True)  # of a start that was killed
        tuner = tune.Tuner(
            tune.with_resources(_trial, {"cpu": 1}),
            param_space={"trial": tune.grid_search(trials)},
            tune_config=tune.TuneConfig(
                scheduler=scheduler,
                reuse_actors=True,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
                max_concurrent_trials=jobs,
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=str(own),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                callbacks=[_told_by(tune.Callback, ray, folder, set(missing), told)],
            ),
        )
        tuner.fit()
        shutil.rmtree(own, ignore_errors=True)


def _name(trial: Any) -> str:
    """Return what Tune calls a trial."""
    return f"trial-{trial.config['trial']['number']}"


def _trial(config: Mapping[str, Any]) -> None:
    """Run a trial in a process of Ray's, and report its score."""
    import torch
    from ray import tune

    torch.set_num_threads(1)
    given = config["trial"]
    folder, number, recipe = Path(given["folder"]), given["number"], Recipe.from_toml(given["recipe"], saved=True)
    record = read_record(folder, number)
    done = record is not None and record["status"] in DONE
    if given["asha"]:
        _tell_again(trial_folder(folder, number), recipe.epochs, tune.report)
    if record is None or not done:
        callbacks = [_Report(tune.report)] if given["asha"] else []
        record = run_trial(folder, number, recipe, given["data_root"], callbacks)
    if not given["asha"]:
        tune.report({METRIC: record.get(METRIC, float("nan")), "epoch": record.get("epochs", 0)})


def _tell_again(run: Path, epochs: int, report: Callable[[dict[str, Any]], None]) -> None:
    """Report the epochs that a run of so many has behind it."""
    history = run / HISTORY
    lines = history.read_text().splitlines() if history.is_file() else []
    for line in map(json.loads, lines):
        if METRIC in line and line["epoch"] < epochs:
            report({METRIC: line[METRIC], "epoch": line["epoch"]})


@final
class _Report(Callback):
    """Tell ASHA how good every epoch but the last was; it may end the trial there."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self.report = report

    def epoch(self, state: FitState) -> None:
        """Report the epoch."""
        line = state.history[-1]
        if METRIC not in line:
            raise ValueError("asha=True compares validation NLLs after every epoch, and this method has none")
        if state.epoch < state.epochs:
            self.report({METRIC: line[METRIC], "epoch": state.epoch})


def _told_by(
    base: type, ray: Any, folder: Path, missing: set[int], told: Callable[[int, Mapping[str, Any] | None], None]
) -> Any:
    """
    Return a callback of Tune's that tells of every trial that ended, with a record for one that left none.

    It ends a sweep whose cluster has no machine left, for which Tune would wait for ever.
    """
    looked = time.monotonic()

    class Told(base):  # type: ignore[misc]
        def __reduce__(self) -> Any:  # Tune keeps a copy, which it never uses here
            return base, ()

        def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
            nonlocal looked
            if time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                if not any(machine["Alive"] for machine in ray.nodes()):
                    raise RuntimeError("the Ray cluster has no machine left; start again to go on with the sweep")

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self._tell(trial, None)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if trial.status == "ERROR":  # and not to be tried again
                self._tell(trial, "its process ended without an answer, as often as it was tried")

        def _tell(self, trial: Any, error: str | None) -> None:
            number = trial.config["trial"]["number"]
            if number not in missing:
                return
            record = None
            if read_record(folder, number) is None:
                last = trial.last_result or {}
                record = {"status": FAILED, "error": error or "it left no record"}
                if error is None and METRIC in last:
                    record = {"status": STOPPED, METRIC: last[METRIC], "epochs": last["epoch"]}
            told(number, record)

    return Told()
