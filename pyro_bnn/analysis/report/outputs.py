"""What a finished training leaves beside its posterior: `posterior.nc` for ArviZ and `report.html`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from pyro_bnn.analysis.arviz import PointwiseEstimate, loo, open_arviz, why_no_loo
from pyro_bnn.analysis.report import write_report
from pyro_bnn.analysis.scores.evaluation import Evaluation
from pyro_bnn.posterior import Posterior

__all__ = ["TRAIN_ROWS", "loo_of", "write_arviz", "write_outputs"]

Rows: TypeAlias = tuple[Tensor, Tensor]

TRAIN_ROWS = 250
"""Training rows of the export; more are not looked at."""

_TEST_ROWS = 100
_DRAWS = 200
_PRIOR_DRAWS = 50


def write_arviz(
    folder: str | Path,
    posterior: Posterior,
    train: Rows,
    test: Rows,
    history: Sequence[Mapping[str, Any]] = (),
    *,
    seed: int = 0,
) -> Path:
    """
    Write `posterior.nc`: an export at 250 training rows, with predictions at 100 test rows.

    Training rows, because LOO is defined for them if for any; the first ones, which the data room has put in no order.
    """
    folder = Path(folder)
    partial = folder / ".tmp-posterior.nc"
    partial.unlink(missing_ok=True)  # whatever a killed process left, or a link that somebody put there
    x, y = (rows[:TRAIN_ROWS] for rows in train)
    options = {"split": "train", "x_new": test[0][:_TEST_ROWS], "prior_samples": _PRIOR_DRAWS, "history": history}
    posterior.to_arviz(x, y, _DRAWS, path=partial, seed=seed, **options).close()
    os.replace(partial, folder / "posterior.nc")
    return folder / "posterior.nc"


def write_outputs(
    folder: str | Path,
    posterior: Posterior,
    train: Rows,
    test: Rows,
    val: Rows | None = None,
    *,
    history: Sequence[Mapping[str, Any]] = (),
    results: Mapping[str, Any] | None = None,
    evaluation: Evaluation | None = None,
    outside: Mapping[str, Tensor] | None = None,
    num_samples: int = 100,
    seed: int = 0,
    run: Path | None = None,
) -> tuple[Path, Path]:
    """
    Write `posterior.nc` and `report.html` into a run folder; the arguments are those of `build_report`.

    :param evaluation: what `evaluate_rows` gave on `test`; its `.table` is the results table, so that a training which
        calls it in place of `Posterior.evaluate` goes over the test rows once.
    :param run: the run folder whose recipe the report shows; default `folder`.
    """
    export = write_arviz(folder, posterior, train, test, history, seed=seed)
    report = write_report(
        folder,
        posterior,
        test,
        val,
        history=history,
        results=results,
        evaluation=evaluation,
        outside=outside,
        loo=loo_of(export),
        num_samples=num_samples,
        seed=seed,
        run=run,
    )
    return export, report


def loo_of(export: str | Path) -> PointwiseEstimate | None:
    """Return leave-one-out of a written export, None where it is not defined."""
    idata = open_arviz(export)
    try:
        return None if why_no_loo(idata) is not None else loo(idata)
    finally:
        idata.close()
