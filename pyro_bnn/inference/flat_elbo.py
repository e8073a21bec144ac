"""
The evidence lower bound with an analytic, flat KL.

    loss = -E_q log p(y | x, w) + KL(q || p)                                     (TraceMeanField_ELBO)

With q = prod_i N(mu_i, sigma_i^2) and p = prod_i N(m_i, s_i^2), over all sites that lie in one flat vector,

    KL = sum_i [ (d_i^2 + r_i^2 - 1) / 2 - log r_i ],      d_i = (mu_i - m_i) / s_i,   r_i = sigma_i / s_i
    dKL/dmu_i = d_i / s_i,      dKL/dsigma_i = (r_i - 1 / r_i) / s_i

Pyro's TraceMeanField_ELBO evaluates this site by site; here it is one expression over the flat vectors of a guide that
says where its sites lie (`infer["flat"]` of the site). A site whose prior is not Normal, or whose guide is another, or
that is masked or inside a plate, is treated as in TraceMeanField_ELBO: analytic KL if there is a formula, else sampled.
As there, the scale of an analytic KL is that of the guide's site.

How a step runs, from the plainest to the fastest, all with the same numbers:

    by Pyro       model and guide run under Pyro's handlers: any program, any handlers around the step
    plainly       the same expression without handlers, where model and guide can write it down (:class:`PlainModel`,
                  :class:`PlainGuide`: a BNN with a flat guide) and nothing else listens; the network itself runs
    recorded      the tensor operations of the step, kept and run without its Python (:mod:`pyro_bnn.inference.graph`):
                  inside `fit`, for networks that are torch's or this library's, or where `trace=True` asks for it

Departure from TraceMeanField_ELBO: terms are added in another order (equal to 1e-6 relative, from the same noise).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from logging import getLogger
from typing import Any, NamedTuple, Protocol, cast, final, runtime_checkable

import pyro.poutine as poutine
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.util import check_fully_reparametrized, is_validation_enabled, torch_item
from pyro.poutine.messenger import Messenger
from pyro.util import warn_if_nan
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Normal

from pyro_bnn.common.sites import closed_kl, innermost, is_subsample
from pyro_bnn.data.standardise import plain
from pyro_bnn.inference.graph.private import MISSING
from pyro_bnn.inference.kl import active_scales, scale_key
from pyro_bnn.inference.native.mean_field import KEPT_SIZE, Deferred, FlatSites, draw_and_kl, usable
from pyro_bnn.inference.reparam import active_reparameterization
from pyro_bnn.inference.sites import ParamSite, StepResult, param_sites

__all__ = ["FlatMeanField_ELBO", "PlainGuide", "PlainModel"]

log = getLogger("pyro_bnn")


class _Flat(Protocol):
    """Where a site lies in flat vectors of means and standard deviations."""

    loc: Tensor
    scale: Tensor
    start: int
    stop: int


@runtime_checkable
class PlainModel(Protocol):
    """A model that can say without Pyro's handlers what it says with them."""

    def is_plain(self) -> bool:
        """Return whether it still is what its class made it: nothing replaced, no hooks."""
        ...

    def priors(self) -> Mapping[str, Any]:
        """Return the prior of every latent site, by its name without the prefix "net."."""
        ...

    def plain_nll(self, values: Mapping[str, Tensor], scale: Callable[[Any], Any], x: Any, y: Tensor) -> Tensor:
        """Return minus the log-likelihood of a batch, scaled to the whole data set, and by `scale`."""
        ...


@runtime_checkable
class PlainVectors(Protocol):
    """A plain guide whose draw is loc + softplus(rho) z, of one pair of vectors."""

    def plain_vectors(self) -> tuple[Tensor, Tensor, list[int], list[torch.Size]] | None:
        """Return loc and rho (P,), where each site ends and its shape, in the model's order; None if it is not so."""
        ...


