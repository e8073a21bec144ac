"""
A posterior as ArviZ InferenceData, and back from the file.

    posterior              small sites in full, and of larger ones per draw the mean and the root mean square of the
                           weights; any site in full on request (`sites`)
    prior                  the same of the prior
    posterior_predictive   labels or targets drawn at the rows of x
    prior_predictive       the same under the prior
    predictions            class probabilities, or mean and sd of the noise, per draw
    log_likelihood         log p(y_i | x_i, w_s)
    observed_data, constant_data    y and x
    sample_stats           log p(w) per draw, and the training trace: epoch by epoch, or chain by chain of a sampler

Inputs, targets and predictions are in raw units and in float32. Dimensions are named: chain and draw, obs_id, class,
and those of a weight after its site (`net.fc1.weight_out`). Draws that a sampler stored are exported one and all, by
chain.

Memory. Draws are taken and written one at a time, so that of the network no more than one set of weights is held beside
the result. In memory that is `export_bytes`; an export beyond MAX_BYTES is refused. With `path` the arrays are on disk
from the start, in chunks, and the result reads them lazily: a site of a million weights in full costs a few of them.

`loo` and `waic` estimate what a model would predict about a training point it had not seen, from draws that saw it. The
estimate needs draws from p(w | y): it is not defined for points that were not trained on (their log predictive density
needs no estimate: `held_out_elpd` of `elpd`), for tempered and cold posteriors, whose draws are of another density, nor
for points and ensembles, which have none. ArviZ cannot know this; every export says it in its attributes.

Vehtari, Gelman, Gabry 2017, arXiv:1507.04544 (PSIS-LOO). For variational draws the Pareto k also feels what q misses.
"""

import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias, cast, final, get_args

import numpy as np
import pyro.poutine as poutine
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pyro_bnn.analysis.scores.prior_check import PriorGuide
from pyro_bnn.analysis.scores.signal_to_noise import draw_sites, latent_values
from pyro_bnn.common.contract import Wrapper, contract_of
from pyro_bnn.common.modules import evaluation_mode
from pyro_bnn.data.checks import check_finite
from pyro_bnn.data.standardise import plain, standardiser_of
from pyro_bnn.inference.draws import ClassDraw, Draw, RealDraw
from pyro_bnn.inference.laws import check_values
from pyro_bnn.posterior import Posterior
from pyro_bnn.version import __version__

__all__ = [
    "MAX_BYTES",
    "NotDefined",
    "PointwiseEstimate",
    "draws_of",
    "export_bytes",
    "import_arviz",
    "loo",
    "open_arviz",
    "posterior_kind",
    "refusal_of",
    "save_arviz",
    "to_arviz",
    "waic",
    "why_no_loo",
]

Split = Literal["train", "validation", "test", "other"]
Array: TypeAlias = Any  # what takes array[c, s] = values: NumPy, h5netcdf or zarr

MAX_BYTES = 2**30
"""How large an export in memory may become before a file is asked for."""

SMALL_SITE = 100
"""Sites up to this size are exported in full."""

_NO_DENSITY = {
    "map": "a MAP estimate is one point",
    "ml": "a maximum-likelihood estimate is one point",
    "point": "a point estimate is one point",
    "ensemble": "an ensemble is a few points or a mixture of posteriors",
    "prior": "the prior has not seen the data",
}
_UNUSABLE_K = 0.7
_CHUNK_VALUES = 2**18
_AXES = {
    ("weight", 2): ("out", "in"),
    ("weight", 3): ("out", "in", "position"),
    ("weight", 4): ("out", "in", "row", "column"),
    ("bias", 1): ("out",),
}


@final
class NotDefined(ValueError):
    """An estimate that does not exist for this posterior and these points."""


def import_arviz() -> ModuleType:
    """Import ArviZ without its yearly notice about version 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz

    return arviz


_POINTS = ("map", "ml", "point")


def posterior_kind(posterior: Posterior) -> str:
    """Return what kind of draws a posterior gives: its guide's `kind`, else that of its recipe, else svi."""
    kind = contract_of(posterior.guide).kind
    return str(posterior.info.get("method", "svi")) if kind is None else kind


