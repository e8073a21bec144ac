"""
A Bayesian recurrent network: a GRU that reads an image row by row, with a posterior over all of its weights.

`BNN` takes any module, so a recurrent one needs nothing special: the four weights of `nn.GRU` are random like those of
any layer, and one draw of them serves all time steps of a sequence. Sequences are read from both ends of the digits:
after t of the 28 rows the state of the network is asked what it would say, and doubts less with every row.

Printed are the scores on test rows, and the accuracy and mean entropy after so many rows have been read.

RESULTS
"""

import argparse

import pyro
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit, kl
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite


class RowReader(nn.Module):
    """A GRU over the rows of an image, and a dense layer on its last state."""

    def __init__(self, width: int = 28, hidden: int = 64, num_classes: int = 10) -> None:
        super().__init__()
        self.config = {"width": width, "hidden": hidden, "num_classes": num_classes}
        self.gru = nn.GRU(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, K) for sequences (B, 1, T, width) of any length T."""
        states, _ = self.gru(x.flatten(1, 2))  # (B, T, hidden)
        return self.head(states[:, -1])


def main(args: argparse.Namespace) -> dict[str, float]:
    """Train, score, and read the test digits row by row."""
    pyro.set_rng_seed(args.seed)
    name = "mnist-mini" if args.data_root is None else "mnist"
    data = pb.load_data(name, root=args.data_root, train_size=args.train_size, val_fraction=0.1)
    model = BNN(RowReader(hidden=args.hidden), priors.FanIn(), likelihoods.Categorical(), num_data=len(data.train))
    guide = AutoMeanFieldNormal(model, init_loc="net", init_scale=0.01)
    optim = PerSite(loc=Adam({"lr": 3e-3}), scale=Adam({"lr": 1e-2}), schedule=Cosine())
    result = fit(
        model, guide, optim, data.train, val=data.val, epochs=args.epochs, kl=kl.tempered(args.eta), seed=args.seed
    )
    print(f"validation accuracy {result.history[-1]['val_accuracy']:.4f}")

    posterior = pb.Posterior(model, guide)
    scores = posterior.evaluate(data.test.x, data.test.y, num_samples=args.num_samples)["s_draws"]
    print(f"test  accuracy {scores['accuracy']:.4f}  nll {scores['pred_nll']:.4f}  ece {scores['ece']:.4f}")
    for rows in (7, 14, 21, 28):
        x = data.test.x[:500, :, :rows]
        p = posterior.predict(x, args.num_samples, seed=args.seed)
        doubt = posterior.uncertainty(x, args.num_samples, seed=args.seed)
        right = (p.argmax(-1) == data.test.y[:500]).float().mean()
        print(f"after {rows:2} rows  accuracy {right:.3f}  entropy {doubt.total.mean():.3f}  of it epistemic ", end="")
        print(f"{doubt.epistemic.mean():.3f}")
    return {"accuracy": scores["accuracy"], "entropy": float(doubt.total.mean())}


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="a Bayesian recurrent network on sequences")
    parser.add_argument("--data-root", help="where MNIST is; default the digits in the package")
    parser.add_argument("--train-size", type=int, help="train on so many rows; default all")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--num-samples", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
