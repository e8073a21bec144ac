"""
The update of the averaged variance, as printed (Hyperparameters weight averaging, algorithm 1, equation 4).

With n snapshots taken and a further mean mu, the manuscript prints

    m <- (n m + mu) / (n + 1),        v <- (n v + mu^2) / (n + 1) - m^2                                        (4)

and calls v the variance of the averaged posterior. The first term averages second moments, but v on its right side is a
variance already: the squared mean is taken from it at every step. On the constant trajectory 10, 10, 10, 10, whose
variance is 0, the printed update gives 0, -50, -100, -150; on 1, 3 it gives 1/2 where the variance is 1. With the old
mean in the place of the new, the other way to read the line, 10, 10, 10 ends at -66.7.

What is meant keeps the second moment, q <- (n q + mu^2) / (n + 1) and v = q - m^2, or, the same without cancellation
(Welford),

    v <- n / (n + 1) v + n / (n + 1)^2 (mu - m_old)^2

the variance of the iterates. A mixture of the snapshots N(mu_j, sigma_j^2) has besides it the mean of sigma_j^2, which
(4) leaves out altogether: total variance = mean of variances + variance of means.

`RunningMoments` has all of these: "literal" is (4), "trajectory" the variance of the iterates, "total" that of the
mixture. They are compared with two passes over the trajectory, for constants, for a short count, and for the noisy
stationary trajectories that stochastic gradients with a constant rate leave.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_bnn.inference import RunningMoments
from pyro_bnn.studies.findings import Finding, holds
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY", "trajectory", "variances"]

_TRAJECTORIES = ("constant", "1 and 3", "noise around 0", "noise around 3")
_LENGTH = 40


def trajectory(name: str, seed: int) -> NDArray[np.float64]:
    """Return the means of a trajectory, a number each."""
    if name == "constant":
        return np.full(4, 10.0)
    if name == "1 and 3":
        return np.array([1.0, 3.0])
    draws = np.random.default_rng(seed)
    level, noise = (0.0 if name == "noise around 0" else 3.0), [0.0]
    for _ in range(_LENGTH - 1):
        noise.append(0.8 * noise[-1] + 0.6 * draws.standard_normal())  # stationary variance 1
    return level + np.array(noise)


def _running(mus: NDArray[np.float64], variance: str, sigma: float) -> list[float]:
    moments = RunningMoments(variance)  # type: ignore[arg-type]
    found = []
    for mu in mus:
        moments.update(torch.tensor([mu]), torch.tensor([sigma]))
        found.append(float(moments.variance))
    return found


def _with_old_mean(mus: NDArray[np.float64]) -> list[float]:
    mean = v = 0.0
    found = []
    for n, mu in enumerate(mus):
        v = (n * v + mu**2) / (n + 1) - mean**2
        mean = (n * mean + mu) / (n + 1)
        found.append(v)
    return found


def variances(name: str, seed: int) -> dict[str, float]:
    """Return the variance after the last snapshot by each update, the least seen, and distances from two passes."""
    mus, sigma = trajectory(name, seed), 0.5
    exact = np.array([mus[: n + 1].var() for n in range(len(mus))])
    literal, old = _running(mus, "literal", sigma), _with_old_mean(mus)
    kept, total = _running(mus, "trajectory", sigma), _running(mus, "total", sigma)
    mixture = sigma**2 + exact
    return {
        "exact": float(exact[-1]),
        "literal": literal[-1],
        "literal_least": min(literal),
        "literal_distance": float(np.abs(np.array(literal) - exact).max()),
        "old_mean": old[-1],
        "old_mean_distance": float(np.abs(np.array(old) - exact).max()),
        "trajectory": kept[-1],
        "trajectory_distance": float(np.abs(np.array(kept) - exact).max()),
        "total_distance": float(np.abs(np.array(total) - mixture).max()),
        "literal_sees_sigma": float(np.abs(np.array(literal) - np.array(_running(mus, "literal", 2 * sigma))).max()),
    }


def _design(scale: Scale) -> list[Trial]:
    return [
        Trial(name, seed, compute=f"{__name__}:variances", arguments={"name": name})
        for name in _TRAJECTORIES
        for seed in range(5 if name.startswith("noise") else 1)
    ]


def _judge(results: Results) -> list[Finding]:
    def worst(metric: str) -> float:
        return max(float(results.values(name, metric).max()) for name in _TRAJECTORIES)

    least = min(float(results.values(name, "literal_least").min()) for name in _TRAJECTORIES)
    constant = float(results.values("constant", "literal")[0])
    return [
        holds("Printed: largest distance from the variance of the iterates", worst("literal_distance"), 0.0, 1e-9),
        holds("Printed: 10, 10, 10, 10 has the variance 0", constant, 0.0, 1e-9),
        holds("Printed: the least value is not negative", min(least, 0.0), 0.0, 1e-9),
        holds("Printed, with the old mean: the same distance", worst("old_mean_distance"), 0.0, 1e-9, decides=False),
        holds("Second moment kept: the same distance", worst("trajectory_distance"), 0.0, 1e-9, decides=False),
        holds("Total: distance from the variance of the mixture", worst("total_distance"), 0.0, 1e-9, decides=False),
    ]


STUDY = Study(
    name="hwa-printed-update",
    claim="Averaging the hyperparameters by equation 4 keeps the variance of the posterior along the trajectory.",
    source="Hyperparameters weight averaging in Bayesian neural networks (manuscript)",
    place="algorithm 1, equation 4",
    varied="the trajectory of means: a constant, (1, 3), and stationary noise around 0 and around 3.",
    measured="the variance after every snapshot, by the printed update and by corrected ones, against two passes.",
    rule="Confirmed if the printed update gives the variance of the iterates within 1e-9 on every trajectory and never "
    "a negative number; contradicted otherwise. The corrected updates are shown and do not decide.",
    not_done="Nothing: trainings with the corrected average are a study of their own.",
    design=_design,
    judge=_judge,
    metric=("literal", "variance by the printed update"),
    scales=("smoke", "source"),
    explained="The printed line takes the squared mean from a variance that lost it already, so it falls by that much "
    "at every snapshot: -150 after four equal snapshots of 10. Keeping the second moment gives the variance exactly.",
)
