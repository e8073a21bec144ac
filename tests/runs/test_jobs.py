"""Tasks side by side: what comes back, what is said of a process that died, and members and chains to the same bits."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyro_bnn.common.limits import limits, limits_now
from pyro_bnn.inference.svi import Callback
from pyro_bnn.recipe import find_recipe
from pyro_bnn.runs import jobs as jobs_module
from pyro_bnn.runs import units
from pyro_bnn.runs.folder import Busy, joined, taken
from pyro_bnn.runs.jobs import Done, Task, WorkerDied, side_by_side, started_ray
from pyro_bnn.runs.seeds import parse_seeds, seed_folder, train_seeds
from pyro_bnn.runs.train import train
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.trials import run_trials

TINY = {"epochs": 3, "num_samples": 4}
ENSEMBLE = {"name": "ensemble", "of": "svi", "members": 3}
CHAINS = {"name": "nuts", "chains": 2, "warmup": 10, "draws": 8}


def facts(number: int) -> dict[str, Any]:
    import torch

    return {"number": number, "pid": os.getpid(), "threads": torch.get_num_threads(), "epochs": limits_now().epochs}


def fail(number: int) -> None:
    raise ValueError(f"number={number} is refused")


def die(once: Path | None = None) -> str:
    """End this process as the system does when memory is out; with a path only the first time."""
    if once is not None and once.exists():
        return "at last"
    if once is not None:
        once.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def inline(tasks: Iterable[Task], jobs: int = 1, **options: Any) -> Iterator[Done]:
    """Run tasks here, the last first: the order in which they end is not theirs."""
    yield from side_by_side(list(tasks)[::-1])


# -- the runner ----------------------------------------------------------------------------------------------------


def test_tasks_in_processes_of_their_own(tmp_path: Path) -> None:
    """One pool for all: values, limits, one thread, an error with its place, a death, and one that is tried again."""
    tasks = [
        *(Task(f"facts-{i}", facts, {"number": i}) for i in range(4)),
        Task("refused", fail, {"number": 7}),
        Task("dies", die),
        Task("dies once", die, {"once": tmp_path / "tried"}),
    ]
    with limits(epochs=77):
        done = {one.task.name: one for one in side_by_side(tasks, 2, retries=1)}
    assert set(done) == {task.name for task in tasks}
    values = [done[f"facts-{i}"].result() for i in range(4)]
    assert [value["number"] for value in values] == [0, 1, 2, 3]
    assert {(value["threads"], value["epochs"]) for value in values} == {(1, 77)}
    assert os.getpid() not in {value["pid"] for value in values}
    with pytest.raises(ValueError, match="number=7 is refused") as refused:
        done["refused"].result()
    assert "in fail" in str(refused.value.__cause__)
    with pytest.raises(WorkerDied, match=r"process of dies ended .* \(killed by SIGKILL.* the last of 2"):
        done["dies"].result()
    assert done["dies once"].result() == "at last"


def test_one_job_is_this_process() -> None:
    (one,) = side_by_side([Task("here", facts, {"number": 1})])
    assert one.result()["pid"] == os.getpid()
    (refused,) = side_by_side([Task("refused", fail, {"number": 1})])
    assert isinstance(refused.error, ValueError)
    with pytest.raises(ValueError, match="jobs=0 is not a number of processes"):
        list(side_by_side([], 0))


_PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_jobs import say_and_sleep
from pyro_bnn.runs.jobs import Task, side_by_side
if __name__ == "__main__":
    list(side_by_side([Task("sleeps", say_and_sleep, {"file": sys.argv[2]})], apart=True))
"""


