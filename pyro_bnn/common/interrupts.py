"""Ctrl-C, and the signals that are to do the same: put off while something is written, and told apart afterwards."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import final

__all__ = ["hold_interrupts", "stopping_signals"]

Handler = Callable[[int, FrameType | None], None]


@final
class _Held:
    """What takes interrupts at present, if they are put off."""

    handler: Handler | None = None


@contextmanager
def hold_interrupts(*, insist: bool = False) -> Iterator[None]:
    """
    Let a Ctrl-C within the block take effect at its end, and with `insist` a second one at once.

    Likewise the signals of `stopping_signals`. Only the main thread receives interrupts, and only Python's own handling
    of them is put off.
    """
    if threading.current_thread() is not threading.main_thread() or _Held.handler is not None:
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if insist and len(held) > 1:
            held.clear()
            signal.default_int_handler(number, frame)

    usual = signal.getsignal(signal.SIGINT)
    own = usual is signal.default_int_handler
    try:
        _Held.handler = hold
        if own:
            signal.signal(signal.SIGINT, hold)
        yield
    finally:
        _Held.handler = None
        if own:
            try:
                signal.signal(signal.SIGINT, usual)
            finally:
                signal.signal(signal.SIGINT, usual)
    if held:
        signal.default_int_handler(*held[-1])


@contextmanager
def stopping_signals() -> Iterator[list[int]]:
    """
    Let SIGTERM and SIGHUP do within the block what a Ctrl-C does; yield the list of those that came.

    What is ignored stays ignored, as SIGHUP under nohup.
    """
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        (_Held.handler or signal.default_int_handler)(number, frame)

    wanted = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    main = threading.current_thread() is threading.main_thread()
    taken = [number for number in wanted if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield came
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
