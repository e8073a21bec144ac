"""
The limits of what is read from files and asked for in recipes: one table, and how to raise a limit.

    pyro-bnn --limit epochs=5000000 train ...          with pyro_bnn.limits(epochs=5_000_000): ...

A limit is there so that a mistyped number or a hostile file is answered at once, with an estimate, and does not take
the memory of the machine or the time of a year. None of them is about what is right: what is beyond a limit works once
the limit is raised.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import final

from pyro_bnn.common.errors import TooLarge

__all__ = ["Limits", "check_limit", "check_memory", "duration", "in_words", "limits", "limits_now", "parse_limits"]

KB, MB, GB = 2**10, 2**20, 2**30


@final
@dataclass(frozen=True)
class Limits:
    """
    Every limit and its default.

    :param recipe_bytes: the size of a recipe's file.
    :param json_bytes: the size of a description, a results table or a card.
    :param lines_bytes: the size of a history, a line of JSON per epoch.
    :param csv_bytes: the size of a CSV file, which takes about 25 times as much memory.
    :param depth: how deep tables and lists lie in each other.
    :param items: how many values a recipe holds, its lists and tables included.
    :param inflated_bytes: how much more than its own size a compressed file may hold, as numbers of 4 bytes and more.
    :param archive_members: how many arrays an archive holds.
    :param download_bytes: what is fetched of one posterior, by its declared and by its actual size.
    :param image_files: how many images a folder holds.
    :param epochs: passes through the data; also steps of warm-up.
    :param draws: weight samples, kept or averaged over.
    :param particles: weight samples of one training step.
    :param members: members of an ensemble, chains, cycles, snapshots.
    :param tree_depth: doublings of a trajectory of NUTS, each of which doubles the time.
    :param layers: modules of a network.
    :param size: units, channels or inputs of a layer.
    :param memory_bytes: what parameters, their optimizer and kept draws may take; 0: the memory of the machine.
    """

    recipe_bytes: int = 256 * KB
    json_bytes: int = 16 * MB
    lines_bytes: int = 256 * MB
    csv_bytes: int = 100 * MB
    depth: int = 32
    items: int = 100_000
    inflated_bytes: int = 512 * MB
    archive_members: int = 1_000
    download_bytes: int = 1 * GB
    image_files: int = 100_000
    epochs: int = 1_000_000
    draws: int = 1_000_000
    particles: int = 10_000
    members: int = 10_000
    tree_depth: int = 20
    layers: int = 2_000
    size: int = 10_000_000
    memory_bytes: int = 0


_NOW: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039  (frozen)


def limits_now() -> Limits:
    """Return the limits that are in force."""
    return _NOW.get()


@contextmanager
def limits(**raised: int) -> Iterator[Limits]:
    """
    Within the block, let these limits be other ones; see :class:`Limits` for their names.

    >>> import pyro_bnn as pb
    >>> with pb.limits(epochs=5_000_000) as now:
    ...     now.epochs, now.draws
    (5000000, 1000000)
    """
    known = [field.name for field in fields(Limits)]
    for name, value in raised.items():
        if name not in known:
            raise ValueError(f"there is no limit {name!r}; the limits are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise ValueError(f"limit {name}={value!r} is not allowed: give a whole number from 0 to 2^63 - 1")
    token = _NOW.set(replace(_NOW.get(), **raised))
    try:
        yield _NOW.get()
    finally:
        _NOW.reset(token)


def parse_limits(settings: list[str]) -> dict[str, int]:
    """Read `NAME=NUMBER` arguments."""
    raised = {}
    for setting in settings:
        name, _, number = setting.partition("=")
        if not number.isascii() or not number.replace("_", "").isdigit() or len(number) > 30:
            raise ValueError(f"--limit {setting!r} is not of the form NAME=NUMBER, e.g. --limit epochs=5000000")
        raised[name.strip()] = int(number)
    return raised


def check_limit(limit: str, value: int, what: str, *, so: str = "") -> None:
    """
    Refuse a number beyond a limit.

    :param what: what the number is, such as "epochs".
    :param so: what it would take, such as "about 30 years at a second each".
    """
    largest: int = getattr(_NOW.get(), limit)
    if value > largest:
        shown = f"{value:,}" if value < 10**21 else "more than 10^21"
        estimate = f" ({so})" if so else ""
        raise TooLarge(
            f"{what}: {shown}{estimate} is beyond the limit {limit}={largest:,}; if it is meant, raise the limit: "
            f"--limit {limit}={min(value, 2**63 - 1)} (pyro_bnn.limits({limit}=...))"
        )


def machine_memory() -> int:
    """Return the bytes of memory of this machine, 64 GB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 64 * GB


def check_memory(needed: int, what: str) -> None:
    """Refuse what takes more memory than the limit `memory_bytes`, or than the machine has."""
    allowed = _NOW.get().memory_bytes or machine_memory()
    if needed > allowed:
        raise TooLarge(
            f"{what} would take about {in_words(needed)} of memory, and {in_words(allowed)} are allowed: choose "
            f"smaller numbers, or raise the limit: --limit memory_bytes={min(needed, 2**63 - 1)} "
            "(pyro_bnn.limits(memory_bytes=...))"
        )


def duration(seconds: float) -> str:
    """Return a time in the largest fitting unit."""
    for unit, length in (("years", 31_557_600.0), ("days", 86_400.0), ("hours", 3_600.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} seconds"


def in_words(size: int) -> str:
    """Return a number of bytes in the largest fitting unit, 1 kB = 1,000 bytes."""
    amount, units = float(min(size, 10**30)), ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}" if amount < 1e6 else f"more than 10^6 {units[0]}"
