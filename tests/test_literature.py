"""Every system of the five documents is reachable by name: row -> commands, each of which is known."""

import pytest

from pyro_bnn.recipe import find_recipe
from pyro_bnn.registry import names
from pyro_bnn.studies import find_study

BOTH = ("mnist", "cifar10")


def thesis(*variants: str, data: tuple[str, ...] = BOTH) -> list[str]:
    return [f"train lenet5-{name}-thesis --variant {variant}" for name in data for variant in variants]


def grid(recipe: str, *variants: str) -> list[str]:
    return [f"train {recipe}", *(f"train {recipe} --variant {variant}" for variant in variants)]


NINE = ("adam", "adagrad", "amsgrad", "adabound", "amsbound", "adamw", "adabayes-fp", "adabayes")
PENALTIES = (
    "l2-usual",
    "l1",
    "l1-usual",
    "group-lasso",
    "group-lasso-usual",
    "group-lasso-transposed",
    "group-lasso-transposed-usual",
)

ROWS: dict[int, list[str]] = {
    1: ["train lenet5-mnist-thesis", "study thesis-baseline"],
    2: ["train lenet5-cifar10-thesis", "study thesis-baseline"],
    3: thesis("ml"),
    4: ["study thesis-noise-confidence"],
    5: ["study thesis-mle-map"],
    6: ["train perceptron-and", "study thesis-and-perceptron"],
    7: [*thesis("total", "path", "score"), "study thesis-estimators"],
    8: [*thesis("kl-none", "kl-early", "kl-late", "kl-0.97", "kl-1.03"), "study thesis-kl-weights"],
    9: thesis("sgd", data=("cifar10",)),
    10: ["train lenet5-cifar10-thesis", *thesis("amsgrad", data=("cifar10",))],
    11: thesis("adabound", "amsbound", data=("cifar10",)),
    12: thesis("radam", data=("cifar10",)),
    13: [*thesis("yellowfin", data=("cifar10",)), "study thesis-optimizers"],
    14: [*thesis("sgd"), "study thesis-sgd-landscape", "study thesis-robust-region"],
    15: [*thesis("adam-betas"), "study thesis-adam-betas"],
    16: [*thesis("alternating", data=("cifar10",)), "study thesis-alternating"],
    17: [*thesis("two-rates", data=("cifar10",)), "study thesis-two-rates"],
    18: [*thesis("rate-ratio", data=("cifar10",)), "study thesis-rate-ratio"],
    19: [*thesis("twin-plateau"), "study thesis-twin-plateau"],
    20: [*thesis("initial-rho", data=("cifar10",)), "study thesis-initial-sigma"],
    21: ["train linear-regression", "lr-range linear-regression", "study thesis-schedules"],
    22: ["optimizer adagrad", "optimizer rmsprop"],
    23: grid("resnet34-cifar10-sgd", *NINE),
    24: grid("resnet34-cifar100-sgd", *NINE),
    25: grid("densenet121-cifar10-sgd", *NINE),
    26: grid("densenet121-cifar100-sgd", *NINE),
    27: ["study adabayes-fixed-point"],
    28: ["study adabayes-normaliser"],
    29: [*grid("one-hidden-layer-mnist", "untempered"), "study overparameterised-mnist-grid"],
    30: grid("resnet20-cifar10-tempered", "balanced"),
    31: [
        "train one-hidden-layer-toy-cubic",
        "study overparameterised-kl-collapse",
        "study overparameterised-elbo-limit",
    ],
    32: [*grid("mlp-toy-cubic", "lmc"), "study overparameterised-lmc"],
    33: [*grid("lenet5-mnist-bbb", "sgld", "hwa"), "study hwa-mnist"],
    34: grid("vgg16-cifar10-bbb", "sgld", "hwa"),
    35: ["train lenet5-mnist-bbb --variant hwa-low-rank", "train vgg16-cifar10-bbb --variant hwa-low-rank"],
    36: grid("cvnn-cifar10-l2", *PENALTIES),
    37: grid("vgg19-cifar10-l2", *PENALTIES),
    38: ["study penalties-theorem", "study penalties-corollary"],
    39: ["train mlp-mnist --variant graves", "study penalties-graves-prior"],
}


@pytest.mark.parametrize("row", range(1, 40))
def test_every_row_is_a_command(row: int) -> None:
    assert ROWS[row]
    for command in ROWS[row]:
        verb, name, *rest = command.split()
        if verb in ("train", "lr-range"):
            assert find_recipe(name, rest[1] if rest else None)
        elif verb == "study":
            assert find_study(name).name == name
        else:
            assert name in names("optimizers")
