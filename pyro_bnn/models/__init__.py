"""Pyro programs: networks, priors, likelihoods, and BNN, which makes one program of the three."""

from pyro_bnn.models import likelihoods, penalty_priors, priors
from pyro_bnn.models.bnn import BNN
from pyro_bnn.models.cvnn import CVNN
from pyro_bnn.models.lenet5 import LeNet5
from pyro_bnn.models.mlp import MLP
from pyro_bnn.models.perceptron import Perceptron
from pyro_bnn.models.vgg import VGG

__all__ = ["BNN", "CVNN", "MLP", "VGG", "LeNet5", "Perceptron", "likelihoods", "penalty_priors", "priors"]
