"""Pyro programs: networks, priors, likelihoods, and BNN, which makes one program of the three."""

from pyro_bnn.models import likelihoods, penalty_priors, priors
from pyro_bnn.models.bnn import BNN
from pyro_bnn.models.cvnn import CVNN
from pyro_bnn.models.densenet121 import DenseNet121
from pyro_bnn.models.lenet5 import LeNet5
from pyro_bnn.models.mlp import MLP
from pyro_bnn.models.one_hidden_layer import OneHiddenLayer
from pyro_bnn.models.patch_transformer import PatchTransformer
from pyro_bnn.models.perceptron import Perceptron
from pyro_bnn.models.resnet20 import ResNet20
from pyro_bnn.models.resnet34 import ResNet34
from pyro_bnn.models.vgg import VGG
from pyro_bnn.models.wide_resnet import WideResNet

__all__ = [
    "BNN",
    "CVNN",
    "MLP",
    "VGG",
    "DenseNet121",
    "LeNet5",
    "OneHiddenLayer",
    "PatchTransformer",
    "Perceptron",
    "ResNet20",
    "ResNet34",
    "WideResNet",
    "likelihoods",
    "penalty_priors",
    "priors",
]
