"""
Priors: rules from (name, module, parameter) to the distribution of that parameter.

A rule is called once per random parameter and returns a Pyro distribution whose event is the whole parameter. With
n_in inputs and n_out outputs of the layer that owns the parameter (a bias takes those of its layer's weight):

    Normal         N(loc, scale^2)
    Kaiming        N(0, 2 / ((1 + a^2) n_in))             He et al. 2015; a is the negative slope of the activation
    Xavier         N(0, 2 / (n_in + n_out))               Glorot and Bengio 2010
    FanIn          N(0, 1 / n_in)                         Graves 2011
    Laplace        exp(-|w| / scale) / (2 scale)
    ScaleMixture   pi N(0, s1^2) + (1 - pi) N(0, s2^2)    Blundell et al. 2015

`Kaiming` defaults to a = 0, the ReLU; a = 1, sometimes printed for the ReLU, is the linear unit and stays available.
n_in counts the weights that feed one output, not the pixels of a feature map, and n_out those that leave one input. For
a convolution of C_in to C_out channels in g groups these are C_in / g and C_out / g times k_h k_w, transposed or not
(a transposed one stores its weight as (C_in, C_out / g, k_h, k_w)). Strides are not looked at.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, final

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from pyro_bnn.registry import described

__all__ = [
    "FanIn",
    "Kaiming",
    "Laplace",
    "Normal",
    "PerLayer",
    "Prior",
    "ScaleMixture",
    "Xavier",
    "fans",
    "torch_fan_in",
]


def fans(module: nn.Module | None, parameter: Tensor) -> tuple[int, int]:
    """
    Return (n_in, n_out) of the layer that owns `parameter`; a lone vector or scalar counts as one input.

    A bias has those of the weight it is added to: the weights that feed one of its units, and leave one input.

    :param module: the layer that owns the parameter; None for a lone one.
    """
    if isinstance(module, _ConvNd) and (parameter.dim() < 2 or parameter.shape == _weight_shape(module)):
        taps = math.prod(module.kernel_size)
        return module.in_channels // module.groups * taps, module.out_channels // module.groups * taps
    if isinstance(module, nn.Linear) and parameter.dim() < 2:
        return module.in_features, module.out_features
    if parameter.dim() >= 2:
        return _fans_of(parameter)
    return (1, 1) if module is None else _fans_of_vector(module, parameter)


def torch_fan_in(module: nn.Module | None, parameter: Tensor) -> int:
    """
    Return what PyTorch's own initialisation takes for n_in: that of a transposed convolution is its n_out.

    :param module: the layer that owns the parameter; None for a lone one.
    :param parameter: the weight or the bias.
    """
    return fans(module, parameter)[isinstance(module, _ConvTransposeNd)]


def _weight_shape(conv: _ConvNd) -> tuple[int, ...]:
    """Return the shape of a convolution's weight, (out, in / groups, ...) or, transposed, (in, out / groups, ...)."""
    first, second = conv.out_channels, conv.in_channels
    if isinstance(conv, _ConvTransposeNd):
        first, second = second, first
    return first, second // conv.groups, *conv.kernel_size


def _fans_of(weight: Tensor) -> tuple[int, int]:
    receptive = math.prod(weight.shape[2:])
    return weight.shape[1] * receptive, weight.shape[0] * receptive


def _fans_of_vector(module: nn.Module, parameter: Tensor) -> tuple[int, int]:
    """Return the fans of the weight of the same name (bias_ih_l1: weight_ih_l1), else of a matrix of as many rows."""
    named = dict(module.named_parameters(recurse=False))
    name = next((name for name, other in named.items() if other is parameter), "")
    partner = named.get(name.replace("bias", "weight"))
    fitting = [partner] if partner is not None and partner.dim() >= 2 else list(named.values())
    fans = [_fans_of(p) for p in fitting if p.dim() >= 2 and p.shape[0] == parameter.numel()]
    return max(fans, default=(1, 1))  # a weight in two factors (weight_norm) has the fans of the larger


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value} is not a standard deviation: pass a finite number above 0")


