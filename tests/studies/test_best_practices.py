"""Every figure of docs/best-practices.md is that of the outcome it is from."""

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyro_bnn.guides.init import default_scale
from pyro_bnn.recipe import OptimRecipe, Recipe
from pyro_bnn.studies import study_names

DOCS = Path(__file__).parents[2] / "docs"
TEXT = " ".join((DOCS / "best-practices.md").read_text().split())


@cache
def outcome(study: str, scale: str = "cpu") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "studies" / f"{study}.{scale}.json").read_text())
    return found


def finding(study: str, statement: str, scale: str = "cpu") -> float:
    """Return the estimate of the finding that says so, or of the only one that begins so."""
    by_statement = {f["statement"]: f["estimate"] for f in outcome(study, scale)["findings"]}
    (found,) = [whole for whole in by_statement if whole == statement] or [
        whole for whole in by_statement if whole.startswith(statement)
    ]
    return float(by_statement[found])


def mean(study: str, cell: str, scale: str = "cpu") -> float:
    (found,) = (c for c in outcome(study, scale)["cells"] if c["cell"] == cell)
    return float(found["mean"])


def largest(study: str, a: str, b: str) -> float:
    """Return the largest difference of two cells, over seeds."""
    values = {c["cell"]: c["values"] for c in outcome(study)["cells"]}
    return max(abs(x - y) for x, y in zip(values[a], values[b], strict=True))


def disagreement(rho: float, scale: str = "cpu") -> float:
    (line,) = outcome("thesis-initial-sigma", scale)["figures"][1]["lines"]
    return float(line["y"][line["x"].index(rho)])


def fifth_below() -> float:
    """Return how far CIFAR-10 is below with a beta2 under .2, compared with the next worst of the other fifths."""
    worst, *others = sorted(
        (float(c["mean"]), c["cell"])
        for c in outcome(BETAS, "source")["cells"]
        if c["cell"].startswith("cifar10, beta2 0")
    )
    assert worst[1].endswith("0.0 to 0.2")
    assert len(others) == 4
    return others[0][0] - worst[0]


def balanced() -> float:
    """Return the NLL of the largest width at the tau that is best at the smallest: 200 / 20 is one decade."""
    best = min(
        (h / 2 for h in range(-5, 1)), key=lambda p: mean("overparameterised-mnist-grid", f"N = 20, eta = 10^{p:g}")
    )
    return mean("overparameterised-mnist-grid", f"N = 200, eta = 10^{best - 1:g}")


def failed(optimizer: str) -> int:
    """Return how many runs end under 15 %, or with no numbers at all."""
    (values,) = (c["values"] for c in outcome("thesis-optimizers")["cells"] if c["cell"] == optimizer)
    assert len(values) == 24
    return sum(value is None or value < 0.15 for value in values)


BETAS = "thesis-adam-betas"
GRID, SIGMA, BAYES = "overparameterised-mnist-grid", "thesis-initial-sigma", "thesis-bayesian-against-frequentist"
POINTS = 100
KL = "thesis-kl-weights"
KL_HIGHER = [
    finding(KL, f"{data}: KL at lambda {weight} above", "source")
    for data in ("MNIST", "CIFAR-10")
    for weight in ("1/2", "2")
]

