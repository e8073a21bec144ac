"""
Priors that penalties imply: the distribution proportional to exp(-penalty), as Pyro distributions and as rules.

For a point estimate, nll + r(w) is -log p(w | data) up to a constant when the prior is alpha = exp(-r) / kappa:

    r(w) = lambda ||w||_2^2        alpha = N(0, 1 / (2 lambda))                      variance 1 / (2 lambda)
    r(w) = lambda ||w||_1          alpha = Laplace(0, 1 / lambda)                    variance 2 / lambda^2
    r(w) = lambda sum_g ||w_g||_2  alpha = prod_g exp(-lambda ||w_g||) / Z           variance (D + 1) / lambda^2

    log Z = ln 2 + (D/2) ln pi + lnGamma(D) - lnGamma(D/2) - D ln lambda             for a group of D weights

In spherical coordinates the group density is r^(D-1) exp(-lambda r) times the uniform law on the sphere: the radius is
Gamma(D, lambda), E r^2 = D (D + 1) / lambda^2, and each of the D components carries a D-th of it. D = 1 is Laplace.

Asking for the variance v of the initialisation fixes the weight of the penalty (Wolinski, Charpiat and Ollivier, An
equivalence between Bayesian priors and penalties in variational inference, 2022):

    lambda = 1 / (2 v)          lambda = sqrt(2 / v)          lambda = sqrt((D + 1) / v)

    v = 1 / n_in  (fan_in, LeCun)      2 / (n_in + n_out)  (glorot)      2 / n_in  (kaiming, for the ReLU)

The groups of a grouped convolution are those of each channel it has, not of the channels its weight's second dimension
counts, and those of a transposed one lie the other way round: the layer that owns a weight says which
(:func:`group_layout`).

Departures. The slides call v = 1 / n_in Glorot's; here each scheme carries its own name. The penalties act on weights,
tensors of two dimensions and more; vectors (biases) take the Normal prior of the same variance under every penalty.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from pyro_bnn.models.priors import Prior, fans

__all__ = [
    "GROUP_DIMS",
    "GroupLassoDensity",
    "GroupLassoPrior",
    "GroupLayout",
    "Groups",
    "L1Prior",
    "L2Prior",
    "SharedPrior",
    "TabulatedDensity",
    "Variance",
    "check_grouped",
    "fill_groups",
    "group_lasso_log_normalizer",
    "group_layout",
    "group_norms",
    "group_size",
    "owners_of",
    "target_variance",
]

Groups: TypeAlias = Literal["incoming", "outgoing"]
"""Which weights form a group: those into one unit or filter, or those out of one input unit or channel."""

Variance: TypeAlias = Literal["fan_in", "glorot", "kaiming"] | Callable[[int, int], float]
"""A scheme's name, or a function of (n_in, n_out)."""

Shape: TypeAlias = torch.Size | list[int] | tuple[int, ...]

GROUP_DIMS: dict[str, int] = {"incoming": 0, "outgoing": 1}
"""The dimension of a weight (K, D, ...) that counts the groups."""


class GroupLayout(NamedTuple):
    """
    Where the groups of weights lie in a weight (A, B, ...).

    `dim` is the dimension that counts them. `blocks` is 1; in a convolution of g groups of channels, of which the
    second dimension counts the channels of one only, g: block b is rows b A / g to (b + 1) A / g, and has B groups of
    weights of its own.
    """

    dim: int
    blocks: int = 1


def group_layout(groups: "Groups", module: nn.Module | None = None) -> GroupLayout:
    """
    Return the layout of the weight of `module`; None is a dense layer or a plain convolution, (out, in, ...).

    :param groups: "incoming" or "outgoing": the weights into a unit, or out of one.
    """
    _check_groups(groups)
    dim = GROUP_DIMS[groups]
    if isinstance(module, _ConvTransposeNd):  # (in, out / g, ...)
        dim = 1 - dim
    return GroupLayout(dim, module.groups if isinstance(module, _ConvNd) and dim == 1 else 1)


