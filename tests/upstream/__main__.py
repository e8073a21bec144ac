"""
Pyro's own tests with this library's classes in the place of Pyro's.

    PYRO_SOURCE=/path/to/a/checkout/of/pyro python -m tests.upstream [--only WORDS] [--files FILE ...] [--keep FOLDER]

Pyro itself is the installed one; of the checkout (Apache-2, not part of this repository; take the tag or commit nearest
to the installed version) only its folder tests/ is used. Every substitution of substitutes.py runs the tests that can
reach the replaced class, and once the same tests run with Pyro's own classes: what fails there is no finding. (Where
one of Pyro's own classes is nearer to ours than the one replaced, it is put in the same place for the comparison.)
Printed are a table and every test that fails here and passes there. `expected.py` says why for each of them, in a
sentence: a failure without a reason, or a reason without a failure, makes the exit code 1.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.upstream.expected import EXPECTED
from tests.upstream.substitutes import SUBSTITUTIONS

HERE = Path(__file__).parent
FILES = (
    "infer/test_autoguide.py",
    "infer/autoguide/test_inference.py",
    "infer/test_predictive.py",
    "infer/test_gradient.py",
    "infer/test_valid_models.py",
    "infer/test_inference.py",
    "infer/test_elbo_mapdata.py",
    "infer/reparam/test_conjugate.py",
    "infer/reparam/test_strategies.py",
    "infer/reparam/test_structured.py",
    "infer/reparam/test_split.py",
    "nn/test_module.py",
    "optim/test_optim.py",
)
"""infer/test_compute_downstream_costs.py is left out: it tests a private function of TraceGraph_ELBO."""

Outcomes = dict[str, dict[str, Any]]


def run(source: Path, substitution: str, files: list[str], kept: Path) -> Outcomes:
    """Run the tests of some files with one substitution, or with none, and return the outcome of each test."""
    report = kept / (re.sub(r"\W+", "_", substitution or "pyro") + ".json")
    if report.exists():  # of an earlier run that was kept
        return json.loads(report.read_text())  # type: ignore[no-any-return]
    root = HERE.parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), str(HERE)]),
        "UPSTREAM_SUBSTITUTION": substitution,
        "UPSTREAM_REPORT": str(report),
    }
    start = "import sys, pytest; sys.path.pop(0); sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-p", "upstream_plugin", "-p", "no:cacheprovider", "-q", "--tb=line", "--timeout=600"]
    places = ["-c", str(source / "setup.cfg"), f"--rootdir={source}", *(str(source / "tests" / f) for f in files)]
    with tempfile.TemporaryDirectory() as empty:  # not the checkout, whose pyro would be imported
        done = subprocess.run(
            [sys.executable, "-c", start, *options, *places], cwd=empty, env=environment, capture_output=True, text=True
        )
    if not report.exists():
        raise SystemExit(
            f"{substitution or 'Pyro'}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr}"
        )
    return json.loads(report.read_text())  # type: ignore[no-any-return]


def matches(pattern: str, test: str) -> bool:
    """Whether a test is meant by an entry of EXPECTED, in which * stands for anything."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), test) is not None


def judge(
    substitution: str, outcomes: Outcomes, baseline: Outcomes, files: list[str]
) -> tuple[list[tuple[str, Counter[str], Counter[str]]], list[str], list[tuple[str, str]]]:
    """Return a row per file, what is wrong, and the expected failures with their reasons."""
    rows: dict[str, tuple[Counter[str], Counter[str]]] = {}
    wrong: list[str] = []
    explained: list[tuple[str, str]] = []
    reasons = {pattern: why for (name, pattern), why in EXPECTED.items() if name in (substitution, "*")}
    reached: Counter[str] = Counter()
    for test, found in outcomes.items():
        if not found["used"]:
            continue
        here, there = rows.setdefault(test.partition("::")[0], (Counter(), Counter()))
        theirs = baseline[test]["outcome"]
        there[theirs] += 1
        here[found["outcome"]] += 1
        if theirs != "passed" or found["outcome"] == "passed":
            continue
        why = [pattern for pattern in reasons if matches(pattern, test)]
        reached.update(why)
        if why:
            here["expected"] += 1
            explained.append((test, reasons[why[0]]))
        else:
            wrong.append(f"{substitution}: {test} {found['outcome']}: {found['message']}")
    for pattern in reasons:
        ours = (substitution, pattern) in EXPECTED
        if ours and pattern.partition("::")[0] in files and not reached[pattern]:
            wrong.append(f"{substitution}: {pattern} has a reason in expected.py, and no test of that name fails")
    return [(file, *counts) for file, counts in rows.items()], wrong, explained


def main() -> int:
    parser = argparse.ArgumentParser(description="Run Pyro's tests with this library's classes.")
    parser.add_argument("--only", default="", help="run the substitutions whose name contains this")
    parser.add_argument("--files", nargs="*", default=list(FILES), help="files below Pyro's tests/")
    parser.add_argument("--keep", type=Path, help="a folder for the outcomes; what is in it is not run again")
    options = parser.parse_args()
    source = Path(os.environ.get("PYRO_SOURCE", ""))
    if not (source / "tests" / "common.py").exists():
        raise SystemExit(f"PYRO_SOURCE={source} is no checkout of Pyro: set it to the folder that holds Pyro's tests/")
    chosen = [name for name in SUBSTITUTIONS if options.only in name]
    with tempfile.TemporaryDirectory() as folder:
        kept = (options.keep or Path(folder)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        baseline = run(source, "", options.files, kept)
        failures: list[str] = []
        reasons: Counter[str] = Counter()
        print(f"{'':62s} {'ours':>31s}    {'Pyro, the same tests':>22s}")
        columns = ("passed", "failed", "skipped", "why?", "passed", "failed", "skipped")
        print(f"{'':62s} " + " ".join(f"{column:>8s}" for column in columns))
        for name in chosen:
            twin = run(source, f"twin of {name}", options.files, kept) if SUBSTITUTIONS[name].twin else baseline
            rows, wrong, explained = judge(name, run(source, name, options.files, kept), twin, options.files)
            failures += wrong
            reasons.update(f"{name}: {why}" for _, why in explained)
            print(name)
            for file, here, there in rows:
                surprises = sum(line.startswith(f"{name}: {file}::") for line in wrong)
                kinds = ("passed", "failed", "skipped")
                numbers = [*(here[kind] for kind in kinds), surprises, *(there[kind] for kind in kinds)]
                print(f"    {file:58s} " + " ".join(f"{number:8d}" for number in numbers))
        print("\nExpected:")
        for why, count in reasons.items():
            print(f"    {count:4d} {why}")
        if failures:
            print("\nNot expected:")
            for line in failures:
                print(f"    {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
