"""REINFORCE with a baseline, draw by draw, for q = prod N(loc, scale^2) and a cost given as a function of w.

gradient = (1/S) sum_s (f(w_s) - b_s) d log q(w_s)/d(loc, scale), f(w) = log q(w) - log p(w) - log p(y|w), where
    d log q / d loc = (w - loc) / scale^2        d log q / d scale = ((w - loc)^2 - scale^2) / scale^3
and b_s is the mean of the other draws' costs.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def scores(w: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return torch.cat([(w - loc) / scale**2, ((w - loc) ** 2 - scale**2) / scale**3])


def leave_one_out(draws: Tensor, loc: Tensor, scale: Tensor, cost: Callable[[Tensor], Tensor]) -> Tensor:
    total = torch.zeros(2 * len(loc), dtype=loc.dtype)
    for s, w in enumerate(draws):
        others = [float(cost(v)) for t, v in enumerate(draws) if t != s]
        baseline = sum(others) / len(others)
        total += (float(cost(w)) - baseline) * scores(w, loc, scale)
    return total / len(draws)


def decaying(draws: Tensor, loc: Tensor, scale: Tensor, cost: Callable[[Tensor], Tensor], decay: float) -> list[Tensor]:
    """One draw per step; the baseline is the weighted mean of the earlier steps' costs, weight decay^(age)."""
    gradients = []
    for t, w in enumerate(draws):
        weights = [decay ** (t - 1 - u) for u in range(t)]
        earlier = [float(cost(draws[u])) for u in range(t)]
        baseline = sum(a * b for a, b in zip(weights, earlier, strict=True)) / sum(weights) if t else 0.0
        gradients.append((float(cost(w)) - baseline) * scores(w, loc, scale))
    return gradients
