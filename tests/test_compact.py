"""Compact posteriors: what the codes lose, and what they must not touch."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, MLP, ResNet20, likelihoods, priors
from pyro_bnn.posterior.compact import decode, encode
from pyro_bnn.runs.loading import load


def test_standard_deviations_come_back_within_half_a_level() -> None:
    sigma = torch.logspace(-4, 0, 5000, dtype=torch.float64)
    rho = (sigma + torch.log(-torch.expm1(-sigma))).float()
    small, how = encode({"guide:rho": rho})
    assert small["guide:rho"].dtype == torch.uint8
    back = F.softplus(decode(small, how)["guide:rho"].double())
    error = (back.log() - sigma.log()).abs()
    half = math.log(1e4) / 510
    assert error.max() < half * 1.001
    assert error.max() > half * 0.9  # a finer code than the documented one would be another format


def test_extremes_of_rho_come_back() -> None:
    rho = torch.linspace(-60, 30, 2000)
    small, how = encode({"guide:group.rho_unconstrained": rho})
    back = decode(small, how)["guide:group.rho_unconstrained"]
    assert back[0] == pytest.approx(-60, abs=1e-4)
    assert back[-1] == pytest.approx(30, abs=1e-4)
    constant = torch.full((2000,), -4.0)
    small, how = encode({"guide:rho": constant})
    torch.testing.assert_close(decode(small, how)["guide:rho"], constant)


def test_means_lose_their_last_bits() -> None:
    loc = torch.randn(4000)
    small, how = encode({"guide:loc": loc})
    assert small["guide:loc"].dtype == torch.float16
    back = decode(small, how)["guide:loc"]
    assert back.dtype == torch.float32
    assert ((back - loc).abs() <= loc.abs() * 2**-11 + 3e-8).all()
    assert not torch.equal(back, loc)


def test_the_type_comes_back() -> None:
    tensors = {"guide:loc": torch.randn(2000).double(), "guide:rho": torch.randn(2000).double()}
    back = decode(*encode(tensors))
    assert {t.dtype for t in back.values()} == {torch.float64}


def test_what_stays_exact() -> None:
    tensors = {
        "guide:loc": torch.randn(1023),  # small
        "guide:large": torch.full((2000,), 1e5),  # beyond float16
        "guide:count": torch.arange(3000),
        "model:noise.sd": torch.randn(5000),
    }
    small, how = encode(tensors)
    assert how == {}
    for name, tensor in tensors.items():
        assert small[name] is tensor


def test_refusals() -> None:
    with pytest.raises(ValueError, match="guide:rho holds values that are not finite"):
        encode({"guide:rho": torch.full((2000,), math.nan)})
    with pytest.raises(ValueError, match="encoded as 'int4'"):
        decode({"guide:loc": torch.zeros(3)}, {"guide:loc": {"as": "int4", "dtype": "float32"}})


@pytest.mark.parametrize("groups", [None, "site"])
def test_a_saved_posterior_is_a_third_of_the_size(groups: str | None, tmp_path: Path) -> None:
    model = BNN(MLP(50, 3, [60, 60]), priors.Kaiming(), likelihoods.Categorical(), 10)
    posterior = pb.Posterior(model, AutoMeanFieldNormal(model, groups=groups))
    x = torch.randn(20, 50)
    sizes = [
        (posterior.save(tmp_path / str(compact), compact=compact) / "posterior.safetensors").stat().st_size
        for compact in (False, True)
    ]
    assert 0.36 < sizes[1] / sizes[0] < 0.5  # 3 bytes of 8, and the names
    loaded = load(tmp_path / "True")
    p, q = (posterior_.predict(x, num_samples=5, seed=0) for posterior_ in (posterior, loaded))
    torch.testing.assert_close(p, q, atol=3e-3, rtol=0)
    assert not torch.equal(p, q)
    site = "net.layers.0.weight"
    before, after = (p.guide.site(site) for p in (posterior, loaded))
    torch.testing.assert_close(after.loc, before.loc, rtol=5e-4, atol=1e-7)
    torch.testing.assert_close(after.scale, before.scale, rtol=0.02, atol=0)


def test_normalisation_layers_stay_exact(tmp_path: Path) -> None:
    net = ResNet20(3, 4, width=4)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.normal_(module.weight)
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), 8)
    pb.Posterior(model, AutoMeanFieldNormal(model)).save(tmp_path / "it", compact=True)
    loaded = load(tmp_path / "it").model
    kept = model.kept_tensors()
    assert any("running_mean" in name for name in kept)
    for name in kept:
        assert torch.equal(loaded.state_dict()[name], model.state_dict()[name])


def test_a_compact_posterior_can_be_saved_again(tmp_path: Path) -> None:
    """Codes are a fixed point: encoding what was decoded gives the same file."""
    model = BNN(MLP(50, 3, [60]), priors.Kaiming(), likelihoods.Categorical(), 10)
    guide = AutoMeanFieldNormal(model)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter))
    pb.Posterior(model, guide).save(tmp_path / "a", compact=True)
    load(tmp_path / "a").save(tmp_path / "b", compact=True)
    first, second = (load(tmp_path / f).guide.state_dict() for f in "ab")
    for name in first:
        torch.testing.assert_close(second[name], first[name], rtol=1e-5, atol=1e-6)
