"""
Metrics of predictions, as functions of tensors, and accumulators that see one draw at a time.

With log p_s (N, K) the class log-probabilities of draw s (one weight sample for the whole set), s = 1..S:

    predictive      log p_ik = log mean_s exp(log p_sik)                        averaged in log space
    accuracy        mean_i 1[argmax_k p_ik = y_i]
    pred_nll        -mean_i log p_i,y_i
    gibbs_nll       -mean_s mean_i log p_si,y_i          (>= pred_nll, by Jensen; the training nll is of this kind)
    brier           mean_i sum_k (p_ik - 1[y_i = k])^2   (in [0, 2]; for K = 2 twice the one-class form)
    confidence      mean_i max_k p_ik
    entropy         -mean_i sum_k p_ik log p_ik
    ece             sum_b n_b/N |accuracy_b - confidence_b| over 15 bins of equal width [b/15, (b+1)/15)
    total, aleatoric, epistemic    H(mean_s p_s), mean_s H(p_s), and their difference: the mutual information

With draws N(m_si, sd_si^2) of a regression the predictive is their equal mixture: its log-density is a log-mean-exp,
its mean and variance follow from the law of total variance, and the central interval of a level holds y_i when the
mixture's distribution function at y_i, mean_s Phi((y_i - m_si) / sd_si), lies within (1 -+ level) / 2: no quantile
has to be looked for, and nothing grows with S.

Draws of other laws bring their log-density and distribution function at y (`Scored`). Of counts these are F(y) and
F(y-) = P(Y < y): y lies between the quantiles of (1 -+ level) / 2 when F(y) reaches the lower level and F(y-) stays
below the upper one (such an interval holds at least its level, and often more), and the probability integral transform
is randomised, F(y-) + u (F(y) - F(y-)) with u uniform from a fixed seed: it is uniform for a calibrated model of counts
too. Where a law has no mean (Cauchy) there is no rmse, and no number that needs a mean; an infinite variance is inf.

Every function here checks what it is given, once: log-probabilities whose rows sum to 1 (logits, probabilities and NaN
do not), labels that name one of the classes, targets and moments that are finite and of one shape. A label of
probability 0 makes a NLL infinite, also among draws, and never NaN.

Guo et al. 2017, arXiv:1706.04599 (ECE). The bins and their sums are torchmetrics': its binary form on (max_k p_ik,
whether right), which is the same sum as its multiclass form but stays in float64. Confidences are held just below 1
before they are binned, because torchmetrics gives exactly 1 a bin of its own, and takes a set in which any lies above
1, as rounding can leave it, for logits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast, final

import torch
from torch import Tensor

from pyro_bnn.common.mixtures import (
    MixtureMoments,
    PredictiveAccumulator,
    check_log_probs,
    check_moments,
    entropy_of_rows,
    wide,
)
from pyro_bnn.common.moments import Welford

__all__ = [
    "ClassificationAccumulator",
    "MixtureMoments",
    "PredictiveAccumulator",
    "RegressionAccumulator",
    "Scored",
    "accuracy",
    "bootstrap_interval",
    "brier",
    "classification_metrics",
    "classification_table",
    "confidence",
    "ece",
    "ece_null",
    "entropy",
    "gaussian_metrics",
    "gibbs_nll",
    "log_mean_exp",
    "mixture_nll",
    "nll",
    "regression_table",
    "rmse",
]

BINS = 15
LEVELS = (0.5, 0.9, 0.95)


# classification: functions of log-probabilities (N, K) and labels (N,)


def log_mean_exp(log_probs: Tensor) -> Tensor:
    """
    Average draws (S, N, K), or densities (S, N), over S in log space.

    :param log_probs: (S, N, K) or (S, N).
    """
    if log_probs.ndim == 0 or len(log_probs) == 0 or not log_probs.is_floating_point():
        raise ValueError(
            f"draws are {log_probs.dtype} of shape {tuple(log_probs.shape)}; give draws first: (S, N, ...)"
        )
    if bool(log_probs.isnan().any()):
        raise ValueError("draws contain NaN, which has no average; check the model")
    return log_probs.logsumexp(0) - math.log(len(log_probs))


def accuracy(log_probs: Tensor, labels: Tensor) -> float:
    """
    Share of rows (N, K) whose most probable class is the label.

    :param log_probs: log-probabilities (N, K).
    :param labels: the right classes (N,), whole numbers from 0.
    """
    return _accuracy(log_probs, check_predictions(log_probs, labels))


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """
    Return -mean_i log p_i,y_i of (N, K): the predictive NLL if these are the averaged predictive's.

    :param log_probs: log-probabilities (N, K).
    :param labels: the right classes (N,), whole numbers from 0.
    """
    return _nll(log_probs, check_predictions(log_probs, labels))


def gibbs_nll(draws: Tensor, labels: Tensor) -> float:
    """
    Mean over draws (S, N, K) of each draw's own NLL; infinite where any draw finds a label impossible.

    :param draws: log-probabilities (S, N, K).
    :param labels: the right classes (N,), whole numbers from 0.
    """
    check_log_probs(draws, shape="(S, N, K)")
    labels = check_labels(labels, *draws.shape[1:])
    return float(-draws[:, torch.arange(len(labels), device=draws.device), labels].double().mean())


def brier(log_probs: Tensor, labels: Tensor) -> float:
    """
    Mean squared distance of the probabilities (N, K) to the one-hot labels, summed over classes.

    :param log_probs: log-probabilities (N, K).
    :param labels: the right classes (N,), whole numbers from 0.
    """
    labels = check_predictions(log_probs, labels)
    return _brier(log_probs.exp(), labels)


def confidence(log_probs: Tensor) -> float:
    """
    Mean probability of the most probable class.

    :param log_probs: log-probabilities (N, K).
    """
    check_log_probs(log_probs)
    return _confidence(log_probs)


def entropy(log_probs: Tensor) -> Tensor:
    """
    Entropy in nats of each row: (..., K) -> (...); a class of probability 0 adds 0.

    :param log_probs: log-probabilities (..., K).
    """
    check_log_probs(log_probs, shape="(..., K)")
    return entropy_of_rows(log_probs)


def ece(log_probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """
    Expected calibration error of the most probable class, over `bins` bins of equal width.

    :param log_probs: log-probabilities (N, K).
    :param labels: the right classes (N,), whole numbers from 0.
    """
    check_bins(bins)
    return _ece(log_probs, check_predictions(log_probs, labels), bins)


def classification_metrics(log_probs: Tensor, labels: Tensor, bins: int = BINS) -> dict[str, float]:
    """
    Return accuracy, pred_nll, brier, ece, confidence and entropy of one predictive (N, K).

    :param log_probs: log-probabilities (N, K).
    :param labels: the right classes (N,), whole numbers from 0.
    :param bins: how many bins of confidence.
    """
    check_bins(bins)
    return _classification_metrics(log_probs, check_predictions(log_probs, labels), bins)


# the same, of predictions that were checked


def _accuracy(log_probs: Tensor, labels: Tensor) -> float:
    return float((log_probs.argmax(1) == labels).double().mean())


def _nll(log_probs: Tensor, labels: Tensor) -> float:
    return float(-_of_label(log_probs, labels).double().mean())


def _brier(p: Tensor, labels: Tensor) -> float:
    # sum_k (p_k - 1[y = k])^2 = sum_k p_k^2 - 2 p_y + 1
    return float((p.square().sum(1) - 2 * _of_label(p, labels) + 1).double().mean())


def _confidence(log_probs: Tensor) -> float:
    return float(log_probs.amax(1).exp().double().mean())


def _ece(log_probs: Tensor, labels: Tensor, bins: int) -> float:
    top, guess = log_probs.max(1)
    return _binned_gap(wide(top).exp(), guess == labels, bins)


def _classification_metrics(
    log_probs: Tensor, labels: Tensor, bins: int, p: Tensor | None = None, entropies: Tensor | None = None
) -> dict[str, float]:
    """Return every metric of (N, K); `p` and `entropies` are its probabilities and entropies, where they are known."""
    p = log_probs.exp() if p is None else p
    entropies = entropy_of_rows(log_probs, p) if entropies is None else entropies
    top, guess = log_probs.max(1)  # (N,)
    confidence, right = top.exp(), guess == labels
    return {
        "accuracy": float(right.double().mean()),
        "pred_nll": _nll(log_probs, labels),
        "brier": _brier(p, labels),
        "ece": _binned_gap(wide(confidence), right, bins),
        "confidence": float(confidence.double().mean()),
        "entropy": float(entropies.double().mean()),
    }


def ece_null(
    log_probs: Tensor, *, num_resamples: int = 1000, seed: int = 0, bins: int = BINS, point: float = 0.95
) -> dict[str, float]:
    """
    What `ece` gives by chance for a predictive that is exactly right: labels drawn from `log_probs` (N, K) itself.

    Returns the mean and the upper `point` over resamples: {"mean": ..., "upper": ...}.

    :param num_resamples: how often labels are drawn.
    :param seed: of the labels.
    :param bins: how many bins of confidence.
    """
    check_log_probs(log_probs)
    check_bins(bins)
    _check_resamples(num_resamples)
    if not 0 <= point <= 1:
        raise ValueError(
            f"point is {point}; give the share of resamples below the upper value, in [0, 1], such as 0.95"
        )
    generator = torch.Generator().manual_seed(seed)
    p = wide(log_probs.detach().cpu()).amax(1).exp()
    # a label drawn from the predictive is the most probable class with probability p: no other class matters
    gaps = [_binned_gap(p, torch.bernoulli(p.clamp(max=1), generator=generator), bins) for _ in range(num_resamples)]
    values = torch.tensor(gaps, dtype=torch.float64)
    return {"mean": float(values.mean()), "upper": float(values.quantile(point))}


# regression: functions of means and standard deviations (N,) or (N, T) and targets of the same shape


def rmse(mean: Tensor, y: Tensor) -> float:
    """
    Root of the mean squared error over all entries.

    :param mean: means (N,) or (N, D).
    :param y: targets in the same shape.
    """
    check_targets(y, mean)
    if not bool(mean.isfinite().all()):
        raise ValueError("mean has entries that are not finite; check the model")
    return _rmse(mean, y)


def mixture_nll(means: Tensor, sds: Tensor, y: Tensor) -> float:
    """
    Predictive NLL per row of the equal mixture of draws N(m_s, sd_s^2), (S, N) or (S, N, T), at y (N,) or (N, T).

    `sds` has the shape of `means`, or is one number per draw (S,).

    :param y: targets (N,) or (N, T).
    """
    if means.ndim == 0 or len(means) == 0 or sds.shape not in (means.shape, means.shape[:1]):
        raise ValueError(
            f"means have shape {tuple(means.shape)} and sds {tuple(sds.shape)}; give draws first, (S, N, ...), S >= 1"
        )
    check_targets(y, means[0])
    check_moments(means, sds)
    return float(-log_mean_exp(torch.stack([_log_density(m, s, y) for m, s in zip(means, sds, strict=True)])).mean())


def gaussian_metrics(mean: Tensor, sd: Tensor, y: Tensor, levels: Sequence[float] = LEVELS) -> dict[str, float]:
    """
    Return rmse, pred_nll and the coverage of central intervals of one Gaussian per entry; sd may be one number.

    :param mean: means (N,) or (N, D).
    :param sd: standard deviations in the shape of `mean`.
    :param y: targets in the same shape.
    :param levels: of the central intervals whose coverage is counted.
    """
    check_levels(levels)
    check_targets(y, mean)
    if sd.shape not in (y.shape, torch.Size([])):
        raise ValueError(
            f"sd has shape {tuple(sd.shape)} and y {tuple(y.shape)}; give one sd per entry, or one for all"
        )
    check_moments(mean, sd)
    return _gaussian_metrics(mean, sd, y, levels)


def _rmse(mean: Tensor, y: Tensor) -> float:
    return float((wide(mean) - wide(y)).square().mean().sqrt())


def _gaussian_metrics(mean: Tensor, sd: Tensor, y: Tensor, levels: Sequence[float]) -> dict[str, float]:
    cdf = _cdf(mean, sd, y)
    return _real_metrics(mean, y, Scored(_log_density(mean, sd, y), cdf, cdf), levels)


def _real_metrics(mean: Tensor, y: Tensor, scored: "Scored", levels: Sequence[float]) -> dict[str, float]:
    return {
        **({"rmse": _rmse(mean, y)} if bool(mean.isfinite().all()) else {}),
        "pred_nll": float(-scored.log_density.mean()),
        **_coverage(scored, levels),
    }


# accumulators: one draw at a time, memory constant in S


@final
class ClassificationAccumulator:
    """
    The 1-sample and S-sample columns of the results table from draws that come one at a time.

    `update` takes one draw's log-probabilities (N, K); the order of rows is that of `labels` (N,).

    :param bins: how many bins of confidence.
    """

    def __init__(self, labels: Tensor, *, bins: int = BINS) -> None:
        if labels.ndim != 1 or labels.is_floating_point() or len(labels) == 0:
            raise ValueError(f"labels are {labels.dtype} of shape {tuple(labels.shape)}; give integers of shape (N,)")
        check_bins(bins)
        self.labels = labels.long()
        self.bins = bins
        self.predictive = PredictiveAccumulator()
        self._single = _Moments()

    @property
    def num_draws(self) -> int:
        """How many draws were added."""
        return self.predictive.num_draws

    def update(self, log_probs: Tensor) -> None:
        """
        Add one draw: log-probabilities (N, K) of one weight sample for the whole set.

        :param log_probs: log-probabilities (N, K).
        """
        _check_rows(log_probs, self.labels)
        p, entropies = self.predictive.update(log_probs)
        self._single.update(_classification_metrics(wide(log_probs.detach()), self.labels, self.bins, p, entropies))

    def one_draw(self) -> dict[str, float]:
        """Mean of each single draw's metrics; from two draws on also their sd over draws, as `<name>_sd`."""
        return self._single.results()

    def s_draws(self) -> dict[str, float]:
        """Metrics of the averaged predictive, its gibbs_nll, and the mean aleatoric and epistemic entropy."""
        predictive = self.predictive
        return {
            **_classification_metrics(predictive.log_probs, self.labels, self.bins),
            "gibbs_nll": self.one_draw()["pred_nll"],
            "aleatoric": float(predictive.aleatoric.mean()),
            "epistemic": float(predictive.epistemic.mean()),
        }

    def results(self) -> dict[str, dict[str, float]]:
        """Return {"one_draw": ..., "s_draws": ...}."""
        return {"one_draw": self.one_draw(), "s_draws": self.s_draws()}


