"""
Two learning rates: the means and the deviations of a guide are different parameters, and want different steps.

A mean moves on the scale of the weights, about 0.05. A deviation is softplus(rho), and rho starts at -4 and has to go
some units up or down: at the rate that suits the means it never arrives within a short training. `PerSite` gives each
kind its own optimizer; the same is done with `--scale-lr` equal to `--loc-lr` for comparison.

Printed for every pair of rates: training and validation NLL, KL / N, and the mean deviation of the weights at the end.

RESULTS
"""

import argparse

import pyro

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit, kl
from pyro_bnn.models import BNN, LeNet5, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite


def main(args: argparse.Namespace) -> dict[tuple[float, float], float]:
    """Train once for every pair of rates; print a table and return validation NLLs."""
    name = "mnist-mini" if args.data_root is None else "mnist"
    data = pb.load_data(name, root=args.data_root, train_size=args.train_size, val_fraction=0.1)
    print("   loc lr  scale lr      nll  val_nll     KL/N  mean sigma")
    found = {}
    for loc_lr in args.loc_lr:
        for scale_lr in args.scale_lr:
            pyro.set_rng_seed(args.seed)
            model = BNN(LeNet5(), priors.Kaiming(), likelihoods.Categorical(), num_data=len(data.train))
            guide = AutoMeanFieldNormal(model)
            optim = PerSite(loc=Adam({"lr": loc_lr}), scale=Adam({"lr": scale_lr}), schedule=Cosine())
            result = fit(
                model,
                guide,
                optim,
                data.train,
                val=data.val,
                epochs=args.epochs,
                kl=kl.tempered(args.eta),
                val_samples=args.num_samples,
                seed=args.seed,
            )
            line = result.history[-1]
            sigma = float(guide.marginals()[1].detach().mean())
            print(
                f"{loc_lr:9g} {scale_lr:9g} {line['nll']:8.4f} {line['val_nll']:8.4f} {line['kl']:8.4f} {sigma:11.4f}"
            )
            found[loc_lr, scale_lr] = line["val_nll"]
    best = min(found, key=lambda rates: found[rates])
    print(f"best on validation: loc {best[0]:g}, scale {best[1]:g}")
    return found


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="two learning rates")
    parser.add_argument("--data-root", help="where MNIST is; default the digits in the package")
    parser.add_argument("--train-size", type=int, help="train on so many rows; default all")
    parser.add_argument("--loc-lr", type=float, nargs="+", default=[1e-3, 3e-3])
    parser.add_argument("--scale-lr", type=float, nargs="+", default=[1e-3, 1e-2, 3e-2])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--num-samples", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
