"""
The evidence lower bound with an analytic, flat KL, run as a captured graph.

    loss = -E_q log p(y | x, w) + KL(q || p)                                     (TraceMeanField_ELBO)

With q = prod_i N(mu_i, sigma_i^2) and p = prod_i N(m_i, s_i^2), over all sites that lie in one flat vector,

    KL = sum_i [ (d_i^2 + r_i^2 - 1) / 2 - log r_i ],      d_i = (mu_i - m_i) / s_i,   r_i = sigma_i / s_i
    dKL/dmu_i = d_i / s_i,      dKL/dsigma_i = (r_i - 1 / r_i) / s_i

Pyro's TraceMeanField_ELBO evaluates this site by site; here it is one expression over the flat vectors of a guide that
says where its sites lie (`infer["flat"]` of the site). A site whose prior is not Normal, or whose guide is another, or
that is masked or inside a plate, is treated as in TraceMeanField_ELBO: analytic KL if one is registered, else sampled.
As there, the scale of an analytic KL is that of the guide's site.

Where :mod:`pyro_bnn.inference.tracing` finds that the step is the same tensor computation each time, it is captured
once and runs without Pyro from then on; everything else runs eagerly. Stock `SVI.step` works with both.

Departures from TraceMeanField_ELBO: arguments are validated at the first step of a kind only; terms are added in
another order (equal to 1e-6 relative, from the same noise).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, final

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.util import is_validation_enabled, torch_item
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import _Subsample
from pyro.util import warn_if_nan
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Independent, Normal, kl_divergence

from pyro_bnn.inference.recording import recording
from pyro_bnn.inference.tracing import GraphCache, ParamSite, StepResult, param_sites

__all__ = ["FlatMeanField_ELBO"]


class _Flat(Protocol):
    """Where a site lies in flat vectors of means and standard deviations."""

    loc: Tensor
    scale: Tensor
    start: int
    stop: int


# ------------------------------------------------------------------------------------------------------ the flat KL


class _FlatKL(torch.autograd.Function):
    """sum_i (d_i^2 + r_i^2 - 1) / 2 - log r_i, for a prior without gradient."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor, scale: Tensor, prior_loc: Tensor, inv_prior_scale: Tensor) -> Tensor:
        d = (loc - prior_loc).mul_(inv_prior_scale)  # (P,)
        r = scale * inv_prior_scale  # (P,)
        ctx.save_for_backward(d, r, inv_prior_scale)
        squares = torch.addcmul(d.new_full((), -1.0), d, d).addcmul_(r, r)  # (P,): d^2 + r^2 - 1
        return 0.5 * squares.sub_(torch.log(r), alpha=2).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d, r, inv = ctx.saved_tensors
        weight = grad * inv
        return d * weight, r.reciprocal().neg_().add_(r).mul_(weight), None, None


def flat_kl(loc: Tensor, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor) -> Tensor:
    """Return KL(N(loc, scale^2) || N(prior_loc, prior_scale^2)), summed; for a prior that has a gradient."""
    d = (loc - prior_loc) / prior_scale  # (P,)
    r = scale / prior_scale  # (P,)
    return (0.5 * (d * d + r * r - 1) - torch.log(r)).sum()


def _normal(fn: Any) -> Normal | None:
    """Return the Normal inside any number of Independent."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn if isinstance(fn, Normal) else None


@dataclass
class _Block:
    """Sites next to each other in one pair of flat vectors."""

    loc: Tensor
    scale: Tensor
    start: int
    stop: int
    priors: list[Normal]

    def vectors(self) -> tuple[Tensor, Tensor]:
        if (self.start, self.stop) == (0, self.loc.numel()):
            return self.loc, self.scale
        return self.loc[self.start : self.stop], self.scale[self.start : self.stop]


class _Prior(NamedTuple):
    """The priors of several sites as flat vectors, or as one number if they all agree."""

    loc: Tensor
    inv_scale: Tensor


@final
class _PriorCache:
    """Flat priors, kept as long as the same distributions with the same content are met again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], tuple[list[Normal], list[int], _Prior]] = {}

    def __call__(self, priors: list[Normal]) -> _Prior:
        key = tuple(map(id, priors))
        versions = [t._version for p in priors for t in (p.loc, p.scale)]
        kept = self._kept.get(key)
        if kept is None or kept[1] != versions:
            if len(self._kept) >= 16:
                self._kept.clear()
            with torch.no_grad():
                flat = _Prior(_uniform(_flatten(priors, "loc")), _uniform(_flatten(priors, "scale").reciprocal()))
            kept = self._kept[key] = (priors, versions, flat)
        return kept[2]


