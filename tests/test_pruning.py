"""Pruning: the smaller network computes the same; the report counts what it says."""

import pytest
import torch
from torch import Tensor, nn

from pyro_bnn.models.networks.cvnn import CVNN
from pyro_bnn.models.networks.vgg import VGG
from pyro_bnn.penalties.pruning import group_sparsity, prune, zero_dead_groups


@pytest.fixture(autouse=True)
def float64() -> None:
    torch.set_default_dtype(torch.float64)


def size_of(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def shapes_of(net: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in net.parameters() if p.dim() >= 2]


def with_dead_groups(net: nn.Sequential, incoming: float = 0.3, outgoing: float = 0.15) -> nn.Sequential:
    """Biases, statistics and dead groups at random; nothing left at the special value 0 or 1."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            if module.bias is not None:
                nn.init.normal_(module.bias)
            with torch.no_grad():
                module.weight[torch.rand(len(module.weight)) < incoming] = 0
                module.weight[:, torch.rand(module.weight.shape[1]) < outgoing] = 0
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            for tensor in (module.running_mean, module.weight, module.bias):
                nn.init.normal_(tensor)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


NETS = {
    "dense": lambda: nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 12), nn.GELU(), nn.Linear(12, 3)),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 20), nn.Sigmoid(), nn.Linear(20, 3, bias=False), nn.LogSigmoid()),
    "batch norm 1d": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.BatchNorm1d(8 * 36), nn.ReLU(), nn.Dropout(), nn.Linear(8 * 36, 4)
    ),
    "valid": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.Sigmoid(),
        nn.Conv2d(8, 8, 3, padding="valid"),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    ),
    "circular": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 5, 3, padding=1, padding_mode="circular"), nn.AvgPool2d(2)
    ),
    "same": lambda: nn.Sequential(nn.Conv2d(3, 9, 3), nn.Tanh(), nn.Conv2d(9, 5, 3, padding="same")),
    "CVNN": lambda: CVNN(3, 10, 8, width=8, hidden=16),
    "VGG": lambda: VGG(3, 10, 8, depth=11, width=0.125),
    "VGG batch norm": lambda: VGG(3, 10, 8, depth=13, width=0.125, batch_norm=True),
}


def images(net: nn.Module) -> Tensor:
    return torch.randn(7, 6) if isinstance(net[0], nn.Linear) else torch.randn(7, 3, 8, 8)  # type: ignore[index]


@pytest.mark.parametrize("name", NETS)
def test_the_function_stays(name: str) -> None:
    net = with_dead_groups(NETS[name]())
    x = images(net)
    before = net(x).detach()
    small = prune(net)
    torch.testing.assert_close(small(x), before, atol=1e-12, rtol=0)
    assert before.std() > 0.05
    assert size_of(small) < 0.9 * size_of(net)
    torch.testing.assert_close(net(x), before, atol=0, rtol=0)  # the network handed in is left alone
    assert shapes_of(prune(small)) == shapes_of(small)


def test_the_function_stays_in_float32() -> None:
    net = with_dead_groups(CVNN(3, 10, 8, width=8, hidden=16)).float()
    x = images(net).float()
    torch.testing.assert_close(prune(net)(x), net(x), atol=1e-6, rtol=0)


def test_what_goes() -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        net[0].weight[1] = 0  # constant: folded
        net[2].weight[:, 3] = 0  # unheard
        net[2].weight[0] = 0
        net[4].weight[:, 2] = 0
        net[4].weight[1] = 0  # an output stays
    assert shapes_of(prune(net)) == [(3, 2), (2, 3), (3, 2)]


def test_a_dead_layer_silences_those_before_it() -> None:
    net = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.no_grad():
        net[2].weight.zero_()
    x = torch.randn(3, 4)
    small = prune(net)
    torch.testing.assert_close(small(x), net(x), atol=1e-14, rtol=0)
    assert shapes_of(small) == [(1, 4), (1, 1), (2, 1)]  # one unit each: no layer has width 0


def test_padded_convolutions_share_one_constant_map() -> None:
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Conv2d(6, 2, 3, padding=1))
    with torch.no_grad():
        net[0].weight[:4] = 0
    assert shapes_of(prune(net)) == [(3, 1, 3, 3), (2, 3, 3, 3)]
    net[0].bias.data[:4] = 0  # tanh(0) = 0: now they fold
    assert shapes_of(prune(net)) == [(2, 1, 3, 3), (2, 2, 3, 3)]


@pytest.mark.parametrize("groups", [("incoming",), ("outgoing",), ("incoming", "outgoing")])
def test_threshold_zeroes_first(groups: tuple[str, ...]) -> None:
    net = CVNN(3, 10, 8, width=8, hidden=16).eval()
    with torch.no_grad():
        net.features[3].weight[:5] *= 1e-3
        net.classifier[2].weight[:, :6] *= 1e-3
    zeroed = zero_dead_groups(net, 1e-2, groups)
    x = images(net)
    torch.testing.assert_close(prune(net, 1e-2, groups)(x), zeroed(x), atol=1e-12, rtol=0)
    assert ("incoming" in groups) == (not zeroed.features[3].weight[:5].any())
    assert ("outgoing" in groups) == (not zeroed.classifier[2].weight[:, :6].any())
    assert zeroed.features[3].weight[5:].all()
    assert shapes_of(prune(net)) == shapes_of(net)


def test_report_counts_groups_under_the_threshold() -> None:
    weights = {"a.weight": torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-4, 0.0]]), "a.bias": torch.zeros(3)}
    report = group_sparsity(weights, "incoming", threshold=1e-3)
    assert [(row.name, row.groups, row.dead) for row in report.layers] == [("a.weight", 3, 2)]
    assert report.fraction == pytest.approx(2 / 3)
    assert group_sparsity(weights, "incoming", threshold=0).fraction == pytest.approx(1 / 3)
    assert group_sparsity(weights, "outgoing").fraction == 0
    assert "66.7%" in str(report)


def test_report_on_a_network_weighs_layers_by_groups() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        net[0].weight[:4] = 0
    report = group_sparsity(net)
    assert [row.fraction for row in report.layers] == [0.5, 0.0]
    assert report.fraction == pytest.approx(0.4)


def test_errors() -> None:
    with pytest.raises(TypeError, match="MultiheadAttention is not part of a chain"):
        prune(nn.Sequential(nn.MultiheadAttention(4, 2)))
    with pytest.raises(ValueError, match="grouped convolution"):
        prune(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3)))
    shared = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="stands twice"):
        prune(nn.Sequential(shared, nn.ReLU(), shared))
    with pytest.raises(ValueError, match="threshold=-1"):
        prune(nn.Sequential(nn.Linear(2, 2)), -1)
    with pytest.raises(ValueError, match="has groups"):
        group_sparsity({"bias": torch.zeros(3)})
    with pytest.raises(ValueError, match="count_include_pad"):
        prune(nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(3, padding=1), nn.Conv2d(2, 1, 3)))
    frozen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), nn.Conv2d(2, 1, 3))
    with torch.no_grad():
        frozen[0].weight[0] = 0
    with pytest.raises(ValueError, match="running statistics"):
        prune(frozen)


@pytest.mark.parametrize("conv_groups", [1, 2, 8])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_dead_groups_of_grouped_convolutions_are_their_channels(kind: type[nn.Conv2d], conv_groups: int) -> None:
    net = nn.Sequential(kind(8, 8, 3, groups=conv_groups))
    conv = net[0]
    silent = torch.zeros(8, dtype=torch.bool)
    silent[[1, 6]] = True
    probe = torch.eye(8)[:, :, None, None].expand(8, 8, 4, 4)  # one channel at a time
    with torch.no_grad():
        conv.bias.zero_()
        rows = 8 // conv_groups
        for j in (1, 6):  # the weights out of channel j
            if kind is nn.ConvTranspose2d:
                conv.weight[j] = 1e-9
            else:
                block = slice(j // rows * rows, (j // rows + 1) * rows)
                conv.weight[block, j % rows] = 1e-9
    report = group_sparsity(net, "outgoing", 1e-3)
    assert (report.layers[0].groups, report.layers[0].dead) == (8, 2)
    tensors = {name: p.detach() for name, p in net.named_parameters()}
    assert group_sparsity(tensors, "outgoing", 1e-3, net=net) == report
    cleared = zero_dead_groups(net, 1e-3, ("outgoing",))
    heard = cleared(probe).flatten(1).any(1)
    assert torch.equal(heard, ~silent)
    torch.testing.assert_close(cleared(probe)[~silent], net(probe)[~silent])
