"""Recipes whose training rows stay on disk: the posterior of the same rows in memory, bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyro_bnn as pb
from pyro_bnn.assemble import assemble
from pyro_bnn.data import MappedRows, load_data
from pyro_bnn.runs.finished import diagnose
from pyro_bnn.runs.train import train
from tests.ranks import on_ranks
from tests.small_run import RECIPE, Stop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as bytes in .npy files, and the same in an .npz beside."""
    rows = load_data("mnist-mini", standardise=False, train_size=120, test_size=30)
    folder = tmp_path_factory.mktemp("rows") / "digits"
    folder.mkdir()
    arrays = {
        "x_train": (rows.first_rows(120).x * 255).round().byte().numpy(),
        "y_train": rows.train_targets().numpy(),
        "x_test": (rows.test.x * 255).round().byte().numpy(),
        "y_test": rows.test.y.numpy(),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder.with_suffix(".npz"), **arrays)
    return folder


def recipe_of(path: Path, *, on_disk: bool, **changes: Any) -> pb.Recipe:
    kept = {"on_disk": True} if on_disk else {}
    return RECIPE.changed({"data": str(path), "data_args": kept, **changes})


def posterior_of(run: Path) -> bytes:
    return (run / "posterior.safetensors").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"val_fraction": 0.0, "accumulate": 2, "augment": "crop_flip"},
        {"model": "resnet20", "model_args": {"width": 2}, "method": {"name": "hwa", "start": 1}},
    ],
    ids=["svi", "augmented", "averaged"],
)
def test_the_same_posterior_as_from_memory(tmp_path: Path, folder: Path, changes: dict[str, Any]) -> None:
    options = {"progress": False, "report": False}
    memory = train(
        recipe_of(folder.with_suffix(".npz"), on_disk=False, **changes),
        out=tmp_path / "memory",
        **options,  # type: ignore[arg-type]
    )
    disk = train(recipe_of(folder, on_disk=True, **changes), out=tmp_path / "disk", **options)  # type: ignore[arg-type]
    assert posterior_of(tmp_path / "memory") == posterior_of(tmp_path / "disk")
    assert memory.results["test"] == disk.results["test"]
    assert memory.results["doubts"] == disk.results["doubts"]


def test_it_is_a_run_like_any_other(tmp_path: Path, folder: Path) -> None:
    """It is interrupted, gone on with, reported on, scored again and diagnosed."""
    recipe, run = recipe_of(folder, on_disk=True), tmp_path / "run"
    assert isinstance(assemble(recipe).data.train, MappedRows)
    assert not train(recipe, out=run, progress=False, callbacks=[Stop(2)]).finished
    train(recipe, out=run, progress=False)
    train(recipe, out=tmp_path / "whole", progress=False, report=False)
    assert posterior_of(run) == posterior_of(tmp_path / "whole")
    assert (run / "report.html").is_file()
    assert (run / "posterior.nc").is_file()
    assert pb.evaluate(run)["test"] == pb.evaluate(tmp_path / "whole")["test"]
    assert "num_data" in {check.name for check in diagnose(run, num_samples=10, settle=False).checks}


def test_ranks_read_from_disk(tmp_path: Path, folder: Path) -> None:
    def run(path: Path, out: str, *, on_disk: bool) -> None:
        train(recipe_of(path, on_disk=on_disk), out=tmp_path / out, progress=False, report=False)

    on_ranks(2, lambda: run(folder, "disk", on_disk=True))
    on_ranks(2, lambda: run(folder.with_suffix(".npz"), "memory", on_disk=False))
    assert posterior_of(tmp_path / "disk") == posterior_of(tmp_path / "memory")


def test_methods_that_need_all_rows_are_refused(folder: Path) -> None:
    recipe = recipe_of(folder, on_disk=True, method={"name": "sgld", "lr": 0.05, "draws": 2})
    with pytest.raises(ValueError, match="'sgld' needs all rows at hand"):
        assemble(recipe)
