"""Confidence in front of noise: the pairs, and the verdicts on results that were never run."""

import pytest

from pyro_bnn.recipe import find_recipe
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_noise_confidence import STUDY
from tests.studies.made_up import check_pairs, made_up

KINDS = ("digits", "noise", "shuffled", "sister")


def test_pairs() -> None:
    check_pairs(STUDY)


def test_arms() -> None:
    for trial in STUDY.design("cpu"):
        arguments = trial.arguments
        recipe = find_recipe("lenet5-mnist-thesis", arguments["variant"]).changed(arguments["changes"])
        if trial.cell == "frequentist":
            assert (recipe.method["name"], arguments["draws"]) == ("ml", 1)
        else:
            assert recipe.guide["init_rho"] == float(trial.cell.rpartition(" ")[2])
            assert (recipe.method["name"], arguments["draws"]) == ("svi", 10)


@pytest.mark.parametrize(("gain", "verdict"), [(0.2, "confirmed"), (-0.2, "contradicted"), (0.0, "inconclusive")])
def test_verdicts(gain: float, verdict: str) -> None:
    """What happens at other rho and on other inputs does not decide."""

    def record(trial: Trial) -> dict[str, float]:
        side = 1 if trial.cell == "frequentist" else -1
        wobble = side * (0.02 * (-1) ** trial.seed + 0.003 * trial.seed - 0.01)
        numbers = {f"{kind}_{what}": 0.5 + wobble for kind in KINDS for what in ("confidence", "share")}
        if trial.cell in ("frequentist", "Bayesian, rho -10"):
            numbers["noise_confidence"] += gain * side / 2
        return numbers

    findings = STUDY.judge(made_up(STUDY, record))
    assert verdict_of(findings) == verdict
    assert [finding.decides for finding in findings] == [True] + [False] * 14
