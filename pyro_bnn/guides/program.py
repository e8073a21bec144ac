"""What every guide here needs to know of a program: its latent sites, and names that copies do not share."""

import itertools
from collections.abc import Container
from typing import Any, final

import pyro.poutine as poutine
import torch
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from torch.distributions import biject_to

from pyro_bnn.common.modules import untouched
from pyro_bnn.common.sites import is_subsample
from pyro_bnn.common.turns import in_turn
from pyro_bnn.guides.init import any_start, initial_loc, says_its_weights, starts_matter

__all__ = ["bijection", "check_global", "latent_trace", "name_parameters", "new_name", "rename"]

_SERIAL = itertools.count(1)


def _hidden(site: Any) -> bool:
    return bool(site["type"] != "sample" or site["is_observed"] or site["name"] == "obs" or is_subsample(site))


@final
class _AtTheirStarts(Messenger):
    """Give every latent site the value it starts at, so that later sites have the priors that go with it."""

    def __init__(self, init_loc: str) -> None:
        super().__init__()
        self.init_loc = init_loc

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is not None or _hidden(msg):
            return
        bijection(msg["name"], msg["fn"])
        with torch.no_grad():
            drawn = msg["fn"].sample()
            msg["value"] = initial_loc(self.init_loc, msg["fn"], msg["infer"].get("init", {})).to(drawn)


@final
class _Anywhere(Messenger):
    """Give every site some value without drawing it."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is None and not _hidden(msg):
            msg["value"] = any_start(msg["fn"])


@in_turn
def latent_trace(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], init_loc: str) -> Any:
    """
    Return a trace of the program's latent sites, each at the value it starts at; a BNN needs no arguments for it.

    The sites of a BNN start from the global random state, those of another program from one number of it.
    """
    program = model.sample_weights if says_its_weights(model) else None
    seed = int(torch.randint(2**62, ())) if program is None and init_loc != "zeros" else None
    full_plates: set[str] = set()

    def hidden(site: Any) -> bool:
        drawn = site["type"] == "sample" and is_subsample(site) and site["value"] is None
        if drawn and site["fn"].subsample_size in (None, site["fn"].size):
            full_plates.add(site["name"])  # made without subsample=: all of its rows, at every call
        return _hidden(site)

    with untouched(model):
        if program is None:
            if seed is not None:
                torch.manual_seed(seed)
            started = poutine.block(_AtTheirStarts(init_loc)(model), hidden)
            try:
                trace = poutine.block(poutine.trace(started).get_trace)(*args, **kwargs)
            except ValueError as error:  # Pyro appends a table of shapes
                raise ValueError(str(error).partition("Trace Shapes:")[0].strip()) from error
        else:
            started = program if starts_matter() else _Anywhere()(program)
            trace = poutine.block(poutine.trace(poutine.block(started, _hidden)).get_trace)()
    sites = dict(trace.iter_stochastic_nodes())
    if not sites:
        raise ValueError("the model has no latent site: a guide needs at least one unobserved pyro.sample")
    for name, site in sites.items():
        check_global(name, site, full_plates)
        if program is not None and starts_matter():
            start: Any = site
            value = initial_loc(init_loc, start["fn"], start["infer"].get("init", {}))
            start["value"] = value.to(start["value"])
    return trace


def check_global(name: str, site: Any, full_plates: Container[str] = ()) -> None:
    """Refuse a site that no Normal reaches, or local to some of the rows; a plate without a subsample holds all."""
    bijection(name, site["fn"])
    for frame in site["cond_indep_stack"]:
        if not frame.vectorized:
            raise ValueError(f"site {name!r} is in the sequential plate {frame.name!r}: use `with pyro.plate(...)`")
        if (frame.full_size or frame.size) != frame.size or (frame.name == "data" and frame.name not in full_plates):
            raise ValueError(
                f"site {name!r} is local to the subsampled plate {frame.name!r}; this guide holds global sites only: "
                f"move the site out of the plate or write an amortised guide for it"
            )


def bijection(name: str, fn: Any) -> Any:
    """Return the map from real numbers to a site's support; refuse a support that has none."""
    if fn.support.is_discrete:
        raise ValueError(f"site {name!r} is discrete, so no Normal fits: enumerate it or write its guide by hand")
    try:
        return biject_to(fn.support)
    except NotImplementedError as error:
        remedy = "write its guide by hand"
        if "sphere" in repr(fn.support).lower():
            remedy = f"use poutine.reparam(model, config={{{name!r}: ProjectedNormalReparam()}}) of pyro.infer.reparam"
        raise ValueError(
            f"site {name!r} has the support {fn.support!r}, which no bijection reaches from the real numbers, so no "
            f"Normal fits: {remedy}"
        ) from error


def new_name(guide: PyroModule) -> str:
    """Return a name that no other guide of this process has."""
    return f"{type(guide).__name__}{next(_SERIAL)}"


def name_parameters(guide: PyroModule) -> None:
    """Write on each parameter the name it has in Pyro's store, where optimizers look for it."""
    for name, parameter in guide.named_parameters():
        parameter.pyro_bnn_name = f"{guide._pyro_name}.{name.removesuffix('_unconstrained')}"  # type: ignore[attr-defined]


def rename(guide: PyroModule) -> None:
    """Give a copy a name of its own, so that it shares no parameter with the original."""
    name = new_name(guide)
    for path, module in guide.named_modules():
        if isinstance(module, PyroModule):
            module._pyro_name = f"{name}.{path}" if path else name
    name_parameters(guide)