@final
@dataclass(frozen=True, eq=False)
class Scored:
    """
    What one draw says of y: its log-density (N,), and F(y) and F(y-) in y's shape, which differ for counts.

    :param log_density: (N,).
    :param cdf: F(y).
    :param below: F(y-), the probability of less than y.
    """

    log_density: Tensor
    cdf: Tensor
    below: Tensor


@final
class RegressionAccumulator:
    """
    The 1-sample and S-sample columns for regression: draws N(mean, sd^2) that come one at a time, in the units of y.

    y is (N,) or (N, T); the T targets of a row are independent given the weights: their densities multiply.
    Standardised predictions go through `Standardiser.invert` and `Standardiser.invert_sd` first. Draws of another law
    than the Normal bring what they say of y themselves.

    :param y: targets (N,) or (N, T).
    :param levels: of the central intervals whose coverage is counted.
    """

    def __init__(self, y: Tensor, *, levels: Sequence[float] = LEVELS) -> None:
        if y.ndim not in (1, 2) or not y.is_floating_point() or len(y) == 0:
            raise ValueError(f"y is {y.dtype} of shape {tuple(y.shape)}; give real numbers of shape (N,) or (N, T)")
        check_levels(levels)
        check_targets(y, y)
        self.y = wide(y)
        self.levels = tuple(levels)
        self._single = _Moments()
        self._log_sum = torch.empty(0)
        self._cdf = torch.zeros_like(self.y)
        self._below = torch.zeros_like(self.y)
        self._moments = MixtureMoments(self.y.shape, self.y.device)

    @property
    def num_draws(self) -> int:
        """How many draws were added."""
        return self._moments.num_draws

    def update(self, mean: Tensor, sd: Tensor, scored: Scored | None = None) -> None:
        """
        Add one draw: mean and sd of y's shape (sd may be a single number) of one weight sample for the whole set.

        :param scored: what the draw's law says of y; default that of N(mean, sd^2).
        """
        if mean.shape != self.y.shape or sd.shape not in (self.y.shape, torch.Size([])):
            raise ValueError(
                f"mean has shape {tuple(mean.shape)} and sd {tuple(sd.shape)}; one draw covers the whole set: "
                f"both need y's shape {tuple(self.y.shape)}"
            )
        mean, sd = wide(mean.detach()), wide(sd.detach()).expand(self.y.shape)
        if scored is None:
            check_moments(mean, sd)
            cdf = _cdf(mean, sd, self.y)
            scored = Scored(_log_density(mean, sd, self.y), cdf, cdf)
        _check_scored(scored, self.y)
        self._moments.update(mean, sd)
        density = scored.log_density
        self._log_sum = density if self.num_draws == 1 else torch.logaddexp(self._log_sum, density)
        self._cdf += scored.cdf
        self._below += scored.below
        self._single.update(_real_metrics(mean, self.y, scored, self.levels))

    @property
    def mean(self) -> Tensor:
        """Mean of the mixture, in y's shape."""
        return self._moments.mean

    @property
    def aleatoric(self) -> Tensor:
        """Mean over draws of the noise variance, in y's shape."""
        return self._moments.aleatoric

    @property
    def epistemic(self) -> Tensor:
        """Variance over draws of the mean, in y's shape."""
        return self._moments.epistemic

    @property
    def sd(self) -> Tensor:
        """Standard deviation of the mixture: by the law of total variance, the root of aleatoric + epistemic."""
        return self._moments.sd

    @property
    def log_density(self) -> Tensor:
        """Log-density of the mixture at each row of y (N,)."""
        return self._log_sum - math.log(self._moments.counted())

    @property
    def scored(self) -> Scored:
        """What the mixture says of y."""
        s = self._moments.counted()
        return Scored(self.log_density, self._cdf / s, self._below / s)

    @property
    def pit(self) -> Tensor:
        """Distribution function of the mixture at y, in y's shape, randomised for counts: uniform if calibrated."""
        return randomised_pit(self.scored)

    def one_draw(self) -> dict[str, float]:
        """Mean of each single draw's metrics; from two draws on also their sd over draws, as `<name>_sd`."""
        return self._single.results()

    def s_draws(self) -> dict[str, float]:
        """Metrics of the mixture, its gibbs_nll, and the mean sd, noise variance and variance of the mean."""
        s = self._moments.counted()
        spread = {"sd": self.sd, "aleatoric": self.aleatoric, "epistemic": self.epistemic}
        means = {name: float(values.mean()) for name, values in spread.items()}
        return {
            **({"rmse": _rmse(self.mean, self.y)} if bool(self.mean.isfinite().all()) else {}),
            "pred_nll": float(math.log(s) - self._log_sum.mean()),
            **_coverage(self.scored, self.levels),
            "gibbs_nll": self.one_draw()["pred_nll"],
            **{name: value for name, value in means.items() if not math.isnan(value)},
        }

    def results(self) -> dict[str, dict[str, float]]:
        """Return {"one_draw": ..., "s_draws": ...}."""
        return {"one_draw": self.one_draw(), "s_draws": self.s_draws()}


