"""
Train K members of one program at once: splits, seeds, folds of a cross-validation, ensembles, grids of settings.

Member k is what `fit(models[k], guides[k], optim, data[k], seed=seeds[k])` would train: the same rows in the same
order, the same random numbers, the same steps, up to rounding. All members lie in one stack
(:mod:`pyro_bnn.inference.stacked`), so that a step is a few operations on (K, ...) tensors, in the place of K steps
whose cost, for small networks, is Python's and the dispatcher's.

What the members share is the program (network, likelihood, guide family) and the optimizer's algorithm, schedule and
numbers. What each has of its own: rows (their number may differ), prior, start, seed, weight on the KL, and a factor on
every step of the optimizer (`rates`). An epoch is a walk through a member's own rows; batches that are shorter than the
others' are filled up with rows of weight 0. Members whose epochs differ in the number of batches are trained as several
stacks, one after the other.

A member that stops early keeps its parameters from then on, and leaves the stack once half of it has stopped. One
whose loss is not a number any more says so in its result's `reason`; its guide is as at its best epoch, with
`keep_best`, and else as it began. The others go on.

Of guides with correlations (low rank, full rank) the steps are those of `fit` with `TraceLowRank_ELBO`, and `kl` in
their lines is exact, where `fit` takes that of a draw.
"""

import copy
import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, final, runtime_checkable

import pyro
import torch
from pyro.optim import PyroOptim
from torch import Tensor, nn

from pyro_bnn.common.turns import Job
from pyro_bnn.data.split import Split
from pyro_bnn.data.streams import Rows
from pyro_bnn.inference.checks import check_arguments, validate_first_only
from pyro_bnn.inference.door import Admitted, Standardise, admit
from pyro_bnn.inference.fit_state import FitResult, Scheduled, relative
from pyro_bnn.inference.fitted import Fitted, leave_fitted
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.graph.origin import is_library
from pyro_bnn.inference.graph.private import MISSING
from pyro_bnn.inference.kl import KLWeight, uniform
from pyro_bnn.inference.reparam import LocalReparameterization, active_reparameterization
from pyro_bnn.inference.stacked import Stack, check_stackable

__all__ = ["fit_many"]


@runtime_checkable
class _ByElement(Protocol):
    """An optimizer whose step on a stack can be that of every member by itself."""

    def unstackable(self) -> str | None:
        """Return why it is not, None if it is."""

    def keep_rows(self, rows: Tensor) -> None:
        """Keep the state of some rows of every parameter."""


