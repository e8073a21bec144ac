"""
Which process noise gives which normaliser (Aitchison 2020, related work and appendix C).

A scalar Kalman filter sees gradients of mean square g^2. An observation takes s_post = 1 / (1 / s_prior + g^2); then
the prior of the next step follows by either rule,

    fixed noise       s_prior = (1 - eta^2 / 2 sigma^2)^2 s_post + eta^2       AdaBayes, eq. 16b
    fading memory     s_prior = s_post / (1 - lambda)                          noise proportional to s_post (Ollivier)

and the step is s_post g. At the fixed points, with a = 1 - eta^2 / 2 sigma^2,

    fixed noise       a^2 g^2 s^2 + (1 - a^2 + eta^2 g^2) s - eta^2 = 0
    fading memory     1 / s = (1 - lambda) / s + g^2,   s = lambda / g^2

So fading memory divides by the mean square, slope -2 of log s on log g, everywhere. Fixed noise has three regimes:
s = sigma^2 for g << eta / sigma^2 (SGD, slope 0), s = eta / g in between (Adam's root mean square, slope -1), and
s = 1 / g^2 for g >> 1 / eta (slope -2 again: the last observation outweighs memory). The source names the first two.

The filter with fixed noise is this library's optimizer, run on constant gradients with eta = 1e-3 and sigma^2 =
0.1 / 128 until it stands still; s is read off its steps. The filter with fading memory is iterated here.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_bnn.optim.torch_optim import AdaBayes
from pyro_bnn.studies.findings import Finding, holds
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["BATCH", "ETA", "LR_SGD", "SIGMA2", "STUDY", "fading_memory", "learning_rates", "slope"]

ETA, LR_SGD, BATCH = 1e-3, 0.1, 128
SIGMA2 = LR_SGD / BATCH
_FADING = 1e-3
_STEPS = 8000  # the slowest memory fades as exp(-2 eta^2 t / sigma^2): to 1e-9
_POINTS = 25


def learning_rates(gradients: NDArray[np.float64], steps: int = _STEPS) -> NDArray[np.float64]:
    """Return the step of AdaBayes (eq. 16 and 17 as printed) per unit of a constant gradient of the summed loss."""
    g = torch.from_numpy(np.asarray(gradients, dtype=float))
    w = torch.zeros_like(g, requires_grad=True)
    optim = AdaBayes([w], lr=ETA, lr_sgd=LR_SGD, batch_size=BATCH, decay="first_order")
    w.grad = -g / BATCH  # of the mean loss, which is descended
    for _ in range(steps - 1):
        optim.step()
    with torch.no_grad():
        w.zero_()
    optim.step()
    return np.array((w.detach() / g).numpy())


def fading_memory(gradients: NDArray[np.float64], steps: int = 40_000) -> NDArray[np.float64]:
    """Return s_post of the filter whose noise is proportional to s_post."""
    g = np.asarray(gradients, dtype=float)
    prior = np.full_like(g, SIGMA2)
    post = prior
    for _ in range(steps):
        post = 1 / (1 / prior + g**2)
        prior = post / (1 - _FADING)
    return post


def slope(noise: str, low: float, high: float, seed: int) -> dict[str, float]:
    """Return the slope of log s on log g for gradients between `low` and `high`, and the ends of s."""
    g = np.geomspace(low, high, _POINTS)
    s = learning_rates(g) if noise == "fixed" else fading_memory(g)
    return {"slope": float(np.polyfit(np.log(g), np.log(s), 1)[0]), "first": float(s[0]), "last": float(s[-1])}


_REGIMES = {  # g between the corners eta / sigma^2 = 1.28 and 1 / eta = 1000, a decade from each; and beyond them
    "small gradients": (1e-4 * ETA / SIGMA2, 1e-2 * ETA / SIGMA2),
    "between": (10 * ETA / SIGMA2, 0.1 / ETA),
    "large gradients": (1e2 / ETA, 1e4 / ETA),
}


def _design(scale: Scale) -> list[Trial]:
    return [
        Trial(
            f"{noise}, {regime}",
            0,
            compute=f"{__name__}:slope",
            arguments={"noise": noise, "low": low, "high": high},
        )
        for noise in ("fixed", "fading")
        for regime, (low, high) in _REGIMES.items()
        if noise == "fixed" or regime != "small gradients"  # there fading memory has not forgotten its start
    ]


def _judge(results: Results) -> list[Finding]:
    def found(cell: str, statement: str, target: float, *, decides: bool = True) -> Finding:
        return holds(statement, float(results.values(cell, "slope")[0]), target, 0.05, decides=decides)

    return [
        found("fixed, between", "Fixed noise: log s on log g has slope -1 (root mean square)", -1.0),
        found("fading, between", "Fading memory: log s on log g has slope -2 (mean square)", -2.0),
        found("fixed, small gradients", "Fixed noise, g below 0.01 eta / sigma^2: slope 0 (SGD)", 0.0),
        found("fading, large gradients", "Fading memory, g above 100 / eta: slope -2", -2.0, decides=False),
        found("fixed, large gradients", "Fixed noise, g above 100 / eta: slope -1 still", -1.0, decides=False),
    ]


STUDY = Study(
    name="adabayes-normaliser",
    claim="Process noise proportional to the posterior covariance gives a mean-square gradient normaliser; fixed "
    "process noise gives the root-mean-square normaliser of Adam.",
    source="Aitchison 2020, Bayesian filtering unifies adaptive and non-adaptive neural network optimization",
    place="related work, and appendix C",
    varied="the process noise of a scalar filter on constant gradients: fixed, or in proportion to its variance.",
    measured="the slope of the logarithm of the learning rate on that of the gradient, at the fixed point.",
    rule="Confirmed if the slopes are -1 for fixed noise (gradients between 10 eta / sigma^2 and 0.1 / eta), -2 for "
    "fading memory, and 0 for fixed noise at small gradients, each within 0.05; contradicted otherwise. Beyond 1 / eta "
    "the slopes are shown and do not decide.",
    not_done="Nothing.",
    design=_design,
    judge=_judge,
    metric=("slope", "slope of log s on log g"),
    scales=("smoke", "source"),
    explained="Fixed noise gives the root mean square only up to gradients of 1 / eta = 1000 of the summed loss: "
    "beyond, a single observation outweighs the memory and the normaliser is the mean square again.",
)
