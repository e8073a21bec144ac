"""What guides share: copies have parameters of their own."""

import copy
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO

from pyro_bnn.guides import AutoDropout, AutoLowRankNormal, AutoPoint
from pyro_bnn.models import BNN, MLP, likelihoods, priors


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("make", [AutoPoint, AutoLowRankNormal, AutoDropout])
def test_a_copy_is_trained_alone(make: Any, local: bool) -> None:
    with pyro.settings.context(module_local_params=local):
        pyro.set_rng_seed(0)
        x, y = torch.randn(20, 3), torch.randint(2, (20,))
        model = BNN(MLP(3, 2, hidden=[4]), priors.Kaiming(), likelihoods.Categorical(), 20)
        guide = make(model)
        guide(x)
        twin = copy.deepcopy(guide)
        twin(x)
        before = {name: p.detach().clone() for name, p in guide.named_parameters()}
        SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)
        twin(x)
        for name, p in twin.named_parameters():
            assert torch.equal(p, before[name])
        assert any(not torch.equal(p, before[name]) for name, p in guide.named_parameters())
        names = {p.pyro_bnn_name for p in (*guide.parameters(), *twin.parameters())}
        assert len(names) == 2 * len(before)
