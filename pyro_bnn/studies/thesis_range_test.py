"""
The learning-rate range test (thesis, section 3.3, after L. N. Smith).

Train while the rate rises from very low to very high: below some rate nothing happens, above some rate the loss climbs,
so that a network and a problem have a least and a greatest viable rate.

On a quadratic, L = h w^2 / 2, all of it is exact. A step of rate alpha multiplies w by 1 - alpha h, so the loss falls
at that step if and only if alpha < 2 / h: whatever the sweep, the loss is lowest after the last step below 2 / h. For
several directions with curvatures h_j the loss may go on falling a little beyond 2 / max h, until the steepest
direction, which grows from there on, has outgrown the others.

A sweep of 200 rates from 1e-5 to 10 is run on quadratics with h = 0.5, 2 and 8, where greatest viable rate and rule
can be compared to the step, and on the recipe `linear-regression` (a normal posterior over a line, SGD, 10 rows a step)
for several seeds, where the claim is that the loss falls and then climbs.

The lower end of a sweep is softer than the upper: a small rate is not wrong, it is slow. What is shown is how much of
the quadratic's loss has gone when the rate passes a thousandth of the greatest viable rate.
"""

import math

import numpy as np

from pyro_bnn.optim import LRRange, lr_range_test
from pyro_bnn.runs.lr_range import lr_range
from pyro_bnn.studies.figures import Curves, Line
from pyro_bnn.studies.findings import Finding, holds, more
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY", "line", "quadratic"]

_LOW, _HIGH, _STEPS = 1e-5, 10.0, 200
_CURVATURES = (0.5, 2.0, 8.0)


def sweep(curvature: float) -> LRRange:
    """Sweep gradient descent on h w^2 / 2."""
    w, rate = 1.0, 0.0

    def set_lr(lr: float) -> None:
        nonlocal rate
        rate = lr

    def step() -> float:
        nonlocal w
        w -= rate * curvature * w
        return curvature * w * w / 2

    return lr_range_test(step, set_lr, low=_LOW, high=_HIGH, num_steps=_STEPS, smoothing=0.0, stop_factor=math.inf)


def quadratic(curvature: float, seed: int) -> dict[str, float]:
    """Sweep h w^2 / 2; return how far the lowest loss is from 2 / h, in steps of the sweep."""
    result = sweep(curvature)
    lowest = int(np.argmin(result.losses))
    below = int(np.sum(np.array(result.lrs) < 2 / curvature)) - 1  # the last rate below 2 / h
    slow = int(np.sum(np.array(result.lrs) < 2e-3 / curvature)) - 1
    return {
        "slow": 1 - result.losses[slow] / (curvature / 2),
        "off": float(lowest - below),
        "lowest": result.lrs[lowest],
        "climb": math.log10(result.losses[-1] / result.losses[lowest]),
        "fall": math.log10(result.losses[0] / result.losses[lowest]),
    }


def line(steps: int, seed: int) -> dict[str, float]:
    """Sweep the recipe `linear-regression`; return where its smoothed loss is lowest, and how it falls and climbs."""
    result = lr_range("linear-regression", low=_LOW, high=_HIGH, num_steps=steps, seed=seed)
    smoothed = np.array(result.smoothed)
    lowest = int(smoothed.argmin())
    fall = smoothed[0] - smoothed[lowest]
    return {
        "lowest": result.lrs[lowest],
        "fall": float(fall),
        "climb": float(smoothed[-1] - smoothed[lowest]),
    }


def _design(scale: Scale) -> list[Trial]:
    seeds = 2 if scale == "smoke" else 5
    exact = [
        Trial(f"quadratic, h = {h:g}", 0, compute=f"{__name__}:quadratic", arguments={"curvature": h})
        for h in _CURVATURES
    ]
    return exact + [
        Trial("line", seed, compute=f"{__name__}:line", arguments={"steps": _STEPS}) for seed in range(seeds)
    ]


def _figures(results: Results) -> list[Curves]:
    lines = []
    for curvature in _CURVATURES:
        swept = sweep(curvature)
        lines.append(Line(f"h = {curvature:g}: 2 / h = {2 / curvature:g}", swept.lrs[::4], swept.losses[::4]))
    return [Curves("A sweep of gradient descent on h w^2 / 2", "learning rate", "loss", lines, "xy")]


def _judge(results: Results) -> list[Finding]:
    exact = [
        holds(f"h = {h:g}: steps from the lowest loss to the last rate below 2 / h", off, 0.0, 0.0)
        for h in _CURVATURES
        for off in results.values(f"quadratic, h = {h:g}", "off")
    ]
    slow = max(results.values(f"quadratic, h = {h:g}", "slow")[0] for h in _CURVATURES)
    return [
        *exact,
        more("Line: the loss falls during the sweep", results.values("line", "fall")),
        more("Line: the loss climbs again before its end", results.values("line", "climb")),
        holds("Quadratics: share of the loss gone before a thousandth of 2 / h", slow, 0.0, 0.1, decides=False),
    ]


STUDY = Study(
    name="thesis-range-test",
    claim="There are greatest and least viable learning rates for a network and a problem; a training whose rate rises "
    "from very low to very high shows them.",
    source="Training Bayesian Neural Networks (MSc thesis, Lund 2020)",
    place="section 3.3, learning rate range test",
    varied="the problem: quadratics of curvature h, where the greatest rate is 2 / h, and a Bayesian line.",
    measured="the rate after which the loss is lowest; how far the loss falls before it, and climbs after it.",
    rule="Confirmed if on every quadratic the loss is lowest after the last rate below 2 / h, and on the line the 95 % "
    "intervals of the fall and of the climb after it lie above 0; contradicted if any of it is contradicted.",
    not_done="The source shows no such sweep of its own.",
    design=_design,
    judge=_judge,
    figures=_figures,
    metric=("lowest", "rate at the lowest loss"),
    scales=("smoke", "source"),
)