def _by_group(weight: Tensor, layout: GroupLayout) -> Tensor:
    """Return a weight as (groups, weights of each)."""
    blocks = weight.reshape(layout.blocks, weight.shape[0] // layout.blocks, *weight.shape[1:])
    return blocks.movedim(layout.dim + 1, 1).reshape(layout.blocks * weight.shape[layout.dim], -1)


def fill_groups(weight: Tensor, which: Tensor, groups: "Groups", module: nn.Module | None = None) -> Tensor:
    """
    Return a weight with the groups in the mask `which` (G,) set to zero.

    :param weight: the weight of a layer, (K, D, ...).
    :param groups: "incoming" or "outgoing": the weights into a unit, or out of one.
    :param module: the layer that owns the parameter; None for a lone one.
    """
    layout = group_layout(groups, module)
    shape = [1] * (weight.dim() + 1)
    shape[0], shape[layout.dim + 1] = layout.blocks, weight.shape[layout.dim]
    blocks = weight.reshape(layout.blocks, weight.shape[0] // layout.blocks, *weight.shape[1:])
    return torch.where(which.reshape(shape), torch.zeros_like(blocks), blocks).reshape(weight.shape)


_SCHEMES: dict[str, Callable[[int, int], float]] = {
    "fan_in": lambda n_in, n_out: 1 / n_in,
    "glorot": lambda n_in, n_out: 2 / (n_in + n_out),
    "kaiming": lambda n_in, n_out: 2 / n_in,
}


def _check_variance(variance: Variance) -> None:
    if not callable(variance) and variance not in _SCHEMES:
        raise ValueError(
            f"variance={variance!r} is unknown: pass one of {sorted(_SCHEMES)} or a function (n_in, n_out)"
        )


def _check_groups(groups: str) -> None:
    if groups not in GROUP_DIMS:
        raise ValueError(f"groups={groups!r} is unknown: pass one of {sorted(GROUP_DIMS)}")


def check_grouped(weight: Tensor, groups: str) -> None:
    """
    Raise unless `weight` has groups of this kind.

    :param groups: "incoming" or "outgoing": the weights into a unit, or out of one.
    """
    _check_groups(groups)
    if weight.dim() < 2:
        raise ValueError(
            f"a parameter of shape {tuple(weight.shape)} has no groups: pass a weight (units, inputs, ...) of 2 "
            f"dimensions or more; one group of D weights is (1, D) for 'incoming'"
        )


def target_variance(variance: Variance, module: nn.Module | None, parameter: Tensor) -> float:
    """
    Return the variance that the scheme gives each weight of `parameter`, owned by `module`.

    :param variance: of each weight: "fan_in" (1 / n_in), "glorot", "kaiming", or a function of (n_in, n_out).
    """
    _check_variance(variance)
    scheme = variance if callable(variance) else _SCHEMES[variance]
    value = scheme(*fans(module, parameter))
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"variance={variance!r} gives {value}: it must return a finite number above 0")
    return value


def owners_of(net: nn.Module | None) -> dict[str, nn.Module]:
    """
    Return the layer that owns each parameter of a network, by the parameter's name; none without a network.

    :param net: the network, or None.
    """
    if net is None:
        return {}
    modules = dict(net.named_modules())
    return {name: modules[name.rpartition(".")[0]] for name, _ in net.named_parameters()}


def group_norms(weight: Tensor, groups: Groups, module: nn.Module | None = None) -> Tensor:
    """
    Return the 2-norm of every group of a weight: of a weight (K, D, ...) (K,) incoming, (D,) outgoing.

    :param weight: the weight of a layer, (K, D, ...).
    :param groups: "incoming" or "outgoing": the weights into a unit, or out of one.
    :param module: the layer that owns it, which says whether it is a transposed convolution, whose weight is
        (D, K, ...), or one whose channels are grouped: then (K,) and (D,) are all its channels as well.
    """
    check_grouped(weight, groups)
    norms: Tensor = torch.linalg.vector_norm(_by_group(weight, group_layout(groups, module)), dim=1)
    return norms


def group_size(weight: Tensor, groups: Groups, module: nn.Module | None = None) -> int:
    """
    Return the number D of weights in each group of `weight`, owned by `module`.

    :param groups: "incoming" or "outgoing": the weights into a unit, or out of one.
    """
    check_grouped(weight, groups)
    layout = group_layout(groups, module)
    return weight.numel() // (weight.shape[layout.dim] * layout.blocks)


def group_lasso_log_normalizer(size: int, rate: Tensor) -> Tensor:
    """
    Log Z of exp(-rate ||w||_2) over `size` dimensions.

    :param rate: the rate, above 0.
    """
    unit_rate = math.log(2) + size / 2 * math.log(math.pi) + math.lgamma(size) - math.lgamma(size / 2)
    return unit_rate - size * torch.log(rate)


# ---------------------------------------------------------------------------------------------- distributions


@final
class GroupLassoDensity(TorchDistribution):
    """
    Independent groups of weights, each with density proportional to exp(-rate ||w_g||_2).

    :param rate: lambda > 0; its shape is the batch shape.
    :param shape: event shape, such as the shape of a layer's weight.
    :param group_dim: the event dimension that counts the groups; None makes the whole event one group.
    :param validate_args: as in torch's distributions.
    :param blocks: so many blocks along the first dimension have groups of their own; see :class:`GroupLayout`.
    """

    arg_constraints = {"rate": constraints.positive}  # noqa: RUF012
    has_rsample = True

    def __init__(
        self,
        rate: Tensor | float,
        shape: tuple[int, ...],
        group_dim: int | None = None,
        validate_args: bool | None = None,
        *,
        blocks: int = 1,
    ) -> None:
        event_shape = torch.Size(shape)
        if not event_shape or 0 in event_shape:
            raise ValueError(f"shape={tuple(shape)} holds no weights: pass a shape of one dimension or more")
        if group_dim is not None and not 0 <= group_dim < len(event_shape):
            raise ValueError(
                f"group_dim={group_dim} is not a dimension of {tuple(shape)}: pass one of 0 to {len(shape) - 1}"
            )
        if blocks < 1 or (blocks > 1 and (not group_dim or event_shape[0] % blocks)):
            raise ValueError(
                f"blocks={blocks} do not divide {tuple(shape)} with group_dim={group_dim}: pass a divisor of the first "
                f"dimension, whose groups another dimension counts, or 1"
            )
        self.rate = torch.as_tensor(rate, dtype=None if isinstance(rate, Tensor) else torch.get_default_dtype())
        self.group_dim = group_dim
        self.blocks = blocks
        self.num_groups = 1 if group_dim is None else event_shape[group_dim] * blocks
        self.group_size = event_shape.numel() // self.num_groups
        super().__init__(self.rate.shape, event_shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """All of R^shape."""
        independent: Any = constraints.independent
        return independent(constraints.real, len(self.event_shape))  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        """0."""
        return self.rate.new_zeros(self.batch_shape + self.event_shape)

    @property
    def variance(self) -> Tensor:
        """(D + 1) / rate^2 for each component."""
        per_component = (self.group_size + 1) / self.rate**2
        return per_component.reshape(self.batch_shape + (1,) * len(self.event_shape)).expand(
            self.batch_shape + self.event_shape
        )

    def expand(self, batch_shape: Shape, _instance: Any = None) -> "GroupLassoDensity":
        """
        Return the same density over a larger batch.

        :param batch_shape: the new shape.
        """
        return GroupLassoDensity(
            self.rate.expand(batch_shape), self.event_shape, self.group_dim, validate_args=False, blocks=self.blocks
        )

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """
        Draw a direction on the sphere and a Gamma(D, rate) radius for each group.

        :param sample_shape: S, the shape of the draws.
        """
        shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
        direction = self._in_blocks(torch.randn(shape, dtype=self.rate.dtype, device=self.rate.device))
        rate = self.rate.reshape(self.batch_shape + (1,) * self._rank)
        norm = self._norms(direction, keepdim=True)
        radius = torch._standard_gamma(torch.full_like(norm, self.group_size)) / rate
        return (direction / norm * radius).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """
        Return -rate sum_g ||w_g|| - G log Z.

        :param value: weights (..., *shape).
        """
        if self._validate_args:
            self._validate_sample(value)
        total = self._norms(self._in_blocks(value), keepdim=False)
        total = total if self.group_dim is None else total.flatten(-2).sum(-1) if self.blocks > 1 else total.sum(-1)
        return -self.rate * total - self.num_groups * group_lasso_log_normalizer(self.group_size, self.rate)

    @property
    def _rank(self) -> int:
        return len(self.event_shape) + (self.blocks > 1)

    def _in_blocks(self, value: Tensor) -> Tensor:
        """Split the first event dimension into blocks, if there are several."""
        if self.blocks == 1:
            return value
        rows = self.event_shape[0] // self.blocks
        batch = value.shape[: value.dim() - len(self.event_shape)]
        return value.reshape(*batch, self.blocks, rows, *self.event_shape[1:])

    def _norms(self, value: Tensor, keepdim: bool) -> Tensor:
        if self.blocks == 1:
            counted = {self.group_dim}
        else:
            assert self.group_dim is not None
            counted = {0, self.group_dim + 1}
        dims = tuple(d - self._rank for d in range(self._rank) if d not in counted)
        return torch.linalg.vector_norm(value, dim=dims, keepdim=keepdim) if dims else value.abs()


def _log_mean_exp(step: Tensor) -> Tensor:
    """Log of the mean of exp over [0, step]: log((exp(step) - 1) / step) = step/2 + log(sinh(step/2) / (step/2))."""
    half = step.abs() / 2
    safe = half.clamp(min=1e-3)
    large = safe + torch.log1p(-torch.exp(-2 * safe)) - torch.log(2 * safe)
    return step / 2 + torch.where(half < 1e-3, half**2 / 6, large)


@final
class TabulatedDensity(TorchDistribution):
    """
    A density on the real line given by its logarithm at points: linear between them, and outside along the end slopes.

    Each piece is an exponential, so the normaliser, the distribution function and its inverse are exact.

    :param points: increasing, (G,) with G >= 2.
    :param log_density: at the points, up to a constant, (G,); must rise into the first point and fall from the last.
    :param batch_shape: how many independent copies.
    :param validate_args: as in torch's distributions.
    """

    arg_constraints = {"points": constraints.real_vector, "log_density": constraints.real_vector}  # noqa: RUF012
    support = constraints.real

    def __init__(
        self,
        points: Tensor,
        log_density: Tensor,
        batch_shape: tuple[int, ...] = (),
        validate_args: bool | None = None,
    ) -> None:
        if points.dim() != 1 or len(points) < 2 or points.shape != log_density.shape:
            raise ValueError(
                f"points {tuple(points.shape)} and log_density {tuple(log_density.shape)} must be one table: pass two "
                f"vectors of the same length, 2 or more"
            )
        width = points.diff()  # (G - 1,)
        if not bool((width > 0).all()):
            raise ValueError("points do not increase: sort them and drop duplicates")
        rise = log_density.diff()  # (G - 1,)
        left, right = rise[0] / width[0], rise[-1] / width[-1]
        if not (left > 0 > right):
            raise ValueError(
                f"log_density has slope {left:.3g} at the first point and {right:.3g} at the last: it must rise into "
                f"the table and fall out of it, or no tail integrates; widen the table"
            )
        cells = log_density[:-1] + torch.log(width) + _log_mean_exp(rise)
        ends = torch.stack([log_density[0] - torch.log(left), log_density[-1] - torch.log(-right)])
        masses = torch.cat([ends[:1], cells, ends[1:]])  # (G + 1,), logarithms
        self.log_normalizer = torch.logsumexp(masses, 0)
        self.points = points
        self.log_density = log_density - self.log_normalizer
        self._slopes = torch.cat([left[None], rise / width, right[None]])  # (G + 1,), piece by piece
        self._masses = torch.exp(masses - self.log_normalizer)  # (G + 1,)
        self._below = torch.cat([points.new_zeros(1), self._masses.cumsum(0)[:-1]])  # (G + 1,), mass left of a piece
        super().__init__(torch.Size(batch_shape), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> "TabulatedDensity":
        """
        Return the same density over a larger batch.

        :param batch_shape: the new shape.
        """
        return TabulatedDensity(self.points, self.log_density, torch.Size(batch_shape), validate_args=False)

    def to(self, like: Tensor) -> "TabulatedDensity":
        """Return the same density in the dtype and on the device of `like`."""
        return TabulatedDensity(self.points.to(like), self.log_density.to(like), self.batch_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """
        Return the interpolated log density.

        :param value: numbers (...).
        """
        if self._validate_args:
            self._validate_sample(value)
        return self._interpolate(value) + self.points.new_zeros(self.batch_shape)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of (-inf, value]."""
        piece = torch.bucketize(value, self.points)
        last = len(self.points)
        anchor = (piece - 1).clamp(min=0)
        into = value - self.points[anchor]
        slope = self._slopes[piece]
        left_tail = self._masses[0] * torch.exp(self._slopes[0] * into.clamp(max=0))
        right_tail = 1 - self._masses[-1] * torch.exp(self._slopes[-1] * into.clamp(min=0))
        inside = self._below[piece] + torch.exp(
            self.log_density[anchor] + torch.log(into) + _log_mean_exp(slope * into)
        )
        return torch.where(piece == 0, left_tail, torch.where(piece == last, right_tail, inside))

    def icdf(self, value: Tensor) -> Tensor:
        """Return the point below which a probability `value` lies."""
        piece = (torch.bucketize(value, self._below, right=True) - 1).clamp(0, len(self.points))
        anchor = (piece - 1).clamp(min=0)
        slope = self._slopes[piece]
        density = torch.exp(self.log_density[anchor])
        wanted = value - self._below[piece]  # mass to collect within the piece
        left_tail = self.points[0] + torch.log(value / self._masses[0]) / self._slopes[0]
        right_tail = self.points[-1] + torch.log((1 - value) / self._masses[-1]) / self._slopes[-1]
        flat = (slope * wanted / density).abs() < 1e-12
        curved = torch.log1p(slope * wanted / density) / torch.where(slope == 0, torch.ones_like(slope), slope)
        inside = self.points[anchor] + torch.where(flat, wanted / density, curved)
        return torch.where(piece == 0, left_tail, torch.where(piece == len(self.points), right_tail, inside))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """
        Draw by inverting the distribution function.

        :param sample_shape: the shape of the draws.
        """
        shape = torch.Size(sample_shape) + self.batch_shape
        uniform = torch.rand(shape, dtype=self.points.dtype, device=self.points.device)
        return self.icdf(uniform.clamp(min=torch.finfo(uniform.dtype).tiny))

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._moment(1).expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (self._moment(2) - self._moment(1) ** 2).expand(self.batch_shape)

    def _interpolate(self, value: Tensor) -> Tensor:
        piece = torch.bucketize(value.detach(), self.points)  # (...), 0 left of the table, G right of it
        anchor = (piece - 1).clamp(min=0)
        return self.log_density[anchor] + self._slopes[piece] * (value - self.points[anchor])

    def _moment(self, order: Literal[1, 2]) -> Tensor:
        nodes = self.points.new_tensor(
            [-0.8611363115940526, -0.3399810435848563, 0.3399810435848563, 0.8611363115940526]
        )
        shares = self.points.new_tensor(
            [0.17392742256872693, 0.32607257743127307, 0.32607257743127307, 0.17392742256872693]
        )
        width = self.points.diff()
        x = self.points[:-1, None] + width[:, None] * (1 + nodes) / 2  # (G - 1, 4), Gauss-Legendre
        inside = (width[:, None] * shares * torch.exp(self._interpolate(x)) * x**order).sum()
        ends, scales = self.points[[0, -1]], 1 / self._slopes[[0, -1]]  # a tail's mean is its end minus 1 / slope
        tails = ends - scales if order == 1 else (ends - scales) ** 2 + scales**2
        return inside + (self._masses[[0, -1]] * tails).sum()


# ---------------------------------------------------------------------------------------------- rules


def _normal(parameter: Tensor, variance: float) -> Distribution:
    normal = dist.Normal(parameter.new_zeros(()), parameter.new_tensor(math.sqrt(variance)))
    return normal.expand(parameter.shape).to_event(parameter.dim())  # type: ignore[no-any-return]


@final
@dataclass(frozen=True)
class L2Prior(Prior):
    """
    The Normal prior of the L2 penalty, with the variance of a scheme.

    :param variance: of each weight: "fan_in" (1 / n_in), "glorot", "kaiming", or a function of (n_in, n_out).
    """

    variance: Variance = "fan_in"

    def __post_init__(self) -> None:
        _check_variance(self.variance)

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        return _normal(parameter, target_variance(self.variance, module, parameter))


@final
@dataclass(frozen=True)
class L1Prior(Prior):
    """
    The Laplace prior of the L1 penalty, with the variance of a scheme.

    :param variance: of each weight: "fan_in" (1 / n_in), "glorot", "kaiming", or a function of (n_in, n_out).
    """

    variance: Variance = "fan_in"

    def __post_init__(self) -> None:
        _check_variance(self.variance)

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        variance = target_variance(self.variance, module, parameter)
        if parameter.dim() < 2:
            return _normal(parameter, variance)
        laplace = dist.Laplace(parameter.new_zeros(()), parameter.new_tensor(math.sqrt(variance / 2)))
        return laplace.expand(parameter.shape).to_event(parameter.dim())  # type: ignore[no-any-return]


@final
@dataclass(frozen=True)
class GroupLassoPrior(Prior):
    """
    The prior of the group lasso over incoming or outgoing weights, with the variance of a scheme.

    :param groups: the weights into a unit, or out of one.
    :param variance: of each weight: "fan_in" (1 / n_in), "glorot", "kaiming", or a function of (n_in, n_out).
    """

    groups: Groups = "incoming"
    variance: Variance = "fan_in"

    def __post_init__(self) -> None:
        _check_groups(self.groups)
        _check_variance(self.variance)

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        variance = target_variance(self.variance, module, parameter)
        if parameter.dim() < 2:
            return _normal(parameter, variance)
        rate = math.sqrt((group_size(parameter, self.groups, module) + 1) / variance)
        layout = group_layout(self.groups, module)
        return GroupLassoDensity(parameter.new_tensor(rate), parameter.shape, layout.dim, blocks=layout.blocks)


def _cast(density: Distribution, like: Tensor) -> Distribution:
    if isinstance(density, TabulatedDensity):
        return density.to(like)
    if isinstance(density, (dist.Normal, dist.Laplace)):
        return type(density)(density.loc.to(like), density.scale.to(like))
    return density


@final
@dataclass(frozen=True)
class SharedPrior(Prior):
    """
    One distribution over a single weight, shared by all weights, such as what `prior_from_penalty` returns.

    :param density: any Pyro distribution with scalar events. Tables, Normal and Laplace distributions follow the dtype
        and device of the weights; others must be built in it.
    """

    density: Distribution

    def __post_init__(self) -> None:
        if self.density.batch_shape or self.density.event_shape:
            raise ValueError(
                f"density has batch shape {tuple(self.density.batch_shape)} and event shape "
                f"{tuple(self.density.event_shape)}: pass the distribution of one weight, with both empty"
            )

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        density = _cast(self.density, parameter)
        return density.expand(parameter.shape).to_event(parameter.dim())  # type: ignore[no-any-return]

    def spec(self) -> None:
        """Return None: a distribution is no name or number."""
        return None
