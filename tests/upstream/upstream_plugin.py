"""
A pytest plugin, loaded into a run of Pyro's own tests: it puts the library's classes in the place of Pyro's.

Environment: UPSTREAM_SUBSTITUTION is a key of SUBSTITUTIONS, one after "twin of ", or empty for Pyro's own classes;
UPSTREAM_REPORT is where the outcomes go, as JSON. Only tests that can reach one of the replaced names are run: in the
body of the test or of a helper of its file, or among its parameters. A name that is merely compared with
(`if Elbo is Trace_ELBO`) is no use.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import os
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Pyro as it is installed, before the checkout with the tests comes to the front of the path
for _name in ("pyro.contrib.gp", "pyro.infer.autoguide", "pyro.infer.reparam", "pyro.optim"):
    importlib.import_module(_name)

from substitutes import MADE, SUBSTITUTIONS  # noqa: E402

CHOSEN = os.environ["UPSTREAM_SUBSTITUTION"].removeprefix("twin of ")
TWIN = os.environ["UPSTREAM_SUBSTITUTION"].startswith("twin of ")
REPORT = os.environ["UPSTREAM_REPORT"]
OUTCOMES: dict[str, dict[str, Any]] = {}
RANK = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_configure(config: Any) -> None:
    # torch has deprecated its tracer since these tests were written, and they make errors of warnings
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit:FutureWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit:DeprecationWarning")
    if CHOSEN:
        chosen = SUBSTITUTIONS[CHOSEN]
        for module in map(importlib.import_module, chosen.modules):
            for name, replacement in (chosen.twin if TWIN else chosen.ours).items():
                if name in vars(module):
                    setattr(module, name, replacement)


# ------------------------------------------------------------------------------------------ which tests are concerned


class _Uses(ast.NodeVisitor):
    """The names and attributes that code mentions, but for decorators and comparisons."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in node.body:
            self.visit(child)

    def visit_Compare(self, node: ast.Compare) -> None:
        """A comparison builds nothing."""

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.names.add(node.attr)
        self.visit(node.value)


@functools.cache
def _mentions(thing: Any) -> frozenset[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    uses = _Uses()
    uses.visit(tree)
    return frozenset(uses.names)


def _reaches(thing: Any, module: ModuleType, wanted: frozenset[str], seen: set[int]) -> bool:
    """Whether code of `module` leads to one of the wanted names."""
    if isinstance(thing, functools.partial):
        return _reaches(thing.func, module, wanted, seen)
    if id(thing) in seen or not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return False
    seen.add(id(thing))
    if getattr(thing, "__name__", "") in wanted and getattr(thing, "__module__", "") != module.__name__:
        return True
    if getattr(thing, "__module__", None) != module.__name__:
        return False
    names = _mentions(thing)
    return bool(names & wanted) or any(
        _reaches(vars(module)[name], module, wanted, seen) for name in names if name in vars(module)
    )


def _concerns(item: Any, wanted: frozenset[str]) -> bool:
    things = [getattr(item.cls, "__init__", None), item.cls] if item.cls is not None else []
    method = inspect.unwrap(item.function)
    if item.cls is not None:  # the helper methods that the test calls
        names = _mentions(method)
        if names & wanted:
            return True
        things = [vars(item.cls)[name] for name in names if inspect.isroutine(vars(item.cls).get(name))]
    params = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
    flat = [part for value in params for part in (value if isinstance(value, (tuple, list)) else [value])]
    seen: set[int] = set()
    return any(_reaches(thing, item.module, wanted, seen) for thing in [method, *things, *flat])


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    chosen = [SUBSTITUTIONS[CHOSEN]] if CHOSEN else SUBSTITUTIONS.values()
    wanted = frozenset(name for substitution in chosen for name in substitution.ours)
    kept = [item for item in items if isinstance(item, pytest.Function) and _concerns(item, wanted)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


# ----------------------------------------------------------------------------------------------------- what happened


def pytest_runtest_setup(item: Any) -> None:
    MADE.clear()


def pytest_runtest_logreport(report: Any) -> None:
    name = report.nodeid.removeprefix("tests/")
    found = OUTCOMES.setdefault(name, {"outcome": "passed", "used": False, "message": ""})
    if RANK[report.outcome] > RANK[found["outcome"]]:
        found["outcome"] = report.outcome
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else getattr(report, "wasxfail", "") or str(report.longrepr)
        found["message"] = " ".join(text.split())[:300]
    if report.when == "call":
        found["used"] = bool(MADE)


def pytest_sessionfinish(session: Any) -> None:
    Path(REPORT).write_text(json.dumps(OUTCOMES, indent=1))
