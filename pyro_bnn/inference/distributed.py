"""
Data-parallel training: K processes ("ranks"), each with its own rows of every batch and its own noise.

With B_r of the B rows of a batch on rank r, and w_r its draw of the weights, rank r differentiates what one process
would of a batch of B_r rows, and the gradient of the step is

    sum_r (B_r / B) grad [ mean over its rows of -log p(y | x, w_r)  +  c KL(q || p) ],      sum_r B_r / B = 1

so that every row counts once and the KL counts once. It has the expectation of one process's gradient at B rows; with
noise = "shared" (all w_r the same) it is that gradient, up to rounding. A step is one all-reduce of one flat vector:
the gradients of all parameters (means and deviations are flat vectors already), the loss, the nll, and which parameters
took part. Optimizers then do the same everywhere, which hashes of parameters and states confirm at the start and after
every epoch.

What the ranks hold in common: parameters and buffers (rank 0's, at the start), the order of the rows, the line of every
epoch. What each has of its own: its noise, whose states are all in a checkpoint.

Batch normalisation, by `batch_norm`:

    "sync"     statistics of the whole batch, as one process has them; steps are not recorded
    "local"    statistics of the rank's own rows; the running ones are averaged after every epoch, which is what
               averaging them after every step gives, for they are linear in the batches'
    "refuse"   a network that has it is refused

With noise of its own a rank's activations are those of its own draw, and "sync" normalises all of them by their common
statistics; "local" is what one process does with batches of B / K rows.

References: Goyal et al. 2017, Accurate, large minibatch SGD (the mean over workers, batch normalisation per worker);
Ioffe and Szegedy 2015 (the gradient of batch normalisation).
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, final, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from pyro_bnn.data.streams import Shard
from pyro_bnn.inference.checkpoint import packed, unpacked

__all__ = [
    "BatchNorm",
    "DataParallel",
    "RankLost",
    "Ranks",
    "SaidElsewhere",
    "batch_norm_layers",
    "evaluating",
    "evaluating_ranks",
    "fingerprint",
    "rank_seed",
    "synced_norm",
    "together",
]

BatchNorm = Literal["sync", "local", "refuse"]
T = TypeVar("T")


class RankLost(RuntimeError):
    """Another rank of the group is gone, or did not answer in time."""


class SaidElsewhere(RuntimeError):
    """Another rank says the same, so that this one need not."""


@final
@dataclass(frozen=True)
class DataParallel:
    """
    How `fit` trains on the ranks of a process group.

    :param batch_norm: "sync", "local" or "refuse"; see :mod:`pyro_bnn.inference.distributed`.
    :param group: the process group; default all ranks.

    >>> from pyro_bnn.inference import DataParallel
    >>> DataParallel(batch_norm="local").ranks() is None  # no process group here: one process
    True
    """

    batch_norm: BatchNorm = "sync"
    group: Any = None

    def __post_init__(self) -> None:
        if self.batch_norm not in get_args(BatchNorm):
            raise ValueError(f"batch_norm={self.batch_norm!r} is unknown: pass 'sync', 'local' or 'refuse'")

    def ranks(self, *, required: bool = False) -> "Ranks | None":
        """Return the ranks to train on; None for a single process, which is refused where a group is `required`."""
        if not (dist.is_available() and dist.is_initialized()):
            if required:
                raise ValueError(
                    "distributed=True, and this process is in no group: call torch.distributed.init_process_group "
                    "first and start it with torchrun, or leave distributed out"
                )
            return None
        if self.group is not None and dist.get_rank(self.group) < 0:
            raise ValueError("this process is not in the group of DataParallel: call fit on the group's ranks alone")
        return Ranks(self.group) if dist.get_world_size(self.group) > 1 else None


def rank_seed(base: int, rank: int, step: int = 0) -> int:
    """Return the seed of a rank's noise from a step on, of 32 bits."""
    return int.from_bytes(hashlib.sha256(f"{base}/{step}/{rank}".encode()).digest()[:4], "big")


