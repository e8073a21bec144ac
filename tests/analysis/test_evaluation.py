import pytest
import torch

from pyro_bnn.analysis.evaluation import evaluate_rows, in_units


def test_the_table_is_that_of_posterior_evaluate(classes, make_regressor):
    for case in (classes, make_regressor(), make_regressor(targets=2)):
        rows = evaluate_rows(case.posterior, case.x, case.y, 7, seed=3)
        assert rows.table == case.posterior.evaluate(case.x, case.y, 7, seed=3)


def test_rows_add_up_to_the_table(classes, numbers):
    for case in (classes, numbers):
        rows = evaluate_rows(case.posterior, case.x, case.y, 7)
        assert float(-rows.log_density.mean()) == pytest.approx(rows.table["s_draws"]["pred_nll"], rel=1e-12)
    rows = evaluate_rows(classes.posterior, classes.x, classes.y, 7)
    assert float(rows.correct.double().mean()) == rows.table["s_draws"]["accuracy"]
    assert float(rows.epistemic.mean()) == pytest.approx(rows.table["s_draws"]["epistemic"])
    rows = evaluate_rows(numbers.posterior, numbers.x, numbers.y, 7)
    inside = ((rows.pit - 0.5).abs() <= 0.45).double().mean()
    assert float(inside) == pytest.approx(rows.table["s_draws"]["coverage_0.9"])


def test_intervals_hold_the_figures_and_narrow_with_rows(make_classifier, numbers):
    widths = []
    for n in (60, 240):
        case = make_classifier(n=n)
        rows = evaluate_rows(case.posterior, case.x, case.y, 5)
        intervals = rows.intervals()
        assert set(intervals) == {"accuracy", "pred_nll", "brier", "confidence", "ece"}
        for name in ("accuracy", "pred_nll", "brier", "confidence"):
            low, high = intervals[name]
            assert low < rows.table["s_draws"][name] < high
        assert intervals["ece"][0] >= 0
        assert intervals["accuracy"][1] <= 1
        widths.append(intervals["accuracy"][1] - intervals["accuracy"][0])
    assert widths[1] < 0.7 * widths[0]
    rows = evaluate_rows(numbers.posterior, numbers.x, numbers.y, 5)
    low, high = rows.intervals()["rmse"]
    assert low < rows.table["s_draws"]["rmse"] < high


def test_targets_in_units(numbers):
    y = in_units(numbers.posterior, numbers.y)
    assert 40 < float(y.mean()) < 60
    assert torch.equal(evaluate_rows(numbers.posterior, numbers.x, numbers.y, 2).y.float(), y)


def test_mistakes_are_named(classes, numbers):
    with pytest.raises(ValueError, match="one label per row"):
        evaluate_rows(classes.posterior, classes.x, classes.y[:3], 2)
    with pytest.raises(ValueError, match="pass floating-point targets"):
        evaluate_rows(numbers.posterior, numbers.x, torch.zeros(30).long(), 2)
    with pytest.raises(ValueError, match="pass integer labels"):
        evaluate_rows(classes.posterior, classes.x, torch.zeros(40), 2)