@runtime_checkable
class PlainGuide(Protocol):
    """A guide of independent normals on flat vectors that can draw without Pyro's handlers."""

    def site_names(self) -> list[str]:
        """Return the names of all sites, in the model's order."""
        ...

    def is_plain(self) -> bool:
        """Return whether every site is real, outside of plates and built, nothing replaced, no hooks."""
        ...

    def plain_draw(self) -> tuple[dict[str, Tensor], dict[str, "_Flat"]]:
        """Return a draw of every site, and where each lies, in the model's order."""
        ...


# ------------------------------------------------------------------------------------------------------ the flat KL


class _FlatKL(torch.autograd.Function):
    """sum_i (d_i^2 + r_i^2 - 1) / 2 - log r_i, for a prior without gradient."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor, scale: Tensor, prior_loc: Tensor | None, inv_prior_scale: Tensor) -> Tensor:
        d = loc * inv_prior_scale if prior_loc is None else (loc - prior_loc).mul_(inv_prior_scale)  # (P,)
        r = scale * inv_prior_scale  # (P,)
        ctx.save_for_backward(d, r, inv_prior_scale)
        squares = torch.addcmul(d.new_full((), -1.0), d, d).addcmul_(r, r)  # (P,): d^2 + r^2 - 1
        return 0.5 * squares.sub_(torch.log(r), alpha=2).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d, r, inv = ctx.saved_tensors
        weight = grad * inv
        return d * weight, torch.addcdiv(r * weight, weight, r, value=-1), None, None


def flat_kl(loc: Tensor, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor) -> Tensor:
    """Return KL(N(loc, scale^2) || N(prior_loc, prior_scale^2)), summed; for a prior that has a gradient."""
    d = (loc - prior_loc) / prior_scale  # (P,)
    r = scale / prior_scale  # (P,)
    return (0.5 * (d * d + r * r - 1) - torch.log(r)).sum()


def _normal(fn: Any) -> Normal | None:
    """Return the Normal inside any number of Independent."""
    law = innermost(fn)
    return law if isinstance(law, Normal) else None


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
    """The priors of several sites as flat vectors, or as one number if they all agree; no mean where all are 0."""

    loc: Tensor | None
    inv_scale: Tensor


@final
class _FlatPriors:
    """
    Makes the flat vectors of priors.

    They are kept only for priors that are one number per site (which most are), and found again by these numbers: a
    prior that is written to, or replaced, is another prior.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, _Prior] = {}

    @torch.no_grad()
    def __call__(self, priors: list[Normal]) -> _Prior:
        numbers = [_single(t) for prior in priors for t in (prior.loc, prior.scale)]
        if any(number is None for number in numbers):
            return _Prior(_flatten(priors, "loc"), _flatten(priors, "scale").reciprocal())
        first = priors[0].loc
        sizes = [prior.batch_shape.numel() for prior in priors]
        values = _values(cast(list[Tensor], numbers))
        key = (first.dtype, first.device, *sizes, *values)
        if key not in self._kept:
            if len(self._kept) >= 16:
                self._kept.clear()
            loc = _uniform(_flatten(priors, "loc"))
            inv_scale = _uniform(_flatten(priors, "scale").reciprocal())
            self._kept[key] = _Prior(loc if bool(loc.any()) else None, inv_scale)
        return self._kept[key]


def _single(tensor: Tensor) -> Tensor | None:
    """Return the one number that a tensor shows in every place, or None if it may show several."""
    strides = tensor.stride()
    if any(strides) and any(stride and size > 1 for stride, size in zip(strides, tensor.shape, strict=True)):
        return None
    if not tensor.numel():
        return None
    base = tensor._base
    if base is not None and base.dim() == 0 and base.data_ptr() == tensor.data_ptr():  # a number that was expanded
        return base
    return tensor.as_strided((), ())


def _values(numbers: list[Tensor]) -> list[float]:
    """Return 0-dimensional tensors as numbers, waiting for a device once."""
    if numbers[0].device.type == "cpu":
        return [number.item() for number in numbers]
    return cast(list[float], torch.stack(numbers).tolist())


