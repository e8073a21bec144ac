"""
What was tried on validation before a card was made: the settings of each run folder and the best of its validation NLL.

The number of settings tried belongs to a result: the more, the better the best of them looks. A run counts whether it
was finished or not, so that only its recipe and its history are read.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from pyro_bnn.recipe import Recipe, find_recipe

__all__ = ["leaves", "setting", "settings_tried"]

_UNTOLD = ("seed", "name", "description", "source", "paper", "budget", "num_samples")
"""What two runs may differ in and still be the same setting."""


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a recipe's nested values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        found |= leaves(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return found


def setting(key: str, value: Any) -> str:
    """Return `key=value` as `--set` reads it."""
    return f"{key}={value if isinstance(value, str) else tomli_w.dumps({'v': value}).strip().removeprefix('v = ')}"


def _told(recipe: Recipe) -> dict[str, Any]:
    values = leaves(recipe.model_dump())
    if recipe.optim.other == recipe.optim.loc:
        values = {key: value for key, value in values.items() if not key.startswith("optim.other.")}
    return {key: value for key, value in values.items() if key.partition(".")[0] not in _UNTOLD}


def _changes(chosen: Recipe, other: Recipe) -> list[str]:
    """Return what the other recipe sets differently; the arguments of a kind it does not have go without saying."""
    here, there = _told(chosen), _told(other)
    changed = sorted(key for key in there if key not in here or here[key] != there[key])
    kinds = tuple(key.removesuffix("name") for key in changed if key.endswith(".name"))
    lost = sorted(key for key in here if key not in there and not key.startswith(kinds))
    changed.sort(key=lambda key: not key.endswith(".name"))
    return [*(setting(key, there[key]) for key in changed), *(f"no {key}" for key in lost)]


def _row(chosen: Recipe, own: Recipe, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    scores = [row["val_nll"] for row in history if row.get("val_nll") is not None]
    best = min(scores, default=None)
    return {"settings": _changes(chosen, own), "seed": own.seed, "epochs": len(history), "val_nll": best}


def _read(folder: Path) -> tuple[Recipe, list[dict[str, Any]]]:
    recipe, history = folder / "recipe.toml", folder / "metrics.jsonl"
    missing = [path.name for path in (recipe, history) if not path.is_file()]
    if missing:
        raise ValueError(f"{folder} has no {' and no '.join(missing)}: give the folder of a run")
    return find_recipe(recipe), [json.loads(line) for line in history.read_text().splitlines()]


def settings_tried(
    chosen: Recipe, history: Sequence[Mapping[str, Any]], others: Sequence[str | Path]
) -> list[dict[str, Any]]:
    """
    Return the chosen setting and the others tried, best first: each one's seed, epochs and best validation NLL.

    :param chosen: the recipe that was chosen.
    :param history: what its run wrote, an epoch per row.
    :param others: run folders of other settings, one of each: a setting on another seed is not another setting.
    """
    first = _row(chosen, chosen, history)
    rows = {tuple(first["settings"]): first}
    for folder in map(Path, others):
        row = _row(chosen, *_read(folder))
        key = tuple(row["settings"])
        if key in rows:
            what = " ".join(key) or "the setting of the card"
            raise ValueError(f"{folder} has a setting given before ({what}): give each setting that was tried once")
        if row["val_nll"] is None or first["val_nll"] is None:
            raise ValueError(
                f"{folder} has no validation NLL beside the card's: settings compare with val_fraction > 0"
            )
        rows[key] = row
    return sorted(rows.values(), key=lambda row: row["val_nll"] or 0.0)