def draws_of(posterior: Posterior, num_samples: int) -> int:
    """Return how many draws there are to score with: those asked for, but one of a point, which has no more."""
    return 1 if posterior_kind(posterior) in _POINTS else num_samples


def _refusal(split: str | None, eta: float, temperature: float, kind: str) -> str | None:
    if kind in _NO_DENSITY:
        return f"{_NO_DENSITY[kind]}, not draws from p(w | y)"
    if eta != 1:
        return f"the posterior is tempered (eta = {eta:g}), so its draws are not from p(w | y); it needs eta = 1"
    if temperature != 1:
        return f"the posterior is cold (temperature = {temperature:g}), so its draws are not from p(w | y); it needs 1"
    if split is None:
        return "the export does not say that its points were trained on: pass split='train' to to_arviz if they were"
    if split != "train":
        return (
            f"its points were not trained on (split = {split!r}): their log predictive density is known without "
            f"leaving anything out, use held_out_elpd"
        )
    return None


def refusal_of(posterior: Posterior, split: Split | None) -> str | None:
    """Return why LOO and WAIC are not defined for a posterior's draws at rows of a split, or None if they are."""
    info = posterior.info
    eta, temperature = float(info.get("eta", 1.0)), float(info.get("temperature", 1.0))
    return _refusal(split, eta, temperature, posterior_kind(posterior))


# -- where the arrays go -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Variable:
    """Layout of one variable."""

    group: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Any = np.float32

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)

    def chunks(self) -> tuple[int, ...]:
        """One draw or more per chunk, about a quarter of a million values, and long draws in several."""
        sizes, room = list(self.shape), _CHUNK_VALUES
        for axis in reversed(range(len(sizes))):
            sizes[axis] = max(1, min(sizes[axis], room))
            room = max(1, room // sizes[axis])
        return tuple(sizes)


class _Store(ABC):
    """Where an export is kept: empty arrays come first, are filled draw by draw, and are handed over at the end."""

    @abstractmethod
    def new(self, variable: _Variable) -> Array:
        """Make room for a variable."""

    @abstractmethod
    def finish(self, coords: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]) -> Any:
        """Return the InferenceData with coordinates by group."""


@final
class _Memory(_Store):
    def __init__(self) -> None:
        self.arrays: dict[str, dict[str, tuple[tuple[str, ...], NDArray[Any]]]] = {}

    def new(self, variable: _Variable) -> Array:
        array = np.empty(variable.shape, variable.dtype)
        self.arrays.setdefault(variable.group, {})[variable.name] = (variable.dims, array)
        return array

    def finish(self, coords: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]) -> Any:
        import xarray as xr

        groups = {g: xr.Dataset(variables, coords[g], attrs) for g, variables in self.arrays.items()}
        return import_arviz().InferenceData(**groups, attrs=dict(attrs))


@final
class _NetCDF(_Store):
    def __init__(self, path: Path) -> None:
        import h5netcdf

        self.path = path
        self.file = h5netcdf.File(path, "w")
        self.groups: list[str] = []

    def new(self, variable: _Variable) -> Array:
        if variable.group not in self.groups:
            self.groups.append(variable.group)
            self.file.create_group(variable.group)
        group = self.file[variable.group]
        for name, size in zip(variable.dims, variable.shape, strict=True):
            if name not in group.dimensions:
                group.dimensions[name] = size
        return group.create_variable(
            variable.name,
            variable.dims,
            variable.dtype,
            chunks=variable.chunks(),
            compression="gzip",
            compression_opts=1,
        )

    def finish(self, coords: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]) -> Any:
        import xarray as xr

        self.file.close()
        for group in self.groups:
            extra = xr.Dataset(coords=coords[group], attrs=attrs)
            extra.to_netcdf(self.path, mode="a", group=group, engine="h5netcdf")
        xr.Dataset(attrs=attrs).to_netcdf(self.path, mode="a", engine="h5netcdf")
        return open_arviz(self.path)