def _flatten(priors: Sequence[Normal], which: str) -> Tensor:
    parts = [cast(Tensor, getattr(prior, which)).reshape(-1) for prior in priors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _uniform(vector: Tensor) -> Tensor:
    return vector[0].clone() if bool((vector == vector[0]).all()) else vector.clone()


# ---------------------------------------------------------------------------------------------------------- the ELBO


def _is_sample(site: Any) -> bool:
    return site["type"] == "sample" and not is_subsample(site)


def _scaled(value: Tensor, scale: Any, mask: Any = None) -> Tensor:
    """Scale and mask as Pyro does; a KL weight that is a tensor is rounded to the precision of what it multiplies."""
    if isinstance(scale, Tensor) and scale.dim() == 0:
        scale = scale.to(value.dtype)
    return cast(Tensor, scale_and_mask(value, scale, mask))


def _log_prob_sum(site: Any) -> Tensor:
    if "log_prob_sum" not in site:
        log_prob = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
        site["log_prob_sum"] = _scaled(log_prob, site["scale"], site["mask"]).sum()
    return site["log_prob_sum"]  # type: ignore[no-any-return]


def _entropy_sum(site: Any) -> Tensor:
    log_prob = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
    return _scaled(log_prob, site["scale"], site["mask"]).sum()


def _site_kl(model_site: Any, guide_site: Any) -> Any:
    """KL of one site as in TraceMeanField_ELBO: analytic if there is a formula, else sampled."""
    kl = closed_kl(guide_site["fn"], model_site["fn"])
    if kl is None:
        return _entropy_sum(guide_site) - _log_prob_sum(model_site)
    return _scaled(kl, guide_site["scale"], guide_site["mask"]).sum()


def _check_reparameterised(name: str, guide_site: Any) -> None:
    if not guide_site["fn"].has_rsample:
        raise NotImplementedError(
            f"FlatMeanField_ELBO differentiates through the guide's draws, and site {name!r} ({guide_site['fn']}) is "
            "not reparameterised: all distributions in the guide must be, or use TraceScoreFunction_ELBO"
        )
    if type(guide_site["fn"]).score_parts is not TorchDistributionMixin.score_parts:  # it may be so in part
        check_fully_reparametrized({**guide_site, "score_parts": guide_site["fn"].score_parts(guide_site["value"])})


def _with_moments(
    values: Mapping[str, Tensor], places: Mapping[str, _Flat]
) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Yield name, value, mean and standard deviation of every site, these in the site's shape."""
    vectors = {id(place.loc): (place.loc, place.scale) for place in places.values()}
    parts: dict[str, list[Tensor]] = {}
    for key, (loc, scale) in vectors.items():
        names = sorted((n for n, p in places.items() if id(p.loc) == key), key=lambda n: places[n].start)
        sizes = [places[name].stop - places[name].start for name in names]
        for name, *moments in zip(names, loc.split(sizes), scale.split(sizes), strict=True):
            parts[name] = moments
    for name, value in values.items():
        mean, deviation = (moment.view(value.shape) for moment in parts[name])
        yield name, value, mean, deviation


def _flat_place(model_site: Any, guide_site: Any) -> tuple[_Flat, Normal] | None:
    """Return where a site lies and its prior, if its KL is that of two Normals over all of its elements, unmasked."""
    flat = guide_site["infer"].get("flat")
    scale = guide_site["scale"]
    if flat is None or guide_site["mask"] is not None or (isinstance(scale, Tensor) and scale.dim()):
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
    TraceMeanField_ELBO in one flat expression.

    `trace=True` is a promise of yours, that of torch.jit.trace: what the step computes depends on its arguments'
    tensors, on parameters, buffers and random draws, and on nothing else that changes; its Python then runs at the
    first step only. By default a step is recorded where the library can be certain of that by itself: inside
    `fit`, if the network, its prior and its likelihood consist of torch's and this library's code alone, and so is
    what `fit` calls between two steps.

    :param num_particles: how many draws to average over.
    :param trace: None (where it is certain), True (always: the promise above) or False (never).
    :param options: further options of Pyro's ELBO classes; `vectorize_particles` runs by Pyro.

    >>> import torch
    >>> from pyro.infer import SVI
    >>> from pyro_bnn.guides import AutoMeanFieldNormal
    >>> from pyro_bnn.inference import FlatMeanField_ELBO, per_datum
    >>> from pyro_bnn.models import BNN, likelihoods, priors
    >>> from pyro_bnn.optim import Adam
    >>> model = BNN(torch.nn.Linear(3, 2), priors.Normal(), likelihoods.Categorical(), num_data=5)
    >>> svi = SVI(model, AutoMeanFieldNormal(model), Adam({"lr": 1e-2}), FlatMeanField_ELBO())
    >>> with per_datum(5):
    ...     loss = svi.step(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]))
    >>> loss > 0  # mean NLL + KL / 5
    True
    """

    def __init__(self, num_particles: int = 1, *, trace: bool | None = None, **options: Any) -> None:
        if isinstance(num_particles, bool) or not isinstance(num_particles, int) or num_particles < 1:
            raise ValueError(f"num_particles={num_particles!r} is not allowed: give an integer >= 1")
        if trace not in (None, True, False):
            raise ValueError(f"trace={trace!r} is not allowed: give None, True or False")
        super().__init__(num_particles=num_particles, **options)  # type: ignore[no-untyped-call]
        self.trace = trace
        self.undisturbed = False
        """Whether nobody's Python but libraries' runs between two steps: the training loop says so."""
        self.may_defer = False
        """Whether gradients may be left to be made, in `step_tensors`: the training loop says so."""
        self._recorded = _recordings() if trace is not False else None
        self._priors = _FlatPriors()

    # -- Pyro's interface ----------------------------------------------------------------------------------------

    def loss_and_grads(self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
        """
        Return the loss, and add its gradients to those of the parameters.

        :param model: the Pyro program.
        :param guide: its guide.
        """
        loss, *_ = self._step(model, guide, args, kwargs)
        value = torch_item(loss)
        warn_if_nan(value, "loss")
        return cast(float, value)

    def step_tensors(
        self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """
        Do what `loss_and_grads` does without waiting for a number.

        Returns `loss` and `nll` (minus the scaled log-likelihood) as 0-dimensional tensors, `params`, the list of
        unconstrained parameters in order of appearance, and `deferred`: None, or with `may_defer` the gradients of a
        pair of vectors that have still to be made (:class:`pyro_bnn.inference.native.mean_field.Deferred`).

        :param model: the Pyro program.
        :param guide: its guide.
        """
        loss, nll, params, deferred = self._step(model, guide, args, kwargs, with_params=True)
        return {"loss": loss, "nll": nll, "params": [site.unconstrained for site in params], "deferred": deferred}

    def differentiable_loss(
        self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """
        Return the loss as a tensor that can be differentiated with respect to the parameters.

        :param model: the Pyro program.
        :param guide: its guide.
        """
        total: Any = 0.0
        for _ in range(self._rounds()):
            total = total + self._particle(model, guide, args, kwargs)[0]
        return cast(Tensor, total)

    def forget_recordings(self) -> None:
        """Record the next step anew: somebody's code has run that may have changed the program."""
        if self._recorded is not None:
            self._recorded.forget()

    # -- one step ------------------------------------------------------------------------------------------------

    def _rounds(self) -> int:
        return 1 if self.vectorize_particles else self.num_particles

    def _step(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any], with_params: bool = False
    ) -> tuple[Any, Any, list[ParamSite], Deferred | None]:
        args = tuple(map(plain, args))  # what says that it is standardised is an ordinary tensor here
        loss: Any = 0.0
        nll: Any = 0.0
        params: list[ParamSite] = []
        deferred: Deferred | None = None
        for _ in range(self._rounds()):
            result = self._recorded_step(model, guide, args, kwargs)
            if result is None:
                result = self._eager_step(model, guide, args, kwargs, with_params)
            else:
                _accumulate(result)
            loss, nll, params, deferred = loss + result.loss, nll + result.nll, result.params, result.deferred
        return loss, nll, params, deferred

    def _recorded_step(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StepResult | None:
        if self._recorded is None or not (self.trace or self.undisturbed):
            return None
        if self.vectorize_particles and self.num_particles > 1:
            return None
        return cast(
            StepResult | None,
            self._recorded.step(
                self._particle,
                self.num_particles,
                model,
                guide,
                args,
                kwargs,
                by_name=self.trace is True,
                may_defer=self.may_defer and self.num_particles == 1,
            ),
        )

    def _eager_step(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any], with_params: bool
    ) -> StepResult:
        seen = poutine.trace(param_only=True) if with_params else None
        with nullcontext() if seen is None else seen:
            loss, nll = self._particle(model, guide, args, kwargs)
        if isinstance(loss, Tensor) and loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        params = [] if seen is None else param_sites(seen.trace)
        return StepResult(torch.as_tensor(loss).detach(), torch.as_tensor(nll).detach(), [], [], params)

    def _particle(self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return loss and nll of one particle (of all, if vectorised), divided by their number."""
        terms = self._plain_terms(model, guide, args, kwargs)
        if terms is None:
            model_trace, guide_trace = next(iter(self._get_traces(model, guide, args, kwargs)))  # type: ignore[no-untyped-call]
            terms = self._terms(model_trace, guide_trace)
        nll, kl = terms
        loss = nll + kl
        return (loss, nll) if self.num_particles == 1 else (loss / self.num_particles, nll / self.num_particles)

    def _plain_terms(
        self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor] | None:
        """Return what `_terms` does without Pyro's handlers, if model and guide can and no other handler is active."""
        if not (issubclass(type(model), PlainModel) and issubclass(type(guide), PlainGuide)):  # of objects it is slow
            return None
        if kwargs or len(args) != 2 or args[1] is None or (self.vectorize_particles and self.num_particles > 1):
            return None
        layers = active_reparameterization()
        scales = active_scales(beside=layers)
        if scales is None or not (model.is_plain() and guide.is_plain()):
            return None
        known = model.priors()
        priors = [_normal(prior) for prior in known.values()]
        if any(prior is None for prior in priors) or guide.site_names() != [f"net.{name}" for name in known]:
            return None
        fused = self._fused(guide, guide.site_names(), cast(list[Normal], priors), layers)
        if fused is not None:
            values, kl = fused
            nll = model.plain_nll(values, scales[0], *args)
            if layers is not None:
                layers.end_plainly()
            return nll, _scaled(kl, scales[1])
        values, places = guide.plain_draw()
        for value, (name, prior) in zip(values.values(), known.items(), strict=True):
            if value.shape != prior.event_shape:
                raise ValueError(
                    f"the guide draws 'net.{name}' in shape {tuple(value.shape)}, and the model has it in "
                    f"{tuple(prior.event_shape)}: build the guide of this model"
                )
        if layers is not None:
            layers.begin_plainly(_with_moments(values, places))
        nll = model.plain_nll(values, scales[0], *args)
        if layers is not None:
            layers.end_plainly()
        kl = self._flat_kl(list(zip(places.values(), cast(list[Normal], priors), strict=True)))
        return nll, _scaled(kl, scales[1])

    def _fused(
        self, guide: Any, names: list[str], priors: list[Normal], layers: Any
    ) -> tuple[dict[str, Tensor], Tensor] | None:
        """
        Return a draw of every site and the KL by the compiled kernel, where it takes the guide and its priors.

        :param layers: the handler that is told the draws and their means, if there is one; deviations it does not get.
        """
        vectors = guide.plain_vectors() if issubclass(type(guide), PlainVectors) else None
        if vectors is None or not usable(*vectors[:2]):
            return None
        loc, rho, stops, shapes = vectors
        if layers is not None and (layers.needs_deviations or loc.numel() > KEPT_SIZE):
            return None
        if shapes != [prior.batch_shape for prior in priors]:
            return None
        tensors = [t for prior in priors for t in (prior.loc, prior.scale)]
        if any(t.requires_grad or _computed(t) for t in tensors):
            return None
        with _unrecorded():  # numbers to a recording, not operations
            numbers = [_single(t) for t in tensors]
            if any(number is None for number in numbers):
                return None
            found = _values(cast(list[Tensor], numbers))
        sites = FlatSites(stops, shapes, found[::2], [1 / scale for scale in found[1::2]])
        kl, draws = draw_and_kl(loc, rho, sites)
        values = dict(zip(names, draws, strict=True))
        if layers is not None:
            means = loc.split([b - a for a, b in pairwise((0, *stops))])
            shaped = [mean.view(shape) for mean, shape in zip(means, shapes, strict=True)]
            layers.begin_plainly(
                (name, value, mean, None) for (name, value), mean in zip(values.items(), shaped, strict=True)
            )
        return values, kl

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
        flat: dict[Any, tuple[list[Any], list[tuple[_Flat, Normal]]]] = {}
        for name, model_site in model_trace.nodes.items():
            if not _is_sample(model_site):
                continue
            if model_site["is_observed"]:
                nll = nll - _log_prob_sum(model_site)
                continue
            guide_site = guide_trace.nodes.get(name)
            if guide_site is None:
                raise ValueError(f"the guide does not draw the model's site {name!r}: build the guide of this model")
            _check_reparameterised(name, guide_site)
            place = _flat_place(model_site, guide_site)
            if place is None:
                kl = kl + _site_kl(model_site, guide_site)
            else:
                scales, places = flat.setdefault(scale_key(guide_site["scale"]), ([], []))
                scales.append(guide_site["scale"])
                places.append(place)
        for scales, places in flat.values():
            kl = kl + _scaled(self._flat_kl(places), scales[0])
        for name, guide_site in guide_trace.nodes.items():
            if _is_sample(guide_site) and name not in model_trace.nodes:
                if not guide_site["infer"].get("is_auxiliary"):
                    raise ValueError(
                        f"the guide draws {name!r}, which is no site of the model: leave it out, or mark it with "
                        'infer={"is_auxiliary": True}'
                    )
                _check_reparameterised(name, guide_site)
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
        if any(_computed(t) for p in priors for t in (p.loc, p.scale)):
            flat = _Prior(_flatten(priors, "loc"), _flatten(priors, "scale").reciprocal())
        else:
            with _unrecorded():  # numbers to a recording, not operations
                flat = self._priors(priors)
        return cast(Tensor, _FlatKL.apply(loc, scale, *flat))


def _recordings() -> Any:
    """Return a store of recorded steps, or None where torch or Pyro lack what recording needs."""
    if MISSING:
        if MISSING[0] not in _SAID:
            _SAID.add(MISSING[0])
            log.warning("steps are not recorded: this installation has no %s", ", ".join(MISSING))
        return None
    from pyro_bnn.inference.graph.step import RecordedSteps

    return RecordedSteps()


_SAID: set[str] = set()


def _computed(tensor: Tensor) -> bool:
    if MISSING:
        return False
    from pyro_bnn.inference.graph.recording import computed

    return computed(tensor)


def _unrecorded() -> AbstractContextManager[None]:
    if MISSING:
        return nullcontext()
    from pyro_bnn.inference.graph.recording import unrecorded

    return unrecorded()


@torch.no_grad()
def _accumulate(result: StepResult) -> None:
    for leaf, grad in zip(result.leaves, result.grads, strict=True):
        if leaf.grad is None:
            leaf.grad = grad
        else:
            leaf.grad.add_(grad)
