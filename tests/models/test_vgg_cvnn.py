"""The two networks of the penalty study: layouts, sizes and rebuilding from their configuration."""

import pytest
import torch
from torch import nn
from torchvision.models import vgg19

from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.models.networks.cvnn import CVNN
from pyro_bnn.models.networks.vgg import VGG


def size_of(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_cvnn_is_two_convolutions_and_two_dense_layers() -> None:
    net = CVNN()
    kinds = [type(m) for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert kinds == [nn.Conv2d, nn.Conv2d, nn.Linear, nn.Linear]
    assert size_of(net) == 545_098
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("image_size", [4, 7, 28])
def test_cvnn_fits_other_images(image_size: int) -> None:
    net = CVNN(in_channels=1, num_classes=4, image_size=image_size, width=2, hidden=3)
    assert net(torch.zeros(2, 1, image_size, image_size)).shape == (2, 4)


@pytest.mark.parametrize(("depth", "convolutions"), [(11, 8), (13, 10), (16, 13), (19, 16)])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_vgg_depths(depth: int, convolutions: int, batch_norm: bool) -> None:
    net = VGG(depth=depth, width=0.0625, batch_norm=batch_norm)
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == convolutions
    assert sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == convolutions * batch_norm
    assert sum(isinstance(m, nn.Linear) for m in net.modules()) == 1
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_vgg19_convolutions_are_torchvisions() -> None:
    with torch.device("meta"):
        ours, theirs = VGG(), vgg19()
    assert [p.shape for p in ours.features.parameters()] == [p.shape for p in theirs.features.parameters()]
    assert size_of(ours) == 20_029_514


@pytest.mark.parametrize("image_size", [1, 2, 16, 28, 32])
def test_vgg_leaves_out_pools_it_has_no_pixels_for(image_size: int) -> None:
    net = VGG(in_channels=1, image_size=image_size, depth=11, width=0.03125)
    assert sum(isinstance(m, nn.MaxPool2d) for m in net.modules()) == min(5, image_size.bit_length() - 1)
    assert net.features(torch.zeros(1, 1, image_size, image_size)).shape == (1, 16, 1, 1)


def test_vgg_keeps_the_scale_of_its_input() -> None:
    net = VGG(depth=19, width=0.125)
    x = torch.randn(8, 3, 32, 32)
    scale = net.features(x).std().item()
    assert 0.02 < scale < 50  # 16 layers of the default initialisation of torch leave less than 1e-3


@pytest.mark.parametrize(
    "net",
    [CVNN(1, 3, 8, width=2, hidden=5), VGG(1, 3, 8, depth=13, width=0.03125, batch_norm=True)],
    ids=["CVNN", "VGG"],
)
def test_rebuilds_from_its_configuration(net: CVNN | VGG) -> None:
    assert all(isinstance(value, (int, float, str)) for value in net.config.values())
    twin = type(net)(**net.config)
    twin.load_state_dict(net.state_dict())
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(twin.eval()(x), net.eval()(x))


@pytest.mark.parametrize("net", [CVNN(1, 3, 8, width=2, hidden=5), VGG(1, 3, 8, depth=11, width=0.03125)], ids=str)
def test_becomes_a_pyro_program(net: nn.Module) -> None:
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data=6)
    assert model(torch.randn(6, 1, 8, 8), torch.zeros(6, dtype=torch.long)).shape == (6, 3)


def test_errors() -> None:
    with pytest.raises(ValueError, match="depth=12 is no VGG"):
        VGG(depth=12)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="width=0 leaves no maps"):
        VGG(width=0)
    with pytest.raises(ValueError, match="image_size=3"):
        CVNN(image_size=3)
    with pytest.raises(ValueError, match="hidden=0"):
        CVNN(hidden=0)