@final
class _Zarr(_Store):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = _zarr().open_group(str(path), mode="w")
        self.groups: list[str] = []

    def new(self, variable: _Variable) -> Array:
        if variable.group not in self.groups:
            self.groups.append(variable.group)
            self.root.create_group(variable.group)
        return self.root[variable.group].create_array(
            variable.name,
            shape=variable.shape,
            dtype=np.dtype(variable.dtype),
            chunks=variable.chunks(),
            dimension_names=variable.dims,
        )

    def finish(self, coords: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]) -> Any:
        import xarray as xr

        for group in self.groups:
            # text as objects becomes zarr's own variable-length type, not a NumPy-only one
            plain = {name: np.array(v, object) if _is_text(v) else v for name, v in coords[group].items()}
            extra = xr.Dataset(coords=plain, attrs=attrs)
            extra.to_zarr(self.path, mode="a", group=group, consolidated=False)
        self.root.attrs.update(attrs)
        return open_arviz(self.path)


def _is_text(values: Any) -> bool:
    return np.asarray(values).dtype.kind in "UO"


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise ValueError(
            "a .zarr export needs the package zarr (3 or newer): install it, or give a .nc path"
        ) from error
    return zarr


def _store(path: str | Path | None) -> _Store:
    if path is None:
        return _Memory()
    path = Path(path)
    if path.suffix not in (".nc", ".zarr"):
        raise ValueError(f"path={str(path)!r} is of no known format: end it in .nc (netCDF) or .zarr")
    path.parent.mkdir(parents=True, exist_ok=True)
    return _NetCDF(path) if path.suffix == ".nc" else _Zarr(path)


# -- what is exported ----------------------------------------------------------------------------------------------


@final
class _Recorder(nn.Module, Wrapper):
    """A guide that remembers the sites of its last draw."""

    def __init__(self, guide: Callable[..., Any]) -> None:
        super().__init__()
        self.guide = guide
        self.last: dict[str, Tensor] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        trace = poutine.trace(self.guide).get_trace(*args, **kwargs)
        self.last = latent_values(trace)
        return trace.nodes["_RETURN"]["value"]


@final
@dataclass(frozen=True)
class _Sites:
    """Which sites are exported in full, by shape, and which as summaries."""

    full: dict[str, tuple[int, ...]]
    large: list[str]

    @classmethod
    def choose(cls, values: Mapping[str, Tensor], wanted: str | Iterable[str] | None) -> "_Sites":
        patterns = [] if wanted is None else [wanted] if isinstance(wanted, str) else list(wanted)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in values):
                raise ValueError(f"sites: {pattern!r} matches no site; the sites are {', '.join(values)}")
        full = {
            name: tuple(value.shape)
            for name, value in values.items()
            if any(fnmatchcase(name, p) for p in patterns) or (not patterns and value.numel() <= SMALL_SITE)
        }
        return cls(full, [name for name in values if name not in full])

    def variables(self, group: str, chains: int, draws: int) -> list[_Variable]:
        lead, sizes = ("chain", "draw"), (chains, draws)
        variables = [
            _Variable(group, n, (*lead, *_site_dims(n, shape)), (*sizes, *shape)) for n, shape in self.full.items()
        ]
        if self.large:
            shape = (*sizes, len(self.large))
            variables += [_Variable(group, n, (*lead, "site"), shape) for n in ("weight_mean", "weight_rms")]
        return variables

    def coords(self) -> dict[str, Any]:
        named = {
            dim: np.arange(size)
            for name, shape in self.full.items()
            for dim, size in zip(_site_dims(name, shape), shape, strict=True)
        }
        return {**named, "site": self.large} if self.large else named

    def write(self, arrays: Mapping[str, Array], c: int, s: int, values: Mapping[str, Tensor]) -> None:
        for name in self.full:
            arrays[name][c, s] = _numpy(values[name])
        if self.large:
            flat = [values[name].float() for name in self.large]
            arrays["weight_mean"][c, s] = np.array([float(v.mean()) for v in flat], np.float32)
            arrays["weight_rms"][c, s] = np.array([float(v.square().mean().sqrt()) for v in flat], np.float32)


def _site_dims(name: str, shape: Sequence[int]) -> tuple[str, ...]:
    axes = _AXES.get((name.rpartition(".")[2], len(shape)), tuple(f"dim_{i}" for i in range(len(shape))))
    return tuple(f"{name}_{axis}" for axis in axes)


def _numpy(values: Tensor) -> NDArray[Any]:
    array = values.detach().cpu()
    return array.float().numpy() if array.is_floating_point() else array.numpy()


