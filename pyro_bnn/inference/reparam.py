"""
Local reparameterisation and Flipout: less noise from the same mean-field normal, as effect handlers.

A layer y = x W + b (or a convolution) whose weights are W = M + S * E, E ~ N(0, 1) elementwise, b likewise:

    plain      one W for the whole batch
    local      y = x M + m_b + sqrt(x^2 S^2 + s_b^2) * e,  e ~ N(0, 1) per output     (x^2, S^2 elementwise)
    Flipout    y_n = x_n M + m_b + r_n * ((x_n * s_n) (W - M) + b - m_b),              s_n, r_n in {-1, +1}

Local reparameterisation draws the outputs instead of the weights. It is exact where each weight is used once per
example: dense layers on (B, D). On convolutions, and on dense layers applied at several positions, a weight meets
several positions of one example; their outputs are then correlated under q, and local reparameterisation, which draws
them independently, matches only their marginal mean and variance. It is an approximation there, and a warning says so
once for each guide.

Flipout gives every example its own W_n = M + (s_n r_n^T) * (W - M), one sign per example and input channel and one per
example and output channel, constant over positions. Since W - M is symmetric and independent across entries, W_n has
the law of W: exact for each example, on dense and on convolution layers. Only the joint law across examples differs.

Across the examples of a batch both break the dependence that one shared W would make; the expected likelihood, a sum
over examples, is unchanged, and its gradient stays unbiased. Under batch-statistics normalisation the examples see each
other, and both change the distribution (a warning says so). They are for training: a predictive draw is one W for the
whole set, and under `torch.no_grad()` everything is sampled plainly.

The KL term never sees them. With the closed form there is nothing to see; with a sampled KL (total or path derivative)
log q - log p is taken at the sampled W while the likelihood sees other noise: two unbiased terms whose sum is unbiased,
though the path derivative's vanishing noise at q = posterior is lost. REINFORCE, which multiplies the likelihood by the
score of the sampled W, refuses to run under either; so must anything that weighs whole draws against each other
(RenyiELBO, importance weighting): do not combine them.

What is reparameterised: calls of torch.nn.functional.linear and conv1d/2d/3d whose weight is the very tensor a
reparameterised (mean-field) Normal site of the guide returned, if that tensor is used there and nowhere else in the
forward pass. A weight that is shared between layers or used twice is sampled plainly, and a warning names it. To know,
the first forward pass of each guide is sampled plainly and its uses are counted; the result is remembered.

References: Kingma, Salimans, Welling 2015, Variational dropout and the local reparameterization trick; Wen, Vicol, Ba,
Tran, Grosse 2018, Flipout.
"""

from __future__ import annotations

import itertools
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from pyro.distributions import Normal, Unit
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from pyro_bnn.common.sites import innermost
from pyro_bnn.inference.native.mean_field import OUTPUTS, takes_outputs

__all__ = [
    "Flipout",
    "LocalReparameterization",
    "active_reparameterization",
    "calls_of",
    "flipout",
    "flipout_output",
    "leaves_behind",
    "local_output",
    "local_reparameterization",
    "random_signs",
]

Layer = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # (input, weight, bias) -> output


# ---------------------------------------------------------------------------------------------- pure functions


class _NormalOutput(torch.autograd.Function):
    """mean + sqrt(variance) e with e ~ N(0, 1), in few passes over memory.

    Where the variance is 0 (an input of zeros, no bias; or below, a fast convolution's rounding) the square root has no
    gradient, and 0 is taken.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor) -> Tensor:
        if takes_outputs(mean, variance):
            output, slope = OUTPUTS(mean, variance)
            ctx.save_for_backward(slope)
            return output  # type: ignore[no-any-return]
        half_noise = torch.empty_like(mean).normal_(0, 0.5)
        deviation = variance.clamp_min(0).sqrt_()
        output = torch.addcmul(mean, deviation, half_noise, value=2)
        slope = half_noise.div_(deviation)  # d output / d variance = e / (2 sqrt(variance))
        ctx.save_for_backward(slope.masked_fill_(variance <= 0, 0))
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (slope,) = ctx.saved_tensors
        return gradient, gradient * slope


def local_output(
    layer: Layer, x: Tensor, loc: Tensor, scale: Tensor, bias_loc: Tensor | None, bias_scale: Tensor | None
) -> Tensor:
    """Draw the layer's output from its marginals: mean `layer(x, loc)`, variance `layer(x^2, scale^2)`."""
    mean = layer(x, loc, bias_loc)
    variance = layer(x.square(), scale.square(), None if bias_scale is None else bias_scale.square())
    output: Tensor = _NormalOutput.apply(mean, variance)
    return output


