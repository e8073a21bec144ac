"""
The same chances: what a posterior and its deterministic twin have in common before they are compared.

    averaging    both average their iterates, or neither does
    members      as many networks
    epochs       as many passes over the rows, of all networks together
    augmentation the same
    tuning       as many settings tried on validation, all listed; over the life of a card the number only grows
    scaling      both predictives are scaled by a temperature fitted on validation rows

A twin is a point (`map`, `ml`), the average of one, or an ensemble of them. A comparison that lacks one of these says
more of averaging, of ensembles or of tuning than of uncertainty, and no card is made of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

__all__ = ["Chances", "chances_of", "is_deterministic", "unequal"]

_AVERAGES = ("hwa", "swa", "ema", "low_rank")
_POINTS = ("map", "ml")


@final
@dataclass(frozen=True)
class Chances:
    """What a training was given: whether iterates are averaged, how many networks, epochs of all, augmentation."""

    averaged: bool
    members: int
    epochs: int
    augment: str


def chances_of(recipe: Mapping[str, Any]) -> Chances:
    """Return the chances of a recipe's training, given as a table."""
    method = _method(recipe)
    inner = method.get("of") if isinstance(method.get("of"), Mapping) else None
    members = int(method.get("members", 1)) if method["name"] in ("ensemble", "snapshots") else 1
    averaged = method["name"] in _AVERAGES or (inner is not None and inner["name"] in _AVERAGES)
    return Chances(averaged, members, members * int(recipe["epochs"]), str(recipe["augment"]))


def _method(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = recipe["method"] if "method" in recipe else recipe["posterior"]  # as it was called
    return found


def is_deterministic(recipe: Mapping[str, Any]) -> bool:
    """Whether a recipe trains points only: one, the average of one, or several."""
    method = _method(recipe)
    if method["name"] in _POINTS:
        return True
    inner = method.get("of")
    name = inner["name"] if isinstance(inner, Mapping) else inner
    if method["name"] in ("swa", "ema", "snapshots"):
        return name in _POINTS
    if method["name"] == "ensemble":
        return isinstance(inner, Mapping) and is_deterministic({"method": inner})
    return False


def unequal(
    posterior: Mapping[str, Any], twin: Mapping[str, Any], tried: int | None = None, twin_tried: int | None = None
) -> list[str]:
    """
    Return in what the twin had other chances, in words; nothing if in nothing.

    :param posterior: its recipe as a table; `twin` likewise.
    :param tried: how many settings were tried of each on validation; None if it is not known.
    """
    own, other = chances_of(posterior), chances_of(twin)
    words = []
    if own.averaged != other.averaged:
        words.append("averaged and the twin not" if own.averaged else "not averaged and the twin is")
    if own.members != other.members:
        words.append(f"{own.members} networks against {other.members}")
    if own.epochs != other.epochs:
        words.append(f"{own.epochs} epochs against {other.epochs}")
    if own.augment != other.augment:
        words.append(f"augmentation {own.augment} against {other.augment}")
    if tried != twin_tried:
        words.append(f"{tried} settings tried against {twin_tried}")
    return words
