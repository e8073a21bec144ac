"""Sweeps: laws and draws, trials that are kept, and what is left after a kill."""

import csv
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pyro_bnn.cli import main
from pyro_bnn.recipe import find_recipe
from pyro_bnn.runs import sweep as sweep_module
from pyro_bnn.runs.jobs import Done, Task, side_by_side
from pyro_bnn.runs.sweep import Plan, read_record, run_trial, sweep, trial_folder
from pyro_bnn.runs.train import train
from pyro_bnn.runs.vary import normal_within, parse_vary

TINY = {"epochs": 2, "num_samples": 4, "val_fraction": 0.25, "batch_size": 2}
RATES = "optim.loc.lr=loguniform(1e-3,1e-1)"


def inline(tasks: Iterable[Task], jobs: int = 1, **options: Any) -> Iterator[Done]:
    yield from side_by_side(tasks)


# -- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        ("uniform(2,5)", stats.uniform(2, 3)),
        ("loguniform(1e-4,1e-1)", stats.loguniform(1e-4, 1e-1)),
        ("normal(1,0.5)", stats.norm(1, 0.5)),
        ("normal(0.9,0.45,0,1)", stats.truncnorm(-2, 0.1 / 0.45, 0.9, 0.45)),
        ("lognormal(-6,1)", stats.lognorm(1, scale=math.exp(-6))),
    ],
)
def test_draws_are_of_their_law(law: str, expected: Any) -> None:
    """Kolmogorov-Smirnov on 2,000 draws of a fixed seed: a right law would fail in 1 of 1,000 seeds."""
    one = parse_vary(f"eta={law}")
    draws = [one.draw(0, number) for number in range(2000)]
    assert stats.kstest(draws, expected.cdf).pvalue > 1e-3
    assert all(float(f"{value:.6g}") == value for value in draws)


def test_lists_and_integers_are_drawn_evenly() -> None:
    """Chi-square on 3,000 draws of a fixed seed: a right law would fail in 1 of 1,000 seeds."""
    for text, values in (("epochs=integers(3,5)", [3, 4, 5]), ("eta=0.03,0.1,0.3", [0.03, 0.1, 0.3])):
        drawn = [parse_vary(text).draw(1, number) for number in range(3000)]
        assert set(drawn) == set(values)
        assert stats.chisquare([drawn.count(value) for value in values]).pvalue > 1e-3
    assert isinstance(drawn[0], float)


def test_a_draw_depends_on_seed_trial_and_key_alone() -> None:
    recipe = find_recipe("perceptron-and").changed(TINY)
    laws = [parse_vary(RATES), parse_vary("eta=uniform(0.1,1)")]
    few, many = Plan.of(recipe, laws[:1], 3), Plan.of(recipe, laws[::-1], 9)
    assert [few.settings(n) for n in range(3)] == [{"optim.loc.lr": many.settings(n)["optim.loc.lr"]} for n in range(3)]
    assert len({many.settings(n)["eta"] for n in range(9)}) == 9
    assert Plan.of(recipe, laws, 3, seed=1).settings(0) != Plan.of(recipe, laws, 3, seed=2).settings(0)
    # these two numbers are what sweeps that were begun have: they may not change
    assert few.settings(0) == {"optim.loc.lr": FIRST}
    assert Plan.of(recipe, [parse_vary("eta=0.1,0.2,0.3")], 5).settings(4) == {"eta": FIFTH}


FIRST, FIFTH = 0.0210645, 0.1


def test_lists_alone_are_a_grid() -> None:
    plan = Plan.of(
        find_recipe("perceptron-and").changed(TINY), [parse_vary("eta=0.1,1"), parse_vary("seed=4,5,6")], None
    )
    assert plan.runs == 6
    assert [tuple(plan.settings(n).values()) for n in range(6)] == [
        (0.1, 4), (0.1, 5), (0.1, 6), (1, 4), (1, 5), (1, 6)
    ]  # fmt: skip