def _input_dims(shape: Sequence[int]) -> tuple[str, ...]:
    named = {1: ("feature",), 3: ("channel", "row", "column")}
    return named.get(len(shape), tuple(f"input_{i}" for i in range(len(shape))))


@final
@dataclass(frozen=True)
class _Plan:
    """Every variable of an export, and the coordinates of every group."""

    variables: list[_Variable]
    coords: dict[str, dict[str, Any]]


def _predictive_variables(first: Draw, group: str, lead: tuple[int, ...], n: int) -> list[_Variable]:
    if isinstance(first, ClassDraw):
        dtype = np.int16 if first.log_probs.shape[1] < 2**15 else np.int32  # ArviZ plots signed integers only
        return [_Variable(group, "obs", ("chain", "draw", "obs_id"), (*lead, n), dtype)]
    dims = ("chain", "draw", "obs_id") + (("target",) if first.mean.ndim > 1 else ())
    return [_Variable(group, "obs", dims, (*lead, n, *first.mean.shape[1:]), _kind_of(first))]


def _kind_of(draw: Draw) -> Any:
    """Return the type of observations."""
    return np.int64 if draw.whole_numbers else np.float32


def _prediction_variables(first: Draw, lead: tuple[int, ...], n: int) -> list[_Variable]:
    dims: tuple[str, ...] = ("chain", "draw", "obs_id")
    if isinstance(first, ClassDraw):
        return [_Variable("predictions", "probability", (*dims, "class"), (*lead, n, first.log_probs.shape[1]))]
    rest = first.mean.shape[1:]
    dims += ("target",) if rest else ()
    return [_Variable("predictions", name, dims, (*lead, n, *rest)) for name in ("mean", "sd")]


def _sampled(draw: Draw, generator: torch.Generator) -> NDArray[Any]:
    """One label or target for every row, drawn from a draw's predictive."""
    return _numpy(draw.sample(generator))


def _log_prior(model: Callable[..., Any], x: Tensor, values: Mapping[str, Tensor]) -> float:
    program = getattr(model, "priors", None)
    if program is not None:
        return float(sum(p.log_prob(values[f"net.{n}"]).sum() for n, p in program().items()))
    with torch.no_grad(), poutine.block(), evaluation_mode(model):
        trace = poutine.trace(poutine.condition(model, data=dict(values))).get_trace(x[:1])
    trace.compute_log_prob(lambda name, site: name in values)
    return float(sum(trace.nodes[name]["log_prob_sum"] for name in values))


_CHAIN = ("divergences", "acceptance", "step_size")
_TRACE = ("nll", "kl", "loss", "elbo", "kl_weight", "val_nll", "val_accuracy")


@final
@dataclass(frozen=True)
class _Trace:
    """One column of the training trace: its dimensions, numbers, and the coordinates they need."""

    dims: tuple[str, ...]
    values: NDArray[Any]
    coords: dict[str, Any]


def _trace_of(history: Sequence[Mapping[str, Any]]) -> dict[str, _Trace]:
    """By epoch, (part, epoch) for members that were trained apart; of a sampler one number per chain."""
    chains = [line for line in history if "chain" in line and "epoch" not in line]
    if chains:
        named = {key: np.array([line[key] for line in chains], np.float32) for key in _CHAIN if key in chains[0]}
        return {key: _Trace(("chain",), values, {}) for key, values in named.items()}
    parts = list(dict.fromkeys(str(line.get("part", "")) for line in history))
    lines = [[line for line in history if str(line.get("part", "")) == part] for part in parts]
    longest = max((len(rows) for rows in lines), default=0)
    coords: dict[str, Any] = {"epoch": np.arange(1, longest + 1)}
    dims: tuple[str, ...] = ("epoch",)
    if len(parts) > 1:
        coords, dims = {**coords, "part": parts}, ("part", "epoch")
    columns = {}
    for key in (k for k in _TRACE if any(line.get(k) is not None for line in history)):
        values = np.full((len(parts), longest), np.nan, np.float32)
        for row, of_part in zip(values, lines, strict=True):
            row[: len(of_part)] = [np.nan if line.get(key) is None else line[key] for line in of_part]
        columns[key if key.startswith("val_") else f"train_{key}"] = _Trace(
            dims, values if len(parts) > 1 else values[0], coords
        )
    return columns


