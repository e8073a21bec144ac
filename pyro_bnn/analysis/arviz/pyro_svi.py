"""
Any Pyro program and its guide as ArviZ groups: several observed sites, plates as named dimensions.

    posterior              the latent and deterministic sites, in the shapes of the program
    posterior_predictive   the observed sites, drawn anew for each draw of the latent ones
    log_likelihood         log p(y_i | z_s, ...) of each observed site, an entry for each element of its batch; called
                           log_density where LOO is not defined
    log_prior              log p of each latent site, summed over its elements
    prior, prior_predictive    the program without its data
    predictions            the observed sites at other arguments
    observed_data, constant_data    what was observed, and the tensors among the arguments

A dimension is a plate, by its name; what is no plate is `site_dim_0`, ..., unless `dims` says better. A plate whose
rows are given (`subsample=indices`) has these rows as its coordinates. One that chooses rows anew at each call has no
fixed rows to speak of, and is refused. Likelihoods and priors are those of the elements, without the scale of plates.

Discrete sites come from the guide where it has them. Those it leaves out, as it does under `TraceEnum_ELBO`, are drawn
from p(z | y, the guide's draw) by `pyro.infer.infer_discrete`, and summed out of the likelihood:

    log p(y_i | theta) = log sum_z p(z | theta) p(y_i | z, theta)

which needs them inside the plates of the observed site; where they are not, the likelihood has no rows, and is refused.
Any other latent site that the guide leaves out is refused. Without an observed site the sites that the guide lacks are
what is predicted.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, final

import numpy as np
import pyro.poutine as poutine
import torch
from pyro.distributions import Unit
from pyro.infer import infer_discrete
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_bnn.analysis.arviz.export import MAX_BYTES, Places, attributes_of, lead_of, site_dims
from pyro_bnn.analysis.arviz.loo import Split, likelihood_group
from pyro_bnn.analysis.arviz.stores import Variable, file_name, store_for
from pyro_bnn.analysis.scores.signal_to_noise import latent_values
from pyro_bnn.common.contract import contract_of
from pyro_bnn.common.modules import evaluation_mode, reachable_modules
from pyro_bnn.common.sites import is_subsample
from pyro_bnn.common.turns import OwnRandomness
from pyro_bnn.data.checks import suggest
from pyro_bnn.data.standardise import plain
from pyro_bnn.posterior import Posterior

__all__ = ["from_pyro_svi"]

_OWN_DIMS = ("chain", "draw")


def from_pyro_svi(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int = 200,
    prior_samples: int | None = None,
    predict_args: Sequence[Any] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    sites: str | Iterable[str] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    split: Split | None = None,
    log_likelihood: bool = False,
    path: str | Path | None = None,
    seed: int = 0,
) -> Any:
    """
    Return a Pyro program and a guide as what the installed ArviZ takes: `InferenceData` of 0.x, `DataTree` of 1.x.

    :param model: any Pyro program.
    :param guide: its guide: of Pyro, of this library, or a function.
    :param args: what both are called with, the observations among it.
    :param num_samples: draws; of a sampler's stored draws all are taken.
    :param prior_samples: draws of the program without its data; default num_samples, 0 for none.
    :param predict_args: other arguments for the group `predictions`, such as `(x_new,)`.
    :param model_kwargs: keyword arguments of both.
    :param sites: patterns of latent sites to export; default all of them.
    :param coords: coordinates by dimension: `{"data": names_of_rows}`.
    :param dims: names of a site's dimensions: all of them, or those of its event alone.
    :param split: where the rows come from, 'train' where they were trained on; `loo` needs to know.
    :param log_likelihood: as of :func:`~pyro_bnn.analysis.arviz.to_arviz`.
    :param path: write to this .nc or .zarr while drawing; default in memory.

    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> from pyro.infer.autoguide import AutoNormal
    >>> from pyro_bnn.analysis import from_pyro_svi
    >>> def schools(y=None):
    ...     mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    ...     with pyro.plate("school", 3):
    ...         theta = pyro.sample("theta", dist.Normal(mu, 1.0))
    ...         pyro.sample("y", dist.Normal(theta, 10.0), obs=y)
    >>> guide = AutoNormal(schools)
    >>> idata = from_pyro_svi(schools, guide, torch.tensor([28.0, 8.0, -3.0]), coords={"school": ["A", "B", "C"]})
    >>> idata.posterior["theta"].dims, idata.log_likelihood["y"].shape
    (('chain', 'draw', 'school'), (1, 200, 3))
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} draws nothing: pass at least 1")
    prior_samples = num_samples if prior_samples is None else prior_samples
    if prior_samples < 0:
        raise ValueError(f"prior_samples={prior_samples} is no number of draws: pass 0 for none")
    program = _Program(model, guide, tuple(_plain(a) for a in args), dict(model_kwargs or {}))
    posterior = Posterior(model, guide)
    promised = contract_of(guide)
    known = reachable_modules(model, guide)
    randomness = OwnRandomness(seed)

    def turn(task: Callable[[], Any]) -> Any:
        with randomness.turn(), posterior.turn(), torch.no_grad(), evaluation_mode(known=known), poutine.block():
            return task()

    shapes = turn(program.look)
    latents = _chosen(shapes.latents, sites)
    lead = lead_of(guide, num_samples)
    likelihood = likelihood_group(posterior, split, asked=log_likelihood)
    export = _Export(shapes, dims or {}, coords or {})
    for name in latents:
        export.add("posterior", name, lead, shapes.sites[name])
        if prior_samples:
            export.add("prior", name, (1, prior_samples), shapes.sites[name])
    for name in shapes.drawn:
        export.add_number("log_prior", name, lead)
    for name in shapes.predicted:
        export.add("posterior_predictive", name, lead, shapes.sites[name])
        if prior_samples:
            export.add("prior_predictive", name, (1, prior_samples), shapes.sites[name])
    for name in shapes.observed:
        export.add("observed_data", name, (), shapes.sites[name])
        export.add(likelihood, name, lead, shapes.sites[name], events=False)
    for name, value in program.constants(shapes).items():
        export.add("constant_data", name, (), _Site(name, value, (), 0))
    new = None if predict_args is None else tuple(_plain(a) for a in predict_args)
    if new is not None:
        for name, site in turn(lambda: program.predicted(program.guide_trace(), new)).items():
            export.add("predictions", name, lead, site)
    stats = promised.sample_stats()
    for name, noted in stats.items():
        export.add_number("sample_stats", name, lead, np.bool_ if noted.dtype == torch.bool else np.float32)
    export.check(path)

    store = store_for(path)
    arrays: dict[str, dict[str, Any]] = {}
    for variable in export.variables:
        arrays.setdefault(variable.group, {})[variable.name] = store.new(variable)
    for group, values in (
        ("observed_data", {name: shapes.sites[name].value for name in shapes.observed}),
        ("constant_data", program.constants(shapes)),
        ("sample_stats", stats),
    ):
        for name, value in values.items():
            arrays[group][file_name(name)][...] = _array(value)
    places = Places(guide, lead)
    promised.restart()
    for _ in range(lead[0] * lead[1]):
        drawn: _Drawn = turn(lambda: program.draw(shapes, new))
        place = places.of(drawn.raw)
        for kind, found in drawn.groups.items():
            group = likelihood if kind == "log_likelihood" else kind
            for name, value in found.items():
                if group != "posterior" or name in latents:
                    arrays[group][file_name(name)][place] = _array(value)
    for s in range(prior_samples):
        for name, value in turn(lambda: program.prior(shapes)).items():
            group = "prior_predictive" if name in shapes.predicted else "prior"
            if group == "prior_predictive" or name in latents:
                arrays[group][file_name(name)][0, s] = _array(value)
    return store.finish(export.coordinates(), attributes_of(posterior, split, lead))


