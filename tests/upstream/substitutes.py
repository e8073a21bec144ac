"""
The library's classes under the names, and with the arguments, of the Pyro classes whose place they take.

Only what has another name here is translated: `init_loc_fn=init_to_mean` is `init_loc="zeros"`, and so on, and
`_loc_scale()`, which several of Pyro's tests read, is put together from `guide.site(name)`. Every construction is
counted, so that a test that never met the class is not reported as passed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import init_to_feasible, init_to_mean, init_to_median, init_to_sample

from pyro_bnn import optim
from pyro_bnn.guides import AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint
from pyro_bnn.inference import (
    FlatMeanField_ELBO,
    TraceColdPosterior_ELBO,
    TraceLowRank_ELBO,
    TracePathDerivative_ELBO,
    TraceScoreFunction_ELBO,
)

MADE: list[str] = []
"""The classes built since somebody last looked."""

_STARTS = {init_to_feasible: "zeros", init_to_mean: "zeros", init_to_median: "zeros", init_to_sample: "normal"}


def _counted(name: str, base: Any, **fixed: Any) -> Any:
    """Return a subclass of `base` called `name` that counts what is built of it."""

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        MADE.append(name)
        base.__init__(self, *args, **{**fixed, **kwargs})

    return type(name, (base,), {"__init__": build, "__module__": __name__})


def _optimizer(name: str, base: Any) -> Any:
    """Return a subclass of an optimizer that shows its one torch optimizer under every parameter, as Pyro does."""
    counted = _counted(name, base)

    def step(self: Any, params: Any) -> None:
        params = list(params)
        base.__call__(self, params)
        self.optim_objs.update(dict.fromkeys(params, self.torch_optimizer))

    counted.__call__ = step
    return counted


def _init_loc(init_loc_fn: Any) -> dict[str, str]:
    if init_loc_fn is None:
        return {}
    function = init_loc_fn.func if isinstance(init_loc_fn, functools.partial) else init_loc_fn
    if function not in _STARTS:
        raise TypeError("the library's guides start from a named law (init_loc=...), not from a function of the site")
    return {"init_loc": _STARTS[function]}


def _guide(name: str, base: Any) -> Any:
    """Return a subclass of a guide that takes Pyro's arguments and starts where Pyro's guides do."""
    defaults: dict[str, Any] = {"init_loc": "zeros"} | ({} if base is AutoPoint else {"init_scale": 0.1})

    def build(self: Any, model: Any, init_loc_fn: Any = None, create_plates: Any = None, **options: Any) -> None:
        MADE.append(name)
        if create_plates is not None:
            raise TypeError("the library's guides hold global sites only and take no create_plates")
        if options.get("init_scale", 1) is None:
            del options["init_scale"]
        base.__init__(self, model, **{**defaults, **_init_loc(init_loc_fn), **options})

    def loc_scale(self: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.prototype_trace is None:
            self(*args, **kwargs)
        sites = [self.site(name) for name in self.site_names()]
        return torch.cat([s.loc.reshape(-1) for s in sites]), torch.cat([s.scale.reshape(-1) for s in sites])

    return type(name, (base,), {"__init__": build, "_loc_scale": loc_scale, "__module__": __name__})


# Module attributes of their own names, so that torch.save finds them.
AutoNormal = _guide("AutoNormal", AutoMeanFieldNormal)
AutoDiagonalNormal = _guide("AutoDiagonalNormal", AutoMeanFieldNormal)
AutoLowRankMultivariateNormal = _guide("AutoLowRankMultivariateNormal", AutoLowRankNormal)
AutoDelta = _guide("AutoDelta", AutoPoint)


@dataclass(frozen=True)
class Substitution:
    """What takes whose place."""

    modules: tuple[str, ...]
    """The modules in which names are replaced."""

    ours: Mapping[str, Any]
    twin: Mapping[str, Any] = field(default_factory=dict)
    """Pyro's own classes in the same places, to compare with; without them, those that are replaced."""


def _elbo(name: str, ours: Any, twin: Any = None, **fixed: Any) -> Substitution:
    return Substitution(
        ("pyro.infer",), {name: _counted(name, ours, **fixed)}, {} if twin is None else {name: _counted(name, twin)}
    )


def _auto(name: str, ours: Any) -> Substitution:
    return Substitution(("pyro.infer.autoguide", "pyro.infer.autoguide.guides"), {name: ours})


_TWINS = ("SGD", "Adam", "AdamW", "Adagrad", "RAdam", "RMSprop")

SUBSTITUTIONS: dict[str, Substitution] = {
    "AutoNormal -> AutoMeanFieldNormal": _auto("AutoNormal", AutoNormal),
    "AutoDiagonalNormal -> AutoMeanFieldNormal": _auto("AutoDiagonalNormal", AutoDiagonalNormal),
    "AutoLowRankMultivariateNormal -> AutoLowRankNormal": _auto(
        "AutoLowRankMultivariateNormal", AutoLowRankMultivariateNormal
    ),
    "AutoDelta -> AutoPoint": _auto("AutoDelta", AutoDelta),
    "TraceMeanField_ELBO -> FlatMeanField_ELBO": _elbo("TraceMeanField_ELBO", FlatMeanField_ELBO),
    "TraceMeanField_ELBO -> TraceLowRank_ELBO": _elbo("TraceMeanField_ELBO", TraceLowRank_ELBO),
    "TraceMeanField_ELBO -> TraceColdPosterior_ELBO(1)": _elbo(
        "TraceMeanField_ELBO", TraceColdPosterior_ELBO, temperature=1.0
    ),
    "Trace_ELBO -> FlatMeanField_ELBO": _elbo("Trace_ELBO", FlatMeanField_ELBO, TraceMeanField_ELBO),
    "Trace_ELBO -> TracePathDerivative_ELBO": _elbo("Trace_ELBO", TracePathDerivative_ELBO),
    "Trace_ELBO -> TraceScoreFunction_ELBO": _elbo("Trace_ELBO", TraceScoreFunction_ELBO),
    "pyro.optim -> pyro_bnn.optim": Substitution(
        ("pyro.optim",), {name: _optimizer(name, getattr(optim, name)) for name in _TWINS}
    ),
}
"""By name, what takes whose place."""
