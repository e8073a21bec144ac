"""
From a penalty to its prior (Wolinski, Charpiat and Ollivier 2022, theorem).

Variational inference minimises E_beta[-ln p(y | x, w)] + KL(beta || alpha); training with a penalty on the parameters
(mu, nu) of beta minimises E_beta[-ln p(y | x, w)] + r_nu(mu). They are one objective if r = KL(beta || alpha) + K. For
a family that is translated, beta_{mu, nu}(w) = beta_{0, nu}(w - mu), the theorem says that such a prior exists if and
only if

    A = -Ent(beta_{0, nu}) - F^-1[ F r_nu / F beta_check ]

does not depend on nu and exp(A) has a finite integral kappa; then alpha = exp(A) / kappa and K = -ln kappa. For a
normal family beta_check = beta and 1 / F beta = exp(s^2 omega^2 / 2): the theorem is a deconvolution.

Three directions are tested, with the normal family.

There and back. For known priors (a normal, two mixtures of two, and ln alpha = -w^2 / 2 + cos(3 w) / 2) the penalty
r(mu) = KL(N(mu, s^2) || alpha) is computed by adaptive quadrature or from its closed form, the theorem is applied to it
by this library's `implied_prior`, and the L1 distance of densities is taken; 2 would be the distance of disjoint ones.

A condition that fails. r = lambda mu^2 has A = -ln(2 pi e s^2) / 2 - lambda (mu^2 - s^2), which depends on s: there is
a prior for a fixed s, and none for a trained one. Its companion a(s^2) gives it a prior.

A spectrum that fails. F|mu| / F beta is -2 omega^-2 exp(s^2 omega^2 / 2), which no function has: whatever is convolved
with a normal density is analytic, and |mu| and the group norm are not. These penalties have priors for point estimates
only, where beta is a point mass: there |mu| belongs to the Laplace density.
"""

import math
from collections.abc import Callable

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.interpolate import CubicSpline
from torch import Tensor

from pyro_bnn.penalties import (
    L1,
    L2,
    DependsOnScaleError,
    GroupLasso,
    NoPriorError,
    Penalty,
    SpectrumGrowsError,
    gaussian_penalty,
    implied_prior,
    prior_from_penalty,
)
from pyro_bnn.studies.findings import Finding, holds
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY", "conditions", "divergence", "log_kappa", "log_prior", "naive", "recovered"]

_SD = 0.3
_SCALES_OF_MIXTURE = {"even mixture": 0.5, "uneven mixture": 0.8}
_PRIORS = ("normal", "even mixture", "uneven mixture", "wave")