# -- what a program is made of -------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class _Site:
    """A site's value at one run, the plates of its batch by axis (negative), and how many axes are of its event."""

    name: str
    value: Tensor
    plates: tuple[tuple[int, str], ...]
    event_dim: int


@final
@dataclass
class _Shapes:
    """The sites of a program by what they are, and the rows of plates whose rows were given."""

    sites: dict[str, _Site]
    guided: list[str]
    enumerated: list[str]
    deterministic: list[str]
    observed: list[str]
    predicted: list[str]
    rows: dict[str, Tensor]
    nesting: int

    @property
    def drawn(self) -> list[str]:
        """Latent sites that are random."""
        return [*self.guided, *self.enumerated]

    @property
    def latents(self) -> list[str]:
        """What the group posterior has."""
        return [name for name in self.sites if name in {*self.drawn, *self.deterministic}]


@final
@dataclass
class _Drawn:
    """One draw: the guide's own values, and what goes into each group."""

    raw: dict[str, Tensor]
    groups: dict[str, dict[str, Tensor]] = field(default_factory=dict)


@final
class _Unobserved(Messenger):
    """
    Draw the sites that are observed.

    `poutine.uncondition` draws deterministic sites, too, from a law that a plate has given another shape.
    """

    def _pyro_sample(self, msg: Any) -> None:
        if _is_random(msg) and msg["is_observed"]:
            msg["is_observed"], msg["done"], msg["value"] = False, False, None
            msg["infer"]["was_observed"] = True


