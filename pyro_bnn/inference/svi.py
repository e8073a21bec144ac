"""
Stochastic variational inference: the training loop.

For every batch b the step minimises, per datum,

    loss_b = mean over the batch of -log p(y | x, w)  +  c_b KL(q || p)

by running any Pyro ELBO under `per_datum(N)` and `scale_kl(N c_b)`; see :mod:`pyro_bnn.inference.kl` for the weights.
The rows live on the device as tensors and an epoch is a walk through index tensors. Logged once per epoch are `nll`
(the expected training NLL of the epoch's steps), `kl` = KL / N without any weight, at the end of the epoch,
`kl_weight` = the mean of N c_b, `loss` (what was optimised), `elbo` = -(nll + kl), the learning rates and the seconds.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pyro
import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn

from pyro_bnn.common.renamed import renamed
from pyro_bnn.common.turns import Job
from pyro_bnn.data.split import Split
from pyro_bnn.data.streams import Batch, Loaded, OnDisk, Rows, Stream
from pyro_bnn.inference.checkpoint import loose_tensors
from pyro_bnn.inference.checks import check_arguments, validate_first_only
from pyro_bnn.inference.distributed import DataParallel, evaluating
from pyro_bnn.inference.divergence import NotFinite
from pyro_bnn.inference.door import Admitted, Standardise, admit
from pyro_bnn.inference.elbo import TraceColdPosterior_ELBO
from pyro_bnn.inference.fit_state import Callback, Diverged, FitResult, FitState, Scheduled, owned, relative
from pyro_bnn.inference.fitted import Fitted, leave_fitted
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.graph.origin import is_library
from pyro_bnn.inference.kl import KLWeight, kl_divergence, uniform
from pyro_bnn.inference.minibatch import MinibatchStep, between_steps_is_library
from pyro_bnn.inference.missing import MaskMissing, any_missing
from pyro_bnn.inference.parts import Noise, Part, PartedStep
from pyro_bnn.inference.precision import Precision, network_in
from pyro_bnn.inference.predictive import ClassDraw, observation_log_prob, predictive_draws
from pyro_bnn.inference.progress import bar_for
from pyro_bnn.inference.ranked import (
    begin_together,
    check_accumulate,
    check_shards,
    check_undivided,
    end_epoch_together,
    parted_step,
)

__all__ = ["Callback", "Diverged", "FitResult", "FitState", "MinibatchStep", "fit", "validate"]

Augment = Callable[[Tensor], Tensor]

_WORTH_RECORDING = 32
"""Steps of an epoch from which it pays to record anew at each, where a callback of the user's runs in between."""


