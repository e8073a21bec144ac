"""
The deviations that a guide finds of a posterior whose weights are correlated, beside the exact ones.

A line through 20 rows with known noise, whose inputs lie around 2, so that slope and intercept have a correlation of
-.9. Its posterior N(m, C) is known (:mod:`pyro_bnn.references.exact`); the best independent normals in KL(q || p) have
the deviations 1 / sqrt((C^-1)_ii), which is sqrt(1 - rho^2) of the exact ones.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyro_bnn.guides import AutoFullRankNormal, AutoLowRankNormal, AutoMeanFieldNormal
from pyro_bnn.inference import fit_many
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite
from pyro_bnn.references.exact import linear_posterior

__all__ = ["GUIDES", "NOISE", "rows", "widths"]

NOISE = 0.5
GUIDES: dict[str, Any] = {
    "mean field": AutoMeanFieldNormal,
    "low rank 1": lambda model: AutoLowRankNormal(model, rank=1),
    "low rank 5": lambda model: AutoLowRankNormal(model, rank=5),
    "full rank": AutoFullRankNormal,
}
"""Words -> the guide."""


def rows() -> tuple[Tensor, Tensor]:
    """Return x (20, 1) and y (20,) of the line."""
    random = np.random.default_rng(2)
    x = random.normal(size=20) + 2
    y = 0.7 * x - 0.4 + NOISE * random.normal(size=20)
    return torch.as_tensor(x[:, None], dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)


def widths(guide: str, steps: int = 3000, members: int = 16, seed: int = 0) -> dict[str, float]:
    """
    Return the deviations that a guide finds, in units of the exact ones: their mean, the least and the most.

    :param guide: one of `GUIDES`.
    :param steps: of Adam, of all rows.
    :param members: how many are trained, from seeds of their own.
    :param seed: of the first.
    """
    if guide not in GUIDES:
        raise ValueError(f"guide={guide!r} is not compared: choose one of {', '.join(GUIDES)}")
    x, y = rows()
    _, covariance = linear_posterior(x, y, NOISE, 1.0)
    exact = covariance.diagonal().sqrt()  # of slope and intercept
    independent = torch.linalg.inv(covariance).diagonal().rsqrt()
    torch.manual_seed(seed)
    law = likelihoods.Gaussian(NOISE)
    models = [BNN(nn.Linear(1, 1), priors.Normal(), law, num_data=len(y)) for _ in range(members)]
    guides = [GUIDES[guide](model) for model in models]
    optim = PerSite(loc=Adam({"lr": 0.01}), scale=Adam({"lr": 0.01}), schedule=Cosine())
    fit_many(models, guides, optim, (x, y), epochs=steps, batch_size=len(y), seed=seed, history=False)
    sites = ("net.weight", "net.bias")
    found = torch.stack([torch.cat([q.site(name).scale.reshape(-1) for name in sites]).double() for q in guides])
    ratio = found / exact  # (members, 2)
    return {
        "exact_slope": float(exact[0]),
        "exact_intercept": float(exact[1]),
        "correlation": float(covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])),
        "independent": float((independent / exact).mean()),
        "ratio": float(ratio.mean()),
        "least": float(ratio.min()),
        "most": float(ratio.max()),
        "members": members,
    }