def fit_many(
    models: Sequence[Any],
    guides: Sequence[Any],
    optim: PyroOptim,
    data: Sequence[Any],
    *,
    epochs: int,
    batch_size: int | None = None,
    val: Sequence[Any] | None = None,
    weights: Sequence[Any] | None = None,
    standardise: Standardise = False,
    kl: KLWeight | Sequence[KLWeight] | None = None,
    rates: Sequence[float] | None = None,
    seed: int | Sequence[int] = 0,
    patience: int | None = None,
    monitor: str = "val_nll",
    val_samples: int = 1,
    keep_best: bool = False,
    history: bool = True,
    jobs: int = 1,
) -> list[FitResult]:
    """
    Train the guides of several models of one program as one batched program; return a result for each, as `fit` does.

    Inside `with local_reparameterization():` the outputs of dense layers are drawn, as there.

    :param models: K models of one structure, each with its own number of rows.
    :param guides: a guide for each: AutoMeanFieldNormal in one group, AutoLowRankNormal, AutoFullRankNormal,
        AutoPoint or AutoDropout.
    :param optim: what every member is trained with; a copy is used, and this object left as it is.
    :param data: the rows of each, in any form that `fit` takes at once; or one for all.
    :param epochs: how often each model sees its rows.
    :param batch_size: rows per step; default 100, or all of a member's if it has fewer.
    :param val: validation rows of each.
    :param weights: how often each row counts, a vector for each.
    :param standardise: as in `fit`; every member by its own rows.
    :param kl: the weight on the KL, one for all or one for each.
    :param rates: a factor on every step of a member's optimizer, which multiplies its learning rates.
    :param seed: of each member, or that of the first, from which the others count on.
    :param patience: end a member when `monitor` has not improved for so many epochs.
    :param monitor: the lower-is-better number of an epoch's line that decides what is best.
    :param val_samples: draws per row when scoring validation.
    :param keep_best: leave each guide as it was at its best epoch.
    :param history: keep a line per epoch; without it the last one only.
    :param jobs: processes side by side, each with its part of the members; for large sets.

    >>> import torch
    >>> from pyro_bnn.guides import AutoMeanFieldNormal
    >>> from pyro_bnn.inference import fit_many
    >>> from pyro_bnn.models import BNN, MLP, likelihoods, priors
    >>> from pyro_bnn.optim import Adam
    >>> x = torch.linspace(-1, 1, 50).unsqueeze(-1)
    >>> folds = [(x[k::5], x[k::5].square()) for k in range(5)]  # five data sets of 10 rows
    >>> models = [BNN(MLP(1, 1, [8]), priors.FanIn(), likelihoods.Gaussian(0.1), num_data=10) for _ in folds]
    >>> guides = [AutoMeanFieldNormal(model) for model in models]
    >>> results = fit_many(models, guides, Adam({"lr": 1e-2}), folds, epochs=20)
    >>> [len(result.history) for result in results]
    [20, 20, 20, 20, 20]
    """
    members = _members(models, guides, data, val, weights, kl, rates, seed)
    check_arguments(epochs, optim, FlatMeanField_ELBO(), val, monitor, patience)
    _check_optimizer(optim)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ValueError(f"jobs={jobs!r} is not a number of processes: pass at least 1")
    handler = active_reparameterization()
    if handler is not None and not isinstance(handler, LocalReparameterization):
        raise ValueError(f"{handler!r} cannot be batched: use local_reparameterization(), or train with fit")
    check_stackable(models, guides)
    options = _Options(
        epochs, batch_size, standardise, patience, monitor, val_samples, keep_best, history, handler is not None
    )
    if jobs > 1 and len(members) > 1:
        return _in_processes(members, optim, options, min(jobs, len(members)))
    return _fit(members, optim, options)


@final
@dataclass(frozen=True)
class _Options:
    """What all members have in common."""

    epochs: int
    batch_size: int | None
    standardise: Standardise
    patience: int | None
    monitor: str
    val_samples: int
    keep_best: bool
    history: bool
    local: bool


@final
@dataclass
class _Member:
    """What one member is trained with, and where it stands."""

    model: Any
    guide: Any
    data: Any
    val: Any
    weights: Any
    kl: KLWeight
    rate: float
    seed: int
    history: list[dict[str, Any]] = field(default_factory=list)
    epoch: int = 0
    best: tuple[int, float] | None = None
    reason: str | None = None
    diverged: bool = False
    gone: bool = False

    def take_up(self, line: dict[str, Any], options: _Options) -> bool:
        """Take up an epoch's line; return whether it is the best so far."""
        self.epoch += 1
        if not options.history:
            self.history.clear()
        self.history.append(line)
        if options.monitor not in line:
            return False
        better = self.best is None or line[options.monitor] < self.best[1]
        if better:
            self.best = (self.epoch, line[options.monitor])
        best = 0 if self.best is None else self.best[0]
        if options.patience is not None and self.epoch - best >= options.patience:
            self.reason = f"{options.monitor} has not improved for {options.patience} epochs"
        return better


def _members(
    models: Any, guides: Any, data: Any, val: Any, weights: Any, kl: Any, rates: Any, seed: Any
) -> list[_Member]:
    """Give each member what is its own; refuse lists of other lengths."""
    k = len(models)
    if k == 0:
        raise ValueError("models is empty: pass at least one model")
    kls = [uniform() if kl is None else kl] * k if kl is None or isinstance(kl, KLWeight) else list(kl)
    seeds = [seed + i for i in range(k)] if isinstance(seed, int) else list(seed)
    nothing = [None] * k
    each: dict[str, Sequence[Any]] = {
        "guides": guides,
        "data": [data] * k if isinstance(data, (tuple, Split)) else data,
        "val": nothing if val is None else [val] * k if isinstance(val, (tuple, Split)) else val,
        "weights": nothing if weights is None else weights,
        "kl": kls,
        "rates": [1.0] * k if rates is None else rates,
        "seed": seeds,
    }
    for name, values in each.items():
        if not isinstance(values, Sequence) or len(values) != k:
            what = len(values) if isinstance(values, Sequence) else f"a {type(values).__name__}"
            raise ValueError(f"{name} has {what} for {k} models: pass a list with one for each")
    for rate in each["rates"]:
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"rates: {rate!r} is not a factor: pass finite numbers above 0")
    for name in ("models", "guides"):
        if len({id(part) for part in (models if name == "models" else guides)}) < k:
            raise ValueError(f"two of the {name} are the same object: build one for each member")
    return [_Member(*parts) for parts in zip(models, *each.values(), strict=True)]