class Prior(ABC):
    """A rule from (name, module, parameter) to a distribution over the whole parameter."""

    @abstractmethod
    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`, called `name` in the network and owned by `module`."""

    def spec(self) -> dict[str, Any] | None:
        """Return the rule as names and numbers, or None if it holds what has no name (a function, a distribution)."""
        values = asdict(self)  # type: ignore[call-overload]
        return None if any(callable(value) for value in values.values()) else {"name": type(self).__name__, **values}


def _normal(parameter: Tensor, loc: float, scale: float) -> Distribution:
    normal = dist.Normal(parameter.new_tensor(loc), parameter.new_tensor(scale))
    return normal.expand(parameter.shape).to_event(parameter.dim())  # type: ignore[no-any-return]


@final
@dataclass(frozen=True)
class Normal(Prior):
    """
    N(loc, scale^2) for every weight.

    :param loc: the mean.
    :param scale: the standard deviation.
    """

    loc: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive(scale=self.scale)

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        return _normal(parameter, self.loc, self.scale)


@final
@dataclass(frozen=True)
class Kaiming(Prior):
    """
    N(0, 2 / ((1 + a^2) n_in)): keeps the variance of activations through units of negative slope a.

    :param a: the slope of a unit below 0: 0 for the ReLU, 1 for a linear unit.

    >>> from torch import nn
    >>> layer = nn.Linear(200, 10)
    >>> prior = Kaiming()("fc.weight", layer, layer.weight)
    >>> prior.event_shape, round(prior.stddev[0, 0].item(), 6)  # sqrt(2 / 200)
    (torch.Size([10, 200]), 0.1)
    """

    a: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.a):
            raise ValueError(f"a={self.a} is not a slope: pass a finite number (0 for the ReLU, 1 for linear units)")

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        n_in, _ = fans(module, parameter)
        return _normal(parameter, 0.0, math.sqrt(2 / ((1 + self.a**2) * n_in)))


@final
@dataclass(frozen=True)
class Xavier(Prior):
    """N(0, 2 / (n_in + n_out))."""

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        return _normal(parameter, 0.0, math.sqrt(2 / sum(fans(module, parameter))))


@final
@dataclass(frozen=True)
class FanIn(Prior):
    """
    N(0, gain / n_in): with gain 1 the prior of Graves (2011), which is also LeCun's initialisation.

    :param gain: the variance of a unit's input if its own inputs have mean square 1.
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        _positive(gain=self.gain)

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        return _normal(parameter, 0.0, math.sqrt(self.gain / fans(module, parameter)[0]))


@final
@dataclass(frozen=True)
class Laplace(Prior):
    """
    The double exponential with scale b: density exp(-|w| / b) / (2 b), variance 2 b^2.

    :param scale: b, the scale.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive(scale=self.scale)

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        laplace = dist.Laplace(parameter.new_zeros(()), parameter.new_tensor(self.scale))
        return laplace.expand(parameter.shape).to_event(parameter.dim())  # type: ignore[no-any-return]


@final
class _RealMixture(dist.MixtureSameFamily):  # type: ignore[misc]
    """A mixture of Normals whose support says plainly that it is real, so that any guide can transform to it."""

    support = constraints.real


@final
@dataclass(frozen=True)
class ScaleMixture(Prior):
    """
    pi N(0, scale1^2) + (1 - pi) N(0, scale2^2), independently for every weight.

    :param pi: the share of the first component.
    :param scale1: the standard deviation of the first.
    :param scale2: the standard deviation of the second.

    >>> import torch
    >>> prior = ScaleMixture(pi=0.25, scale1=2.0, scale2=0.1)("w", None, torch.zeros(3))
    >>> round(prior.variance[0].item(), 6)  # 0.25 * 4 + 0.75 * 0.01
    1.0075
    """

    pi: float = 0.5
    scale1: float = 1.0
    scale2: float = math.exp(-6)

    def __post_init__(self) -> None:
        _positive(scale1=self.scale1, scale2=self.scale2)
        if not 0 < self.pi < 1:
            raise ValueError(f"pi={self.pi} is not a mixing weight: pass a number between 0 and 1, both excluded")

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        shape = parameter.shape
        weights = parameter.new_tensor([self.pi, 1 - self.pi]).expand(*shape, 2)  # (*shape, 2)
        scales = parameter.new_tensor([self.scale1, self.scale2]).expand(*shape, 2)  # (*shape, 2)
        mixture = _RealMixture(
            dist.Categorical(probs=weights), dist.Normal(torch.zeros_like(scales), scales), validate_args=False
        )
        return mixture.to_event(parameter.dim())  # type: ignore[no-any-return]


@final
@dataclass(frozen=True)
class PerLayer(Prior):
    """
    Another rule for the parameters whose names match a pattern; the first match counts, `default` takes the rest.

    :param rules: priors by glob pattern of parameter names, such as `{"fc*": Normal(scale=0.1)}`; the order counts.

    >>> from torch import nn
    >>> layer = nn.Linear(4, 2)
    >>> rule = PerLayer({"*.bias": Normal(0.0, 10.0)}, default=FanIn())
    >>> rule("fc.bias", layer, layer.bias).stddev[0].item(), rule("fc.weight", layer, layer.weight).stddev[0, 0].item()
    (10.0, 0.5)
    """

    rules: Mapping[str, Prior]
    default: Prior = field(default_factory=Kaiming)

    def __call__(self, name: str, module: nn.Module | None, parameter: Tensor) -> Distribution:
        """Return the prior of `parameter`."""
        for pattern, rule in self.rules.items():
            if fnmatchcase(name, pattern):
                return rule(name, module, parameter)
        return self.default(name, module, parameter)

    def spec(self) -> dict[str, Any] | None:
        """Return the rules as names and numbers, or None if one of them cannot be."""
        rules, default = {pattern: rule.spec() for pattern, rule in self.rules.items()}, self.default.spec()
        if default is None or None in rules.values():
            return None
        named = {pattern: described(self.rules[pattern], rule) for pattern, rule in rules.items() if rule is not None}
        return {"name": "PerLayer", "rules": named, "default": described(self.default, default)}
