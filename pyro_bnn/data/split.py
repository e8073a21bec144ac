"""
Rows of a data set as tensors that live on one device, and the index arithmetic on them.

A `Split` is x (N, ...), y (N, ...) and optional weights (N,); x may be a tuple of several inputs. `as_split` turns
whatever a user has into one; `batches` gives the index tensors of an epoch; `balanced_indices` and
`stratified_indices` choose rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from pyro_bnn.data.arrays import Frame, Inputs, Series, as_inputs, as_tensor, map_inputs, members, number_of_rows
from pyro_bnn.data.checks import check_finite, check_weights, check_weights_shape

__all__ = [
    "Split",
    "as_split",
    "balanced_indices",
    "batch_parts",
    "batches",
    "from_parts",
    "stratified_indices",
    "subset",
]


@final
@dataclass(frozen=True, eq=False)
class Split:
    """
    Rows that belong together: inputs x (N, ...), targets y (N, ...), optional sample weights (N,).

    x is a tensor, or a tuple of several with N rows each. Rows of a table also know the names of its columns, and of
    the classes if there are any. Building one checks shapes only; `as_split` checks the values.

    :param x: inputs (N, ...), or a tuple of several.
    :param y: labels (N,) or targets (N,) or (N, D).
    :param weights: a weight per row (N,).
    :param columns: the names of the inputs' columns.
    :param class_names: the names of the classes.
    """

    x: Any  # Inputs: most rooms know that there is one
    y: Tensor
    weights: Tensor | None = None
    columns: tuple[str, ...] | None = field(default=None, kw_only=True)
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        inputs = [("x", member) for member in self.x] if isinstance(self.x, tuple) else [("x", self.x)]
        for name, value in (*inputs, ("y", self.y), ("weights", self.weights)):
            if not isinstance(value, Tensor) and not (name == "weights" and value is None):
                raise TypeError(
                    f"{name} is a {type(value).__name__}; a Split holds tensors: use as_split(...) to convert"
                )
        if not inputs or any(member.ndim == 0 for _, member in inputs) or self.y.ndim == 0:
            raise ValueError(
                "x and y need a first dimension that counts the rows; got a single number: add one with [None]"
            )
        for _, member in inputs:
            if len(member) != len(self.y):
                raise ValueError(f"x has {len(member)} rows and y has {len(self.y)}; give one target per row of x")
        if self.weights is not None:
            check_weights_shape(self.weights, len(self))

    def __len__(self) -> int:
        return number_of_rows(self.x)

    def take(self, indices: Tensor) -> "Split":
        """Return the rows at `indices` (B,), in that order."""
        weights = None if self.weights is None else self.weights[indices]
        return replace(self, x=map_inputs(lambda x: _rows(x, indices), self.x), y=self.y[indices], weights=weights)

    def to(self, device: torch.device | str) -> "Split":
        """Return the same rows on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        return replace(
            self, x=map_inputs(lambda member: member.to(device), self.x), y=self.y.to(device), weights=weights
        )


def _rows(values: Tensor, indices: Tensor) -> Tensor:
    """Return values[indices]; on a CPU, of whole rows next to each other by index_select, which copies them faster."""
    here = values.device.type == indices.device.type == "cpu"  # elsewhere to look at an index is to wait for the device
    by_row = here and values.dim() > 1 and values.is_contiguous() and indices.dim() == 1
    if by_row and indices.dtype is torch.int64 and indices.numel() and int(indices.min()) >= 0:
        return values.index_select(0, indices)
    return values[indices]


