"""The bridge to laplace-torch; what needs the package is skipped where it is not installed."""

import importlib.util
import math
import warnings
from dataclasses import dataclass

import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_bnn.guides import AutoPoint
from pyro_bnn.inference import fit, kl
from pyro_bnn.inference.samplers.laplace import check_laplace, laplace_draws
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import Adam

installed = importlib.util.find_spec("laplace") is not None
needs_laplace = pytest.mark.skipif(not installed, reason="laplace-torch is not installed")


def linear(likelihood=None, prior=None, net=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    y = x @ torch.tensor([1.0, -1.0, 0.5]) + 0.3 * torch.randn(40, generator=generator)
    model = BNN(
        net or nn.Sequential(nn.Linear(3, 1)),
        prior or priors.Normal(0, 0.7),
        likelihood or likelihoods.Gaussian(0.3),
        40,
    )
    return model, AutoPoint(model), (x, y)


@needs_laplace
@pytest.mark.parametrize("eta", [1.0, 0.3])
def test_full_laplace_of_a_linear_model_is_its_posterior(eta):
    model, guide, (x, y) = linear()
    fit(model, guide, Adam({"lr": 0.05}), (x, y), epochs=400, batch_size=40, kl=kl.tempered(eta))
    design = torch.cat([x, torch.ones(40, 1)], 1).double()
    precision = design.T @ design / (0.09 * eta) + torch.eye(4) / 0.49
    covariance = torch.linalg.inv(precision)
    mean = covariance @ design.T @ y.double() / (0.09 * eta)
    n = 20_000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's
        draws = laplace_draws(model, guide, (x, y), draws=n, structure="full", eta=eta).double()
    d = covariance.diag()
    assert bool(((draws.mean(0) - mean).abs() < 5 * (d / n).sqrt() + 1e-3 * d.sqrt().max()).all())
    sd = ((d.outer(d) + covariance.square()) / n).sqrt()
    assert bool(((torch.cov(draws.T) - covariance).abs() < 5 * sd).all())


@needs_laplace
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_the_factored_hessians_have_the_order_of_the_sites(structure):
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    model, guide, (x, y) = linear(likelihoods.Categorical(), net=net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = laplace_draws(model, guide, (x, (y > 0).long()), draws=4000, structure=structure)
    sd = draws.std(0)
    assert bool((sd < 0.7 * (1 + 5 / math.sqrt(8000))).all())  # data cannot widen the prior
    z = (draws.mean(0) - guide.loc.detach()) / (sd / math.sqrt(4000))
    assert float(z.abs().max()) < 5  # 32 numbers: false alarm under 1e-4


@dataclass(frozen=True)
class Softmax(likelihoods.Likelihood):
    """The categorical likelihood under another name."""

    task = "classification"

    def distribution(self, output, parameters=None):
        return dist.Categorical(logits=output)

    def shape_target(self, y, output):
        return y


@pytest.mark.parametrize("likelihood", [likelihoods.Gaussian(0.3), likelihoods.Categorical(), Softmax()])
def test_a_likelihood_is_taken_by_its_law(likelihood):
    model, _, _ = linear(likelihood, net=nn.Sequential(nn.Linear(3, 2)))
    check_laplace(model)


@pytest.mark.parametrize(
    "likelihood",
    [
        likelihoods.Categorical(link="sigmoid"),
        likelihoods.Bernoulli(),
        likelihoods.HeteroscedasticGaussian(),
        likelihoods.StudentT(),
        likelihoods.Poisson(),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_other_laws_are_refused(likelihood):
    model, _, _ = linear(likelihood, net=nn.Sequential(nn.Linear(3, likelihood.outputs(1))))
    with pytest.raises(ValueError, match=f"'{type(likelihood).__name__}' has no Laplace approximation"):
        check_laplace(model)


@pytest.mark.skipif(installed, reason="laplace-torch is installed")
def test_without_the_package_it_says_so():
    model, guide, data = linear()
    with pytest.raises(ValueError, match="pip install laplace-torch"):
        laplace_draws(model, guide, data)


def test_what_is_refused():
    model, guide, data = linear()
    with pytest.raises(ValueError, match=r"the model is a function written by hand: .* needs a network"):
        check_laplace(lambda x, y=None: None)
    with pytest.raises(ValueError, match="structure='block'"):
        laplace_draws(model, guide, data, structure="block")
    with pytest.raises(ValueError, match="draws=0"):
        laplace_draws(model, guide, data, draws=0)
    for changes, message in (
        ({"likelihood": likelihoods.LearnedGaussian()}, "LearnedGaussian"),
        ({"prior": priors.Laplace()}, "needs Normal priors"),
    ):
        other, point, data = linear(**changes)
        with pytest.raises(ValueError, match=message):
            laplace_draws(other, point, data)