def _flatten(priors: Sequence[Normal], which: str) -> Tensor:
    parts = [cast(Tensor, getattr(prior, which)).reshape(-1) for prior in priors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _uniform(vector: Tensor) -> Tensor:
    return vector[0].clone() if bool((vector == vector[0]).all()) else vector


# ---------------------------------------------------------------------------------------------------------- the ELBO


def _is_sample(site: Any) -> bool:
    return site["type"] == "sample" and not isinstance(site["fn"], _Subsample)


def _log_prob_sum(site: Any) -> Tensor:
    if "log_prob_sum" not in site:
        log_prob = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
        site["log_prob_sum"] = scale_and_mask(log_prob, site["scale"], site["mask"]).sum()
    return site["log_prob_sum"]  # type: ignore[no-any-return]


def _entropy_sum(site: Any) -> Any:
    parts = site.get("score_parts")
    if parts is None:
        parts = site["fn"].score_parts(site["value"], *site["args"], **site["kwargs"])
        parts = parts.scale_and_mask(site["scale"], site["mask"])
    return parts.entropy_term.sum()


def _site_kl(model_site: Any, guide_site: Any) -> Any:
    """KL of one site as in TraceMeanField_ELBO: analytic if there is a formula, else sampled."""
    try:
        kl = kl_divergence(guide_site["fn"], model_site["fn"])
    except NotImplementedError:
        return _entropy_sum(guide_site) - _log_prob_sum(model_site)
    kl = scale_and_mask(kl, guide_site["scale"], guide_site["mask"])
    return kl.sum() if isinstance(kl, Tensor) else kl * torch.Size(guide_site["fn"].batch_shape).numel()


def _flat_place(model_site: Any, guide_site: Any) -> tuple[_Flat, Normal] | None:
    """Return where a site lies and its prior, if its KL is that of two Normals over all of its elements, unmasked."""
    flat = guide_site["infer"].get("flat")
    if flat is None or guide_site["mask"] is not None or isinstance(guide_site["scale"], Tensor):
        return None
    q, p = guide_site["fn"], model_site["fn"]
    prior = _normal(p)
    if prior is None or q.batch_shape or p.batch_shape or q.event_shape != p.event_shape:
        return None
    if _normal(q) is None or q.event_shape.numel() != flat.stop - flat.start:
        return None
    return flat, prior


@final
class FlatMeanField_ELBO(TraceMeanField_ELBO):
    """
    TraceMeanField_ELBO in one flat expression, run as a captured graph where that is certain to be the same.

    :param num_particles: how many draws to average over.
    :param trace: whether to capture steps as graphs; False runs every step eagerly.
    :param options: further options of Pyro's ELBO classes; `vectorize_particles` runs eagerly.
    """

    def __init__(self, num_particles: int = 1, *, trace: bool = True, **options: Any) -> None:
        if isinstance(num_particles, bool) or not isinstance(num_particles, int) or num_particles < 1:
            raise ValueError(f"num_particles={num_particles!r} is not allowed: give an integer >= 1")
        super().__init__(num_particles=num_particles, **options)  # type: ignore[no-untyped-call]
        self.trace = trace
        self._graphs = GraphCache()
        self._priors = _PriorCache()
        self._validated: dict[tuple[int, int], tuple[Any, Any]] = {}  # holds the objects, so that ids stay theirs

    # -- Pyro's interface ----------------------------------------------------------------------------------------

    def loss_and_grads(self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
        """Return the loss, and add its gradients to those of the parameters."""
        loss, _, _ = self._step(model, guide, args, kwargs)
        value = torch_item(loss)
        warn_if_nan(value, "loss")
        return cast(float, value)

    def step_tensors(
        self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """
        Do what `loss_and_grads` does without waiting for a number.

        Returns `loss` and `nll` (minus the scaled log-likelihood) as 0-dimensional tensors, and `params`, the list of
        unconstrained parameters in order of appearance.
        """
        loss, nll, params = self._step(model, guide, args, kwargs, with_params=True)
        return {"loss": loss, "nll": nll, "params": [site.unconstrained for site in params]}

    def differentiable_loss(
        self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return the loss as a tensor that can be differentiated once with respect to the parameters."""
        total: Any = 0.0
        for _ in range(1 if self.vectorize_particles else self.num_particles):
            result = self._graph_step(model, guide, args, kwargs)
            if result is None:
                loss, _ = self._one(model, guide, args, kwargs)
            else:
                loss = cast(Tensor, _GraphLoss.apply(result, *result.leaves))
            total = total + loss
        return cast(Tensor, total)

    # -- one step ------------------------------------------------------------------------------------------------

    def _step(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any], with_params: bool = False
    ) -> tuple[Any, Any, list[ParamSite]]:
        loss: Any = 0.0
        nll: Any = 0.0
        params: list[ParamSite] = []
        for _ in range(1 if self.vectorize_particles else self.num_particles):
            result = self._graph_step(model, guide, args, kwargs)
            if result is None:
                result = self._eager_step(model, guide, args, kwargs, with_params)
            else:
                _accumulate(result)
            loss, nll, params = loss + result.loss, nll + result.nll, result.params
        return loss, nll, params

    def _graph_step(self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepResult | None:
        if not self.trace or (self.vectorize_particles and self.num_particles > 1):
            return None
        return self._graphs.step(self._particle, self.num_particles, model, guide, args, kwargs)

    def _eager_step(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any], with_params: bool
    ) -> StepResult:
        traces: list[Any] = []
        loss, nll = self._one(model, guide, args, kwargs, traces)
        if isinstance(loss, Tensor) and loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        params = param_sites(*traces) if with_params else []
        return StepResult(torch.as_tensor(loss).detach(), torch.as_tensor(nll).detach(), [], [], params)

    def _one(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any], traces: list[Any] | None = None
    ) -> tuple[Any, Any]:
        """Run a particle eagerly, with Pyro's checks the first time this model and guide are met."""
        key = (id(model), id(guide))
        if is_validation_enabled() and key not in self._validated:
            result = self._particle(model, guide, args, kwargs, traces)
            if len(self._validated) >= 16:
                self._validated.clear()
            self._validated[key] = (model, guide)
            return result
        with pyro.validation_enabled(False):
            return self._particle(model, guide, args, kwargs, traces)

    def _particle(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any], traces: list[Any] | None = None
    ) -> tuple[Any, Any]:
        """Return loss and nll of one particle (of all, if vectorised), divided by their number; note the traces."""
        model_trace, guide_trace = next(iter(self._get_traces(model, guide, args, kwargs)))  # type: ignore[no-untyped-call]
        if traces is not None:
            traces.extend((guide_trace, model_trace))
        nll, kl = self._terms(model_trace, guide_trace)
        loss = nll + kl
        return (loss, nll) if self.num_particles == 1 else (loss / self.num_particles, nll / self.num_particles)

    def _get_trace(self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_validation_enabled() or isinstance(poutine.unwrap(guide), Messenger):
            return super()._get_trace(model, guide, args, kwargs)  # type: ignore[no-untyped-call]
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
        return model_trace, guide_trace

    def _differentiable_loss_particle(self, model_trace: Any, guide_trace: Any) -> tuple[Any, Any]:
        nll, kl = self._terms(model_trace, guide_trace)
        return torch_item(nll + kl), nll + kl

    def _terms(self, model_trace: Any, guide_trace: Any) -> tuple[Any, Any]:
        """Return minus the log-likelihood, and the KL, both scaled and masked."""
        nll: Any = 0.0
        kl: Any = 0.0
        flat: dict[Any, list[tuple[_Flat, Normal]]] = {}
        for name, model_site in model_trace.nodes.items():
            if not _is_sample(model_site):
                continue
            if model_site["is_observed"]:
                nll = nll - _log_prob_sum(model_site)
                continue
            guide_site = guide_trace.nodes[name]
            place = _flat_place(model_site, guide_site)
            if place is None:
                kl = kl + _site_kl(model_site, guide_site)
            else:
                flat.setdefault(guide_site["scale"], []).append(place)
        for scale, places in flat.items():
            kl = kl + scale_and_mask(self._flat_kl(places), scale)
        for name, guide_site in guide_trace.nodes.items():
            if _is_sample(guide_site) and name not in model_trace.nodes:
                assert guide_site["infer"].get("is_auxiliary")
                kl = kl + _entropy_sum(guide_site)
        return nll, kl

    def _flat_kl(self, places: list[tuple[_Flat, Normal]]) -> Tensor:
        """Return the KL of all these sites in one expression."""
        blocks: list[_Block] = []
        for place, prior in places:
            last = blocks[-1] if blocks else None
            if last is not None and last.loc is place.loc and last.stop == place.start:
                last.stop = place.stop
                last.priors.append(prior)
            else:
                blocks.append(_Block(place.loc, place.scale, place.start, place.stop, [prior]))
        vectors = [block.vectors() for block in blocks]
        loc, scale = vectors[0] if len(vectors) == 1 else tuple(map(torch.cat, zip(*vectors, strict=True)))
        priors = [prior for block in blocks for prior in block.priors]
        if any(p.loc.requires_grad or p.scale.requires_grad for p in priors):
            return flat_kl(loc, scale, _flatten(priors, "loc"), _flatten(priors, "scale"))
        if recording():  # the flat priors become constants of the graph
            flat = _Prior(_flatten(priors, "loc"), _flatten(priors, "scale").reciprocal())
        else:
            flat = self._priors(priors)
        return cast(Tensor, _FlatKL.apply(loc, scale, *flat))


@torch.no_grad()
def _accumulate(result: StepResult) -> None:
    for leaf, grad in zip(result.leaves, result.grads, strict=True):
        if leaf.grad is None:
            leaf.grad = grad
        else:
            leaf.grad.add_(grad)


class _GraphLoss(torch.autograd.Function):
    """A loss whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, result: StepResult, *leaves: Tensor) -> Tensor:
        ctx.grads = result.grads
        return result.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(grad * g for g in ctx.grads)
