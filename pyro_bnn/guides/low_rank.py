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

What is learned are mu, rho, V (P, R) and t (R), with

    sqrt(d_i) = softplus(rho_i),        W_ir = sqrt(d_i) V_ir exp(3 t_r)

so that W is in units that learn. In fixed units W lags behind: d grows by a factor a step, W by steps of its own, and
when d has reached the deviations of the best diagonal q, what is left of W's gradient drowns in the noise of the draws.
In units of sqrt(d) the correlations that W makes are there at every size, and one number per column, whose gradient is
summed over all P weights, carries a column past the noise. With Adam, a correlation of 0.95 needs
sqrt(d) to fall far below W, which a column does at 3 % a step for a rate of 0.01. The columns of V start orthogonal,
so that none begins as the double of another; d and W W' start with half of each variance.

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

from pyro_bnn.guides.base import Role
from pyro_bnn.guides.flat import FlatGuide, Place
from pyro_bnn.guides.init import DEFAULT_LOC, DEFAULT_RHO, default_scale
from pyro_bnn.guides.softplus import inverse_softplus, softplus

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

COLUMN_SPEED = 3.0
"""How much faster than its parameter the logarithm of a column's length moves."""

_BEFORE = "relative_cov_factor_unconstrained"
"""What held W in units of `init_scale`, in posteriors saved before W was in units of sqrt(d)."""


def _whitened(factor: Tensor, rho: Tensor) -> Tensor:
    """Return W / softplus(rho) for W (P, R)."""
    return (factor.double() / softplus(rho.double()).unsqueeze(-1)).to(rho.dtype)


