"""
A hierarchical Bayesian network: the precision of each input's weights has a Gamma prior of its own.

    tau_d ~ Gamma(a, b)                  one precision per input
    w1[d, :] ~ Normal(0, tau_d^(-1/2))   its weights into the hidden layer
    y ~ Normal(f(x; w), noise)

An input that says nothing about y gets a large precision, which shrinks its weights (automatic relevance determination;
MacKay 1994, Neal 1996). Of the six inputs here, y depends on the first two. The program is written by hand, and the
guide carries the positive sites through a bijection: their KL is sampled, that of the weights given tau, too.

Printed is, for every input, the posterior median of tau_d^(-1/2), the width of its weights; the first two must stand
out.

    $ python examples/hierarchical.py
    nll 1.454 -> -0.057,  KL/N 0.347
    x0  width of its weights  1.353  ###########################
    x1  width of its weights  0.707  ##############
    x2  width of its weights  0.442  #########
    x3  width of its weights  0.417  ########
    x4  width of its weights  0.422  ########
    x5  width of its weights  0.425  ########
    sd of predictions at new rows, mean 0.247
"""

import argparse

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import FlatMeanField_ELBO, fit, kl
from pyro_bnn.optim import Adam, Cosine, PerSite


class Hierarchical(PyroModule):
    """One hidden layer whose inputs have a precision each."""

    def __init__(self, num_data: int, inputs: int, units: int = 10, shape: float = 1.0, rate: float = 1.0) -> None:
        super().__init__()
        self.num_data, self.inputs, self.units, self.shape, self.rate = num_data, inputs, units, shape, rate

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Observe y (B,) at x (B, D)."""
        tau = pyro.sample("tau", dist.Gamma(self.shape, self.rate).expand([self.inputs]).to_event(1))
        width = tau.rsqrt()[:, None].expand(self.inputs, self.units)
        w1 = pyro.sample("w1", dist.Normal(0.0, width).to_event(2))
        b1 = pyro.sample("b1", dist.Normal(0.0, 1.0).expand([self.units]).to_event(1))
        w2 = pyro.sample("w2", dist.Normal(0.0, self.units**-0.5).expand([self.units]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(0.5))
        mean = torch.tanh(x @ w1 + b1) @ w2  # (B,)
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x))):
            return pyro.sample("obs", dist.Normal(mean, noise), obs=y)


def main(args: argparse.Namespace) -> list[float]:
    """Train and print the widths of the six inputs."""
    pyro.set_rng_seed(args.seed)
    random = torch.Generator().manual_seed(args.seed)
    x = torch.randn(args.rows, 6, generator=random)
    y = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1].square() + 0.1 * torch.randn(args.rows, generator=random)
    y = (y - y.mean()) / y.std()

    model = Hierarchical(num_data=args.rows, inputs=6)
    guide = AutoMeanFieldNormal(model)
    optim = PerSite(loc=Adam({"lr": 2e-2}), scale=Adam({"lr": 2e-2}), schedule=Cosine())
    slowly = kl.annealed("linear", epochs=args.epochs / 2)  # at full weight from the start, the prior wins at once
    elbo = FlatMeanField_ELBO(trace=True)  # the program depends on nothing but tensors, so its steps can be recorded
    history = fit(model, guide, optim, (x, y), epochs=args.epochs, kl=slowly, elbo=elbo, seed=args.seed).history
    print(f"nll {history[0]['nll']:.3f} -> {history[-1]['nll']:.3f},  KL/N {history[-1]['kl']:.3f}")
    draws = torch.stack([guide()["tau"].detach().rsqrt() for _ in range(args.num_samples)])  # (S, 6)
    widths = draws.median(0).values
    for d, width in enumerate(widths.tolist()):
        print(f"x{d}  width of its weights {width:6.3f}  {'#' * round(20 * width)}")
    test = torch.randn(200, 6, generator=random)
    spread = pb.Posterior(model, guide).predict(test, args.num_samples, seed=args.seed).sd
    print(f"sd of predictions at new rows, mean {float(spread.mean()):.3f}")
    return widths.tolist()


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="a hierarchical Bayesian network with a Gamma hyperprior")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--num-samples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
