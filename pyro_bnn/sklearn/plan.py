"""
What the defaults of the estimators come to for a table of so many rows.

Small tables get one layer, and larger ones a second: on validation parts of the UCI sets two layers were worse below
about 1000 rows and better above. Steps grow more slowly than rows, as the schedule ends at a rate of 0 and every member
has long seen each row. `docs/tables.md` has the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

__all__ = ["Plan", "plan_for"]

_MANY = 20_000
_SOME = 1_000


@final
@dataclass(frozen=True)
class Plan:
    """Widths of the hidden layers, rows per step, and steps."""

    hidden: tuple[int, ...]
    batch_size: int
    steps: int


def plan_for(rows: int, hidden: Any = "auto", batch_size: Any = "auto", steps: Any = "auto") -> Plan:
    """
    Return the plan for so many rows; what is not "auto" is taken as it is.

    >>> plan_for(300).hidden, plan_for(100_000).batch_size
    ((50,), 512)
    """
    if rows < _SOME:
        default = Plan((50,), 128, 2000)
    elif rows < _MANY:
        default = Plan((50, 50), 128, 4000)
    else:
        default = Plan((100, 100), 512, 6000)
    return Plan(
        default.hidden if _is_auto(hidden) else _widths(hidden),
        default.batch_size if _is_auto(batch_size) else _whole("batch_size", batch_size),
        default.steps if _is_auto(steps) else _whole("steps", steps),
    )


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} is no number of them: pass a whole number from 1, or 'auto'")
    return value


def _widths(hidden: Any) -> tuple[int, ...]:
    fits = isinstance(hidden, Sequence) and not isinstance(hidden, str)
    if not fits or any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in hidden):
        raise ValueError(
            f"hidden={hidden!r} are no widths of layers: pass whole numbers from 1, as (50, 50), or 'auto'"
        )
    return tuple(hidden)
