"""The random state that a fit keeps, CUDA's too, on a machine that pretends to have two devices."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pyro_bnn.common import randomness
from pyro_bnn.common.randomness import RandomState
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import Callback, fit
from pyro_bnn.inference.checkpoint import load_state, save_state
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import Adam


@pytest.fixture
def devices(monkeypatch):
    """Two devices whose states are kept here."""
    states = [torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([3, 4], dtype=torch.uint8)]

    def put(values):
        assert len(values) <= len(states)
        states[: len(values)] = [v.clone() for v in values]

    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: len(states),
        get_rng_state_all=lambda: [s.clone() for s in states],
        set_rng_state_all=put,
    )
    known = {name: getattr(torch, name) for name in ("get_rng_state", "set_rng_state", "equal")}
    monkeypatch.setattr(randomness, "torch", SimpleNamespace(cuda=cuda, **known))
    return states


def test_the_state_of_every_device_is_taken_compared_and_put_back(devices):
    before = RandomState.now()
    assert before.same(RandomState.now())
    devices[1] = torch.tensor([9, 9], dtype=torch.uint8)
    assert not before.same(RandomState.now())
    before.restore()
    assert before.same(RandomState.now())
    assert devices[1].tolist() == [3, 4]
    assert not before.same(RandomState(before.cpu, before.cuda[:1]))
    del devices[1]
    before.restore()  # of a machine with more devices
    assert len(devices) == 1


class Kept(Callback):
    """Keep the state after the first epoch."""

    def __init__(self, devices):
        self.devices, self.state = devices, None

    def epoch(self, state):
        if self.state is None:
            self.state = state.state_dict()
            self.devices[0] = torch.tensor([7, 7], dtype=torch.uint8)  # what the second epoch draws from it


@pytest.mark.parametrize("written", [False, True], ids=["in memory", "from files"])
def test_a_fit_takes_up_the_state_of_every_device(devices, written, tmp_path):
    x, y = torch.randn(12, 3), torch.randint(0, 2, (12,))

    def run(**options):
        model = BNN(nn.Linear(3, 2), priors.Normal(1.0), likelihoods.Categorical(), num_data=12)
        return fit(model, AutoMeanFieldNormal(model), Adam({"lr": 0.01}), (x, y), epochs=2, batch_size=6, **options)

    kept = Kept(devices)
    run(callbacks=[kept])
    assert [s.tolist() for s in kept.state["cuda_rng"]] == [[1, 2], [3, 4]]
    assert devices[0].tolist() == [7, 7]
    if written:
        save_state(tmp_path / "state", kept.state)
        kept.state = load_state(tmp_path / "state")
    run(resume=kept.state)
    assert devices[0].tolist() == [1, 2]
    old = {key: value for key, value in kept.state.items() if key != "cuda_rng"}  # saved before it was kept
    run(resume=old)
