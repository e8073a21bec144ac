"""
Nine optimizers, each tuned alike, and the place of the Kalman filter among the adaptive ones.

AdaBayes gives each weight its posterior variance under a Kalman filter as a learning rate: with g the gradient of the
summed objective of a batch of B rows,

    sigma2_post  <- 1 / (1 / sigma2_prior + g^2),    sigma2_prior <- (1 - eta^2 / (2 sigma2))^2 sigma2_post + eta^2,
    mu           <- (1 - lambda) mu + sigma2_post <g>,

which is SGD's rate sigma2 = eta_SGD / B where gradients are small, and Adam's eta / |g| where they are large.
AdaBayes-FP takes the fixed point of the recursion. Of its table 1 the source says four things that can be tested,
AdaBayes standing for the mean of the two:

    (i)    its error is below Adam's
    (ii)   it is comparable to other adaptive methods, here AdamW and AdaBound, within two points
    (iii)  it learns faster than SGD and than Adam in the beginning: a lower training NLL over the first epochs
    (iv)   AdaBayes-FP has a lower test loss than AdaBayes

The source has single runs, their lowest test error over epochs, and rates from another paper. Here the last epoch
counts, and every optimizer has the same number of tries: all of its rates (lr, and with it final_lr or lr_sgd)
multiplied by 10^-.5, 1 and 10^.5, the best factor chosen on validation rows.
"""

from typing import Any

import numpy as np

from pyro_bnn.recipe import find_recipe
from pyro_bnn.studies._tuning import chosen, last_iterate
from pyro_bnn.studies.figures import Curves, after_each_epoch
from pyro_bnn.studies.findings import Finding, equal, more
from pyro_bnn.studies.study import Results, Scale, Study, Trial

_SMALL: dict[str, Any] = {"model": "lenet5", "augment": "none", "val_fraction": 0.2, "batch_size": 64}
_SIZES: dict[Scale, tuple[int, tuple[float, ...], dict[str, Any]]] = {
    # seeds, log10 of the factors on the rates, changes
    "smoke": (
        2,
        (0.0, 0.5),
        _SMALL | {"data": "mnist-mini", "data_args": {"train_size": 200, "test_size": 200}, "epochs": 1},
    ),
    "cpu": (
        5,
        (-0.5, 0.0, 0.5),
        _SMALL
        | {
            "data": "fashion-mnist",
            "data_args": {"train_size": 5000, "test_size": 5000},
            "epochs": 16,
            "schedule.milestones": [12],
        },
    ),
    "source": (5, (-0.5, 0.0, 0.5), {"budget": "paper", "epochs": 200}),
}

_RECIPE = "resnet34-cifar10-sgd"
_OPTIMIZERS = ("sgd", "adam", "adagrad", "amsgrad", "adabound", "amsbound", "adamw", "adabayes-fp", "adabayes")
_RATES = ("lr", "final_lr", "lr_sgd")
_EARLY = 3
_MARGIN = 0.02


def _cell(optimizer: str, factor: float) -> str:
    return f"{optimizer}, rates 10^{factor:g}"


def _design(scale: Scale) -> list[Trial]:
    seeds, factors, sizes = _SIZES[scale]
    trials = []
    for optimizer in _OPTIMIZERS:
        variant = None if optimizer == "sgd" else optimizer
        table = find_recipe(_RECIPE, variant).optim.loc
        for factor in factors:
            rates = {f"optim.loc.{key}": table[key] * 10**factor for key in _RATES if key in table}
            ended = {"method": last_iterate(sizes["epochs"], "map"), "kl": {"name": "geometric", "lam": 0.0}}
            changes = sizes | rates | ended
            trials += [Trial(_cell(optimizer, factor), seed, _RECIPE, variant, changes) for seed in range(seeds)]
    return trials


def _early(results: Results, cell: str) -> np.ndarray:
    """Return the mean training NLL of the first epochs, for each seed."""
    curves = results.curve(cell, "nll")
    return np.array([np.mean(curve[:_EARLY]) if curve else np.nan for curve in curves])


