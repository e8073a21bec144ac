"""
Recipe: the names and numbers of one training, validated.

The catalogue is `recipes/*.toml`; a recipe also comes from a file of the user's or from keyword arguments. Names are
checked against what exists when the training is assembled, numbers are checked here.

A file that begins with `base = "another"` is that recipe of the catalogue with the keys of the file changed: a table
with a `name` takes the place of the base's, one without changes it; another `model` drops its `model_args`. The table
`[paper]` holds what the source did that a CPU cannot do in reasonable time; `budget = "paper"` puts it in force, by the
same rule.

The tables `[variants.NAME]` of a file are the rows of a grid around it, each by the changes that make it, by that rule
again: `find_recipe("lenet5-cifar10-thesis", "adabound")`. The variants of a base are variants of what is based on it,
unless that has one of the same name. `formerly = "PREFIX"`: PREFIX-NAME was the variant's name as a recipe of its own.
"""

import difflib
import math
import re
import sys
import warnings
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pyro_bnn.common.errors import is_own
from pyro_bnn.common.limits import check_limit, duration
from pyro_bnn.common.reading import check_plain, read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["OptimRecipe", "Recipe", "check_name", "find_recipe", "parse_settings", "recipe_names", "variant_names"]


_NAME = re.compile(r"[^\W_][\w.-]*")
_LONGEST_NAME = 100
_DOTS_OF_A_LINE = 100
"""TOML's dotted keys take time and memory by the square of their parts."""

_COUNTED = {
    "epochs": ("epochs", 0.01),
    "warmup": ("epochs", 0.01),
    "num_samples": ("draws", 0.01),
    "val_samples": ("draws", 0.01),
    "draws": ("draws", 0.01),
    "num_particles": ("particles", 0.001),
    "members": ("members", 10.0),
    "chains": ("members", 10.0),
    "cycles": ("members", 1.0),
    "rank": ("members", 0.001),
    "max_tree_depth": ("tree_depth", 0.0),
}
"""Key of a recipe -> its limit, and the seconds that one takes at the least."""

_COUNTED_IN = ("method", "estimator", "guide")


def check_name(name: Any, what: str = "name") -> str:
    """
    Return a name of a recipe or card, which is also that of a folder; refuse a path.

    :param name: the name.
    :param what: what the message calls it.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise ValueError(
            f"{what}={str(name)[:120]!r} is no name: give up to {_LONGEST_NAME} letters, digits, '.', '_' and '-', a "
            "letter or digit first"
        )
    return name


def _as_name(text: str) -> str:
    """Return the nearest name to that of a file."""
    return re.sub(r"[^\w.-]", "-", text).lstrip("._-")[:_LONGEST_NAME] or "custom"


def _check_counts(table: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse numbers of epochs, draws, particles and members beyond their limits, and of an ensemble's."""
    members = 1
    while True:
        for key, (limit, seconds) in _COUNTED.items():
            value = table.get(key)
            if isinstance(value, int):
                so = f"at least {duration(value * seconds)}" if seconds else ""
                check_limit(limit, value, prefix + key, so=so)
        own = table.get("members")
        members *= own if isinstance(own, int) else 1
        check_limit("members", members, f"{prefix}members, all together")
        inner = table.get("of")
        if not isinstance(inner, Mapping):
            return
        table, prefix = inner, f"{prefix}of."


def _named(value: Any) -> Any:
    """Let a bare name stand for a table with that name."""
    return {"name": value} if isinstance(value, str) else value


def _without_none(values: Any) -> Any:
    """Leave out what is None, at any depth: TOML has no word for it."""
    if not isinstance(values, Mapping):
        return values
    return {key: _without_none(value) for key, value in values.items() if value is not None}


def _check_named(value: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value.get("name"), str):
        raise ValueError("a table needs the key 'name'")
    return value


def _check_on_divergence(value: Mapping[str, Any]) -> None:
    retries, factor = value.get("retries", 1), value.get("factor", 0.3)
    sound = isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries <= 100
    sound = sound and isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor < 1
    if set(value) - {"retries", "factor"} or not sound:
        raise ValueError(
            f"on_divergence={dict(value)!r} is not allowed: pass retries, 0 to 100, and factor, above 0 and below 1"
        )


Named = Annotated[dict[str, Any], BeforeValidator(_named), Field(min_length=1)]
KL = str | dict[str, Any] | list[str | dict[str, Any]]


