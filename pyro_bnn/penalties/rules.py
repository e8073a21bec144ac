"""
Penalties and their values: of the weights of one layer, and of the variational parameters of one weight.

    L2           r(w) = weight ||w||_2^2
    L1           r(w) = weight ||w||_1
    group lasso  r(w) = weight sum_g ||w_g||_2

    quadratic    r(mu, s) = a(s^2) + b(s^2) mu^2
    KL           r(mu, s) = KL(N(mu, s^2) || alpha), or -ln alpha(mu) for a point estimate

The first three know the prior exp(-r) / kappa that they imply for a point estimate, and the weight lambda_l with which
it has the variance of the initialisation (formulas in `models/penalty_priors.py`). `deconvolution.py` finds the prior
that any of them implies for a Gaussian family; `network.py` weighs the layers of a network.

A quadratic penalty has a prior for every s if and only if, for some s0 and K,

    b(s^2) = 1 / (2 s0^2),   a(s^2) = [s^2 / s0^2 + ln(s0^2 / s^2) - 1] / 2 + K;   then alpha = N(0, s0^2).

Departure. The printed corollary (Wolinski, Charpiat and Ollivier, An equivalence between Bayesian priors and penalties
in variational inference, 2022) swaps a and b.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_bnn.common.renamed import rehoused
from pyro_bnn.models.penalty_priors import (
    GROUP_DIMS,
    GroupLassoDensity,
    Groups,
    check_grouped,
    group_layout,
    group_norms,
    group_size,
)
from pyro_bnn.penalties.densities import (
    expected_log_prob,
    kl_normal_laplace,
    kl_normal_normal,
    normal_entropy,
    over_tensor,
)

__all__ = [
    "GroupLasso",
    "KLPenalty",
    "L1",
    "L2",
    "Penalty",
    "QuadraticPenalty",
    "VariationalPenalty",
    "gaussian_penalty",
    "penalty_from_prior",
]

VariationalPenalty: TypeAlias = Callable[[Tensor, float], Tensor]
"""A penalty on the variational parameters of one weight: r(mu, sd), elementwise in mu."""


# -- of weights -----------------------------------------------------------------------------------------------------


def _check_weight(weight: float) -> None:
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"weight={weight} is no penalty: pass a finite number above 0")


class Penalty(ABC):
    """A penalty r(w) on the weight of one layer, and the prior that it implies for the Dirac family."""

    weight: float

    @abstractmethod
    def value(self, parameter: Tensor, module: nn.Module | None = None) -> Tensor:
        """
        Return r of the whole tensor.

        :param parameter: the whole tensor.
        :param module: the layer that owns the parameter; None for a lone one.
        """

    @abstractmethod
    def prior(self, parameter: Tensor, scale: float = 1.0, module: nn.Module | None = None) -> Distribution:
        """
        Return the distribution of density proportional to exp(-scale r) over the whole tensor.

        :param parameter: the whole tensor.
        :param module: the layer that owns the parameter; None for a lone one.
        """

    @abstractmethod
    def scale_for(self, variance: float, parameter: Tensor, module: nn.Module | None = None) -> float:
        """
        Return the lambda_l for which `prior(parameter, lambda_l)` has `variance` per weight.

        :param module: the layer that owns the parameter; None for a lone one.
        """

    def usual_scale(self, parameter: Tensor, module: nn.Module | None = None) -> float:
        """
        Return the customary lambda_l.

        :param parameter: the whole tensor.
        :param module: the layer that owns the parameter; None for a lone one.
        """
        return 1.0


@final
@dataclass(frozen=True)
class L2(Penalty):
    """
    r = weight ||w||_2^2.

    :param weight: the factor in front of it.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weight(self.weight)

    def value(self, parameter: Tensor, module: nn.Module | None = None) -> Tensor:
        """Return r of the whole tensor."""
        return self.weight * parameter.square().sum()

    def prior(self, parameter: Tensor, scale: float = 1.0, module: nn.Module | None = None) -> Distribution:
        """Return N(0, 1 / (2 scale weight)) for every weight."""
        sd = parameter.new_tensor(1 / math.sqrt(2 * scale * self.weight))
        return over_tensor(dist.Normal(torch.zeros_like(sd), sd), parameter)

    def scale_for(self, variance: float, parameter: Tensor, module: nn.Module | None = None) -> float:
        """Return 1 / (2 variance)."""
        return 1 / (2 * variance) / self.weight


