"""Files that are replaced in one step, so that a reader finds the old one or the new one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_write", "write_text"]


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once it is whole; a failure leaves `path` as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file of text, whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode())
