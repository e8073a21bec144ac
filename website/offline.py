"""Refuse a built site that fetches anything from elsewhere: `python website/offline.py build/site`."""

import re
import sys
from pathlib import Path

FETCHED = re.compile(
    r"<(?:script|img|iframe|source|link(?=[^>]*rel=\"?(?:stylesheet|preconnect|icon|preload)))\b[^>]*"
    r"(?:src|href)=\"?(?:https?:)?//[^\s\">]+"
)
IN_STYLE = re.compile(r"(?:@import\s+|url\()\s*[\"']?(?:https?:)?//[^\s\"')]+")


def fetched(folder: Path) -> list[str]:
    """Return every script, style, font and picture that a browser would fetch from elsewhere."""
    found = [f"{page}: {hit[:200]}" for page in folder.rglob("*.html") for hit in FETCHED.findall(page.read_text())]
    found += [f"{style}: {hit[:200]}" for style in folder.rglob("*.css") for hit in IN_STYLE.findall(style.read_text())]
    return found


if __name__ == "__main__":
    hits = fetched(Path(sys.argv[1]))
    print("\n".join(hits) or f"{sys.argv[1]}: nothing is fetched from elsewhere")
    raise SystemExit(bool(hits))
