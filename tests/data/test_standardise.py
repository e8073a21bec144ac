import json

import pytest
import torch

from pyro_bnn.data.standardise import Standardiser


def test_images_per_channel_against_a_loop():
    x = (
        torch.randn(20, 3, 5, 4) * torch.tensor([1.0, 2.0, 5.0])[:, None, None]
        + torch.tensor([0.0, -3.0, 7.0])[:, None, None]
    )
    fitted = Standardiser.fit(x)
    for c in range(3):
        values = [float(v) for v in x[:, c].reshape(-1).double()]
        mean = sum(values) / len(values)
        sd = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
        assert float(fitted.mean[c]) == pytest.approx(mean, rel=1e-12)
        assert float(fitted.sd[c]) == pytest.approx(sd, rel=1e-12)
        torch.testing.assert_close(fitted.apply(x)[:, c], (x[:, c] - mean) / sd)


@pytest.mark.parametrize("shape", [(50,), (50, 4), (50, 2), (50, 3, 6, 6)])
def test_applied_data_have_mean_0_and_sd_1_and_invert_gives_them_back(shape):
    x = torch.randn(shape, dtype=torch.float64) * 3 + 5
    fitted = Standardiser.fit(x)
    z = fitted.apply(x)
    over = tuple(d for d in range(z.ndim) if d != 1)
    torch.testing.assert_close(z.mean(over), torch.zeros_like(fitted.mean), atol=1e-12, rtol=0)
    torch.testing.assert_close(z.square().mean(over), torch.ones_like(fitted.mean), atol=1e-12, rtol=0)
    torch.testing.assert_close(fitted.invert(z), x, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(fitted.invert(z + 1) - fitted.invert(z), fitted.invert_sd(torch.ones_like(x)))


def test_more_rows_than_one_chunk():
    x = torch.randn(9001, 2)
    fitted = Standardiser.fit(x)
    torch.testing.assert_close(fitted.mean, x.double().mean(0))
    torch.testing.assert_close(fitted.sd, x.double().std(0, correction=0))


def test_apply_and_invert_leave_their_input_alone():
    x = torch.randn(10, 2)
    before = x.clone()
    fitted = Standardiser.fit(x)
    fitted.apply(x)
    fitted.invert(x)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def test_a_constant_column_becomes_zero_not_nan():
    # the mean of 23 times 0.1 is not 0.1 in floating point, so the sd is about 1e-17 and not 0
    x = torch.stack([torch.full((23,), 0.1, dtype=torch.float64), torch.arange(23, dtype=torch.float64)], 1)
    z = Standardiser.fit(x).apply(x)
    torch.testing.assert_close(z[:, 0], torch.zeros(23, dtype=torch.float64), atol=1e-12, rtol=0)
    assert float(z[:, 1].std(correction=0)) == pytest.approx(1.0)


@pytest.mark.parametrize("shape", [(12,), (12, 3), (12, 2, 4, 4)])
def test_goes_through_json_unchanged(shape):
    fitted = Standardiser.fit(torch.randn(shape))
    again = Standardiser.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert torch.equal(again.mean, fitted.mean)
    assert torch.equal(again.sd, fitted.sd)
    assert again.mean.shape == fitted.mean.shape


def test_bad_use_error():
    fitted = Standardiser.fit(torch.randn(10, 3))
    with pytest.raises(ValueError, match=r"fitted on 3 channels or features"):
        fitted.apply(torch.randn(10, 4))
    with pytest.raises(TypeError, match=r"torch.uint8.*divide by 255"):
        fitted.apply(torch.zeros(10, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="sd finite and > 0"):
        Standardiser(torch.zeros(2), torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="both need the same shape"):
        Standardiser(torch.zeros(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"keys mean and sd; got \['mean'\]"):
        Standardiser.from_dict({"mean": 0.0})
