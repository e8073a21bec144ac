"""Command lines, in this process: each ends with an exit code and lines of its own, whatever it names."""

import contextlib
import io
import os
import random
import shutil
from pathlib import Path
from tempfile import mkdtemp

from pyro_bnn.cli import main
from torture.fuzz_posteriors import _hostile, whole
from torture.mutations import HOSTILE
from torture.oracle import Tally, judge

_VERBS = ("predict", "evaluate", "report", "compare", "card", "list", "train", "lr-range", "study")
_OPTIONS = (
    "--threshold",
    "--num-samples",
    "--json",
    "--out",
    "--set",
    "--variant",
    "--data-root",
    "--limit",
    "--trust",
)


class Traceback(Exception):
    """The command showed one, or an error that it does not know."""


def _run(arguments: list[str]) -> int:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(arguments)
    said = out.getvalue() + error.getvalue()
    if "Traceback" in said or "should have been refused" in said:
        raise Traceback(error.getvalue()[-300:])
    if "\x1b" in said.replace("\x1b[", "", 0) and not os.isatty(1):
        raise Traceback(f"an escape byte: {said[:200]!r}")
    return code


def commands(count: int, seed: int) -> Tally:
    """Give the command words that may be anything, among them damaged posteriors."""
    tally, rng = Tally(), random.Random(seed)
    home = Path(mkdtemp(prefix="torture-"))
    words = [str(value) for value in HOSTILE if not isinstance(value, (list, dict))]
    kinds = sorted(path.name for path in whole().iterdir())
    (home / "file.npy").write_bytes(b"\x93NUMPY")
    (home / "folder").mkdir()
    (home / "recipe.toml").write_text('model = "mlp"\ndata = "none-such"\n')
    before = os.getcwd()
    os.chdir(home)
    _run(["list"])  # imports what is imported once
    try:
        for i in range(count):
            shutil.rmtree(home / "posterior", ignore_errors=True)
            shutil.copytree(whole() / rng.choice(kinds), home / "posterior")
            if rng.random() < 0.7:
                _hostile(home / "posterior", rng)
            given = [rng.choice((*_VERBS, "", "x"))]
            for _ in range(rng.randrange(4)):
                given.append(rng.choice(("posterior", "file.npy", "folder", "recipe.toml", "none", rng.choice(words))))
            for _ in range(rng.randrange(3)):
                given += [rng.choice(_OPTIONS), rng.choice((*words, "1", "model=mlp", "epochs=0"))]
            if rng.random() < 0.1:
                rng.shuffle(given)
            judge(tally, lambda: _run(given), f"case {i}, {given!r:.300}")
    finally:
        os.chdir(before)
        shutil.rmtree(home)
    return tally
