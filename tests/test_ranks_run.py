"""Recipes on several ranks: one run folder, which rank 0 holds; what they leave, what goes on, what is refused."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.cli import main
from pyro_bnn.common.manifest import damaged
from pyro_bnn.inference.distributed import Ranks
from pyro_bnn.runs import ranks
from pyro_bnn.runs.train import train
from tests.ranks import on_ranks
from tests.small_run import RECIPE, Stop


def run(out: Path, recipe: pb.Recipe = RECIPE, **options: Any) -> dict[str, Any]:
    done = train(recipe, out=out, **{"progress": False, "report": False, **options})
    return {"test": done.results.get("test"), "path": done.path, "epochs": len(done.history)}


def on_two(out: Path, recipe: pb.Recipe = RECIPE, count: int = 2, **options: Any) -> list[Any]:
    return on_ranks(count, lambda: run(out, recipe, **options))


def left(folder: Path) -> Any:
    """What a run leaves, but for times."""
    assert not damaged(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return (folder / "posterior.safetensors").read_bytes(), [{**line, "seconds": 0} for line in lines]


def test_a_run_of_two_ranks_is_a_run(tmp_path: Path) -> None:
    first, second = on_two(tmp_path / "run")
    assert first["path"] == tmp_path / "run"
    assert second["path"] is None
    assert first["test"] == second["test"]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["ranks"] == 2
    assert results["test"] == first["test"]
    assert pb.evaluate(tmp_path / "run")["test"]["s_draws"] == pytest.approx(first["test"]["s_draws"], rel=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": {"name": "hwa", "start": 1, "cycle": 0.5}},
        {"method": {"name": "ensemble", "of": "map", "members": 2}, "epochs": 2},
        {"accumulate": 2, "precision": "bf16", "batch_size": 20},
        {"noise": "shared"},
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = RECIPE.changed(changes)
    on_two(tmp_path / "whole", recipe)
    on_two(tmp_path / "cut", recipe, callbacks=[Stop(2)])
    assert not (tmp_path / "cut" / "results.json").exists()
    assert on_two(tmp_path / "cut", recipe)[0]["epochs"] == on_two(tmp_path / "whole", recipe)[0]["epochs"]
    assert left(tmp_path / "cut") == left(tmp_path / "whole")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path, before: int, after: int) -> None:
    on_two(tmp_path / "run", count=before, callbacks=[Stop(2)])
    lines = left(tmp_path / "run")[1]
    done = on_two(tmp_path / "run", count=after)
    assert [one["epochs"] for one in done] == [3] * after
    assert left(tmp_path / "run")[1][:2] == lines[:2]


def test_a_diverged_run_lowers_its_rates_on_all_ranks(tmp_path: Path) -> None:
    recipe = RECIPE.changed(
        {"optim.loc.lr": 1e18, "on_divergence": {"retries": 3, "factor": 1e-21}, "likelihood": "categorical"}
    )
    first, second = on_two(tmp_path / "run", recipe)
    assert first["epochs"] == second["epochs"] == 3
    assert len(json.loads((tmp_path / "run" / "changes.json").read_text())) == 1


def test_what_is_refused_is_said_once(tmp_path: Path) -> None:
    def words(recipe: pb.Recipe, out: Path, **options: Any) -> str:
        try:
            run(out, recipe, resume=False, **options)
        except (ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "fine"

    on_two(tmp_path / "run")
    first, second = on_ranks(2, lambda: words(RECIPE, tmp_path / "run"))
    assert first.startswith("ValueError: ")
    assert "holds a run already" in first
    assert second.startswith("SaidElsewhere: ")
    sampler = RECIPE.changed({"method": {"name": "sgld", "lr": 0.05, "draws": 2}})
    first, second = on_ranks(2, lambda: words(sampler, tmp_path / "sampler"))
    assert "method 'sgld' trains in one process, and these are 2" in first
    assert second.startswith("SaidElsewhere: ")
    assert not (tmp_path / "sampler").exists()

    def with_jobs() -> str:
        return words(RECIPE.changed({"data": "no-such-rows"}), tmp_path / "jobs", jobs=2)

    first, second = on_ranks(2, with_jobs)  # before anything is looked for
    assert first.startswith("ValueError: jobs=2, ray=None within a process group")
    assert second.startswith("SaidElsewhere: ")

    def other() -> str:
        return words(RECIPE.changed({"epochs": 3 + Ranks().rank}), tmp_path / "other")

    assert all("the recipe is" in said for said in on_ranks(2, other))


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    first, second = on_ranks(2, lambda: run(None))  # type: ignore[arg-type]
    assert first == second
    assert first["path"] is None


# -- torchrun's environment --------------------------------------------------------------------------------------------


def test_the_environment_says_whether_there_are_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not ranks.launched()
    assert ranks.is_first()
    assert ranks.leave(3) == 3
    with ranks.process_group("cpu"):
        assert not torch.distributed.is_initialized()
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert ranks.launched()
    assert not ranks.is_first()
    assert not ranks.restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert ranks.restarted()
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    with pytest.raises(ValueError, match="add --out"):
        ranks.check_restarts(None)
    ranks.check_restarts(Path("run"))
    with pytest.raises(ValueError, match="timeout=0"), ranks.process_group("cpu", 0):
        pass
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="finds no GPU here"), ranks.process_group("cuda"):
            pass


def test_seeds_are_no_work_for_ranks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    left_with: list[int] = []
    monkeypatch.setattr(os, "_exit", left_with.append)
    main(["train", "perceptron-and", "--seeds", "0-1"])
    assert left_with == [2]
    assert "--seeds 0-1 under torchrun" in capsys.readouterr().err


@pytest.mark.parametrize("fine", [True, False])
def test_a_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch, fine: bool) -> None:
    """With GPUs and a group that are pretended; after a failure nobody waits for what a GPU still has to do."""
    said: list[Any] = []
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", said.append)
    meeting = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(meeting, "rendezvous", lambda *_, **__: iter([(store, 1, 4)]))
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda backend, *, store, rank, world_size, timeout: said.append((backend, rank, world_size, timeout.seconds)),
    )
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: said.append("destroyed"))
    places = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    with suppress(RuntimeError), ranks.process_group("cuda", 30):
        if not fine:
            raise RuntimeError("of this rank")
    assert said == [3, ("cpu:gloo,cuda:nccl", 1, 4, 30), *(["destroyed"] if fine else [])]


_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


def command(tmp_path: Path, recipe: pb.Recipe, *of_torchrun: str) -> list[str]:
    """The command that trains a recipe into a folder on two ranks."""
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    train_it = ["-m", "pyro_bnn", "train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run"), "--no-report"]
    return [*_TORCHRUN, *of_torchrun, *train_it]


@pytest.mark.slow
def test_torchrun_trains_and_prints_once(tmp_path: Path) -> None:
    two = command(tmp_path, RECIPE, "--standalone")
    done = subprocess.run(two, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.count("run folder:") == 1
    assert done.stdout.count("epoch 3/3") == 1
    assert not damaged(tmp_path / "run")
    again = subprocess.run(two, capture_output=True, text=True, timeout=200)
    assert again.returncode != 0
    assert again.stderr.count("holds a run already") == 1


@pytest.mark.slow
def test_torchrun_starts_the_ranks_again_after_one_was_killed(tmp_path: Path) -> None:
    """To the bits of a run that nobody killed."""
    recipe = RECIPE.changed({"epochs": 60})
    on_two(tmp_path / "whole", recipe)
    alone = ("--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    run, log = tmp_path / "run", tmp_path / "log"
    with log.open("w") as said:
        agent = subprocess.Popen(command(tmp_path, recipe, *alone), stdout=said, stderr=said)
        begun = time.monotonic()
        while not list(run.glob("checkpoint/**/manifest.json")):
            assert agent.poll() is None, log.read_text()
            assert time.monotonic() - begun < 120, "it never came to that"
            time.sleep(0.01)
        first, _ = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGKILL)
        assert not (run / "results.json").exists()
        assert agent.wait(200) == 0, log.read_text()
    assert left(run) == left(tmp_path / "whole")
