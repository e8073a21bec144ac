"""What a recording is simplified to computes the same bits, whatever is written over, viewed and read again."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from pyro_bnn.inference.graph.lowering import Lowered, lower
from pyro_bnn.inference.graph.recording import record

Function = Callable[[Tensor, Tensor], Sequence[Tensor]]


def matrices() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 4, generator=generator), torch.randn(4, 4, generator=generator)]


def lowered(function: Function) -> Lowered:
    return lower(record(function, matrices()), {})


def assert_same(function: Function) -> Lowered:
    """A recording returns, and leaves in its inputs, the bits that the function does."""
    recorded = lowered(function)
    for _ in range(2):
        ours, theirs = matrices(), matrices()
        expected = [result.clone() for result in function(*theirs)]
        found = recorded(ours)
        assert len(found) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip([*found, *ours], [*expected, *theirs], strict=True))
    return recorded


def _layers(x: Tensor, y: Tensor) -> list[Tensor]:
    hidden = (x @ y).relu_()
    return [(hidden @ y).add_(hidden).relu_()]


def _block(x: Tensor, y: Tensor) -> list[Tensor]:
    shortcut = x * 2
    return [(x @ y).mul_(y).sub_(shortcut).sigmoid_().tanh_()]


@pytest.mark.parametrize(
    ("function", "operations"),
    [
        (_layers, ["mm", "relu_", "mm", "add_", "relu_"]),
        (_block, ["mul", "mm", "mul_", "sub_", "sigmoid_", "tanh_"]),
    ],
)
def test_a_write_over_what_nobody_reads_again_is_no_obstacle(function: Function, operations: list[str]) -> None:
    """A write that is left to torch has two underscores: none of these is, and only products have a new memory."""
    lines = assert_same(function).source.splitlines()
    assert [line.partition(" = ")[2].partition("(")[0] for line in lines if " = " in line] == operations


def _read_before(x: Tensor, y: Tensor) -> list[Tensor]:
    h = x + y
    total = h.sum()
    return [h.relu_(), total]


def _view_read_after(x: Tensor, y: Tensor) -> list[Tensor]:
    h = x @ y
    row = h[1]
    h.relu_()
    return [row * 2, h]


def _view_of_a_view_read_after(x: Tensor, y: Tensor) -> list[Tensor]:
    h = x @ y
    part = h.t()[1:].view(3, 2, 2)
    h.tanh_()
    return [part.exp(), part]


def _base_read_after(x: Tensor, y: Tensor) -> list[Tensor]:
    h = x @ y
    h[2].relu_()
    return [h, h.sum()]


def _halves(x: Tensor, y: Tensor) -> list[Tensor]:
    whole = x @ y
    left, right = whole.chunk(2, 1)
    left.mul_(right)
    return [left.exp(), whole]


def _inputs(x: Tensor, y: Tensor) -> list[Tensor]:
    x.relu_()
    y.add_(x)
    return [x @ y]


def _broadcast(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(x @ y).add_(y[0]), x.sum(0).add_(1)]


def _mixed_types(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(x @ y).add_(y.double()), (x @ y).mul_(torch.arange(4))]


def _itself(x: Tensor, y: Tensor) -> list[Tensor]:
    h = x @ y
    h.mul_(h)
    h.add_(h.t().exp())
    return [h]


def _twice(x: Tensor, y: Tensor) -> list[Tensor]:
    h = x @ y
    before = h.exp()
    h.relu_()
    between = h.exp()
    h.sub_(between)
    return [h, before, between]


def _scaled(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(x @ y).add_(y, alpha=0.3).relu_()]


def _square(x: Tensor, y: Tensor) -> list[Tensor]:
    y = y.detach().requires_grad_()
    h = (x @ y).square()
    return list(torch.autograd.grad((h * h).sum(), [y]))


def _gradients(x: Tensor, y: Tensor) -> list[Tensor]:
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    h = torch.tanh(torch.sigmoid(torch.relu(x @ y)))
    return list(torch.autograd.grad((h * h).sum(), [x, y]))


PROGRAMS = [
    _read_before,
    _view_read_after,
    _view_of_a_view_read_after,
    _base_read_after,
    _halves,
    _inputs,
    _broadcast,
    _mixed_types,
    _itself,
    _twice,
    _scaled,
    _square,
    _gradients,
]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__.strip("_"))
def test_same_bits_whatever_is_written(function: Function) -> None:
    assert_same(function)


def test_a_gradient_through_an_activation_lies_where_the_gradient_before_it_did() -> None:
    functions = lowered(_gradients)._step.__globals__
    over = {name for name, function in functions.items() if getattr(function, "__name__", "") == "over"}
    assert over == {"tanh_backward_", "sigmoid_backward_", "threshold_backward_"}


def test_a_first_power_is_its_base() -> None:
    assert assert_same(_square).source.count("pow_(") == 1  # the gradient's x ** 1 is gone


def test_the_second_operand_is_written_over_where_only_that_is_not_read_again() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x * torch.exp(x @ y) + y]

    source = assert_same(function).source
    assert "= mul_(" in source
    assert "= add_(" in source


_WRITES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a.relu_(),
    lambda a, b: a.tanh_(),
    lambda a, b: a.sigmoid_(),
    lambda a, b: a.add_(b),
    lambda a, b: a.mul_(b),
    lambda a, b: a.sub_(b),
    lambda a, b: a.neg_(),
    lambda a, b: a.abs_().sqrt_(),
    lambda a, b: a.add_(b, alpha=-0.5),
    lambda a, b: a.div_(b.abs() + 1),
    lambda a, b: a.addcmul_(b, b, value=0.1),
    lambda a, b: a.copy_(b),
    lambda a, b: a.zero_(),
    lambda a, b: (a[1:].mul_(b[1:]), a)[1],
    lambda a, b: a.t().add_(b),
]
_RESULTS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a @ b / 4,
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: torch.relu(a),
    lambda a, b: torch.tanh(a),
    lambda a, b: a.clone(),
    lambda a, b: torch.cat(a.chunk(2)[::-1]),
]
_VIEWS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a.t(),
    lambda a, b: a.view(4, 4),
    lambda a, b: a[0].expand(4, 4),
    lambda a, b: a.view(2, 2, 4).transpose(0, 1).transpose(0, 1).view(4, 4),
]


def _random_program(seed: int) -> Function:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        chosen = random.Random(seed)
        values = [x, y, x + y]
        for _ in range(chosen.randint(3, 14)):
            a, b = chosen.choice(values), chosen.choice(values)
            kind = chosen.choice([_WRITES, _RESULTS, _RESULTS, _VIEWS])
            if kind is _VIEWS and not a.is_contiguous():
                kind = _RESULTS
            if kind is _WRITES and 0 in a.stride():
                a = a.clone()
            if kind is _WRITES and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
                b = b.clone()
            values.append(chosen.choice(kind)(a, b))
        return chosen.sample(values, 3)

    return function


def test_same_bits_for_random_programs_that_write_and_view() -> None:
    changed = 0
    for seed in range(400):
        source = assert_same(_random_program(seed)).source
        changed += "_(" in source
    assert changed > 100
