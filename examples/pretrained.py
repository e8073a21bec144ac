"""
From a trained torch network to a posterior: in one line, and by hand.

A LeNet-5 is trained as anybody trains one. Then

    one line     `pb.bayesianize(net, data)`: prior, deviations, rates, temperature by the rules in its docstring
    by hand      a `BNN` of the trained network, a guide whose means start at its weights (`init_loc="net"`) and whose
                 deviations are small beside the prior's (`relative_scale`), and a few epochs of SVI
    last layer   the same with one random layer (`random="fc3*"`): the others stay as they are

Printed are accuracy, NLL and calibration error on test rows, which none of the three has seen, and what flags noise as
unfamiliar: the AUROC of the entropy of the prediction.

RESULTS
"""

import argparse

import pyro
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pyro_bnn as pb
from pyro_bnn.analysis.scores.ood import auroc
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit, kl
from pyro_bnn.models import BNN, LeNet5, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite


def train_plainly(net: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    """Minimise the cross-entropy."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def by_hand(net: nn.Module, data: pb.data.Data, epochs: int, random: str | None = None) -> pb.Posterior:
    """Start a guide at the network's weights and train it for a few epochs."""
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data=len(data.train), random=random)
    guide = AutoMeanFieldNormal(model, init_loc="net", relative_scale=0.1)
    frozen = Adam({"lr": 0.0})  # the layers that are no random variables
    rates = dict(loc=Adam({"lr": 3e-4}), scale=Adam({"lr": 1e-2}), schedule=Cosine())
    optim = PerSite(**rates) if random is None else PerSite(**rates, other=frozen)
    fit(model, guide, optim, data.train, val=data.val, epochs=epochs, kl=kl.tempered(0.1), seed=0)
    return pb.Posterior(model, guide)


def main(args: argparse.Namespace) -> dict[str, float]:
    """Train plainly, make three posteriors, print what each says."""
    pyro.set_rng_seed(args.seed)
    name = "mnist-mini" if args.data_root is None else "mnist"
    data = pb.load_data(name, root=args.data_root, train_size=args.train_size, val_fraction=0.1)
    net = LeNet5()
    train_plainly(net, data.train.x.as_subclass(Tensor), data.train.y, args.epochs)

    noise = torch.randn(500, *data.input_shape)
    with torch.no_grad():
        logits, on_noise = net(data.test.x.as_subclass(Tensor)), net(noise)
    entropies = [torch.distributions.Categorical(logits=values).entropy() for values in (logits, on_noise)]
    right = float((logits.argmax(-1) == data.test.y).float().mean())
    nll = float(F.cross_entropy(logits, data.test.y))
    print(f"{'network':12} accuracy {right:.4f}  nll {nll:.4f}  noise {auroc(*entropies):.3f}")

    few = max(1, args.epochs // 10)
    posteriors = {
        "one line": pb.bayesianize(net, data),
        "by hand": by_hand(net, data, few),
        "last layer": by_hand(net, data, few, random="fc3*"),
    }
    found = {"network": right}
    for kind, posterior in posteriors.items():
        scores = posterior.evaluate(data.test.x, data.test.y, args.num_samples)["s_draws"]
        doubt = posterior.uncertainty(data.test.x, args.num_samples, seed=0).total
        unfamiliar = posterior.uncertainty(noise, args.num_samples, seed=0, standardised=True).total
        found[kind] = scores["accuracy"]
        print(f"{kind:12} accuracy {scores['accuracy']:.4f}  nll {scores['pred_nll']:.4f}", end="")
        print(f"  noise {auroc(doubt, unfamiliar):.3f}  ece {scores['ece']:.4f}")
    return found


def arguments() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="from a trained network to a posterior")
    parser.add_argument("--data-root", help="where MNIST is; default the digits in the package")
    parser.add_argument("--train-size", type=int, help="train on so many rows; default all")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--num-samples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main(arguments().parse_args())
