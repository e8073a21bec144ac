"""
The figure of simulation-based calibration: `python website/sbc.py` runs the checks that it shows, and draws it.

A line through twelve rows whose inputs lie around 1.5, so that slope and intercept have a correlation of -.88: NUTS,
the full-rank guide and the mean-field guide, on the same 100 data sets from the prior. It takes some minutes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from figures import GREY, in_grey
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn.guides import AutoFullRankNormal, AutoMeanFieldNormal, StoredDraws
from pyro_bnn.inference.samplers.mcmc import run_chain
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite

FILE = Path(__file__).parents[1] / "docs" / "assets" / "sbc.svg"
DRAWS, STEPS, THIN = 99, 4000, 5


def line() -> BNN:
    """Return the program: y ~ N(w x + b, .5^2), w and b ~ N(0, 1)."""
    return BNN(nn.Linear(1, 1), priors.Normal(), likelihoods.Gaussian(0.5), num_data=12)


def guided(kind: Callable[[Any], Any]) -> Callable[[Tensor, Sequence[Tensor], Sequence[int]], list[pb.Posterior]]:
    """Return what trains a guide on every data set."""

    def make(x: Tensor, ys: Sequence[Tensor], seeds: Sequence[int]) -> list[pb.Posterior]:
        models = [line() for _ in ys]
        guides = [kind(model) for model in models]
        optim = PerSite(loc=Adam({"lr": 0.01}), scale=Adam({"lr": 0.01}), schedule=Cosine())
        rows = [(x, y) for y in ys]
        pb.fit_many(models, guides, optim, rows, epochs=STEPS, batch_size=len(x), seed=list(seeds), history=False)
        return [pb.Posterior(model, guide) for model, guide in zip(models, guides, strict=True)]

    return make


def nuts(x: Tensor, ys: Sequence[Tensor], seeds: Sequence[int]) -> list[pb.Posterior]:
    """Draw a chain for every data set, and keep every fifth draw."""
    made = []
    for y, seed in zip(ys, seeds, strict=True):
        model = line()
        chain = run_chain(model, (x, y), warmup=200, draws=THIN * DRAWS, seed=seed)
        guide = StoredDraws(model, num_draws=DRAWS, kind="nuts")
        guide.build(x)
        with torch.no_grad():
            guide.draws.copy_(guide.flatten({name: values[::THIN] for name, values in chain.samples.items()}))
        made.append(pb.Posterior(model, guide))
    return made


def weights(values: dict[str, Tensor]) -> Tensor:
    """Return slope and intercept."""
    return torch.cat([values["net.weight"].reshape(-1), values["net.bias"].reshape(-1)])


def main() -> None:
    """Check three ways to make posteriors and draw what comes out."""
    torch.set_num_threads(1)
    x = torch.randn(12, 1, generator=torch.Generator().manual_seed(3)) + 1.5
    ways = {"NUTS": nuts, "full rank": guided(AutoFullRankNormal), "mean field": guided(AutoMeanFieldNormal)}
    plt.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "pyro_bnn", "font.size": 10})
    figure, panels = plt.subplots(1, 3, figsize=(9, 2.9), layout="constrained", sharey=True)
    for axes, (name, make) in zip(panels, ways.items(), strict=True):
        check = pb.sbc(line(), make, x, quantity=weights, together=True, datasets=100, draws=DRAWS)
        print(f"{name}: {check}", flush=True)
        check.plot(axes)
        axes.set_title("")
        axes.set_title(f"{name}: {check.shape}", loc="left", fontsize=10, color=GREY)
        in_grey(axes)
        for collection in axes.collections:
            collection.set(facecolor=GREY, alpha=0.25)
        axes.get_legend().remove()
        if axes is not panels[0]:
            axes.set_ylabel("")
    figure.savefig(FILE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