def as_split(
    data: Any, *, weights: Any = None, dtype: torch.dtype | None = None, missing: bool = False, name: str = ""
) -> Split:
    """
    Turn `data` into one Split: a Split, (x, y), (x, y, weights), a torch Dataset or a torch DataLoader.

    x, y and weights are tensors, NumPy arrays, or frames and series of pandas or polars; x may be a tuple of several.
    Values, dtypes and shapes stay as they are. A Dataset or DataLoader is read once, from its first row to its last (a
    plain shuffling or `drop_last` is undone). A DataLoader with a sampler of its own is read in that sampler's order.
    NaN, infinity and negative weights are refused.

    Three parts are (x, y, weights) only where the third may be sample weights: floating, (N,), finite and >= 0, beside
    targets (N,). Otherwise say `weights=`, or give several inputs as ((x1, x2), y).

    :param weights: how often each row counts, (N,); default once.
    :param dtype: the floating dtype that arrays and frames take up; default their own.
    :param missing: let NaN in floating y through: targets that are not known.
    :param name: what to call the data in a complaint, such as "val".
    """
    label = f"{name} " if name else ""
    if isinstance(data, Split):
        split = data
    elif isinstance(data, DataLoader):
        split = _collect(_in_order(data), dtype)
    elif type(data) is TensorDataset:
        split = from_parts(data.tensors, dtype)
    elif isinstance(data, Dataset):
        split = _collect(_loader(data, 1024, None), dtype)
    elif isinstance(data, (tuple, list)):
        split = from_parts(data, dtype)
    else:
        raise TypeError(
            f"{name or 'data'} is a {type(data).__name__}; give (x, y), (x, y, weights), a Split, a torch Dataset or a "
            "DataLoader"
        )
    if weights is not None:
        if split.weights is not None:
            raise ValueError("sample weights were given twice, in the data and as weights=: leave one out")
        split = replace(split, weights=_weights(as_tensor(weights, "weights", dtype), dtype))
    if len(split) == 0:
        raise ValueError(f"{name or 'the data'} have no rows; give at least one")
    several = isinstance(split.x, tuple)
    for i, member in enumerate(members(split.x)):
        check_finite(member, f"{label}x[{i}]" if several else f"{label}x")
    check_finite(_present(split.y) if missing else split.y, f"{label}y")
    if split.weights is not None:
        check_weights(split.weights, len(split))
    return split


def _present(y: Tensor) -> Tensor:
    """Return y with 0 for NaN, and infinity as it is."""
    return torch.where(y.isnan(), 0.0, y).to(y.dtype) if y.is_floating_point() else y


def batches(
    n: int, batch_size: int, generator: torch.Generator | None = None, *, shuffle: bool = True
) -> tuple[Tensor, ...]:
    """
    Index tensors (B,) of one epoch over n rows; every row once, the last batch shorter if n is no multiple.

    The order is drawn from `generator` (on the CPU, so that it is the same on every device), or from the global one.

    :param n: how many rows there are.
    :param batch_size: B, the rows of a batch.
    :param shuffle: whether the order is random.
    """
    if not isinstance(batch_size, int) or isinstance(batch_size, bool):
        raise TypeError(f"batch_size is {batch_size!r}; give a whole number from 1 to {n}, the number of rows")
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size is {batch_size}; give a whole number from 1 to {n}, the number of rows")
    order = torch.randperm(n, generator=generator) if shuffle else torch.arange(n)
    return torch.split(order, batch_size)


def subset(split: Split, k: int, *, seed: int = 0) -> Split:
    """
    Take k rows at random, kept in their order; classes (integer y) equally often. A larger k only adds rows.

    :param split: the rows to choose from.
    :param k: how many.
    :param seed: of the choice.
    """
    if not 1 <= k <= len(split):
        raise ValueError(f"a subset of {k} rows was asked for; give a whole number from 1 to {len(split)}")
    generator = torch.Generator().manual_seed(seed)
    if split.y.ndim == 1 and not split.y.is_floating_point():
        chosen = balanced_indices(split.y, k, generator)
    else:
        chosen = torch.randperm(len(split), generator=generator)[:k].sort().values
    return split.take(chosen.to(split.y.device))


