"""
Regression with noise that depends on the input: the network says how sure a measurement can be, and where.

The rows are y = sin(x) + e with sd(e) = 0.05 on the left and up to 0.6 on the right. `HeteroscedasticGaussian` takes
two outputs of the network, the mean and a deviation before its softplus; `LearnedGaussian` learns one number for all.
Both are Bayesian in the weights, and the same posterior tells the two kinds of doubt apart: the noise, which more rows
would not lessen, and the doubt about the function, which they would.

Printed: the predictive NLL of both on test rows, the share of rows inside the 90 % interval, left and right, and the
noise that was found at five places. One level for all is too wide on the left and too narrow on the right.

    $ python examples/input_dependent_noise.py
    one level  nll 0.489  in the 90 % interval: left 1.000, right 0.790
    per input  nll -0.120  in the 90 % interval: left 0.937, right 0.906
    x = -4  noise 0.064 (true 0.050)  doubt about the function 0.033
    x = -2  noise 0.068 (true 0.060)  doubt about the function 0.029
    x =  0  noise 0.275 (true 0.325)  doubt about the function 0.041
    x =  2  noise 0.656 (true 0.590)  doubt about the function 0.071
    x =  4  noise 0.547 (true 0.600)  doubt about the function 0.122
"""

import argparse

import pyro
import torch
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite

Z90 = 1.645


def noise_at(x: Tensor) -> Tensor:
    """Return the deviation that rows are made with."""
    return 0.05 + 0.55 * torch.sigmoid(2 * x)


def rows(n: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return x (N, 1) and y (N,)."""
    x = 8 * torch.rand(n, 1, generator=random) - 4
    return x, torch.sin(x[:, 0]) + noise_at(x[:, 0]) * torch.randn(n, generator=random)


def main(args: argparse.Namespace) -> dict[str, float]:
    """Train with one noise level and with one per input; print what each says."""
    random = torch.Generator().manual_seed(args.seed)
    train, test = rows(args.rows, random), rows(1000, random)
    kinds: dict[str, likelihoods.Likelihood] = {
        "one level": likelihoods.LearnedGaussian(),
        "per input": likelihoods.HeteroscedasticGaussian(),
    }
    found = {}
    for name, likelihood in kinds.items():
        pyro.set_rng_seed(args.seed)
        net = MLP(1, likelihood.outputs(1), [20], activation="tanh")
        model = BNN(net, priors.FanIn(gain=2.0), likelihood, num_data=args.rows)
        guide = AutoMeanFieldNormal(model)
        optim = PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 1e-2}), schedule=Cosine())
        fit(model, guide, optim, train, epochs=args.epochs, standardise=True, seed=args.seed)
        posterior = pb.Posterior(model, guide)
        nll = posterior.evaluate(*test, num_samples=args.num_samples)["s_draws"]["pred_nll"]
        predicted = posterior.predict(test[0], args.num_samples, seed=args.seed)
        inside = ((test[1] - predicted.mean).abs() < Z90 * predicted.sd).float()
        left = test[0][:, 0] < 0
        print(f"{name}  nll {nll:.3f}  in the 90 % interval: left {inside[left].mean():.3f}, ", end="")
        print(f"right {inside[~left].mean():.3f}")
        found[name] = nll
    places = torch.linspace(-4, 4, 5)[:, None]
    doubt = posterior.uncertainty(places, args.num_samples, seed=args.seed)
    for x, aleatoric, epistemic in zip(places[:, 0], doubt.aleatoric.sqrt(), doubt.epistemic.sqrt(), strict=True):
        print(f"x = {x:2.0f}  noise {aleatoric:.3f} (true {noise_at(x):.3f})  doubt about the function {epistemic:.3f}")
    return found


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="regression with input-dependent noise")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--num-samples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
