"""The study of fidelity: a made-up reference, records tied to it, the judge's verdicts, every arm's recipe."""

import json
from pathlib import Path

import numpy as np
import pytest

from pyro_bnn.cli import main
from pyro_bnn.recipe import find_recipe
from pyro_bnn.studies import _hmc_fidelity
from pyro_bnn.studies._hmc_fidelity import ARMS, settings
from pyro_bnn.studies._hmc_fidelity_table import as_markdown
from pyro_bnn.studies._hmc_fidelity_table import main as write_table
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.hmc_fidelity import STUDY
from pyro_bnn.studies.study import Trial
from tests.studies.made_up import made_up


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with tiny images under CIFAR-10's name and a made-up reference for its test rows."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, rows in (("train", 100), ("test", 40)):
        arrays[f"x_{part}"] = rng.integers(0, 255, (rows, 8, 8, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(rows) % 10
    np.savez(tmp_path / "cifar10.npz", **arrays)
    np.savez(tmp_path / "cifar10_hmc.npz", probs=rng.dirichlet(np.ones(10), 40).astype(np.float16))
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))
    monkeypatch.setenv("PYRO_BNN_STUDIES", str(tmp_path / "store"))
    return tmp_path


QUICK = ("low rank", "SGLD", "3 averaged points")


@pytest.mark.parametrize("arm", [a if a in QUICK else pytest.param(a, marks=pytest.mark.slow) for a in ARMS])
def test_an_arm_is_trained_once_and_compared(root: Path, arm: str) -> None:
    small = {"model_args": {"width": 1}, "data_args": {"train_size": 100}, "batch_size": 50}
    found = _hmc_fidelity.arm(arm, epochs=3, rows=30, draws=2, changes=small)
    assert 0 <= found["agreement"] <= 1
    assert found["total_variation"] == pytest.approx(np.mean(found["by_row"]), abs=1e-5)
    assert len(found["by_row"]) == 30
    trained = list((root / "store" / "trained").glob("*/results.json"))
    written = [path.stat().st_mtime_ns for path in trained]
    assert len(trained) == 1
    # HMC's probabilities in the place of the made-up ones need no training: a posterior is near to itself
    again = _hmc_fidelity.arm(arm, epochs=3, rows=40, draws=2, changes=small)
    assert again["by_row"][:30] == pytest.approx(found["by_row"], abs=1e-5)
    assert [path.stat().st_mtime_ns for path in trained] == written


def test_every_arm_has_the_same_epochs_prior_and_target() -> None:
    base = find_recipe("frn-resnet20-cifar10")
    assert base.prior == {"name": "normal", "scale": pytest.approx(0.2**0.5, rel=1e-6)}
    for arm in ARMS:
        recipe = base.changed(settings(arm, 6))
        assert recipe.eta == recipe.temperature == 1
        assert recipe.epochs * recipe.method.get("members", 1) == 6
    with pytest.raises(ValueError, match="arm='wide' is unknown: choose one of mean field"):
        settings("wide", 6)


def test_records_belong_to_one_reference(root: Path) -> None:
    keys = [trial.key() for trial in STUDY.design("smoke")]
    np.savez(root / "cifar10_hmc.npz", probs=np.full((40, 10), 0.1))
    assert not set(keys) & {trial.key() for trial in STUDY.design("smoke")}


def test_the_command_takes_the_path(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = root / "elsewhere.npz"
    (root / "cifar10_hmc.npz").rename(elsewhere)
    assert main(["study", "hmc-fidelity", "--scale", "smoke", "--jobs", "1"]) == 2
    assert "cifar10_hmc.npz is not there" in capsys.readouterr().err
    assert main(["study", "hmc-fidelity", "--reference", str(root / "none.npz")]) == 2
    assert "is no file" in capsys.readouterr().err
    assert main(["study", "hmc-fidelity", "--scale", "smoke", "--reference", str(elsewhere), "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(arm in shown for arm in ARMS)


@pytest.mark.slow
def test_the_study_runs_at_its_smallest(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = root / "out"
    assert main(["study", "hmc-fidelity", "--scale", "smoke", "--jobs", "1", "--out", str(out)]) == 0
    outcome = json.loads((out / "hmc-fidelity.smoke.json").read_text())
    assert [cell["cell"] for cell in outcome["cells"]] == list(ARMS)
    assert outcome["trials"] == len(ARMS)


@pytest.mark.parametrize(
    ("near", "verdict"),
    [(0.1, "confirmed"), (0.3, "contradicted"), (0.2, "inconclusive")],
)
def test_the_verdict_is_of_the_rows(near: float, verdict: str) -> None:
    noise = np.random.default_rng(0).normal(size=(2, 400))

    def record(trial: Trial) -> dict[str, object]:
        far = trial.cell == "mean field"
        rows = (0.2 if far else near) + 0.02 * noise[int(far)]
        return {"by_row": rows.tolist(), "total_variation": float(rows.mean())}

    findings = STUDY.judge(made_up(STUDY, record))
    assert verdict_of(findings) == verdict
    assert findings[0].estimate == pytest.approx(0.2 - near, abs=0.01)


def test_the_table_has_a_column_of_its_own_for_what_was_published(root: Path) -> None:
    by_row = [0.1, 0.3, 0.2, 0.2]
    record = {"agreement": 0.75, "total_variation": 0.2, "accuracy": 0.5, "pred_nll": 1.25, "by_row": by_row}
    text = as_markdown({"SGLD": {**record, "epochs": 6, "draws": 20}})
    assert "| SGLD | 0.750 ± 0.217 | 0.2000 ± 0.0408 | 50.00 % | 1.2500 | SGLD, 5 chains: 0.915, 0.110 |" in text
    assert "| HWA | not run | | | |  |" in text
    assert "6 epochs" in text
    write_table(["--scale", "smoke", "--out", str(root / "table.md")])
    assert (root / "table.md").read_text() == as_markdown({})
