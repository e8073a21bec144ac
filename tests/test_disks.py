"""
Disks that are full, read-only or gone under a run: real ones, and errors of the system at the calls of a run.

The real ones are mounted in a namespace that dies with the process, where that is allowed: on Linux, to root. A test of
rights would tell nothing there, for root may write everywhere. `python -m torture` has every call of a run.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyro_bnn.runs.train import train
from tests.small_run import RECIPE as THREE_EPOCHS
from tests.small_run import Stop

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and mounts")

RECIPE = THREE_EPOCHS.changed({"epochs": 4})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the posterior of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(RECIPE, out=folder, progress=False, report=False)
    return hashlib.sha256((folder / "posterior.safetensors").read_bytes()).hexdigest()


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    train(RECIPE, out=tmp_path / "run", progress=False, report=False, callbacks=[Stop(2)])
    (tmp_path / "recipe.toml").write_text(RECIPE.to_toml())
    return tmp_path / "run"


def command(folder: Path) -> list[str]:
    return ["train", str(folder.parent / "recipe.toml"), "--out", str(folder), "--resume", "--no-report"]


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def python(script: str, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, whose children may be forked: it has a single thread."""
    return subprocess.run(
        [*before, sys.executable, "-c", script, *arguments],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


SPOILED = """
import errno, hashlib, json, shutil, sys
from pathlib import Path
from pyro_bnn.cli import main
from torture.__main__ import _ready
from torture.process import at_call, child, fail_from, gone_from, wait

_ready()
cut, *command = sys.argv[1:]
cut, log = Path(cut), Path(cut).with_name("log")
kept = shutil.copytree(cut, cut.with_name("kept"))
files = lambda: {p.name: p.read_bytes() for p in cut.rglob("*") if p.is_file() and p.name != ".lock"}
acts = {"EROFS": lambda at: fail_from(at, errno.EROFS), "EACCES": lambda at: fail_from(at, errno.EACCES)}
for name, act in {**acts, "gone": lambda at: gone_from(at, cut)}.items():
    for at in (1, 2, 40):
        shutil.rmtree(cut, ignore_errors=True)
        shutil.copytree(kept, cut)
        log.unlink(missing_ok=True)
        before = files()
        code = wait(child(lambda: (at_call(cut, act(at)), main(command))[1], log))
        told = {"name": name, "at": at, "code": code, "said": log.read_text()}
        told |= {"there": cut.exists(), "untouched": files() == before}
        again = command if cut.is_dir() else [word for word in command if word != "--resume"]
        told["then"] = wait(child(lambda: main(again), log))
        told["sha"] = hashlib.sha256((cut / "posterior.safetensors").read_bytes()).hexdigest()
        print(json.dumps(told))
"""


def test_a_folder_that_cannot_be_written_or_is_removed_is_one_line(cut: Path, whole: str) -> None:
    done = python(SPOILED, str(cut), *command(cut))
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 9, done.stderr
    for case in cases:
        assert (case["code"], case["then"], case["sha"]) == (2, 0, whole), case
        assert "Traceback" not in case["said"]
        last = case["said"].splitlines()[-1]
        if case["name"] == "gone":
            assert "is gone: it was moved or removed while it was trained" in last
            assert not case["there"]
            continue
        known = {"EROFS": "Read-only file system", "EACCES": "Permission denied"}[case["name"]]
        assert last.startswith(("pyro-bnn: the run folder cannot be written to", f"pyro-bnn: {known}"))
        assert last.endswith("and go on with --resume (resume=True)")
        assert case["there"]
        assert case["untouched"] or case["at"] > 1


MOUNTED = """
import hashlib, subprocess, sys
from pathlib import Path
from pyro_bnn.cli import main

kind, recipe, folder, *command = sys.argv[1:]
disk, posterior = Path(folder).parent, Path(folder, "posterior.safetensors")
if kind == "read-only":
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    print("code", main(command))
else:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kind}", "tmpfs", str(disk)], check=True)
    (disk / "recipe.toml").write_text(recipe)
    code = main([word for word in command if word != "--resume"])
    subprocess.run(["mount", "-o", "remount,size=100M", str(disk)], check=True)
    then = main(command)
    print("code", code, then, hashlib.sha256(posterior.read_bytes()).hexdigest())
"""


def mounted(kind: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    return python(MOUNTED, kind, RECIPE.to_toml(), str(folder), *command(folder), before=("unshare", "-m"))


def test_a_disk_that_is_mounted_read_only_is_one_line(cut: Path) -> None:
    before = contents(cut)
    done = mounted("read-only", cut)
    assert done.stdout == "code 2\n", done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("pyro-bnn: the run folder cannot be written to")
    assert contents(cut) == before


def test_a_disk_that_is_really_full_is_one_line_and_gone_on_from(tmp_path: Path, whole: str) -> None:
    """It has room for the first files, and not for a state."""
    done = mounted("60k", tmp_path / "run")
    assert done.stdout.splitlines()[-1] == f"code 2 0 {whole}", done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("pyro-bnn: No space left on device: ")
