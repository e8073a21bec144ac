"""
A posterior as ArviZ groups: an `InferenceData` of ArviZ 0.x, an `xarray.DataTree` of 1.x.

    posterior              small sites in full, and of larger ones per draw the mean and the root mean square of the
                           weights; any site in full on request (`sites`)
    prior                  the same of the prior
    posterior_predictive   labels or targets drawn at the rows of x
    prior_predictive       the same under the prior
    predictions            class probabilities, or mean and sd of the noise, per draw
    log_likelihood         log p(y_i | x_i, w_s); called log_density where LOO is not defined
    observed_data, constant_data    y and x
    log_prior              log p of every site per draw, summed over its elements
    sample_stats           of the draws of HMC and NUTS: `energy`, and whether the trajectory was `diverging`
    training               the training trace: by chain and epoch; by chain of a sampler

Inputs, targets and predictions are in raw units and in float32. Dimensions are named: chain and draw, obs_id, class,
and those of a weight after its site (`net.fc1.weight_out`). Draws that a sampler stored are exported one and all, by
chain.

Memory. Draws are taken and written one at a time, so that of the network no more than one set of weights is held beside
the result. In memory that is `export_bytes`; an export beyond MAX_BYTES is refused. With `path` the arrays are on disk
from the start, in chunks, and the result reads them lazily: a site of a million weights in full costs a few of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, final, get_args

import numpy as np
import pyro.poutine as poutine
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pyro_bnn.analysis.arviz.loo import Split, likelihood_group, posterior_kind, refusal_of
from pyro_bnn.analysis.arviz.stores import Array, Variable, file_name, store_for
from pyro_bnn.analysis.scores.prior_check import PriorGuide
from pyro_bnn.analysis.scores.signal_to_noise import draw_sites, latent_values
from pyro_bnn.common.contract import Wrapper, contract_of
from pyro_bnn.common.modules import evaluation_mode
from pyro_bnn.data.arrays import Inputs, as_inputs, first_rows, map_inputs, members, number_of_rows
from pyro_bnn.data.checks import check_finite
from pyro_bnn.data.standardise import plain, standardiser_of
from pyro_bnn.inference.draws import ClassDraw, Draw, RealDraw
from pyro_bnn.inference.laws import check_values
from pyro_bnn.posterior import Posterior
from pyro_bnn.version import __version__

__all__ = [
    "MAX_BYTES",
    "Places",
    "as_numpy",
    "attributes_of",
    "export_bytes",
    "lead_of",
    "site_dims",
    "to_arviz",
]

MAX_BYTES = 2**30
"""How large an export in memory may become before a file is asked for."""

SMALL_SITE = 100
"""Sites up to this size are exported in full."""

_AXES = {
    ("weight", 2): ("out", "in"),
    ("weight", 3): ("out", "in", "position"),
    ("weight", 4): ("out", "in", "row", "column"),
    ("bias", 1): ("out",),
}


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

    def variables(self, group: str, chains: int, draws: int) -> list[Variable]:
        lead, sizes = ("chain", "draw"), (chains, draws)
        variables = [
            Variable(group, file_name(n), (*lead, *site_dims(file_name(n), shape)), (*sizes, *shape))
            for n, shape in self.full.items()
        ]
        if self.large:
            shape = (*sizes, len(self.large))
            variables += [Variable(group, n, (*lead, "site"), shape) for n in ("weight_mean", "weight_rms")]
        return variables

    def coords(self) -> dict[str, Any]:
        named = {
            dim: np.arange(size)
            for name, shape in self.full.items()
            for dim, size in zip(site_dims(file_name(name), shape), shape, strict=True)
        }
        return {**named, "site": self.large} if self.large else named

    def write(self, arrays: Mapping[str, Array], c: int, s: int, values: Mapping[str, Tensor]) -> None:
        for name in self.full:
            arrays[file_name(name)][c, s] = as_numpy(values[name])
        if self.large:
            flat = [values[name].float() for name in self.large]
            arrays["weight_mean"][c, s] = np.array([float(v.mean()) for v in flat], np.float32)
            arrays["weight_rms"][c, s] = np.array([float(v.square().mean().sqrt()) for v in flat], np.float32)


def site_dims(name: str, shape: Sequence[int]) -> tuple[str, ...]:
    """Return names for the dimensions of a site, after its own."""
    axes = _AXES.get((name.rpartition(".")[2], len(shape)), tuple(f"dim_{i}" for i in range(len(shape))))
    return tuple(f"{name}_{axis}" for axis in axes)


def as_numpy(values: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, numbers in float32."""
    array = values.detach().cpu()
    return array.float().numpy() if array.is_floating_point() else array.numpy()


