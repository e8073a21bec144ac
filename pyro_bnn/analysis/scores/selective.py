"""
Selective prediction: how accurate a model is on the rows it does not refuse.

Rows are refused from the highest uncertainty down. With the rows in order of increasing uncertainty, the accuracy at
rejection r = 1 - n/N is the mean correctness of the first n rows; the area under the risk-coverage curve is

    AURC = mean over n = 1..N of (1 - accuracy of the first n rows).

Rows of equal uncertainty have no order of their own: each counts with the mean correctness of its tie, which is what
random tie-breaking gives on average. El-Yaniv and Wiener 2010; Geifman and El-Yaniv 2017, arXiv:1705.08500.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

__all__ = ["RejectionCurve", "rejection_curve"]


@final
@dataclass(frozen=True)
class RejectionCurve:
    """
    Accuracy on the kept rows by the share refused, both (N,), from nothing refused to all but one row.

    :param rejected: the share refused, from 0 to nearly 1.
    :param accuracy: on the rows that stay.
    """

    rejected: Tensor
    accuracy: Tensor

    @property
    def aurc(self) -> float:
        """Area under the risk-coverage curve; 0 is perfect."""
        return float(1 - self.accuracy.mean())

    def accuracy_at(self, rejected: float) -> float:
        """
        Accuracy on the rows that stay when at least this share is refused.

        :param rejected: the share to refuse.
        """
        if not 0 <= rejected < 1:
            raise ValueError(f"rejected={rejected} leaves no row to score: pass a share in [0, 1)")
        place = int((self.rejected >= rejected - 1e-12).nonzero()[0]) if rejected <= float(self.rejected[-1]) else -1
        return float(self.accuracy[place])


def rejection_curve(uncertainty: Tensor, correct: Tensor) -> RejectionCurve:
    """
    Return accuracy against rejection for scores (N,), high where a row is to be refused, and correctness (N,).

    :param uncertainty: (N,), high where a row is to be refused.
    :param correct: (N,), whether each row was right.

    >>> import torch
    >>> import pyro_bnn as pb
    >>> curve = pb.rejection_curve(torch.tensor([0.1, 0.9, 0.2, 0.8]), torch.tensor([True, False, True, True]))
    >>> curve.accuracy_at(0.0), curve.accuracy_at(0.25)
    (0.75, 1.0)
    """
    if uncertainty.ndim != 1 or uncertainty.shape != correct.shape or len(correct) == 0:
        raise ValueError(
            f"uncertainty has shape {tuple(uncertainty.shape)} and correct {tuple(correct.shape)}; both need (N,)"
        )
    if bool(torch.isnan(uncertainty).any()):
        raise ValueError("uncertainty contains NaN: every row needs a place in the order")
    if not bool(((correct == 0) | (correct == 1)).all()):  # NaN fails here too
        raise ValueError("correct holds other values than 0 and 1: give one truth value per row")
    n = len(correct)
    values, ties = torch.unique(uncertainty, return_inverse=True)  # ascending
    right = torch.zeros(len(values), dtype=torch.float64, device=ties.device).index_add_(0, ties, correct.double())
    count = torch.bincount(ties, minlength=len(values))
    ordered = (right / count).repeat_interleave(count)  # (N,), each row at the mean of its tie
    kept = torch.arange(1, n + 1, dtype=torch.float64, device=ties.device)
    accuracy = ordered.cumsum(0) / kept
    return RejectionCurve((1 - kept / n).flip(0), accuracy.flip(0))
