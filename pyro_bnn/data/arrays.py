"""
What people hold, as tensors: tensors, NumPy arrays, and the frames and series of pandas and polars.

Frames and series are known by what they can do, not by their library: a frame has `columns` and gives a column for
`frame[name]`, both have `to_numpy()`. Neither library is asked for.

Tensors keep their dtype, and so do arrays, unless a floating `dtype` is asked for, which floating arrays take up: NumPy
makes float64 by default. A frame's columns become float32. Missing entries (None, NA, masked) become NaN.

Inputs are one tensor x (N, ...), or several as a tuple (x1, x2, ...) with a row of each per row of the data, for
programs that are called `model((x1, x2), y)` and networks that are called `net(x1, x2)`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyro_bnn.data.checks import suggest

__all__ = [
    "Frame",
    "Inputs",
    "Series",
    "as_inputs",
    "as_tensor",
    "first_rows",
    "frame_columns",
    "map_inputs",
    "members",
    "missing_entries",
    "named_columns",
    "number_of_rows",
    "numbers_of",
    "pieces",
]

Inputs: TypeAlias = Tensor | tuple[Tensor, ...]
"""One tensor (N, ...), or a tuple of several with the same number of rows."""

Array: TypeAlias = npt.NDArray[Any]

_ENCODE = "encode it as numbers (one column of 0 and 1 per value, or a code per value) or leave it out"


@runtime_checkable
class Series(Protocol):
    """A column of numbers, as pandas and polars have it."""

    def to_numpy(self) -> Any:
        """Return the values as an array (N,)."""


@runtime_checkable
class Frame(Protocol):
    """A table with named columns, as pandas and polars have it."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""

    def to_numpy(self) -> Any:
        """Return the values as an array (N, D)."""

    def __getitem__(self, name: Any) -> Any:
        """Return the column called `name`."""


# -- several inputs ----------------------------------------------------------------------------------------------------


def members(x: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of the inputs: one, or several."""
    return x if isinstance(x, tuple) else (x,)


def map_inputs(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """Return the inputs with every tensor changed by `function`."""
    return tuple(function(member) for member in x) if isinstance(x, tuple) else function(x)


def number_of_rows(x: Inputs) -> int:
    """Return N, the number of rows of one tensor or of each of several."""
    return len(members(x)[0])


def first_rows(x: Inputs, rows: int = 1) -> Inputs:
    """Return the first rows of the inputs."""
    return map_inputs(lambda member: member[:rows], x)


def pieces(x: Inputs, rows: int) -> Iterator[Inputs]:
    """Yield the inputs in pieces of so many rows, the last one shorter."""
    for start in range(0, number_of_rows(x), rows):
        yield map_inputs(lambda member: member[start : start + rows], x)  # noqa: B023  (used before the next one)


def as_inputs(values: Any, name: str = "x", dtype: torch.dtype | None = None) -> Inputs:
    """Turn one tensor, array or frame into a tensor, and a tuple or list of them into a tuple of tensors."""
    if isinstance(values, dict):
        raise TypeError(
            f"{name} is a dict; give several inputs as a tuple, ({', '.join(map(str, values)) or 'x1, x2'}), in the "
            "order in which the program takes them"
        )
    if not isinstance(values, (tuple, list)):
        return as_tensor(values, name, dtype)
    if not values or not all(isinstance(v, (Tensor, np.ndarray, Series)) for v in values):
        raise TypeError(f"{name} is a {type(values).__name__} of other things; give tensors or NumPy arrays in a tuple")
    inputs = tuple(as_tensor(member, f"{name}[{i}]", dtype) for i, member in enumerate(values))
    lengths = [len(member) if member.ndim else None for member in inputs]
    if None in lengths or len(set(lengths)) > 1:
        raise ValueError(f"the {len(inputs)} inputs in {name} have {lengths} rows; give each a row per row of the data")
    return inputs


# -- arrays, frames and series -----------------------------------------------------------------------------------------


def as_tensor(values: Any, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """Turn a tensor, array, frame or series into a tensor; refuse text, dates and objects."""
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, np.ndarray):
        tensor = _from_numpy(numbers_of(values, name))
        return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
    if isinstance(values, Frame):
        columns = frame_columns(values, name)
        if not columns:
            raise ValueError(f"{name} has no columns; give at least one column")
        arrays = [numbers_of(column, f"column {key!r} of {name}") for key, column in columns.items()]
        table = np.stack([array.astype(np.float64) for array in arrays], 1)  # (N, D)
        return torch.from_numpy(table).to(dtype or torch.float32)
    if isinstance(values, Series):
        return as_tensor(np.asarray(values.to_numpy()), name, dtype)
    raise TypeError(
        f"{name} is a {type(values).__name__}; give tensors or NumPy arrays (or frames and series of pandas or polars)"
    )


def frame_columns(frame: Frame, name: str = "the frame") -> dict[str, Array]:
    """Return the columns of a frame by name, in order; refuse names that come twice."""
    names = [str(column) for column in frame.columns]
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise ValueError(f"{name} has more than one column {twice[0]!r}; rename them")
    return {str(column): np.asarray(frame[column].to_numpy()) for column in frame.columns}


def named_columns(columns: Mapping[str, Array], wanted: Sequence[str], name: str) -> Array:
    """
    Return the columns that are wanted, in that order, as numbers (N, D) in float64; others are left out.

    :param columns: the columns of a table by name, (N,) each.
    :param name: what to call the table in a complaint.
    """
    for column in wanted:
        if column not in columns:
            raise ValueError(
                f"{name} has no column {column!r}{suggest(column, columns)}, which the posterior was trained on; it "
                f"has {', '.join(columns) or 'none'}: rename or add it"
            )
    return np.stack([numbers_of(columns[c], f"column {c!r} of {name}").astype(np.float64) for c in wanted], 1)


def numbers_of(values: Array, name: str) -> Array:
    """Return an array as numbers, missing entries as NaN; refuse what is none, naming its first row."""
    if isinstance(values, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(values)
        values = np.where(hidden, np.nan, values.data) if hidden.any() else values.data
    kind = values.dtype.kind
    if kind in "biuf":
        return values
    if kind in "mM":
        raise TypeError(f"{name} holds dates or times; {_ENCODE}, such as days since a start")
    if kind == "c":
        raise TypeError(f"{name} holds complex numbers; give real ones, such as real and imaginary parts side by side")
    if kind != "O" or values.ndim != 1:
        raise TypeError(f"{name} holds {values.dtype}; {_ENCODE}")
    missing = missing_entries(values)
    for row in np.flatnonzero(~missing):
        if not isinstance(values[row], (Number, np.bool_)) or isinstance(values[row], complex):
            raise TypeError(f"{name} holds text or objects (row {row} is {values[row]!r}); {_ENCODE}")
    if missing.any():
        return np.array([np.nan if gone else float(v) for v, gone in zip(values, missing, strict=True)])
    return np.array(values.tolist())


def missing_entries(values: Array) -> npt.NDArray[np.bool_]:
    """Return which entries of (N,) are missing: None, NaN, NaT or NA."""
    if values.dtype.kind == "f":
        return cast(npt.NDArray[np.bool_], np.isnan(values))
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=np.bool_)
    return np.array([_is_missing(v) for v in values], dtype=np.bool_)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _from_numpy(values: Array) -> Tensor:
    """Copy an array into a tensor, whatever its byte order, strides or width."""
    if values.dtype.kind == "u" and values.dtype.itemsize > 1:
        values = values.astype(np.int64)
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    return torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("="), order="C"))