def flipout_output(
    layer: Layer,
    x: Tensor,
    loc: Tensor,
    delta: Tensor,
    bias_loc: Tensor | None,
    bias_delta: Tensor | None,
    sign_in: Tensor,
    sign_out: Tensor,
) -> Tensor:
    """The layer's output under W_n = loc + sign_out_n delta sign_in_n, example by example, in two calls."""
    return torch.addcmul(layer(x, loc, bias_loc), sign_out, layer(x * sign_in, delta, bias_delta))


def random_signs(x: Tensor, out_channels: int, spatial_dims: int) -> tuple[Tensor, Tensor]:
    """
    Signs per example and channel that broadcast over positions, for the input and for the output.

    `spatial_dims` is 0 for a dense layer (channels last; positions, if any, in between) and 1, 2 or 3 for convolutions
    (channels before the positions). Without a batch dimension there is one example.
    """
    if spatial_dims:
        batch = x.shape[: x.dim() - spatial_dims - 1]  # (B,) or ()
        in_channels, ones = x.shape[x.dim() - spatial_dims - 1], (1,) * spatial_dims
        shapes = (*batch, in_channels, *ones), (*batch, out_channels, *ones)
    else:
        batch, ones = x.shape[:1] if x.dim() > 1 else torch.Size(), (1,) * max(x.dim() - 2, 0)
        shapes = (*batch, *ones, x.shape[-1]), (*batch, *ones, out_channels)
    sign_in, sign_out = (torch.randint(0, 2, s, dtype=x.dtype, device=x.device).mul_(2).sub_(1) for s in shapes)
    return sign_in, sign_out


# -------------------------------------------------------------------------------------------------- book-keeping


@dataclass(slots=True)
class _Draw:
    """One draw of one mean-field Normal site, and what the forward pass has done with it."""

    name: str
    value: Tensor
    loc: Tensor
    scale: Tensor | None
    layer_uses: int = 0
    other_uses: int = 0
    replaced: bool = False  # its layer was reparameterised

    def begin(self) -> None:
        """A forward pass begins."""
        self.layer_uses, self.other_uses, self.replaced = 0, 0, False


@dataclass(slots=True)
class _Program:
    """What is known of the forward pass behind one guide: which sites are used once, in a layer."""

    once: dict[str, bool] | None = None
    warned: set[str] = field(default_factory=set)

    def warn_once(self, key: str, message: str) -> None:
        if key not in self.warned:
            self.warned.add(key)
            warnings.warn(message, stacklevel=2)


_PROGRAMS: Any = WeakIdKeyDictionary()  # a leaf parameter of the guide -> its _Program


def leaves_behind(tensor: Tensor) -> Iterator[Tensor]:
    """The trained parameters a tensor was computed from, nearest first."""
    if tensor.requires_grad and tensor.grad_fn is None:
        yield tensor
    nodes: list[Any] = [tensor.grad_fn]
    seen = set(nodes)
    for node in nodes:
        if node is None:
            continue
        if hasattr(node, "variable"):
            yield node.variable
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                nodes.append(following)


_SPATIAL_DIMS: dict[Any, int] = {F.linear: 0, F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}


