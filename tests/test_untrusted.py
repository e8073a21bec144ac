"""Posteriors, recipes and cards from nobody knows whom: refused before memory or time is taken, shown as words."""

import gc
import json
import time

import numpy as np
import pyro
import pytest
import torch
from safetensors.torch import load_file, save_file

import pyro_bnn as pb
from pyro_bnn.assemble import build_named_model
from pyro_bnn.cards.text import _code, markdown
from pyro_bnn.cli import main
from pyro_bnn.common.errors import BadFile, TooLarge
from pyro_bnn.common.manifest import seal
from pyro_bnn.common.reading import read_text
from pyro_bnn.common.sizing import entries_of
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import DESCRIPTION, TENSORS, Posterior
from pyro_bnn.recipe import Recipe, find_recipe, parse_settings
from pyro_bnn.runs.loading import posterior_folder


def small(outputs=3, likelihood=None):
    torch.manual_seed(0)
    return BNN(MLP(2, outputs, hidden=[4]), priors.Normal(1.0), likelihood or likelihoods.Categorical(), 10)


@pytest.fixture
def saved(tmp_path):
    model = small()
    info = {"input_shape": [2], "task": "classification", "class_names": ["cat", "dog", "owl"], "num_data": 10}
    return Posterior(model, AutoMeanFieldNormal(model), info).save(tmp_path / "saved")


def describe(folder, change):
    """Change the description as its author could, manifest and all."""
    description = json.loads((folder / DESCRIPTION).read_text())
    change(description)
    (folder / DESCRIPTION).write_text(json.dumps(description))
    seal(folder)


def hold(folder, change):
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)
    seal(folder)


# -- posteriors --------------------------------------------------------------------------------------------------------


def nested(description):
    guide = description["guide"]
    for _ in range(12):
        guide = {"name": "Ensemble", "members": [guide, guide], "states": False}
    description["guide"] = guide


HOSTILE = {
    "layers of a billion": (lambda d: d["model"]["net"].update(hidden=[10**9] * 2), "beyond the limit size"),
    "layers of a million": (
        lambda d: d["model"]["net"].update(hidden=[10**6, 10**6]),
        "has 1,000,007,000,003 numbers, and 54 were saved",
    ),
    "many layers": (lambda d: d["model"]["net"].update(hidden=[1] * 100_000), "beyond the limit layers"),
    "nested ensembles": (nested, "levels|describes a guide of"),
    "many members": (
        lambda d: d.update(guide={"name": "Ensemble", "members": [d["guide"]] * 2000, "states": False}),
        "describes a guide of",
    ),
    "many draws": (
        lambda d: d.update(guide={"name": "StoredDraws", "num_draws": 5000}),
        "describes a guide of 135,000 numbers or more, and the tensors beside it hold 54",
    ),
    "a rank": (lambda d: d.update(guide={"name": "AutoLowRankNormal", "rank": 10**6}), "describes a guide of"),
    "no numbers": (lambda d: d["model"]["net"].update(hidden="abc"), "MLP"),
    "no network": (lambda d: d.update(model={}), "the model of a saved description"),
    "no guide's name": (lambda d: d.update(guide={"rank": 3}), "the guide"),
    "two names alike": (lambda d: d["info"].update(class_names=["cat", "dog", "cat"]), "two classes the name 'cat'"),
    "no shape": (lambda d: d["info"].update(input_shape=[-1]), "no shape of an input"),
    "no rows": (lambda d: d["info"].update(num_data=0), "no number of rows"),
    "a scale of words": (
        lambda d: d["info"].update(standardiser={"mean": "a", "sd": 1}),
        "standardiser cannot be read",
    ),
    "no scale": (lambda d: d["info"].update(recipe={}), "does not say whether there is a standardiser"),
    "another task": (lambda d: d["info"].update(task="theft"), "theft"),
    "sites": (lambda d: d.update(sites=[1]), "no names"),
    "info": (lambda d: d.update(info=[]), "info is"),
    "a key of its own": (lambda d: d["info"].update(evil=1), "info has no key 'evil'"),
    "a format": (lambda d: d.update(format=[2]), "format"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_description_is_refused_at_once(saved, name):
    change, words = HOSTILE[name]
    describe(saved, change)
    started = time.process_time()
    with pytest.raises(ValueError, match=words):
        pb.load(saved)
    assert time.process_time() - started < 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t.update({"guide:loc_unconstrained": t["guide:loc_unconstrained"] > 0}),
            "as torch.bool, and it is torch.float32",
        ),
        (lambda t: t.update({"guide:loc_unconstrained": t["guide:loc_unconstrained"].long()}), "as torch.int64"),
        (lambda t: t.update({"guide:loc_unconstrained": t["guide:loc_unconstrained"] + 1j}), "as torch.complex64"),
        (lambda t: t["guide:rho_unconstrained"].fill_(float("nan")), "NaN or infinity"),
        (lambda t: t.update({"guide:loc_unconstrained": torch.zeros(3)}), r"of shape \(3,\)"),
        (lambda t: t.update({"x": torch.zeros(3)}), "of no part"),
        (lambda t: t.pop("guide:loc_unconstrained"), "missing"),
    ],
)
def test_other_tensors_are_refused(saved, change, words):
    hold(saved, change)
    with pytest.raises(ValueError, match=words):
        pb.load(saved)


