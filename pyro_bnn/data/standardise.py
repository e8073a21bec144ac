"""
Standardisation: (x - mean) / sd, per channel for images (N, C, H, W), per feature for tables (N, D).

Means and population standard deviations are taken in float64 over the training rows alone. A feature or channel that
never varies keeps sd = 1, so that it becomes 0 and not NaN. The same class serves regression targets, (N,) or (N, T).

What is standardised says so. `Standardiser.apply` returns a `Standardised` tensor, which knows its standardiser and is
a tensor like any other. What is chosen from it, put together, or moved (slices, indices, `cat`, `stack`, `to`, views,
copies, a DataLoader's batches) says it, too. What is computed from it by arithmetic is of a scale that nobody knows
(`x + noise` is still standardised, `x * sd + mean` no longer): that is a `Computed` tensor, which a posterior refuses
until its scale is said. All else (a network's output, a mean, an array) is plain, and plain values are raw.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor

__all__ = ["Computed", "Marked", "Standardised", "Standardiser", "plain", "same_scale", "standardiser_of"]

T = TypeVar("T")

_ROWS_AT_ONCE = 4096

_SAME = 1e-6
"""Standardisers are the same if they differ by less than this share of a standard deviation."""

_MOVES = frozenset(
    {
        "__getitem__", "__iter__", "__deepcopy__", "to", "type", "type_as", "cpu", "cuda", "float", "double", "half",
        "bfloat16", "clone", "detach", "detach_", "contiguous", "pin_memory", "share_memory_", "requires_grad_",
        "resize_", "data", "cat", "concat", "concatenate", "stack", "vstack", "hstack", "row_stack",
        "take_along_dim", "gather", "index_select", "masked_select", "select", "narrow", "split", "chunk",
        "tensor_split", "unbind", "split_with_sizes", "view", "view_as", "reshape", "reshape_as", "flatten",
        "unflatten", "ravel", "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "repeat_interleave", "tile",
        "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "flip", "fliplr", "flipud", "roll",
        "rot90", "t", "T", "mT", "adjoint", "broadcast_to",
    }
)  # fmt: skip
_ARITHMETIC = frozenset(
    {
        "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "neg", "negative",
        "clamp", "clip", "clamp_min", "clamp_max", "where", "masked_fill", "masked_scatter", "index_fill",
        "index_copy", "index_put", "scatter", "fill", "zero", "copy", "lerp", "pad", "interpolate", "pow", "square",
        "exp", "log", "sqrt", "abs", "minimum", "maximum", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__",
        "__isub__", "__mul__", "__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__div__",
        "__rdiv__", "__idiv__", "__neg__", "__pow__", "__setitem__", "addcmul", "addcdiv", "normal", "uniform",
        "bernoulli", "dropout", "nan_to_num", "zeros_like", "ones_like", "full_like", "empty_like",
        "rand_like", "randn_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor",
    }
)  # fmt: skip


class Marked(Tensor):
    """The abstract base of tensors that say how they came from standardised ones."""

    standardiser: "Standardiser | None" = None

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation as on plain tensors, and mark its result."""
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            name = _name_of(func)
            if name in _MOVES:
                first = args[0] if args else next(iter((kwargs or {}).values()))
                return _mark(result, _mark_of(first if isinstance(first, (list, tuple)) else [first]))
            if name in _ARITHMETIC or name.rstrip("_") in _ARITHMETIC:
                changed = args[0] if args and isinstance(args[0], Marked) else None
                if changed is not None and (result is changed or name == "__setitem__"):  # in place
                    changed.__class__ = Computed
                    return result
                return _mark(result, (Computed, None))
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> "Marked":
        """Return a copy with the same mark and the same standardiser."""
        if id(self) not in memo:
            memo[id(self)] = _mark(copy.deepcopy(plain(self), memo), (type(self), self.standardiser))
        return cast(Marked, memo[id(self)])

    def __format__(self, spec: str) -> str:
        """Return a number as it is written without its mark."""
        return format(plain(self), spec)


@final
class Standardised(Marked):
    """Values on the scale of a standardiser: `x.standardiser`."""


@final
class Computed(Marked):
    """Values that were computed from standardised ones, on a scale that is not known."""


def _name_of(func: Callable[..., Any]) -> str:
    name = str(getattr(func, "__name__", ""))
    if name == "__get__":  # an attribute, such as Tensor.T
        return str(getattr(getattr(func, "__self__", None), "__name__", ""))
    return name


