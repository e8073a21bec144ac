"""What a draw is follows from the law of the observations: of classes by a rule, of numbers otherwise."""

from typing import Any, ClassVar

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn import functional as F

from pyro_bnn.inference.draws import ClassDraw, RealDraw, draw_of, joined
from pyro_bnn.inference.laws import class_log_probs

LOGITS = torch.tensor([[0.3, -1.2, 2.0], [30.0, 0.0, -30.0], [1e4, 1e4 - 1, 0.0], [0.0, 0.0, 0.0]])


class Ordinal(Distribution):
    """Three ordered classes with cut-points -1 and 1: P(Y <= k) = sigmoid(cut_k - f). It has no mean."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_enumerate_support = True

    def __init__(self, f: Tensor) -> None:
        self.f = f
        super().__init__(f.shape, validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.integer_interval(0, 2)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = torch.arange(3).reshape(3, *(1 for _ in self.f.shape))
        return values.expand(3, *self.f.shape) if expand else values

    def probs(self) -> Tensor:
        low, high = torch.sigmoid(-1 - self.f), torch.sigmoid(1 - self.f)
        return torch.stack([low, high - low, 1 - high], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        return (
            self.probs()
            .log()
            .expand(*value.shape[:-1], *self.f.shape, 3)
            .gather(-1, value.expand(*value.shape[:-1], *self.f.shape).unsqueeze(-1))
            .squeeze(-1)
        )


class Said:
    """A law that says itself that it is one of classes."""

    log_probs = torch.tensor([[0.25, 0.75]]).log()


def test_torchs_categorical_is_of_classes_to_the_bit() -> None:
    law = dist.Categorical(logits=LOGITS)
    assert torch.equal(class_log_probs(law), law.logits.log_softmax(-1))


def test_log_probabilities_of_no_and_yes_keep_their_digits() -> None:
    """With logit -20, log P(no) = -log(1 + e^-20) = -2.061153620e-9, which float32 loses beside 1."""
    log_probs = class_log_probs(dist.Bernoulli(logits=torch.tensor([-20.0, 0.0, 20.0])))
    exact = F.logsigmoid(torch.tensor([[20.0, -20.0], [0.0, 0.0], [-20.0, 20.0]], dtype=torch.float64))
    torch.testing.assert_close(log_probs, exact.float(), rtol=1e-6, atol=0)


def test_a_law_of_labels_of_ones_own_is_of_classes() -> None:
    law = Ordinal(torch.tensor([-0.5, 0.0, 2.0, 0.7]))
    draw = draw_of(law)
    assert isinstance(draw, ClassDraw)
    torch.testing.assert_close(draw.prediction, law.probs())
    assert class_log_probs(Said()) is Said.log_probs


@pytest.mark.parametrize(
    "law",
    [
        dist.Binomial(2, logits=torch.zeros(4)),
        dist.BetaBinomial(torch.ones(4), torch.ones(4), 2),
        dist.Poisson(torch.ones(4)),
        dist.Geometric(torch.full((4,), 0.5)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_counts_are_no_classes_even_if_they_are_few(law: Any) -> None:
    draw = draw_of(law)
    assert class_log_probs(law) is None
    assert isinstance(draw, RealDraw)
    assert draw.counts
    assert draw.whole_numbers
    assert draw.sample(torch.Generator().manual_seed(0)).dtype == torch.int64


@pytest.mark.parametrize("law", [dist.Normal(torch.zeros(4), 1.0), dist.StudentT(4.0, torch.zeros(4), 1.0)])
def test_numbers_are_no_counts(law: Any) -> None:
    draw = draw_of(law)
    assert isinstance(draw, RealDraw)
    assert not draw.counts
    assert not draw.whole_numbers
    assert draw.mean.shape == draw.sd.shape == (4, 1)
    assert bool(draw.laws) == (not isinstance(law, dist.Normal))  # a Normal is its mean and deviation
    y = torch.tensor([0.0, 1.0, -2.0, 0.5])
    torch.testing.assert_close(draw.log_prob(y), law.log_prob(y))
    torch.testing.assert_close(draw.log_prob(y, wide=True), law.log_prob(y).double())


def test_parts_are_joined_in_their_order() -> None:
    law = dist.Categorical(logits=LOGITS)
    whole = joined([draw_of(dist.Categorical(logits=part)) for part in LOGITS.split(3)])
    assert torch.equal(whole.prediction, draw_of(law).prediction)
    assert torch.equal(whole.rows(slice(1, 3)).prediction, whole.prediction[1:3])
    laws = [dist.Poisson(torch.tensor([1.0, 2.0])), dist.Poisson(torch.tensor([3.0]))]
    counts = joined([draw_of(law) for law in laws])
    assert counts.prediction[:, 0].tolist() == [1, 2, 3]
    y = torch.tensor([0, 1, 2])
    torch.testing.assert_close(counts.log_prob(y), dist.Poisson(torch.tensor([1.0, 2.0, 3.0])).log_prob(y))
    with pytest.raises(ValueError, match="Poisson of all rows is not cut"):
        counts.rows(slice(0, 2))
