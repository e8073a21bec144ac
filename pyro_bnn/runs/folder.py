"""
The folder of a run: claimed when a run starts, kept by one process at a time, and taken up from any moment on.

A process that trains holds a lock on `.lock` in the folder, which the system drops when the process ends in whatever
way; processes that do parts of its work share that lock, so that a run is nobody else's before the last of them has
ended. What a killed one left half-written is removed by the next. `changes.json` says which learning rates the run went
on with, from when on and why; a state of before a change is of this run, and one of any other recipe is not.
"""

import errno
import hashlib
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, final

from pyro_bnn.common.files import is_leftover, make_folder, sweep
from pyro_bnn.common.manifest import MANIFEST, Damaged, damaged, is_sealed, read_listed, settle, staged
from pyro_bnn.methods.base import HISTORY
from pyro_bnn.recipe import Recipe

if sys.platform != "win32":
    import fcntl

__all__ = [
    "CHANGES",
    "RECIPE",
    "RESULTS",
    "RESUMED",
    "Busy",
    "Place",
    "change_of",
    "claim_next",
    "identity",
    "joined",
    "locked",
    "taken",
    "with_rates",
]

log = logging.getLogger(__name__)

RECIPE, RESULTS, CHANGES, LOCK = "recipe.toml", "results.json", "changes.json", ".lock"
RESUMED = "resumed"
"""Why rates were changed, if it was not a divergence."""

_OWN = {RECIPE, CHANGES, HISTORY, MANIFEST, "checkpoint", LOCK}
"""What a folder of a run that was begun may hold, even if its recipe is missing or damaged."""


class Busy(ValueError):
    """Another process works in the folder."""


def identity(recipe: Recipe) -> str:
    """Return the hash of a recipe, by which states are known to be of its run."""
    given = json.dumps(recipe.model_dump(exclude_defaults=True), sort_keys=True, default=str)
    return hashlib.sha256(given.encode()).hexdigest()


def claim_next(folder: Path, name: str) -> Path:
    """Make and return folder/NAME, or folder/NAME-2 and so on: runs that are started together get their own."""
    if name != Path(name).name or name in ("", ".", "..") or "\\" in name or "\0" in name:
        raise ValueError(
            f"the name {name!r} is a path: give the recipe a plain name, or say where to with --out (out=)"
        )
    make_folder(folder)
    count = 1
    while True:
        path = folder / (name if count == 1 else f"{name}-{count}")
        try:
            os.mkdir(path)
        except FileExistsError:
            count += 1
        else:
            return path


