"""torchbnn: BayesConv2d and BayesLinear layers, BKLLoss summed and divided by N."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.contenders.base import Contender, Predictor, Step, average, replace
from benchmarks.work import LEARNING_RATE, Work


def _network(work: Work) -> nn.Module:
    import torchbnn

    def dense(layer: nn.Module) -> nn.Module:
        assert isinstance(layer, nn.Linear)
        return torchbnn.BayesLinear(0, 0.1, layer.in_features, layer.out_features, bias=layer.bias is not None)

    def convolution(layer: nn.Module) -> nn.Module:
        assert isinstance(layer, nn.Conv2d)
        return torchbnn.BayesConv2d(
            0,
            0.1,
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            bias=layer.bias is not None,
        )

    net = work.net()
    replace(net, nn.Linear, dense)
    replace(net, nn.Conv2d, convolution)
    return net


def training_step(work: Work) -> Step:
    import torchbnn

    net = _network(work)
    kl = torchbnn.BKLLoss(reduction="sum", last_layer_only=False)
    optim = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> Tensor:
        optim.zero_grad()
        loss = F.cross_entropy(net(work.x), work.y) + kl(net) / work.num_data
        loss.backward()
        optim.step()
        return loss

    return step


def predictor(work: Work) -> Predictor:
    net = _network(work).eval()
    return lambda x, num_samples: average(net, x, num_samples)


TORCHBNN = Contender("torchbnn", "torchbnn", training_step, predictor, "torchbnn")
