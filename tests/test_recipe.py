"""Recipes: the catalogue, numbers that are checked, and changes by dotted keys."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyro_bnn.recipe import OptimRecipe, Recipe, find_recipe, parse_settings, recipe_names, variant_names

SMALL = {"model": "mlp", "data": "mnist-mini"}


@pytest.mark.parametrize("name", recipe_names())
def test_the_catalogue_is_valid_and_says_where_it_comes_from(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name
    assert recipe.description
    assert recipe.source


def test_the_two_first_recipes_exist() -> None:
    assert {"lenet5-mnist-mini", "lenet5-mnist"} <= set(recipe_names())


@pytest.mark.parametrize("name", [*recipe_names(), None])
def test_toml_spells_out_everything_and_reads_back(name: str | None) -> None:
    recipe = (
        Recipe.build({**SMALL, "guide": {"name": "mean_field", "max_scale": None}})
        if name is None
        else find_recipe(name)
    )
    text = recipe.to_toml()
    assert Recipe.from_toml(text, "other") == recipe
    for key in Recipe.model_fields:
        assert f"{key} = " in text or f"[{key}" in text


def test_bare_names_stand_for_tables() -> None:
    recipe = Recipe.build({**SMALL, "prior": "laplace", "schedule": "cosine", "optim": "adabound"})
    assert recipe.prior == {"name": "laplace"}
    assert recipe.schedule == {"name": "cosine"}
    assert recipe.optim.loc == recipe.optim.scale == recipe.optim.other == {"name": "adabound"}


def test_other_follows_loc_unless_it_is_given() -> None:
    fast = {"name": "adam", "lr": 0.1}
    slow = {"name": "sgd", "lr": 0.01}
    assert OptimRecipe.model_validate({"loc": fast}).other == fast
    recipe = Recipe.build({**SMALL, "optim": {"loc": fast}})
    assert recipe.changed({"optim.loc.lr": 0.2}).optim.other == {"name": "adam", "lr": 0.2}
    assert recipe.changed({"optim.other.lr": 0.3}).optim.other == {"name": "adam", "lr": 0.3}
    parted = recipe.changed({"optim": {"loc": fast, "other": slow}})
    assert parted.optim.other == slow
    assert parted.changed({"optim.loc.lr": 0.2}).optim.other == slow
    assert recipe.changed({"optim": "adabound"}).optim.other == {"name": "adabound"}


def test_dotted_changes() -> None:
    recipe = find_recipe("lenet5-mnist-mini")
    changed = recipe.changed({"epochs": 3, "optim.loc.lr": 0.5, "prior.a": 1.0, "model_args.hidden": [5]})
    assert (changed.epochs, changed.optim.loc["lr"], changed.prior["a"]) == (3, 0.5, 1.0)
    assert changed.model_args == {"hidden": [5]}
    assert recipe.epochs != 3
    assert changed.changed({}) == changed


def test_another_algorithm_keeps_only_the_rate() -> None:
    recipe = Recipe.build({**SMALL, "optim": {"loc": {"name": "adam", "lr": 0.1, "betas": [0.9, 0.99]}}})
    assert recipe.changed({"optim.loc.name": "sgd"}).optim.loc == {"name": "sgd", "lr": 0.1}
    prior = recipe.changed({"prior": {"name": "kaiming", "a": 1.0}})
    assert prior.changed({"prior.name": "xavier"}).prior == {"name": "xavier"}


def test_none_is_the_default() -> None:
    recipe = Recipe.build({**SMALL, "patience": None, "guide": {"name": "mean_field", "max_scale": None}})
    assert recipe.patience == 0
    assert recipe.guide == {"name": "mean_field"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochz": 3}, r"unknown recipe key 'epochz' \(did you mean 'epochs'\?\); the keys are name, .*batch_size"),
        ({"optim": {"mean": "adam"}}, "unknown recipe key 'optim.mean'; optim has loc, scale, other"),
        ({"model": None}, "model=None, program=None: .* one of them"),
        ({"epochs": 0}, "epochs=0: .*greater than or equal to 1"),
        ({"epochs": 1.5}, "epochs=1.5: .*integer"),
        ({"batch_size": -1}, "batch_size=-1: .*greater than or equal to 1"),
        ({"seed": -1}, "seed=-1"),
        ({"eta": 0.0}, "eta=0.0: .*greater than 0"),
        ({"eta": float("inf")}, "eta=inf: .*finite"),
        ({"temperature": float("nan")}, "temperature=nan: .*finite"),
        ({"val_fraction": 1.0}, "val_fraction=1.0: .*less than 1"),
        ({"eta": 0.5, "temperature": 0.5}, "eta=0.5 and temperature=0.5: .*not both"),
        ({"patience": 2, "val_fraction": 0.0}, "patience=2 .*val_fraction above 0"),
        ({"optim": {"loc": {"name": "adam", "lr": -0.1}}}, r"optim.loc.lr=-0.1 .* at least 0"),
        ({"optim": {"loc": {"name": "adabound", "final_lr": 0}}}, r"optim.loc.final_lr=0 .* above 0"),
        ({"optim": {"scale": {"name": "adam", "lr": -1}}}, r"optim.scale.lr=-1 .* at least 0"),
        ({"optim": {"other": {"name": "adam", "lr": "fast"}}}, r"optim.other.lr='fast' .* at least 0"),
        ({"optim": {"loc": {"name": "adam", "lr": float("inf")}}}, r"optim.loc.lr=inf .* finite"),
        ({"optim": {"loc": {"name": "adam", "lr": True}}}, r"optim.loc.lr=True"),
        ({"optim": {"loc": {"lr": 0.1}}}, "needs the key 'name'"),
        ({"prior": {"scale": 1.0}}, "needs the key 'name'"),
        ({"prior": {}}, "prior="),
        ({"budget": "gpu"}, "budget='gpu': .*'cpu' or 'paper'"),
    ],
)
def test_bad_input_is_one_line_with_key_value_and_remedy(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Recipe.build({**SMALL, **values})
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=message):
        Recipe.build(SMALL).changed(values) if values.get("model", "mlp") else Recipe.build({**SMALL, **values})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("epoch", 3, "unknown recipe key 'epoch'.*'epochs'"),
        ("optims.loc.lr", 0.1, "unknown recipe key 'optims'.*'optim'"),
        ("epochs.loc", 3, "'epochs' is 10 and has no keys of its own"),
        ("optim.loc.lr", -1, r"optim.loc.lr=-1"),
    ],
)
def test_bad_changes(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.build(SMALL).changed({key: value})


def test_finding(tmp_path: Path) -> None:
    recipe = Recipe.build(SMALL)
    assert find_recipe(recipe) is recipe
    (tmp_path / "mine.toml").write_text('model = "mlp"\ndata = "mnist-mini"\n')
    assert find_recipe(tmp_path / "mine.toml") == recipe.model_copy(update={"name": "mine"})
    (tmp_path / "broken.toml").write_text("model = ")
    with pytest.raises(ValueError, match="recipe 'broken' is not TOML"):
        find_recipe(tmp_path / "broken.toml")
    with pytest.raises(FileNotFoundError, match=r"no recipe file .*none.toml; give an existing .*lenet5-mnist"):
        find_recipe(tmp_path / "none.toml")
    with pytest.raises(
        ValueError, match=r"unknown recipe 'lenet-mnist' \(did you mean 'lenet5-mnist'\?\); `pyro-bnn list recipes`"
    ):
        find_recipe("lenet-mnist")


def test_settings_are_toml_where_they_can_be() -> None:
    found = parse_settings(
        [
            "epochs=3",
            "optim.loc.lr=1e-3",
            "model_args.hidden=[5, 6]",
            "prior=laplace",
            "data=a/b=c.npz",
            "x=true",
            'y="3"',
        ]
    )
    assert found == {
        "epochs": 3,
        "optim.loc.lr": 1e-3,
        "model_args.hidden": [5, 6],
        "prior": "laplace",
        "data": "a/b=c.npz",
        "x": True,
        "y": "3",
    }
    for bad in ("epochs", "=3"):
        with pytest.raises(ValueError, match="is not of the form key=value"):
            parse_settings([bad])


def test_reading_a_recipe_needs_no_torch() -> None:
    script = (
        "import sys; from pyro_bnn.recipe import find_recipe; find_recipe('lenet5-mnist');"
        "assert not {'torch', 'pyro'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


BASED = """
base = "lenet5-mnist-mini"
description = "another"
epochs = 3
model_args.num_classes = 7

