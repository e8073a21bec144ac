"""The initial deviation: the pairs, and the verdicts on results that were never run."""

import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_initial_sigma import STUDY
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_starts() -> None:
    for trial in STUDY.design("source"):
        recipe = trial.settled()
        assert f"rho {recipe.guide['init_rho']:g}" == trial.cell
        assert recipe.num_samples == 100
        assert recipe.val_fraction == 0


@pytest.mark.parametrize(
    ("drop", "lost", "kept", "verdict"),
    [
        (0.2, 1e-3, 0.05, "confirmed"),
        (0.2, 1e-3, 1e-3, "contradicted"),  # the source's choice is too small as well
        (-0.2, 1e-3, 0.05, "contradicted"),
        (0.0, 1e-3, 0.05, "inconclusive"),
    ],
)
def test_verdicts(drop: float, lost: float, kept: float, verdict: str) -> None:
    def record(trial: Trial) -> dict[str, float]:
        rho = float(trial.cell.rpartition(" ")[2])
        wobble = (0.01 * (-1) ** trial.seed + 0.001 * trial.seed - 0.004) * (1 if rho == -10 else -1)
        share = (lost if rho < -10 else kept) * (1 + 0.05 * trial.seed)
        return {"accuracy": 0.5 + wobble - drop * (rho > -2), "entropy": 2.0, "epistemic": 2.0 * share}

    assert verdict_of(STUDY.judge(made_up(STUDY, record))) == verdict
