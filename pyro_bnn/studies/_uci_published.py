"""
Published test log-likelihoods and RMSE of the nine UCI regression sets, in the units of the data.

What is stated of the splits decides where a row may stand: `standard` are those of Hernandez-Lobato and Adams (20; of
protein 5), one hidden layer of 50 units (protein 100). Where the splits are not stated, the table says so beside the
column: "not the same splits". Standard errors are given where the source gives them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PUBLISHED", "SETS", "Published"]

SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")


@dataclass(frozen=True)
class Published:
    """
    One published method.

    :param source: where the figures were read.
    :param standard: whether the source states the standard splits.
    :param ll: mean test log-likelihood by set.
    :param ll_se: its standard error by set, where given.
    :param rmse: by set, where given.
    """

    source: str
    standard: bool
    ll: Mapping[str, float]
    ll_se: Mapping[str, float]
    rmse: Mapping[str, float]


def _by_set(*values: float | None) -> dict[str, float]:
    return {name: value for name, value in zip(SETS, values, strict=True) if value is not None}


_BASELINES = "Nado et al. 2021, uncertainty-baselines (README of baselines/uci)"

PUBLISHED: dict[str, Published] = {
    "VI": Published(_BASELINES, False, _by_set(-3.12, -3.22, -0.93, 1.03, 6.12, -2.85, -2.93, -1.00, -2.01), {}, {}),
    "refined VI": Published(
        _BASELINES, False, _by_set(-2.94, -3.08, -0.75, 1.06, 6.33, -2.83, -2.92, -0.97, -1.68), {}, {}
    ),
    "ensemble of 10": Published(
        _BASELINES, False, _by_set(-6.11, -3.20, -0.61, 1.17, 5.17, -3.18, -3.12, -0.97, -0.73), {}, {}
    ),
    "VMG": Published(
        "Louizos and Welling 2016, as listed by uncertainty-baselines",
        False,
        _by_set(-2.46, -3.01, -1.06, 1.10, 2.46, -2.82, -2.84, -0.95, -1.30),
        {},
        {},
    ),
    "PBP": Published(
        "Hernandez-Lobato and Adams 2015, as listed by Gal and Ghahramani 2016 (table 1)",
        False,
        _by_set(-2.57, -3.16, -2.04, 0.90, 3.73, -2.84, -2.97, -0.97, -1.63),
        _by_set(0.09, 0.02, 0.02, 0.01, 0.01, 0.01, 0.00, 0.01, 0.02),
        _by_set(3.01, 5.67, 1.80, 0.10, 0.01, 4.12, 4.73, 0.64, 1.02),
    ),
    "PBP-MV, two layers": Published(
        "Sun et al. 2017, as listed by uncertainty-baselines",
        False,
        _by_set(-2.54, -3.04, -1.01, 1.28, 4.85, -2.78, -2.77, -0.97, -1.64),
        {},
        {},
    ),
    "MC dropout, grid": Published(
        "Gal and Ghahramani 2016, DropoutUncertaintyExps (readme, grid search)",
        True,
        _by_set(-2.40, -2.93, -1.21, 1.14, 4.45, -2.80, -2.87, -0.93, -1.25),
        _by_set(0.04, 0.02, 0.01, 0.01, None, 0.01, None, 0.01, 0.01),
        _by_set(2.90, 4.82, 0.54, 0.08, 0.00, 4.01, 4.27, 0.62, 0.67),
    ),
    "SLANG": Published(
        "Mishkin et al. 2018, SLANG (results.txt)",
        False,
        _by_set(-2.58, -3.13, -1.12, 1.06, 4.76, -2.84, None, -0.97, -1.88),
        {},
        _by_set(3.21, 5.58, 0.64, 0.08, None, 4.16, None, 0.65, 1.08),
    ),
    "Bayes by backprop": Published(
        "Mishkin et al. 2018, SLANG (results.txt)",
        False,
        _by_set(-2.66, -3.25, -1.45, 1.07, 4.61, -2.86, None, -0.97, -1.56),
        {},
        _by_set(3.43, 6.16, 0.97, 0.08, None, 4.21, None, 0.64, 1.13),
    ),
}
"""By the name of the method."""
