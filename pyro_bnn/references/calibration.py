"""
Variational simulation-based calibration of a guide under one of the programs, in function space.

Data sets are drawn from the program's prior at its own inputs; a guide is trained on each for as many steps of all
rows; the true function's rank among the guide's draws is looked at at a few inputs (Yao et al. 2018, arXiv:1802.02538;
the test and its level are those of `pb.sbc`). Guides that can be are trained all at once (`fit_many`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.analysis.checks import sbc
from pyro_bnn.assemble import build_elbo, build_named_model, load_rows, resolve
from pyro_bnn.guides import StoredDraws
from pyro_bnn.inference import fit, fit_many
from pyro_bnn.inference.samplers.mcmc import run_chain
from pyro_bnn.methods.base import recipe_guide
from pyro_bnn.optim import Adam, Cosine, PerSite
from pyro_bnn.posterior import Posterior
from pyro_bnn.recipe import Recipe
from pyro_bnn.references.programs import program_of
from pyro_bnn.references.stored import read_rows

__all__ = ["DATASETS", "GUIDES", "NUTS", "STEPS", "calibration"]

GUIDES: dict[str, dict[str, Any]] = {
    "mean field": {"name": "mean_field"},
    "low rank 5": {"name": "low_rank", "rank": 5},
    "full rank": {"name": "full_rank"},
}
"""Words -> the guide of a recipe."""
NUTS = "NUTS"
"""In the place of a guide: one chain for each data set, every fifth draw of it; `steps` are not used."""
DATASETS = 100
STEPS = 2000
LEVEL = 0.05
RATE = 0.01
_ENTRIES = 4_000_000
"""Numbers of guides that are trained at once: of a last layer's full rank ten guides."""


def _optimizer() -> Any:
    return PerSite(loc=Adam({"lr": RATE}), scale=Adam({"lr": RATE}), schedule=Cosine())


def calibration(
    name: str, guide: str, datasets: int = DATASETS, steps: int = STEPS, draws: int = 99, seed: int = 0
) -> dict[str, Any]:
    """
    Return the verdict on a guide under a program, its smallest p-value, its spread and how many quantities there are.

    :param name: of the program.
    :param guide: one of `GUIDES`, or `NUTS`.
    :param datasets: how many are drawn from the prior.
    :param steps: of every training, of all rows.
    :param draws: of every guide.
    :param seed: of the data sets and of the trainings.
    """
    if guide not in (*GUIDES, NUTS):
        raise ValueError(f"guide={guide!r} is not compared: choose one of {', '.join(GUIDES)}, {NUTS}")
    recipe = Recipe.build({**program_of(name).settings(), "guide": GUIDES.get(guide, "mean_field")})
    recipe = resolve(recipe, load_rows(recipe))
    rows = read_rows(name)
    x, at = rows["x"], _few(rows["at"], 2 if name == "last-layer" else 5)
    model = build_named_model(recipe, len(x))
    together = not recipe.program  # whose precisions are constrained: such guides are trained one by one
    make: Callable[..., Any] = _together(recipe, steps) if together else _one_by_one(recipe, steps)
    if guide == NUTS:
        together, make = False, _chains(recipe, draws)
    found = sbc(model, make, x, at=at, datasets=datasets, draws=draws, level=LEVEL, seed=seed, together=together)
    return {
        "verdict": found.shape,
        "p": float(found.p_values().min()),
        "lean_p": float(found.lean().min()),
        "spread": float(found.spread().mean()),
        "spread_low": float(found.spread().min()),
        "spread_high": float(found.spread().max()),
        "quantities": found.ranks.shape[1],
        "datasets": datasets,
        "level": LEVEL,
    }


def _few(at: Tensor, count: int) -> Tensor:
    """Return some of the inputs, evenly."""
    return at[torch.linspace(0, len(at) - 1, count).round().long()]


def _together(recipe: Recipe, steps: int) -> Callable[[Tensor, Sequence[Tensor], Sequence[int]], list[Posterior]]:
    def make(x: Tensor, ys: Sequence[Tensor], seeds: Sequence[int]) -> list[Posterior]:
        models = [build_named_model(recipe, len(x)) for _ in ys]
        guides = []
        for model, seed in zip(models, seeds, strict=True):
            torch.manual_seed(seed)
            guides.append(recipe_guide(recipe, model))
        size = max(1, _ENTRIES // sum(p.numel() for p in guides[0].parameters()))
        for first in range(0, len(ys), size):
            part = slice(first, first + size)
            fit_many(
                models[part],
                guides[part],
                _optimizer(),
                [(x, y) for y in ys[part]],
                epochs=steps,
                batch_size=len(x),
                seed=list(seeds[part]),
                history=False,
            )
        return [Posterior(model, guide) for model, guide in zip(models, guides, strict=True)]

    return make


def _one_by_one(recipe: Recipe, steps: int) -> Callable[[Tensor, Tensor, int], Posterior]:
    def make(x: Tensor, y: Tensor, seed: int) -> Posterior:
        torch.manual_seed(seed)
        model = build_named_model(recipe, len(x))
        guide = recipe_guide(recipe, model)
        elbo = build_elbo(recipe, guide)
        fit(
            model,
            guide,
            _optimizer(),
            (x, y),
            epochs=steps,
            batch_size=len(x),
            elbo=elbo,
            seed=seed,
            progress=False,
        )
        return Posterior(model, guide)

    return make


def _chains(recipe: Recipe, draws: int, thin: int = 5) -> Callable[[Tensor, Tensor, int], Posterior]:
    def make(x: Tensor, y: Tensor, seed: int) -> Posterior:
        model = build_named_model(recipe, len(x))
        chain = run_chain(model, (x, y), warmup=200, draws=thin * draws, seed=seed, start="prior")
        guide = StoredDraws(model, num_draws=draws, kind="nuts")
        guide.build(x)
        with torch.no_grad():
            guide.draws.copy_(guide.flatten({name: value[::thin] for name, value in chain.samples.items()}))
        return Posterior(model, guide)

    return make
