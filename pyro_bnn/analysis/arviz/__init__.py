"""Posteriors as ArviZ groups."""

from pyro_bnn.analysis.arviz.export import (
    MAX_BYTES,
    NotDefined,
    PointwiseEstimate,
    draws_of,
    export_bytes,
    import_arviz,
    loo,
    open_arviz,
    posterior_kind,
    refusal_of,
    save_arviz,
    to_arviz,
    waic,
    why_no_loo,
)

__all__ = [
    "MAX_BYTES",
    "NotDefined",
    "PointwiseEstimate",
    "draws_of",
    "export_bytes",
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
