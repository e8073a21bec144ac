"""Every public name is on the site's reference, with a line that says what it is and a word on every parameter."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import pyro_bnn

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
ROOMS = sorted({room for page in REFERENCE.glob("*.md") for room in re.findall(r"^::: (\S+)$", page.read_text(), re.M)})
"""The modules whose public names the reference shows."""

INSIDE = {"cards", "cli", "common", "runs", "version"}
"""What users do not import: the machinery of the zoo, the command, tools; of `runs` its modules are shown."""


def _names() -> Iterator[tuple[str, str, Any]]:
    """Yield (module, name, value) of every public name, each object once."""
    seen: set[int] = set()
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.ismodule(value) or (callable(value) and id(value) in seen):
                continue
            seen.add(id(value))
            yield room, name, value


NAMES = list(_names())


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "pyro_bnn"


def _parameters(value: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that a caller may give; *args and **kwargs have no names."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(value).parameters.values()
    return [
        p.name for p in found if p.kind not in kinds and not p.name.startswith("_") and p.name not in ("self", "cls")
    ]


def _said(name: str, text: str) -> bool:
    """Return whether a docstring speaks of a parameter: as `:param name:`, or between backticks."""
    return re.search(rf":param {name}:|`{name}\b", text) is not None


def _of_class(value: type) -> list[str]:
    """Return the parameters of a class of which neither it nor a base of this library speaks."""
    if issubclass(value, BaseModel):
        return [name for name, field in value.model_fields.items() if not field.description]
    if not (_is_ours(value.__init__) or "__dataclass_fields__" in vars(value)):
        return []  # those of a class of Pyro or torch, where they are documented
    bases = [base for base in value.__mro__ if _is_ours(base)]
    text = "\n".join(f"{base.__doc__}\n{vars(base).get('__init__', base).__doc__}" for base in bases)
    return [name for name in _parameters(value) if not _said(name, text)]


def _methods(value: type) -> Iterator[tuple[str, str]]:
    """Yield (method, parameter) of which neither the method nor the one that it overrides speaks."""
    for name, attribute in vars(value).items():
        method = attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute
        if name.startswith("_") or not inspect.isfunction(method) or not _is_ours(method):
            continue
        text = "\n".join(
            getattr(vars(base)[name], "__doc__", None) or "" for base in value.__mro__ if name in vars(base)
        )
        for parameter in _parameters(method):
            if not re.search(rf"\b{parameter}\b", text):
                yield name, parameter


def _text_of_constant(module: str, name: str) -> str | None:
    """Return the text below the line that makes a constant, followed to where it is imported from."""
    path = Path(str(importlib.import_module(module).__file__))
    body = ast.parse(path.read_text()).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            return _text_of_constant(str(node.module), name)
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            return str(after.value.value) if said else None  # type: ignore[union-attr]
    return None


def test_the_reference_shows_every_room() -> None:
    packages = {m.name for m in pkgutil.iter_modules(pyro_bnn.__path__) if not m.name.startswith("_")} - INSIDE
    assert packages == {room.split(".")[1] for room in ROOMS if "." in room} - INSIDE
    assert len(NAMES) > 350


@pytest.mark.parametrize("room", ROOMS)
def test_names_are_documented(room: str) -> None:
    """A line that ends as a sentence, and a word on every parameter of a function, a class and its methods."""
    wrong: list[str] = []
    for name, value in [(name, value) for place, name, value in NAMES if place == room]:
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            if not _text_of_constant(room, name):
                wrong.append(f"{name}: no text below the line that makes it")
            continue
        if not _is_ours(value):
            wrong.append(f"{name}: not of this library, so that its documentation is elsewhere")
            continue
        first = (inspect.getdoc(value) or "").split("\n\n")[0].strip()
        if not first or not first.endswith((".", ":")) or len(first.splitlines()) > 3:
            wrong.append(f"{name}: no line that says what it is, but {first!r}")
        if inspect.isclass(value):
            wrong += [f"{name}: nothing on {parameter}" for parameter in _of_class(value)]
            wrong += [f"{name}.{method}: nothing on {parameter}" for method, parameter in _methods(value)]
        else:
            missing = [p for p in _parameters(value) if not _said(p, value.__doc__ or "")]
            wrong += [f"{name}: nothing on {parameter}" for parameter in missing]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in pyro_bnn.__all__ if not name.startswith("__")])
def test_what_the_package_offers_has_an_example(name: str) -> None:
    """`tests/test_docstrings.py` runs them."""
    assert doctest.DocTestParser().get_examples(getattr(pyro_bnn, name).__doc__)
