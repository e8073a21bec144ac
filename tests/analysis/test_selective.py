import pytest
import torch

from pyro_bnn.analysis.scores.selective import rejection_curve


def test_by_hand():
    curve = rejection_curve(torch.tensor([0.1, 0.4, 0.2, 0.9]), torch.tensor([True, False, True, False]))
    assert curve.rejected.tolist() == [0, 0.25, 0.5, 0.75]
    assert curve.accuracy.tolist() == [0.5, pytest.approx(2 / 3), 1, 1]
    assert curve.aurc == pytest.approx((0.5 + 1 / 3) / 4)
    assert curve.accuracy_at(0) == 0.5
    assert curve.accuracy_at(0.3) == 1


def test_ties_have_no_order():
    # every order of the three tied rows, averaged
    score, right = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([True, False, False])
    assert rejection_curve(score, right).accuracy.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    one, other = (rejection_curve(score, right[order]) for order in (torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0])))
    assert one.accuracy.tolist() == other.accuracy.tolist()


def test_a_useless_score_gains_nothing_and_a_perfect_one_reaches_1():
    right = torch.arange(100) < 80
    assert rejection_curve(torch.zeros(100), right).accuracy_at(0.5) == pytest.approx(0.8)
    perfect = rejection_curve((~right).double(), right)
    assert perfect.accuracy_at(0.2) == 1
    assert perfect.aurc < rejection_curve(right.double(), right).aurc


@pytest.mark.parametrize("rejected", [-0.1, 1.0])
def test_shares_that_leave_nothing_are_refused(rejected):
    with pytest.raises(ValueError, match="share"):
        rejection_curve(torch.tensor([0.0]), torch.tensor([True])).accuracy_at(rejected)


def test_nan_and_mismatched_rows_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        rejection_curve(torch.tensor([float("nan")]), torch.tensor([True]))
    with pytest.raises(ValueError, match="shape"):
        rejection_curve(torch.zeros(2), torch.ones(3).bool())