# words of the page: the numbers that they round, and to how many digits after the point
QUOTED: dict[str, list[tuple[float, float, int]]] = {
    "loses 3.1 points of accuracy on CIFAR-10 and 1.2 on MNIST": [
        (3.1, -POINTS * finding("thesis-estimators", "CIFAR-10: accuracy without", "source"), 1),
        (1.2, -POINTS * finding("thesis-estimators", "MNIST: accuracy the same", "source"), 1),
    ],
    "and 33 and 30 points in a short training": [
        (33, -POINTS * finding("thesis-estimators", "CIFAR-10: accuracy without"), 0),
        (30, -POINTS * finding("thesis-estimators", "MNIST: accuracy the same"), 0),
    ],
    "gains 1.1 to 1.3 points of accuracy on CIFAR-10 and .1 on MNIST": [
        (1.1, POINTS * finding(KL, "CIFAR-10: accuracy at lambda 1/2 above", "source"), 1),
        (1.3, POINTS * finding(KL, "CIFAR-10: accuracy at lambda 2 above", "source"), 1),
        (0.1, POINTS * finding(KL, "MNIST: accuracy at lambda 1/2 above", "source"), 1),
        (0.1, POINTS * finding(KL, "MNIST: accuracy at lambda 2 above", "source"), 1),
    ],
    "a KL 5.5 to 6.7 nats per row higher": [
        (5.5, min(KL_HIGHER), 1),
        (6.7, max(KL_HIGHER), 1),
    ],
    "wholly without it CIFAR-10 ends 3.8 points lower": [
        (3.8, -POINTS * finding(KL, "CIFAR-10: accuracy at lambda 0 above", "source"), 1)
    ],
    "accuracy falls by two points": [
        (2, POINTS * finding("thesis-rate-ratio", "alpha_mu = 0.001: accuracy at r = 1 above that at r = 10"), 0)
    ],
    "never differ by more than .04 points": [
        (0.04, POINTS * largest("thesis-twin-plateau", "cifar10, twin plateau", "cifar10, shared plateau"), 2)
    ],
    "it is 3.8 points lower (cpu)": [
        (3.8, -POINTS * finding("thesis-alternating", "accuracy in turns that of together, within"), 1)
    ],
    "the two differ by .05 points": [
        (0.05, POINTS * finding("thesis-alternating", "accuracy in turns that of together, within", "source"), 2)
    ],
    "the draws' disagreement is 6e-7 of the predictive entropy": [(6, 1e7 * disagreement(-10.0), 0)],
    "at -5 it is .8 %": [(0.8, 100 * disagreement(-5.0), 1)],
    "at -3 it is 3 % for 15 points": [
        (3, 100 * disagreement(-3.0), 0),
        (15, POINTS * finding(SIGMA, "too high: accuracy at rho = -10 above that at rho = -3"), 0),
    ],
    "half forgotten: 4.5, 6.9 and 9.5 %, and -3 costs 6 points": [
        (4.5, 100 * disagreement(-10.0, "source"), 1),
        (6.9, 100 * disagreement(-5.0, "source"), 1),
        (9.5, 100 * disagreement(-3.0, "source"), 1),
        (6, POINTS * finding(SIGMA, "too high: accuracy at rho = -10 above that at rho = -3", "source"), 0),
    ],
    "of few rows and 6 in twenty of all": [
        (6, POINTS * finding(SIGMA, "too high: accuracy at rho = -10 above that at rho = -3", "source"), 0)
    ],
    "(.25 against .50 for the frequentist one": [
        (0.25, mean("thesis-noise-confidence", "Bayesian, rho -10", "source"), 2),
        (0.50, mean("thesis-noise-confidence", "frequentist", "source"), 2),
    ],
    "less sure of the test digits, too, by 1.6 points": [
        (1.6, POINTS * finding("thesis-noise-confidence", "rho -10: confidence on the test digits", "source"), 1)
    ],
    "CIFAR-10 ends 3 points lower than with any other": [(3, POINTS * fifth_below(), 0)],
    "it is 1.9 points worse there": [(1.9, -POINTS * finding(BETAS, "CIFAR-10: accuracy at (.9, 0.5)", "source"), 1)],
    "which gains .2 points": [(0.2, POINTS * finding(BETAS, "MNIST: accuracy at (.9, 0.9)", "source"), 1)],
    "(NLL 2.31; .43 at the balanced eta": [(2.31, mean(GRID, "N = 200, eta = 10^0"), 2), (0.43, balanced(), 2)],
    "with eight draws a step for 20 seeds of 20, and with one for 8 of 20": [
        (20, 20 * finding("thesis-and-perceptron", "Share of seeds solved after 2,000 steps, 8", "source"), 0),
        (8, 20 * finding("thesis-and-perceptron", "Share solved, 1 draw a step", "source"), 0),
    ],
    "come out 2.1 points below Adam and RAdam": [
        (2.1, -POINTS * finding("thesis-optimizers", "mean accuracy of successful runs"), 1)
    ],
    "AdaBayes comes out .6 points behind Adam": [
        (0.6, -POINTS * finding("adabayes-ranking", "(i) error of AdaBayes below that of Adam"), 1)
    ],
    "is 1.9 points ahead on MNIST": [(1.9, POINTS * finding(BAYES, "MNIST, rates chosen: mean accuracy"), 1)],
    "-3, which costs 15 points": [
        (15, POINTS * finding(SIGMA, "too high: accuracy at rho = -10 above that at rho = -3"), 0)
    ],
    "11 of 24 runs end under 15 %, and 3 of RAdam's": [(11, failed("Adam"), 0), (3, failed("RAdam"), 0)],
    "a loss of two points in a higher one": [
        (2, POINTS * finding("thesis-rate-ratio", "alpha_mu = 0.001: accuracy at r = 1 above that at r = 10"), 0)
    ],
    "is 1.7 points better on CIFAR-10": [
        (1.7, POINTS * finding("thesis-twin-plateau", "CIFAR-10: accuracy of the twin above that of the better"), 1)
    ],
    "6.5 points better at 1e-4": [
        (6.5, POINTS * finding("overparameterised-resnet20", "test accuracy at eta = 10^-4"), 1)
    ],
    "gains a point by averaging": [(1, POINTS * finding("hwa-mnist", "accuracy of HWA above that of BBB"), 0)],
    "gains a point over Bayes by Backprop": [
        (1, POINTS * finding("hwa-mnist", "accuracy of HWA above that of BBB"), 0)
    ],
    ".16 points, within chance, and .005 nats": [
        (0.16, POINTS * finding("hwa-mnist", "accuracy of HWA above that of BBB", "source"), 2),
        (0.005, finding("hwa-mnist", "NLL of HWA below that of BBB", "source"), 3),
    ],
    "as much, to within .01 points": [
        (0.01, POINTS * abs(finding("hwa-mnist", "accuracy of HWA above that of BBB averaged", scale)), 2)
        for scale in ("cpu", "source")
    ],
}

