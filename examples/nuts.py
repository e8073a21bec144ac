"""
NUTS against the guide: how far a mean-field normal is from the posterior of a small network.

The program has no normal posterior: a layer of six units on 20 rows of y = x^3. `run_chain` runs Pyro's NUTS on it in
float64, `StoredDraws` makes a guide of the draws, and both guides answer through the same `Posterior`. Chains count as
a reference when what they predict agrees: R-hat at most 1.01 and an effective sample size of 400, from four chains.

Printed are the judgement on the chains, and mean and standard deviation of the function at places inside (-4, 4), where
the rows are, and outside: the mean-field guide is too sure of itself, most of all outside.

RESULTS
"""

import argparse
import time

import pyro
import torch

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal, StoredDraws
from pyro_bnn.inference import convergence, fit, run_chain
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite


def main(args: argparse.Namespace) -> dict[str, float]:
    """Sample, fit, compare."""
    pyro.set_rng_seed(args.seed)
    data = pb.load_data("toy-cubic")
    noise = float(3 / data.y_standardiser.sd)
    model = BNN(
        MLP(1, 1, [args.units], activation="tanh"), priors.Normal(), likelihoods.Gaussian(noise), len(data.train)
    )

    started = time.perf_counter()
    guide = AutoMeanFieldNormal(model)
    optim = PerSite(loc=Adam({"lr": 2e-2}), scale=Adam({"lr": 2e-2}), schedule=Cosine())
    fit(model, guide, optim, data.train, epochs=args.epochs, seed=args.seed)
    print(f"mean field: {time.perf_counter() - started:.0f} s")

    started = time.perf_counter()
    chains = [
        run_chain(model, data.train, warmup=args.warmup, draws=args.draws, seed=c, max_tree_depth=6)
        for c in range(args.chains)
    ]
    sampled = StoredDraws(model, num_draws=args.chains * args.draws, chains=args.chains, kind="nuts")
    with torch.no_grad():
        sampled.draws.copy_(torch.cat([sampled.flatten(chain.samples) for chain in chains]))
    print(f"NUTS: {time.perf_counter() - started:.0f} s, {sum(chain.divergences for chain in chains)} divergences")

    places = torch.tensor([-6.0, -5.0, -4.0, -2.0, 0.0, 2.0, 4.0, 5.0, 6.0])[:, None]
    x = data.standardiser.apply(places)
    by_chain = torch.stack([network(model, chain.samples, x) for chain in chains])  # (chains, draws, N)
    print(convergence(by_chain))
    info = {key: getattr(data, key).to_dict() for key in ("standardiser", "y_standardiser")}
    found = {}
    for name, posterior in {
        "NUTS": pb.Posterior(model, sampled, info),
        "mean field": pb.Posterior(model, guide),
    }.items():
        means = posterior.draws(places, num_samples=args.chains * args.draws).squeeze(-1)  # (S, N)
        rows = zip(places[:, 0].tolist(), means.mean(0).tolist(), means.std(0).tolist(), strict=True)
        print(f"{name:10}", "  ".join(f"{x:2.0f}: {mean:.0f}+-{sd:.0f}" for x, mean, sd in rows))
        found[name] = float(means.std(0)[-1])
    return found


def network(model: BNN, samples: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return the network's outputs (S, N) for draws of a chain."""
    with torch.no_grad():
        return model.observation(x, {name: value.float() for name, value in samples.items()}).mean.squeeze(-1)


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="NUTS against the guide")
    parser.add_argument("--units", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=1500)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--draws", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
