"""The numbers an optimizer takes, and the range each may come from: one table for every algorithm of this room."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

__all__ = ["ARGUMENTS", "Range", "check_arguments"]


@dataclass(frozen=True)
class Range:
    """What a number may be, said in words and as a test, with a usual value."""

    allowed: str
    holds: Callable[[Any], bool]
    usual: str


def _real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _switch(value: Any) -> bool:
    return isinstance(value, bool)


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


def _positive(value: Any) -> bool:
    return _real(value) and 0 < value < math.inf


def _positive_or_infinite(value: Any) -> bool:
    return _real(value) and value > 0


def _not_negative(value: Any) -> bool:
    return _real(value) and 0 <= value < math.inf


def _not_negative_or_infinite(value: Any) -> bool:
    return _real(value) and value >= 0


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _fraction(value: Any) -> bool:
    return _real(value) and 0 <= value < 1


def _pair_of_fractions(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(_fraction(beta) for beta in value)


def _unit_interval(value: Any) -> bool:
    return _real(value) and 0 <= value <= 1


def _positive_or_none(value: Any) -> bool:
    return value is None or _positive(value)


ARGUMENTS: Mapping[str, Range] = {
    "lr": Range("a finite number >= 0", _not_negative, "1e-3"),
    "lr_sgd": Range("a number > 0", _positive_or_infinite, "0.1"),
    "final_lr": Range("a finite number > 0", _positive, "0.1"),
    "batch_size": Range("an integer >= 1, the number of rows the loss is a mean over", _count, "128"),
    "betas": Range("two numbers in [0, 1)", _pair_of_fractions, "(0.9, 0.999)"),
    "beta": Range("a number in [0, 1)", _fraction, "0.999"),
    "momentum": Range("a number in [0, 1)", _fraction, "0.9"),
    "alpha": Range("a number in [0, 1)", _fraction, "0.99"),
    "eps": Range("a finite number >= 0", _not_negative, "1e-8"),
    "weight_decay": Range("a finite number >= 0", _not_negative, "0"),
    "lr_decay": Range("a finite number >= 0", _not_negative, "0"),
    "initial_accumulator_value": Range("a finite number >= 0", _not_negative, "0"),
    "gamma": Range("a number >= 0", _not_negative_or_infinite, "1e-3"),
    "lr_factor": Range("a finite number > 0", _positive, "1"),
    "momentum_factor": Range("a number in [0, 1]", _unit_interval, "1"),
    "window": Range("an integer >= 1", _count, "20"),
    "stat_protect_fac": Range("a finite number > 0", _positive, "100"),
    "catastrophic_move_thresh": Range("a number > 0", _positive_or_infinite, "100"),
    "decay": Range("'exponential' or 'first_order'", _one_of("exponential", "first_order"), "'exponential'"),
    "variance": Range("'scheduled' or 'absolute'", _one_of("scheduled", "absolute"), "'scheduled'"),
    "weight_decay_at": Range("'old_mean' or 'new_mean'", _one_of("old_mean", "new_mean"), "'old_mean'"),
    "weight_decay_scheduled": Range("True or False", _switch, "True"),
    "clip_norm": Range("a finite number > 0, or None", _positive_or_none, "None"),
    "clip_value": Range("a finite number > 0, or None", _positive_or_none, "None"),
    "adaptive_clip": Range("True or False", _switch, "True"),
    "h_max_log_smooth": Range("True or False", _switch, "True"),
    "h_min_log_smooth": Range("True or False", _switch, "True"),
    "slow_start": Range("True or False", _switch, "True"),
    "rate_in_velocity": Range("True or False", _switch, "False"),
}


def check_arguments(algorithm: str, arguments: Mapping[str, Any]) -> None:
    """Raise `ValueError` for the first argument outside its range; names the table does not know are left alone."""
    for name, value in arguments.items():
        rule = ARGUMENTS.get(name)
        if rule is not None and not rule.holds(value):
            raise ValueError(f"{algorithm}: {name}={value!r} is not {rule.allowed}; a usual value is {rule.usual}")
