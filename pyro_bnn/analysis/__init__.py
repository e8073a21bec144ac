"""Analysis: metrics of predictions."""

from pyro_bnn.analysis.metrics import ClassificationAccumulator, PredictiveAccumulator, RegressionAccumulator

__all__ = ["ClassificationAccumulator", "PredictiveAccumulator", "RegressionAccumulator"]