def _mark_of(parts: Sequence[Any]) -> "tuple[type[Marked], Standardiser | None] | None":
    """Return the mark that all tensors share, None if they have none; a mixture is of no known scale."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if not any(isinstance(part, Marked) for part in tensors):
        return None
    scales = [part.standardiser for part in tensors if isinstance(part, Standardised)]
    if len(scales) < len(tensors) or any(not same_scale(scales[0], scale) for scale in scales):
        return Computed, None
    return Standardised, scales[0]


def _mark(result: T, mark: "tuple[type[Marked], Standardiser | None] | None") -> T:
    """Mark the floating-point tensors of a result."""
    if mark is None:
        return result
    if isinstance(result, (tuple, list)):
        return type(result)(_mark(part, mark) for part in result)
    if not isinstance(result, Tensor) or not result.is_floating_point() or isinstance(result, Marked):
        return result
    marked = result.as_subclass(mark[0])
    marked.standardiser = mark[1]
    return cast(T, marked)


def plain(values: T) -> T:
    """Return values without a mark: the same memory as an ordinary tensor; other things as they are."""
    if not isinstance(values, Marked):
        return values
    with torch._C.DisableTorchFunctionSubclass():
        return cast(T, values.as_subclass(Tensor))


def standardiser_of(values: Any) -> "Standardiser | None":
    """Return the standardiser that values are on the scale of, None if they do not say."""
    return values.standardiser if isinstance(values, Standardised) else None


def same_scale(a: "Standardiser | None", b: "Standardiser | None") -> bool:
    """Whether two standardisers do the same, to the digits that an input has."""
    if a is b:
        return True
    if a is None or b is None or a.mean.shape != b.mean.shape:
        return False
    unit = _SAME * torch.maximum(a.sd.cpu(), b.sd.cpu())
    pairs = ((a.mean, b.mean), (a.sd, b.sd))
    return all(bool(((p.cpu() - q.cpu()).abs() <= unit).all()) for p, q in pairs)


@final
@dataclass(frozen=True, eq=False)
class Standardiser:
    """
    A mean and a standard deviation per channel or feature: shape (C,), (D,), (T,) or () for scalar targets.

    :param mean: one per channel or feature.
    :param sd: likewise, above 0.
    """

    mean: Tensor
    sd: Tensor

    def __post_init__(self) -> None:
        if self.mean.shape != self.sd.shape or self.mean.ndim > 1:
            raise ValueError(
                f"mean has shape {tuple(self.mean.shape)} and sd {tuple(self.sd.shape)}; "
                "both need the same shape, () or (number of channels or features,)"
            )
        if not bool(torch.isfinite(self.mean).all()) or not bool((torch.isfinite(self.sd) & (self.sd > 0)).all()):
            raise ValueError("mean must be finite and sd finite and > 0; fit the standardiser on finite data")

    @classmethod
    def fit(cls, values: Tensor) -> "Standardiser":
        """Fit on rows `values`: (N,), (N, D), (N, C, H, W)."""
        values = plain(values)
        return cls.fit_pieces(lambda: iter(torch.split(values, _ROWS_AT_ONCE)))

    @classmethod
    def fit_pieces(cls, pieces: Callable[[], Iterator[Tensor]]) -> "Standardiser":
        """Fit on rows that come in pieces, (B, ...) each, and are walked through twice."""
        total: Any = 0.0
        count = 0
        for part in map(plain, pieces()):
            over = tuple(d for d in range(part.ndim) if d != 1)  # everything but channels or features
            total = total + part.double().sum(over)  # (C,), (D,), or () for (N,)
            count += part.numel() // (part.shape[1] if part.ndim > 1 else 1)
        mean = total / count
        square = torch.zeros_like(mean)
        for part in map(plain, pieces()):
            square += (part.double() - _spread(mean, part.ndim)).square_().sum(over)
        sd = (square / count).sqrt()
        # rounding leaves about 1e-16 |mean| where a column is constant
        sd = torch.where(sd > 1e-12 * mean.abs(), sd, torch.ones_like(sd))
        return cls(mean, sd)

    def apply(self, values: Tensor) -> Tensor:
        """Return (values - mean) / sd, in the dtype of `values`, marked as Standardised."""
        if isinstance(values, Standardised):
            raise ValueError("the values are standardised already: give them as they were measured")
        values = plain(values)
        self._check(values)
        mean, sd = self._like(values)
        return self.mark((values - mean).div_(sd))

    def mark(self, values: Tensor) -> Tensor:
        """Return values that are on this scale already, marked as Standardised."""
        return _mark(plain(values), (Standardised, self))

    def invert(self, values: Tensor) -> Tensor:
        """Return values * sd + mean, a plain tensor: the inverse of `apply`."""
        values = plain(values)
        self._check(values)
        mean, sd = self._like(values)
        return (values * sd).add_(mean)

    def invert_sd(self, values: Tensor) -> Tensor:
        """Return values * sd: a standard deviation on the standardised scale, back in the data's own units."""
        values = plain(values)
        self._check(values)
        return values * self._like(values)[1]

    def to_dict(self) -> dict[str, Any]:
        """Return {"mean": ..., "sd": ...} with plain numbers or lists, for JSON."""
        return {"mean": self.mean.tolist(), "sd": self.sd.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Standardiser":
        """
        Build from what `to_dict` gave.

        :param values: means and standard deviations as lists.
        """
        if set(values) != {"mean", "sd"}:
            raise ValueError(f"a standardiser has the keys mean and sd; got {sorted(values)}")
        return cls(*(torch.tensor(values[key], dtype=torch.float64) for key in ("mean", "sd")))

    def _check(self, values: Tensor) -> None:
        if self.mean.ndim == 1 and (values.ndim < 2 or values.shape[1] != len(self.mean)):
            raise ValueError(
                f"values have shape {tuple(values.shape)}; this standardiser was fitted on {len(self.mean)} channels "
                f"or features: give shape (N, {len(self.mean)}, ...)"
            )
        if not values.is_floating_point():
            raise TypeError(f"values are {values.dtype}; give floating-point numbers (8-bit images: divide by 255)")

    def _like(self, values: Tensor) -> tuple[Tensor, Tensor]:
        mean, sd = (_spread(m, values.ndim).to(values.device, values.dtype) for m in (self.mean, self.sd))
        return mean, sd


def _spread(values: Tensor, ndim: int) -> Tensor:
    """Append dimensions to (C,) so that it broadcasts along dimension 1 of an ndim-dimensional tensor."""
    return values if values.ndim == 0 else values.reshape(-1, *[1] * (ndim - 2))
