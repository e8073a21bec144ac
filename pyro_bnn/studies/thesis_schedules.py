"""
Learning-rate schedules on a linear regression with SGD (thesis, section 3.3 and figure 3.2).

A schedule makes the rate of algorithm 1 a function of time, alpha_t = alpha f(t). With S steps an epoch, t = 0, 1, ...
the step, and e = t / S the epoch,

    constant   f = 1
    cyclic     f = l + (h - l) (1 - |2 (t mod P) / P - 1|)          a triangle of period P between l and h
    warm-up    f = s + (1 - s) min(1, t / W)                        from s up to the threshold 1 in W steps, then 1
    step       f = gamma^floor(e / E)                               a fall every E epochs
    cosine     f = l + (1 - l) (1 + cos(pi t / T)) / 2
    plateau    f falls by gamma after more than k epochs in which the loss has not improved by a relative 1e-4

The first five are formulas, written out here a second time. The plateau looks at the loss: it is walked through by a
literal count of bad epochs. The regression is the embedded line, y = 2 x - 1 + e, its loss the mean square, and the
gradient that of a minibatch of 10 rows, so that the loss of an epoch does stop improving.

The source shows the curves and draws no conclusion; what can be true or false of them is that they are the functions
that their names stand for, and that SGD still fits the line under each.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_bnn.data import load_data
from pyro_bnn.optim import Schedule, make_schedule
from pyro_bnn.optim.schedules import Factor
from pyro_bnn.studies.figures import Curves, Line
from pyro_bnn.studies.findings import Finding, holds
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY", "trace"]

_EPOCHS, _STEPS, _ROWS, _RATE = 30, 10, 10, 0.2
_SCHEDULES: Mapping[str, dict[str, Any]] = {
    "constant": {},
    "cyclic": {"period": 4.0, "low": 0.1, "high": 1.0},
    "warmup": {"epochs": 5.0, "start": 0.02},
    "step": {"every": 8.0, "factor": 0.3},
    "cosine": {"final": 0.05},
    "plateau": {"factor": 0.5, "patience": 2, "metric": "nll"},
}


def _triangle(t: int) -> float:
    period = 4.0 * _STEPS
    return 0.1 + 0.9 * (1 - abs(2 * (t % period) / period - 1))


_FORMULAS: Mapping[str, Callable[[int], float]] = {
    "constant": lambda t: 1.0,
    "cyclic": _triangle,
    "warmup": lambda t: 0.02 + 0.98 * min(1.0, t / (5 * _STEPS)),
    "step": lambda t: float(0.3 ** (t // (8 * _STEPS))),
    "cosine": lambda t: 0.05 + 0.95 * (1 + math.cos(math.pi * t / (_EPOCHS * _STEPS))) / 2,
}


def _plateau(losses: list[float]) -> list[float]:
    """Return the factor of every step, by the count of bad epochs."""
    factor, best, bad, trace = 1.0, math.inf, 0, []
    for loss in losses:
        trace += [factor] * _STEPS
        if loss < best * (1 - 1e-4):
            best, bad = loss, 0
        else:
            bad += 1
        if bad > 2:
            factor, bad = factor * 0.5, 0
    return trace


def _line() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows = load_data("toy-line", standardise=False, val_fraction=0.0).train
    x = np.asarray(rows.x, np.float64).reshape(-1)
    design = np.stack([x, np.ones_like(x)], 1)  # (N, 2)
    return design, np.asarray(rows.y, np.float64).reshape(-1)


def trace(schedule: str, seed: int) -> dict[str, Any]:
    """Train the line under a schedule; return the rates, their distance from the formula, and how the fit ended."""
    rule: Schedule = make_schedule(schedule, **_SCHEDULES[schedule])
    factor = Factor(rule, _EPOCHS, _STEPS)
    design, y = _line()
    order = np.random.default_rng(seed)
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optim = torch.optim.SGD([w], lr=_RATE)
    rates: list[float] = []
    losses: list[float] = []
    for _ in range(_EPOCHS):
        rows = order.permutation(len(y)).reshape(_STEPS, _ROWS)
        loss_of_epoch = 0.0
        for batch in rows:
            optim.param_groups[0]["lr"] = _RATE * factor.value
            rates.append(optim.param_groups[0]["lr"])
            loss = (torch.from_numpy(design[batch]) @ w - torch.from_numpy(y[batch])).square().mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
            factor.step()
            loss_of_epoch += loss.item() / _STEPS
        losses.append(loss_of_epoch)
        factor.end_epoch({"nll": loss_of_epoch})
    known = _plateau(losses) if schedule == "plateau" else [_FORMULAS[schedule](t) for t in range(len(rates))]
    least = float(np.linalg.lstsq(design, y, rcond=None)[1][0]) / len(y)
    ended = float(np.mean((design @ w.detach().numpy() - y) ** 2))
    return {
        "distance": float(np.max(np.abs(np.array(rates) - _RATE * np.array(known)))),
        "excess": ended / least - 1,
        "lowest": min(rates),
        "highest": max(rates),
        "last": rates[-1],
        "falls": float(np.sum(np.diff(rates) < 0)),
        "rates": rates,
    }


def _design(scale: Scale) -> list[Trial]:
    return [
        Trial(name, seed, compute=f"{__name__}:trace", arguments={"schedule": name})
        for name in _SCHEDULES
        for seed in range(2 if scale == "smoke" else 5)
    ]


def _figures(results: Results) -> list[Curves]:
    shown = range(0, _EPOCHS * _STEPS, 2)
    lines = []
    for name in _SCHEDULES:
        rates = results.record(name, 0)["rates"]
        lines.append(Line(name, [t / _STEPS for t in shown], [rates[t] for t in shown]))
    return [Curves("Learning rate, seed 0", "epoch", "", lines)]


def _judge(results: Results) -> list[Finding]:
    traces = [
        holds(f"{name}: largest distance of the rate from its formula", results.values(name, "distance").max(), 0, 1e-9)
        for name in _SCHEDULES
    ]
    fits = [
        holds(
            f"{name}: mean square on the rows above the least one, as a share of it",
            float(results.values(name, "excess").mean()),
            0.0,
            0.1,
            decides=False,
        )
        for name in _SCHEDULES
    ]
    return traces + fits


STUDY = Study(
    name="thesis-schedules",
    claim="The learning rate can be a function of time: periodic (cyclic), rising to a threshold (warm-up), or falling "
    "when a metric has not improved for its patience (plateau), as in linear regression with SGD.",
    source="Training Bayesian Neural Networks (MSc thesis, Lund 2020)",
    place="section 3.3, figure 3.2",
    varied="the schedule: constant, cyclic, warm-up, step, cosine, plateau.",
    measured="the rate of each of 300 steps against the formula, and the mean square at the end.",
    rule="Confirmed if the rates are those of the formula within 1e-9 for every schedule and seed; contradicted "
    "otherwise. That each ends within 10 % of the least mean square is shown and does not decide.",
    not_done="The figure's own regression, rates and lengths are not stated; the line here is the embedded one.",
    design=_design,
    judge=_judge,
    figures=_figures,
    metric=("excess", "mean square above the least, as a share"),
    scales=("smoke", "source"),
    explained="The source makes no claim of which schedule is best, and none is tested.",
)
