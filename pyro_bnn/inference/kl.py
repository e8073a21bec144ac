"""
The weight on the KL term: which share of KL(q || p) each minibatch pays, and the handlers that apply it.

N data points come in M batches; batch b (from 0) holds B_b of them. Everything optimises, per datum,

    loss_b = mean over the batch of -log p(y|x,w)  +  c_b KL(q || p),      c_b = eta a(epoch) pi_b / B_b

    pi_b      share of batch b, sum_b pi_b = 1     uniform      pi_b = B_b / N          (1/M for M equal batches)
                                                   geometric    pi_b = lam^b / sum_k lam^k       (late for lam > 1)
                                                   blundell     pi_b = 2^(M-1-b) / (2^M - 1)   (geometric, lam = 1/2)
    a in [0,1]  annealing                          linear       a(e) = min(1, e / epochs)
                                                   cosine       a(e) = (1 - cos(pi min(1, e / epochs))) / 2
    eta       tempering: the target is             tempered     eta
              p(w) prod_n p(y_n|x_n,w)^(1/eta)     balanced     eta = tau N / H, hence c = tau / H

In Pyro the plate "data" multiplies the observed site by N / B_b, so the weight on the unobserved sites is w = N c_b,
and w = eta under the uniform share. `scale_kl(w)` puts it on model and guide together, `per_datum(N)` then divides
everything by N. w = 0 is allowed: it trains without a KL term.

References: Blundell et al. 2015, Weight uncertainty in neural networks (section 3.4: the share 2^(M-i) / (2^M - 1));
Graves 2011, Practical variational inference for neural networks (the share 1/M).

Departures. lam^b overflows float32 at a few hundred batches, so the geometric share is evaluated in log space. lam = 0
means "no KL at all" (pi = 0 for every batch), not the limit lam -> 0, in which the first batch pays everything; it is
the only share that does not sum to 1. A shorter last batch has a smaller uniform share; the geometric share is blind to
batch sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import pyro.poutine as poutine
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor

from pyro_bnn.common.calls import misfit
from pyro_bnn.common.modules import evaluation_mode
from pyro_bnn.common.sites import closed_kl, is_point_mass, is_subsample, sample_sites
from pyro_bnn.common.turns import alone

__all__ = [
    "KL_WEIGHTS",
    "KLWeight",
    "active_scales",
    "annealed",
    "annealing_cosine",
    "annealing_linear",
    "balanced",
    "balanced_eta",
    "blundell",
    "from_spec",
    "geometric",
    "kl_divergence",
    "per_datum",
    "pi_geometric",
    "pi_uniform",
    "scale_key",
    "scale_kl",
    "tempered",
    "uniform",
]

DATA_PLATE = "data"


# ---------------------------------------------------------------------------------------------- pure functions


def pi_uniform(batch_size: int, num_data: int) -> float:
    """pi_b = B_b / N."""
    return batch_size / num_data


def pi_geometric(batch: int, num_batches: int, lam: float) -> float:
    """pi_b = lam^b / sum_{k<M} lam^k in log space; 0 for lam = 0, by definition."""
    if lam == 0:
        return 0.0
    if lam == 1:
        return 1 / num_batches
    if lam > 1:  # the same share, counted from the other end
        batch, lam = num_batches - 1 - batch, 1 / lam
    log_lam = math.log(lam)
    return math.exp(batch * log_lam) * math.expm1(log_lam) / math.expm1(num_batches * log_lam)


def annealing_linear(epoch: float, epochs: float) -> float:
    """a(e) = min(1, e / epochs): 0 in the first epoch (e = 0), 1 from e = epochs on."""
    return min(1.0, epoch / epochs)


def annealing_cosine(epoch: float, epochs: float) -> float:
    """a(e) = (1 - cos(pi min(1, e / epochs))) / 2."""
    return (1 - math.cos(math.pi * min(1.0, epoch / epochs))) / 2


def balanced_eta(tau: float, units: int, num_data: int) -> float:
    """Eta = tau N / H."""
    return tau * num_data / units


# ------------------------------------------------------------------------------------------ composable weights


class _Spread(Protocol):
    """A share pi_b of one KL per epoch."""

    def pi(self, *, batch: int, batch_size: int, num_batches: int, num_data: int) -> float: ...

    def relative(self, *, batch: int, batch_size: int, num_batches: int, num_data: int) -> float:
        """N pi_b / B_b: 1 where the batch pays its even share."""
        ...


class _Factor(Protocol):
    """A factor of eta a(epoch)."""

    def __call__(self, *, epoch: float, num_data: int) -> float: ...


@final
@dataclass(frozen=True)
class _Uniform:
    def pi(self, *, batch: int, batch_size: int, num_batches: int, num_data: int) -> float:
        return pi_uniform(batch_size, num_data)

    def relative(self, *, batch: int, batch_size: int, num_batches: int, num_data: int) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class _Geometric:
    lam: float

    def pi(self, *, batch: int, batch_size: int, num_batches: int, num_data: int) -> float:
        return pi_geometric(batch, num_batches, self.lam)

    def relative(self, *, batch: int, batch_size: int, num_batches: int, num_data: int) -> float:
        return num_data * pi_geometric(batch, num_batches, self.lam) / batch_size


@final
@dataclass(frozen=True)
class _Annealed:
    shape: str
    epochs: float

    def __call__(self, *, epoch: float, num_data: int) -> float:
        return _ANNEALING[self.shape](epoch, self.epochs)


@final
@dataclass(frozen=True)
class _Tempered:
    eta: float

    def __call__(self, *, epoch: float, num_data: int) -> float:
        return self.eta


@final
@dataclass(frozen=True)
class _Balanced:
    tau: float
    units: int

    def __call__(self, *, epoch: float, num_data: int) -> float:
        return balanced_eta(self.tau, self.units, num_data)


_ANNEALING: dict[str, Callable[[float, float], float]] = {"linear": annealing_linear, "cosine": annealing_cosine}


@final
@dataclass(frozen=True)
class KLWeight:
    """The weight w_b = N c_b of every batch of every epoch; build it with the functions below, compose with `*`."""

    spread: _Spread | None = None
    factors: tuple[_Factor, ...] = field(default=())

    def __mul__(self, other: KLWeight) -> KLWeight:
        """Both weights at once; only one of them may say how the KL is spread over the epoch."""
        if not isinstance(other, KLWeight):
            return NotImplemented
        if self.spread is not None and other.spread is not None:
            raise ValueError(
                f"KL weights {self.spread} and {other.spread} both spread the KL over the epoch: "
                "keep one of uniform, geometric, blundell"
            )
        return KLWeight(self.spread if self.spread is not None else other.spread, self.factors + other.factors)

    def eta(self, *, epoch: float, num_data: int) -> float:
        """Eta a(epoch): the tempering of an epoch as a whole; 0 if its batches pay no KL."""
        if isinstance(self.spread, _Geometric) and self.spread.lam == 0:
            return 0.0
        return math.prod(factor(epoch=epoch, num_data=num_data) for factor in self.factors)

    def pi(self, *, batch: int, batch_size: int, num_batches: int, num_data: int) -> float:
        """The share pi_b of one KL that `batch` (from 0) pays."""
        _check_batch(batch, batch_size, num_batches, num_data)
        spread = self.spread if self.spread is not None else _Uniform()
        return spread.pi(batch=batch, batch_size=batch_size, num_batches=num_batches, num_data=num_data)

    def weight(self, *, batch: int, batch_size: int, epoch: float, num_batches: int, num_data: int) -> float:
        """W = N c_b = N eta a(epoch) pi_b / B_b: what `scale_kl` takes."""
        _check_batch(batch, batch_size, num_batches, num_data)
        if not epoch >= 0:
            raise ValueError(f"epoch={epoch} is not allowed: count epochs from 0")
        spread = self.spread if self.spread is not None else _Uniform()
        w = spread.relative(batch=batch, batch_size=batch_size, num_batches=num_batches, num_data=num_data)
        for factor in self.factors:
            w *= factor(epoch=epoch, num_data=num_data)
        return w


def _check_batch(batch: int, batch_size: int, num_batches: int, num_data: int) -> None:
    if not 0 <= batch < num_batches:
        raise ValueError(f"batch={batch} is not allowed: count the {num_batches} batches of an epoch from 0")
    if not 1 <= batch_size <= num_data:
        raise ValueError(
            f"batch_size={batch_size} is not allowed: a batch holds between 1 and num_data={num_data} rows"
        )


def _number(name: str, value: Any, *, allowed: str, positive: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number: give {allowed}")
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name}={value!r} is not allowed: give {allowed}")
    return float(value)


def uniform() -> KLWeight:
    """Every datum carries the same part of the KL: pi_b = B_b / N and w = 1. The default."""
    return KLWeight(_Uniform())


def geometric(lam: float) -> KLWeight:
    """pi_b proportional to lam^b: early in the epoch for lam < 1, late for lam > 1, no KL at all for lam = 0."""
    return KLWeight(_Geometric(_number("lam", lam, allowed="a finite number >= 0", positive=False)))


def blundell() -> KLWeight:
    """pi_b = 2^(M-1-b) / (2^M - 1): each batch pays half of what the batch before paid."""
    return geometric(0.5)


def annealed(shape: str = "linear", *, epochs: float) -> KLWeight:
    """Raise the KL from 0 (epoch 0) to its full weight (epoch `epochs`), "linear" or "cosine"."""
    if shape not in _ANNEALING:
        raise ValueError(f"annealing {shape!r} is not known: choose one of {sorted(_ANNEALING)}")
    return KLWeight(factors=(_Annealed(shape, _number("epochs", epochs, allowed="a number > 0", positive=True)),))


def tempered(eta: float) -> KLWeight:
    """
    Tempering: the target is p(w) prod p(y|x,w)^(1/eta). For "no KL" use geometric(0).

    >>> from pyro_bnn.inference import kl
    >>> weight = kl.tempered(0.1) * kl.annealed("linear", epochs=5)
    >>> [weight.weight(epoch=e, batch=0, batch_size=50, num_batches=2, num_data=100) for e in (0, 5)]
    [0.0, 0.1]
    """
    allowed = "a finite number > 0 (for no KL at all use geometric(0))"
    return KLWeight(factors=(_Tempered(_number("eta", eta, allowed=allowed, positive=True)),))


def balanced(tau: float, *, n_units: int | None = None, n_params: int | None = None) -> KLWeight:
    """Eta = tau N / H, hence c = tau / H, with H the hidden units (`n_units`) or the parameters (`n_params`)."""
    tau = _number("tau", tau, allowed="a finite number > 0", positive=True)
    given = [(name, n) for name, n in (("n_units", n_units), ("n_params", n_params)) if n is not None]
    if len(given) != 1:
        raise ValueError(
            f"balanced(tau={tau:g}) needs exactly one of n_units (hidden units) and n_params (parameters), "
            f"got n_units={n_units}, n_params={n_params}: name the one that eta = tau N / H divides by"
        )
    name, units = given[0]
    if isinstance(units, bool) or not isinstance(units, int):
        raise TypeError(f"{name}={units!r} is not a count: give an integer >= 1")
    if units < 1:
        raise ValueError(f"{name}={units} is not allowed: give an integer >= 1")
    return KLWeight(factors=(_Balanced(tau, units),))


KL_WEIGHTS: dict[str, Callable[..., KLWeight]] = {
    "uniform": uniform,
    "geometric": geometric,
    "blundell": blundell,
    "annealed": annealed,
    "tempered": tempered,
    "balanced": balanced,
}


def from_spec(spec: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | KLWeight) -> KLWeight:
    """Read a weight from a recipe: a name, `{"name": name, argument: value}`, or a list of these, multiplied."""
    if isinstance(spec, KLWeight):
        return spec
    if isinstance(spec, str):
        spec = {"name": spec}
    if isinstance(spec, Mapping):
        arguments = dict(spec)
        name = arguments.pop("name", None)
        if name not in KL_WEIGHTS:
            raise ValueError(f"KL weight {name!r} is not known: choose one of {sorted(KL_WEIGHTS)}")
        wrong = misfit(KL_WEIGHTS[name], arguments)
        if wrong is not None:
            own = "; eta is a key of its own in a recipe (--set eta=0.5)" if "eta" in arguments else ""
            raise ValueError(f"KL weight {name!r} with {arguments}: {wrong}{own}")
        try:
            return KL_WEIGHTS[name](**arguments)
        except TypeError as error:
            raise TypeError(f"KL weight {name!r} with {arguments}: {error}") from error
    if not isinstance(spec, Sequence):
        raise TypeError(f"KL weight {spec!r} is neither a name, a table with a name, nor a list of these")
    weight = KLWeight()
    for part in spec:
        weight = weight * from_spec(part)
    return weight


# ---------------------------------------------------------------------------------------------------- handlers


def _with_formula(scale: Any, *formula: Any) -> Any:
    """Write on a scale that is a tensor how it came about: equal formulas are equal scales, without a look at them."""
    if isinstance(scale, Tensor):
        scale.formula = formula  # type: ignore[attr-defined]
    return scale


def scale_key(scale: Any) -> Any:
    """Return what is equal for equal scales: a number itself, the formula of a tensor, else the tensor's identity."""
    return getattr(scale, "formula", id(scale)) if isinstance(scale, Tensor) else scale


