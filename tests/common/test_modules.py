"""Which modules a program runs: found beforehand or as they are called, in eval mode, and with their buffers kept."""

from functools import partial
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import module as pyro_module
from pyro import plate, sample
from torch import Tensor, nn

from pyro_bnn.common.modules import evaluation_mode, reachable_modules, untouched
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.optim import Adam
from pyro_bnn.posterior import Posterior

GLOBAL = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
HIDDEN: dict[str, Any] = {}


def batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def helper(net: nn.Module, x: Tensor) -> Tensor:
    return net(x)  # type: ignore[no-any-return]


class Listed(nn.Module):
    """A module that keeps another in a plain list."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.others = [net]

    def forward(self, x: Tensor) -> Tensor:
        return self.others[0](x)  # type: ignore[no-any-return]


class Plain:
    """An object that is no module and calls one's forward."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def run(self, x: Tensor) -> Tensor:
        return self.net.forward(x)  # type: ignore[no-any-return]


def registered(net: nn.Module, x: Tensor) -> Tensor:
    return HIDDEN["find"]()(x)  # type: ignore[no-any-return]


WAYS: dict[str, Any] = {
    "closure": lambda net: lambda x: net(x),
    "partial": lambda net: partial(helper, net),
    "method": lambda net: Plain(net).run,
    "list": lambda net: Listed(net),
    "default": lambda net: lambda x, net=net: net(x),
    "container": lambda net: lambda x, nets={"a": [net]}: nets["a"][0].forward(x),
    "another function": lambda net: (lambda inner: lambda x: inner(x))(lambda x: net.forward(x)),
    "hidden": lambda net: HIDDEN.update(find=iter([net] * 100).__next__) or (lambda x: HIDDEN["find"]()(x)),
}


@pytest.mark.parametrize("way", WAYS)
def test_modules_are_in_eval_mode_however_they_are_reached(way: str) -> None:
    net = batch_norm()
    run = WAYS[way](net)
    before = [buffer.clone() for buffer in net.buffers()]
    x = torch.randn(6, 4)
    with evaluation_mode(run):
        first, second = run(x), run(x)
    assert torch.equal(first, second)
    assert all(torch.equal(buffer, kept) for buffer, kept in zip(net.buffers(), before, strict=True))
    assert all(module.training for module in net.modules())
    net[0].eval()
    with pytest.raises(RuntimeError), evaluation_mode(run):
        run(torch.zeros(2, 3))  # of a shape that it does not take
    assert [module.training for module in net] == [False, True, True]
    with untouched(run):
        run(x)
    assert all(torch.equal(buffer, kept) for buffer, kept in zip(net.buffers(), before, strict=True))


def test_globals_are_found() -> None:
    assert GLOBAL[1] in reachable_modules(lambda x: GLOBAL(x))


@pytest.mark.parametrize("way", ["closure", "list", "hidden", "method"])
def test_a_function_program_predicts_and_validates_in_eval_mode(way: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=generator) * torch.linspace(0.2, 5, 40)[:, None]
    y = torch.randint(3, (40,), generator=generator)
    net = batch_norm()
    run = WAYS[way](net)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        pyro_module("net", net)
        features = run(x)
        w = sample("w", dist.Normal(torch.zeros(4, 3), 1.0).to_event(2))
        with plate("data", 40, subsample=torch.arange(len(x))):
            sample("obs", dist.Categorical(logits=features @ w), obs=y)

    def trained(val: Any) -> tuple[AutoMeanFieldNormal, Tensor]:
        torch.manual_seed(1)
        net.load_state_dict(batch_norm().state_dict())
        guide = AutoMeanFieldNormal(model)
        fit(model, guide, Adam({"lr": 1e-2}), (x, y), epochs=2, batch_size=10, seed=0, val=val)
        return guide, net[1].running_mean.clone()  # type: ignore[index, operator]

    (_, plain), (guide, validated) = trained(None), trained((x, y))
    assert torch.equal(plain, validated)
    assert int(net[1].num_batches_tracked) == 8  # type: ignore[index, call-overload]  # the training steps, no other call
    posterior = Posterior(model, guide)
    a, b = posterior.predict(x, 3, seed=1, chunk=10), posterior.predict(x, 3, seed=1, chunk=40)
    torch.testing.assert_close(a, b)
    assert torch.equal(net[1].running_mean, validated)  # type: ignore[index, arg-type]
    assert net.training
