"""
Checks of the weights: deviations that never moved or are the prior's, deviations that the ELBO wants otherwise, k-hat.

At a mean-field optimum, with every deviation changed by the same factor exp(t), the ELBO has no slope in t:

    d/dt [NLL + eta KL] = sum_i sigma_i dNLL/dsigma_i + eta sum_i (sigma_i^2 / s_i^2 - 1) = 0

so that R = [sum_i sigma_i^2 / s_i^2 + (1 / eta) sum_i sigma_i dNLL/dsigma_i] / P is 1. Both sums grow like the square
of the factor near the optimum, so that 1 / sqrt(R) is the factor by which the deviations are off. The slope of the NLL
is a difference quotient over draws that share their noise, both signs of it.

k-hat is the shape of the generalised Pareto tail of the importance ratios p(w, y) / q(w). Yao et al. 2018,
arXiv:1802.02538, take q for good below .5 and for bad above .7. In many dimensions it is above .7 for every q that is
not exact, so that it is not asked of more than `MAX_JOINT` latent numbers.
"""

import importlib
import math
from typing import Any, cast

import numpy as np
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor

from pyro_bnn.analysis.checks.check import Check, Verdict
from pyro_bnn.analysis.checks.rows import At, Rows
from pyro_bnn.analysis.scores.signal_to_noise import WeightSummary, weight_summary
from pyro_bnn.common.contract import contract_of
from pyro_bnn.common.sites import innermost, sample_sites
from pyro_bnn.inference.predictive import observation_log_prob, predictive_draws
from pyro_bnn.posterior import Posterior

__all__ = ["check_joint", "check_spread", "check_widths", "pareto_k"]

MAX_JOINT = 200
"""More latent numbers than this are not asked for their k-hat."""

_STEP = 0.05