@final
@dataclass
class Place:
    """
    A run folder that this process has taken, or one that it may only read.

    :param recipe: of the run, resolved.
    :param changes: the learning rates that were changed, in order: `epochs` that were done, `rates` by key (before,
        after), `why`, and `was`, the hash of the recipe before.
    """

    path: Path
    recipe: Recipe
    changes: list[dict[str, Any]] = field(default_factory=list)
    lock: int | None = None

    @property
    def writable(self) -> bool:
        """Whether the folder was taken, and not only read."""
        return self.lock is not None

    def share(self) -> str:
        """Let other processes join in the work; return what they join by (:func:`joined`)."""
        assert self.lock is not None
        if sys.platform != "win32":
            fcntl.flock(self.lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.lseek(self.lock, 0, os.SEEK_SET)
        return os.read(self.lock, 200).decode()

    @property
    def runs(self) -> tuple[str, ...]:
        """The hash of the recipe, and of those before its rates were changed."""
        return (identity(self.recipe), *(change["was"] for change in self.changes))

    def change(self, recipe: Recipe, why: str) -> None:
        """Go on with a recipe of other rates."""
        record = change_of(self.recipe, recipe, why, _epochs_done(self.path))
        self.recipe, self.changes = recipe, [*self.changes, record]
        self.write()

    def write(self) -> None:
        """Write the recipe and what was changed in it; what training writes anew is listed when it is done."""
        with staged(self.path, unlisted=[HISTORY, *damaged(self.path)]) as stage:
            (stage / RECIPE).write_text(self.recipe.to_toml())
            if self.changes:
                (stage / CHANGES).write_text(json.dumps(self.changes, indent=1) + "\n")


@contextmanager
def taken(path: Path, recipe: Recipe, *, resume: bool | None) -> Iterator[Place]:
    """
    Take a run folder for a recipe: make it, lock it, tidy it up, compare its recipe; yield the place.

    :param resume: None goes on with a run of this recipe, True also with other learning rates, False with none.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: choose another folder with out= (--out)")
    make_folder(path)
    _refuse_other_things(path)
    with locked(path) as lock:
        writable = lock is not None
        if writable:
            settle(path)
            sweep(path)
        held = _held(path)
        if held is not None and resume is False:
            raise ValueError(f"{path} holds a run already: resume it (--resume) or choose another folder (--out)")
        place = Place(path, *(held or (recipe, [])), lock=lock)
        finished = (path / RESULTS).is_file()
        if writable and finished and held is None:  # nobody knows whose results they are; the states do
            (path / RESULTS).unlink()
            finished = False
        if not writable and not finished:
            raise PermissionError(errno.EACCES, "the run folder cannot be written to", str(path))
        if identity(recipe) not in place.runs:
            _check_same(place.recipe, recipe, path, bool(resume) and not finished)
            place.change(recipe, RESUMED)
        elif not finished:
            place.write()
        try:
            yield place
        except (ValueError, TypeError):
            if held is None and not (path / "checkpoint").exists():  # nothing was trained
                for name in (RECIPE, MANIFEST, LOCK):
                    (path / name).unlink(missing_ok=True)
                with suppress(OSError):
                    path.rmdir()
            raise


def change_of(old: Recipe, new: Recipe, why: str, epochs: int) -> dict[str, Any]:
    """Return the record of a change of the rates after so many epochs."""
    return {"epochs": epochs, "rates": _other_rates(old, new), "why": why, "was": identity(old)}


def _other_rates(old: Recipe, new: Recipe) -> dict[str, list[Any]]:
    """Return the learning rates in which two recipes differ, by key: the old one and the new one."""
    before, after = _rates(old), _rates(new)
    return {key: [before.get(key), after.get(key)] for key in after if before.get(key) != after.get(key)}


def with_rates(recipe: Recipe, factor: float) -> Recipe:
    """Return a recipe with all learning rates times a factor."""
    return recipe.changed({key: rate * factor for key, rate in _rates(recipe).items()})


def _rates(recipe: Recipe) -> dict[str, float]:
    tables: dict[str, Mapping[str, Any]] = {f"optim.{group}": getattr(recipe.optim, group) for group in _GROUPS}
    tables["method"] = recipe.method
    return {f"{name}.lr": table["lr"] for name, table in tables.items() if table.get("lr") is not None}


_GROUPS = ("loc", "scale", "other")


def _check_same(held: Recipe, wanted: Recipe, path: Path, other_rates_allowed: bool) -> None:
    rates = _rates(wanted)
    rates_only = set(rates) == set(_rates(held)) and held.changed(rates).model_dump() == wanted.model_dump()
    if rates_only and other_rates_allowed:
        return
    old, new = held.model_dump(), wanted.model_dump()
    changed = [f"{key}: {old[key]!r} there, {new[key]!r} now" for key in new if old[key] != new[key]]
    finished = (path / RESULTS).is_file()
    remedy = ", or go on from its last epoch at the new rates with --resume (resume=True)"
    raise ValueError(
        f"{path} holds a run of another recipe ({'; '.join(changed)}): choose another folder with out= (--out)"
        f"{remedy if rates_only and not finished else ''}"
    )


def _held(path: Path) -> tuple[Recipe, list[dict[str, Any]]] | None:
    """Return the recipe of a folder and what was changed in it; None where there is none, or it is damaged."""
    if not (path / RECIPE).is_file():
        return None
    names = [name for name in (RECIPE, CHANGES) if (path / name).is_file()]
    try:
        held = read_listed(path, names)
        changes = json.loads(held.get(CHANGES, b"[]"))
        return Recipe.from_toml(held[RECIPE].decode(), path.name, saved=True), changes
    except Damaged as error:
        log.warning("%s; taken as missing: the states of the run say whose they are", str(error).partition(";")[0])
        return None


def _epochs_done(path: Path) -> int:
    history = path / HISTORY
    return len(history.read_bytes().splitlines()) if history.is_file() else 0


def _refuse_other_things(path: Path) -> None:
    """Refuse a folder that was not made by a run, and links that lead out of it."""
    names = {entry.name for entry in path.iterdir()}
    strange = {name for name in names - _OWN if not is_leftover(name)}
    if strange and RECIPE not in names and not is_sealed(path):
        raise ValueError(f"{path} is a folder with other things in it: choose a new or empty one with out= (--out)")
    for name in ("checkpoint", LOCK):
        if (path / name).is_symlink():
            raise ValueError(f"{path / name} is a link, which is not followed: remove it")


@contextmanager
def joined(path: Path, holder: str) -> Iterator[None]:
    """
    Share the lock of a run folder while doing a part of its work.

    :param holder: what `Place.share` returned; a folder that another process has taken since is refused.
    """
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"the run folder {path} is not there on {socket.gethostname()}: choose one that all machines see with out= "
            f"(--out)"
        ) from None
    try:
        free = True
        if sys.platform != "win32":
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                free = False
        if not free or os.read(descriptor, 200).decode() != holder:
            raise RuntimeError(f"{path} was taken by another process meanwhile, which goes on with it")
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """Hold the lock of a folder, and yield its file; None where nothing can be written there."""
    lock = path / LOCK
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        yield None
        return
    try:
        if sys.platform != "win32":
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
                raise Busy(
                    f"{path} is being trained by {holder}: wait for it, or choose another folder with out= (--out)"
                ) from None
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
        yield descriptor
    finally:
        os.close(descriptor)
