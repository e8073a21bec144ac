"""Every notebook runs from top to bottom, in its smoke mode."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
FAST = ("01_quickstart", "05_what_it_does_not_know")
"""Those that the fast suite runs; `make notebooks` and the slow tests run all."""


def test_there_are_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, 10)]
    assert set(FAST) < {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem in FAST else pytest.mark.slow) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_notebook_runs(path: Path) -> None:
    script = f"from execute import execute; from pathlib import Path; execute(Path({str(path)!r}))"
    environment = {**os.environ, "PYRO_BNN_SMOKE": "1", "PYTHONPATH": str(path.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_small_and_tells_what_it_shows(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 300_000
    assert "This shows" in notebook.cells[0].source
    constants = [cell.source for cell in notebook.cells if "PYRO_BNN_SMOKE" in cell.source]
    assert len(constants) == 1
    assert "SMOKE else" in constants[0]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    if path.stem != "01_quickstart":
        assert "What to try" in notebook.cells[-1].source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_uses_public_names(path: Path) -> None:
    code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert not re.findall(r"(?:\.|import )_(?!_)\w+", code)
