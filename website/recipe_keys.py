"""
The page on recipe keys, from the recipe's own model: `python website/recipe_keys.py` writes it.

Every key comes with its type, its default and the sentence that the model has on it; every name that it may hold with
the first line of what it stands for, and its numbers with their defaults. A test compares the page with this.
"""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pyro.infer import ELBO

from pyro_bnn.common.files import insert_between, write_text
from pyro_bnn.inference.kl import KL_WEIGHTS
from pyro_bnn.optim import TorchOptim
from pyro_bnn.recipe import OptimRecipe, Recipe
from pyro_bnn.registry import look_up, names

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "recipe-keys.md"

NAMED = {
    "model": "models",
    "prior": "priors",
    "likelihood": "likelihoods",
    "guide": "guides",
    "method": "methods",
    "estimator": "estimators",
    "estimator.layers": "layers",
    "schedule": "schedules",
    "augment": "augmentations",
}
"""The kind of names that a key holds; `optim`, `kl` and `data` are told apart below."""

_GIVEN = {"model", "guide", "generator", "images", "module", "parameter", "name"}
"""Arguments that a recipe does not give."""

_HOW = {"capturable", "decoupled_weight_decay", "differentiable", "foreach", "fused", "maximize"}
"""Arguments of torch's optimizers that say how a step is computed, and differ between torch's versions."""

_FOREIGN = {
    "total": "Pyro's Trace_ELBO: the KL sampled, with the score of q in its gradient.",
    "plain": "Every layer with one weight sample per step.",
}
"""What is not of this library, in our words."""


def _toml(value: Any) -> str:
    """Return a default as it stands in a recipe."""
    if isinstance(value, dict) and set(value) == {"name"}:
        return f'`"{value["name"]}"`'
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {_plain(item)}" for key, item in value.items())
        return f"`{{{inner}}}`"
    return "" if value is None else f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _allowed(key: str, field: FieldInfo) -> str:
    """Return what a key may hold, in a word or two."""
    if key in NAMED and key not in ("model", "augment"):
        return "a name, or a table with one"
    text = str(field.annotation)
    kinds = (("OptimRecipe", "a table"), ("Literal", '"cpu" or "paper"'), ("list[str]", "a list of texts"))
    kinds += (("dict", "a table"), ("float", "a number"), ("int", "a whole number"), ("str", "a text"))
    if key == "kl":
        return "a name, a table, or a list of them"
    if key in ("loc", "scale", "other"):
        return "a name, or a table with one"
    kind = next(words for part, words in kinds if part in text)
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    bounds = [
        f"{words} {getattr(rule, sign):,}"
        for rule in field.metadata
        for sign, words in signs.items()
        if getattr(rule, sign, None) is not None
    ]
    return " ".join([kind, *([", ".join(bounds)] if bounds else [])])


def _keys(fields: dict[str, FieldInfo], prefix: str = "") -> Iterator[str]:
    yield "| key | holds | default | what it does |"
    yield "| --- | --- | --- | --- |"
    for key, field in fields.items():
        default = "required" if field.is_required() else _toml(field.default)
        if isinstance(field.default, OptimRecipe):
            default = "below"
        yield f"| `{prefix}{key}` | {_allowed(key, field)} | {default} | {field.description} |"


def _first_line(name: str, value: Any) -> str:
    if name in _FOREIGN:
        return _FOREIGN[name]
    text = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return text.replace(":class:", "").replace(":func:", "").replace(":mod:", "")


def _numbers(name: str, value: Callable[..., Any]) -> str:
    """Return the arguments that a table may give, with their defaults."""
    if inspect.isclass(value) and issubclass(value, TorchOptim):
        return ", ".join(f"`{number}`" for number in sorted(set(value.arguments()) - _HOW))
    if inspect.isclass(value) and issubclass(value, ELBO) and value.__init__ is ELBO.__init__:
        return "`num_particles = 1`"
    if name in _FOREIGN:
        return ""
    found = []
    for p in inspect.signature(value).parameters.values():
        if p.name in _GIVEN or p.name.startswith("_") or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        simple = isinstance(p.default, (int, float, str, tuple, list))
        found.append(f"`{p.name} = {_plain(p.default)}`" if simple else f"`{p.name}`")
    return ", ".join(found)


def _table(kind: str, found: dict[str, Callable[..., Any]]) -> Iterator[str]:
    yield f"| {kind} | is | its numbers |"
    yield "| --- | --- | --- |"
    for name, value in found.items():
        yield f"| `{name}` | {_first_line(name, value)} | {_numbers(name, value)} |"


def recipe_keys() -> str:
    """Return the tables of the page."""
    parts = ["## All keys\n", *_keys(Recipe.model_fields), "\n## Keys of `optim`\n"]
    parts += _keys(OptimRecipe.model_fields, "optim.")
    parts += ["\n## Names for `optim.loc`, `optim.scale`, `optim.other`\n"]
    parts += [
        "Each also takes `clip_norm` and `clip_value`, which clip its gradients, and `schedule`, one of its own.\n",
        *_table("name", {name: look_up("optimizers", name) for name in names("optimizers")}),
    ]
    parts += ["\n## Names for `kl`\n", *_table("name", dict(KL_WEIGHTS))]
    for key, kind in NAMED.items():
        parts += [f"\n## Names for `{key}`\n", *_table("name", {name: look_up(kind, name) for name in names(kind)})]
    return "\n".join(parts)


if __name__ == "__main__":
    write_text(PAGE, insert_between(PAGE.read_text(), "keys", recipe_keys()))
