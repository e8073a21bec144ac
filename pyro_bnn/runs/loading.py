"""Posteriors by name, folder, archive or address: shipped ones, run folders, and what `Posterior.save` wrote."""

from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyro_bnn.common.errors import border
from pyro_bnn.posterior import Posterior, describe
from pyro_bnn.posterior.archive import open_archive
from pyro_bnn.posterior.hub import fetch as fetch_hub
from pyro_bnn.posterior.web import fetch as fetch_web
from pyro_bnn.recipe import Recipe
from pyro_bnn.registry import find_saved

__all__ = ["is_address", "load", "posterior_folder", "shipped_posteriors"]


def _weights() -> Path:
    return Path(str(files("pyro_bnn") / "weights"))


def shipped_posteriors() -> list[str]:
    """Return the names of the posteriors in the package."""
    return sorted(folder.parent.name for folder in _weights().glob("*/posterior.json"))


def is_address(path: str | Path) -> bool:
    """Whether a posterior is named by an address, hf:// or https://, and not by a name or folder of this machine."""
    return isinstance(path, str) and path.startswith(("hf://", "https://", "http://"))


def posterior_folder(path: str | Path) -> Path:
    """
    Return the folder of a posterior: a run folder, one that `Posterior.save` wrote, or that of a shipped name.

    An archive is unpacked into the user's cache, and what is at an address is fetched into it.
    """
    if is_address(path):
        return fetch_hub(str(path)) if str(path).startswith("hf://") else fetch_web(str(path))
    name, folder = str(path), Path(path)
    if not name or "\0" in name:
        raise ValueError(f"{name!r} is no folder: give a run folder or the name of a shipped posterior")
    if folder.suffix == ".zip" and folder.is_file():
        return open_archive(folder)
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
    Load a posterior: the name of a shipped one, a run folder, or a folder or archive that `Posterior.save` wrote.

    Or one that others share: `hf://user/name`, with `@revision` for a branch, tag or commit, from the Hugging Face Hub
    (:mod:`pyro_bnn.posterior.hub`); `https://host/x.zip#sha256=HEX`, an archive with its checksum
    (:mod:`pyro_bnn.posterior.web`). Whoever wrote it, nothing of it is run; see docs/trust.md.

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
