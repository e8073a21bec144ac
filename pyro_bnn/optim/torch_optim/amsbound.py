"""
AMSBound: AdaBound with AMSGrad's maximum (Luo et al., ICLR 2019; Reddi et al., ICLR 2018).

AdaBound's update (adabound.py) with v replaced by the largest one so far,

    v_max <- max(v_max, v)
    w     <- w - Clip(s / (sqrt(v_max) + eps), eta_l, eta_u) m

The bias corrections in s stay, as in the authors' public code; the thesis and AMSGrad's paper replace the correction by
the maximum.
"""

from typing import Any, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pyro_bnn.optim.torch_optim.adabound import adabound_defaults, bounded_step, decayed, first_moments
from pyro_bnn.optim.torch_optim.base import Bucket, ForeachOptimizer, base_rate

__all__ = ["AMSBound"]


@final
class AMSBound(ForeachOptimizer):
    """AdaBound that never raises a weight's rate while the bounds are open; arguments as AdaBound's."""

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
            name: torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
            for name in ("m", "v", "v_max")
        }

    def _update(self, group: dict[str, Any], bucket: Bucket, step: int) -> None:
        m, v, v_max = bucket.of("m"), bucket.of("v"), bucket.of("v_max")
        first_moments(decayed(bucket.grads, bucket.params, group["weight_decay"]), m, v, betas=group["betas"])
        torch._foreach_maximum_(v_max, v)
        bounded_step(
            bucket.params,
            m,
            v_max,
            step=step,
            lr=group["lr"],
            base_lr=base_rate(group),
            final_lr=group["final_lr"],
            betas=group["betas"],
            gamma=group["gamma"],
            eps=group["eps"],
        )
