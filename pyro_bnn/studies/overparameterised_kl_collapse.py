"""
The collapse of the KL as the hidden layer widens (Huix, Majewski, Durmus, Moulines and Korba 2022, proposition).

One hidden layer in mean-field scaling, N units w_j = (a_j, b_j) with priors N(0, 1/5) and normal posteriors q, all
independent:

    f(x) = (1/N) sum_j a_j relu(<b_j, x>),      ELBO_eta = -eta sum_j KL(q_j || p) - sum_i E ell(f(x_i), y_i)

The proposition: with the square loss and eta = 1, KL(q* || p) -> 0 as N -> infinity at the maximum of the ELBO: the
optimal posterior is the prior, and nothing is learnt. The remedy proposed is eta = tau p / N, p the number of rows:
then the KL of a unit is weighed against the loss of a row, whatever N is.

Nothing need be sampled. With z = <b, x> ~ N(m, s^2), and Phi and phi the normal distribution and density,

    E relu(z)   = m Phi(m/s) + s phi(m/s)
    E relu(z)^2 = (m^2 + s^2) Phi(m/s) + m s phi(m/s)

and a independent of b, so that E f = (1/N) sum_j E a_j E relu_j, Var f = (1/N^2) sum_j (E a_j^2 E relu_j^2 -
(E a_j E relu_j)^2) and, with ell the half square, E ell = ((y - E f)^2 + Var f) / 2. The exact ELBO is maximised by
L-BFGS in float64, from next to the prior: a start with narrow posteriors has a KL that swamps the rest.

The rows are p = 30 points of y = sin(3 x) + 1 on [-1, 1], with x and a constant as inputs. (For y = sin 3x alone, an
odd target, the prior is a stationary point at every N.) Widths from N = 10 to 3000, tau = 0.01.
"""

import math

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.inference.kl import balanced_eta
from pyro_bnn.penalties import kl_normal_normal
from pyro_bnn.studies.figures import Curves, Line
from pyro_bnn.studies.findings import Finding, holds
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["PRIOR_SD", "ROWS", "STUDY", "TAU", "divergence", "moments", "optimum", "relu_moments", "rows"]

PRIOR_SD = math.sqrt(1 / 5)
ROWS, TAU = 30, 0.01
_WIDTHS: dict[Scale, tuple[int, ...]] = {
    "smoke": (10, 30, 100),
    "cpu": (10, 30, 100, 300, 1000, 3000),
    "source": (10, 30, 100, 300, 1000, 3000),
}


def rows() -> tuple[Tensor, Tensor]:
    """Return inputs (30, 2), the second a constant, and targets (30,)."""
    x = torch.linspace(-1, 1, ROWS, dtype=torch.float64)
    return torch.stack([x, torch.ones_like(x)], 1), torch.sin(3 * x) + 1


