"""
Tensors of a posterior in few bytes: 8 bits for every standard deviation, 16 for everything else of its size.

    rho   sigma = softplus(rho);  code = round(255 (ln sigma - low) / (high - low)) as uint8,
          low and high the least and largest ln sigma of the tensor.
          Back: sigma = exp(low + (high - low) code / 255). Its relative error is at most (high - low) / 510: 1.8 %
          where sigma spans four powers of ten.
    else  float16: 11 significant bits, a relative error of at most 2^-11 = 0.05 % down to 6e-5, below that an absolute
          one of 3e-8; a tensor with larger values than float16 has stays as it is.

A mean moves by far less than its standard deviation, and errors of the standard deviations are independent and of both
signs, so that predictions stay where they are. Only the guide's tensors of 1,024 numbers and more are encoded: the rest
(normalisation layers, learned noise) is small and stays exact.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["decode", "encode"]

SMALLEST = 1024
"""Tensors with fewer numbers stay as they are."""

LEVELS = 255


def _is_rho(name: str) -> bool:
    return name.rpartition(".")[2].rpartition(":")[2].removesuffix("_unconstrained") == "rho"


def encode_rho(rho: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Return codes in uint8 and what `decode_rho` needs beside them."""
    log_sigma = F.softplus(rho.double()).log()
    low, high = float(log_sigma.min()), float(log_sigma.max())
    width = high - low or 1.0
    codes = (LEVELS * (log_sigma - low) / width).round()
    return codes.to(torch.uint8), {"as": "log_sigma_uint8", "low": low, "high": low + width}


def decode_rho(codes: Tensor, low: float, high: float) -> Tensor:
    """Return rho in float64."""
    sigma = torch.exp(low + (high - low) * codes.double() / LEVELS)
    return sigma + torch.log(-torch.expm1(-sigma))  # the inverse of softplus


def encode(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """
    Return the tensors in compact form, and how those that changed are encoded, by name.

    :param tensors: by name, a guide's beginning with `guide:`; `rho` as the last part of a name stands for
        sigma = softplus(rho).
    """
    small, how = dict(tensors), {}
    for name, tensor in tensors.items():
        if not name.startswith("guide:") or not tensor.is_floating_point() or tensor.numel() < SMALLEST:
            continue
        values = tensor.detach().cpu()
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{name} holds values that are not finite: this posterior is not fit to be kept")
        if _is_rho(name):
            small[name], how[name] = encode_rho(values)
        elif float(values.abs().max()) <= torch.finfo(torch.float16).max:
            small[name], how[name] = values.half(), {"as": "float16"}
        if name in how:
            how[name]["dtype"] = str(tensor.dtype).removeprefix("torch.")
    return small, how


def decode(tensors: Mapping[str, Tensor], how: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return the tensors in the type they had."""
    full = dict(tensors)
    for name, encoding in how.items():
        dtype = getattr(torch, encoding["dtype"])
        if encoding["as"] == "log_sigma_uint8":
            full[name] = decode_rho(tensors[name], encoding["low"], encoding["high"]).to(dtype)
        elif encoding["as"] == "float16":
            full[name] = tensors[name].to(dtype)
        else:
            raise ValueError(f"{name} is encoded as {encoding['as']!r}, which this version cannot read")
    return full
