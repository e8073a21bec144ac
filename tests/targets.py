"""Exact posteriors to aim at, as Pyro programs with everything about them in closed form, in float64.

Each target is a dataclass with its data, its program `model(x, y)` or `model(y)`, and the posterior it should reach:
plain, tempered by eta (the likelihood to the power 1/eta), or cold at T (likelihood and prior to the power 1/T).
"""

import math
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn import functional as F


def kl_normal(loc: Tensor, scale: Tensor, prior_loc: float, prior_scale: float) -> Tensor:
    """KL(N(loc, scale^2) || N(prior_loc, prior_scale^2)), summed over entries."""
    ratio = (scale / prior_scale) ** 2
    return 0.5 * (ratio + ((loc - prior_loc) / prior_scale) ** 2 - 1 - ratio.log()).sum()


def softplus_inverse(scale: Tensor) -> Tensor:
    return scale + torch.log(-torch.expm1(-scale))


@dataclass(frozen=True)
class GaussianMean:
    """y_n ~ N(mu, noise^2), mu ~ N(0, prior^2)."""

    y: Tensor
    noise: float = 1.0
    prior: float = 1.0

    @property
    def num_data(self) -> int:
        return len(self.y)

    def model(self, y: Tensor) -> None:
        zero = torch.zeros((), dtype=torch.float64)
        mu = pyro.sample("mu", dist.Normal(zero, self.prior))
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(y))):
            pyro.sample("obs", dist.Normal(mu, self.noise), obs=y)

    def posterior(self, eta: float = 1.0, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation."""
        precision = (self.num_data / (eta * self.noise**2) + self.prior**-2) / temperature
        mean = self.y.sum() / (eta * self.noise**2) / (temperature * precision)
        return mean, torch.tensor(precision**-0.5, dtype=torch.float64)


@dataclass(frozen=True)
class LinearRegression:
    """y = x w + noise, w ~ N(0, prior^2 I); site "w" of shape (D,), or (1, D) as a layer's weight."""

    x: Tensor  # (N, D)
    y: Tensor  # (N,)
    noise: float = 1.0
    prior: float = 1.0

    @property
    def num_data(self) -> int:
        return len(self.y)

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    def model(self, x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(self.dim), self.prior).to_event(1))  # (..., D)
        mean = w @ x.T  # (B,), or (S, 1, B) with draws
        mean = mean.squeeze(-2) if mean.dim() > 1 else mean
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(mean, self.noise), obs=y)

    def layer_model(self, x: Tensor, y: Tensor | None = None) -> None:
        """The same program through torch.nn.functional.linear."""
        w = pyro.sample("w", dist.Normal(x.new_zeros(1, self.dim), self.prior).to_event(2))
        mean = F.linear(x, w).squeeze(-1)  # (B,)
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(mean, self.noise), obs=y)

    def posterior(self, eta: float = 1.0, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Mean (D,) and covariance (D, D)."""
        eye = torch.eye(self.dim, dtype=torch.float64)
        precision = self.x.T @ self.x / (eta * self.noise**2) + eye / self.prior**2
        mean = torch.linalg.solve(precision, self.x.T @ self.y / (eta * self.noise**2))
        return mean, temperature * torch.linalg.inv(precision)

    def mean_field_optimum(self, eta: float = 1.0, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Mean and standard deviations of the closest q = prod N(loc, scale^2) in KL(q || posterior)."""
        mean, covariance = self.posterior(eta, temperature)
        return mean, torch.linalg.inv(covariance).diagonal() ** -0.5

    def nll(self, loc: Tensor, scale: Tensor) -> Tensor:
        """E_q[-log p(y | x, w)] over all data."""
        squares = (self.y - self.x @ loc).square() + self.x.square() @ scale.square()
        return squares.sum() / (2 * self.noise**2) + self.num_data * math.log(self.noise * math.sqrt(2 * math.pi))

    def loss(self, loc: Tensor, scale: Tensor, kl_weight: float = 1.0) -> Tensor:
        """-ELBO of q = prod N(loc, scale^2), with the KL weighted."""
        return self.nll(loc, scale) + kl_weight * kl_normal(loc, scale, 0.0, self.prior)

    def log_evidence(self) -> Tensor:
        covariance = self.prior**2 * self.x @ self.x.T + self.noise**2 * torch.eye(self.num_data, dtype=torch.float64)
        return torch.distributions.MultivariateNormal(torch.zeros_like(self.y), covariance).log_prob(self.y)


@dataclass
class MeanField:
    """q(w) = prod N(loc, softplus(rho)^2), written by hand: parameters "loc" and "rho" of a given shape."""

    loc: Tensor
    scale: Tensor
    site: str = "w"

    def __call__(self, *args: object, **kwargs: object) -> Tensor:
        loc = pyro.param("loc", lambda: self.loc.clone())
        rho = pyro.param("rho", lambda: softplus_inverse(self.scale))
        return pyro.sample(self.site, dist.Normal(loc, F.softplus(rho)).to_event(loc.dim()))


def _targets(x: Tensor, generator: torch.Generator, noise: float) -> Tensor:
    w = torch.randn(x.shape[1], generator=generator, dtype=torch.float64)
    return x @ w + noise * torch.randn(len(x), generator=generator, dtype=torch.float64)


def centred(
    num_data: int = 12, dim: int = 3, noise: float = 0.5, prior: float = 1.0, seed: int = 0
) -> LinearRegression:
    """Orthogonal columns of mean zero and different lengths: the posterior itself is mean-field."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_data, dim, generator=generator, dtype=torch.float64)
    x = torch.linalg.qr(x - x.mean(0))[0] * (1 + torch.arange(dim, dtype=torch.float64))
    return LinearRegression(x, _targets(x, generator, noise), noise, prior)


def correlated(
    num_data: int = 12, dim: int = 3, noise: float = 0.5, prior: float = 1.0, seed: int = 0
) -> LinearRegression:
    """Columns with pairwise correlation near 0.8 and an offset: the posterior is not mean-field."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(num_data, 1, generator=generator, dtype=torch.float64)
    x = 0.3 + 2 * common + torch.randn(num_data, dim, generator=generator, dtype=torch.float64)
    return LinearRegression(x, _targets(x, generator, noise), noise, prior)


def collinear(correlation, rows=20, features=5, noise=0.5):
    """Inputs with a common part, targets, and the exact deviations of the weights and the bias under N(0, 1) priors."""
    generator = torch.Generator().manual_seed(10_001)
    common = torch.randn(rows, 1, generator=generator)
    own = torch.randn(rows, features, generator=generator)
    x = correlation * common + math.sqrt(1 - correlation**2) * own
    y = x @ torch.randn(features, generator=generator) + noise * torch.randn(rows, generator=generator)
    full = torch.cat([x, torch.ones(rows, 1)], dim=1).double()
    precision = torch.eye(features + 1).double() + full.T @ full / noise**2
    return x, y, full, precision
