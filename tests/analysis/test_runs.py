"""Runs trained from recipes: report, predict and compare them, through the command."""

import html
import json

import numpy as np
import pytest
import torch

from pyro_bnn.analysis.scores.evaluation import evaluate_rows
from pyro_bnn.cli import main
from pyro_bnn.data import load_data
from pyro_bnn.runs.finished import _fitted, compare, diagnose, open_run, report, unfamiliar
from pyro_bnn.runs.train import train

SMALL = {
    "model": "mlp",
    "model_args": {"hidden": [16]},
    "data": "mnist-mini",
    "data_args": {"train_size": 300, "test_size": 200},
    "epochs": 2,
    "num_samples": 6,
}


def recipe(folder, name, **values):
    import tomli_w

    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps({**SMALL, **values}))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, values in (
        ("one", {"seed": 0}),
        ("two", {"seed": 0, "model_args": {"hidden": [8]}}),
        ("other-rows", {"seed": 0, "data_args": {"train_size": 300, "test_size": 150}}),
    ):
        train(recipe(folder, name, **values), out=folder / name, progress=False, report=False)
    return folder


def said(capsys):
    text = capsys.readouterr()
    return " ".join((text.out + text.err).split())


def test_a_run_opens_with_its_data(runs):
    run = open_run(runs / "one")
    assert run.name == "one"
    assert len(run.data.test) == 200
    assert len(run.history) == 2
    assert run.evaluate().table == run.results["test"]


def test_report_from_the_command(runs, capsys):
    assert main(["report", str(runs / "one"), "--num-samples", "4"]) == 0
    page = (runs / "one" / "report.html").read_text()
    assert "mnist-mini" in page
    assert "4 draws" in page
    assert "report.html" in said(capsys)


def test_a_report_says_whether_the_run_is_to_be_trusted(runs, tmp_path):
    """The page has every check of `diagnose`, with its words and its mark."""
    run = open_run(runs / "one")
    found = diagnose(runs / "one", settle=False)
    page = (
        html.unescape(report(runs / "one", out=tmp_path / "run").read_text())
        .replace("\u202f", " ")
        .replace("\u00a0", " ")
    )
    assert "Is it to be trusted?" in page
    assert found.summary in page
    for check in found.checks:
        assert check.words.replace("+-", "±") in page
        assert check.threshold in page
    rows = (run.data.test.x, run.data.test.y)  # which are nothing to judge it by
    assert "Is it to be trusted?" not in run.posterior.report(tmp_path / "rows", rows).read_text()
    beside = run.posterior.report(tmp_path / "rows", rows, diagnosis=found).read_text()
    assert found.summary in html.unescape(beside)


def test_report_with_a_twin(runs, tmp_path):
    page = report(runs / "one", out=tmp_path, twin=runs / "two", num_samples=3).read_text()
    assert "two, T = " in page
    assert (tmp_path / "report.html").is_file()


def test_compare_orders_by_held_out_elpd(runs):
    found = compare([runs / "one", runs / "two"], num_samples=6)
    names = [row["run"] for row in found.rows]
    by_hand = {}
    for name in ("one", "two"):
        run = open_run(runs / name)
        by_hand[name] = evaluate_rows(run.posterior, run.data.test.x, run.data.test.y, 6, seed=0).log_density
    assert names == sorted(by_hand, key=lambda name: -float(by_hand[name].sum()))
    for row in found.rows:
        assert row["held_out_elpd"] == pytest.approx(float(by_hand[row["run"]].sum()))
        assert row["seconds"] > 0
        assert 0 <= row["ood_auroc"] <= 1
    difference = by_hand[names[0]] - by_hand[names[1]]
    assert found.rows[1]["difference"] == pytest.approx(float(difference.sum()))
    assert found.rows[1]["se_difference"] == pytest.approx(float((200 * difference.var(correction=0)).sqrt()))
    assert found.held_out.attrs["title"] == "held-out elpd"


