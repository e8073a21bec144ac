"""Pyro programs: networks, priors, likelihoods, and BNN, which makes one program of the three."""

from pyro_bnn.models import likelihoods, priors
from pyro_bnn.models.bnn import BNN
from pyro_bnn.models.lenet5 import LeNet5
from pyro_bnn.models.mlp import MLP
from pyro_bnn.models.perceptron import Perceptron

__all__ = ["BNN", "MLP", "LeNet5", "Perceptron", "likelihoods", "priors"]
