"""
What a weight costs beyond the deterministic step, from 10^4 to 10^8 weights, with peak memory.

An MLP 784-W-W-10 at B = 100. Each size runs in a process of its own: the deterministic step and that of `fit` in paired
rounds, ratio of minima; ours keeps no values of the network's own (`BNN(..., keep_values=False)`). Memory is a process
each: how far its peak lies above what it held before the network was built, after ten steps, beside what parameters,
gradients and the moments of Adam need (8 numbers to a weight, 4 without uncertainty).
"""

import json
import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.chart import GRID, INK, MUTED, OTHER, OWN
from benchmarks.processes import printed

__all__ = ["SIZES", "as_text", "draw_cost", "one_size"]

SIZES = (10_000, 30_000, 100_000, 300_000, 500_000, 1_000_000, 2_400_000, 5_000_000, 11_400_000, 25_000_000, 50_000_000)
SIZES += (100_000_000,)

_START = """
import json, sys, warnings; warnings.simplefilter("ignore")
import torch; torch.set_num_threads({threads})
from functools import partial
from benchmarks.contenders import BASE, OURS
from benchmarks.work import Work, _batch, wide
from pyro_bnn.common.memory import keep_freed_memory
work = Work("wide", "", partial(wide, {units}), *_batch(100, 784), 60_000)
"""
_TIME = """
keep_freed_memory()  # of the processes that measure memory it would be a part
from benchmarks.timing import rounds, summarise, warm_up
steps = {{c.title: c.training_step(work) for c in (BASE, OURS[0])}}
for step in steps.values(): warm_up(step, 5)
found = summarise(rounds(steps, {count}, {calls}), BASE.title)
print(json.dumps({{title: [s.min_ms, s.ratio_of_minima] for title, s in found.items()}}))
"""
_MEMORY = """
from pathlib import Path
def now(name):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(status[name].split()[0]) / 1024
contender = {{c.title: c for c in (BASE, OURS[0])}}[{title!r}]
small = Work("wide", "", partial(wide, 8), *_batch(100, 784), 60_000)
step = contender.training_step(small)  # whatever a first step loads
for _ in range(3): step()
before = now("VmRSS")
step = contender.training_step(work)
for _ in range(10): step()
print(json.dumps(now("VmHWM") - before))
"""


def units_of(weights: int) -> int:
    """Return W such that 784-W-W-10 has about so many weights."""
    return max(1, round((-796 + math.sqrt(796**2 + 4 * (weights - 10))) / 2))


def one_size(weights: int, count: int, threads: int) -> dict[str, Any]:
    """Measure one size."""
    from benchmarks.contenders import BASE, OURS

    units = units_of(weights)
    exact = 784 * units + units + units * units + units + 10 * units + 10
    start = _START.format(threads=threads, units=units)
    count = count if exact < 3e6 else max(3, count // 2) if exact < 3e7 else max(3, count // 4)
    found = json.loads(printed(start + _TIME.format(count=count, calls=3 if exact < 3e6 else 1)))
    memory = {c.title: json.loads(printed(start + _MEMORY.format(title=c.title))) for c in (BASE, OURS[0])}
    (base, _), (own, ratio) = found[BASE.title], found[OURS[0].title]
    return {
        "weights": exact,
        "units": units,
        "rounds": count,
        "base_ms": base,
        "own_ms": own,
        "ratio": ratio,
        "extra_ns": (own - base) * 1e6 / exact,
        "base_mb": memory[BASE.title],
        "own_mb": memory[OURS[0].title],
        "needed_mb": 8 * 4 * exact / 2**20,
    }


def as_text(work: dict[str, Any]) -> str:
    """Return the sizes as lines."""
    head = ("weights", "plain ms", "fit ms", "ratio", "ns/weight", "plain MB", "fit MB", "needed MB")
    lines = ["  " + " ".join(f"{name:>12s}" for name in head)]
    lines += [
        f"  {r['weights']:12,d} {r['base_ms']:12.2f} {r['own_ms']:12.2f} {r['ratio']:12.2f} {r['extra_ns']:12.2f} "
        f"{r['base_mb']:12.0f} {r['own_mb']:12.0f} {r['needed_mb']:12.0f}"
        for r in work["rows"]
    ]
    return "\n".join(lines)


def draw_cost(results: dict[str, Any], path: Path) -> None:
    """Write the figure: nanoseconds to a weight, and memory beside what is needed, by number of weights."""
    rows = results["work"]["cost"]["rows"]
    weights = [r["weights"] for r in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    left.plot(weights, [r["extra_ns"] for r in rows], "o-", color=OWN)
    left.set_title("Time of a step beyond the deterministic one", loc="left", fontsize=10, color=INK)
    left.set_ylabel("ns per weight")
    if min(r["extra_ns"] for r in rows) > 0:
        left.set_yscale("log")
        ticks = (0.5, 1, 2, 3, 5, 10, 20, 50)
        left.set_yticks(ticks, [f"{t:g}" for t in ticks])
        left.set_ylim(min(1, 0.9 * min(r["extra_ns"] for r in rows)), 30)
    right.plot(weights, [r["own_mb"] for r in rows], "o-", color=OWN, label="fit: peak")
    right.plot(weights, [r["needed_mb"] for r in rows], "--", color=INK, label="parameters, gradients, moments")
    right.plot(weights, [r["base_mb"] for r in rows], "o-", color=OTHER, label="deterministic: peak")
    right.set_title("Peak memory of ten steps", loc="left", fontsize=10, color=INK)
    right.set_ylabel("MB")
    right.set_yscale("log")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("weights")
        axes.grid(color=GRID)
        axes.set_axisbelow(True)
        axes.minorticks_off()
        axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
        for spine in axes.spines.values():
            spine.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150, facecolor="white")
    plt.close(figure)
