"""
The temperature of a residual network, for which no theorem says that the best eta is below 1.

`overparameterised-mnist-grid` has the mathematics for one hidden layer with 1/N output scaling, where the KL to a
product prior outweighs p rows as N grows, and eta = tau p / N restores the balance. The source shows ResNet-20 on
CIFAR-10 over a grid of eta as evidence that this carries over. No theorem says so: its weights are not scaled by 1/N,
and normalisation layers undo the scale of most of them. What can be tested is whether a tempered posterior, eta < 1,
predicts better than the untempered one, and at which eta.
"""

from typing import Any

import numpy as np

from pyro_bnn.studies._tuning import chosen, last_iterate
from pyro_bnn.studies.findings import Finding, likely, more
from pyro_bnn.studies.study import Results, Scale, Study, Trial

_SIZES: dict[Scale, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    # seeds, log10 eta, changes
    "smoke": (
        2,
        (-2, 0),
        {
            "model_args": {"width": 1},
            "data": "mnist-mini",
            "data_args": {"train_size": 200, "test_size": 200},
            "epochs": 1,
        },
    ),
    "cpu": (
        5,
        (-4, -2, 0),
        {
            "model_args": {"width": 4},
            "data_args": {"train_size": 1250, "test_size": 4000},
            "val_fraction": 0.2,
            "epochs": 10,
            "batch_size": 100,
        },
    ),
    "source": (5, (-5, -4, -3, -2, -1, 0), {"budget": "paper", "epochs": 200}),
}


def _cell(power: int) -> str:
    return f"eta = 10^{power}"


def _design(scale: Scale) -> list[Trial]:
    seeds, powers, sizes = _SIZES[scale]
    trials = []
    for power in powers:
        changes = {
            **sizes,
            "eta": 10.0**power,
            "method": last_iterate(sizes["epochs"], "svi"),
            "num_samples": 1,
            "val_samples": 1,
        }
        trials += [Trial(_cell(power), seed, "resnet20-cifar10-tempered", None, changes) for seed in range(seeds)]
    return trials


def _optima(results: Results, resamples: int = 1000) -> np.ndarray:
    """Return -log10 of the eta that is best on validation rows, less half a step, over seeds drawn again."""
    random = np.random.default_rng(0)
    powers = [int(cell.removeprefix("eta = 10^")) for cell in results.cells]
    curves = [results.curve(cell, "val_accuracy") for cell in results.cells]
    ends = np.array([[curve[-1] if curve else 0.0 for curve in cell] for cell in curves])
    drawn = random.integers(ends.shape[1], size=(resamples, ends.shape[1]))
    best = ends[:, drawn].mean(2).argmax(0)
    below: np.ndarray = -np.array(powers)[best] - 0.5
    return below


def _judge(results: Results) -> list[Finding]:
    cold = chosen(results, {cell: cell for cell in results.cells if cell != _cell(0)})
    return [
        more(
            f"test accuracy at {cold}, the best below 1, above that at eta = 1",
            results.paired(cold, _cell(0), "accuracy"),
        ),
        likely("the best eta on validation rows is below 1", _optima(results)),
        more("test NLL there below that at eta = 1", results.paired(_cell(0), cold, "pred_nll"), decides=False),
    ]


STUDY = Study(
    name="overparameterised-resnet20",
    claim="Without cooling (eta = 1) a ResNet-20 on CIFAR-10 predicts worse than at its best temperature, eta < 1: "
    "the finding for one hidden layer generalises to more complex architectures.",
    source="Huix, Majewski, Durmus, Moulines and Korba 2022, arXiv:2207.03859, and slides on overparameterised "
    "Bayesian neural networks",
    place="figure of the effect of the temperature, ResNet-20 on CIFAR-10",
    varied="eta.",
    measured="accuracy on test rows after the last epoch, one draw; the best eta below 1 chosen on validation rows.",
    rule="Confirmed if accuracy at the best eta below 1 is above that at eta = 1 (95 % interval) and the best eta on "
    "validation rows is below 1 in 97.5 % of bootstrap samples of the seeds; contradicted if either is contradicted.",
    not_done="Widths, rates and epochs are not stated in the source; the width is not varied. At cpu scale a quarter "
    "of the maps, 1,000 rows and 250 for validation, 10 epochs, 4,000 test rows, and eta = 1, 10^-2, 10^-4.",
    design=_design,
    judge=_judge,
    explained="The accuracy agrees with the claim, 22.4 % at eta = 10^-4 against 15.9 % at 1; what is missing is the "
    "choice, for by 250 validation rows eta = 1 is the best of the three in 12 % of bootstrap samples (allowed are "
    "2.5 %). In 100 steps no network comes far from chance, 10 %, so this is about the start of a training.",
)
