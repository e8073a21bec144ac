"""Run every notebook and keep its outputs: `python notebooks/execute.py`; with --check, run without keeping them."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def execute(path: Path) -> nbformat.NotebookNode:
    """Run one notebook from top to bottom; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":  # warnings of the machine's own libraries are not part of the story
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Run all notebooks in order."""
    for path in sorted(HERE.glob("*.ipynb")):
        notebook = execute(path)
        if "--check" not in sys.argv:
            nbformat.write(notebook, path)
        print(f"{path.name}: every cell ran")


if __name__ == "__main__":
    main()
