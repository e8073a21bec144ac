"""The study of penalties on VGG-19: its designs, and the verdicts on results of all three kinds."""

from collections import defaultdict

import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.penalties_vgg19 import STUDY
from pyro_bnn.studies.study import Results

NOISE = (0.0, 0.0004, -0.0003, 0.0002, -0.0001)


def _results(at_theory, usual):
    trials = [t for t in STUDY.design("source") if t.cell.startswith("L1, ") and t.seed < 4]
    records = {}
    for i, trial in enumerate(trials):
        _, rule, eta = trial.cell.rsplit(", ", 2)
        power = float(eta.removeprefix("eta = 10^"))
        value = 0.9 if power < 0 or rule == "usual" else at_theory if power == 0 else 0.7
        value += (usual if rule == "usual" else 0) + NOISE[(trial.seed * (2 if rule == "usual" else 1) + i // 4) % 5]
        records[trial.key()] = {"accuracy": value, "history": [{"val_accuracy": value}]}
    return Results(trials, records)


@pytest.mark.parametrize("scale", STUDY.scales)
def test_all_cells_have_the_same_seeds(scale):
    seeds = defaultdict(set)
    for trial in STUDY.design(scale):
        seeds[trial.cell].add(trial.seed)
    assert len(seeds) == (4 if scale == "smoke" else 72)
    assert all(found == set(range(2 if scale == "smoke" else 5)) for found in seeds.values())


def test_a_theory_that_is_too_strong_is_confirmed():
    assert verdict_of(STUDY.judge(_results(0.8, 0.0))) == "confirmed"


def test_a_theory_that_is_best_is_contradicted():
    assert verdict_of(STUDY.judge(_results(0.95, 0.0))) == "contradicted"


def test_the_smoke_scale_decides_nothing():
    trials = STUDY.design("smoke")
    records = {t.key(): {"accuracy": 0.5 + 0.1 * t.seed, "history": [{"val_accuracy": 0.5}]} for t in trials}
    assert verdict_of(STUDY.judge(Results(trials, records))) == "inconclusive"
