"""
Arrays from .npy and .npz files that nobody vouches for.

An .npz is a zip archive of .npy files. Of every array that is asked for, the header is read first: its type (numbers,
truth values or words, never Python objects), its shape, and with them its size, which has to be the size that the
archive declares. Then so many bytes are inflated and no more. An archive that declares more than the limit beyond its
own size is refused before anything is inflated; one that holds another number of bytes than it declares is damaged.
"""

import io
import math
import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pyro_bnn.common.errors import BadFile, border
from pyro_bnn.common.limits import check_limit, check_memory, in_words
from pyro_bnn.common.reading import open_file

__all__ = ["Archive", "npy_header", "parse_npy", "read_npy"]

Array = npt.NDArray[Any]

_REMEDY = "write it with numpy.save or numpy.savez"
_KINDS = "biufcSUmM"
_PIECE = 2**20


class Archive:
    """
    An .npz file that is open: the names of its arrays, and each array as it is asked for.

    :param remedy: what is said to do about a file that is none.

    >>> from pyro_bnn.data.load import load_data
    >>> import pyro_bnn.data, pathlib
    >>> with Archive(pathlib.Path(pyro_bnn.data.__file__).with_name("and.npz")) as archive:
    ...     sorted(archive.names), archive.read("x_train").shape
    (['x_test', 'x_train', 'y_test', 'y_train'], (4, 2))
    """

    def __init__(self, path: str | Path, remedy: str = _REMEDY) -> None:
        self.path, self._remedy = Path(path), remedy
        self._file = open_file(self.path)
        try:
            self._bytes = os.fstat(self._file.fileno()).st_size
            if self._file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise BadFile(f"{self.path} is a single array, whatever its name says: {remedy}")
            self._file.seek(0)
            with border(f"{self.path} cannot be read as .npz", remedy):
                self._members = self._listed(zipfile.ZipFile(self._file))
        except BaseException:
            self._file.close()
            raise
        self._inflated = 0

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def members(self) -> dict[str, zipfile.ZipInfo]:
        """Where the arrays lie, by name."""
        return dict(self._members)

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._members)

    def _listed(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        self._archive = archive
        check_limit("archive_members", len(archive.infolist()), f"arrays in {self.path}")
        members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if "/" in name or "\\" in name or name in ("", ".", "..") or ":" in name or "\0" in info.orig_filename:
                raise BadFile(
                    f"{self.path} holds {info.filename!r:.80}, a path and no name of an array: {self._remedy}"
                )
            if name in members:
                raise BadFile(f"{self.path} holds the array {name!r:.80} twice: {self._remedy}")
            if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadFile(
                    f"{self.path}: {name!r:.80} is encrypted or packed otherwise than by deflate: {self._remedy}"
                )
            members[name] = info
        return members

    def read(self, name: str) -> Array:
        """Return the array of that name."""
        info, what = self._members[name], f"{self.path} cannot be read as .npz (array {name!r:.80})"
        with border(what, self._remedy), self._archive.open(info) as member:
            dtype, shape, fortran = npy_header(member, what, self._remedy)
            self._check_size(info, dtype, shape, member.tell(), what)
            return _filled(member, dtype, shape, fortran, what, self._remedy)

    def read_all(self, names: Collection[str]) -> dict[str, Array]:
        """Return several arrays by name."""
        return {name: self.read(name) for name in names}

    def _check_size(
        self, info: zipfile.ZipInfo, dtype: np.dtype[Any], shape: tuple[int, ...], header: int, what: str
    ) -> None:
        size, wider = math.prod(shape) * dtype.itemsize, max(1, 4 // dtype.itemsize)
        self._inflated += max(info.file_size - min(info.compress_size, self._bytes), 0) * wider
        check_limit("inflated_bytes", self._inflated, f"bytes more than its own in {self.path}", so=_so(self._inflated))
        if header + size != info.file_size:
            raise BadFile(
                f"{what} has a header for {size:,} bytes and holds {info.file_size - header:,}: it is damaged"
                f", {self._remedy}"
            )
        check_memory(size * wider, f"the array {info.filename!r:.80} of {self.path}")


def _so(size: int) -> str:
    return f"{in_words(size)} of memory"


def read_npy(path: str | Path) -> Array:
    """Return the array of an .npy file."""
    with open_file(path) as file:
        return _array(file, os.fstat(file.fileno()).st_size, str(path))


def parse_npy(content: bytes, what: str) -> Array:
    """
    Return the array of a whole .npy file that is in memory already.

    >>> import io, numpy as np
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(3))
    >>> parse_npy(file.getvalue(), "three numbers")
    array([0, 1, 2])
    """
    return _array(io.BytesIO(content), len(content), what)


def _array(file: BinaryIO, length: int, what: str) -> Array:
    with border(f"{what} cannot be read as .npy", _REMEDY):
        dtype, shape, fortran = npy_header(file, what, _REMEDY)
        size, there = math.prod(shape) * dtype.itemsize, length - file.tell()
        if size != there:
            raise BadFile(f"{what} has a header for {size:,} bytes and holds {there:,}: it is damaged, {_REMEDY}")
        check_memory(size * max(1, 4 // dtype.itemsize), f"the array in {what}")
        return _filled(file, dtype, shape, fortran, what, _REMEDY)


def npy_header(file: Any, what: str, remedy: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Return type and shape of an .npy file that is open, and whether its columns come first."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise BadFile(f"{what} has the version {version} of .npy: {remedy}")
    if dtype.hasobject or dtype.kind not in _KINDS or not dtype.itemsize:
        raise BadFile(f"{what} holds {dtype!s:.80}, not numbers, truth values or words: {remedy}")
    if any(size < 0 for size in shape) or max(shape, default=0) >= 2**62:
        raise BadFile(f"{what} has the shape {shape!s:.80}, which no array has: {remedy}")
    return dtype, tuple(shape), fortran


def _filled(file: Any, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool, what: str, remedy: str) -> Array:
    """Return the array whose bytes come next."""
    size = math.prod(shape) * dtype.itemsize
    data = bytearray()
    while len(data) < size:
        piece = file.read(min(_PIECE, size - len(data)))
        if not piece:
            raise BadFile(f"{what} ends after {len(data):,} of {size:,} bytes: it is damaged, {remedy}")
        data += piece
    if file.read(1):  # reaches the end, where the archive's own checksum is compared
        raise BadFile(f"{what} holds more than its header says: it is damaged, {remedy}")
    values: Array = np.frombuffer(data, dtype) if size else np.empty(math.prod(shape), dtype)
    if 0 in shape and max(shape) > 2**31:
        raise BadFile(f"{what} has the shape {shape!s:.80} without an entry: {remedy}")
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
