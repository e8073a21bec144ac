"""The arithmetic of docs/scale.md against cases computed by hand, and against what a training really holds."""

import json
from collections.abc import Iterator
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI
from torch import nn

from benchmarks.scale import (
    CASES,
    MEASURED,
    PAGE,
    Counts,
    activation_bytes,
    all_reduced,
    counted,
    efficiency,
    markdown,
    memory,
    ring_seconds,
)
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import FlatMeanField_ELBO, per_datum
from pyro_bnn.models import BNN, LeNet5, likelihoods, priors
from pyro_bnn.optim import Adam


def test_memory_by_hand() -> None:
    counts = Counts(random=1000, others=10, activations=500)
    assert memory(counts, uncertain=False) == {
        "parameters": 4040, "gradients": 4040, "moments": 8080, "step": 0, "activations": 500
    }  # fmt: skip
    assert memory(counts, uncertain=True) == {
        "parameters": 8040, "gradients": 8040, "moments": 16080, "step": 16000, "activations": 500
    }  # fmt: skip
    assert (all_reduced(counts, False), all_reduced(counts, True)) == (4040, 8040)


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [
        (1, 0.0),
        (2, 1.0 + 2e-3),  # 2 * 1/2 of 1 Gbit at 1 Gbit/s, and 2 messages of 1 ms
        (4, 1.5 + 6e-3),
        (64, 2 * 63 / 64 + 126e-3),
    ],
)
def test_a_ring_by_hand(ranks: int, seconds: float) -> None:
    assert ring_seconds(125_000_000, ranks, 1.0, 1e-3) == pytest.approx(seconds, rel=1e-12)


def test_a_ring_is_what_its_ranks_send() -> None:
    """A ring step by step: n - 1 rounds of sums and n - 1 of results, each rank sending one of n parts per round."""
    size, ranks, gbits, latency = 8_000_000, 8, 10.0, 5e-5
    seconds = 0.0
    for _ in range(2 * (ranks - 1)):
        seconds += 8 * (size / ranks) / (gbits * 1e9) + latency
    assert ring_seconds(size, ranks, gbits, latency) == pytest.approx(seconds, rel=1e-12)


def test_efficiency_by_hand() -> None:
    assert efficiency(3.0, 125_000_000, 2, 1.0, 0.0) == pytest.approx(0.75)
    assert efficiency(0.5, 125_000_000, 1, 1.0, 1.0) == 1.0


def test_activations_by_hand() -> None:
    """Of x (B, 5), h = relu(x W) (B, 7) and h V (B, 3): x and h are kept, h once though two layers ask for it."""
    with torch.device("meta"):
        net, x = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), torch.empty(11, 5)
    assert activation_bytes(net, x) == 4 * 11 * (5 + 7)


PARAMETERS = {
    "lenet5": 61_706,  # 6 (25 + 1) + 16 (150 + 1) + 120 (400 + 1) + 84 (120 + 1) + 10 (84 + 1)
    "resnet20": 269_722,  # He et al. 2016: 0.27 M
    "densenet121": 6_956_426,
    "wide_resnet": 36_479_194,  # Zagoruyko and Komodakis 2016: 36.5 M
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_networks(name: str) -> None:
    counts = counted(CASES[name])
    assert counts.random + counts.others == PARAMETERS[name]


def test_a_training_holds_what_is_counted() -> None:
    """Parameters, gradients and Adam's moments of LeNet-5 after a step, to the byte."""
    x, y = torch.randn(4, 1, 28, 28), torch.randint(10, (4,))
    model = BNN(LeNet5(), priors.Kaiming(), likelihoods.Categorical(), num_data=100)
    guide, optim = AutoMeanFieldNormal(model), Adam({"lr": 1e-3})
    with per_datum(100):
        SVI(model, guide, optim, FlatMeanField_ELBO()).step(x, y)
    wanted = memory(Counts(61_706, 0, 0), uncertain=True)
    held = [value for value in pyro.get_param_store()._params.values()] or list(guide.parameters())
    assert sum(tensor.numel() * tensor.element_size() for tensor in held) == wanted["parameters"]
    moments = list(_tensors(optim.get_state(), ("exp_avg", "exp_avg_sq")))
    assert sum(tensor.numel() * tensor.element_size() for tensor in moments) == wanted["moments"]


def _tensors(state: Any, names: tuple[str, ...]) -> Iterator[torch.Tensor]:
    """Yield the tensors under these names, at any depth."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if isinstance(value, torch.Tensor):
            if key in names:
                yield value
        elif isinstance(value, (dict, list, tuple)):
            yield from _tensors(value, names)


def test_the_page_is_what_the_command_writes() -> None:
    measured = json.loads(MEASURED.read_text())
    text = markdown({name: counted(case) for name, case in CASES.items()}, measured)
    assert text in PAGE.read_text(), "write it again: python -m benchmarks.scale"
    assert set(measured["steps"]) == set(CASES)
    assert {name: step["batch"] for name, step in measured["steps"].items()} == {n: c.batch for n, c in CASES.items()}
