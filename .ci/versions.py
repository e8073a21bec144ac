"""
Run a subset of the tests in an environment of its own, on the versions that pyproject.toml promises.

    minima      the oldest Python with every requirement at exactly the version it starts from
    newest      the newest Python with whatever its installer chooses, ArviZ 1.x among it

The environment is made once, and again when pyproject.toml has changed:
`python .ci/versions.py minima --python python3.10`.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = {"minima": "python3.10", "newest": "python3.13"}
BESIDES = {"newest": ["arviz>=1"]}
"""What a job is there to try besides: on older Pythons the installer chooses ArviZ 0.x."""
RUNNERS = ("pytest", "pytest-timeout", "scipy", "scikit-learn")
"""What the subset needs of the extra `dev`."""

SUBSET = (
    "tests/inference/test_graph.py",  # private names of torch and Pyro
    "tests/inference/test_flat_elbo.py",
    "tests/guides/test_mean_field.py",
    "tests/optim/test_optim_names.py",
    "tests/optim/test_optim_wrappers.py",
    "tests/data/test_load.py",
    "tests/analysis/test_arviz.py",
    "tests/analysis/test_elpd.py",
    "tests/analysis/test_loo.py",
    "tests/analysis/test_pyro_svi.py",
    "tests/inference/test_mcmc.py",
    "tests/test_recipe.py",
    "tests/test_registry.py",
    "tests/test_cli.py",
    "tests/test_units.py",
    "tests/test_docstrings.py",
    "tests/test_extending.py",
    "tests/test_readme.py",
)

OLD_WARNINGS = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
"""What old versions say of each other is no fault of ours."""


def minimum(requirement: Requirement) -> str:
    """Return the requirement at the version that it starts from."""
    least = [part.version for part in requirement.specifier if part.operator == ">="]
    if len(least) != 1:
        raise ValueError(f"{requirement}: a requirement states the version that it starts from, once (>=)")
    marker = "" if requirement.marker is None else f"; {requirement.marker}"
    return f"{requirement.name}=={least[0]}{marker}"


def requirements(job: str) -> list[str]:
    """Return what to install for a job."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [Requirement(text) for text in project["dependencies"]]
    needed += [r for text in project["optional-dependencies"]["dev"] if (r := Requirement(text)).name in RUNNERS]
    return [minimum(r) if job == "minima" else str(r) for r in needed]


def environment(job: str, python: str) -> Path:
    """Return the Python of the job's environment, made anew where it is not what is wanted."""
    folder = ROOT / ".venv-versions" / job
    needed = [*requirements(job), *BESIDES.get(job, [])]
    ready, wanted = folder / ".ready", "\n".join([python, *needed])
    inside = folder / "bin" / "python"
    if ready.is_file() and ready.read_text() == wanted:
        return inside
    if shutil.which(python) is None:
        raise SystemExit(f"there is no {python}: install it, or give the path of another with --python")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([inside, "-m", "pip", "install", "--quiet", *needed], check=True)
    subprocess.run([inside, "-m", "pip", "install", "--quiet", "--no-deps", "-e", "."], check=True, cwd=ROOT)
    ready.write_text(wanted)
    return inside


def main() -> int:
    """Run one job; return the exit code of its tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=PYTHONS)
    parser.add_argument("--python", help="the Python to make the environment with; default python3.10 or python3.13")
    given = parser.parse_args()
    inside = environment(given.job, given.python or PYTHONS[given.job])
    warnings = [f"-Wdefault::{kind}" for kind in OLD_WARNINGS] if given.job == "minima" else []
    command = [inside, "-m", "pytest", "-p", "no:cacheprovider", *warnings, *SUBSET]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode


if __name__ == "__main__":
    raise SystemExit(main())