def fit(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    optim: PyroOptim,
    data: Any,
    *,
    epochs: int,
    batch_size: int | None = None,
    val: Any = None,
    weights: Any = None,
    standardise: Standardise = False,
    num_data: int | None = None,
    kl: KLWeight | None = None,
    elbo: ELBO | None = None,
    callbacks: Sequence[Callback] = (),
    seed: int | None = None,
    augment: Augment | None = None,
    patience: int | None = None,
    monitor: str = "val_nll",
    val_samples: int = 1,
    device: torch.device | str | None = None,
    resume: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    accumulate: int = 1,
    noise: Noise = "own",
    precision: Precision = "float32",
    distributed: DataParallel | bool | None = None,
) -> FitResult:
    """
    Train a guide (and the model's own parameters) by stochastic variational inference.

    :param model: any Pyro program `model(x, y)` with its observed site in `pyro.plate("data", N, subsample=...)`.
    :param guide: any guide for it.
    :param optim: one of :mod:`pyro_bnn.optim` or of `pyro.optim`; rates are for the loss per datum.
    :param data: the training rows: (x, y), a Split, a Dataset or a DataLoader. x and y are tensors, NumPy arrays, or
        frames and series of pandas or polars; several inputs are a tuple, ((x1, x2), y). Rows that come as a Dataset or
        DataLoader are read anew in every epoch, in the loader's own batches; see :mod:`pyro_bnn.data.streams`. NaN in y
        marks targets that are not known; see :mod:`pyro_bnn.inference.missing`.
    :param epochs: how often all rows are seen.
    :param batch_size: rows per step; default 100, or all if there are fewer. A DataLoader has its own.
    :param val: validation rows in the same forms, read once; scored after each epoch, with the draws of one seed.
    :param weights: how often each row counts, (N,); default once. A loader's batches (x, y, weights) bring their own.
    :param standardise: put x and numbers in y on the scale of mean 0 and sd 1 of the training rows, "x" and "y" one of
        them; the result keeps both standardisers.
    :param num_data: N, for a DataLoader that does not say how many rows it has.
    :param kl: the weight on the KL, e.g. `kl.tempered(0.1)`; default `kl.uniform()`.
    :param elbo: any Pyro ELBO; default `FlatMeanField_ELBO()`, with the analytic KL.
    :param callbacks: see :class:`Callback`.
    :param seed: seeds Pyro and the order of the rows; without it both go on from the global random state.
    :param augment: changes a batch of inputs (B, ...) before a step.
    :param patience: end when `monitor` has not improved for so many epochs; needs `val`, unless another is monitored.
    :param monitor: the lower-is-better number of an epoch's line that decides what is best.
    :param val_samples: draws per row when scoring validation.
    :param device: where to put rows and programs; default where they are.
    :param resume: the `state_dict` of an earlier fit's FitState, to go on from.
    :param progress: whether to show a bar on stderr; default where that is a terminal.
    :param accumulate: batches per step: their gradients are added up, as of one batch so many times as large.
    :param noise: whether the parts of a step (accumulated batches, the rows of a rank) draw weights of their own,
        "own", or share one draw, "shared"; see :mod:`pyro_bnn.inference.parts`.
    :param precision: "float32" leaves every dtype as it is, "bf16" runs the network of a BNN in bfloat16; see
        :mod:`pyro_bnn.inference.precision`.
    :param distributed: train on all ranks of a process group of torch.distributed, each with its rows of every batch;
        every rank calls `fit`. Default where there is a group, False trains in this process alone; options are
        :class:`DataParallel`.

    >>> import torch
    >>> from pyro_bnn.guides import AutoMeanFieldNormal
    >>> from pyro_bnn.inference import fit, kl
    >>> from pyro_bnn.models import BNN, MLP, likelihoods, priors
    >>> from pyro_bnn.optim import Adam, PerSite
    >>> x = torch.linspace(-1, 1, 50).unsqueeze(-1)
    >>> model = BNN(MLP(1, 1, [8]), priors.FanIn(), likelihoods.Gaussian(0.1), num_data=50)
    >>> guide = AutoMeanFieldNormal(model)
    >>> optim = PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 1e-2}))
    >>> result = fit(model, guide, optim, (x, x.square()), epochs=20, kl=kl.tempered(0.5), seed=0)
    >>> len(result.history), result.history[-1]["loss"] < result.history[0]["loss"]
    (20, True)
    >>> guide.fitted.eta
    0.5
    """
    elbo = FlatMeanField_ELBO() if elbo is None else elbo
    kl = uniform() if kl is None else kl
    check_arguments(epochs, optim, elbo, val, monitor, patience)
    check_accumulate(accumulate, noise)
    parallel = distributed if isinstance(distributed, DataParallel) else DataParallel()
    ranks = None if distributed is False else parallel.ranks(required=distributed is True)
    if ranks is not None:
        check_undivided(data)
    callbacks = [*callbacks, *(bar_for(progress, callbacks) if ranks is None or ranks.first else ())]
    job = Job()
    _make_ready(model, guide, device, seed, job)
    rows = job.run(
        admit,
        model,
        guide,
        data,
        val,
        batch_size=batch_size,
        weights=weights,
        standardise=standardise,
        num_data=num_data,
        device=device,
    )
    n = rows.num_data
    if ranks is not None:
        check_shards(rows.stream, ranks, parallel, noise, model, guide)
        seed = ranks.told(int(job.run(torch.randint, 2**62, ())) if seed is None else seed)
    state = _begin(model, guide, optim, elbo, epochs, rows, callbacks, seed, job, accumulate)
    if resume is not None:
        state.load_state_dict(resume)
        state.stop = state.stale(monitor, patience)
    if ranks is not None:
        begin_together(state, ranks, seed, resume, noise)
    fitted = _what_is_fitted(rows, elbo, _class_names(data), state)
    epoch_is_library = all(is_library(getattr(c.epoch, "__func__", c.epoch)) for c in state.callbacks)
    undisturbed = (
        _reads_by_library(rows.stream)
        and between_steps_is_library(state.callbacks, optim, kl, augment)
        and (epoch_is_library or rows.stream.num_batches >= _WORTH_RECORDING)
    )
    step = MinibatchStep(model, guide, optim, elbo, n, undisturbed=undisturbed)
    parted = None
    if ranks is not None or accumulate > 1:
        parted = parted_step(step, state, ranks, parallel, noise)
    try:
        with validate_first_only() as stop_validating, network_in(precision, model, elbo) as in_precision:
            state.call("start")
            while state.epoch < epochs and state.stop is None:
                started = time.perf_counter()
                with in_precision():
                    line = _epoch(state, step if parted is None else parted, kl, rows.stream, augment, stop_validating)
                if ranks is not None:
                    ranks.average_buffers(model, guide)
                line["kl"] = float(job.run(kl_divergence, model, guide, *rows.first)) / n
                if not math.isfinite(line["kl"]):
                    raise state.diverged(f"KL(q || p) / N is {line['kl']} after step {state.step}")
                line["elbo"] = -(line["nll"] + line["kl"])
                if rows.validation is not None:
                    with evaluating(ranks):
                        line |= validate(model, guide, rows.validation, num_samples=val_samples)
                if ranks is not None:
                    line = ranks.told(line)
                if isinstance(optim, Scheduled):
                    line["learning_rates"] = optim.learning_rates()
                    optim.end_epoch({k: v for k, v in line.items() if isinstance(v, float)})
                state.seconds += time.perf_counter() - started
                line["seconds"] = state.seconds
                state.end_epoch(line, monitor, patience)
                if ranks is not None:
                    end_epoch_together(state, ranks, noise)
                state.call("epoch")
                if ranks is not None:  # a callback of any rank's may end all of them
                    state.stop = next((stop for stop in ranks.gather(state.stop) if stop is not None), None)
                if not epoch_is_library and isinstance(elbo, FlatMeanField_ELBO):
                    elbo.forget_recordings()
    except KeyboardInterrupt:
        state.stop = "interrupted"
    finally:
        fitted = replace(fitted, eta=kl.eta(epoch=max(state.epoch - 1, 0), num_data=n))
        leave_fitted(guide, fitted)
        job.done()
        state.call("end")
    best = None if state.best is None else int(state.best["epoch"])
    return FitResult(state.history, best, state.stop or "all epochs done", state.seconds, fitted)


