"""
Put the table of results.json between the README's markers.

    python -m benchmarks.readme            writes it
    python -m benchmarks.readme --check    exit status 1 if the README's table is another
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.table import as_markdown

ROOT = Path(__file__).parents[1]
START, END = "<!-- bench:start -->", "<!-- bench:end -->"


def insert(text: str, table: str) -> str:
    """Return the README's text with the table between its markers."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"README.md has no place for the table: add the lines {START} and {END}")
    return f"{before}{START}\n{table}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table is not up to date")
    options = parser.parse_args()
    readme = ROOT / "README.md"
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    text = readme.read_text()
    wanted = insert(text, as_markdown(results))
    if options.check:
        sys.exit(0 if wanted == text else "README.md: run `python -m benchmarks.readme`")
    readme.write_text(wanted)


if __name__ == "__main__":
    main()
