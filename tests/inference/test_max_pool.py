"""Pooling by the compiled kernel in recorded steps: torch's bits, and torch itself for every other pooling."""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pyro_bnn.inference.graph.lowering import Lowered, lower
from pyro_bnn.inference.graph.recording import record
from pyro_bnn.inference.native import build, use_kernel
from pyro_bnn.inference.native.build import Kernel, kernel

SHAPES = [
    (3, 4, 28, 28),
    (16, 10, 10),
    (2, 5, 7, 9),
    (1, 1, 2, 2),
    (2, 3, 5, 131),
    (2, 2, 64, 128),
    (1, 2, 3, 2),
    (0, 3, 8, 8),
]
SPECIAL = (-0.0, 0.0, math.nan, math.inf, -math.inf)


@pytest.fixture
def native() -> Kernel:
    if build._compiler() is None or os.environ.get(build.SWITCH):
        pytest.skip("there is no compiled kernel here")
    found = kernel()
    return build._compiled_and_loaded() if found is None else found


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(4).round()  # with equal pixels


def by_torch(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])  # type: ignore[no-any-return]


def same_bits(a: Tensor, b: Tensor) -> bool:
    whole = {torch.float32: torch.int32, torch.float64: torch.int64}
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(whole[a.dtype]), b.view(whole[b.dtype]))


@pytest.mark.parametrize("shape", SHAPES)
def test_maxima_and_their_places_are_torch_s(native: Kernel, shape: tuple[int, ...]) -> None:
    assert native.pools  # with the torch that the tests run with
    for seed in range(20):
        x = images(*shape, seed=seed)
        if seed >= 5 and x.numel():
            generator = torch.Generator().manual_seed(seed)
            places = torch.randint(x.numel(), (x.numel() // 3 + 1,), generator=generator)
            x.view(-1)[places] = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), places.shape, generator=generator)]
        (maxima, indices), (wanted, wanted_indices) = native.max_pool(x), by_torch(x)
        assert same_bits(maxima, wanted)
        assert torch.equal(indices, wanted_indices)


def test_every_order_of_four_pixels(native: Kernel) -> None:
    values = (*SPECIAL, 1.0)
    windows = torch.cartesian_prod(*[torch.tensor(values)] * 4).view(1, -1, 2, 2)
    (maxima, indices), (wanted, wanted_indices) = native.max_pool(windows), by_torch(windows)
    assert same_bits(maxima, wanted)
    assert torch.equal(indices, wanted_indices)


def test_it_does_not_depend_on_the_number_of_threads(native: Kernel) -> None:
    x, threads = images(33, 3, 20, 20), torch.get_num_threads()
    try:
        found = []
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            found.append(native.max_pool(x))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for pooled in found[1:] for a, b in zip(pooled, found[0], strict=True))


# -- in a recording ----------------------------------------------------------------------------------------------------


def with_gradient(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Sequence[Tensor]]:
    def function(x: Tensor) -> Sequence[Tensor]:
        leaf = x.detach().requires_grad_()
        pooled = pool(leaf)
        (grad,) = torch.autograd.grad(pooled.square().sum(), leaf)
        return [pooled.detach(), grad]

    return function


def recorded(pool: Callable[[Tensor], Tensor], x: Tensor) -> Lowered:
    """Return a pooling and its gradient recorded; it gives the bits of the function, for other images, too."""
    function = with_gradient(pool)
    made = lower(record(function, [x]), {})
    for other in (x, x.flip(-1).mul(2).contiguous(memory_format=_format(x))):
        assert all(same_bits(a, b) for a, b in zip(made([other]), function(other), strict=True))
    return made


def _format(x: Tensor) -> torch.memory_format:
    return torch.contiguous_format if x.is_contiguous() else torch.channels_last


@pytest.mark.parametrize(
    "pool",
    [
        torch.nn.MaxPool2d(2),
        torch.nn.MaxPool2d((2, 2), stride=(2, 2)),
        lambda x: F.max_pool2d(x.relu(), 2),
        lambda x: torch.max_pool2d(x * 2, [2, 2], [2]),
        lambda x: F.max_pool2d(F.max_pool2d(x, 2), 2),
    ],
)
@pytest.mark.parametrize("shape", [(100, 6, 28, 28), (100, 28, 29)])
def test_windows_of_two_by_two_are_the_kernel_s(native: Kernel, pool: Any, shape: tuple[int, ...]) -> None:
    assert " = max_pool(" in recorded(pool, images(*shape)).source


@pytest.mark.parametrize(
    "pool",
    [
        torch.nn.MaxPool2d(3),
        torch.nn.MaxPool2d(2, stride=1),
        torch.nn.MaxPool2d(2, padding=1),
        torch.nn.MaxPool2d(2, dilation=2),
        torch.nn.MaxPool2d(2, ceil_mode=True),
        torch.nn.MaxPool2d((2, 1)),
        torch.nn.MaxPool2d(2, stride=(2, 3)),
        torch.nn.MaxPool2d(3, stride=2),
        lambda x: F.max_pool2d(x.double(), 2),
        lambda x: F.max_pool2d(x.transpose(-1, -2), 2),
        lambda x: F.max_pool2d(x[..., ::2], 2),
    ],
)
def test_every_other_pooling_is_torch_s(native: Kernel, pool: Any) -> None:
    assert "max_pool(" not in recorded(pool, images(60, 6, 29, 29)).source


def test_other_layouts_and_few_pixels_are_left_to_torch(native: Kernel) -> None:
    pool = torch.nn.MaxPool2d(2)
    last = images(60, 6, 28, 28).contiguous(memory_format=torch.channels_last)
    assert "max_pool(" not in recorded(pool, last).source
    assert "max_pool(" not in recorded(pool, images(2, 6, 28, 28)).source


def test_a_recording_goes_on_without_the_kernel(native: Kernel) -> None:
    pool, x = torch.nn.MaxPool2d(2), images(60, 6, 28, 28)
    made = recorded(pool, x)
    try:
        use_kernel(False)
        assert all(same_bits(a, b) for a, b in zip(made([x]), with_gradient(pool)(x), strict=True))
        assert "max_pool(" not in recorded(pool, x).source
    finally:
        use_kernel(True)


def test_a_recording_goes_on_with_images_of_another_kind(native: Kernel) -> None:
    pool, x = torch.nn.MaxPool2d(2), images(60, 6, 28, 28)
    made = recorded(pool, x)
    for other in (x.double(), x.contiguous(memory_format=torch.channels_last), x.transpose(-1, -2)):
        assert all(torch.equal(a, b) for a, b in zip(made([other]), with_gradient(pool)(other), strict=True))


def test_a_torch_that_pools_otherwise_keeps_its_pooling(native: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal pixels another version might take the last: what the kernel does is then not used."""
    taken = Kernel.max_pool

    def other(self: Kernel, x: Tensor) -> tuple[Tensor, Tensor]:
        maxima, places = taken(self, x)
        return maxima, places + (maxima == 0)

    monkeypatch.setattr(Kernel, "max_pool", other)
    changed = build._compiled_and_loaded()
    assert not changed.pools
    monkeypatch.setattr(build, "_FOUND", [changed])
    assert "max_pool(" not in recorded(torch.nn.MaxPool2d(2), images(60, 6, 28, 28)).source
