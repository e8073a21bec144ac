"""
The door of `fit`: from what a user holds to rows that the program takes, or one sentence that says what is wrong.

The program is run once, on the first batch, without a trace left behind. That run builds the guide, finds the size of
the plate and the observed sites, checks labels, and settles the dtypes:

    arrays and frames      floats take up the dtype of the guide's or model's parameters (else torch's default dtype):
                           NumPy makes float64 by default
    tensors                stay as they are if the program takes them
    integers in x          stay integers if the program takes them (an embedding does)
    what it refuses        is offered again as int64 and as floats, each input by itself, in this order; the first batch
                           decides for all rows
    y                      takes up the dtype of what the observed site draws: int64 for classes

"Takes" means that the program runs and that the observed sites' log-probabilities can be computed.
"""

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, cast, final, runtime_checkable

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions import Unit
from pyro.infer.autoguide import AutoGuide
from pyro.util import check_site_shape
from torch import Tensor, nn
from torch.distributions import constraints

from pyro_bnn.common.modules import untouched
from pyro_bnn.common.sites import is_subsample, leaf_of
from pyro_bnn.data.arrays import members
from pyro_bnn.data.on_disk import MappedRows
from pyro_bnn.data.split import Split, as_split
from pyro_bnn.data.standardise import Standardiser, plain, standardiser_of
from pyro_bnn.data.streams import Loaded, OnDisk, Rows, Stream, as_batch, is_stream
from pyro_bnn.inference.missing import MaskMissing, any_missing, check_known_as_a_whole

__all__ = ["Admitted", "Standardise", "admit", "known_dtype"]

Standardise: TypeAlias = bool | Literal["x", "y"]

_TARGET_NAMES = ("y", "target", "targets", "label", "labels", "obs")

_REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What torch and Pyro raise where a dtype or a shape does not fit."""


@runtime_checkable
class _UnitTargets(Protocol):
    """A model that knows whether its noise and its prior suit targets of mean 0 and sd 1."""

    def expects_unit_targets(self) -> bool: ...


@final
@dataclass(frozen=True)
class Admitted:
    """What came through the door."""

    stream: Stream
    first: tuple[Any, ...]
    validation: Split | None
    num_data: int
    parameters: dict[str, Tensor]
    standardiser: Standardiser | None
    y_standardiser: Standardiser | None
    columns: tuple[str, ...] | None = None


def admit(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Any,
    val: Any,
    *,
    batch_size: int | None = None,
    weights: Any = None,
    standardise: Standardise = False,
    num_data: int | None = None,
    device: torch.device | str | None = None,
) -> Admitted:
    """Turn training and validation rows into what the program takes; see `fit` for the arguments."""
    if standardise not in (True, False, "x", "y"):
        raise ValueError(f"standardise={standardise!r} is unknown: pass True, 'x', 'y' or False")
    given = (model, guide, data, val, batch_size, device)
    if is_stream(data):
        if weights is not None or standardise is not False:
            what = "standardise=" if weights is None else "weights="
            raise ValueError(
                f"{what} needs all rows at hand, and a Dataset or DataLoader is read batch by batch: do it in the data "
                "set (mapped rows have .standardised()), or read it once and pass pyro_bnn.data.as_split(data)"
            )
        if isinstance(data, MappedRows) and num_data is not None:
            raise ValueError(f"num_data={num_data} is for a DataLoader, and mapped rows say how many they are")
        return _admit_stream(*given, num_data)
    if num_data is not None:
        raise ValueError(f"num_data={num_data} is for a DataLoader, and these data say how many rows they have")
    return _admit_rows(*given, weights, standardise)


def _admit_rows(
    model: Any, guide: Any, data: Any, val: Any, batch_size: Any, device: Any, weights: Any, standardise: Standardise
) -> Admitted:
    dtype = _floating(model, guide)
    train = as_split(data, weights=weights, dtype=dtype, missing=True)
    validation = None if val is None else as_split(val, dtype=dtype, missing=True, name="val")
    if validation is not None and train.columns and validation.columns and train.columns != validation.columns:
        raise ValueError(
            f"val has the columns {', '.join(validation.columns)} and the training rows {', '.join(train.columns)}: "
            f"give the same ones in the same order"
        )
    if weights is None and train.weights is not None and not isinstance(data, Split):
        _check_takes_weights(model)
    check_batch_size(batch_size, len(train))
    standardiser, y_standardiser = _scales_of(train)
    for name, scale in (("x", standardiser), ("y", y_standardiser)):
        if scale is not None and standardise in (True, name):
            raise ValueError(f"standardise={standardise!r}: {name} says that it is standardised already; leave it out")
    train, validation = _unmarked(train), None if validation is None else _unmarked(validation)
    if standardise is not False:  # in float64, and rounded afterwards
        train_64 = _unmarked(as_split(data, dtype=torch.float64, missing=True))
        val_64 = None if val is None else _unmarked(as_split(val, dtype=torch.float64, missing=True))
    if standardise in (True, "x"):
        standardiser = _fit_inputs(train_64, dtype)
        train = _with_x(train, train_64, standardiser, dtype)
        validation = _with_x(validation, val_64, standardiser, dtype)
    if device is not None:
        train, validation = train.to(device), None if validation is None else validation.to(device)
    stream = Rows(train, min(100, len(train)) if batch_size is None else batch_size)
    splits = {"y": train} if validation is None else {"y": train, "val y": validation}
    found = _inspect(model, guide, stream.first(), stream.counts, splits)
    train, validation = found.ready(train), None if validation is None else found.ready(validation)
    if standardise == "y" and not found.real:
        raise ValueError("standardise='y' is for real targets, and the program observes none: pass 'x' or False")
    if found.real and standardise in (True, "y"):
        y_standardiser = _fit_targets(train_64.y)
        train = _with_y(train, train_64, y_standardiser)
        validation = _with_y(validation, val_64, y_standardiser)
    if found.real:
        _warn_of_raw_targets(model, train.y)
    stream = Rows(train, stream.batch_size)
    _check_single_row(model, guide, stream, found)
    return _admitted(stream, stream.first(), validation, found, standardiser, y_standardiser)


def _admit_stream(
    model: Any, guide: Any, data: Any, val: Any, batch_size: Any, device: Any, num_data: int | None
) -> Admitted:
    dtype = _floating(model, guide)
    if isinstance(data, MappedRows):
        check_batch_size(batch_size, len(data))
        stream: Loaded | OnDisk = OnDisk(data, batch_size or min(100, len(data)), dtype, device)
    else:
        stream = Loaded(data, batch_size, num_data, dtype, device)
    check_batch_size(batch_size, stream.counts[0])
    validation = None if val is None else as_split(val, dtype=dtype, missing=True, name="val")
    validation = None if validation is None else _unmarked(validation)
    if validation is not None and device is not None:
        validation = validation.to(device)
    first = stream.first()
    scales = _scales_of(first)
    first = _unmarked(first)
    if first.weights is not None:
        _check_takes_weights(model)
    splits = {"y": first} if validation is None else {"y": first, "val y": validation}
    found = _inspect(model, guide, first, stream.counts, splits)
    stream.prepare = lambda rows: found.ready(_unmarked(rows))
    _check_single_row(model, guide, stream, found)
    first = found.ready(first)
    if found.real:
        _warn_of_raw_targets(model, first.y)
    return _admitted(stream, first, None if validation is None else found.ready(validation), found, *scales)


def _scales_of(rows: Split) -> tuple[Standardiser | None, Standardiser | None]:
    """Return what inputs and targets say they are on the scale of."""
    return standardiser_of(rows.x), standardiser_of(rows.y)


def _unmarked(rows: Split) -> Split:
    """Return the rows as plain tensors: what they say of their scale has been read."""
    x = tuple(map(plain, rows.x)) if isinstance(rows.x, tuple) else plain(rows.x)
    return replace(rows, x=x, y=plain(rows.y))


def _admitted(
    stream: Stream,
    first: Split,
    validation: Split | None,
    found: "_Found",
    standardiser: Standardiser | None = None,
    y_standardiser: Standardiser | None = None,
) -> Admitted:
    if validation is not None:
        if len(found.sites) > 1:
            sites = ", ".join(map(repr, found.sites))
            raise ValueError(f"val= scores one observed site, and the program observes {sites}: leave val out")
        validation = _known_rows(validation)
    return Admitted(
        stream,
        as_batch(first),
        validation,
        found.num_data,
        found.parameters,
        standardiser,
        y_standardiser,
        first.columns,
    )


def known_dtype(model: Any, guide: Any) -> torch.dtype | None:
    """Return the dtype of the guide's first floating-point parameter, else of the model's, else None."""
    for program in (guide, model):
        if isinstance(program, nn.Module):
            for parameter in program.parameters():
                if parameter.is_floating_point():
                    return parameter.dtype
    return None


def _floating(model: Any, guide: Any) -> torch.dtype:
    return known_dtype(model, guide) or torch.get_default_dtype()


def check_batch_size(batch_size: Any, n: int) -> None:
    """Refuse what is no number of rows from 1 to n; None is the default."""
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= n:
        raise ValueError(f"batch_size={batch_size!r} does not fit {n} training rows: pass an integer from 1 to {n}")


def _check_takes_weights(model: Any) -> None:
    """Refuse three parts of data where the program says that its third argument is the targets."""
    try:
        parameters = list(inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters)
    except (TypeError, ValueError):
        return  # a callable without a signature
    if len(parameters) > 2 and parameters[2] in _TARGET_NAMES:
        raise ValueError(
            f"three parts of data are (x, y, weights), and the program's third argument is {parameters[2]!r}: give "
            "several inputs in a tuple, ((x1, x2), y), to a program (x, y) that takes x apart"
        )


def _known_rows(rows: Split) -> Split:
    """Leave out the rows of which no target is known; they say nothing about a prediction."""
    if not any_missing(rows.y):
        return rows
    known = ~rows.y.isnan().reshape(len(rows), -1).all(1)
    if not bool(known.any()):
        raise ValueError("val y holds no known target, only NaN: give rows whose targets are known")
    return rows.take(known.nonzero()[:, 0])


# -- scales ------------------------------------------------------------------------------------------------------------


def _fit_inputs(rows: Split, dtype: torch.dtype) -> Standardiser:
    if isinstance(rows.x, tuple):
        raise ValueError(
            f"standardise is for one x, and the data have {len(rows.x)} inputs: standardise them with "
            "pyro_bnn.data.Standardiser, and pass standardise='y' or False"
        )
    if rows.x.ndim not in (1, 2, 4):
        raise ValueError(
            f"standardise is for tables (N, D) and images (N, C, H, W), and x has shape {tuple(rows.x.shape)}: "
            "standardise it yourself, and pass standardise='y' or False"
        )
    return Standardiser.fit(rows.x if rows.x.is_floating_point() else rows.x.to(dtype))


def _fit_targets(y: Tensor) -> Standardiser:
    """Fit on the targets that are known, column by column."""
    if not any_missing(y):
        return Standardiser.fit(y if y.is_floating_point() else y.double())
    columns = [column[~column.isnan()] for column in y.reshape(len(y), -1).unbind(1)]
    if not all(len(column) for column in columns):
        raise ValueError("a column of y holds NaN alone: leave it out, there is nothing to standardise by")
    fits = [Standardiser.fit(column) for column in columns]
    mean, sd = torch.stack([fit.mean for fit in fits]), torch.stack([fit.sd for fit in fits])
    return Standardiser(mean, sd) if y.ndim > 1 else fits[0]


def _with_x(rows: Any, precise: Any, standardiser: Standardiser, dtype: torch.dtype) -> Any:
    """Return the rows, or None, with x on the standardiser's scale."""
    if rows is None:
        return None
    target = rows.x.dtype if rows.x.is_floating_point() else dtype
    x = precise.x if precise.x.is_floating_point() else precise.x.to(dtype)
    return replace(rows, x=standardiser.apply(x).to(target))


