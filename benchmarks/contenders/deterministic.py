"""The same network without uncertainty, in plain PyTorch: what everybody is compared with."""

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contenders.base import Contender, Predictor, Step, average
from benchmarks.work import LEARNING_RATE, Work


def training_step(work: Work) -> Step:
    net = work.net()
    optim = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> Tensor:
        optim.zero_grad()
        loss = F.cross_entropy(net(work.x), work.y)
        loss.backward()
        optim.step()
        return loss

    return step


def predictor(work: Work) -> Predictor:
    net = work.net().eval()
    return lambda x, num_samples: average(net, x, num_samples)


DETERMINISTIC = Contender("PyTorch, deterministic", "torch", training_step, predictor, "torch")
