"""
Paired, interleaved, short rounds: in each round every contender takes a few steps, one contender after the other.

Machines drift (frequency, neighbours, memory layout), and they drift for everybody: a ratio is taken within a round,
so that both its numbers saw the same machine. Two summaries are printed. The ratio of minima compares undisturbed
steps; the median of the ratios says what to expect, and its quartiles how far to trust it. The order of the contenders
changes from round to round, so that nobody always follows the same neighbour.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Step = Callable[[], object]


@dataclass(frozen=True)
class Summary:
    """What a contender needed, in milliseconds, and relative to the base."""

    min_ms: float
    median_ms: float
    ratio_of_minima: float
    median_ratio: float
    lower_quartile: float
    upper_quartile: float


def warm_up(step: Step, calls: int) -> None:
    """Let caches fill, graphs be captured and memory be reserved."""
    for _ in range(calls):
        step()


def rounds(steps: Mapping[str, Step], count: int, calls: int, warm: bool = True) -> dict[str, list[float]]:
    """
    Return seconds per call, one number per round, for every contender.

    :param warm: take one more step, not timed, first: it brings the contender's data back into the caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for i in range(count):
        gc.collect()
        shift = i % len(names)
        for name in names[shift:] + names[:shift]:
            step = steps[name]
            if warm:
                step()
            start = time.perf_counter()
            for _ in range(calls):
                step()
            seconds[name].append((time.perf_counter() - start) / calls)
    return seconds


def summarise(seconds: Mapping[str, list[float]], base: str) -> dict[str, Summary]:
    """Compare everybody with `base`, round by round."""
    result = {}
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(own, seconds[base], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        result[name] = Summary(
            min_ms=1e3 * min(own),
            median_ms=1e3 * statistics.median(own),
            ratio_of_minima=min(own) / min(seconds[base]),
            median_ratio=middle,
            lower_quartile=low,
            upper_quartile=high,
        )
    return result
