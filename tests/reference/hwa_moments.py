"""Hyperparameter weight averaging, literally: moments of trajectories in two passes, and the printed recursions."""

import torch
from torch import Tensor


def two_pass(mus: Tensor, sigmas: Tensor) -> dict[str, Tensor]:
    """Moments of (n, P) means and deviations."""
    n = len(mus)
    mean = sum(mus) / n
    within = sum(s * s for s in sigmas) / n
    between = sum((m - mean) * (m - mean) for m in mus) / n
    return {"mean": mean, "within": within, "trajectory": between, "total": within + between}


def mixture_moments(mus: Tensor, sigmas: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of draws from the even mixture of N(mu_j, sigma_j^2)."""
    which = torch.randint(len(mus), (draws,))
    w = mus[which] + sigmas[which] * torch.randn(draws, mus.shape[1], dtype=mus.dtype)
    return w.mean(0), w.var(0)


def printed_eq_4(mus: list[float]) -> list[float]:
    """sigma^HWA after each snapshot of a scalar, by algorithm 1 as printed."""
    mean = sigma = 0.0
    found = []
    for n, mu in enumerate(mus):
        mean = (n * mean + mu) / (n + 1)
        sigma = (n * sigma + mu**2) / (n + 1) - mean**2
        found.append(sigma)
    return found


def dense_low_rank(mus: Tensor, sigmas: Tensor, rank: int) -> Tensor:
    """diag(within) + diag(between) / 2 + D D' / (2 (R - 1)) with D_r = mu_r - mean(mu_1..mu_r), last `rank`, (P, P)."""
    moments = two_pass(mus, sigmas)
    columns = [mus[r] - mus[: r + 1].mean(0) for r in range(len(mus))][-rank:]
    outer = sum(torch.outer(c, c) for c in columns)
    return torch.diag(moments["within"] + moments["trajectory"] / 2) + outer / (2 * (len(columns) - 1))
