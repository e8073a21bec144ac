"""
A folder's files with their sizes and SHA-256, in `manifest.json`, so that damage is noticed and files belong together.

Several files are replaced at once like this: they are written into `.next` inside the folder, then their manifest is,
last; from then on the new ones count. They are moved into the folder, the manifest last again, and `.next` is gone.
A reader who finds a manifest in `.next` reads from there what is not moved yet; a writer first finishes the moving.
So a process may be killed anywhere: the folder holds all of the old files or all of the new ones.
"""

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyro_bnn.common.errors import BadFile
from pyro_bnn.common.files import sync_folder, write_text
from pyro_bnn.common.reading import parse_json, read_bytes

__all__ = [
    "MANIFEST",
    "NEXT",
    "Damaged",
    "check_listed",
    "damaged",
    "is_sealed",
    "listed",
    "manifest_of",
    "parse_manifest",
    "read_listed",
    "remove",
    "seal",
    "sealed",
    "settle",
    "staged",
]

MANIFEST = "manifest.json"
FORMAT = 1
NEXT = ".next"


class Damaged(BadFile):
    """A file is not what its folder's manifest says."""


# -- writing -----------------------------------------------------------------------------------------------------------


@contextmanager
def sealed(folder: Path, others: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """
    Yield a new folder to write files into, in the place of one that is there; it gets its manifest, and so counts, at
    the end of the block.

    :param others: further entries for the manifest.
    """
    remove(folder)
    os.mkdir(folder)
    try:
        yield folder
        _write_manifest(folder, {**(others or {}), **_entries(folder, os.listdir(folder), sync=True)})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def staged(folder: Path, *, unlisted: Collection[str] = ()) -> Iterator[Path]:
    """
    Yield a folder to write files into; at the end of the block all of them are moved to `folder`, or none.

    :param unlisted: files that are in `folder` already and are to be in its manifest no longer.
    """
    settle(folder)
    others = {name: entry for name, entry in _there(folder).items() if name not in unlisted}
    with sealed(folder / NEXT, others) as stage:
        yield stage
    if not is_sealed(folder / NEXT):  # somebody removed the folder
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / NEXT))
    settle(folder)


