"""The architectures of the zoo: sizes against the literature, and one life cycle for each as a Pyro program."""

import math
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit, kl, per_datum
from pyro_bnn.inference.svi import Callback, FitState
from pyro_bnn.models import (
    BNN,
    VGG,
    DenseNet121,
    FRNResNet20,
    LeNet5,
    OneHiddenLayer,
    PatchTransformer,
    ResNet20,
    ResNet34,
    WideResNet,
    likelihoods,
    priors,
)
from pyro_bnn.models.bnn import NORM_LAYERS
from pyro_bnn.optim import Adam, PerSite
from pyro_bnn.posterior import Posterior
from pyro_bnn.registry import names
from pyro_bnn.runs.loading import load

PUBLISHED: dict[str, tuple[Callable[[], nn.Module], int, float]] = {
    # built as published, parameters here, millions in the literature
    "resnet20": (ResNet20, 269_722, 0.27),
    "frn_resnet20": (FRNResNet20, 274_042, 0.27),
    "resnet34": (ResNet34, 21_282_122, 21.3),
    "densenet121": (DenseNet121, 6_956_426, 7.0),
    "wide_resnet": (WideResNet, 36_479_194, 36.5),
    "patch_transformer": (PatchTransformer, 546_186, 0.5),
    "vgg": (VGG, 20_029_514, 20.0),
    "lenet5": (LeNet5, 61_706, 0.06),
}

SMALL: dict[str, Callable[[], nn.Module]] = {
    "resnet20": lambda: ResNet20(3, 4, width=4),
    "frn_resnet20": lambda: FRNResNet20(3, 4, width=4),
    "resnet34": lambda: ResNet34(3, 4, width=2),
    "densenet121": lambda: DenseNet121(3, 4, growth=4, blocks=(2, 2, 2, 2)),
    "wide_resnet": lambda: WideResNet(3, 4, depth=10, widen=1),
    "patch_transformer": lambda: PatchTransformer(3, 4, image_size=16, patch_size=4, width=16, depth=2, hidden=32),
    "vgg": lambda: VGG(3, 4, image_size=16, depth=11, width=0.125, batch_norm=True),
    "one_hidden_layer": lambda: OneHiddenLayer((3, 16, 16), 4, units=20),
}


def rows(count: int, classes: int, side: int) -> tuple[Tensor, Tensor]:
    """Images whose class is the channel and sign that was raised: easy to learn."""
    y = torch.arange(count) % classes
    x = 0.5 * torch.randn(count, 3, side, side)
    x[torch.arange(count), y % 3] += torch.where(y % 2 == 0, 1.0, -1.0)[:, None, None]
    return x, y


def program(net: nn.Module, num_data: int) -> tuple[BNN, Any]:
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data)
    return model, AutoMeanFieldNormal(model, init_loc="net", relative_scale=0.05)


def one_step(model: BNN, guide: Any, x: Tensor, y: Tensor) -> float:
    """Stock Pyro: nothing is captured, so a single step is quick."""
    svi = SVI(model, guide, PerSite(loc=Adam({"lr": 1e-3}), scale=Adam({"lr": 1e-3})), TraceMeanField_ELBO())
    with per_datum(len(x)):
        return float(svi.step(x, y))


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name: str) -> None:
    build, expected, millions = PUBLISHED[name]
    with torch.device("meta"):
        net = build()
    found = sum(p.numel() for p in net.parameters())
    assert found == expected
    assert round(found / 1e6, 2 if millions < 0.3 else 1) == millions


def test_every_network_of_a_recipe_has_a_row_here() -> None:
    assert {"cvnn", "mlp", "perceptron", *PUBLISHED, *SMALL} == set(names("models"))


@pytest.mark.parametrize("name", SMALL)
def test_normalisation_stays_deterministic_and_a_step_reaches_every_weight(name: str) -> None:
    net = SMALL[name]()
    x, y = rows(8, 4, 16)
    model, guide = program(net, 8)
    norms = {
        f"{prefix}.{attribute}"
        for prefix, module in net.named_modules()
        if isinstance(module, NORM_LAYERS)
        for attribute, _ in module.named_parameters(recurse=False)
    }
    assert set(model.deterministic_names) == norms
    assert bool(norms) is (name not in ("one_hidden_layer", "frn_resnet20"))  # whose normalisation is random
    before = {s: guide.site(s).loc for s in guide.site_names()}
    kept = {n: t.clone() for n, t in model.named_parameters()}
    one_step(model, guide, x, y)
    unmoved = [s for s in before if torch.equal(before[s], guide.site(s).loc)]
    assert not unmoved
    assert all(not torch.equal(t, kept[n]) for n, t in model.named_parameters() if n.startswith("deterministic"))
    assert Posterior(model, guide).predict(x, num_samples=2).shape == (8, 4)


@pytest.mark.parametrize("name", SMALL)
def test_rebuilds_from_its_configuration(name: str) -> None:
    net = SMALL[name]()
    again = type(net)(**net.config)  # type: ignore[operator]
    again.load_state_dict(net.state_dict())
    x, _ = rows(2, 4, 16)
    torch.testing.assert_close(again.eval()(x), net.eval()(x))


def test_only_the_last_layer_random_on_request() -> None:
    net = SMALL["resnet34"]()
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), 8, random="fc.*")
    assert model.random_names == ("fc.weight", "fc.bias")