def log_prior(name: str, w: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln alpha up to a constant."""
    if name == "normal":
        return np.asarray(-(((w - 0.4) / 0.7) ** 2) / 2)
    if name == "wave":
        return np.asarray(-(w**2) / 2 + 0.5 * np.cos(3 * w))
    share = _SCALES_OF_MIXTURE[name]
    left, right = (np.log(p) - ((w - m) / 0.7) ** 2 / 2 for p, m in ((1 - share, -1.5), (share, 1.5)))
    return np.asarray(np.logaddexp(left, right))


def log_kappa(name: str) -> float:
    """Return the logarithm of the integral of the unnormalised prior."""
    whole = quad(lambda w: math.exp(float(log_prior(name, np.array(w)))), -15, 15, epsabs=1e-13, limit=400)[0]
    return math.log(whole)


def divergence(name: str, mu: NDArray[np.float64], sd: float) -> NDArray[np.float64]:
    """Return KL(N(mu, sd^2) || alpha) by Gauss-Hermite quadrature of 120 points, alpha normalised."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    expected = log_prior(name, mu[..., None] + sd * nodes) @ weights / math.sqrt(2 * math.pi)
    return np.asarray(-0.5 * math.log(2 * math.pi * math.e * sd**2) - expected + log_kappa(name))


def _penalty(name: str) -> Callable[[Tensor, float], Tensor]:
    return lambda mu, sd: torch.from_numpy(divergence(name, mu.numpy(), sd))


def recovered(prior: str, seed: int) -> dict[str, float]:
    """Return the L1 distance of the prior that the theorem gives from the prior behind the penalty."""
    solution = implied_prior(_penalty(prior), _SD)
    w = np.linspace(-12, 12, 48_001)
    density = np.exp(log_prior(prior, w) - log_kappa(prior))
    found = solution.prior.log_prob(torch.from_numpy(w)).exp().numpy()
    return {
        "l1": float(np.trapezoid(np.abs(found - density), w)),
        "constant": solution.constant,
        "log10_l1": math.log10(float(np.trapezoid(np.abs(found - density), w))),
    }


def naive(prior: str, seed: int) -> dict[str, float]:
    """Return the L1 distance where exp(-r) is taken for the prior, as if beta were a point mass."""
    w = np.linspace(-12, 12, 48_001)
    density = np.exp(log_prior(prior, w) - log_kappa(prior))
    unnormalised = np.exp(-CubicSpline(w[::40], divergence(prior, w[::40], _SD))(w))
    distance = float(np.trapezoid(np.abs(unnormalised / np.trapezoid(unnormalised, w) - density), w))
    return {"l1": distance, "log10_l1": math.log10(distance)}


def _refused(error: type[NoPriorError], solve: Callable[[], object]) -> bool:
    try:
        solve()
    except error:
        return True
    return False


def conditions(seed: int) -> dict[str, float]:
    """Return 1 for each statement of the theorem's conditions that holds, else 0, and how far A moves with s."""
    fixed = implied_prior(L2(2.0), 0.3)
    square: Callable[[Tensor, float], Tensor] = lambda mu, sd: 2 * mu**2  # noqa: E731
    whole = gaussian_penalty(0.7)

    def norm(penalty: Penalty, sd: float) -> object:
        return prior_from_penalty(penalty, sd, shape=(2, 3))

    laplace = implied_prior(L1(4.0), 0.0).prior
    return {
        "square, fixed scale": float(abs(float(fixed.prior.stddev) - 0.5) < 1e-9),
        "square, trained scale": float(_refused(DependsOnScaleError, lambda: implied_prior(square, [0.1, 0.2, 0.4]))),
        "square with a(s^2), trained scale": float(
            abs(float(implied_prior(whole, [0.1, 0.2, 0.4]).prior.stddev) - 0.7) < 1e-9
        ),
        "absolute value": float(_refused(SpectrumGrowsError, lambda: implied_prior(L1(2.0), _SD))),
        "absolute value, narrow": float(_refused(SpectrumGrowsError, lambda: implied_prior(L1(2.0), 0.05))),
        "group norm": float(_refused(SpectrumGrowsError, lambda: norm(GroupLasso(), _SD))),
        "absolute value, point": float(isinstance(laplace, dist.Laplace) and abs(float(laplace.scale) - 0.25) < 1e-9),
    }


_CONDITIONS = {
    "square, fixed scale": "lambda mu^2 at a fixed s has the prior N(0, 1 / 2 lambda)",
    "square, trained scale": "lambda mu^2 alone with a trained s has none",
    "square with a(s^2), trained scale": "Its companion a(s^2) gives it a prior",
    "absolute value": "|mu| with a normal family has none, s = 0.3",
    "absolute value, narrow": "|mu| with a normal family has none, s = 0.05",
    "group norm": "The group norm with a normal family has none",
    "absolute value, point": "|mu| with point masses has the Laplace prior",
}


def _design(scale: Scale) -> list[Trial]:
    both = [
        Trial(f"{name}, {way}", 0, compute=f"{__name__}:{function}", arguments={"prior": name})
        for way, function in (("theorem", "recovered"), ("exp(-r)", "naive"))
        for name in _PRIORS
    ]
    return [*both, Trial("conditions", 0, compute=f"{__name__}:conditions")]


def _judge(results: Results) -> list[Finding]:
    def l1(name: str, way: str) -> float:
        return float(results.values(f"{name}, {way}", "l1")[0])

    return [
        *(holds(f"{name}: L1 distance of the recovered prior", l1(name, "theorem"), 0.0, 1e-3) for name in _PRIORS),
        *(holds(words, results.values("conditions", key)[0], 1.0, 0.0) for key, words in _CONDITIONS.items()),
        *(
            holds(f"{name}: L1 distance with exp(-r) for the prior", l1(name, "exp(-r)"), 0.0, 1e-3, decides=False)
            for name in _PRIORS
        ),
    ]


STUDY = Study(
    name="penalties-theorem",
    claim="A penalty r on the parameters of a translated family is KL(beta || alpha) + K if and only if A = -Ent - "
    "F^-1[F r / F beta_check] does not depend on the scale and exp(A) is integrable; then alpha = exp(A) / kappa.",
    source="Wolinski, Charpiat and Ollivier 2022, An equivalence between Bayesian priors and penalties in variational "
    "inference",
    place="theorem 2",
    varied="the prior that a penalty is made of; penalties for which a condition fails.",
    measured="the L1 distance of recovered and true prior at s = 0.3; whether penalties without a prior are refused.",
    rule="Confirmed if every recovered density is within 0.001 in L1, and each of the conditions holds or fails as the "
    "theorem says; contradicted otherwise. Taking exp(-r) for the prior is shown and does not decide.",
    not_done="The source's own slides have no numbers. Only the normal family is tested, and point masses.",
    design=_design,
    judge=_judge,
    metric=("log10_l1", "log10 of the L1 distance of the prior"),
    scales=("smoke", "source"),
    explained="exp(-r) is the prior of a penalty for point estimates, and of a quadratic one for any width: smoothing "
    "a parabola only lifts it. L1 and group penalties can be read in a Bayesian way for point estimates only.",
)
