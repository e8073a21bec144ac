"""
How rows reach a training step: epoch after epoch, as batches (x, y) or (x, y, weights) of tensors.

`Rows` holds all rows as tensors and draws the order of each epoch from the fit's generator. `OnDisk` has the same order
for rows in mapped files, and reads a batch while the step before it runs. `Loaded` uses a DataLoader
as it is: its batches, sampler, `drop_last`, `collate_fn`, and its random transforms anew in every epoch. A Dataset that
is no plain TensorDataset is read anew as well, through a DataLoader in the order that `Rows` would have.

N is the number of rows that the posterior is given, which the KL is divided by and the program's plate is as large as:

    a Dataset, or a loader over all rows             the length of the data set
    a loader with a sampler of its own               the length of the sampler
    drop_last in a fixed order                       the rows that an epoch gives: the others are never seen
    drop_last in a random order                      all rows, each of which is seen in some epochs; also allowed, where
                                                     the program's plate says so, are the rows that an epoch gives
    an IterableDataset without a length, a
    batch_sampler of one's own, batch_size=None      what the caller says, `num_data`, and an epoch has to give as many

Every batch is scaled up to N by its own number of rows, so that a `collate_fn` may change that number.

What is promised on resumption: tensors go on to the same bits. So does a loader whose randomness is torch's (the
sampler's and the transforms', in this process or in workers): the global random state and the loader's generator are
kept. Random numbers that transforms draw elsewhere (NumPy, `random`) are not put back.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, cast, final

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from pyro_bnn.data.arrays import map_inputs, number_of_rows
from pyro_bnn.data.on_disk import MappedRows
from pyro_bnn.data.split import Split, as_split, batch_parts, batches

__all__ = ["Batch", "Loaded", "OnDisk", "Rows", "Shard", "Stream", "as_batch", "is_stream"]

Batch: TypeAlias = tuple[Any, ...]
"""(x, y) or (x, y, weights): what a program is called with."""

Prepare: TypeAlias = Callable[[Split], Split]


@final
@dataclass(frozen=True)
class Shard:
    """
    Which rows of every batch are those of one of several processes: the rank-th of `count` parts of nearly equal size.

    >>> [Shard(rank, 3).of(8) for rank in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    """

    rank: int
    count: int

    def of(self, n: int) -> slice:
        """Return the place of this rank's rows among n; the first ranks have one more where n is no multiple."""
        size, more = divmod(n, self.count)
        start = self.rank * size + min(self.rank, more)
        return slice(start, start + size + (self.rank < more))


class Stream(Protocol):
    """Batches of rows, epoch after epoch."""

    counts: tuple[int, ...]
    """What N may be, the usual one first."""
    batch_size: int
    num_batches: int
    last: int
    """Rows in the last batch."""
    some_missing: bool
    """Whether targets are known to be missing."""
    may_miss: bool
    """Whether batches have to be looked at for missing targets."""

    @property
    def generator(self) -> torch.Generator | None:
        """The generator of the data's own order, if there is one."""

    def first(self) -> Split:
        """Return the first batch, or a batch like it, and leave every random state as it was."""

    def epoch(self, order: torch.Generator | None) -> Iterator[Batch]:
        """Yield the batches of one epoch."""

    def shards(self, order: torch.Generator, shard: Shard) -> Iterator[tuple[int, Batch | None]]:
        """Yield of every batch of one epoch the number of rows, and the shard's; None where it has none."""


def as_batch(rows: Split) -> Batch:
    """Return what a program is called with."""
    return (rows.x, rows.y) if rows.weights is None else (rows.x, rows.y, rows.weights)


def is_stream(data: Any) -> bool:
    """Whether data are read anew in every epoch."""
    return isinstance(data, (DataLoader, Dataset)) and type(data) is not TensorDataset


@final
class Rows:
    """All rows at hand; the last batch may be shorter."""

    generator: torch.Generator | None = None

    def __init__(self, rows: Split, batch_size: int) -> None:
        n = len(rows)
        self.rows = rows
        self.counts: tuple[int, ...] = (n,)
        self.some_missing = rows.y.is_floating_point() and bool(rows.y.isnan().any())
        self.may_miss = False
        self.batch_size = batch_size
        self.num_batches = -(-n // batch_size)
        self.last = n - (self.num_batches - 1) * batch_size

    def first(self) -> Split:
        """Return the first rows."""
        return self.rows.take(torch.arange(min(self.batch_size, len(self.rows))))

    def epoch(self, order: torch.Generator | None) -> Iterator[Batch]:
        """Yield every row once, in an order drawn from `order`."""
        for index in batches(len(self.rows), self.batch_size, order):
            yield as_batch(self.rows.take(index))

    def shards(self, order: torch.Generator, shard: Shard) -> Iterator[tuple[int, Batch | None]]:
        """Yield the shard's rows of the same batches."""
        for index in batches(len(self.rows), self.batch_size, order):
            own = index[shard.of(len(index))]
            yield len(index), as_batch(self.rows.take(own)) if len(own) else None


@final
class OnDisk:
    """
    Rows in mapped files, in the order that `Rows` would have; a thread of its own reads the next batch meanwhile.

    :param device: where batches go; to a GPU from pinned memory, without waiting.
    """

    generator: torch.Generator | None = None

    def __init__(
        self, rows: MappedRows, batch_size: int, dtype: torch.dtype, device: torch.device | str | None
    ) -> None:
        n = len(rows)
        self.rows, self.dtype = rows, dtype
        self.device = torch.device("cpu" if device is None else device)
        self.counts: tuple[int, ...] = (n,)
        self.batch_size = batch_size
        self.num_batches = -(-n // batch_size)
        self.last = n - (self.num_batches - 1) * batch_size
        self.some_missing, self.may_miss = False, rows.y.dtype.kind == "f"
        self.prepare: Prepare = lambda rows: rows

    def first(self) -> Split:
        """Return the first rows."""
        return self._read(torch.arange(min(self.batch_size, len(self.rows))))

    def epoch(self, order: torch.Generator | None) -> Iterator[Batch]:
        """Yield every row once, in an order drawn from `order`."""
        yield from self._batches(batches(len(self.rows), self.batch_size, order))

    def shards(self, order: torch.Generator, shard: Shard) -> Iterator[tuple[int, Batch | None]]:
        """Yield the shard's rows of the same batches; no others are read."""
        indices = batches(len(self.rows), self.batch_size, order)
        own = [index[shard.of(len(index))] for index in indices]
        read = self._batches([index for index in own if len(index)])
        for index, part in zip(indices, own, strict=True):
            yield len(index), next(read) if len(part) else None

    def _batches(self, indices: Sequence[Tensor]) -> Iterator[Batch]:
        with ThreadPoolExecutor(1, "reads the next batch") as reader:
            coming = reader.submit(self._read, indices[0]) if indices else None
            for index in [*indices[1:], None]:
                batch = cast("Future[Split]", coming).result()
                coming = None if index is None else reader.submit(self._read, index)
                yield as_batch(self.prepare(batch))

    def _read(self, index: Tensor) -> Split:
        split = as_split(self.rows.take(index), missing=True, name="a batch")
        x = split.x.to(self.dtype) if split.x.is_floating_point() else split.x
        split = replace(split, x=x, y=split.y.to(self.dtype) if split.y.is_floating_point() else split.y)
        return split if self.device.type == "cpu" else sent(split, self.device)


def sent(split: Split, device: torch.device | str) -> Split:
    """Return rows on another device; to a GPU from pinned memory, without waiting for it."""
    pinned = torch.device(device).type == "cuda"

    def move(part: Tensor) -> Tensor:
        return (part.pin_memory() if pinned else part).to(device, non_blocking=pinned)

    weights = None if split.weights is None else move(split.weights)
    return replace(split, x=map_inputs(move, split.x), y=move(split.y), weights=weights)


@final
class Loaded:
    """
    A DataLoader, or a Dataset through one.

    :param data: the loader or data set.
    :param batch_size: rows per batch, for a data set.
    :param num_data: N, where the loader does not say how many rows it has.
    :param dtype: the floating dtype that NumPy arrays in its batches take up.
    :param device: where batches go.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int | None,
        num_data: int | None,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        self.loader: DataLoader[Any] | None = data if isinstance(data, DataLoader) else None
        self.data: Any = data.dataset if isinstance(data, DataLoader) else data
        self.dtype, self.device = dtype, device
        self.some_missing, self.may_miss = False, True
        self.prepare: Prepare = lambda rows: rows
        if self.loader is not None and batch_size is not None:
            raise ValueError(
                f"batch_size={batch_size} was given beside a DataLoader, which makes its own batches: leave it out, or "
                "set it in the DataLoader"
            )
        if num_data is not None and (isinstance(num_data, bool) or not isinstance(num_data, int) or num_data < 1):
            raise ValueError(f"num_data={num_data!r} is not a number of rows: pass an integer of at least 1")
        if self.loader is None and isinstance(data, IterableDataset):
            self.loader = DataLoader(data, batch_size=batch_size or 100)
        self.announced = num_data
        self.exact = False  # whether an epoch has to give as many rows as were announced
        self.per_epoch, total = self._count(batch_size)
        if self.per_epoch is not None and self.per_epoch < 1:
            raise ValueError("an epoch of the data has no rows: give at least one, or leave drop_last out")
        self.counts = tuple(dict.fromkeys(n for n in (num_data, total, self.per_epoch) if n is not None))
        if num_data is not None:
            self.counts = (num_data,)
        if not self.counts:
            raise ValueError(
                "nothing says how many rows an epoch of these data has (an IterableDataset without a length, a "
                "batch_sampler, or batch_size=None): pass num_data=, which the program's plate 'data' has to be as "
                "large as"
            )
        self._count_batches()

    def _count(self, batch_size: int | None) -> tuple[int | None, int | None]:
        """Return the rows per epoch and the rows that are drawn from, where they can be known."""
        loader = self.loader
        if loader is None:
            n = _length(self.data)
            if n is None:
                raise TypeError(
                    f"{type(self.data).__name__} has no length: give it __len__, or pass a DataLoader of it"
                )
            self.batch_size = min(100, n) if batch_size is None else batch_size
            self.drop_last = False
            return n, n
        sampler = loader.batch_sampler
        iterable = isinstance(loader.dataset, IterableDataset)
        if iterable and loader.batch_size is not None:
            n, self.batch_size, self.drop_last = _length(loader.dataset), loader.batch_size, loader.drop_last
        elif not iterable and type(sampler) is BatchSampler:
            n, self.batch_size, self.drop_last = _length(sampler.sampler), sampler.batch_size, sampler.drop_last
        else:  # batches of whatever size
            self.batch_size, self.drop_last, self.exact = 0, False, True
            return self.announced, self.announced
        self.exact = iterable
        n = self.announced if n is None else n
        if n is None:
            return None, None
        seen = n - n % self.batch_size if self.drop_last else n
        fixed = iterable or isinstance(loader.sampler, SequentialSampler)
        return seen, seen if fixed else n

    def _count_batches(self) -> None:
        n = self.per_epoch
        if self.batch_size and n is not None:
            self.num_batches = -(-n // self.batch_size)
            self.last = n - (self.num_batches - 1) * self.batch_size
            return
        known = _length(self.loader)
        if known is None:
            raise ValueError(
                "nothing says how many batches an epoch of these data has: give the data set or its batch_sampler "
                "__len__, or let the DataLoader make batches of a batch_size"
            )
        self.num_batches = known
        self.batch_size = number_of_rows(self.first().x)
        self.last = self.batch_size

    @property
    def generator(self) -> torch.Generator | None:
        """The generator of the loader's own, which a resumption has to put back."""
        if self.loader is None:
            return None
        known = (self.loader.generator, getattr(self.loader.sampler, "generator", None))
        return next((generator for generator in known if isinstance(generator, torch.Generator)), None)

    def first(self) -> Split:
        """Return a batch as the first epoch could give it; random states are put back."""
        with torch.random.fork_rng(), _kept(self.generator):
            for raw in self._loader(torch.Generator()):
                return self._rows(raw)
        raise ValueError("an epoch of the data has no batch: give at least one row, or leave drop_last out")

    def epoch(self, order: torch.Generator | None) -> Iterator[Batch]:
        """Yield the loader's batches; refuse an epoch of another length than N says."""
        rows = number = 0
        for raw in self._loader(order):
            batch = self._rows(raw)
            rows, number = rows + len(batch), number + 1
            if number > self.num_batches or (self.exact and rows > (self.per_epoch or 0)):
                raise self._otherwise(f"gives more than {number - 1} batches with {rows - len(batch)} rows")
            yield as_batch(self.prepare(batch))
        if number < self.num_batches or (self.exact and rows != self.per_epoch):
            raise self._otherwise(f"gave {number} batches with {rows} rows")

    def shards(self, order: torch.Generator, shard: Shard) -> Iterator[tuple[int, Batch | None]]:
        """
        Yield the shard's rows of every batch. Of a Dataset no others are read; a loader's batches are read and cut.

        A loader's order is drawn from a state of `order`, so that it is that of every rank.
        """
        if self.loader is None:
            indices = [index.tolist() for index in batches(_length(self.data) or 0, self.batch_size, order)]
            own = [index[shard.of(len(index))] for index in indices]
            loader = DataLoader(self.data, batch_sampler=[i for i in own if i], generator=torch.Generator())
            read = iter(loader)
            for index, part in zip(indices, own, strict=True):
                yield len(index), as_batch(self.prepare(self._rows(next(read)))) if part else None
            return
        before = torch.get_rng_state()
        torch.manual_seed(int(torch.randint(2**62, (), generator=order)))
        walk = self.epoch(order)
        batch = next(walk, None)  # which draws the order
        torch.set_rng_state(before)
        while batch is not None:
            rows = number_of_rows(batch[0])
            place = shard.of(rows)
            cut = tuple(map_inputs(lambda member: member[place], part) for part in batch)  # noqa: B023
            yield rows, cut if place.stop > place.start else None
            batch = next(walk, None)

    def _otherwise(self, what: str) -> ValueError:
        return ValueError(
            f"an epoch of the data {what}, where {self.num_batches} batches with {self.per_epoch} rows were announced: "
            "pass the right num_data, or correct the data set's length"
        )

    def _rows(self, raw: Any) -> Split:
        split = as_split(tuple(batch_parts(raw)), dtype=self.dtype, missing=True, name="a batch")
        return split if self.device is None else sent(split, self.device)

    def _loader(self, order: torch.Generator | None) -> Any:
        if self.loader is not None:
            return self.loader
        indices = [index.tolist() for index in batches(_length(self.data) or 0, self.batch_size, order)]
        return DataLoader(
            self.data, batch_sampler=indices, generator=torch.Generator()
        )  # the global state is the fit's


def _length(data: Any) -> int | None:
    """Return the length of data that have a length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


@contextmanager
def _kept(generator: torch.Generator | None) -> Iterator[None]:
    """Put a generator back to where it was."""
    state = None if generator is None else generator.get_state()
    try:
        yield
    finally:
        if generator is not None and state is not None:
            generator.set_state(state)
