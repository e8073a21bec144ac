"""
How far draws of functions are from a reference, in units of the reference's own deviations.

With the quantiles F^-1, G^-1 of a quantity's draws and of its reference, its reference's mean m and deviation s, the
Wasserstein-1 distance is, at 200 levels u in the middle of equal parts of (0, 1),

    W1 / s = mean over u of |F^-1(u) - G^-1(u)| / s,       the error of the mean  |mean - m| / s,       the ratio sd / s

`wasserstein` and `mean` are averaged over the quantities, `sd_ratio` is their geometric mean.
"""

import torch
from torch import Tensor

__all__ = ["LEVELS", "distance", "distance_to", "quantiles_of"]

LEVELS = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
"""Where quantiles are compared."""


def quantiles_of(draws: Tensor) -> Tensor:
    """
    Return the quantiles of draws at `LEVELS`, (200, Q).

    :param draws: (S, Q).
    """
    return torch.quantile(draws.double(), LEVELS, dim=0)


def distance_to(found: Tensor, quantiles: Tensor, mean: Tensor, sd: Tensor) -> dict[str, float]:
    """
    Return the distances of draws to a reference of which quantiles and moments are known.

    :param found: the draws, (S, Q).
    :param quantiles: of the reference, (200, Q).
    :param mean: of the reference, (Q,).
    :param sd: of the reference, (Q,).
    """
    found = found.double()
    gap = (quantiles_of(found) - quantiles).abs().mean(0)
    spread = found.std(0) if len(found) > 1 else torch.zeros_like(mean)
    ratio = spread.clamp_min(1e-12) / sd
    return {
        "wasserstein": float((gap / sd).mean()),
        "mean": float(((found.mean(0) - mean).abs() / sd).mean()),
        "sd_ratio": float(ratio.log().mean().exp()) if float(spread.max()) > 1e-9 else 0.0,
    }


def distance(found: Tensor, reference: Tensor) -> dict[str, float]:
    """
    Return the distances of draws (S, Q) to reference draws (R, Q).

    :param found: the draws.
    :param reference: those they are compared with.

    >>> import torch
    >>> normal = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    >>> far = distance(normal + 1, normal)  # one deviation off everywhere
    >>> round(far["wasserstein"], 2), round(far["mean"], 2), round(far["sd_ratio"], 2)
    (1.0, 1.0, 1.0)
    """
    reference = reference.double()
    return distance_to(found, quantiles_of(reference), reference.mean(0), reference.std(0))
