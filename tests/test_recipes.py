"""Every recipe of the catalogue is put together on data the test makes, and takes a step at a reduced size."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro.infer import SVI, TraceMeanField_ELBO

from pyro_bnn.assemble import Assembly, assemble
from pyro_bnn.inference import per_datum, scale_kl
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.recipe import Recipe, find_recipe, recipe_names
from pyro_bnn.registry import names
from pyro_bnn.runs.train import train

IMAGES = {"mnist": (10, 28, 1), "fashion-mnist": (10, 28, 1), "cifar10": (10, 32, 3), "cifar100": (100, 32, 3)}
TABLES = {
    "boston": 13,
    "concrete": 8,
    "energy": 8,
    "kin8nm": 8,
    "naval": 16,
    "power": 4,
    "protein": 9,
    "wine": 11,
    "yacht": 6,
}
SMALLER: dict[str, dict[str, Any]] = {
    "resnet20": {"model_args.width": 1},
    "resnet34": {"model_args.width": 1},
    "densenet121": {"model_args.growth": 2, "model_args.blocks": [1, 1, 1, 1]},
    "wide_resnet": {"model_args.depth": 10, "model_args.widen": 1},
    "vgg": {"model_args.width": 0.03125, "model_args.depth": 11},
    "cvnn": {"model_args.width": 2, "model_args.hidden": 4},
    "patch_transformer": {"model_args.width": 8, "model_args.depth": 1, "model_args.hidden": 8},
    "mlp": {"model_args.hidden": [4]},
}
ROWS = 130
"""Training rows: every class of a hundred, and some to validate."""


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a tiny set under every name."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name, (classes, side, channels) in IMAGES.items():
        shape = (side, side) if channels == 1 else (side, side, channels)
        np.savez(
            folder / f"{name}.npz",
            x_train=rng.integers(0, 255, (ROWS, *shape), dtype=np.uint8),
            y_train=np.arange(ROWS) % classes,
            x_test=rng.integers(0, 255, (20, *shape), dtype=np.uint8),
            y_test=np.arange(20) % classes,
        )
    for name, features in TABLES.items():
        split = np.where(np.arange(60) < 45, 1, 2)[None].repeat(2, 0)
        np.savez(folder / f"{name}.npz", x=rng.normal(size=(60, features)), y=rng.normal(size=60), split=split)
    return folder


def reduced(name: str, **settings: Any) -> Recipe:
    recipe = find_recipe(name)
    small = dict(SMALLER.get(recipe.model, {}))
    if recipe.model == "mlp" and not recipe.model_args.get("hidden"):
        small = {}  # a line stays one
    if recipe.data in IMAGES or recipe.data == "mnist-mini":
        small |= {"data_args": {}, "batch_size": 13, "val_fraction": 0.2}
    if recipe.data == "mnist-mini":
        small["data_args"] = {"train_size": 130, "test_size": 20}
    if recipe.data in TABLES:
        small["batch_size"] = 13
    return recipe.changed({**small, **settings})


def one_step(parts: Assembly) -> float:
    """One step of stock Pyro: captured steps would spend their time on being captured."""
    elbo = parts.elbo(parts.guide)
    elbo = TraceMeanField_ELBO() if isinstance(elbo, FlatMeanField_ELBO) else elbo
    optim: Any = parts.optimizer(parts.guide)
    optim.prepare(parts.recipe.epochs, 10)
    svi = SVI(parts.model, parts.guide, optim, elbo)
    x, y = parts.data.train.x[:13], parts.data.train.y[:13]
    with parts.layers(), per_datum(len(parts.data.train)), scale_kl(0.1):
        return float(svi.step(x, y))


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_put_together_and_takes_a_step(name: str, root: Path) -> None:
    parts = assemble(reduced(name), root)
    before = {n: p.detach().clone() for n, p in parts.guide.named_parameters()}
    assert math.isfinite(one_step(parts))
    assert any(not torch.equal(p, before[n]) for n, p in parts.guide.named_parameters())


def test_every_recipe_names_its_source_and_an_honest_budget() -> None:
    for name in recipe_names():
        recipe = find_recipe(name)
        assert len(recipe.description) > 20, name
        assert len(recipe.source) > 10, name
        assert recipe.budget == "cpu", name
        assert recipe.device == "cpu", name
        if recipe.paper:
            assert recipe.changed({"budget": "paper", "device": "cuda"}).budget == "paper"


def test_averaging_begins_at_the_same_part_of_either_budget() -> None:
    seen = 0
    for name in recipe_names():
        cpu = find_recipe(name)
        if "start" in cpu.method and cpu.paper:
            paper = cpu.changed({"budget": "paper"})
            assert paper.method["start"] / paper.epochs == cpu.method["start"] / cpu.epochs, name
            seen += 1
    assert seen


def test_descriptions_are_all_different() -> None:
    told = [find_recipe(name).description for name in recipe_names()]
    assert sorted({line for line in told if told.count(line) > 1}) == []


def test_the_catalogue_reaches_every_network_and_many_kinds() -> None:
    recipes = [find_recipe(name) for name in recipe_names()]
    assert {recipe.model for recipe in recipes} == set(names("models"))
    assert {recipe.method["name"] for recipe in recipes} <= set(names("methods"))


SYSTEMS: dict[str, tuple[str, str, str, Any]] = {  # what the literature trained: network, data, one key and its value
    "lenet5-mnist-thesis": ("lenet5", "mnist", "guide.init_rho", -10.0),
    "lenet5-cifar10-thesis": ("lenet5", "cifar10", "optim.scale.lr", 1e-3),
    "lenet5-mnist-ml": ("lenet5", "mnist", "method.name", "ml"),
    "lenet5-cifar10-ml": ("lenet5", "cifar10", "method.name", "ml"),
    "perceptron-and": ("perceptron", "and", "likelihood.link", "clamp"),
    "lenet5-cifar10-total": ("lenet5", "cifar10", "estimator.name", "total"),
    "lenet5-mnist-path": ("lenet5", "mnist", "estimator.name", "path"),
    "lenet5-cifar10-score": ("lenet5", "cifar10", "estimator.name", "score"),
    "lenet5-mnist-kl-early": ("lenet5", "mnist", "kl.lam", 0.5),
    "lenet5-cifar10-kl-late": ("lenet5", "cifar10", "kl.lam", 2.0),
    "lenet5-cifar10-kl-none": ("lenet5", "cifar10", "kl.lam", 0.0),
    "lenet5-cifar10-sgd": ("lenet5", "cifar10", "optim.scale.momentum", 0.9),
    "lenet5-cifar10-amsgrad": ("lenet5", "cifar10", "optim.loc.name", "amsgrad"),
    "lenet5-cifar10-adabound": ("lenet5", "cifar10", "optim.loc.name", "adabound"),
    "lenet5-cifar10-radam": ("lenet5", "cifar10", "optim.scale.name", "radam"),
    "lenet5-cifar10-yellowfin": ("lenet5", "cifar10", "optim.loc.name", "yellowfin"),
    "lenet5-mnist-adam-betas": ("lenet5", "mnist", "optim.loc.betas", [0.9, 0.5]),
    "lenet5-cifar10-alternating": ("lenet5", "cifar10", "optim.alternate", 2),
    "lenet5-cifar10-two-rates": ("lenet5", "cifar10", "optim.loc.lr", 1e-2),
    "lenet5-cifar10-rate-ratio": ("lenet5", "cifar10", "optim.scale.lr", 1e-4),
    "lenet5-cifar10-twin-plateau": ("lenet5", "cifar10", "schedule.name", "twin_plateau"),
    "lenet5-cifar10-initial-rho": ("lenet5", "cifar10", "guide.init_rho", -5.0),
    "linear-regression": ("mlp", "toy-line", "model_args.hidden", []),
    "resnet34-cifar10-adabayes": ("resnet34", "cifar10", "optim.loc.name", "adabayes"),
    "resnet34-cifar100-sgd": ("resnet34", "cifar100", "optim.loc.lr", 0.1),
    "densenet121-cifar10-adabayes-fp": ("densenet121", "cifar10", "optim.loc.lr_sgd", 0.1),
    "densenet121-cifar100-adamw": ("densenet121", "cifar100", "optim.loc.weight_decay", 0.05),
    "one-hidden-layer-mnist": ("one_hidden_layer", "mnist", "kl.name", "balanced"),
    "resnet20-cifar10-tempered": ("resnet20", "cifar10", "eta", 1e-3),
    "one-hidden-layer-toy-cubic": ("one_hidden_layer", "toy-cubic", "likelihood.noise", 1.0),
    "mlp-toy-cubic-lmc": ("mlp", "toy-cubic", "method.name", "lmc"),
    "lenet5-mnist-bbb": ("lenet5", "mnist", "prior", {"name": "normal", "scale": 1.0}),
    "lenet5-mnist-sgld": ("lenet5", "mnist", "method.name", "sgld"),
    "lenet5-mnist-hwa": ("lenet5", "mnist", "method.name", "hwa"),
    "lenet5-mnist-hwa-low-rank": ("lenet5", "mnist", "method.rank", 10),
    "vgg16-cifar10-hwa": ("vgg", "cifar10", "estimator.layers", "flipout"),
    "vgg16-cifar10-sgld": ("vgg", "cifar10", "method.name", "sgld"),
    "cvnn-cifar10-l2": ("cvnn", "cifar10", "prior.name", "l2_penalty"),
    "cvnn-cifar10-group-lasso-transposed": ("cvnn", "cifar10", "prior.groups", "outgoing"),
    "vgg19-cifar10-l1-usual": ("vgg", "cifar10", "prior.penalty", "l1"),
    "mlp-mnist-graves": ("mlp", "mnist", "prior.name", "fan_in"),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_systems_of_the_literature_are_in_the_catalogue(name: str) -> None:
    model, data, key, value = SYSTEMS[name]
    recipe = find_recipe(name)
    assert (recipe.model, recipe.data) == (model, data)
    found: Any = recipe.model_dump()
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_trains(name: str, root: Path, tmp_path: Path) -> None:
    recipe = reduced(name)
    settings: dict[str, Any] = {"epochs": 2, "num_samples": 2}
    if recipe.method["name"] in ("hwa", "low_rank"):
        settings |= {"method.cycle": 0.25, "method.rank": 2} if recipe.method["name"] == "low_rank" else {}
    if recipe.method["name"] in ("sgld", "lmc"):
        settings |= {"method.draws": 2, "epochs": 8}
    if recipe.method["name"] == "nuts":
        settings |= {"method.warmup": 5, "method.draws": 5}
    if recipe.method["name"] == "ensemble":
        settings |= {"method.members": 2}
    run = train(recipe, out=tmp_path / "run", data_root=root, progress=False, report=False, **settings)
    assert run.finished
    assert math.isfinite(run.results["test"]["s_draws"]["pred_nll"])


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_perceptron_learns_the_logical_and(seed: int) -> None:
    """All four rows under the mean prediction; of the seeds 0 to 24 all but one."""
    run = train("perceptron-and", seed=seed, progress=False)
    rows = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    p = run.posterior.predict(rows, 500, seed=0)[:, 1]
    assert (p > 0.5).tolist() == [False, False, False, True]
