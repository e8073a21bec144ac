"""Recipe -> run folder -> results, and back by one line."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.assemble import assemble, catalogue, resolve
from pyro_bnn.inference.svi import Callback, FitState
from pyro_bnn.recipe import Recipe
from pyro_bnn.runs.finished import open_run
from pyro_bnn.runs.loading import load, posterior_folder
from pyro_bnn.runs.train import train

SMALL: dict[str, Any] = {"epochs": 2, "data_args": {"train_size": 300, "test_size": 100}, "num_samples": 3}


def run_small(out: Path | None, **settings: Any) -> Any:
    return train("lenet5-mnist-mini", out=out, progress=False, **{**SMALL, "report": False, **settings})


def test_a_run_folder_holds_everything(tmp_path: Path) -> None:
    run = run_small(tmp_path / "run", report=True)
    held = {str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert {
        "recipe.toml",
        "metrics.jsonl",
        "checkpoint/epoch-1/state.safetensors",
        "checkpoint/epoch-2/state.json",
        "manifest.json",
        "posterior.safetensors",
        "posterior.json",
        "results.json",
        "posterior.nc",
        "report.html",
    } <= held
    assert not [name for name in held if name.endswith(".tmp") or ".partial" in name]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    for line in lines:
        assert line["elbo"] == -(line["nll"] + line["kl"])
        assert line["kl_weight"] == pytest.approx(0.1)
        assert set(line["learning_rates"]) >= {"loc", "scale"}
        assert 0 < line["val_nll"] < 10
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["test"].keys() == {"plug_in", "one_draw", "s_draws"}
    assert results["test"] == run.results["test"]


def test_the_written_recipe_is_resolved_and_gives_the_same_run(tmp_path: Path) -> None:
    first = run_small(tmp_path / "a")
    held = Recipe.from_toml((tmp_path / "a" / "recipe.toml").read_text())
    assert held.likelihood == {"name": "categorical"}
    assert held.model_args == {"in_channels": 1, "num_classes": 10, "image_size": 28}
    again = train(held, out=tmp_path / "b", progress=False, report=False)
    assert again.results["test"] == first.results["test"]


def test_a_loaded_posterior_predicts_as_the_run_did(tmp_path: Path) -> None:
    run = run_small(tmp_path / "run")
    x = pb.load_data("mnist-mini").test.x[:20]
    loaded = pb.load(tmp_path / "run")
    torch.testing.assert_close(
        loaded.predict(x, num_samples=4, seed=3), run.posterior.predict(x, num_samples=4, seed=3), rtol=0, atol=0
    )


def test_a_posterior_is_a_folder_or_a_shipped_name(tmp_path: Path) -> None:
    assert posterior_folder(tmp_path) == tmp_path
    assert (posterior_folder("lenet5-mnist-mini") / "posterior.json").is_file()
    with pytest.raises(FileNotFoundError, match=r"no run folder 'lenet9' .* lenet5-mnist-mini"):
        posterior_folder("lenet9")


class _Stop(Callback):
    def __init__(self, epoch: int) -> None:
        self.at = epoch

    def epoch(self, state: FitState) -> None:
        if state.epoch == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["adam", "adabound", "adabayes"])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path: Path, name: str) -> None:
    settings = {"optim.loc.name": name, "epochs": 3}
    whole = run_small(tmp_path / "whole", **settings)
    cut = train(
        "lenet5-mnist-mini", out=tmp_path / "cut", progress=False, callbacks=[_Stop(1)], **{**SMALL, **settings}
    )
    assert not cut.finished
    assert (tmp_path / "cut" / "posterior.safetensors").is_file()
    assert not (tmp_path / "cut" / "results.json").exists()
    pyro.clear_param_store()
    resumed = run_small(tmp_path / "cut", **settings)
    assert resumed.results["test"] == whole.results["test"]
    for key in ("nll", "kl", "loss", "val_nll"):
        assert [line[key] for line in resumed.history] == [line[key] for line in whole.history]


def test_a_finished_run_is_returned_and_another_recipe_is_refused(tmp_path: Path) -> None:
    run = run_small(tmp_path / "run")
    again = run_small(tmp_path / "run")
    assert again.results == run.results
    with pytest.raises(ValueError, match=r"another recipe .*epochs: 2 there, 3 now.*choose another folder"):
        run_small(tmp_path / "run", epochs=3)
    with pytest.raises(ValueError, match="holds a run already"):
        run_small(tmp_path / "run", resume=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "lenet6"}, "unknown model 'lenet6' .*choose one of"),
        ({"data": "mnist-minor"}, "mnist-mini"),
        ({"data": "no/such.npz"}, "no data file"),
        ({"prior.name": "gauss"}, "unknown prior 'gauss'; choose one of"),
        ({"guide.name": "full"}, "unknown guide"),
        ({"guide.init_rho": "low"}, "init_rho"),
        ({"optim.loc.name": "adamm"}, "unknown optimizer 'adamm'"),
        ({"optim.loc.lr": -1e-3}, r"optim.loc.lr=-0.001 is not a learning rate"),
        ({"optim.loc.momentun": 0.5}, "momentun"),
        ({"schedule.name": "cosin"}, "unknown schedule 'cosin'"),
        ({"estimator.name": "exact"}, "unknown estimator"),
        ({"kl": "unifrom"}, "uniform"),
        ({"batch_size": 400}, "batch_size=400 is more than the 270 training rows"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"eta": -1}, "eta=-1"),
        ({"eta": 0.1, "temperature": 0.5}, "not both"),
        ({"epochz": 3}, "unknown recipe key 'epochz' \\(did you mean 'epochs'"),
        ({"val_fraction": 1.0}, "val_fraction=1.0"),
        ({"patience": 3, "val_fraction": 0.0}, "patience=3 needs validation rows"),
    ],
)
def test_bad_settings_are_named_and_nothing_is_written(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        run_small(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown recipe 'lenet5-mnist-min' \(did you mean 'lenet5-mnist-mini'"):
        train("lenet5-mnist-min")


def test_loading_what_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="no run folder 'nothing'"):
        load("nothing")


def test_loading_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no posterior"):
        load(tmp_path)


def test_every_recipe_of_the_catalogue_is_valid() -> None:
    names = catalogue()["recipes"]
    assert "lenet5-mnist-mini" in names
    for name in names:
        assert pb.Recipe.from_toml(
            (Path(pb.__file__).parent / "recipes" / f"{name}.toml").read_text(), name
        ).description


def test_the_seed_decides_the_start() -> None:
    a, b, c = (assemble(pb.Recipe.build({"model": "lenet5", "data": "mnist-mini", "seed": s})) for s in (0, 0, 1))
    site = "net.fc1.weight"
    torch.testing.assert_close(a.guide.site(site).loc, b.guide.site(site).loc, rtol=0, atol=0)
    assert not torch.equal(a.guide.site(site).loc, c.guide.site(site).loc)


OPTIMIZERS = {
    "adam": 2e-3,
    "amsgrad": 2e-3,
    "adamw": 2e-3,
    "radam": 2e-3,
    "sgd": 0.05,
    "adagrad": 1e-2,
    "rmsprop": 1e-3,
    "adabound": 2e-3,
    "amsbound": 2e-3,
    "adabayes": 2e-3,
    "adabayes_fp": 2e-3,
    "yellowfin": 1e-2,
}


def test_the_table_below_covers_every_optimizer() -> None:
    assert set(catalogue()["optimizers"]) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_trains_by_name(name: str) -> None:
    settings = {
        "optim.loc.name": name,
        "optim.loc.lr": OPTIMIZERS[name],
        "eta": 1e-3,
        "epochs": 25 if name == "yellowfin" else 4,  # its learning rate takes 200 steps to warm up
        "data_args": {"train_size": 1000, "test_size": 500},
    }
    run = run_small(None, **settings)
    assert all(abs(line["loss"]) < 1e3 for line in run.history)
    assert run.results["test"]["s_draws"]["accuracy"] > 0.2  # chance is 0.1, its standard error 0.013


@pytest.mark.parametrize("name", sorted(set(catalogue()["schedules"])))
def test_every_schedule_trains_by_name(name: str) -> None:
    run = run_small(None, schedule={"name": name, **({"every": 1} if name == "step" else {})})
    assert all("loc" in line["learning_rates"] for line in run.history)


@pytest.mark.parametrize("estimator", sorted(set(catalogue()["estimators"])))
def test_every_estimator_trains_by_name(estimator: str) -> None:
    run = run_small(None, **{"estimator.name": estimator, "epochs": 1})
    assert all(abs(line["loss"]) < 1e4 for line in run.history)


@pytest.mark.filterwarnings("ignore:local_reparameterization.*several positions:UserWarning")
@pytest.mark.parametrize("layers", sorted(set(catalogue()["layers"])))
def test_layers_by_name(layers: str) -> None:
    run = run_small(None, **{"estimator.layers": layers, "epochs": 6})
    plain = run_small(None, epochs=6)
    assert run.history[-1]["nll"] < 0.6 * run.history[0]["nll"]
    assert (run.history[-1]["nll"] == plain.history[-1]["nll"]) == (layers == "plain")


@pytest.mark.parametrize("kl", sorted(set(catalogue()["kl"])))
def test_every_kl_weight_trains_by_name(kl: str) -> None:
    numbers = {
        "geometric": {"lam": 2.0},
        "annealed": {"epochs": 2},
        "tempered": {"eta": 0.5},
        "balanced": {"tau": 0.01, "n_units": 226},
    }
    run = run_small(None, kl={"name": kl, **numbers.get(kl, {})})
    weight = run.history[0]["kl_weight"]
    expected = {"annealed": 0.0, "tempered": 0.05, "balanced": 0.1 * 0.01 * 270 / 226}.get(kl, 0.1)
    assert weight == pytest.approx(expected)


def test_a_cold_posterior_by_name() -> None:
    run = run_small(None, **{"temperature": 0.1, "eta": 1.0})
    assert run.posterior.info["temperature"] == 0.1
    with pytest.raises(ValueError, match="a loss of its own"):
        run_small(None, **{"temperature": 0.1, "eta": 1.0, "estimator.name": "path"})


def test_freezing_turns_and_clipping_by_name() -> None:
    recipe = pb.Recipe.build({"model": "lenet5", "data": "mnist-mini", "seed": 0})
    start = assemble(recipe).guide.site("net.fc1.weight")
    frozen = run_small(None, **{"optim.frozen": ["scale"], "optim.loc.clip_norm": 1.0, "guide": "mean_field"})
    after = frozen.posterior.guide.site("net.fc1.weight")
    torch.testing.assert_close(after.scale, start.scale, rtol=0, atol=0)
    assert not torch.equal(after.loc, start.loc)
    turns = run_small(None, **{"optim.alternate": 1, "epochs": 1, "guide": "mean_field"})
    torch.testing.assert_close(turns.posterior.guide.site("net.fc1.weight").scale, start.scale, rtol=0, atol=0)


def test_a_random_last_layer_by_name(tmp_path: Path) -> None:
    run = run_small(tmp_path / "run", **{"random": ["fc3.*"], "guide": "mean_field", "epochs": 1})
    assert run.posterior.model.random_names == ("fc3.weight", "fc3.bias")
    assert sum(p.numel() for p in run.posterior.guide.parameters()) == 2 * (84 * 10 + 10)
    x = torch.rand(3, 1, 28, 28)
    again = pb.load(tmp_path / "run").predict(x, num_samples=3, seed=0)
    assert torch.equal(again, run.posterior.predict(x, num_samples=3, seed=0))
    with pytest.raises(ValueError, match=r"random: 'fc9\.\*' matches no parameter"):
        run_small(None, random=["fc9.*"])


def test_regression_from_a_file(tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 2))
    y = 3 * x[:, 0] + 10 + 0.1 * rng.standard_normal(400)
    np.savez(tmp_path / "line.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    recipe = {"model": "mlp", "model_args": {"hidden": [20]}, "data": str(tmp_path / "line.npz"), "epochs": 60}
    values = {**recipe, "batch_size": 30, "num_samples": 20, "optim": {"loc": {"name": "adam", "lr": 0.01}}}
    run = train(pb.Recipe.build(values), out=tmp_path / "run", progress=False)
    assert run.results["test"]["s_draws"]["rmse"] < 0.5  # in the units of y, whose sd is 1.7
    prediction = pb.load(tmp_path / "run").predict(torch.zeros(1, 2), num_samples=20)
    assert abs(float(prediction.mean[0]) - 10) < 1
    assert "coverage" in (tmp_path / "run" / "report.html").read_text().lower()


@pytest.mark.parametrize("name", ["poisson", "negative_binomial", "student_t"])
def test_likelihoods_of_counts_and_of_heavy_tails_by_name(name: str, tmp_path: Path) -> None:
    """From a file to the report and back; counts are not standardised, and the finished run says the same again."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 2))
    y = rng.poisson(np.exp(1 + x[:, 0])) if name != "student_t" else 50 + 10 * x[:, 0] + rng.standard_t(3, 400)
    arrays = {"x_train": x[:300], "y_train": y[:300], "x_test": x[300:], "y_test": y[300:]}
    np.savez(tmp_path / "rows.npz", **arrays)
    recipe = {"model": "mlp", "model_args": {"hidden": [8]}, "data": str(tmp_path / "rows.npz"), "epochs": 15}
    values = {**recipe, "batch_size": 30, "num_samples": 5, "optim": {"loc": {"name": "adam", "lr": 0.02}}}
    values |= {"likelihood": {"name": name}, "data_args": {"task": "regression"}}
    run = train(pb.Recipe.build(values), out=tmp_path / "run", progress=False)
    posterior = pb.load(tmp_path / "run")
    table = posterior.evaluate(x[300:], y[300:], 5)["s_draws"]
    assert table["pred_nll"] == pytest.approx(run.results["test"]["s_draws"]["pred_nll"], rel=1e-4)
    assert 0.75 < table["coverage_0.9"] <= 1  # of 100 rows, five standard errors
    at_zero = posterior.predict(np.zeros((1, 2)), num_samples=20)
    assert float(at_zero.mean[0]) == pytest.approx(50 if name == "student_t" else math.e, rel=0.35)  # type: ignore[union-attr]
    again = open_run(tmp_path / "run")
    assert (again.data.y_standardiser is None) == (name != "student_t")
    assert torch.allclose(again.posterior.raw_targets(again.data.test.y).double(), torch.from_numpy(y[300:]).double())
    assert "coverage" in (tmp_path / "run" / "report.html").read_text().lower()


