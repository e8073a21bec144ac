"""The command: what it prints, and one line with exit code 2 for a mistake."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_bnn.cards.make import read_card
from pyro_bnn.cli import main
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import Posterior
from pyro_bnn.runs.loading import shipped_posteriors

SMALL = ["--set", "epochs=1", "--set", "data_args={train_size=300, test_size=100}", "--set", "num_samples=2"]


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert {"recipes", "models", "data", "priors", "guides", "optimizers", "posteriors"} <= set(names)
    assert "lenet5-mnist-mini" in names["recipes"]


def test_list_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models"]) == 0
    shown = capsys.readouterr().out
    assert "lenet5" in shown
    assert "recipes" not in shown


def test_train_then_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "run")
    assert main(["train", "lenet5-mnist-mini", "--out", folder, *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "predictive NLL" in shown
    assert "epoch 1/1" in shown
    assert f"run folder: {folder}" in shown.replace("\n", "")
    assert main(["evaluate", folder, "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert scored["test"]["s_draws"]["accuracy"] == written["test"]["s_draws"]["accuracy"]
    assert scored["test"]["s_draws"]["pred_nll"] == pytest.approx(written["test"]["s_draws"]["pred_nll"], abs=5e-4)


def write(path: Path, **changes: object) -> str:
    rng = np.random.default_rng(0)
    arrays: dict[str, object] = {
        "x_train": rng.integers(0, 255, (60, 28, 28), dtype=np.uint8),
        "y_train": np.arange(60) % 10,
        "x_test": rng.integers(0, 255, (20, 28, 28), dtype=np.uint8),
        "y_test": np.arange(20) % 10,
        **changes,
    }
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return str(path)


def bad_files(folder: Path) -> dict[str, tuple[str, str]]:
    labels = np.arange(60) % 10
    pixels = np.zeros((60, 28, 28), dtype=np.float32)
    holed, infinite = pixels.copy(), pixels.copy()
    holed[3, 2, 1], infinite[3, 2, 1] = np.nan, np.inf
    return {
        "missing": (str(folder / "missing.npz"), "no data file"),
        "keys": (write(folder / "keys.npz", y_test=None), "y_test"),
        "shapes": (write(folder / "shapes.npz", x_train=np.zeros((60, 4, 4, 4, 4))), "(60, 4, 4, 4, 4)"),
        "lengths": (write(folder / "lengths.npz", y_train=labels[:50]), "50"),
        "range": (write(folder / "range.npz", y_train=np.where(labels == 3, -1, labels)), "-1"),
        "integral": (write(folder / "integral.npz", y_train=labels + 0.5), "0.5"),
        "nan": (write(folder / "nan.npz", x_train=holed), "NaN"),
        "infinite": (write(folder / "infinite.npz", x_train=infinite), "inf"),
        "empty": (write(folder / "empty.npz", y_train=np.where(labels == 3, 4, labels)), "3"),
    }


KINDS = ["missing", "keys", "shapes", "lengths", "range", "integral", "nan", "infinite", "empty"]


def expect_one_line(capsys: pytest.CaptureFixture[str], named: str) -> None:
    err = capsys.readouterr().err
    assert err.startswith("pyro-bnn: ")
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.parametrize("kind", KINDS)
def test_bad_files(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, named = bad_files(tmp_path)[kind]
    assert main(["train", "lenet5-mnist-mini", "--set", f"data={path}", "--out", str(tmp_path / "run")]) == 2
    expect_one_line(capsys, named)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "lenet7"], "lenet7"),
        (["train", "lenet5-mnist-mini", "--set", "epoch=3"], "did you mean 'epochs'"),
        (["train", "lenet5-mnist-mini", "--set", "epochs"], "key=value"),
        (["train", "lenet5-mnist-mini", "--set", "optim.loc.lr=-1"], "-1"),
        (["train", "lenet5-mnist-mini", "--set", "batch_size=5001"], "5001"),
        (["train", "lenet5-mnist-mini", "--resume"], "--out"),
        (["evaluate", "nowhere"], "nowhere"),
        (["list", "colours"], "colours"),
    ],
)
def test_mistakes(arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if arguments[0] == "train" and "--resume" not in arguments:
        arguments = [*arguments, "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    expect_one_line(capsys, named)
    assert not (tmp_path / "run").exists()


def test_lr_range_draws_its_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "range.png"
    command = ["lr-range", "lenet5-mnist-mini", "--steps", "60", "--out", str(picture), "--set", "batch_size=50"]
    assert main(command) == 0
    assert picture.stat().st_size > 10_000
    suggested = float(capsys.readouterr().out.split()[1])
    assert 1e-4 < suggested < 0.1
    assert main([*command, "--group", "locs"]) == 2
    expect_one_line(capsys, "locs")


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="lenet7"):
        main(["train", "lenet7", "--debug"])


def test_module_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "pyro_bnn", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "train" in done.stdout


def test_help_does_not_import_torch() -> None:
    script = "import sys; from pyro_bnn.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_lists_are_plain_in_a_pipe_and_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list", "models"]) == 0
    assert "lenet5" in capsys.readouterr().out.splitlines()
    assert main(["list"]) == 0
    assert "models\tlenet5" in capsys.readouterr().out.splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["list", "posteriors"]) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    firsts = [line.split()[0] for line in shown.splitlines() if line.strip()]
    assert set(shipped_posteriors()) <= set(firsts)
    assert "…" not in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert main(["-h"]) == main(["report", "-h"]) == 0
    assert re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).count("--help") == 2


def test_a_report_of_a_posterior_that_no_recipe_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = {"x": torch.randn(30, 2, generator=generator), "y": torch.randint(0, 2, (30,), generator=generator)}
    parts = {f"{name}_{part}": values.numpy() for name, values in rows.items() for part in ("train", "test")}
    np.savez(tmp_path / "own.npz", **parts)
    model = BNN(MLP(2, 2, hidden=(4,)), priors.Kaiming(), likelihoods.Categorical(), 30)
    Posterior(model, AutoMeanFieldNormal(model)).save(tmp_path / "own")
    assert main(["report", str(tmp_path / "own")]) == 2
    assert "--data FILE" in capsys.readouterr().err
    arguments = ["report", str(tmp_path / "own"), "--data", str(tmp_path / "own.npz"), "--num-samples", "5"]
    assert main([*arguments, "--out", str(tmp_path / "new" / "place")]) == 0
    assert "30 test rows" in (tmp_path / "new" / "place" / "report.html").read_text()


def test_list_tells_more_of_recipes_and_posteriors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "LeNet-5 on 5,000 embedded digits" in shown
    assert main(["list", "posteriors"]) == 0
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("lenet5-mnist-mini\t"))
    card = read_card("lenet5-mnist-mini")
    assert row.replace(" %", "").split("\t")[1:4] == ["mnist-mini", "0.1", f"{100 * card['shipped']['accuracy']:.2f}"]
    assert main(["list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    recipe = told["recipes"]["resnet34-cifar10-sgd"]
    assert "adabayes" in recipe["variants"]
    assert "AdaBayes" in told["variants"]["resnet34-cifar10-sgd --variant adabayes"]["description"]
    assert (recipe["model"], recipe["data"], recipe["method"]) == ("resnet34", "cifar10", "ml")
    assert recipe["budgets"] == ["cpu", "paper"]
    assert told["recipes"]["lenet5-mnist-mini"]["budgets"] == ["cpu"]
    shipped = told["posteriors"]["lenet5-mnist-mini"]
    assert 0.9 < shipped["accuracy"] <= 1
    assert shipped["pred_nll"] < 0.2
    assert isinstance(told["models"], list)


def test_a_card_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "epochs=1", "--set", "num_samples=2", "--set", "data_args={train_size=300}"]
    assert main(["train", "mlp-mnist-mini", "--no-report", "--out", str(tmp_path / "run"), *small]) == 0
    assert not (tmp_path / "run" / "report.html").exists()
    assert main(["card", str(tmp_path / "run"), "--out", str(tmp_path / "card"), "--data-root", str(tmp_path)]) == 0
    assert "wrote" in capsys.readouterr().out
    assert (tmp_path / "card" / "card.md").read_text().startswith("# mlp-mnist-mini (eta = 0.1)")
    assert main(["evaluate", str(tmp_path / "card"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["test"]["s_draws"]["pred_nll"]
    card = json.loads((tmp_path / "card" / "card.json").read_text())
    assert again == pytest.approx(card["shipped"]["pred_nll"], abs=5e-4)
    assert main(["card", str(tmp_path / "run"), str(tmp_path / "run")]) == 2
    expect_one_line(capsys, "seeds [0, 0]")


def test_a_recipe_under_its_former_name_is_named_anew(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "lenet5-cifar10-adabound", "--set", "epoch=3"]) == 2
    said = capsys.readouterr().err
    assert "'lenet5-cifar10-adabound' is a variant now: 'lenet5-cifar10-thesis', variant='adabound'" in said
    assert "did you mean 'epochs'" in said


def test_a_diagnosis_is_words_or_data_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "run")
    assert main(["train", "lenet5-mnist-mini", "--out", folder, *SMALL, "--set", "optim.scale.lr=1e-12"]) == 0
    capsys.readouterr()
    asked = ["diagnose", folder, "--no-settle", "--num-samples", "10"]
    assert main(asked) == 1  # its deviations never moved
    words = capsys.readouterr().out
    assert "!!  deviations" in words
    assert "they have not moved from their start" in " ".join(words.split())
    assert main([*asked, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "bad"
    assert told["summary"] in words
