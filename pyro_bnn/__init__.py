"""Bayesian neural networks as Pyro programs. The public names are imported on first use, so that importing is cheap."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyro_bnn.common.moved import announce
from pyro_bnn.version import __version__

announce()

if TYPE_CHECKING:
    from pyro_bnn.analysis.checks import sbc
    from pyro_bnn.analysis.scores.fidelity import agreement, total_variation
    from pyro_bnn.analysis.scores.intervals import predictive_interval
    from pyro_bnn.analysis.scores.ood import auroc
    from pyro_bnn.analysis.scores.selective import rejection_curve
    from pyro_bnn.common.limits import limits
    from pyro_bnn.common.memory import keep_freed_memory
    from pyro_bnn.data import load_data
    from pyro_bnn.inference.fit_many import fit_many
    from pyro_bnn.methods.bayesianize import bayesianize
    from pyro_bnn.posterior import Posterior
    from pyro_bnn.recipe import Recipe
    from pyro_bnn.runs.loading import load
    from pyro_bnn.runs.train import Run, evaluate, train

__all__ = [
    "Posterior",
    "Recipe",
    "Run",
    "__version__",
    "agreement",
    "auroc",
    "bayesianize",
    "evaluate",
    "fit_many",
    "keep_freed_memory",
    "limits",
    "load",
    "load_data",
    "predictive_interval",
    "rejection_curve",
    "sbc",
    "total_variation",
    "train",
]

_HOMES = {
    "Posterior": "pyro_bnn.posterior",
    "Recipe": "pyro_bnn.recipe",
    "Run": "pyro_bnn.runs.train",
    "agreement": "pyro_bnn.analysis.scores.fidelity",
    "auroc": "pyro_bnn.analysis.scores.ood",
    "bayesianize": "pyro_bnn.methods.bayesianize",
    "evaluate": "pyro_bnn.runs.train",
    "fit_many": "pyro_bnn.inference.fit_many",
    "keep_freed_memory": "pyro_bnn.common.memory",
    "limits": "pyro_bnn.common.limits",
    "load": "pyro_bnn.runs.loading",
    "load_data": "pyro_bnn.data",
    "predictive_interval": "pyro_bnn.analysis.scores.intervals",
    "rejection_curve": "pyro_bnn.analysis.scores.selective",
    "sbc": "pyro_bnn.analysis.checks",
    "total_variation": "pyro_bnn.analysis.scores.fidelity",
    "train": "pyro_bnn.runs.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pyro_bnn' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