def test_likelihoods_that_do_not_fit_the_data_are_refused(tmp_path: Path) -> None:
    for name in ("poisson", "student_t"):
        with pytest.raises(ValueError, match=rf"likelihood '{name}' is for .* 'mnist-mini' are for classification"):
            assemble(pb.Recipe.build({"model": "mlp", "data": "mnist-mini", "likelihood": {"name": name}}))
    values = {"model": "mlp", "data": "toy-cubic", "likelihood": {"name": "categorical"}, "batch_size": 5}
    with pytest.raises(ValueError, match="likelihood 'categorical' is for classification"):
        assemble(pb.Recipe.build(values))
    values |= {"likelihood": {"name": "poisson"}, "data_args": {"standardise": True}}
    with pytest.raises(ValueError, match="counts are never standardised"):
        assemble(pb.Recipe.build(values))
    with pytest.raises(ValueError, match="standardise is 'y'; allowed are"):
        assemble(pb.Recipe.build({**values, "data_args": {"standardise": "y"}}))


def test_a_heteroscedastic_network_for_images_has_an_output_for_mean_and_deviation() -> None:
    """`resolve` asks the likelihood, whatever the network calls its outputs."""
    data = assemble(pb.Recipe.build({"model": "lenet5", "data": "mnist-mini"})).data
    real = replace(data, task="regression", num_classes=None, train=replace(data.train, y=data.train.y.float()))
    values = {"model": "lenet5", "data": "mnist-mini", "likelihood": {"name": "heteroscedastic_gaussian"}}
    assert resolve(pb.Recipe.build(values), real).model_args["num_classes"] == 2


