"""
What a Bayesian LeNet-5 reaches by a vanilla training (thesis, section 4.3).

Before it changes anything the thesis says where it starts: LeNet-5 with max pooling and ReLUs, a factorised normal
posterior whose deviations start at sigma = softplus(-10), a normal prior of Kaiming's deviations, one draw of the
weights for a step and for a prediction, Adam at 1e-3, batches of 100, and as loss per datum

    L / N = 1/N [ KL(q || P) - E log P(y | w, x) ]

over standardised images without augmentation. "This model was capable of obtaining a validation accuracy of 97.74 % on
MNIST and 59.38 % on CIFAR10": it is a statement that so much can be reached, so it is tested from below alone. The
thesis scores on the test set while it trains, and its epochs and repetitions are not stated; here the last epoch
counts, and five seeds.

Beside it stands the same network without uncertainty, trained alike: what it reaches, and how far the Bayesian one is
from it. The thesis sets its numbers beside those of others, 99.05 % of the original LeNet-5 on MNIST and 76.23 % of
a modern one on CIFAR-10 with augmentation and weight decay, which are other networks and other trainings.
"""

from pyro_bnn.studies.figures import Curves, after_each_epoch
from pyro_bnn.studies.findings import Finding, more
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY"]

_STATED = {"mnist": 0.9774, "cifar10": 0.5938}
_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
_SIDES = {"Bayesian": None, "plain": "ml"}
_SIZES: dict[Scale, tuple[int, dict[str, dict[str, int]]]] = {
    # seeds, and by data set what is changed; the Bayesian trainings are also those of `thesis-estimators`
    "smoke": (2, {data: {"epochs": 1, "data_args.train_size": 200} for data in _STATED}),
    "source": (5, {"mnist": {"epochs": 10}, "cifar10": {"epochs": 20}}),
}


def _design(scale: Scale) -> list[Trial]:
    seeds, sizes = _SIZES[scale]
    return [
        Trial(
            f"{data}, {side}",
            seed,
            f"lenet5-{data}-thesis",
            variant,
            {**sizes[data], "num_samples": 1, "val_fraction": 0.0},  # the last epoch is scored
        )
        for data in _STATED
        for side, variant in _SIDES.items()
        for seed in range(seeds)
    ]


def _figures(results: Results) -> list[Curves]:
    found = []
    for data, name in _NAMES.items():
        cells = {side: f"{data}, {side}" for side in _SIDES}
        found.append(Curves(name, "epoch", "training NLL", after_each_epoch(results, "nll", cells), "y"))
    return found


def _judge(results: Results) -> list[Finding]:
    reached = [
        more(
            f"{name}: accuracy of the Bayesian network above {_STATED[data]:.2%}",
            results.values(f"{data}, Bayesian", "accuracy") - _STATED[data],
        )
        for data, name in _NAMES.items()
    ]
    beside = [
        more(
            f"{name}: accuracy of the plain network above that of the Bayesian one",
            results.paired(f"{data}, plain", f"{data}, Bayesian", "accuracy"),
            decides=False,
        )
        for data, name in _NAMES.items()
    ]
    return reached + beside


STUDY = Study(
    name="thesis-baseline",
    claim="A Bayesian LeNet-5 is capable of 97.74 % on MNIST and 59.38 % on CIFAR-10 with a vanilla training.",
    source="Training Bayesian Neural Networks (MSc thesis, Lund 2020)",
    place="section 4.3",
    varied="nothing; the same network without uncertainty as a control.",
    measured="accuracy on the 10,000 test rows after the last epoch, one draw of the weights.",
    rule="Confirmed if on both data sets the 95 % interval of the accuracy lies above the stated one; contradicted if "
    "on either it lies below.",
    not_done="The source does not state its epochs or repetitions: 10 on MNIST and 20 on CIFAR-10 here. There is no "
    "cpu scale, for what is stated is of all rows.",
    design=_design,
    judge=_judge,
    scales=("smoke", "source"),
    figures=_figures,
)
