"""
LeNet-5 on MNIST with stock SVI: the loop of Pyro's own examples around a network that was not written for Pyro.

`BNN` makes a program of any `torch.nn.Module`: a prior for every weight, and one observed site in a plate of N rows.
The loop below is Pyro's; `per_datum(N)` divides the loss by N, so that a learning rate means the same for every N, and
`scale_kl(eta)` is the weight on the KL. eta = 0.1 counts each row ten times, which a training of a few epochs needs.
`pyro_bnn.inference.fit` is the same loop with the epochs, validation and recording of steps around it.

By default on the 5,000 digits in the package; `--data-root DIR` takes MNIST from there. Printed are the loss per datum
and, on test rows, the three predictives: by the means, by one weight sample, and by the average over many.

RESULTS
"""

import argparse

import pyro
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.optim import ClippedAdam
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import per_datum, scale_kl
from pyro_bnn.models import BNN, LeNet5, likelihoods, priors


def main(args: argparse.Namespace) -> dict[str, float]:
    """Train, score, print."""
    pyro.set_rng_seed(args.seed)
    pyro.clear_param_store()
    name = "mnist-mini" if args.data_root is None else "mnist"
    data = pb.load_data(name, root=args.data_root, train_size=args.train_size)
    x, y = data.train.x.as_subclass(Tensor), data.train.y
    n = len(data.train)

    model = BNN(LeNet5(), priors.Kaiming(), likelihoods.Categorical(), num_data=n)
    guide = AutoMeanFieldNormal(model)
    optim = ClippedAdam({"lr": args.lr, "lrd": 0.1 ** (1 / (args.epochs * -(-n // args.batch_size)))})
    svi = SVI(model, guide, optim, TraceMeanField_ELBO())

    for epoch in range(args.epochs):
        total = 0.0
        for batch in torch.randperm(n).split(args.batch_size):
            with per_datum(n), scale_kl(args.eta):
                total += svi.step(x[batch], y[batch]) * len(batch) / n
        print(f"epoch {epoch + 1:3}  loss {total:7.4f}")

    posterior = pb.Posterior(model, guide, info={"eta": args.eta})
    table = posterior.evaluate(data.test.x, data.test.y, num_samples=args.num_samples, standardised=True)
    for column, scores in table.items():
        print(f"{column:8}  accuracy {scores['accuracy']:.4f}  nll {scores['pred_nll']:.4f}  ece {scores['ece']:.4f}")
    return {"loss": total, "accuracy": table["s_draws"]["accuracy"]}


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="LeNet-5 on MNIST with stock SVI")
    parser.add_argument("--data-root", help="where MNIST is; default the digits in the package")
    parser.add_argument("--train-size", type=int, help="train on so many rows; default all")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--num-samples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
