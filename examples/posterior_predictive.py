"""
Posterior predictive checks and model comparison with ArviZ.

Three models of the same rows, y = 0.4 x^2 + e with a few outliers in e: a straight line, a network with normal noise,
and a network with Student-t noise. All three are exported with `Posterior.to_arviz`, and ArviZ does the rest:

    checks       replicated data against observed, by statistics: the share of replications that exceed what was seen.
                 Near 0 or 1 says that the model does not make rows like these
    comparison   leave-one-out (PSIS-LOO), which needs draws of p(w | y): eta = 1, and rows that were trained on, which
                 `split="train"` says. Pareto k above 0.7 would say that the estimate is not to be trusted

Printed are both. The export has the groups that ArviZ's plots read (`az.plot_ppc`, `az.plot_loo_pit`, ...).

    $ python examples/posterior_predictive.py
    share of replicated data sets whose statistic exceeds the observed one
    line, normal      min 1.00  max 0.00  sd 0.53  median 0.97
    network, normal   min 1.00  max 0.00  sd 0.50  median 0.79
    network, Student  min 0.93  max 0.23  sd 0.11  median 0.80
    line, normal      elpd  -314.8 +- 28.3
    network, normal   elpd  -227.7 +- 44.6
    network, Student  elpd   -85.7 +- 21.8
"""

import argparse
import warnings
from typing import Any

import numpy as np
import pyro
import torch

import pyro_bnn as pb
from pyro_bnn.analysis.arviz import import_arviz, loo
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite

STATISTICS = {"min": np.min, "max": np.max, "sd": np.std, "median": np.median}


def rows(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x (N, 1) and y (N,), one row in twenty of which is an outlier."""
    random = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(n, 1, generator=random) - 2
    wide = torch.where(torch.rand(n, generator=random) < 0.05, 1.5, 0.2)
    return x, 0.4 * x[:, 0].square() + wide * torch.randn(n, generator=random)


def exported(net: torch.nn.Module, noise: likelihoods.Likelihood, data: Any, args: argparse.Namespace) -> Any:
    """Fit a model to the rows and return its export."""
    pyro.set_rng_seed(args.seed)
    model = BNN(net, priors.Normal(), noise, num_data=len(data[1]))
    guide = AutoMeanFieldNormal(model)
    optim = PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 1e-2}), schedule=Cosine())
    fit(model, guide, optim, data, epochs=args.epochs, standardise=True, seed=args.seed)
    return pb.Posterior(model, guide).to_arviz(*data, args.num_samples, split="train", seed=args.seed)


def main(args: argparse.Namespace) -> dict[str, float]:
    """Fit three models, check them, compare them."""
    az = import_arviz()
    data = rows(args.rows, args.seed)
    exports = {
        "line, normal": exported(torch.nn.Linear(1, 1), likelihoods.LearnedGaussian(), data, args),
        "network, normal": exported(MLP(1, 1, [10], activation="tanh"), likelihoods.LearnedGaussian(), data, args),
        "network, Student": exported(
            MLP(1, 1, [10], activation="tanh"), likelihoods.StudentT(learn_df=True), data, args
        ),
    }
    observed = data[1].numpy()
    print("share of replicated data sets whose statistic exceeds the observed one")
    for name, export in exports.items():
        replicated = export.posterior_predictive["obs"].values.reshape(-1, len(observed))  # (S, N)
        shares = {key: float((f(replicated, axis=1) > f(observed)).mean()) for key, f in STATISTICS.items()}
        print(f"{name:17}", "  ".join(f"{key} {share:.2f}" for key, share in shares.items()))

    found = {}
    for name, export in exports.items():
        estimate = loo(export)
        found[name] = estimate.value
        print(f"{name:17} elpd {estimate.value:7.1f} +- {estimate.se:.1f}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(az.compare(exports).iloc[:, :6].to_string())
    return found


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="posterior predictive checks and model comparison with ArviZ")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--num-samples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