[prior]
a = 1.0

[guide]
name = "mean_field"
init_scale = 0.1

[optim.loc]
lr = 0.5
name = "sgd"
momentum = 0.9

[paper]
epochs = 200
schedule = {name = "step", milestones = [150]}
data_args.train_size = 100
"""


def test_a_base_is_changed_by_what_the_file_says() -> None:
    base, recipe = find_recipe("lenet5-mnist-mini"), Recipe.from_toml(BASED, "mine")
    assert (recipe.name, recipe.description, recipe.source) == ("mine", "another", base.source)
    assert (recipe.epochs, recipe.model_args) == (3, {"num_classes": 7})
    assert recipe.optim.loc == recipe.optim.other == {"name": "sgd", "lr": 0.5, "momentum": 0.9}
    assert recipe.optim.scale == base.optim.scale
    assert recipe.prior == {"name": "kaiming", "a": 1.0}
    assert recipe.guide == {"name": "mean_field", "init_scale": 0.1}


def test_the_budget_of_the_paper() -> None:
    recipe = Recipe.from_toml(BASED, "mine")
    paper = recipe.changed({"budget": "paper", "batch_size": 64})
    assert (paper.epochs, paper.batch_size, paper.paper) == (200, 64, {})
    assert paper.schedule == {"name": "step", "milestones": [150]}
    assert paper.data_args == {"train_size": 100}
    assert recipe.changed({"budget": "paper", "epochs": 2}).epochs == 2
    assert paper.changed({"epochs": 1}).budget == "paper"
    assert Recipe.from_toml(recipe.to_toml(), "again") == recipe
    with pytest.raises(ValueError, match="budget='cpu': recipe 'mine' has one budget, 'paper'"):
        paper.changed({"budget": "cpu"})
    with pytest.raises(ValueError, match="budget='gpu'"):
        recipe.changed({"budget": "gpu"})


def test_bad_bases_and_budgets_are_named() -> None:
    with pytest.raises(ValueError, match=r"base='lenet5-mnist-min' .did you mean 'lenet5-mnist-mini'.*catalogue"):
        Recipe.from_toml('base = "lenet5-mnist-min"')
    with pytest.raises(ValueError, match="unknown recipe key 'epoch'"):
        Recipe.from_toml('base = "lenet5-mnist-mini"\nepoch = 3')
    with pytest.raises(ValueError, match="unknown recipe key 'epoch'"):
        Recipe.build({**SMALL, "paper": {"epoch": 3}})
    with pytest.raises(ValueError, match="epochs=0"):
        Recipe.build({**SMALL, "paper": {"epochs": 0}})


VARIED = """
base = "lenet5-mnist-mini"
description = "Mine"