class OptimRecipe(BaseModel):
    """An optimizer for the means, one for the standard deviations, and one for all else (default: as the means).

    A table names the algorithm and its numbers; `clip_norm` and `clip_value` clip its gradients, and `schedule` gives
    it a schedule of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    loc: Named = Field(default={"name": "adam", "lr": 1e-3}, description="of the means")
    scale: Named = Field(default={"name": "adam", "lr": 1e-3}, description="of the standard deviations")
    other: Named = Field(default={"name": "adam", "lr": 1e-3}, description="of all else, such as a learned noise")
    frozen: list[str] = Field(default=[], description="groups that do not move: loc, scale or other")
    alternate: Annotated[int, Field(ge=0, description="epochs that loc and scale train in turns; 0: together")] = 0

    @model_validator(mode="before")
    @classmethod
    def _other_follows_loc(cls, values: Any) -> Any:
        if isinstance(values, str):
            values = {"loc": values, "scale": values}
        if isinstance(values, dict) and "loc" in values and "other" not in values:
            values = {**values, "other": values["loc"]}
        return values

    @model_validator(mode="after")
    def _check(self) -> "OptimRecipe":
        for group in ("loc", "scale", "other"):
            table = _check_named(getattr(self, group))
            for key in ("lr", "final_lr", "lr_sgd"):
                rate = table.get(key)
                number = isinstance(rate, (int, float)) and not isinstance(rate, bool) and math.isfinite(rate)
                if rate is not None and not (number and (rate > 0 or (rate == 0 and key == "lr"))):
                    least = "at least 0" if key == "lr" else "above 0"
                    raise ValueError(
                        f"optim.{group}.{key}={rate!r} is not a learning rate: pass a finite number {least}"
                    )
        return self


class Recipe(BaseModel):
    """
    One training: what, on which data, how, and how long. Every key has a default but `data`, and `model` or `program`.

    >>> import pyro_bnn as pb
    >>> recipe = pb.Recipe(model="mlp", data="toy-line", prior="fan_in", epochs=3)
    >>> recipe.prior, recipe.eta, recipe.guide
    ({'name': 'fan_in'}, 1.0, {'name': 'mean_field'})
    >>> recipe.changed({"optim.loc.lr": 1e-2, "eta": 0.1}).optim.loc["lr"]
    0.01
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    name: str = Field(default="custom", description="what the run folder and the report are called")
    description: str = Field(default="", description="one line for lists and reports")
    source: str = Field(default="", description="the paper or code that it follows")
    model: str | None = Field(default=None, description="a network by name or as 'package.module:Net'")
    model_args: dict[str, Any] = Field(
        default={}, description="the network's arguments; sizes follow from the data by default"
    )
    program: str | None = Field(
        default=None, description="a hand-written program as 'package.module:program', not a network"
    )
    program_args: dict[str, Any] = Field(default={}, description="the program's arguments")
    data: str = Field(description="a data set by name, or the path of a .npz or .csv")
    data_args: dict[str, Any] = Field(
        default={}, description="what `load_data` is told beside: target, split, train_size, on_disk, ..."
    )
    augment: str = Field(default="none", description="what is done to each batch of images: none, flip or crop_flip")
    val_fraction: float = Field(
        default=0.1, ge=0, lt=1, description="share of the training rows set apart for validation"
    )
    prior: Named = Field(default={"name": "kaiming"}, description="the law of the weights before the data")
    random: list[str] = Field(
        default=[], description="patterns of the random parameters; none: all but normalisation layers"
    )
    likelihood: Named = Field(
        default={"name": "auto"}, description="what an output says about a target; auto: by the targets"
    )
    guide: Named = Field(default={"name": "mean_field"}, description="the variational family")
    method: Named = Field(default={"name": "svi"}, description="how the posterior is made: svi, hwa, sgld, nuts, ...")
    estimator: Named = Field(default={"name": "analytic"}, description="how the gradient of the KL is estimated")
    kl: KL = Field(
        default="uniform", description="how the KL is spread over batches and epochs; several are multiplied"
    )
    eta: float = Field(default=1.0, gt=0, description="weight of the KL; below 1 the rows count 1 / eta times")
    temperature: float = Field(default=1.0, gt=0, description="of a cold posterior; never together with an eta")
    optim: OptimRecipe = Field(default=OptimRecipe(), description="the optimizers of means, deviations and all else")
    schedule: Named = Field(default={"name": "constant"}, description="how the learning rates change")
    epochs: int = Field(default=10, ge=1, description="how often all rows are seen")
    batch_size: int = Field(
        default=100, ge=1, description="rows of a batch, on all ranks together, at most those there are"
    )
    accumulate: int = Field(default=1, ge=1, description="batches per step, as of one batch so many times as large")
    noise: Literal["own", "shared"] = Field(
        default="own", description="the weights that ranks and accumulated batches draw"
    )
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="of the network's arithmetic in training"
    )
    batch_norm: Literal["sync", "local", "refuse"] = Field(default="sync", description="statistics on several ranks")
    patience: int = Field(
        default=0, ge=0, description="epochs without a better validation NLL before stopping; 0 is never"
    )
    val_samples: int = Field(default=1, ge=1, description="draws by which validation rows are scored after an epoch")
    on_divergence: dict[str, Any] = Field(
        default={}, description="retries and factor: lower the rates, go on; none: stop"
    )
    seed: int = Field(default=0, ge=0, le=4_000_000_000, description="of everything that is random")
    num_samples: int = Field(default=100, ge=1, description="draws by which the test rows are scored")
    device: str = Field(default="cpu", description="cpu, cuda, cuda:1, mps: where the tensors are")
    budget: Literal["cpu", "paper"] = Field(
        default="cpu", description="which size is in force: a CPU's, or the source's own"
    )
    paper: dict[str, Any] = Field(default={}, description='what changes under `budget = "paper"`')

    @model_validator(mode="before")
    @classmethod
    def _none_is_the_default(cls, values: Any) -> Any:
        return _with_new_keys(_without_none(values))

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        check_name(self.name)
        _check_counts(dict(self))
        for key in _COUNTED_IN:
            _check_counts(getattr(self, key), f"{key}.")
        if (self.model is None) == (self.program is None):
            raise ValueError(
                f"model={self.model!r}, program={self.program!r}: a recipe names a network (model) or a hand-written "
                "program (program), one of them"
            )
        if self.eta != 1 and self.temperature != 1:
            raise ValueError(
                f"eta={self.eta} and temperature={self.temperature}: a posterior is tempered or cold, not both"
            )
        if self.patience and not self.val_fraction:
            raise ValueError(f"patience={self.patience} needs validation rows: set val_fraction above 0")
        for key in ("prior", "likelihood", "guide", "method", "estimator", "schedule"):
            _check_named(getattr(self, key))
        _check_on_divergence(self.on_divergence)
        if self.paper:
            self.changed({"budget": "paper"})
        return self

    @classmethod
    def from_saved(cls, values: Mapping[str, Any]) -> "Recipe":
        """
        Validate a dictionary that this or an earlier version has saved.

        :param values: the recipe as a dictionary.
        """
        named = {"name": _as_name(values["name"])} if isinstance(values.get("name"), str) else {}
        return cls.build({**_with_new_keys(values, warn=False), **named})

    @classmethod
    def build(cls, values: Mapping[str, Any]) -> "Recipe":
        """
        Validate a dictionary; an error is one line with the key, the value and what is allowed.

        :param values: the recipe as a dictionary.
        """
        check_plain(values, "the recipe")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ValueError(_one_line(error)) from None

    @classmethod
    def from_toml(cls, text: str, name: str = "custom", *, variant: str | None = None, saved: bool = False) -> "Recipe":
        """
        Read a recipe from TOML.

        :param text: the recipe as TOML.
        :param variant: one of its variants, of which the recipe's name then speaks too.
        :param saved: whether an earlier version may have written it, so that old keys are no mistake of the user's.
        """
        name = _as_name(name)
        values, variants = _read(text, name)
        if saved and isinstance(values.get("name"), str):
            values["name"] = _as_name(values["name"])
        values = _with_new_keys(values, warn=not saved)
        base = values.pop("base", None)
        if base is None:
            recipe = cls.build({"name": name, **values})
        else:
            recipe = find_recipe(_known_base(base, name))._with({"name": name, **_dotted(values)})
        if variant is None:
            return recipe
        if variant not in variants:
            has = f"they are {', '.join(variants)}" if variants else "it has none"
            raise ValueError(f"recipe {name!r} has no variant {variant!r}{_suggest(variant, list(variants))}: {has}")
        changes = _with_new_keys(variants[variant], warn=not saved)
        description = f"{recipe.description}; variant: {changes.get('description', variant)}"
        return recipe._with({**_dotted(changes), "name": f"{name}--{variant}", "description": description})

    def to_toml(self) -> str:
        """Write the recipe with every default spelled out."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def changed(self, settings: Mapping[str, Any]) -> "Recipe":
        """
        Return the recipe with other values; keys may be dotted (`optim.loc.lr`).

        `budget="paper"` puts the table `paper` in force; what else is given comes on top of it. What describes one
        network does not describe another: a new `model` comes without `description` and `source`, unless it brings
        them.

        :param settings: new values by key.
        """
        if settings.get("model", self.model) != self.model:
            settings = {"description": "", "source": "", **settings}
        wanted = settings.get("budget", self.budget)
        if wanted != self.budget and wanted in ("cpu", "paper"):
            if not self.paper:
                raise ValueError(
                    f"budget={wanted!r}: recipe {self.name!r} has one budget, {self.budget!r}; leave it out"
                )
            settings = {**_dotted(self.paper), **settings, "paper": {}}
        return self._with(settings)

    def _with(self, settings: Mapping[str, Any]) -> "Recipe":
        settings = _with_new_keys(settings)
        values = self.model_dump()
        follow = values["optim"]["other"] == values["optim"]["loc"] and not any(
            key == "optim" or key.startswith("optim.other") for key in settings
        )
        if settings.get("model", values["model"]) != values["model"]:  # another network has other arguments
            values["model_args"], values["paper"] = {}, {k: v for k, v in values["paper"].items() if k != "model_args"}
        for key, value in settings.items():
            _put(values, key, value)
        if follow:
            values["optim"].pop("other", None)
        return Recipe.build(values)


_RENAMED = {"posterior": "method"}
"""Keys of earlier versions."""


def _with_new_keys(values: Any, *, warn: bool = True) -> Any:
    """Return values under the keys of today; an old key works for one version, with a warning."""
    if not isinstance(values, Mapping):
        return values
    renamed = {}
    for key, value in values.items():
        old, dot, rest = str(key).partition(".")
        new = _RENAMED.get(old, old)
        if new != old and warn:
            warnings.warn(f"the recipe key {old!r} is called {new!r} now", DeprecationWarning, stacklevel=4)
        if old == "paper" and isinstance(value, Mapping):
            value = _with_new_keys(value, warn=warn)
        renamed[new + dot + rest if isinstance(key, str) else key] = value
    return renamed


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested tables by dotted key; an empty table, or one with a name, is a leaf."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping) and value and "name" not in value
        flat |= _dotted(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    _check_key(path[0] if path else last)
    table: Any = values
    for part in path:
        inner = table.get(part)
        if isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            if inner is not None:
                raise ValueError(f"{key}={value!r}: {part!r} is {inner!r} and has no keys of its own")
            inner = {}
        table[part] = inner
        table = inner
    renamed = last == "name" and table.get("name") != value and path
    if renamed:  # another optimizer or prior: the old one's numbers, but for the rate, do not carry over
        kept = {"lr": table["lr"]} if "lr" in table else {}
        table.clear()
        table.update(kept)
    table[last] = value


def _check_key(key: str) -> None:
    if key not in Recipe.model_fields:
        raise ValueError(
            f"unknown recipe key {key!r}{_suggest(key, list(Recipe.model_fields))}; "
            f"the keys are {', '.join(Recipe.model_fields)}"
        )


def _suggest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _one_line(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            parent, _, last = key.rpartition(".")
            _check_key(parent or last)
            known = list(OptimRecipe.model_fields)
            lines.append(f"unknown recipe key {key!r}{_suggest(last, known)}; {parent} has {', '.join(known)}")
            continue
        message = problem["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        if problem["type"] == "value_error":
            lines.append(message)
        elif problem["type"] == "missing":
            lines.append(f"recipe key {key!r} is required: add it")
        else:
            lines.append(f"{key}={problem['input']!r}: {message}")
    return "; ".join(lines)


def recipe_names() -> list[str]:
    """Return the names of the catalogue."""
    folder = files("pyro_bnn") / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def _known_base(base: Any, name: str) -> str:
    if base not in recipe_names() and not (isinstance(base, str) and _formerly(base)):
        raise ValueError(
            f"recipe {name!r} has base={base!r}{_suggest(str(base), recipe_names())}, which is not in the "
            f"catalogue: see `pyro-bnn list recipes`"
        )
    return str(base)


def _read(text: str, name: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return a recipe's own values, and its variants, those of its base included."""
    values = _parsed(text, f"recipe {name!r}")
    own = values.pop("variants", {})
    values.pop("formerly", None)
    if not isinstance(own, Mapping) or not all(isinstance(changes, Mapping) for changes in own.values()):
        raise ValueError(f"variants={own!r} of recipe {name!r}: write a table [variants.NAME] for each")
    variants: dict[str, dict[str, Any]] = {}
    if "base" in values:
        base = _known_base(values["base"], name)
        if base in recipe_names():
            variants |= _read(_catalogued(base), base)[1]
    return values, variants | {key: dict(changes) for key, changes in own.items()}


