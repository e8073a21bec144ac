"""BLiTZ, as its README has it: BayesianConv2d, BayesianLinear, variational_estimator, sample_elbo."""

import torch
from torch import Tensor, nn

from benchmarks.contenders.base import Contender, Predictor, Step, average, replace
from benchmarks.work import LEARNING_RATE, Work


def _network(work: Work) -> nn.Module:
    from blitz.modules import BayesianConv2d, BayesianLinear
    from blitz.utils import variational_estimator

    def dense(layer: nn.Module) -> nn.Module:
        assert isinstance(layer, nn.Linear)
        return BayesianLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)

    def convolution(layer: nn.Module) -> nn.Module:
        assert isinstance(layer, nn.Conv2d)
        return BayesianConv2d(
            layer.in_channels,
            layer.out_channels,
            kernel_size=layer.kernel_size,
            stride=layer.stride[0],
            padding=layer.padding[0],
            bias=layer.bias is not None,
        )

    @variational_estimator
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = work.net()
            replace(self.net, nn.Linear, dense)
            replace(self.net, nn.Conv2d, convolution)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    return Network()


def training_step(work: Work) -> Step:
    net = _network(work)
    criterion = nn.CrossEntropyLoss()
    optim = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> Tensor:
        optim.zero_grad()
        loss = net.sample_elbo(
            inputs=work.x,
            labels=work.y,
            criterion=criterion,
            sample_nbr=1,
            complexity_cost_weight=1 / work.num_data,
        )
        loss.backward()
        optim.step()
        return loss

    return step


def predictor(work: Work) -> Predictor:
    net = _network(work).eval()
    return lambda x, num_samples: average(net, x, num_samples)


BLITZ = Contender("BLiTZ", "blitz-bayesian-pytorch", training_step, predictor, "blitz.modules")