def _orthogonal(like: Tensor, rank: int) -> Tensor:
    """Return V (P, R) at random with orthogonal columns (rows, if R > P) and mean squared entry 1/R."""
    size = len(like)
    noise = torch.randn(size, rank, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    basis: Tensor = torch.linalg.qr(noise if size >= rank else noise.mT)[0]  # with a row for each of the larger number
    return ((basis if size >= rank else basis.mT) * math.sqrt(max(size, rank) / rank)).to(like.dtype).contiguous()


@final
class AutoLowRankNormal(FlatGuide):
    """
    A normal guide over all weights with covariance diag(d) + W W'.

    The marginal standard deviations start at `init_scale`, half of the variance in d and half in a random W. The
    parameters are mu, rho with sqrt(d) = softplus(rho), and W in units of sqrt(d), column by column times exp(3 t).

    :param model: any Pyro program; the guide is over its unconstrained space.
    :param rank: R, the columns of W.
    :param init_loc: where the mean starts; see :mod:`pyro_bnn.guides.init`.
    :param init_scale: initial standard deviation of every weight; default softplus(-4) = 0.0181 for the weights of a
        BNN, 0.1 for the sites of another program.

    >>> import torch
    >>> from pyro_bnn.guides import AutoLowRankNormal
    >>> from pyro_bnn.models import BNN, likelihoods, priors
    >>> model = BNN(torch.nn.Linear(3, 2), priors.Normal(), likelihoods.Categorical(), num_data=10)
    >>> guide = AutoLowRankNormal(model, rank=2)
    >>> guide.distribution().factor.shape  # W in the covariance diag(d) + W W' of all 8 weights
    torch.Size([8, 2])
    >>> sorted(guide())
    ['net.bias', 'net.weight']
    """

    kind = "low_rank"
    analytic_elbo = "low_rank"
    has_median = True
    roles: ClassVar[Mapping[str, Role]] = {
        "loc": "loc",
        "rho": "scale",
        "whitened_cov_factor": "scale",
        "column_log_scale": "scale",
    }
    loc: Tensor
    rho: Tensor
    whitened_cov_factor: Tensor
    column_log_scale: Tensor

    def __init__(
        self, model: Any, *, rank: int = 10, init_loc: str = DEFAULT_LOC, init_scale: float | None = None
    ) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank={rank!r} is not a number of columns: pass an integer of at least 1")
        if init_scale is not None and not (math.isfinite(init_scale) and init_scale > 0):
            raise ValueError(f"init_scale={init_scale} is not a standard deviation: pass a finite number above 0")
        super().__init__(model, init_loc)
        self.rank = rank
        self.init_scale = init_scale
        self._build_if_known()

    @classmethod
    def from_moments(
        cls, model: Any, mean: Tensor, diag: Tensor, factor: Tensor, *args: Any, **kwargs: Any
    ) -> "AutoLowRankNormal":
        """
        Build the guide from a mean (P,), a diagonal d (P,) and a factor W (P, R), as a trajectory gives them.

        :param diag: d (P,), the variances that the factor leaves.
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
            guide.whitened_cov_factor.copy_(_whitened(factor, guide.rho))
            guide.column_log_scale.zero_()
        return guide

    def spec(self) -> dict[str, Any]:
        """Return the guide as names and numbers."""
        scale = {} if self.init_scale is None else {"init_scale": self.init_scale}
        return {"name": "AutoLowRankNormal", "rank": self.rank, "init_loc": self._init_loc, **scale}

    def _register(self, loc: Tensor, sites: Mapping[str, Any]) -> None:
        start = torch.cat([self._initial_scale(site, self._places[name]) for name, site in sites.items()])  # (P,)
        self._add_parameter("loc", loc)
        self._add_parameter("rho", inverse_softplus(start / math.sqrt(2)).to(loc.dtype))
        self._add_parameter("whitened_cov_factor", _orthogonal(loc, self.rank))
        self._add_parameter("column_log_scale", loc.new_zeros(self.rank))

    def _initial_scale(self, site: Any, place: Place) -> Tensor:
        scale = default_scale(site["infer"].get("init", {})) if self.init_scale is None else self.init_scale
        return torch.full((place.size,), scale, dtype=torch.float64, device=site["value"].device)

    def distribution(self) -> LowRankNormal:
        """Return q over the flat vector."""
        sd = softplus(self.rho)  # (P,)
        columns = self.whitened_cov_factor * torch.exp(COLUMN_SPEED * self.column_log_scale)  # (P, R)
        return LowRankNormal(self.loc, sd, sd.unsqueeze(-1) * columns)

    def upgraded(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the saved tensors of any version under today's names: W was in units of its start before."""
        if _BEFORE not in state:
            return dict(state)
        unit = math.log1p(math.exp(DEFAULT_RHO)) if self.init_scale is None else self.init_scale
        kept = {name: tensor for name, tensor in state.items() if name != _BEFORE}
        factor = unit * state[_BEFORE]
        kept["whitened_cov_factor_unconstrained"] = _whitened(factor, state["rho_unconstrained"])
        kept["column_log_scale_unconstrained"] = factor.new_zeros(factor.shape[-1])
        return kept

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample the flat vector, and every site as a point of it."""
        self.build(*args, **kwargs)
        infer = cast(Any, {"is_auxiliary": True, "joint_normal": self._places})
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

    # -- beside others like it -----------------------------------------------------------------------------------

    def unstackable(self) -> str | None:
        """Return why this guide cannot run beside others like it as one batched program, as words; None if it can."""
        return self._joint_unstackable()

    def noise(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """
        Return what a draw is made from, z1 and z2 (P + R,): what `forward` draws from a generator in this state.

        :param like: a tensor (P,) whose dtype and device it takes.
        """
        kind: dict[str, Any] = {"generator": generator, "dtype": like.dtype, "device": like.device}
        return torch.cat([torch.randn(len(like), **kind), torch.randn(self.rank, **kind)])

    @staticmethod
    def _columns(own: Mapping[str, Tensor]) -> Tensor:
        """Return W in units of sqrt(d), (..., P, R)."""
        return own["whitened_cov_factor"] * torch.exp(COLUMN_SPEED * own["column_log_scale"]).unsqueeze(-2)

    def draw_at(self, own: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """
        Return the draw (..., P) that parameters and a noise (..., P + R) make.

        :param own: the guide's own parameters by name, each with the same leading dimensions.
        """
        z1, z2 = noise[..., : -self.rank], noise[..., -self.rank :]
        whitened = z1 + (self._columns(own) @ z2.unsqueeze(-1)).squeeze(-1)
        return torch.addcmul(own["loc"], softplus(own["rho"]), whitened)

    def kl_at(self, own: Mapping[str, Tensor], m: Tensor, s: Tensor) -> Tensor:
        """
        Return KL(q || N(m, s^2)) of parameters that are given, (...).

        :param own: the guide's own parameters by name.
        :param m: the prior's means, (..., P).
        :param s: the prior's deviations, (..., P).
        """
        sd, columns, m, s = softplus(own["rho"]).double(), self._columns(own).double(), m.double(), s.double()
        diag = sd.square()
        second = diag * (1 + columns.square().sum(-1)) + (own["loc"].double() - m).square()  # (..., P)
        identity = torch.eye(self.rank, dtype=torch.float64, device=diag.device)
        log_det = torch.linalg.slogdet(identity + columns.mT @ columns).logabsdet  # of C, (...)
        terms = (second / s.square() - torch.log(diag / s.square())).sum(-1)
        kl: Tensor = 0.5 * (terms - diag.shape[-1] - log_det)
        return kl.to(own["loc"].dtype)
