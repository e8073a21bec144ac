"""
What was tried on validation before the choice on a card: the setting of each run folder beside the card's.

The number of settings tried belongs to a result: the more, the better the best of them looks. A run counts whether it
was finished or not: what was given up is known by its recipe and its history. Over the life of a card the number only
grows: a card that is made anew keeps what was tried for the earlier ones under `earlier`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from pyro_bnn.common.reading import read_json_lines
from pyro_bnn.recipe import Recipe, find_recipe

__all__ = ["earlier_settings", "leaves", "number_tried", "setting", "settings_tried"]

_NOT_SETTINGS = ("seed", "name", "description", "source", "paper", "budget", "num_samples")
"""What two runs may differ in and still be the same setting."""


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a recipe's nested values by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        flat |= leaves(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat


def setting(key: str, value: Any) -> str:
    """Return `key=value` as `--set` reads it."""
    return f"{key}={value if isinstance(value, str) else tomli_w.dumps({'v': value}).strip().removeprefix('v = ')}"


def _choices(recipe: Recipe) -> dict[str, Any]:
    values = leaves(recipe.model_dump())
    if recipe.optim.other == recipe.optim.loc:
        values = {key: value for key, value in values.items() if not key.startswith("optim.other.")}
    return {key: value for key, value in values.items() if key.partition(".")[0] not in _NOT_SETTINGS}


def _changes(chosen: Recipe, other: Recipe) -> list[str]:
    """Return what the other recipe sets differently; the arguments of a kind it does not have go without saying."""
    here, there = _choices(chosen), _choices(other)
    changed = sorted(key for key in there if key not in here or here[key] != there[key])
    kinds = tuple(key.removesuffix("name") for key in changed if key.endswith(".name"))
    lost = sorted(key for key in here if key not in there and not key.startswith(kinds))
    changed.sort(key=lambda key: not key.endswith(".name"))
    return [*(setting(key, there[key]) for key in changed), *(f"no {key}" for key in lost)]


def _read(folder: Path) -> tuple[Recipe, list[dict[str, Any]]]:
    recipe, history = folder / "recipe.toml", folder / "metrics.jsonl"
    missing = [path.name for path in (recipe, history) if not path.is_file()]
    if missing:
        raise ValueError(f"{folder} has no {' and no '.join(missing)}: give the folder of a run")
    return find_recipe(recipe), read_json_lines(history)


def settings_tried(
    chosen: Path, others: Sequence[Path], score: Callable[[Path], Mapping[str, float] | None]
) -> list[dict[str, Any]]:
    """
    Return the chosen setting and the others tried, best first: seed, epochs and scores on validation.

    :param chosen: the folder of a run of the setting that was chosen.
    :param others: run folders of other settings, one of each: a setting on another seed is not another setting.
    :param score: of a finished posterior, its `val_nll` and what else there is to tell; None of a run that has no
        posterior, which is known by its best epoch.
    """
    recipe, _ = _read(chosen)
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for folder in (chosen, *others):
        own, history = _read(folder)
        changes = _changes(recipe, own)
        if tuple(changes) in rows:
            what = " ".join(changes) or "the setting of the card"
            raise ValueError(f"{folder} has a setting given before ({what}): give each setting that was tried once")
        numbers = score(folder)
        if numbers is None:
            best = min((row["val_nll"] for row in history if row.get("val_nll") is not None), default=None)
            numbers = {} if best is None else {"val_nll": best, "given_up": True}
        if not numbers and others:
            raise ValueError(f"{folder} has no validation NLL: settings are compared on validation (val_fraction > 0)")
        row = {"settings": changes, "seed": own.seed, "epochs": len(history), **numbers}
        rows[tuple(changes)] = row
    return sorted(rows.values(), key=lambda row: row.get("val_nll", 0.0))


def number_tried(card: Mapping[str, Any]) -> int:
    """Return how many settings were tried for a card, or for the twin in one, over its whole life."""
    return _now(card) + sum(int(making["tried"]) for making in card.get("earlier", ()))


def _now(card: Mapping[str, Any]) -> int:
    return len(card["tried"]) if "tried" in card else int(card.get("tuning_runs", 1))


def earlier_settings(
    former: Mapping[str, Any], date: str, now: Sequence[Mapping[str, Any]], same: bool
) -> list[dict[str, Any]]:
    """
    Return what was tried for a card before it was made anew; settings that are tried again count once.

    :param former: the card that was there, or the twin in it.
    :param date: when it was made.
    :param now: the settings tried this time, as `settings_tried` gives them.
    :param same: whether the chosen setting is the former one, so that those that differ from it alike are the same.
    """
    known = [row["settings"] for row in now] if same else []
    again = sum(row["settings"] in known for row in former["tried"]) if "tried" in former else int(same)
    making = {"date": date, "command": former["command"], "tried": _now(former) - again}
    return [*former.get("earlier", ()), *([making] if making["tried"] else [])]
