"""
Likelihoods: what a network's output says about a label.

A likelihood turns outputs of shape (..., B, K) into a distribution with batch shape (..., B). Numbers that it learns
itself are declared by `parameters()` and registered by the model, so that one optimizer step trains everything.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

import pyro.distributions as dist
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn import functional as F

__all__ = ["Bernoulli", "Categorical", "Gaussian", "HeteroscedasticGaussian", "LearnedGaussian", "Likelihood"]

_NO_LABEL = -(2**31)
"""No class has this label; torch would give a label that it is told to ignore the probability 1."""

_NO_PARAMETERS: Mapping[str, Tensor] = {}


class Likelihood(ABC):
    """A rule from network outputs to the distribution of the observed site."""

    @abstractmethod
    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return p(y | output) with batch shape (..., B) for outputs (..., B, K)."""

    def parameters(self) -> dict[str, tuple[float, constraints.Constraint]]:
        """Return the initial value and the constraint of every number this likelihood learns."""
        return {}

    @abstractmethod
    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the labels in the shape the distribution expects, (B,) or (B, D); refuse any that would broadcast."""

    def expects_unit_targets(self) -> bool:
        """Return whether targets far from mean 0 and sd 1 are a mistake: the noise is learned, or the default of 1."""
        return False

    def spec(self) -> dict[str, Any]:
        """Return the likelihood as names and numbers."""
        return {"name": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@final
class _Normalised(dist.Categorical):
    """
    The Categorical of log-probabilities (..., K) that are normalised already.

    torch's own normalises what it is given, and whenever a plate expands it: slow, and off by a rounding of large
    logits.
    """

    def __init__(self, log_probs: Tensor, validate_args: bool | None = None) -> None:
        self.logits = self._param = log_probs
        self._num_events = log_probs.shape[-1]
        Distribution.__init__(self, log_probs.shape[:-1], validate_args=validate_args)

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities (..., K), normalised to the last digit."""
        return self.logits

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of labels (...)."""
        if self._validate_args:
            self._validate_sample(value)
        if self.logits.dim() != 2 or value.dim() != 1:
            return super().log_prob(value)  # type: ignore[no-any-return, no-untyped-call]
        return -F.nll_loss(self.logits, value.long(), reduction="none", ignore_index=_NO_LABEL)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the same probabilities for a larger batch shape."""
        return _Normalised(self.logits.expand(*batch_shape, self._num_events), self._validate_args)


@final
@dataclass(frozen=True)
class Categorical(Likelihood):
    """K classes. With `link="sigmoid"` the class probabilities are logistic outputs, normalised to sum to one."""

    link: Literal["softmax", "sigmoid"] = "softmax"

    def __post_init__(self) -> None:
        if self.link not in ("softmax", "sigmoid"):
            raise ValueError(f"link={self.link!r} is unknown: pass 'softmax' or 'sigmoid'")

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return Categorical over the last dimension of `output`, (..., B, K)."""
        return _Normalised(F.log_softmax(output if self.link == "softmax" else F.logsigmoid(output), dim=-1))

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the labels as they are, (B,)."""
        if y.shape != output.shape[-2:-1]:
            raise ValueError(f"labels have shape {tuple(y.shape)} for {output.shape[-2]} rows: pass one label per row")
        return y


@final
@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Two classes from one output: a logit, or with `link="clamp"` a probability that is clamped to [eps, 1 - eps]."""

    link: Literal["logit", "clamp"] = "logit"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.link not in ("logit", "clamp"):
            raise ValueError(f"link={self.link!r} is unknown: pass 'logit' or 'clamp'")
        if not 0 < self.eps < 0.5:
            raise ValueError(f"eps={self.eps} does not clamp a probability: pass a number between 0 and 0.5")

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return Bernoulli with batch shape (..., B) for outputs (..., B, 1)."""
        if output.shape[-1] != 1:
            raise ValueError(
                f"the network has {output.shape[-1]} outputs, Bernoulli takes 1: give it 1, or use Categorical"
            )
        value = output.squeeze(-1)  # (..., B)
        if self.link == "logit":
            return dist.Bernoulli(logits=value)  # type: ignore[no-any-return]
        return dist.Bernoulli(probs=value.clamp(self.eps, 1 - self.eps))  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the labels as floats, (B,)."""
        if y.numel() != output.shape[-2]:
            raise ValueError(f"labels have shape {tuple(y.shape)} for {output.shape[-2]} rows: pass one label per row")
        return y.to(output.dtype).reshape(-1)


def _column(y: Tensor, output: Tensor, per_target: int = 1) -> Tensor:
    """Return targets as (B, D) for `per_target` outputs each."""
    rows, targets = output.shape[-2], output.shape[-1] // per_target
    column = y.unsqueeze(-1) if y.dim() == 1 else y
    if column.shape != (rows, targets):
        raise ValueError(
            f"targets have shape {tuple(y.shape)}, the network's {output.shape[-1]} outputs for {rows} rows need "
            f"({rows}, {targets}): pass as many targets or change the network's outputs"
        )
    return column.to(output.dtype)


@final
@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Regression with known noise: y ~ N(output, noise^2) for each of D targets."""

    noise: float = 1.0

    def expects_unit_targets(self) -> bool:
        """Return whether the noise is the default."""
        return self.noise == 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise) and self.noise > 0):
            raise ValueError(f"noise={self.noise} is not a standard deviation: pass a finite number above 0")

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return N(output, noise^2), independent over the D targets."""
        return dist.Normal(output, output.new_tensor(self.noise)).to_event(1)  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the targets as (B, D)."""
        return _column(y, output)


@final
@dataclass(frozen=True)
class LearnedGaussian(Likelihood):
    """Regression with one noise level that is learned: y ~ N(output, noise^2)."""

    init_noise: float = 1.0

    def expects_unit_targets(self) -> bool:
        """Return True: the noise is learned, from a start that is made for standardised targets."""
        return True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.init_noise) and self.init_noise > 0):
            raise ValueError(f"init_noise={self.init_noise} is not a standard deviation: pass a finite number above 0")

    def parameters(self) -> dict[str, tuple[float, constraints.Constraint]]:
        """Return the noise level as a positive parameter."""
        return {"noise": (self.init_noise, constraints.positive)}

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return N(output, noise^2), independent over the D targets."""
        return dist.Normal(output, parameters["noise"]).to_event(1)  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the targets as (B, D)."""
        return _column(y, output)


@final
@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """Regression with input-dependent noise: the 2 D outputs are means and pre-softplus standard deviations."""

    min_noise: float = 1e-3

    def expects_unit_targets(self) -> bool:
        """Return True: the noise is learned, from a start that is made for standardised targets."""
        return True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min_noise) and self.min_noise > 0):
            raise ValueError(f"min_noise={self.min_noise} is not a floor: pass a finite number above 0")

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return N(mean(x), sd(x)^2) from outputs (..., B, 2 D)."""
        if output.shape[-1] % 2:
            raise ValueError(f"the network has {output.shape[-1]} outputs; means and deviations of D targets need 2 D")
        mean, raw = output.chunk(2, dim=-1)  # (..., B, D) each
        return dist.Normal(mean, F.softplus(raw) + self.min_noise).to_event(1)  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the targets as (B, D)."""
        return _column(y, output, 2)
