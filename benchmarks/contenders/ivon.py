"""IVON, as its README has it: an optimizer that samples the weights it trains."""

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contenders.base import Contender, Predictor, Step, average
from benchmarks.work import Work


def training_step(work: Work) -> Step:
    import ivon

    net = work.net()
    optim = ivon.IVON(net.parameters(), lr=0.01, ess=work.num_data)

    def step() -> Tensor:
        with optim.sampled_params(train=True):
            optim.zero_grad()
            loss = F.cross_entropy(net(work.x), work.y)
            loss.backward()
        optim.step()
        return loss

    return step


def predictor(work: Work) -> Predictor:
    import ivon

    net = work.net()
    optim = ivon.IVON(net.parameters(), lr=0.01, ess=work.num_data)
    with optim.sampled_params(train=True):
        F.cross_entropy(net(work.x), work.y).backward()
    optim.step()
    net.eval()

    def predict(x: Tensor, num_samples: int) -> Tensor:
        total = torch.zeros(())
        for _ in range(num_samples):
            with optim.sampled_params():
                total = total + average(net, x, 1)
        return total / num_samples

    return predict


IVON = Contender("IVON", "ivon-opt", training_step, predictor, "ivon")
