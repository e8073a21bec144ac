"""
A study from its design to its verdict: trials -> results -> findings -> JSON and picture.

The JSON holds what follows from the seeds (`NAME.SCALE.json`: the same seeds give the same file), apart from what the
run took (`NAME.SCALE.run.json`).
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyro_bnn.common.files import write_text
from pyro_bnn.common.machine import cpu_name
from pyro_bnn.registry import look_up, names
from pyro_bnn.runs.jobs import environment
from pyro_bnn.studies.figures import interval
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.picture import picture
from pyro_bnn.studies.study import Results, Scale, Study, Trial
from pyro_bnn.studies.trials import default_store, run_trials, took
from pyro_bnn.version import __version__

__all__ = ["find_study", "outcome_of", "outcome_text", "run_study", "study_names"]


def study_names() -> list[str]:
    """Return the names of all studies, registered ones included."""
    return names("studies")


def find_study(name: str) -> Study:
    """
    Return a study by its name, or as "package.module:STUDY".

    :param name: of the study.
    """
    study = look_up("studies", name)
    if not isinstance(study, Study):
        raise TypeError(f"{name!r} is a {type(study).__name__}; a study is a pyro_bnn.studies.Study")
    return study


def trials_of(study: Study, scale: Scale) -> list[Trial]:
    """Return the trials of a study at a scale."""
    if scale not in study.scales:
        raise ValueError(f"study {study.name!r} has no scale {scale!r}: choose {' or '.join(study.scales)}")
    return study.design(scale)


def run_study(
    name: str,
    *,
    scale: Scale = "cpu",
    jobs: int = 1,
    ray: str | None = None,
    out: str | Path | None = None,
    store: str | Path | None = None,
    data_root: str | Path | None = None,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> dict[str, Any]:
    """
    Run what is missing of a study, and return its outcome.

    :param name: of the study.
    :param scale: smoke (seconds), cpu (minutes), or source (as large as the source's own).
    :param jobs: trials side by side, each in a process and a thread of its own.
    :param ray: "local" or the address of a Ray cluster, which runs the trials.
    :param out: the folder that the outcome and its picture are written to; default: not written.
    :param store: where trials are kept, to be found by the next run; default PYRO_BNN_STUDIES, else runs/studies.
    :param data_root: folder of the data sets; default `PYRO_BNN_DATA`, else the cache.
    :param done: told the number of trials finished, and of all.
    """
    study = find_study(name)
    with environment(PYRO_BNN_DATA=None if data_root is None else str(data_root)):
        trials = trials_of(study, scale)  # whose content may depend on a file among the data
    kept = default_store() if store is None else Path(store)
    records = run_trials(trials, kept, jobs=jobs, ray=ray, data_root=data_root, done=done)
    outcome = outcome_of(study, scale, Results(trials, records))
    if out is not None:
        folder, name = Path(out), study.name
        write_text(folder / f"{name}.{scale}.json", outcome_text(outcome))
        write_text(folder / f"{name}.{scale}.svg", picture(outcome))
        circumstances = {**took(trials, kept), "machine": cpu_name(), "pyro_bnn": __version__}
        write_text(folder / f"{name}.{scale}.run.json", json.dumps(circumstances, indent=1) + "\n")
    return outcome


def outcome_of(study: Study, scale: Scale, results: Results) -> dict[str, Any]:
    """Return the verdict, the findings and the numbers of every cell as plain data."""
    findings = study.judge(results)
    metric, words = study.metric
    cells = []
    for cell in results.cells:
        values = results.values(cell, metric)
        cells.append({"cell": cell, "values": [_number(v) for v in values], **_summary(values)})
    return {
        "study": study.name,
        "claim": study.claim,
        "source": study.source,
        "place": study.place,
        "varied": study.varied,
        "measured": study.measured,
        "rule": study.rule,
        "not_done": study.not_done,
        "explained": study.explained,
        "scale": scale,
        "verdict": verdict_of(findings),
        "findings": [finding.to_dict() for finding in findings],
        "metric": [metric, words],
        "cells": cells,
        "trials": len(results.trials),
        "seeds": len({trial.seed for trial in results.trials}),
        "diverged": results.diverged(),
        **({} if study.figures is None else {"figures": [figure.to_dict() for figure in study.figures(results)]}),
    }


def outcome_text(outcome: dict[str, Any]) -> str:
    """Return an outcome as JSON, each list of numbers on a line of its own."""
    text = json.dumps(outcome, indent=1, sort_keys=True)
    return re.sub(r"\[\n([-+.\dEenul,\s]*)\n\s*\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def _summary(values: Any) -> dict[str, float | None]:
    """Return the mean and its 95 % interval over seeds."""
    return {key: _number(v) for key, v in zip(("mean", "low", "high"), interval(values), strict=True)}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
