"""The landscape of SGD: its draws, the two numbers it computes, and its verdicts on results that were never run."""

import numpy as np
import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_sgd_landscape import STUDY, auc, threshold
from tests.studies.made_up import made_up


def test_draws_are_uniform_and_both_groups_share_them() -> None:
    trials = [trial for trial in STUDY.design("source") if trial.cell.startswith("mnist")]
    alpha = np.array([trial.changes["optim.loc.lr"] for trial in trials])
    mu = np.array([trial.changes["optim.loc.momentum"] for trial in trials])
    assert len(trials) == 400
    assert all(recipe.optim.loc == recipe.optim.scale for recipe in (trial.settled() for trial in trials[:9]))
    assert 0 < alpha.min() < 0.05 < 0.9 < alpha.max() < 0.95
    assert 0 <= mu.min() < 0.05 < 0.95 < mu.max() < 1
    assert alpha.mean() == pytest.approx(0.475, abs=0.05)
    assert mu.mean() == pytest.approx(0.5, abs=0.05)
    assert abs(np.corrcoef(alpha, mu)[0, 1]) < 0.15


def test_auc_against_counting_pairs() -> None:
    rng = np.random.default_rng(1)
    scores, dead = rng.integers(0, 6, size=(3, 12)).astype(float), rng.random((3, 12)) < 0.4
    for row in range(3):
        pairs = [(a > b) + (a == b) / 2 for a in scores[row][dead[row]] for b in scores[row][~dead[row]]]
        assert auc(scores, dead)[row] == pytest.approx(np.mean(pairs))


def test_threshold_parts_what_can_be_parted() -> None:
    assert threshold(np.array([3.0, 1.0, 0.2, 2.0]), np.array([True, False, False, True])) == 1.5
    assert np.isnan(threshold(np.array([1.0, 2.0]), np.array([True, True])))


@pytest.mark.parametrize(
    ("rule", "verdict"), [("both", "confirmed"), ("rate", "contradicted"), ("none", "inconclusive")]
)
def test_verdicts(rule: str, verdict: str) -> None:
    def record(trial: Trial) -> dict[str, float | str]:
        alpha, mu = trial.changes["optim.loc.lr"], trial.changes["optim.loc.momentum"]
        line = 0.6 if trial.cell.startswith("mnist") else 0.2
        dies = {"both": alpha / (1 - mu) > line, "rate": alpha > line, "none": int(trial.key(), 16) % 2 == 0}[rule]
        return ({"diverged": "the loss is nan"} if trial.seed % 2 else {"accuracy": 0.1}) if dies else {"accuracy": 0.8}

    findings = STUDY.judge(made_up(STUDY, record))
    assert verdict_of(findings) == verdict
    fitted = [finding.estimate for finding in findings if "fitted a" in finding.statement]
    if rule == "both":
        assert fitted == pytest.approx([0.6, 0.2], rel=0.1)
