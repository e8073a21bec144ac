"""What a draw is follows from the law of the observations: of classes by a rule, of numbers otherwise."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.nn import functional as F

from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.inference.draws import ClassDraw, RealDraw, draw_of, joined
from pyro_bnn.inference.laws import class_log_probs
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import Adam
from pyro_bnn.posterior import Posterior

LOGITS = torch.tensor([[0.3, -1.2, 2.0], [30.0, 0.0, -30.0], [1e4, 1e4 - 1, 0.0], [0.0, 0.0, 0.0]])


class Ordinal(TorchDistribution):
    """Three ordered classes with cut-points -1 and 1: P(Y <= k) = sigmoid(cut_k - f). It has no mean."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.integer_interval(0, 2)
    has_enumerate_support = True

    def __init__(self, f: Tensor) -> None:
        self.f = f
        super().__init__(f.shape, validate_args=False)

    @property
    def probs(self) -> Tensor:
        low, high = torch.sigmoid(-1 - self.f), torch.sigmoid(1 - self.f)
        return torch.stack([low, high - low, 1 - high], -1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return Ordinal(self.f.expand(batch_shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = torch.arange(3).reshape(3, *(1 for _ in self.f.shape))
        return values.expand(3, *self.f.shape) if expand else values

    def log_prob(self, value: Tensor) -> Tensor:
        value, f = torch.broadcast_tensors(value, self.f)
        return Ordinal(f).probs.log().gather(-1, value.long().unsqueeze(-1)).squeeze(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return dist.Categorical(probs=self.probs).sample(sample_shape)


@dataclass(frozen=True)
class OrdinalClasses(likelihoods.Likelihood):
    """The likelihood of ordered classes: one file, which the library knows nothing of."""

    task = "classification"

    def outputs(self, targets: int) -> int:
        return 1

    def distribution(self, output: Tensor, parameters: Any = None) -> Distribution:
        return Ordinal(output.squeeze(-1))

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        return y


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
    torch.testing.assert_close(draw.prediction, law.probs)
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


def test_a_likelihood_of_ones_own_is_scored_as_classes_everywhere() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = dist.Categorical(probs=Ordinal(3 * x[:, 0]).probs).sample()
    model = BNN(nn.Linear(2, 1), priors.Normal(), OrdinalClasses(), 60)
    guide = AutoMeanFieldNormal(model)
    history = fit(model, guide, Adam({"lr": 0.05}), (x, y), val=(x, y), epochs=30, batch_size=60, seed=0).history
    assert history[-1]["val_accuracy"] > max(history[0]["val_accuracy"], float((y == y.mode().values).double().mean()))
    posterior = Posterior(model, guide)
    predicted = posterior.predict(x, 20, seed=0)
    assert predicted.shape == (60, 3)
    weight, bias = (guide.median()[f"net.{name}"] for name in ("weight", "bias"))
    plugged = next(posterior.stream(x, 1, plug_in=True)).prediction
    torch.testing.assert_close(plugged, Ordinal((x @ weight.T + bias).squeeze(-1)).probs)
    table = posterior.evaluate(x, y, 20, seed=0)["s_draws"]
    assert table["pred_nll"] == pytest.approx(-float(predicted.gather(1, y[:, None]).log().mean()), rel=1e-5)
    exported = posterior.to_arviz(x, y, 5, prior_samples=3)
    assert exported.predictions["probability"].shape == (1, 5, 60, 3)
    assert set(exported.posterior_predictive["obs"].values.ravel()) <= {0, 1, 2}
