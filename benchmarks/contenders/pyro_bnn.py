"""Ours: the step that `fit` takes, stock SVI.step with our ELBO, and the step of `fit` for a network of one's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pyro.infer import SVI
from torch import Tensor

from benchmarks.contenders.base import Contender, Predictor, Step
from benchmarks.work import LEARNING_RATE, Work
from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.kl import per_datum
from pyro_bnn.inference.minibatch import MinibatchStep
from pyro_bnn.inference.reparam import flipout, local_reparameterization
from pyro_bnn.models import likelihoods, priors
from pyro_bnn.models.bnn import BNN
from pyro_bnn.optim import Adam
from pyro_bnn.posterior import Posterior


def _programs(work: Work) -> tuple[Any, Any]:
    model = BNN(work.net(), priors.Kaiming(), likelihoods.Categorical(), work.num_data, keep_values=False)
    return model, AutoMeanFieldNormal(model)


def _fit_step(work: Work, trace: bool | None) -> Step:
    model, guide = _programs(work)
    take = MinibatchStep(
        model, guide, Adam({"lr": LEARNING_RATE}), FlatMeanField_ELBO(trace=trace), work.num_data, undisturbed=True
    )

    def step() -> Tensor:
        return take(1.0, (work.x, work.y))[0]

    return step


def fit_step(work: Work) -> Step:
    return _fit_step(work, trace=None)


def _layers_step(work: Work, handler: Callable[[], Any]) -> Step:
    take, layers = _fit_step(work, trace=None), handler()

    def step() -> Any:
        with layers:
            return take()

    return step


def eager_step(work: Work) -> Step:
    return _fit_step(work, trace=False)


def svi_step(work: Work) -> Step:
    model, guide = _programs(work)
    stock = SVI(model, guide, Adam({"lr": LEARNING_RATE}), FlatMeanField_ELBO())

    def step() -> float:
        with per_datum(work.num_data):
            return stock.step(work.x, work.y)

    return step


def predictor(work: Work) -> Predictor:
    model, guide = _programs(work)
    posterior = Posterior(model, guide)

    def predict(x: Tensor, num_samples: int) -> Tensor:
        return posterior.predict(x, num_samples)

    return predict


FIT = Contender("pyro-bnn, fit", "pyro-bnn", fit_step, predictor, "pyro_bnn")
SVI_STEP = Contender("pyro-bnn, stock SVI.step", "pyro-bnn", svi_step)
LOCAL = Contender("pyro-bnn, local reparam.", "pyro-bnn", partial(_layers_step, handler=local_reparameterization))
FLIPOUT = Contender("pyro-bnn, flipout", "pyro-bnn", partial(_layers_step, handler=flipout))
EAGER = Contender("pyro-bnn, fit, nothing recorded", "pyro-bnn", eager_step)
