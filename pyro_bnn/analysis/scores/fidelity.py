"""
How near predictions are to reference probabilities, such as those of Hamiltonian Monte Carlo.

With predicted probabilities p and reference probabilities r (N, K),

    agreement        = mean over rows of 1{argmax p = argmax r}
    total variation  = mean over rows of 1/2 sum_k |p_k - r_k|

Neither looks at labels: a prediction can be more accurate than the reference and far from it (Izmailov et al. 2021,
arXiv:2104.14421, section 6).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["agreement", "total_variation", "total_variations"]

_SUM = 0.02
"""How far the sum of a row may be from 1: probabilities in half precision are."""


def _probabilities(values: Any, what: str) -> Tensor:
    found = (torch.as_tensor(np.asarray(values)) if not isinstance(values, Tensor) else values.detach()).double()
    if found.dim() != 2 or min(found.shape) < 1:
        raise ValueError(f"{what} has shape {tuple(found.shape)}: pass probabilities (N, K)")
    if not bool(torch.isfinite(found).all()) or float(found.min()) < 0 or float((found.sum(1) - 1).abs().max()) > _SUM:
        raise ValueError(f"{what} holds rows that are no probabilities: pass numbers of at least 0 whose sum is 1")
    return found


def _pair(probabilities: Any, reference: Any) -> tuple[Tensor, Tensor]:
    p, r = _probabilities(probabilities, "probabilities"), _probabilities(reference, "reference").cpu()
    if p.shape != r.shape:
        raise ValueError(
            f"probabilities are {tuple(p.shape)} and the reference {tuple(r.shape)}: pass the same rows and classes"
        )
    return p.cpu(), r


def agreement(probabilities: Any, reference: Any) -> float:
    """
    Return the share of rows whose most probable class is the reference's.

    :param probabilities: predictions (N, K), a tensor or an array.
    :param reference: of the same rows, (N, K).

    >>> import pyro_bnn as pb
    >>> pb.agreement([[0.9, 0.1], [0.4, 0.6]], [[0.6, 0.4], [0.8, 0.2]])
    0.5
    """
    p, r = _pair(probabilities, reference)
    return float((p.argmax(1) == r.argmax(1)).double().mean())


def total_variations(probabilities: Any, reference: Any) -> Tensor:
    """
    Return the total variation distance of every row, (N,).

    :param probabilities: predictions (N, K), a tensor or an array.
    :param reference: of the same rows, (N, K).
    """
    p, r = _pair(probabilities, reference)
    return 0.5 * (p - r).abs().sum(1)


def total_variation(probabilities: Any, reference: Any) -> float:
    """
    Return the mean total variation distance to the reference's probabilities, 0 for the same ones and at most 1.

    :param probabilities: predictions (N, K), a tensor or an array.
    :param reference: of the same rows, (N, K).

    >>> import pyro_bnn as pb
    >>> round(pb.total_variation([[0.9, 0.1], [0.4, 0.6]], [[0.6, 0.4], [0.8, 0.2]]), 6)
    0.35
    """
    return float(total_variations(probabilities, reference).mean())
