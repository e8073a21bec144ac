"""
Refuse a built site that fetches anything, or that leaves a public name out: `python website/check.py build/site`.

A name is there if a page of the reference has a heading for it: the room's, or that of the module it is imported from.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path

FETCHED = re.compile(
    r"<(?:script|img|iframe|source|link(?=[^>]*rel=\"?(?:stylesheet|preconnect|icon|preload)))\b[^>]*"
    r"(?:src|href)=\"?(?:https?:)?//[^\s\">]+"
)
IN_STYLE = re.compile(r"(?:@import\s+|url\()\s*[\"']?(?:https?:)?//[^\s\"')]+")
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def fetched(folder: Path) -> list[str]:
    """Return every script, style, font and picture that a browser would fetch from elsewhere."""
    found = [f"{page}: {hit[:200]}" for page in folder.rglob("*.html") for hit in FETCHED.findall(page.read_text())]
    found += [f"{style}: {hit[:200]}" for style in folder.rglob("*.css") for hit in IN_STYLE.findall(style.read_text())]
    return found


def left_out(folder: Path) -> list[str]:
    """Return the public names of the reference's rooms that have no heading on any of its pages."""
    pages = list((folder / "reference").glob("*.html"))
    headings = {heading for page in pages for heading in re.findall(r'id="(pyro_bnn[\w.]*)"', page.read_text())}
    rooms = {room for page in REFERENCE.glob("*.md") for room in re.findall(r"^::: (\S+)$", page.read_text(), re.M)}
    missing = []
    for room in sorted(rooms):
        module = importlib.import_module(room)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.ismodule(value):
                continue
            home = f"{getattr(value, '__module__', room)}.{getattr(value, '__qualname__', name)}"
            if not {f"{room}.{name}", home} & headings:
                missing.append(f"{room}.{name} is on no page of the reference")
    return missing


if __name__ == "__main__":
    built = Path(sys.argv[1])
    wrong = fetched(built) + left_out(built)
    print("\n".join(wrong) or f"{built}: nothing is fetched from elsewhere, and no public name is left out")
    raise SystemExit(bool(wrong))
