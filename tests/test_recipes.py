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
from pyro_bnn.recipe import Recipe, find_recipe, recipe_names, variant_names
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
    "frn_resnet20": {"model_args.width": 1},
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


ALL = [(name, variant) for name in recipe_names() for variant in (None, *variant_names(name))]


def reduced(name: str, variant: str | None, **settings: Any) -> Recipe:
    recipe = find_recipe(name, variant)
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
def test_every_recipe_and_its_variants_are_put_together_and_take_a_step(name: str, root: Path) -> None:
    for variant in (None, *variant_names(name)):
        _takes_a_step(assemble(reduced(name, variant), root))


def _takes_a_step(parts: Assembly) -> None:
    before = {n: p.detach().clone() for n, p in parts.guide.named_parameters()}
    assert math.isfinite(one_step(parts))
    assert any(not torch.equal(p, before[n]) for n, p in parts.guide.named_parameters())


def test_every_recipe_names_its_source_and_an_honest_budget() -> None:
    for name, variant in ALL:
        recipe = find_recipe(name, variant)
        assert len(recipe.description) > 20, name
        assert len(recipe.source) > 10, name
        assert recipe.budget == "cpu", name
        assert recipe.device == "cpu", name
        if recipe.paper:
            assert recipe.changed({"budget": "paper", "device": "cuda"}).budget == "paper"


def test_averaging_begins_at_the_same_part_of_either_budget() -> None:
    seen = 0
    for name, variant in ALL:
        cpu = find_recipe(name, variant)
        if "start" in cpu.method and cpu.paper:
            paper = cpu.changed({"budget": "paper"})
            assert paper.method["start"] / paper.epochs == cpu.method["start"] / cpu.epochs, name
            seen += 1
    assert seen


def test_descriptions_and_names_are_all_different() -> None:
    recipes = [find_recipe(name, variant) for name, variant in ALL]
    for key in ("description", "name"):
        said = [getattr(recipe, key) for recipe in recipes]
        assert sorted({line for line in said if said.count(line) > 1}) == []


def test_the_catalogue_is_one_that_a_person_reads() -> None:
    assert len(recipe_names()) <= 45


FORMERLY = {
    "lenet5-cifar10-adabound": ("lenet5-cifar10-thesis", "adabound"),
    "lenet5-mnist-kl-none": ("lenet5-mnist-thesis", "kl-none"),
    "lenet5-mnist-hwa": ("lenet5-mnist-bbb", "hwa"),
    "lenet5-mnist-dropout": ("lenet5-mnist", "dropout"),
    "densenet121-cifar100-adabayes": ("densenet121-cifar100-sgd", "adabayes"),
    "vgg19-cifar10-group-lasso-transposed-usual": ("vgg19-cifar10-l2", "group-lasso-transposed-usual"),
    "mlp-toy-cubic-hmc": ("mlp-toy-cubic", "hmc"),
    "uci-boston": ("uci", "boston"),
}


@pytest.mark.parametrize("old", FORMERLY)
def test_what_was_a_recipe_of_its_own_works_for_one_version(old: str) -> None:
    name, variant = FORMERLY[old]
    with pytest.warns(DeprecationWarning, match=f"a variant now: '{name}', variant='{variant}'"):
        assert find_recipe(old) == find_recipe(name, variant)
    with pytest.warns(DeprecationWarning, match="a variant now"):
        assert Recipe.from_toml(f'base = "{old}"\nepochs = 3').epochs == 3


def test_the_catalogue_reaches_every_network_and_many_kinds() -> None:
    recipes = [find_recipe(name, variant) for name, variant in ALL]
    assert {recipe.model for recipe in recipes} == set(names("models"))
    assert {recipe.method["name"] for recipe in recipes} <= set(names("methods"))


