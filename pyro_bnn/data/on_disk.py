"""
Rows that stay in their files: arrays in .npy files, or uncompressed in an .npz, mapped into memory and read by batches.

`fit` walks through them in the order that it has for rows in memory, with the same results; of the file only the rows
of a batch, and of the next one, are ever in memory, however large it is. What the system keeps of the file in its cache
is its own affair, and is given back when memory runs short.

    a folder      x.npy, y.npy and, optionally, weights.npy
    an .npz       arrays x, y (or x_train, y_train) and, optionally, weights (weights_train), written by numpy.savez

`load_data(..., on_disk=True)` and recipes take a folder or an .npz with the arrays of a whole data set, test rows and
all, by the names that a data set's .npz has.

Integers in x stay as they are until a batch is read: 8-bit images take a quarter of the space of float32, and
`as_images()` divides each batch by 255. `standardised()` fits a standardiser in two passes over the files.
"""

import math
import struct
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pyro_bnn.common.errors import BadFile, border
from pyro_bnn.data.arrays import as_tensor
from pyro_bnn.data.npz import Archive, npy_header
from pyro_bnn.data.split import Split, from_parts
from pyro_bnn.data.standardise import Standardiser

__all__ = ["MappedRows", "map_npy", "mapped", "mapped_arrays"]

Array = npt.NDArray[Any]

_ROWS_AT_ONCE = 4096
_REMEDY = "write it with numpy.save, or numpy.savez (which does not compress)"


def map_npy(path: str | Path) -> Array:
    """
    Return the array of an .npy file, mapped into memory and read-only.

    >>> import numpy, tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "x.npy"
    >>> numpy.save(file, numpy.arange(6.0).reshape(3, 2))
    >>> map_npy(file)[1].tolist()
    [2.0, 3.0]
    """
    path = Path(path)
    with path.open("rb") as file:
        return _mapped(path, file, 0, path.stat().st_size)


