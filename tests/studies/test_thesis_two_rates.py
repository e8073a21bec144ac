"""Two rates at random: the draws, their pairs, and the verdicts on results that were never run."""

import math

import pytest

from pyro_bnn.recipe import find_recipe
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_two_rates import STUDY, drawn_rates
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_draws() -> None:
    """Every decade of alpha_mu has as many, and the first of two alpha_sigma is the smaller one."""
    rates = drawn_rates(15)
    decades = [math.floor(math.log10(loc)) for loc, _, _ in rates]
    assert decades == [-5] * 3 + [-4] * 3 + [-3] * 3 + [-2] * 3 + [-1] * 3
    assert all(1e-5 <= small < large <= 1 for _, small, large in rates)


def test_rates_of_recipes() -> None:
    for trial in STUDY.design("cpu"):
        recipe = find_recipe(trial.arguments["recipe"]).changed(trial.arguments["changes"])
        loc, small, large = drawn_rates(15)[trial.seed]
        assert (recipe.optim.loc["lr"], recipe.optim.scale["lr"]) == (loc, large if "larger" in trial.cell else small)
        assert recipe.optim.scale["name"] == ("adabound" if "AdaBound" in trial.cell else "adam")


@pytest.mark.parametrize(
    ("gain", "unstable", "kl", "verdict"),
    [
        (0.0, 0.3, 0.5, "confirmed"),
        (0.1, 0.3, 0.5, "contradicted"),
        (0.0, -0.3, 0.5, "contradicted"),
        (0.0, 0.3, 2.0, "contradicted"),
        (0.0, 0.0, 0.5, "inconclusive"),
    ],
)
def test_verdicts(gain: float, unstable: float, kl: float, verdict: str) -> None:
    def record(trial: Trial) -> dict[str, float]:
        larger = "larger" in trial.cell
        noise = 0.004 * (-1) ** trial.seed * (1 + larger) + 0.001 * (trial.seed % 5 - 2)
        accuracy = 0.4 + noise + gain * larger - unstable * (drawn_rates(15)[trial.seed][0] >= 0.1)
        return {"accuracy": accuracy, "train_kl": (100.0 + 1000 * noise) * (kl if larger else 1.0)}

    assert verdict_of(STUDY.judge(made_up(STUDY, record))) == verdict
