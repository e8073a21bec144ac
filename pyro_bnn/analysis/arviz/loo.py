"""
Leave-one-out and WAIC of an export, where they are defined.

`loo` and `waic` estimate what a model would predict about a training point it had not seen, from draws that saw it. The
estimate needs draws from p(w | y): it is not defined for points that were not trained on (their log predictive density
needs no estimate: `held_out_elpd` of `elpd`), for tempered and cold posteriors, whose draws are of another density, nor
for points and ensembles, which have none. ArviZ cannot know this; every export says it in its attributes.

WAIC is gone from ArviZ 1.x; `waic` says so there.

Vehtari, Gelman, Gabry 2017, arXiv:1507.04544 (PSIS-LOO). For variational draws the Pareto k also feels what q misses.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from pyro_bnn.analysis.arviz.versions import dataset_of, elpd_of, groups_of, import_arviz
from pyro_bnn.common.contract import contract_of
from pyro_bnn.posterior import Posterior

__all__ = [
    "NotDefined",
    "PointwiseEstimate",
    "Split",
    "draws_of",
    "likelihood_group",
    "loo",
    "posterior_kind",
    "refusal_of",
    "waic",
    "why_no_loo",
]

Split = Literal["train", "validation", "test", "other"]

_NO_DENSITY = {
    "map": "a MAP estimate is one point",
    "ml": "a maximum-likelihood estimate is one point",
    "point": "a point estimate is one point",
    "ensemble": "an ensemble is a few points or a mixture of posteriors",
    "prior": "the prior has not seen the data",
}
_POINTS = ("map", "ml", "point")
_UNUSABLE_K = 0.7


@final
class NotDefined(ValueError):
    """An estimate that does not exist for this posterior and these points."""


def posterior_kind(posterior: Posterior) -> str:
    """Return what kind of draws a posterior gives: its guide's `kind`, else that of its recipe, else svi."""
    kind = contract_of(posterior.guide).kind
    return str(posterior.info.get("method", "svi")) if kind is None else kind


def draws_of(posterior: Posterior, num_samples: int) -> int:
    """Return how many draws there are to score with: those asked for, but one of a point, which has no more."""
    return 1 if posterior_kind(posterior) in _POINTS else num_samples


def _refusal(split: str | None, eta: float, temperature: float, kind: str) -> str | None:
    if kind in _NO_DENSITY:
        return f"{_NO_DENSITY[kind]}, not draws from p(w | y)"
    if eta != 1:
        return f"the posterior is tempered (eta = {eta:g}), so its draws are not from p(w | y); it needs eta = 1"
    if temperature != 1:
        return f"the posterior is cold (temperature = {temperature:g}), so its draws are not from p(w | y); it needs 1"
    if split is None:
        return (
            "the export does not say that its points were trained on: pass split='train' where it is made if they were"
        )
    if split != "train":
        return (
            f"its points were not trained on (split = {split!r}): their log predictive density is known without "
            f"leaving anything out, use held_out_elpd"
        )
    return None


def refusal_of(posterior: Posterior, split: Split | None) -> str | None:
    """Return why LOO and WAIC are not defined for a posterior's draws at rows of a split, or None if they are."""
    info = posterior.info
    eta, temperature = float(info.get("eta", 1.0)), float(info.get("temperature", 1.0))
    return _refusal(split, eta, temperature, posterior_kind(posterior))


def likelihood_group(posterior: Posterior, split: Split | None, *, asked: bool) -> str:
    """
    Return the group that holds log p(y_i | x_i, w_s) in an export.

    ArviZ' own `loo`, `waic` and `compare` answer wherever there is a group `log_likelihood`. So it has that name where
    LOO is defined, or where nobody said where the rows are from, or where it is asked for; else it is `log_density`,
    with the same numbers.
    """
    defined = refusal_of(posterior, split or "train") is None
    return "log_likelihood" if defined or asked else "log_density"


def why_no_loo(idata: Any) -> str | None:
    """Return why LOO and WAIC are not defined for an export, or None if they are."""
    attrs = idata.attrs
    missing = [key for key in ("split", "eta", "temperature", "kind") if key not in attrs]
    if missing:
        return f"the export does not state {', '.join(missing)}: make it with to_arviz"
    split = None if attrs["split"] == "not stated" else attrs["split"]
    return _refusal(split, float(attrs["eta"]), float(attrs["temperature"]), attrs["kind"])


@final
@dataclass(frozen=True, eq=False)
class PointwiseEstimate:
    """LOO or WAIC of training points: ArviZ's own result, and per point the Pareto k (LOO) and whether it is usable."""

    elpd: Any
    kind: str
    pareto_k: NDArray[np.float64] | None

    @property
    def value(self) -> float:
        """The estimated expected log predictive density, summed over points."""
        return elpd_of(self.elpd)

    @property
    def se(self) -> float:
        """Its standard error."""
        return float(self.elpd["se"])

    @property
    def unusable(self) -> NDArray[np.bool_] | None:
        """Points whose Pareto k is above 0.7 (N,)."""
        return None if self.pareto_k is None else self.pareto_k > _UNUSABLE_K

    def __str__(self) -> str:
        text = str(self.elpd)
        if self.pareto_k is None:
            return text
        bad = int((self.pareto_k > _UNUSABLE_K).sum())
        n = len(self.pareto_k)
        text += (
            f"\n\nPareto k of {self.kind} draws: median {np.median(self.pareto_k):.2f}, max {self.pareto_k.max():.2f}; "
        )
        if bad == 0:
            return text + "every point usable (k <= 0.7)"
        return text + f"{bad} of {n} points UNUSABLE (k > 0.7): the estimate does not hold for them, nor the sum"


def _estimate(idata: Any, what: str, var_name: str | None) -> PointwiseEstimate:
    why = why_no_loo(idata)
    if why is not None:
        raise NotDefined(f"{what} is not defined here: {why}")
    if "log_likelihood" not in groups_of(idata):
        raise ValueError(f"{what} needs the group log_likelihood: pass y to to_arviz")
    sites = list(dataset_of(idata, "log_likelihood").data_vars)
    if len(sites) > 1 and var_name is None:
        raise ValueError(f"{what} is of one observed site: pass var_name, one of {', '.join(map(str, sites))}")
    az = import_arviz()
    if not hasattr(az, what):
        raise NotDefined(f"arviz.{what} is gone from ArviZ 1.x: use loo, which says of each point whether it holds")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what they say is in the text of the result
        elpd = getattr(az, what)(idata, pointwise=True, var_name=var_name)
    k = np.asarray(elpd["pareto_k"], np.float64).reshape(-1) if what == "loo" else None
    return PointwiseEstimate(elpd, cast(str, idata.attrs["kind"]), k)


def loo(idata: Any, var_name: str | None = None) -> PointwiseEstimate:
    """
    Return `arviz.loo` with its Pareto k, or raise NotDefined with the reason.

    :param var_name: the observed site, where an export has several.
    """
    return _estimate(idata, "loo", var_name)


def waic(idata: Any, var_name: str | None = None) -> PointwiseEstimate:
    """Return `arviz.waic`, or raise NotDefined with the reason; likewise."""
    return _estimate(idata, "waic", var_name)
