"""
From a saved description back to a model and a guide.

A description names every class by `package.module:Name`. Classes of this library, and those that the running program
registered, are built; any other is refused with the remedy, unless the caller trusts its package. Descriptions written
before paths were saved hold the bare name of a class, which then can only be one of this library's.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyro_bnn.guides.ensemble import Ensemble
from pyro_bnn.models.bnn import BNN
from pyro_bnn.models.priors import PerLayer, Prior
from pyro_bnn.registry import BUILT_IN, find_saved, path_of

__all__ = ["build_guide", "build_model", "build_prior", "build_program"]


def _class_of(kind: str, spec: Mapping[str, Any], trust: Collection[str]) -> Callable[..., Any]:
    path = spec.get("class")
    if path is None:  # written before paths were saved
        known = {where.rpartition(":")[2]: where for where in BUILT_IN[kind].values()}
        if spec.get("name") not in known:
            raise ValueError(f"unknown {kind.removesuffix('s')} {spec.get('name')!r} in a saved description")
        path = known[spec["name"]]
    maker: Callable[..., Any] = find_saved(path, trust=trust)
    return maker


def _built(kind: str, spec: Mapping[str, Any], trust: Collection[str], *args: Any) -> Any:
    """Build what `spec` = {name, class, numbers...} describes."""
    make = _class_of(kind, spec, trust)
    numbers = {key: value for key, value in spec.items() if key not in ("name", "class")}
    try:
        return make(*args, **numbers)
    except TypeError as error:
        raise ValueError(f"{kind.removesuffix('s')} {spec['name']!r} with {numbers}: {error}") from error


def build_prior(spec: Mapping[str, Any], trust: Collection[str] = ()) -> Prior:
    """Build a prior from its description."""
    if spec["name"] == "PenaltyPrior":
        penalty = _built("penalties", spec["penalty"], trust)
        prior: Prior = find_saved("pyro_bnn.penalties.network:PenaltyPrior")(penalty, spec["weights"])
        return prior
    if spec["name"] == "PerLayer":
        rules = {pattern: build_prior(rule, trust) for pattern, rule in spec["rules"].items()}
        return PerLayer(rules, build_prior(spec["default"], trust))
    built: Prior = _built("priors", spec, trust)
    return built


def build_model(spec: Mapping[str, Any], trust: Collection[str] = ()) -> BNN:
    """Build a BNN from its description."""
    return BNN(
        _built("models", spec["net"], trust),
        build_prior(spec["prior"], trust),
        _built("likelihoods", spec["likelihood"], trust),
        spec["num_data"],
        random=spec["random"],
    )


def build_program(found: Any, arguments: Mapping[str, Any], num_data: int) -> Any:
    """Return a hand-written program: a function as it is, a class built, with `num_data` if it takes that."""
    if not isinstance(found, type):
        if arguments:
            raise ValueError(f"program {path_of(found)!r} is no class, and program_args={dict(arguments)} are for one")
        return found
    given = {"num_data": num_data} if "num_data" in inspect.signature(found).parameters else {}
    try:
        return found(**given, **arguments)
    except TypeError as error:
        raise ValueError(f"program {path_of(found)!r} with {dict(arguments)}: {error}") from error


def build_guide(spec: Mapping[str, Any], model: Any, trust: Collection[str] = ()) -> Any:
    """Build a guide for `model` from its description."""
    if spec["name"] == "Ensemble":
        return Ensemble.from_spec(spec, model, lambda member, of: build_guide(member, of, trust))
    return _built("guides", spec, trust, model)
