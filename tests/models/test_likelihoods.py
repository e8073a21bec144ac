"""Likelihoods: log-probabilities against the formulas, shapes with leading draws, and what they refuse."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pyro_bnn.models import likelihoods

OUTPUT = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))  # (B, K)
LABELS = torch.tensor([0, 3, 1, 2, 3])
REAL = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))  # (B, D)
NO_PARAMETERS: dict[str, Tensor] = {}


def normal(y: Tensor, mean: Tensor, sd: Any) -> Tensor:
    """Log N(y; mean, sd^2) summed over targets, (B,)."""
    y, mean, sd = y.double(), mean.double(), torch.as_tensor(sd).double()
    return (-((y - mean) ** 2) / (2 * sd**2) - torch.log(sd) - 0.5 * math.log(2 * math.pi)).sum(-1)


def sigmoid_link() -> Tensor:
    logistic = 1 / (1 + torch.exp(-OUTPUT.double()))
    return (logistic / logistic.sum(-1, keepdim=True))[torch.arange(5), LABELS].log()


BITS = LABELS % 2


def clamped_link() -> Tensor:
    p = OUTPUT[:, 0].double().clamp(0.01, 0.99)
    return torch.where(BITS == 1, p, 1 - p).log()


CASES: list[tuple[likelihoods.Likelihood, Tensor, Tensor, dict[str, Tensor], Tensor]] = [
    (likelihoods.Categorical(), OUTPUT, LABELS, {}, -F.cross_entropy(OUTPUT.double(), LABELS, reduction="none")),
    (likelihoods.Categorical(link="sigmoid"), OUTPUT, LABELS, {}, sigmoid_link()),
    (
        likelihoods.Bernoulli(),
        OUTPUT[:, :1],
        BITS,
        {},
        -F.binary_cross_entropy_with_logits(OUTPUT[:, 0].double(), BITS.double(), reduction="none"),
    ),
    (
        likelihoods.Bernoulli(link="clamp", eps=0.01),
        OUTPUT[:, :1],
        BITS,
        {},
        clamped_link(),
    ),
    (likelihoods.Gaussian(noise=0.3), OUTPUT, REAL, {}, normal(REAL, OUTPUT, 0.3)),
    (likelihoods.Gaussian(), OUTPUT[:, :1], REAL[:, 0], {}, normal(REAL[:, :1], OUTPUT[:, :1], 1.0)),
    (likelihoods.LearnedGaussian(), OUTPUT, REAL, {"noise": torch.tensor(0.7)}, normal(REAL, OUTPUT, 0.7)),
    (
        likelihoods.HeteroscedasticGaussian(min_noise=0.1),
        OUTPUT,
        REAL[:, :2],
        {},
        normal(REAL[:, :2], OUTPUT[:, :2], torch.log1p(OUTPUT[:, 2:].double().exp()) + 0.1),
    ),
]


@pytest.mark.parametrize(("likelihood", "output", "y", "parameters", "expected"), CASES)
def test_log_probability_is_the_formula(
    likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor, parameters: dict[str, Tensor], expected: Tensor
) -> None:
    fn: Any = likelihood.distribution(output, parameters)
    assert fn.batch_shape == (5,)
    found = fn.log_prob(likelihood.shape_target(y, output))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("likelihood", "output", "y", "parameters", "expected"), CASES)
def test_leading_draws_are_batch_dimensions(
    likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor, parameters: dict[str, Tensor], expected: Tensor
) -> None:
    draws = torch.stack([output, output])  # (S, B, K)
    fn: Any = likelihood.distribution(draws, parameters)
    assert fn.batch_shape == (2, 5)
    found = fn.log_prob(likelihood.shape_target(y, draws))  # (S, B)
    torch.testing.assert_close(found.double(), expected.expand(2, 5), rtol=1e-5, atol=1e-5)


def test_only_the_learned_noise_is_a_parameter() -> None:
    (value, constraint) = likelihoods.LearnedGaussian(init_noise=0.2).parameters()["noise"]
    assert value == 0.2
    assert constraint is torch.distributions.constraints.positive
    assert likelihoods.Gaussian().parameters() == {}


@pytest.mark.parametrize(
    ("likelihood", "output", "y", "message"),
    [
        (likelihoods.Categorical(), OUTPUT, LABELS[:, None], r"\(5, 1\) for 5 rows"),
        (likelihoods.Categorical(), OUTPUT, LABELS[:3], r"\(3,\) for 5 rows"),
        (likelihoods.Bernoulli(), OUTPUT[:, :1], torch.zeros(5, 2), r"\(5, 2\) for 5 rows"),
        (likelihoods.Gaussian(), OUTPUT, REAL[:, 0], r"\(5,\).* need \(5, 4\)"),
        (likelihoods.Gaussian(), OUTPUT[:, :1], REAL, r"\(5, 4\).* need \(5, 1\)"),
        (likelihoods.LearnedGaussian(), OUTPUT, REAL[:, :1], r"\(5, 1\).* need \(5, 4\)"),
        (likelihoods.HeteroscedasticGaussian(), OUTPUT, REAL, r"\(5, 4\).* need \(5, 2\)"),
    ],
)
def test_targets_that_would_broadcast_are_refused(
    likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        likelihood.shape_target(y, output)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: likelihoods.Categorical(link="probit"), "link='probit' .* 'softmax' or 'sigmoid'"),  # type: ignore[arg-type]
        (lambda: likelihoods.Bernoulli(link="relu"), "link='relu' .* 'logit' or 'clamp'"),  # type: ignore[arg-type]
        (lambda: likelihoods.Bernoulli(eps=0.5), "eps=0.5 .* between 0 and 0.5"),
        (lambda: likelihoods.Gaussian(noise=0.0), "noise=0.0 .* above 0"),
        (lambda: likelihoods.Gaussian(noise=math.nan), "noise=nan .* finite"),
        (lambda: likelihoods.LearnedGaussian(init_noise=-1.0), "init_noise=-1.0 .* above 0"),
        (lambda: likelihoods.HeteroscedasticGaussian(min_noise=0.0), "min_noise=0.0 .* above 0"),
        (lambda: likelihoods.Bernoulli().distribution(OUTPUT), "4 outputs, Bernoulli takes 1"),
        (lambda: likelihoods.HeteroscedasticGaussian().distribution(OUTPUT[:, :3]), "3 outputs; .* need 2 D"),
    ],
)
def test_bad_input_names_value_and_remedy(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("batch_shape", [(5,), (3, 5)])
def test_a_plate_leaves_class_probabilities_to_the_last_bit(batch_shape: tuple[int, ...]) -> None:
    fn: Any = likelihoods.Categorical().distribution(100 * OUTPUT)
    expanded = fn.expand(torch.Size(batch_shape))
    assert expanded.batch_shape == batch_shape
    assert torch.equal(expanded.logits, F.log_softmax(100 * OUTPUT, -1).expand(*batch_shape, 4))
    labels = LABELS.expand(batch_shape)
    assert torch.equal(expanded.log_prob(labels), expanded.logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1))


@pytest.mark.parametrize("label", [-100, -1, 4])
def test_a_label_that_is_no_class_has_no_probability(label: int) -> None:
    fn: Any = likelihoods.Categorical().distribution(OUTPUT)
    fn._validate_args = False
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        fn.log_prob(torch.full((5,), label))
