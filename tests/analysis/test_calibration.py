import pytest
import torch
from scipy import optimize

from pyro_bnn.analysis.scores.calibration import adaptive_ece, fit_temperature, reliability, scale_temperature
from pyro_bnn.analysis.scores.metrics import ece, nll


def predictions(n=400, k=5, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    log_probs = (scale * torch.randn(n, k, generator=generator, dtype=torch.float64)).log_softmax(-1)
    labels = torch.multinomial(log_probs.exp(), 1, generator=generator)[:, 0]
    return log_probs, labels


def test_bins_add_up_to_the_calibration_error_of_torchmetrics():
    log_probs, labels = predictions()
    bins = reliability(log_probs, labels, 15)
    assert float(bins.count.sum()) == 400
    assert bins.ece == pytest.approx(ece(log_probs, labels, 15), abs=1e-12)


def test_bins_by_hand():
    p = torch.tensor([[0.95, 0.05], [0.92, 0.08], [0.6, 0.4], [0.0, 1.0]], dtype=torch.float64)
    bins = reliability(p.log(), torch.tensor([0, 1, 0, 1]), 10)
    assert bins.count.tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 3]
    assert float(bins.confidence[9]) == pytest.approx((0.95 + 0.92 + 1.0) / 3)
    assert float(bins.accuracy[9]) == pytest.approx(2 / 3)
    assert float(bins.accuracy[6]) == 1
    assert bool(bins.accuracy[:6].isnan().all())


def test_adaptive_bins_hold_equally_many_rows():
    p = torch.tensor([0.6, 0.7, 0.8, 0.9], dtype=torch.float64)
    log_probs = torch.stack([p, 1 - p], 1).log()
    # two bins: (.6, .7) one of two right, (.8, .9) both right
    found = adaptive_ece(log_probs, torch.tensor([0, 1, 0, 0]), 2)
    assert found == pytest.approx((2 * abs(0.5 - 0.65) + 2 * abs(1 - 0.85)) / 4)
    assert adaptive_ece(log_probs[:1], torch.tensor([0]), 15) == pytest.approx(0.4)


@pytest.mark.parametrize("true", [0.4, 1.7, 5.0])
def test_the_temperature_is_the_minimum_of_the_validation_nll(true):
    log_probs, labels = predictions(seed=1)
    off = scale_temperature(log_probs, 1 / true)  # sharper or flatter than the labels are
    found = fit_temperature(off, labels)
    numeric = optimize.minimize_scalar(
        lambda t: nll(scale_temperature(off, t), labels), bounds=(0.05, 50), method="bounded", options={"xatol": 1e-9}
    )
    assert found == pytest.approx(numeric.x, rel=1e-5)
    for nearby in (found * 0.999, found * 1.001):
        assert nll(scale_temperature(off, found), labels) < nll(scale_temperature(off, nearby), labels)
    assert found == pytest.approx(true * fit_temperature(log_probs, labels), rel=1e-9)


def test_the_fit_has_no_slope_left():
    log_probs, labels = predictions(seed=2)
    b = torch.tensor(1 / fit_temperature(log_probs, labels), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.nll_loss((b * log_probs).log_softmax(-1), labels)
    loss.backward()
    assert abs(float(b.grad)) < 1e-12


def test_it_keeps_the_order_of_classes_and_1_changes_nothing():
    log_probs, _ = predictions()
    scaled = scale_temperature(log_probs, 2.5)
    assert torch.equal(scaled.argmax(1), log_probs.argmax(1))
    torch.testing.assert_close(scaled.exp().sum(1), torch.ones(400, dtype=torch.float64))
    torch.testing.assert_close(scale_temperature(log_probs, 1.0), log_probs)


def test_perfect_predictions_stay_finite():
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).log()
    found = fit_temperature(p, torch.tensor([0, 1]))
    assert 0 < found <= 1
    assert found == found


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperatures_below_0_are_refused(temperature):
    with pytest.raises(ValueError, match="above 0"):
        scale_temperature(torch.zeros(1, 2), temperature)