def export_bytes(posterior: Posterior, x: Tensor, num_samples: int = 200, *, sites: Any = None) -> int:
    """Return the size of an export in memory, without making it."""
    x = posterior.standardise(x)
    return sum(v.nbytes for v in _plan(posterior, x, x, num_samples, num_samples, sites, None, ())[0].variables)


def _plan(
    posterior: Posterior,
    x: Tensor,
    x_new: Tensor,
    num_samples: int,
    prior_samples: int,
    sites: str | Iterable[str] | None,
    y: Tensor | None,
    history: Sequence[Mapping[str, Any]],
) -> tuple[_Plan, _Sites, tuple[int, int]]:
    first = next(posterior.stream(x[:1], 1, seed=0))
    guide: Any = posterior.guide
    with posterior.turn():
        values = draw_sites(guide, plain(x[:1]))
    chosen = _Sites.choose(values, sites)
    lead = _lead(guide, num_samples)
    n = len(x)
    variables = [*chosen.variables("posterior", *lead), *chosen.variables("prior", 1, prior_samples)]
    if y is not None and isinstance(first, RealDraw) and first.laws:
        check_values(first.laws[0], y)
    variables += _predictive_variables(first, "posterior_predictive", lead, n)
    variables += _predictive_variables(first, "prior_predictive", (1, prior_samples), n)
    variables += _prediction_variables(first, lead, len(x_new))
    variables += [_Variable("sample_stats", "log_prior", ("chain", "draw"), lead)]
    trace = _trace_of(history)
    variables += [_Variable("sample_stats", name, t.dims, t.values.shape) for name, t in trace.items()]
    variables += [_Variable("constant_data", "x", ("obs_id", *_input_dims(x.shape[1:])), tuple(x.shape))]
    if x_new is not x:
        dims = ("obs_id", *_input_dims(x.shape[1:]))
        variables += [_Variable("predictions_constant_data", "x", dims, tuple(x_new.shape))]
    if y is not None:
        dims = ("obs_id",) + (("target",) if y.ndim > 1 else ())
        dtype = np.float32 if y.is_floating_point() and _kind_of(first) is np.float32 else np.int64
        variables += [_Variable("observed_data", "obs", dims, tuple(y.shape), dtype)]
        variables += [_Variable("log_likelihood", "obs", ("chain", "draw", "obs_id"), (*lead, n))]
    known = {name: values for t in trace.values() for name, values in t.coords.items()}
    return _Plan(variables, _coords(variables, {**chosen.coords(), **known}, first, posterior)), chosen, lead


def _lead(guide: Any, num_samples: int) -> tuple[int, int]:
    """How many chains and draws: those that a sampler stored, else one chain of as many as are asked for."""
    stored = contract_of(guide).by_site()
    if stored is not None:
        chains, draws = next(iter(stored.values())).shape[:2]
        return int(chains), int(draws)
    return 1, num_samples


def _coords(
    variables: Sequence[_Variable], named: dict[str, Any], first: Draw, posterior: Posterior
) -> dict[str, dict[str, Any]]:
    if isinstance(first, ClassDraw):
        k = first.log_probs.shape[1]
        named["class"] = list(posterior.info.get("class_names") or range(k))
    result: dict[str, dict[str, Any]] = {}
    for variable in variables:
        group = result.setdefault(variable.group, {})
        for dim, size in zip(variable.dims, variable.shape, strict=True):
            group[dim] = named.get(dim, np.arange(size))
    return result


# -- exporting -----------------------------------------------------------------------------------------------------


