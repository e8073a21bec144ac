"""
Averages along a training run: of the moments of a variational posterior (HWA), or of its raw parameters (SWA, EMA).

HWA takes a snapshot (mu_j, sigma_j) of a mean-field guide every c steps from step `start` on. With n snapshots taken,

    loc      = mean_j mu_j
    within   = mean_j sigma_j^2
    between  = mean_j mu_j^2 - loc^2      by Welford: n v_n = (n-1) v_(n-1) + (mu_n - loc_(n-1)) (mu_n - loc_n)

and the averaged guide is N(loc, variance) with

    total       within + between     the exact first two moments of the mixture of the snapshots; the default
    within      within               the mean variance alone: an average guide, blind to the trajectory
    trajectory  between              SWAG's diagonal: the guide's own sigmas are dropped
    literal     v <- (n v + mu_(n+1)^2) / (n+1) - loc_(n+1)^2       as printed

and, from the last R >= 2 snapshots with D_r = mu_r - (mean of the first r snapshots), a low-rank covariance

    diag(within) + diag(between) / 2 + D D' / (2 (R - 1))           `low_rank()`
    diag(variance) / 2               + D D' / (2 (R - 1))           `low_rank(literal=True)`, eq. 5 as printed

References: Hyperparameters Weight Averaging in Bayesian Neural Networks, algorithm 1, eqs. 4 and 5; Izmailov et al.
2018 (SWA); Maddox et al. 2019 (SWAG).

Departures from the paper. Its eq. 4 feeds a variance, from which the squared mean was taken already, back into an
average of second moments; on constant snapshots it goes negative (10, 10, 10, 10 gives 0, -50, -100, -150), and the
guide's sigma never enters. It is here as `literal`, for studies; where it is negative a guide can only take 0. The
number of snapshots is counted, not k / c, which is wrong after a warm-up. Gradients are taken at the iterate, not at
the average.
"""

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, final, get_args

import pyro.poutine as poutine
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from pyro_bnn.common.contract import contract_of
from pyro_bnn.common.moments import Welford
from pyro_bnn.data.arrays import number_of_rows, pieces
from pyro_bnn.data.on_disk import MappedRows
from pyro_bnn.data.split import Split, as_split
from pyro_bnn.data.standardise import plain
from pyro_bnn.inference.checkpoint import synchronise
from pyro_bnn.inference.door import known_dtype
from pyro_bnn.inference.svi import Callback, FitState

__all__ = [
    "EMA",
    "HWA",
    "SWA",
    "RunningMoments",
    "Variance",
    "refresh_batch_norm",
]

Variance = Literal["total", "within", "trajectory", "literal"]
"""Which deviations an average has; see :class:`HWA`."""

SMALLEST_SD = 1e-8
"""What a guide takes for a standard deviation of 0."""


# --------------------------------------------------------------------------------------------------- moments


def literal_variance(v: Tensor, mu: Tensor, new_mean: Tensor, n: int) -> Tensor:
    """Return eq. 4 as printed, (n v + mu^2) / (n + 1) - new_mean^2, for n snapshots before this one."""
    return (n * v + mu.square()) / (n + 1) - new_mean.square()


