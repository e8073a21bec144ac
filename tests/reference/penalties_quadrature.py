"""Slow, literal twins of the penalty formulas: adaptive quadrature and loops over units, from the definitions."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from scipy.integrate import quad


def gaussian(x: float, mu: float, sd: float) -> float:
    return math.exp(-((x - mu) ** 2) / (2 * sd**2)) / (sd * math.sqrt(2 * math.pi))


def kl_from_normal(log_alpha: Callable[[float], float], mu: float, sd: float, breaks: Sequence[float] = ()) -> float:
    """KL(N(mu, sd^2) || alpha): integral of q (ln q - ln alpha), split where ln alpha has kinks."""
    edges = [mu - 12 * sd, *sorted(b for b in (*breaks, mu) if abs(b - mu) < 12 * sd), mu + 12 * sd]

    def integrand(x: float) -> float:
        log_q = -((x - mu) ** 2) / (2 * sd**2) - math.log(sd * math.sqrt(2 * math.pi))
        return math.exp(log_q) * (log_q - log_alpha(x))

    return sum(quad(integrand, a, b, epsabs=1e-12, epsrel=1e-12, limit=200)[0] for a, b in pairwise(edges))


def group_lasso_log_z(size: int, rate: float) -> float:
    """Surface of the unit sphere times the integral of r^(D-1) exp(-rate r), in log space around its peak."""
    surface = math.log(2) + size / 2 * math.log(math.pi) - math.lgamma(size / 2)
    peak = (size - 1) / rate
    top = (size - 1) * math.log(peak) - rate * peak if size > 1 else 0.0

    def radial(r: float) -> float:
        return math.exp((size - 1) * math.log(r) - rate * r - top) if size > 1 else math.exp(-rate * r)

    width = math.sqrt(size) / rate
    edges = [1e-300, peak + 1e-12, peak + 10 * width, peak + 60 * width]
    total = sum(quad(radial, a, b, epsabs=1e-13, epsrel=1e-12, limit=200)[0] for a, b in pairwise(edges))
    return surface + top + math.log(total)


def group_norm_sum(weight: np.ndarray, groups: str) -> float:
    """sum_g ||w_g||, one unit or channel at a time."""
    count = weight.shape[0] if groups == "incoming" else weight.shape[1]
    total = 0.0
    for j in range(count):
        group = weight[j] if groups == "incoming" else weight[:, j]
        total += math.sqrt(sum(float(w) ** 2 for w in group.flatten()))
    return total


def penalised_loss(
    mean_nll: float, weights: Mapping[str, np.ndarray], kind: str, lambdas: Mapping[str, float], factor: float
) -> float:
    """The mean nll + lambda sum_l lambda_l r(w_l); vectors carry the squared norm."""
    total = 0.0
    for name, w in weights.items():
        if kind == "L2" or w.ndim < 2:
            r = sum(float(v) ** 2 for v in w.flatten())
        elif kind == "L1":
            r = sum(abs(float(v)) for v in w.flatten())
        else:
            r = group_norm_sum(w, kind)
        total += lambdas[name] * r
    return mean_nll + factor * total