def test_compare_from_the_command(runs, capsys):
    assert main(["compare", str(runs / "one"), str(runs / "two"), "--num-samples", "3"]) == 0
    assert "held-out elpd" in said(capsys)
    assert main(["compare", str(runs / "one"), str(runs / "two"), "--num-samples", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["run"] for row in rows} == {"one", "two"}


def test_predict_from_the_command(runs, tmp_path, capsys):
    raw = load_data("mnist-mini", standardise=False).test.x[:3]
    np.save(tmp_path / "x.npy", (255 * raw[:, 0]).round().byte().numpy())
    command = ["predict", str(runs / "one"), str(tmp_path / "x.npy"), "--num-samples", "5"]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["input"] for row in rows] == ["x.npy[0]", "x.npy[1]", "x.npy[2]"]
    assert main([*command, "--threshold", "1", "--out", str(tmp_path / "out.json")]) == 0
    assert "don't know" in said(capsys)
    assert all(row["answer"] == "don't know" for row in json.loads((tmp_path / "out.json").read_text()))


def test_unfamiliar_data_go_through_the_runs_own_standardiser(runs, tmp_path):
    run = open_run(runs / "one")
    x = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    y = np.arange(20) % 2
    np.savez(tmp_path / "alien.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    found = unfamiliar(run.posterior, "alien", tmp_path)
    torch.testing.assert_close(found, run.posterior.standardise(torch.from_numpy(x)[:, None].float() / 255))
    assert abs(float(found.mean())) > 0.5  # its own statistics would have made this 0
    np.savez(tmp_path / "small.npz", x_train=x[:, :20, :25], y_train=y, x_test=x[:, :20, :25], y_test=y)
    amid = np.zeros((20, 1, 28, 28), dtype=np.float32)
    amid[:, 0, 4:24, 1:26] = x[:, :20, :25] / 255  # margins of 8 and 3, the odd pixel at the end
    torch.testing.assert_close(
        unfamiliar(run.posterior, "small", tmp_path), run.posterior.standardise(torch.from_numpy(amid))
    )
    large = np.zeros((20, 30, 30), dtype=np.uint8)
    np.savez(tmp_path / "large.npz", x_train=large, y_train=y, x_test=large, y_test=y)
    with pytest.raises(ValueError, match="choose another"):
        unfamiliar(run.posterior, "large", tmp_path)


def test_grey_images_go_to_a_colour_network_in_every_channel():
    images = torch.rand(3, 1, 28, 28)
    found = _fitted(images, [3, 32, 32])
    assert found.shape == (3, 3, 32, 32)
    for channel in range(3):
        assert torch.equal(found[:, channel, 2:30, 2:30], images[:, 0])
    assert float(found.sum()) == pytest.approx(3 * float(images.sum()), rel=1e-5)
    assert _fitted(torch.zeros(3, 3, 32, 32), [1, 28, 28]).shape == (3, 3, 32, 32)


def test_mistakes_are_one_line_and_exit_code_2(runs, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((1, 27, 28)))
    alien = runs.parent
    for command, words in (
        (["report", str(tmp_path)], "holds no posterior"),
        (["report", str(tmp_path / "nothing")], "no run folder"),
        (["report", str(runs / "one"), "--ood", "mnits"], "unknown data set"),
        (["predict", str(runs / "one"), str(tmp_path / "x.npy")], "this posterior takes inputs of shape (1, 28, 28)"),
        (["predict", str(alien), str(tmp_path / "x.npy")], "holds no posterior"),
        (["compare", str(runs / "one")], "at least two"),
        (["compare", str(runs / "one"), str(runs / "one")], "given twice"),
        (["compare", str(runs / "one"), str(runs / "other-rows")], "different test rows"),
    ):
        assert main(command) == 2, command
        text = capsys.readouterr()
        assert words in text.err
        assert text.err.count("\n") == 1


def test_compare_refuses_other_classes(runs, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 28, 28)), np.arange(60) % 2
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    path = recipe(tmp_path, "binary", data=str(tmp_path / "two.npz"), data_args={}, epochs=1, batch_size=20)
    train(path, out=tmp_path / "binary", progress=False, report=False)
    with pytest.raises(ValueError, match=r"one knows the classes 0, 1, 2.* and binary 0, 1: compare"):
        compare([runs / "one", tmp_path / "binary"])
