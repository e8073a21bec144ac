"""
What MkDocs does on the way: formulas become MathML, cards become pages, and links that leave the pages become text.

MathML is what browsers show by themselves, so that no script has to be fetched.
"""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
WEIGHTS = ROOT / "pyro_bnn" / "weights"


def on_files(files: Any, *, config: Any) -> Any:
    """Add a page for every card of the zoo, with its curve."""
    for folder in sorted(path.parent for path in WEIGHTS.glob("*/card.md")):
        name = folder.name
        files.append(File.generated(config, f"zoo/{name}/card.md", content=(folder / "card.md").read_text()))
        curve = json.loads((folder / "card.json").read_text()).get("curve")
        if curve:
            files.append(File.generated(config, f"zoo/{name}/{curve}", abs_src_path=str(folder / curve)))
    return files


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
