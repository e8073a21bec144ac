"""Pyro programs: networks, priors, likelihoods, and BNN, which makes one program of the three."""

from pyro_bnn.models import likelihoods, penalty_priors, priors
from pyro_bnn.models.bnn import BNN
from pyro_bnn.models.networks.cvnn import CVNN
from pyro_bnn.models.networks.densenet121 import DenseNet121
from pyro_bnn.models.networks.frn_resnet20 import FRNResNet20
from pyro_bnn.models.networks.lenet5 import LeNet5
from pyro_bnn.models.networks.mlp import MLP
from pyro_bnn.models.networks.one_hidden_layer import OneHiddenLayer
from pyro_bnn.models.networks.patch_transformer import PatchTransformer
from pyro_bnn.models.networks.perceptron import Perceptron
from pyro_bnn.models.networks.resnet20 import ResNet20
from pyro_bnn.models.networks.resnet34 import ResNet34
from pyro_bnn.models.networks.vgg import VGG
from pyro_bnn.models.networks.wide_resnet import WideResNet

__all__ = [
    "BNN",
    "CVNN",
    "MLP",
    "VGG",
    "DenseNet121",
    "FRNResNet20",
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
