"""What docs/extending.md adds is added from a package outside of this one: every block of the page is run."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyro_bnn as pb
from pyro_bnn import registry
from pyro_bnn.data import Source
from pyro_bnn.registry import KINDS, look_up, names
from pyro_bnn.runs.finished import open_run
from pyro_bnn.runs.train import evaluate, train

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE))


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Return (language, file, text) of every fenced block; the file is "" for what is only run."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    named = [(language, re.match(r"# (\S+\.\w+)\n", body), body) for language, body in found]
    return [(language, name[1] if name else "", body) for language, name, body in named]


PYTHON = {
    title: [body for language, file, body in blocks(text) if language == "python" and not file]
    for title, text in SECTIONS.items()
}
"""What each section runs."""

RECIPES = [(title, file) for title, text in SECTIONS.items() for _, file, _ in blocks(text) if file.startswith("my-")]
"""(section, file) of every recipe of the page."""

REGISTERED = [
    (kind, name, file.removesuffix(".py").replace("/", "."))
    for text in SECTIONS.values()
    for _, file, body in blocks(text)
    for kind, name in re.findall(r'@register\("(\w+)", "(\w+)"\)', body)
]
"""(kind, name, module) of everything that a file of the page registers."""

NOT_YET: dict[str, str] = {}
"""What does not work yet, recipes and kinds, and why."""


def marked(row: tuple[str, ...], key: str) -> Any:
    """Return a row of parameters; what does not work yet fails, and turns red when it does not."""
    return pytest.param(*row, marks=pytest.mark.xfail(strict=True, reason=NOT_YET[key]) if key in NOT_YET else ())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the page in a folder outside of the package, which is on the path; nothing of it stays behind."""
    for text in SECTIONS.values():
        for _, file, body in blocks(text):
            if file:
                (tmp_path / file).parent.mkdir(exist_ok=True)
                (tmp_path / file).write_text(body)
    (tmp_path / "my_package" / "__init__.py").write_text("")
    offered = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    info = tmp_path / "my_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {offered['name']}\nVersion: {offered['version']}\n")
    groups = offered["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setattr(registry, "_REGISTERED", {kind: {} for kind in KINDS})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def test_the_page_adds_to_every_kind_that_can_be_added_to() -> None:
    added = set(re.findall(r'@register\("(\w+)", ', PAGE.read_text()))
    offered = set(re.findall(r'entry-points."pyro_bnn\.(\w+)"', PAGE.read_text()))
    documented = set(re.findall(r"`(?:pyro_bnn)?\.(\w+)`", SECTIONS["Names for others"]))
    open_kinds = set(KINDS) - {"estimators", "layers", "penalties"}
    assert added | offered == open_kinds
    assert documented == open_kinds
    assert len(RECIPES) == len({file for _, file in RECIPES}) >= 11


@pytest.mark.parametrize("title", [title for title, found in PYTHON.items() if found])
def test_python_of_the_page(title: str, package: Path) -> None:
    for body in PYTHON[title]:
        exec(compile(body, f"{PAGE}: {title}", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(("title", "file"), [marked(row, row[1]) for row in RECIPES])
def test_recipes_of_the_page(title: str, file: str, package: Path) -> None:
    for body in PYTHON[title]:
        if "savez" in body:  # the recipe's data
            exec(compile(body, f"{PAGE}: {title}", "exec"), {"__name__": "__main__"})
    run = train(file, out=package / "run", progress=False, report=False)
    assert run.finished
    assert len(run.history) == run.recipe.epochs
    table = run.results["test"]["s_draws"]
    assert table["pred_nll"] == table["pred_nll"]
    x = pb.load_data("toy-line").test.x if run.recipe.data == "toy-line" else None
    if x is not None and "program" not in (package / file).read_text():
        again = pb.load(package / "run", trust=["my_package"]).predict(x, 5, seed=0)
        assert again.mean.shape == (len(x),)


@pytest.mark.parametrize(("kind", "name", "module"), [marked(row, row[0]) for row in REGISTERED])
def test_registered_names_of_the_page(kind: str, name: str, module: str, package: Path) -> None:
    importlib.import_module(module)
    assert name in names(kind)
    assert look_up(kind, name).__module__ == module


def test_entry_points_of_the_page(package: Path) -> None:
    assert look_up("models", "shortcut_net").__module__ == "my_package.nets"
    assert look_up("optimizers", "lion").__module__ == "my_package.optimizers"
    assert look_up("studies", "initial-deviation").name == "initial-deviation"


def test_data_of_a_saved_recipe_are_not_imported_untrusted(package: Path) -> None:
    """A run folder may be anybody's: scoring it again runs no code that it names."""
    folder = package / "run"
    results = train("my-data.toml", out=folder, progress=False, report=False).results
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
    registry._REGISTERED["data"].clear()
    with pytest.raises(ValueError, match=r"saved from 'my_package.data:waves'.*trust="):
        evaluate(folder)
    assert "my_package" not in sys.modules
    with registry.trusting("my_package"):
        again = evaluate(folder)
        assert open_run(folder).data.name == "waves"
    assert again["test"]["s_draws"] == pytest.approx(results["test"]["s_draws"])


def test_arrays_that_are_split_are_data() -> None:
    x = np.arange(12.0).reshape(6, 2)
    source = Source("mine", x[:4], x[:4, 0], x[4:], x[4:, 0])
    data = pb.load_data(source)
    assert (data.name, len(data.train), len(data.test), data.task) == ("mine", 4, 2, "regression")
    with pytest.raises(ValueError, match="split=1 was given"):
        pb.load_data(source, split=1)
