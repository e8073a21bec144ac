"""What pyproject.toml promises can be tried: `make test-versions`."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def versions() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "versions.py"))


def test_minima_are_exact(versions: dict[str, Any]) -> None:
    """Every requirement says what it starts from, and the job of the minima takes exactly that."""
    minima = {r.name: r for r in map(Requirement, versions["requirements"]("minima"))}
    newest = {r.name: r for r in map(Requirement, versions["requirements"]("newest"))}
    assert minima.keys() == newest.keys() >= {"torch", "pyro-ppl", "numpy", "arviz", "typer", "pytest"}
    for name, exact in minima.items():
        (pin,) = exact.specifier
        assert pin.operator == "=="
        assert newest[name].specifier.contains(pin.version)
        assert f">={pin.version}" in str(newest[name].specifier)
        assert str(exact.marker) == str(newest[name].marker)


@pytest.mark.parametrize("text", ["torch", "torch<3", "torch==2.6"])
def test_a_requirement_without_a_start_is_refused(text: str, versions: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="states the version that it starts from"):
        versions["minimum"](Requirement(text))


def test_the_subset_exists(versions: dict[str, Any]) -> None:
    assert [name for name in versions["SUBSET"] if not (ROOT / name).is_file()] == []
    assert not {"zarr"} & {Requirement(r).name for r in versions["requirements"]("minima")}  # asks for a newer Python
