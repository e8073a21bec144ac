"""What draws of one prediction share is computed once, and again where the parameter was written to."""

import torch
from torch import Tensor, nn

from pyro_bnn.common.kept import Kept, kept
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference.predictive import predictive_draws
from pyro_bnn.models import BNN, MLP, likelihoods, priors


def test_computed_once_for_a_parameter_that_nobody_writes_to() -> None:
    calls: list[Tensor] = []

    def compute(x: Tensor) -> Tensor:
        calls.append(x)
        return x.exp()

    parameter, other = nn.Parameter(torch.zeros(3)), torch.zeros(3)
    store = Kept()
    with torch.no_grad():
        kept(compute, parameter)
        with store.open():
            assert kept(compute, parameter) is kept(compute, parameter)
        with store.open():
            first = kept(compute, parameter)
            assert len(calls) == 2
            parameter.add_(1)
            assert torch.equal(kept(compute, parameter), first * torch.ones(3).exp())
            parameter.data = torch.zeros(3)
            assert torch.equal(kept(compute, parameter), first)
            kept(compute, other), kept(compute, other)
    assert len(calls) == 6
    with store.open():
        assert kept(compute, parameter).requires_grad
    kept(compute, parameter)
    assert len(calls) == 8


def test_draws_of_a_prediction_compute_deviations_once_and_follow_what_is_written() -> None:
    model = BNN(MLP(3, 2, [4]), priors.Normal(), likelihoods.Categorical(), 10)
    guide = AutoMeanFieldNormal(model, init_scale=0.1)
    calls: list[Tensor] = []
    scale_of = guide.scale_of
    guide.scale_of = lambda rho: calls.append(rho) or scale_of(rho)  # type: ignore[assignment,func-returns-value]
    x = torch.randn(5, 3)
    draws = predictive_draws(model, guide, x, 6, seed=0)
    for _ in range(3):
        next(draws)
    assert len(calls) == 1
    for name in guide.site_names():
        guide.assign(name, torch.zeros(guide.site(name).loc.shape), torch.full(guide.site(name).loc.shape, 1e-6))
    before = len(calls)
    last = [draw.log_probs for draw in draws]  # type: ignore[union-attr]
    assert len(calls) == before + 1
    assert float((last[0] - last[1]).abs().max()) < 1e-4
