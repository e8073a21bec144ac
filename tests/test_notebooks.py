"""Every notebook runs from top to bottom, in its smoke mode."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS][:1] == ["01_quickstart.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    script = f"from execute import execute; from pathlib import Path; execute(Path({str(path)!r}))"
    environment = {**os.environ, "PYRO_BNN_SMOKE": "1", "PYTHONPATH": str(path.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_small_and_tells_what_it_shows(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 600_000
    assert "This shows" in notebook.cells[0].source
