"""The study of HWA on MNIST: pairs, and the verdicts on results of all three kinds."""

import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.hwa_mnist import STUDY
from pyro_bnn.studies.study import Results

NOISE = (0.0, 0.0004, -0.0003, 0.0002, -0.0001)


def _results(accuracy, best_rate=0.05):
    trials = STUDY.design("cpu")
    records = {}
    for trial in trials:
        arm, _, rate = trial.cell.rpartition(", rate ")
        value = accuracy.get(arm, 0.9) + NOISE[trial.seed] * (1 + len(arm) % 3)
        if arm != "SGLD" and float(rate) != best_rate:
            value -= 0.3
        records[trial.key()] = {"accuracy": value, "pred_nll": 1 - value, "history": [{"val_accuracy": value}]}
    return Results(trials, records)


def _verdict(**accuracy):
    names = {"point": "point, averaged", "raw": "BBB, averaged"}
    return verdict_of(STUDY.judge(_results({names.get(k, k): v for k, v in accuracy.items()})))


@pytest.mark.parametrize("scale", STUDY.scales)
def test_all_cells_have_the_same_seeds(scale):
    trials = STUDY.design(scale)
    results = Results(trials, {trial.key(): {} for trial in trials})
    assert len({tuple(results.seeds(cell)) for cell in results.cells}) == 1
    assert len(results.seeds(results.cells[0])) == (2 if scale == "smoke" else 5)


def test_more_than_every_control_is_confirmed():
    assert _verdict(HWA=0.96, BBB=0.94, SGLD=0.961, point=0.95, raw=0.95) == "confirmed"


def test_less_than_an_averaged_point_is_contradicted_though_the_unfair_comparison_is_won():
    results = _results({"HWA": 0.96, "BBB": 0.94, "SGLD": 0.961, "point, averaged": 0.97, "BBB, averaged": 0.95})
    findings = STUDY.judge(results)
    assert [f.verdict for f in findings[:4]] == ["confirmed", "confirmed", "contradicted", "confirmed"]
    assert verdict_of(findings) == "contradicted"


def test_the_same_as_an_average_of_raw_parameters_is_inconclusive():
    assert _verdict(HWA=0.96, BBB=0.94, SGLD=0.961, point=0.95, raw=0.96) == "inconclusive"


def test_the_rate_is_the_one_that_validation_rows_prefer():
    results = _results({"HWA": 0.96, "BBB": 0.94, "SGLD": 0.96, "point, averaged": 0.95}, best_rate=0.02)
    assert STUDY.judge(results)[0].estimate == pytest.approx(0.02, abs=1e-3)
