"""A temperature for the whole predictive: the deviation that was planted comes back."""

import math

import pytest
import torch

from pyro_bnn.analysis.scores.metrics import mixture_nll
from pyro_bnn.analysis.temperature import TemperedPosterior, at_temperature, with_temperature
from pyro_bnn.models import likelihoods
from tests.analysis.test_conformal import linear


def test_a_normal_at_a_temperature_is_its_power() -> None:
    """p^(1/T) of N(m, sd^2), normalised, at three points."""
    means, sds, y = torch.tensor([[1.0]]), torch.tensor([[0.5]]), torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    m, s = at_temperature(means, sds, 3.0)
    for point in y:
        power = -((float(point) - 1) ** 2) / (2 * 0.25) / 3 - 0.5 * math.log(2 * math.pi * 0.25 * 3)
        assert -mixture_nll(m, s, point.view(1)) == pytest.approx(power, abs=1e-6)


def test_the_temperature_of_a_normal_is_that_of_its_residuals() -> None:
    """The NLL of N(0, T v) is least at T v = mean of the squares, exactly."""
    posterior = linear(torch.tensor([[1.0]]), likelihoods.Gaussian(0.5), scale=1e-7)
    x = torch.randn(200, 1)
    y = x[:, 0] + torch.randn(200)
    tempered = with_temperature(posterior, x, y, num_samples=2)
    assert tempered.temperature == pytest.approx(float((y - x[:, 0]).square().mean()) / 0.25, rel=1e-4)
    assert tempered.predict(x).sd.mean() == pytest.approx(0.5 * math.sqrt(tempered.temperature), rel=1e-4)
    lower, upper = tempered.interval(x, 0.9)
    assert (upper - lower).mean() == pytest.approx(2 * 1.6448536 * 0.5 * math.sqrt(tempered.temperature), rel=1e-4)


def test_the_temperature_of_logits_that_are_three_times_too_large_is_three() -> None:
    """60,000 labels: the deviation of the fitted temperature is about 0.03, so 0.2 is exceeded once in 10^10."""
    posterior = linear(3 * torch.eye(3), likelihoods.Categorical(), scale=1e-7)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60_000, 3, generator=generator)
    y = torch.multinomial(x.softmax(1), 1, generator=generator)[:, 0]
    tempered = with_temperature(posterior, x, y, num_samples=1)
    assert tempered.temperature == pytest.approx(3, abs=0.2)
    assert torch.allclose(tempered.predict(x[:5]), (x[:5] * 3 / tempered.temperature).softmax(1).double(), atol=1e-4)


def test_what_has_no_temperature_is_refused() -> None:
    counts = linear(torch.tensor([[1.0]]), likelihoods.Poisson())
    with pytest.raises(ValueError, match="no Normals"):
        with_temperature(counts, torch.zeros(3, 1), torch.ones(3))
    numbers = linear(torch.tensor([[1.0]]), likelihoods.Gaussian(0.5))
    with pytest.raises(ValueError, match="pass a finite target"):
        with_temperature(numbers, torch.zeros(3, 1), torch.tensor([1.0, 2.0, math.nan]))
    with pytest.raises(ValueError, match="temperature=0"):
        TemperedPosterior(numbers, 0)
    with pytest.raises(ValueError, match="no interval"):
        TemperedPosterior(linear(torch.eye(2), likelihoods.Categorical()), 1.0).interval(torch.zeros(1, 2))