@final
class _Program:
    """A model and a guide with what they are called with."""

    def __init__(self, model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.model, self.guide = model, guide
        self.args, self.kwargs = args, kwargs

    def guide_trace(self) -> Any:
        """Draw from the guide."""
        return poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)

    def run(self, program: Any, args: tuple[Any, ...] | None = None) -> Any:
        """Run a program, the model under handlers, with its arguments or others."""
        return poutine.trace(program).get_trace(*(self.args if args is None else args), **self.kwargs)

    def look(self) -> _Shapes:
        """Run guide and model twice, and say what their sites are."""
        self.guide_trace()  # one of Pyro's own builds itself on its first call
        first, second = (self.run(poutine.replay(self.model, trace=self.guide_trace())) for _ in range(2))
        rows = {name: site["value"] for name, site in first.nodes.items() if _chooses_rows(site)}
        for name, chosen in rows.items():
            if not torch.equal(chosen, second.nodes[name]["value"]):
                raise ValueError(
                    f"the plate {name!r} takes other rows at each call ({len(chosen)} of "
                    f"{first.nodes[name]['fn'].size}), so a draw has no rows to export: call the program without "
                    f"subsample_size, or with subsample=torch.arange(n) and those rows alone"
                )
        guided = set(latent_values(self.guide_trace()))
        shapes = _Shapes({}, [], [], [], [], [], rows, 0)
        left_out = []
        for name, site in first.nodes.items():
            if site["type"] != "sample" or is_subsample(site) or isinstance(site["fn"], Unit):
                continue
            shapes.sites[name] = _site(name, site)
            shapes.nesting = max([shapes.nesting, *(-f.dim for f in site["cond_indep_stack"] if f.vectorized)])
            if (site["infer"] or {}).get("_deterministic"):
                shapes.deterministic.append(name)
            elif site["is_observed"]:
                shapes.observed.append(name)
            elif name in guided:
                shapes.guided.append(name)
            else:
                left_out.append(name)
        shapes.predicted = shapes.observed or left_out
        for name in left_out if shapes.observed else []:
            if not getattr(first.nodes[name]["fn"], "has_enumerate_support", False):
                raise ValueError(
                    f"the guide leaves out the latent site {name!r}, which cannot be summed over: give the guide that "
                    f"site, or observe it (the guide has {', '.join(sorted(guided)) or 'no sites'})"
                )
            shapes.enumerated.append(name)
        return shapes

    def draw(self, shapes: _Shapes, new: tuple[Any, ...] | None) -> _Drawn:
        """Draw from the guide, run the model there, and collect what goes into each group."""
        guide_trace = self.guide_trace()
        replayed = poutine.replay(self.model, trace=guide_trace)
        if shapes.enumerated:
            known = infer_discrete(
                poutine.infer_config(replayed, _enumerating(shapes.enumerated)),
                first_available_dim=-1 - shapes.nesting,
                temperature=1,
            )
            trace = self.run(known)
        else:
            trace = self.run(replayed)
        self._same_rows(shapes, trace)
        values = {name: _value(trace.nodes[name]) for name in shapes.latents if name in trace.nodes}
        if set(values) != set(shapes.latents):
            raise ValueError("the program has other sites at another run: an export needs the same at every draw")
        prior = {n: trace.nodes[n]["fn"].log_prob(trace.nodes[n]["value"]).sum() for n in shapes.drawn}
        fresh = self.run(_Unobserved()(replayed))
        drawn = _Drawn(
            latent_values(guide_trace),
            {
                "posterior": values,
                "log_prior": prior,
                "posterior_predictive": {name: _value(fresh.nodes[name]) for name in shapes.predicted},
                "log_likelihood": self._log_likelihood(shapes, replayed, trace),
            },
        )
        if new is not None:
            drawn.groups["predictions"] = {n: site.value for n, site in self.predicted(guide_trace, new).items()}
        return drawn

    def predicted(self, guide_trace: Any, new: tuple[Any, ...]) -> dict[str, _Site]:
        """Return the observed sites at other arguments."""
        known = self.run(poutine.replay(self.model, trace=guide_trace))
        trace = self.run(_Unobserved()(poutine.replay(self.model, trace=guide_trace)), new)
        wanted = [n for n, s in known.nodes.items() if _is_observation(s)] or [
            n for n, s in trace.nodes.items() if _is_random(s) and n not in guide_trace.nodes
        ]
        return {name: _site(name, trace.nodes[name]) for name in wanted if name in trace.nodes}

    def prior(self, shapes: _Shapes) -> dict[str, Tensor]:
        """Draw every site from the program without its data."""
        trace = self.run(_Unobserved()(self.model))
        return {name: _value(trace.nodes[name]) for name in (*shapes.latents, *shapes.predicted)}

    def constants(self, shapes: _Shapes) -> dict[str, Tensor]:
        """Return the tensors among the arguments by name, without what is observed."""
        try:
            named = inspect.signature(self.model).bind(*self.args, **self.kwargs).arguments
        except (TypeError, ValueError):
            named = {f"argument_{i}": value for i, value in enumerate(self.args)} | self.kwargs
        named = {**{k: v for k, v in named.items() if k != "kwargs"}, **named.get("kwargs", {})}
        observed = [shapes.sites[name].value for name in shapes.observed]
        return {
            name: value
            for name, value in named.items()
            if isinstance(value, Tensor)
            and not any(value is y or (value.shape == y.shape and torch.equal(value, y)) for y in observed)
        }

    def _same_rows(self, shapes: _Shapes, trace: Any) -> None:
        for name in shapes.observed:
            if not torch.equal(_value(trace.nodes[name]), shapes.sites[name].value) and not bool(
                shapes.sites[name].value.isnan().any()
            ):
                raise ValueError(
                    f"the observations of {name!r} are others at another run: call the program with the rows to export"
                )

    def _log_likelihood(self, shapes: _Shapes, replayed: Any, trace: Any) -> dict[str, Tensor]:
        if shapes.enumerated:
            annotated = poutine.infer_config(replayed, _enumerating(shapes.enumerated))
            trace = self.run(poutine.enum(annotated, first_available_dim=-1 - shapes.nesting))
        found = {}
        for name in shapes.observed:
            site, batch = trace.nodes[name], _batch(shapes.sites[name])
            density = _masked(site)
            if shapes.enumerated and density.dim() > shapes.nesting:
                density = self._summed_out(name, density, shapes, trace)
            elif shapes.enumerated:
                density = density.expand(batch) if density.shape != batch else density
            found[name] = density.reshape(batch)
        return found

    def _summed_out(self, name: str, density: Tensor, shapes: _Shapes, trace: Any) -> Tensor:
        """Log sum over the discrete sites that the guide leaves out, in the plates of the observed site."""
        own = {frame.name for frame in trace.nodes[name]["cond_indep_stack"]}
        for other in shapes.enumerated:
            frames = {frame.name for frame in trace.nodes[other]["cond_indep_stack"]}
            if not frames or not frames <= own or (own - frames):
                raise ValueError(
                    f"the discrete site {other!r} is not in the plates of {name!r} ({', '.join(sorted(own)) or 'none'})"
                    f", so that its sum does not fall into rows: give the guide that site"
                )
            density = density + trace.nodes[other]["fn"].log_prob(trace.nodes[other]["value"])
        enumerated = tuple(range(density.dim() - shapes.nesting))
        return torch.logsumexp(density, enumerated)


