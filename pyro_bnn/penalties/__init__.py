"""Penalties as priors, the priors that penalties imply, and pruning."""

from pyro_bnn.penalties.deconvolution import (
    DependsOnScaleError,
    ImpliedPrior,
    NoPriorError,
    NotIntegrableError,
    SpectrumGrowsError,
    UnstableDeconvolutionError,
    implied_prior,
    plot_equivalence,
    prior_from_penalty,
)
from pyro_bnn.penalties.densities import kl_normal_laplace, kl_normal_normal
from pyro_bnn.penalties.network import (
    PenaltyPrior,
    UsualPenaltyPrior,
    bayesian_penalty_weights,
    lambda_theory,
    total_penalty,
    usual_penalty_weights,
)
from pyro_bnn.penalties.rules import (
    L1,
    L2,
    GroupLasso,
    KLPenalty,
    Penalty,
    QuadraticPenalty,
    VariationalPenalty,
    gaussian_penalty,
    penalty_from_prior,
)

__all__ = [
    "DependsOnScaleError",
    "GroupLasso",
    "ImpliedPrior",
    "KLPenalty",
    "L1",
    "L2",
    "NoPriorError",
    "NotIntegrableError",
    "Penalty",
    "PenaltyPrior",
    "QuadraticPenalty",
    "SpectrumGrowsError",
    "UnstableDeconvolutionError",
    "UsualPenaltyPrior",
    "VariationalPenalty",
    "bayesian_penalty_weights",
    "gaussian_penalty",
    "implied_prior",
    "kl_normal_laplace",
    "kl_normal_normal",
    "lambda_theory",
    "penalty_from_prior",
    "plot_equivalence",
    "prior_from_penalty",
    "total_penalty",
    "usual_penalty_weights",
]
