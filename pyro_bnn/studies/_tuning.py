"""
What studies that choose a hyper-parameter share: where a training ends, and the choice.

Every arm is trained at each candidate and each seed. The candidate of an arm is the one with the highest mean accuracy
of the last iterate on validation rows; the test rows of that candidate alone are compared. A training ends where it
ends by `keep = "last"`, and not at its best epoch, which would be a choice on validation rows, too; a residual network
by `last_iterate`, which takes the running statistics of its normalisation layers anew over the training rows.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import numpy as np

from pyro_bnn.studies.study import Results

__all__ = ["chosen", "last_iterate", "on_validation"]

T = TypeVar("T")


def last_iterate(epochs: int, of: Literal["svi", "map"]) -> dict[str, Any]:
    """Return the method that keeps the last step's parameters: an average of a single snapshot, taken at the end."""
    return {"name": "swa", "of": of, "start": epochs - 1, "cycle": 1.0, "schedule": "recipe"}


def on_validation(results: Results, cell: str) -> float:
    """Return the mean over seeds of the last epoch's accuracy on validation rows; a diverged training has 0."""
    ends = [curve[-1] if curve else None for curve in results.curve(cell, "val_accuracy")]
    return float(np.mean([0.0 if end is None or not np.isfinite(end) else end for end in ends]))


def chosen(results: Results, candidates: Mapping[T, str]) -> T:
    """Return the candidate whose cell is best on validation rows; the first of equals."""
    return max(candidates, key=lambda candidate: on_validation(results, candidates[candidate]))