@final
class Ranks:
    """
    The processes that train together, two at least.

    :param group: a process group; default all ranks.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        backend = str(dist.get_backend(group))
        on_cuda = "nccl" in backend and "gloo" not in backend
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")

    @staticmethod
    def here() -> "Ranks | None":
        """Return the ranks of the default group; None for a single process."""
        return DataParallel().ranks()

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes and speaks."""
        return self.rank == 0

    @property
    def shard(self) -> Shard:
        """Which rows of a batch are this rank's."""
        return Shard(self.rank, self.count)

    # -- tensors -------------------------------------------------------------------------------------------------

    def add_up(self, flat: Tensor) -> None:
        """Put the sum over the ranks into a flat tensor."""
        self._do(dist.all_reduce, flat)

    def gathered(self, flat: Tensor) -> Tensor:
        """Return a flat tensor (P,) of every rank, (K, P)."""
        parts = [torch.empty_like(flat) for _ in range(self.count)]
        self._do(dist.all_gather, parts, flat.contiguous())
        return torch.stack(parts)

    def _do(self, collective: Callable[..., Any], *tensors: Any, **options: Any) -> None:
        try:
            collective(*tensors, group=self.group, **options)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            reason = re.sub(r"^\[[^]]*\] ", "", reason).partition(". This is typically")[0][:160]
            raise RankLost(
                f"rank {self.rank} of {self.count}: another rank is gone, or did not answer in time ({reason}); its "
                "own words say why, and the last checkpoint is whole: start again to go on from it"
            ) from error

    # -- words ---------------------------------------------------------------------------------------------------

    def gather_bytes(self, own: bytes) -> list[bytes]:
        """Return the bytes of every rank, to every rank."""
        sizes = self.gathered(torch.tensor([len(own)], device=self.device))[:, 0].tolist()
        if max(sizes) == 0:
            return [b""] * self.count
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        if own:
            padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        every = self.gathered(padded.to(self.device)).cpu()
        return [every[r, :size].numpy().tobytes() for r, size in enumerate(sizes)]

    def told(self, value: T) -> T:
        """Return rank 0's value, plain data and tensors, to every rank."""
        content = packed({"told": value}) if self.first else b""
        size = torch.tensor([len(content)], device=self.device)
        source = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        self._do(dist.broadcast, size, src=source)
        data = torch.frombuffer(bytearray(content or bytes(int(size))), dtype=torch.uint8).to(self.device)
        self._do(dist.broadcast, data, src=source)
        return value if self.first else cast(T, unpacked(data.cpu().numpy().tobytes())["told"])

    def gather(self, value: T) -> list[T]:
        """Return the value of every rank, plain data and tensors, to every rank."""
        return [cast(T, unpacked(part)["own"]) for part in self.gather_bytes(packed({"own": value}))]

    def check_same(self, values: Mapping[str, Any], what: str) -> None:
        """Refuse values, by name, that are not the same on every rank."""
        every = [json.loads(part) for part in self.gather_bytes(json.dumps(values, default=str).encode())]
        for rank, others in enumerate(every):
            for name, value in every[0].items():
                if others.get(name) != value:
                    raise RuntimeError(
                        f"{what}: {name} is {value!r:.200} on rank 0 and {others.get(name)!r:.200} on rank {rank}: "
                        "start every rank with the same arguments, data and version"
                    )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let an error of any rank within the block end it on all of them; rank 0 has the words of all."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        words = [w.decode() for w in self.gather_bytes(b"" if error is None else f"{error}".encode() or b"?")]
        if not any(words):
            return
        if self.first and error is not None and len(set(words) - {""}) == 1:
            raise error
        said = {word: [r for r, other in enumerate(words) if other == word] for word in words if word}
        text = "; ".join(f"rank {', '.join(map(str, ranks))}: {word}" for word, ranks in said.items())
        raise RuntimeError(text) if self.first else SaidElsewhere(text) from error

    # -- programs ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def share(self, *programs: Any) -> None:
        """Copy rank 0's parameters and buffers of modules to every rank."""
        tensors = [t for program in programs if isinstance(program, nn.Module) for t in program.state_dict().values()]
        self.share_tensors(tensors)

    @torch.no_grad()
    def share_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Copy rank 0's values of tensors to every rank."""
        for kind in {(t.dtype, t.device): None for t in tensors}:
            same = [t for t in tensors if (t.dtype, t.device) == kind and t.numel()]
            if not same:
                continue
            flat = torch.cat([t.detach().reshape(-1) for t in same])
            moved = flat.to(torch.uint8) if flat.dtype == torch.bool else flat
            source = 0 if self.group is None else dist.get_global_rank(self.group, 0)
            self._do(dist.broadcast, moved, src=source)
            for tensor, part in zip(same, moved.to(flat.dtype).split([t.numel() for t in same]), strict=True):
                tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def average_buffers(self, *programs: Any) -> None:
        """Average the floating-point buffers that differ among the ranks; of whole numbers take rank 0's."""
        modules = [program for program in programs if isinstance(program, nn.Module)]
        buffers = list({id(b): b for module in modules for b in module.buffers()}.values())
        if len(set(self.gather(fingerprint(buffers)))) == 1:
            return
        self.share_tensors([b for b in buffers if not b.is_floating_point()])
        for buffer in (b for b in buffers if b.is_floating_point()):
            mean = buffer.detach().clone().reshape(-1)
            self.add_up(mean)
            buffer.copy_(mean.div_(self.count).view_as(buffer))

    def check_in_step(self, parts: Mapping[str, Any]) -> None:
        """Refuse to go on where tensors, by what they are, are not the same on every rank."""
        self.check_same({name: fingerprint(value) for name, value in parts.items()}, "the ranks have come apart")


def together(ranks: Ranks | None) -> AbstractContextManager[None]:
    """Let an error of any rank within the block end it on all of them; of one process it is its own affair."""
    return nullcontext() if ranks is None else ranks.together()


def fingerprint(value: Any) -> int:
    """Return a checksum of the tensors and numbers in nested lists and dictionaries; words and names do not count."""
    return _checksum(value, 0)


