"""Training in turns: its pairs, its phases, and its verdicts on results that were never run."""

import pytest

from pyro_bnn.recipe import find_recipe
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_alternating import STUDY, _falls
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_arms() -> None:
    for trial in STUDY.design("source"):
        recipe = find_recipe(trial.arguments["recipe"], trial.arguments["variant"]).changed(trial.arguments["changes"])
        assert recipe.optim.alternate == (2 if trial.cell == "in turns" else 0)
        assert recipe.epochs % 4 == 0


def test_phases() -> None:
    """Means move in epochs 1, 2, 5, 6, deviations in 3, 4, 7, 8."""
    curve = [10.0, 8.0, 7.5, 7.0, 5.0, 4.0, 3.5, 3.25]
    assert _falls(curve, of_means=True) == pytest.approx(((10 - 8) + (7 - 4)) / 2)
    assert _falls(curve, of_means=False) == pytest.approx(((8 - 7) + (4 - 3.25)) / 2)


@pytest.mark.parametrize(
    ("loss", "fall", "verdict"), [(0.0, 1.0, "confirmed"), (0.05, 1.0, "contradicted"), (0.0, -1.0, "contradicted")]
)
def test_verdicts(loss: float, fall: float, verdict: str) -> None:
    def record(trial: Trial) -> dict[str, object]:
        noise = 0.001 * (int(trial.key(), 16) % 7 - 3)
        turns = trial.cell == "in turns"
        step = fall * (1 + 0.1 * trial.seed)
        return {"accuracy": 0.5 + noise - loss * turns, **falling(step)}

    assert verdict_of(STUDY.judge(made_up(STUDY, record))) == verdict


def test_not_enough_is_inconclusive() -> None:
    def record(trial: Trial) -> dict[str, object]:
        wild = 0.05 * (trial.seed - 2) * (trial.cell == "in turns")
        return {"accuracy": 0.5 + wild, **falling(1 + 0.01 * trial.seed)}

    assert verdict_of(STUDY.judge(made_up(STUDY, record))) == "inconclusive"


def falling(step: float) -> dict[str, list[float]]:
    """Twelve epochs in which the NLL and the KL fall by `step` each."""
    return {"epochs_nll": [20 - step * t for t in range(12)], "epochs_kl": [50 - step * t for t in range(12)]}
