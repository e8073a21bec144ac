"""
Several networks trained as one program, and taken apart again.

M networks of one shape, each with weights w_m and a mean-field guide q_m of its own, see the same rows. Their losses
add up to one,

    loss  =  sum_m ( mean over the batch of -log p(y | x, w_m)  +  c KL(q_m || p) ),

whose gradient for member m is that of member m alone: training the sum trains each of them apart, as a deep ensemble
(Lakshminarayanan, Pritzel, Blundell 2017) of guides, with one batched product per layer in place of M. What is fitted
is then an ordinary `Ensemble` of M mean-field guides of one network, the even mixture q(w) = (1/M) sum_m q_m(w).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_bnn.guides import AutoMeanFieldNormal, Ensemble
from pyro_bnn.models import BNN, MLP
from pyro_bnn.models.likelihoods import Likelihood, Task

__all__ = ["EachMember", "SideBySide", "put_together", "taken_apart"]

_NO_PARAMETERS: Mapping[str, Tensor] = {}


@final
class SideBySide(nn.Module):
    """M perceptrons on the same inputs; outputs (B, K M), in which those of a member are M apart."""

    def __init__(self, members: int, in_features: int, out_features: int, hidden: Sequence[int], activation: Any):
        super().__init__()
        self.config: dict[str, Any] = dict(
            members=members,
            in_features=in_features,
            out_features=out_features,
            hidden=list(hidden),
            activation=activation,
        )
        self.members = nn.ModuleList(MLP(in_features, out_features, hidden, activation) for _ in range(members))

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, K M) for inputs (B, D)."""
        members: Any = list(self.members)
        first, *others = zip(*(member.layers for member in members), strict=True)
        weight, bias = torch.cat([f.weight for f in first]), torch.cat([f.bias for f in first])
        flat = nn.functional.linear(x, weight, bias)  # (B, M H)
        h = flat.view(len(x), len(members), -1).transpose(0, 1)  # (M, B, H)
        for layers in others:
            weight = torch.stack([f.weight for f in layers])  # (M, K, H)
            bias = torch.stack([f.bias for f in layers])  # (M, K)
            h = torch.baddbmm(bias.unsqueeze(1), members[0].activation(h), weight.transpose(1, 2))  # (M, B, K)
        return h.permute(1, 2, 0).flatten(1)


@final
@dataclass(frozen=True)
class EachMember(Likelihood):
    """The classes of M members at once: labels (B, M), the same for each, from outputs (B, K M)."""

    task: ClassVar[Task] = "classification"
    members: int = 1

    def distribution(self, output: Tensor, parameters: Mapping[str, Tensor] = _NO_PARAMETERS) -> Distribution:
        """Return M categoricals as one event."""
        logits = output.unflatten(-1, (-1, self.members)).transpose(-1, -2)  # (..., B, M, K)
        law: Any = torch.distributions.Categorical(logits=logits, validate_args=False)
        return torch.distributions.Independent(law, 1, validate_args=False)

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        """Return the labels as they are, (B, M)."""
        if y.shape != (output.shape[-2], self.members):
            raise ValueError(f"labels have shape {tuple(y.shape)}: pass ({output.shape[-2]}, {self.members})")
        return y


@torch.no_grad()
def taken_apart(model: BNN, guide: AutoMeanFieldNormal, likelihood: Likelihood) -> tuple[BNN, Ensemble]:
    """Return the program of a single member, and the ensemble of guides that were fitted side by side."""
    net: Any = model.template
    alone = BNN(net.members[0], model.prior, likelihood, model.num_data)
    _copy_noise(model, alone)
    guides = []
    for m in range(len(net.members)):
        own = AutoMeanFieldNormal(alone)
        for name in alone.random_names:
            moments = guide.site(f"net.members.{m}.{name}")
            own.assign(f"net.{name}", moments.loc, moments.scale)
        guides.append(own)
    return alone, Ensemble(alone, guides)


@torch.no_grad()
def put_together(model: BNN, single: BNN, ensemble: Ensemble) -> AutoMeanFieldNormal:
    """Return a guide for the program of all members, as the members of an ensemble are; undoes `taken_apart`."""
    guide = AutoMeanFieldNormal(model)
    for m, own in enumerate(ensemble.members):
        member: Any = own
        for name in single.random_names:
            moments = member.site(f"net.{name}")
            guide.assign(f"net.members.{m}.{name}", moments.loc.float(), moments.scale.float())
    _copy_noise(single, model)
    return guide


def _copy_noise(source: BNN, target: BNN) -> None:
    held = target.state_dict()
    for name, value in source.state_dict().items():
        if name.startswith("noise."):
            held[name].copy_(value)
