"""
Tables with named columns as rows to train on: frames of pandas or polars, and CSV files.

    rows = from_frame(frame, target="price")        rows = read_csv("houses.csv", target="price")

Both return a `Split` with x (N, D) in float32, y, and the names of the columns; every column but the target's (and the
weights') is an input. What the target is:

    text, categories, booleans           classes: y holds 0..K-1, `class_names` the values in order
    numbers with a fraction              regression: y (N,) in float32, or (N, T) for several targets
    whole numbers, more than 20 of them  regression
    whole numbers, 20 or fewer           either: say task="regression" or task="classification"

An input that holds text or dates is refused with its column's name, and so is one with missing values. A target that
is missing stays NaN, which `fit` masks; a missing class is refused.
"""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch

from pyro_bnn.common.reading import open_file
from pyro_bnn.data.arrays import Frame, frame_columns, missing_entries, numbers_of
from pyro_bnn.data.checks import check_weights, suggest
from pyro_bnn.data.split import Split

__all__ = ["Table", "csv_columns", "from_frame", "is_csv", "read_csv", "table_of"]

Array = npt.NDArray[Any]

MOST_CLASSES = 20
"""More different whole numbers than this are no codes of classes."""

_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
_DELIMITERS = (",", ";", "\t", "|")
_SUFFIXES = (".csv", ".tsv")
_CATEGORIES = ("category", "categorical", "enum")


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Arrays of a table, in float64 where they are numbers: x (N, D), y (N,) or (N, T), weights (N,)."""

    x: Array
    y: Array
    weights: Array | None
    columns: tuple[str, ...]
    class_names: tuple[str, ...] | None


def is_csv(path: Any) -> bool:
    """Whether a path names a file of comma- or tab-separated values."""
    return isinstance(path, (str, os.PathLike)) and str(path).lower().endswith(_SUFFIXES)


def from_frame(
    frame: Any,
    target: str | Sequence[str],
    *,
    features: Sequence[str] | None = None,
    weights: str | None = None,
    task: Literal["classification", "regression"] | None = None,
) -> Split:
    """
    Turn a frame of pandas or polars into rows.

    :param frame: the frame.
    :param target: the column that is predicted, or several of numbers.
    :param features: the columns that are inputs; default all others.
    :param weights: the column that says how often each row counts.
    :param task: what whole numbers in the target are.
    """
    return _split(table_of(frame, target, features=features, weights=weights, task=task))


def read_csv(
    path: str | os.PathLike[str],
    target: str | Sequence[str],
    *,
    features: Sequence[str] | None = None,
    weights: str | None = None,
    task: Literal["classification", "regression"] | None = None,
    delimiter: str | None = None,
) -> Split:
    """
    Read a CSV file, whose first line names the columns, as rows; see `from_frame`.

    :param path: the file.
    :param target: the column, or columns, to predict.
    :param features: the columns to predict from; default all others.
    :param weights: a column of weights.
    :param task: "classification" or "regression"; default what the target looks like.
    :param delimiter: what separates values; default the one of , ; tab | that the first line has most of.
    """
    return _split(table_of(path, target, features=features, weights=weights, task=task, delimiter=delimiter))


def table_of(
    source: Any,
    target: str | Sequence[str] | None,
    *,
    features: Sequence[str] | None = None,
    weights: str | None = None,
    task: str | None = None,
    delimiter: str | None = None,
) -> Table:
    """Return the arrays of a frame or of a CSV file."""
    if task not in (None, "classification", "regression"):
        raise ValueError(f"task is {task!r}; allowed are 'classification' and 'regression'")
    categories: set[str] = set()
    if is_csv(source):
        name, columns = str(source), csv_columns(Path(source).expanduser(), delimiter)
    elif isinstance(source, Frame):
        name, columns = "the frame", frame_columns(source)
        categories = {str(c) for c in source.columns if str(source[c].dtype).lower().startswith(_CATEGORIES)}
    else:
        raise TypeError(
            f"the table is a {type(source).__name__}; give a frame of pandas or polars, or the path of a .csv file"
        )
    return _table(name, columns, target, features, weights, task, categories)


def _table(
    name: str,
    columns: Mapping[str, Array],
    target: str | Sequence[str] | None,
    features: Sequence[str] | None,
    weights: str | None,
    task: str | None,
    categories: set[str],
) -> Table:
    if target is None:
        raise ValueError(f"{name} needs target=, the column to predict; it has {', '.join(columns)}")
    targets = [target] if isinstance(target, str) else list(target)
    if not targets:
        raise ValueError(f"target is empty; name a column of {name}: {', '.join(columns)}")
    if weights in targets or len(set(targets)) < len(targets):
        raise ValueError(f"{name}: {weights or targets[0]!r} cannot be two of targets and weights: name other columns")
    apart = [*targets, *([] if weights is None else [weights])]
    for column in [*apart, *(features or [])]:
        if column not in columns:
            raise ValueError(
                f"{name} has no column {column!r}{suggest(column, columns)}; it has {', '.join(columns) or 'none'}"
            )
    inputs = [c for c in columns if c not in apart] if features is None else list(features)
    shared = [column for column in inputs if column in apart]
    if not inputs or shared:
        what = f"the target or weights column {shared[0]!r} is among the features" if shared else "there is no input"
        raise ValueError(f"{name}: {what}; name the features among {', '.join(c for c in columns if c not in apart)}")
    if len(columns[targets[0]]) == 0:
        raise ValueError(f"{name} has no rows; give at least one")
    x = np.stack([_input(columns[c], c) for c in inputs], 1)
    counted = None if weights is None else _input(columns[weights], weights)
    if counted is not None:
        check_weights(torch.from_numpy(counted), len(x), f"column {weights!r}")
    if len(targets) > 1:
        if task == "classification":
            raise ValueError(f"classification has one target column, not {len(targets)}: choose one")
        y = np.stack([numbers_of(columns[c], f"column {c!r}").astype(np.float64) for c in targets], 1)
        return Table(x, y, counted, tuple(inputs), None)
    y, class_names = _target(columns[targets[0]], targets[0], task, targets[0] in categories)
    return Table(x, y, counted, tuple(inputs), class_names)


def _input(values: Array, column: str) -> Array:
    numbers = numbers_of(values, f"column {column!r}").astype(np.float64)
    bad = ~np.isfinite(numbers)
    if bad.any():
        raise ValueError(
            f"column {column!r} holds missing or infinite values in {int(bad.sum())} of {len(bad)} rows (first: row "
            f"{int(np.flatnonzero(bad)[0])}): drop or impute those rows, or leave the column out of features"
        )
    return numbers


def _target(values: Array, column: str, task: str | None, category: bool) -> tuple[Array, tuple[str, ...] | None]:
    """Return targets as numbers, or as 0..K-1 with the names of the classes."""
    missing = missing_entries(values)
    numbers: Array | None = None
    if not category and values.dtype.kind != "b":
        try:
            numbers = numbers_of(values, f"column {column!r}")
        except TypeError:
            if values.dtype.kind in "mMc" or task == "regression":
                raise
    if numbers is not None and numbers.dtype.kind == "b":
        numbers = None
    if numbers is not None and task != "classification":
        known = numbers[~missing]
        whole = bool(np.all(known == np.round(known)))
        if task is None and whole and len(np.unique(known)) <= MOST_CLASSES:
            raise ValueError(
                f"column {column!r} holds {len(np.unique(known))} different whole numbers, which may be classes or "
                "amounts: say task='classification' or task='regression'"
            )
        return numbers.astype(np.float64), None
    if numbers is None and task == "regression":
        raise ValueError(f"column {column!r} holds categories, not numbers: leave task='regression' out")
    if missing.any():
        raise ValueError(
            f"column {column!r} holds no class in {int(missing.sum())} of {len(missing)} rows (first: row "
            f"{int(np.flatnonzero(missing)[0])}): drop those rows"
        )
    kept = values if numbers is None else numbers
    labels = sorted(set(kept.tolist())) if numbers is not None else sorted(set(kept.tolist()), key=str)
    code = {value: k for k, value in enumerate(labels)}
    names = tuple(str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in labels)
    return np.array([code[value] for value in kept.tolist()], dtype=np.int64), names


def _split(table: Table) -> Split:
    y = torch.from_numpy(table.y)
    return Split(
        torch.from_numpy(table.x).float(),
        y.float() if y.is_floating_point() else y,
        None if table.weights is None else torch.from_numpy(table.weights).float(),
        columns=table.columns,
        class_names=table.class_names,
    )


# -- CSV ---------------------------------------------------------------------------------------------------------------


def csv_columns(path: Path, delimiter: str | None = None) -> dict[str, Array]:
    """Return the columns of a CSV file by name: numbers where all values are numbers or missing, else text."""
    if not path.exists():
        raise FileNotFoundError(f"no data file {path}; give the path of a CSV file whose first line names the columns")
    try:
        with open_file(path, "csv_bytes") as file, TextIOWrapper(file, "utf-8-sig", newline="") as handle:
            if delimiter is None:
                first = handle.readline()
                delimiter = "\t" if path.suffix.lower() == ".tsv" else max(_DELIMITERS, key=first.count)
                handle.seek(0)
            lines = [line for line in csv.reader(handle, delimiter=delimiter, skipinitialspace=True) if line]
    except (UnicodeDecodeError, csv.Error, TypeError) as error:
        raise ValueError(f"{path} cannot be read as CSV ({error}); write it as UTF-8 text, a row per line") from error
    if not lines:
        raise ValueError(f"{path} is empty; its first line names the columns, and a row follows on each line")
    names = [name.strip() for name in lines[0]]
    for i, name in enumerate(names):
        if not name or _number(name) is not None:
            raise ValueError(
                f"{path} has {name!r} for the name of its column {i}; its first line names the columns: add such a line"
            )
        if name in names[:i]:
            raise ValueError(f"{path} has more than one column {name!r}; rename them")
    for row, line in enumerate(lines[1:]):
        if len(line) != len(names):
            raise ValueError(
                f"{path}: row {row} has {len(line)} values and the first line {len(names)} names; correct the row, or "
                "say delimiter= if values are not separated by "
                f"{delimiter!r}"
            )
    return {name: _column([line[i].strip() for line in lines[1:]]) for i, name in enumerate(names)}


def _column(cells: list[str]) -> Array:
    missing = [cell.lower() in _MISSING for cell in cells]
    numbers = [np.nan if gone else _number(cell) for cell, gone in zip(cells, missing, strict=True)]
    if None not in numbers:
        return np.array(numbers, dtype=np.float64)
    return np.array([None if gone else cell for cell, gone in zip(cells, missing, strict=True)], dtype=object)


def _number(cell: str) -> float | None:
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return None
