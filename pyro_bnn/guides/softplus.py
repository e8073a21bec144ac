"""
sigma = softplus(rho) = log(1 + e^rho), and its inverse.

    u = e^rho,   w = 1 + u (rounded),   softplus(rho) = log w + (u - (w - 1)) / w,   d softplus / d rho = sigmoid(rho)

log w alone loses what rounding took from w; the second term is that, to first order, so that the result is right to
rounding for every rho (2e-7 relative in float32): also where w = 1 and softplus(rho) = u, and where u overflows and it
is rho. The reason for not calling torch's own: that computes log1p, which torch vectorises through a routine that is an
order slower than log on some processors (346 against 96 microseconds for 61,706 numbers on an AMD EPYC with AVX-512, a
tenth of a LeNet-5's training step).

Reference: Goldberg 1991, What every computer scientist should know about floating-point arithmetic, theorem 4.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["inverse_softplus", "softplus"]


class _Softplus(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rho: Tensor) -> Tensor:
        u = torch.exp(rho)  # (P,)
        w = u + 1
        rest = (w - 1).sub_(u).div_(w)
        return torch.fmax(torch.log(w).sub_(rest), rho)  # rho where u overflows: fmax passes over nan

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rho,) = ctx.saved_tensors
        return grad * torch.sigmoid(rho)


def softplus(rho: Tensor) -> Tensor:
    """Return log(1 + e^rho)."""
    return _Softplus.apply(rho)  # type: ignore[no-any-return]


def inverse_softplus(sigma: Tensor) -> Tensor:
    """Return rho with softplus(rho) = sigma, accurate for small and for large sigma."""
    return sigma + torch.log(-torch.expm1(-sigma))