def balanced_indices(labels: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Choose k of N rows, every class equally often while it lasts; ascending. A larger k only adds rows."""
    order, rank, _ = _rank_in_class(labels, generator)
    # the first row of every class, then the second of every class, ...; stable, so ties stay in the random order
    return order[rank.argsort(stable=True)[:k]].sort().values


def stratified_indices(labels: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Choose k of N rows, each class by its share (to within one row), never a class's last one; ascending."""
    order, rank, count = _rank_in_class(labels, generator)
    quantile = (rank + 0.5) / count
    quantile[rank == count - 1] = 2.0  # the row that stays
    return order[quantile.argsort(stable=True)[:k]].sort().values


def _rank_in_class(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in random order (N,); and for each of them its rank among its class (N,) and the class's count (N,)."""
    order = torch.randperm(len(labels), generator=generator)
    _, inverse, counts = torch.unique(labels.cpu()[order], return_inverse=True, return_counts=True)
    by_class = inverse.argsort(stable=True)
    start = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(order)) - start[inverse[by_class]]
    return order, rank, counts[inverse]


def from_parts(parts: Sequence[Any], dtype: torch.dtype | None = None) -> Split:
    """Build a Split from (x, y) or (x, y, weights); the values are not checked."""
    if len(parts) not in (2, 3):
        raise ValueError(
            f"data have {len(parts)} parts; give two, (x, y), or three, (x, y, weights); several inputs go in a tuple "
            "of their own, ((x1, x2), y)"
        )
    x, y = as_inputs(parts[0], "x", dtype), _targets(parts[1], dtype)
    columns = tuple(map(str, parts[0].columns)) if isinstance(parts[0], Frame) else None
    if len(parts) == 2:
        return Split(x, y, columns=columns)
    weights = as_tensor(parts[2], "weights", dtype)
    _check_third_part(x, y, weights)
    return Split(x, y, _weights(weights, dtype), columns=columns)


def _check_third_part(x: Inputs, y: Tensor, weights: Tensor) -> None:
    """Refuse three parts whose last may be targets: it would be taken for sample weights."""
    remedy = "pass sample weights as weights=..., and several inputs in a tuple, ((x1, x2), y)"
    if not weights.is_floating_point() or weights.ndim != 1:
        raise ValueError(
            f"the third part of the data holds {weights.dtype} of shape {tuple(weights.shape)}, and (x, y, weights) "
            f"has floating-point weights of shape ({number_of_rows(x)},) there: {remedy}"
        )
    if y.ndim > 1 and y[:1].numel() > 1:
        raise ValueError(
            f"the second part of the data has shape {tuple(y.shape)}, so that the third may be sample weights or, for "
            f"two inputs, the targets: {remedy}"
        )
    try:
        check_weights(weights, number_of_rows(x))
    except ValueError as error:
        raise ValueError(f"{error} (if the third part are the targets: {remedy})") from error


def _weights(weights: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return sample weights as floating-point numbers."""
    return weights if weights.is_floating_point() else weights.to(dtype or torch.get_default_dtype())


def _targets(values: Any, dtype: torch.dtype | None) -> Tensor:
    """Return targets as a tensor; a frame of one column as (N,)."""
    y = as_tensor(values, "y", dtype)
    one_column = y.ndim == 2 and y.shape[1] == 1 and not isinstance(values, Tensor) and isinstance(values, Series)
    return y[:, 0] if one_column else y


def _collect(loader: DataLoader[Any], dtype: torch.dtype | None) -> Split:
    collected = [from_parts(batch_parts(batch), dtype) for batch in loader]
    if not collected:
        raise ValueError("the DataLoader or Dataset is empty; give at least one row")
    inputs = [members(part.x) for part in collected]
    x = tuple(torch.cat(same) for same in zip(*inputs, strict=True))
    weights = [part.weights for part in collected if part.weights is not None]
    return Split(
        x if isinstance(collected[0].x, tuple) else x[0],
        torch.cat([part.y for part in collected]),
        torch.cat(weights) if weights else None,
    )


def batch_parts(batch: Any) -> Sequence[Any]:
    """Return the parts of a DataLoader's batch, (x, y) or (x, y, weights)."""
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise ValueError(
            "the DataLoader's batches must be (x, y) or (x, y, weights); change its data set or collate_fn"
        )
    return batch


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Give a loader of the same rows without shuffling or dropping, if its order is one of the two plain ones."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return loader
    sampler = loader.sampler
    plain = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    return _loader(loader.dataset, loader.batch_size, loader) if plain else loader


def _loader(dataset: Dataset[Any], batch_size: int, like: DataLoader[Any] | None) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=batch_size,
        collate_fn=None if like is None else like.collate_fn,
        num_workers=0 if like is None else like.num_workers,
        generator=torch.Generator(),  # so that iterating leaves the global random state alone
    )
