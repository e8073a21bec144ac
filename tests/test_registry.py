"""One way to name things, and no file that chooses what runs."""

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import registry
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.models import Perceptron as OurPerceptron
from pyro_bnn.registry import BUILT_IN, KINDS, find_saved, look_up, names, path_of, register
from pyro_bnn.studies import Study

BUILT = [(kind, name) for kind in KINDS for name in BUILT_IN[kind]]


@pytest.mark.parametrize(("kind", "name"), BUILT)
def test_every_built_in_name_leads_somewhere(kind: str, name: str) -> None:
    assert callable(look_up(kind, name)) or isinstance(look_up(kind, name), Study)
    assert name in names(kind)


def test_rooms_with_tables_of_their_own() -> None:
    assert "adam" in names("optimizers")
    assert look_up("schedules", "cosine") is not None
    assert "mnist-mini" in names("data")


@pytest.fixture
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {kind: {} for kind in KINDS})


@pytest.mark.usefixtures("_clean")
def test_register() -> None:
    @register("models", "mine")
    class Mine(nn.Module):
        pass

    assert look_up("models", "mine") is Mine
    assert "mine" in names("models")
    register("models", "mine")(Mine)  # a cell run twice
    with pytest.raises(ValueError, match="'mine' is taken by"):
        register("models", "mine")(nn.Linear)
    with pytest.raises(ValueError, match="'lenet5' is taken by pyro_bnn"):
        register("models", "lenet5")(nn.Linear)
    with pytest.raises(ValueError, match="unknown kind 'nets'"):
        register("nets", "mine")
    with pytest.raises(ValueError, match="cannot be a name"):
        register("models", "a:b")


def test_names_by_path() -> None:
    assert look_up("models", "torch.nn:Linear") is nn.Linear
    for path, says in (("no_such_package:Net", "no module 'no_such_package'"), ("torch.nn:Linea", "has no 'Linea'")):
        with pytest.raises(ValueError, match=says):
            look_up("models", path)
    with pytest.raises(ValueError, match="did you mean 'lenet5'"):
        look_up("models", "lenet")


def test_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "offering.py").write_text("class Net: ...\n")
    folder = tmp_path / "offering-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[pyro_bnn.models]\noffered = offering:Net\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "offered" in names("models")
    assert look_up("models", "offered").__name__ == "Net"


# ------------------------------------------------------------------------------------------------ what a file says


class Perceptron(nn.Module):
    """A user's network, whose class is called as one of ours, and whose configuration suits that, too."""

    def __init__(self, in_features: int = 3, out_features: int = 1) -> None:
        super().__init__()
        self.config = {"in_features": in_features, "out_features": out_features}
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return 100 + self.linear(x)


def _posterior(net: nn.Module, prior: Any = None) -> tuple[pb.Posterior, Tensor]:
    torch.manual_seed(0)
    model = BNN(net, prior or priors.Normal(0.0, 0.1), likelihoods.Gaussian(0.1), 5)
    return pb.Posterior(model, AutoMeanFieldNormal(model)), torch.randn(4, 3)


def test_a_users_class_of_the_same_name_is_not_taken_for_ours(tmp_path: Path) -> None:
    posterior, x = _posterior(Perceptron())
    said = posterior.predict(x, 5, seed=0).mean
    posterior.save(tmp_path / "p")
    with pytest.raises(ValueError, match=r"saved from '.*:Perceptron', which is not part of this library.*trust="):
        pb.load(tmp_path / "p")
    top = Perceptron.__module__.partition(".")[0]
    torch.testing.assert_close(pb.load(tmp_path / "p", trust=[top]).predict(x, 5, seed=0).mean, said)
    again, _ = _posterior(Perceptron())
    torch.testing.assert_close(pb.load(tmp_path / "p", again.model).predict(x, 5, seed=0).mean, said)


class Configured(nn.Linear):
    """A network with the configuration that is handed in, whatever it says."""

    def __init__(self, config: dict[Any, Any], slope: float = 1.0, name: str = "") -> None:
        super().__init__(3, 1)
        self.config, self.slope = config, slope


FITS = {"config": {}, "slope": 2.0, "name": ""}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"config": {}}, "it lacks 'name', 'slope'"),
        ({**FITS, "width": 3}, "the constructor takes no 'width'"),
        (FITS, "'name' is a word of the file itself"),
        ({**FITS, "slope": nn.ReLU()}, "'slope' is no name, number, or list of them"),
        ({**FITS, "slope": float("inf")}, "'slope' is no name"),
        ({**FITS, "config": {1: 2}}, "'config' is no name"),
    ],
)
def test_a_configuration_that_would_build_another_network_is_not_saved(
    config: dict[Any, Any], says: str, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match=says):
        posterior, x = _posterior(Configured(config))
    posterior.save(tmp_path / "p")
    with pytest.raises(ValueError, match="does not say how its model was built"):
        pb.load(tmp_path / "p", trust=[__name__.partition(".")[0]])
    loaded = pb.load(tmp_path / "p", model=posterior.model)
    torch.testing.assert_close(loaded.predict(x, 5, seed=0).mean, posterior.predict(x, 5, seed=0).mean)


@pytest.mark.parametrize("name", BUILT_IN["models"])
def test_our_networks_say_all_that_they_were_built_with(name: str) -> None:
    made = look_up("models", name)
    net = made(**made.sized_for((3, 32, 32), 10))
    wanted = {n for n, p in inspect.signature(made).parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert set(net.config) == wanted


def test_a_registered_class_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {kind: {} for kind in KINDS})
    register("models", "my_perceptron")(Perceptron)
    posterior, x = _posterior(Perceptron())
    posterior.save(tmp_path / "p")
    said = posterior.predict(x, 5, seed=0).mean
    torch.testing.assert_close(pb.load(tmp_path / "p").predict(x, 5, seed=0).mean, said)


def test_ours_still_loads_by_itself(tmp_path: Path) -> None:
    posterior, x = _posterior(OurPerceptron(3, 1))
    posterior.save(tmp_path / "p")
    assert path_of(OurPerceptron) in (tmp_path / "p" / "posterior.json").read_text()
    torch.testing.assert_close(pb.load(tmp_path / "p").predict(x, 5, seed=0).mean, posterior.predict(x, 5, seed=0).mean)


@pytest.mark.parametrize(
    "path",
    ["os:system", "pyro_bnn.runs.train:train", "pyro_bnn.registry:look_up", "untouched_package.nets:Net", "x", "a:b:c"],
)
def test_a_file_imports_nothing_that_the_caller_did_not_trust(path: str) -> None:
    before = set(sys.modules)
    with pytest.raises(ValueError, match=r"trust=|not of the form"):
        find_saved(path)
    assert set(sys.modules) == before
