"""
A method of the library against a reference: one row of the table.

Every method has the same budget: `passes` walks through all rows, in members all together, and in snapshots too. SVI,
points and averages take one step of all rows per pass, SGLD four of a quarter of them, LMC one. Nothing is tuned: rates
are 0.01 with a cosine for what is optimised, and a program's own `langevin` rate for what samples along the gradient.
NUTS is the floor: chains from other seeds, whose gradients are not counted.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pyro_bnn.recipe import Recipe
from pyro_bnn.references.distance import distance_to
from pyro_bnn.references.make import chains_of, functions_of
from pyro_bnn.references.programs import Program, function_draws, program_of
from pyro_bnn.references.reference import load_reference
from pyro_bnn.runs.train import train

__all__ = ["FLOOR", "METHODS", "PASSES", "row", "settings_of"]

PASSES = 3000
"""Walks through the rows."""
DRAWS = 500
"""Of every method; as many are kept by samplers."""
MEMBERS = 5
FLOOR = "NUTS, other seeds"
_SHORT = {"warmup": 300, "draws": 250}

Changes = Mapping[str, Any]


def _averaged(name: str, **numbers: Any) -> Callable[[Program, int], Changes]:
    """Return an average over the second half of the passes, of 25 snapshots."""
    return lambda program, passes: {
        "method": {"name": name, "start": passes // 2, "cycle": max(1, passes // 50), **numbers}
    }


def _sampled(name: str, *, batches: int = 4, rate: float = 1.0, **numbers: Any) -> Callable[[Program, int], Changes]:
    """Return a sampler at the program's own rate; its first half is thrown away, but for cycles."""

    def changes(program: Program, passes: int) -> Changes:
        burn_in = {} if name == "cyclic_sgld" else {"burn_in": passes // 2}
        kept = min(DRAWS, passes // 4)
        method = {"name": name, "lr": rate * program.langevin, "draws": kept, **burn_in, **numbers}
        return {"method": method, "batches": batches}

    return changes


def _members(name: str, of: str) -> Callable[[Program, int], Changes]:
    return lambda program, passes: {
        "method": {"name": name, "of": of, "members": MEMBERS},
        "epochs": max(1, passes // MEMBERS),
    }


def _plain(**changes: Any) -> Callable[[Program, int], Changes]:
    return lambda program, passes: changes


METHODS: dict[str, Callable[[Program, int], Changes]] = {
    "maximum likelihood": _plain(method="ml"),
    "MAP": _plain(method="map"),
    "MC dropout, 0.1": _plain(method={"name": "mc_dropout", "rate": 0.1}),
    "Laplace, Kronecker": _plain(method={"name": "laplace", "structure": "kron", "draws": DRAWS}),
    "Laplace, full": _plain(method={"name": "laplace", "structure": "full", "draws": DRAWS}),
    "mean field": _plain(method="svi"),
    "mean field, local": _plain(method="svi", estimator={"name": "analytic", "layers": "local"}),
    "low rank 5": _plain(method="svi", guide={"name": "low_rank", "rank": 5}),
    "full rank": _plain(method="svi", guide={"name": "full_rank"}),
    "SWA of mean field": _averaged("swa"),
    "EMA of mean field": _plain(method={"name": "ema", "decay": 0.95}),
    "HWA, total": _averaged("hwa"),
    "HWA, within": _averaged("hwa", variance="within"),
    "HWA, trajectory": _averaged("hwa", variance="trajectory"),
    "HWA, literal": _averaged("hwa", variance="literal"),
    "low rank 10 (trajectory)": _averaged("low_rank"),
    "SGLD": _sampled("sgld"),
    "preconditioned SGLD": _sampled("sgld", rate=0.1, precondition=0.99),
    "cyclic SGLD": _sampled("cyclic_sgld"),
    "LMC": _sampled("lmc", batches=1),
    f"ensemble of {MEMBERS} MAP": _members("ensemble", "map"),
    f"ensemble of {MEMBERS} mean field": _members("ensemble", "svi"),
    f"{MEMBERS} snapshots of mean field": _members("snapshots", "svi"),
}
"""Words -> what a program's recipe changes for the method; `batches` is the number of them in a pass."""


def settings_of(name: str, method: str, passes: int, seed: int) -> dict[str, Any]:
    """
    Return the recipe of a program under a method.

    :param name: of the program.
    :param method: one of `METHODS`.
    :param passes: the budget.
    :param seed: of the training.
    """
    program, rows = program_of(name), len(load_reference(name).y)
    changes = dict(METHODS[method](program, passes))
    batches = changes.pop("batches", 1)
    adam = {"name": "adam", "lr": 0.01}
    return {
        **program.settings(),
        "optim": {"loc": adam, "scale": adam},
        "schedule": "cosine",
        "epochs": passes,
        "batch_size": -(-rows // batches),
        "seed": seed,
        "num_samples": 2,
        **changes,
    }


def row(name: str, method: str, passes: int = PASSES, of: str = "", seed: int = 0) -> dict[str, Any]:
    """
    Return the distances of a method's posterior to a reference, or under `refused` why there are none.

    :param name: of the program.
    :param method: one of `METHODS`, or `FLOOR`.
    :param passes: the budget.
    :param of: which reference it is a row of, for records that are kept: its digest.
    :param seed: of the training.
    """
    if method not in (FLOOR, *METHODS):
        raise ValueError(f"method {method!r} is not in the table: choose one of {FLOOR}, {', '.join(METHODS)}")
    reference = load_reference(name)
    quantiles = reference.quantiles.double()
    if method == FLOOR:
        with tempfile.TemporaryDirectory() as folder:
            run = chains_of(name, Path(folder), seed=seed + 1, **_SHORT)
        functions, _ = functions_of(run, reference.at)
        return distance_to(functions.flatten(0, 1), quantiles, reference.mean, reference.sd)
    try:
        run = train(Recipe.build(settings_of(name, method, passes, seed)), progress=False)
    except ValueError as error:
        return {"refused": str(error)}
    with torch.no_grad():
        found = function_draws(run.posterior, reference.at, DRAWS)
    return distance_to(found, quantiles, reference.mean, reference.sd)
