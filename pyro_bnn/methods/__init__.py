"""
The kinds of posterior a recipe can name (`posterior = {name = "hwa", start = 12}`): for each, how it is trained.

    svi            the recipe's guide by SVI; the best epoch on validation is kept (any kind that says so below)
    map, ml        a point, with and without the prior; best epoch
    mc_dropout     one point and masks over it; best epoch
    laplace        draws of the normal that fits the curvature at the MAP; needs the package laplace-torch
    hwa            the means and deviations of the guide, averaged over the snapshots of its last epochs
    low_rank       the same snapshots as a low-rank normal (by SVI: guide = "low_rank")
    swa, ema       the raw parameters of the guide or, with of = "map", of a point, averaged
    ensemble       members of any of these kinds, trained apart from seeds that follow one another
    snapshots      members along one training, whose schedule begins anew for each
    sgld, cyclic_sgld, lmc    the draws of Langevin dynamics; lmc at full batch
    nuts, hmc      the draws of chains over all rows, in float64; for small networks
"""

from collections.abc import Mapping
from typing import Any

from pyro_bnn.methods.averages import Ema, Hwa, LowRank, Swa
from pyro_bnn.methods.base import Outcome, RunFolder, Trainer, Work
from pyro_bnn.methods.ensembles import DeepEnsemble, Snapshots
from pyro_bnn.methods.hamiltonian import Hmc, Nuts
from pyro_bnn.methods.langevin import CyclicSgld, Lmc, Sgld
from pyro_bnn.methods.points import Laplace, Map, MaximumLikelihood, McDropout, Svi

__all__ = ["POSTERIORS", "Outcome", "RunFolder", "Trainer", "Work", "make_trainer"]

POSTERIORS: dict[str, type[Trainer]] = {
    "cyclic_sgld": CyclicSgld,
    "ema": Ema,
    "ensemble": DeepEnsemble,
    "hmc": Hmc,
    "hwa": Hwa,
    "laplace": Laplace,
    "lmc": Lmc,
    "low_rank": LowRank,
    "map": Map,
    "mc_dropout": McDropout,
    "ml": MaximumLikelihood,
    "nuts": Nuts,
    "sgld": Sgld,
    "snapshots": Snapshots,
    "svi": Svi,
    "swa": Swa,
}


def make_trainer(spec: str | Mapping[str, Any]) -> Trainer:
    """Build the kind that `{name, numbers...}` describes."""
    numbers = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = numbers.pop("name")
    if name not in POSTERIORS:
        raise ValueError(f"unknown posterior {name!r}; choose one of {', '.join(sorted(POSTERIORS))}")
    try:
        return POSTERIORS[name](**numbers)
    except TypeError as error:
        raise ValueError(f"posterior {name!r} with {numbers}: {error}") from error