def classification_table(plug_in: Tensor | None, draws: ClassificationAccumulator) -> dict[str, dict[str, float]]:
    """
    Return the columns plug_in (log-probabilities (N, K) at the guide's loc; left out if None), one_draw, s_draws.

    :param plug_in: log-probabilities (N, K), or None.
    :param draws: what took the draws in.
    """
    if plug_in is None:
        return draws.results()
    _check_rows(plug_in, draws.labels)
    check_log_probs(plug_in)
    return {"plug_in": _classification_metrics(wide(plug_in.detach()), draws.labels, draws.bins), **draws.results()}


def regression_table(
    plug_in: tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Scored | None] | None, draws: RegressionAccumulator
) -> dict[str, dict[str, float]]:
    """
    Return the columns plug_in (what `update` takes, at the guide's loc; left out if None), one_draw, s_draws.

    :param plug_in: what the guide's median predicts, or None.
    :param draws: what took the draws in.
    """
    if plug_in is None:
        return draws.results()
    alone = RegressionAccumulator(draws.y, levels=draws.levels)
    alone.update(*plug_in)
    return {"plug_in": alone.one_draw(), **draws.results()}


# intervals over test points


def bootstrap_interval(
    metric: Callable[..., float],
    *rows: Tensor,
    level: float = 0.95,
    num_resamples: int = 1000,
    method: Literal["basic", "percentile"] = "basic",
    seed: int = 0,
) -> tuple[float, float]:
    """
    Bootstrap interval of metric(*rows) over test points: rows, tensors with one first dimension N, are resampled.

    With t the metric and t* its resampled values, "basic" is [2t - t*_hi, 2t - t*_lo] and "percentile" [t*_lo, t*_hi].
    Resampling adds to the calibration error's own upward bias, so percentile intervals are refused for `ece`. Ends that
    an infinite metric leaves undefined are the metric itself.

    :param metric: a function of the rows.
    :param level: of the interval.
    :param num_resamples: how often rows are drawn anew.
    :param method: "basic" or "percentile".
    :param seed: of the resamples.
    """
    if method not in ("basic", "percentile"):
        raise ValueError(f"method is {method!r}; allowed are 'basic' and 'percentile'")
    if metric is ece and method == "percentile":
        raise ValueError("method='percentile' would be biased upward for ece; use method='basic'")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; give the level of the interval in (0, 1), such as 0.95")
    _check_resamples(num_resamples)
    lengths = {len(part) for part in rows}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"the rows have lengths {[len(part) for part in rows]}; give tensors of one length N >= 1")
    n = len(rows[0])
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(num_resamples):
        chosen = torch.randint(n, (n,), generator=generator).to(rows[0].device)
        values.append(metric(*(part[chosen] for part in rows)))
    low, high = _tails(torch.tensor(values, dtype=torch.float64), level)
    value = metric(*rows)
    if method == "basic":
        low, high = 2 * value - high, 2 * value - low
    return (value if math.isnan(low) else low), (value if math.isnan(high) else high)