def _mapped(path: Path, file: Any, start: int, size: int) -> Array:
    """Return the .npy array that begins at `start` of an open file and has so many bytes with its header."""
    what = f"{path} cannot be mapped"
    file.seek(start)
    with border(what, _REMEDY):
        dtype, shape, fortran = npy_header(file, what, _REMEDY)
    offset, needed = file.tell(), math.prod(shape) * dtype.itemsize
    if offset - start + needed != size:
        raise BadFile(f"{what}: its header is for {needed:,} bytes and it holds {size - (offset - start):,}: {_REMEDY}")
    if not needed:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _stored(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz that are stored as they are, mapped."""
    with Archive(path, _REMEDY) as archive:
        members = dict(archive.members)
    found: dict[str, Array] = {}
    with path.open("rb") as file:
        for name, info in members.items():
            if info.compress_type != zipfile.ZIP_STORED:
                raise BadFile(f"{path}: {name!r:.80} is compressed, and such bytes cannot be mapped: {_REMEDY}")
            file.seek(info.header_offset + 26)  # of the local header, whose extra field may be another
            lengths = struct.unpack("<HH", file.read(4))
            found[name] = _mapped(path, file, info.header_offset + 30 + sum(lengths), info.file_size)
    return found


def mapped(path: str | Path) -> "MappedRows":
    """
    Map the rows of a folder of .npy files, or of an uncompressed .npz.

    :param path: the folder, which holds x.npy, y.npy and perhaps weights.npy, or the file with arrays of these names.

    >>> import numpy, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> numpy.save(folder / "x.npy", numpy.random.default_rng(0).normal(3, 2, (500, 4)).astype("float32"))
    >>> numpy.save(folder / "y.npy", numpy.arange(500) % 2)
    >>> rows = mapped(folder).standardised()
    >>> len(rows), rows.standardiser.mean.shape, rows[7:9].x.shape
    (500, torch.Size([4]), torch.Size([2, 4]))
    """
    path = Path(path).expanduser()
    if path.is_dir():
        arrays = {name: map_npy(path / f"{name}.npy") for name in _named(path)}
    elif path.is_file():
        arrays = {name.removesuffix("_train"): array for name, array in _stored(path).items() if not _is_test(name)}
    else:
        raise FileNotFoundError(f"there is no {path}: give a folder with x.npy and y.npy, or an .npz")
    if not {"x", "y"} <= set(arrays):
        raise ValueError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: it needs x and y, a row of each per row"
        )
    return MappedRows(arrays["x"], arrays["y"], arrays.get("weights"))


def mapped_arrays(path: Path, names: Collection[str]) -> dict[str, Array]:
    """Return those of the named arrays that a folder of .npy files, or an uncompressed .npz, has; mapped."""
    if path.is_dir():
        return {name: map_npy(file) for name in names if (file := path / f"{name}.npy").is_file()}
    if path.is_file():
        return {name: array for name, array in _stored(path).items() if name in names}
    raise FileNotFoundError(f"there is no {path}: give a folder of .npy files, or an .npz")


def _named(folder: Path) -> list[str]:
    return [name for name in ("x", "y", "weights") if (folder / f"{name}.npy").is_file()]


def _is_test(name: str) -> bool:
    return name.endswith("_test") or name not in ("x", "y", "weights", "x_train", "y_train", "weights_train")


@final
@dataclass(frozen=True, eq=False)
class MappedRows(Dataset[tuple[Tensor, Tensor]]):
    """
    Rows in files, as arrays that are mapped (or any others).

    :param x: inputs (N, ...).
    :param y: labels or targets (N, ...).
    :param weights: how often each row counts, (N,); default once.
    :param prepare: what is done to the inputs (B, ...) of a batch once they are read, in order.
    :param standardiser: the one among `prepare`, if there is one.
    :param places: which of a longer x these N rows are, (N,), ascending; default all.
    :param y_standardiser: what y is on the scale of already, if anything.

    `rows[2:5]` and `rows.take(indices)` read a Split. For a DataLoader it is a Dataset.
    """

    x: Array
    y: Array
    weights: Array | None = None
    prepare: tuple[Callable[[Tensor], Tensor], ...] = ()
    standardiser: Standardiser | None = None
    places: Array | None = None
    y_standardiser: Standardiser | None = None

    def __post_init__(self) -> None:
        parts = {"x": self.x, "y": self.y, **({} if self.weights is None else {"weights": self.weights})}
        n = len(self)
        for name, array in parts.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.ndim == 0:
                raise TypeError(f"{name} is no array of numbers with a row per row of the data: map one with map_npy")
            if len(array) != n and (name != "x" or self.places is None):
                raise ValueError(f"x has {n} rows and {name} has {len(array)}: give one for each")
        if not n:
            raise ValueError("the data have no rows; give at least one")

    def __len__(self) -> int:
        return len(self.x) if self.places is None else len(self.places)

    def take(self, indices: Tensor) -> Split:
        """Read the rows at `indices` (B,), in that order."""
        order = indices.argsort()  # as they lie in the file
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        read = self._read(indices[order].numpy())
        return read.take(back) if len(indices) > 1 else read

    def _read(self, place: Any) -> Split:
        beside = [self.y, *([] if self.weights is None else [self.weights])]
        there = place if self.places is None else self.places[place]
        split = from_parts([_tensor(self.x, there), *(_tensor(array, place) for array in beside)])
        x = split.x
        for change in self.prepare:
            x = change(x)
        return replace(split, x=x, y=split.y if self.y_standardiser is None else self.y_standardiser.mark(split.y))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._read(place)
        row = self._read(slice(place, place + 1) if place != -1 else slice(-1, None))
        return (row.x[0], row.y[0]) if row.weights is None else (row.x[0], row.y[0], row.weights[0])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read the rows of a batch at once, as a DataLoader asks for them."""
        split = self.take(torch.as_tensor(indices))
        parts = (split.x, split.y) if split.weights is None else (split.x, split.y, split.weights)
        return list(zip(*parts, strict=True))

    def pieces(self, rows: int = _ROWS_AT_ONCE) -> Iterator[Split]:
        """Read all rows in order, so many at once."""
        for start in range(0, len(self), rows):
            yield self._read(slice(start, start + rows))

    def prepared(self, change: Callable[[Tensor], Tensor]) -> "MappedRows":
        """
        Return the same rows, whose inputs are changed as well when they are read.

        :param change: inputs (B, ...) in, inputs out.
        """
        return replace(self, prepare=(*self.prepare, change))

    def as_images(self) -> "MappedRows":
        """Return the same rows of 8-bit images as float32 in [0, 1]."""
        if self.x.dtype != np.uint8:
            raise TypeError(f"x holds {self.x.dtype}: as_images() is for images in uint8")
        return self.prepared(unit_images)

    def standardised(self, standardiser: Standardiser | None = None) -> "MappedRows":
        """
        Return the same rows with standardised inputs.

        :param standardiser: default that of these rows, fitted in two passes over them.
        """
        if standardiser is None:
            standardiser = Standardiser.fit_pieces(lambda: (piece.x for piece in self.pieces()))
        return replace(self.prepared(standardiser.apply), standardiser=standardiser)


def _tensor(array: Array, place: Any) -> Tensor:
    """Return some rows of an array as a tensor of its own."""
    rows = np.array(array[place]) if isinstance(place, slice) else np.asarray(array[place])  # a list of rows is a copy
    plain = rows.dtype.isnative and (rows.dtype.kind != "u" or rows.dtype.itemsize == 1) and rows.dtype.itemsize <= 8
    return torch.from_numpy(np.ascontiguousarray(rows)) if plain else as_tensor(rows, "the rows")


def unit_images(x: Tensor) -> Tensor:
    """Return images in uint8 as float32 in [0, 1]."""
    return x.float().div_(255)