def _parsed(text: str, what: str) -> dict[str, Any]:
    """Return the values of a text of TOML."""
    check_limit("recipe_bytes", len(text), f"characters of {what}")
    for row, line in enumerate(text.splitlines()):
        if line.count(".") > _DOTS_OF_A_LINE:
            raise ValueError(f"{what}: line {row + 1} has more than {_DOTS_OF_A_LINE} dots: write it on several lines")
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{what} is not TOML: {error}") from None
    except (RecursionError, ValueError, OverflowError) as error:  # too deep; a number of too many digits; no such date
        raise ValueError(f"{what} is not TOML: {type(error).__name__}, {str(error)[:80]}") from None
    check_plain(values, what)
    return values


def _catalogued(name: str) -> str:
    return (files("pyro_bnn") / "recipes" / f"{name}.toml").read_text()


def _text_of(name: "str | Path") -> tuple[str, str]:
    """Return a recipe's TOML and its name, from the catalogue or a file."""
    if str(name).endswith(".toml"):
        path = Path(name)
        if "\0" in str(name) or not path.exists():
            raise FileNotFoundError(
                f"no recipe file {path}; give an existing .toml or one of {', '.join(recipe_names())}"
            )
        return read_text(path, "recipe_bytes"), path.stem
    known = recipe_names()
    if name not in known:
        raise ValueError(
            f"unknown recipe {str(name)!r}{_suggest(str(name), known)}; `pyro-bnn list recipes` shows the "
            f"{len(known)} that there are, or give a .toml file"
        )
    return _catalogued(str(name)), str(name)


