"""
The limit of the ELBO of a wide layer (Huix, Majewski, Durmus, Moulines and Korba 2022, theorem).

With f_w(x) = (1/N) sum_j s(w_j, x), w_j = mu_j + sigma_j z_j, and nu the empirical measure of the (mu_j, sigma_j),

    ELBO(theta) = -sum_i E ell(y_i, f_w(x_i)) - eta sum_j KL(q_j || p)
    F(nu)       = -sum_i ell(y_i, E f_w(x_i)) - eta N integral KL dnu

differ in where the expectation stands: around the loss, or inside it. The theorem: |ELBO - F| <= C p / N, with p rows.

The KL terms are the same number, and the gap is exact for the half square loss,

    F - ELBO = (1/2) sum_i Var f_w(x_i) = (1 / 2 N^2) sum_i sum_j Var s(w_j, x_i)

a sum of p N terms over N^2. For the cross-entropy of two classes, ell = softplus(f) - y f, it is sum_i of
E softplus(f) - softplus(E f), a Jensen gap, which to second order is softplus''(E f) Var f / 2. It is estimated from
draws of the library's network, less the tangent of softplus at E f, whose mean is 0 and which carries most of the
noise.

The theorem compares the two at the same measure nu, so nu is held: ten random units, mu_j ~ N(0, 1) and sigma_j ~
U(0.1, 1), each taken N / 10 times. The inputs are the first p of a list of which every first p covers [-1, 1] evenly.
The slopes of log gap on log N and on log p are then -1 and 1: for the half square exactly in N, for the cross-entropy
up to terms of higher order in 1 / N.
"""

import math

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.models.networks.one_hidden_layer import OneHiddenLayer
from pyro_bnn.studies.figures import Curves, line_of
from pyro_bnn.studies.findings import Finding, equal
from pyro_bnn.studies.overparameterised_kl_collapse import moments
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY", "gap", "parameters"]

_BASE = 10
_WIDTHS = (10, 30, 100, 300, 1000)
_ROWS = (10, 30, 100, 300)
_FIXED_ROWS, _FIXED_WIDTH = 30, 100


