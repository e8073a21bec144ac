"""torch_blue: convert_to_vimodule and KullbackLeiblerLoss, one weight sample per step."""

import torch
from torch import Tensor, nn

from benchmarks.contenders.base import Contender, Predictor, Step, average
from benchmarks.work import LEARNING_RATE, Work


def _network(work: Work) -> nn.Module:
    from torch_blue.vi import convert_to_vimodule

    net = work.net()
    convert_to_vimodule(net)
    return net


def training_step(work: Work) -> Step:
    from torch_blue.vi import KullbackLeiblerLoss
    from torch_blue.vi.distributions import Categorical

    net = _network(work)
    criterion = KullbackLeiblerLoss(Categorical(), dataset_size=work.num_data)
    optim = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> Tensor:
        optim.zero_grad()
        loss = criterion(net(work.x, samples=1), work.y)
        loss.backward()
        optim.step()
        return loss

    return step


def predictor(work: Work) -> Predictor:
    net = _network(work).eval()
    net.return_log_probs = False
    return lambda x, num_samples: average(lambda part: net(part, samples=1).squeeze(0), x, num_samples)


TORCH_BLUE = Contender("torch_blue", "torch_blue", training_step, predictor, "torch_blue.vi")
