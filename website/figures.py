"""The figure of the site's first page: `python website/figures.py` trains the network that it shows, and draws it."""

from pathlib import Path

import matplotlib
import torch

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit, kl
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

FILE = Path(__file__).parents[1] / "docs" / "assets" / "bands.svg"
GREY = "#8a8f98"
"""Legible on white and on black."""


def in_grey(axes: Axes) -> None:
    """Draw axes in the grey that is legible on white and on black."""
    axes.set_facecolor("none")
    for item in (axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()):
        item.set_color(GREY)
    axes.tick_params(colors=GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)


def main() -> None:
    """Fit twenty rows of a cubic and draw what is predicted, inside and outside of them."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(20, 1, generator=generator) * 8 - 4
    y = x[:, 0] ** 3 + 3 * torch.randn(20, generator=generator)
    model = BNN(
        MLP(1, 1, [50, 50], activation="silu"), priors.FanIn(2.0), likelihoods.LearnedGaussian(0.1), num_data=20
    )
    guide = AutoMeanFieldNormal(model)
    optim = PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 1e-2}), schedule=Cosine())
    fit(model, guide, optim, (x, y), epochs=2500, seed=0, standardise=True, kl=kl.tempered(0.08))
    posterior = pb.Posterior(model, guide)

    plt.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "pyro_bnn", "font.size": 10})
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    posterior.plot_predictions(torch.linspace(-6, 6, 241).unsqueeze(-1), axes=axes)
    axes.plot(x[:, 0], y, "o", color="#c8553d", markersize=4, zorder=5)
    axes.set(xlabel="x", ylabel="y", ylim=(-150, 150), xlim=(-6, 6))
    axes.set_title("", loc="left")
    in_grey(axes)
    if axes.get_legend() is not None:
        axes.get_legend().remove()
    figure.savefig(FILE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
