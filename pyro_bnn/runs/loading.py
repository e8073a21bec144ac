"""Posteriors by name or folder: shipped ones, run folders, and what `Posterior.save` wrote."""

from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyro_bnn.common.errors import border
from pyro_bnn.posterior import Posterior, describe
from pyro_bnn.recipe import Recipe
from pyro_bnn.registry import find_saved

__all__ = ["load", "posterior_folder", "shipped_posteriors"]


def _weights() -> Path:
    return Path(str(files("pyro_bnn") / "weights"))


def shipped_posteriors() -> list[str]:
    """Return the names of the posteriors in the package."""
    return sorted(folder.parent.name for folder in _weights().glob("*/posterior.json"))


def posterior_folder(path: str | Path) -> Path:
    """
    Return the folder of a posterior: a run folder, one that `Posterior.save` wrote, or that of a shipped name.

    :param path: a run folder, one that `Posterior.save` wrote, or the name of a shipped posterior.
    """
    name, folder = str(path), Path(path)
    if not name or "\0" in name:
        raise ValueError(f"{name!r} is no folder: give a run folder or the name of a shipped posterior")
    if folder.exists():
        return folder
    if name not in shipped_posteriors():
        known = ", ".join(shipped_posteriors()) or "none are shipped"
        raise FileNotFoundError(f"no run folder {name!r} and no shipped posterior of that name (there are: {known})")
    return _weights() / name


def load(
    path: str | Path, model: Callable[..., Any] | None = None, guide: Any = None, *, trust: Collection[str] = ()
) -> Posterior:
    """
    Load a posterior: the name of a shipped one, a run folder, or a folder that `Posterior.save` wrote.

    :param path: a shipped name (`pyro-bnn list posteriors`) or a folder.
    :param model: the program, for the posterior of a hand-written program.
    :param guide: likewise the guide, if it is hand-written too.
    :param trust: packages whose modules may be imported for a network, prior, likelihood or guide of your own.

    >>> import pyro_bnn as pb
    >>> pb.load("lenet5-mnist-mini").info["data"]
    'mnist-mini'
    """
    folder = posterior_folder(path)
    return Posterior.load(folder, _program(folder, trust) if model is None else model, guide, trust=trust)


def _program(folder: Path, trust: Collection[str]) -> Any:
    """Return the program of a run's recipe, where the posterior does not say itself how it was built; else None."""
    description = describe(folder)
    info: Mapping[str, Any] = description["info"]
    if description["model"] is not None or not info.get("recipe"):
        return None
    from pyro_bnn.assemble import build_named_model

    with border(f"the recipe of {folder} cannot be read", "pass the program as model="):
        return _named_program(info, trust, build_named_model)


def _named_program(info: Mapping[str, Any], trust: Collection[str], build: Callable[[Recipe, int], Any]) -> Any:
    recipe = Recipe.from_saved(info["recipe"])
    named = [recipe.program] if recipe.program else [recipe.model, recipe.prior["name"], recipe.likelihood["name"]]
    for name in named:
        if name is not None and ":" in name:
            find_saved(name, trust=trust)
    return build(recipe, info["num_data"])
