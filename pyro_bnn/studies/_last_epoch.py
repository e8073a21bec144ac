"""
Trainings whose last epoch is scored, for studies that need validation rows while they train.

With validation rows a training gives back its best epoch on them. That is a choice which not every arm of a comparison
makes alike; here the test rows are scored with the parameters as the last epoch leaves them, by one draw of the
weights.
"""

from collections.abc import Mapping
from typing import Any, final

from pyro_bnn.assemble import assemble
from pyro_bnn.data.split import Split
from pyro_bnn.inference.fit_state import Callback, Diverged, FitState
from pyro_bnn.inference.svi import validate
from pyro_bnn.methods import Work
from pyro_bnn.recipe import find_recipe

__all__ = ["train"]

_EPOCH = ("nll", "kl", "val_nll", "val_accuracy")


@final
class _Last(Callback):
    """Score rows after the last epoch."""

    def __init__(self, rows: Split) -> None:
        self.rows = rows
        self.scores: dict[str, float] = {}

    def epoch(self, state: FitState) -> None:
        if state.epoch == state.epochs:
            self.scores = validate(state.model, state.guide, self.rows)


def train(
    recipe: str, seed: int, variant: str | None = None, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """
    Train a recipe and return the scores of its last epoch.

    They are `accuracy` and `pred_nll` of the test rows, `val_accuracy` and `val_nll` where there are validation rows,
    `train_nll`, `train_kl`, `train_loss`, the rates of the groups at the end (`rate_loc`, `rate_scale`), and the lists
    `epochs_nll`, `epochs_kl`, `epochs_val_nll` and `epochs_val_accuracy`, a number per epoch.
    """
    parts = assemble(find_recipe(recipe, variant).changed({**(changes or {}), "seed": seed}))
    last = _Last(parts.data.test)
    try:
        with parts.layers():
            outcome = parts.method(Work(parts, parts.recipe, None, [last]))
    except Diverged as error:
        return {"diverged": str(error)}
    if outcome.interrupted:
        raise KeyboardInterrupt
    end = outcome.history[-1]
    return {
        "accuracy": last.scores["val_accuracy"],
        "pred_nll": last.scores["val_nll"],
        **{key: end[key] for key in ("val_accuracy", "val_nll") if key in end},
        **{f"train_{key}": end[key] for key in ("nll", "kl", "loss")},
        **{f"rate_{group}": rate for group, rate in end.get("learning_rates", {}).items()},
        **{f"epochs_{key}": [line[key] for line in outcome.history] for key in _EPOCH if key in end},
    }
