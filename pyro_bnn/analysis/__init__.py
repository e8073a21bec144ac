"""Analysis: from predictions to decisions, one topic per file; metrics and `from_pyro_svi` are at hand here."""

from pyro_bnn.analysis.arviz.pyro_svi import from_pyro_svi
from pyro_bnn.analysis.scores.metrics import ClassificationAccumulator, PredictiveAccumulator, RegressionAccumulator

__all__ = ["ClassificationAccumulator", "PredictiveAccumulator", "RegressionAccumulator", "from_pyro_svi"]