def test_a_regression_of_a_recipe_says_whether_its_targets_were_standardised(tmp_path):
    model = small(1, likelihoods.LearnedGaussian())
    info = {
        "input_shape": [2],
        "recipe": {"name": "x"},
        "standardiser": None,
        "y_standardiser": {"mean": 0.0, "sd": 2.0},
    }
    folder = Posterior(model, AutoMeanFieldNormal(model), info).save(tmp_path / "saved")
    pb.load(folder)
    describe(folder, lambda d: d["info"].pop("y_standardiser"))
    with pytest.raises(BadFile, match="whether there is a y_standardiser"):
        pb.load(folder)


def test_what_is_loaded_is_freed_when_it_is_dropped():
    def tensors():
        gc.collect()
        return sum(type(thing) in (torch.Tensor, torch.nn.Parameter) for thing in gc.get_objects())

    def use():
        posterior = pb.load("lenet5-mnist-mini")
        posterior.predict(torch.rand(2, 1, 28, 28), 2, seed=0)

    use()
    store, before = len(pyro.get_param_store()), tensors()
    for _ in range(5):
        use()
    assert len(pyro.get_param_store()) == store
    assert tensors() <= before


@pytest.mark.slow
def test_forty_loads_of_resnet20_take_no_more_memory():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    x, sizes = torch.rand(2, 3, 32, 32), []
    for _ in range(41):
        pb.load("resnet20-cifar10").predict(x, 2, seed=0)
        gc.collect()
        sizes.append(resident())
    assert sizes[-1] - sizes[5] < 20e6  # the posterior alone has 2 MB in memory, 40 of them 87


# -- recipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("epochs=9223372036854775807", r"epochs: 9,\d+.*years.*--limit epochs="),
        ("epochs=9223372036854775808", "64 bits"),
        ("method={name='sgld', draws=100000000000}", "method.draws: 100,000,000,000"),
        ("estimator={name='analytic', num_particles=100000000000}", "estimator.num_particles"),
        ("method={name='ensemble', members=1000000000}", "method.members"),
        ("method={name='ensemble', members=200, of={name='ensemble', members=200}}", "members, all together: 40,000"),
        ("num_samples=100000000000", "num_samples"),
        ("name='../../../evil'", "is no name"),
        ("name='.hidden'", "is no name"),
        ("name='a/b'", "is no name"),
        ("name='a\u202eb'", "is no name"),
    ],
)
def test_what_would_never_end_or_leave_its_folder_is_refused(setting, words):
    recipe = find_recipe("lenet5-mnist-mini")
    with pytest.raises(ValueError, match=words):
        recipe.changed(parse_settings([setting]))


def test_a_limit_that_is_raised_lets_it_through():
    with pb.limits(epochs=10**9):
        assert find_recipe("lenet5-mnist-mini").changed({"epochs": 10**8}).epochs == 10**8


def test_layers_are_counted_before_they_are_built():
    def built(**numbers):
        recipe = Recipe.build({"model": "mlp", "data": "mnist-mini", "likelihood": "categorical"})
        return build_named_model(recipe.changed({"model_args": {"in_features": 2, "out_features": 3, **numbers}}), 10)

    with pytest.raises(TooLarge, match=r"model 'mlp' of 1,\d+,\d+,\d+,\d+ parameters, in training, would take about"):
        built(hidden=[10**6, 10**6])
    with pytest.raises(TooLarge, match="beyond the limit size"):
        built(hidden=[10**9])
    with pb.limits(layers=5), pytest.raises(TooLarge, match="modules of model 'mlp'"):
        built(hidden=[3] * 4)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    first = torch.rand(1)
    torch.manual_seed(1)
    assert entries_of(MLP, {"in_features": 2, "out_features": 3, "hidden": [4]}, "mlp") == 27
    assert torch.rand(1) == first  # asking draws nothing
    torch.set_rng_state(state)