def say_and_sleep(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(300)


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    script, said = tmp_path / "parent.py", tmp_path / "pid"
    script.write_text(_PARENT)
    parent = subprocess.Popen([sys.executable, str(script), str(Path(__file__).parent), str(said)])
    try:
        _until(lambda: said.is_file() and said.read_text())
    finally:
        parent.kill()
        parent.wait()
    child = int(said.read_text())
    _until(lambda: not _lives(child))


def _until(holds: Any, seconds: float = 120.0) -> None:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < seconds, "it never came to that"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- members and chains --------------------------------------------------------------------------------------------


def contents(folder: Path) -> bytes:
    return (folder / "posterior.safetensors").read_bytes()


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


@pytest.fixture
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("recipe", "method"), [("mlp-toy-cubic", ENSEMBLE), ("perceptron-and", CHAINS)], ids=["members", "chains"]
)
def test_side_by_side_gives_the_same_bits(tmp_path: Path, recipe: str, method: dict[str, Any]) -> None:
    given = {**TINY, "method": method, "report": False, "progress": False}
    one = train(recipe, out=tmp_path / "one", **given)
    two = train(recipe, out=tmp_path / "two", jobs=2, **given)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert lines(tmp_path / "one") == lines(tmp_path / "two")
    assert one.results["test"] == two.results["test"]


