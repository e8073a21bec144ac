"""The learning-rate range test of a recipe: train once through its batches while the rate rises (Smith 2015)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pyro_bnn.assemble import Assembly, assemble
from pyro_bnn.data import batches
from pyro_bnn.data.standardise import plain
from pyro_bnn.inference.svi import MinibatchStep
from pyro_bnn.optim import LRRange, lr_range_test, plot_lr_range
from pyro_bnn.recipe import Recipe, find_recipe

__all__ = ["lr_range", "save_plot"]


def _rows(parts: Assembly, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    order = torch.Generator().manual_seed(parts.recipe.seed)
    while True:
        for index in batches(len(parts.data.train), batch_size, order):
            rows = parts.data.train.take(index)
            yield plain(rows.x), plain(rows.y)


def lr_range(
    recipe: str | Path | Recipe,
    *,
    variant: str | None = None,
    group: str = "loc",
    low: float = 1e-5,
    high: float = 10.0,
    num_steps: int = 200,
    data_root: str | Path | None = None,
    **settings: Any,
) -> LRRange:
    """
    Sweep the rate of one group geometrically from `low` to `high`; the other groups keep the recipe's.

    :param recipe: a recipe, its name or its .toml.
    :param variant: one of the recipe's variants.
    :param group: 'loc', 'scale' or 'other'.
    :param num_steps: from `low` to `high`.
    :param data_root: folder of the data sets; default `PYRO_BNN_DATA`, else the cache.
    :param settings: recipe keys to change.
    """
    parts = assemble(find_recipe(recipe, variant).changed({**settings, "schedule": {"name": "constant"}}), data_root)
    optim = parts.optimizer(parts.guide)
    data = parts.data.train
    size = parts.recipe.batch_size
    step = MinibatchStep(parts.model, parts.guide, optim, parts.elbo(parts.guide), len(data))
    rows = _rows(parts, size)

    def take_step() -> float:
        weight = parts.kl.weight(batch=0, batch_size=size, epoch=parts.recipe.epochs, num_batches=1, num_data=len(data))
        x, y = next(rows)
        with parts.layers():
            loss, _ = step(weight, (x if parts.augment is None else parts.augment(x), y))
        return float(loss)

    return lr_range_test(
        take_step, lambda lr: optim.set_learning_rate(lr, group), low=low, high=high, num_steps=num_steps
    )


def save_plot(result: LRRange, path: Path, title: str) -> Path:
    """
    Write the curve as a picture.

    :param result: what `lr_range` returned.
    :param path: where to.
    :param title: of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = plot_lr_range(result, figure.subplots())
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
