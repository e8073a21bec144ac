"""
Optimizers for Bayesian networks: `PyroOptim` twins of torch's optimizers and of five that torch does not ship.

The names here go into `SVI` and `fit`; the torch classes behind them are in :mod:`pyro_bnn.optim.torch_optim`. Learning
rates are for a loss per datum (`pyro_bnn.inference.per_datum`, which `fit` uses).
"""

from pyro_bnn.optim.names import parameter_kind, site_path
from pyro_bnn.optim.per_site import PerSite
from pyro_bnn.optim.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Cyclic,
    LRRange,
    Plateau,
    Schedule,
    Step,
    TwinPlateau,
    WarmUp,
    lr_range_test,
    make_schedule,
    plot_lr_range,
    schedule_of,
)
from pyro_bnn.optim.wrappers import (
    OPTIMIZERS,
    SGD,
    AdaBayes,
    AdaBayesFP,
    AdaBound,
    Adagrad,
    Adam,
    AdamW,
    AMSBound,
    AMSGrad,
    RAdam,
    RMSprop,
    TorchOptim,
    YellowFin,
)

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "AMSBound",
    "AMSGrad",
    "AdaBayes",
    "AdaBayesFP",
    "AdaBound",
    "Adagrad",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Cyclic",
    "LRRange",
    "PerSite",
    "Plateau",
    "RAdam",
    "RMSprop",
    "Schedule",
    "Step",
    "TorchOptim",
    "TwinPlateau",
    "WarmUp",
    "YellowFin",
    "lr_range_test",
    "make_schedule",
    "parameter_kind",
    "plot_lr_range",
    "schedule_of",
    "site_path",
]
