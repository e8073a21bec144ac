"""
Split-conformal prediction sets: sets of classes that hold the label as often as they say, whatever the model.

With p the averaged predictive of a row, sorted p_(1) >= p_(2) >= ..., o(k) the rank of class k (1 is the most probable)
and u uniform in [0, 1), one for each row, a class has the score

    lac     1 - p_k
    aps     sum over classes ranked before k of their p  +  u p_k
    raps    the same  +  penalty max(o(k) - free, 0)

The set of a row holds every class whose score is at most the conformal quantile of the scores of the labels of n
calibration rows (:mod:`pyro_bnn.analysis.conformal`, where the promise is, and its limits). LAC has the smallest sets
on average and leaves hard rows short, or empty; APS has larger sets on hard rows and smaller ones on easy rows; RAPS
cuts APS's long tails of improbable classes. u makes the coverage exact and not too high; without it
(`randomised=False`, u = 1) sets are larger and do not depend on chance. A set may be empty: no class is as usual as the
calibration rows' labels are. `allow_empty=False` puts in the most probable class, which covers more and never less.

References: Sadinle, Lei, Wasserman 2019 (LAC); Romano, Sesia, Candes 2020, arXiv:2006.02544 (APS); Angelopoulos, Bates,
Malik, Jordan 2021, arXiv:2009.14193 (RAPS). There `penalty` and `free` are lambda and k_reg; choose them on other rows
than those that calibrate.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from pyro_bnn.analysis.conformal import check_enough, conformal_quantile
from pyro_bnn.common.mixtures import check_log_probs
from pyro_bnn.inference.predictive import ClassDraw
from pyro_bnn.posterior import Posterior

__all__ = ["ConformalSets", "SetScore", "class_scores", "conformal_sets"]

SetScore: TypeAlias = Literal["lac", "aps", "raps"]
"""Which score orders the classes of a row: the smallest sets, adaptive ones, or adaptive ones with short tails."""

_CALIBRATION, _PREDICTION = 0, 1
"""The streams of u: what is drawn for calibration rows is independent of what is drawn for others."""


def class_scores(
    probabilities: Tensor, score: SetScore, u: Tensor | None = None, *, penalty: float = 0.01, free: int = 5
) -> Tensor:
    """
    Return the score of every class, (N, K), for probabilities (N, K).

    :param probabilities: (N, K).
    :param score: "lac", "aps" or "raps".
    :param u: uniform numbers (N,) for "aps" and "raps"; default 1 for every row.
    :param penalty: of "raps", for every rank beyond `free`.

    >>> import torch
    >>> p = torch.tensor([[0.2, 0.7, 0.1]])
    >>> class_scores(p, "lac"), class_scores(p, "aps")
    (tensor([[0.8000, 0.3000, 0.9000]], dtype=torch.float64), tensor([[0.9000, 0.7000, 1.0000]], dtype=torch.float64))
    """
    _check_score(score, penalty, free)
    check_log_probs(probabilities.log(), shape="(N, K)")
    p = probabilities.double()
    if score == "lac":
        return 1 - p
    if u is not None and u.shape != p.shape[:1]:
        raise ValueError(f"u has shape {tuple(u.shape)} for {len(p)} rows: pass one number per row")
    ordered, order = p.sort(dim=1, descending=True, stable=True)
    before = ordered.cumsum(1) - ordered  # the mass of the classes ranked before
    scores = before + (1.0 if u is None else u.double().unsqueeze(1)) * ordered
    if score == "raps":
        ranks = torch.arange(1, p.shape[1] + 1, dtype=torch.float64)
        scores = scores + penalty * (ranks - free).clamp(min=0)
    return torch.empty_like(scores).scatter_(1, order, scores)


def _check_score(score: str, penalty: float, free: int) -> None:
    if score not in ("lac", "aps", "raps"):
        raise ValueError(f"score={score!r} is unknown: pass 'lac', 'aps' or 'raps'")
    if not (math.isfinite(penalty) and penalty >= 0):
        raise ValueError(f"penalty={penalty} is no penalty: pass a finite number from 0")
    if isinstance(free, bool) or not isinstance(free, int) or free < 0:
        raise ValueError(f"free={free!r} is not how many ranks are free of the penalty: pass a whole number from 0")


@final
@dataclass(frozen=True, eq=False)
class ConformalSets:
    """
    Calibrated prediction sets of a posterior; `conformal_sets` makes them.

    :param posterior: what predicts.
    :param level: how often a set holds the label.
    :param score: "lac", "aps" or "raps".
    :param quantile: q, infinite where the calibration rows were too few: every set then holds every class.
    :param rows: n, the calibration rows.
    :param penalty: of RAPS, for every class beyond the first `free`.
    :param free: classes that RAPS does not penalise.
    :param randomised: whether ties are broken at random, so that the level is met exactly.
    :param allow_empty: whether a set may hold no class.
    :param num_samples: draws of a prediction.
    :param seed: of the draws and of the numbers that break ties.
    """

    posterior: Posterior
    level: float
    score: SetScore
    quantile: float
    rows: int
    penalty: float
    free: int
    randomised: bool
    allow_empty: bool
    num_samples: int
    seed: int

    def __call__(self, x: Any) -> Tensor:
        """Return which classes are in the set of each row of raw inputs x, (N, K), True and False."""
        p = _probabilities(self.posterior, x, self.num_samples, self.seed)
        u = _uniform(len(p), self.seed, _PREDICTION) if self.randomised else None
        held = class_scores(p, self.score, u, penalty=self.penalty, free=self.free) <= self.quantile
        if not self.allow_empty:
            held = held | torch.nn.functional.one_hot(p.argmax(1), p.shape[1]).bool()
        return held


def conformal_sets(
    posterior: Posterior,
    x: Any,
    y: Any,
    level: float = 0.9,
    score: SetScore = "aps",
    *,
    penalty: float = 0.01,
    free: int = 5,
    randomised: bool = True,
    allow_empty: bool = True,
    num_samples: int = 100,
    seed: int = 0,
    too_few: Literal["refuse", "infinite"] = "refuse",
) -> ConformalSets:
    """
    Calibrate the prediction sets of a posterior on rows that it was not trained on.

    :param posterior: the fitted posterior.
    :param x: raw inputs of the calibration rows, (n, ...).
    :param y: their labels, (n,).
    :param level: how often a set shall hold the label.
    :param score: "lac" for the smallest sets, "aps" to adapt to hard rows, "raps" to cut long tails.
    :param penalty: of "raps", for every rank beyond `free`.
    :param randomised: whether "aps" and "raps" draw u; if not, sets are larger.
    :param allow_empty: whether a set may hold no class.
    :param num_samples: draws of a prediction.
    :param seed: of the draws and of the numbers that break ties.
    :param too_few: what to do where n rows cannot promise the level: refuse, or put every class into every set.

    >>> import pyro_bnn as pb
    >>> posterior, digits = pb.load("lenet5-mnist-mini"), pb.load_data("mnist-mini").test
    >>> sets = conformal_sets(posterior, digits.x[:200], digits.y[:200], 0.9, "lac", num_samples=5)
    >>> sets(digits.x[200:203]).shape
    torch.Size([3, 10])
    """
    _check_score(score, penalty, free)
    labels = posterior.raw_targets(y).cpu().long()
    check_enough(len(labels), level, too_few)
    p = _probabilities(posterior, x, num_samples, seed)
    if labels.shape != p.shape[:1] or not bool(((labels >= 0) & (labels < p.shape[1])).all()):
        raise ValueError(f"labels have shape {tuple(labels.shape)}: pass one from 0 to {p.shape[1] - 1} for each row")
    u = _uniform(len(p), seed, _CALIBRATION) if randomised else None
    scores = class_scores(p, score, u, penalty=penalty, free=free).gather(1, labels.unsqueeze(1)).squeeze(1)
    q = conformal_quantile(scores, level)
    rest = (penalty, free, randomised, allow_empty, num_samples, seed)
    return ConformalSets(posterior, level, score, q, len(labels), *rest)


def _uniform(rows: int, seed: int, stream: int) -> Tensor:
    generator = torch.Generator().manual_seed(2 * seed + stream)
    return torch.rand(rows, generator=generator, dtype=torch.float64)


def _probabilities(posterior: Posterior, x: Any, num_samples: int, seed: int) -> Tensor:
    """Return the averaged predictive (N, K) in float64."""
    total: Tensor | None = None
    for draw in posterior.stream(x, num_samples, seed=seed):
        if not isinstance(draw, ClassDraw):
            raise ValueError("the model predicts numbers, which have no set of classes: use conformal_intervals")
        p = draw.log_probs.cpu().double().exp()
        total = p if total is None else total + p
    assert total is not None
    return total / total.sum(1, keepdim=True)
