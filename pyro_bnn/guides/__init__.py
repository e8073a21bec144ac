"""Variational families, one per file."""

from pyro_bnn.guides.base import Guide
from pyro_bnn.guides.draws import StoredDraws
from pyro_bnn.guides.ensemble import Ensemble
from pyro_bnn.guides.full_rank import AutoFullRankNormal
from pyro_bnn.guides.low_rank import AutoLowRankNormal
from pyro_bnn.guides.mc_dropout import AutoDropout
from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.guides.point import AutoPoint

__all__ = [
    "AutoDropout",
    "AutoFullRankNormal",
    "AutoLowRankNormal",
    "AutoMeanFieldNormal",
    "AutoPoint",
    "Ensemble",
    "Guide",
    "StoredDraws",
]