def _formerly(name: str) -> tuple[str, str] | None:
    """Return recipe and variant that an earlier version had as a recipe of its own."""
    for recipe in recipe_names():
        prefix = tomllib.loads(_catalogued(recipe)).get("formerly")
        variant = name.removeprefix(f"{prefix}-")
        if prefix and variant != name and variant in variant_names(recipe):
            return recipe, variant
    return None


def variant_names(name: "str | Path") -> list[str]:
    """
    Return the names of a recipe's variants.

    :param name: a name, or the path of a .toml.
    """
    return list(_read(*_text_of(name))[1])


def find_recipe(name: "str | Path | Recipe", variant: str | None = None) -> Recipe:
    """
    Return a recipe by its name in the catalogue, from a .toml file, or as it is.

    :param name: a name, the path of a .toml, or a Recipe.
    :param variant: one of the recipe's variants; see :func:`variant_names`.

    >>> recipe = find_recipe("lenet5-mnist-mini").changed({"epochs": 3, "optim.loc.lr": 1e-3})
    >>> recipe.model, recipe.epochs, recipe.optim.loc
    ('lenet5', 3, {'name': 'adam', 'lr': 0.001})
    >>> find_recipe("lenet5-cifar10-thesis", "adabound").optim.scale["name"]
    'adabound'
    """
    if isinstance(name, Recipe):
        if variant is not None:
            raise ValueError(f"variant={variant!r} of a Recipe: variants belong to names; use recipe.changed({{...}})")
        return name
    if variant is None and not str(name).endswith(".toml") and name not in recipe_names():
        former = _formerly(str(name))
        if former is not None:
            warnings.warn(
                f"the recipe {str(name)!r} is a variant now: {former[0]!r}, variant={former[1]!r}",
                DeprecationWarning,
                stacklevel=2,
            )
            return find_recipe(*former)
    text, title = _text_of(name)
    return Recipe.from_toml(text, title, variant=variant)