def _priors(posterior: Posterior, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean and deviation of the prior of every site, in its shape; nan where it has none or is no normal."""
    with posterior.turn(x[:1]), torch.random.fork_rng(), torch.no_grad(), poutine.block():
        sites = sample_sites(poutine.trace(posterior.model).get_trace(x[:1]))
    moments = {}
    for name, site in sites.items():
        law, value = innermost(site["fn"]), site["value"]
        if not value.is_floating_point() or name == "obs":
            continue
        if isinstance(law, dist.Normal):
            moments[name] = law.loc.expand(value.shape), law.scale.expand(value.shape)
        else:
            moments[name] = value.new_full(value.shape, math.nan), value.new_full(value.shape, math.nan)
    return moments


def _flat(summary: dict[str, WeightSummary], priors: dict[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    """Return mean, deviation, and those of the prior, (P,) each."""
    names = [name for name in summary if name in priors]
    parts = (
        [summary[n].mean for n in names],
        [summary[n].sd for n in names],
        [priors[n][0] for n in names],
        [priors[n][1] for n in names],
    )
    return tuple(torch.cat([t.reshape(-1).double() for t in part]) for part in parts)


def check_spread(posterior: Posterior, rows: Rows) -> Check:
    """Check whether the deviations have moved from their start, and how many weights are where the prior has them."""
    name = "deviations"
    if not contract_of(posterior.guide).has_moments:
        return Check(name, "not checked", "The guide states no deviations of single weights.")
    mean, sd, prior_mean, prior_sd = _flat(weight_summary(posterior, rows.marked[:1]), _priors(posterior, rows.x))
    if not bool((sd > 0).any()):
        return Check(name, "not checked", "The posterior is a point: it has no deviations.")
    threshold = (
        "stuck: equal to .1 %; at the prior: KL of a weight below .01 nats, doubtful from half of them, bad from 95 % "
        "(own marks; the KL of a unit against .01 as in Burda et al. 2016)"
    )
    log_sd = sd.clamp_min(1e-30).log()
    if len(sd) > 3 and float(log_sd.std()) < 1e-3:
        words = (
            f"All {len(sd)} deviations are {float(sd[0]):.3g}, equal to .1 %: they have not moved from their start. "
            f"Is their learning rate 0, were they left out of the optimizer, or was there no step?"
        )
        return Check(name, "bad", words, threshold, float(log_sd.std()))
    known = prior_sd.isfinite()
    if not bool(known.any()):
        return Check(name, "good", "The deviations differ; the priors are no normals to compare with.", threshold)
    ratio = (sd / prior_sd)[known]
    kl = 0.5 * (ratio.square() + ((mean - prior_mean) / prior_sd)[known].square() - 1) - ratio.log()
    idle = float((kl < 0.01).double().mean())
    words = f"The median deviation is {float(ratio.median()):.2g} of its prior's; {idle:.0%} of the weights are at it."
    if idle >= 0.5:
        words += " Those have learned nothing: try a lower eta, a narrower prior, or fewer units."
    return Check(name, "bad" if idle >= 0.95 else "doubtful" if idle >= 0.5 else "good", words, threshold, idle)


def check_widths(posterior: Posterior, rows: Rows, num_data: int, *, seed: int) -> Check:
    """Check whether the ELBO would have the deviations wider or narrower, see the top of this file."""
    name = "widths"
    info, promised = posterior.info, contract_of(posterior.guide)
    if promised.analytic_elbo != "mean_field" or not promised.has_moments or not promised.trains_scales:
        return Check(name, "not checked", "Asked of mean-field guides only, whose ELBO knows every deviation.")
    if info.get("temperature", 1.0) != 1 or not info.get("eta", 1.0) > 0:
        return Check(name, "not checked", "The posterior is cold or had no KL: its optimum has other deviations.")
    summary, priors = weight_summary(posterior, rows.marked[:1]), _priors(posterior, rows.x)
    _, sd, _, prior_sd = _flat(summary, priors)
    if not bool(prior_sd.isfinite().all()):
        return Check(name, "not checked", "Asked under Normal priors of given deviations only.")
    x, y = rows.x, rows.y
    generator = torch.Generator().manual_seed(seed)
    draws = min(100, max(10, 3000 // len(sd)))  # the noise of many weights averages out within a draw
    slopes = []
    for _ in range(draws):
        noise = {n: torch.randn(m.sd.shape, generator=generator).to(m.sd) for n, m in summary.items()}
        per_sign = []
        for sign in (1, -1):
            wide, narrow = (
                _nll(posterior, {n: m.mean + sign * math.exp(t) * m.sd * noise[n] for n, m in summary.items()}, x, y)
                for t in (_STEP, -_STEP)
            )
            per_sign.append((wide - narrow) / (2 * _STEP))  # (n,)
        slopes.append((per_sign[0] + per_sign[1]) / 2)
    slope = torch.stack(slopes)  # (S, n)
    total = num_data * float(slope.mean())
    spread = math.sqrt(float(slope.mean(1).var()) / draws + float(slope.mean(0).var()) / slope.shape[1])
    size, eta = len(sd), float(info.get("eta", 1.0))
    prior_share = float((sd / prior_sd).square().sum()) / size
    ratio, error = prior_share + total / eta / size, num_data * spread / eta / size
    threshold = (
        "off by a factor of 1.5 is doubtful, of 3 bad, if the ratio is 4 standard errors from 1 (own marks; the ratio "
        "is 1 at the optimum of the ELBO)"
    )
    if abs(ratio - 1) < 4 * error:
        words = f"The ratio that is 1 at the optimum is {ratio:.3g} +- {error:.2g}."
        return Check(name, "good", words, threshold, ratio)
    factor = ratio**-0.5 if ratio > 0 else math.inf
    off = max(factor, 1 / factor) if math.isfinite(factor) else math.inf
    way = "narrower" if factor > 1 else "wider"
    words = (
        f"The deviations are {'far ' if not math.isfinite(off) or off > 3 else ''}{way} than the ELBO of {num_data} "
        f"rows with eta = {eta:g} asks for (ratio {ratio:.3g} +- {error:.2g}, 1 at the optimum"
        + (f"; off by about {off:.1f})" if math.isfinite(off) else ")")
    )
    verdict: Verdict = "good" if off < 1.5 else "doubtful" if off < 3 else "bad"
    if verdict != "good":
        words += ": train longer, raise the rate of the deviations, start them nearer, or correct num_data."
    return Check(name, verdict, words, threshold, ratio)


def _nll(posterior: Posterior, values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return -log p(y | x, w) of every row on the model's own scale, (n,)."""
    with torch.no_grad(), posterior.turn(x[:1]):
        draw = next(iter(predictive_draws(posterior.model, At(values), x, 1)))
        return -observation_log_prob(draw, y, missing=True).double()


def pareto_k(log_ratios: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return k-hat of log importance ratios (S,)."""
    psislw: Any
    try:
        from arviz import psislw
    except ImportError:  # ArviZ 1.x keeps it with its statistics
        psislw = importlib.import_module("arviz_stats.base").array_stats.psislw
    return float(np.asarray(psislw(np.array(log_ratios, dtype=float))[1]).reshape(-1)[0])


def check_joint(posterior: Posterior, rows: Rows, num_data: int, *, draws: int, seed: int) -> Check:
    """Check k-hat of the guide as a proposal for the posterior, of small programs."""
    name = "k-hat of q"
    promised = contract_of(posterior.guide)
    if promised.decks() or not promised.trains_scales:
        return Check(name, "not checked", "The posterior is made of points: it has no density.")
    if len(rows.y) < num_data:
        return Check(name, "not checked", f"Needs all {num_data} rows, and looks at {len(rows.y)}.")
    x, y, info = rows.x, rows.y, posterior.info
    if info.get("temperature", 1.0) != 1 or not info.get("eta", 1.0) > 0:
        return Check(name, "not checked", "The posterior is cold or had no KL.")
    ratios = []
    with posterior.turn(x[:1]), torch.random.fork_rng(), torch.no_grad(), poutine.block():
        torch.manual_seed(seed)
        for _ in range(max(draws, 400)):
            q = poutine.trace(posterior.guide).get_trace(x, y)
            latent = sum(s["value"].numel() for s in sample_sites(q).values() if not s["infer"].get("is_auxiliary"))
            if latent > MAX_JOINT:
                words = f"Says nothing about {latent} latent numbers: it is above .7 there for every q but the exact."
                return Check(name, "not checked", words)
            p = poutine.trace(poutine.replay(posterior.model, trace=q)).get_trace(x, y)
            p.compute_log_prob()
            q.compute_log_prob()
            eta = float(info.get("eta", 1.0))
            log_p = sum(
                cast(Tensor, s["log_prob_sum"]).double() / (eta if s["is_observed"] else 1.0)
                for s in sample_sites(p).values()
            )
            log_q = sum(cast(Tensor, s["log_prob_sum"]).double() for s in sample_sites(q).values())
            ratios.append(float(log_p - log_q))
    k = pareto_k(np.array(ratios))
    threshold = ".5 and .7: Yao et al. 2018"
    if not math.isfinite(k):
        return Check(name, "good", "The importance ratios do not vary: q is the posterior.", threshold, k)
    words = f"k-hat is {k:.2f}: " + (
        "q is close to the posterior."
        if k < 0.5
        else "q is usable."
        if k <= 0.7
        else "q is far from the posterior: try a low-rank or full-rank guide, more steps, or NUTS."
    )
    return Check(name, "good" if k <= 0.5 else "doubtful" if k <= 0.7 else "bad", words, threshold, k)
