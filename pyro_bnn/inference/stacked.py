"""
K members of one program as one batched program.

Member k has parameters theta_k (its guide's flat vectors, and its model's own parameters), rows, and a noise e_k. With
all of them stacked along a first dimension,

    w_k      = draw(theta_k, e_k)                                         (K, P), element by element
    nll_k    = -sum_i u_ki log p(y_ki | x_ki, w_k)                        (K,), mapped over k (torch.func.vmap)
    KL_k     = KL(q_k || p_k)                                             (K,), in closed form
    loss_k   = nll_k + (W_k / N_k) KL_k

where u_ki = 1 / B_k, times the weight of the row, for the B_k rows of member k's batch and 0 for rows that only fill it
up, and W_k = N_k c_k is the weight on the KL (see :mod:`pyro_bnn.inference.kl`). The gradient of sum_k loss_k is every
member's own, for no member is in another's loss.

Under local reparameterisation (:mod:`pyro_bnn.inference.reparam`) the weights of dense layers are not drawn; their
outputs are, from the noise handed in. A guide without spreads pays -log p(w_k) for the KL.

Departure from a member's own step: sums are taken in another order (equal to 1e-5 relative from the same noise).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, final, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, constraints, transform_to
from torch.func import vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pyro_bnn.common.sites import innermost
from pyro_bnn.inference import laws

__all__ = ["Stack", "StackableGuide", "StackableModel", "check_stackable"]


@runtime_checkable
class StackableModel(Protocol):
    """A model that can be run for weights and parameters that are given."""

    template: nn.Module

    def unstackable(self) -> str | None:
        """Return why it cannot run beside others, None if it can."""

    def structure(self) -> Mapping[str, Any]:
        """Return what all members must have in common."""

    def own_constraints(self) -> Mapping[str, constraints.Constraint]:
        """Return the constraints of the parameters of its own, by name."""

    def priors(self) -> Mapping[str, Any]:
        """Return the prior of every latent site, by its name without the prefix "net."."""

    def law_at(
        self, x: Any, y: Tensor, values: Mapping[str, Tensor], own: Mapping[str, Tensor]
    ) -> tuple[Distribution, Tensor]:
        """Return p(y | x, w) and the labels in its shape."""


@runtime_checkable
class StackableGuide(Protocol):
    """A guide on one flat vector whose draw is a function of parameters and noise, element by element."""

    def unstackable(self) -> str | None:
        """Return why it cannot run beside others, None if it can."""

    def spec(self) -> dict[str, Any] | None:
        """Return it as names and numbers."""

    def layout(self) -> list[tuple[str, slice, torch.Size]]:
        """Return name, place and shape of every site."""

    def noise(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Return what a draw is made from, a vector in dtype of `like` (P,); of length P, or another."""

    def draw_at(self, own: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """Return the draw (..., P) of parameters and noise."""


@runtime_checkable
class _JointGuide(Protocol):
    """A guide whose weights are correlated: its KL is no sum over them."""

    def kl_at(self, own: Mapping[str, Tensor], m: Tensor, s: Tensor) -> Tensor:
        """Return KL(q || N(m, s^2)) of parameters that are given, (...)."""


@runtime_checkable
class _NormalGuide(Protocol):
    def moments_at(self, own: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations (..., P)."""


_TINY = 1e-30

_STARTS = ("init_loc", "init_scale", "init_rho", "relative_scale", "kind")
"""What members may differ in: where they start."""


def check_stackable(models: Sequence[Any], guides: Sequence[Any]) -> None:
    """Refuse, by name, what cannot run as one batched program."""
    for k, (model, guide) in enumerate(zip(models, guides, strict=True)):
        for what, part, protocol in (("model", model, StackableModel), ("guide", guide, StackableGuide)):
            kind = type(part).__name__
            if not isinstance(part, protocol):
                raise TypeError(
                    f"{what} {k} is a {kind}, which cannot be batched: fit_many takes a BNN with an "
                    "guide of this library on one flat vector; train others with fit, one after the other"
                )
            reason = part.unstackable()
            if reason is not None:
                raise ValueError(
                    f"{what} {k}, a {kind}, cannot be batched: {reason}; train it with fit, one after the other"
                )
        for name, prior in model.priors().items():
            if _normal(prior) is None:
                raise ValueError(
                    f"model {k}: the prior of {name!r} is a {type(innermost(prior)).__name__}, and fit_many batches "
                    "normal priors: train it with fit, one after the other"
                )
        _check_alike(k, model, models[0], guide, guides[0])


def _check_alike(k: int, model: Any, first: Any, guide: Any, first_guide: Any) -> None:
    ours, theirs = model.structure(), first.structure()
    for what, value in ours.items():
        if value != theirs[what]:
            raise ValueError(
                f"model {k} has another {what} than model 0 ({value} and {theirs[what]}): fit_many trains members of "
                "one program; call it once for each"
            )
    ours, theirs = ({n: v for n, v in (g.spec() or {}).items() if n not in _STARTS} for g in (guide, first_guide))
    if type(guide) is not type(first_guide) or ours != theirs:
        raise ValueError(f"guide {k} is {ours} and guide 0 {theirs}: fit_many trains members of one program")


def _normal(prior: Any) -> Normal | None:
    base = innermost(prior)
    learned = isinstance(base, Normal) and (base.loc.requires_grad or base.scale.requires_grad)
    return base if isinstance(base, Normal) and not learned else None


def _flat_priors(model: StackableModel) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the prior over the flat vector, (P,) each."""
    priors = model.priors().values()
    bases = [(prior.event_shape, cast(Normal, _normal(prior))) for prior in priors]
    locs, scales = zip(*((b.loc.expand(s).reshape(-1), b.scale.expand(s).reshape(-1)) for s, b in bases), strict=True)
    return torch.cat(locs).detach(), torch.cat(scales).detach()


@final
class _LocalOutputs(TorchFunctionMode):
    """Draws the outputs of dense layers in the place of their weights, which are means here."""

    def __init__(self, scales: Mapping[int, Tensor], noise: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.scales, self.noise = scales, dict(noise)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.linear:
            return func(*args, **kwargs)
        x, weight, bias = (*args, *kwargs.values(), None)[:3]
        if id(weight) not in self.noise:
            raise ValueError(
                "a dense layer is called twice in one forward pass: train it with fit, one after the other"
            )
        mean = func(x, weight, bias)
        sd = None if bias is None else self.scales[id(bias)].square()
        variance = func(x.square(), self.scales[id(weight)].square(), sd)
        deviation = (variance + _TINY).sqrt()  # of inputs of zeros as well, where the root of 0 has no gradient
        return torch.addcmul(mean, deviation, self.noise.pop(id(weight)))


@final
class Stack:
    """
    K members as one batched program.

    :param models: of the members.
    :param guides: of the members.
    :param leaves: the unconstrained parameters of every member, by the same names "guide.*" and "model.*".
    :param local: whether to draw the outputs of dense layers instead of their weights.
    """

    def __init__(
        self,
        models: Sequence[StackableModel],
        guides: Sequence[StackableGuide],
        leaves: Sequence[Mapping[str, Tensor]],
        *,
        local: bool = False,
    ) -> None:
        self.models, self.guides = models, guides
        self.model, self.guide = models[0], guides[0]
        self.local = local
        self.names = list(leaves[0])
        self.parameters = {
            name: nn.Parameter(torch.stack([member[name].detach() for member in leaves])) for name in self.names
        }
        constraints_of = {f"model.{name}": c for name, c in self.model.own_constraints().items()}
        self._transforms = {name: transform_to(c) for name, c in constraints_of.items() if name in self.names}
        means, sds = zip(*map(_flat_priors, models), strict=True)
        self.prior_loc, self.prior_scale = torch.stack(means), torch.stack(sds)  # (K, P) each
        self._layout = self.guide.layout()
        if local and isinstance(self.guide, _JointGuide):
            raise ValueError(
                f"{type(self.guide).__name__} has correlated weights, whose outputs are not drawn apart: leave out "
                "local_reparameterization()"
            )
        self.widths = _dense_layers(self.model) if local else {}

    @classmethod
    def of(cls, models: Sequence[Any], guides: Sequence[Any]) -> "Stack":
        """Return fitted members as one stack, to predict with."""
        leaves = []
        for model, guide in zip(models, guides, strict=True):
            own = [("guide", guide.named_parameters()), ("model", model.named_parameters())]
            named = {f"{prefix}.{name.removesuffix('_unconstrained')}": p for prefix, ps in own for name, p in ps}
            leaves.append({name: p for name, p in named.items() if not name.startswith("model.net.")})
        return cls(models, guides, leaves)

    def __len__(self) -> int:
        return len(self.prior_loc)

    def selected(self, members: Sequence[int]) -> "Stack":
        """Return a stack of some of the members, with copies of their parameters."""
        rows = [{name: p[k] for name, p in self.parameters.items()} for k in members]
        return Stack([self.models[k] for k in members], [self.guides[k] for k in members], rows)

    def keep_rows(self, rows: Tensor) -> None:
        """Keep some members."""
        for parameter in self.parameters.values():
            parameter.data = parameter.data[rows].contiguous()
        self.prior_loc, self.prior_scale = self.prior_loc[rows], self.prior_scale[rows]

    def leaves(self) -> list[Tensor]:
        """Return the stacked parameters."""
        return list(self.parameters.values())

    # -- the expression ----------------------------------------------------------------------------------------------

    def losses(
        self, x: Tensor, y: Tensor, shares: Tensor, kl_weight: Tensor, noise: Tensor, *outputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """
        Return the loss and the NLL of every member, per datum, (K,) each.

        :param x: inputs (K, B, ...).
        :param y: labels (K, B) or targets (K, B, D).
        :param shares: u, (K, B).
        :param kl_weight: W / N, (K,).
        :param noise: of the draws, (K, P).
        :param outputs: of the outputs of dense layers, (K, B, width) each, under local reparameterisation.
        """
        own = self._guides_own()
        if self.local:
            flat, scale = cast(_NormalGuide, self.guide).moments_at(own)
        else:
            flat, scale = self.guide.draw_at(own, noise), noise

        def nll(flat: Tensor, scale: Tensor, own: Any, x: Tensor, y: Tensor, shares: Tensor, outputs: Any) -> Tensor:
            law, observed = self._law(flat, scale, own, x, y, outputs)
            return -(law.log_prob(observed) * shares).sum()  # type: ignore[no-any-return]

        nlls = vmap(nll, randomness="error")(flat, scale, self._models_own(), x, y, shares, tuple(outputs))
        return nlls + kl_weight * self._kl(own, flat), nlls

    @torch.no_grad()
    def kl(self, noise: Tensor) -> Tensor:
        """Return KL(q || p) of every member, (K,), without any weight; of points -log p at the draw of `noise`."""
        own = self._guides_own()
        return self._kl(own, self.guide.draw_at(own, noise))

    @torch.no_grad()
    def log_probs(self, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor | None]:
        """
        Return log p(y | x, w) of one draw per member, (K, V), and the class log-probabilities (K, V, C) if there are.

        :param noise: of the draw, (P,) for all members or (K, P).
        """
        flat = self.guide.draw_at(self._guides_own(), noise)  # (K, P)

        def of_member(flat: Tensor, own: Any, x: Tensor, y: Tensor) -> Any:
            law, observed = self._law(flat, flat, own, x, y, None)
            classes = laws.class_log_probs(law)
            densities = law.log_prob(observed)
            return (densities,) if classes is None else (densities, classes)

        log_prob, *classes = vmap(of_member, randomness="error")(flat, self._models_own(), x, y)
        return log_prob, classes[0] if classes else None

    @torch.no_grad()
    def moments(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the observations of one draw per member, (K, V, D) each."""
        flat = self.guide.draw_at(self._guides_own(), noise)  # (K, P)

        def of_member(flat: Tensor, own: Any, x: Tensor) -> Any:
            law = self._law(flat, flat, own, x, x.new_zeros(len(x)), None)[0]
            return law.mean, law.stddev

        mean, sd = vmap(of_member, randomness="error")(flat, self._models_own(), x)
        return mean, sd

    def _law(self, flat: Tensor, scale: Tensor, own: Any, x: Tensor, y: Tensor, outputs: Any) -> Any:
        values = {name: flat[cut].view(shape) for name, cut, shape in self._layout}
        if not self.local or outputs is None:
            return self.model.law_at(x, y, values, own)
        scales = {id(values[name]): scale[cut].view(shape) for name, cut, shape in self._layout}
        noise = {id(values[name]): drawn for name, drawn in zip(self.widths, outputs, strict=True)}
        with _LocalOutputs(scales, noise):
            return self.model.law_at(x, y, values, own)

    def _guides_own(self) -> dict[str, Tensor]:
        return {n.removeprefix("guide."): p for n, p in self.parameters.items() if n.startswith("guide.")}

    def _models_own(self) -> dict[str, Tensor]:
        return {n.removeprefix("model."): to(self.parameters[n]) for n, to in self._transforms.items()}

    def _kl(self, own: Mapping[str, Tensor], flat: Tensor) -> Tensor:
        if isinstance(self.guide, _JointGuide):
            return self.guide.kl_at(own, self.prior_loc, self.prior_scale)
        if isinstance(self.guide, _NormalGuide):
            loc, scale = self.guide.moments_at(own)
            d, r = (loc - self.prior_loc) / self.prior_scale, scale / self.prior_scale  # (K, P) each
            return (0.5 * (d.square() + r.square() - 1) - r.log()).sum(-1)
        return -Normal(self.prior_loc, self.prior_scale, validate_args=False).log_prob(flat).sum(-1)  # type: ignore[no-any-return]


def _dense_layers(model: StackableModel) -> dict[str, int]:
    """Return the widths of the dense layers by their weights' sites; refuse weights that lie anywhere else."""
    layers = {name: layer for name, layer in model.template.named_modules() if isinstance(layer, nn.Linear)}
    elsewhere = [n for n in model.priors() if n.rpartition(".")[0] not in layers]
    if elsewhere:
        raise ValueError(
            f"{elsewhere[0]!r} is no weight of a dense layer, and fit_many reparameterises no others locally: train it "
            "with fit, one after the other"
        )
    return {f"net.{name}.weight": layer.out_features for name, layer in layers.items()}
