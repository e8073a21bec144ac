import math

import pytest
import torch

from pyro_bnn.analysis.scores.uncertainty import entropy_decomposition, mutual_information, variance_decomposition
from pyro_bnn.models import likelihoods


def draws(dtype, s=20, n=50, k=10, scale=4.0):
    generator = torch.Generator().manual_seed(0)
    return (scale * torch.randn(s, n, k, generator=generator, dtype=torch.float64)).log_softmax(-1).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_mutual_information_is_total_minus_aleatoric(dtype, tolerance):
    log_probs = draws(dtype)
    parts = entropy_decomposition(log_probs)
    information = mutual_information(log_probs)
    assert information.dtype == dtype
    assert float(information.min()) > 0.05  # the draws disagree: the identity is not one of zeros
    torch.testing.assert_close(information, parts.total - parts.aleatoric, atol=tolerance, rtol=0)
    torch.testing.assert_close(information, parts.epistemic, atol=tolerance, rtol=0)


def test_by_hand_two_draws_that_contradict_each_other():
    log_probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64).log()
    parts = entropy_decomposition(log_probs)
    assert float(parts.total) == pytest.approx(math.log(2), abs=1e-15)
    assert float(parts.aleatoric) == 0
    assert float(mutual_information(log_probs)) == pytest.approx(math.log(2), abs=1e-15)


def test_draws_that_agree_have_no_epistemic_part():
    one = draws(torch.float64, s=1)
    assert float(mutual_information(one.expand(7, -1, -1)).abs().max()) < 1e-15


def test_a_class_without_mass_adds_nothing():
    log_probs = torch.tensor([[[0.5, 0.5, 0.0]], [[0.25, 0.75, 0.0]]], dtype=torch.float64).log()
    without = log_probs[..., :2]
    torch.testing.assert_close(mutual_information(log_probs), mutual_information(without))


def test_posterior_streams_the_same_uncertainty(classes):
    log_probs = classes.posterior.draws(classes.x, 30, seed=3).double().log()
    found = classes.posterior.uncertainty(classes.x, 30, seed=3)
    parts = entropy_decomposition(log_probs)
    torch.testing.assert_close(found.total.double(), parts.total, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.epistemic.double(), mutual_information(log_probs), atol=1e-5, rtol=0)


def test_law_of_total_variance_of_a_sampled_mixture():
    generator = torch.Generator().manual_seed(0)
    means, sds = (torch.rand(8, 3, generator=generator, dtype=torch.float64) + 0.5 for _ in range(2))
    parts = variance_decomposition(means, sds)
    torch.testing.assert_close(parts.total, parts.aleatoric + parts.epistemic)
    second_moment = (sds.square() + means.square()).mean(0)
    torch.testing.assert_close(parts.total, second_moment - means.mean(0).square(), atol=1e-14, rtol=0)


@pytest.mark.parametrize(
    "likelihood",
    [likelihoods.Gaussian(0.5), likelihoods.LearnedGaussian(0.4), likelihoods.HeteroscedasticGaussian()],
    ids=["fixed", "learned", "input-dependent"],
)
def test_regression_uncertainty_is_in_the_units_of_the_targets(make_regressor, likelihood):
    case = make_regressor(likelihood)
    found = case.posterior.uncertainty(case.x, 40, seed=0)
    stream = list(case.posterior.stream(case.x, 40, seed=0))
    parts = variance_decomposition(torch.stack([d.mean for d in stream]), torch.stack([d.sd for d in stream]))
    for ours, theirs in ((found.total, parts.total), (found.aleatoric, parts.aleatoric)):
        torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=1e-4, atol=0)
    sd = case.posterior.info["y_standardiser"]["sd"]
    if isinstance(likelihood, likelihoods.Gaussian):
        torch.testing.assert_close(
            found.aleatoric, torch.full_like(found.aleatoric, (0.5 * sd) ** 2), rtol=1e-5, atol=0
        )
    else:
        assert float(found.aleatoric.min()) > 0
    constant = float(found.aleatoric.std()) < 1e-4 * float(found.aleatoric.mean())
    assert constant != isinstance(likelihood, likelihoods.HeteroscedasticGaussian)


def test_draws_without_a_draw_dimension_are_refused():
    with pytest.raises(ValueError, match="draws first"):
        mutual_information(torch.zeros(3))
