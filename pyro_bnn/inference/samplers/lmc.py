"""
Langevin Monte Carlo: the unadjusted Langevin algorithm on a whole potential V.

    w <- w - gamma grad V(w) + sqrt(2 gamma) xi,      xi ~ N(0, I)

targets exp(-V) with an error of order gamma. On V = (w - m)' H (w - m) / 2 the chain is linear and its stationary law
is known: mean m exactly, and covariance H^-1 (I - gamma H / 2)^-1, wider than H^-1; it is unstable from
gamma = 2 / max eig H on. A Metropolis test would take the error away; `mcmc` has samplers with that test.

With V = N L, L the loss per datum, this is SGLD at full batch with alpha = gamma N, which is how a recipe runs it.

Reference: Roberts and Tweedie 1996.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pyro_bnn.inference.svi import Diverged

__all__ = ["lmc", "lmc_step", "quadratic_covariance"]


def lmc_step(w: Tensor, gradient: Tensor, gamma: float, noise: Tensor) -> Tensor:
    """Return w - gamma grad V + sqrt(2 gamma) xi."""
    return w - gamma * gradient + math.sqrt(2 * gamma) * noise


def quadratic_covariance(hessian: Tensor, gamma: float) -> Tensor:
    """Return the stationary covariance H^-1 (I - gamma H / 2)^-1 on a quadratic potential of Hessian H (P, P)."""
    largest = float(torch.linalg.eigvalsh(hessian).max())
    if gamma * largest >= 2:
        raise ValueError(f"gamma={gamma} is unstable: pass less than 2 / {largest:.4g} = {2 / largest:.4g}")
    identity = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    covariance: Tensor = torch.linalg.inv(hessian @ (identity - gamma / 2 * hessian))
    return covariance


@torch.no_grad()
def lmc(
    gradient: Callable[[Tensor], Tensor], start: Tensor, gamma: float, steps: int, *, burn_in: int = 0, thin: int = 1
) -> Iterator[Tensor]:
    """
    Yield the states of chains run side by side, (C, P) each, every `thin` steps after `burn_in`.

    :param gradient: grad V of C states at once, (C, P) -> (C, P).
    :param start: where the chains start, (C, P).
    :param gamma: the step.
    :param steps: how many steps to take in all.
    """
    if not (gamma > 0 and math.isfinite(gamma)):
        raise ValueError(f"gamma={gamma} is not a step: pass a finite number above 0")
    if not 0 <= burn_in < steps or thin < 1:
        raise ValueError(f"steps={steps}, burn_in={burn_in}, thin={thin}: no draw would be taken")
    w = start.clone()
    for k in range(1, steps + 1):
        w = lmc_step(w, gradient(w), gamma, torch.randn_like(w))
        if k > burn_in and (k - burn_in) % thin == 0:
            if not bool(torch.isfinite(w).all()):
                raise Diverged(f"the chain left the numbers at or before step {k}: lower gamma={gamma}")
            yield w