[variants.fast]
description = "three epochs"
epochs = 3
optim.loc.lr = 0.01

[variants.other]
model = "mlp"
model_args = {hidden = [5]}
"""


def test_variants_are_changes_by_name() -> None:
    recipe = Recipe.from_toml(VARIED, "mine", variant="fast")
    assert (recipe.name, recipe.epochs, recipe.optim.loc["lr"]) == ("mine--fast", 3, 0.01)
    assert recipe.description == "Mine; variant: three epochs"
    assert Recipe.from_toml(VARIED, "mine").epochs == find_recipe("lenet5-mnist-mini").epochs
    assert Recipe.from_toml(VARIED, "mine", variant="other").model_args == {"hidden": [5]}


def test_a_file_has_variants_and_inherits_those_of_its_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "mlp-toy-cubic"\n[variants.lmc]\nepochs = 7\n[variants.wide]\nmodel_args.hidden = [300]\n')
    assert variant_names(path) == ["hmc", "lmc", "wide"]
    assert find_recipe(path, "hmc").method["name"] == "nuts"
    assert (find_recipe(path, "lmc").epochs, find_recipe(path, "lmc").method["name"]) == (7, "svi")


def test_unknown_variants_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no variant 'adabond' \(did you mean 'adabound'\?\): they are ml, total"):
        find_recipe("lenet5-cifar10-thesis", "adabond")
    with pytest.raises(ValueError, match=r"no variant 'x': it has none"):
        find_recipe("lenet5-mnist-mini", "x")
    with pytest.raises(ValueError, match=r"variants='a' of recipe 'mine': write a table \[variants.NAME\]"):
        Recipe.from_toml('variants = "a"\nmodel = "mlp"\ndata = "and"', "mine")
    with pytest.raises(ValueError, match="variants belong to names"):
        find_recipe(find_recipe("perceptron-and"), "x")


def test_another_network_has_other_arguments() -> None:
    wide = find_recipe("wide-resnet-cifar10")
    other = wide.changed({"model": "lenet5"})
    assert other.model_args == {}
    assert "model_args" not in other.paper
    assert wide.changed({"model_args.widen": 2}).model_args == {"depth": 16, "widen": 2}
    assert wide.description
    assert (other.description, other.source) == ("", "")
    assert wide.changed({"model": "lenet5", "description": "LeNet-5"}).description == "LeNet-5"
    assert wide.changed({"epochs": 1, "model": wide.model}).source == wide.source
