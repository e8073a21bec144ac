"""posteriors: vi.diag over a functional log-posterior, with torchopt's Adam."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.contenders.base import Contender, Predictor, Step, average
from benchmarks.work import LEARNING_RATE, Work


def _state(work: Work) -> tuple[nn.Module, object, object]:
    import posteriors
    import torchopt

    net = work.net()

    def log_posterior(params: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = batch
        output = functional_call(net, params, (x,))
        return -F.cross_entropy(output, y) + posteriors.diag_normal_log_prob(params) / work.num_data, output

    transform = posteriors.vi.diag.build(
        log_posterior, torchopt.adam(lr=LEARNING_RATE), temperature=1 / work.num_data, init_log_sds=-4.0
    )
    return net, transform, transform.init(dict(net.named_parameters()))


def training_step(work: Work) -> Step:
    _, transform, state = _state(work)

    def step() -> None:
        nonlocal state
        state, _ = transform.update(state, (work.x, work.y))  # type: ignore[attr-defined]

    return step


def predictor(work: Work) -> Predictor:
    import posteriors

    net, _, state = _state(work)
    net.eval()

    def predict(x: Tensor, num_samples: int) -> Tensor:
        total = torch.zeros(())
        for _ in range(num_samples):
            weights = posteriors.vi.diag.sample(state)  # one draw for the whole set
            total = total + average(lambda part, w=weights: functional_call(net, w, (part,)), x, 1)  # type: ignore[misc]
        return total / num_samples

    return predict


POSTERIORS = Contender("posteriors, vi.diag", "posteriors", training_step, predictor, "posteriors")
