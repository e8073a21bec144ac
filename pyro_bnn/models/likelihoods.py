"""
Likelihoods: what a network's output says about a label.

A likelihood turns outputs of shape (..., B, K) into a distribution with batch shape (..., B). Numbers that it learns
itself are declared by `parameters()` and registered by the model, so that one optimizer step trains everything.

The contract, which is all that a new likelihood has to fill in:

    distribution(output, parameters)    p(y | output): shape (..., B), with D targets as its event
    shape_target(y, output)             y in that shape; what would broadcast or is no target is refused
    outputs(targets)                    K, how many outputs the network needs for so many classes or target columns
    task                                what it is scored as: "classification", "regression" or "counts"
    parameters()                        the numbers it learns: initial value and constraint by name; default none
    expects_unit_targets()              whether targets far from mean 0 and sd 1 are a mistake; default no

Scoring asks no more: log densities, distribution functions and samples are those of `distribution`, and whether they
are of classes, counts or numbers is a rule on that law (`inference/laws.py`): of classes is a law of finitely many
labels that have no mean, or any with `log_probs` (..., K), normalised.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias, final

import pyro.distributions as dist
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn import functional as F

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "LearnedGaussian",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
    "Task",
]

Task: TypeAlias = Literal["classification", "regression", "counts"]
"""What a likelihood is for."""

_NO_LABEL = -(2**31)
"""No class has this label; torch gives the label to ignore the probability 1."""

_NO_PARAMETERS: Mapping[str, Tensor] = {}

_MOST_LOG_RATE = 36.0
"""Log-rates are held within +-36 (rates from 2e-16 to 4e15): beyond, a count is not a whole number in float64."""

_LEAST_DISPERSION = 1e-4
"""Below it a negative binomial is a Poisson law to the digits of float32, and its log-gammas lose theirs."""

_LEAST_DF = 2.0
"""Learned degrees of freedom stay above it, where the variance exists."""


class Likelihood(ABC):
    """A rule from network outputs to the distribution of the observed site; the contract is the module's docstring."""

    task: ClassVar[Task] = "regression"

    @abstractmethod
    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """
        Return p(y | output) with batch shape (..., B) for outputs (..., B, K).

        :param parameters: the values of what `parameters` declares.
        """

    def parameters(self) -> dict[str, tuple[float, constraints.Constraint]]:
        """Return the initial value and the constraint of every number this likelihood learns."""
        return {}

    @abstractmethod
    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """
        Return the labels in the shape the distribution expects, (B,) or (B, D); refuse any that would broadcast.

        :param y: labels or targets of B rows.
        :param output: the network's output (B, K).
        """

    def outputs(self, targets: int) -> int:
        """Return how many outputs the network needs for so many classes, or columns of targets; default as many."""
        return _at_least_one(targets)

    def expects_unit_targets(self) -> bool:
        """Return whether targets far from mean 0 and sd 1 are a mistake: the noise is learned, or the default of 1."""
        return False

    def spec(self) -> dict[str, Any]:
        """Return the likelihood as names and numbers."""
        return {"name": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


def _at_least_one(targets: int) -> int:
    if isinstance(targets, bool) or not isinstance(targets, int) or targets < 1:
        raise ValueError(f"targets={targets!r}: pass how many classes or target columns there are, a number from 1")
    return targets


def _check_positive(name: str, value: float, what: str, above: float = 0.0) -> None:
    if not (math.isfinite(value) and value > above):
        raise ValueError(f"{name}={value} is not {what}: pass a finite number above {above:g}")


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
    """
    K classes. With `link="sigmoid"` the class probabilities are logistic outputs, normalised to sum to one.

    `temperature` divides the logarithms of the probabilities, which are normalised again (Guo et al. 2017): above 1 the
    predictions of every draw are less sure. It is fitted on validation rows after a training, not before.

    >>> import torch
    >>> Categorical().distribution(torch.tensor([[0.0, 0.0]])).probs  # outputs (B, K)
    tensor([[0.5000, 0.5000]])
    """

    task: ClassVar[Task] = "classification"
    link: Literal["softmax", "sigmoid"] = "softmax"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.link not in ("softmax", "sigmoid"):
            raise ValueError(f"link={self.link!r} is unknown: pass 'softmax' or 'sigmoid'")
        _check_positive("temperature", self.temperature, "a temperature")

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return Categorical over the last dimension of `output`, (..., B, K)."""
        values = output if self.link == "softmax" else F.logsigmoid(output)
        return _Normalised(F.log_softmax(values if self.temperature == 1 else values / self.temperature, dim=-1))

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the labels as they are, (B,)."""
        if y.shape != output.shape[-2:-1]:
            raise ValueError(f"labels have shape {tuple(y.shape)} for {output.shape[-2]} rows: pass one label per row")
        return y


@final
@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """
    Two classes from one output: a logit, or with `link="clamp"` a probability that is clamped to [eps, 1 - eps].

    :param eps: how far from 0 and 1 a clamped probability stays.

    >>> import torch
    >>> Bernoulli().distribution(torch.zeros(1, 1)).probs  # outputs (B, 1)
    tensor([0.5000])
    """

    task: ClassVar[Task] = "classification"
    link: Literal["logit", "clamp"] = "logit"
    eps: float = 1e-6

    def outputs(self, targets: int) -> int:
        """Return 1, for two classes or one column of zeros and ones."""
        if _at_least_one(targets) > 2:
            raise ValueError(f"Bernoulli tells 2 classes apart and there are {targets}: use Categorical")
        return 1

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
    """
    Regression with known noise: y ~ N(output, noise^2) for each of D targets.

    :param noise: the standard deviation of the noise, on the scale of the targets that the model sees.

    >>> import torch
    >>> law = Gaussian(noise=0.5).distribution(torch.zeros(4, 2))  # 4 rows of 2 targets
    >>> law.batch_shape, law.event_shape, law.stddev[0].tolist()
    (torch.Size([4]), torch.Size([2]), [0.5, 0.5])
    """

    noise: float = 1.0

    def expects_unit_targets(self) -> bool:
        """Return whether the noise is the default."""
        return self.noise == 1.0

    def __post_init__(self) -> None:
        _check_positive("noise", self.noise, "a standard deviation")

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return N(output, noise^2), independent over the D targets."""
        return dist.Normal(output, output.new_tensor(self.noise)).to_event(1)  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the targets as (B, D)."""
        return _column(y, output)


@final
@dataclass(frozen=True)
class LearnedGaussian(Likelihood):
    """
    Regression with one noise level that is learned: y ~ N(output, noise^2).

    :param init_noise: the standard deviation that training begins with.

    >>> import torch
    >>> from pyro_bnn.models import BNN, MLP, likelihoods, priors
    >>> model = BNN(MLP(1, 1, [8]), priors.FanIn(), likelihoods.LearnedGaussian(0.5), num_data=10)
    >>> round(model.noise.noise.item(), 6)
    0.5
    """

    init_noise: float = 1.0

    def expects_unit_targets(self) -> bool:
        """Return True: the noise is learned, from a start that suits standardised targets."""
        return True

    def __post_init__(self) -> None:
        _check_positive("init_noise", self.init_noise, "a standard deviation")

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
    """
    Regression with input-dependent noise: the 2 D outputs are means and pre-softplus standard deviations.

    :param min_noise: added to the standard deviation, so that it stays above 0.

    >>> import torch
    >>> law = HeteroscedasticGaussian().distribution(torch.zeros(4, 2))  # a mean and a deviation for one target
    >>> law.event_shape, round(law.stddev[0, 0].item(), 4)  # log 2 + 0.001
    (torch.Size([1]), 0.6941)
    """

    min_noise: float = 1e-3

    def outputs(self, targets: int) -> int:
        """Return 2 D: a mean and a deviation for each target."""
        return 2 * _at_least_one(targets)

    def expects_unit_targets(self) -> bool:
        """Return True: the noise is learned, from a start that suits standardised targets."""
        return True

    def __post_init__(self) -> None:
        _check_positive("min_noise", self.min_noise, "a floor")

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return N(mean(x), sd(x)^2) from outputs (..., B, 2 D)."""
        if output.shape[-1] % 2:
            raise ValueError(f"the network has {output.shape[-1]} outputs; means and deviations of D targets need 2 D")
        mean, raw = output.chunk(2, dim=-1)  # (..., B, D) each
        return dist.Normal(mean, F.softplus(raw) + self.min_noise).to_event(1)  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the targets as (B, D)."""
        return _column(y, output, 2)


@final
@dataclass(frozen=True)
class StudentT(Likelihood):
    """
    Robust regression: y = output + scale * t with t of `df` degrees of freedom, and one scale that is learned.

    With `learn_df` the degrees of freedom are learned too, from `df` on, and stay above 2, where the variance exists.

    :param init_scale: the scale that training begins with.
    """

    df: float = 4.0
    init_scale: float = 1.0
    learn_df: bool = False

    def __post_init__(self) -> None:
        _check_positive("init_scale", self.init_scale, "a scale")
        _check_positive("df", self.df, "a number of degrees of freedom", _LEAST_DF if self.learn_df else 0.0)

    def expects_unit_targets(self) -> bool:
        """Return True: the scale is learned, from a start that suits standardised targets."""
        return True

    def parameters(self) -> dict[str, tuple[float, constraints.Constraint]]:
        """Return the scale, and the degrees of freedom where they are learned."""
        learned: dict[str, tuple[float, constraints.Constraint]] = {"scale": (self.init_scale, constraints.positive)}
        if self.learn_df:
            learned["df"] = (self.df, constraints.greater_than(_LEAST_DF))
        return learned

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return t(df, output, scale), independent over the D targets."""
        df = parameters["df"] if self.learn_df else output.new_tensor(self.df)
        return dist.StudentT(df, output, parameters["scale"]).to_event(1)  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the targets as (B, D)."""
        return _column(y, output)


def _log_rate(output: Tensor) -> Tensor:
    return output.clamp(-_MOST_LOG_RATE, _MOST_LOG_RATE)


@final
@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts: y ~ Poisson(exp(output)) for each of D targets, which are never standardised."""

    task: ClassVar[Task] = "counts"

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return Poisson(exp(output)), independent over the D targets."""
        return dist.Poisson(_log_rate(output).exp()).to_event(1)  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the counts as floats, (B, D)."""
        return _column(y, output)


@final
@dataclass(frozen=True)
class NegativeBinomial(Likelihood):
    """
    Counts that spread more than Poisson's: mean m = exp(output), variance m + a m^2, with one dispersion a learned.

    In torch's letters total_count = 1 / a, and logits = output + log a.

    :param init_dispersion: the dispersion a that training begins with.
    """

    task: ClassVar[Task] = "counts"
    init_dispersion: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("init_dispersion", self.init_dispersion, "a dispersion", _LEAST_DISPERSION)

    def parameters(self) -> dict[str, tuple[float, constraints.Constraint]]:
        """Return the dispersion."""
        return {"dispersion": (self.init_dispersion, constraints.greater_than(_LEAST_DISPERSION))}

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return the negative binomial of mean exp(output), independent over the D targets."""
        a = parameters["dispersion"]
        law: Any = dist.NegativeBinomial(total_count=1 / a, logits=_log_rate(output) + a.log())
        return law.to_event(1)  # type: ignore[no-any-return]

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the counts as floats, (B, D)."""
        return _column(y, output)
