"""Welford's recursion, and averages that resume from it."""

import math

import pytest
import torch

from pyro_bnn.common.moments import Welford
from pyro_bnn.inference import RunningMoments


def test_moments_are_those_of_two_passes():
    x = 1e6 + torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sums: Welford[torch.Tensor] = Welford(torch.zeros(3, dtype=torch.float64))
    for n, value in enumerate(x, 1):
        sums.update(value)
        torch.testing.assert_close(sums.mean, x[:n].mean(0), rtol=1e-14, atol=0)
        torch.testing.assert_close(sums.variance(), x[:n].var(0, correction=0), rtol=1e-9, atol=0)
    torch.testing.assert_close(sums.variance(1), x.var(0), rtol=1e-9, atol=0)
    numbers: Welford[float] = Welford()
    for value in (1.0, 2.0, 6.0):
        numbers.update(value)
    assert (numbers.mean, numbers.variance(), numbers.variance(1)) == (3.0, 14 / 3, 7.0)


def test_an_infinite_number_makes_mean_and_spread_infinite():
    sums: Welford[float] = Welford()
    for value in (1.0, math.inf, 2.0):
        sums.update(value)
    assert sums.mean == math.inf
    assert sums.variance() == math.inf


def test_what_was_not_seen_has_no_variance():
    with pytest.raises(ValueError, match="0 values have no variance"):
        Welford().variance()
    one: Welford[float] = Welford()
    one.update(1.0)
    with pytest.raises(ValueError, match="divisor n - 1"):
        one.variance(1)


def test_running_moments_go_on_to_the_same_bits_and_read_states_of_before():
    mus = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole, first = RunningMoments(), RunningMoments()
    for mu in mus:
        whole.update(mu, mu.exp())
    for mu in mus[:5]:
        first.update(mu, mu.exp())
    state = first.state_dict()
    before = {**state, "sums": dict(state["sums"])}
    before["sums"]["between"] = before["sums"].pop("spread") / 5  # what was saved before the sum was
    for saved, same in ((state, True), (before, False)):
        again = RunningMoments()
        again.load_state_dict(saved)
        assert again.count == 5
        for mu in mus[5:]:
            again.update(mu, mu.exp())
        assert torch.equal(again.mean, whole.mean)
        if same:
            assert torch.equal(again.variance, whole.variance)
        torch.testing.assert_close(again.variance, whole.variance, rtol=1e-13, atol=0)
    empty = RunningMoments()
    empty.load_state_dict(RunningMoments().state_dict())
    assert empty.count == 0
