r"""
Maximum likelihood and maximum a posteriori of a coin (thesis, equations 2.0.4 and 2.0.5).

Two throws, y = (0, 1), of a coin that shows 1 with probability p:

    (2.0.4)   P(y | p) = p (1 - p),                                    argmax_p = 1/2
    (2.0.5)   P(y | p) Beta(p; 3, 2) ~ p (1 - p) p^(3-1) (1 - p)^(2-1),   argmax_p = 3/5

With n1 ones among n throws and a prior Beta(a, b) the argmax is n1 / n without the prior and (n1 + a - 1) / (n + a + b
- 2) with it. A point guide finds both: it maximises log P(y | p) + w log P(p), and the weight w on the prior, 0 or 1,
makes the difference (the MLE is the MAP that pays no KL).

A mode belongs to a parametrisation. In u = logit p the density of the prior gains the factor p (1 - p), and the argmax
of p moves to (n1 + a) / (n + a + b) = 4/7, which is the mean of the posterior Beta(4, 3).

Each number comes in four ways: from the formula, from a scalar optimizer, from Pyro's `AutoDelta`, and from this
library's point guide under `scale_kl` and `per_datum`.
"""

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from scipy.optimize import minimize_scalar
from torch import Tensor

from pyro_bnn.guides import AutoPoint
from pyro_bnn.inference import per_datum, scale_kl
from pyro_bnn.optim import SGD
from pyro_bnn.studies.findings import Finding, holds
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY", "estimates"]

_THROWS = (0.0, 1.0)
_A, _B = 3.0, 2.0
_STEPS = 200
_RATE = 0.5
_TOLERANCE = 1e-3
_WAYS = ("formula", "optimizer", "AutoDelta", "point guide")


def _formula() -> tuple[float, float]:
    ones, n = sum(_THROWS), len(_THROWS)
    return ones / n, (ones + _A - 1) / (n + _A + _B - 2)


def _log_joint(p: float, weight: float) -> float:
    prior = (_A - 1) * math.log(p) + (_B - 1) * math.log1p(-p)
    return sum(math.log(p if y else 1 - p) for y in _THROWS) + weight * prior


def _highest(of: Callable[[float], float], low: float, high: float) -> float:
    return float(minimize_scalar(lambda v: -of(v), bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x)


def _optimizer() -> tuple[float, float]:
    mle, map_ = (_highest(lambda p, w=w: _log_joint(p, w), 1e-9, 1 - 1e-9) for w in (0.0, 1.0))  # type: ignore[misc]
    return mle, map_


def _coin(x: Tensor, y: Tensor | None = None) -> Tensor:
    """The program: p ~ Beta(3, 2), and a throw for each row of x."""
    p = pyro.sample("p", dist.Beta(torch.tensor(_A), torch.tensor(_B)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(p), obs=y)
    return torch.as_tensor(p)


def _fitted(guide: Any, weight: float) -> float:
    """Return the point that gradient descent on the loss per datum ends at."""
    y = torch.tensor(_THROWS)
    svi = SVI(_coin, guide, SGD({"lr": _RATE * len(y)}), Trace_ELBO())
    for _ in range(_STEPS):
        with per_datum(len(y)), scale_kl(weight):
            svi.step(y, y)
    return float(guide(y)["p"].detach())


def _pyro(make: Callable[[], Any]) -> tuple[float, float]:
    found = []
    for weight in (0.0, 1.0):
        pyro.clear_param_store()
        found.append(_fitted(make(), weight))
    pyro.clear_param_store()
    return found[0], found[1]


def estimates(way: str, seed: int) -> dict[str, float]:
    """Return `mle` and `map`, by the way named, and `logit_map`, the MAP in the logit."""
    torch.manual_seed(seed)
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "formula": _formula,
        "optimizer": _optimizer,
        "AutoDelta": lambda: _pyro(lambda: AutoDelta(_coin)),
        "point guide": lambda: _pyro(lambda: AutoPoint(_coin, init_loc="normal")),
    }
    mle, map_ = ways[way]()

    def log_in_logit(u: float) -> float:
        p = 1 / (1 + math.exp(-u))
        return _log_joint(p, 1.0) + math.log(p) + math.log1p(-p)

    return {"mle": mle, "map": map_, "logit_map": 1 / (1 + math.exp(-_highest(log_in_logit, -20.0, 20.0)))}


def _design(scale: Scale) -> list[Trial]:
    return [Trial(way, 0, compute=f"{__name__}:estimates", arguments={"way": way}) for way in _WAYS]


def _judge(results: Results) -> list[Finding]:
    findings = []
    for metric, name, target in (("mle", "MLE", 0.5), ("map", "MAP", 0.6)):
        for way in _WAYS:
            value = float(results.values(way, metric)[0])
            findings.append(holds(f"The {name} by {way} is {target}", value, target, _TOLERANCE))
    in_logit = float(results.values("formula", "logit_map")[0])
    statement = "In the logit of p the MAP is the same 0.6"
    return [*findings, holds(statement, in_logit, 0.6, _TOLERANCE, decides=False)]


STUDY = Study(
    name="thesis-mle-map",
    claim="Of the throws (0, 1) the maximum likelihood estimate is p = 0.5; with the prior Beta(3, 2) the maximum a "
    "posteriori estimate is p = 0.6.",
    source="Training Bayesian Neural Networks (MSc thesis, Lund 2020)",
    place="chapter 2, equations 2.0.4 and 2.0.5",
    varied="how the maximum is found: formula, scalar optimizer, Pyro's AutoDelta, this library's point guide.",
    measured="the estimates of p.",
    rule="Confirmed if every way gives 0.5 and 0.6 within 0.001; contradicted otherwise. That a MAP depends on the "
    "parametrisation is shown beside it and does not decide.",
    not_done="Nothing.",
    design=_design,
    judge=_judge,
    metric=("map", "MAP estimate of p"),
    scales=("smoke", "source"),
    explained="In the logit of p the same prior and rows have their mode at p = 4/7, the mean of the posterior "
    "Beta(4, 3): a MAP belongs to its parametrisation. Both guides take the density of p itself.",
)
