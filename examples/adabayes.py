"""
AdaBayes on a network of your own: as a torch optimizer, and as the optimizer of a Bayesian network.

AdaBayes (Aitchison 2020) filters the gradient of a minibatch: each weight's rate is its posterior variance, between
that of Adam (`lr`), where gradients are large, and that of SGD (`lr_sgd`), where they are small. It asks for the batch
size, since it counts the rows behind a gradient.

First the network below is trained as it is, without Pyro, by Adam and by AdaBayes; then as a `BNN`, with AdaBayes for
the means and Adam for the deviations. Printed is the accuracy on test rows after as many epochs.

RESULTS
"""

import argparse

import pyro
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pyro_bnn as pb
from pyro_bnn import optim
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit, kl
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import torch_optim


class Net(nn.Module):
    """A network as anybody writes one; nothing in it knows of Pyro."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 5, stride=2)
        self.hidden = nn.Linear(12 * 12 * 12, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, 10) for images (B, 1, 28, 28)."""
        x = self.conv(x).relu().flatten(1)
        return self.out(self.hidden(x).relu())


def train(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, epochs: int, batch: int) -> None:
    """Minimise the cross-entropy: torch's own loop."""
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def main(args: argparse.Namespace) -> dict[str, float]:
    """Train three times; print the accuracies."""
    name = "mnist-mini" if args.data_root is None else "mnist"
    data = pb.load_data(name, root=args.data_root, train_size=args.train_size)
    x, y, test_x, test_y = data.train.x.as_subclass(Tensor), data.train.y, data.test.x, data.test.y
    accuracy = {}
    for kind in ("Adam", "AdaBayes"):
        pyro.set_rng_seed(args.seed)
        net = Net()
        if kind == "Adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
        else:
            optimizer = torch_optim.AdaBayes(
                net.parameters(), lr=args.lr, lr_sgd=args.lr_sgd, batch_size=args.batch_size
            )
        train(net, optimizer, x, y, args.epochs, args.batch_size)
        with torch.no_grad():
            accuracy[kind] = float((net(test_x.as_subclass(Tensor)).argmax(-1) == test_y).float().mean())

    pyro.set_rng_seed(args.seed)
    model = BNN(Net(), priors.FanIn(), likelihoods.Categorical(), num_data=len(y))
    guide = AutoMeanFieldNormal(model, init_loc="net")
    optimizers = optim.PerSite(
        loc=optim.AdaBayes({"lr": args.lr, "lr_sgd": args.lr_sgd, "batch_size": args.batch_size}),
        scale=optim.Adam({"lr": 1e-2}),
    )
    fit(model, guide, optimizers, data.train, epochs=args.epochs, batch_size=args.batch_size, kl=kl.tempered(args.eta))
    scores = pb.Posterior(model, guide).evaluate(test_x, test_y, num_samples=args.num_samples)["s_draws"]
    accuracy["AdaBayes, Bayesian"] = scores["accuracy"]
    for kind, value in accuracy.items():
        print(f"{kind:20} test accuracy {value:.4f}")
    print(f"{'':20} test NLL of the Bayesian network {scores['pred_nll']:.4f}")
    return accuracy


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="AdaBayes on a network of your own")
    parser.add_argument("--data-root", help="where MNIST is; default the digits in the package")
    parser.add_argument("--train-size", type=int, help="train on so many rows; default all")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--lr-sgd", type=float, default=0.1)
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--num-samples", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
