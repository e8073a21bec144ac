"""Variational families, one per file."""

from pyro_bnn.guides.mean_field import AutoMeanFieldNormal

__all__ = ["AutoMeanFieldNormal"]