@final
class _ScaleKL(Messenger):
    """Multiply the scale of each unobserved site outside the plate "data" by `weight`."""

    def __init__(self, weight: float | Tensor) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"] or is_subsample(msg):
            return
        for frame in msg["cond_indep_stack"]:
            if frame.name == DATA_PLATE:
                return
        msg["scale"] = _with_formula(msg["scale"] * self.weight, scale_key(msg["scale"]), "times", id(self))


@final
class _PerDatum(Messenger):
    """Divide the scale of every sample site by `num_data`."""

    def __init__(self, num_data: int) -> None:
        super().__init__()
        self.num_data = num_data

    def __enter__(self) -> _PerDatum:
        if any(isinstance(handler, _PerDatum) for handler in _PYRO_STACK):
            raise ValueError(
                f"per_datum({self.num_data}) inside another per_datum would divide the loss by N twice: keep one "
                "(fit brings its own)"
            )
        super().__enter__()
        return self

    def _pyro_sample(self, msg: Any) -> None:
        msg["scale"] = _with_formula(msg["scale"] / self.num_data, scale_key(msg["scale"]), "over", self.num_data)


def scale_kl(weight: float | Tensor) -> Messenger:
    """
    Multiply every unobserved global site, of model and guide alike, by `weight` = N c_b >= 0.

    Put it around the whole step. Left alone are observed sites, plate subsamples, and local sites inside the plate
    "data"; a guide's auxiliary sites are scaled. A 0-dimensional tensor may carry the weight into a traced graph; its
    value is then not looked at. Nested weights multiply.
    """
    if isinstance(weight, Tensor):
        if weight.dim() != 0:
            raise ValueError(f"KL weight of shape {tuple(weight.shape)} is not allowed: give one number")
        return _ScaleKL(weight)
    return _ScaleKL(_number("KL weight", weight, allowed="a finite number >= 0", positive=False))


