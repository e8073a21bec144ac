"""Model cards: what is in them, that their commands and numbers come out again, and the README's table."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.analysis.scores.evaluation import ClassEvaluation, evaluate_rows
from pyro_bnn.analysis.scores.metrics import ece_null
from pyro_bnn.analysis.scores.ood import detect, gaussian_noise
from pyro_bnn.assemble import assemble
from pyro_bnn.cards.curve import learning_curves
from pyro_bnn.cards.make import (
    NOISE_TOLERANCE,
    Verification,
    main,
    make_card,
    paired_difference,
    read_card,
    shipped_cards,
    verify,
    verify_noise,
    write_readme,
)
from pyro_bnn.cards.text import markdown, readme_table
from pyro_bnn.cards.tuning import earlier_settings, number_tried, settings_tried
from pyro_bnn.common.errors import BadFile
from pyro_bnn.common.manifest import seal
from pyro_bnn.data import load_data
from pyro_bnn.recipe import find_recipe, parse_settings
from pyro_bnn.runs.finished import open_run
from pyro_bnn.runs.loading import load
from pyro_bnn.runs.train import train

START, END = "<!-- zoo:start -->", "<!-- zoo:end -->"

SMALL: dict[str, Any] = {
    "epochs": 3,
    "data_args": {"train_size": 600},
    "model_args": {"hidden": [30]},
    "num_samples": 10,
}


def run(out: Path, **settings: Any) -> Path:
    train("mlp-mnist-mini", out=out, progress=False, report=False, **{**SMALL, **settings})
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = {f"run-{seed}": run(folder / f"run-{seed}", seed=seed) for seed in (3, 4)}
    made |= {f"tried-{eta}": run(folder / f"tried-{eta}", seed=3, eta=eta, epochs=1) for eta in (0.3, 1.0)}
    (made["tried-1.0"] / "posterior.safetensors").unlink()  # given up
    for lr in (0.01, 0.1):
        rate = {"optim.loc.lr": lr}
        made[f"twin-tried-{lr}"] = run(folder / f"twin-tried-{lr}", seed=3, method="map", epochs=1, **rate)
    return made | {f"twin-{seed}": run(folder / f"twin-{seed}", seed=seed, method="map") for seed in (3, 4)}


@pytest.fixture(scope="module")
def card(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_card(
        [runs["run-3"], runs["run-4"]],
        twins=[runs["twin-3"], runs["twin-4"]],
        name="small",
        out=tmp_path_factory.mktemp("cards") / "small",
        tried=[runs["tried-0.3"], runs["tried-1.0"]],
        twin_tried=[runs["twin-tried-0.01"], runs["twin-tried-0.1"]],
        data_root="nowhere",
    )


def test_a_card_ships_its_twin(card: Path, runs: dict[str, Path]) -> None:
    x = load_data("mnist-mini").test.x[:50]
    kept, trained = load(card / "twin"), load(runs["twin-3"])
    torch.testing.assert_close(kept.predict(x, num_samples=1), trained.predict(x, num_samples=1), rtol=0, atol=2e-3)


def test_a_card_made_anew_keeps_counting_what_was_tried(card: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    again = Path(shutil.copytree(card, tmp_path / "small"))
    make_card([runs["run-3"]], twins=[runs["twin-3"]], name="small", out=again, data_root="nowhere")
    told = read_card(again)
    for side, former in ((told, read_card(card)), (told["twin"], read_card(card)["twin"])):
        assert len(side["tried"]) == 1
        assert side["earlier"] == [{"date": read_card(card)["made"]["date"], "command": former["command"], "tried": 2}]
        assert number_tried(side) == 3
    assert "Settings tried on validation: 3, 2 of them for earlier cards." in (again / "card.md").read_text()


def test_settings_of_another_choice_are_others() -> None:
    """Of three former settings one is tried again, if they are told from the same chosen one; else none is."""
    former = {"command": "train", "tried": [{"settings": s} for s in ([], ["eta=1"], ["eta=2"])]}
    former["earlier"] = [{"date": "d", "command": "c", "tried": 13}]
    now = [{"settings": []}, {"settings": ["eta=3"]}]
    for same, counted in ((True, 2), (False, 3)):
        found = earlier_settings(former, "today", now, same)
        assert found == [*former["earlier"], {"date": "today", "command": "train", "tried": counted}]
        assert number_tried({"tried": now, "earlier": found}) == 2 + 13 + counted
    assert earlier_settings({"command": "train", "tuning_runs": 1}, "today", now, True) == []


def test_a_card_holds_every_seed_and_the_twin(card: Path, runs: dict[str, Path]) -> None:
    told = read_card(card)
    assert told["title"] == "small (eta = 0.1)"
    assert (told["seeds"], told["shipped"]["seed"]) == ([3, 4], 3)
    assert told["data"] == {"name": "mnist-mini", "train": 540, "val": 60, "test": 1000, "classes": list("0123456789")}
    for row, twin in zip(told["results"], told["twin"]["results"], strict=True):
        assert {"plug_in", "one_draw", "s_draws", "ood", "seconds"} <= set(row)
        assert row["s_draws"]["epistemic"] > 0.01
        assert 0 < row["s_draws"]["ece_null"]["mean"] < row["s_draws"]["ece_null"]["upper"]
        assert twin["scaled"]["pred_nll"] < twin["raw"]["pred_nll"] + 0.05
        assert twin["scaled"]["accuracy"] == twin["raw"]["accuracy"]
        assert "mutual_information" not in twin["ood"]["Gaussian noise"]
    written = json.loads((runs["run-4"] / "results.json").read_text())["test"]["s_draws"]
    assert told["results"][1]["s_draws"]["pred_nll"] == pytest.approx(written["pred_nll"], abs=1e-9)
    inside = load_data("mnist-mini", **parts_of(runs["run-4"])).test.x
    found = detect(load(runs["run-4"]), inside, gaussian_noise(inside), 10, seed=4)
    seen = told["results"][1]["ood"]["Gaussian noise"]
    for score in ("entropy", "mutual_information"):
        assert seen[score] == pytest.approx(found[score]["auroc"], abs=1e-9)
    sure = load(runs["run-4"]).predict(gaussian_noise(inside)[:2000], 10, seed=4, standardised=True).max(-1).values
    assert seen["confidence"] == pytest.approx(float(sure.mean()), abs=1e-5)
    assert seen["share_above_90"] == pytest.approx(float((sure > 0.9).double().mean()), abs=1e-3)
    assert told["made"]["pyro_bnn"] == pb.__version__


def test_a_card_lists_the_settings_tried_best_first(card: Path, runs: dict[str, Path]) -> None:
    told = read_card(card)
    nll, ece = {}, {}
    for name in ("run-3", "tried-0.3", "twin-3"):  # finished: scored as the test rows are
        opened = open_run(runs[name])
        val = opened.data.val
        assert val is not None
        found = evaluate_rows(opened.posterior, val.x, val.y, opened.draws(10), seed=3)
        assert isinstance(found, ClassEvaluation)
        nll[name] = -found.log_density.double()
        ece[name] = {
            "val_ece": found.table["s_draws"]["ece"],
            "val_ece_upper": ece_null(found.log_probs)["upper"],
        }
    history = (runs["tried-1.0"] / "metrics.jsonl").read_text().splitlines()
    best = min(json.loads(line)["val_nll"] for line in history)
    difference = nll["tried-0.3"] - nll["run-3"]
    expected = [
        {"settings": [], "seed": 3, "epochs": 3, "val_nll": nll["run-3"].mean(), **ece["run-3"]},
        {
            **{"settings": ["epochs=1", "eta=0.3"], "seed": 3, "epochs": 1, "val_nll": nll["tried-0.3"].mean()},
            **{"difference": difference.mean(), "se": difference.std() / len(difference) ** 0.5},
            **ece["tried-0.3"],
        },
        {"settings": ["epochs=1", "eta=1.0"], "seed": 3, "epochs": 1, "val_nll": best, "given_up": True},
    ]
    assert [row["settings"] for row in told["tried"]] == [row["settings"] for row in expected]
    for row, wanted in zip(told["tried"], expected, strict=True):
        assert row.keys() == wanted.keys()
        for key in row.keys() - {"settings"}:
            assert row[key] == pytest.approx(float(wanted[key]), abs=1e-6)
    assert len(told["twin"]["tried"]) == 3
    (alone,) = (row for row in told["twin"]["tried"] if not row["settings"])
    numbers = {"val_nll": float(nll["twin-3"].mean()), **ece["twin-3"]}
    assert alone == {"settings": [], "seed": 3, "epochs": 3, **{k: pytest.approx(v) for k, v in numbers.items()}}
    text = markdown(told)
    calibrated = "{val_ece:.4f} ({val_ece_upper:.4f})".format_map(ece["run-3"])
    assert "Settings tried on validation: 3." in text
    assert f"| **as in the card** | 3 | 3 | {nll['run-3'].mean():.4f} |  | {calibrated} |" in text
    assert f"| `epochs=1` `eta=0.3` | 3 | 1 | {nll['tried-0.3'].mean():.4f} | {difference.mean():+.4f} ± " in text
    assert f"| `epochs=1` `eta=1.0` | 3 | 1 | {best:.4f}† |  |  |" in text
    assert text.count("† Given up") == 1
    assert "Settings tried, twin" in text


def test_a_card_says_when_calibration_chose(card: Path) -> None:
    def text(*rows: tuple[str, float, float]) -> str:
        tried = [
            {"settings": [name] if name else [], "seed": 3, "epochs": 1, "val_nll": nll}
            | {"val_ece": ece, "val_ece_upper": 0.02}
            for name, nll, ece in rows
        ]
        return markdown({**read_card(card), "tried": tried})

    why = "Chosen: the lowest NLL of those whose ECE is inside its null."
    assert why in text(("eta=0.3", 0.1, 0.03), ("", 0.2, 0.01))
    assert why not in text(("eta=0.3", 0.1, 0.01), ("", 0.2, 0.01))
    assert why not in text(("", 0.1, 0.03), ("eta=0.3", 0.2, 0.01))


def write_run(folder: Path, recipe: pb.Recipe, val_nll: float | None) -> Path:
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe.to_toml())
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "val_nll": val_nll}) + "\n")
    return folder


def test_a_setting_of_another_kind_is_told_by_what_it_has(tmp_path: Path) -> None:
    recipe = find_recipe("lenet5-cifar10")
    kinds = {"method": {"name": "svi"}, "prior": {"name": "kaiming"}, "seed": 7, "num_samples": 3}
    chosen = write_run(tmp_path / "chosen", recipe, 0.1)
    other = write_run(tmp_path / "other", recipe.changed(kinds), 0.2)
    less = write_run(tmp_path / "less", recipe.changed({"guide": {"name": "mean_field", "init_rho": -4.0}}), 0.3)
    rows = settings_tried(chosen, [less, other], lambda folder: None)
    assert [row["settings"] for row in rows] == [
        [],
        ["method.name=svi", "prior.name=kaiming"],
        ["no guide.init_loc"],
    ]
    assert [(row["seed"], row["val_nll"]) for row in rows] == [(0, 0.1), (7, 0.2), (0, 0.3)]


def test_settings_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    recipe = find_recipe("mlp-mnist-mini")
    chosen = write_run(tmp_path / "chosen", recipe, 0.1)
    again = write_run(tmp_path / "again", recipe.changed({"seed": 9}), 0.1)
    cold = write_run(tmp_path / "cold", recipe.changed({"eta": 0.03}), 0.1)
    blind = write_run(tmp_path / "blind", recipe.changed({"eta": 0.5}), None)
    empty = tmp_path / "empty"
    empty.mkdir()

    def tried(*others: Path) -> None:
        settings_tried(chosen, others, lambda folder: None)

    with pytest.raises(ValueError, match=r"again has a setting given before \(the setting of the card\)"):
        tried(again)
    with pytest.raises(ValueError, match=r"cold has a setting given before \(eta=0.03\)"):
        tried(cold, cold)
    with pytest.raises(ValueError, match=r"blind has no validation NLL: settings are compared on validation"):
        tried(blind)
    with pytest.raises(ValueError, match=r"has no recipe.toml and no metrics.jsonl: give the folder of a run"):
        tried(empty)
    with pytest.raises(ValueError, match="there are no twins: give a twin for every seed"):
        make_card([chosen], twin_tried=[cold], data_root="nowhere")


def parts_of(folder: Path) -> dict[str, Any]:
    """The arguments of load_data that decide how a run's inputs are standardised."""
    recipe = pb.Recipe.from_toml((folder / "recipe.toml").read_text())
    return {"val_fraction": recipe.val_fraction, "seed": recipe.seed, **recipe.data_args}


