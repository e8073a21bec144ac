"""
The pages of the site: every block of Python on them runs, and what is written from the code is as the code is.

The blocks of a page run one after another, in a folder of their own, with fewer epochs than the page has. `<!-- before`
holds what a page leaves to its reader, such as a network that is trained already; `<!-- not run: why -->` above a block
is for the code of other libraries. docs/extending.md and docs/tables.md have tests of their own.
"""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pyro
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ELSEWHERE = {"extending.md": "test_extending.py", "tables.md": "test_sklearn.py"}

PARTS = re.compile(r"^<!-- before\n(.*?)^-->|^(<!-- not run: .*?-->\n)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FEWER = ((r"\bepochs=\d+", "epochs=2"), (r"range\(\d{3,}\)", "range(2)"), (r"steps=\d+", "steps=10"))
FEWER += ((r"datasets=\d+", "datasets=20"), (r"num_samples=\d+", "num_samples=3"))
"""What makes a page quick."""


def blocks(text: str) -> list[str]:
    """Return what is to be run of a page, in its order."""
    return [before or body for before, left_out, body in PARTS.findall(text) if not left_out]


PAGES = sorted(
    str(page.relative_to(DOCS))
    for page in DOCS.rglob("*.md")
    if "```python" in page.read_text() and page.name not in ELSEWHERE
)


@pytest.fixture(autouse=True)
def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "agg")
    matplotlib.use("agg")


def run(page: str, fewer: bool = True) -> dict[str, Any]:
    """Run a page's blocks and return the names that they leave."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks((DOCS / page).read_text()):
        for pattern, instead in FEWER if fewer else ():
            block = re.sub(pattern, instead, block)
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert blocks((DOCS / page).read_text())
    run(page)


def test_pages_with_tests_of_their_own_are_run_there() -> None:
    for page, test in ELSEWHERE.items():
        assert (DOCS / page).exists()
        assert page in (ROOT / "tests" / test).read_text()


@pytest.mark.slow
def test_the_same_job_in_stock_pyro_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the page's own length both follow the curve, whose noise has a deviation of 0.1."""
    monkeypatch.chdir(tmp_path)
    pyro.set_rng_seed(0)
    names = run("coming-from.md", fewer=False)
    for mean in (names["ours"].mean, names["mean"]):
        assert float((mean - names["y"]).square().mean().sqrt()) < 0.2


def test_the_page_on_recipe_keys_is_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python website/recipe_keys.py` writes it."""
    monkeypatch.setattr(sys, "argv", ["recipe_keys.py"])
    written = runpy.run_path(str(ROOT / "website" / "recipe_keys.py"))
    page = (DOCS / "how-to" / "recipe-keys.md").read_text()
    assert page.split("<!-- keys:start -->\n")[1].split("\n<!-- keys:end -->")[0] == written["recipe_keys"]()


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages <= named


def test_nothing_is_fetched_from_elsewhere() -> None:
    """Neither the pages nor the style name a script, a font or a picture that is not here."""
    for page in DOCS.rglob("*.md"):
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(?:script|img|link|iframe)\b", page.read_text()), page
    assert "http" not in (DOCS / "assets" / "site.css").read_text()
    config = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in config
    assert "http" not in config


def test_what_is_fetched_is_found(tmp_path: Path) -> None:
    found = runpy.run_path(str(ROOT / "website" / "check.py"))["fetched"]
    (tmp_path / "a.html").write_text('<a href="https://pyro.ai">link</a><script src="assets/own.js"></script>')
    (tmp_path / "a.css").write_text("body { background: url(paper.png); }")
    assert found(tmp_path) == []
    (tmp_path / "b.html").write_text('<script async src="https://elsewhere.org/x.js"></script><img src="//a.b/c.png">')
    (tmp_path / "b.css").write_text("@import 'https://elsewhere.org/font.css';")
    assert len(found(tmp_path)) == 3