def relu_moments(m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return E relu(z) and E relu(z)^2 of z ~ N(m, s^2)."""
    ratio = m / s
    below = torch.special.ndtr(ratio)
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    return m * below + s * density, (m.square() + s.square()) * below + m * s * density


def moments(loc: Tensor, sd: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return E f and Var f at x (p, D) for units with means and deviations (N, 1 + D), a first."""
    m = loc[:, 1:] @ x.T  # (N, p)
    s = (sd[:, 1:].square() @ x.square().T).sqrt()
    first, second = relu_moments(m, s)
    a, a2 = loc[:, :1], loc[:, :1].square() + sd[:, :1].square()
    units = len(loc)
    return (a * first).sum(0) / units, (a2 * second - (a * first).square()).sum(0) / units**2


def divergence(loc: Tensor, sd: Tensor) -> Tensor:
    """Return sum_j KL(q_j || p)."""
    return kl_normal_normal(loc, sd, 0.0, PRIOR_SD).sum()


def optimum(units: int, scaling: str, seed: int) -> dict[str, float]:
    """Return what the posterior that maximises the ELBO is like; `scaling` is "eta = 1" or "balanced"."""
    x, y = rows()
    eta = 1.0 if scaling == "eta = 1" else balanced_eta(TAU, units, ROWS)
    start = torch.Generator().manual_seed(seed)
    shape = (units, 1 + x.shape[1])
    loc = (0.1 * PRIOR_SD * torch.randn(shape, dtype=torch.float64, generator=start)).requires_grad_()
    log_sd = torch.full(shape, math.log(PRIOR_SD), dtype=torch.float64, requires_grad=True)
    optim = torch.optim.LBFGS(
        [loc, log_sd],
        max_iter=3000,
        history_size=20,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def negative_elbo() -> Tensor:
        mean, variance = moments(loc, log_sd.exp(), x)
        return eta * divergence(loc, log_sd.exp()) + ((y - mean).square() + variance).sum() / 2

    def closure() -> Tensor:
        optim.zero_grad()
        # in units of eta: as wide as the layer is, the gradient of a unit is then of the order of its KL's
        loss = negative_elbo() / eta
        loss.backward()
        return loss

    optim.step(closure)
    with torch.no_grad():
        mean, variance = moments(loc, log_sd.exp(), x)
        kl = float(divergence(loc, log_sd.exp()))
        return {
            "kl": kl,
            "kl_per_unit": kl / units,
            "log10_kl": math.log10(kl),
            "largest_mean": float(mean.abs().max()),
            "mse": float((y - mean).square().mean()),
            "half_variance": float(variance.sum()) / 2,
            "loss": float(negative_elbo()),
        }


def _design(scale: Scale) -> list[Trial]:
    return [
        Trial(
            f"{scaling}, N = {units}",
            0,
            compute=f"{__name__}:optimum",
            arguments={"units": units, "scaling": scaling},
        )
        for scaling in ("eta = 1", "balanced")
        for units in _WIDTHS[scale]
    ]


def _figures(results: Results) -> list[Curves]:
    widths = [int(cell.rpartition(" ")[2]) for cell in results.cells if cell.startswith("eta = 1")]
    lines = []
    for scaling in ("eta = 1", "balanced"):
        kl = [float(results.values(f"{scaling}, N = {units}", "kl_per_unit")[0]) for units in widths]
        lines.append(Line(scaling, widths, kl))
    return [Curves("KL of a unit to its prior", "N", "nats", lines, "xy")]


def _judge(results: Results) -> list[Finding]:
    widths = [int(cell.rpartition(" ")[2]) for cell in results.cells if cell.startswith("eta = 1")]

    def along(scaling: str, metric: str) -> list[float]:
        return [float(results.values(f"{scaling}, N = {units}", metric)[0]) for units in widths]

    def slope(values: list[float]) -> float:
        return float(np.polyfit(np.log(widths), np.log(values), 1)[0])

    def spread(values: list[float]) -> float:
        return max(values) / min(values)

    kl = along("eta = 1", "kl")
    return [
        holds("eta = 1: the KL falls with N at a slope of -1 in logarithms", slope(kl), -1.0, 0.2),
        holds("eta = 1: largest E f falls to 0: slope", slope(along("eta = 1", "largest_mean")), -1.0, 0.3),
        holds("eta = tau p / N: KL per unit, largest over least", spread(along("balanced", "kl_per_unit")), 1.0, 0.2),
        holds("eta = tau p / N: mean square error, largest over least", spread(along("balanced", "mse")), 1.0, 0.2),
    ]


STUDY = Study(
    name="overparameterised-kl-collapse",
    claim="With 1/N output scaling, the KL of the optimal mean-field posterior to the prior goes to 0 as the width N "
    "grows; tempered by eta = tau p / N it does not depend on N.",
    source="Huix, Majewski, Durmus, Moulines and Korba 2022, arXiv:2207.03859",
    place="proposition on the collapse of the KL, and the balanced functional",
    varied="the width N from 10 to 3000; eta = 1, or eta = tau p / N with tau = 0.01.",
    measured="KL(q* || p), its share of a unit, E f and the mean square error at the maximum of the exact ELBO.",
    rule="Confirmed if for eta = 1 the slope of log KL on log N is -1 within 0.2 and that of the largest E f is -1 "
    "within 0.3, and for eta = tau p / N the KL per unit and the error change by less than 20 % over all widths; "
    "contradicted otherwise.",
    not_done="The source proves the limit and shows no numbers; the rows, the widths and tau are chosen here.",
    design=_design,
    judge=_judge,
    figures=_figures,
    metric=("log10_kl", "log10 of KL(q* || p)"),
    scales=("smoke", "source"),
    explained="At eta = 1 the optimal posterior of 3000 units is the prior to a KL of 0.0013 in all, and its mean "
    "output is 0; with eta = tau p / N each unit keeps a KL of 7 and the fit does not change with the width.",
)