def _input_dims(shape: Sequence[int]) -> tuple[str, ...]:
    named = {1: ("feature",), 3: ("channel", "row", "column")}
    return named.get(len(shape), tuple(f"input_{i}" for i in range(len(shape))))


@final
@dataclass(frozen=True)
class _Plan:
    """Every variable of an export, and the coordinates of every group."""

    variables: list[Variable]
    coords: dict[str, dict[str, Any]]


def _predictive_variables(first: Draw, group: str, lead: tuple[int, ...], n: int) -> list[Variable]:
    if isinstance(first, ClassDraw):
        dtype = np.int16 if first.log_probs.shape[1] < 2**15 else np.int32  # ArviZ plots signed integers only
        return [Variable(group, "obs", ("chain", "draw", "obs_id"), (*lead, n), dtype)]
    dims = ("chain", "draw", "obs_id") + (("target",) if first.mean.ndim > 1 else ())
    return [Variable(group, "obs", dims, (*lead, n, *first.mean.shape[1:]), _kind_of(first))]


def _named_inputs(x: Inputs) -> dict[str, Tensor]:
    """Return one tensor as `x`, and several as `x1`, `x2`, ..."""
    return {f"x{i}": member for i, member in enumerate(x, 1)} if isinstance(x, tuple) else {"x": x}


def _input_variables(group: str, x: Inputs) -> list[Variable]:
    variables = []
    for name, member in _named_inputs(x).items():
        dims = _input_dims(member.shape[1:])
        own = dims if isinstance(x, Tensor) else tuple(f"{name}_{dim}" for dim in dims)
        variables.append(Variable(group, name, ("obs_id", *own), tuple(member.shape)))
    return variables


def _kind_of(draw: Draw) -> Any:
    """Return the type of observations."""
    return np.int64 if draw.whole_numbers else np.float32


def _prediction_variables(first: Draw, lead: tuple[int, ...], n: int) -> list[Variable]:
    dims: tuple[str, ...] = ("chain", "draw", "obs_id")
    if isinstance(first, ClassDraw):
        return [Variable("predictions", "probability", (*dims, "class"), (*lead, n, first.log_probs.shape[1]))]
    rest = first.mean.shape[1:]
    dims += ("target",) if rest else ()
    return [Variable("predictions", name, dims, (*lead, n, *rest)) for name in ("mean", "sd")]


def _sampled(draw: Draw, generator: torch.Generator) -> NDArray[Any]:
    """One label or target for every row, drawn from a draw's predictive."""
    return as_numpy(draw.sample(generator))