@final
class RunningMoments:
    """
    The moments of a trajectory of (mu, sigma), (P,) each, in float64 and one pass.

    :param variance: which of them is `.variance`: 'total', 'within', 'trajectory' or 'literal'.
    :param rank: R, how many deviations to keep for `low_rank`.
    """

    def __init__(self, variance: Variance = "total", rank: int = 0) -> None:
        if variance not in get_args(Variance):
            raise ValueError(f"variance={variance!r} is unknown: pass one of {', '.join(get_args(Variance))}")
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 or rank == 1:
            raise ValueError(f"rank={rank!r} is not allowed: keep 0 deviations or at least 2")
        self.mode = variance
        self.rank = rank
        self._means: Welford[Tensor] = Welford()
        self._sums: dict[str, Tensor] = {}
        self._deviations: deque[Tensor] = deque(maxlen=rank)

    @torch.no_grad()
    def update(self, mu: Tensor, sigma: Tensor | None = None) -> None:
        """
        Take a snapshot: means (P,) and standard deviations (P,), none for a point.

        :param mu: means (P,).
        :param sigma: standard deviations (P,), None for a point.
        """
        mu = mu.detach().double()
        within = torch.zeros_like(mu) if sigma is None else sigma.detach().double().square()
        if not self._sums:
            self._sums = {name: torch.zeros_like(mu) for name in ("within", "literal")}
            self._means = Welford(torch.zeros_like(mu))
        sums, means = self._sums, self._means
        if mu.shape != means.mean.shape or within.shape != mu.shape:
            raise ValueError(
                f"the snapshot has shapes {tuple(mu.shape)} and {tuple(within.shape)}, the trajectory "
                f"{tuple(means.mean.shape)}: pass one mean and one deviation per weight"
            )
        n = self.count
        means.update(mu)
        sums["within"] = sums["within"] + (within - sums["within"]) / (n + 1)
        sums["literal"] = literal_variance(sums["literal"], mu, means.mean, n)
        if self.rank:
            self._deviations.append((mu - means.mean).float())

    @property
    def count(self) -> int:
        """How many snapshots were taken."""
        return self._means.count

    def _taken(self) -> None:
        if not self.count:
            raise RuntimeError("no snapshot was taken yet: is `start` beyond the end of the training?")

    @property
    def mean(self) -> Tensor:
        """Mean of the means, (P,)."""
        self._taken()
        return self._means.mean

    @property
    def within(self) -> Tensor:
        """Mean of the variances, (P,)."""
        self._taken()
        return self._sums["within"]

    @property
    def between(self) -> Tensor:
        """Variance of the means with divisor n, (P,)."""
        self._taken()
        return self._means.variance()

    @property
    def variance(self) -> Tensor:
        """The variance asked for, (P,); 'literal' may be negative, the others cannot."""
        if self.mode == "literal":
            self._taken()
            return self._sums["literal"]
        if self.mode == "within":
            return self.within
        return self.between if self.mode == "trajectory" else self.within + self.between

    def low_rank(self, *, literal: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """
        Return mean (P,), diagonal (P,) and factor (P, R) of the low-rank covariance above.

        :param literal: the diagonal of the paper as printed, half of the variances, not that which leaves them as they
            are.
        """
        if len(self._deviations) < 2:
            raise RuntimeError(
                f"{len(self._deviations)} snapshots are kept and a covariance needs 2: keep more with rank=, start "
                f"earlier or shorten the cycle"
            )
        columns = torch.stack(list(self._deviations), dim=-1).double()  # (P, R)
        factor = columns / (2 * (len(self._deviations) - 1)) ** 0.5
        diag = self.variance / 2 if literal else self.within + self.between / 2
        return self.mean, diag, factor

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        means = {"mean": self._means.mean, "spread": self._means.spread} if self.count else {}
        return {"count": self.count, "sums": {**self._sums, **means}, "deviations": list(self._deviations)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Take up what `state_dict` returned.

        :param state: what `state_dict` returned.
        """
        sums = dict(state["sums"])
        self._means = Welford()
        if sums:
            n = state["count"]
            spread = n * sums.pop("between") if "between" in sums else sums.pop("spread")  # a state of before
            self._means.count, self._means.mean, self._means.spread = n, sums.pop("mean"), spread
        self._sums = sums
        self._deviations = deque(state["deviations"], maxlen=self.rank)


# -------------------------------------------------------------------------------------- what is common to averages


def _norm_layers(model: Any) -> list[_NormBase]:
    if not isinstance(model, nn.Module):
        return []
    return [m for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]


@torch.no_grad()
def refresh_batch_norm(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Any,
    *,
    batch_size: int = 100,
    seed: int = 0,
) -> None:
    """
    Recompute the running statistics of batch normalisation over `data`, each batch under one draw of the guide.

    So they belong to the weights that predictions will use; the random state is left as it was. A model without such
    layers is left alone.

    :param model: the Pyro program.
    :param guide: its guide.
    :param data: training rows, in any form that `fit` takes.
    :param batch_size: rows of a batch.
    :param seed: of the draws.
    """
    layers = _norm_layers(model)
    if not layers:
        return
    rows = data if isinstance(data, MappedRows) else as_split(data, dtype=known_dtype(model, guide), missing=True)
    were = [(m, m.training, m.momentum) for m in layers]
    for m in layers:
        m.reset_running_stats()
        m.momentum, m.training = None, True  # None is torch's cumulative average
    try:
        with torch.random.fork_rng(), poutine.block():
            torch.manual_seed(seed)
            for x in _inputs(rows, batch_size):
                if number_of_rows(x) == 1 and len(rows) > 1:
                    continue  # batch statistics of a single row are none
                trace = poutine.trace(guide).get_trace(x)
                poutine.replay(model, trace=trace)(x)
    finally:
        for m, training, momentum in were:
            m.training, m.momentum = training, momentum


def _inputs(rows: Split | MappedRows, batch_size: int) -> Iterator[Any]:
    """Yield the inputs of batches in the order of the rows."""
    if isinstance(rows, Split):
        yield from pieces(rows.x, batch_size)
    else:
        yield from (plain(piece.x) for piece in rows.pieces(batch_size))


class Averager(Callback, ABC):
    """
    What averages have in common: when they look, and how the average takes the iterate's place and gives it back.

    :param guide: the guide in training.
    :param start: the number of steps before the first snapshot may be taken.
    :param cycle: steps between snapshots; they are taken at steps start + cycle, start + 2 cycle, ...
    :param model: the model in training; its running statistics are refreshed for the average, given `data`.
    :param data: training rows for that.
    """

    def __init__(
        self, guide: Callable[..., Any], start: int = 0, cycle: int = 1, *, model: Any = None, data: Any = None
    ) -> None:
        for name, value, least in (("start", start, 0), ("cycle", cycle, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r} is not a number of steps: pass an integer of at least {least}")
        if _norm_layers(model) and data is None:
            raise ValueError("the model has batch normalisation, whose statistics have to be refreshed: pass data=")
        self.guide = guide
        self.start_step = start
        self.cycle = cycle
        self.model = model
        self.data = data
        self.steps = 0
        self._swapped = False

    @abstractmethod
    def snapshot(self) -> None:
        """Take the iterate into the average."""

    @abstractmethod
    def _put(self) -> None:
        """Put the average in the iterate's place."""

    def update(self) -> None:
        """Count a step, and take a snapshot if it is time."""
        if self._swapped:
            raise RuntimeError("inside averaged() the guide holds the average: train after leaving it")
        self.steps += 1
        if self.steps > self.start_step and (self.steps - self.start_step) % self.cycle == 0:
            self.snapshot()

    def step(self, state: FitState) -> None:
        """Count a step of a fit."""
        self.update()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let guide and model hold the average, and give the iterate back on leaving, whatever happens inside."""
        if self._swapped:
            raise RuntimeError("averaged() inside averaged(): the guide holds the average already")
        programs = [p for p in (self.guide, self.model) if isinstance(p, nn.Module)]
        for program in programs:
            synchronise(program)
        kept = [copy.deepcopy(program.state_dict()) for program in programs]
        self._swapped = True
        try:
            self.apply()
            yield
        finally:
            for program, state in zip(programs, kept, strict=True):
                program.load_state_dict(state)
            self._swapped = False

    @torch.no_grad()
    def apply(self) -> None:
        """Put the average in the iterate's place for good, and refresh the model's running statistics."""
        self._put()
        if self.model is not None and self.data is not None:
            refresh_batch_norm(self.model, self.guide, self.data)


# ------------------------------------------------------------------------------------------------------- HWA


@final
class HWA(Averager):
    """
    Average the means and standard deviations of a mean-field guide along its training.

    Use it as a callback of `fit`, or call `update()` after every step; then `with hwa.averaged(): ...`, or `apply()`.

    :param guide: a guide with one mean and one standard deviation per weight, as AutoMeanFieldNormal.
    :param start: steps before averaging begins.
    :param cycle: steps between snapshots; the end of each cycle of a cyclical learning rate.
    :param variance: 'total', 'within', 'trajectory' or 'literal'.
    :param rank: how many of the last deviations to keep for `moments.low_rank()`.
    :param model: the model; needed if it has parameters of its own or batch normalisation.
    :param data: training rows, to refresh batch normalisation with.
    """

    def __init__(
        self,
        guide: Any,
        start: int = 0,
        cycle: int = 1,
        variance: Variance = "total",
        *,
        rank: int = 0,
        model: Any = None,
        data: Any = None,
    ) -> None:
        super().__init__(guide, start, cycle, model=model, data=data)
        if not contract_of(guide).takes_moments:
            raise TypeError(
                f"{type(guide).__name__} has no means and deviations to average: pass an AutoMeanFieldNormal, or use "
                f"SWA, which averages raw parameters"
            )
        self.moments = RunningMoments(variance, rank)
        self._own = _RawAverage()

    def snapshot(self) -> None:
        """Take the guide's means and deviations, and the model's own parameters, into the average."""
        guide = contract_of(self.guide)
        views = [guide.site(name) for name in guide.site_names()]
        mu = torch.cat([view.loc.reshape(-1) for view in views])
        sigma = torch.cat([view.scale.reshape(-1) for view in views])
        self.moments.update(mu, sigma)
        self._own.update(_floating(self.model))

    def _put(self) -> None:
        guide = contract_of(self.guide)
        names = guide.site_names()
        views = [guide.site(name) for name in names]
        sizes = [view.loc.numel() for view in views]
        sd = self.moments.variance.clamp_min(0).sqrt().clamp_min(SMALLEST_SD)
        pieces = zip(names, views, self.moments.mean.split(sizes), sd.split(sizes), strict=True)
        for name, view, mean, deviation in pieces:
            shape = view.loc.shape
            guide.assign(name, mean.reshape(shape).to(view.loc), deviation.reshape(shape).to(view.scale))
        self._own.put(_floating(self.model))

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumption needs."""
        return {"steps": self.steps, "moments": self.moments.state_dict(), "own": self._own.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.steps = state["steps"]
        self.moments.load_state_dict(state["moments"])
        self._own.load_state_dict(state["own"])


# ------------------------------------------------------------------------------------------------ raw parameters


def _floating(*programs: Any) -> dict[str, Tensor]:
    """Return the trained parameters of programs, unconstrained, by name."""
    tensors: dict[str, Tensor] = {}
    for i, program in enumerate(programs):
        if isinstance(program, nn.Module):
            synchronise(program)
            tensors |= {f"{i}.{name}": p for name, p in program.named_parameters() if p.requires_grad}
    return tensors


@final
class _RawAverage:
    """A running average of tensors by name: (1 - rate) average + rate new, rate 1 / (n + 1) or constant."""

    def __init__(self, decay: float | None = None) -> None:
        self.decay = decay
        self.count = 0
        self.tensors: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, named: Mapping[str, Tensor]) -> None:
        """Take tensors into the average; the first ones are the average."""
        rate = 1 / (self.count + 1) if self.decay is None or not self.count else 1 - self.decay
        for name, tensor in named.items():
            new = tensor.detach().double()
            self.tensors[name] = new.clone() if not self.count else torch.lerp(self.tensors[name], new, rate)
        self.count += 1

    @torch.no_grad()
    def put(self, named: Mapping[str, Tensor]) -> None:
        """Copy the average into tensors."""
        if not self.count:
            raise RuntimeError("no snapshot was taken yet: is `start` beyond the end of the training?")
        for name, tensor in named.items():
            tensor.copy_(self.tensors[name])

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "tensors": dict(self.tensors)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count, self.tensors = state["count"], dict(state["tensors"])


class _RawAverager(Averager, ABC):
    """Averages of the raw parameters of guide and model."""

    _average: _RawAverage

    def snapshot(self) -> None:
        """Take the raw parameters of guide and model into the average."""
        self._average.update(_floating(self.guide, self.model))

    def _put(self) -> None:
        self._average.put(_floating(self.guide, self.model))

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumption needs."""
        return {"steps": self.steps, "average": self._average.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.steps = state["steps"]
        self._average.load_state_dict(state["average"])


@final
class SWA(_RawAverager):
    """
    The plain average of raw parameters (rho, not sigma) over the snapshots: stochastic weight averaging.

    Works with any guide that is a module. See `Averager` for the arguments.
    """

    def __init__(
        self, guide: Callable[..., Any], start: int = 0, cycle: int = 1, *, model: Any = None, data: Any = None
    ) -> None:
        super().__init__(guide, start, cycle, model=model, data=data)
        self._average = _RawAverage()


@final
class EMA(_RawAverager):
    """
    The exponential moving average of raw parameters, average <- decay average + (1 - decay) new, begun at the first.

    Works with any guide that is a module. See `Averager` for the other arguments.

    :param decay: in (0, 1); about 1 / (1 - decay) snapshots count.
    """

    def __init__(
        self,
        guide: Callable[..., Any],
        start: int = 0,
        cycle: int = 1,
        *,
        decay: float = 0.99,
        model: Any = None,
        data: Any = None,
    ) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay={decay} is not allowed: pass a number between 0 and 1, both excluded")
        super().__init__(guide, start, cycle, model=model, data=data)
        self._average = _RawAverage(decay)
