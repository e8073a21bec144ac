import pytest
import torch

from pyro_bnn.analysis.scores.metrics import PredictiveAccumulator
from pyro_bnn.analysis.scores.ood import auroc, detect, fpr95, gaussian_noise, ood_scores, ood_table, shuffled_pixels


def literal_auroc(inside, outside):
    pairs = [(a > b) + 0.5 * (a == b) for a in outside.tolist() for b in inside.tolist()]
    return sum(pairs) / len(pairs)


def literal_fpr95(inside, outside):
    best = 1.0
    for threshold in {*inside.tolist(), *outside.tolist()}:
        if (outside >= threshold).double().mean() >= 0.95:
            best = min(best, float((inside >= threshold).double().mean()))
    return best


@pytest.mark.parametrize("scale", [0.1, 1.0, 1000.0])
def test_auroc_and_fpr95_against_all_pairs_whatever_the_scale(scale):
    generator = torch.Generator().manual_seed(0)
    inside = scale * torch.randint(0, 30, (60,), generator=generator).double()  # with ties
    outside = scale * torch.randint(10, 40, (40,), generator=generator).double()
    assert auroc(inside, outside) == pytest.approx(literal_auroc(inside, outside), abs=1e-6)
    assert fpr95(inside, outside) == pytest.approx(literal_fpr95(inside, outside), abs=1e-6)


def test_out_of_distribution_is_the_positive_class():
    low, high = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])
    assert auroc(low, high) == 1
    assert fpr95(low, high) == 0
    assert auroc(high, low) == 0
    assert fpr95(high, low) == 1


def test_scores_beyond_1_are_not_squashed():
    # a logistic function in float32 makes 90 and 100 equal
    assert auroc(torch.tensor([90.0]), torch.tensor([100.0])) == 1


def test_every_score_is_reported_and_high_where_unsure():
    predictive = PredictiveAccumulator()
    predictive.update(torch.tensor([[0.99, 0.01], [0.5, 0.5], [0.99, 0.01]]).log())
    predictive.update(torch.tensor([[0.99, 0.01], [0.5, 0.5], [0.01, 0.99]]).log())
    scores = ood_scores(predictive)
    assert set(scores) == {"entropy", "mutual_information", "max_probability"}
    for values in scores.values():
        assert float(values[0]) == pytest.approx(float(values.min()))
    assert float(scores["mutual_information"][1]) == pytest.approx(0, abs=1e-6)  # noise, not ignorance
    assert float(scores["mutual_information"][2]) > 0.5
    table = ood_table(scores, scores)
    assert all(set(cell) == {"auroc", "fpr95"} for cell in table.values())
    assert table["entropy"]["auroc"] == pytest.approx(0.5)


def test_detect_tells_far_inputs_from_near_ones(classes):
    zeros = classes.x.standardiser.mark(torch.zeros(classes.x.shape))
    table = detect(classes.posterior, classes.x, zeros, num_samples=20)
    assert table["entropy"]["auroc"] == pytest.approx(
        auroc(*(classes.posterior.uncertainty(x, 20, seed=0).total for x in (classes.x, zeros))), abs=1e-6
    )


def test_regression_has_no_such_scores(numbers):
    with pytest.raises(ValueError, match="for classes"):
        detect(numbers.posterior, numbers.x, numbers.x, 2)


def test_noise_and_shuffled_pixels():
    x = torch.arange(24.0).view(2, 1, 3, 4)
    noise, shuffled = gaussian_noise(x, seed=1), shuffled_pixels(x, seed=1)
    assert noise.shape == shuffled.shape == x.shape
    assert torch.equal(noise, gaussian_noise(x, seed=1))
    assert not torch.equal(noise, gaussian_noise(x, seed=2))
    torch.testing.assert_close(shuffled.flatten(1).sort(1).values, x.flatten(1))
    assert not torch.equal(shuffled, x)


def test_nan_and_empty_sets_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        auroc(torch.tensor([float("nan")]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="at least one row"):
        fpr95(torch.zeros(0), torch.tensor([1.0]))
