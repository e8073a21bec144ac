"""Signals that stop a training: all alike, put off while something is written, and told apart afterwards."""

import signal

import pytest

from pyro_bnn.common.interrupts import hold_interrupts, stopping_signals


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_other_signals_do_what_ctrl_c_does(name: str) -> None:
    number = getattr(signal, name)

    def write() -> None:
        with hold_interrupts():
            signal.raise_signal(number)
            done.append("written")
        done.append("after")

    done: list[str] = []
    usual = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup, where SIGHUP is ignored
    try:
        with stopping_signals() as came:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            with pytest.raises(KeyboardInterrupt):
                write()
        assert came == [number, number]
        assert done == ["written"]
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, usual)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals")
def test_what_is_ignored_stays_ignored() -> None:
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_signals() as came:
            signal.raise_signal(signal.SIGHUP)
        assert came == []
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_they_are_held_where_ctrl_c_is_ignored() -> None:
    """As in the background of a shell's script."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    done = []

    def write() -> None:
        with stopping_signals(), hold_interrupts():
            signal.raise_signal(signal.SIGTERM)
            done.append("written")

    try:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert done == ["written"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, usual)
