"""
Group sparsity: how many groups of weights a penalty has switched off, and the smaller network without them.

Unit j of a layer with weight W (K, D, ...) and bias b, followed by elementwise functions and pools phi and by a layer
with weight V (L, K, ...) and bias c, can go in two cases, and the network in evaluation mode computes the same.

    outgoing   V[:, j] = 0     nobody listens to it.
    incoming   W[j] = 0        it is the constant phi(b_j); fold it:  c <- c + sum over V[:, j] phi(b_j).

A constant feature map before a convolution padded with zeros is no constant at the borders, so it cannot be folded.
Several of them still share one: V[:, k] <- sum_j V[:, j] phi(b_j) / phi(b_k), and all but map k go.

Groups are those of the group lasso (Alvarez and Salzmann, Learning the number of neurons in deep networks, 2016); its
bias is outside the group. Gradient steps do not reach exact zeros: groups under a threshold are set to zero first, and
the function that stays unchanged is the one after that.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, cast, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pyro_bnn.models.penalty_priors import Groups, fill_groups, group_norms, owners_of

__all__ = ["GroupSparsity", "LayerSparsity", "group_sparsity", "prune", "zero_dead_groups"]

_Layer: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_ELEMENTWISE = (
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Softsign),
)
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)


def _check_threshold(threshold: float) -> None:
    if not (math.isfinite(threshold) and threshold >= 0):
        raise ValueError(f"threshold={threshold} is no norm: pass a finite number, 0 or above")


# ---------------------------------------------------------------------------------------------- report


@final
@dataclass(frozen=True)
class LayerSparsity:
    """
    The groups of one weight: how many there are, and how many lie under the threshold.

    :param name: of the weight.
    :param groups: how many there are.
    :param dead: how many lie under the threshold.
    """

    name: str
    groups: int
    dead: int

    @property
    def fraction(self) -> float:
        """Dead groups per group."""
        return self.dead / self.groups


@final
@dataclass(frozen=True)
class GroupSparsity:
    """
    The groups of a network, weight by weight.

    :param layers: one after another.
    :param threshold: the norm up to which a group is dead.
    """

    layers: tuple[LayerSparsity, ...]
    threshold: float

    @property
    def fraction(self) -> float:
        """Dead groups per group over all weights."""
        return sum(layer.dead for layer in self.layers) / sum(layer.groups for layer in self.layers)

    def __str__(self) -> str:
        width = max(len("total"), *(len(layer.name) for layer in self.layers))
        lines = [f"{row.name:<{width}}  {row.dead:>6} / {row.groups:<6} {row.fraction:7.1%}" for row in self.layers]
        return "\n".join([*lines, f"{'total':<{width}}  {'':>15} {self.fraction:7.1%}"])


def group_sparsity(
    parameters: nn.Module | Mapping[str, Tensor],
    groups: Groups = "incoming",
    threshold: float = 1e-3,
    *,
    net: nn.Module | None = None,
) -> GroupSparsity:
    """
    Count the groups whose 2-norm is at most `threshold`.

    :param parameters: a network, or tensors by name such as posterior means; vectors are left out.
    :param groups: "incoming" weights of units and filters, or "outgoing" ones of inputs and channels.
    :param net: the network that tensors by name belong to, for its grouped and transposed convolutions; without it
        all are taken for dense layers and plain convolutions.
    """
    _check_threshold(threshold)
    named = dict(parameters.named_parameters()) if isinstance(parameters, nn.Module) else parameters
    owners = owners_of(parameters if isinstance(parameters, nn.Module) else net)
    layers = []
    for name, weight in named.items():
        if weight.dim() >= 2:
            norms = group_norms(weight.detach(), groups, owners.get(name))
            layers.append(LayerSparsity(name, len(norms), int((norms <= threshold).sum())))
    if not layers:
        raise ValueError(
            f"none of {', '.join(named) or 'no parameters'} has groups: pass weights of 2 dimensions or more"
        )
    return GroupSparsity(tuple(layers), threshold)


# ---------------------------------------------------------------------------------------------- pruning


def zero_dead_groups(
    net: nn.Module, threshold: float, groups: Sequence[Groups] = ("incoming", "outgoing")
) -> nn.Module:
    """
    Return a copy of `net` in which groups of norm at most `threshold` are zero.

    :param groups: which kinds of groups are looked at.
    """
    _check_threshold(threshold)
    result = copy.deepcopy(net)
    with torch.no_grad():
        owners = owners_of(result)
        for name, parameter in result.named_parameters():
            for kind in groups if parameter.dim() >= 2 else ():
                dead = group_norms(parameter, kind, owners[name]) <= threshold
                parameter.copy_(fill_groups(parameter, dead, kind, owners[name]))
    return result


def _leaves(net: nn.Module) -> Iterator[nn.Module]:
    """The modules of a chain in order."""
    if isinstance(net, nn.Sequential):
        for child in net:
            yield from _leaves(child)
    elif isinstance(net, (*_LAYERS, *_ELEMENTWISE, *_POOLS, _BatchNorm, nn.Flatten)):
        yield net
    else:
        raise TypeError(
            f"{type(net).__name__} is not part of a chain that can be pruned: pass an nn.Sequential of dense and "
            f"convolution layers, batch normalisation, pools, Flatten and elementwise activations"
        )


def _check_chain(chain: Sequence[nn.Module]) -> None:
    layers = [m for m in chain if isinstance(m, _LAYERS)]
    if len({id(m) for m in layers}) < len(layers):
        raise ValueError("a layer stands twice in the chain: its units cannot be removed in one place only")
    for module in chain:
        if getattr(module, "groups", 1) != 1:
            raise ValueError(f"{module} is a grouped convolution: only groups=1 can be pruned")
        if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
            raise ValueError(f"{module} keeps several dimensions: only Flatten(1, -1) can be pruned")
        if getattr(module, "count_include_pad", False) and any(torch.tensor(module.padding).flatten()):
            raise ValueError(f"{module} averages zeros into the border: pass count_include_pad=False")


def _response(bias: Tensor | None, units: int, features: int, between: Sequence[nn.Module], like: Tensor) -> Tensor:
    """What units without incoming weights hand to the next layer, feature by feature: (features,)."""
    value = like.new_zeros(units) if bias is None else bias.detach().clone()
    for module in between:
        if isinstance(module, nn.Flatten):
            value = value.repeat_interleave(features // units)
        elif isinstance(module, _BatchNorm):
            if module.running_mean is None or module.running_var is None:
                raise ValueError(f"{module} keeps no running statistics, so its output depends on the batch")
            value = nn.functional.batch_norm(
                value[None], module.running_mean, module.running_var, module.weight, module.bias, eps=module.eps
            )[0]
        elif isinstance(module, _ELEMENTWISE):
            value = copy.deepcopy(module).eval()(value)
    return value.detach()


def _pads_with_zeros(layer: _Layer) -> bool:
    if isinstance(layer, nn.Linear) or layer.padding_mode != "zeros" or layer.padding == "valid":
        return False
    return layer.padding == "same" or any(cast(tuple[int, ...], layer.padding))


def _add_to_bias(layer: _Layer, shift: Tensor) -> None:
    old = layer.bias.detach() if layer.bias is not None else torch.zeros_like(shift)
    layer.bias = nn.Parameter(old + shift)


def _keep_outputs(layer: _Layer, kept: Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight.detach()[kept])
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[kept])
    if isinstance(layer, nn.Linear):
        layer.out_features = len(kept)
    else:
        layer.out_channels = len(kept)


def _keep_inputs(layer: _Layer, kept: Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight.detach()[:, kept])
    if isinstance(layer, nn.Linear):
        layer.in_features = len(kept)
    else:
        layer.in_channels = len(kept)


def _keep_features(norm: _BatchNorm, kept: Tensor) -> None:
    if norm.weight is not None:
        norm.weight = nn.Parameter(norm.weight.detach()[kept])
        norm.bias = nn.Parameter(norm.bias.detach()[kept])
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean, norm.running_var = norm.running_mean[kept], norm.running_var[kept]
    norm.num_features = len(kept)


def _prune_between(layer: _Layer, between: Sequence[nn.Module], following: _Layer) -> int:
    """Remove the dead units of `layer`, which feeds `following`; return how many went."""
    units, features = layer.weight.shape[0], following.weight.shape[1]
    per_unit = features // units
    outgoing = following.weight.detach()  # (L, features, ...)
    listened = outgoing.movedim(1, 0).reshape(units, -1).any(1)  # (units,)
    silent = ~layer.weight.detach().flatten(1).any(1)  # (units,)
    constant = silent & listened
    if bool(constant.any()):
        response = _response(layer.bias, units, features, between, outgoing)  # (features,)
        response = response * constant.repeat_interleave(per_unit)
        shape = (1, -1) + (1,) * (outgoing.dim() - 2)
        if _pads_with_zeros(following) and bool(response.any()):
            share = int(response.abs().argmax())
            shared = (outgoing * response.reshape(shape)).sum(1) / response[share]  # (L, ...)
            outgoing[:, constant] = 0
            outgoing[:, share] = shared
            constant[share] = False
        else:
            _add_to_bias(following, (outgoing * response.reshape(shape)).flatten(1).sum(1))
            outgoing[:, constant.repeat_interleave(per_unit)] = 0
    kept = (listened & ~constant).nonzero().flatten()
    kept = kept if len(kept) else torch.zeros(1, dtype=torch.long, device=outgoing.device)  # no layer of width 0
    if len(kept) == units:
        return 0
    kept_features = (kept[:, None] * per_unit + torch.arange(per_unit, device=kept.device)).flatten()
    flattened = False
    _keep_outputs(layer, kept)
    for module in between:
        flattened = flattened or isinstance(module, nn.Flatten)
        if isinstance(module, _BatchNorm):
            _keep_features(module, kept_features if flattened else kept)
    _keep_inputs(following, kept_features)
    return units - len(kept)


def prune(net: nn.Module, threshold: float = 0.0, groups: Sequence[Groups] = ("incoming", "outgoing")) -> nn.Sequential:
    """
    Return the smaller network without dead hidden units, filters and channels.

    In evaluation mode it computes what :func:`zero_dead_groups` with the same arguments does; with threshold 0, what
    `net` does. Inputs and outputs keep their sizes.

    :param net: an nn.Sequential, nested or not, of dense and convolution layers, batch normalisation, pools, Flatten
        and elementwise activations.
    :param threshold: largest 2-norm of a dead group.
    :param groups: which groups the threshold acts on.
    """
    list(_leaves(net))  # refuse what is no chain before copying it
    chain = list(_leaves(zero_dead_groups(net, threshold, groups)))
    _check_chain(chain)
    places = [i for i, module in enumerate(chain) if isinstance(module, _LAYERS)]
    pairs = list(pairwise(places))
    removed = True
    while removed:  # a removed unit may leave the one before it without listeners
        removed = any(
            [
                _prune_between(cast(_Layer, chain[i]), chain[i + 1 : j], cast(_Layer, chain[j])) > 0
                for i, j in reversed(pairs)
            ]
        )
    return nn.Sequential(*chain).train(net.training)