def test_values_of_every_kind() -> None:
    assert parse_vary("optim.loc.name=adam, sgd").choices == ("adam", "sgd")
    assert parse_vary("model_args.hidden=[50],[100, 50]").choices == ([50], [100, 50])
    assert parse_vary("a=choice(true,false)").choices == (True, False)
    assert str(parse_vary("eta=lognormal(-6,1)")) == "eta=lognormal(-6,1)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eta", "is not of the form key=values"),
        ("eta=0.1", "one value is not varied"),
        ("eta=lognorml(0,1)", "did you mean 'lognormal'"),
        ("eta=normal(0)", "normal takes"),
        ("eta=normal(0,-1)", "its sd is -1"),
        ("eta=normal(0,1,5,9)", "less than 1 %"),
        ("eta=uniform(2,1)", "low is 2 and has to be below high, 1"),
        ("eta=uniform(a,b)", "takes numbers"),
        ("eta=uniform(0,inf)", "all of them finite"),
        ("eta=loguniform(0,1)", "has to be above 0"),
        ("epochs=integers(1.5,3)", "whole numbers"),
    ],
)
def test_what_is_no_law_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_vary(text)


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    recipe = find_recipe("perceptron-and").changed(TINY)
    for laws, runs, said in (
        ([], 3, "name at least one key"),
        (["eta=0.1,1", "eta=2,3"], 3, "each once"),
        ([RATES], None, "say how often with --runs"),
        ([RATES], 0, "--runs 0"),
        (["optim.loc.lr=normal(0,1)"], 20, "trial . has optim.loc.lr=-.*normal\\(mean,sd,low,high\\)"),
        (["etta=0.1,0.2"], None, "unknown recipe key 'etta'"),
        (["val_fraction=0,0.2"], None, "a sweep chooses by validation rows"),
    ):
        with pytest.raises(ValueError, match=said):
            Plan.of(recipe, [parse_vary(law) for law in laws], runs)
    with pytest.raises(ValueError, match="asha=True is Ray Tune's"):
        sweep(recipe, ["eta=0.1,1"], asha=True, out=tmp_path)
    assert main(["sweep", "perceptron-and", "--vary", "eta=lognorml(0,1)", "--ray", "none"]) == 2


def test_the_draws_of_a_study_are_drawn_in_the_same_way() -> None:
    """By the generator's normals in their order, so that trials that were run stay what they were."""
    a, b = np.random.default_rng(3), np.random.default_rng(3)
    expected = next(v for v in iter(lambda: float(a.normal(0.95, 0.475)), None) if 0 < v < 1)
    assert normal_within(b, 0.95, 0.475, 0, 1) == expected


# -- trials --------------------------------------------------------------------------------------------------------


