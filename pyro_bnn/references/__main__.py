"""
Draw the references again: `python -m pyro_bnn.references [NAME ...] --jobs 2`.

Chains are kept in the folder of the runs as they finish, so that the command goes on from where it was killed; a
reference is written when its chains are all there. `--rows` writes the rows, from their fixed seeds.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from pyro_bnn.references.make import make_reference, make_rows
from pyro_bnn.references.programs import PROGRAMS
from pyro_bnn.references.reference import load_reference
from pyro_bnn.references.stored import SHIPPED

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pyro_bnn.references", description="Draw the references again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default all: {', '.join(PROGRAMS)}")
    parser.add_argument("--jobs", type=int, default=1, help="chains side by side")
    parser.add_argument("--runs", type=Path, default=Path("runs/references"), help="where chains are kept")
    parser.add_argument("--folder", type=Path, default=SHIPPED, help="where the references are written")
    parser.add_argument("--rows", action="store_true", help="write the rows only")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.names or PROGRAMS:
        if given.rows:
            make_rows(name, given.folder)
            continue
        facts = make_reference(name, given.runs, folder=given.folder, jobs=given.jobs)
        misses = load_reference(name, given.folder).misses()
        sys.stdout.write(f"{name}: {'; '.join(misses) or 'a reference'}\n{json.dumps(facts)}\n")