def _tails(values: Tensor, level: float) -> tuple[float, float]:
    """Return the ends between which the share `level` of the values lies; between infinite ones nothing is averaged."""
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    between: Literal["linear", "nearest"] = "linear" if bool(values.isfinite().all()) else "nearest"
    low, high = cast("list[float]", values.quantile(tails, interpolation=between).tolist())
    return low, high


@final
class _Moments:
    """Mean and sample standard deviation over draws of a dictionary of numbers, by Welford's recursion."""

    def __init__(self) -> None:
        self.sums: dict[str, Welford[float]] = {}

    def update(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.sums.setdefault(name, Welford()).update(value)

    def results(self) -> dict[str, float]:
        if not self.sums:
            raise ValueError("no draw has been added; call update(...) at least once")
        means = {name: sums.mean for name, sums in self.sums.items()}
        several = {name: sums for name, sums in self.sums.items() if sums.count > 1}
        return {**means, **{f"{name}_sd": math.sqrt(sums.variance(1)) for name, sums in several.items()}}


def _binned_gap(p: Tensor, correct: Tensor, bins: int) -> float:
    """Sum over bins of n_b/N |mean of correct - mean of p|; confidences p (N,), correct (N,) 1 or 0."""
    from torchmetrics.functional.classification import binary_calibration_error

    below_one = 1 - torch.finfo(p.dtype).eps
    gap = binary_calibration_error(p.clamp(max=below_one), correct.to(p.dtype), bins, norm="l1", validate_args=False)
    return float(gap)


def _of_label(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(1, labels[:, None])[:, 0]  # (N, K) -> (N,)


def _log_density(mean: Tensor, sd: Tensor, y: Tensor) -> Tensor:
    """Log-density of each row (N,); the targets of a row (N, T) multiply. In float64."""
    mean, sd, y = wide(mean), wide(sd), wide(y)
    density = -0.5 * ((y - mean) / sd).square() - sd.log() - 0.5 * math.log(2 * math.pi)
    return density if y.ndim == 1 else density.sum(1)


def _cdf(mean: Tensor, sd: Tensor, y: Tensor) -> Tensor:
    return cast(Tensor, torch.special.ndtr((wide(y) - wide(mean)) / wide(sd)))


def _coverage(scored: Scored, levels: Sequence[float]) -> dict[str, float]:
    return {f"coverage_{level:g}": float(held(scored, level).double().mean()) for level in levels}


def randomised_pit(scored: Scored) -> Tensor:
    """Return F(y-) + u (F(y) - F(y-)), u uniform from a fixed seed; F(y) where the two are equal."""
    if torch.equal(scored.cdf, scored.below):
        return scored.cdf
    u = torch.rand(scored.cdf.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return scored.below + u.to(scored.cdf) * (scored.cdf - scored.below)


def held(scored: Scored, level: float) -> Tensor:
    """Return whether the central interval of a level holds y, in y's shape."""
    cdf, below = scored.cdf, scored.below
    continuous = (cdf - 0.5).abs() <= level / 2
    return torch.where(cdf == below, continuous, (cdf - 0.5 >= -level / 2) & (below - 0.5 < level / 2))


# checks: of what is handed in, before anything is computed


def check_bins(bins: int) -> None:
    """Raise unless this is a number of bins."""
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
        raise ValueError(f"bins is {bins!r}; give an integer >= 1, such as {BINS}")


def check_levels(levels: Sequence[float]) -> None:
    """Raise unless these are levels of central intervals."""
    for level in levels:
        if not 0 < level < 1:
            raise ValueError(f"level is {level}; give the levels of central intervals in (0, 1), such as 0.9")


def check_labels(labels: Tensor, num_rows: int, num_classes: int) -> Tensor:
    """Return the labels as int64; raise unless they are one per row, each the number of a class."""
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or len(labels) != num_rows:
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}; give integers of shape (N,) with N = {num_rows}"
        )
    low, high = (int(end) for end in labels.long().aminmax())
    if high >= num_classes or low < 0:
        raise ValueError(
            f"labels lie in {low}..{high}; log_probs have {num_classes} classes: "
            f"labels must lie in 0..{num_classes - 1}"
        )
    return labels.long()


def check_predictions(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Check log-probabilities (N, K) and their labels (N,); return the labels as int64."""
    check_log_probs(log_probs)
    return check_labels(labels, *log_probs.shape)


def check_targets(y: Tensor, mean: Tensor) -> None:
    """Raise unless targets are finite real numbers, at least one, and the mean has their shape."""
    if mean.shape != y.shape or y.numel() == 0 or y.is_complex() or mean.is_complex():
        raise ValueError(f"mean has shape {tuple(mean.shape)} and y {tuple(y.shape)}; both need one of (N,) or (N, T)")
    if not bool(y.isfinite().all()):
        row = int((~y.isfinite()).reshape(len(y), -1).any(1).nonzero()[0, 0]) if y.ndim else 0
        raise ValueError(f"row {row} of y is {y[row].tolist() if y.ndim else y}: give finite targets, or leave it out")


def _check_scored(scored: Scored, y: Tensor) -> None:
    if scored.log_density.shape != y.shape[:1] or scored.cdf.shape != y.shape or scored.below.shape != y.shape:
        raise ValueError(
            f"the draw scores {tuple(scored.log_density.shape)} rows and {tuple(scored.cdf.shape)} values; y has shape "
            f"{tuple(y.shape)}: give one log-density per row, and F(y) and F(y-) in y's shape"
        )
    for name, values in (("log-density", scored.log_density), ("F(y)", scored.cdf), ("F(y-)", scored.below)):
        if bool(values.isnan().any()):
            raise ValueError(f"this draw has a {name} that is NaN; check the model")


def _check_resamples(num_resamples: int) -> None:
    if not isinstance(num_resamples, int) or isinstance(num_resamples, bool) or num_resamples < 1:
        raise ValueError(f"num_resamples is {num_resamples!r}; give an integer >= 1, such as 1000")


def _check_rows(log_probs: Tensor, labels: Tensor) -> None:
    if log_probs.ndim != 2 or len(log_probs) != len(labels) or log_probs.shape[1] == 0:
        raise ValueError(
            f"log_probs have shape {tuple(log_probs.shape)}; one draw covers the whole set: "
            f"give (N, K) with N = {len(labels)}"
        )
    check_labels(labels, *log_probs.shape)
