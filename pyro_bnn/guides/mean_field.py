"""
The mean-field normal guide: q(w) = prod_i N(w_i; mu_i, sigma_i^2), sigma = softplus(rho) = log(1 + e^rho).

Every real-valued site is sampled directly from its Normal, so that the KL to a Normal prior is analytic under Pyro's
TraceMeanField_ELBO (Pyro's AutoNormal samples a Delta beside an auxiliary Normal and pays a Monte Carlo KL). A
constrained site is the image of a Normal under Pyro's bijection to its support; its KL is sampled, and unbiased.

mu and rho are stored flat, one pair of vectors per group of sites, so that one fused optimizer step and one softplus
serve the whole network, while `groups` still separates what needs its own learning rate.

With a cap c (`max_scale`), sigma = c (1 - exp(-softplus(rho) / c)): softplus where it is far below c, never above c,
and with a gradient everywhere, which a hard clamp would lose for good once it is reached.

References: Graves 2011; Blundell et al. 2015 (softplus map).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast, final

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide.utils import deep_setattr
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.utils import lazy_property

from pyro_bnn.common.as_written import as_written
from pyro_bnn.common.kept import kept
from pyro_bnn.common.renamed import renamed
from pyro_bnn.common.turns import in_turn
from pyro_bnn.guides.base import Role, SiteView
from pyro_bnn.guides.flat import FlatGuide, Place
from pyro_bnn.guides.init import DEFAULT_LOC, DEFAULT_RHO, default_scale, is_real
from pyro_bnn.guides.softplus import inverse_softplus, softplus

__all__ = ["DEFAULT_RHO", "AutoMeanFieldNormal", "FlatSlice", "SiteGroups", "SiteView", "inverse_softplus"]

SiteGroups: TypeAlias = Literal["site"] | Mapping[str, str | Sequence[str]] | None


class FlatSlice(NamedTuple):
    """Where a site lies in its group's flat vectors; travels in the site's `infer["flat"]` while a trace lives."""

    loc: Tensor
    scale: Tensor
    start: int
    stop: int


class _Presampled(dist.Normal):
    """
    A Normal whose first draw was taken beforehand, as a slice of one flat draw; further draws are its own.

    Its parameters are slices of flat vectors, too, cut out and brought into shape when somebody asks for them: a step
    with a flat KL does not.
    """

    def __init__(self, flat: FlatSlice, draw: Tensor) -> None:
        self._flat = flat
        self._draw: Tensor | None = draw
        Distribution.__init__(self, draw.shape)

    @lazy_property
    def loc(self) -> Tensor:
        """Mean, in the shape of the site."""
        return self._flat.loc[self._flat.start : self._flat.stop].view(self.batch_shape)

    @lazy_property
    def scale(self) -> Tensor:
        """Standard deviation, in the shape of the site."""
        return self._flat.scale[self._flat.start : self._flat.stop].view(self.batch_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return the prepared draw once, then fresh ones."""
        draw, self._draw = self._draw, None
        if draw is None or tuple(sample_shape):
            return super().rsample(torch.Size(sample_shape))
        return draw

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return a plain Normal: an expanded Normal needs draws of its own."""
        return dist.Normal(self.loc, self.scale).expand(batch_shape)


def _assign(names: Iterable[str], groups: SiteGroups) -> dict[str, str]:
    """Return the group of every site; "" is the one group of all."""
    names = list(names)
    if groups is None:
        return dict.fromkeys(names, "")
    if groups == "site":
        return {name: name for name in names}
    assigned: dict[str, str] = {}
    for group, patterns in groups.items():
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            hits = [name for name in names if fnmatchcase(name, pattern)]
            if not hits:
                raise ValueError(f"groups: {pattern!r} (group {group!r}) matches no site; the sites are {names}")
            for name in hits:
                if assigned.setdefault(name, group) != group:
                    raise ValueError(f"groups: site {name!r} is in {assigned[name]!r} and in {group!r}; pick one")
    return {name: assigned.get(name, "rest") for name in names}


def _check_groups(groups: Any) -> None:
    if groups is None or groups == "site":
        return
    if not isinstance(groups, Mapping) or not groups:
        raise ValueError(f"groups={groups!r} is unknown: pass None, 'site', or a dict of group name -> site pattern")
    for group in groups:
        if not isinstance(group, str) or not group.isidentifier():
            raise ValueError(f"groups: {group!r} cannot name parameters; use letters, digits and underscores")


def _check_part(which: str) -> None:
    if which not in ("loc", "scale"):
        raise ValueError(f"{which!r} is not a part of the guide: pass 'loc' or 'scale'")


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r} is not a standard deviation: pass a finite number above 0")


@final
class AutoMeanFieldNormal(FlatGuide):
    """
    A mean-field normal guide with softplus scales, flat storage and an analytic KL.

    :param model: any Pyro program; a BNN is inspected at once, another program at the first call.
    :param init_loc: where the means start: 'uniform' (matches the prior's standard deviation; the default of a BNN),
        'typical' (near 0 of the unconstrained space; that of other programs), 'normal', 'torch', 'net' or 'zeros';
        see :mod:`pyro_bnn.guides.init`.
    :param init_scale: initial sigma. At most one of `init_scale`, `init_rho`, `relative_scale`; default init_rho=-4
        for the weights of a BNN, init_scale=0.1 for the sites of another program (half of max_scale, if that is less).
    :param init_rho: initial rho, sigma = softplus(rho).
    :param relative_scale: initial sigma as a fraction of each site's prior standard deviation.
    :param max_scale: optional cap on sigma.
    :param groups: None (one flat pair of vectors), 'site' (one pair per site), or a dict of group name -> site pattern;
        sites that match none form the group 'rest'.
    :param freeze: which of 'loc' and 'scale' not to train.

    >>> import torch
    >>> from pyro_bnn.guides import AutoMeanFieldNormal
    >>> from pyro_bnn.models import BNN, likelihoods, priors
    >>> model = BNN(torch.nn.Linear(3, 2), priors.Normal(), likelihoods.Categorical(), num_data=10)
    >>> guide = AutoMeanFieldNormal(model, init_scale=0.01)
    >>> [(name, tuple(p.shape)) for name, p in guide.named_parameters()]  # flat: one pair for all 8 weights
    [('loc_unconstrained', (8,)), ('rho_unconstrained', (8,))]
    >>> guide.site("net.weight").scale.shape, round(guide.site("net.bias").scale[0].item(), 4)
    (torch.Size([2, 3]), 0.01)
    """

    roles: ClassVar[Mapping[str, Role]] = {"loc": "loc", "rho": "scale"}
    takes_moments = True
    has_median = True

    def __init__(
        self,
        model: Any,
        *,
        init_loc: str = DEFAULT_LOC,
        init_scale: float | None = None,
        init_rho: float | None = None,
        relative_scale: float | None = None,
        max_scale: float | None = None,
        groups: SiteGroups = None,
        freeze: str | Sequence[str] = (),
    ) -> None:
        if sum(v is not None for v in (init_scale, init_rho, relative_scale)) > 1:
            raise ValueError("init_scale, init_rho and relative_scale all set the initial sigma: pass one of them")
        _check_positive("init_scale", init_scale)
        _check_positive("relative_scale", relative_scale)
        _check_positive("max_scale", max_scale)
        if init_rho is not None and not math.isfinite(init_rho):
            raise ValueError(f"init_rho={init_rho} is not finite: pass a number, for instance {DEFAULT_RHO}")
        _check_groups(groups)
        freeze = [freeze] if isinstance(freeze, str) else list(freeze)
        for which in freeze:
            _check_part(which)
        super().__init__(model, init_loc)
        self._options: dict[str, Any] = dict(
            init_loc=self._init_loc,
            init_scale=init_scale,
            init_rho=init_rho,
            relative_scale=relative_scale,
            max_scale=max_scale,
            groups=groups,
            freeze=freeze,
        )
        self._sizes: dict[str, list[int]] = {}
        self._build_if_known()

    def spec(self) -> dict[str, Any]:
        """Return the guide as names and numbers."""
        return {"name": type(self).__name__, **{k: v for k, v in self._options.items() if v not in (None, [])}}

    # -- building ------------------------------------------------------------------------------------------------

    def _groups_of(self, names: Iterable[str]) -> dict[str, str]:
        return _assign(names, self._options["groups"])

    def _register(self, loc: Tensor, sites: Mapping[str, Any]) -> None:
        attributes = set(dir(self))
        taken = [group for group in self._group_slices if group.partition(".")[0] in attributes]
        if taken:
            raise ValueError(f"groups: {taken[0]!r} begins with the name of an attribute of the guide: rename it")
        for group, cut in self._group_slices.items():
            own = {name: place for name, place in self._places.items() if place.group == group}
            self._sizes[group] = [place.size for place in own.values()]
            starts = [self._initial_rho(sites[n], loc[p.start : p.stop].view(p.shape)) for n, p in own.items()]
            prefix = f"{group}." if group else ""
            deep_setattr(self, f"{prefix}loc", PyroParam(loc[cut].clone(), constraints.real))
            deep_setattr(self, f"{prefix}rho", PyroParam(torch.cat([r.reshape(-1) for r in starts]), constraints.real))
        for which in self._options["freeze"]:
            self._train(which, False)

    def _initial_rho(self, site: Any, loc: Tensor) -> Tensor:
        options = self._options
        cap = options["max_scale"]
        if options["init_rho"] is not None:
            sigma = softplus(loc.new_tensor(options["init_rho"], dtype=torch.float64))
        elif options["relative_scale"] is not None:
            sd = site["fn"].stddev if is_real(site["fn"].support) else loc.new_tensor(math.nan)
            if not bool(torch.isfinite(sd).all()):
                raise ValueError(
                    f"relative_scale: site {site['name']!r} has no finite prior standard deviation in unconstrained "
                    f"space: pass init_scale instead"
                )
            sigma = (options["relative_scale"] * sd).double()
        elif options["init_scale"] is not None:
            sigma = loc.new_tensor(options["init_scale"], dtype=torch.float64)
        else:
            hints = site["infer"].get("init", {})
            default = default_scale(hints)
            if cap is not None and not hints:
                default = min(default, cap / 2)
            sigma = loc.new_tensor(default, dtype=torch.float64)
        if cap is not None:
            if bool((sigma >= cap).any()):
                raise ValueError(f"max_scale={cap} is not above the initial sigma {float(sigma.max()):.4g}: raise one")
            sigma = -cap * torch.log1p(-sigma / cap)
        return inverse_softplus(sigma).to(loc.dtype).expand(loc.shape)

    # -- sampling ------------------------------------------------------------------------------------------------

    def scale_of(self, rho: Tensor) -> Tensor:
        """Return sigma for rho: softplus, saturating at `max_scale` if that is given."""
        sigma = softplus(rho)
        cap = self._options["max_scale"]
        return sigma if cap is None else -cap * torch.expm1(-sigma / cap)

    def _flat(self, group: str, name: str) -> Tensor:
        module: Any = self
        for part in group.split(".") if group else ():
            module = getattr(module, part)
        return cast(Tensor, getattr(module, name))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site; takes the model's arguments and uses none of them once it is built."""
        self.build(*args, **kwargs)
        plates: Any = self._create_plates(*args, **kwargs) if self._prototype_frames else {}  # type: ignore[no-untyped-call]
        draws, flats = self.plain_draw()
        result = {}
        for name, place in self._places.items():
            fn: Any = _Presampled(flats[name], draws[name])
            infer: Any = {}
            if place.transform is None:
                fn, infer = fn.to_event(place.event_dim), {"flat": flats[name]}
            else:
                fn = self._transformed(fn, place)
            with ExitStack() as stack:
                for plate in place.plates:
                    stack.enter_context(plates[plate])
                result[name] = pyro.sample(name, fn, infer=infer)
        return result

    def is_plain(self) -> bool:
        """Return whether `plain_draw` draws as `forward` does: all sites real and outside of plates, no hooks."""
        simple = bool(self._places) and not self._prototype_frames
        return simple and all(p.transform is None for p in self._places.values()) and as_written(self, _WRITTEN)

    def plain_draw(self) -> tuple[dict[str, Tensor], dict[str, FlatSlice]]:
        """Draw every site as `forward` does, without sample statements; return values and places by site."""
        values: dict[str, Tensor] = {}
        places: dict[str, FlatSlice] = {}
        flats: dict[str, tuple[Tensor, Tensor]] = {}
        pieces: dict[str, Any] = {}
        with self._pyro_context:
            for group, sizes in self._sizes.items():
                loc = self._flat(group, "loc")  # (P,)
                scale = kept(self.scale_of, self._flat(group, "rho"))  # (P,)
                draw = torch.addcmul(loc, scale, torch.randn_like(loc))  # (P,)
                flats[group], pieces[group] = (loc, scale), iter(draw.split(sizes))
        for name, place in self._places.items():
            values[name] = next(pieces[place.group]).view(place.shape)
            places[name] = FlatSlice(*flats[place.group], place.offset, place.offset + place.size)
        return values, places

    def plain_vectors(self) -> tuple[Tensor, Tensor, list[int], list[torch.Size]] | None:
        """
        Return mu and rho (P,) of all sites, where each ends and its shape, in the model's order.

        None where a draw is not mu + softplus(rho) z of one pair of vectors: with groups or a cap.
        """
        if list(self._sizes) != [""] or self._options["max_scale"] is not None:
            return None
        with self._pyro_context:
            loc, rho = self._flat("", "loc"), self._flat("", "rho")
        places = self._places.values()
        return loc, rho, [place.stop for place in places], [place.shape for place in places]

    # -- many at once --------------------------------------------------------------------------------------------

    def unstackable(self) -> str | None:
        """Return why this guide cannot run beside others like it as one batched program, as words; None if it can."""
        if list(self._sizes) != [""]:
            return "its sites lie in groups: build it with groups=None"
        if self._options["freeze"]:
            return "a part of it is frozen"
        return None if self.is_plain() else "a site is constrained or in a plate, or a method was replaced"

    def noise(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """
        Return what a draw is made from, (P,): the numbers that `forward` draws from a generator in this state.

        :param like: a tensor (P,) whose dtype and device it takes.
        """
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)

    def moments_at(self, own: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """
        Return mu and sigma for parameters that are given, (..., P) each.

        :param own: the guide's own parameters by name, (..., P) each.
        """
        return own["loc"], self.scale_of(own["rho"])

    def draw_at(self, own: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """
        Return the draw that parameters and a noise (..., P) make.

        :param own: the guide's own parameters by name, (..., P) each.
        """
        loc, scale = self.moments_at(own)
        return torch.addcmul(loc, scale, noise)

    @staticmethod
    def _transformed(fn: Any, place: Place) -> Any:
        pushed = dist.TransformedDistribution(fn, [place.transform])
        shift = place.transform.domain.event_dim - place.transform.codomain.event_dim
        return pushed.to_event(place.event_dim - shift - pushed.event_dim)

    # -- looking at it -------------------------------------------------------------------------------------------

    def _flat_parameter(self, name: str) -> Tensor:
        return torch.cat([self._flat(group, name) for group in self._sizes])

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return mu and sigma."""
        scales = [self.scale_of(self._flat(group, "rho")) for group in self._sizes]
        return self._flat_parameter("loc"), torch.cat(scales)

    def _moments_of(self, place: Place) -> tuple[Tensor, Tensor]:
        cut = slice(place.offset, place.offset + place.size)
        return self._flat(place.group, "loc")[cut], self.scale_of(self._flat(place.group, "rho"))[cut]

    @in_turn
    @torch.no_grad()
    def assign(self, name: str, loc: Tensor, scale: Tensor) -> None:
        """Set mean and standard deviation of the site called `name`, in unconstrained space."""
        place, cap = self._place(name), self._options["max_scale"]
        sigma = scale.double()
        if not bool((sigma > 0).all()):
            raise ValueError(f"site {name!r}: a standard deviation of {float(sigma.min())} is not above 0")
        if cap is not None:
            if bool((sigma >= cap).any()):
                raise ValueError(
                    f"site {name!r}: a standard deviation of {float(sigma.max()):.4g} is not below the guide's "
                    f"max_scale={cap}: raise max_scale"
                )
            sigma = -cap * torch.log1p(-sigma / cap)
        cut = slice(place.offset, place.offset + place.size)
        with self._pyro_context, poutine.block():
            self._flat(place.group, "loc")[cut].copy_(loc.reshape(-1))
            self._flat(place.group, "rho")[cut].copy_(inverse_softplus(sigma).reshape(-1))

    # -- freezing ------------------------------------------------------------------------------------------------

    def _train(self, which: str, train: bool) -> None:
        for name, parameter in self.named_parameters():
            if self.role(name) == which:
                parameter.requires_grad_(train)

    def freeze(self, which: str) -> None:
        """
        Stop training 'loc' or 'scale'.

        :param which: "loc" or "scale".
        """
        _check_part(which)
        self._check_built()
        self._train(which, False)

    def unfreeze(self, which: str) -> None:
        """
        Train 'loc' or 'scale' again.

        :param which: "loc" or "scale".
        """
        _check_part(which)
        self._check_built()
        self._train(which, True)


_WRITTEN = {
    name: vars(AutoMeanFieldNormal)[name] for name in ("forward", "scale_of", "_flat", "plain_draw", "plain_vectors")
}


__getattr__ = renamed(__name__, {"Groups": "SiteGroups"})
