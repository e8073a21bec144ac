"""The rate ratio: its pairs, and its verdicts on results that were never run."""

import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_rate_ratio import STUDY
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_rates() -> None:
    for trial in STUDY.design("source"):
        recipe = trial.settled()
        ratio = float(trial.cell.split("r ")[1])
        assert recipe.optim.scale["lr"] == pytest.approx(ratio * recipe.optim.loc["lr"])
        assert recipe.val_fraction == 0
        assert recipe.batch_size == 100


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ({1e-3: 0.05, 1e-2: 0.05}, "confirmed"),
        ({1e-3: 0.05, 1e-2: -0.05}, "contradicted"),
        ({1e-3: 0.0, 1e-2: 0.05}, "inconclusive"),
    ],
)
def test_verdicts(gain: dict[float, float], verdict: str) -> None:
    def record(trial: Trial) -> dict[str, float]:
        recipe = trial.settled()
        slow = recipe.optim.scale["lr"] < 0.5 * recipe.optim.loc["lr"]
        noise = 0.001 * (hash_free(trial) % 7 - 3)
        return {"accuracy": 0.5 + noise + slow * gain[recipe.optim.loc["lr"]], "train_kl": 10.0 + noise}

    findings = STUDY.judge(made_up(STUDY, record))
    assert verdict_of(findings) == verdict
    assert [finding.decides for finding in findings[:3]] == [True, True, False]


def hash_free(trial: Trial) -> int:
    """A number that differs between trials without being random."""
    return int(trial.key(), 16)
