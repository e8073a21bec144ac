"""
A posterior on labelled rows, in one pass over the draws: the results table, and what every row contributes to it.

The table is what `Posterior.evaluate` returns; the rows are what a report, a comparison or a rejection
curve needs beside it. Memory does not grow with the number of draws.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from torch import Tensor

from pyro_bnn.analysis.scores.laws import Scorer
from pyro_bnn.analysis.scores.metrics import (
    ClassificationAccumulator,
    RegressionAccumulator,
    Scored,
    bootstrap_interval,
    classification_table,
    ece,
    held,
    regression_table,
)
from pyro_bnn.common.contract import contract_of
from pyro_bnn.data.arrays import first_rows, number_of_rows
from pyro_bnn.data.checks import check_finite
from pyro_bnn.inference.predictive import ClassDraw, Draw, RealDraw
from pyro_bnn.posterior import Posterior

__all__ = ["ClassEvaluation", "Evaluation", "RealEvaluation", "evaluate_rows", "in_units"]

Table: TypeAlias = dict[str, dict[str, float]]

_ECE_RESAMPLES = 400


def _mean_interval(values: Tensor, level: float) -> tuple[float, float]:
    return bootstrap_interval(lambda v: float(v.mean()), values.double(), level=level)


def _share(interval: tuple[float, float]) -> tuple[float, float]:
    """An interval of what lies in [0, 1]; the basic bootstrap does not know that."""
    low, high = (min(max(end, 0.0), 1.0) for end in interval)
    return low, high


@final
@dataclass(frozen=True, eq=False)
class ClassEvaluation:
    """
    Labels (N,), log-probabilities of the averaged predictive (N, K) and the draws' mean entropy (N,), in float64.

    :param table: the results table.
    :param num_samples: S, the draws that were averaged.
    :param labels: the right classes (N,), whole numbers from 0.
    :param log_probs: of the averaged predictive, (N, K).
    :param entropy: of the averaged predictive, (N,).
    :param aleatoric: the draws' mean entropy, (N,).
    """

    table: Table
    num_samples: int
    labels: Tensor
    log_probs: Tensor
    entropy: Tensor
    aleatoric: Tensor

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights (N,)."""
        return self.entropy - self.aleatoric

    @property
    def guess(self) -> Tensor:
        """The most probable class (N,)."""
        return self.log_probs.argmax(1)

    @property
    def correct(self) -> Tensor:
        """Whether it is the label (N,)."""
        return self.guess == self.labels

    @property
    def log_density(self) -> Tensor:
        """Log predictive probability of each label (N,)."""
        return self.log_probs.gather(1, self.labels[:, None])[:, 0]

    def intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """
        Return basic bootstrap intervals over rows of the S-sample column, those of shares within [0, 1].

        :param level: of the intervals.
        """
        p = self.log_probs.exp()
        rows = {
            "accuracy": self.correct,
            "pred_nll": -self.log_density,
            "brier": p.square().sum(1) - 2 * self.log_density.exp() + 1,
            "confidence": p.amax(1),
        }
        ends = {name: _mean_interval(values, level) for name, values in rows.items()}
        ends["ece"] = bootstrap_interval(ece, self.log_probs, self.labels, level=level, num_resamples=_ECE_RESAMPLES)
        return ends | {name: _share(ends[name]) for name in ("accuracy", "confidence", "ece")}


@final
@dataclass(frozen=True, eq=False)
class RealEvaluation:
    """
    Targets, mean, variances and F(y) of the mixture in y's shape, and each row's log-density (N,), in float64.

    Of counts `pit` is randomised; `cdf` is F(y) and `below` F(y-), which are `pit` where they are not given.

    :param table: the results table.
    :param num_samples: S, the draws that were averaged.
    :param y: raw targets.
    :param mean: of the mixture of draws.
    :param aleatoric: the mean of the draws' variances.
    :param epistemic: the variance of the draws' means.
    :param log_density: of each row under the mixture, (N,).
    """

    table: Table
    num_samples: int
    y: Tensor
    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    pit: Tensor
    log_density: Tensor
    cdf: Tensor | None = None
    below: Tensor | None = None

    @property
    def sd(self) -> Tensor:
        """Standard deviation of the mixture, in y's shape."""
        return (self.aleatoric + self.epistemic).sqrt()

    def intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """
        Return basic bootstrap intervals over rows of the S-sample column, those of shares within [0, 1].

        :param level: of the intervals.
        """
        n = len(self.y)
        ends = {"pred_nll": _mean_interval(-self.log_density, level)}
        if "rmse" in self.table["s_draws"]:
            low, high = _mean_interval((self.mean - self.y).square().reshape(n, -1).mean(1), level)
            ends["rmse"] = (max(low, 0.0) ** 0.5, high**0.5)
        cdf, below = (self.pit if values is None else values for values in (self.cdf, self.below))
        scored = Scored(self.log_density, cdf, below)
        for name in self.table["s_draws"]:
            if name.startswith("coverage_"):
                inside = held(scored, float(name.removeprefix("coverage_")))
                ends[name] = _share(_mean_interval(inside.double().reshape(n, -1).mean(1), level))
        return ends


