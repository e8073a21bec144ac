"""
Penalties of a whole network: the weight of the penalty in each layer, and the penalty as a prior rule.

The objective per datum is nll + lambda sum_l lambda_l r(w_l), over all parameters but those of normalisation layers;
vectors (biases) carry L2 under every penalty. lambda_l gives the prior of a point estimate the variance of the
initialisation, with P_l inputs and variance 1 / P_l

    L2  P_l / 2      L1  sqrt(2 P_l)      group lasso  sqrt((D + 1) P_l)

(formulas for any variance in `models/penalty_priors.py`), and with these the Bayesian lambda is 1 / N. In a `fit` with
the rule `PenaltyPrior` as prior, a KL weight eta is lambda = eta / N.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.modules.batchnorm import _NormBase

from pyro_bnn.models.penalty_priors import Groups, Variance, owners_of, target_variance
from pyro_bnn.models.priors import Prior
from pyro_bnn.penalties.rules import L1, L2, GroupLasso, Penalty
from pyro_bnn.registry import described

__all__ = [
    "PenaltyPrior",
    "UsualPenaltyPrior",
    "bayesian_penalty_weights",
    "lambda_theory",
    "total_penalty",
    "usual_penalty_weights",
]

_NORM_LAYERS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def _acting(penalty: Penalty, parameter: Tensor) -> Penalty:
    """The penalty on this parameter: vectors (biases) carry L2 under every penalty."""
    return penalty if parameter.dim() >= 2 else L2()


def _penalised(net: nn.Module) -> Iterable[tuple[str, nn.Module, Tensor]]:
    """Name, owner and tensor of every parameter but those of normalisation layers."""
    modules = dict(net.named_modules())
    for name, parameter in net.named_parameters():
        owner = modules[name.rpartition(".")[0]]
        if not isinstance(owner, _NORM_LAYERS):
            yield name, owner, parameter


def bayesian_penalty_weights(net: nn.Module, penalty: Penalty, variance: Variance = "fan_in") -> dict[str, float]:
    """
    Return lambda_l by parameter name: the weight that gives each implied prior the variance of the initialisation.

    With P_l inputs and variance 1 / P_l: P_l / 2 for L2, sqrt(2 P_l) for L1, sqrt((D + 1) P_l) for groups of D.

    :param net: the network.
    :param penalty: the rule r that is applied to every tensor.
    :param variance: "fan_in" 1 / n_in, "glorot" 2 / (n_in + n_out), "kaiming" 2 / n_in, or a function (n_in, n_out).
    """
    return {
        name: _acting(penalty, parameter).scale_for(target_variance(variance, owner, parameter), parameter, owner)
        for name, owner, parameter in _penalised(net)
    }


def usual_penalty_weights(net: nn.Module, penalty: Penalty) -> dict[str, float]:
    """
    Return the customary lambda_l by parameter name: 1, or sqrt(D) for groups of D weights.

    :param net: the network.
    :param penalty: the rule r that is applied to every tensor.
    """
    return {
        name: _acting(penalty, parameter).usual_scale(parameter, owner) for name, owner, parameter in _penalised(net)
    }


def lambda_theory(num_data: int) -> float:
    """
    Return 1 / N, the weight of the whole penalty beside the mean nll that makes the objective Bayesian.

    :param num_data: N, the number of rows trained on.
    """
    if num_data < 1:
        raise ValueError(f"num_data={num_data} is not a number of rows: pass the size of the training set, >= 1")
    return 1 / num_data


def total_penalty(
    parameters: nn.Module | Mapping[str, Tensor],
    penalty: Penalty,
    weights: Mapping[str, float],
    *,
    net: nn.Module | None = None,
) -> Tensor:
    """
    Return sum_l lambda_l r(w_l) over the parameters named in `weights`; differentiable.

    :param parameters: a network, or its parameters by name.
    :param penalty: the rule r that is applied to every tensor.
    :param net: the network that tensors by name belong to, for groups of its grouped and transposed convolutions.
    """
    named = dict(parameters.named_parameters()) if isinstance(parameters, nn.Module) else parameters
    unknown = sorted(set(weights) - set(named))
    if unknown or not weights:
        raise ValueError(f"weights name {unknown or 'nothing'}: pass names out of {', '.join(list(named)[:12])}")
    owners = owners_of(parameters if isinstance(parameters, nn.Module) else net)
    terms = [lam * _acting(penalty, named[name]).value(named[name], owners.get(name)) for name, lam in weights.items()]
    return torch.stack(terms).sum()


@final
@dataclass(frozen=True)
class PenaltyPrior(Prior):
    """
    The penalty as a prior rule: MAP with it is training with the penalty, and VI takes the KL to it.

    :param penalty: acts on weights; vectors take the Normal prior of the L2 penalty.
    :param weights: lambda_l by parameter name, e.g. from :func:`bayesian_penalty_weights`.
    """

    penalty: Penalty
    weights: Mapping[str, float]

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        if name not in self.weights:
            raise ValueError(f"no penalty weight for {name!r}: known are {', '.join(list(self.weights)[:12])}")
        return _acting(self.penalty, parameter).prior(parameter, self.weights[name], module)

    def spec(self) -> dict[str, Any]:
        """Return the rule as names and numbers."""
        penalty = {"name": type(self.penalty).__name__, **asdict(self.penalty)}  # type: ignore[call-overload]
        return {"name": "PenaltyPrior", "penalty": described(self.penalty, penalty), "weights": dict(self.weights)}


_PENALTIES: dict[str, Callable[[Groups], Penalty]] = {
    "l2": lambda groups: L2(),
    "l1": lambda groups: L1(),
    "group_lasso": lambda groups: GroupLasso(groups),
}


@final
@dataclass(frozen=True)
class UsualPenaltyPrior(Prior):
    """
    A penalty with the customary weights as a prior rule: `PenaltyPrior` of `usual_penalty_weights`, for any network.

    :param penalty: 'l2', 'l1' or 'group_lasso'; vectors take the Normal prior of the L2 penalty.
    :param groups: of the group lasso.
    """

    penalty: Literal["l2", "l1", "group_lasso"] = "l2"
    groups: Groups = "incoming"

    def __post_init__(self) -> None:
        if self.penalty not in _PENALTIES:
            raise ValueError(f"penalty={self.penalty!r} is unknown: pass one of {sorted(_PENALTIES)}")
        _PENALTIES[self.penalty](self.groups)

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        acting = _acting(_PENALTIES[self.penalty](self.groups), parameter)
        return acting.prior(parameter, acting.usual_scale(parameter, module), module)
