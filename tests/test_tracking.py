"""Curves in TensorBoard, MLflow and W&B: each point once, also of a resumed training, and without an effect on it."""

import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.cli import main
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import Callback, fit
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam
from pyro_bnn.registry import names
from pyro_bnn.tracking import MLflow, TensorBoard, Tracker, WandB, scalars

Curves = dict[tuple[str, str], list[tuple[int, float]]]
"""(part, name) -> (epoch, value) of each point, in order."""


class Kept(Tracker):
    """Keep what is written in a list that outlives it, as a tool would."""

    tool: ClassVar[list[tuple[str, str, int, dict[str, float]]]] = []
    opened: ClassVar[list[str]] = []

    @classmethod
    def for_run(cls, name: str, folder: Path | None, facts: Mapping[str, Any]) -> "Kept":
        return cls(facts)

    def open(self, run: str) -> str:
        self.opened.append(run)
        return run or f"run-{len(self.opened)}"

    def write(self, part: str, epoch: int, values: Mapping[str, float]) -> None:
        self.tool.append((self.run, part, epoch, dict(values)))

    def close(self) -> None:
        self.opened.append("closed")

    def last_epoch(self, part: str) -> int:
        return max((e for run, p, e, _ in self.tool if (run, p) == (self.run, part)), default=0)


@pytest.fixture(autouse=True)
def empty_tool() -> None:
    Kept.tool.clear()
    Kept.opened.clear()


class StopAt(Callback):
    """Interrupt a training after an epoch, once its state is saved and before a tracker hears of it."""

    def __init__(self, epoch: int) -> None:
        self.at = epoch

    def epoch(self, state: Any) -> None:
        if state.epoch == self.at:
            raise KeyboardInterrupt