def _take_interrupts() -> None:
    """Undo what a shell does to background jobs, which start with interrupts ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_leaves_a_whole_folder_and_the_command_that_goes_on(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "pyro_bnn", "train", "lenet5-mnist-mini", "--out", str(run)]
    settings = ["--set", "epochs=1000", "--set", "data_args.train_size=300"]
    process = subprocess.Popen(
        command + settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_take_interrupts,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "checkpoint" / "epoch-1" / "manifest.json").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    number = getattr(signal, name)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert f"go on with: pyro-bnn train {run / 'recipe.toml'} --out {run} --resume" in out
    assert "Traceback" not in err
    pb.load(tmp_path / "run").predict(torch.zeros(1, 1, 28, 28), num_samples=1)
    assert not list((tmp_path / "run").rglob("*.tmp"))


@pytest.mark.parametrize(("weight", "eta"), [({"name": "tempered", "eta": 0.5}, 0.5), ("geometric", 0.0)])
def test_a_tempering_by_the_kl_s_weight_is_known_to_the_posterior(weight: Any, eta: float) -> None:
    """`eta` of a recipe is not the only key that tempers: LOO of what the others tempered is not defined either."""
    given = weight if isinstance(weight, dict) else {"name": weight, "lam": 0}
    run = train("mlp-toy-cubic", progress=False, kl=given, epochs=1, num_samples=2)
    assert run.posterior.info["eta"] == run.posterior.guide.fitted.eta == run.results["eta"] == eta
