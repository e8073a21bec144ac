"""Inference: KL weights, gradient estimators, the training loop, predictive draws."""

from pyro_bnn.inference import kl
from pyro_bnn.inference.averaging import EMA, HWA, SWA, RunningMoments, refresh_batch_norm
from pyro_bnn.inference.distributed import DataParallel
from pyro_bnn.inference.elbo import TraceColdPosterior_ELBO, TracePathDerivative_ELBO, TraceScoreFunction_ELBO
from pyro_bnn.inference.fit_many import fit_many
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.gradient_variance import gradient_variance
from pyro_bnn.inference.kl import kl_divergence, per_datum, scale_kl
from pyro_bnn.inference.low_rank_elbo import TraceLowRank_ELBO
from pyro_bnn.inference.predictive import predictive_draws
from pyro_bnn.inference.reparam import flipout, local_reparameterization
from pyro_bnn.inference.samplers.lmc import lmc
from pyro_bnn.inference.samplers.mcmc import convergence, run_chain
from pyro_bnn.inference.samplers.sgld import SGLD, Snapshots
from pyro_bnn.inference.svi import Callback, Diverged, FitResult, FitState, fit

__all__ = [
    "Callback",
    "DataParallel",
    "Diverged",
    "EMA",
    "FitResult",
    "FitState",
    "FlatMeanField_ELBO",
    "HWA",
    "RunningMoments",
    "SGLD",
    "SWA",
    "Snapshots",
    "TraceColdPosterior_ELBO",
    "TraceLowRank_ELBO",
    "TracePathDerivative_ELBO",
    "TraceScoreFunction_ELBO",
    "convergence",
    "fit",
    "fit_many",
    "flipout",
    "gradient_variance",
    "kl",
    "kl_divergence",
    "lmc",
    "local_reparameterization",
    "per_datum",
    "predictive_draws",
    "refresh_batch_norm",
    "run_chain",
    "scale_kl",
]