SETTINGS = (  # numbers that are set and not found, longest first where one holds another
    "softplus(-10)", "softplus(-5)", "softplus(-4)", "CIFAR-10", "LeNet-5", "at 1e-3 or below", "means is 1e-3",
    "use 1e-2 for", "at -10", "starts at -4", "start at -10", "beta2: below .2", "At beta1 = .9",
    "with .5 than with .999", "level with .9,",
    "eta = 1 a hidden layer of 200 units with 1/N", "falls as 1 / N", "lambda = 1 / N", "L1 under", "in 320 steps",
    "in 1,008 steps", "has -5,", "-4 itself", "1e-3 each", "(.9, .999)", "0, together", "`eta` | 1 |", "stays at 1,",
    "all of Adam's at about 1e-2 and above", "1 / P_l", "resnet20",
    "after 48 epochs", "in 220 steps", "after 20 epochs of all digits",
    "After 20 epochs of all rows", "starts at -10",
)  # fmt: skip


@pytest.mark.parametrize("words", QUOTED)
def test_figures_are_those_of_the_outcomes(words: str) -> None:
    assert words in TEXT
    for quoted, found, digits in QUOTED[words]:
        assert round(found, digits) == pytest.approx(quoted), f"{found:g}"


def test_no_figure_goes_without() -> None:
    rest = TEXT
    for words in sorted((*QUOTED, *SETTINGS), key=len, reverse=True):
        assert words in TEXT, f"no longer there: {words!r}"
        rest = rest.replace(words, "")
    left = [rest[max(found.start() - 30, 0) : found.end() + 20] for found in re.finditer(r"\d+", rest)]
    assert left == []


def test_all_four_penalties_want_less_and_three_end_at_chance() -> None:
    cells = {c["cell"]: c["mean"] for c in outcome("penalties-cvnn")["cells"] if "Bayesian" in c["cell"]}
    penalties = {cell.partition(", Bayesian")[0] for cell in cells}
    assert len(penalties) == 4
    for penalty in penalties:
        tried = {float(cell.rpartition("^")[2]): v for cell, v in cells.items() if cell.startswith(f"{penalty}, B")}
        assert max(tried, key=lambda power: tried[power]) < -1
    assert sum(cells[f"{penalty}, Bayesian, eta = 10^0"] == 0.1 for penalty in penalties) == 3


def test_studies_that_are_named_exist_at_the_scale_that_is_named() -> None:
    named = set(re.findall(r"\b(?:thesis|hwa|adabayes|penalties|overparameterised)-[a-z0-9-]+", TEXT))
    assert named <= set(study_names())
    for study in named:
        scales = {path.name.split(".")[1] for path in (DOCS / "studies").glob(f"{study}.*.json")}
        assert scales & {"cpu", "source"}, study


def test_the_defaults_are_those_of_the_table() -> None:
    default = {name: field.default for name, field in Recipe.model_fields.items()}
    assert (default["estimator"], default["kl"], default["eta"]) == ({"name": "analytic"}, "uniform", 1.0)
    assert (default["method"], default["schedule"]) == ({"name": "svi"}, {"name": "constant"})
    assert default["prior"] == {"name": "kaiming"}
    optim = OptimRecipe()
    assert optim.loc == optim.scale == {"name": "adam", "lr": 1e-3}
    assert optim.alternate == 0
    assert default_scale({"of a BNN": 1}) == pytest.approx(math.log1p(math.exp(-4)))
