"""
Files that nobody vouches for: opened, and their text read, with what they are and how large they are known first.

Every file that the library reads goes through `open_file`: an ordinary file, of at most the size that its kind may
have. A folder, named pipe, socket or device is refused without being waited for. `read_json` reads text of JSON as
strictly as JSON is written here: no NaN or infinity, no key twice, no deep nesting, no number that 64 bits
cannot hold.
"""

import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from pyro_bnn.common.errors import BadFile, border, summary
from pyro_bnn.common.limits import check_limit, in_words, limits_now

__all__ = [
    "check_plain",
    "open_file",
    "parse_json",
    "parse_json_lines",
    "read_bytes",
    "read_json",
    "read_json_lines",
    "read_text",
]

T = TypeVar("T")

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _check_ordinary(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no ordinary file")
        raise BadFile(f"{path} is {kind}: give an ordinary file")


def open_file(path: str | Path, limit: str | None = None) -> BinaryIO:
    """
    Open an ordinary file for reading.

    :param limit: the limit of its size, a name of :class:`~pyro_bnn.common.limits.Limits`; None where what is in it is
        checked against its size.
    """
    path = Path(path)
    if "\0" in str(path):
        raise BadFile(f"{str(path)!r} holds a zero byte, which no file name does: give a file")
    try:
        _check_ordinary(os.stat(path).st_mode, path)
        handle = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}: give one that exists") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be opened ({error.strerror or summary(error)}): give a readable file") from error
    try:
        now = os.fstat(handle.fileno())  # of what was opened, whatever has taken its place since
        _check_ordinary(now.st_mode, path)
        if limit is not None:
            check_limit(limit, now.st_size, f"bytes of {path}", so=in_words(now.st_size))
    except BaseException:
        handle.close()
        raise
    return handle


def read_bytes(path: str | Path, limit: str | None = None) -> bytes:
    """Return what is in an ordinary file, at most what it held when it was opened."""
    with open_file(path, limit) as handle, border(f"{path} cannot be read", "give a readable file"):
        return handle.read(os.fstat(handle.fileno()).st_size)


def read_text(path: str | Path, limit: str) -> str:
    """Return the text of an ordinary file in UTF-8."""
    return _decoded(read_bytes(path, limit), str(path))


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{what} is not text in UTF-8 (byte {error.start}): give the file as it was written") from None


# -- plain data --------------------------------------------------------------------------------------------------------


def check_plain(value: Any, what: str) -> None:
    """
    Refuse values that are not plain data: tables with words as keys, lists, words, numbers of 64 bits, nothing.

    Tables and lists lie in each other at most as deep as the limit `depth`, and hold at most `items` values.
    """
    left: list[tuple[Any, int]] = [(value, 0)]
    depth, count = limits_now().depth, 0
    while left:
        one, level = left.pop()
        count += 1
        if level > depth:
            check_limit("depth", level, f"levels of tables and lists in {what}")
        if isinstance(one, Mapping):
            inner: Iterable[Any] = one.values()
            for key in one:
                if not isinstance(key, str):
                    raise BadFile(f"{what} has the key {key!r:.80}, which is no word: write keys as words")
        elif isinstance(one, (list, tuple)):
            inner = one
        else:
            _check_leaf(one, what)
            continue
        left.extend((each, level + 1) for each in inner)
        check_limit("items", count + len(left), f"values in {what}")


def _check_leaf(value: Any, what: str) -> None:
    if value is None or isinstance(value, (str, bool)):
        return
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise BadFile(f"{what} holds a whole number of more than 64 bits: give one below 2^63")
        return
    if not isinstance(value, float):
        raise BadFile(f"{what} holds a {type(value).__name__}: give words, numbers, true and false, lists and tables")


def _constant(word: str) -> Any:
    raise BadFile(f"it holds {word}, which JSON does not have")


def _double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadFile(f"it holds the number {text[:40]}, which is more than a double can hold")
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise BadFile(f"it holds the whole number {text[:40]}, of more than 64 bits")
    return int(text)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadFile(f"it has the key {twice[:80]!r} twice")
    return table


def _check_depth(value: Any) -> None:
    left, depth = [(value, 0)], limits_now().depth
    while left:
        one, level = left.pop()
        if level > depth:
            check_limit("depth", level, "levels of tables and lists in it")
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        left.extend((each, level + 1) for each in inner if isinstance(each, (dict, list)))


def parse_json(text: str | bytes, what: str, kind: type[T]) -> T:
    """Return what a text of JSON holds, which is of the type `kind`."""
    text = _decoded(text, what) if isinstance(text, bytes) else text
    try:
        value = json.loads(
            text, parse_constant=_constant, parse_float=_double, parse_int=_integer, object_pairs_hook=_table
        )
        _check_depth(value)
    except BadFile as error:
        raise BadFile(f"{what} is not as it was written: {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else summary(error)
        raise BadFile(f"{what} is not JSON ({reason}): give the file as it was written") from None
    if not isinstance(value, kind):
        raise BadFile(f"{what} holds a {type(value).__name__}, not a {kind.__name__}: give the file as it was written")
    return value


def read_json(path: str | Path, kind: type[T]) -> T:
    """Return what a file of JSON holds, which is of the type `kind`."""
    return parse_json(read_bytes(path, "json_bytes"), str(path), kind)


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """Return the tables of a file that has one on each line."""
    return parse_json_lines(read_bytes(path, "lines_bytes"), path)


def parse_json_lines(content: bytes, path: str | Path) -> list[dict[str, Any]]:
    """Return the tables of a text that has one on each line, of the file `path`."""
    check_limit("lines_bytes", len(content), f"bytes of {path}", so=in_words(len(content)))
    lines = _decoded(content, str(path)).splitlines()
    return [cast("dict[str, Any]", parse_json(line, f"line {i + 1} of {path}", dict)) for i, line in enumerate(lines)]
