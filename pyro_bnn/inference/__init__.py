"""Inference: KL weights, gradient estimators, the training loop, predictive draws."""

from pyro_bnn.inference import kl
from pyro_bnn.inference.kl import kl_divergence, per_datum, scale_kl
from pyro_bnn.inference.predictive import predictive_draws
from pyro_bnn.inference.svi import Callback, Diverged, FitResult, FitState, fit

__all__ = [
    "Callback",
    "Diverged",
    "FitResult",
    "FitState",
    "fit",
    "kl",
    "kl_divergence",
    "per_datum",
    "predictive_draws",
    "scale_kl",
]
