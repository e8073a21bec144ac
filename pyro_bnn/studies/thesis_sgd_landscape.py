"""
Learning rate and momentum of SGD (thesis, sections 3.1 and 5.3).

Momentum repeats a gradient: m <- mu m + alpha g has E m = E g alpha (1 - mu^t) / (1 - mu), so that a weight moves by
alpha / (1 - mu) for each gradient. If training breaks where a weight moves too far, it breaks where

    alpha / (1 - mu) > a,      that is above the line alpha + a mu = a,

and "alpha and mu cannot be tuned independently". So alpha / (1 - mu) must tell the dead from the living (an accuracy
under 15 %, or no numbers at all) better than alpha does. How well a number tells them apart is its AUC: the probability
that of a dead and a living training the dead has the larger number. The threshold a is fitted, to set it beside the
thesis' lines, which are drawn by eye: 1.9 for MNIST, .45 for CIFAR-10.

alpha and mu are drawn uniformly, mu from [0, 1), alpha from 0 to half of the thesis' line, a / 2: there a line of half
that height still leaves half of the trainings alive, and both kinds are many. Dead are also those that went to chance
while all numbers stayed finite: ReLUs that never fire again.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from pyro_bnn.studies.figures import Landscape, Line
from pyro_bnn.studies.findings import Finding, holds, likely
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY", "auc", "threshold"]

_LINES = {"mnist": 1.9, "cifar10": 0.45}
_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
_DEAD = 0.15
_RESAMPLES = 2000
_SIZES: dict[Scale, dict[str, tuple[int, dict[str, object]]]] = {
    # by data set: draws, and what is changed
    "smoke": {
        "mnist": (3, {"data": "mnist-mini", "epochs": 1, "data_args.train_size": 300}),
        "cifar10": (2, {"epochs": 1, "data_args.train_size": 200, "data_args.test_size": 500}),
    },
    "cpu": {
        "mnist": (120, {"data": "mnist-mini", "epochs": 1}),
        "cifar10": (45, {"epochs": 3, "data_args.train_size": 2000, "data_args.test_size": 1000}),
    },
    "source": {"mnist": (400, {"epochs": 1}), "cifar10": (200, {"epochs": 10})},
}


def _bin(ratio: float, line: float) -> str:
    """Return which octave of the thesis' line alpha / (1 - mu) falls into."""
    edges = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
    shown = [f"{edge * line:.3g}" for edge in edges]
    place = sum(ratio >= edge * line for edge in edges)
    if place == 0:
        return f"under {shown[0]}"
    return f"over {shown[-1]}" if place == len(edges) else f"{shown[place - 1]} to {shown[place]}"


def _design(scale: Scale) -> list[Trial]:
    trials = []
    for data, line in _LINES.items():
        draws, changes = _SIZES[scale][data]
        points = np.random.default_rng(54).random((draws, 2))
        for seed, (first, second) in enumerate(points):
            alpha, mu = round(float(line / 2 * first), 5), round(float(0.9999 * second), 5)
            rates = {f"optim.{group}.{key}": v for group in ("loc", "scale") for key, v in _numbers(alpha, mu)}
            cell = f"{data}, {_bin(alpha / (1 - mu), line)}"
            everything = {"num_samples": 1, "val_fraction": 0.0, **changes, **rates}
            trials.append(Trial(cell, seed, f"lenet5-{data}-thesis", "sgd", everything))
    return sorted(trials, key=lambda trial: (not trial.cell.startswith("mnist"), _ratio(trial)))


def _numbers(alpha: float, mu: float) -> tuple[tuple[str, float], ...]:
    return ("lr", alpha), ("momentum", mu)


def _ratio(trial: Trial) -> float:
    return float(trial.changes["optim.loc.lr"] / (1 - trial.changes["optim.loc.momentum"]))