def test_a_sweep_is_scored_on_validation_rows_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "side_by_side", inline)
    trained: list[Path] = []
    scored = sweep_module._scored

    def counting(path: Path, *rest: Any) -> dict[str, Any]:
        trained.append(path)
        return scored(path, *rest)

    monkeypatch.setattr(sweep_module, "_scored", counting)
    laws = [RATES, "optim.scale.name=adam,sgd"]
    told: list[tuple[int, int]] = []
    first = sweep("perceptron-and", laws, runs=3, settings=TINY, out=tmp_path, done=lambda *n: told.append(n))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    again = sweep("perceptron-and", laws, runs=5, settings=TINY, out=tmp_path)
    assert [path.name for path in trained] == [f"trial-{n:03d}" for n in range(5)]
    assert again.rows[:3] == first.rows
    assert again.best is not None
    assert again.best["val_nll"] == min(row["val_nll"] for row in again.rows)

    recipe = Plan.of(find_recipe("perceptron-and").changed(TINY), [parse_vary(law) for law in laws], 5).settled(3)
    alone = train(recipe, progress=False)
    posterior, row = alone.posterior, again.rows[3]
    from pyro_bnn.assemble import load_rows

    val = load_rows(alone.recipe).val
    assert val is not None
    table = posterior.evaluate(val.x, val.y, 4, seed=recipe.seed)["s_draws"]
    assert (row["val_nll"], row["val_accuracy"]) == (table["pred_nll"], table["accuracy"])

    with (tmp_path / "trials.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["val_nll"]) for line in lines] == [row["val_nll"] for row in again.rows]
    assert {line["status"] for line in lines} == {"finished"}
    assert not [column for column in lines[0] if "test" in column]
    root = ElementTree.parse(tmp_path / "sweep.svg").getroot()
    circles = [node for node in root.iter() if node.tag.endswith("circle")]
    assert len(circles) == 2 * (5 + 1)  # two keys: the trials and the best
    with pytest.raises(ValueError, match="another vary"):
        sweep("perceptron-and", laws[:1], runs=3, settings=TINY, out=tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    with pytest.raises(ValueError, match="other things in it"):
        sweep("perceptron-and", laws, runs=3, settings=TINY, out=other)


def test_what_failed_is_tried_again_and_what_diverged_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "side_by_side", inline)
    calls: list[str] = []
    scored = sweep_module._scored

    def failing(path: Path, *rest: Any) -> dict[str, Any]:
        calls.append(path.name)
        if path.name == "trial-001" and calls.count("trial-001") == 1:
            raise OSError("no room")
        return scored(path, *rest)

    monkeypatch.setattr(sweep_module, "_scored", failing)
    sgd = {"optim": {"loc": {"name": "sgd", "lr": 1e-2}, "scale": {"name": "sgd", "lr": 1e-2}}}
    given: dict[str, Any] = {"settings": {**TINY, **sgd}, "out": tmp_path}
    laws = ["optim.loc.lr=0.001,0.002,1e30"]
    first = sweep("linear-regression", laws, **given)
    assert [row["status"] for row in first.rows] == ["finished", "failed", "diverged"]
    assert "no room" in first.rows[1]["error"]
    again = sweep("linear-regression", laws, **given)
    assert [row["status"] for row in again.rows] == ["finished", "finished", "diverged"]
    assert calls == ["trial-000", "trial-001", "trial-002", "trial-001"]
    assert again.best is not None
    assert "lost" in (tmp_path / "sweep.svg").read_text()


def test_a_trial_waits_for_a_process_of_an_earlier_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyro_bnn.runs.folder import locked

    monkeypatch.setattr(sweep_module, "_PATIENCE", 0.0)
    recipe = find_recipe("perceptron-and").changed(TINY)
    trial_folder(tmp_path, 0).mkdir()
    with locked(trial_folder(tmp_path, 0)):
        record = run_trial(tmp_path, 0, recipe, None)
    assert record["status"] == "failed"
    assert "is being trained by process" in record["error"]
    assert run_trial(tmp_path, 0, recipe, None)["status"] == "finished"


def test_a_trial_whose_process_is_killed_goes_on_in_a_new_one(tmp_path: Path) -> None:
    """Killed after the first record, in the middle of a later trial: every trial is done, the first not again."""
    killed: list[float] = []

    def kill_once(finished: int, total: int) -> None:
        if finished == 1 and not killed:
            killed.append((tmp_path / "records" / "000.json").stat().st_mtime_ns)
            threading.Timer(0.1, lambda: [child.kill() for child in multiprocessing.active_children()]).start()

    given: dict[str, Any] = {"runs": 4, "settings": {**TINY, "epochs": 60}, "jobs": 1, "out": tmp_path}
    swept = sweep("perceptron-and", [RATES], done=kill_once, **given)
    assert [row["status"] for row in swept.rows] == ["finished"] * 4
    assert killed == [(tmp_path / "records" / "000.json").stat().st_mtime_ns]
    for number in range(4):
        lines = (trial_folder(tmp_path, number) / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 61))


# -- kills ---------------------------------------------------------------------------------------------------------

