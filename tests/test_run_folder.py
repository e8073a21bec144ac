"""A run folder: claimed, locked, taken up from any moment on, and not believed where it is damaged."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.common.manifest import Damaged, damaged
from pyro_bnn.inference.svi import Callback, Diverged, FitState
from pyro_bnn.runs import train as train_module
from pyro_bnn.runs.folder import claim_next, identity, taken
from pyro_bnn.runs.train import train
from tests.small_run import RECIPE, Stop


def run(out: Path, recipe: pb.Recipe = RECIPE, **options: Any) -> Any:
    return train(recipe, out=out, **{"progress": False, "report": False, **options})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder)
    return folder


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut") / "run"
    run(folder, callbacks=[Stop(2)])
    return folder


def same_as(whole: Path, folder: Path) -> bool:
    assert damaged(folder) == []
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"]
    tables = [json.loads((path / "results.json").read_text())["test"] for path in (whole, folder)]
    tensors = [(path / "posterior.safetensors").read_bytes() for path in (whole, folder)]
    return tables[0] == tables[1] and tensors[0] == tensors[1]


def test_runs_started_together_have_their_own_folders(tmp_path: Path) -> None:
    assert [claim_next(tmp_path / "runs", "a").name for _ in range(3)] == ["a", "a-2", "a-3"]
    for name in ("../a", "/a", "", ".", "..", "a/b", "a\\b", "a\0"):
        with pytest.raises(ValueError, match="is a path: give the recipe a plain name"):
            claim_next(tmp_path / "runs", name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.skipif(os.name != "posix", reason="locks")
def test_a_second_trainer_hears_who_has_the_folder(tmp_path: Path) -> None:
    with (
        taken(tmp_path / "run", RECIPE, resume=None),
        pytest.raises(ValueError, match=rf"is being trained by process {os.getpid()} on .* since 20.*another folder"),
        taken(tmp_path / "run", RECIPE, resume=None),
    ):
        pass
    with taken(tmp_path / "run", RECIPE, resume=None) as place:
        assert place.runs == (identity(RECIPE),)


@pytest.mark.parametrize("left", [".tmp-x-recipe.toml", ".recipe.toml.x.tmp", ".next/recipe.toml", ".lock"])
def test_what_a_crash_left_is_cleaned_up(left: str, tmp_path: Path, whole: Path) -> None:
    (tmp_path / "run" / left).parent.mkdir(parents=True)
    (tmp_path / "run" / left).write_text("half of a")
    run(tmp_path / "run")
    assert same_as(whole, tmp_path / "run")


def test_other_things_files_and_links_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is a folder with other things in it"):
        run(tmp_path / "notes")
    with pytest.raises(ValueError, match="is a file: choose another folder"):
        run(tmp_path / "notes" / "thesis.tex")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "notes")
    with pytest.raises(ValueError, match="is a link, which is not followed"):
        run(tmp_path / "run")
    (tmp_path / "run" / "checkpoint").unlink()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "notes" / "thesis.tex")
    with pytest.raises(ValueError, match="is a link, which is not followed"):
        run(tmp_path / "run")
    assert [path.read_text() for path in (tmp_path / "notes").iterdir()] == ["precious"]


def test_a_planted_link_is_not_followed(tmp_path: Path, cut: Path, whole: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = shutil.copytree(cut, tmp_path / "run")
    for name in ("metrics.jsonl", "results.json", "posterior.json", ".posterior.partial.nc", ".tmp-posterior.nc"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(precious)
    (folder / "results.json").unlink()
    run(folder)
    assert same_as(whole, folder)
    assert precious.read_text() == "precious"


def test_the_posterior_is_there_before_it_is_scored(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("the test rows hold infinity")

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "_evaluation", fail)
        with pytest.raises(ValueError, match="hold infinity"):
            run(tmp_path / "run")
    assert pb.load(tmp_path / "run").predict(torch.zeros(1, 1, 28, 28), num_samples=1).shape == (1, 10)
    run(tmp_path / "run")
    assert same_as(whole, tmp_path / "run")


def test_a_finished_run_gets_the_report_that_it_lacks(tmp_path: Path, whole: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    run(folder)
    assert not (folder / "report.html").exists()
    run(folder, report=True)
    page = (folder / "report.html").read_text()
    assert "recipe.toml" in page
    assert same_as(whole, folder)
    assert (folder / "posterior.nc").stat().st_size > 1000


@pytest.mark.parametrize("name", ["posterior.safetensors", "posterior.json", "metrics.jsonl", "recipe.toml"])
def test_what_is_damaged_is_named_and_made_again(
    name: str, tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    if name.startswith("posterior"):
        with pytest.raises(Damaged, match=rf"{name} is damaged: its SHA-256.*--resume` makes it again"):
            pb.load(folder)
    run(folder)
    assert name in caplog.text
    assert same_as(whole, folder)


def test_the_state_before_a_damaged_one_leads_to_the_same_bits(
    tmp_path: Path, cut: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(cut, tmp_path / "run")
    (folder / "checkpoint" / "epoch-2" / "state.safetensors").write_bytes(b"half")
    run(folder)
    assert "epoch-2/state.safetensors is damaged" in caplog.text
    assert same_as(whole, folder)


def test_states_of_another_run_are_refused(tmp_path: Path, cut: Path) -> None:
    folder = tmp_path / "run"
    run(folder, RECIPE.changed({"seed": 1}), callbacks=[Stop(1)])
    shutil.copytree(cut / "checkpoint" / "epoch-2", folder / "checkpoint" / "epoch-2")
    with pytest.raises(ValueError, match="epoch-2 is a state of another run"):
        run(folder, RECIPE.changed({"seed": 1}))


def test_an_unfinished_run_of_an_earlier_version_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "recipe.toml").write_text(RECIPE.to_toml())
    torch.save({}, tmp_path / "run" / "checkpoint" / "last.pt")
    with (
        pytest.warns(FutureWarning, match="has no manifest.json"),
        pytest.raises(ValueError, match=r"another recipe|last.pt is a state of an earlier version"),
    ):
        run(tmp_path / "run")


def test_other_rates_on_resumption(tmp_path: Path, cut: Path, whole: Path) -> None:
    folder, slow = shutil.copytree(cut, tmp_path / "run"), {"optim.loc.lr": 1e-4}
    with pytest.raises(ValueError, match=r"another recipe.*, or go on .* at the new rates with --resume"):
        run(folder, **slow)
    with pytest.raises(ValueError, match=r"holds a run of another recipe \(epochs: 3 there, 4 now\)[^,]*$"):
        run(folder, resume=True, epochs=4)
    done = run(folder, resume=True, **slow)
    assert done.results["changes"] == [
        {"epochs": 2, "rates": {"optim.loc.lr": [1e-3, 1e-4], "optim.other.lr": [1e-3, 1e-4]}, "why": "resumed"}
    ]
    assert [line["learning_rates"]["loc"] for line in done.history] == [1e-3, 1e-3, 1e-4]
    assert done.recipe.optim.loc["lr"] == 1e-4
    assert not same_as(whole, folder)
    assert run(folder).results == done.results  # the recipe that it began with is the run's, too


def test_a_divergence_is_named_and_gone_on_from(tmp_path: Path) -> None:
    wild = RECIPE.changed({"optim.loc.lr": 1e18, "optim.scale.lr": 1e-3})
    message = (
        r"the loss is (inf|nan) at step \d \(epoch 1\), where net\.\S+ has means up to .* at a learning rate "
        r"\(loc\) of 1e\+18: lower the learning rate.*--resume --set optim\.loc\.lr="
    )
    with pytest.raises(Diverged, match=message):
        run(tmp_path / "run", wild)
    done = run(tmp_path / "run", wild, resume=True, **{"optim.loc.lr": 1e-3})
    assert done.finished
    assert done.results["divergences"] == 0
    by_itself = wild.changed({"on_divergence": {"retries": 2, "factor": 1e-21}})
    for out in (tmp_path / "by-itself", None):
        done = train(by_itself, out=out, progress=False, report=False)
        assert done.results["divergences"] == 1
        assert done.recipe.optim.loc["lr"] == pytest.approx(1e-3)
    with pytest.raises(ValueError, match=r"on_divergence=.*above 0 and below 1"):
        RECIPE.changed({"on_divergence": {"retries": 2, "factor": 3}})


@pytest.mark.parametrize("at", [3, 9, 25])
def test_a_full_disk_is_one_line_and_the_last_state_stays(
    at: int, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def full(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RuntimeError, match=r"No space left on device.*go on with --resume") as error:
            run(tmp_path / "run")
    assert "\n" not in str(error.value)
    run(tmp_path / "run")
    assert same_as(whole, tmp_path / "run")


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    class Removes(Callback):
        def epoch(self, state: FitState) -> None:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises((RuntimeError, FileNotFoundError), match="run"):
        run(tmp_path / "run", callbacks=[Removes()])
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_known_before_training(tmp_path: Path) -> None:
    class Fails(Callback):
        def start(self, state: FitState) -> None:
            raise AssertionError("it was trained")

    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"file.*cannot be made: choose another one with out= \(--out\)"):
        run(tmp_path / "file" / "run", callbacks=[Fails()])


def test_what_fails_before_anything_was_trained_leaves_nothing(tmp_path: Path) -> None:
    class Fails(Callback):
        def start(self, state: FitState) -> None:
            raise ValueError("no such data")

    with pytest.raises(ValueError, match="no such data"):
        run(tmp_path / "run", callbacks=[Fails()])
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_of_no_use_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyro_bnn.cli import main

    (tmp_path / "bad.toml").write_text(RECIPE.changed({"guide.init_rho": 1e4, "epochs": 1}).to_toml())
    assert main(["train", str(tmp_path / "bad.toml"), "--out", str(tmp_path / "run"), "--no-report"]) == 0
    said = capsys.readouterr().out
    held = json.loads((tmp_path / "run" / "results.json").read_text())["doubts"]
    assert "of naming all 10 classes as likely" in held[0]
    assert "above the prior's" in held[1]
    assert "100 % of its standard deviations are above 100" in held[2]
    assert "in doubt: its NLL on the test rows" in said
    assert "; IN DOUBT: its NLL" in said.splitlines()[-1] or "IN DOUBT" in said.replace("\n", " ")


def test_a_run_of_use_is_not_in_doubt() -> None:
    settings = {"model_args.hidden": [32], "data_args.train_size": 500, "optim.loc.lr": 5e-3, "eta": 0.01, "epochs": 6}
    assert train(RECIPE.changed(settings), progress=False).results["doubts"] == []
    line = {"model": "mlp", "model_args": {"hidden": [4]}, "data": "toy-line", "batch_size": 5, "epochs": 1}
    line |= {"likelihood": {"name": "gaussian", "noise": 1e-3}}
    start = train(pb.Recipe.build(line), progress=False)
    assert any("of one normal for all rows" in doubt for doubt in start.results["doubts"])


def test_manifests_of_what_is_shipped() -> None:
    """Who remakes a card writes its manifest: `pyro_bnn.common.manifest.seal(folder)`."""
    weights = Path(pb.__file__).parent / "weights"
    folders = sorted(path.parent for path in weights.rglob("posterior.json"))
    assert len(folders) >= 10
    assert {str(folder): damaged(folder) for folder in folders if damaged(folder)} == {}
    for folder in folders:
        listed = json.loads((folder / "manifest.json").read_text())["files"]
        there = {path.name for path in folder.iterdir() if path.is_file()} - {"manifest.json"}
        assert set(listed) == there
