"""
The posterior of linear regression with known noise, in closed form.

    y = Phi w + e,   e ~ N(0, s^2),   w ~ N(0, t^2):     C = (I / t^2 + Phi'Phi / s^2)^-1,   m = C Phi'y / s^2

with a column of ones in Phi for the intercept, the last of w (Bishop 2006, section 3.3).
"""

import torch
from torch import Tensor

__all__ = ["linear_posterior", "linear_predictions"]


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)


def linear_posterior(x: Tensor, y: Tensor, noise: float, scale: float) -> tuple[Tensor, Tensor]:
    """
    Return mean (D + 1,) and covariance (D + 1, D + 1) of slopes and intercept.

    :param x: inputs (N, D).
    :param y: targets (N,).
    :param noise: s.
    :param scale: t, of every weight.
    """
    phi = _with_ones(x)
    precision = torch.eye(phi.shape[1], dtype=torch.float64) / scale**2 + phi.T @ phi / noise**2
    covariance = torch.linalg.inv(precision)
    return covariance @ phi.T @ y.double() / noise**2, covariance


def linear_predictions(at: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """
    Return mean and standard deviation (A,) of the line at inputs.

    :param at: the inputs, (A, D).
    :param mean: of slopes and intercept.
    :param covariance: of slopes and intercept.
    """
    phi = _with_ones(at)
    return phi @ mean, (phi @ covariance * phi).sum(1).sqrt()
