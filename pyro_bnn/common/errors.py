"""
The library's own errors, and the border at which foreign ones become them.

What is handed in and is not right is refused with a `ValueError`, `TypeError` or `FileNotFoundError` that has the
value, what is allowed and the remedy. The errors here are `ValueError`s of particular kinds: a file that is not what it
should be, and a number beyond a limit. No other error comes out of a public function because of what a file holds:
what a reader of another library raises (`zlib.error`, `struct.error`, `RecursionError`, ...) becomes a `BadFile` at
`border`, with that error as its cause.
"""

import dis
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

__all__ = ["BadFile", "Refused", "TooLarge", "border", "is_own", "summary"]

_PACKAGE = str(Path(__file__).parent.parent)
_OWN = (ValueError, TypeError, FileNotFoundError, RuntimeError)


class Refused(ValueError):
    """What was handed in is refused."""


class BadFile(Refused):
    """A file is damaged, or is not what it should be."""


class TooLarge(Refused):
    """A number is beyond a limit of :mod:`pyro_bnn.common.limits`, which can be raised."""


def _raised_here(traceback: TracebackType | None) -> bool:
    """Whether a `raise` of this library's source is where an error comes from."""
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE) and dis.opname[code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"


def is_own(error: BaseException) -> bool:
    """Whether an error is one of this library's: of a kind that it raises, and raised by a statement of its source."""
    return isinstance(error, Refused) or (isinstance(error, _OWN) and _raised_here(error.__traceback__))


def summary(error: BaseException, length: int = 160) -> str:
    """Return what an error says, in a line of at most so many characters."""
    said = " ".join(str(error)[: 4 * length].split())
    said = said if len(said) <= length else f"{said[:length]}..."
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return said if kind is ValueError and said else f"{name}: {said}".removesuffix(": ")


@contextmanager
def border(what: str, remedy: str) -> Iterator[None]:
    """
    Turn what foreign code raises within the block into a `BadFile`; the library's own errors pass.

    :param what: what does not hold then, such as "x.npz cannot be read".
    :param remedy: what to do about it.
    """
    try:
        yield
    except Exception as error:
        if is_own(error):
            raise
        raise BadFile(f"{what} ({summary(error)}): {remedy}") from error