def _plain(value: Any) -> Any:
    return plain(value) if isinstance(value, Tensor) else value


def _enumerating(names: Sequence[str]) -> Any:
    return lambda site: {"enumerate": "parallel"} if site["name"] in names else {}


def _is_random(site: Any) -> bool:
    special = is_subsample(site) if site["type"] == "sample" else True
    return not special and not isinstance(site["fn"], Unit) and not (site["infer"] or {}).get("_deterministic")


def _is_observation(site: Any) -> bool:
    return _is_random(site) and bool(site["is_observed"])


def _chooses_rows(site: Any) -> bool:
    return site["type"] == "sample" and is_subsample(site) and len(site["value"]) < site["fn"].size


def _value(site: Any) -> Tensor:
    """Return a site's value in the full shape of its law, which a guide's may broadcast to."""
    value: Tensor = site["value"].detach()
    if (site["infer"] or {}).get("_deterministic"):  # whose law takes the whole value for its event
        return value
    shape = torch.broadcast_shapes(value.shape, site["fn"].shape())
    return value.expand(shape)


def _masked(site: Any) -> Tensor:
    density: Tensor = site["fn"].log_prob(site["value"])
    mask = site["mask"]
    return density if mask is None else torch.where(torch.as_tensor(mask), density, 0.0)


