"""
Bayesian against frequentist training by Adam (thesis, introduction, figure 1.2).

"Using conventional training methods, the learning process is slower than its frequentist counterpart and the end result
has often worse performance": two curves of accuracy each on MNIST and CIFAR-10. One network minimises

    mean of -log p(y | x, w),        the other        E_q [the same] + KL(q || p) / N,    q = N(mu, sigma^2),

from the same start (mu = w) with the same Adam; sigma begins at softplus(-10) = 4.5e-5, where a draw of the weights is
as good as its mean, so that what differs at first is the pull of the prior, mu / (N s^2), alone.

Which curve is higher depends on the rate of each, and a difference between two rates is none between two principles. So
both sides have the same rates to choose from, each chooses by its accuracy on held-out rows after the last epoch (mean
over seeds), and the comparison of the chosen decides. How fast a network learns is the mean over epochs of its accuracy
on held-out rows. Beside it stands what the source compares: both at the default rate of Adam, 1e-3, chosen by nobody.
"""

import numpy as np
from numpy.typing import NDArray

from pyro_bnn.studies.figures import Curves, after_each_epoch
from pyro_bnn.studies.findings import Finding, more
from pyro_bnn.studies.study import Results, Scale, Study, Trial

_SIDES = {"Bayesian": None, "frequentist": "ml"}
_NAMES = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
_DEFAULT = 1e-3
_SIZES: dict[Scale, tuple[int, tuple[float, ...], dict[str, dict[str, int]]]] = {
    # seeds, rates, and of CIFAR-10 and MNIST what is smaller than at the source
    "smoke": (2, (1e-3,), {d: {"epochs": 1, "data_args.train_size": 200} for d in _NAMES}),
    "cpu": (
        5,
        (1e-3, 3e-3),
        {d: {"epochs": 5, "batch_size": 50, "data_args.train_size": 5000} for d in _NAMES},
    ),
    "source": (5, (3e-4, 1e-3, 3e-3), {"cifar10": {"epochs": 50}, "mnist": {"epochs": 20}}),
}


def _cell(data: str, side: str, rate: float) -> str:
    return f"{data}, {side}, {rate:g}"


def _design(scale: Scale) -> list[Trial]:
    seeds, rates, sizes = _SIZES[scale]
    return [
        Trial(
            _cell(data, side, rate),
            seed,
            compute="pyro_bnn.studies._last_epoch:train",
            arguments={
                "recipe": f"lenet5-{data}-thesis",
                "variant": variant,
                "changes": {"optim.loc.lr": rate, "optim.scale.lr": rate, **size},
            },
        )
        for data, size in sizes.items()
        for side, variant in _SIDES.items()
        for rate in rates
        for seed in range(seeds)
    ]


def _chosen(results: Results, data: str, side: str) -> str:
    """Return the cell of a side whose rate does best on held-out rows."""

    def accuracy(cell: str) -> float:
        values = results.values(cell, "val_accuracy")
        return float(np.mean(values)) if np.isfinite(values).all() else -1.0

    return max((cell for cell in results.cells if cell.startswith(f"{data}, {side}, ")), key=accuracy)


def _curve_difference(results: Results, a: str, b: str) -> NDArray[np.float64]:
    """Return the mean over epochs of the held-out accuracy, a - b by seed."""

    def means(cell: str) -> NDArray[np.float64]:
        curves = [results.record(cell, seed).get("epochs_val_accuracy") for seed in results.seeds(cell)]
        return np.array([np.mean(curve) if curve else np.nan for curve in curves])

    return means(a) - means(b)


def _figures(results: Results) -> list[Curves]:
    found = []
    for data, name in _NAMES.items():
        cells = {f"{side}, {(cell := _chosen(results, data, side)).rpartition(' ')[2]}": cell for side in _SIDES}
        found.append(Curves(name, "epoch", "held-out accuracy", after_each_epoch(results, "val_accuracy", cells)))
    return found


def _judge(results: Results) -> list[Finding]:
    findings, controls = [], []
    for data, name in _NAMES.items():
        bayesian, frequentist = (_chosen(results, data, side) for side in _SIDES)
        rates = f"({frequentist.rsplit(', ', 1)[1]}) above that of the Bayesian one ({bayesian.rsplit(', ', 1)[1]})"
        findings += [
            more(
                f"{name}, rates chosen: accuracy of the frequentist network {rates}",
                results.paired(frequentist, bayesian, "accuracy"),
            ),
            more(
                f"{name}, rates chosen: mean accuracy over epochs of the frequentist network {rates}",
                _curve_difference(results, frequentist, bayesian),
            ),
        ]
        bayesian, frequentist = (_cell(data, side, _DEFAULT) for side in _SIDES)
        words = f"{name}, both at 1e-3"
        controls += [
            more(
                f"{words}: accuracy of the frequentist network above that of the Bayesian one",
                results.paired(frequentist, bayesian, "accuracy"),
                decides=False,
            ),
            more(
                f"{words}: mean accuracy over epochs of the frequentist network above that of the Bayesian one",
                _curve_difference(results, frequentist, bayesian),
                decides=False,
            ),
        ]
    return findings + controls


STUDY = Study(
    name="thesis-bayesian-against-frequentist",
    claim="Using conventional training methods, a Bayesian network learns more slowly than its frequentist counterpart "
    "and often ends with a worse accuracy.",
    source="Training Bayesian Neural Networks (MSc thesis, Lund 2020)",
    place="chapter 1, figure 1.2",
    varied="Bayesian or frequentist (maximum likelihood) LeNet-5, trained by Adam on MNIST and on CIFAR-10, at rates "
    "that both sides choose from alike.",
    measured="accuracy on the 10,000 test rows after the last epoch, one draw of the weights; accuracy on held-out "
    "rows, the mean over epochs.",
    rule="Each side takes the rate of its best accuracy on held-out rows. Confirmed if for both measures and on both "
    "data sets the 95 % interval of frequentist - Bayesian lies above 0; contradicted if it lies below in any.",
    not_done="The source states neither rate nor epochs nor repetitions. At cpu scale 5,000 rows of each, 5 epochs in "
    "batches of 50, rates 1e-3 and 3e-3; at source scale 3e-4 as well.",
    design=_design,
    judge=_judge,
    figures=_figures,
    explained="At these lengths the only difference that shows is in speed on MNIST, by 1.9 points of the mean over "
    "epochs, and only where the frequentist network has the rate it chose (3e-3): with both at 1e-3 none shows "
    "on either set. With a sigma of 4.5e-5 the two are nearly the same training.",
)
