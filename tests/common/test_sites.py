"""What a site of a trace is."""

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from pyro_bnn.common.sites import closed_kl, innermost, is_point_mass, is_subsample, leaf_of, sample_sites


def test_laws_unwrapped():
    normal = dist.Normal(torch.zeros(2, 3), 1.0)
    assert innermost(normal.to_event(1).to_event(1)) is innermost(innermost(normal.to_event(2)))
    assert isinstance(innermost(normal.to_event(2)), dist.Normal)
    assert innermost(normal) is normal
    lognormal = dist.LogNormal(torch.zeros(2), 1.0).to_event(1)
    assert isinstance(innermost(lognormal), dist.LogNormal)  # a change of variables is no wrapping
    assert is_point_mass(dist.Delta(torch.zeros(2)).to_event(1))
    assert not is_point_mass(normal)


def test_closed_kl_has_a_number_for_every_element_or_says_that_there_is_none():
    q, p = dist.Normal(torch.tensor([0.0, 1.0]), 1.0), dist.Normal(torch.zeros(2), 2.0)
    kl = closed_kl(q, p)
    exact = torch.log(torch.tensor(2.0)) + (1 + torch.tensor([0.0, 1.0])) / 8 - 0.5
    torch.testing.assert_close(kl, exact)
    assert closed_kl(q.to_event(1), p.to_event(1)).shape == ()
    assert closed_kl(dist.Normal(0.0, 1.0), dist.StudentT(3.0)) is None


def test_a_choice_of_rows_is_no_random_variable():
    def model():
        pyro.param("free", torch.ones(2))
        with pyro.plate("rows", 10, subsample_size=2):
            pyro.sample("w", dist.Normal(0.0, 1.0))

    trace = pyro.poutine.trace(model).get_trace()
    assert list(sample_sites(trace)) == ["w"]
    assert is_subsample(trace.nodes["rows"])
    assert not any(is_subsample(trace.nodes[name]) for name in ("w", "free"))
    leaf = leaf_of(trace.nodes["free"]["value"])
    assert leaf.is_leaf
    assert leaf.requires_grad
    bare = nn.Parameter(torch.zeros(1))
    assert leaf_of(bare) is bare
