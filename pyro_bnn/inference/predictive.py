"""
Predictive draws: one weight sample at a time for the whole set, in chunks of rows.

    p(y | x, D)  ~=  (1/S) sum_s p(y | x, w_s),      w_s ~ q(w)

A draw is what one weight sample says about every row (`draws.py`). Draws are yielded one by one, so whoever needs only
their mean or entropy holds a single draw at a time; nothing here grows with S.
"""

import itertools
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast, final

import pyro.poutine as poutine
import torch
from pyro.distributions import Unit
from pyro.infer.autoguide import AutoGuide
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_bnn.common.contract import Guide, contract_of
from pyro_bnn.common.kept import Kept
from pyro_bnn.common.modules import evaluation_mode, reachable_modules
from pyro_bnn.common.sites import is_subsample
from pyro_bnn.common.turns import OwnRandomness, in_turn
from pyro_bnn.data.arrays import Inputs, first_rows, members, number_of_rows, pieces
from pyro_bnn.data.standardise import plain
from pyro_bnn.inference import laws as laws_of
from pyro_bnn.inference.distributed import Ranks, evaluating_ranks
from pyro_bnn.inference.draws import ClassDraw, Draw, RealDraw, draw_of, joined

__all__ = [
    "ClassDraw",
    "Draw",
    "RealDraw",
    "check_normal",
    "evaluation_mode",
    "guide_trace",
    "observation",
    "observation_log_prob",
    "predictive_draws",
    "rows_per_pass",
]

MOST_ROWS = 1000
MOST_IMAGES = 250
CACHED_BYTES = 1_600_000
"""Inputs of one pass on a CPU: what a convolution makes of so many still fits its caches."""