def _with_y(rows: Any, precise: Any, standardiser: Standardiser) -> Any:
    """Return the rows, or None, with y on the standardiser's scale."""
    if rows is None:
        return None
    y = precise.y if precise.y.is_floating_point() else precise.y.double()
    return replace(rows, y=standardiser.apply(y.to(rows.y.device)).to(rows.y.dtype))


def _level_of_the_caller() -> int:
    """Return the `stacklevel` with which the caller of this function warns at the line that called the library."""
    level = 1
    frame = inspect.currentframe()
    frame = None if frame is None else frame.f_back
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in (
        "pyro_bnn",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return level


def _warn_of_raw_targets(model: Any, y: Tensor) -> None:
    """Warn where the prior and the noise expect targets of mean 0 and sd 1, and these are far from it."""
    if not isinstance(model, _UnitTargets) or not model.expects_unit_targets():
        return
    for column in y.detach().reshape(len(y), -1).double().unbind(1):
        known = column[~column.isnan()]
        if len(known) < 2:
            continue
        mean, sd = float(known.mean()), float(known.std(correction=0))
        if sd > 10 or 0 < sd < 0.1 or (abs(mean) > 3 * sd and abs(mean) > 3):
            warnings.warn(
                f"the targets have mean {mean:.4g} and standard deviation {sd:.4g}, and the model's prior and noise "
                "expect about 0 and 1: pass fit(..., standardise=True), or standardise them with "
                "pyro_bnn.data.Standardiser",
                UserWarning,
                stacklevel=_level_of_the_caller(),
            )
            return


# -- dtypes ------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class _Cast:
    """The dtype that each input and the targets take up; None: as they are."""

    x: tuple[torch.dtype | None, ...]
    y: torch.dtype | None

    def __call__(self, rows: Split) -> Split:
        cast_members = tuple(_to(member, dtype) for member, dtype in zip(members(rows.x), self.x, strict=True))
        return replace(
            rows, x=cast_members if isinstance(rows.x, tuple) else cast_members[0], y=_to(_labels(rows.y), self.y)
        )


def _to(values: Tensor, dtype: torch.dtype | None) -> Tensor:
    return values if dtype is None else values.to(dtype)


def _labels(y: Tensor) -> Tensor:
    """Return integers as int64."""
    return y if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool else y.long()


def _casts(rows: Split, floating: torch.dtype) -> Iterator[_Cast]:
    """Yield what may be offered to a program, as it is first, and with as few changes as possible."""
    choices = [_choices(member, floating) for member in (*members(rows.x), _labels(rows.y))]
    combined = sorted(itertools.product(*(range(len(c)) for c in choices)), key=sum)
    for picks in combined:
        *x, y = (choice[pick] for choice, pick in zip(choices, picks, strict=True))
        yield _Cast(tuple(x), y)


def _choices(values: Tensor, floating: torch.dtype) -> list[torch.dtype | None]:
    if values.is_complex() or values.dtype == floating:
        return [None]
    if values.is_floating_point() or values.dtype == torch.int64:
        return [None, floating]
    return [None, torch.int64, floating]


# -- the one run -------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class _Found:
    """What the run of the program on the first batch showed."""

    parameters: dict[str, Tensor]
    num_data: int
    cast: _Cast
    sites: tuple[str, ...]
    law: Any  # the distribution of y, if the one observed site observes y
    drawn: torch.dtype | None  # the dtype of what that distribution draws

    @property
    def real(self) -> bool:
        """Whether the targets are real numbers."""
        support = None if self.law is None else self.law.support
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        return support is constraints.real

    def ready(self, rows: Split) -> Split:
        """Return rows in the dtypes that the program takes; refuse labels outside the support."""
        rows = self.cast(rows)
        if self.law is not None:
            _check_labels(self.law, "y", rows.y)
            check_known_as_a_whole(self.law, rows.y)
        if self.drawn is None or (any_missing(rows.y) and not self.drawn.is_floating_point):
            return rows
        return replace(rows, y=rows.y.to(self.drawn))


def _inspect(model: Any, guide: Any, first: Split, counts: tuple[int, ...], splits: Mapping[str, Split]) -> _Found:
    """Offer the first batch to the program until it takes it; check what shows, and return it."""
    dtype = _floating(model, guide)
    masked = any(any_missing(split.y) for split in splits.values())
    store = pyro.get_param_store()
    for offer in _casts(first, dtype):
        rows = offer(first)
        before = set(store.keys())
        try:
            weights, trace, parameters = _run(model, guide, rows, masked)
            n = _check_sites(trace, weights, rows, counts)
            if isinstance(guide, AutoGuide):
                _check_no_row_has_a_latent(trace)
            sites = _observed(trace)
            law = _law_of_y(sites, rows.y)
            if law is not None:
                for name, split in splits.items():
                    _check_labels(law, name, split.y)
            for site in sites:
                _check_log_prob(site)
        except _Refused as error:
            for name in set(store.keys()) - before:  # made by a program that was left half-way
                del store[name]
            refused = error
            continue
        return _Found(parameters, n, offer, tuple(site["name"] for site in sites), law, _drawn(law))
    _complain(refused.__cause__, first)


class _Refused(Exception):
    """The program does not take the batch; the cause says why."""


def _run(model: Any, guide: Any, rows: Split, masked: bool) -> tuple[Any, Any, dict[str, Tensor]]:
    """Run guide and model once without a trace left behind; return their traces and the named parameters."""
    batch = as_batch(rows)
    try:
        with (
            untouched(model, guide),
            torch.no_grad(),
            poutine.block(),
            poutine.trace(param_only=True) as capture,
            MaskMissing() if masked else nullcontext(),
        ):
            weights = poutine.trace(guide).get_trace(*batch)
            trace = poutine.trace(poutine.replay(model, trace=weights)).get_trace(*batch)
    except _REFUSALS as error:
        raise _Refused from error
    sites: list[tuple[str, Any]] = sorted(capture.trace.nodes.items())
    return weights, trace, {name: leaf_of(site["value"]) for name, site in sites}


def _complain(error: Any, rows: Split) -> NoReturn:
    """Say in one sentence why no form of the batch is taken."""
    reason = " ".join(str(error).partition("Trace Shapes:")[0].split())  # Pyro appends a table of shapes
    if isinstance(error, ValueError):
        raise ValueError(reason) from error
    inputs = " and ".join(_described(member) for member in members(rows.x))
    kind = TypeError if isinstance(error, TypeError) else ValueError
    hint = "; several inputs go in a tuple, ((x1, x2), y)" if kind is TypeError and "argument" in reason else ""
    raise kind(
        f"the program cannot be run on a batch with x {inputs} and y {_described(rows.y)}: {reason}{hint}"
    ) from error


def _described(values: Tensor) -> str:
    return f"{tuple(values.shape)} of {values.dtype}".replace("torch.", "")


def _is_observed(site: Any) -> bool:
    return bool(site["type"] == "sample" and site["is_observed"] and not site["infer"].get("_deterministic"))


def _observed(trace: Any) -> list[Any]:
    """Return the sites that observe data: neither deterministic ones nor factors."""
    return [site for site in trace.nodes.values() if _is_observed(site) and not isinstance(site["fn"], Unit)]


def _check_sites(trace: Any, weights: Any, rows: Split, counts: tuple[int, ...]) -> int:
    """Refuse a program that observes nothing, or whose plate is not that of the rows; return N."""
    observed = [site for site in trace.nodes.values() if _is_observed(site)]
    if not observed:
        raise ValueError("the model observes nothing when called with the batch: give pyro.sample('obs', ..., obs=y)")
    sizes = {f.full_size or f.size for site in observed for f in site["cond_indep_stack"] if f.name == "data"}
    n = counts[0]
    if not sizes and len(rows) < n:
        raise ValueError(
            f"the observed site is not inside pyro.plate('data', {n}, subsample=...), so that a batch of "
            f"{len(rows)} of {n} rows would count as the whole set: add the plate, or use batch_size={n}"
        )
    wrong = sorted(sizes - set(counts))
    if wrong or len(sizes) > 1:
        raise ValueError(
            f"the model's plate 'data' has size {(wrong or sorted(sizes))[0]} but {n} rows are trained on: build the "
            f"model with num_data={' or '.join(map(str, counts))}, the rows left after a validation set is taken out"
        )
    shared = [name for name in trace.nodes if name in weights.nodes and trace.nodes[name]["type"] == "sample"]
    if not shared:
        raise ValueError("guide and model share no latent site: was the guide built for another model?")
    return sizes.pop() if sizes else n


def _check_no_row_has_a_latent(trace: Any) -> None:
    """Refuse latent sites with a value per row: rows come in another order in every epoch, an autoguide's do not."""
    for name, site in trace.nodes.items():
        latent = site["type"] == "sample" and not site["is_observed"] and not is_subsample(site)
        if latent and any(frame.name == "data" for frame in site["cond_indep_stack"]):
            raise ValueError(
                f"site {name!r} has a value for each row, and fit shuffles the rows: train with stock SVI.step on all "
                "rows, or write an amortised guide for it"
            )


def _law_of_y(sites: list[Any], y: Tensor) -> Any:
    """Return the distribution of y, if y is what the one observed site observes."""
    if len(sites) != 1 or not isinstance(sites[0]["value"], Tensor):
        return None
    value = sites[0]["value"].reshape(-1)
    flat = y.reshape(-1)
    if value.shape != flat.shape:
        return None
    known = ~flat.isnan() if y.is_floating_point() else torch.ones_like(flat, dtype=torch.bool)
    return sites[0]["fn"] if torch.equal(value[known], flat[known].to(value)) else None


@torch.no_grad()
def _drawn(law: Any) -> torch.dtype | None:
    """Return the dtype of what a distribution draws; targets take it up, so that they leave that of the loss alone."""
    if law is None:
        return None
    with torch.random.fork_rng(), suppress(*_REFUSALS):
        return cast(torch.dtype, law.sample().dtype)
    return None


def _check_labels(law: Any, name: str, y: Tensor) -> None:
    """Refuse labels outside the support; torch would look at those of the first batch only."""
    support = law.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    bounds = [getattr(support, bound, 0) for bound in ("lower_bound", "upper_bound")]
    if not support.is_discrete or support.event_dim or any(isinstance(bound, Tensor) for bound in bounds):
        return
    missing = y.isnan() if y.is_floating_point() else torch.zeros_like(y, dtype=torch.bool)
    outside = (~support.check(y) & ~missing).reshape(len(y), -1).any(-1)  # (N,)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(f"{name}[{row}]={y[row].tolist()} is no label of the model: pass one in {support}")


def _check_log_prob(site: Any) -> None:
    """Refuse values of an observed site that its distribution cannot take, by dtype, support or shape."""
    fn, value = site["fn"], site["value"]
    inside = True
    with suppress(*_REFUSALS):  # a support that is none, or that cannot be looked at
        inside = bool(fn.support.check(value).all())
    try:
        site["log_prob"] = fn.log_prob(value, *site["args"], **site["kwargs"])
    except _REFUSALS as error:
        if isinstance(error, ValueError) and not inside:
            raise ValueError(
                f"the observed site {site['name']!r} is {type(fn).__name__} and some of its values lie outside its "
                f"support, {fn.support}: correct y, or choose another likelihood"
            ) from error
        raise _Refused from error
    if not pyro.infer.util.is_validation_enabled():
        return
    try:
        check_site_shape(site, cast(int, math.inf))
    except ValueError as error:
        plates = tuple(frame.size for frame in site["cond_indep_stack"] if frame.vectorized)
        raise ValueError(
            f"the observed site {site['name']!r} has log-probabilities of shape {tuple(site['log_prob'].shape)} for "
            f"values of shape {tuple(value.shape)}, and its plates make it {plates}: give y the shape of the "
            "distribution, such as y[:, 0] for (N, 1), or declare dimensions with .to_event(1)"
        ) from error


def _check_single_row(model: Any, guide: Any, stream: Stream, found: _Found) -> None:
    """Refuse a last batch of one row where the program does: batch normalisation takes no statistics from it."""
    if stream.last != 1 or stream.num_batches == 1:
        return
    try:
        _run(model, guide, found.ready(stream.first().take(torch.arange(1))), True)
    except _Refused as refused:
        reason = str(refused.__cause__).partition("Trace Shapes:")[0].strip()
        raise ValueError(
            f"{found.num_data} rows in batches of {stream.batch_size} leave a last batch of 1 row, which the program "
            f"refuses ({reason}): choose another batch_size"
        ) from refused.__cause__