def test_means_and_differences_follow_from_the_seeds(card: Path) -> None:
    told = read_card(card)
    for name in ("accuracy", "pred_nll"):
        own = np.array([row["s_draws"][name] for row in told["results"]])
        assert told["mean"]["s_draws"][name] == pytest.approx(own.mean())
        assert told["mean"]["s_draws"][f"{name}_sd"] == pytest.approx(own.std(ddof=1))
        for kind in ("raw", "scaled"):
            other = np.array([row[kind][name] for row in told["twin"]["results"]])
            found = told["differences"][kind][name]
            assert found["mean"] == pytest.approx((own - other).mean(), abs=1e-9)
            assert found["se_seeds"] == pytest.approx((own - other).std(ddof=1) / np.sqrt(2), abs=1e-9)
            assert found["se_rows"] > 0


def test_paired_differences() -> None:
    a, b = torch.tensor([[1.0, 2.0, 6.0], [3.0, 4.0, 8.0]]), torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    found = paired_difference(list(a), list(b))  # differences 1 2 6 and 2 3 7: by row 1.5 2.5 6.5, by seed 3 and 4
    assert found["mean"] == pytest.approx(3.5)
    assert found["se_rows"] == pytest.approx(np.std([1.5, 2.5, 6.5], ddof=1) / np.sqrt(3))
    assert found["se_seeds"] == pytest.approx(np.std([3, 4], ddof=1) / np.sqrt(2))
    assert set(paired_difference([a[0]], [b[0]])) == {"mean", "se_rows"}


