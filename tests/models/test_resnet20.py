"""ResNet-20: its size, its shapes, its shortcut."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pyro_bnn.models.networks.resnet20 import ResNet20


def test_size_is_the_papers() -> None:
    net = ResNet20()
    assert sum(p.numel() for p in net.parameters()) == 269_722
    assert sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in net.modules()) == 20
    assert net.config == {"in_channels": 3, "num_classes": 10, "width": 16}


def test_shapes() -> None:
    for channels, classes, side in ((3, 10, 32), (1, 4, 28)):
        assert ResNet20(channels, classes, width=4)(torch.randn(2, channels, side, side)).shape == (2, classes)


def test_shortcut_without_parameters() -> None:
    """With silent convolutions a block is its shortcut: every second pixel, zero maps on both sides."""
    net = ResNet20(width=4)
    block = net.stage2[0]
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 4, 8, 8)
    out = block(x)  # (2, 8, 4, 4)
    torch.testing.assert_close(out[:, 2:6], F.relu(x[:, :, ::2, ::2]))
    assert out[:, :2].abs().sum() == 0
    assert out[:, 6:].abs().sum() == 0
    nn.init.zeros_(net.stage1[1].bn2.weight)
    torch.testing.assert_close(net.stage1[1](x), F.relu(x))


def test_refuses_an_empty_stage() -> None:
    with pytest.raises(ValueError, match="width=0"):
        ResNet20(width=0)
