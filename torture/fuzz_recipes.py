"""Random and mutated recipes: dictionaries, TOML, settings."""

import random
from typing import Any

import tomli_w

from pyro_bnn.recipe import Recipe, find_recipe, parse_settings, recipe_names
from torture.mutations import HOSTILE, altered, damaged
from torture.oracle import Tally, judge

_ODD: tuple[Any, ...] = (*HOSTILE, 1j, b"x", object(), {1: 2}, {None: 1}, float("nan"), float("inf"), (1, 2), {1, 2})
_VALUES = (
    "1",
    "1e999",
    "[1, 2]",
    "{name = 'hwa'}",
    "nan",
    "'x",
    "[[",
    "{a.b.c = 1}",
    "true",
    "\n",
    "1979-01-01",
    "9" * 99,
)


def recipes(count: int, seed: int) -> Tally:
    """Build recipes of the catalogue with something changed, from dictionaries, TOML and settings."""
    tally, rng = Tally(), random.Random(seed)
    known = [find_recipe(name).model_dump(exclude_none=True) for name in recipe_names()]
    texts = [tomli_w.dumps(values).encode() for values in known]
    keys = list(Recipe.model_fields)
    for i in range(count):
        kind = rng.randrange(4)
        if kind == 0:
            values = altered(rng.choice(known), rng)
            if rng.random() < 0.3 and isinstance(values, dict):
                values[rng.choice(keys)] = rng.choice(_ODD)
            judge(tally, lambda: Recipe.build(values), f"case {i}, {str(values)[:300]!r}")
        elif kind == 1:
            text = damaged(rng.choice(texts), rng).decode("utf-8", "replace")
            judge(tally, lambda: Recipe.from_toml(text, "x"), f"case {i}, damaged TOML")
        elif kind == 2:
            changes = {
                rng.choice(keys) + rng.choice(("", ".name", ".lr", ".a.b", ".")): rng.choice(_ODD)
                for _ in range(rng.randrange(1, 4))
            }
            recipe = find_recipe(rng.choice(recipe_names()))
            judge(tally, lambda: recipe.changed(changes), f"case {i}, {str(changes)[:300]!r}")
        else:
            settings = [
                rng.choice((*keys, "optim.loc.lr", "", "a.b", "method.of.of"))
                + rng.choice(("=", "", " = "))
                + rng.choice((*_VALUES, str(rng.choice(HOSTILE))))
                for _ in range(rng.randrange(1, 4))
            ]
            recipe = find_recipe(rng.choice(recipe_names()))
            judge(tally, lambda: recipe.changed(parse_settings(settings)), f"case {i}, {str(settings)[:300]!r}")
    return tally
