"""Analysis: from predictions to decisions, one topic per file; metrics are at hand here."""

from pyro_bnn.analysis.scores.metrics import ClassificationAccumulator, PredictiveAccumulator, RegressionAccumulator

__all__ = ["ClassificationAccumulator", "PredictiveAccumulator", "RegressionAccumulator"]
