"""The study of penalties: eight arms with equal chances, and the verdicts on results of all three kinds."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.penalties_cvnn import STUDY
from pyro_bnn.studies.study import Results

NOISE = (0.0, 0.004, -0.003, 0.002, -0.001)


def _results(best, usual=0.0, slope=0.02, noise=1.0):
    """Accuracy falls on both sides of log10 eta = best (raised for the usual weights), which change it by `usual`."""
    trials = STUDY.design("cpu")
    records = {}
    for i, trial in enumerate(trials):
        if trial.cell == "no penalty":
            records[trial.key()] = {"accuracy": 0.7, "history": [{"val_accuracy": 0.9}]}
            continue
        penalty, rule, eta = trial.cell.rsplit(", ", 2)
        place = float(eta.removeprefix("eta = 10^"))
        if rule == "usual":
            place -= 1.5 if penalty == "L2" else 1
        value = 0.8 - slope * abs(place - best) + (usual if rule == "usual" else 0)
        value += noise * NOISE[(trial.seed + i // 5) % 5]
        records[trial.key()] = {"accuracy": value, "history": [{"val_accuracy": value}]}
    return Results(trials, records)


@pytest.mark.parametrize("scale", STUDY.scales)
def test_arms_have_equal_chances_and_cells_the_same_seeds(scale):
    trials = STUDY.design(scale)
    seeds = defaultdict(set)
    for trial in trials:
        seeds[trial.cell].add(trial.seed)
    assert all(found == set(range(2 if scale == "smoke" else 5)) for found in seeds.values())
    arms = Counter(cell.rsplit(", ", 1)[0] for cell in seeds if cell != "no penalty")
    assert len(arms) == 8
    assert len(set(arms.values())) == 1
    assert all(f"{penalty}, Bayesian, eta = 10^0" in seeds for penalty in ("L2", "L1", "L2,1", "(L2,1)'"))


def test_an_optimum_below_theory_is_confirmed():
    findings = STUDY.judge(_results(-2))
    assert verdict_of(findings) == "confirmed"
    assert findings[0].estimate == 1.5  # four penalties
    assert findings[2].estimate == pytest.approx(0.04, abs=0.002)


def test_an_optimum_at_theory_is_contradicted():
    assert STUDY.judge(_results(0))[0].verdict == "contradicted"


def test_usual_weights_that_are_better_by_far_contradict():
    findings = STUDY.judge(_results(-2, usual=0.05))
    assert [f.verdict for f in findings[:3]] == ["confirmed", "contradicted", "confirmed"]
    assert verdict_of(findings) == "contradicted"


def test_noise_alone_is_inconclusive():
    results = _results(-2, slope=0.0, noise=10)
    assert verdict_of(STUDY.judge(results)) == "inconclusive"
    assert np.isfinite(results.values("L1, usual, eta = 10^1", "accuracy")).all()
