"""
A crash, a full disk, a folder that turns read-only or is removed, at every call by which a run changes the disk.

The calls of a run are counted; then the run is begun anew for each of them and ends there (`os._exit`), or meets an
error of the system there and at every later call; a file that is being written is half written. An error has to be one
line and exit code 2. What is left is gone on with, to the same bits.
"""

import errno
import functools
import json
import os
import resource
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from torture.kinds import recipe_of
from torture.process import GONE, Ended, at_call, child, fail_from, gone_from, shared_out, wait
from torture.runs import check_same, fingerprint, finish, last_words, train_in

__all__ = ["crashes", "folder_gone", "full_disk", "read_only"]

KINDS = ("svi", "ensemble", "hmc", "divergence", "report")
NEEDS_NO_ROOM = ("unlink", "rmdir", "chmod")


def crashes(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """End at every call, or at the share of them."""
    figures: dict[str, Any] = {"calls": 0, "other bits": 0, "stuck": 0, "words": []}

    def crash_at(number: int) -> Callable[[int, str], None]:
        return lambda count, name: os._exit(GONE) if count == number else None

    def broken(run: Path, kind: str, number: int, log: Path) -> None:
        def work() -> int:
            at_call(run, crash_at(number))
            return train_in(run, kind)

        code = wait(child(work, log))
        if code != GONE:
            raise Ended(f"{kind}: call {number} was not reached, exit code {code}: {last_words(log)}")

    _at_each_call(folder, share, figures, broken)
    return figures


def full_disk(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Fill the disk at every call, or at the share of them; then let no file be larger than a limit."""
    figures: dict[str, Any] = {"calls": 0, "limits": 0, "other bits": 0, "stuck": 0, "words": []}

    def full(run: Path, kind: str, number: int, log: Path) -> None:
        _refused(run, kind, log, lambda: at_call(run, fail_from(number, errno.ENOSPC, NEEDS_NO_ROOM)))

    def small(run: Path, kind: str, size: int, log: Path) -> None:
        _refused(run, kind, log, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)))

    _at_each_call(folder, share, figures, full, but=NEEDS_NO_ROOM)
    for size in (2_000, 8_000, 30_000, 100_000)[: max(1, round(4 * share))]:
        place = folder / f"limit-{size}"
        place.mkdir()
        finish(place / "whole", "report", place / "log")
        spoil = functools.partial(small, kind="report", size=size, log=place / "log")
        _one(place / "run", "report", spoil, place, place / "log", figures)
        figures["limits"] += 1
    return figures


def read_only(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Let nothing in the folder be changed from a call on, as on a disk that the system has remounted."""
    figures: dict[str, Any] = {"calls": 0, "other bits": 0, "stuck": 0, "words": []}

    def locked(run: Path, kind: str, number: int, log: Path) -> None:
        _refused(run, kind, log, lambda: at_call(run, fail_from(number, errno.EROFS)))

    _at_each_call(folder, share, figures, locked, ("svi", "hmc"))
    return figures


def folder_gone(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Remove the folder at a call; the run ends, and the next one begins anew."""
    figures: dict[str, Any] = {"calls": 0, "other bits": 0, "stuck": 0, "words": []}

    def removed(run: Path, kind: str, number: int, log: Path) -> None:
        # before the first call there is no folder
        _refused(run, kind, log, lambda: at_call(run, gone_from(max(2, number), run)))
        if (run / "results.json").exists():
            raise Ended(f"{kind}: finished in a folder that was removed")

    _at_each_call(folder, share, figures, removed, ("svi", "hmc"))
    return figures


def _refused(run: Path, kind: str, log: Path, spoil: Callable[[], None]) -> None:
    """Train by the command where something fails: one line, exit code 2."""
    recipe = run.parent / f"{run.name}.toml"
    recipe.write_text(recipe_of(kind).to_toml())
    words = run.parent / f"{run.name}.log"

    def work() -> int:
        from pyro_bnn.cli import main

        spoil()
        report = "--report" if kind == "report" else "--no-report"
        return main(["train", str(recipe), "--out", str(run), report])

    code = wait(child(work, words))
    said = words.read_text()
    if code != 2 or "Traceback" in said or not said.strip().splitlines()[-1].startswith("pyro-bnn: "):
        raise Ended(f"{kind}: exit code {code}, not one line: {last_words(words)}")


def _at_each_call(
    folder: Path,
    share: float,
    figures: dict[str, Any],
    spoil: Callable[[Path, str, int, Path], None],
    kinds: Sequence[str] = KINDS,
    but: Collection[str] = (),
) -> None:
    """
    Spoil at every call; of the report at those that a run without one, which is among the kinds, does not make.

    :param but: the names of calls that are left out, for nothing happens to them.
    """
    for kind in kinds[: max(1, round(len(kinds) * min(1.0, 2 * share)))]:
        place = folder / kind
        place.mkdir(parents=True)
        finish(place / "whole", kind, place / "log")
        before = len(_calls(place / "plain", kind, place / "log", report=False)) if kind == "report" else 0
        calls = _calls(place / "counted", kind, place / "log", report=kind == "report")

        def at_one(number: int, figures: dict[str, Any]) -> None:
            log = place / f"at-{number}.words"
            _one(place / f"at-{number}", kind, functools.partial(_at, spoil, kind, number, log), place, log, figures)
            figures["calls"] = figures.get("calls", 0) + 1

        numbers = [i + 1 for i, name in enumerate(calls) if i >= before and name not in but]
        for key, value in shared_out(numbers[:: max(1, round(1 / share))], at_one, place / "work").items():
            figures[key] += value


def _at(spoil: Callable[[Path, str, int, Path], None], kind: str, number: int, log: Path, run: Path) -> None:
    spoil(run, kind, number, log)


def _one(run: Path, kind: str, spoil: Callable[[Path], None], place: Path, log: Path, figures: dict[str, Any]) -> None:
    try:
        spoil(run)
        finish(run, kind, log)
        check_same(fingerprint(run, kind), fingerprint(place / "whole", kind), kind)
        shutil.rmtree(run)
    except Ended as error:
        what = "other bits" if "another" in str(error) else "stuck"
        figures[what] = figures.get(what, 0) + 1
        figures["words"].append(f"{run.name}: {error}")


def _calls(run: Path, kind: str, log: Path, *, report: bool) -> list[str]:
    """Return the names of the calls that a run makes."""
    written = run.parent / f"{run.name}.calls"

    def work() -> int:
        calls: list[str] = []
        at_call(run, lambda count, name: calls.append(name))
        code = train_in(run, kind, report=report)
        written.write_text(json.dumps(calls))
        return code

    if wait(child(work, log)):
        raise Ended(f"{kind}: {last_words(log)}")
    names: list[str] = json.loads(written.read_text())
    return names
