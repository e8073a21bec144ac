"""The trainings whose last epoch is scored: a point by hand, which has no draws to differ in."""

import pytest

from pyro_bnn.recipe import find_recipe
from pyro_bnn.runs.train import train as train_run
from pyro_bnn.studies._last_epoch import train

SMALL = {
    "data_args": {"train_size": 200, "test_size": 300},
    "model_args.hidden": [8],
    "val_fraction": 0.3,
    "epochs": 3,
    "num_samples": 1,
    "optim.loc.lr": 0.1,
}


def test_the_last_epoch_is_scored_on_the_test_rows_and_not_the_best() -> None:
    found = train("mlp-mnist-mini", 0, None, {**SMALL, "method": "map"})
    ends = {}
    for keep in ("last", "best"):
        method = {"name": "map", "keep": keep}
        recipe = find_recipe("mlp-mnist-mini").changed({**SMALL, "method": method, "seed": 0})
        ends[keep] = train_run(recipe, progress=False, report=False)
    last, best = (ends[keep].results["test"]["s_draws"] for keep in ("last", "best"))
    assert ends["best"].results["best_epoch"] < 3
    assert last["pred_nll"] != pytest.approx(best["pred_nll"], rel=1e-4)
    assert found["pred_nll"] == pytest.approx(last["pred_nll"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(last["accuracy"])
    history = ends["last"].history
    assert found["epochs_nll"] == [line["nll"] for line in history]
    assert found["epochs_val_accuracy"] == [line["val_accuracy"] for line in history]
    assert (found["train_nll"], found["val_nll"]) == (history[-1]["nll"], history[-1]["val_nll"])
    assert found["rate_loc"] == history[-1]["learning_rates"]["loc"]


def test_without_validation_rows_there_is_nothing_of_them() -> None:
    found = train("mlp-mnist-mini", 0, None, {**SMALL, "method": "map", "val_fraction": 0.0, "epochs": 1})
    assert not [key for key in found if "val" in key]
    assert len(found["epochs_nll"]) == 1


def test_what_diverges_says_so() -> None:
    found = train("mlp-mnist-mini", 0, None, {**SMALL, "method": "map", "optim.loc": {"name": "sgd", "lr": 1e12}})
    assert list(found) == ["diverged"]
