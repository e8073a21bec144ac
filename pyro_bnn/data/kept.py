"""
The arrays of .npz files that were read before: a process that loads a file many times reads it once.

A file is known by its path, size, inode and time of change, so that what was written to or replaced is read again; what
changed within the last second is not kept, for it may change again before the clock of the disk ticks. The last two
files are kept, if they have at most 256 MB. The arrays are read-only: who changes numbers copies them.
"""

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["arrays_of"]

_FILES, _LARGEST, _SECOND = 2, 2**28, 10**9


def arrays_of(path: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return the arrays of a .npz by name, read-only; `read` reads them, a function of a module."""
    there = path.stat()  # before it is read: what changes in between is read again the next time
    kept = there.st_size <= _LARGEST and time.time_ns() - there.st_mtime_ns > _SECOND
    reading = _read if kept else _read.__wrapped__
    return dict(reading(os.path.abspath(path), there.st_size, there.st_ino, there.st_mtime_ns, read))


@lru_cache(_FILES)
def _read(path: str, size: int, inode: int, changed: int, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    arrays = read(Path(path))
    for array in arrays.values():
        array.flags.writeable = False
    return arrays