def _checksum(value: Any, start: int) -> int:
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        return zlib.crc32(cast(Any, flat.view(torch.uint8).numpy()), start) if flat.numel() else start
    if isinstance(value, (list, tuple, Mapping)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            start = _checksum(inner, start)
        return start
    return start if isinstance(value, str) else zlib.crc32(repr(value).encode(), start)


# -- evaluation --------------------------------------------------------------------------------------------------------


@final
class _Evaluating:
    """The ranks that share the rows of predictions at present."""

    ranks: Ranks | None = None


@contextmanager
def evaluating(ranks: Ranks | None) -> Iterator[None]:
    """
    Let the ranks share the rows of every prediction within the block, which all of them make; None: each its own.

    A rank takes some of the pieces of rows in which a network runs, and gets what the others have of theirs: the
    numbers of one process, bit for bit.
    """
    before, _Evaluating.ranks = _Evaluating.ranks, ranks
    try:
        yield
    finally:
        _Evaluating.ranks = before


def evaluating_ranks() -> Ranks | None:
    """Return the ranks that share the rows of predictions at present, if there are any."""
    return _Evaluating.ranks


# -- batch normalisation -----------------------------------------------------------------------------------------------


def batch_norm_layers(*programs: Any) -> list[str]:
    """Return the classes of layers that take statistics from a batch in training, as names."""
    modules = [program for program in programs if isinstance(program, nn.Module)]
    return [type(m).__name__ for module in modules for m in module.modules() if isinstance(m, _BatchNorm)]


@final
class synced_norm(TorchFunctionMode):
    """
    Let batch normalisation within the block take its statistics from the rows of all ranks.

    :param ranks: all of which run the same layers within the block.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace batch normalisation in training."""
        kwargs = kwargs or {}
        if func is not F.batch_norm:
            return func(*args, **kwargs)
        return _batch_norm(self.ranks, *args, **kwargs)


def _batch_norm(
    ranks: Ranks,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    output, mean, var, n = _SyncedNorm.apply(input, weight, bias, eps, ranks)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * (n / (n - 1).clamp(min=1))).to(running_var.dtype), momentum)
    return cast(Tensor, output)


class _SyncedNorm(torch.autograd.Function):
    """
    y = w z + b, z = (x - m) s, s = 1 / sqrt(v + eps), with mean m and variance v of a channel over the n values that
    all ranks have of it, n_r of them on this one.

    With g = dL_r/dy of this rank's mean loss, whose share in the step is n_r / n, and sums over all ranks,

        dx = w s [ g - (S1 + z S2) / n_r ],      S1 = sum_r (n_r / n) sum g,   S2 = sum_r (n_r / n) sum g z
        dw = sum g z,   db = sum g               of this rank's values, as for every other parameter

    Sums and affine maps by channel are those of torch's own batch normalisation, each a single pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, ranks: Ranks
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        own_n = x.numel() // x.shape[1]
        own_mean, own_var = _statistics(wide)  # (C,)
        counted = own_mean.new_tensor([own_n])
        every = ranks.gathered(torch.cat([own_mean, own_var, counted]))  # (K, 2 C + 1)
        means, variances = every[:, :-1].chunk(2, 1)  # (K, C)
        counts = every[:, -1:]  # (K, 1)
        n = counts.sum()
        mean = (counts * means).sum(0) / n  # (C,)
        var = (counts * (variances + (means - mean).square())).sum(0) / n  # (C,)
        output = F.batch_norm(wide, mean, var, weight, bias, False, 0.0, eps).to(x.dtype)
        ctx.save_for_backward(x, weight, mean, var, n)
        ctx.own_n, ctx.ranks, ctx.eps, ctx.has_bias = own_n, ranks, eps, bias is not None
        ctx.mark_non_differentiable(mean, var, n)
        return output, mean, var, n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        x, weight, mean, var, n = ctx.saved_tensors
        wide, grad = x.to(mean.dtype), grad.to(mean.dtype)
        if grad.stride() != wide.stride():  # of two layouts torch's kernels would go the slow way, and copy them
            grad = torch.empty_like(wide).copy_(grad)
        scale = torch.rsqrt(var + ctx.eps)  # (C,)
        ones = torch.ones_like(mean)
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            grad, wide, ones, mean, var, None, None, False, ctx.eps, [False, True, True]
        )
        sums = torch.cat([of_bias, of_weight]) * (ctx.own_n / n)  # (2 C,)
        ctx.ranks.add_up(sums)
        first, second = (sums / ctx.own_n).chunk(2)  # (C,)
        outer = scale if weight is None else scale * weight  # (C,)
        slope = -outer * second * scale
        # slope x + (offset of -S1 - z S2), then g: a batch normalisation by mean 0 and deviation 1 is an affine map
        affine = F.batch_norm(wide, 0 * mean, ones, slope, -outer * first - slope * mean, False, 0.0, 0.0)
        of_input = affine.addcmul_(grad, outer.view(1, -1, *[1] * (x.dim() - 2)))
        return (
            of_input.to(x.dtype),
            None if weight is None else of_weight,
            of_bias if ctx.has_bias else None,
            None,
            None,
        )


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of every channel, (C,) each."""
    mean, var = torch.ops.aten.batch_norm_update_stats(x, None, None, 0.0)
    return mean, var
