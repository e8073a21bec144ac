"""Optimizers that torch does not ship, as plain `torch.optim.Optimizer` classes; nothing here knows Pyro."""

from pyro_bnn.optim.torch_optim.adabayes import AdaBayes
from pyro_bnn.optim.torch_optim.adabayes_fp import AdaBayesFP
from pyro_bnn.optim.torch_optim.adabound import AdaBound
from pyro_bnn.optim.torch_optim.amsbound import AMSBound
from pyro_bnn.optim.torch_optim.yellowfin import YellowFin

__all__ = ["AMSBound", "AdaBayes", "AdaBayesFP", "AdaBound", "YellowFin"]
