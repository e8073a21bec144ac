"""
The predictive distribution of each row, as arrays: an equal mixture of Normals, one from each draw of the weights.

    p(y | x)  =  (1/S) sum_s N(y; m_s(x), sd_s(x)^2)

The continuous ranked probability score is that of Grimit et al. 2006 for such mixtures: with A(m, v) = E|Z| for
Z ~ N(m, v), crps = mean_s A(y - m_s, sd_s^2) - (1/2) mean_st A(m_s - m_t, sd_s^2 + sd_t^2), lower is better.
"""

import math
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyro_bnn.analysis.scores.intervals import mixture_quantile
from pyro_bnn.analysis.scores.metrics import log_mean_exp

__all__ = ["PredictiveDistribution"]

Array = npt.NDArray[np.float64]

_PAIRS_AT_ONCE = 2_000_000


@final
class PredictiveDistribution:
    """
    The distribution of the targets of N rows; arrays in and out, in the units of the targets.

    :param means: of the draws, (S, N).
    :param sds: likewise the deviations of the noise.

    >>> import torch
    >>> law = PredictiveDistribution(torch.zeros(1, 2), torch.ones(1, 2))  # two standard normals
    >>> law.mean, law.std, law.quantile(0.5)
    (array([0., 0.]), array([1., 1.]), array([0., 0.]))
    >>> law.log_prob([0.0, 0.0]).round(4)
    array([-0.9189, -0.9189])
    """

    def __init__(self, means: Tensor, sds: Tensor) -> None:
        if means.ndim != 2 or sds.shape != means.shape or len(means) == 0:
            raise ValueError(f"means and sds have shapes {tuple(means.shape)} and {tuple(sds.shape)}: pass (S, N) both")
        self.means = means.double()
        self.sds = sds.double()

    def __len__(self) -> int:
        return int(self.means.shape[1])

    @property
    def mean(self) -> Array:
        """Mean of each row, (N,)."""
        return _array(self.means.mean(0))

    @property
    def std(self) -> Array:
        """Standard deviation of each row, (N,): of the noise and of the means together."""
        return np.sqrt(self.noise_std**2 + self.weight_std**2)

    @property
    def noise_std(self) -> Array:
        """The part of the deviation that more rows would not remove, (N,)."""
        return _array(self.sds.square().mean(0).sqrt())

    @property
    def weight_std(self) -> Array:
        """The part of the deviation that the weights' uncertainty makes, (N,)."""
        return _array(self.means.std(0, correction=0))

    def quantile(self, q: float) -> Array:
        """Return the value below which the target lies with probability q, (N,)."""
        return _array(mixture_quantile(self.means, self.sds, q))

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Return the ends of the central interval of a level, (N,) each."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def cdf(self, y: Any) -> Array:
        """Return the probability that the target is at most y, (N,)."""
        return _array(torch.special.ndtr((self._targets(y) - self.means) / self.sds).mean(0))

    def log_prob(self, y: Any) -> Array:
        """Return the log density at y, (N,)."""
        z = (self._targets(y) - self.means) / self.sds
        return _array(log_mean_exp(-0.5 * (z.square() + math.log(2 * math.pi)) - self.sds.log()))

    def sample(self, size: int = 1, random_state: Any = None) -> Array:
        """
        Return targets drawn from the predictive, (size, N).

        :param random_state: seed or generator, as in scikit-learn.
        """
        from sklearn.utils import check_random_state

        seed = int(check_random_state(random_state).randint(2**31 - 1))
        generator = torch.Generator().manual_seed(seed)
        component = torch.randint(len(self.means), (size, len(self)), generator=generator)
        noise = torch.randn(size, len(self), generator=generator, dtype=torch.float64)
        return _array(self.means.gather(0, component) + self.sds.gather(0, component) * noise)

    def crps(self, y: Any) -> Array:
        """Return the continuous ranked probability score at y, (N,)."""
        to_target = _mean_distance(self._targets(y) - self.means, self.sds.square()).mean(0)  # (N,)
        within = torch.zeros_like(to_target)
        rows = max(1, _PAIRS_AT_ONCE // len(self.means) ** 2)
        for start in range(0, len(self), rows):
            m, v = self.means[:, start : start + rows], self.sds[:, start : start + rows].square()
            apart = _mean_distance(m.unsqueeze(0) - m.unsqueeze(1), v.unsqueeze(0) + v.unsqueeze(1))  # (S, S, n)
            within[start : start + rows] = apart.mean((0, 1))
        return _array(to_target - within / 2)

    def _targets(self, y: Any) -> Tensor:
        values = torch.from_numpy(np.array(y, dtype=np.float64))
        if values.shape not in (torch.Size([]), self.means.shape[1:]):
            raise ValueError(f"y has shape {tuple(values.shape)}: pass one number, or one for each of {len(self)} rows")
        return values


def _mean_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E|Z| of Z ~ N(mean, variance)."""
    sd = variance.sqrt()
    z = mean / sd
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    sign: Tensor = 2 * torch.special.ndtr(z) - 1
    return mean * sign + 2 * sd * density


def _array(values: Tensor) -> Array:
    return values.numpy()
