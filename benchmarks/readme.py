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
from pyro_bnn.common.files import insert_between

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table is not up to date")
    options = parser.parse_args()
    readme = ROOT / "README.md"
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    text = readme.read_text()
    wanted = insert_between(text, "bench", as_markdown(results))
    if options.check:
        sys.exit(0 if wanted == text else "README.md: run `python -m benchmarks.readme`")
    readme.write_text(wanted)


if __name__ == "__main__":
    main()