def parameters(units: int, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return means and deviations (N, 3) of copies of the seed's ten units, and `rows` inputs (p, 2)."""
    numbers = np.random.default_rng(seed)
    copies, rest = divmod(units, _BASE)
    if rest:
        raise ValueError(f"units={units} are no copies of {_BASE}: pass a multiple of it")
    loc = np.tile(numbers.standard_normal((_BASE, 3)), (copies, 1))
    sd = np.tile(numbers.uniform(0.1, 1.0, (_BASE, 3)), (copies, 1))
    x = 2 * ((np.arange(rows) + 0.5) * (math.sqrt(5) - 1) / 2 % 1) - 1  # golden ratio: any first p are spread evenly
    inputs = np.stack([x, np.ones_like(x)], 1)
    return torch.from_numpy(loc), torch.from_numpy(sd), torch.from_numpy(inputs)


def _outputs(loc: Tensor, sd: Tensor, x: Tensor, draws: int, seed: int) -> Tensor:
    """Return f_w(x) (S, p) of draws of the weights."""
    net = OneHiddenLayer(x.shape[1], 1, units=len(loc), bias=False).double()
    noise = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(draws // 100):
        w = loc + sd * torch.randn((100, *loc.shape), dtype=torch.float64, generator=noise)
        weights = {"inner.weight": w[..., 1:], "outer.weight": w[..., :1].transpose(-1, -2)}
        call = torch.func.vmap(lambda p: torch.func.functional_call(net, p, (x,)))
        found.append(call(weights).squeeze(-1))
    return torch.cat(found)


@torch.no_grad()
def gap(units: int, rows: int, loss: str, draws: int, seed: int) -> dict[str, float]:
    """Return F - ELBO for the half square ("square") or the cross-entropy of two classes ("logistic")."""
    loc, sd, x = parameters(units, rows, seed)
    mean, variance = moments(loc, sd, x)
    if loss == "square":
        found = float(variance.sum()) / 2
    else:
        f = _outputs(loc, sd, x, draws, seed)
        softplus = torch.nn.functional.softplus
        bent = softplus(f) - softplus(mean) - torch.sigmoid(mean) * (f - mean)  # above 0: softplus is convex
        found = float(bent.mean(0).sum())
    return {"gap": found, "log10_gap": math.log10(found), "constant": found * units / rows}


def _design(scale: Scale) -> list[Trial]:
    seeds, draws = (2, 200) if scale == "smoke" else (5, 2000)
    sizes = [(n, _FIXED_ROWS) for n in _WIDTHS] + [(_FIXED_WIDTH, p) for p in _ROWS if p != _FIXED_ROWS]
    return [
        Trial(
            f"{loss}, N = {n}, p = {p}",
            seed,
            compute=f"{__name__}:gap",
            arguments={"units": n, "rows": p, "loss": loss, "draws": draws if loss == "logistic" else 0},
        )
        for loss in ("square", "logistic")
        for n, p in sizes
        for seed in range(seeds)
    ]


def _figures(results: Results) -> list[Curves]:
    def curves(title: str, x: str, sizes: tuple[int, ...], cell: str) -> Curves:
        lines = []
        for loss, name in (("square", "half square"), ("logistic", "cross-entropy")):
            values = np.stack([results.values(cell.format(loss, size), "log10_gap") for size in sizes], axis=1)
            lines.append(line_of(name, sizes, values))
        return Curves(title, x, "log10 of the gap", lines, "x")

    return [
        curves(f"Gap of {_FIXED_ROWS} rows", "N", _WIDTHS, f"{{}}, N = {{}}, p = {_FIXED_ROWS}"),
        curves(f"Gap of {_FIXED_WIDTH} units", "p", _ROWS, f"{{}}, N = {_FIXED_WIDTH}, p = {{}}"),
    ]


def _judge(results: Results) -> list[Finding]:
    def slopes(cells: list[str], sizes: tuple[int, ...]) -> np.ndarray:
        logs = np.stack([results.values(cell, "log10_gap") for cell in cells])  # (sizes, seeds)
        return np.asarray(np.polyfit(np.log10(sizes), logs, 1)[0])

    findings = []
    for loss, name in (("square", "Half square"), ("logistic", "Cross-entropy")):
        in_width = slopes([f"{loss}, N = {n}, p = {_FIXED_ROWS}" for n in _WIDTHS], _WIDTHS)
        in_rows = slopes([f"{loss}, N = {_FIXED_WIDTH}, p = {p}" for p in _ROWS], _ROWS)
        findings.append(equal(f"{name}: slope of log gap on log N, plus 1", in_width + 1, 0.1))
        findings.append(equal(f"{name}: slope of log gap on log p, less 1", in_rows - 1, 0.1))
    return findings


STUDY = Study(
    name="overparameterised-elbo-limit",
    claim="The ELBO of a layer of N units differs from its mean-field limit by at most C p / N, for p rows.",
    source="Huix, Majewski, Durmus, Moulines and Korba 2022, arXiv:2207.03859",
    place="theorem on the limit of the ELBO",
    varied="the width N (10 to 1000 at 30 rows), the rows p (10 to 300 at 100 units), and the loss.",
    measured="the gap between ELBO and limit at random parameters: exact for the half square, else by draws.",
    rule="Confirmed if for both losses the slope of log gap on log N is -1 and that on log p is 1, each within 0.1 "
    "(90 % interval over seeds); contradicted if any is contradicted.",
    not_done="The source proves the bound and shows no numbers. A slope cannot tell the constant C for all parameters.",
    design=_design,
    judge=_judge,
    figures=_figures,
    metric=("log10_gap", "log10 of F - ELBO"),
    scales=("smoke", "source"),
    explained="Mended after a first run: it drew new units as N grew, and the mean of the logarithm of an average over "
    "few units lies below the logarithm of its mean, which tilts the slope on log N to -0.93 (20 seeds; outside the "
    "margin) though the gap is exactly C / N in the mean. At a fixed measure, as the theorem has it, nothing tilts.",
)
