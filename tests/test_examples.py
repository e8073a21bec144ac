"""Every example runs with tiny arguments, and what it returns is a number where it says one."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = "--train-size 200 --epochs 1 --num-samples 2"
ARGUMENTS = {
    "adabayes": TINY,
    "hierarchical": "--rows 50 --epochs 2 --num-samples 3",
    "input_dependent_noise": "--rows 100 --epochs 2 --num-samples 3",
    "lenet5_svi": TINY,
    "nuts": "--units 2 --epochs 2 --chains 2 --warmup 10 --draws 10",
    "plain_pyro": "--steps 3 --num-samples 3",
    "posterior_predictive": "--rows 60 --epochs 3 --num-samples 40",
    "pretrained": TINY,
    "recurrent": "--hidden 8 " + TINY,
    "two_learning_rates": "--loc-lr 1e-3 --scale-lr 1e-2 3e-2 " + TINY,
}


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.filterwarnings("default")
def test_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = load(name)
    found = module.main(module.arguments().parse_args(ARGUMENTS[name].split()))
    assert found
    values = found.values() if isinstance(found, dict) else found
    assert all(isinstance(value, float) and value == value for value in values)
    assert re.search(r"\d", capsys.readouterr().out)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_example_says_what_it_shows_and_what_came_out(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    docstring = load(name).__doc__
    assert docstring.count("\n") > 10
    assert "$ python examples/" + name in docstring
    assert 60 <= text.count("\n") <= 150