def _check_optimizer(optim: Any) -> None:
    if not isinstance(optim, _ByElement):
        raise TypeError(f"optim is a {type(optim).__name__}; fit_many takes those of pyro_bnn.optim, e.g. Adam")
    reason = optim.unstackable()
    if reason is not None:
        raise ValueError(f"the optimizer cannot step members each by itself: {reason}")


def _fit(members: list[_Member], optim: PyroOptim, options: _Options) -> list[FitResult]:
    """Train all members, those of as many batches together; leave on each guide what it was fitted with."""
    job = Job()
    started = time.perf_counter()
    try:
        admitted = [_admitted(member, options, job) for member in members]
        groups: dict[int, list[int]] = {}
        for k, rows in enumerate(admitted):
            groups.setdefault(rows.stream.num_batches, []).append(k)
        with validate_first_only() as stop_validating:
            stop_validating()
            for chosen in groups.values():
                own = [members[k] for k in chosen]
                job.run(_Training(own, [admitted[k] for k in chosen], copy.deepcopy(optim), options).run)
    finally:
        job.done()
    seconds = time.perf_counter() - started
    results = []
    for member, rows in zip(members, admitted, strict=True):
        fitted = _what_is_fitted(member, rows)
        leave_fitted(member.guide, fitted)
        best = None if member.best is None else member.best[0]
        results.append(FitResult(member.history, best, member.reason or "all epochs done", seconds, fitted))
    return results


def _admitted(member: _Member, options: _Options, job: Job) -> Admitted:
    for program in (member.model, member.guide):
        program.train()
    job.run(pyro.set_rng_seed, member.seed)
    rows = job.run(
        admit,
        member.model,
        member.guide,
        member.data,
        member.val,
        batch_size=options.batch_size,
        weights=member.weights,
        standardise=options.standardise,
    )
    if type(rows.stream) is not Rows:
        raise TypeError(
            "a DataLoader or Dataset that is read batch by batch cannot be batched: pass tensors, or use fit"
        )
    if isinstance(rows.stream.rows.x, tuple):
        raise TypeError("several inputs in a tuple cannot be batched: train these models with fit")
    if rows.stream.some_missing or (rows.validation is not None and bool(rows.validation.y.isnan().any())):
        raise ValueError("targets that are NaN cannot be batched: leave those rows out, or train with fit")
    return rows


def _what_is_fitted(member: _Member, rows: Admitted) -> Fitted:
    return Fitted(
        rows.num_data,
        tuple(rows.first[0].shape[1:]),
        eta=member.kl.eta(epoch=max(member.epoch - 1, 0), num_data=rows.num_data),
        standardiser=rows.standardiser,
        y_standardiser=rows.y_standardiser,
        class_names=member.data.class_names if isinstance(member.data, Split) else None,
        columns=rows.columns,
    )


