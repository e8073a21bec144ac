"""
Children that train, are killed, or meet a system that fails.

They are forked from a process that has everything imported already, so that one costs what its training costs. The
calls that change the disk are counted by wrapping them in the child; nothing of this is in the package.
"""

import builtins
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Ended", "at_call", "child", "fail_from", "gone_from", "shared_out", "wait"]

CALLS = ("mkdir", "replace", "fsync", "unlink", "rmdir", "chmod", "open", "ftruncate", "write", "rename")
EVERY = 25
"""Of how many writes of data into a file of HDF5 one is a call."""

JOBS = 2
"""How many processes work at a time, on two cores."""

GONE = 137


class Ended(Exception):
    """A child did not do what it should."""


def child(work: Callable[[], Any], log: Path) -> int:
    """Fork; do the work in the child, whose words go into `log`; return its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = int(work() or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float | None = None, *, limit: float = 300.0) -> int:
    """
    Return the exit code of a child.

    :param seconds: when to kill it; its code is 137 then.
    :param limit: when it hangs.
    """
    began = time.monotonic()
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return GONE if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        passed = time.monotonic() - began
        if passed > limit:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise Ended(f"a child was still running after {limit:g} s")
        if seconds is not None and passed > seconds:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return GONE
        time.sleep(0.001)


def shared_out(cases: Sequence[Any], work: Callable[[Any, dict[str, Any]], None], log: Path) -> dict[str, Any]:
    """Do the work of the cases in several children; return the sums of the figures that they put into their tables."""

    def some(i: int) -> int:
        figures: dict[str, Any] = {"words": []}
        for case in cases[i::JOBS]:
            work(case, figures)
        log.with_name(f"{log.name}.{i}").write_text(json.dumps(figures))
        return 0

    total: dict[str, Any] = {"words": []}
    pids = [child(functools.partial(some, i), log) for i in range(JOBS)]
    codes = [wait(pid, limit=20_000) for pid in pids]
    for i, code in enumerate(codes):
        if code:
            raise Ended(f"exit code {code}: {log.read_text()[-300:]}")
        for key, value in json.loads(log.with_name(f"{log.name}.{i}").read_text()).items():
            total[key] = total[key] + value if key in total else value
    return total


def at_call(root: Path, act: Callable[[int, str], None]) -> None:
    """
    Call `act(number, name)` before every call that changes something below `root`, and in the middle of every write.

    What Python writes is written through a file whose every write is seen here, half of it before `act`; HDF5 writes by
    itself, and there `act` comes before some of the writes of data.
    """
    count = written = 0

    def now(name: str) -> None:
        nonlocal count
        count += 1
        act(count, name)

    def concerns(path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        return isinstance(path, (str, os.PathLike)) and f"{os.fspath(path)}/".startswith(f"{root}/")

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **options: Any) -> Any:
            reads = name == "open" and not (len(arguments) > 1 and arguments[1] & (os.O_WRONLY | os.O_RDWR))
            if any(map(concerns, arguments)) and not reads:
                now(name)
            return call(*arguments, **options)

        return instead

    class Seen(io.FileIO):
        def write(self, content: Any) -> int:
            content = memoryview(content).cast("B")
            half = super().write(content[: len(content) // 2])
            now("write")
            return half + super().write(content[half:])

    def opened(file: Any, mode: str = "r", buffering: int = -1, *text: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+") or not concerns(file):
            return io_open(file, mode, buffering, *text, **options)
        if not isinstance(file, int):
            now("open")
        how = {key: options.pop(key) for key in ("closefd", "opener") if key in options}
        raw = Seen(file, mode.replace("b", "").replace("t", ""), **how)
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **options)

    io_open = io.open
    io.open = builtins.open = opened  # type: ignore[assignment]
    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    shutil._use_fd_functions = False  # so that what it removes is seen by its path
    hdf5 = sys.modules.get("h5py")
    if hdf5 is not None:
        put = hdf5.Dataset.__setitem__

        def put_seen(self: Any, key: Any, value: Any) -> None:
            nonlocal written
            written += 1
            if written % EVERY == 1 and concerns(self.file.filename):
                now("data")
            put(self, key, value)

        hdf5.Dataset.__setitem__ = put_seen


def fail_from(number: int, error: int, but: Collection[str] = ()) -> Callable[[int, str], None]:
    """Return what raises the system's error at the numbered call and at every later one, `but` those of these names."""

    def act(count: int, name: str) -> None:
        if count >= number and name not in but:
            raise OSError(error, os.strerror(error))

    return act


def gone_from(number: int, folder: Path) -> Callable[[int, str], None]:
    """Return what removes a folder at the numbered call, as somebody else might."""

    def act(count: int, name: str) -> None:
        if count == number:
            subprocess.run(["rm", "-rf", str(folder)], check=True)

    return act
