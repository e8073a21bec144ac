"""What every guide here needs to know of a program: its latent sites, and names that copies do not share."""

import itertools
from typing import Any

import pyro.poutine as poutine
from pyro.nn import PyroModule
from pyro.poutine.util import site_is_subsample

from pyro_bnn.common.modules import untouched
from pyro_bnn.common.turns import in_turn

__all__ = ["check_global", "latent_trace", "name_parameters", "new_name", "rename"]

_SERIAL = itertools.count(1)


def _hidden(site: Any) -> bool:
    return bool(site["type"] != "sample" or site["is_observed"] or site["name"] == "obs" or site_is_subsample(site))


@in_turn
def latent_trace(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a trace of the program's latent sites; a BNN needs no arguments for it."""
    program = getattr(model, "sample_weights", None)
    with untouched(model):
        if program is None:
            trace = poutine.block(poutine.trace(poutine.block(model, _hidden)).get_trace)(*args, **kwargs)
        else:
            trace = poutine.block(poutine.trace(poutine.block(program, _hidden)).get_trace)()
    sites = dict(trace.iter_stochastic_nodes())
    if not sites:
        raise ValueError("the model has no latent site: a guide needs at least one unobserved pyro.sample")
    for name, site in sites.items():
        check_global(name, site)
    return trace


def check_global(name: str, site: Any) -> None:
    """Refuse a site that is discrete, or local to some of the rows."""
    if site["fn"].support.is_discrete:
        raise ValueError(f"site {name!r} is discrete, so no Normal fits: enumerate it or write its guide by hand")
    for frame in site["cond_indep_stack"]:
        if not frame.vectorized:
            raise ValueError(f"site {name!r} is in the sequential plate {frame.name!r}: use `with pyro.plate(...)`")
        if (frame.full_size or frame.size) != frame.size or frame.name == "data":
            raise ValueError(
                f"site {name!r} is local to the subsampled plate {frame.name!r}; this guide holds global sites only: "
                f"move the site out of the plate or write an amortised guide for it"
            )


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
