"""A table's columns are found by their names, by whoever asks: fit, the posterior, the command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam
from pyro_bnn.runs.predict_file import predict_files

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    area, age = random.normal(100, 25, 60), random.integers(0, 80, 60)
    price = 3000 * area - 900 * age + random.normal(0, 9000, 60)
    path = tmp_path_factory.mktemp("tables") / "houses.csv"
    pandas.DataFrame({"area": area, "age": age, "price": price}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(houses: Path) -> Path:
    """A run of the recipe `uci` on the table, for one epoch."""
    folder = houses.parent / "run"
    settings: dict[str, Any] = {"data": str(houses), "data_args.target": "price", "epochs": 1, "num_samples": 2}
    pb.train("uci", out=folder, progress=False, report=False, **settings)
    return folder


def test_a_run_knows_its_columns_and_predicts_for_a_table_in_another_order(run: Path, houses: Path) -> None:
    posterior = pb.load(run)
    assert posterior.info["columns"] == ["area", "age"]
    table = pandas.read_csv(houses)
    want = posterior.predict(table[["area", "age"]].to_numpy(), 5, seed=0)
    table[["price", "age", "area"]].assign(street="Elm").to_csv(houses.parent / "new.csv", index=False)
    rows = predict_files(posterior, houses.parent / "new.csv", num_samples=5)
    assert [row["input"] for row in rows[:2]] == ["new.csv[0]", "new.csv[1]"]
    np.testing.assert_allclose([row["mean"] for row in rows], want.mean, rtol=1e-6)
    lower, upper = np.array([row["interval"] for row in rows]).T
    assert (lower < want.mean.numpy()).all()
    assert (want.mean.numpy() < upper).all()


def test_columns_of_a_frame_are_found_by_name_wherever_it_is_handed_in(run: Path, houses: Path) -> None:
    posterior, table = pb.load(run), pandas.read_csv(houses)
    rows, mixed = table[["area", "age"]].to_numpy(), table[["price", "age", "area"]]
    assert torch.equal(posterior.predict(mixed, 5, seed=0).mean, posterior.predict(rows, 5, seed=0).mean)
    assert torch.equal(posterior.standardise(mixed), posterior.standardise(rows))
    assert torch.equal(
        posterior.interval(mixed, 0.9, 20, seed=0).lower, posterior.interval(rows, 0.9, 20, seed=0).lower
    )
    with pytest.raises(ValueError, match=r"x has no column 'age'.*did you mean 'aged'.*it has area, aged"):
        posterior.predict(table.rename(columns={"age": "aged"})[["area", "aged"]])


def test_what_a_table_lacks_or_holds_besides_numbers_is_named(run: Path, tmp_path: Path) -> None:
    posterior = pb.load(run)
    for text, error, message in (
        ("area,price\n100,1\n", ValueError, "new.csv has no column 'age'.*trained on; it has area, price"),
        ("area,age\n100,old\n", TypeError, "column 'age' of .*new.csv holds text"),
        ("area,age\n100,\n", ValueError, "new.csv contains NaN or infinity"),
    ):
        (tmp_path / "new.csv").write_text(text)
        with pytest.raises(error, match=message):
            predict_files(posterior, tmp_path / "new.csv")


def test_a_posterior_that_knows_no_columns_takes_all_of_a_table(make_regressor: Any, tmp_path: Path) -> None:
    posterior = make_regressor().posterior
    assert "columns" not in posterior.info
    size = posterior.info["input_shape"][0]
    values = np.random.default_rng(0).normal(5, 3, (4, size)).astype(np.float32)
    names = ",".join(f"c{i}" for i in range(size))
    np.savetxt(tmp_path / "t.csv", values, delimiter=",", header=names, comments="", fmt="%.9g")
    np.save(tmp_path / "t.npy", values)
    tables = [
        predict_files(posterior, tmp_path / name, num_samples=5, standardised=False) for name in ("t.csv", "t.npy")
    ]
    assert [row["mean"] for row in tables[0]] == [row["mean"] for row in tables[1]]


def test_fit_records_the_columns_of_a_frame_and_refuses_validation_rows_of_others(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    frame = pandas.DataFrame(torch.randn(30, 2, generator=generator).numpy(), columns=["a", "b"])
    y = torch.randn(30, generator=generator).numpy()
    model = BNN(MLP(2, 1, [3]), priors.FanIn(), likelihoods.Gaussian(0.5), num_data=30)
    guide = AutoMeanFieldNormal(model)
    with pytest.raises(ValueError, match="val has the columns b, a and the training rows a, b: give the same ones"):
        fit(model, guide, Adam({"lr": 1e-2}), (frame, y), val=(frame[["b", "a"]], y), epochs=1)
    fit(model, guide, Adam({"lr": 1e-2}), (frame, y), epochs=1)
    assert guide.fitted.columns == ("a", "b")
    pb.Posterior(model, guide).save(tmp_path / "kept")
    kept = pb.load(tmp_path / "kept")
    assert kept.info["columns"] == ["a", "b"]
    assert torch.equal(kept.predict(frame[["b", "a"]], 5, seed=0).mean, kept.predict(frame, 5, seed=0).mean)


@pytest.mark.parametrize("columns", [["a"], ["a", "a"], ["a", 3], "ab"])
def test_columns_that_cannot_be_are_refused(columns: Any) -> None:
    from pyro_bnn.common.errors import BadFile
    from pyro_bnn.posterior.description import check_info

    with pytest.raises(BadFile, match="columns"):
        check_info({"input_shape": [2], "columns": columns}, "here")