def _reads_by_library(stream: Stream) -> bool:
    """Return whether what reads the next batch is libraries' code."""
    if type(stream) is Loaded:
        return stream.loader is not None and is_library(stream.loader, deep=True)
    return type(stream) is Rows or (type(stream) is OnDisk and is_library(stream.rows.prepare, deep=True))


def _make_ready(model: Any, guide: Any, device: torch.device | str | None, seed: int | None, job: Job) -> None:
    """Put the programs where they are to be and into training mode; seed Pyro, if asked to."""
    programs = [program for program in (model, guide) if isinstance(program, nn.Module)]
    if device is not None:
        for program in programs:
            program.to(device)
    if seed is not None:
        job.run(pyro.set_rng_seed, seed)
    for program in programs:
        program.train()


def _begin(
    model: Any,
    guide: Any,
    optim: PyroOptim,
    elbo: ELBO,
    epochs: int,
    rows: Admitted,
    callbacks: Sequence[Callback],
    seed: int | None,
    job: Job,
    accumulate: int,
) -> FitState:
    """Return the state before the first step, and tell the optimizer what it will train."""
    stream = rows.stream
    if isinstance(optim, Scheduled):
        optim.name_parameters(relative(rows.parameters, model, guide))
        optim.prepare(epochs, -(-stream.num_batches // accumulate))
    order = stream.generator
    if order is None:
        order = torch.Generator()
        order.manual_seed(int(job.run(torch.randint, 2**62, ())) if seed is None else seed)
    return FitState(
        model,
        guide,
        optim,
        epochs,
        stream.batch_size * accumulate,
        rows.num_data,
        parameters=rows.parameters,
        store_names=tuple(name for name in rows.parameters if not owned(name, model, guide)),
        order=order,
        callbacks=tuple(callbacks),
        job=job,
        elbo=elbo,
        accumulate=accumulate,
    )


def _what_is_fitted(rows: Admitted, elbo: ELBO, class_names: tuple[str, ...] | None, state: FitState) -> Fitted:
    x = rows.first[0]
    return Fitted(
        rows.num_data,
        tuple(x.shape[1:]) if isinstance(x, Tensor) else None,
        temperature=elbo.temperature if isinstance(elbo, TraceColdPosterior_ELBO) else 1.0,
        standardiser=rows.standardiser,
        y_standardiser=rows.y_standardiser,
        class_names=class_names,
        columns=rows.columns,
        tensors=loose_tensors(state.parameters),
    )


def _class_names(data: Any) -> tuple[str, ...] | None:
    """Return the names that data say their classes have, as data sets of torchvision do."""
    names = data.class_names if isinstance(data, Split) else getattr(data, "classes", None)
    return None if names is None else tuple(str(name) for name in names)


def _masked(stream: Stream, y: Tensor) -> AbstractContextManager[Any]:
    """Return what masks targets that are not known: for all batches of rows at hand, or for those of a loader."""
    return MaskMissing() if stream.some_missing or (stream.may_miss and any_missing(y)) else nullcontext()


def _walk(state: FitState, step: MinibatchStep | PartedStep, stream: Stream) -> Iterator[list[Part]]:
    """Yield the parts of every step of an epoch: one batch, several of them, or a rank's rows of them."""
    ranks = step.ranks if isinstance(step, PartedStep) else None
    if ranks is None:
        parts: Iterator[Part] = ((len(batch[1]), batch) for batch in stream.epoch(state.order))
    else:
        parts = stream.shards(cast(torch.Generator, state.order), ranks.shard)
    if state.accumulate == 1:
        yield from ([part] for part in parts)
        return
    while together := list(itertools.islice(parts, state.accumulate)):
        yield together


def _epoch(
    state: FitState,
    step: MinibatchStep | PartedStep,
    kl: KLWeight,
    stream: Stream,
    augment: Augment | None,
    stop_validating: Callable[[], None],
) -> dict[str, Any]:
    """Walk through the rows once; return the epoch's line."""
    n, steps = state.num_data, -(-stream.num_batches // state.accumulate)
    losses, nlls, weights, lengths = [], [], [], []
    for b, parts in enumerate(_walk(state, step, stream)):
        size = sum(rows for rows, _ in parts)
        w = kl.weight(batch=b, batch_size=size, epoch=state.epoch, num_batches=steps, num_data=n)
        if augment is not None:
            parts = [(rows, _augmented(state, augment, batch)) for rows, batch in parts]
        with state.job.turn():
            try:
                if isinstance(step, PartedStep):
                    loss, nll = step(w, parts, partial(_masked, stream))
                else:
                    batch = cast(Batch, parts[0][1])
                    with _masked(stream, batch[1]):
                        loss, nll = step(w, batch)
            except NotFinite as error:
                raise state.diverged(f"the loss is {error} at step {state.step + 1}") from None
        if b == 0:
            stop_validating()
        losses.append(loss)
        nlls.append(nll)
        weights.append(w)
        lengths.append(size)
        state.step += 1
        state.batch_loss, state.batch_nll = loss, nll
        state.call("step")
    sizes = torch.tensor(lengths, dtype=torch.float64)
    share = sizes / sizes.sum()  # (M,)
    loss_b, nll_b = torch.stack(losses).double().cpu(), torch.stack(nlls).double().cpu()  # (M,)
    if not bool(torch.isfinite(loss_b).all()):
        at = int((~torch.isfinite(loss_b)).nonzero()[0])
        raise state.diverged(f"the loss is {float(loss_b[at])} at step {state.step - len(losses) + at + 1}")
    return {
        "epoch": state.epoch + 1,
        "step": state.step,
        "nll": float((share * nll_b).sum()),
        "loss": float((share * loss_b).sum()),
        "kl_weight": float((share * torch.tensor(weights, dtype=torch.float64)).sum()),
    }


def _augmented(state: FitState, augment: Augment, batch: Batch | None) -> Batch | None:
    return None if batch is None else (state.job.run(augment, batch[0]), *batch[1:])


@torch.no_grad()
def validate(
    model: Callable[..., Any], guide: Callable[..., Any], split: Split, *, num_samples: int = 1, seed: int = 0
) -> dict[str, float]:
    """Return `val_nll`, -mean_i log mean_s p(y_i | x_i, w_s), and for classes `val_accuracy`, with S fixed draws."""
    total: Tensor | None = None
    probs: Tensor | None = None
    for draw in predictive_draws(model, guide, split.x, num_samples, seed=seed):
        log_prob = observation_log_prob(draw, split.y, missing=True)  # (N,)
        total = log_prob if total is None else torch.logaddexp(total, log_prob)
        if isinstance(draw, ClassDraw):
            probs = draw.log_probs.exp() if probs is None else probs + draw.log_probs.exp()

    assert total is not None
    nll = torch.log(torch.tensor(float(num_samples))) - total  # (N,)
    result = {"val_nll": float(nll.mean())}
    if probs is not None:
        result["val_accuracy"] = float((probs.argmax(-1) == split.y).float().mean())
    return result


__getattr__ = renamed(__name__, {"Step": "MinibatchStep"})
