"""
The nine UCI regression sets: what one variational method with one rule of choosing reaches, beside what was published.

The method ("ensemble") is the same on all sets. A network of one hidden layer of 50 rectified units (protein 100) says
mean and deviation of y, N(mu_w(x), sd_w(x)^2), with y and x standardised by the training rows. Prior N(0, 1 / fan-in).
Five mean-field normals q_m, trained apart with local reparameterisation, minimise per datum

    -E_q log p(y | x, w) + (eta / N) KL(q_m || p),

and the prediction is the even mixture of 100 draws, 20 of each. The one number that is chosen is eta, from .1, .3 and
1, by the log-likelihood of a fifth of the split's own training rows; then all of them train anew. Epochs and batch
sizes are a set's (`SIZES`), fixed before test rows were scored. Every arm is chosen in the same way: the others differ
in the guide (drawn weights, dropout masks, a point, a low-rank normal), in the noise (one level), in the depth, in an
average over the training (HWA), or sample the posterior (NUTS, on small sets, eta = 1). The last three are one network.

`single` is the first of the five alone: mean field with local reparameterisation, from the same training.

The figures of others are those of :mod:`pyro_bnn.studies._uci_published`. Most do not state their splits, so the
comparison is of means over splits, with the standard error of ours and, where it is given, theirs:
d = ours - theirs, s^2 = se^2 + their se^2; "level" is d + 2 s >= 0, "ahead" d - 2 s > 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pyro_bnn.studies._uci_published import PUBLISHED, SETS
from pyro_bnn.studies.findings import Finding, Verdict
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["METHODS", "RIVALS", "SIZES", "SMALL", "STUDY", "apart", "is_ahead", "is_level", "sets_of", "trial"]

SIZES: dict[str, tuple[int, int, int, int]] = {
    # splits, hidden units, epochs, batch size
    "boston": (20, 50, 300, 64),
    "concrete": (20, 50, 300, 64),
    "energy": (20, 50, 400, 64),
    "kin8nm": (20, 50, 100, 256),
    "naval": (20, 50, 100, 256),
    "power": (20, 50, 100, 256),
    "protein": (5, 100, 60, 512),
    "wine": (20, 50, 100, 64),
    "yacht": (20, 50, 600, 64),
}

METHODS: dict[str, dict[str, object]] = {
    "ensemble": {},
    "one noise level": {"noise": "learned"},
    "drawn weights": {"guide": "mean-field"},
    "MC dropout": {"guide": "mc-dropout", "noise": "learned"},
    "MAP": {"guide": "map", "members": 1},
    "two layers": {"hidden": 2},
    "HWA": {"method": "hwa"},
    "low rank": {"method": "low-rank"},
    "NUTS": {"method": "nuts"},
}
"""The chosen method first; the others change it. Those with a `method` are of :mod:`pyro_bnn.studies._uci_apart`."""

RIVALS = ("VI", "MC dropout, grid", "SLANG")
"""The published methods that the claim is about."""

_Comparison: TypeAlias = Callable[[float, float], bool]
"""Of a difference and its standard error."""

SMALL = ("boston", "concrete", "energy", "wine", "yacht")
"""The sets that NUTS is run on: all rows are looked at in each of its steps."""


def trial(data: str, method: str, scale: Scale) -> Trial:
    """Return the trial of a set and a method: all of its splits."""
    splits, units, epochs, batch_size = SIZES[data]
    changes = dict(METHODS[method])
    layers = changes.pop("hidden", 1)
    arguments = {
        "data": data,
        "hidden": [units] * (layers if isinstance(layers, int) else 1),
        "splits": splits,
        "epochs": epochs * (4 if scale == "source" else 1),
        "batch_size": batch_size,
        **changes,
    }
    module = "_uci_apart" if "method" in changes else "_uci"
    return Trial(f"{data}, {method}", 0, compute=f"pyro_bnn.studies.{module}:one_set", arguments=arguments)


def sets_of(method: str) -> tuple[str, ...]:
    """Return the sets that a method is run on."""
    return SMALL if method == "NUTS" else SETS


def _design(scale: Scale) -> list[Trial]:
    trials = [trial(data, "ensemble", scale) for data in SETS]
    if scale == "source":
        trials += [trial(data, method, scale) for method in METHODS if method != "ensemble" for data in sets_of(method)]
    return trials


def apart(ours: Mapping[str, tuple[float, float]], rival: str) -> list[tuple[str, float, float]]:
    """
    Return set, difference to a published method and its standard error, of every set that both have.

    :param ours: mean log-likelihood and its standard error by set.
    :param rival: the published method.
    """
    theirs = PUBLISHED[rival]
    return [
        (data, ours[data][0] - ll, math.hypot(ours[data][1], theirs.ll_se.get(data, 0.0)))
        for data, ll in theirs.ll.items()
        if data in ours
    ]


def is_level(d: float, s: float) -> bool:
    """Return whether a difference d of standard error s is not below 0 by two of them."""
    return d + 2 * s >= 0


def is_ahead(d: float, s: float) -> bool:
    """Return whether a difference d of standard error s is above 0 by two of them."""
    return d - 2 * s > 0


def _count(statement: str, rows: Sequence[tuple[str, float, float]], least: int, holds: _Comparison) -> Finding:
    """Say on how many sets it holds; confirmed with `least` of them or more."""
    count = sum(holds(d, s) for _, d, s in rows)
    verdict: Verdict = "confirmed" if count >= least else "contradicted"
    return Finding(f"{statement} on at least {least} of {len(rows)}", verdict, count, count, count, None, 0, 0.0)


def _judge(results: Results) -> list[Finding]:
    records = {data: results.record(f"{data}, ensemble", 0) for data in SETS}
    ours = {data: (record["ll_mean"], record["ll_se"] or 0.0) for data, record in records.items()}
    vi, dropout, slang = (apart(ours, rival) for rival in RIVALS)
    findings = [
        _count("level with VI", vi, 9, is_level),
        _count("ahead of VI", vi, 6, is_ahead),
        _count("ahead of MC dropout's grid", dropout, 7, is_ahead),
        _count("level with SLANG", slang, 8, is_level),
    ]
    for rival, rows in (("VI", vi), ("MC dropout", dropout), ("SLANG", slang)):
        for data, d, s in rows:
            verdict: Verdict = "confirmed" if is_ahead(d, s) else "inconclusive" if is_level(d, s) else "contradicted"
            findings.append(
                Finding(f"{data}: above {rival}", verdict, d, d - 2 * s, d + 2 * s, None, 0, None, decides=False)
            )
    return findings


STUDY = Study(
    name="uci",
    claim="[One variational method with one rule of choosing is, on the nine UCI regression sets, level with the "
    "published mean-field VI on all and ahead on six, ahead of MC dropout's grid search on seven, and level with SLANG "
    "on its eight.]",
    source="Hernandez-Lobato and Adams, Probabilistic backpropagation for scalable learning of Bayesian neural "
    "networks (2015), for sets, splits and networks",
    place="section 5.1; the figures of others as listed in pyro_bnn/studies/_uci_published.py",
    varied="the method: an ensemble of five mean-field normals with input-dependent noise, beside published figures.",
    measured="mean test log-likelihood over the sets' own splits, in the units of the data, 100 draws, once.",
    rule="Confirmed if the method is level (d + 2 s >= 0) with VI on 9 sets and ahead (d - 2 s > 0) on 6, ahead of MC "
    "dropout's grid on 7, and level with SLANG on 8; d is the difference of the means, s its standard error.",
    not_done="Most published figures do not state their splits: those comparisons are not paired. At cpu scale only "
    "the chosen method; the others, and trainings four times as long, at source scale.",
    design=_design,
    judge=_judge,
    explained="Only the count against MC dropout's grid fails: the ensemble's mean is higher on eight sets, by two "
    "standard errors on four; the intervals of boston, energy, power and wine hold 0, and on concrete it is .08 lower. "
    "A second hidden layer closes that gap, and is above the grid on all nine, by two standard errors on six.",
    metric=("rmse_mean", "test RMSE"),
    scales=("cpu", "source"),
)
