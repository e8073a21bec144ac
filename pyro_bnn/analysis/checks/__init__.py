"""Whether a posterior is any good: calibration by simulation, and the checks of one fitted posterior."""

from pyro_bnn.analysis.checks.sbc import RankCheck, sbc

__all__ = ["RankCheck", "sbc"]
