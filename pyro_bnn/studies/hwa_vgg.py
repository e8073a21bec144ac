"""
Hyperparameters weight averaging of a VGG with Flipout on CIFAR-10; `hwa-mnist` has the method and its controls.

Flipout gives each row of a batch its own sign flips of one draw's noise, y = x W + ((x * s) dW) * r with s, r = +-1, so
that the noise of the gradients averages over the batch. The source finds that HWA "shows overfitting on training data
with respect to the loss objective but seems to generalize better to unseen data", on curves without numbers. Read as
two statements: a lower training loss than that of Bayes by Backprop (BBB), and a higher test accuracy. The second
follows from averaging alone where a point that is averaged in the same way, or BBB's raw parameters are, do as well.
"""

from typing import Any

from pyro_bnn.studies.findings import Finding, more
from pyro_bnn.studies.study import Results, Scale, Study, Trial

_SIZES: dict[Scale, tuple[int, dict[str, Any]]] = {
    # seeds, changes
    "smoke": (
        2,
        {
            "model_args": {"depth": 11, "width": 0.03},
            "data": "mnist-mini",
            "data_args": {"train_size": 200, "test_size": 200},
            "epochs": 2,
        },
    ),
    "cpu": (
        5,
        {
            "model_args": {"depth": 11, "width": 0.125},
            "data_args": {"train_size": 1000, "test_size": 4000},
            "epochs": 8,
            "batch_size": 50,
        },
    ),
    "source": (5, {"budget": "paper", "epochs": 200}),
}


def _arms(epochs: int) -> dict[str, dict[str, Any]]:
    return {
        "BBB": {"name": "svi", "keep": "last"},
        "HWA": {"name": "hwa", "cycle": 0.25},
        "point, averaged": {"name": "swa", "of": "map", "cycle": 0.25},
        "BBB, averaged": {"name": "swa", "of": "svi", "cycle": 0.25},
    }


def _design(scale: Scale) -> list[Trial]:
    seeds, sizes = _SIZES[scale]
    trials = []
    for arm, method in _arms(sizes["epochs"]).items():
        changes = {**sizes, "method": method, "num_samples": 1, "val_fraction": 0.0}
        if arm == "point, averaged":  # without noise there is nothing to flip
            changes["estimator"] = {"name": "analytic"}
        trials += [Trial(arm, seed, "vgg16-cifar10-bbb", None, changes) for seed in range(seeds)]
    return trials


def _judge(results: Results) -> list[Finding]:
    return [
        more("training loss of HWA's last epoch below that of BBB", results.paired("BBB", "HWA", "train_loss")),
        more("test accuracy of HWA above that of BBB", results.paired("HWA", "BBB", "accuracy")),
        more(
            "test accuracy of HWA above that of a point averaged in the same way",
            results.paired("HWA", "point, averaged", "accuracy"),
        ),
        more(
            "test accuracy of HWA above that of BBB averaged in its raw parameters",
            results.paired("HWA", "BBB, averaged", "accuracy"),
        ),
        more("test NLL of HWA below that of BBB", results.paired("BBB", "HWA", "pred_nll"), decides=False),
        more(
            "training NLL of HWA's last epoch below that of BBB",
            results.paired("BBB", "HWA", "train_nll"),
            decides=False,
        ),
    ]


STUDY = Study(
    name="hwa-vgg",
    claim="On CIFAR-10 HWA overfits the training loss and generalises better to unseen data than Bayes by Backprop.",
    source="Hyperparameters weight averaging in Bayesian neural networks (manuscript)",
    place="section 4, figure 1 (bottom)",
    varied="the method: BBB and HWA; as controls a point and BBB's raw parameters, averaged by the same snapshots.",
    measured="the training loss of the last epoch's steps, and accuracy on test rows, one draw.",
    rule="Confirmed if HWA's training loss is below BBB's and its test accuracy above BBB's, above that of a point "
    "averaged in the same way, and above that of BBB averaged in its raw parameters (95 % intervals); contradicted if "
    "any of the four is contradicted.",
    not_done="The depth, rates, epochs and cycles are not stated in the source. The training loss is that of the "
    "iterate under the cyclic rate, not of the average. No rate is searched. At cpu scale VGG-11 with an eighth of "
    "the maps, 1,000 rows, 8 epochs, batches of 50, 4,000 test rows.",
    design=_design,
    judge=_judge,
)
