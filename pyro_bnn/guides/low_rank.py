"""
The low-rank normal guide: w = mu + sqrt(d) z1 + W z2, with z1 ~ N(0, I_P), z2 ~ N(0, I_R), d > 0 and W (P, R).

Hence q = N(mu, D + W W'), D = diag(d). With C = I + W' D^-1 W (R, R) and u = W' D^(-1/2) z1, at its own draw

    log q(w) = -1/2 [P ln 2 pi + sum ln d + ln det C + |z1|^2 + |z2|^2 - (u - z2)' C^-1 (u - z2)]

which never subtracts mu from w, with everything of size R in float64: at 61,706 weights, sqrt(d) = 4.5e-5 and ten
columns of 0.01, torch's LowRankMultivariateNormal is off by tens of thousands of nats in float32. Elsewhere, with
e = w - mu and v = W' D^-1 e, everything in float64,

    log q(w) = -1/2 [P ln 2 pi + sum ln d + ln det C + e' D^-1 e - v' C^-1 v]

The KL to a factorised normal is exact in O(P R^2), and so is the entropy:

    KL(q || N(m, s^2)) = 1/2 [sum((d + rowsum W^2 + (mu - m)^2) / s^2 + ln s^2 - ln d) - P - ln det C]
    H(q)               = 1/2 [P (1 + ln 2 pi) + sum ln d + ln det C]

The guide samples one auxiliary site and the model's sites as points of it, so under Pyro's own ELBOs the KL is sampled;
`pyro_bnn.inference.TraceLowRank_ELBO` takes the closed form.

A second way to the same guide is a trajectory of mean-field guides (SWAG; Maddox et al. 2019): with the moments of its
R or more snapshots and D_r = mu_r - running mean of mu_1..mu_r, kept for the last R,

    Sigma = diag(within) + diag(between) / 2 + D D' / (2 (R - 1)),        hence d and W = D / sqrt(2 (R - 1))

Departures from the paper of hyperparameter weight averaging, eq. 5, Sigma = diag(sigma^2)/2 + D D' / (2 (R - 1)): its D
holds deviations of means and deviations both; here of means alone. It halves the within-snapshot variance too, of which
D holds nothing; `literal` keeps that.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast, final

import pyro
import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor
from torch.nn import functional as F

from pyro_bnn.guides.flat import FlatGuide
from pyro_bnn.guides.mean_field import DEFAULT_RHO, inverse_softplus, normal_quantiles, probabilities

__all__ = [
    "AutoLowRankNormal",
    "LowRankNormal",
    "capacitance",
    "kl_to_normal",
    "log_prob_at_draw",
    "low_rank_entropy",
    "low_rank_log_prob",
]

_LOG_2PI = math.log(2 * math.pi)


# ---------------------------------------------------------------------------------------------- pure functions


def capacitance(diag: Tensor, factor: Tensor) -> Tensor:
    """Return the Cholesky factor of C = I + W' D^-1 W in float64, (R, R), for d (P,) and W (P, R)."""
    whitened = factor.double() / diag.double().sqrt().unsqueeze(-1)  # (P, R)
    identity = torch.eye(factor.shape[-1], dtype=torch.float64, device=factor.device)
    chol: Tensor = torch.linalg.cholesky(identity + whitened.mT @ whitened)
    return chol


def _log_det(chol: Tensor) -> Tensor:
    return 2 * chol.diagonal().log().sum()


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1, dtype=torch.float64)


def _quadratic(chol: Tensor, v: Tensor) -> Tensor:
    """Return v' C^-1 v for v (..., R)."""
    solved = torch.linalg.solve_triangular(chol, v.unsqueeze(-1), upper=False)  # (..., R, 1)
    total: Tensor = solved.square().sum((-2, -1))
    return total


def log_prob_at_draw(diag: Tensor, factor: Tensor, z1: Tensor, z2: Tensor) -> Tensor:
    """Return log q(mu + sqrt(d) z1 + W z2) in float64 for z1 (..., P), z2 (..., R), without forming the difference."""
    chol = capacitance(diag, factor)
    u = (z1 / diag.sqrt()).double() @ factor.double()  # (..., R)
    gap = u - z2.double()
    squares = _sum(z1.square()) + _sum(z2.square()) - _quadratic(chol, gap)
    return -0.5 * (diag.numel() * _LOG_2PI + _sum(diag.log()) + _log_det(chol) + squares)