def rows_per_pass(x: Inputs) -> int:
    """Return how many rows of x (N, ...) go through a network at once: 250 images of 1x28x28, 130 of 3x32x32."""
    if isinstance(x, tuple):
        return min(rows_per_pass(member) for member in x)
    if x.device.type != "cpu":
        return MOST_ROWS
    per_row = max(1, x[:1].numel() * x.element_size())
    most = MOST_IMAGES if x.dim() > 2 else MOST_ROWS
    return min(most, max(1, CACHED_BYTES // per_row))


def observation(model: Callable[..., Any], latents: dict[str, Tensor], x: Inputs) -> Distribution:
    """Return the distribution of the observed site given the latent values and inputs x (B, ...)."""
    known = getattr(model, "observation", None)
    if known is not None:
        return cast(Distribution, known(x, latents))
    trace = poutine.trace(poutine.condition(model, data=latents)).get_trace(x)
    return cast(Distribution, trace.nodes[_observed_site(trace, latents)]["fn"])


def _observed_site(trace: Any, latents: Container[str]) -> str:
    """
    Return the name of the site that y is observed at: the one sample site that is no latent of the guide's.

    Without y nothing separates it from a latent that the guide leaves to the prior; `obs` is it where it is the only
    one inside the plate "data".
    """
    sites: dict[str, Any] = {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and name not in latents
        and not is_subsample(site)
        and not isinstance(site["fn"], Unit)
        and not site["infer"].get("_deterministic")
    }
    if len(sites) > 1 and "obs" in sites:
        in_plate = [n for n, s in sites.items() if any(frame.name == "data" for frame in s["cond_indep_stack"])]
        if set(in_plate) <= {"obs"}:
            return "obs"
    if len(sites) > 1:
        raise ValueError(
            f"the model has the sites {', '.join(map(repr, sites))} beside the guide's latent ones, and a prediction "
            f"is of a single observed site: say which, posterior.at({next(iter(sites))!r}).predict(x)"
        )
    if not sites:
        raise ValueError(
            "the model has no site 'obs', nor another one beside the guide's, when it is called with x alone: give "
            "pyro.sample('obs', ..., obs=y) with y=None"
        )
    return next(iter(sites))


def _one_draw(model: Callable[..., Any], latents: dict[str, Tensor], parts: Sequence[Inputs]) -> Draw:
    together = getattr(model, "observation_in_parts", None)
    if together is not None:
        return draw_of(together(parts, latents))
    return joined([draw_of(observation(model, latents, part)) for part in parts])


def guide_trace(guide: Callable[..., Any], model: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """
    Return the trace of a call of the guide of a model without labels.

    One of Pyro's own that was never called builds itself on its first call and would take `obs` for a latent site: it
    is called once with labels that the model draws.
    """
    if not contract_of(guide).is_built and isinstance(guide, AutoGuide) and not isinstance(guide, Guide):
        with torch.random.fork_rng(), poutine.block():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
            if "obs" in trace.nodes:
                guide(*args, trace.nodes["obs"]["value"], **kwargs)
    return poutine.trace(guide).get_trace(*args, **kwargs)


def _latents(model: Callable[..., Any], guide: Callable[..., Any], x: Inputs, plug_in: bool) -> dict[str, Tensor]:
    if plug_in:
        promised = contract_of(guide)
        if not promised.has_median:
            raise ValueError(f"{type(guide).__name__} has no median(): a plug-in prediction needs a point to plug in")
        return promised.median(x)
    trace = guide_trace(guide, model, x)
    return {name: cast(Tensor, trace.nodes[name]["value"]) for name in trace.stochastic_nodes}


@in_turn
@torch.no_grad()
def _taken(model: Callable[..., Any], guide: Callable[..., Any], x: Inputs, plug_in: bool) -> Inputs:
    """Return x in dtypes that the model takes: integers as they are, else as int64, else as floats."""
    if all(member.is_floating_point() or member.is_complex() for member in members(x)):
        return x
    modules = [program for program in (guide, model) if isinstance(program, nn.Module)]
    floats = (p.dtype for module in modules for p in module.parameters() if p.is_floating_point())
    floating = next(floats, torch.get_default_dtype())
    choices = [
        [None] if member.is_floating_point() or member.is_complex() else [member.dtype, torch.int64, floating]
        for member in members(x)
    ]
    failure: Exception | None = None
    for dtypes in sorted(itertools.product(*choices), key=lambda picked: picked.count(floating)):
        offered = tuple(m if d is None else m.to(d) for m, d in zip(members(x), dtypes, strict=True))
        taken = offered if isinstance(x, tuple) else offered[0]
        try:
            with torch.random.fork_rng(), evaluation_mode(model, guide), poutine.block():
                first = first_rows(taken)
                _one_draw(model, _latents(model, guide, first, plug_in), [first])
        except (RuntimeError, TypeError, IndexError) as error:
            failure = error
            continue
        contract_of(guide).restart()
        return taken
    assert failure is not None
    raise failure


def _is_expanded(tensor: Tensor) -> bool:
    """Return whether a number is shown several times, so that nobody can write to it."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


@final
class _Hands:
    """What is left in the decks of a guide for one prediction, and what the model holds besides."""

    def __init__(self, model: Any, guide: Any) -> None:
        promised = contract_of(guide)
        self.decks = list(promised.decks())
        self.left: list[list[int]] = [[] for _ in self.decks]
        moved = isinstance(model, nn.Module) and promised.moves_model()
        self.moved = [t for t in (*model.parameters(), *model.buffers()) if not _is_expanded(t)] if moved else []
        if not self.decks:  # one that has rounds and does not show what it deals from
            promised.restart()

    @contextmanager
    def dealt(self) -> Iterator[None]:
        """Deal from decks of our own, and leave the others' and the model as they were."""
        theirs = [deck.left for deck in self.decks]
        kept = [tensor.detach().clone() for tensor in self.moved]
        try:
            for deck, left in zip(self.decks, self.left, strict=True):
                deck.left = left
            yield
            self.left = [deck.left for deck in self.decks]
        finally:
            for deck, left in zip(self.decks, theirs, strict=True):
                deck.left = left
            for tensor, value in zip(self.moved, kept, strict=True):
                tensor.detach().copy_(value)


def predictive_draws(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    x: Inputs,
    num_samples: int,
    *,
    chunk: int | None = None,
    plug_in: bool = False,
    seed: int | None = None,
    within: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[Draw]:
    """
    Yield S draws for the rows of x (N, ...), each from one weight sample; with `plug_in` the guide's median instead.

    x may be a tuple of several inputs. Integers that the model refuses are offered to it again as floats. Each draw is
    a turn of its own (:mod:`pyro_bnn.common.turns`): draws in several threads do not mix.

    :param model: the Pyro program.
    :param guide: its guide.
    :param x: inputs (N, ...), or a tuple of several.
    :param num_samples: S, how many weight samples are drawn.
    :param chunk: rows per forward pass, which bounds its memory; default `rows_per_pass`.
    :param seed: fixes the draws and leaves the global random state alone.
    :param within: opened around each draw, such as a parameter store of the caller's own.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} draws nothing: pass at least 1")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk} rows is nothing: pass at least 1")
    if number_of_rows(x) == 0:
        raise ValueError("x has no rows: pass at least one input")
    x = tuple(plain(member) for member in x) if isinstance(x, tuple) else plain(x)
    with within():
        x = _taken(model, guide, x, plug_in)
    parts = list(pieces(x, chunk or rows_per_pass(x)))
    randomness, hands = OwnRandomness(seed), _Hands(model, guide)
    ranks = evaluating_ranks() if plug_in or seed is not None else None  # who draw the same weights
    known = reachable_modules(model, guide)
    shared_by_draws = Kept()
    for _ in range(num_samples):
        with randomness.turn(), within(), torch.no_grad(), evaluation_mode(known=known), poutine.block(), hands.dealt():
            with shared_by_draws.open():
                latents = _latents(model, guide, first_rows(x), plug_in)
            shared = None if ranks is None else _shared_draw(ranks, model, latents, parts)
            ranks = None if shared is None else ranks
            draw = _one_draw(model, latents, parts) if shared is None else shared
        yield draw


def _shared_draw(
    ranks: Ranks, model: Callable[..., Any], latents: dict[str, Tensor], parts: Sequence[Inputs]
) -> Draw | None:
    """Return the draw of all rows, of which every rank makes some; None where it has laws, which are not sent."""
    own = parts[ranks.shard.of(len(parts))]
    made = _one_draw(model, latents, own) if own else None
    said: dict[str, Any] = {}
    if isinstance(made, ClassDraw):
        said = {"log_probs": made.log_probs}
    elif made is not None:
        said = {"laws": True} if made.laws else {"mean": made.mean, "sd": made.sd}
    every = [part for part in ranks.gather(said) if part]
    if any("laws" in part for part in every):
        return None
    device = members(parts[0])[0].device
    if "log_probs" in every[0]:
        return joined([ClassDraw(part["log_probs"].to(device)) for part in every])
    return joined([RealDraw(part["mean"].to(device), part["sd"].to(device)) for part in every])


def check_normal(draw: Draw) -> None:
    """Refuse numbers that are not Normal where only mean and standard deviation count; nothing here needs it now."""
    warnings.warn(
        "check_normal is no longer needed: every law is scored, by observation_log_prob and Posterior.evaluate",
        DeprecationWarning,
        stacklevel=2,
    )
    if isinstance(draw, RealDraw) and draw.laws:
        raise ValueError(
            f"the observations are {laws_of.name_of(draw.laws[0])} and no Normals: use observation_log_prob, not mean "
            "and sd"
        )


def observation_log_prob(draw: Draw, y: Tensor, *, missing: bool = False) -> Tensor:
    """
    Return log p(y | x, w), (N,), of labels (N,) or targets (N,) or (N, D) under one draw.

    :param missing: whether NaN marks elements of y that are not known; they contribute 0.
    """
    return draw.log_prob(y, missing=missing)
