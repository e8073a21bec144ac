"""Bayesian against frequentist: the pairs, the choice of rates, and the verdicts on results that were never run."""

import pytest

from pyro_bnn.recipe import find_recipe
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_bayesian_against_frequentist import STUDY
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_both_sides_alike() -> None:
    """Nothing differs between the sides but the method."""
    settled: dict[str, list[dict[str, object]]] = {}
    for trial in STUDY.design("source"):
        arguments = trial.arguments
        recipe = find_recipe(arguments["recipe"], arguments["variant"]).changed(arguments["changes"]).model_dump()
        side = recipe.pop("method")["name"]
        settled.setdefault(side, []).append(
            {k: v for k, v in recipe.items() if k not in ("name", "description", "source")}
        )
    assert settled["ml"] == settled["svi"]
    assert len(settled["ml"]) == 2 * 3 * 5


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ({1e-3: 0.03, 3e-3: 0.03}, "confirmed"),
        ({1e-3: -0.03, 3e-3: -0.03}, "contradicted"),
        ({1e-3: 0.03, 3e-3: -0.03}, "contradicted"),  # the rate that both choose decides, not the default
        ({1e-3: 0.03, 3e-3: 0.0}, "inconclusive"),
    ],
)
def test_verdicts(gain: dict[float, float], verdict: str) -> None:
    def record(trial: Trial) -> dict[str, object]:
        rate = trial.arguments["changes"]["optim.loc.lr"]
        sign = -1 if trial.arguments["variant"] == "ml" else 1
        wobble = 0.004 * (-1) ** trial.seed * sign + 0.001 * trial.seed * sign - 0.0022 * sign
        accuracy = 0.5 + wobble + gain[rate] * (sign < 0) + 0.1 * (rate == 3e-3)
        return {"accuracy": accuracy, "val_accuracy": accuracy, "epochs_val_accuracy": [accuracy - 0.2, accuracy]}

    findings = STUDY.judge(made_up(STUDY, record))
    assert verdict_of(findings) == verdict
    assert "(0.003)" in findings[0].statement
