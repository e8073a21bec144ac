"""
The latent sites of a program laid out as one flat vector, and the base of the guides that store them so.

With sites w_1, ..., w_k of the model and bijections T_i from R^(n_i) to their supports (the identity for real sites),
the flat vector is u = (T_1^-1(w_1), ..., T_k^-1(w_k)) of length P = n_1 + ... + n_k, in the model's order; a guide that
stores its sites in several groups has them group by group, each group in the model's order.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoGuide
from pyro.nn import PyroParam
from torch import Tensor

from pyro_bnn.common.own_state import load_model_state, model_state, state_names
from pyro_bnn.common.turns import in_turn
from pyro_bnn.guides.base import Guide, GuideMeta, SiteView
from pyro_bnn.guides.init import DEFAULT_LOC, is_real, says_its_weights, start_of
from pyro_bnn.guides.program import bijection, latent_trace, name_parameters, new_name, rename
from pyro_bnn.guides.quantiles import as_quantiles, normal_quantiles

__all__ = ["FlatGuide", "Place", "load_model_state", "model_state", "state_names"]


@dataclass(frozen=True)
class Place:
    """
    Where a site lies in the flat vector, and how its value follows from its slice.

    `offset` is where the site begins in the vector of its group, which is the flat vector itself if there is but one.
    """

    start: int
    stop: int
    shape: torch.Size
    event_dim: int
    transform: Any
    plates: tuple[str, ...]
    group: str = ""
    offset: int = 0

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.stop - self.start

    def value(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the site's slice of `flat` (..., P) in unconstrained space and its value, (..., *shape) each."""
        u = flat[..., self.start : self.stop].reshape(flat.shape[:-1] + self.shape)
        return u, u if self.transform is None else self.transform(u)

    @property
    def value_event_dim(self) -> int:
        """The site's own event dimensions, of its value."""
        if self.transform is None:
            return self.event_dim
        return self.event_dim + cast(int, self.transform.codomain.event_dim - self.transform.domain.event_dim)

    def in_plates(self, name: str, value: Tensor, lead: torch.Size) -> Tensor:
        """
        Return a value (*lead, *shape) with the draws' dimensions `lead` where the plates around the guide have them.

        Plates count their dimensions from the right, and so the site's own plates stand where `lead` has ones:
        (S, 1) draws of a site in a plate of 3 are (S, 3), not (S, 1, 3).
        """
        own = value.shape[len(lead) :]
        target = torch.Size(torch.broadcast_shapes(own, (*lead, *(1,) * self.value_event_dim)))
        if target.numel() != value.numel():
            raise ValueError(
                f"site {name!r} of shape {tuple(own)} is in plates of its own where the plates around the guide have "
                f"{tuple(lead)}: give those plates dimensions further to the left"
            )
        return value.reshape(target)


def _without_values(trace: Any) -> Any:
    """Let a trace keep the shapes of its values and not the memory: it lives as long as its guide."""
    for node in trace.nodes.values():
        if isinstance(node.get("value"), Tensor):
            node["value"] = node["value"].new_zeros(()).expand(node["value"].shape)
        elif node["type"] == "return":
            node["value"] = None
    return trace


