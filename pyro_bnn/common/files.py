"""
Files that are replaced in one step, so that a reader finds the old one or the new one.

What is written is first a new file beside (never a link that lies there), then on the disk, then in its place; a link
in its place is replaced and not followed. The folder is synchronised after the renaming, so that a power cut does not
take it back. A killed process leaves a file `.tmp-...`, which `sweep` removes.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "atomic_write",
    "cache_folder",
    "insert_between",
    "is_leftover",
    "make_folder",
    "sweep",
    "sync_folder",
    "write_text",
]

_LEFTOVER = re.compile(r"\.(tmp-.+|.+\.tmp|next|posterior\.partial\.nc)")
"""What killed writers leave, those of earlier versions included."""


def cache_folder() -> Path:
    """Return where the library keeps what it fetched: `pyro_bnn` in XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyro_bnn"


def sync_folder(folder: Path) -> None:
    """Let the names in a folder be on the disk; where folders cannot be opened (Windows), do nothing."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, as far as they are missing."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not folder.is_dir():  # another process may have made it meanwhile
            raise
    sync_folder(folder.parent)


@contextmanager
def atomic_write(path: Path, *, sync: bool = True, make: bool = True) -> Iterator[BinaryIO]:
    """
    Open a file that takes the place of `path` once it is whole; a failure leaves `path` as it was.

    :param sync: wait until it is on the disk; False is for what is written anew after a power cut.
    :param make: make its folder; False is for one that was there, so that its loss is noticed.
    """
    if make:
        make_folder(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-", suffix=f"-{path.name}")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_text(path: Path, text: str, *, sync: bool = True, make: bool = True) -> None:
    """Write a file of text, whole or not at all; the options are those of `atomic_write`."""
    with atomic_write(path, sync=sync, make=make) as file:
        file.write(text.encode())


def is_leftover(name: str) -> bool:
    """Whether a file or folder of this name is what a killed writer left."""
    return _LEFTOVER.fullmatch(name) is not None


def sweep(folder: Path) -> None:
    """Remove what killed writers left in a folder; links are removed and not followed."""
    for path in folder.iterdir():
        if is_leftover(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def insert_between(text: str, name: str, content: str) -> str:
    """Return text with `content` between its lines `<!-- name:start -->` and `<!-- name:end -->`."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    before, opened, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"there is no place for {name}: add the lines {start} and {end}")
    return f"{before}{start}\n{content}\n{end}{after}"
