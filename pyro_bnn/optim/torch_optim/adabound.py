"""
AdaBound: Adam whose rate per weight is clipped between two bounds that close on SGD's (Luo et al., ICLR 2019).

With gradient g of the loss,

    m     <- beta1 m + (1 - beta1) g
    v     <- beta2 v + (1 - beta2) g^2
    s     =  alpha sqrt(1 - beta2^t) / (1 - beta1^t)
    eta_l =  alpha* (1 - 1 / (gamma t + 1)),      eta_u = alpha* (1 + 1 / (gamma t))
    w     <- w - Clip(s / (sqrt(v) + eps), eta_l, eta_u) m

    alpha    `lr`, the rate of Adam at the start
    alpha*   `final_lr`, the rate of SGD at the end
    gamma    how fast the bounds close; 0 leaves them open (Adam), `math.inf` closes them at once (SGD with the averaged
             momentum m, that is SGD with momentum beta1 at rate alpha* (1 - beta1))

Where the paper leaves room, the convention is that of the authors' public code: eps is added outside the root of the
uncorrected v, the bias correction is in s, gamma = 1e-3 is a number of its own (the paper ties it to 1 - beta2), and
`weight_decay` is an L2 term added to the gradient. Learning-rate schedules act on both rates: alpha* is multiplied by
lr / base_lr.

The code clips sqrt(v) + eps between s / eta_u and s / eta_l instead, which is the same and in which a schedule's
factor cancels.
"""

import math
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pyro_bnn.optim.torch_optim.base import Bucket, ForeachOptimizer, base_rate

__all__ = ["AdaBound", "bounded_step", "bounds", "first_moments"]


def bounds(final_lr: float, gamma: float, step: int) -> tuple[float, float]:
    """Return eta_l and eta_u at step t = 1, 2, ..."""
    lower = final_lr * (1 - 1 / (gamma * step + 1))
    upper = final_lr * (1 + 1 / (gamma * step)) if gamma > 0 else math.inf
    return lower, upper


def first_moments(grads: list[Tensor], m: list[Tensor], v: list[Tensor], *, betas: tuple[float, float]) -> None:
    """Update the two averages in place."""
    torch._foreach_lerp_(m, grads, 1 - betas[0])
    torch._foreach_mul_(v, betas[1])
    torch._foreach_addcmul_(v, grads, grads, value=1 - betas[1])


def bounded_step(
    params: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    *,
    step: int,
    lr: float,
    base_lr: float,
    final_lr: float,
    betas: tuple[float, float],
    gamma: float,
    eps: float,
) -> None:
    """Move `params` in place by m at the clipped rate; AMSBound passes the largest v so far."""
    correction = math.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step)
    lower, upper = bounds(final_lr, gamma, step)
    denominator = torch._foreach_sqrt(v)
    torch._foreach_add_(denominator, eps)
    torch._foreach_clamp_min_(denominator, base_lr * correction / upper)
    if lower > 0:
        torch._foreach_clamp_max_(denominator, base_lr * correction / lower)
    torch._foreach_addcdiv_(params, m, denominator, value=-lr * correction)


def decayed(grads: list[Tensor], params: list[Tensor], weight_decay: float) -> list[Tensor]:
    """Return the gradients with the L2 term added."""
    if not weight_decay:
        return grads
    return list(torch._foreach_add(grads, params, alpha=weight_decay))


def adabound_defaults(
    lr: float,
    final_lr: float,
    betas: tuple[float, float],
    gamma: float,
    eps: float,
    weight_decay: float,
    foreach: bool,
) -> dict[str, Any]:
    """Return the numbers AdaBound and AMSBound share."""
    return {
        "lr": lr,
        "final_lr": final_lr,
        "betas": betas,
        "gamma": gamma,
        "eps": eps,
        "weight_decay": weight_decay,
        "foreach": foreach,
    }


@final
class AdaBound(ForeachOptimizer):
    """
    Adam that turns into SGD; see the module's docstring for the equations.

    Args:
        params: tensors or parameter groups.
        lr: alpha, Adam's rate.
        final_lr: alpha*, SGD's rate at the end.
        betas: averaging of the gradient and of its square.
        gamma: how fast the bounds close.
        eps: added to the root of the uncorrected second moment.
        weight_decay: L2 coefficient, added to the gradient.
        foreach: update all tensors of a group together.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        final_lr: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        gamma: float = 1e-3,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        foreach: bool = True,
    ) -> None:
        super().__init__(params, adabound_defaults(lr, final_lr, betas, gamma, eps, weight_decay, foreach))

    def _new_state(self, param: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "m": torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format),
            "v": torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format),
        }

    def _update(self, group: dict[str, Any], bucket: Bucket, step: int) -> None:
        m, v = bucket.of("m"), bucket.of("v")
        first_moments(decayed(bucket.grads, bucket.params, group["weight_decay"]), m, v, betas=group["betas"])
        bounded_step(
            bucket.params,
            m,
            v,
            step=step,
            lr=group["lr"],
            base_lr=base_rate(group),
            final_lr=group["final_lr"],
            betas=group["betas"],
            gamma=group["gamma"],
            eps=group["eps"],
        )
