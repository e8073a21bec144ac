"""Shipped posteriors against the other data set: what `lenet5-mnist` and `lenet5-fashion` must reach."""

from pathlib import Path

import pytest

from pyro_bnn.data import data_root
from pyro_bnn.runs.finished import detect_unfamiliar
from pyro_bnn.runs.loading import shipped_posteriors


def found(name, other, own):
    """Tables of a posterior and, if it comes with one, of its deterministic twin (weights/NAME/twin)."""
    import pyro_bnn

    if name not in shipped_posteriors():
        pytest.skip(f"{name} is not shipped")
    for data in (own, other):
        folder = "MNIST" if data == "mnist" else "FashionMNIST"
        if not ((data_root() / f"{data}.npz").is_file() or (data_root() / folder).is_dir()):
            pytest.skip(f"{data} is not in the data root {data_root()}")
    twin = Path(pyro_bnn.__file__).parent / "weights" / name / "twin"
    tables = detect_unfamiliar(name, other), detect_unfamiliar(twin, other) if twin.is_dir() else None
    print(name, other, *tables)
    return tables


@pytest.mark.slow
def test_mnist_against_fashion_by_entropy():
    table, twin = found("lenet5-mnist", "fashion-mnist", "mnist")
    assert table["entropy"]["auroc"] >= 0.98
    if twin is not None:
        assert table["entropy"]["auroc"] >= twin["entropy"]["auroc"] - 0.005


@pytest.mark.slow
def test_fashion_against_mnist_by_mutual_information():
    table, twin = found("lenet5-fashion", "mnist", "fashion-mnist")
    assert table["mutual_information"]["auroc"] >= 0.88
    if twin is not None:
        assert table["mutual_information"]["auroc"] >= twin["entropy"]["auroc"] + 0.10