def low_rank_log_prob(value: Tensor, loc: Tensor, diag: Tensor, factor: Tensor) -> Tensor:
    """Return log q(value) in float64 for value (..., P)."""
    chol = capacitance(diag, factor)
    e = value.double() - loc.double()  # (..., P)
    scaled = e / diag.double()
    squares = _sum(e * scaled) - _quadratic(chol, scaled @ factor.double())
    return -0.5 * (diag.numel() * _LOG_2PI + _sum(diag.log()) + _log_det(chol) + squares)


def low_rank_entropy(diag: Tensor, factor: Tensor) -> Tensor:
    """Return H(q) in float64."""
    return 0.5 * (diag.numel() * (1 + _LOG_2PI) + _sum(diag.log()) + _log_det(capacitance(diag, factor)))


def kl_to_normal(loc: Tensor, diag: Tensor, factor: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """Return KL(q || N(m, s^2)) in float64 for m and s (P,)."""
    second = diag + factor.square().sum(-1) + (loc - m).square()  # (P,)
    terms = _sum(second / s.square() - torch.log(diag / s.square()))
    return 0.5 * (terms - diag.numel() - _log_det(capacitance(diag, factor)))


# ------------------------------------------------------------------------------------------------ distribution


@final
class LowRankNormal(TorchDistribution):
    """
    N(mu, diag(d) + W W') over vectors (P,), accurate in float32 at its own draws.

    :param loc: mu, (P,).
    :param sd: sqrt(d), (P,).
    :param factor: W, (P, R).
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real_vector,
        "sd": constraints.independent(constraints.positive, 1),
        "factor": constraints.independent(constraints.real, 2),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        sd: Tensor,
        factor: Tensor,
        batch_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.sd, self.factor = loc, sd, factor
        self._drawn: tuple[Tensor, Tensor, Tensor] | None = None
        super().__init__(torch.Size(batch_shape), loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "LowRankNormal":
        """Return the same law with another batch shape."""
        return LowRankNormal(self.loc, self.sd, self.factor, batch_shape, validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw (*sample_shape, *batch_shape, P); the noise of the last draw is kept for its log-density."""
        shape = torch.Size(sample_shape) + self.batch_shape
        z1 = torch.randn(*shape, self.loc.shape[-1], dtype=self.loc.dtype, device=self.loc.device)
        z2 = torch.randn(*shape, self.factor.shape[-1], dtype=self.loc.dtype, device=self.loc.device)
        value = self.loc + self.sd * z1 + z2 @ self.factor.mT  # (..., P)
        self._drawn = value, z1, z2
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log q(value), (...,): from the noise at the last draw itself, in float64 elsewhere."""
        if self._drawn is not None and value is self._drawn[0]:
            result = log_prob_at_draw(self.sd.double().square(), self.factor, *self._drawn[1:])
        else:
            result = low_rank_log_prob(value, self.loc, self.sd.double().square(), self.factor)
        return result.to(self.loc.dtype).expand(value.shape[:-1])

    def entropy(self) -> Tensor:
        """Return H(q), (*batch_shape)."""
        result = low_rank_entropy(self.sd.double().square(), self.factor)
        return result.to(self.loc.dtype).expand(self.batch_shape)

    def kl_to_normal(self, m: Tensor, s: Tensor) -> Tensor:
        """Return KL(q || N(m, s^2)) for m and s (P,) or scalars, (*batch_shape)."""
        result = kl_to_normal(self.loc, self.sd.double().square(), self.factor, m, s.expand(self.loc.shape))
        return result.to(self.loc.dtype).expand(self.batch_shape)

    @property
    def mean(self) -> Tensor:
        """The mean, (*batch_shape, P)."""
        return self.loc.expand(self.batch_shape + self.event_shape)

    @property
    def variance(self) -> Tensor:
        """The marginal variances d + rowsum W^2, (*batch_shape, P)."""
        return (self.sd.square() + self.factor.square().sum(-1)).expand(self.batch_shape + self.event_shape)


# ------------------------------------------------------------------------------------------------------- guide


@final
class AutoLowRankNormal(FlatGuide):
    """
    A normal guide over all weights with covariance diag(d) + W W'.

    The marginal standard deviations start at `init_scale`, half of the variance in d and half in a random W. The
    parameters are mu, rho with sqrt(d) = softplus(rho), and W in units of `init_scale`, so that one learning rate does
    for rho and W.

    :param model: any Pyro program; the guide is over its unconstrained space.
    :param rank: R, the columns of W.
    :param init_loc: where the mean starts; see :mod:`pyro_bnn.guides.init`.
    :param init_scale: initial standard deviation of every weight; default softplus(-4) = 0.0181.
    """

    kind = "low_rank"
    loc: Tensor
    rho: Tensor
    relative_cov_factor: Tensor

    def __init__(
        self, model: Any, *, rank: int = 10, init_loc: str = "uniform", init_scale: float | None = None
    ) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank={rank!r} is not a number of columns: pass an integer of at least 1")
        if init_scale is not None and not (math.isfinite(init_scale) and init_scale > 0):
            raise ValueError(f"init_scale={init_scale} is not a standard deviation: pass a finite number above 0")
        super().__init__(model, init_loc)
        self.rank = rank
        self.init_scale = init_scale
        self.unit = math.log1p(math.exp(DEFAULT_RHO)) if init_scale is None else init_scale
        self._build_if_known()

    @classmethod
    def from_moments(
        cls, model: Any, mean: Tensor, diag: Tensor, factor: Tensor, *args: Any, **kwargs: Any
    ) -> "AutoLowRankNormal":
        """
        Build the guide from a mean (P,), a diagonal d (P,) and a factor W (P, R), as a trajectory gives them.

        :param args: the model's arguments, for a program that has to be run to be known.
        """
        if not bool((diag > 0).all()):
            raise ValueError(
                f"the diagonal has {int((diag <= 0).sum())} entries that are not above 0 (smallest "
                f"{float(diag.min()):.3g}), so this is no covariance: use variance='total'"
            )
        guide = cls(model, rank=factor.shape[-1])
        guide.build(*args, **kwargs)
        if mean.shape != guide.loc.shape or diag.shape != mean.shape or factor.shape[:-1] != mean.shape:
            raise ValueError(
                f"mean {tuple(mean.shape)}, diagonal {tuple(diag.shape)} and factor {tuple(factor.shape)} do not fit "
                f"a model of {guide.loc.numel()} weights"
            )
        with torch.no_grad(), guide._pyro_context:
            guide.loc.copy_(mean)
            guide.rho.copy_(inverse_softplus(diag.double().sqrt()))
            guide.relative_cov_factor.copy_(factor / guide.unit)
        return guide

    def spec(self) -> dict[str, Any]:
        """Return the guide as names and numbers."""
        scale = {} if self.init_scale is None else {"init_scale": self.init_scale}
        return {"name": "AutoLowRankNormal", "rank": self.rank, "init_loc": self._init_loc, **scale}

    def _register(self, loc: Tensor, sites: Mapping[str, Any]) -> None:
        half = torch.full_like(loc, self.unit / math.sqrt(2), dtype=torch.float64)
        self._add_parameter("loc", loc)
        self._add_parameter("rho", inverse_softplus(half).to(loc.dtype))
        columns = torch.randn(len(loc), self.rank, dtype=loc.dtype, device=loc.device)
        self._add_parameter("relative_cov_factor", columns / math.sqrt(2 * self.rank))

    def distribution(self) -> LowRankNormal:
        """Return q over the flat vector."""
        return LowRankNormal(self.loc, F.softplus(self.rho), self.unit * self.relative_cov_factor)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample the flat vector, and every site as a point of it."""
        self.build(*args, **kwargs)
        infer = cast(Any, {"is_auxiliary": True, "low_rank": self._places})
        flat = pyro.sample(f"_{self._pyro_name}_latent", cast(Any, self.distribution()), infer=infer)
        return self._sample_at(flat, *args, jacobian=True, **kwargs)

    def kl_to_normal(self, m: Tensor, s: Tensor) -> Tensor:
        """Return KL(q || N(m, s^2)) over the flat vector, exactly, for m and s (P,) or scalars."""
        self._check_built()
        with self._pyro_context:
            return self.distribution().kl_to_normal(m, s)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return mu and sqrt(d + rowsum W^2)."""
        q = self.distribution()
        return q.mean, q.stddev

    @torch.no_grad()
    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the median of every site: its mean, mapped to the site's support."""
        self.build(*args, **kwargs)
        with self._pyro_context:
            return self.values(self.loc.detach())

    def quantiles(self, quantiles: Sequence[float] | Tensor, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """
        Return quantiles of every site, (Q, *shape): of each entry in unconstrained space, mapped to the support.

        :param quantiles: probabilities in [0, 1].
        """
        at = probabilities(quantiles)
        self.build(*args, **kwargs)
        return {name: normal_quantiles(self.site(name), at, place.transform) for name, place in self._places.items()}
