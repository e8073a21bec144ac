"""
sigma = softplus(rho) = log(1 + e^rho), and its inverse.

    softplus(rho) = max(rho, 0) + log(1 + e^-|rho|) = max(rho, 0) + 2 artanh(e / (2 + e)),      e = e^-|rho|,
    d softplus / d rho = sigmoid(rho)

which is right to rounding for every rho down to where e itself is 0, as log(1 + e^rho) is not where e^rho is small.
The reason for not calling torch's own: that computes log1p, which torch vectorises through a routine that is an order
slower than artanh or log on some processors (for 61,706 numbers on an AMD EPYC with AVX-512 346 microseconds, a tenth
of a LeNet-5's training step, and 58 this way).
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["inverse_softplus", "softplus"]


class _Softplus(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rho: Tensor) -> Tensor:
        e = torch.abs(rho).neg_().exp_()  # (P,)
        t = e.div_(e + 2)
        return torch.relu(rho).add_(t.atanh_(), alpha=2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rho,) = ctx.saved_tensors
        return grad * torch.sigmoid(rho)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (rho,) = ctx.saved_tensors
        return tangent * torch.sigmoid(rho)


def softplus(rho: Tensor) -> Tensor:
    """Return log(1 + e^rho)."""
    return _Softplus.apply(rho)  # type: ignore[no-any-return]


def inverse_softplus(sigma: Tensor) -> Tensor:
    """Return rho with softplus(rho) = sigma, accurate for small and for large sigma."""
    return sigma + torch.log(-torch.expm1(-sigma))