def per_datum(num_data: int) -> Messenger:
    """
    Divide every sample site by N = `num_data`, so that losses and learning rates are per datum.

    Put it around the whole step. Entering it twice is an error, for it would divide twice.
    """
    if isinstance(num_data, bool) or not isinstance(num_data, int):
        raise TypeError(f"num_data={num_data!r} is not a count: give the number of training rows, an integer >= 1")
    if num_data < 1:
        raise ValueError(f"num_data={num_data} is not allowed: give the number of training rows, an integer >= 1")
    return _PerDatum(num_data)


def active_scales() -> tuple[Callable[[Any], Any], Any] | None:
    """
    Return what the handlers around a step do to the scale of the data, and the scale they give a global latent site.

    None if any other handler is active than these two and those that only listen for parameters.
    """
    sizes: list[int] = []
    latent: Any = 1.0
    handler: Any
    for handler in reversed(_PYRO_STACK):
        if type(handler) is _ScaleKL:
            latent = latent * handler.weight
        elif type(handler) is _PerDatum:
            latent = latent / handler.num_data
            sizes.append(handler.num_data)
        elif not (type(handler) is TraceMessenger and handler.param_only):
            return None

    def of_data(scale: Any) -> Any:
        for size in sizes:
            scale = scale / size
        return scale

    return of_data, latent