_COMMAND = [
    *("sweep", "mlp-mnist-mini", "--vary", "optim.loc.lr=lognormal(-6,1)", "--vary", "eta=0.03,0.1,0.3"),
    *("--runs", "24", "--jobs", "2", "--set", "epochs=2", "--set", "num_samples=4"),
    *("--set", "data_args.train_size=1000", "--set", "data_args.test_size=200"),
]


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start the sweep as a session of its own; what it says goes into a file beside the folder."""
    command = [sys.executable, "-m", "pyro_bnn", *_COMMAND, "--out", str(folder), *more]
    with said_by(folder).open("a") as said:
        return subprocess.Popen(command, start_new_session=True, stdout=said, stderr=subprocess.STDOUT, text=True)


def said_by(folder: Path) -> Path:
    return folder.with_suffix(".said")


def finished(folder: Path, *more: str) -> None:
    """Run the sweep to its end."""
    assert start(folder, *more).wait(900) == 0, said_by(folder).read_text()


def until(holds: Any, process: "subprocess.Popen[str]", folder: Path, seconds: float = 600.0) -> None:
    begun = time.monotonic()
    while not holds():
        assert process.poll() is None, said_by(folder).read_text()
        assert time.monotonic() - begun < seconds, "it never came to that"
        time.sleep(0.05)


def records(folder: Path) -> dict[int, tuple[int, str]]:
    """Return when each record was written, and what it says."""
    found = sorted((folder / "records").glob("[0-9]*.json"))
    return {int(path.stem): (path.stat().st_mtime_ns, path.read_text()) for path in found}


def processes(folder: Path, words: str) -> list[int]:
    """Return processes of a session whose command line has these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            except (OSError, ValueError):
                continue
            if words in line and session == int((folder / "session").read_text()):
                found.append(int(entry.name))
    return found


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def without_seconds(folder: Path) -> list[dict[str, Any]]:
    rows = [read_record(folder, number) for number in range(24)]
    return [{key: value for key, value in (row or {}).items() if key != "seconds"} for row in rows]


def killed_and_resumed(folder: Path, worker: str, driver: Iterable[str], engine: str) -> None:
    """Kill a worker at first, then driver and engine half way, and start again."""
    folder.mkdir()
    out = folder / "sweep"
    process = start(out, "--ray", engine)
    (folder / "session").write_text(str(process.pid))
    try:
        until(lambda: len(records(out)) >= 4, process, out)
        workers = processes(folder, worker)
        assert workers
        kill(workers[:1])
        until(lambda: len(records(out)) >= 12, process, out)
    finally:
        process.kill()
        for words in driver:
            kill(processes(folder, words))
        process.wait()
    before = records(out)
    assert 12 <= len(before) < 24
    finished(out, "--ray", engine)
    after = records(out)
    assert sorted(after) == list(range(24))
    assert {number: after[number] for number in before} == before  # none repeated
    assert {row["status"] for row in without_seconds(out)} == {"finished"}
    for number in range(24):
        assert len((trial_folder(out, number) / "metrics.jsonl").read_text().splitlines()) == 2


_OF_RAY = ("ray::", "raylet", "gcs_server", "default_worker.py", "ray/_private", "ray/dashboard")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "worker", "everything"),
    [("none", "spawn_main", ("spawn_main",)), ("local", "ray::ImplicitFunc", _OF_RAY)],
    ids=["processes", "ray"],
)
def test_a_killed_sweep_loses_no_trial_and_repeats_none(
    tmp_path: Path, engine: str, worker: str, everything: tuple[str, ...]
) -> None:
    if engine == "local":
        pytest.importorskip("ray.tune")
    killed_and_resumed(tmp_path / "killed", worker, everything, engine)
    finished(tmp_path / "whole", "--ray", "none")
    assert without_seconds(tmp_path / "killed" / "sweep") == without_seconds(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_asha_stops_trials_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune")
    more = ["--ray", "local", "--asha", "--runs", "6", "--set", "epochs=9"]
    folder = tmp_path / "sweep"
    finished(folder, *more)
    rows = [json.loads(text) for _, text in records(folder).values()]
    assert {row["status"] for row in rows} == {"finished", "stopped"}
    assert all(row["epochs"] in (1, 3) for row in rows if row["status"] == "stopped")
    before = records(folder)
    finished(folder, *more)
    assert records(folder) == before