def _log_prior(model: Callable[..., Any], x: Inputs, values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return log p of each site's value, summed over its elements."""
    program = getattr(model, "priors", None)
    if program is not None:
        return {f"net.{n}": float(p.log_prob(values[f"net.{n}"]).sum()) for n, p in program().items()}
    with torch.no_grad(), poutine.block(), evaluation_mode(model):
        trace = poutine.trace(poutine.condition(model, data=dict(values))).get_trace(first_rows(x))
    trace.compute_log_prob(lambda name, site: name in values)
    return {file_name(n): float(trace.nodes[n]["log_prob_sum"]) for n in values if "log_prob_sum" in trace.nodes[n]}


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
    """
    By (chain, epoch), (chain, part, epoch) for members that were trained apart; of a sampler one number per chain.

    Of what is no sampler there is one chain, as of its draws: ArviZ puts exports together along it, and makes frames.
    """
    chains = [line for line in history if "chain" in line and "epoch" not in line]
    if chains:
        named = {key: np.array([line[key] for line in chains], np.float32) for key in _CHAIN if key in chains[0]}
        return {key: _Trace(("chain",), values, {}) for key, values in named.items()}
    parts = list(dict.fromkeys(str(line.get("part", "")) for line in history))
    lines = [[line for line in history if str(line.get("part", "")) == part] for part in parts]
    longest = max((len(rows) for rows in lines), default=0)
    coords: dict[str, Any] = {"epoch": np.arange(1, longest + 1)}
    dims: tuple[str, ...] = ("chain", "epoch")
    if len(parts) > 1:
        coords, dims = {**coords, "part": parts}, ("chain", "part", "epoch")
    columns = {}
    for key in (k for k in _TRACE if any(line.get(k) is not None for line in history)):
        values = np.full((len(parts), longest), np.nan, np.float32)
        for row, of_part in zip(values, lines, strict=True):
            row[: len(of_part)] = [np.nan if line.get(key) is None else line[key] for line in of_part]
        columns[key if key.startswith("val_") else f"train_{key}"] = _Trace(
            dims, values[None] if len(parts) > 1 else values, coords
        )
    return columns


def export_bytes(posterior: Posterior, x: Any, num_samples: int = 200, *, sites: Any = None) -> int:
    """
    Return the size of an export in memory, without making it.

    :param posterior: the fitted posterior.
    :param x: inputs (N, ...).
    :param num_samples: S, how many weight samples are drawn.
    :param sites: as in `to_arviz`.
    """
    x = _prepared(posterior, x, None)
    plan, *_ = _plan(posterior, x, x, num_samples, num_samples, sites, None, (), "log_likelihood")
    return sum(v.nbytes for v in plan.variables)


def _plan(
    posterior: Posterior,
    x: Inputs,
    x_new: Inputs,
    num_samples: int,
    prior_samples: int,
    sites: str | Iterable[str] | None,
    y: Tensor | None,
    history: Sequence[Mapping[str, Any]],
    likelihood: str,
) -> tuple[_Plan, _Sites, tuple[int, int]]:
    first = next(posterior.stream(first_rows(x), 1, seed=0))
    guide: Any = posterior.guide
    with posterior.turn():
        values = draw_sites(guide, map_inputs(plain, first_rows(x)))
    chosen = _Sites.choose(values, sites)
    lead = lead_of(guide, num_samples)
    n = number_of_rows(x)
    variables = [*chosen.variables("posterior", *lead), *chosen.variables("prior", 1, prior_samples)]
    if y is not None and isinstance(first, RealDraw) and first.laws:
        check_values(first.laws[0], y)
    variables += _predictive_variables(first, "posterior_predictive", lead, n)
    variables += _predictive_variables(first, "prior_predictive", (1, prior_samples), n)
    variables += _prediction_variables(first, lead, number_of_rows(x_new))
    variables += [Variable("log_prior", file_name(name), ("chain", "draw"), lead) for name in values]
    for name, stats in contract_of(guide).sample_stats().items():
        kind: Any = np.bool_ if stats.dtype == torch.bool else np.float32
        variables += [Variable("sample_stats", name, ("chain", "draw"), lead, kind)]
    trace = _trace_of(history)
    variables += [Variable("training", name, t.dims, t.values.shape) for name, t in trace.items()]
    variables += _input_variables("constant_data", x)
    if x_new is not x:
        variables += _input_variables("predictions_constant_data", x_new)
    if y is not None:
        dims = ("obs_id",) + (("target",) if y.ndim > 1 else ())
        dtype = np.float32 if y.is_floating_point() and _kind_of(first) is np.float32 else np.int64
        variables += [Variable("observed_data", "obs", dims, tuple(y.shape), dtype)]
        variables += [Variable(likelihood, "obs", ("chain", "draw", "obs_id"), (*lead, n))]
    known = {name: values for t in trace.values() for name, values in t.coords.items()}
    return _Plan(variables, _coords(variables, {**chosen.coords(), **known}, first, posterior)), chosen, lead


def lead_of(guide: Any, num_samples: int) -> tuple[int, int]:
    """Return chains and draws: those that a sampler stored, else one chain of as many as are asked for."""
    stored = contract_of(guide).by_site()
    if stored is not None:
        chains, draws = next(iter(stored.values())).shape[:2]
        return int(chains), int(draws)
    return 1, num_samples


def _coords(
    variables: Sequence[Variable], named: dict[str, Any], first: Draw, posterior: Posterior
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
    log_likelihood: bool = False,
) -> Any:
    """
    Return a posterior as what the installed ArviZ takes: `InferenceData` of 0.x, `DataTree` of 1.x.

    Eta, temperature and the kind of draws come from the posterior's info, which knows what its guide was fitted with;
    where nothing says them eta and temperature are 1.

    :param posterior: the fitted posterior.
    :param x: raw inputs (N, ...), tensors, arrays or lists; a tuple of several tensors for a program that takes them.
    :param y: labels (N,) or raw targets (N,) or (N, D), likewise; without them nothing is observed.
    :param num_samples: draws; of a sampler all stored draws are taken instead, each once.
    :param split: where the rows come from: 'train', 'validation', 'test' or 'other'; `loo` needs to know.
    :param sites: patterns of sites to export in full; default those of up to 100 values.
    :param x_new: inputs for the group `predictions`; default x.
    :param prior_samples: draws of the prior; default num_samples.
    :param history: the training trace, one mapping per epoch, as `Run.history`.
    :param path: write to this .nc or .zarr while drawing and read from it lazily; default in memory.
    :param seed: of the draws; the global random state is left as it is.
    :param standardised: whether x, y and x_new are on the model's scale; default what they say, raw if they do not.
    :param log_likelihood: call the group of log p(y_i | x_i, w_s) `log_likelihood` even where leaving one out is not
        defined (tempered and cold posteriors, points, ensembles, rows that were not trained on). There it is called
        `log_density` by default, so that `az.loo`, `az.waic` and `az.compare` do not answer what nobody can.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} draws nothing: pass at least 1")
    if split is not None and split not in get_args(Split):
        raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(get_args(Split))}")
    observed = None if y is None else posterior.raw_targets(y, standardised=standardised)
    x = _prepared(posterior, x, standardised)
    x_new = x if x_new is None else _prepared(posterior, x_new, standardised)
    if observed is not None:
        check_finite(observed, "y")
    if observed is not None and number_of_rows(x) != len(observed):
        raise ValueError(f"x has {number_of_rows(x)} rows and y has {len(observed)}: pass one label per row")
    prior_samples = prior_samples or num_samples
    likelihood = likelihood_group(posterior, split, asked=log_likelihood)
    plan, chosen, lead = _plan(posterior, x, x_new, num_samples, prior_samples, sites, observed, history, likelihood)
    size = sum(v.nbytes for v in plan.variables)
    if path is None and size > MAX_BYTES:
        raise ValueError(
            f"this export is {size / 2**30:.1f} GiB ({number_of_rows(x)} rows, {lead[0] * lead[1]} draws): pass "
            f"path='export.nc' to write it while drawing, or fewer rows, draws or sites"
        )
    store = store_for(path)
    arrays: dict[str, dict[str, Array]] = {}
    for variable in plan.variables:
        arrays.setdefault(variable.group, {})[variable.name] = store.new(variable)
    for name, column in _trace_of(history).items():
        arrays["training"][name][:] = column.values
    for name, stats in contract_of(posterior.guide).sample_stats().items():
        arrays["sample_stats"][name][:] = stats.cpu().numpy()
    _write_data(arrays, x, x_new, observed)
    _write_draws(posterior, arrays, chosen, lead, x, x_new, observed, seed)
    _write_prior(posterior, arrays, chosen, prior_samples, x, seed)
    return store.finish(plan.coords, attributes_of(posterior, split, lead))


def _prepared(posterior: Posterior, x: Any, standardised: bool | None) -> Inputs:
    """Return inputs on the scale of the model and in the numbers of the guide; several are as they are handed in."""
    if isinstance(x, tuple):
        return map_inputs(lambda member: _as_precise(posterior.guide, member), as_inputs(x))
    return _as_precise(posterior.guide, posterior.standardise(x, standardised=standardised))


def _as_precise(guide: Any, x: Tensor) -> Tensor:
    """Return inputs in the numbers of the guide; arrays of NumPy come in 64 bits."""
    parameters = guide.parameters() if isinstance(guide, torch.nn.Module) else ()
    like = next((p for p in parameters if p.is_floating_point()), None)
    return x if like is None or not x.is_floating_point() else x.to(like.dtype)


def _write_data(arrays: Mapping[str, Mapping[str, Array]], x: Inputs, x_new: Inputs, y: Tensor | None) -> None:
    for name, member in _named_inputs(x).items():
        arrays["constant_data"][name][:] = as_numpy(_raw(member))
    if x_new is not x:
        for name, member in _named_inputs(x_new).items():
            arrays["predictions_constant_data"][name][:] = as_numpy(_raw(member))
    if y is not None:
        arrays["observed_data"]["obs"][:] = as_numpy(y)


def _raw(x: Tensor) -> Tensor:
    scale = standardiser_of(x)
    return plain(x) if scale is None else scale.invert(x)


def _write_draws(
    posterior: Posterior,
    arrays: Mapping[str, Mapping[str, Array]],
    chosen: _Sites,
    lead: tuple[int, int],
    x: Inputs,
    x_new: Inputs,
    y: Tensor | None,
    seed: int,
) -> None:
    recorder = _Recorder(posterior.guide)
    places = Places(posterior.guide, lead)
    rows, n = x if x_new is x else _below(x, x_new), number_of_rows(x)
    draws = posterior.with_guide(recorder).stream(rows, lead[0] * lead[1], seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for draw in draws:
        c, s = places.of(recorder.last)
        chosen.write(arrays["posterior"], c, s, recorder.last)
        alone = x_new is x or (isinstance(draw, RealDraw) and bool(draw.laws))  # laws are not cut: what they say is
        here = draw if alone else draw.rows(slice(None, n))
        drawn = _sampled(here, generator)
        arrays["posterior_predictive"]["obs"][c, s] = drawn[:n]
        _write_prediction(arrays["predictions"], c, s, draw, 0 if x_new is x else n)
        with posterior.turn():
            of_sites = _log_prior(posterior.model, map_inputs(plain, x), recorder.last)
        for name, array in arrays["log_prior"].items():
            array[c, s] = of_sites.get(name, np.nan)
        if y is not None:
            likelihood = arrays["log_likelihood" if "log_likelihood" in arrays else "log_density"]
            likelihood["obs"][c, s] = as_numpy(_pointwise(here, y, drawn)[:n])


def _below(x: Inputs, more: Inputs) -> Inputs:
    """Return rows and more rows below them."""
    pairs = zip(members(x), members(more), strict=True)
    both = tuple(torch.cat([first, second.to(first)]) for first, second in pairs)
    return both if isinstance(x, tuple) else both[0]


def _write_prediction(arrays: Mapping[str, Array], c: int, s: int, draw: Draw, first: int) -> None:
    """Write what a draw predicts for the rows from `first` on."""
    if isinstance(draw, ClassDraw):
        arrays["probability"][c, s] = as_numpy(draw.prediction[first:])
    else:
        arrays["mean"][c, s], arrays["sd"][c, s] = as_numpy(draw.mean[first:]), as_numpy(draw.sd[first:])


def _write_prior(
    posterior: Posterior,
    arrays: Mapping[str, Mapping[str, Array]],
    chosen: _Sites,
    num_samples: int,
    x: Inputs,
    seed: int,
) -> None:
    recorder = _Recorder(PriorGuide(posterior.model, draw_sites(posterior.guide, first_rows(x))))
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
class Places:
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


def attributes_of(posterior: Posterior, split: Split | None, lead: tuple[int, int]) -> dict[str, Any]:
    """Return what an export says of itself: tempering, kind of draws, where its rows come from, whether LOO holds."""
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
        "chains": float(lead[0]),  # NumPy's integers, which files give back, are no JSON
        "draws": float(lead[1]),
        "data": str(info.get("data", "not stated")),
        "num_data": float(info.get("num_data", getattr(posterior.model, "num_data", 0))),
        "recipe": json.dumps(recipe) if recipe else "none",
        "loo": "defined" if why is None else f"not defined: {why}",
    }
