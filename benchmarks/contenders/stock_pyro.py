"""Pyro as its tutorials use it: AutoNormal, TraceMeanField_ELBO, pyro.optim.Adam; Predictive for predictions."""

import pyro
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from benchmarks.contenders.base import Contender, Predictor, Step, average
from benchmarks.work import LEARNING_RATE, Work
from pyro_bnn.models import likelihoods, priors
from pyro_bnn.models.bnn import BNN


def training_step(work: Work) -> Step:
    model = BNN(work.net(), priors.Kaiming(), likelihoods.Categorical(), work.num_data)
    svi = SVI(model, AutoNormal(model), pyro.optim.Adam({"lr": LEARNING_RATE}), TraceMeanField_ELBO())
    return lambda: svi.step(work.x, work.y)


def predictor(work: Work) -> Predictor:
    model = BNN(work.net(), priors.Kaiming(), likelihoods.Categorical(), work.num_data).eval()
    guide = AutoNormal(model)
    guide(work.x, work.y)

    def predict(x: Tensor, num_samples: int) -> Tensor:
        draws = Predictive(model, guide=guide, num_samples=1, return_sites=("_RETURN",))
        return average(lambda part: draws(part)["_RETURN"].squeeze(0), x, num_samples)

    return predict


STOCK_PYRO = Contender("Pyro, AutoNormal", "pyro-ppl", training_step, predictor, "pyro")