def test_stages_are_torchvisions() -> None:
    from torchvision.models import densenet121, resnet34

    with torch.device("meta"):
        pairs = [(ResNet34(), resnet34()), (DenseNet121(), densenet121())]
    for ours, theirs in pairs:
        own = {name: p.shape for name, p in ours.named_parameters()}
        published = {name: p.shape for name, p in theirs.named_parameters()}
        assert list(own) == list(published)
        differ = {name for name in own if own[name] != published[name]}
        assert differ <= {"conv1.weight", "features.conv0.weight", "fc.weight", "fc.bias"} | {
            "classifier.weight",
            "classifier.bias",
        }


def test_resnet34_computes_what_torchvision_does() -> None:
    """With torchvision's stem put back by hand, both networks are one function."""
    from torchvision.models import resnet34

    theirs = resnet34(num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    theirs.maxpool = nn.Identity()
    ours = ResNet34()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_wide_resnet_block_normalises_first() -> None:
    net = WideResNet(3, 4, depth=10, widen=2)
    first, second = net.stage1[0], WideResNet(3, 4, depth=16, widen=2).stage1[1]
    x = torch.randn(2, 16, 4, 4)
    nn.init.zeros_(first.conv2.weight)
    torch.testing.assert_close(first(x), first.shortcut(F.relu(first.bn1(x))))
    nn.init.zeros_(second.conv2.weight)
    x = torch.randn(2, 32, 4, 4)
    torch.testing.assert_close(second(x), x)


def test_one_hidden_layer_is_an_average_over_units() -> None:
    net = OneHiddenLayer(3, 2, units=5)
    x = torch.randn(7, 3)
    units = [net.outer.weight[:, j] * F.relu(x @ net.inner.weight[j] + net.inner.bias[j])[:, None] for j in range(5)]
    torch.testing.assert_close(net(x), torch.stack(units).mean(0))
    assert len(list(OneHiddenLayer(3, 2, 5, bias=False).parameters())) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneHiddenLayer(3, 2, units=0), "units=0"),
        (lambda: OneHiddenLayer(3, 2, activation="gelu"), "activation='gelu'"),  # type: ignore[arg-type]
        (lambda: ResNet34(width=0), "width=0"),
        (lambda: DenseNet121(growth=0), "growth=0"),
        (lambda: DenseNet121(blocks=(6, 12)), r"blocks=\[6, 12\]"),
        (lambda: WideResNet(depth=27), "depth=27 .*6 n"),
        (lambda: WideResNet(widen=0), "widen=0"),
        (lambda: PatchTransformer(patch_size=5), "patch_size=5 does not divide image_size=32"),
        (lambda: PatchTransformer(heads=3), "heads=3 does not divide width=128"),
        (lambda: PatchTransformer(depth=0), "depth=0"),
    ],
)
def test_errors(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small"])
def test_any_torchvision_model_is_a_pyro_program(name: str, tmp_path: Path) -> None:
    import torchvision

    net = getattr(torchvision.models, name)(num_classes=3)
    x, y = rows(4, 3, 32)
    model, guide = program(net, 4)
    assert math.isfinite(one_step(model, guide, x, y))
    posterior = Posterior(model, guide)
    expected = posterior.predict(x, num_samples=1, seed=0)
    assert expected.shape == (4, 3)
    posterior.save(tmp_path / "it")
    again = BNN(getattr(torchvision.models, name)(num_classes=3), priors.Kaiming(), likelihoods.Categorical(), 4)
    loaded = load(tmp_path / "it", again)
    torch.testing.assert_close(loaded.predict(x, num_samples=1, seed=0), expected)


# -- at full size ------------------------------------------------------------------------------------------------

LARGE: dict[str, Callable[[], nn.Module]] = {
    "resnet34": lambda: ResNet34(),
    "densenet121": lambda: DenseNet121(),
    "wide_resnet": lambda: WideResNet(),
    "vgg19": lambda: VGG(batch_norm=True),
    "patch_transformer": lambda: PatchTransformer(),
}
BATCH, STEPS = 4, 20
"""Rows, which are one batch, and steps on them."""


def resident_mib() -> float:
    """Return what this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", LARGE)
def test_large_architectures_train_save_load_and_predict(name: str, tmp_path: Path) -> None:
    net = LARGE[name]()
    x, y = rows(BATCH, 10, 32)
    model, guide = program(net, BATCH)
    held: list[float] = []

    class Watch(Callback):
        def epoch(self, state: FitState) -> None:
            held.append(resident_mib())

    result = fit(
        model,
        guide,
        PerSite(loc=Adam({"lr": 1e-3}), scale=Adam({"lr": 1e-3})),
        (x, y),
        epochs=STEPS,
        batch_size=BATCH,
        kl=kl.tempered(1e-4),
        callbacks=[Watch()],
        seed=0,
    )
    losses, nlls = ([line[key] for line in result.history] for key in ("loss", "nll"))
    assert losses[-1] < losses[0], losses
    assert sum(nlls[-5:]) < 0.8 * sum(nlls[:5]), nlls
    parameters = sum(p.numel() for p in net.parameters()) * 4 / 2**20  # MiB of one copy
    assert held[-1] - held[2] < parameters + 100, held  # a copy more at each step would be twenty
    posterior = Posterior(model, guide)
    expected = posterior.predict(x[:4], num_samples=1, seed=0)
    posterior.save(tmp_path / "it")
    loaded = load(tmp_path / "it")
    torch.testing.assert_close(loaded.predict(x[:4], num_samples=1, seed=0), expected)