def _figures(results: Results) -> list[Curves]:
    best = {o: chosen(results, {c: c for c in results.cells if c.startswith(f"{o}, ")}) for o in _OPTIMIZERS}
    named = {cell.replace("rates ", ""): cell for cell in best.values()}
    return [
        Curves("Training NLL", "epoch", "", after_each_epoch(results, "nll", named), "y"),
        Curves("Held-out accuracy", "epoch", "", after_each_epoch(results, "val_accuracy", named)),
    ]


def _judge(results: Results) -> list[Finding]:
    cells = {o: [cell for cell in results.cells if cell.startswith(f"{o}, ")] for o in _OPTIMIZERS}
    best = {o: chosen(results, {cell: cell for cell in cells[o]}) for o in _OPTIMIZERS}
    accuracy = {o: results.values(best[o], "accuracy") for o in _OPTIMIZERS}
    loss = {o: results.values(best[o], "pred_nll") for o in _OPTIMIZERS}
    early = {o: _early(results, best[o]) for o in _OPTIMIZERS}
    for table in (accuracy, loss, early):
        table["both"] = (table["adabayes"] + table["adabayes-fp"]) / 2
    ranks = np.argsort(np.argsort([-accuracy[o] for o in _OPTIMIZERS], axis=0), axis=0)
    adaptive = [o for o in _OPTIMIZERS if o not in ("sgd", "adabayes", "adabayes-fp")]
    return [
        more("(i) error of AdaBayes below that of Adam", accuracy["both"] - accuracy["adam"]),
        equal("(ii) AdaBayes and AdamW alike within two points", accuracy["both"] - accuracy["adamw"], _MARGIN),
        equal("(ii) AdaBayes and AdaBound alike within two points", accuracy["both"] - accuracy["adabound"], _MARGIN),
        more("(iii) early training NLL of AdaBayes below that of SGD", early["sgd"] - early["both"]),
        more("(iii) early training NLL of AdaBayes below that of Adam", early["adam"] - early["both"]),
        more("(iv) test NLL of AdaBayes-FP below that of AdaBayes", loss["adabayes"] - loss["adabayes-fp"]),
        more("SGD: error below that of AdaBayes", accuracy["sgd"] - accuracy["both"], decides=False),
        more("SGD: test NLL below that of AdaBayes", loss["both"] - loss["sgd"], decides=False),
        more(
            "mean rank of the other adaptive methods, less that of AdaBayes",
            np.mean([ranks[_OPTIMIZERS.index(o)] for o in adaptive], axis=0)
            - np.mean([ranks[_OPTIMIZERS.index(o)] for o in ("adabayes", "adabayes-fp")], axis=0),
            decides=False,
        ),
    ]


STUDY = Study(
    name="adabayes-ranking",
    claim="AdaBayes and AdaBayes-FP have lower errors than Adam, are comparable to other adaptive methods, learn "
    "faster than SGD and Adam in the beginning, and AdaBayes-FP has the lower loss of the two.",
    source="Aitchison 2020, Bayesian filtering unifies adaptive and non-adaptive neural network optimization",
    place="table 1 and figure 4, column ResNet-34 on CIFAR-10",
    varied="the optimizer, and a factor on all of its rates.",
    measured="error and NLL on test rows after the last epoch; the factor chosen on validation rows, mean over seeds.",
    rule="Confirmed if all of (i), (iii) and (iv) hold (95 % intervals above 0) and the mean of AdaBayes and "
    "AdaBayes-FP is within two points of AdamW and of AdaBound (90 % intervals); contradicted if any of them is "
    "contradicted.",
    not_done="The source has ResNet-34 and DenseNet-121 on CIFAR-10 and CIFAR-100, more than 200 epochs, single runs. "
    "At cpu scale LeNet-5 on Fashion-MNIST, for a ResNet narrow enough for 135 trainings learns little: 4,000 rows and "
    "1,000 for validation, batches of 64, 16 epochs (1,008 steps) with the rates a tenth after 12, 5,000 test rows.",
    design=_design,
    judge=_judge,
    figures=_figures,
    explained="AdaBayes is .6 points behind Adam and .2 nats behind it early on; it is ahead of SGD early, and "
    "AdaBayes-FP has the lower NLL of the two. Every adaptive method is best at the largest of its three factors, "
    "AdaBayes and Adam both still rising there (82.5 to 85.0 %, 84.2 to 85.5 %), so that wider grids might rank them "
    "otherwise.",
)