Evaluation: TypeAlias = ClassEvaluation | RealEvaluation
"""What `evaluate_rows` returns, for classes and for numbers."""


def in_units(posterior: Posterior, y: Any) -> Tensor:
    """
    Return targets in raw units: those that say they are standardised turned back, others as they are.

    :param posterior: the fitted posterior.
    :param y: targets, standardised or raw.
    """
    return posterior.raw_targets(y)


def evaluate_rows(
    posterior: Posterior,
    x: Any,
    y: Any,
    num_samples: int = 100,
    *,
    chunk: int | None = None,
    seed: int = 0,
    standardised: bool | None = None,
) -> Evaluation:
    """
    Score a posterior on raw inputs x and labels or raw targets y; what each row gave is kept on the CPU, in raw units.

    :param posterior: the fitted posterior.
    :param x: raw inputs (N, ...).
    :param y: labels (N,) or raw targets.
    :param num_samples: S, how many weight samples are drawn.
    :param chunk: rows per forward pass; default as many as are fast.
    :param seed: fixes the draws and leaves the global random state alone.
    :param standardised: whether x and y are on the model's scale; default what they say, and raw if they do not.
    """
    y = posterior.raw_targets(y, standardised=standardised)
    check_finite(y, "y")
    rows = number_of_rows(x) if isinstance(x, tuple) else len(x)
    if rows != len(y):
        raise ValueError(f"x has {rows} rows and y has {len(y)}: pass one label per row")
    options: Any = {"chunk": chunk, "standardised": standardised}
    point = None
    if contract_of(posterior.guide).has_median:
        with suppress(NotImplementedError):  # some of Pyro's guides name a median and have none
            point = next(posterior.stream(x, 1, plug_in=True, **options))
    draws = posterior.stream(x, num_samples, seed=seed, **options)
    if _may_be_labels(y) and _of_classes(point or next(posterior.stream(first_rows(x), 1, seed=seed, **options)), y):
        labels = y.long().cpu()
        classes = ClassificationAccumulator(labels)
        for draw in draws:
            classes.update(_log_probs(draw))
        table = classification_table(None if point is None else _log_probs(point), classes)
        predictive = classes.predictive
        return ClassEvaluation(table, num_samples, labels, predictive.log_probs, predictive.total, predictive.aleatoric)
    target = y.cpu() if y.is_floating_point() else y.cpu().double()
    real, scorer = RegressionAccumulator(target), Scorer(target)
    for draw in draws:
        real.update(*_said(draw, scorer))
    table = regression_table(None if point is None else _said(point, scorer), real)
    scored = real.scored
    return RealEvaluation(
        table,
        num_samples,
        real.y,
        real.mean,
        real.aleatoric,
        real.epistemic,
        real.pit,
        scored.log_density,
        scored.cdf,
        scored.below,
    )


def _may_be_labels(y: Tensor) -> bool:
    """Whether targets are whole numbers, or the 0 and 1 in floating point that Pyro's Bernoulli observes."""
    return not y.is_floating_point() or bool(((y == 0) | (y == 1)).all())


def _of_classes(draw: Draw, y: Tensor) -> bool:
    """Whether y are labels to a model that says this; floating ones only where there are two classes."""
    return isinstance(draw, ClassDraw) and draw.log_probs.shape[1] == 2 if y.is_floating_point() else not draw.counts


def _log_probs(draw: Draw) -> Tensor:
    if not isinstance(draw, ClassDraw):
        raise ValueError("the labels are classes but the model predicts numbers: pass floating-point targets")
    return draw.log_probs.cpu()


def _said(draw: Draw, scorer: Scorer) -> tuple[Tensor, Tensor, Scored | None]:
    """Return mean and sd of one draw, and what it says of y where it is no Normal."""
    if not isinstance(draw, RealDraw):
        raise ValueError("the targets are numbers but the model predicts classes: pass integer labels")
    shape = scorer.y.shape
    if draw.mean.numel() != scorer.y.numel():
        raise ValueError(
            f"y has shape {tuple(shape)} and the model predicts {tuple(draw.mean.shape)}: pass those targets"
        )
    mean, sd = draw.mean.cpu().reshape(shape), draw.sd.cpu().reshape(shape)
    return mean, sd, scorer.of(draw) if draw.laws else None
