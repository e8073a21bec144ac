"""Posteriors by name or folder: shipped ones, run folders, and what `Posterior.save` wrote."""

from collections.abc import Callable, Collection
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyro_bnn.posterior import Posterior

__all__ = ["load", "posterior_folder", "shipped_posteriors"]


def _weights() -> Path:
    return Path(str(files("pyro_bnn") / "weights"))


def shipped_posteriors() -> list[str]:
    """Return the names of the posteriors in the package."""
    return sorted(folder.parent.name for folder in _weights().glob("*/posterior.json"))


def posterior_folder(path: str | Path) -> Path:
    """Return the folder of a posterior: a run folder, one that `Posterior.save` wrote, or that of a shipped name."""
    name, folder = str(path), Path(path)
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

    :param model: the program, for a posterior of a hand-written one.
    :param guide: likewise the guide, if it is hand-written too.
    :param trust: packages whose modules may be imported for a network, prior, likelihood or guide of your own.
    """
    return Posterior.load(posterior_folder(path), model, guide, trust=trust)
