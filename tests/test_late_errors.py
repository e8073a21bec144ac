"""Settings that would end without a posterior are refused when the recipe is put together, before any training."""

from typing import Any

import pytest
import torch

from pyro_bnn.assemble import assemble
from pyro_bnn.inference.samplers.sgld import takes_draw
from pyro_bnn.recipe import Recipe
from pyro_bnn.runs.train import train

SMALL: dict[str, Any] = {
    "model": "mlp",
    "model_args": {"hidden": [4]},
    "data": "mnist-mini",
    "data_args": {"train_size": 100, "test_size": 20},
    "epochs": 1,
    "batch_size": 45,  # 90 training rows: 2 steps
    "num_samples": 3,
}


def recipe(**settings: Any) -> Recipe:
    return Recipe.build({**SMALL, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": {"name": "low_rank", "start": 0, "cycle": 1.0}}, "leave 1 of the 2 snapshots"),
        ({"method": {"name": "low_rank", "rank": 1}}, "rank=1"),
        ({"method": {"name": "low_rank", "variance": "sum"}}, "variance='sum'"),
        ({"method": {"name": "hwa", "start": 0.5, "cycle": 0.5}, "batch_size": 30}, "leave 0 of the 1 snapshots"),
        ({"method": {"name": "hwa", "variance": "sum"}}, "variance='sum'"),
        ({"method": {"name": "hwa", "low": 2.0}}, "low=2"),
        ({"method": {"name": "ema", "decay": 1.0}}, "decay=1"),
        ({"method": "swa", "patience": 1}, "patience=1"),
        ({"method": {"name": "ensemble", "of": {"name": "low_rank", "start": 0}}}, "leave 1 of the 2 snapshots"),
        ({"method": {"name": "sgld", "lr": 1e-3, "burn_in": 0.9}}, "leaves no draw in 2 steps"),
        ({"method": {"name": "sgld", "lr": 1e-3, "precondition": 1.0}}, "precondition=1"),
        ({"method": {"name": "sgld", "lr": 0.0}}, "lr=0"),
        ({"method": {"name": "sgld", "draws": 0}}, "draws=0"),
        ({"method": "sgld", "patience": 1}, "patience=1"),
        ({"method": {"name": "cyclic_sgld", "lr": 1e-3, "cycles": 2}}, "leaves no draw in 2 steps"),
        ({"method": {"name": "cyclic_sgld", "lr": 1e-3, "cycles": 3}}, "cycles=3 do not fit 2 steps"),
        ({"method": {"name": "cyclic_sgld", "lr": 1e-3, "explore": 1.0}}, "explore=1"),
        ({"method": {"name": "lmc", "lr": 1e-3, "burn_in": 0.9}}, "leaves no draw in 1 steps"),
        ({"method": {"name": "mc_dropout", "rate": 1.0}}, "rate=1"),
        *[({"method": {"name": kind, "draws": n}}, f"draws={n}") for kind in ("nuts", "hmc") for n in (0, 1, 2, 3)],
        ({"method": {"name": "nuts", "target_accept": 1.5}}, "target_accept=1.5"),
        ({"method": {"name": "nuts", "max_tree_depth": 0}}, "max_tree_depth=0"),
        ({"method": {"name": "hmc", "trajectory_length": 0.0}}, "trajectory_length=0"),
        ({"schedule": {"name": "plateau", "metric": "val_nll"}, "val_fraction": 0.0}, "metric='val_nll'.*val_fraction"),
        ({"schedule": {"name": "plateau", "metric": "val_acc"}}, "metric='val_acc'"),
        ({"optim": {"loc": {"name": "adam", "schedule": {"name": "plateau", "metric": "elbo"}}}}, "metric='elbo'"),
        ({"method": "nuts", "kl": {"name": "geometric", "lam": 2.0}}, "no posterior that a sampler"),
        ({"method": "nuts", "model_args": {"hidden": [100]}}, "too many for HMC"),
        ({"method": "nuts", "data": "toy-line", "data_args": {}}, "HMC samples latent sites"),
    ],
)
def test_refused_at_assembly(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        assemble(recipe(**settings))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"structure": "dense"}, "structure='dense'"),
        ({"draws": 0}, "draws=0"),
        ({"prior": "laplace"}, "Normal priors"),
        ({"likelihood": "learned_gaussian", "data": "toy-line", "data_args": {}}, "no Laplace approximation"),
    ],
)
def test_laplace_is_refused_at_assembly(settings: dict[str, Any], message: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("pyro_bnn.methods.points.import_laplace", lambda: None)
    numbers = {key: settings.pop(key) for key in ("structure", "draws") if key in settings}
    with pytest.raises(ValueError, match=message):
        assemble(recipe(method={"name": "laplace", **numbers}, **settings))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "low_rank", "start": 0, "cycle": 0.5},
        {"name": "hwa", "start": 0.5, "cycle": 0.5},
        {"name": "sgld", "lr": 1e-3, "burn_in": 0.5},
        {"name": "cyclic_sgld", "lr": 1e-3, "cycles": 1},
        {"name": "lmc", "lr": 1e-3, "burn_in": 0},
    ],
)
def test_the_smallest_that_leaves_a_posterior_is_trained(method: dict[str, Any]) -> None:
    run = train(recipe(method=method), progress=False)
    assert run.finished
    assert 0 <= run.results["test"]["s_draws"]["accuracy"] <= 1


@pytest.mark.parametrize("other", [{"name": "adabayes", "lr": 1e-3}, {"name": "adam", "lr": 1e-3, "clip_norm": 1.0}])
def test_what_a_sampler_leaves_to_an_optimizer_takes_any(other: dict[str, Any]) -> None:
    line = {"model": "mlp", "model_args": {"hidden": [4]}, "data": "toy-line", "data_args": {}}  # learns its noise
    run = train(recipe(**line, method={"name": "sgld", "lr": 1e-3}, optim={"other": other}), progress=False)
    assert run.finished


def test_a_check_draws_nothing() -> None:
    """What assembling leaves of the random state does not depend on the kind of posterior."""
    found = []
    for kind in ("svi", "nuts", {"name": "sgld", "lr": 1e-3}):
        assemble(recipe(method=kind, model_args={"hidden": [3]}))
        found.append(torch.rand(1))
    assert found[0] == found[1] == found[2]


def test_which_steps_give_draws() -> None:
    assert [k for k in range(1, 13) if takes_draw(k, 4, 2)] == [6, 8, 10, 12]
    assert [k for k in range(1, 13) if takes_draw(k, 0, 1, 6, 0.5)] == [4, 5, 6, 10, 11, 12]
    assert not any(takes_draw(k, 0, 1, 1, 0.5) for k in range(1, 13))
