"""
The compiled kernel as two operations that autograd, and a recording, see as one each.

    draw        (loc, rho) -> a draw w = loc + softplus(rho) z, and its KL; z are the numbers of torch.randn(P)
    gradients   (gradients of w by site, of KL) -> those of loc and rho

`draw_and_kl` puts them together for autograd. Between the two passes either z is kept (P numbers), or, for vectors too
long for the caches, the states of the generator from which it is made again; both are the same numbers.

What a recorded step may do besides is said by :func:`recording_run`: draws and noise then take the memory of the step
before, and the gradients of loc and rho are not written out but left to be made, as :class:`Deferred`, so that an
optimizer whose step the kernel knows moves both in the same pass.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, final, runtime_checkable

import torch
from torch import Tensor
from torch import library as operations
from torch.autograd.function import once_differentiable

from pyro_bnn.common.adam import AdamNumbers
from pyro_bnn.inference.native.build import CHUNK, AdamRule, Kernel, Site, kernel

__all__ = [
    "Deferred",
    "Digest",
    "FlatSites",
    "KnowsAdam",
    "checking",
    "draw_and_kl",
    "recording_run",
    "takes_outputs",
    "usable",
    "without_gradients",
]

MIN_SIZE = 1 << 14
"""Vectors shorter than this are left to torch."""
KEPT_SIZE = 1 << 22
"""Up to here the noise is kept between the passes, and gradients are compared in full when a step is checked."""

Numbers: TypeAlias = Sequence[float]


class FlatSites(NamedTuple):
    """Where sites end in the flat vector, their shapes, and the numbers of their priors."""

    stops: list[int]
    shapes: list[torch.Size]
    prior_loc: list[float]
    prior_inv_scale: list[float]


@runtime_checkable
class KnowsAdam(Protocol):
    """An optimizer that says whether its next step on a parameter is torch's fused Adam and nothing else."""

    def plain_adam(self, parameter: Tensor) -> AdamNumbers | None:
        """Return the step, or None if it is another."""
        ...


class Digest(NamedTuple):
    """
    What is compared of two gradients that are too long to be kept: a norm for each range, and one entry of 257.

    `places` is where the gradients would have been: the memory of the two tensors that stand for them.
    """

    norms: Tensor
    sample: Tensor
    places: list[int]


_RANGE = 16
_EVERY = 257


class _Scope(threading.local):
    """What this thread is about."""

    def __init__(self) -> None:
        self.buffers: dict[str, Tensor] | None = None
        self.defer = False
        self.digests: list[Digest] | None = None
        self.placeholders = False


_scope = _Scope()


@contextmanager
def recording_run(buffers: dict[str, Tensor], *, defer: bool) -> Iterator[None]:
    """
    Run a recording inside: draws and noise lie in `buffers`, from one run to the next.

    :param defer: whether `gradients` may return a :class:`Deferred` in the place of both gradients.
    """
    before = _scope.buffers, _scope.defer
    _scope.buffers, _scope.defer = buffers, defer
    try:
        yield
    finally:
        _scope.buffers, _scope.defer = before


@contextmanager
def checking() -> Iterator[list[Digest]]:
    """
    Run a step inside that others are compared with.

    Gradients of vectors longer than `KEPT_SIZE` are left out, and the list has their :class:`Digest`.
    """
    before, _scope.digests = _scope.digests, []
    try:
        yield _scope.digests
    finally:
        _scope.digests = before


@contextmanager
def without_gradients() -> Iterator[None]:
    """Run a step inside of which only the operations count: the gradients of loc and rho have no values."""
    before, _scope.placeholders = _scope.placeholders, True
    try:
        yield
    finally:
        _scope.placeholders = before


def usable(loc: Tensor, rho: Tensor) -> bool:
    """Return whether the kernel takes these vectors now."""
    return (
        loc.numel() >= MIN_SIZE
        and all(t.device.type == "cpu" and t.dtype is torch.float32 and t.is_contiguous() for t in (loc, rho))
        and loc.requires_grad
        and rho.requires_grad
        and torch.is_grad_enabled()
        and kernel() is not None
    )


def _kernel() -> Kernel:
    found = kernel()
    assert found is not None
    return found


def _buffer(name: str, size: int, dtype: torch.dtype) -> Tensor:
    """Return memory for so many numbers: that of the step before in a recording, else new."""
    if _scope.buffers is None:
        return torch.empty(size, dtype=dtype)
    found = _scope.buffers.get(name)
    if found is None or found.numel() != size or found.dtype != dtype:
        found = _scope.buffers[name] = torch.empty(size, dtype=dtype)
    return found


