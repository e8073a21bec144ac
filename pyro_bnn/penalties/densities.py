"""
Densities of one weight: entropies, expectations of ln alpha, divergences, and normalising constants.

    Ent N(mu, s^2) = ln(2 pi e s^2) / 2
    KL(N(mu, s^2) || N(m, t^2)) = [s^2 / t^2 + (mu - m)^2 / t^2 - 1 - ln(s^2 / t^2)] / 2
    KL(N(mu, s^2) || Laplace(m, c)) = E|w - m| / c + ln(2 c) - Ent N(mu, s^2),
        E|w - m| = s sqrt(2 / pi) exp(-(mu - m)^2 / (2 s^2)) + (mu - m) erf((mu - m) / (s sqrt 2)).

A density that is known up to its constant kappa is given by its logarithm A: on points that lie a step h apart, where
kappa = h sum exp(A) to rounding for an analytic A, or linear between any points, where the sum over pieces is exact.
The densities of groups of weights and of tables, with their constants, are in `models/penalty_priors.py`.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

__all__ = [
    "expected_log_prob",
    "kl_normal_laplace",
    "kl_normal_normal",
    "l1_distance",
    "log_integral",
    "mass_of_pieces",
    "normal_entropy",
    "over_tensor",
]


def over_tensor(density: Distribution, parameter: Tensor) -> Distribution:
    """Return the density of one weight for every entry of a tensor, independently."""
    return density.expand(parameter.shape).to_event(parameter.dim())  # type: ignore[no-any-return]


def kl_normal_normal(mu: Tensor, sd: Tensor, loc: Tensor | float, scale: Tensor | float) -> Tensor:
    """
    KL(N(mu, sd^2) || N(loc, scale^2)).

    :param mu: means.
    :param sd: standard deviations.
    :param loc: the other law's mean.
    :param scale: its standard deviation.
    """
    ratio = (sd / scale).square()
    return (ratio + ((mu - loc) / scale).square() - 1 - ratio.log()) / 2


def kl_normal_laplace(mu: Tensor, sd: Tensor, loc: Tensor | float, scale: Tensor | float) -> Tensor:
    """
    KL(N(mu, sd^2) || Laplace(loc, scale)).

    :param mu: means.
    :param sd: standard deviations.
    :param loc: the centre of the Laplace law.
    :param scale: its scale.
    """
    shift = (mu - loc) / sd
    mean_abs = sd * (math.sqrt(2 / math.pi) * torch.exp(-shift.square() / 2) + shift * torch.erf(shift / math.sqrt(2)))
    return mean_abs / scale + math.log(2) + torch.log(torch.as_tensor(scale)) - normal_entropy(sd)


def normal_entropy(sd: Tensor) -> Tensor:
    """Ent N(mu, sd^2)."""
    return 0.5 * math.log(2 * math.pi * math.e) + torch.log(sd)


def expected_log_prob(prior: Distribution, mu: Tensor, sd: Tensor) -> Tensor:
    """E ln alpha(mu + sd z), z ~ N(0, 1), by the trapezoidal rule: to rounding if ln alpha is smooth on sd's scale."""
    z = torch.linspace(-8.75, 8.75, 281, dtype=mu.dtype, device=mu.device)
    shares = torch.softmax(-z.square() / 2, 0)  # (281,), spacing 1 / 16
    mu, sd = mu + torch.zeros_like(sd), sd + torch.zeros_like(mu)
    flat = torch.stack([mu.reshape(-1), sd.reshape(-1)], 1)  # (numbers, 2)
    blocks = (flat[start : start + 1024] for start in range(0, max(len(flat), 1), 1024))
    means = [(prior.log_prob(block[:, :1] + block[:, 1:] * z) * shares).sum(-1) for block in blocks]  # each (block,)
    return torch.cat(means).reshape(mu.shape)


def log_integral(A: Tensor, step: float) -> Tensor:
    """Return ln kappa of exp(A) on points that lie a step apart."""
    return torch.logsumexp(A, 0) + math.log(step)


def l1_distance(first: Tensor, second: Tensor, step: float) -> float:
    """L1 distance of two densities given by unnormalised logarithms on one grid."""
    p = torch.exp(first - log_integral(first, step))
    q = torch.exp(second - log_integral(second, step))
    return (p - q).abs().sum().item() * step


def mass_of_pieces(width: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the mass of pieces whose log density is linear from `left` to `right`."""
    mean = torch.exp(torch.maximum(left, right)) * _mean_of_decay((left - right).abs())
    return width * mean


def _mean_of_decay(fall: Tensor) -> Tensor:
    """Return the mean of exp(-fall t) over t in [0, 1]."""
    safe = fall.clamp(min=1e-8)
    return torch.where(fall < 1e-8, 1 - fall / 2, -torch.expm1(-safe) / safe)