@pytest.mark.parametrize("text", ["a." * 100_000 + "b = 1", "a = " + "[" * 50_000, "#" * 10_000_000, "a = 1979-05-27"])
def test_toml_that_takes_long_is_refused(text):
    started = time.process_time()
    with pytest.raises(ValueError):
        Recipe.from_toml(text, "x")
    assert time.process_time() - started < 1


def test_a_file_of_any_name_has_a_recipe_of_a_good_one(tmp_path):
    path = tmp_path / ".. my recipe [red].toml"
    path.write_text('model = "mlp"\ndata = "mnist-mini"\n')
    assert find_recipe(path).name == "my-recipe--red-"


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_words_of_a_posterior_do_not_turn_the_terminal(saved, tmp_path, capsys):
    names = ["dog [small]", "[/INST]\x1b[2J", "\u202egnp"]
    describe(saved, lambda d: d["info"].update(class_names=names))
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    assert main(["predict", str(saved), str(tmp_path / "x.npy"), "--num-samples", "2", "--threshold", "0"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "[small]" in said.replace("\n", "")
    assert main(["predict", f"{saved}\x1b[31m", "x"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_the_command_shows_no_traceback_whatever_happens(monkeypatch, capsys):
    monkeypatch.setattr("pyro_bnn.runs.loading.load", lambda path: {}[path])
    assert main(["predict", "x", "y"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pyro-bnn: KeyError")
    assert "Traceback" not in said


def test_a_limit_of_the_command(saved, capsys):
    assert main(["--limit", "json_bytes=10", "predict", str(saved), "x"]) == 2
    assert "--limit json_bytes=" in capsys.readouterr().err
    assert main(["--limit", "nothing=10", "list"]) == 2
    assert "there is no limit 'nothing'" in capsys.readouterr().err


def test_a_card_holds_no_html_of_its_author():
    evil = "<img src=x onerror=alert(1)> | [a](javascript:b) `c`\n# d \u202e"
    card = json.loads(read_text(posterior_folder("lenet5-mnist-mini") / "card.json", "json_bytes"))
    usual = markdown(card)
    assert usual == read_text(posterior_folder("lenet5-mnist-mini") / "card.md", "json_bytes")
    card |= {"title": evil, "description": evil, "source": evil, "command": f"```\n{evil}"}
    card["data"]["name"] = card["made"]["machine"] = evil
    card["results"][0]["ood"][evil] = card["results"][0]["ood"].pop("Gaussian noise")
    if "twin" in card:
        card["twin"]["results"][0]["ood"][evil] = card["twin"]["results"][0]["ood"].pop("Gaussian noise")
    text = markdown(card)
    fenced = text.split("```")
    assert len(fenced) == 3
    assert "<img" not in fenced[0] + fenced[2]
    assert "\u202e" not in text
    assert "[a](" not in (fenced[0] + fenced[2]).replace("\\[a\\](", "")
    assert len(text.splitlines()) == len(usual.splitlines())


def test_code_in_a_card_stays_code():
    assert _code("a`b\n```\n<script>") == "a'b ''' <script>"


def test_weights_that_give_no_prediction_are_named(tmp_path):
    """Finite, as every tensor of a file has to be, and so large that the network's outputs are not."""
    model = BNN(MLP(2, 3, hidden=[]), priors.Normal(), likelihoods.Categorical(), num_data=4)
    guide = AutoMeanFieldNormal(model)
    with torch.no_grad():
        guide.loc.fill_(3e38)
    x = torch.tensor([[2.0, 2.0]])
    with pytest.raises(ValueError, match="Expected parameter"):  # in memory: as torch says it
        Posterior(model, guide).predict(x, 2)
    loaded = Posterior.load(Posterior(model, guide).save(tmp_path / "large"))
    with pytest.raises(BadFile, match=r"large does not predict for these rows \(Expected parameter.*save it again"):
        loaded.predict(x, 2)
