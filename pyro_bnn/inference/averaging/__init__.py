"""Averages along a training: SWA, EMA, HWA."""

from pyro_bnn.inference.averaging.averages import EMA, HWA, SWA, Averager, RunningMoments, Variance, refresh_batch_norm

__all__ = ["Averager", "EMA", "HWA", "RunningMoments", "SWA", "Variance", "refresh_batch_norm"]
