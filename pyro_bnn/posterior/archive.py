"""
A posterior as one file: a zip archive of the files that travel, with their manifest.

What travels is in `NAMES`: the posterior itself, and if it is there the recipe, the results, the history and the card.
An archive is written without times, without compression and in the order of the names, so that the same posterior gives
the same bytes, and so the same SHA-256, on every machine.

One that is read is of an unknown maker (docs/trust.md): it holds names of that list and no others, each once, so that
nothing can lie outside of the folder it is unpacked into; what its members declare is compared with the limits before
anything is inflated, no more than that is inflated, and every file has to be what the manifest says. It is unpacked
into the user's cache, in a folder named after the SHA-256 of the archive.
"""

import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from pyro_bnn.common.errors import BadFile, border
from pyro_bnn.common.files import cache_folder, make_folder
from pyro_bnn.common.limits import check_limit, in_words
from pyro_bnn.common.manifest import MANIFEST, check_listed, damaged, is_sealed, listed, manifest_of, read_listed
from pyro_bnn.common.reading import read_bytes

__all__ = [
    "CARD",
    "NAMES",
    "NEEDED",
    "files_of",
    "is_kept",
    "keep",
    "kept_folder",
    "open_archive",
    "pack",
    "sealed_contents",
    "unpack",
]

NEEDED = ("posterior.json", "posterior.safetensors")
CARD = "card.md"
NAMES = (
    *NEEDED,
    MANIFEST,
    "recipe.toml",
    "results.json",
    "changes.json",
    "metrics.jsonl",
    CARD,
    "card.json",
    "curve.svg",
)
"""The files of a run, a card or a saved posterior that travel; states, exports and reports stay where they are."""

_REMEDY = "make it with `pyro-bnn export` or Posterior.save"


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that travel, each as the folder's manifest lists it."""
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} holds no posterior: {' and '.join(missing)} missing; train it to its end")
    there = [name for name in NAMES if name != MANIFEST and (folder / name).is_file()]
    if is_sealed(folder):  # the history of a training that is not at its end is not listed
        known = listed(folder)
        there = [name for name in there if name in known or name in NEEDED]
    return read_listed(folder, there)


def sealed_contents(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return files together with their manifest."""
    return {**contents, MANIFEST: manifest_of(contents)}


def pack(contents: Mapping[str, bytes]) -> bytes:
    """
    Return files and their manifest as one archive; the same files give the same bytes.

    >>> first = pack({"posterior.json": b"{}", "posterior.safetensors": b""})
    >>> first == pack({"posterior.safetensors": b"", "posterior.json": b"{}"})
    True
    >>> sorted(unpack(first, "it"))
    ['manifest.json', 'posterior.json', 'posterior.safetensors']
    """
    held = sealed_contents(contents)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(held):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, held[name])
    return buffer.getvalue()


def unpack(content: bytes, where: str) -> dict[str, bytes]:
    """Return the files of an archive, checked; `where` is said when it is refused."""
    with border(f"{where} cannot be read as an archive", _REMEDY):
        archive = zipfile.ZipFile(io.BytesIO(content))
    members = archive.infolist()
    check_limit("archive_members", len(members), f"files in {where}")
    names = [info.orig_filename for info in members]
    for info in members:
        if info.orig_filename not in NAMES:
            raise BadFile(
                f"{where} holds {info.orig_filename!r:.80}, which is no file of a posterior "
                f"({', '.join(NAMES)}): {_REMEDY}"
            )
        if names.count(info.orig_filename) > 1:
            raise BadFile(f"{where} holds {info.orig_filename!r} twice: {_REMEDY}")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BadFile(
                f"{where}: {info.orig_filename!r} is encrypted or packed otherwise than by deflate: {_REMEDY}"
            )
    more = sum(info.file_size for info in members) - len(content)
    check_limit("inflated_bytes", more, f"bytes more than its own in {where}", so=f"{in_words(max(more, 0))} of memory")
    contents = {}
    for info in members:
        with border(f"{where} cannot be read ({info.orig_filename})", _REMEDY), archive.open(info) as member:
            held = member.read(info.file_size)
            if member.read(1) or len(held) != info.file_size:  # reading on reaches the end, where the CRC is compared
                raise BadFile(f"{where}: {info.orig_filename} is not as long as it declares: it is damaged, {_REMEDY}")
        contents[info.orig_filename] = held
    check_listed(contents, where)
    missing = [name for name in NEEDED if name not in contents]
    if missing:
        raise BadFile(f"{where} holds no posterior: {' and '.join(missing)} missing; {_REMEDY}")
    return contents


def kept_folder(sha256: str) -> Path:
    """Return where an archive of that SHA-256 is unpacked, whether it is there or not."""
    return cache_folder() / "posteriors" / sha256


def is_kept(sha256: str) -> bool:
    """Whether an archive of that SHA-256 was unpacked, and is whole."""
    folder = kept_folder(sha256)
    return is_sealed(folder) and not damaged(folder)


def keep(content: bytes, where: str) -> Path:
    """Unpack an archive into the cache, and return the folder; one that is there and whole stays as it is."""
    sha256 = hashlib.sha256(content).hexdigest()
    folder = kept_folder(sha256)
    if is_kept(sha256):
        return folder
    contents = unpack(content, where)
    make_folder(folder.parent)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".tmp-"))
    try:
        for name, held in contents.items():
            (beside / name).write_bytes(held)
        if folder.is_dir():
            shutil.rmtree(folder)
        try:
            os.replace(beside, folder)
        except OSError:
            if not is_kept(sha256):  # another process may have put the same there meanwhile
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def open_archive(path: Path) -> Path:
    """Return the folder that an archive of this machine is unpacked into."""
    return keep(read_bytes(path, "download_bytes"), str(path))
