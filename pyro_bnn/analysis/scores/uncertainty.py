"""
Uncertainty of predictions: what more data could remove, and what it could not.

Classes, with log p_s (S, N, K) the log-probabilities of draw s and p = mean_s p_s:

    total       H(p)                         entropy of the averaged predictive
    aleatoric   mean_s H(p_s)                what a single network is unsure of
    epistemic   mean_s KL(p_s || p)          mutual information of label and weights; equals total - aleatoric

Numbers, with means m_s and noise variances v_s, by the law of total variance:

    total       mean_s v_s + var_s m_s
    aleatoric   mean_s v_s
    epistemic   var_s m_s                    divisor S: the draws are the mixture, not a sample of it

Depeweg et al. 2018, arXiv:1710.07283. These functions take all draws at once; `Posterior.uncertainty` streams them and
keeps its sums in float64. The difference total - aleatoric loses digits where both are near log K; the mean KL does
not, and is never negative beyond rounding.
"""

import torch
from torch import Tensor

from pyro_bnn.analysis.scores.metrics import log_mean_exp
from pyro_bnn.common.mixtures import check_log_probs, check_moments, entropy_of_rows
from pyro_bnn.posterior import Uncertainty

__all__ = ["Uncertainty", "entropy_decomposition", "mutual_information", "variance_decomposition"]


def _check_draws(draws: Tensor, name: str) -> None:
    if draws.ndim < 2 or len(draws) == 0 or not draws.is_floating_point():
        raise ValueError(f"{name} are {draws.dtype} of shape {tuple(draws.shape)}; give draws first: (S, N, ...)")


def mutual_information(log_probs: Tensor) -> Tensor:
    """
    Mean over draws of KL(p_s || p), in nats: log-probabilities (S, N, K) -> (N,).

    :param log_probs: log-probabilities of the draws, (S, N, K).
    """
    _check_draws(log_probs, "log_probs")
    check_log_probs(log_probs, shape="(..., K)")
    p = log_probs.exp()
    gap = log_probs - log_mean_exp(log_probs)  # (S, N, K); -inf - -inf where no draw gives a class any mass
    return torch.where(p > 0, p * gap, torch.zeros_like(p)).sum(-1).mean(0)


def entropy_decomposition(log_probs: Tensor) -> Uncertainty:
    """
    Return total, aleatoric and epistemic uncertainty (N,) in nats of draws of log-probabilities (S, N, K).

    :param log_probs: log-probabilities of the draws, (S, N, K).
    """
    _check_draws(log_probs, "log_probs")
    check_log_probs(log_probs, shape="(..., K)")
    total, aleatoric = entropy_of_rows(log_mean_exp(log_probs)), entropy_of_rows(log_probs).mean(0)
    return Uncertainty(total, aleatoric, total - aleatoric)


def variance_decomposition(means: Tensor, sds: Tensor) -> Uncertainty:
    """
    Return total, aleatoric and epistemic variance of draws N(m_s, sd_s^2), (S, N) or (S, N, D).

    :param means: the draws' means (S, N) or (S, N, D).
    :param sds: their standard deviations, in the shape of `means`.
    """
    _check_draws(means, "means")
    if sds.ndim and sds.shape != means.shape and sds.shape != means.shape[1:]:
        raise ValueError(
            f"sds have shape {tuple(sds.shape)} and means {tuple(means.shape)}; give one sd per mean, per row, or one"
        )
    check_moments(means, sds)
    aleatoric = sds.square().expand_as(means).mean(0)
    epistemic = means.var(0, correction=0)
    return Uncertainty(aleatoric + epistemic, aleatoric, epistemic)
