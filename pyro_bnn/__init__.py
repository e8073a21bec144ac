"""Bayesian neural networks as Pyro programs. The public names are imported on first use, so that importing is cheap."""

from pyro_bnn.version import __version__

__all__ = ["__version__"]
