"""Flipout example by example: each gets a weight matrix of its own, W_n = loc + delta with signs on rows and columns.

Written from Wen et al. 2018, section 3.1: W_n = W_bar + delta W * (r_n s_n^T), r_n per output and s_n per input unit. A
convolution's input channels are those of its group.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def flipout_loop(
    function: Callable[..., Tensor],
    x: Tensor,
    loc: Tensor,
    delta: Tensor,
    bias_loc: Tensor | None,
    bias_delta: Tensor | None,
    sign_in: Tensor,
    sign_out: Tensor,
    groups: int = 1,
    **options: Any,
) -> Tensor:
    """`sign_in` (B, C_in) and `sign_out` (B, C_out); weights (C_out, C_in / groups, ...)."""
    if groups > 1:
        options["groups"] = groups
    outputs = []
    for n in range(len(x)):
        weight = loc.clone()
        bias = None if bias_loc is None else bias_loc.clone()
        per_group = loc.shape[0] // groups
        for o in range(loc.shape[0]):
            for i in range(loc.shape[1]):
                channel = (o // per_group) * loc.shape[1] + i  # which input channel the i-th column of row o reads
                weight[o, i] += delta[o, i] * sign_out[n, o] * sign_in[n, channel]
            if bias is not None and bias_delta is not None:
                bias[o] += bias_delta[o] * sign_out[n, o]
        outputs.append(function(x[n : n + 1], weight, bias, **options))
    return torch.cat(outputs)
