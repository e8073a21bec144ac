"""
Children that train, are killed, or meet a system that fails.

They are forked from a process that has everything imported already, so that one costs what its training costs. The
calls that change the disk are counted by wrapping them in the child; nothing of this is in the package.
"""

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Ended", "at_call", "child", "fail_from", "wait"]

CALLS = ("mkdir", "replace", "fsync", "unlink", "rmdir", "chmod", "open", "ftruncate", "write", "rename")
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


def at_call(root: Path, act: Callable[[int, str], None]) -> None:
    """Call `act(number, name)` before every call that changes something below `root`, and in the middle of writing."""
    count = 0

    def concerns(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        if isinstance(arguments[0], int):
            return True  # a descriptor
        paths = [os.fspath(argument) for argument in arguments if isinstance(argument, (str, os.PathLike))]
        return any(str(root) in path for path in paths)

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            reads = name == "open" and not (len(arguments) > 1 and arguments[1] & (os.O_WRONLY | os.O_RDWR))
            if concerns(arguments, options) and not reads:
                count += 1
                act(count, name)
            return call(*arguments, **options)

        return instead

    def halves(call: Callable[[Path, Any], int]) -> Callable[[Path, Any], int]:
        def instead(path: Path, content: Any, *arguments: Any, **options: Any) -> int:
            nonlocal count
            if str(root) in str(path):
                call(path, content[: len(content) // 2], *arguments, **options)
                count += 1
                act(count, "write")
            return call(path, content, *arguments, **options)

        return instead

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    Path.write_bytes = halves(Path.write_bytes)  # type: ignore[assignment,method-assign]
    Path.write_text = halves(Path.write_text)  # type: ignore[assignment,method-assign]
    shutil._use_fd_functions = False  # so that what it removes is seen by its path


def fail_from(number: int, error: int) -> Callable[[int, str], None]:
    """Return what raises the system's error at the numbered call and at every later one that needs room."""

    def act(count: int, name: str) -> None:
        if count >= number and name not in ("unlink", "rmdir", "chmod"):
            raise OSError(error, os.strerror(error))

    return act
