"""
The equal mixture of draws that come one at a time: the averaged predictive of classes, mean and variances of numbers.

With log p_s (N, K) the class log-probabilities of draw s, s = 1..S, and p = mean_s p_s:

    total, aleatoric, epistemic     H(p), mean_s H(p_s), and their difference: the mutual information

and with the means m_s and standard deviations sd_s of numbers, by the law of total variance:

    total, aleatoric, epistemic     their sum, mean_s sd_s^2, var_s m_s

Sums are kept in float64, and memory does not grow with S. What is no draw is refused: log-probabilities whose rows do
not sum to 1 (logits, probabilities, NaN), moments that are not finite where the law has to have them.
"""

import math
from typing import final

import torch
from torch import Tensor

from pyro_bnn.common.moments import Welford

__all__ = ["MixtureMoments", "PredictiveAccumulator", "check_log_probs", "check_moments", "entropy_of_rows", "wide"]


@final
class PredictiveAccumulator:
    """
    The averaged predictive and its uncertainty from draws that come one at a time; no labels needed.

    Each update takes one draw's log-probabilities (N, K). Sums are kept in float64.
    """

    def __init__(self) -> None:
        self.num_draws = 0
        self._log_sum = torch.empty(0)
        self._entropies = torch.empty(0)

    def update(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """
        Add one draw: log-probabilities (N, K) of one weight sample for the whole set.

        Returns its probabilities (N, K) and the entropies of its rows (N,), for whoever needs them too.

        :param log_probs: log-probabilities (N, K).
        """
        check_log_probs(log_probs)
        log_probs = wide(log_probs.detach())
        p = log_probs.exp()
        entropies = entropy_of_rows(log_probs, p)
        if self.num_draws == 0:
            self._log_sum, self._entropies = log_probs.clone(), entropies.clone()
        else:
            if log_probs.shape != self._log_sum.shape:
                raise ValueError(
                    f"this draw has shape {tuple(log_probs.shape)} and the ones before {tuple(self._log_sum.shape)}; "
                    "every draw must cover the same rows and classes"
                )
            torch.logaddexp(self._log_sum, log_probs, out=self._log_sum)
            self._entropies += entropies
        self.num_draws += 1
        return p, entropies

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities of the averaged predictive (N, K)."""
        return self._log_sum - math.log(self._counted())

    @property
    def total(self) -> Tensor:
        """Entropy of the averaged predictive (N,)."""
        return entropy_of_rows(self.log_probs)

    @property
    def aleatoric(self) -> Tensor:
        """Mean over draws of each draw's entropy (N,)."""
        return self._entropies / self._counted()

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of prediction and weights (N,): total minus aleatoric."""
        return self.total - self.aleatoric

    def _counted(self) -> int:
        if self.num_draws == 0:
            raise ValueError("no draw has been added; call update(log_probs) at least once")
        return self.num_draws


@final
class MixtureMoments:
    """
    Mean and variances of an equal mixture of draws that come one at a time, each with a mean and an sd.

    :param shape: that of a draw's mean.
    :param device: where the sums are kept.
    """

    def __init__(self, shape: torch.Size, device: torch.device | str = "cpu") -> None:
        self.num_draws = 0
        zeros = wide(torch.zeros(shape, device=device))
        self._means = Welford(zeros)
        self._noise = zeros.clone()  # sum over draws of sd^2

    def update(self, mean: Tensor, sd: Tensor) -> None:
        """
        Add one draw.

        :param mean: of the draw.
        :param sd: of the draw, in the same shape.
        """
        mean, sd = wide(mean.detach()), wide(sd.detach()).expand(self._noise.shape)
        self.num_draws += 1
        self._means.update(mean)
        self._noise += sd.square()

    @property
    def mean(self) -> Tensor:
        """Mean of the mixture."""
        self.counted()
        return self._means.mean

    @property
    def aleatoric(self) -> Tensor:
        """Mean over draws of the noise variance."""
        return self._noise / self.counted()

    @property
    def epistemic(self) -> Tensor:
        """Variance over draws of the mean."""
        self.counted()
        return self._means.variance()

    @property
    def sd(self) -> Tensor:
        """Standard deviation of the mixture: by the law of total variance, the root of aleatoric + epistemic."""
        return (self.aleatoric + self.epistemic).sqrt()

    def counted(self) -> int:
        """Return how many draws there were, at least one."""
        if self.num_draws == 0:
            raise ValueError("no draw has been added; call update(mean, sd) at least once")
        return self.num_draws


def entropy_of_rows(log_probs: Tensor, p: Tensor | None = None) -> Tensor:
    """
    Return the entropy in nats of log-probabilities (..., K) that were checked; a class of probability 0 adds 0.

    :param p: their exponentials, where somebody has them already.
    """
    p = log_probs.exp() if p is None else p
    return (p * log_probs).nan_to_num_(nan=0.0).sum(-1).neg_()  # 0 times minus infinity is no number


def wide(values: Tensor) -> Tensor:
    """Return the values in float64, where the device has it."""
    return values if values.device.type == "mps" else values.double()


def check_log_probs(log_probs: Tensor, *, shape: str = "(N, K)") -> None:
    """Raise unless these are log-probabilities of that shape: at least one row, and every row sums to 1."""
    free = shape.startswith("(...")
    dims = shape.count(",") + 1
    if not log_probs.is_floating_point() or (log_probs.ndim != dims and not free) or log_probs.numel() == 0:
        raise ValueError(
            f"log_probs are {log_probs.dtype} of shape {tuple(log_probs.shape)}; give log-probabilities {shape} "
            "of at least one row"
        )
    # what rounding leaves: bfloat16 has 8 bits
    allowed = 3e-2 if log_probs.dtype == torch.bfloat16 else 1e-3
    sums = (log_probs.float() if log_probs.dtype in (torch.float16, torch.bfloat16) else log_probs).logsumexp(-1)
    if not bool((sums.abs() < allowed).all()):  # NaN fails here too
        row = int((~(sums.abs() < allowed)).flatten().nonzero()[0, 0])
        raise ValueError(
            f"row {row} of log_probs sums to exp({float(sums.flatten()[row]):.4g}) and not to 1; "
            "give log-probabilities: apply log_softmax(-1) to logits, log to probabilities"
        )


def check_moments(mean: Tensor, sd: Tensor, *, any_law: bool = False) -> None:
    """
    Raise unless means are finite and standard deviations finite and above 0.

    :param any_law: whether a law may have an infinite standard deviation, or be a point, as a rate of 0 has it.
    """
    if any_law:
        if bool(mean.isnan().any()):
            raise ValueError(
                "this draw's law has no mean (a Cauchy has none) or the model gives NaN: check the model, or use "
                "predictive_interval, which needs no moments"
            )
        if bool((sd.isnan() | (sd < 0)).any()):
            raise ValueError("this draw has an sd that is NaN; check the model")
        return
    if not bool(mean.isfinite().all()) or not bool((sd.isfinite() & (sd > 0)).all()):
        raise ValueError("this draw has a mean that is not finite or an sd that is not finite and > 0; check the model")