def auc(scores: NDArray[np.float64], dead: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return P(score of a dead > score of a living), ties counted half, over the last axis."""
    many = dead.sum(-1)
    few = dead.shape[-1] - many
    ranks = (rankdata(scores, axis=-1) * dead).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: NDArray[np.float64] = (ranks - many * (many + 1) / 2) / (many * few)
    return found


def threshold(scores: NDArray[np.float64], dead: NDArray[np.bool_]) -> float:
    """Return the a that parts dead from living best: half way between neighbours, the most balanced accuracy."""
    order = np.argsort(scores)
    scores, dead = scores[order], dead[order]
    if dead.all() or not dead.any():
        return float("nan")
    living_below = np.cumsum(~dead)[:-1] / (~dead).sum()
    dead_above = 1 - np.cumsum(dead)[:-1] / dead.sum()
    best = int(np.argmax(living_below + dead_above))
    return float((scores[best] + scores[best + 1]) / 2)


def _measured(results: Results, data: str) -> tuple[NDArray[np.float64], ...]:
    """Return alpha, mu and the accuracy of the trainings on a data set, nan for those that diverged."""
    trials = [trial for trial in results.trials if trial.cell.startswith(data)]
    accuracy = [results.record(trial.cell, trial.seed).get("accuracy") for trial in trials]
    return (
        np.array([trial.changes["optim.loc.lr"] for trial in trials]),
        np.array([trial.changes["optim.loc.momentum"] for trial in trials]),
        np.array([np.nan if value is None else value for value in accuracy]),
    )


def _dead(accuracy: NDArray[np.float64]) -> NDArray[np.bool_]:
    dead: NDArray[np.bool_] = ~(accuracy >= _DEAD)
    return dead


def _figures(results: Results) -> list[Landscape]:
    found = []
    for data, line in _LINES.items():
        alpha, mu, accuracy = _measured(results, data)
        fitted = threshold(alpha / (1 - mu), _dead(accuracy))
        momenta = np.linspace(0, 1, 101)
        lines = [Line(f"rate / (1 - mu) = {line:g}, the source's", line * (1 - momenta), momenta, reference=True)]
        if np.isfinite(fitted):
            lines.append(Line(f"= {fitted:.2g}, fitted", fitted * (1 - momenta), momenta))
        points = list(zip(alpha, mu, accuracy, strict=True))
        found.append(Landscape(_NAMES[data], "learning rate", "momentum", "test accuracy", points, lines))
    return found


def _judge(results: Results) -> list[Finding]:
    deciding, controls = [], []
    for data, line in _LINES.items():
        alpha, mu, accuracy = _measured(results, data)
        dead, together = _dead(accuracy), alpha / (1 - mu)
        rows = np.random.default_rng(0).integers(len(alpha), size=(_RESAMPLES, len(alpha)))

        def better(other: NDArray[np.float64], rows: NDArray[np.int64] = rows) -> NDArray[np.float64]:
            return auc(together[rows], dead[rows]) - auc(other[rows], dead[rows])  # noqa: B023

        name = _NAMES[data]
        a = threshold(together, dead)
        deciding.append(likely(f"{name}: rate / (1 - mu) tells the dead better than the rate (AUC)", better(alpha)))
        controls += [
            likely(f"{name}: rate / (1 - mu) tells the dead better than mu (AUC)", better(mu), decides=False),
            holds(f"{name}: the fitted a is the source's {line:g} within a third", a, line, line / 3, decides=False),
        ]
    return [*deciding, *controls]


STUDY = Study(
    name="thesis-sgd-landscape",
    claim="A training by SGD dies where alpha / (1 - mu) is above a threshold a: learning rate and momentum have a "
    "strong covariance and cannot be tuned independently.",
    source="Training Bayesian Neural Networks (MSc thesis, Lund 2020)",
    place="sections 3.1 and 5.3, figures 5.4 and 5.5",
    varied="learning rate and momentum of means and deviations, drawn uniformly.",
    measured="which trainings are dead: accuracy on test rows under 15 % with one draw of the weights, or diverged.",
    rule="Confirmed if on both data sets the 95 % bootstrap interval of AUC(alpha / (1 - mu)) - AUC(alpha) as "
    "predictors of death lies above 0; contradicted if on either it lies below.",
    not_done="The source does not state its ranges nor its number of draws; its figures clip the outer quantiles, here "
    "nothing is. At cpu scale 120 draws on 5,000 rows of MNIST (one epoch) and 45 on 2,000 of CIFAR-10 (three epochs), "
    "1,000 test rows.",
    design=_design,
    judge=_judge,
    figures=_figures,
    metric=("accuracy", "test accuracy, by rate / (1 - mu)"),
    explained="Of the 36 trainings on MNIST that diverged 29 did so within 11 steps, before momentum had added up: at "
    "so short a length the rate alone tells the dead as well. On a quadratic, momentum even widens the range of stable "
    "rates, to alpha < 2 (1 + mu) / h: the source's line is a limit of how far a weight moves, not of stability.",
)