def to_arviz(
    posterior: Posterior,
    x: Any,
    y: Any = None,
    num_samples: int = 200,
    *,
    split: Split | None = None,
    sites: str | Iterable[str] | None = None,
    x_new: Any = None,
    prior_samples: int | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    path: str | Path | None = None,
    seed: int = 0,
    standardised: bool | None = None,
) -> Any:
    """
    Return a posterior as `arviz.InferenceData`.

    Eta, temperature and the kind of draws come from the posterior's info, which knows what its guide was fitted with;
    where nothing says them eta and temperature are 1.

    :param x: raw inputs (N, ...), tensors, arrays or lists.
    :param y: labels (N,) or raw targets (N,) or (N, D), likewise; without them nothing is observed.
    :param num_samples: draws; of a sampler all stored draws are taken instead, each once.
    :param split: where the rows come from: 'train', 'validation', 'test' or 'other'; `loo` needs to know.
    :param sites: patterns of sites to export in full; default those of up to 100 values.
    :param x_new: inputs for the group `predictions`; default x.
    :param prior_samples: draws of the prior; default num_samples.
    :param history: the training trace, one mapping per epoch, as `Run.history`.
    :param path: write to this .nc or .zarr while drawing and read from it lazily; default in memory.
    :param standardised: whether x, y and x_new are on the model's scale; default what they say, raw if they do not.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} draws nothing: pass at least 1")
    if split is not None and split not in get_args(Split):
        raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(get_args(Split))}")
    if isinstance(x, (tuple, list)):
        raise ValueError(f"x has {len(x)} inputs, and an export holds one: export draws of the predictions yourself")
    observed = None if y is None else posterior.raw_targets(y, standardised=standardised)
    x = posterior.standardise(x, standardised=standardised)
    x_new = x if x_new is None else posterior.standardise(x_new, standardised=standardised)
    if observed is not None:
        check_finite(observed, "y")
    if observed is not None and len(x) != len(observed):
        raise ValueError(f"x has {len(x)} rows and y has {len(observed)}: pass one label per row")
    prior_samples = prior_samples or num_samples
    plan, chosen, lead = _plan(posterior, x, x_new, num_samples, prior_samples, sites, observed, history)
    size = sum(v.nbytes for v in plan.variables)
    if path is None and size > MAX_BYTES:
        raise ValueError(
            f"this export is {size / 2**30:.1f} GiB ({len(x)} rows, {lead[0] * lead[1]} draws): pass path='export.nc' "
            f"to write it while drawing, or fewer rows, draws or sites"
        )
    store = _store(path)
    arrays: dict[str, dict[str, Array]] = {}
    for variable in plan.variables:
        arrays.setdefault(variable.group, {})[variable.name] = store.new(variable)
    for name, column in _trace_of(history).items():
        arrays["sample_stats"][name][:] = column.values
    _write_data(arrays, x, x_new, observed)
    _write_draws(posterior, arrays, chosen, lead, x, x_new, observed, seed)
    _write_prior(posterior, arrays, chosen, prior_samples, x, seed)
    return store.finish(plan.coords, _attributes(posterior, split, lead))


def _write_data(arrays: Mapping[str, Mapping[str, Array]], x: Tensor, x_new: Tensor, y: Tensor | None) -> None:
    arrays["constant_data"]["x"][:] = _numpy(_raw(x))
    if x_new is not x:
        arrays["predictions_constant_data"]["x"][:] = _numpy(_raw(x_new))
    if y is not None:
        arrays["observed_data"]["obs"][:] = _numpy(y)


def _raw(x: Tensor) -> Tensor:
    scale = standardiser_of(x)
    return plain(x) if scale is None else scale.invert(x)


def _write_draws(
    posterior: Posterior,
    arrays: Mapping[str, Mapping[str, Array]],
    chosen: _Sites,
    lead: tuple[int, int],
    x: Tensor,
    x_new: Tensor,
    y: Tensor | None,
    seed: int,
) -> None:
    recorder = _Recorder(posterior.guide)
    places = _Places(posterior.guide, lead)
    rows = x if x_new is x else torch.cat([x, x_new.to(x)])
    draws = posterior.with_guide(recorder).stream(rows, lead[0] * lead[1], seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for draw in draws:
        c, s = places.of(recorder.last)
        chosen.write(arrays["posterior"], c, s, recorder.last)
        alone = x_new is x or (isinstance(draw, RealDraw) and bool(draw.laws))  # laws are not cut: what they say is
        here = draw if alone else draw.rows(slice(None, len(x)))
        drawn = _sampled(here, generator)
        arrays["posterior_predictive"]["obs"][c, s] = drawn[: len(x)]
        _write_prediction(arrays["predictions"], c, s, draw, 0 if x_new is x else len(x))
        with posterior.turn():
            arrays["sample_stats"]["log_prior"][c, s] = _log_prior(posterior.model, plain(x), recorder.last)
        if y is not None:
            arrays["log_likelihood"]["obs"][c, s] = _numpy(_pointwise(here, y, drawn)[: len(x)])


def _write_prediction(arrays: Mapping[str, Array], c: int, s: int, draw: Draw, first: int) -> None:
    """Write what a draw predicts for the rows from `first` on."""
    if isinstance(draw, ClassDraw):
        arrays["probability"][c, s] = _numpy(draw.prediction[first:])
    else:
        arrays["mean"][c, s], arrays["sd"][c, s] = _numpy(draw.mean[first:]), _numpy(draw.sd[first:])


def _write_prior(
    posterior: Posterior,
    arrays: Mapping[str, Mapping[str, Array]],
    chosen: _Sites,
    num_samples: int,
    x: Tensor,
    seed: int,
) -> None:
    recorder = _Recorder(PriorGuide(posterior.model, draw_sites(posterior.guide, x[:1])))
    generator = torch.Generator().manual_seed(seed)
    prior = posterior.with_guide(recorder)
    for s, draw in enumerate(prior.stream(x, num_samples, seed=seed)):
        chosen.write(arrays["prior"], 0, s, recorder.last)
        arrays["prior_predictive"]["obs"][0, s] = _sampled(draw, generator)


def _pointwise(draw: Draw, y: Tensor, drawn: NDArray[Any]) -> Tensor:
    """Log p(y_i | x_i, w) of one draw (N,); of further rows, which have no y, that of what was drawn for them."""
    if len(draw.prediction) > len(y):
        rest = torch.from_numpy(drawn[len(y) :]).double()
        y = torch.cat([y.cpu().double(), rest.reshape(len(rest), *y.shape[1:])])
    return draw.log_prob(y.to(draw.prediction.device), wide=True)


@final
class _Places:
    """
    Where a draw belongs. Draws from a guide come in order; a sampler's stored ones come in any, each once, so each is
    recognised by its values (equal draws, as a rejected proposal leaves, are interchangeable).
    """

    def __init__(self, guide: Any, lead: tuple[int, int]) -> None:
        self.lead = lead
        self.next = 0
        self.stored: Tensor | None = None
        promised = contract_of(guide)
        stored = promised.by_site()
        if stored is not None:
            promised.restart()
            self.names = sorted(stored)
            self.stored = self._features({n: v.flatten(0, 1) for n, v in stored.items()}, 1)  # (C S, F)
            self.free = torch.ones(len(self.stored), dtype=torch.bool)

    def of(self, values: Mapping[str, Tensor]) -> tuple[int, int]:
        """Return chain and draw."""
        if self.stored is None:
            place, self.next = self.next, self.next + 1
        else:
            distance = (self.stored - self._features(values, 0)).square().sum(-1)
            distance[~self.free] = float("inf")
            place = int(distance.argmin())
            self.free[place] = False
        return divmod(place, self.lead[1])

    def _features(self, values: Mapping[str, Tensor], skip: int) -> Tensor:
        """The first values of each site: enough to tell draws apart."""
        return torch.cat([values[n].detach().cpu().double().flatten(skip)[..., :64] for n in self.names], -1)


def _attributes(posterior: Posterior, split: Split | None, lead: tuple[int, int]) -> dict[str, Any]:
    info, kind = posterior.info, posterior_kind(posterior)
    eta, temperature = float(info.get("eta", 1.0)), float(info.get("temperature", 1.0))
    recipe = info.get("recipe")
    why = refusal_of(posterior, split)
    return {
        "inference_library": "pyro_bnn",
        "inference_library_version": __version__,
        "split": split or "not stated",
        "eta": eta,
        "temperature": temperature,
        "kind": kind,
        "chains": lead[0],
        "draws": lead[1],
        "data": str(info.get("data", "not stated")),
        "num_data": int(info.get("num_data", getattr(posterior.model, "num_data", 0))),
        "recipe": json.dumps(recipe) if recipe else "none",
        "loo": "defined" if why is None else f"not defined: {why}",
    }


# -- files ---------------------------------------------------------------------------------------------------------


def save_arviz(idata: Any, path: str | Path) -> Path:
    """Write InferenceData in chunks to a .nc (netCDF) or .zarr."""
    path = Path(path)
    store = _store(path)
    coords: dict[str, dict[str, Any]] = {}
    for group in idata.groups():
        data = idata[group]
        coords[group] = {name: values.values for name, values in data.coords.items()}
        for name, values in data.data_vars.items():
            array = store.new(_Variable(group, str(name), tuple(values.dims), values.shape, values.dtype))
            if values.ndim and len(values):
                for row in range(len(values)):
                    array[row] = values[row].values
            else:
                array[...] = values.values
    store.finish(coords, dict(idata.attrs)).close()
    return path


def open_arviz(path: str | Path) -> Any:
    """Open a .nc or .zarr export; arrays are read when they are used."""
    import xarray as xr

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no export {path}: write one with save_arviz or to_arviz(..., path=...)")
    az = import_arviz()
    if path.suffix != ".zarr":
        return az.from_netcdf(str(path))
    root = _zarr().open_group(str(path), mode="r")
    groups = {name: xr.open_zarr(path, group=name, consolidated=False, chunks=None) for name in root.group_keys()}
    return az.InferenceData(**groups, attrs=dict(root.attrs))


# -- leave-one-out, where it is defined ----------------------------------------------------------------------------


def why_no_loo(idata: Any) -> str | None:
    """Return why LOO and WAIC are not defined for an export, or None if they are."""
    attrs = idata.attrs
    missing = [key for key in ("split", "eta", "temperature", "kind") if key not in attrs]
    if missing:
        return f"the export does not state {', '.join(missing)}: make it with to_arviz"
    split = None if attrs["split"] == "not stated" else attrs["split"]
    return _refusal(split, float(attrs["eta"]), float(attrs["temperature"]), attrs["kind"])


@final
@dataclass(frozen=True, eq=False)
class PointwiseEstimate:
    """LOO or WAIC of training points: ArviZ's own result, and per point the Pareto k (LOO) and whether it is usable."""

    elpd: Any
    kind: str
    pareto_k: NDArray[np.float64] | None

    @property
    def value(self) -> float:
        """The estimated expected log predictive density, summed over points."""
        return float(self.elpd.iloc[0])

    @property
    def se(self) -> float:
        """Its standard error."""
        return float(self.elpd["se"])

    @property
    def unusable(self) -> NDArray[np.bool_] | None:
        """Points whose Pareto k is above 0.7 (N,)."""
        return None if self.pareto_k is None else self.pareto_k > _UNUSABLE_K

    def __str__(self) -> str:
        text = str(self.elpd)
        if self.pareto_k is None:
            return text
        bad = int((self.pareto_k > _UNUSABLE_K).sum())
        n = len(self.pareto_k)
        text += (
            f"\n\nPareto k of {self.kind} draws: median {np.median(self.pareto_k):.2f}, max {self.pareto_k.max():.2f}; "
        )
        if bad == 0:
            return text + "every point usable (k <= 0.7)"
        return text + f"{bad} of {n} points UNUSABLE (k > 0.7): the estimate does not hold for them, nor the sum"


def _estimate(idata: Any, what: str) -> PointwiseEstimate:
    why = why_no_loo(idata)
    if why is not None:
        raise NotDefined(f"{what} is not defined here: {why}")
    if "log_likelihood" not in idata.groups():
        raise ValueError(f"{what} needs the group log_likelihood: pass y to to_arviz")
    az = import_arviz()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what they say is in the text of the result
        elpd = getattr(az, what)(idata, pointwise=True)
    k = np.asarray(elpd["pareto_k"], np.float64).reshape(-1) if what == "loo" else None
    return PointwiseEstimate(elpd, cast(str, idata.attrs["kind"]), k)


def loo(idata: Any) -> PointwiseEstimate:
    """Return `arviz.loo` with its Pareto k, or raise NotDefined with the reason."""
    return _estimate(idata, "loo")


def waic(idata: Any) -> PointwiseEstimate:
    """Return `arviz.waic`, or raise NotDefined with the reason."""
    return _estimate(idata, "waic")