_POINT_ALONE = re.compile(r"[+-]?([0-9]{1,30}\.|\.[0-9]{1,30})(e[+-]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)
"""Numbers as people write them and TOML does not: .5 and 5."""


def _value(text: str) -> Any:
    """Return what the text of a `--set` stands for."""
    if "{" in text and text.count(".") > _DOTS_OF_A_LINE:
        raise ValueError(f"--set: a table with more than {_DOTS_OF_A_LINE} dots: write it into a .toml file")
    check_limit("recipe_bytes", len(text), "characters of a --set")
    values = tomllib.loads(f"v = {text}")
    return values["v"] if len(values) == 1 else text.strip()


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """
    Read `key=value` arguments; a value is TOML where it can be (numbers, lists, true), else text.

    :param settings: texts of the form key=value.
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {setting!r} is not of the form key=value, e.g. --set optim.loc.lr=1e-3")
        try:
            parsed[key.strip()] = _value(text)
        except tomllib.TOMLDecodeError:
            text = text.strip()
            parsed[key.strip()] = float(text) if _POINT_ALONE.fullmatch(text) else text
        except (RecursionError, ValueError, OverflowError) as error:
            if is_own(error):
                raise
            raise ValueError(f"--set {setting[:80]!r} is no value: {type(error).__name__}") from None
    return parsed
