"""Small programs and networks that several test files train: hand-written Pyro programs and awkward networks."""

import copy
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from pyro_bnn.inference import Callback, FitResult, FitState, fit

ROWS = 24
FEATURES = 3
CLASSES = 4
GROUPS = 3


def classes(rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (N, 3) and labels (N,) in 0..3 that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, FEATURES, generator=generator)
    y = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return x, y


def grouped(rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (N, 3), the last column the row's group, and labels (N,) in 0..1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, FEATURES, generator=generator)
    x[:, -1] = torch.arange(rows) % GROUPS
    return x, (x[:, 0] + 0.5 * x[:, -1] > 0.5).float()


def hierarchical_logistic(x: Tensor, y: Tensor | None = None, num_data: int = ROWS) -> None:
    """Logistic regression with an intercept per group, drawn around a common one: plates of its own."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("groups", GROUPS):
        alpha = pyro.sample("alpha", dist.Normal(mu, tau))
    beta = pyro.sample("beta", dist.Normal(torch.zeros(FEATURES - 1), 1.0).to_event(1))
    logits = alpha[x[:, -1].long()] + x[:, :-1] @ beta  # (B,)
    with pyro.plate("data", num_data, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def with_parameter(x: Tensor, y: Tensor | None = None) -> None:
    """Linear regression with a noise level that is a parameter in Pyro's store."""
    w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
    noise = pyro.param("noise", torch.tensor(0.5), constraint=dist.constraints.positive)
    with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Normal(x @ w, noise), obs=y)


class Tied(nn.Module):
    """One matrix used twice, by an encoder and transposed by nothing else than a second layer of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.second(torch.tanh(self.first(x))))


class Attention(nn.Module):
    """A TransformerEncoderLayer over the features as a sequence; in eval mode torch may take its fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.embed(x.unsqueeze(-1))).mean(1))


class Recurrent(nn.Module):
    """An LSTM over the features, which vmap cannot map."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 5, batch_first=True)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x.unsqueeze(-1))[0][:, -1])


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


class Snapshots(Callback):
    """Keep a copy of the fit's state after every epoch."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}

    def epoch(self, state: FitState) -> None:
        self.states[state.epoch] = copy.deepcopy(state.state_dict())


class Watch(Callback):
    """Call a function after every step and every epoch."""

    def __init__(
        self, step: Callable[[FitState], Any] | None = None, epoch: Callable[[FitState], Any] | None = None
    ) -> None:
        self.after_step, self.after_epoch = step, epoch

    def step(self, state: FitState) -> None:
        if self.after_step is not None:
            self.after_step(state)

    def epoch(self, state: FitState) -> None:
        if self.after_epoch is not None:
            self.after_epoch(state)


def stock_fit(*args: Any, **options: Any) -> FitResult:
    """Run `fit` with Pyro's own analytic ELBO, which takes no time to prepare."""
    options.setdefault("elbo", TraceMeanField_ELBO())
    return fit(*args, **options)


def same_tensors(a: dict[str, dict[str, Tensor]], b: dict[str, dict[str, Tensor]]) -> bool:
    """Whether two results of `parameters_of` hold the same bits."""
    return a.keys() == b.keys() and all(
        a[part].keys() == b[part].keys() and all(torch.equal(a[part][name], b[part][name]) for name in a[part])
        for part in a
    )