SYSTEMS: dict[tuple[str, str | None], tuple[str, str, str, Any]] = {
    # what the literature trained: network, data, one key and its value
    ("lenet5-mnist-thesis", None): ("lenet5", "mnist", "guide.init_rho", -10.0),
    ("lenet5-cifar10-thesis", None): ("lenet5", "cifar10", "optim.scale.lr", 1e-3),
    ("lenet5-mnist-thesis", "ml"): ("lenet5", "mnist", "method.name", "ml"),
    ("lenet5-cifar10-thesis", "ml"): ("lenet5", "cifar10", "method.name", "ml"),
    ("perceptron-and", None): ("perceptron", "and", "likelihood.link", "clamp"),
    ("lenet5-cifar10-thesis", "total"): ("lenet5", "cifar10", "estimator.name", "total"),
    ("lenet5-mnist-thesis", "path"): ("lenet5", "mnist", "estimator.name", "path"),
    ("lenet5-cifar10-thesis", "score"): ("lenet5", "cifar10", "estimator.name", "score"),
    ("lenet5-mnist-thesis", "kl-early"): ("lenet5", "mnist", "kl.lam", 0.5),
    ("lenet5-cifar10-thesis", "kl-late"): ("lenet5", "cifar10", "kl.lam", 2.0),
    ("lenet5-cifar10-thesis", "kl-none"): ("lenet5", "cifar10", "kl.lam", 0.0),
    ("lenet5-cifar10-thesis", "sgd"): ("lenet5", "cifar10", "optim.scale.momentum", 0.9),
    ("lenet5-cifar10-thesis", "amsgrad"): ("lenet5", "cifar10", "optim.loc.name", "amsgrad"),
    ("lenet5-cifar10-thesis", "adabound"): ("lenet5", "cifar10", "optim.loc.name", "adabound"),
    ("lenet5-cifar10-thesis", "radam"): ("lenet5", "cifar10", "optim.scale.name", "radam"),
    ("lenet5-cifar10-thesis", "yellowfin"): ("lenet5", "cifar10", "optim.loc.name", "yellowfin"),
    ("lenet5-mnist-thesis", "adam-betas"): ("lenet5", "mnist", "optim.loc.betas", [0.9, 0.5]),
    ("lenet5-cifar10-thesis", "alternating"): ("lenet5", "cifar10", "optim.alternate", 2),
    ("lenet5-cifar10-thesis", "two-rates"): ("lenet5", "cifar10", "optim.loc.lr", 1e-2),
    ("lenet5-cifar10-thesis", "rate-ratio"): ("lenet5", "cifar10", "optim.scale.lr", 1e-4),
    ("lenet5-cifar10-thesis", "twin-plateau"): ("lenet5", "cifar10", "schedule.name", "twin_plateau"),
    ("lenet5-cifar10-thesis", "initial-rho"): ("lenet5", "cifar10", "guide.init_rho", -5.0),
    ("linear-regression", None): ("mlp", "toy-line", "model_args.hidden", []),
    ("resnet34-cifar10-sgd", "adabayes"): ("resnet34", "cifar10", "optim.loc.name", "adabayes"),
    ("resnet34-cifar100-sgd", None): ("resnet34", "cifar100", "optim.loc.lr", 0.1),
    ("densenet121-cifar10-sgd", "adabayes-fp"): ("densenet121", "cifar10", "optim.loc.lr_sgd", 0.1),
    ("densenet121-cifar100-sgd", "adamw"): ("densenet121", "cifar100", "optim.loc.weight_decay", 0.05),
    ("one-hidden-layer-mnist", None): ("one_hidden_layer", "mnist", "kl.name", "balanced"),
    ("resnet20-cifar10-tempered", None): ("resnet20", "cifar10", "eta", 1e-3),
    ("one-hidden-layer-toy-cubic", None): ("one_hidden_layer", "toy-cubic", "likelihood.noise", 1.0),
    ("mlp-toy-cubic", "lmc"): ("mlp", "toy-cubic", "method.name", "lmc"),
    ("lenet5-mnist-bbb", None): ("lenet5", "mnist", "prior", {"name": "normal", "scale": 1.0}),
    ("lenet5-mnist-bbb", "sgld"): ("lenet5", "mnist", "method.name", "sgld"),
    ("lenet5-mnist-bbb", "hwa"): ("lenet5", "mnist", "method.name", "hwa"),
    ("lenet5-mnist-bbb", "hwa-low-rank"): ("lenet5", "mnist", "method.rank", 10),
    ("vgg16-cifar10-bbb", "hwa"): ("vgg", "cifar10", "estimator.layers", "flipout"),
    ("vgg16-cifar10-bbb", "sgld"): ("vgg", "cifar10", "method.name", "sgld"),
    ("cvnn-cifar10-l2", None): ("cvnn", "cifar10", "prior.name", "l2_penalty"),
    ("cvnn-cifar10-l2", "group-lasso-transposed"): ("cvnn", "cifar10", "prior.groups", "outgoing"),
    ("vgg19-cifar10-l2", "l1-usual"): ("vgg", "cifar10", "prior.penalty", "l1"),
    ("mlp-mnist", "graves"): ("mlp", "mnist", "prior.name", "fan_in"),
    ("lenet5-cifar10-thesis", "kl-0.97"): ("lenet5", "cifar10", "kl.lam", 0.97),
    ("vgg16-cifar10-bbb", "hwa-low-rank"): ("vgg", "cifar10", "method.rank", 5),
    ("resnet20-cifar10-tempered", "balanced"): ("resnet20", "cifar10", "kl.name", "balanced"),
    ("uci", "yacht"): ("mlp", "yacht", "likelihood.name", "learned_gaussian"),
}


@pytest.mark.parametrize(("name", "variant"), SYSTEMS)
def test_the_systems_of_the_literature_are_in_the_catalogue(name: str, variant: str | None) -> None:
    model, data, key, value = SYSTEMS[name, variant]
    recipe = find_recipe(name, variant)
    assert (recipe.model, recipe.data) == (model, data)
    found: Any = recipe.model_dump()
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "variant"), ALL)
def test_every_recipe_trains(name: str, variant: str | None, root: Path, tmp_path: Path) -> None:
    recipe = reduced(name, variant)
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
