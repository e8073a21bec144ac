"""The study of nine optimizers: equal tries, and the verdicts on results of all three kinds."""

from collections import Counter

import pytest

from pyro_bnn.studies.adabayes_ranking import STUDY
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Results

NOISE = (0.0, 0.004, -0.003, 0.002, -0.001)


def _results(accuracy, early, nll):
    trials = STUDY.design("cpu")
    records = {}
    for i, trial in enumerate(trials):
        optimizer, factor = trial.cell.split(", rates 10^")
        noise = NOISE[(trial.seed + i // 5) % 5]
        value = accuracy.get(optimizer, 0.8) - 0.05 * abs(float(factor) - 0.5) + noise
        lines = [{"nll": early.get(optimizer, 1.0) + noise, "val_accuracy": value}] * 4
        records[trial.key()] = {"accuracy": value, "pred_nll": nll.get(optimizer, 0.6) + noise, "history": lines}
    return Results(trials, records)


@pytest.mark.parametrize("scale", STUDY.scales)
def test_every_optimizer_has_as_many_tries_and_the_same_seeds(scale):
    trials = STUDY.design(scale)
    results = Results(trials, {trial.key(): {} for trial in trials})
    assert len({tuple(results.seeds(cell)) for cell in results.cells}) == 1
    assert len(results.seeds(results.cells[0])) == (2 if scale == "smoke" else 5)
    tries = Counter(cell.split(",")[0] for cell in results.cells)
    assert len(tries) == 9
    assert set(tries.values()) == {2 if scale == "smoke" else 3}


def test_rates_are_multiplied_together():
    tables = {trial.cell: trial.settled().optim.loc for trial in STUDY.design("cpu")}
    slow, fast = tables["adabayes, rates 10^0"], tables["adabayes, rates 10^0.5"]
    assert fast["lr"] / slow["lr"] == pytest.approx(10**0.5)
    assert fast["lr_sgd"] / slow["lr_sgd"] == pytest.approx(10**0.5)
    assert tables["adabound, rates 10^0.5"]["final_lr"] == pytest.approx(0.1 * 10**0.5)


BETTER = {"adabayes": 0.81, "adabayes-fp": 0.81}
FASTER = {"adabayes": 0.9, "adabayes-fp": 0.9}


def test_all_four_are_confirmed():
    assert verdict_of(STUDY.judge(_results(BETTER, FASTER, {"adabayes-fp": 0.5}))) == "confirmed"


def test_a_better_adam_contradicts():
    findings = STUDY.judge(_results(BETTER | {"adam": 0.85}, FASTER, {"adabayes-fp": 0.5}))
    assert findings[0].verdict == "contradicted"
    assert verdict_of(findings) == "contradicted"


def test_equal_losses_are_inconclusive():
    assert verdict_of(STUDY.judge(_results(BETTER, FASTER, {}))) == "inconclusive"
