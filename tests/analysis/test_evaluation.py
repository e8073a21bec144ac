import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_bnn.analysis.scores.evaluation import evaluate_rows, in_units
from pyro_bnn.analysis.scores.metrics import classification_metrics, log_mean_exp, mixture_nll
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.posterior import Posterior


def test_the_table_of_classes_from_all_draws_at_once(classes):
    rows = evaluate_rows(classes.posterior, classes.x, classes.y, 7, seed=3)
    draws = classes.posterior.draws(classes.x, 7, seed=3).double().log()  # (S, N, K)
    whole = classification_metrics(log_mean_exp(draws), classes.y)
    single = [classification_metrics(draw, classes.y) for draw in draws]
    point = classes.posterior.model.observation(classes.x, classes.posterior.guide.median()).logits.detach()
    for name, value in whole.items():
        assert rows.table["s_draws"][name] == pytest.approx(value, abs=1e-6)
        assert rows.table["one_draw"][name] == pytest.approx(sum(m[name] for m in single) / 7, abs=1e-6)
        assert rows.table["plug_in"][name] == pytest.approx(
            classification_metrics(point.double(), classes.y)[name], abs=1e-6
        )
    assert rows.table == classes.posterior.evaluate(classes.x, classes.y, 7, seed=3)


def test_a_guide_without_a_median_has_no_plug_in_column(classes):
    class Medianless:
        def __call__(self, x):
            return classes.posterior.guide(x)

        def median(self, *args):
            raise NotImplementedError

    posterior = Posterior(classes.posterior.model, Medianless(), classes.posterior.info)
    assert set(evaluate_rows(posterior, classes.x, classes.y, 2).table) == {"one_draw", "s_draws"}


@pytest.mark.parametrize("targets", [1, 2])
def test_the_table_of_numbers_from_all_draws_at_once(make_regressor, targets):
    case = make_regressor(targets=targets)
    table = evaluate_rows(case.posterior, case.x, case.y, 7, seed=3).table["s_draws"]
    draws = list(case.posterior.stream(case.x, 7, seed=3))
    means, sds = torch.stack([d.mean for d in draws]).double(), torch.stack([d.sd for d in draws]).double()
    y = in_units(case.posterior, case.y).double()
    assert table["pred_nll"] == pytest.approx(mixture_nll(means, sds, y), rel=1e-6)
    assert table["rmse"] == pytest.approx(float((means.mean(0) - y).square().mean().sqrt()), rel=1e-6)


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


def test_the_0_and_1_in_floating_point_that_a_bernoulli_observes_are_labels():
    def program(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 20, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)

    x = torch.randn(20, 2)
    y = (x[:, 0] > 0).float()
    guide = AutoMeanFieldNormal(program)
    guide(x, y)
    posterior = Posterior(program, guide)
    assert posterior.evaluate(x, y, 5, seed=1) == posterior.evaluate(x, y.long(), 5, seed=1)
    with pytest.raises(ValueError, match="the targets are numbers but the model predicts classes"):
        posterior.evaluate(x, y + 0.5, 5)


def test_mistakes_are_named(classes, numbers):
    with pytest.raises(ValueError, match="one label per row"):
        evaluate_rows(classes.posterior, classes.x, classes.y[:3], 2)
    with pytest.raises(ValueError, match="pass floating-point targets"):
        evaluate_rows(numbers.posterior, numbers.x, torch.zeros(30).long(), 2)
    with pytest.raises(ValueError, match="pass integer labels"):
        evaluate_rows(classes.posterior, classes.x, torch.zeros(40), 2)