def small_fit(callbacks: list[Callback], epochs: int = 3, **options: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    x = torch.linspace(-1, 1, 20).unsqueeze(-1)
    torch.manual_seed(0)
    model = BNN(MLP(1, 1, [4]), priors.FanIn(), likelihoods.Gaussian(0.1), num_data=20)
    guide = AutoMeanFieldNormal(model)
    data = (x, x.square())
    result = fit(model, guide, Adam({"lr": 1e-2}), data, epochs=epochs, seed=0, callbacks=callbacks, **options)
    return result, {name: tensor.clone() for name, tensor in guide.state_dict().items()}


def train(
    out: Path | None, trackers: list[str], *callbacks: Callback, recipe: str = "mlp-toy-cubic", **changes: Any
) -> Any:
    settings = {"epochs": 4, "num_samples": 2, **changes}
    return pb.train(recipe, out=out, progress=False, report=False, callbacks=callbacks, trackers=trackers, **settings)


OURS = "test_tracking:Kept"


# -- the contract ----------------------------------------------------------------------------------------------------


def test_every_epoch_is_written_once_with_all_its_numbers() -> None:
    result, _ = small_fit([tracker := Kept({"mine": 1})])
    assert [(run, part, epoch) for run, part, epoch, _ in Kept.tool] == [("run-1", "", e) for e in (1, 2, 3)]
    assert [values for *_, values in Kept.tool] == [scalars(line) for line in result.history]
    assert list(Kept.tool[0][3])[-1] == "nll"
    assert {"kl", "loss", "elbo", "kl_weight", "seconds"} <= set(Kept.tool[0][3])
    assert Kept.opened == ["", "closed"]
    assert tracker.facts["mine"] == 1
    assert tracker.facts["num_data"] == 20
    assert tracker.facts["guide"] == "AutoMeanFieldNormal"


def test_a_training_is_the_same_with_and_without_even_if_the_tracker_draws_numbers() -> None:
    class Draws(Kept):
        def write(self, part: str, epoch: int, values: Mapping[str, float]) -> None:
            torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
            super().write(part, epoch, values)

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    plain, without = small_fit([])
    after = (torch.rand(1), random.random(), np.random.rand())  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    watched, with_one = small_fit([Draws()])
    assert after == (torch.rand(1), random.random(), np.random.rand())  # noqa: NPY002
    assert all(torch.equal(without[name], with_one[name]) for name in without)
    keys = ("nll", "kl", "loss")
    assert [[line[k] for k in keys] for line in plain.history] == [[line[k] for k in keys] for line in watched.history]
    assert len(Kept.tool) == 3


@pytest.mark.parametrize("fails", ["open", "write", "last_epoch", "close"])
def test_a_tracker_that_fails_is_said_once_and_left_alone(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    calls: list[str] = []

    def fail(self: Kept, *arguments: Any) -> None:
        calls.append(fails)
        raise ConnectionError("nobody answers")

    train(tmp_path / "run", [], StopAt(1))
    monkeypatch.setattr(Kept, fails, fail)
    run = train(tmp_path / "run", [OURS])
    assert run.finished
    assert len(run.history) == 4
    assert calls == [fails]
    said = [record.getMessage() for record in caplog.records if "left alone" in record.getMessage()]
    assert said == ["Kept failed and is left alone from now on, the training goes on: ConnectionError: nobody answers"]


def test_a_resumed_training_goes_on_with_its_curves(tmp_path: Path) -> None:
    stopped = train(tmp_path / "run", [OURS], StopAt(2))
    assert not stopped.finished
    assert [epoch for _, _, epoch, _ in Kept.tool] == [1]  # killed before the tracker heard of the second
    done = train(tmp_path / "run", [OURS])
    assert [(run, epoch) for run, _, epoch, _ in Kept.tool] == [("run-1", e) for e in (1, 2, 3, 4)]
    assert [values["nll"] for *_, values in Kept.tool] == [line["nll"] for line in done.history]
    assert Kept.opened == ["", "closed", "run-1", "closed"]
    again = train(tmp_path / "run", [OURS])
    assert again.finished
    assert len(Kept.tool) == 4
    alone = train(tmp_path / "alone", [])
    assert (tmp_path / "alone" / "posterior.safetensors").read_bytes() == (
        tmp_path / "run" / "posterior.safetensors"
    ).read_bytes()
    assert alone.results["test"] == done.results["test"]


def test_members_of_an_ensemble_are_parts_of_one_run(tmp_path: Path) -> None:
    method = {"name": "ensemble", "members": 3, "of": "map"}
    settings: dict[str, Any] = {"method": method, "epochs": 2}

    class SecondMember(Callback):
        fits = 0

        def start(self, state: Any) -> None:
            self.fits += 1

        def epoch(self, state: Any) -> None:
            if self.fits == 2:
                raise KeyboardInterrupt

    assert not train(tmp_path / "run", [OURS], SecondMember(), **settings).finished
    assert Kept.opened == ["", "closed"]  # one run, open from one member to the next
    assert train(tmp_path / "run", [OURS], **settings).finished
    expected = [("run-1", f"member-{m}", e) for m in (1, 2, 3) for e in (1, 2)]
    assert [(run, part, epoch) for run, part, epoch, _ in Kept.tool] == expected


def test_what_has_no_epochs_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nuts = {"name": "nuts", "chains": 1, "warmup": 4, "draws": 4}
    noise = {"name": "gaussian", "noise": 0.1}
    train(None, [OURS], recipe="linear-regression", method=nuts, likelihood=noise, epochs=1)
    assert "has no epochs: Kept shows none" in caplog.text


def test_an_unknown_tracker_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown tracker 'tensorbord' \(did you mean 'tensorboard'\?\)"):
        train(tmp_path / "run", ["tensorbord"])
    assert not (tmp_path / "run").exists()
    assert {"mlflow", "tensorboard", "wandb"} <= set(names("trackers"))


# -- the tools -------------------------------------------------------------------------------------------------------


def in_tensorboard(folder: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Curves = {}
    for at in {path.parent for path in folder.rglob("events.out.tfevents.*")}:
        held = EventAccumulator(str(at), size_guidance={"scalars": 0}).Reload()
        part = "" if at == folder else str(at.relative_to(folder))
        for name in held.Tags()["scalars"]:
            found[part, name] = [(event.step, event.value) for event in held.Scalars(name)]
    return found


def in_mlflow(uri: str) -> Curves:
    import mlflow

    client, found = mlflow.MlflowClient(tracking_uri=uri), {}
    runs = client.search_runs([client.get_experiment_by_name("pyro-bnn").experiment_id])
    assert len(runs) == 1
    assert runs[0].info.status == "FINISHED"
    assert runs[0].data.params["num_data"]
    for key in runs[0].data.metrics:
        part, _, name = key.partition("/") if key.startswith("member") else ("", "", key)
        history = client.get_metric_history(runs[0].info.run_id, key)
        found[part, name] = [(point.step, point.value) for point in history]
    return found


def logged(content: bytes) -> Iterator[bytes]:
    """Yield the records of an offline file of W&B: LevelDB's log format after a header of 7 bytes."""
    block, at, held = 32768, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        held += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield held
            held = b""


def in_wandb(folder: Path, parts: set[str], last: int) -> Curves:
    """Its service writes on after the run has ended: wait until the curves of all parts have come to epoch `last`."""
    end = time.monotonic() + 60
    while True:
        curves = of_wandb(folder)
        whole = {part for part, _ in curves} == parts and all(points[-1][0] == last for points in curves.values())
        if whole or time.monotonic() > end:
            return curves
        time.sleep(0.1)


def of_wandb(folder: Path) -> Curves:
    from wandb.proto.wandb_internal_pb2 import Record

    found: Curves = {}
    files = sorted(folder.rglob("*.wandb"))
    assert len({path.name for path in files}) == 1  # one run, in as many pieces as it was begun
    for path in files:
        for data in logged(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            line = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            for key, value in line.items():
                part, _, name = key.partition("/") if key.startswith("member") else ("", "", key)
                if not name.startswith("_") and name != "epoch":
                    found.setdefault((part, name), []).append((line[f"{part}/epoch" if part else "epoch"], value))
    return found


@pytest.fixture(params=["tensorboard", "mlflow", "wandb"])
def tool(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any]:
    """A tool's name, and what reads its curves; MLflow and W&B are heavy, and looked at where they are installed."""
    pytest.importorskip(request.param)
    uri = (tmp_path / "mlflow").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    readers = {
        "tensorboard": lambda run, parts, last: in_tensorboard(run / "tensorboard"),
        "mlflow": lambda run, parts, last: in_mlflow(uri),
        "wandb": in_wandb,
    }
    return request.param, readers[request.param]


@pytest.mark.filterwarnings("default")
def test_each_tool_holds_each_epoch_once_after_a_resumption(tool: tuple[str, Any], tmp_path: Path) -> None:
    name, read = tool
    run = tmp_path / "run"
    train(run, [name], StopAt(2))
    history = train(run, [name]).history
    curves = read(run, {""}, 4)
    assert {part for part, _ in curves} == {""}
    for key in ("nll", "kl", "loss", "elbo"):
        epochs, values = zip(*curves["", key], strict=True)
        assert epochs == (1, 2, 3, 4)
        assert values == pytest.approx([line[key] for line in history], rel=1e-6)
    assert [e for e, _ in curves["", "learning_rate/loc"]] == [1, 2, 3, 4]
    train(tmp_path / "alone", [])
    same = [(at / "posterior.safetensors").read_bytes() for at in (run, tmp_path / "alone")]
    assert same[0] == same[1]


@pytest.mark.filterwarnings("default")
def test_each_tool_holds_the_parts_of_a_training_apart(tool: tuple[str, Any], tmp_path: Path) -> None:
    name, read = tool
    run = tmp_path / "run"
    train(run, [name], method={"name": "ensemble", "members": 2, "of": "map"}, epochs=2)
    curves = read(run, {"member-1", "member-2"}, 2)
    for part in ("member-1", "member-2"):
        assert [e for e, _ in curves[part, "nll"]] == [1, 2]
    assert curves["member-1", "nll"] != curves["member-2", "nll"]


def test_a_new_training_leaves_old_curves_alone(tmp_path: Path) -> None:
    small_fit([TensorBoard(tmp_path / "curves")])
    small_fit([second := TensorBoard(tmp_path / "curves")], epochs=2)
    assert second.folder == tmp_path / "curves-2"
    assert [e for e, _ in in_tensorboard(tmp_path / "curves")["", "nll"]] == [1, 2, 3]
    assert [e for e, _ in in_tensorboard(tmp_path / "curves-2")["", "nll"]] == [1, 2]


def test_a_tool_that_is_not_installed_is_said_when_its_tracker_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, make, extra in (
        ("torch.utils.tensorboard", TensorBoard, "tensorboard"),
        ("mlflow", MLflow, "mlflow"),
        ("wandb", WandB, "wandb"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=rf'pip install "pyro-bnn\[{extra}\]"'):
            make()


def test_the_command_logs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["--set", "epochs=2", "--set", "num_samples=2", "--no-report"]
    assert main(["train", "mlp-toy-cubic", "--out", str(run), "--log", "tensorboard", *settings]) == 0
    assert [e for e, _ in in_tensorboard(run / "tensorboard")["", "nll"]] == [1, 2]
