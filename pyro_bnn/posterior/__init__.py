"""What training leaves: a fitted guide with its model, saved and loaded."""

from pyro_bnn.posterior.posterior import (
    DESCRIPTION,
    INFO,
    TENSORS,
    Posterior,
    RealPrediction,
    Uncertainty,
    describe,
    looks_standardised,
)

__all__ = [
    "DESCRIPTION",
    "INFO",
    "Posterior",
    "RealPrediction",
    "TENSORS",
    "Uncertainty",
    "describe",
    "looks_standardised",
]
