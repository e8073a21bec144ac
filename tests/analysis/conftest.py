"""Small posteriors for the tests of analysis: untrained networks with wide guides, and exact ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_bnn.data import Standardiser
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import Posterior

NAMES = ["ant", "bee", "cat"]


@dataclass
class Case:
    """A posterior with rows to try it on."""

    posterior: Posterior
    x: Tensor
    y: Tensor


def classifier(shape: tuple[int, ...] = (5,), n: int = 40, hidden: int = 8, **info: Any) -> Case:
    """Three classes, a hidden layer, sigma = softplus(-1): draws that differ."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.rand(n, *shape, generator=generator)
    net = MLP(shape, 3, hidden=(hidden,))
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), n)
    guide = AutoMeanFieldNormal(model, init_rho=-1.0)
    standardiser = Standardiser.fit(raw)
    known = {
        "task": "classification",
        "data": "made",
        "input_shape": list(shape),
        "class_names": NAMES,
        "standardiser": standardiser.to_dict(),
        "num_data": n,
        "eta": 1.0,
        "temperature": 1.0,
        "method": "svi",
    }
    labels = torch.randint(0, 3, (n,), generator=generator)
    return Case(Posterior(model, guide, {**known, **info}), standardiser.apply(raw), labels)


def regressor(likelihood: Any = None, targets: int = 1, n: int = 30, **info: Any) -> Case:
    """Targets in units of 10 with mean 50, standardised for the model."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator)
    raw = 50 + 10 * torch.randn(*((n,) if targets == 1 else (n, targets)), generator=generator)
    likelihood = likelihood or likelihoods.Gaussian(0.5)
    outputs = targets * (2 if isinstance(likelihood, likelihoods.HeteroscedasticGaussian) else 1)
    model = BNN(MLP(4, outputs, hidden=(6,)), priors.Kaiming(), likelihood, n)
    guide = AutoMeanFieldNormal(model, init_rho=-2.0)
    scale = Standardiser.fit(raw)
    known = {"task": "regression", "input_shape": [4], "y_standardiser": scale.to_dict(), "num_data": n}
    return Case(Posterior(model, guide, {**known, **info}), x, scale.apply(raw))


@pytest.fixture
def make_classifier() -> Callable[..., Case]:
    return classifier


@pytest.fixture
def make_regressor() -> Callable[..., Case]:
    return regressor


@pytest.fixture
def classes() -> Case:
    return classifier()


@pytest.fixture
def numbers() -> Case:
    return regressor()