@final
class _Table:
    """The rows of all members below each other, and where each member's begin."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self.x = torch.cat([split.x for split in splits])
        self.y = torch.cat([split.y for split in splits])
        weighted = any(split.weights is not None for split in splits)
        ones = [
            s.x.new_ones(len(s), dtype=torch.get_default_dtype()) if s.weights is None else s.weights for s in splits
        ]
        self.weights = torch.cat(ones) if weighted else None
        self.sizes = [len(split) for split in splits]
        self.starts = torch.tensor([sum(self.sizes[:k]) for k in range(len(splits))])  # (K,)


@final
class _Training:
    """The training of one stack."""

    def __init__(self, members: list[_Member], admitted: list[Admitted], optim: Any, options: _Options) -> None:
        self.members, self.optim, self.options = members, optim, options
        self.leaves = [relative(rows.parameters, m.model, m.guide) for m, rows in zip(members, admitted, strict=True)]
        self.active = list(range(len(members)))
        self.stack = Stack([m.model for m in members], [m.guide for m in members], self.leaves, local=options.local)
        self.table = _Table([cast(Rows, rows.stream).rows for rows in admitted])
        self.batch_sizes = [rows.stream.batch_size for rows in admitted]
        self.num_batches = admitted[0].stream.num_batches
        self.noise = [torch.Generator().manual_seed(m.seed) for m in members]
        self.order = [torch.Generator().manual_seed(m.seed) for m in members]
        self.dtype = self.stack.prior_loc.dtype
        self.rates = torch.tensor([m.rate for m in members], dtype=self.dtype)
        self.val = (
            None
            if admitted[0].validation is None
            else _Validation([cast(Split, rows.validation) for rows in admitted], self.stack, options.val_samples)
        )
        self.kept: list[dict[str, Tensor] | None] = [None] * len(members)  # parameters at the best epoch
        self.plainly = options.local  # as in fit, the first step, where a program's layers are looked at
        self._ready()

    def _ready(self) -> None:
        """Prepare what depends on which members are in the stack."""
        leaves = self.stack.leaves()
        self.gradients: Callable[[Sequence[Tensor]], list[Tensor]]
        if MISSING or not _all_library(self.stack):
            self.gradients = lambda inputs: _eagerly(self.stack, leaves, inputs)
        else:
            from pyro_bnn.inference.graph.function import RecordedFunction

            self.gradients = RecordedFunction(self.stack.losses, leaves)
        size = max(self.batch_sizes[k] for k in self.active)
        like = self.stack.prior_loc[0]  # (P,)
        noise = self.stack.guide.noise(like, torch.Generator().manual_seed(0))
        self.draws = torch.zeros(len(self.active), len(noise), dtype=self.dtype)
        self.outputs = [
            torch.zeros(len(self.active), size, width, dtype=self.dtype) for width in self.stack.widths.values()
        ]

    def run(self) -> None:
        """Train for all epochs, or until every member has stopped."""
        optim, options = self.optim, self.options
        if isinstance(optim, Scheduled):
            optim.name_parameters(self.stack.parameters)
            optim.prepare(options.epochs, self.num_batches)
        step, began = 0, time.perf_counter()
        for epoch in range(options.epochs):
            losses, nlls, kl_weights, sizes = self._epoch(epoch)  # (M, K) each
            step += self.num_batches
            lines = self._lines(epoch, step, losses, nlls, kl_weights, sizes)
            rates = optim.learning_rates() if isinstance(optim, Scheduled) else {}
            if isinstance(optim, Scheduled):
                optim.end_epoch({})
            seconds = time.perf_counter() - began
            improved = []
            for place, (k, line) in enumerate(zip(self.active, lines, strict=True)):
                member = self.members[k]
                line["learning_rates"] = {name: rate * member.rate for name, rate in rates.items()}
                line["seconds"] = seconds
                if member.reason is not None:
                    continue
                if not math.isfinite(line["loss"]) or not math.isfinite(line["kl"]):
                    member.reason = f"diverged: the loss or the KL is not a number in epoch {epoch + 1}"
                    member.diverged = True
                elif member.take_up(line, options):
                    improved.append(place)
            if options.keep_best:
                self._keep(improved)
            self._let_go()
            if not self.active:
                return
        for place, k in enumerate(self.active):
            if self.members[k].reason is None:
                self._leave(place)

    # -- one epoch ---------------------------------------------------------------------------------------------------

    def _epoch(self, epoch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Walk every member through its rows once; return loss, NLL, weight on the KL and rows of every step."""
        table, k = self.table, len(self.active)
        size = max(self.batch_sizes[i] for i in self.active)
        index = torch.zeros(self.num_batches, k, size, dtype=torch.long)
        filled = torch.zeros(self.num_batches, k, size, dtype=torch.bool)
        for place, i in enumerate(self.active):
            order = torch.randperm(table.sizes[i], generator=self.order[i])
            for b, part in enumerate(order.split(self.batch_sizes[i])):
                index[b, place, : len(part)] = part
                filled[b, place, : len(part)] = True
        index += table.starts[self.active].view(1, k, 1)
        sizes = filled.sum(-1)  # (M, K)
        shares = filled.to(self.dtype) / sizes.unsqueeze(-1)  # (M, K, B)
        if table.weights is not None:
            shares = shares * table.weights[index]
        weights = self._kl_weights(epoch, sizes)  # (M, K)
        per_row = (weights / torch.tensor([table.sizes[i] for i in self.active])).to(self.dtype)
        losses, nlls = [], []
        for b in range(self.num_batches):
            flat = index[b].reshape(-1)
            x = table.x[flat].view(k, size, *table.x.shape[1:])
            y = table.y[flat].view(k, size, *table.y.shape[1:])
            self._draw(sizes[b])
            loss, nll, *gradients = self._gradients([x, y, shares[b], per_row[b], self.draws, *self.outputs])
            self._step(gradients)
            losses.append(loss)
            nlls.append(nll)
        return torch.stack(losses).double(), torch.stack(nlls).double(), weights, sizes.double()

    def _gradients(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return losses, NLLs and gradients of a step."""
        if not self.plainly:
            return self.gradients(inputs)
        self.stack.local, self.plainly = False, False
        try:
            return _eagerly(self.stack, self.stack.leaves(), inputs[: -len(self.outputs)])
        finally:
            self.stack.local = True

    def _draw(self, sizes: Tensor) -> None:
        """Draw every member's noise from its own generator, as its own step would."""
        like = self.stack.prior_loc[0]
        for place, i in enumerate(self.active):
            generator, size = self.noise[i], int(sizes[place])
            self.draws[place] = self.stack.guide.noise(like, generator)
            for drawn in () if self.plainly else self.outputs:
                drawn[place, :size].normal_(0, 0.5, generator=generator)  # as local_output draws it
        for drawn in () if self.plainly else self.outputs:
            drawn.mul_(2)

    def _step(self, gradients: list[Tensor]) -> None:
        parameters = self.stack.leaves()
        before = None if bool((self.rates == 1).all()) else [p.detach().clone() for p in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optim(parameters)
        for parameter in parameters:
            parameter.grad = None
        if before is not None:
            for parameter, start in zip(parameters, before, strict=True):
                factor = self.rates.view(-1, *(1,) * (start.dim() - 1))
                parameter.data.sub_(start).mul_(factor).add_(start)

    def _kl_weights(self, epoch: int, sizes: Tensor) -> Tensor:
        known: dict[tuple[int, int, int, int], float] = {}
        rows = []
        for b, of_batch in enumerate(sizes.tolist()):
            row = []
            for i, size in zip(self.active, of_batch, strict=True):
                member, n = self.members[i], self.table.sizes[i]
                key = (id(member.kl), b, size, n)
                if key not in known:
                    known[key] = member.kl.weight(
                        batch=b, batch_size=size, epoch=epoch, num_batches=self.num_batches, num_data=n
                    )
                row.append(known[key])
            rows.append(row)
        return torch.tensor(rows, dtype=torch.float64)

    def _lines(
        self, epoch: int, step: int, losses: Tensor, nlls: Tensor, weights: Tensor, sizes: Tensor
    ) -> list[dict[str, Any]]:
        share = sizes / sizes.sum(0)  # (M, K)
        states = [self.noise[i].get_state() for i in self.active]
        noise = torch.stack([self.stack.guide.noise(self.stack.prior_loc[0], self.noise[i]) for i in self.active])
        for i, state in zip(self.active, states, strict=True):  # what is logged draws nothing
            self.noise[i].set_state(state)
        n = torch.tensor([self.table.sizes[i] for i in self.active], dtype=torch.float64)
        kl = (self.stack.kl(noise).double() / n).tolist()
        nll, loss, weight = ((share * values).sum(0).tolist() for values in (nlls, losses, weights))
        scores = [{} for _ in self.active] if self.val is None else self.val.scores(self.stack, self.active)
        return [
            {
                "epoch": epoch + 1,
                "step": step,
                "nll": nll[j],
                "loss": loss[j],
                "kl_weight": weight[j],
                "kl": kl[j],
                "elbo": -(nll[j] + kl[j]),
                **scores[j],
            }
            for j in range(len(self.active))
        ]

    # -- members that stop -------------------------------------------------------------------------------------------

    def _keep(self, places: list[int]) -> None:
        for place in places:
            self.kept[self.active[place]] = {
                name: parameter.detach()[place].clone() for name, parameter in self.stack.parameters.items()
            }

    @torch.no_grad()
    def _leave(self, place: int) -> None:
        """Put a member's parameters into its guide and model."""
        k = self.active[place]
        self.members[k].gone = True
        kept = self.kept[k]
        if kept is None and self.members[k].diverged:
            return
        for name, leaf in self.leaves[k].items():
            leaf.data.copy_(self.stack.parameters[name][place] if kept is None else kept[name])

    def _let_go(self) -> None:
        """Leave the parameters of members that have just stopped; shorten the stack once half of it has."""
        going = [place for place, k in enumerate(self.active) if self.members[k].reason is not None]
        for place in going:
            if not self.members[self.active[place]].gone:
                self._leave(place)
        if not going or 2 * len(going) < len(self.active):
            return
        stay = torch.tensor([place for place in range(len(self.active)) if place not in set(going)], dtype=torch.long)
        self.active = [self.active[place] for place in stay.tolist()]
        if not self.active:
            return
        self.optim.keep_rows(stay)
        self.stack.keep_rows(stay)
        self.rates = self.rates[stay]
        self._ready()


@final
class _Validation:
    """The validation rows of all members, and the draws that score them: those of one seed, as in `validate`."""

    def __init__(self, splits: Sequence[Split], stack: Stack, num_samples: int) -> None:
        longest = max(len(split) for split in splits)
        self.x = torch.stack([_filled_up(split.x, longest) for split in splits])  # (K, V, ...)
        self.y = torch.stack([_filled_up(split.y, longest) for split in splits])
        self.rows = [len(split) for split in splits]
        generator, like = torch.Generator().manual_seed(0), stack.prior_loc[0]
        self.noise = [stack.guide.noise(like, generator) for _ in range(num_samples)]

    @torch.no_grad()
    def scores(self, stack: Stack, active: list[int]) -> list[dict[str, float]]:
        """Return `val_nll`, and for classes `val_accuracy`, of every member in the stack."""
        x, y = self.x[active], self.y[active]
        total: Tensor | None = None
        probs: Tensor | None = None
        for noise in self.noise:
            log_prob, classes = stack.log_probs(x, y, noise)
            total = log_prob if total is None else torch.logaddexp(total, log_prob)  # (K, V)
            if classes is not None:
                probs = classes.exp() if probs is None else probs + classes.exp()  # (K, V, C)
        assert total is not None
        nll = math.log(len(self.noise)) - total  # (K, V)
        scores = []
        for place, k in enumerate(active):
            cut = slice(0, self.rows[k])
            scores.append({"val_nll": float(nll[place, cut].mean())})
            if probs is not None:
                right = probs[place, cut].argmax(-1) == y[place, cut]
                scores[-1]["val_accuracy"] = float(right.float().mean())
        return scores


def _filled_up(rows: Tensor, length: int) -> Tensor:
    """Return rows (V, ...) and the first of them again, up to a length."""
    return torch.cat([rows, rows[:1].expand(length - len(rows), *rows.shape[1:])])


def _all_library(stack: Stack) -> bool:
    """Return whether network, prior and likelihood are torch's or this library's code, which may be recorded."""
    return all(
        is_library(module) for program in (stack.model, stack.guide) for module in cast(nn.Module, program).modules()
    )


def _eagerly(stack: Stack, leaves: list[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    loss, nll = stack.losses(*inputs)
    return [loss.detach(), nll.detach(), *torch.autograd.grad(loss.sum(), leaves)]


# -- processes ---------------------------------------------------------------------------------------------------------


def _in_processes(members: list[_Member], optim: PyroOptim, options: _Options, jobs: int) -> list[FitResult]:
    """Train parts of the members in processes of their own, and take their parameters up."""
    parts = [members[job::jobs] for job in range(jobs)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        done = list(pool.map(_one_part, parts, [optim] * jobs, [options] * jobs))
    results: list[Any] = [None] * len(members)
    for job, (states, found) in enumerate(done):
        for place, (state, result) in enumerate(zip(states, found, strict=True)):
            member = members[job + place * jobs]
            for program, values in zip((member.model, member.guide), state, strict=True):
                program.load_state_dict(values)
            leave_fitted(member.guide, cast(Fitted, result.fitted))
            results[job + place * jobs] = result
    return results


def _one_part(
    members: list[_Member], optim: PyroOptim, options: _Options
) -> tuple[list[tuple[dict[str, Tensor], dict[str, Tensor]]], list[FitResult]]:
    torch.set_num_threads(1)
    results = _fit(members, optim, options)
    return [(member.model.state_dict(), member.guide.state_dict()) for member in members], results
