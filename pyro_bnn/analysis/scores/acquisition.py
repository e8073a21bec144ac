"""
Active learning: which unlabelled inputs to have labelled next.

    bald      I(y; w | x) = H(mean_s p_s) - mean_s H(p_s)    where draws disagree, each sure of itself
    entropy   H(mean_s p_s)                                  where the average is unsure, noise included
    variance  var_s m_s                                      its counterpart for numbers

Houlsby et al. 2011, arXiv:1112.5745 (BALD); Gal et al. 2017, arXiv:1703.02910. Scores are of single rows: the best k
rows may resemble each other.
"""

from typing import Literal, get_args

from torch import Tensor

from pyro_bnn.posterior import Posterior

__all__ = ["Score", "acquire", "acquisition_scores"]

Score = Literal["bald", "entropy", "variance"]
"""What a label is wanted for: mutual information, entropy, or the variance of a regression."""


def acquisition_scores(
    posterior: Posterior, x: Tensor, score: Score = "bald", num_samples: int = 100, *, seed: int | None = None
) -> Tensor:
    """
    Return the score (N,) of every row of the pool x, high where a label would help.

    :param posterior: the fitted posterior.
    :param x: the pool (N, ...).
    :param score: "bald" (mutual information), "entropy", or "variance" for numbers.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; None draws from the random state as it is.
    """
    if score not in get_args(Score):
        raise ValueError(f"score={score!r} is unknown; choose one of {', '.join(get_args(Score))}")
    classes = isinstance(posterior.predict(x[:1], 1, seed=0), Tensor)
    if classes == (score == "variance"):
        what, fits = ("classes", "'bald' or 'entropy'") if classes else ("numbers", "'variance'")
        raise ValueError(f"score={score!r} does not fit a model that predicts {what}: use {fits}")
    uncertainty = posterior.uncertainty(x, num_samples, seed=seed)
    values = uncertainty.total if score == "entropy" else uncertainty.epistemic
    return values.sum(-1) if values.ndim > 1 else values


def acquire(
    posterior: Posterior,
    x: Tensor,
    count: int,
    score: Score = "bald",
    num_samples: int = 100,
    *,
    seed: int | None = None,
) -> Tensor:
    """
    Return the indices (count,) of the rows of the pool x with the highest score, best first.

    :param posterior: the fitted posterior.
    :param x: the pool (N, ...).
    :param count: how many rows.
    :param score: "bald" (mutual information), "entropy", or "variance" for numbers.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; None draws from the random state as it is.
    """
    if not 1 <= count <= len(x):
        raise ValueError(f"count={count} of a pool of {len(x)} rows: pass 1 to {len(x)}")
    return acquisition_scores(posterior, x, score, num_samples, seed=seed).topk(count).indices