def remove(folder: Path) -> None:
    """Remove a folder with a manifest; from the first moment on it counts no more. A link is removed, not followed."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)


def settle(folder: Path) -> None:
    """Finish what a killed writer had begun: move its files if they are whole, else remove them."""
    stage = folder / NEXT
    if stage.is_dir() and not stage.is_symlink() and is_sealed(stage):
        for name in sorted(os.listdir(stage), key=lambda name: name == MANIFEST):  # the manifest last
            if name == MANIFEST:
                sync_folder(folder)
            os.replace(stage / name, folder / name)
        sync_folder(folder)
    remove(stage)


def seal(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write the manifest of files that are in a folder; default of all but hidden ones."""
    if names is None:
        names = (path.name for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    _write_manifest(folder, _entries(folder, set(names) - {MANIFEST}))


def _write_manifest(folder: Path, entries: Mapping[str, Any]) -> None:
    listed = {name: entries[name] for name in sorted(entries)}
    write_text(folder / MANIFEST, json.dumps({"format": FORMAT, "files": listed}, indent=1) + "\n", make=False)


def _entries(folder: Path, names: Iterable[str], *, sync: bool = False) -> dict[str, Any]:
    entries = {}
    for name in names:
        with (folder / name).open("r+b" if sync else "rb") as file:
            entries[name] = _entry(file.read())
            if sync:
                os.fsync(file.fileno())
    return entries


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _there(folder: Path) -> dict[str, Any]:
    """Return the entries of the files that are still there; none, if the manifest cannot be read."""
    try:
        entries = _parsed(folder, _text(folder))
    except Damaged:
        entries = None
    return {name: entry for name, entry in (entries or {}).items() if (folder / name).is_file()}


# -- files that are not in a folder yet --------------------------------------------------------------------------------


def manifest_of(contents: Mapping[str, bytes]) -> bytes:
    """Return the manifest of files that are in memory; the same contents give the same bytes."""
    listed = {name: _entry(contents[name]) for name in sorted(contents) if name != MANIFEST}
    return (json.dumps({"format": FORMAT, "files": listed}, indent=1) + "\n").encode()


def check_listed(contents: Mapping[str, bytes], where: str) -> None:
    """Refuse files in memory that are not, all of them and no other, what the manifest among them says."""
    if MANIFEST not in contents:
        raise Damaged(f"{where} has no {MANIFEST}, so that nobody can say whether it is whole: make it again")
    entries = parse_manifest(contents[MANIFEST], f"{where}: {MANIFEST}")
    there = set(contents) - {MANIFEST}
    if there != set(entries):
        missing, extra = sorted(set(entries) - there), sorted(there - set(entries))
        raise Damaged(f"{where} is damaged: of what {MANIFEST} lists {missing} are missing, and {extra} are not in it")
    for name in sorted(there):
        if _entry(contents[name]) != {key: entries[name][key] for key in ("bytes", "sha256")}:
            raise Damaged(f"{where} is damaged: {name} is not what {MANIFEST} says; take it from where it came from")


# -- reading -----------------------------------------------------------------------------------------------------------


def is_sealed(folder: Path) -> bool:
    """Whether a folder has a manifest, so that whoever wrote it came to the end."""
    return (folder / MANIFEST).is_file() or (folder / NEXT / MANIFEST).is_file()


def read_listed(folder: Path, names: Collection[str], remedy: str = "") -> dict[str, bytes]:
    """
    Return the contents of files of a folder, which belong together and are as they were written.

    :param remedy: what to do about a damaged file, for the message.
    """
    text = _text(folder)
    entries = _parsed(folder, text)
    if entries is None:
        warnings.warn(
            f"{folder} has no {MANIFEST}, as earlier versions wrote none: it is read unchecked, which the next version "
            f"refuses; load and save it once (Posterior.save)",
            FutureWarning,
            stacklevel=3,
        )
        return {name: read_bytes(folder / name) for name in names}
    contents, wrong = {}, ""
    for name in names:
        content = _content(folder, name, entries.get(name))
        if isinstance(content, str):
            wrong = content
            break
        contents[name] = content
    if not wrong:
        return contents
    if _text(folder) != text:  # replaced meanwhile
        return read_listed(folder, names, remedy)
    raise Damaged(f"{wrong}; {remedy or 'take it from where it came from, or make it again'}")


def damaged(folder: Path) -> list[str]:
    """Return the names of the listed files that are not as they were written; nothing is listed without a manifest."""
    try:
        entries = _parsed(folder, _text(folder)) or {}
    except Damaged:
        return [MANIFEST]
    return [name for name, entry in entries.items() if isinstance(_content(folder, name, entry), str)]


def listed(folder: Path) -> set[str]:
    """Return the names of the files that a folder's manifest lists; none without one."""
    return set(_parsed(folder, _text(folder)) or {})


def _text(folder: Path) -> bytes | None:
    """Return the manifest that counts."""
    for path in (folder / NEXT / MANIFEST, folder / MANIFEST):
        with suppress(FileNotFoundError, NotADirectoryError):
            return read_bytes(path, "json_bytes")
    return None


def _parsed(folder: Path, text: bytes | None) -> dict[str, Any] | None:
    return None if text is None else parse_manifest(text, str(folder / MANIFEST))


def parse_manifest(text: bytes, where: str) -> dict[str, Any]:
    """Return the entries of a manifest, `bytes` and `sha256` by name; one that cannot be read is damaged."""
    try:
        held = parse_json(text, where, dict)
        entries: dict[str, Any] = held["files"]
        known = held["format"] == FORMAT
        sound = all(isinstance(e["bytes"], int) and isinstance(e["sha256"], str) for e in entries.values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        known, sound, entries = True, False, {}
    if not known:
        raise ValueError(f"{where} has format {held['format']!r}; this version reads format {FORMAT}")
    if not sound:
        raise Damaged(f"{where} is damaged; take it from where it came from, or make the folder again")
    return entries


def _content(folder: Path, name: str, entry: Mapping[str, Any] | None) -> bytes | str:
    """Return what a file holds, or what is wrong with it."""
    if entry is None:
        return f"{folder / name} is not listed in {MANIFEST}"
    if Path(name).name != name or name in ("", ".", ".."):
        return f"{MANIFEST} of {folder} lists {name!r}, which is no name of a file"
    for path in (folder / NEXT / name, folder / name):
        if path.parent.name == NEXT and not is_sealed(path.parent):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            if not path.is_file():
                continue
            if path.stat().st_size != entry["bytes"]:
                return f"{path} is damaged: it has {path.stat().st_size} bytes, and had {entry['bytes']}"
            content = read_bytes(path)
            if _entry(content) != {key: entry[key] for key in ("bytes", "sha256")}:
                return f"{path} is damaged: its SHA-256 is not the one in {MANIFEST}"
            return content
    return f"{folder / name} is missing, and {MANIFEST} lists it"
