"""
Diagnosis: what speaks for and against one fitted posterior, in words, each mark with its source.

Nothing here proves a posterior right; a check that fails shows that something is wrong, and says what.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyro_bnn.analysis.checks.check import Check, Diagnosis
from pyro_bnn.analysis.checks.of_fit import check_drift, check_num_data, check_settled, num_data_of
from pyro_bnn.analysis.checks.of_predictions import (
    check_against_nothing,
    check_calibration,
    check_chains,
    check_leave_one_out,
    check_replicated,
    drawn_from,
)
from pyro_bnn.analysis.checks.of_weights import check_joint, check_spread, check_widths
from pyro_bnn.analysis.checks.rows import Rows
from pyro_bnn.data.load import Data
from pyro_bnn.data.split import as_split
from pyro_bnn.inference.draws import Draw
from pyro_bnn.posterior import Posterior

__all__ = ["diagnose"]

_MOST_NUMBERS = 20_000_000
"""Predictions of all draws that are kept at once."""

_SETTLING = {"steps": 200, "batch_size": 100}


def _held_out(drawn: Sequence[Draw], rows: int) -> int:
    """Return how many held-out rows to look at: ten times as many, if all their draws fit."""
    per_row = len(drawn) * drawn[0].prediction[:1].numel()
    return max(rows, min(10 * rows, _MOST_NUMBERS // per_row))


def diagnose(
    posterior: Posterior,
    data: Any,
    *,
    test: Any = None,
    history: Sequence[Mapping[str, Any]] = (),
    rows: int = 1000,
    num_samples: int = 100,
    settle: bool = True,
    seed: int = 0,
) -> Diagnosis:
    """
    Check a fitted posterior against its data.

    :param posterior: the fitted posterior.
    :param data: what it was fitted to: `pb.load_data(...)`, a Split, or raw (x, y).
    :param test: rows it was not fitted to; default those of `data`, and none for (x, y), whose checks are left out.
    :param history: the lines of its epochs, as `fit(...).history` has them.
    :param rows: how many rows a check looks at.
    :param num_samples: S, draws of a prediction.
    :param settle: whether it is fitted on for 200 steps, to see what they gain, and put back to what it was.
    :param seed: of the draws; the global random state is left as it is.
    """
    if rows < 20 or num_samples < 10:
        raise ValueError(f"rows={rows}, num_samples={num_samples}: pass at least 20 rows and 10 draws")
    train_split = as_split(data.train if isinstance(data, Data) else data)
    test_split = data.test if isinstance(data, Data) and test is None else None if test is None else as_split(test)
    train = Rows.some_of(posterior, train_split, rows, seed)
    counted = num_data_of(posterior, train)
    n = counted or len(train_split.y)
    checks: list[Check] = [check_num_data(counted, len(train_split.y))]
    checks.append(check_spread(posterior, train))
    checks.append(check_widths(posterior, train, n, seed=seed))
    checks.append(check_drift(history))
    if settle:
        many = Rows.some_of(posterior, train_split, _SETTLING["steps"] * _SETTLING["batch_size"] + rows, seed)
        checks.append(check_settled(posterior, many, n, draws=10, seed=seed, **_SETTLING))
    checks.append(check_joint(posterior, train, n, draws=num_samples, seed=seed))
    at_train = drawn_from(posterior, train, num_samples, seed)
    checks.append(check_leave_one_out(posterior, at_train, train))
    if test_split is not None:
        held_out = Rows.some_of(posterior, test_split, _held_out(at_train, rows), seed)
        drawn = drawn_from(posterior, held_out, num_samples, seed)
        checks.append(check_against_nothing(drawn, held_out, train))
        checks.append(check_calibration(drawn, held_out))
        checks.append(check_replicated(drawn, held_out, seed))
    else:
        checks.append(Check("calibration", "not checked", "Needs rows that it was not fitted to: pass test=(x, y)."))
    checks.append(check_chains(posterior, train))
    return Diagnosis(tuple(checks))