class FlatGuide(AutoGuide, Guide, metaclass=GuideMeta):  # type: ignore[metaclass]
    """
    The abstract base of guides whose draw is one flat vector.

    :param model: any Pyro program; a BNN is inspected at once, another program at the first call.
    :param init_loc: where the flat vector starts; see :mod:`pyro_bnn.guides.init`.
    """

    has_moments = True

    def __init__(self, model: Any, init_loc: str = DEFAULT_LOC) -> None:
        if not callable(model):
            raise TypeError(f"model is a {type(model).__name__}; pass a Pyro program (a callable)")
        init_loc = start_of(model, init_loc)
        super().__init__(model)  # type: ignore[no-untyped-call]
        self._pyro_name = new_name(self)
        self._init_loc = init_loc
        self._places: dict[str, Place] = {}
        self._group_slices: dict[str, slice] = {}

    @abstractmethod
    def _register(self, loc: Tensor, sites: Mapping[str, Any]) -> None:
        """Make the parameters, given where the flat vector (P,) starts and the model's sites."""

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site; takes the model's arguments."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Return the guide as names and numbers."""

    def _groups_of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the group of every site; "" is the one group of all."""
        return dict.fromkeys(names, "")

    def _add_parameter(self, name: str, value: Tensor) -> None:
        setattr(self, name, PyroParam(value, constraints.real))

    # -- building ------------------------------------------------------------------------------------------------

    @property
    def is_built(self) -> bool:
        """Whether the guide has seen its model, and so has its parameters."""
        return self.prototype_trace is not None

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Look at the model, if that is still to be done; takes the model's arguments."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)

    def _build_if_known(self) -> None:
        if says_its_weights(self.model):
            self._setup_prototype()

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        trace = latent_trace(self.model, args, kwargs, self._init_loc)
        sites = dict(trace.iter_stochastic_nodes())
        laid = {name: self._lay(name, site) for name, site in sites.items()}
        group_of = self._groups_of(sites)
        places: dict[str, Place] = {}
        start = 0
        for group in dict.fromkeys(group_of.values()):
            first = start
            for name in (name for name in sites if group_of[name] == group):
                u, place = laid[name]
                places[name] = replace(place, start=start, stop=start + u.numel(), group=group, offset=start - first)
                start += u.numel()
            self._group_slices[group] = slice(first, start)
        self._places = {name: places[name] for name in sites}
        self._prototype_frames = {frame.name: frame for site in sites.values() for frame in site["cond_indep_stack"]}
        self._register(torch.cat([laid[name][0].reshape(-1) for name in places]), sites)
        name_parameters(self)
        self.prototype_trace = _without_values(trace)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy a name of its own, so that it shares no parameter with the original."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        rename(self)

    @staticmethod
    def _lay(name: str, site: Any) -> tuple[Tensor, Place]:
        """Return where a site starts in unconstrained space, in its shape, and its place but for where that is."""
        fn = site["fn"]
        transform = bijection(name, fn)
        u = cast(Tensor, transform.inv(site["value"])).detach()
        plates = tuple(frame.name for frame in site["cond_indep_stack"])
        event_dim = fn.event_dim + u.dim() - site["value"].dim()
        kept = None if is_real(fn.support) else transform
        return u, Place(0, u.numel(), u.shape, event_dim, kept, plates)

    # -- using ---------------------------------------------------------------------------------------------------

    def _sample_at(self, flat: Tensor, *args: Any, jacobian: bool = False, **kwargs: Any) -> dict[str, Tensor]:
        """
        Sample every site as the point it has in the flat vector (..., P).

        With `jacobian` a constrained site brings an auxiliary one that takes log |det dT/du| off the density.
        """
        plates = self._create_plates(*args, **kwargs)  # type: ignore[no-untyped-call]
        result = {}
        for name, place in self._places.items():
            u, value = place.value(flat)
            if jacobian and place.transform is not None:
                self._sample_jacobian(name, place, u, value)
            value = place.in_plates(name, value, flat.shape[:-1])
            with ExitStack() as stack:
                for plate in place.plates:
                    stack.enter_context(plates[plate])
                result[name] = pyro.sample(name, dist.Delta(value, event_dim=place.value_event_dim))
        return result

    def _sample_jacobian(self, name: str, place: Place, u: Tensor, value: Tensor) -> None:
        log_det = place.transform.log_abs_det_jacobian(u, value)  # (..., some of the site's dimensions)
        lead = u.dim() - len(place.shape)
        if log_det.dim() > lead:
            log_det = log_det.flatten(lead).sum(-1)  # (...)
        fn = dist.Delta(torch.zeros_like(log_det), log_density=-log_det)
        pyro.sample(f"_{self._pyro_name}_{name}_jacobian", fn, infer=cast(Any, {"is_auxiliary": True}))

    def values(self, flat: Tensor) -> dict[str, Tensor]:
        """Return every site's value at the flat vector (..., P)."""
        self._check_built()
        return {name: place.value(flat)[1] for name, place in self._places.items()}

    def flatten(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vectors (..., P) of values by site, with any leading dimensions."""
        self._check_built()
        pieces = []
        for name, place in sorted(self._places.items(), key=lambda item: item[1].start):
            u = values[name] if place.transform is None else place.transform.inv(values[name])
            pieces.append(u.reshape(*u.shape[: u.dim() - len(place.shape)], place.size))
        return torch.cat(pieces, dim=-1)

    def site_names(self) -> list[str]:
        """Return the names of all sites, in the model's order."""
        self._check_built()
        return list(self._places)

    @abstractmethod
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of every entry of the flat vector, (P,) each."""

    def _moments_of(self, place: Place) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of one site, in any shape."""
        mean, sd = self.marginals()
        return mean[place.start : place.stop], sd[place.start : place.stop]

    @in_turn
    @torch.no_grad()
    def site(self, name: str) -> SiteView:
        """Return mean and standard deviation of the site called `name`, detached, in unconstrained space."""
        place = self._place(name)
        with self._pyro_context, poutine.block():
            mean, sd = self._moments_of(place)
        return SiteView(mean.reshape(place.shape).clone(), sd.reshape(place.shape).clone())

    def _flat_parameter(self, name: str) -> Tensor:
        """Return the parameter of that name of all groups together, (P,)."""
        return cast(Tensor, getattr(self, name))

    @in_turn
    @torch.no_grad()
    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the median of every site: its mean `loc`, mapped to the site's support; for guides that have it."""
        if not self.has_median:
            return Guide.median(self, *args, **kwargs)
        self.build(*args, **kwargs)
        with self._pyro_context, poutine.block():
            return self.values(self._flat_parameter("loc").detach().clone())

    @in_turn
    @torch.no_grad()
    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return quantiles (Q, *shape) of every site, of normal entries with the mean and deviation of `marginals`."""
        self.build(*args, **kwargs)
        result = {}
        for name, place in self._places.items():
            loc, scale = self.site(name)
            result[name] = normal_quantiles(name, loc, scale, place.transform, as_quantiles(quantiles, loc))
        return result

    def layout(self) -> list[tuple[str, slice, torch.Size]]:
        """Return name, slice of the flat vector and shape of every site, in the model's order."""
        self._check_built()
        return [(name, slice(place.start, place.stop), place.shape) for name, place in self._places.items()]

    def _all_real(self) -> bool:
        """Whether every site is built, real and outside of plates."""
        simple = bool(self._places) and not self._prototype_frames
        return simple and all(place.transform is None for place in self._places.values())

    def _joint_unstackable(self) -> str | None:
        """Return why this guide's draw is not a point of its flat vector alone, as words; None if it is."""
        return None if self._all_real() else "a site is constrained or in a plate"

    def slice_of(self, name: str) -> slice:
        """Return the slice of the flat vector that is the site called `name`."""
        place = self._place(name)
        return slice(place.start, place.stop)

    def _place(self, name: str) -> Place:
        self._check_built()
        if name not in self._places:
            raise KeyError(f"no site {name!r}; the sites are {list(self._places)}")
        return self._places[name]

    def _check_built(self) -> None:
        if self.prototype_trace is None:
            raise RuntimeError("the guide has not seen the model yet: call it once with the model's arguments")
