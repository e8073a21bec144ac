"""
From a saved description back to a model and a guide.

A description names every class by `package.module:Name`. Classes of this library, and those that the running program
registered, are built; any other is refused with the remedy, unless the caller trusts its package. Descriptions written
before paths were saved hold the bare name of a class, which then can only be one of this library's.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyro_bnn.common.errors import BadFile, border
from pyro_bnn.common.sizing import entries_of
from pyro_bnn.guides.ensemble import Ensemble
from pyro_bnn.models.bnn import BNN
from pyro_bnn.models.priors import PerLayer, Prior
from pyro_bnn.registry import BUILT_IN, find_saved, path_of

_AS_SAVED = "give the description as it was saved"

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
    with border(f"{kind.removesuffix('s')} {spec['name']!r:.80} with {numbers!s:.200}", _AS_SAVED):
        return make(*args, **numbers)


def build_prior(spec: Mapping[str, Any], trust: Collection[str] = ()) -> Prior:
    """
    Build a prior from its description.

    :param spec: a description: the class's name or path, and its numbers.
    :param trust: packages whose classes may be imported, beside this library and what is registered.
    """
    with border("the prior of a saved description", _AS_SAVED):
        return _prior(spec, trust)


def _prior(spec: Mapping[str, Any], trust: Collection[str]) -> Prior:
    if spec["name"] == "PenaltyPrior":
        penalty = _built("penalties", spec["penalty"], trust)
        prior: Prior = find_saved("pyro_bnn.penalties.network:PenaltyPrior")(penalty, spec["weights"])
        return prior
    if spec["name"] == "PerLayer":
        rules = {pattern: _prior(rule, trust) for pattern, rule in spec["rules"].items()}
        return PerLayer(rules, _prior(spec["default"], trust))
    built: Prior = _built("priors", spec, trust)
    return built


def build_model(spec: Mapping[str, Any], trust: Collection[str] = (), *, entries: int | None = None) -> BNN:
    """
    Build a BNN from its description.

    :param spec: a description: the class's name or path, and its numbers.
    :param trust: packages whose classes may be imported, beside this library and what is registered.
    :param entries: how many numbers were saved; a network of more is not the one that they are of.
    """
    with border("the model of a saved description", _AS_SAVED):
        net = spec["net"]
        numbers = {key: value for key, value in net.items() if key not in ("name", "class")}
        what = f"model {net['name']!r:.80} with {numbers!s:.200}"
        size = entries_of(_class_of("models", net, trust), numbers, what)
        if entries is not None and size is not None and size > entries:
            raise BadFile(f"{what} has {size:,} numbers, and {entries:,} were saved: {_AS_SAVED}")
        return BNN(
            _built("models", net, trust),
            _prior(spec["prior"], trust),
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
    """
    Build a guide for `model` from its description.

    :param spec: a description: the class's name or path, and its numbers.
    :param trust: packages whose classes may be imported, beside this library and what is registered.
    """
    with border("the guide of a saved description", _AS_SAVED):
        return _guide(spec, model, trust)


def _guide(spec: Mapping[str, Any], model: Any, trust: Collection[str]) -> Any:
    if spec["name"] == "Ensemble":
        return Ensemble.from_spec(spec, model, lambda member, of: _guide(member, of, trust))
    return _built("guides", spec, trust, model)
