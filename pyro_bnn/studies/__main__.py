"""
Write the gallery from a folder of outcomes, and its count into the README.

    python -m pyro_bnn.studies docs/studies --readme README.md
"""

import argparse
import sys
from pathlib import Path

from pyro_bnn.studies.gallery import write_gallery, write_readme

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pyro_bnn.studies", description="The gallery of the studies.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/studies"), help="the outcomes")
    parser.add_argument("--readme", type=Path, help="the file to write the count into")
    given = parser.parse_args()
    sys.stdout.write(f"{write_gallery(given.folder)}\n")
    if given.readme is not None:
        write_readme(given.readme, given.folder)