# ------------------------------------------------------------------------------------------------ KL(q || p)


class _AllSeen(Exception):
    """Every site of the guide has been met in the model."""


@final
class _StopAfter(Messenger):
    """Leave the model once the named sites have been met: what follows (the network, the data) has no part in KL."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.missing = names

    def _pyro_post_sample(self, msg: Any) -> None:
        self.missing.discard(msg["name"])
        if not self.missing:
            raise _AllSeen


def kl_divergence(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any, num_samples: int = 1, **kwargs: Any
) -> Tensor:
    """
    KL(q || p) of the guide as it stands, without any weight, for logging.

    Sites with a registered `torch.distributions.kl_divergence` are exact; the others are sampled as log q - log p,
    averaged over `num_samples` draws. Ambient handlers (`scale_kl`, `per_datum`) do not reach it; modules run in eval
    mode, and parameters, their modes and the random state are left as they were.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} is not allowed: give an integer >= 1")
    devices = range(torch.cuda.device_count())
    total: Tensor | float = 0.0
    forked = torch.random.fork_rng(devices=devices)
    with alone(), forked, torch.no_grad(), evaluation_mode(model, guide), poutine.block():
        for _ in range(num_samples):
            total = total + _kl_one_draw(model, guide, args, kwargs)
    return torch.as_tensor(total / num_samples)


def _kl_one_draw(model: Callable[..., Any], guide: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | float:
    guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
    q_sites = sample_sites(guide_trace)
    recorder = poutine.trace()
    try:
        with recorder, _StopAfter({name for name, site in q_sites.items() if not site["infer"].get("is_auxiliary")}):
            poutine.replay(model, trace=guide_trace)(*args, **kwargs)
    except _AllSeen:
        pass
    p_sites = sample_sites(recorder.trace)
    total: Tensor | float = 0.0
    for name, q in q_sites.items():
        total = total + (_kl_site(q, p_sites[name]) if name in p_sites else _log_prob(q))
    return total


def _kl_site(q: Any, p: Any) -> Tensor:
    # the KL registered for Delta leaves out the log-density it carries
    kl = None if is_point_mass(q["fn"]) else closed_kl(q["fn"], p["fn"])
    if kl is not None:
        return torch.as_tensor(scale_and_mask(kl, q["scale"], q["mask"])).sum()
    return _log_prob(q) - _log_prob(p)


def _log_prob(site: Any) -> Tensor:
    log_prob = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
    return torch.as_tensor(scale_and_mask(log_prob, site["scale"], site["mask"])).sum()
