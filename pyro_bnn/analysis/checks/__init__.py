"""Whether a posterior is any good: calibration by simulation, and the checks of one fitted posterior."""

from pyro_bnn.analysis.checks.check import Check, Diagnosis
from pyro_bnn.analysis.checks.diagnosis import diagnose
from pyro_bnn.analysis.checks.sbc import RankCheck, sbc

__all__ = ["Check", "Diagnosis", "RankCheck", "diagnose", "sbc"]
