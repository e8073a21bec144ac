"""Posteriors as ArviZ groups."""

from pyro_bnn.analysis.arviz.export import MAX_BYTES, export_bytes, to_arviz
from pyro_bnn.analysis.arviz.loo import (
    NotDefined,
    PointwiseEstimate,
    draws_of,
    loo,
    posterior_kind,
    refusal_of,
    waic,
    why_no_loo,
)
from pyro_bnn.analysis.arviz.pyro_svi import from_pyro_svi
from pyro_bnn.analysis.arviz.stores import open_arviz, save_arviz
from pyro_bnn.analysis.arviz.versions import groups_of, import_arviz

__all__ = [
    "MAX_BYTES",
    "NotDefined",
    "PointwiseEstimate",
    "draws_of",
    "export_bytes",
    "from_pyro_svi",
    "groups_of",
    "import_arviz",
    "loo",
    "open_arviz",
    "posterior_kind",
    "refusal_of",
    "save_arviz",
    "to_arviz",
    "waic",
    "why_no_loo",
]