@pytest.mark.usefixtures("one_thread")
def test_a_divergence_counts_where_it_would_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second member diverges once: the first stays as it is, the third is trained at the lower rates alone."""
    monkeypatch.setattr(units, "side_by_side", inline)
    method = {"name": "ensemble", "of": "map", "members": 3}
    given = {**TINY, "method": method, "report": False, "progress": False, "on_divergence": {"retries": 3}}
    wild = {"optim": {"loc": {"name": "sgd", "lr": 30.0}, "scale": {"name": "sgd", "lr": 30.0}}}
    one = train("linear-regression", out=tmp_path / "one", **given, **wild)
    assert one.results["divergences"] >= 1
    two = train("linear-regression", out=tmp_path / "two", jobs=2, **given, **wild)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    keys = ("divergences", "test", "facts", "epochs")
    assert {key: one.results[key] for key in keys} == {key: two.results[key] for key in keys}
    rates = [[change["rates"] for change in run.results["changes"]] for run in (one, two)]
    assert rates[0] == rates[1]


def test_what_has_no_parts_is_refused(tmp_path: Path) -> None:
    for recipe, method in (("mlp-toy-cubic", "svi"), ("mlp-toy-cubic", {"name": "snapshots", "members": 3})):
        with pytest.raises(ValueError, match="is one piece of work"):
            train(recipe, out=tmp_path / "run", jobs=2, method=method)
    with pytest.raises(ValueError, match="give out="):
        train("mlp-toy-cubic", jobs=2, method=ENSEMBLE)
    with pytest.raises(ValueError, match="leave out callbacks="):
        train("mlp-toy-cubic", jobs=2, method=ENSEMBLE, out=tmp_path / "run", callbacks=[Callback()])
    with pytest.raises(ValueError, match="jobs=0"):
        train("mlp-toy-cubic", jobs=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_is_taken_as_long_as_a_process_works_in_it(tmp_path: Path) -> None:
    recipe, other = find_recipe("perceptron-and"), tmp_path / "run"
    with taken(other, recipe, resume=None) as place:
        holder = place.share()
        working = joined(other, holder)
        working.__enter__()
    with pytest.raises(Busy, match="is being trained by process"), taken(other, recipe, resume=None):
        pass
    working.__exit__(None, None, None)
    with (
        taken(other, recipe, resume=None) as place,
        pytest.raises(RuntimeError, match="taken by another process"),
        joined(other, f"{holder} before"),
    ):
        place.share()
    with pytest.raises(FileNotFoundError, match="is not there on"), joined(tmp_path / "none", holder):
        pass


@pytest.mark.usefixtures("one_thread")
def test_a_member_whose_process_dies_is_named_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**TINY, "method": ENSEMBLE, "report": False, "progress": False}
    expected = train("mlp-toy-cubic", out=tmp_path / "one", **given)

    def dying(tasks: Iterable[Task], jobs: int, **options: Any) -> Iterator[Done]:
        first, second, *_ = tasks
        yield from side_by_side([first])
        yield Done(second, error=jobs_module._died(second, "killed by SIGKILL", 1))

    monkeypatch.setattr(units, "side_by_side", dying)
    with pytest.raises(WorkerDied, match=r"process of member-2 .* go on with"):
        train("mlp-toy-cubic", out=tmp_path / "two", jobs=2, **given)
    assert (tmp_path / "two" / "checkpoint" / "member-1").is_dir()
    monkeypatch.setattr(units, "side_by_side", inline)
    again = train("mlp-toy-cubic", out=tmp_path / "two", jobs=2, **given)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert again.results["test"] == expected.results["test"]


_TRAIN = (
    "import sys; from pyro_bnn.cli import main; sys.exit(main(['train', 'mlp-mnist-mini', '--no-report', '--set', "
    "'num_samples=4', '--set', 'epochs=4', '--set', 'method={name=\"ensemble\", of=\"svi\", members=4}', "
    "'--jobs', '2', '--out', *sys.argv[1:]]))"
)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_killed_ensemble_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    given = {"epochs": 4, "num_samples": 4, "method": {**ENSEMBLE, "members": 4}, "report": False, "progress": False}
    train("mlp-mnist-mini", out=tmp_path / "one", **given)
    folder = tmp_path / "two"
    started = subprocess.Popen([sys.executable, "-c", _TRAIN, str(folder)])
    _until(lambda: len(list(folder.glob("checkpoint/*/epoch-*/manifest.json"))) >= 3)
    started.kill()
    started.wait()
    assert not (folder / "results.json").exists()
    begun = time.monotonic()
    while subprocess.run([sys.executable, "-c", _TRAIN, str(folder), "--resume"], check=False).returncode:
        assert time.monotonic() - begun < 60  # its processes may live for a moment
    assert contents(tmp_path / "one") == contents(folder)


# -- seeds ---------------------------------------------------------------------------------------------------------


def test_seeds_into_folders_of_their_own(tmp_path: Path) -> None:
    recipe = find_recipe("perceptron-and").changed(TINY)
    tables = train_seeds(recipe, parse_seeds("0,2"), tmp_path, report=False)
    alone = train(recipe.changed({"seed": 2}), progress=False)
    assert tables[2]["test"] == alone.results["test"]
    before = (seed_folder(tmp_path, 2) / "results.json").stat().st_mtime_ns
    assert train_seeds(recipe, [0, 2], tmp_path, report=False)[2] == tables[2]
    assert (seed_folder(tmp_path, 2) / "results.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["", "a", "1,1", "0-", "3-1", "-1"])
def test_what_is_no_list_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--seeds"):
        parse_seeds(text)


# -- Ray -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_members_chains_seeds_and_studies_on_ray(tmp_path: Path) -> None:
    """On one local cluster of two processors: what they leave has the bits of what is trained one by one."""
    pytest.importorskip("ray.tune")
    recipe = find_recipe("perceptron-and").changed(TINY)
    trials = [Trial("and", seed, "perceptron-and", changes=TINY) for seed in (0, 1)]
    with started_ray("local", 2):
        for name, method in (("mlp-toy-cubic", ENSEMBLE), ("perceptron-and", CHAINS)):
            given = {**TINY, "method": method, "report": False, "progress": False}
            one = train(name, out=tmp_path / name / "one", **given)
            two = train(name, out=tmp_path / name / "two", jobs=2, ray="local", **given)
            assert contents(tmp_path / name / "one") == contents(tmp_path / name / "two")
            assert one.results["test"] == two.results["test"]
        seeds = train_seeds(recipe, [0, 1], tmp_path / "seeds", jobs=2, ray="local", report=False)
        studied = run_trials(trials, tmp_path / "studied", jobs=2, ray="local")
        tasks = [Task("dies", die), Task("refused", fail, {"number": 3})]
        done = {ended.task.name: ended for ended in side_by_side(tasks, 2, ray="local")}
    for seed in (0, 1):
        assert seeds[seed]["test"] == train(recipe.changed({"seed": seed}), progress=False).results["test"]
    assert studied == run_trials(trials, tmp_path / "alone")
    with pytest.raises(WorkerDied, match=r"process of dies ended .*\(The worker died unexpectedly"):
        done["dies"].result()
    with pytest.raises(ValueError, match="number=3 is refused"):
        done["refused"].result()