def _site(name: str, site: Any) -> _Site:
    plates = tuple((f.dim, f.name) for f in site["cond_indep_stack"] if f.vectorized)
    value, events = _value(site), len(site["fn"].event_shape)
    if (site["infer"] or {}).get("_deterministic") and events == value.dim():
        sizes = {f.dim: f.size for f in site["cond_indep_stack"] if f.vectorized}
        plates = tuple((d, n) for d, n in plates if -d <= value.dim() and value.shape[d] == sizes[d])
        events = 0
    return _Site(name, value, plates, events)


def _batch(site: _Site) -> tuple[int, ...]:
    return tuple(site.value.shape[: site.value.dim() - site.event_dim])


def _chosen(latents: Sequence[str], wanted: str | Iterable[str] | None) -> list[str]:
    patterns = ["*"] if wanted is None else [wanted] if isinstance(wanted, str) else list(wanted)
    for pattern in patterns if wanted is not None else []:
        if not any(fnmatchcase(name, pattern) for name in latents):
            raise ValueError(f"sites: {pattern!r} matches no site; the sites are {', '.join(latents)}")
    return [name for name in latents if any(fnmatchcase(name, p) for p in patterns)]


def _array(value: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(value.detach().cpu().numpy())


# -- dimensions ----------------------------------------------------------------------------------------------------


@final
class _Export:
    """The variables of an export with their dimensions, and the coordinates of these."""

    def __init__(self, shapes: _Shapes, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence[Any]]) -> None:
        self.given, self.coords = dict(dims), dict(coords)
        self.rows = shapes.rows
        self.taken = {*(file_name(n) for n in shapes.sites), *_OWN_DIMS}
        self.variables: list[Variable] = []
        for name in self.given:
            if name not in shapes.sites:
                raise ValueError(
                    f"dims names {name!r}, which is no site{suggest(name, shapes.sites)}: they are "
                    f"{', '.join(shapes.sites)}"
                )

    def add(self, group: str, name: str, lead: tuple[int, ...], site: _Site, *, events: bool = True) -> None:
        """Add a site, or what is said about each element of its batch."""
        names = self._dims(site)
        shape = tuple(site.value.shape)
        if not events:
            shape = _batch(site)
            names = names[: len(shape)]
        kind = np.float32 if not events else _array(site.value.reshape(-1)[:1]).dtype
        own = _OWN_DIMS[: len(lead)]
        self.variables.append(Variable(group, file_name(name), (*own, *names), (*lead, *shape), kind))

    def add_number(self, group: str, name: str, lead: tuple[int, ...], dtype: Any = np.float32) -> None:
        """Add one number for each draw."""
        self.variables.append(Variable(group, file_name(name), _OWN_DIMS, lead, dtype))

    def _dims(self, site: _Site) -> tuple[str, ...]:
        names = list(site_dims(file_name(site.name), tuple(site.value.shape)))
        batch = site.value.dim() - site.event_dim
        for axis, plate in site.plates:
            if batch + axis >= 0:
                names[batch + axis] = f"{plate}_plate" if plate in self.taken else plate
        given = list(self.given.get(site.name, ()))
        if not given:
            return tuple(names)
        if len(given) == len(names):
            return tuple(given)
        if len(given) == site.event_dim:
            return (*names[:batch], *given)
        raise ValueError(
            f"dims[{site.name!r}] names {len(given)} dimensions; the site has {len(names)}, {site.event_dim} of its "
            f"event: name all of them or those"
        )

    def check(self, path: Any) -> None:
        """Refuse coordinates of nothing or of another length, and exports too large for memory."""
        sizes: dict[str, set[int]] = {}
        for v in self.variables:
            for dim, size in zip(v.dims, v.shape, strict=True):
                sizes.setdefault(dim, set()).add(size)
        for dim, values in self.coords.items():
            if dim not in sizes:
                own = [d for d in sizes if d not in _OWN_DIMS]
                raise ValueError(f"coords names {dim!r}{suggest(dim, own)}; the dimensions are {', '.join(own)}")
            if len(values) not in sizes[dim]:
                raise ValueError(
                    f"coords[{dim!r}] has {len(values)} entries and the dimension {' or '.join(map(str, sizes[dim]))}"
                )
        size = sum(v.nbytes for v in self.variables)
        if path is None and size > MAX_BYTES:
            raise ValueError(
                f"this export is {size / 2**30:.1f} GiB: pass path='export.nc' to write it while drawing, fewer draws, "
                f"or the sites that you need (sites=)"
            )

    def coordinates(self) -> dict[str, dict[str, Any]]:
        """Return the coordinates of every group."""
        result: dict[str, dict[str, Any]] = {}
        for v in self.variables:
            group = result.setdefault(v.group, {})
            for dim, size in zip(v.dims, v.shape, strict=True):
                rows = self.rows.get(dim.removesuffix("_plate"), self.rows.get(dim))
                given = self.coords.get(dim)
                if given is not None and len(given) == size:
                    group[dim] = list(given)
                elif rows is not None and len(rows) == size:
                    group[dim] = rows.cpu().numpy()
                else:
                    group[dim] = np.arange(size)
        return result