def _bind(
    func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> tuple[Layer, Tensor, Tensor, Tensor | None]:
    """Split a call of F.linear or F.conv*d into the layer as a function of (input, weight, bias) and these three."""

    def layer(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        output: Tensor = func(x, w, b, *args, **kwargs)
        return output

    return layer, input, weight, bias


def _tensors(values: Any) -> Any:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


@final
class _Calls(TorchFunctionMode):
    """Route torch's calls on this thread through a handler."""

    def __init__(self, handler: _LayerHandler) -> None:
        super().__init__()
        self.handler = handler

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.handler.call(func, args, kwargs or {})


# ------------------------------------------------------------------------------------------------------ handlers


class _LayerHandler(Messenger):
    """Recognise the guide's mean-field draws, and hand the layers that use them once to `output`."""

    label: str
    needs_deviations: bool

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._paused = 0  # nested handlers: the innermost is in force
        self._outer: _LayerHandler | None = None
        self._calls = _Calls(self)
        self._fallback = _Program()  # for a guide without trained parameters
        self._program = self._fallback
        self._fresh: set[str] = set()
        self._draws: dict[str, _Draw] = {}
        self._by_id: dict[int, _Draw] = {}
        self._observed = False

    def __repr__(self) -> str:
        return f"{self.label}()"

    @abstractmethod
    def output(self, layer: Layer, x: Tensor, weight: _Draw, bias: _Draw | Tensor | None, spatial_dims: int) -> Tensor:
        """The layer's output for a weight drawn from its mean-field Normal; `bias` may be drawn too."""

    # -- entering and leaving

    def __enter__(self) -> _LayerHandler:
        if self._depth == 0:
            self._outer = active_reparameterization()
            super().__enter__()
            self._calls.__enter__()  # type: ignore[no-untyped-call]
            if self._outer is not None:
                self._outer._paused += 1
        self._depth += 1
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        if self._outer is not None:
            self._outer._paused -= 1
            self._outer = None
        self._calls.__exit__(exc_type, exc_value, traceback)  # type: ignore[no-untyped-call]
        super().__exit__(exc_type, exc_value, traceback)
        try:
            if exc_type is None:
                self._learn()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._draws.clear()
        self._by_id.clear()
        self._fresh.clear()
        self._observed = False

    # -- Pyro: which tensors are mean-field draws

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is None and not self._paused:  # neither observed nor replayed: a draw of its own
            self._fresh.add(msg["name"])

    def _pyro_post_sample(self, msg: Any) -> None:
        name = msg["name"]
        if self._paused:
            return
        if name in self._fresh:
            self._fresh.discard(name)
            fn = innermost(msg["fn"])
            if isinstance(fn, Normal) and fn.has_rsample and msg["value"].shape == fn.loc.shape:
                self._record(_Draw(name, msg["value"], fn.loc, fn.scale))
        elif name in self._draws:  # replayed in the model
            self._learn()
            self._observed = False
            self._draws[name].begin()
        elif msg["is_observed"] and not (msg["infer"].get("_deterministic") or isinstance(msg["fn"], Unit)):
            self._observed = True

    def _record(self, draw: _Draw) -> None:
        if draw.name in self._draws:  # the guide runs again
            self._learn()
            self._forget()
        if not self._draws:
            # a parameter outlives the step, and tells one guide from another
            moments = [moment for moment in (draw.loc, draw.scale) if moment is not None]
            leaf = next(itertools.chain.from_iterable(map(leaves_behind, moments)), None)
            self._program = self._fallback if leaf is None else _PROGRAMS.setdefault(leaf, _Program())
        self._draws[draw.name] = draw
        self._by_id[id(draw.value)] = draw

    def begin_plainly(self, draws: Iterable[tuple[str, Tensor, Tensor, Tensor | None]]) -> None:
        """
        Take in name, value, mean and deviation of what a guide drew without sample statements; the model is next.

        Deviations may be None if the handler does not need them.
        """
        for draw in draws:
            self._record(_Draw(*draw))
        for known in self._draws.values():
            known.begin()
        self._observed = False

    def end_plainly(self) -> None:
        """The model has come to what is observed."""
        self._observed = True

    def _learn(self) -> None:
        """Judge, after a whole forward pass, which draws are used once and in a layer."""
        if not self._observed:
            return
        program = self._program
        if program.once is not None and program.once.keys() == self._draws.keys():
            return
        program.once = {d.name: d.layer_uses == 1 and d.other_uses == 0 for d in self._draws.values()}
        shared = [d.name for d in self._draws.values() if d.layer_uses and not program.once[d.name]]
        if shared:
            program.warn_once(
                "shared",
                f"{self!r}: {', '.join(map(repr, shared))}: used more than once in one forward pass, hence sampled "
                "plainly",
            )
        if not any(program.once.values()):
            program.warn_once(
                "nothing",
                f"{self!r} found no linear or convolution layer with a mean-field Normal weight of its own "
                "(vectorised particles and weights that are reshaped first do not count): all is sampled plainly",
            )

    # -- torch: which calls use them

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One call of a torch function on this thread."""
        if self._paused or not self._draws:
            return func(*args, **kwargs)
        spatial_dims = _SPATIAL_DIMS.get(func)
        if spatial_dims is not None:
            return self._layer_call(func, args, kwargs, spatial_dims)
        result = func(*args, **kwargs)
        if not self._observed:
            self._other_call(func, args, kwargs, result)
        return result

    def _layer_call(self, func: Any, args: Any, kwargs: Any, spatial_dims: int) -> Any:
        bias: _Draw | Tensor | None
        layer, x, weight, bias = _bind(func, *args, **kwargs)
        weight_draw, bias_draw = self._by_id.get(id(weight)), self._by_id.get(id(bias))
        if id(x) in self._by_id:
            self._use(self._by_id[id(x)], in_layer=False)
        once = self._program.once or {}
        for draw in (weight_draw, bias_draw):
            if draw is not None:
                self._use(draw, in_layer=True)
        if weight_draw is None or not once.get(weight_draw.name) or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        weight_draw.replaced = True
        if bias_draw is not None and once.get(bias_draw.name):
            bias_draw.replaced = True
            bias = bias_draw
        return self.output(layer, x, weight_draw, bias, spatial_dims)

    def _other_call(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if func is F.batch_norm and (args[5] if len(args) > 5 else kwargs.get("training", False)):
            self._program.warn_once(
                "batch norm",
                f"{self!r} under batch statistics: the examples of a batch see each other's noise, so the network's "
                "distribution is not that of one weight draw",
            )
        used = [self._by_id[id(t)] for t in _tensors((*args, *kwargs.values())) if id(t) in self._by_id]
        if used and any(True for _ in _tensors((result,))):  # a shape or a dtype does not use the numbers
            for draw in used:
                self._use(draw, in_layer=False)

    def _use(self, draw: _Draw, in_layer: bool) -> None:
        """Count a use of a draw; one after its layer was reparameterised has come too late."""
        if in_layer:
            draw.layer_uses += 1
        else:
            draw.other_uses += 1
        if draw.replaced and self._program.once is not None:
            self._program.once[draw.name] = False
            raise RuntimeError(
                f"{self!r}: {draw.name!r} was used once per forward pass before and is now used again after its layer "
                "was reparameterised, so this step would be wrong. From the next step on it is sampled plainly"
            )


@final
class LocalReparameterization(_LayerHandler):
    """Draw each layer's outputs instead of its weights; build it with `local_reparameterization()`."""

    label = "local_reparameterization"
    needs_deviations = True

    def output(self, layer: Layer, x: Tensor, weight: _Draw, bias: _Draw | Tensor | None, spatial_dims: int) -> Tensor:
        """Mean and variance of the output, and one normal draw per output."""
        assert weight.scale is not None
        if isinstance(bias, _Draw):
            output = local_output(layer, x, weight.loc, weight.scale, bias.loc, bias.scale)
        else:
            output = local_output(layer, x, weight.loc, weight.scale, bias, None)
        positions = output.shape[-spatial_dims:] if spatial_dims else output.shape[1:-1]
        if positions.numel() > 1:
            self._program.warn_once(
                "positions",
                f"{self!r}: {weight.name!r} meets several positions of each example, whose outputs are drawn as if "
                "they were independent, so the expected likelihood and its gradient are biased: flipout() is exact "
                "for each example",
            )
        return output


@final
class Flipout(_LayerHandler):
    """Give each example its own signs on the shared weight noise; build it with `flipout()`."""

    label = "flipout"
    needs_deviations = False

    def output(self, layer: Layer, x: Tensor, weight: _Draw, bias: _Draw | Tensor | None, spatial_dims: int) -> Tensor:
        """Two calls of the layer: at the means, and at the noise between random signs."""
        sign_in, sign_out = random_signs(x, weight.loc.shape[0], spatial_dims)
        delta = weight.value - weight.loc
        if isinstance(bias, _Draw):
            bias_loc: Tensor | None = bias.loc
            bias_delta: Tensor | None = bias.value - bias.loc
        else:
            bias_loc, bias_delta = bias, None
        return flipout_output(layer, x, weight.loc, delta, bias_loc, bias_delta, sign_in, sign_out)


def local_reparameterization() -> LocalReparameterization:
    """
    Handler for training steps: draw the outputs of dense and convolution layers instead of their weights.

    Put it around the whole step, guide and model together. Exact for dense layers on (B, D); on convolutions and on
    dense layers applied at several positions only the marginal mean and variance are matched.
    """
    return LocalReparameterization()


def flipout() -> Flipout:
    """
    Handler for training steps: pseudo-independent weights per example by random signs, exact for each example.

    Put it around the whole step, guide and model together. The first dimension of a layer's input counts as the batch.
    """
    return Flipout()


def calls_of(mode: Any) -> object:
    """The handler whose way of listening to torch a TorchFunctionMode is, or None."""
    return mode.handler if type(mode) is _Calls else None


def active_reparameterization() -> LocalReparameterization | Flipout | None:
    """The innermost of these handlers around the caller, or None."""
    for handler in reversed(_PYRO_STACK):
        if isinstance(handler, (LocalReparameterization, Flipout)):
            return handler
    return None
