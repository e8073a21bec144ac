"""
Rows of a data set as tensors that live on one device, and the index arithmetic on them.

A `Split` is x (N, ...), y (N, ...) and optional weights (N,). `as_split` turns whatever a user has into one;
`batches` gives the index tensors of an epoch; `balanced_indices` and `stratified_indices` choose rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from pyro_bnn.data.checks import check_finite, check_weights, check_weights_shape

__all__ = ["Split", "as_split", "balanced_indices", "batches", "stratified_indices", "subset"]


@final
@dataclass(frozen=True, eq=False)
class Split:
    """
    Rows that belong together: inputs x (N, ...), targets y (N, ...), optional sample weights (N,).

    Building one checks shapes only; `as_split` checks the values.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in (("x", self.x), ("y", self.y), ("weights", self.weights)):
            if not isinstance(value, Tensor) and not (name == "weights" and value is None):
                raise TypeError(
                    f"{name} is a {type(value).__name__}; a Split holds tensors: use as_split(...) to convert"
                )
        if self.x.ndim == 0 or self.y.ndim == 0:
            raise ValueError(
                "x and y need a first dimension that counts the rows; got a single number: add one with [None]"
            )
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} rows and y has {len(self.y)}; give one target per row of x")
        if self.weights is not None:
            check_weights_shape(self.weights, len(self.x))

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: Tensor) -> "Split":
        """Return the rows at `indices` (B,), in that order."""
        weights = None if self.weights is None else self.weights[indices]
        return Split(self.x[indices], self.y[indices], weights)

    def to(self, device: torch.device | str) -> "Split":
        """Return the same rows on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        return Split(self.x.to(device), self.y.to(device), weights)


def as_split(data: Any) -> Split:
    """
    Turn `data` into one Split: a Split, (x, y), (x, y, weights), a torch Dataset or a torch DataLoader.

    Arrays become tensors; values, dtypes and shapes stay as they are. A Dataset or DataLoader is read once, from its
    first row to its last (a plain shuffling or `drop_last` is undone: the fit draws its own order and keeps the last
    batch). A DataLoader with a sampler of its own is read in that sampler's order. NaN, infinity and
    negative weights are refused.
    """
    if isinstance(data, Split):
        split = data
    elif isinstance(data, DataLoader):
        split = _collect(_in_order(data))
    elif isinstance(data, TensorDataset):
        split = _from_parts(data.tensors)
    elif isinstance(data, Dataset):
        split = _collect(_loader(data, 1024, None))
    elif isinstance(data, (tuple, list)):
        split = _from_parts(data)
    else:
        raise TypeError(
            f"data is a {type(data).__name__}; give (x, y), (x, y, weights), a Split, a torch Dataset or a DataLoader"
        )
    if len(split) == 0:
        raise ValueError("the data have no rows; give at least one")
    check_finite(split.x, "x")
    check_finite(split.y, "y")
    if split.weights is not None:
        check_weights(split.weights, len(split))
    return split


def batches(
    n: int, batch_size: int, generator: torch.Generator | None = None, *, shuffle: bool = True
) -> tuple[Tensor, ...]:
    """
    Index tensors (B,) of one epoch over n rows; every row once, the last batch shorter if n is no multiple.

    The order is drawn from `generator` (on the CPU, so that it is the same on every device), or from the global one.
    """
    if not isinstance(batch_size, int) or isinstance(batch_size, bool):
        raise TypeError(f"batch_size is {batch_size!r}; give a whole number from 1 to {n}, the number of rows")
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size is {batch_size}; give a whole number from 1 to {n}, the number of rows")
    order = torch.randperm(n, generator=generator) if shuffle else torch.arange(n)
    return torch.split(order, batch_size)


def subset(split: Split, k: int, *, seed: int = 0) -> Split:
    """Take k rows at random, kept in their order; classes (integer y) equally often. A larger k only adds rows."""
    if not 1 <= k <= len(split):
        raise ValueError(f"a subset of {k} rows was asked for; give a whole number from 1 to {len(split)}")
    generator = torch.Generator().manual_seed(seed)
    if split.y.ndim == 1 and not split.y.is_floating_point():
        chosen = balanced_indices(split.y, k, generator)
    else:
        chosen = torch.randperm(len(split), generator=generator)[:k].sort().values
    return split.take(chosen.to(split.x.device))


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


def _from_parts(parts: Sequence[Any]) -> Split:
    if len(parts) not in (2, 3):
        raise ValueError(f"data have {len(parts)} parts; give two, (x, y), or three, (x, y, weights)")
    x, y, *rest = (_tensor(part) for part in parts)
    return Split(x, y, rest[0] if rest else None)


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, np.ndarray):
        return torch.from_numpy(np.array(values))
    raise TypeError(f"a part of the data is a {type(values).__name__}; give tensors or NumPy arrays")


def _collect(loader: DataLoader[Any]) -> Split:
    collected: list[Sequence[Any]] = []
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
            raise ValueError(
                "the DataLoader's batches must be (x, y) or (x, y, weights); change its data set or collate_fn"
            )
        collected.append(batch)
    if not collected:
        raise ValueError("the DataLoader or Dataset is empty; give at least one row")
    return _from_parts([torch.cat([_tensor(part) for part in parts]) for parts in zip(*collected, strict=True)])


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