def test_the_shipped_file_loses_nothing_that_can_be_measured(card: Path, runs: dict[str, Path]) -> None:
    shipped = read_card(card)["shipped"]
    assert abs(shipped["pred_nll"] - shipped["unrounded_pred_nll"]) < 1e-4
    assert shipped["pred_nll"] != shipped["unrounded_pred_nll"]
    sizes = [(folder / "posterior.safetensors").stat().st_size for folder in (card, runs["run-3"])]
    assert sizes[0] < 0.4 * sizes[1]
    assert shipped["bytes"] == sum((card / f"posterior.{end}").stat().st_size for end in ("safetensors", "json"))


def test_a_card_comes_out_again(card: Path) -> None:
    found = verify(card)
    assert found.comes_out_again
    assert found.rows == 1000
    assert found.labels_differ == 0


def test_another_posterior_does_not_come_out(card: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(card, other)
    posterior = load(other)
    with torch.no_grad():
        for name, parameter in posterior.guide.named_parameters():
            if "rho" in name:
                parameter.add_(0.5)
    posterior.save(other, compact=True)
    assert not verify(other).comes_out_again
    assert verify_noise(other) > 10 * NOISE_TOLERANCE


def test_a_card_made_again_keeps_nothing_of_the_one_before(card: Path, tmp_path: Path) -> None:
    other = tmp_path / "small"
    shutil.copytree(card, other)
    assert (other / "curve.svg").is_file()
    assert (other / "twin").is_dir()
    plain = run(tmp_path / "plain", seed=3, epochs=1, val_fraction=0.0)  # without validation there is no curve
    make_card([plain], name="small", out=other, data_root="nowhere")
    assert not (other / "curve.svg").exists()
    assert not (other / "twin").exists()
    assert "curve" not in read_card(other)
    assert set(json.loads((other / "manifest.json").read_text())["files"]) == {
        path.name for path in other.iterdir() if path.name != "manifest.json"
    }
    assert verify(other).comes_out_again


def test_an_array_of_a_card_is_checked_before_memory_is_taken(card: Path, tmp_path: Path) -> None:
    """Its maker makes its checksums, too."""
    other = tmp_path / "small"
    shutil.copytree(card, other)
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 10), }".ljust(117) + "\n"
    (other / "noise.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(BadFile, match=r"noise\.npy is damaged"):
        verify_noise(other)
    seal(other)
    with pytest.raises(BadFile, match="header for 40,000,000,000,000 bytes and holds 0"):
        verify_noise(other)
    np.save(other / "noise.npy", np.array([{}]), allow_pickle=True)
    seal(other)
    with pytest.raises(BadFile, match="not numbers, truth values or words"):
        verify_noise(other)


def test_the_tolerances() -> None:
    assert Verification("a", 0.1004, 0.1, 5, 10_000).comes_out_again
    assert not Verification("a", 0.1006, 0.1, 0, 10_000).comes_out_again
    assert not Verification("a", 0.1, 0.1, 6, 10_000).comes_out_again


def test_the_commands_make_the_same_recipes(card: Path, runs: dict[str, Path]) -> None:
    told = read_card(card)
    for command, kind in ((told["command"], "run"), (told["twin"]["command"], "twin")):
        program, verb, name, *rest = shlex.split(command)
        assert (program, verb, name) == ("pyro-bnn", "train", "mlp-mnist-mini")
        assert rest[::2] == ["--set"] * (len(rest) // 2)
        keys = [given.partition("=")[0] for given in rest[1::2]]
        assert len(set(keys)) == len(keys)
        assert "method.name" not in keys  # which `method=` says
        settings = parse_settings(rest[1::2])
        assert assemble(find_recipe(name).changed(settings)).recipe == assemble_of(runs[f"{kind}-3"])
    assert "method=map" in told["twin"]["command"]
    assert "optim" not in told["command"]


def assemble_of(folder: Path) -> Any:
    return pb.Recipe.from_toml((folder / "recipe.toml").read_text())


def test_a_card_shows_the_curve_of_every_seed(card: Path, runs: dict[str, Path]) -> None:
    picture = ElementTree.fromstring((card / "curve.svg").read_text())
    charts = [e for e in picture if e.tag.endswith("}svg")]
    assert len(charts) == 2
    for chart in charts:
        lines = [e for e in chart if e.get("class", "").startswith("line ")]
        assert [line.get("class") for line in lines] == ["line c0"] * 2 + ["line c1 dashed"] * 2
        assert all(line.get("d", "").count("L") == SMALL["epochs"] - 1 for line in lines)
    last = [json.loads((runs[f"run-{s}"] / "metrics.jsonl").read_text().splitlines()[-1]) for s in (3, 4)]
    end = 100 * sum(line["val_accuracy"] for line in last) / 2
    assert f"in the last epoch {end:.1f} %; of the deterministic twin" in "".join(charts[1].itertext())
    assert "![" in (card / "card.md").read_text()


def test_curves_by_members_and_without_validation() -> None:
    rows = [
        {"part": f"member-{m}", "epoch": e, "val_nll": 0.5 / e, "val_accuracy": None} for m in (1, 2) for e in (1, 2)
    ]
    text = learning_curves("a <name>", [rows])
    assert text is not None
    picture = ElementTree.fromstring(text)
    (chart,) = [e for e in picture if e.tag.endswith("}svg")]  # nobody measured the accuracy
    (low, high), (again_low, again_high) = [
        [float(v) for v in re.findall(r"[ML]([\d.]+),", e.get("d", ""))] for e in chart if e.get("class") == "line c0"
    ]
    assert (low, high) == (again_low, again_high)  # both members begin at their own first epoch
    assert low < high
    assert "1 seed, 2 members" in "".join(picture.itertext())
    assert "best 0.250, in the last epoch 0.250" in "".join(chart.itertext())
    assert learning_curves("none", [[{"epoch": 1, "val_nll": None}]]) is None


def test_text_and_table_show_the_numbers(card: Path) -> None:
    told = read_card(card)
    text = (card / "card.md").read_text()
    assert text == markdown(told)
    shipped = told["results"][0]["s_draws"]
    command = " ".join(told["command"].split())
    for shown in (f"{100 * shipped['accuracy']:.2f} %", f"{shipped['pred_nll']:.4f}", command, "3 (shipped)"):
        assert shown in text
    row, twin = readme_table([told]).splitlines()[2:4]
    assert row.startswith("| [`small`](pyro_bnn/weights/small/card.md), eta 0.1 |")
    assert twin.startswith("| ↳ its twin |")
    for line, mean in ((row, told["mean"]["s_draws"]), (twin, told["twin"]["mean"]["raw"])):
        assert f"{mean['pred_nll']:.4f}" in line
    for line, rows in ((row, told["results"]), (twin, told["twin"]["results"])):
        for score in ("entropy", "confidence"):
            assert f"{np.mean([r['ood']['Gaussian noise'][score] for r in rows]):.3f}" in line
    assert f"{told['mean']['scaled']['pred_nll']:.4f}" in row
    assert f"{told['differences']['both_scaled']['pred_nll']['mean']:+.4f}" in row


def test_a_card_of_one_run_needs_no_twin(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = make_card([runs["run-4"]], out=tmp_path / "one", num_samples=2, data_root="nowhere")
    told = read_card(folder)
    assert (told["name"], told["num_samples"], told["seeds"]) == ("mlp-mnist-mini", 2, [4])
    assert "twin" not in told
    assert "±" not in readme_table([told]).splitlines()[2]
    assert verify(folder).comes_out_again


def test_what_is_no_card_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    def expect(message: str, given: list[Path], twins: list[Path] | None = None) -> None:
        with pytest.raises(ValueError, match=message):
            make_card(given, twins=twins or [], out=tmp_path / "never", data_root="nowhere")
        assert not (tmp_path / "never").exists()

    expect("at least one run", [])
    expect(r"the seeds \[3, 3\]", [runs["run-3"], runs["run-3"]])
    expect("differs from .* in method", [runs["run-3"], runs["twin-4"]])
    expect("no twin of seed 3", [runs["run-3"]], [runs["twin-4"]])
    expect("is not deterministic: .*method=map", [runs["run-3"]], [runs["run-3"]])
    longer = run(tmp_path / "longer", seed=3, method="map", epochs=1)
    expect("other chances than .*: the posterior is 3 epochs against 1", [runs["run-3"]], [longer])
    part = run(tmp_path / "part", data_args={"train_size": 300, "test_size": 100}, epochs=1)
    expect("scored on 100 test rows: a card needs all", [part])


def test_regressions_have_no_card(tmp_path: Path) -> None:
    train("linear-regression", out=tmp_path / "line", progress=False, report=False, epochs=1, num_samples=2)
    with pytest.raises(ValueError, match="is a regression: cards are for classifiers"):
        make_card([tmp_path / "line"], out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_the_table_goes_between_the_markers(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(f"before\n\n{START}\nold\n{END}\n\nafter\n")
    assert main(["--readme", str(file)]) == 0
    lines = file.read_text().splitlines()
    assert lines[:3] == ["before", "", START]
    assert lines[-3:] == [END, "", "after"]
    assert "old" not in lines
    assert len(lines) == 6 + 2 + 2 * len(shipped_cards()) + 2  # a row each for posterior and twin, and what they say
    first = file.read_text()
    write_readme(file)
    assert file.read_text() == first
    file.write_text("nothing")
    with pytest.raises(ValueError, match="zoo:start"):
        write_readme(file)
    assert file.read_text() == "nothing"


# -- what is shipped -------------------------------------------------------------------------------------------------


def test_the_first_posterior_is_shipped_and_loads_by_name() -> None:
    assert "lenet5-mnist-mini" in shipped_cards()
    told = read_card("lenet5-mnist-mini")
    assert told["shipped"]["bytes"] < 250_000
    data = load_data("mnist-mini")
    p = pb.load("lenet5-mnist-mini").predict(data.test.x[:200], num_samples=10, seed=0)
    assert float((p.argmax(1) == data.test.y[:200]).float().mean()) > 0.95


@pytest.mark.parametrize("name", shipped_cards())
def test_shipped_cards_are_whole(name: str) -> None:
    told = read_card(name)
    assert told["name"] == name
    assert len(told["seeds"]) == len(told["results"]) == 3
    assert abs(told["shipped"]["pred_nll"] - told["shipped"]["unrounded_pred_nll"]) < 1e-4
    assert {"raw", "scaled"} <= set(told["differences"])
    assert load(name).info["recipe"] == told["recipe"]
    folder = Path(pb.__file__).parent / "weights" / name
    assert (folder / "card.md").read_text() == markdown(told)
    assert f"{name}: learning curves" in (folder / told["curve"]).read_text()


def test_the_twin_of_snapshots_is_as_many_networks(tmp_path: Path) -> None:
    chain = run(tmp_path / "chain", seed=3, epochs=1, method={"name": "snapshots", "members": 2})
    alone = run(tmp_path / "alone", seed=3, epochs=2, method="map")
    fair = run(tmp_path / "fair", seed=3, epochs=1, method={"name": "ensemble", "members": 2, "of": "map"})
    with pytest.raises(ValueError, match=r"other chances.*2 networks against 1"):
        make_card([chain], twins=[alone], out=tmp_path / "card", data_root="nowhere")
    told = read_card(make_card([chain], twins=[fair], out=tmp_path / "card", data_root="nowhere"))
    assert told["kind"] == "snapshots"
    assert told["unequal"] == []
    assert told["twin"]["results"][0]["raw"]["epistemic"] > 0  # a twin of two draws


@pytest.mark.parametrize("name", shipped_cards())
def test_shipped_posteriors_predict_noise_as_they_were_shipped(name: str) -> None:
    assert verify_noise(name) < NOISE_TOLERANCE
    shape = np.load(Path(pb.__file__).parent / "weights" / name / "noise.npy").shape
    assert shape == (16, len(read_card(name)["data"]["classes"]))


_FROM_DATA = ("model_args", "likelihood", "method")  # spelled out only when the recipe meets its data


@pytest.mark.parametrize("name", shipped_cards())
def test_the_commands_of_shipped_cards_make_their_recipes(name: str) -> None:
    told = read_card(name)
    twin = load(Path(pb.__file__).parent / "weights" / name / "twin").info["recipe"]
    for command, recipe in ((told["command"], told["recipe"]), (told["twin"]["command"], twin)):
        program, verb, given, *rest = shlex.split(command)
        assert (program, verb) == ("pyro-bnn", "train")
        made = find_recipe(given).changed(parse_settings(rest[1::2])).model_dump()
        recipe = pb.Recipe.build(recipe).model_dump()  # with the defaults of keys that are newer than the card
        assert {k: v for k, v in made.items() if k not in _FROM_DATA} == {
            k: v for k, v in recipe.items() if k not in _FROM_DATA
        }
        assert made["method"].items() <= recipe["method"].items() or "of" in made["method"]


OFFLINE = """
import socket, sys, time
import pyro, torch
def refuse(*_): raise OSError("no network here")
socket.socket.connect = socket.create_connection = refuse
import pyro_bnn as pb
began = time.perf_counter()
posterior = pb.load("lenet5-mnist")
seconds = time.perf_counter() - began
assert posterior.predict(torch.zeros(2, 1, 28, 28), num_samples=2).shape == (2, 10)
print(seconds)
"""


def test_a_posterior_loads_by_name_without_a_network_in_two_seconds(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2


def again(name: str) -> None:
    try:
        found = verify(name)
    except FileNotFoundError as error:
        pytest.skip(f"its data are not here: {error}")
    assert found.comes_out_again, found


@pytest.mark.parametrize("name", [n for n in shipped_cards() if read_card(n)["data"]["name"] == "mnist-mini"])
def test_shipped_cards_come_out_again(name: str) -> None:
    again(name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [n for n in shipped_cards() if read_card(n)["data"]["name"] != "mnist-mini"])
def test_shipped_cards_on_larger_data_come_out_again(name: str) -> None:
    again(name)


def test_the_readme_has_the_table_of_what_is_shipped() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    table = readme.split(START)[1].split(END)[0].strip()
    assert table == readme_table([read_card(name) for name in shipped_cards()]).strip()