@final
@dataclass(frozen=True)
class L1(Penalty):
    """
    r = weight ||w||_1.

    :param weight: the factor in front of it.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weight(self.weight)

    def value(self, parameter: Tensor, module: nn.Module | None = None) -> Tensor:
        """Return r of the whole tensor."""
        return self.weight * parameter.abs().sum()

    def prior(self, parameter: Tensor, scale: float = 1.0, module: nn.Module | None = None) -> Distribution:
        """Return Laplace(0, 1 / (scale weight)) for every weight."""
        width = parameter.new_tensor(1 / (scale * self.weight))
        return over_tensor(dist.Laplace(torch.zeros_like(width), width), parameter)

    def scale_for(self, variance: float, parameter: Tensor, module: nn.Module | None = None) -> float:
        """Return sqrt(2 / variance)."""
        return math.sqrt(2 / variance) / self.weight


@final
@dataclass(frozen=True)
class GroupLasso(Penalty):
    """
    r = weight sum_g ||w_g||_2 over the incoming or the outgoing weights of units, filters or channels.

    :param groups: "incoming" or "outgoing": the weights into a unit, or out of one.
    :param weight: the factor in front of it.
    """

    groups: Groups = "incoming"
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weight(self.weight)
        if self.groups not in GROUP_DIMS:
            raise ValueError(f"groups={self.groups!r} is unknown: pass one of {sorted(GROUP_DIMS)}")

    def value(self, parameter: Tensor, module: nn.Module | None = None) -> Tensor:
        """Return r of the whole tensor."""
        return self.weight * group_norms(parameter, self.groups, module).sum()

    def prior(self, parameter: Tensor, scale: float = 1.0, module: nn.Module | None = None) -> Distribution:
        """Return the group-lasso density of rate `scale weight` over the whole tensor."""
        check_grouped(parameter, self.groups)
        rate = parameter.new_tensor(scale * self.weight)
        layout = group_layout(self.groups, module)
        return GroupLassoDensity(rate, parameter.shape, layout.dim, blocks=layout.blocks)

    def scale_for(self, variance: float, parameter: Tensor, module: nn.Module | None = None) -> float:
        """Return sqrt((D + 1) / variance)."""
        return math.sqrt((group_size(parameter, self.groups, module) + 1) / variance) / self.weight

    def usual_scale(self, parameter: Tensor, module: nn.Module | None = None) -> float:
        """Return sqrt(D) (Alvarez and Salzmann 2016)."""
        return math.sqrt(group_size(parameter, self.groups, module))


# -- of variational parameters --------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class KLPenalty:
    """
    r(mu, sd) = KL(beta_{mu, sd} || prior) of one weight; differentiable in both arguments.

    :param prior: of one weight.
    :param family: "normal" for N(mu, sd^2), "dirac" for a point at mu.
    """

    prior: Distribution
    family: Literal["normal", "dirac"] = "normal"

    def __post_init__(self) -> None:
        if self.family not in ("normal", "dirac"):
            raise ValueError(f"family={self.family!r} is unknown: pass 'normal' or 'dirac'")
        if self.prior.batch_shape or self.prior.event_shape:
            raise ValueError(
                f"prior has batch shape {tuple(self.prior.batch_shape)} and event shape "
                f"{tuple(self.prior.event_shape)}: pass the prior of one weight, with both empty"
            )

    def __call__(self, mu: Tensor, sd: Tensor | float = 0.0) -> Tensor:
        """Return the KL for each mean and standard deviation; for the Dirac family -ln prior(mu), `sd` unused."""
        if self.family == "dirac":
            return -self.prior.log_prob(mu)
        sd = torch.as_tensor(sd, dtype=mu.dtype, device=mu.device)
        if not bool((sd > 0).all()):
            raise ValueError(f"sd={sd.min().item()} is no standard deviation: pass numbers above 0, or family='dirac'")
        if isinstance(self.prior, torch.distributions.Normal):
            return kl_normal_normal(mu, sd, self.prior.loc, self.prior.scale)
        if isinstance(self.prior, torch.distributions.Laplace):
            return kl_normal_laplace(mu, sd, self.prior.loc, self.prior.scale)
        return -normal_entropy(sd) - expected_log_prob(self.prior, mu, sd)


def penalty_from_prior(prior: Distribution, family: Literal["normal", "dirac"] = "normal") -> KLPenalty:
    """
    Return the penalty that training with the KL to `prior` amounts to, as a function r(mu, sd) of one weight.

    :param prior: distribution of one weight.
    :param family: "normal" for N(mu, sd^2), in closed form for Normal and Laplace priors and by quadrature otherwise;
        "dirac" for a point estimate.
    """
    return KLPenalty(prior, family)


@final
@dataclass(frozen=True)
class QuadraticPenalty:
    """
    r = a(sd^2) + b(sd^2) mu^2, with a and b functions of the variance.

    :param a: of the variance.
    :param b: of the variance.
    """

    a: Callable[[float], float]
    b: Callable[[float], float]

    def __call__(self, mu: Tensor, sd: float) -> Tensor:
        """Return r(mu, sd)."""
        return self.a(sd**2) + self.b(sd**2) * mu.square()


def gaussian_penalty(prior_sd: float) -> QuadraticPenalty:
    """
    Return the only quadratic penalty whose prior is N(0, prior_sd^2) whatever the variational scale (K = 0).

    :param prior_sd: of the prior, above 0.
    """
    if not (math.isfinite(prior_sd) and prior_sd > 0):
        raise ValueError(f"prior_sd={prior_sd} is not a standard deviation: pass a finite number above 0")
    s0 = prior_sd**2

    def a(variance: float) -> float:
        return (variance / s0 + math.log(s0 / variance) - 1) / 2 if variance > 0 else math.inf

    return QuadraticPenalty(a, b=lambda variance: 1 / (2 * s0))


__getattr__ = rehoused(
    __name__,
    {
        "pyro_bnn.penalties.deconvolution": (
            *("DependsOnScaleError", "ImpliedPrior", "NoPriorError", "NotIntegrableError", "SpectrumGrowsError"),
            *("UnstableDeconvolutionError", "implied_prior", "plot_equivalence", "prior_from_penalty"),
        ),
        "pyro_bnn.penalties.network": (
            *("PenaltyPrior", "UsualPenaltyPrior", "bayesian_penalty_weights", "lambda_theory", "total_penalty"),
            "usual_penalty_weights",
        ),
    },
)
