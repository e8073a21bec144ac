"""The twin plateau: its pairs, and its verdicts on results that were never run."""

import pytest

from pyro_bnn.recipe import find_recipe
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_twin_plateau import STUDY
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_recipes_and_arms() -> None:
    for trial in STUDY.design("source"):
        recipe = find_recipe(trial.arguments["recipe"]).changed(trial.arguments["changes"])
        assert recipe.val_fraction > 0
        assert recipe.optim.loc == recipe.optim.scale
        assert recipe.schedule["name"] == ("constant" if "constant" in trial.cell else recipe.schedule["name"])
        assert ("1e-4" in trial.cell) == (recipe.optim.loc["lr"] == 1e-4)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ({"twin": 0.05}, "confirmed"),
        ({"twin": 0.05, "shared": 0.05}, "inconclusive"),  # just decay
        ({"twin": 0.02, "shared": 0.05}, "contradicted"),
        ({"twin": 0.05, "1e-4": 0.09}, "contradicted"),  # the better constant is better than the twin
    ],
)
def test_verdicts(gains: dict[str, float], verdict: str) -> None:
    def record(trial: Trial) -> dict[str, object]:
        noise = 0.0005 * (int(trial.key(), 16) % 7 - 3)
        gain = sum(value for arm, value in gains.items() if arm in trial.cell) * ("cifar10" in trial.cell)
        accuracy = 0.5 + noise + gain
        return {"accuracy": accuracy, "pred_nll": 1 - gain, "val_nll": 2 - gain, "epochs_kl": [2.0, 1.0 + noise]}

    findings = STUDY.judge(made_up(STUDY, record))
    assert verdict_of(findings) == verdict
    assert sum(finding.decides for finding in findings) == 3
