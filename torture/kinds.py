"""The kinds of run that are tortured: tiny, on the embedded data; between them they write all that a run can write."""

from typing import Any

__all__ = ["KINDS", "recipe_of"]

_SMALL: dict[str, Any] = {
    "name": "tortured",
    "model": "mlp",
    "model_args": {"hidden": [8]},
    "data": "mnist-mini",
    "data_args": {"train_size": 200, "test_size": 40},
    "eta": 0.1,
    "epochs": 4,
    "num_samples": 4,
}
_CURVE = {"data": "toy-cubic", "data_args": {}, "likelihood": {"name": "gaussian", "noise": 0.5}, "val_fraction": 0.0}
_CHAINS = {**_CURVE, "model_args": {"hidden": [4]}, "batch_size": 5, "eta": 1.0}

KINDS: dict[str, dict[str, Any]] = {
    "svi": {},
    "report": {"epochs": 2},
    "map": {"method": "map"},
    "dropout": {"method": {"name": "mc_dropout", "rate": 0.2}},
    "low rank": {"guide": {"name": "low_rank", "rank": 2}},
    "hwa": {"method": {"name": "hwa", "start": 1, "cycle": 0.5}},
    "low rank of hwa": {"method": {"name": "low_rank", "start": 1, "cycle": 0.5, "rank": 4}},
    "swa": {"method": {"name": "swa", "cycle": 0.5}},
    "ema": {"method": {"name": "ema", "decay": 0.9}},
    "ensemble": {"method": {"name": "ensemble", "members": 3}, "epochs": 2},
    "ensemble of hwa": {"method": {"name": "ensemble", "of": {"name": "hwa", "cycle": 1}, "members": 2}},
    "snapshots": {"method": {"name": "snapshots", "members": 2}},
    "sgld": {"method": {"name": "sgld", "lr": 0.05, "draws": 5}},
    "preconditioned sgld": {"method": {"name": "sgld", "lr": 1e-4, "draws": 5, "precondition": 0.95}},
    "cyclic sgld": {"method": {"name": "cyclic_sgld", "lr": 0.05, "draws": 4, "cycles": 2}},
    "hmc": {**_CHAINS, "method": {"name": "hmc", "chains": 3, "warmup": 10, "draws": 8}},
    "nuts": {**_CHAINS, "method": {"name": "nuts", "chains": 2, "warmup": 10, "draws": 8, "max_tree_depth": 3}},
    "learned noise": {**_CURVE, "likelihood": "learned_gaussian", "batch_size": 5},
    "score function": {"estimator": "score"},
    "augmentation": {"augment": "crop_flip"},
    "twin plateau": {"schedule": {"name": "twin_plateau"}},
    "yellowfin": {"optim": {"loc": {"name": "yellowfin", "lr": 1e-2}, "scale": {"name": "yellowfin", "lr": 1e-2}}},
    "adabayes in turns": {"optim": {"loc": {"name": "adabayes", "lr": 1e-3}, "alternate": 1}},
    "divergence": {
        "optim": {"loc": {"name": "adam", "lr": 1e18}},
        "on_divergence": {"retries": 3, "factor": 1e-21},
    },
}


def recipe_of(kind: str) -> Any:
    """Return the recipe of a kind."""
    from pyro_bnn.recipe import Recipe

    return Recipe.build({**_SMALL, **KINDS[kind]})