@lru_cache(maxsize=64)
def _sites_of(stops: tuple[int, ...], locs: tuple[float, ...], invs: tuple[float, ...]) -> ctypes.Array[Site]:
    """Return sites without gradients, which nobody writes to."""
    return (Site * len(stops))(*(Site(None, *fields) for fields in zip(stops, locs, invs, strict=True)))


def _sites(
    stops: Sequence[int], locs: Numbers, invs: Numbers, gradients: Sequence[Tensor | None] = ()
) -> ctypes.Array[Site]:
    sites = _sites_of(tuple(stops), tuple(locs), tuple(invs))
    if gradients:
        sites = type(sites).from_buffer_copy(sites)
        for site, gradient in zip(sites, gradients, strict=True):
            site.gradient = None if gradient is None else gradient.data_ptr()
    return sites


def draw(
    loc: Tensor, rho: Tensor, stops: Sequence[int], prior_loc: Numbers, prior_inv_scale: Numbers
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a draw (P,), what makes its noise again (z itself, or states of the generator), and the KL (0-d)."""
    size, program = loc.numel(), _kernel()
    out = _buffer("draw", size, loc.dtype)
    kept = size <= KEPT_SIZE or not program.makes_noise
    noise = _buffer("noise", size, loc.dtype) if kept else None
    states: Tensor | None = None
    if program.makes_noise:
        states = _buffer("states", (program.chunks(size) + 1) * 626, torch.int32)
        program.noise_states(size, torch.default_generator, states)
    else:
        assert noise is not None
        torch.randn(size, dtype=loc.dtype, out=noise)
    sites = _sites(stops, prior_loc, prior_inv_scale)
    kl = program.draw(sites, loc, rho, out, noise=noise, states=states)
    made = noise if noise is not None else cast(Tensor, states)
    return out, made, torch.tensor(kl, dtype=loc.dtype)


def product(name: str, a: Tensor, b: Tensor) -> Tensor:
    """Return the product of (m, k) and (k, n) in memory that the next run of the recording uses again."""
    out = _buffer(name, a.shape[0] * b.shape[1], a.dtype).view(a.shape[0], b.shape[1])
    return torch.mm(a, b, out=out)


def gradients(
    of_sites: Sequence[Tensor | None],
    of_kl: Tensor,
    loc: Tensor,
    rho: Tensor,
    noise: Tensor,
    stops: Sequence[int],
    prior_loc: Numbers,
    prior_inv_scale: Numbers,
) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to loc and rho (P,), or a :class:`Deferred` twice, where that was said."""
    contiguous = [None if g is None else g.contiguous() for g in of_sites]
    later = Deferred(loc, rho, contiguous, float(of_kl), noise, stops, prior_loc, prior_inv_scale)
    if _scope.defer:
        return later, later  # type: ignore[return-value]
    if _scope.placeholders:
        return torch.empty_like(loc), torch.empty_like(rho)  # memory that nobody touches is not fetched
    if _scope.digests is not None and loc.numel() > KEPT_SIZE:
        of_loc, of_rho = torch.empty_like(loc), torch.empty_like(rho)
        _scope.digests.append(later.digest(of_loc, of_rho))
        return of_loc, of_rho
    return later.gradients()


@final
@dataclass(eq=False)
class Deferred:
    """Gradients with respect to loc and rho that have not been written out: what they are made from."""

    loc: Tensor
    rho: Tensor
    of_sites: list[Tensor | None]
    of_kl: float
    noise: Tensor
    stops: Sequence[int]
    prior_loc: Numbers
    prior_inv_scale: Numbers

    def _do(self, **options: Any) -> None:
        sites = _sites(self.stops, self.prior_loc, self.prior_inv_scale, self.of_sites)
        noise, states = (self.noise, None) if self.noise.is_floating_point() else (None, self.noise)
        _kernel().gradients(
            sites, self.loc.detach(), self.rho.detach(), self.of_kl, noise=noise, states=states, **options
        )

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return both gradients (P,)."""
        out = torch.empty_like(self.loc), torch.empty_like(self.rho)
        self._do(out=out)
        return out

    def digest(self, *stand_ins: Tensor) -> Digest:
        """Return a summary of both gradients without making room for them."""
        size, chunks = self.loc.numel(), Kernel.chunks(self.loc.numel())
        firsts = range(0, chunks, _RANGE)
        # all room is made before: what a long loop leaves between blocks that come and go stays with the process
        rows = torch.empty(2, (_RANGE + 1) * CHUNK)
        wide = torch.empty_like(rows, dtype=torch.float64)
        norms, sample = torch.empty(2, len(firsts), dtype=torch.float64), torch.empty(2, size // _EVERY + len(firsts))
        taken = 0
        for i, first in enumerate(firsts):
            last = min(first + _RANGE, chunks)
            start, stop = first * CHUNK, size if last == chunks else last * CHUNK
            self._do(out=rows, chunks=(first, last))
            found = rows[:, : stop - start]
            torch.linalg.vector_norm(wide[:, : stop - start].copy_(found), dim=1, out=norms[:, i])
            some = found[:, ::_EVERY]
            sample[:, taken : taken + some.shape[1]] = some
            taken += some.shape[1]
        return Digest(norms, sample[:, :taken], [t.data_ptr() for t in stand_ins])

    def step(self, optimizer: KnowsAdam) -> bool:
        """Move loc and rho by a step of the optimizer, if the kernel knows it; return whether it does."""
        if not _kernel().steps_adam:
            return False
        asked = [optimizer.plain_adam(parameter) for parameter in (self.loc, self.rho)]
        known = [numbers for numbers in asked if numbers is not None]
        if len(known) < len(asked):
            return False
        rules = []
        for numbers in known:
            numbers.steps.add_(1)
            rules.append(
                AdamRule.of(
                    numbers.mean,
                    numbers.square,
                    numbers.lr,
                    numbers.beta1,
                    numbers.beta2,
                    numbers.eps,
                    numbers.steps.item(),
                )
            )
        self._do(rules=tuple(rules))
        for tensor in (self.loc, self.rho, *(t for n in known for t in (n.mean, n.square))):
            torch.autograd.graph.increment_version(tensor)
        return True


def takes_outputs(mean: Tensor, variance: Tensor) -> bool:
    """Return whether the kernel draws the outputs of a layer with these moments."""
    return (
        mean.numel() >= MIN_SIZE
        and mean.shape == variance.shape
        and all(t.device.type == "cpu" and t.dtype is torch.float32 and t.is_contiguous() for t in (mean, variance))
        and (found := kernel()) is not None
        and found.makes_noise
    )


def outputs(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean + sqrt(variance) z, and its slope in the variance, z / (2 sqrt(variance)), 0 where that is 0."""
    program = _kernel()
    return program.outputs(mean, variance, program.noise_states(mean.numel(), torch.default_generator))


# ---------------------------------------------------------------------------------------------------- as operations

_NUMBERS = "int[] stops, float[] prior_loc, float[] prior_inv_scale"
_OPERATIONS = operations.Library("pyro_bnn", "DEF")
_OPERATIONS.define(
    f"mean_field_draw(Tensor loc, Tensor rho, {_NUMBERS}) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_OPERATIONS.define(
    "mean_field_gradients(Tensor?[] of_sites, Tensor of_kl, Tensor loc, Tensor rho, Tensor noise, "
    f"{_NUMBERS}) -> (Tensor, Tensor)"
)
_OPERATIONS.define(
    "normal_outputs(Tensor mean, Tensor variance) -> (Tensor, Tensor)", tags=(torch.Tag.nondeterministic_seeded,)
)
_OPERATIONS.impl("normal_outputs", outputs, "CPU")
_OPERATIONS.impl("mean_field_draw", draw, "CPU")
_OPERATIONS.impl("mean_field_gradients", gradients, "CPU")

DRAW = torch.ops.pyro_bnn.mean_field_draw.default
OUTPUTS = torch.ops.pyro_bnn.normal_outputs.default
GRADIENTS = torch.ops.pyro_bnn.mean_field_gradients.default


class _MeanField(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loc: Tensor, rho: Tensor, sites: FlatSites) -> tuple[Tensor, ...]:
        numbers = sites.stops, sites.prior_loc, sites.prior_inv_scale
        drawn, noise, kl = DRAW(loc, rho, *numbers)
        ctx.save_for_backward(loc, rho, noise)
        ctx.numbers = numbers
        ctx.set_materialize_grads(False)
        lengths = [b - a for a, b in zip((0, *sites.stops), sites.stops, strict=False)]
        values = [v.view(shape) for v, shape in zip(drawn.split(lengths), sites.shapes, strict=True)]
        return kl, *values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_kl: Tensor | None, *of_sites: Tensor | None) -> tuple[Tensor, Tensor, None]:
        loc, rho, noise = ctx.saved_tensors
        of_kl = loc.new_zeros(()) if of_kl is None else of_kl
        return (*GRADIENTS(list(of_sites), of_kl, loc, rho, noise, *ctx.numbers), None)


def draw_and_kl(loc: Tensor, rho: Tensor, sites: FlatSites) -> tuple[Tensor, list[Tensor]]:
    """Return the KL of N(loc, softplus(rho)^2) and the priors, and a draw of every site in its shape."""
    kl, *values = _MeanField.apply(loc, rho, sites)
    return kl, values
