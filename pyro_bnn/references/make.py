"""
Making the references: rows from fixed seeds, chains of NUTS, and what of them is kept.

posteriordb's rule for a reference posterior, in function space: 10,000 draws in all, rank-normalised split R-hat below
1.01 of every quantity, no divergences (Magnusson et al. 2024, arXiv:2407.04967). Four chains of 2,500 draws, in
float64, each from its own draw of the prior, are kept one by one in a run folder, so that what was killed goes on;
every tenth draw is shipped, with moments and quantiles of all.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pyro_bnn.common.contract import contract_of
from pyro_bnn.common.machine import cpu_name
from pyro_bnn.data import load_data
from pyro_bnn.guides import StoredDraws
from pyro_bnn.inference.samplers.mcmc import convergence
from pyro_bnn.models.networks.pooling import max_pool_2x2
from pyro_bnn.recipe import Recipe
from pyro_bnn.references.distance import quantiles_of
from pyro_bnn.references.programs import NOISE, program_of, quantities
from pyro_bnn.references.stored import SHIPPED, read_rows, write_reference
from pyro_bnn.runs.loading import load
from pyro_bnn.runs.train import Run, train
from pyro_bnn.version import __version__

__all__ = ["CHAINS", "make_reference", "make_rows", "rows_of"]

CHAINS: dict[str, Any] = {"name": "nuts", "chains": 4, "warmup": 500, "draws": 2500, "max_tree_depth": 8}
"""How every reference is drawn, but for what a program says itself."""
THIN = 10
"""Every so many draws are shipped."""
MOST_WEIGHTS = 100
"""Weights are shipped of programs of so many, or fewer."""


# -- rows --------------------------------------------------------------------------------------------------------------


def _logistic(random: np.random.Generator) -> tuple[Any, Any, Any]:
    mix = random.normal(size=(4, 4)) / 2 + np.eye(4)
    x, at = random.normal(size=(60, 4)) @ mix, random.normal(size=(32, 4)) @ mix
    logits = x @ np.array([1.5, -1.0, 0.5, 0.0]) - 0.5
    return x, (random.uniform(size=60) < 1 / (1 + np.exp(-logits))).astype(int), at


def _line(random: np.random.Generator) -> tuple[Any, Any, Any]:
    x, at = random.normal(size=(30, 3)) + 0.5, random.normal(size=(32, 3)) + 0.5
    y = x @ np.array([1.0, -0.5, 0.0]) + 0.3 + NOISE["conjugate-regression"] * random.normal(size=30)
    return x, y, at


def _wave(random: np.random.Generator) -> tuple[Any, Any, Any]:
    x = np.concatenate([random.uniform(-2, -0.7, 10), random.uniform(0.5, 2, 10)])
    return x[:, None], np.sin(2 * x) + 0.3 * random.normal(size=20), np.linspace(-1.6, 1.6, 33)[:, None]


def _bent(random: np.random.Generator) -> tuple[Any, Any, Any]:
    label = np.arange(60) % 2
    turn = np.pi * random.uniform(size=60)
    x = np.where(label[:, None] == 0, np.stack([np.cos(turn), np.sin(turn)], 1), 0)
    x = x + np.where(label[:, None] == 1, np.stack([1 - np.cos(turn), 0.5 - np.sin(turn)], 1), 0)
    grid = np.stack(np.meshgrid(np.linspace(-1.5, 2.5, 6), np.linspace(-1, 1.5, 5)), -1).reshape(-1, 2)
    return x + 0.2 * random.normal(size=(60, 2)), label, grid


def _bump(random: np.random.Generator) -> tuple[Any, Any, Any]:
    x = random.uniform(-2, 2, 25)
    y = np.exp(-2 * x**2) - 0.3 * x + 0.3 * random.normal(size=25)
    return x[:, None], y, np.linspace(-2.5, 2.5, 33)[:, None]


@torch.no_grad()
def _features(random: np.random.Generator) -> tuple[Any, Any, Any]:
    """Return what the last layer of a shipped LeNet-5, at its posterior mean, is given for 200 digits."""
    guide, digits = contract_of(load("lenet5-mnist-mini").guide), load_data("mnist-mini")
    means = {name.removeprefix("net."): value for name, value in guide.median().items()}

    def features(x: Tensor) -> Tensor:
        for layer in ("conv1", "conv2"):
            x = F.conv2d(x, means[f"{layer}.weight"], means[f"{layer}.bias"], padding=2 if layer == "conv1" else 0)
            x = max_pool_2x2(F.relu(x))
        x = x.flatten(1)
        for layer in ("fc1", "fc2"):
            x = F.relu(F.linear(x, means[f"{layer}.weight"], means[f"{layer}.bias"]))
        return x

    chosen = torch.as_tensor(random.permutation(len(digits.train.y))[:200])
    scale = features(digits.train.x[chosen]).std()
    x, at = (features(rows) / scale for rows in (digits.train.x[chosen], digits.test.x[:12]))
    return x.numpy(), digits.train.y[chosen].numpy(), at.numpy()


_ROWS: dict[str, Callable[[np.random.Generator], tuple[Any, Any, Any]]] = {
    "logistic-regression": _logistic,
    "conjugate-regression": _line,
    "one-layer-regression": _wave,
    "one-layer-classes": _bent,
    "gamma-network": _bump,
    "last-layer": _features,
}


def rows_of(name: str) -> dict[str, Tensor]:
    """
    Return rows x (N, D), y (N,) and the inputs `at` (A, D) of a program, from a fixed seed.

    :param name: of the program.
    """
    x, y, at = _ROWS[program_of(name).name](np.random.default_rng(1))
    whole = np.issubdtype(np.asarray(y).dtype, np.integer)
    return {
        "x": torch.as_tensor(np.asarray(x, dtype=np.float32)),
        "y": torch.as_tensor(np.asarray(y, dtype=np.int64 if whole else np.float32)),
        "at": torch.as_tensor(np.asarray(at, dtype=np.float32)),
    }


def make_rows(name: str, folder: Path = SHIPPED) -> None:
    """
    Write the rows of a program; its draws have to be made after that.

    :param name: of the program.
    :param folder: where the references are.
    """
    write_reference(name, folder, rows=rows_of(name))


# -- draws -------------------------------------------------------------------------------------------------------------


def chains_of(name: str, runs: Path, *, jobs: int = 1, seed: int = 0, **numbers: Any) -> Run:
    """
    Return the run of a program's chains; those that are finished in its folder are taken from there.

    :param name: of the program.
    :param runs: the folder of the runs.
    :param jobs: chains side by side.
    :param seed: of the chains.
    :param numbers: of NUTS, in the place of those of `CHAINS` and of the program.
    """
    program = program_of(name)
    method = {**CHAINS, "start": "prior", **program.nuts, **numbers}
    rows = len(read_rows(name)["y"])
    recipe = {**program.settings(), "method": method, "seed": seed, "num_samples": 2, "batch_size": rows, "epochs": 1}
    run = train(Recipe.build(recipe), out=runs / f"{name}-{seed}", jobs=jobs, progress=False, report=False)
    if not run.finished:
        raise KeyboardInterrupt
    return run


def functions_of(run: Run, at: Tensor) -> tuple[Tensor, Tensor]:
    """
    Return the draws of what is compared (chains, S, Q), in the chains' order, and the weights (chains, S, P).

    :param run: of the chains.
    :param at: the inputs, (A, D).
    """
    guide = run.posterior.guide
    if not isinstance(guide, StoredDraws):
        raise TypeError(f"a run of {run.recipe.method['name']!r} has no chains: NUTS and HMC have")
    flat = guide.draws.detach()
    found = [quantities(run.posterior.model, guide.values(draw), at) for draw in flat]
    shape = (guide.chains, -1)
    return torch.stack(found).unflatten(0, shape), flat.unflatten(0, shape)


def make_reference(
    name: str, runs: Path, *, folder: Path = SHIPPED, jobs: int = 1, seed: int = 0, **numbers: Any
) -> dict[str, Any]:
    """
    Draw the reference of a program, write it and return what its chains say about themselves.

    :param name: of the program.
    :param runs: where chains are kept, to be found by the next call.
    :param folder: where the references are.
    :param jobs: chains side by side.
    :param seed: of the chains.
    :param numbers: of NUTS, in the place of those of `CHAINS` and of the program.
    """
    run = chains_of(name, runs, jobs=jobs, seed=seed, **numbers)
    functions, weights = functions_of(run, read_rows(name)["at"])
    facts = facts_of(run, functions)
    every, kept = functions.flatten(0, 1), functions[:, ::THIN].flatten(0, 1)  # (S, Q)
    draws = {
        "functions": kept.float(),
        "quantiles": quantiles_of(every).float(),
        "mean": every.mean(0),
        "sd": every.std(0),
    }
    if weights.shape[-1] <= MOST_WEIGHTS:
        draws["weights"] = weights[:, ::THIN].flatten(0, 1)
    write_reference(name, folder, draws=draws, facts=facts)
    return facts


def facts_of(run: Run, functions: Tensor) -> dict[str, Any]:
    """
    Return how chains were drawn and what they say about themselves.

    :param run: of the chains.
    :param functions: (chains, S, Q).
    """
    judged = convergence(functions)
    thinned = functions[:, ::THIN]
    centred = thinned - thinned.mean(1, keepdim=True)
    lag = (centred[:, 1:] * centred[:, :-1]).mean(1) / centred.square().mean(1)  # (chains, Q)
    chains = [line for line in run.history if "chain" in line]
    return {
        "program": run.recipe.name,
        "method": dict(run.recipe.method),
        "seed": run.recipe.seed,
        "draws": functions.shape[0] * functions.shape[1],
        "chains": functions.shape[0],
        "shipped": thinned.shape[0] * thinned.shape[1],
        "quantities": functions.shape[2],
        "rhat": judged.rhat,
        "ess_bulk": judged.ess_bulk,
        "divergences": sum(line["divergences"] for line in chains),
        "acceptance": [round(line["acceptance"], 4) for line in chains],
        "step_size": [round(line["step_size"], 5) for line in chains],
        "lag_1_of_shipped": float(lag.mean(0).abs().mean()),
        "seconds": round(chains[-1]["seconds"], 1),
        "machine": cpu_name(),
        "pyro_bnn": __version__,
    }
