"""
A Bayesian network in plain Pyro, with the guide of this library.

The program is nothing but `pyro.sample` statements, and the training nothing but `pyro.infer.SVI`. The one name from
here is the guide: `AutoMeanFieldNormal` stores its means and deviations flat and samples every site directly, so that
`TraceMeanField_ELBO` has the KL in closed form. `--guide stock` is the same with Pyro's `AutoNormal`.

The data are 20 rows of y = x^3 with noise of 3, from x in (-4, 4). Printed are the loss, and what the predictive says
at points inside and outside of that interval: its deviation has to grow where no row was seen.

    $ python examples/plain_pyro.py
    step     0  loss  2443.62
    step   300  loss   118.72
    step   600  loss   126.70
    step   900  loss    80.78
    step  1200  loss   118.86
    x =   0   x^3 =    0   predicted    -0.4 +-   1.7
    x =   2   x^3 =    8   predicted    10.5 +-   3.8
    x =   4   x^3 =   64   predicted    54.5 +-   6.9
    x =   5   x^3 =  125   predicted    76.8 +-   8.8
    x =   6   x^3 =  216   predicted    99.2 +-  10.7
"""

import argparse

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_sample
from pyro.optim import ClippedAdam
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal


def model(x: Tensor, y: Tensor | None = None, units: int = 20, noise: float = 3 / 25.9) -> Tensor:
    """Draw the weights of one hidden layer, and observe y (N,) at x (N, 1); all on the scale of mean 0 and sd 1."""
    w1 = pyro.sample("w1", dist.Normal(0.0, 1.0).expand([1, units]).to_event(2))
    b1 = pyro.sample("b1", dist.Normal(0.0, 1.0).expand([units]).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(0.0, 0.3).expand([units]).to_event(1))
    mean = torch.relu(x @ w1 + b1) @ w2  # (N,)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(mean, noise), obs=y)
    return pyro.deterministic("mean", mean)


def main(args: argparse.Namespace) -> dict[str, float]:
    """Train, predict, print."""
    pyro.set_rng_seed(args.seed)
    pyro.clear_param_store()
    data = pb.load_data("toy-cubic")
    x, y = data.train.x.as_subclass(Tensor), data.train.y.as_subclass(Tensor)
    guide = (
        AutoNormal(model, init_loc_fn=init_to_sample, init_scale=0.02)
        if args.guide == "stock"
        else AutoMeanFieldNormal(model, init_loc="normal", init_scale=0.02)
    )
    optim = ClippedAdam({"lr": args.lr, "lrd": 0.1 ** (1 / args.steps)})  # the rate falls to a tenth
    svi = SVI(model, guide, optim, TraceMeanField_ELBO())
    for step in range(args.steps):
        loss = svi.step(x, y)
        if step % max(1, args.steps // 5) == 0:
            print(f"step {step:5}  loss {loss:8.2f}")

    places = torch.tensor([0.0, 2.0, 4.0, 5.0, 6.0])
    predictive = Predictive(model, guide=guide, num_samples=args.num_samples, return_sites=["mean"])
    inputs = data.standardiser.apply(places[:, None]).as_subclass(Tensor)
    means = predictive(inputs)["mean"].reshape(args.num_samples, -1)  # (S, N)
    center = data.y_standardiser.invert(means.mean(0))
    spread = data.y_standardiser.invert_sd(means.std(0))
    for place, m, s in zip(places.tolist(), center.tolist(), spread.tolist(), strict=True):
        print(f"x = {place:3.0f}   x^3 = {place**3:4.0f}   predicted {m:7.1f} +- {s:5.1f}")
    return {"loss": loss, "sd_inside": float(spread[0]), "sd_outside": float(spread[-1])}


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="a Bayesian network in plain Pyro")
    parser.add_argument("--guide", choices=["flat", "stock"], default="flat")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--num-samples", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
