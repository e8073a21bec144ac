"""The study of a ResNet's temperature: pairs, and the verdicts on results of all three kinds."""

import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.overparameterised_resnet20 import STUDY
from pyro_bnn.studies.study import Results

NOISE = (0.0, 0.004, -0.003, 0.002, -0.001)


def _findings(at_one, noise=1.0):
    trials = STUDY.design("cpu")
    records = {}
    for i, trial in enumerate(trials):
        value = (at_one if trial.cell == "eta = 10^0" else 0.5) + noise * NOISE[(trial.seed + 2 * (i // 5)) % 5]
        records[trial.key()] = {"accuracy": value, "pred_nll": 2 - value, "history": [{"val_accuracy": value}]}
    return STUDY.judge(Results(trials, records))


@pytest.mark.parametrize("scale", STUDY.scales)
def test_all_cells_have_the_same_seeds(scale):
    trials = STUDY.design(scale)
    results = Results(trials, {trial.key(): {} for trial in trials})
    assert len({tuple(results.seeds(cell)) for cell in results.cells}) == 1
    assert "eta = 10^0" in results.cells
    assert {trial.settled().eta for trial in trials if trial.cell == "eta = 10^-2"} == {0.01}


def test_a_lower_accuracy_at_one_is_confirmed():
    findings = _findings(0.4)
    assert verdict_of(findings) == "confirmed"
    assert findings[0].estimate == pytest.approx(0.1, abs=0.005)


def test_a_higher_accuracy_at_one_is_contradicted():
    assert [f.verdict for f in _findings(0.6)[:2]] == ["contradicted", "contradicted"]


def test_noise_is_inconclusive():
    assert verdict_of(_findings(0.5, noise=5)) == "inconclusive"
