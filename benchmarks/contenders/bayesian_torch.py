"""bayesian-torch: dnn_to_bnn with reparameterisation or flipout layers, get_kl_loss divided by N."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.contenders.base import Contender, Predictor, Step, average
from benchmarks.work import LEARNING_RATE, Work


def _network(work: Work, kind: str) -> nn.Module:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    net = work.net()
    dnn_to_bnn(
        net,
        {
            "prior_mu": 0.0,
            "prior_sigma": 1.0,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -3.0,
            "type": kind,
            "moped_enable": False,
        },
    )
    return net


def training_step(work: Work, kind: str) -> Step:
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    net = _network(work, kind)
    optim = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> Tensor:
        optim.zero_grad()
        loss = F.cross_entropy(net(work.x), work.y) + get_kl_loss(net) / work.num_data
        loss.backward()
        optim.step()
        return loss

    return step


def predictor(work: Work, kind: str) -> Predictor:
    net = _network(work, kind).eval()
    return lambda x, num_samples: average(net, x, num_samples)


def _contender(title: str, kind: str) -> Contender:
    return Contender(
        title,
        "bayesian-torch",
        partial(training_step, kind=kind),
        partial(predictor, kind=kind),
        "bayesian_torch.models.dnn_to_bnn",
    )


REPARAMETERISATION = _contender("bayesian-torch, reparam.", "Reparameterization")
FLIPOUT = _contender("bayesian-torch, flipout", "Flipout")
