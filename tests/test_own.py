"""What a user brings is named in a recipe like anything else: trained, resumed, evaluated, loaded, predicted with."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import pyro_bnn as pb
from pyro_bnn.cli import app, main
from pyro_bnn.recipe import Recipe
from pyro_bnn.runs.finished import compare, report
from pyro_bnn.runs.lr_range import lr_range

SOURCE = """
import pyro
import pyro.distributions as dist
import torch
from torch import nn

from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models.priors import Prior
from pyro_bnn.optim import Adam


class Net(nn.Module):
    def __init__(self, width=4, in_features=1):
        super().__init__()
        self.config = {"width": width, "in_features": in_features}
        self.layers = nn.Sequential(nn.Linear(in_features, width), nn.Tanh(), nn.Linear(width, 1))

    @staticmethod
    def sized_for(input_shape, outputs):
        return {"in_features": input_shape[0]}

    def forward(self, x):
        return self.layers(x)


class Bare(nn.Linear):
    pass


class Wide(Prior):
    def __call__(self, name, module, parameter):
        return dist.Normal(parameter.new_zeros(()), 3.0).expand(parameter.shape).to_event(parameter.dim())

    def spec(self):
        return {"name": "Wide"}


class Line:
    def __init__(self, num_data, spread=1.0):
        self.num_data, self.spread = num_data, spread

    def __call__(self, x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[-1]), self.spread).to_event(1))
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x))):
            return pyro.sample("obs", dist.Normal(x @ w, 0.5), obs=y if y is None else y.reshape(-1))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package outside of this one."""
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_package"
    sys.modules.pop("own_package", None)


def recipe(**values: Any) -> Recipe:
    common = {"name": "own", "data": "toy-line", "epochs": 2, "batch_size": 10, "num_samples": 4, "val_fraction": 0.2}
    return Recipe.build({**common, **values})


@pytest.mark.parametrize("method", ["svi", "map", "hwa", "sgld"])
def test_a_network_and_a_prior_of_ones_own(own: str, tmp_path: Path, method: str) -> None:
    named = recipe(model=f"{own}:Net", model_args={"width": 3}, prior=f"{own}:Wide", method=method)
    run = pb.train(named, out=tmp_path / "run", progress=False, report=False)
    assert run.recipe.model_args == {"width": 3, "in_features": 1}
    again = pb.train(named, out=tmp_path / "run", progress=False, report=False)  # finished: read, not trained
    assert again.results == run.results
    with pytest.raises(ValueError, match="trust="):
        pb.load(tmp_path / "run")
    x = torch.linspace(-1, 1, 5)[:, None]
    loaded = pb.load(tmp_path / "run", trust=[own])
    torch.testing.assert_close(loaded.predict(x, 4, seed=0).mean, run.posterior.predict(x, 4, seed=0).mean)


@pytest.mark.parametrize(
    "method", ["svi", "map", "sgld", "low_rank", {"name": "nuts", "chains": 2, "warmup": 5, "draws": 4}]
)
def test_a_program_of_ones_own(own: str, tmp_path: Path, method: Any) -> None:
    named = recipe(program=f"{own}:Line", program_args={"spread": 2.0}, method=method, epochs=4)
    run = pb.train(named, out=tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "report.html").is_file()
    again = pb.train(named, out=tmp_path / "run", progress=False)
    assert again.results["test"] == run.results["test"]
    x = torch.linspace(-1, 1, 5)[:, None]
    loaded = pb.load(tmp_path / "run", trust=[own])
    torch.testing.assert_close(loaded.predict(x, 4, seed=0).mean, run.posterior.predict(x, 4, seed=0).mean)
    with pytest.raises(ValueError, match="trust="):
        pb.load(tmp_path / "run")


def test_a_network_that_does_not_say_how_it_was_built_is_built_as_its_recipe_says(own: str, tmp_path: Path) -> None:
    named = recipe(model=f"{own}:Bare", model_args={"in_features": 1, "out_features": 1})
    run = pb.train(named, out=tmp_path / "run", progress=False, report=False)
    assert json.loads((tmp_path / "run" / "posterior.json").read_text())["model"] is None
    x = torch.linspace(-1, 1, 5)[:, None]
    loaded = pb.load(tmp_path / "run", trust=[own])
    torch.testing.assert_close(loaded.predict(x, 4, seed=0).mean, run.posterior.predict(x, 4, seed=0).mean)
    with pytest.raises(ValueError, match="trust="):
        pb.load(tmp_path / "run")


def test_an_argument_of_the_network_may_be_called_name() -> None:
    with pytest.raises(ValueError, match=r"model 'mlp' with \{.*'name': 'perceptron'\}"):
        pb.train(recipe(model="mlp", model_args={"name": "perceptron"}), progress=False)


def test_a_likelihood_for_other_data_says_what_decides() -> None:
    with pytest.raises(ValueError, match=r"is for classification and data 'toy-line' are for regression: .*`task`"):
        pb.train(recipe(model="mlp", model_args={"hidden": [2]}, likelihood="categorical"), progress=False)


def test_the_command_takes_them(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, other = str(tmp_path / "run"), str(tmp_path / "other")
    command = ["train", "mlp-toy-cubic", "--set", f"model={own}:Net", "--set", "model_args={width = 3}"]
    small = [word for s in ("epochs=1", "num_samples=3") for word in ("--set", s)]
    for out, seed in ((folder, 0), (other, 1)):
        done = CliRunner().invoke(app, [*command, *small, "--set", f"seed={seed}", "--out", out])
        assert done.exit_code == 0, done.output
    assert main(["evaluate", folder]) == 2
    assert f": pyro-bnn --trust {own} evaluate {folder}\n" in capsys.readouterr().err
    scored = CliRunner().invoke(app, ["--trust", own, "evaluate", folder, "--json"])
    assert scored.exit_code == 0, scored.output
    held = json.loads((tmp_path / "run" / "results.json").read_text())
    assert json.loads(scored.output)["test"] == held["test"]
    for verb in (["report", folder], ["compare", folder, other]):
        done = CliRunner().invoke(app, ["--trust", own, *verb])
        assert done.exit_code == 0, done.output
    with pytest.raises(ValueError, match="trust="):
        report(folder)
    with pytest.raises(ValueError, match="trust="):
        compare([folder, other])


def test_the_range_test_takes_layers_points_and_augmentation() -> None:
    settings = {"estimator": {"name": "analytic", "layers": "flipout"}, "batch_size": 50}
    assert lr_range("lenet5-mnist-mini", num_steps=4, **settings).lrs
    assert lr_range("lenet5-mnist-mini", num_steps=4, method="map", batch_size=50).lrs
    low_rank = {"guide": {"name": "low_rank", "rank": 2}, "batch_size": 50}
    assert lr_range("lenet5-mnist-mini", num_steps=4, **low_rank).lrs


def test_a_recipe_names_a_network_or_a_program() -> None:
    with pytest.raises(ValueError, match="one of them"):
        recipe()
    with pytest.raises(ValueError, match="one of them"):
        recipe(model="mlp", program="a:b")
    with pytest.raises(ValueError, match="no module 'not_there'"):
        pb.train(recipe(model="not_there:Net"), progress=False)


def test_the_old_key_works_and_says_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="'posterior' is called 'method' now"):
        old = recipe(model="mlp", posterior="map")
    assert old.method == {"name": "map"}
    with pytest.warns(DeprecationWarning, match="'method' now"):
        assert recipe(model="mlp").changed({"posterior.name": "ml"}).method["name"] == "ml"
    saved = {**old.model_dump(exclude={"method"}), "posterior": {"name": "swa"}}
    assert Recipe.from_saved(saved).method["name"] == "swa"
