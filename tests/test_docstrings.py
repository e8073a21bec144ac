"""The examples in docstrings say what comes out of them, and the names that are used most have one."""

import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest

import pyro_bnn

PACKAGE = Path(pyro_bnn.__file__).parent
MODULES = sorted(
    ".".join(("pyro_bnn", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if "\n    >>> " in path.read_text() or "\n>>> " in path.read_text()
)

MOST_USED = {
    "pyro_bnn.data": ["load_data"],
    "pyro_bnn.guides": ["AutoLowRankNormal", "AutoMeanFieldNormal"],
    "pyro_bnn.inference": ["FlatMeanField_ELBO", "fit"],
    "pyro_bnn.inference.kl": ["tempered"],
    "pyro_bnn.models": ["BNN"],
    "pyro_bnn.models.likelihoods": [
        "Bernoulli",
        "Categorical",
        "Gaussian",
        "HeteroscedasticGaussian",
        "LearnedGaussian",
    ],
    "pyro_bnn.models.priors": ["Kaiming", "PerLayer", "ScaleMixture"],
    "pyro_bnn.optim": ["PerSite"],
    "pyro_bnn.posterior": ["Posterior"],
    "pyro_bnn.recipe": ["find_recipe"],
    "pyro_bnn.registry": ["register"],
    "pyro_bnn.runs.loading": ["load"],
}


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyro_bnn import registry

    monkeypatch.setattr(registry, "_REGISTERED", {kind: {} for kind in registry.KINDS})


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    found = [test for test in doctest.DocTestFinder().find(module, name) if test.examples]
    assert found
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in found:
        runner.run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in MOST_USED.items() for name in names])
def test_the_names_that_are_used_most_have_an_example(module: str, name: str) -> None:
    value: Any = getattr(importlib.import_module(module), name)
    assert doctest.DocTestParser().get_examples(value.__doc__)
