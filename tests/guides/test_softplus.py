"""softplus is right to rounding for every argument, and differentiates and maps as torch's own does."""

import pytest
import torch
from torch.nn import functional as F

from pyro_bnn.guides.softplus import inverse_softplus, softplus


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-7), (torch.float64, 1e-15)])
def test_it_is_right_to_rounding_from_underflow_to_overflow(dtype: torch.dtype, tolerance: float) -> None:
    rho = torch.linspace(-80, 1000, 200_001, dtype=torch.float64).to(dtype)
    exact = torch.logaddexp(rho.double(), torch.zeros((), dtype=torch.float64))
    assert float(((softplus(rho).double() - exact) / exact).abs().max()) < tolerance


def test_small_deviations_of_half_precision_are_not_zero() -> None:
    """e^|rho| overflows at 11.09 there, where softplus is 1.5e-5 and its logarithm has to be a number."""
    rho = torch.tensor([-11.5, -12.0, -14.0], dtype=torch.float16)
    torch.testing.assert_close(softplus(rho), F.softplus(rho), rtol=0.05, atol=0)


def test_the_ends_are_those_of_torch() -> None:
    ends = torch.tensor([-1e4, 1e4, float("inf"), float("-inf"), float("nan")], requires_grad=True)
    value = softplus(ends)
    torch.testing.assert_close(value, F.softplus(ends), equal_nan=True)
    value.sum().backward()
    torch.testing.assert_close(ends.grad, torch.tensor([0.0, 1.0, 1.0, 0.0, float("nan")]), equal_nan=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:FutureWarning")  # torch itself uses it in forward mode
def test_first_and_second_derivatives_and_maps() -> None:
    rho = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softplus, rho, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(softplus, rho)
    rows = rho.detach().view(5, 1)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda r: softplus(r).sum()))(rows), rows.sigmoid())
    curvature = torch.func.hessian(lambda r: softplus(r).sum())(rho.detach())  # forward over reverse
    torch.testing.assert_close(curvature, torch.diag(rho.detach().sigmoid() * (-rho.detach()).sigmoid()))


def test_the_inverse_is_one_at_both_ends() -> None:
    sigma = torch.tensor([1e-30, 1e-6, 0.5, 40.0], dtype=torch.float64)
    torch.testing.assert_close(softplus(inverse_softplus(sigma)), sigma, rtol=1e-12, atol=0)
