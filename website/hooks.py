"""
What MkDocs does on the way: formulas become MathML; cards, notebooks and examples become pages; and links that leave
the pages become text.

MathML is what browsers show by themselves, so that no script has to be fetched.
"""

import ast
import json
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
WEIGHTS = ROOT / "pyro_bnn" / "weights"
_LONGEST_OUTPUT = 4000


def on_files(files: Any, *, config: Any) -> Any:
    """Add a page for every card of the zoo, with its curve."""
    for folder in sorted(path.parent for path in WEIGHTS.glob("*/card.md")):
        name = folder.name
        files.append(File.generated(config, f"zoo/{name}/card.md", content=(folder / "card.md").read_text()))
        curve = json.loads((folder / "card.json").read_text()).get("curve")
        if curve:
            files.append(File.generated(config, f"zoo/{name}/{curve}", abs_src_path=str(folder / curve)))
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{file.stem}.md", content=_notebook(file)))
    for file in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{file.stem}.md", content=_example(file)))
    return files


def _notebook(file: Path) -> str:
    """Return a notebook as Markdown: its cells with what came out of them, as it was executed."""
    parts = []
    for cell in json.loads(file.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source.strip():
            parts += [f"```python\n{source}\n```", *map(_output, cell["outputs"])]
    return "\n\n".join([*parts, f"*The notebook is `notebooks/{file.name}`.*"])


def _output(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img class="figure" alt="What the cell above draws" src="data:image/png;base64,{picture}">'
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()[:_LONGEST_OUTPUT]
    return f"```text\n{text}\n```" if text else ""


def _example(file: Path) -> str:
    """Return a script as Markdown: what its docstring says, and its code."""
    text = file.read_text()
    said = ast.get_docstring(ast.parse(text)) or ""
    code = text.split('"""', 2)[2].strip()
    title, _, rest = said.partition("\n")
    return f"# {title}\n{rest}\n\n```python\n{code}\n```\n\n*The script is `examples/{file.name}`.*"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Write what lies outside of the pages as a path in the repository: `../CONTRIBUTING.md`."""
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?!\.)[^)]*\)", r"\1", markdown) if _leaves(page) else markdown


def _leaves(page: Any) -> bool:
    return "/" not in page.file.src_uri


def on_page_content(html: str, **_: Any) -> str:
    """Turn every formula into MathML, and let wide tables scroll by themselves."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        latex = (
            unescape(match[2]).strip().removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]")
        )
        return str(convert(latex, display=display))

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', formula, html, flags=re.DOTALL)
