"""Local reparameterisation and Flipout: exact where they claim to be, and out of the way where they cannot be.

Statistical tests use a fixed seed and fail a correct implementation with probability at most FALSE_ALARM each.
"""

import math
import threading
import warnings
from contextlib import ExitStack, nullcontext

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.runtime import _PYRO_STACK
from reference.flipout_loop import flipout_loop
from scipy import stats
from targets import MeanField
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.inference.elbo import TracePathDerivative_ELBO
from pyro_bnn.inference.gradient_variance import gradient_variance
from pyro_bnn.inference.reparam import (
    active_reparameterization,
    flipout,
    flipout_output,
    local_output,
    local_reparameterization,
    random_signs,
)
from pyro_bnn.models import BNN, LeNet5, likelihoods, priors

FALSE_ALARM = 1e-4
SEVERAL = "ignore:local_reparameterization.*several positions:UserWarning"  # where a convolution is meant
HANDLERS = [local_reparameterization, flipout]
F64 = torch.float64


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def z_bound(comparisons: int) -> float:
    return float(stats.norm.ppf(1 - FALSE_ALARM / (2 * comparisons)))


# ----------------------------------------------------------------------------------- Flipout: the loop, exactly

CONVS = [
    (F.conv1d, (5, 4, 11), (6, 2, 3), {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}),
    (F.conv2d, (5, 4, 9, 8), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}),
    (F.conv2d, (3, 4, 7, 7), (8, 1, 3, 3), {"padding": "same", "groups": 4}),
    (F.conv3d, (3, 2, 5, 6, 5), (4, 2, 2, 3, 2), {"stride": (1, 2, 1), "padding": 1, "dilation": (2, 1, 1)}),
    (F.linear, (5, 4), (3, 4), {}),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("function", "input_shape", "weight_shape", "options"), CONVS)
def test_flipout_is_the_loop_over_examples(function, input_shape, weight_shape, options, bias) -> None:  # type: ignore[no-untyped-def]
    x, loc, delta = randn(*input_shape), randn(*weight_shape), randn(*weight_shape)
    biases = (randn(weight_shape[0]), randn(weight_shape[0])) if bias else (None, None)
    signs = random_signs(x, weight_shape[0], x.dim() - 2)

    def layer(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return function(x, w, b, **options)

    fast = flipout_output(layer, x, loc, delta, *biases, *signs)
    slow = flipout_loop(function, x, loc, delta, *biases, *(s.flatten(1) for s in signs), **options)
    torch.testing.assert_close(fast, slow)


def test_signs_are_per_example_and_channel_and_constant_over_positions() -> None:
    shapes = [
        ((7, 3), 5, 0, (7, 3), (7, 5)),
        ((7, 9, 3), 5, 0, (7, 1, 3), (7, 1, 5)),
        ((3,), 5, 0, (3,), (5,)),
        ((7, 3, 8), 5, 1, (7, 3, 1), (7, 5, 1)),
        ((3, 8, 8), 5, 2, (3, 1, 1), (5, 1, 1)),
        ((7, 3, 4, 4, 4), 5, 3, (7, 3, 1, 1, 1), (7, 5, 1, 1, 1)),
    ]
    for shape, out, spatial, expected_in, expected_out in shapes:
        sign_in, sign_out = random_signs(torch.zeros(shape), out, spatial)
        assert (sign_in.shape, sign_out.shape) == (expected_in, expected_out)
    sign_in, sign_out = random_signs(torch.zeros(4000, 3), 5, 0)
    for signs in (sign_in, sign_out):
        assert set(signs.unique().tolist()) == {-1.0, 1.0}
        assert signs.mean(0).abs().max() < z_bound(8) / math.sqrt(4000)


# ------------------------------------------------------------------------------- mean and variance of the outputs


def closed_form(layer, x, loc, scale, bias_loc, bias_scale) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    return layer(x, loc, bias_loc), layer(x**2, scale**2, bias_scale**2)


def draws_of(kind: str, layer, x, loc, scale, bias_loc, bias_scale, size: int) -> Tensor:  # type: ignore[no-untyped-def]
    """`size` outputs of the layer (size, B, ...)."""
    if kind == "local":  # independent over rows
        rows = x.expand(size, *x.shape).flatten(0, 1)
        return local_output(layer, rows, loc, scale, bias_loc, bias_scale).unflatten(0, (size, -1))

    def draw(_: Tensor) -> Tensor:
        delta, bias_delta = scale * torch.randn_like(scale), bias_scale * torch.randn_like(bias_scale)
        if kind == "plain":
            return layer(x, loc + delta, bias_loc + bias_delta)
        signs = (2.0 * torch.rand_like(s).round() - 1 for s in random_signs(x, len(loc), x.dim() - 2))
        return flipout_output(layer, x, loc, delta, bias_loc, bias_delta, *signs)

    return torch.vmap(draw, randomness="different", chunk_size=1000)(torch.arange(size))


def conv(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return F.conv2d(x, w, b, stride=2, padding=1)


@pytest.mark.parametrize("kind", ["plain", "local", "flipout"])
@pytest.mark.parametrize(
    ("layer", "x_shape", "w_shape"), [(F.linear, (3, 6), (4, 6)), (conv, (2, 2, 4, 4), (3, 2, 3, 3))]
)
def test_mean_and_variance_of_every_output(kind, layer, x_shape, w_shape) -> None:  # type: ignore[no-untyped-def]
    # Every output is normal: the mean of R draws has sd sqrt(V / R), their variance sd V sqrt(2 / (R - 1)).
    x, loc, scale = randn(*x_shape), randn(*w_shape), randn(*w_shape).abs()
    bias_loc, bias_scale = randn(w_shape[0]), randn(w_shape[0]).abs()
    size = 40_000  # resolves 1.6 % of a deviation, 3.3 % of a variance
    outputs = draws_of(kind, layer, x, loc, scale, bias_loc, bias_scale, size)
    mean, variance = closed_form(layer, x, loc, scale, bias_loc, bias_scale)
    bound = z_bound(2 * mean.numel())
    assert ((outputs.mean(0) - mean) / (variance / size).sqrt()).abs().max() < bound
    assert ((outputs.var(0) / variance - 1) / math.sqrt(2 / (size - 1))).abs().max() < bound


def correlation(outputs: Tensor, variance: Tensor) -> Tensor:
    """Correlation between two positions of the same output channel and example, (B, C)."""
    a, b = (outputs[..., i, i] - outputs[..., i, i].mean(0) for i in (0, 1))
    return (a * b).mean(0) / (variance[..., 0, 0] * variance[..., 1, 1]).sqrt()


def test_flipout_keeps_the_dependence_between_positions_and_local_does_not() -> None:
    # what "exact for each example" and "only the marginals" mean on a convolution
    x, loc, scale = randn(2, 2, 5, 5), randn(3, 2, 3, 3), randn(3, 2, 3, 3).abs()
    bias_loc, bias_scale = randn(3), randn(3).abs()

    def layer(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.conv2d(x, w, b)

    _, variance = closed_form(layer, x, loc, scale, bias_loc, bias_scale)
    patches = [x[:, :, i : i + 3, i : i + 3] for i in (0, 1)]  # (B, C_in, 3, 3)
    covariance = torch.einsum("bijk,oijk->bo", patches[0] * patches[1], scale**2) + bias_scale**2
    exact = covariance / (variance[..., 0, 0] * variance[..., 1, 1]).sqrt()
    bound = 2 * z_bound(18) / math.sqrt(20_000)  # sd of a product of standard normals: sqrt(1 + rho^2) < 2
    found = {k: correlation(draws_of(k, layer, x, loc, scale, bias_loc, bias_scale, 20_000), variance)
             for k in ("plain", "flipout", "local")}  # fmt: skip
    assert (found["plain"] - exact).abs().max() < bound
    assert (found["flipout"] - exact).abs().max() < bound
    assert found["local"].abs().max() < bound
    assert exact.abs().max() > 2 * bound


def test_an_input_of_zeros_has_no_infinite_gradient() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    loc, scale = torch.ones(4, 3, requires_grad=True), torch.ones(4, 3, requires_grad=True)
    local_output(F.linear, x, loc, scale, None, None).square().sum().backward()
    assert all(bool(t.grad.isfinite().all()) for t in (x, loc, scale))


def test_gradient_of_a_local_output_is_the_formula() -> None:
    # out = mean + sqrt(var) e: d out / d var = e / (2 sqrt(var)), with e read off the output
    x, loc, scale = randn(5, 3), randn(4, 3).requires_grad_(), randn(4, 3).abs().requires_grad_()
    output = local_output(F.linear, x, loc, scale, None, None)
    weight = randn(5, 4)
    g_loc, g_scale = torch.autograd.grad((weight * output).sum(), (loc, scale))
    mean, variance = x @ loc.T, x**2 @ scale.T**2
    noise = ((output - mean) / variance.sqrt()).detach()
    expected = torch.autograd.grad((weight * (mean + variance.sqrt() * noise)).sum(), (loc, scale))
    torch.testing.assert_close((g_loc, g_scale), expected)


# ----------------------------------------------------------------------------------------------------- handlers


def bnn(net: nn.Module, x: Tensor, num_data: int = 40, **options: object) -> tuple[BNN, AutoMeanFieldNormal]:
    model = BNN(net, priors.Normal(0.0, 1.0), likelihoods.Categorical(), num_data)
    guide = AutoMeanFieldNormal(model, **options)
    guide(x)
    return model, guide


def run(model: BNN, trace: poutine.Trace, x: Tensor) -> Tensor:
    y = torch.zeros(len(x), dtype=torch.long)
    return poutine.replay(model, trace=trace)(x, y)


def step(model: BNN, guide: AutoMeanFieldNormal, x: Tensor) -> tuple[poutine.Trace, Tensor]:
    trace = poutine.trace(guide).get_trace(x)
    return trace, run(model, trace, x)


def differ(handled: Tensor, plain: Tensor) -> bool:
    """Whether the examples saw noise of their own: more than half of the outputs are not those of the draw."""
    return bool(((handled - plain).abs() > 1e-6).double().mean() > 0.5)


class Net(nn.Module):
    """Two convolutions and two dense layers, one of each kind of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.pad = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", groups=2, bias=False)
        self.norm = nn.GroupNorm(2, 4)
        self.dense = nn.Linear(4 * 16, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.pad(F.relu(self.conv(x)))))
        return self.head(torch.tanh(self.dense(x.flatten(1))))


@pytest.mark.filterwarnings(SEVERAL)
@pytest.mark.parametrize("groups", [None, "site"])
@pytest.mark.parametrize("handler", HANDLERS)
def test_first_pass_is_plain_and_all_layers_are_reparameterised_after(handler, groups) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(6, 1, 8, 8)
    model, guide = bnn(Net(), x, groups=groups)
    plain_trace, plain = step(model, guide, x)
    with handler():
        trace, first = step(model, guide, x)
    torch.testing.assert_close(run(model, trace, x), first)  # plain: a function of the draw
    with handler():  # a handler of its own each step knows the guide again
        trace, second = step(model, guide, x)
    assert differ(second, run(model, trace, x))
    torch.testing.assert_close(run(model, plain_trace, x), plain)


@pytest.mark.parametrize("handler", HANDLERS)
def test_without_gradients_everything_is_sampled_plainly(handler) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(6, 3)
    model, guide = bnn(nn.Sequential(nn.Linear(3, 3)), x)
    with handler():
        step(model, guide, x)
        with torch.no_grad():
            trace, prediction = step(model, guide, x)
    torch.testing.assert_close(prediction, run(model, trace, x).detach())


def test_the_handler_calls_the_pure_functions_with_the_guides_numbers() -> None:
    x = torch.randn(5, 3)
    model, guide = bnn(nn.Sequential(nn.Linear(3, 2)), x)
    weight, bias = guide.site("net.0.weight"), guide.site("net.0.bias")
    for handler in HANDLERS:
        with handler():
            step(model, guide, x)
            trace = poutine.trace(guide).get_trace(x)
            pyro.set_rng_seed(1)
            output = run(model, trace, x)
        pyro.set_rng_seed(1)
        if handler is local_reparameterization:
            expected = local_output(F.linear, x, weight.loc, weight.scale, bias.loc, bias.scale)
        else:
            w, b = (trace.nodes[n]["value"] for n in ("net.0.weight", "net.0.bias"))
            signs = random_signs(x, 2, 0)
            expected = flipout_output(F.linear, x, weight.loc, w - weight.loc, bias.loc, b - bias.loc, *signs)
        torch.testing.assert_close(output, expected)


@pytest.mark.filterwarnings(SEVERAL)
def test_loss_and_kl_are_those_of_the_guide() -> None:
    # the analytic KL is unchanged; the likelihood alone sees the noise
    x, y = torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))
    model, guide = bnn(Net(), x)
    traces = TraceMeanField_ELBO()._get_traces
    for handler in HANDLERS:
        with handler():
            for _ in range(2):
                ((model_trace, _),) = traces(model, guide, (x, y), {})
            loss = TraceMeanField_ELBO().loss(model, guide, x, y)
        assert math.isfinite(loss)
        assert model_trace.nodes["obs"]["fn"].logits.requires_grad


@pytest.mark.filterwarnings(SEVERAL)
@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO, TracePathDerivative_ELBO])
@pytest.mark.parametrize("handler", HANDLERS)
def test_stock_svi_trains_lenet_under_the_handlers(handler, elbo) -> None:  # type: ignore[no-untyped-def]
    x, y = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    model = BNN(LeNet5(), priors.Kaiming(), likelihoods.Categorical(), 4)
    guide = AutoMeanFieldNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), elbo(num_particles=2))
    with handler():
        losses = [svi.step(x, y) for _ in range(8)]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]
    assert all(bool(p.grad is None or p.grad.isfinite().all()) for p in guide.parameters())


def test_weights_of_a_hand_written_program() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(F.linear(x, weight=w), 1.0).to_event(1), obs=y)

    x, y = torch.randn(50, 3), torch.zeros(50, 2)
    guide = MeanField(torch.zeros(2, 3), torch.ones(2, 3))
    for handler in HANDLERS:
        with handler():
            for _ in range(2):
                trace = poutine.trace(guide).get_trace(x, y)
                output = poutine.trace(poutine.replay(model, trace=trace)).get_trace(x, y).nodes["obs"]["fn"].mean
        shared = torch.linalg.lstsq(x, output.detach()).solution  # one W for all rows would fit exactly
        assert (x @ shared - output).abs().max() > 0.1


# --------------------------------------------------------------------------- loc-gradient variance: (B+d+1)/(d+2)


@pytest.mark.parametrize("handler", HANDLERS)
def test_location_gradient_variance_falls_by_the_formula(handler) -> None:  # type: ignore[no-untyped-def]
    # One linear layer, squared loss, weight noise only: given x the variances are s^2 tr(A^2), A = (1/B) sum x x^T, and
    # s^2 sum |x_n|^4 / B^2; over standard normal inputs their ratio is (B + d + 1) / (d + 2) = 4.1.
    size, dim, sets, repeats = 32, 8, 60, 40

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(1, dim, dtype=F64), 1.0).to_event(2))
        with pyro.plate("data", size), poutine.scale(scale=1 / size):
            pyro.sample("obs", dist.Normal(F.linear(x, w).squeeze(-1), 1.0), obs=torch.zeros(size, dtype=F64))

    guide = MeanField(torch.zeros(1, dim, dtype=F64), torch.ones(1, dim, dtype=F64))
    variances: dict[str, list[float]] = {"plain": [], "handled": []}
    for _ in range(sets):
        x = randn(size, dim)
        for name, context in (("plain", nullcontext()), ("handled", handler())):
            with context:
                result = gradient_variance(model, guide, TraceMeanField_ELBO(), (x,), repeats)
            variances[name].append(result.by_kind()["loc"].variance)
    plain, handled = (torch.tensor(variances[n], dtype=F64) for n in ("plain", "handled"))
    expected = (size + dim + 1) / (dim + 2)
    assert expected == pytest.approx(4.1)
    residual = plain - expected * handled  # mean 0 under the claim
    error = float(residual.std()) / math.sqrt(sets)
    assert abs(float(residual.mean())) < stats.t.ppf(1 - FALSE_ALARM / 2, sets - 1) * error
    assert error / float(plain.mean()) < 0.05  # resolution: 5 % of the ratio


# ------------------------------------------------------------------- shared, twice used, and unsupported weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.a(torch.tanh(self.a(x)))))


class Elsewhere(nn.Module):
    """The layer's weight also enters another way."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.a(x) @ self.a.weight))


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("net", [Tied, Twice, Elsewhere])
def test_weights_used_twice_are_sampled_plainly_with_one_warning(net, handler) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(6, 3)
    model, guide = bnn(net(), x)
    with pytest.warns(UserWarning, match=r"'net\.a\.weight'.*: used more than once"), handler():
        step(model, guide, x)
    hidden: list[Tensor] = []
    model.template.c.register_forward_pre_hook(lambda module, args: hidden.append(args[0].detach()))
    with handler():  # and no second warning
        trace, handled = step(model, guide, x)
    plain = run(model, trace, x)
    assert differ(handled, plain)  # the last layer, whose weight is its own, is reparameterised
    torch.testing.assert_close(hidden[0], hidden[1])  # and what comes before it is the draw's


def test_a_weight_used_again_only_later_is_an_error_once() -> None:
    x = torch.randn(6, 3)
    again = [False]

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.c = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.a(self.a(x)) if again[0] else self.a(x))

    model, guide = bnn(Sometimes(), x)
    with local_reparameterization():
        for _ in range(2):
            step(model, guide, x)
    again[0] = True
    with pytest.raises(RuntimeError, match=r"net\.a\.weight.*next step on"), local_reparameterization():
        step(model, guide, x)
    assert not _PYRO_STACK
    with local_reparameterization():
        step(model, guide, x)


@pytest.mark.parametrize("handler", HANDLERS)
def test_attention_and_embedding_are_sampled_plainly_and_still_work(handler) -> None:  # type: ignore[no-untyped-def]
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            return self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))

    x = torch.randint(0, 10, (6, 5))
    model, guide = bnn(Reader(), x)
    with handler():
        step(model, guide, x)
        trace, handled = step(model, guide, x)
    assert differ(handled, run(model, trace, x))  # the head is reparameterised


def test_nothing_to_reparameterise_is_said_once() -> None:
    x = torch.randn(6, 3)
    model, guide = bnn(nn.Sequential(nn.Linear(3, 3)), x)
    y = torch.zeros(6, dtype=torch.long)
    elbo = TraceMeanField_ELBO(num_particles=2, vectorize_particles=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            with flipout():
                elbo.loss_and_grads(model, guide, x, y)
    assert ["vectorised particles" in str(w.message) for w in caught] == [True]


@pytest.mark.parametrize("handler", HANDLERS)
def test_batch_statistics_are_warned_of_once(handler) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(6, 3)
    model, guide = bnn(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            with handler():
                step(model, guide, x)
    assert ["batch statistics" in str(w.message) for w in caught] == [True]
    model, guide = bnn(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 3)), x)
    with handler():
        for _ in range(2):
            step(model, guide, x)


# -------------------------------------------------------------------------------------- contexts and other threads


def depth() -> int:
    return torch._C._len_torch_function_stack()


def fail_inside(contexts, guide: AutoMeanFieldNormal, x: Tensor) -> None:  # type: ignore[no-untyped-def]
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        poutine.trace(guide).get_trace(x)
        raise ZeroDivisionError


@pytest.mark.parametrize("handler", HANDLERS)
def test_contexts_nest_reenter_and_survive_exceptions(handler) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(6, 3)
    model, guide = bnn(nn.Sequential(nn.Linear(3, 3)), x)
    one, other = handler(), flipout()
    with one, one, other, handler():
        step(model, guide, x)
    assert depth() == 0
    assert not _PYRO_STACK
    for _ in range(2):  # entered again
        with one:
            trace, handled = step(model, guide, x)
    assert differ(handled, run(model, trace, x))
    for depth_of_failure in (1, 2, 3):
        with pytest.raises(ZeroDivisionError):
            fail_inside([one, other, one][:depth_of_failure], guide, x)
        assert depth() == 0
        assert not _PYRO_STACK
        assert active_reparameterization() is None
    with one:
        trace, handled = step(model, guide, x)
    assert differ(handled, run(model, trace, x))


def test_the_innermost_handler_is_in_force_and_the_outer_one_after_it() -> None:
    x = torch.randn(400, 3)
    model, guide = bnn(nn.Sequential(nn.Linear(3, 3)), x)

    def rank_of_noise(trace: poutine.Trace, output: Tensor) -> int:
        # Flipout's deviations are |(x s) Delta + delta|: at most 2^3 sign patterns. Local noise fits nothing.
        w, b = (trace.nodes[f"net.0.{n}"]["value"] for n in ("weight", "bias"))
        view = {n: guide.site(f"net.0.{n}") for n in ("weight", "bias")}
        noise = output.detach() - F.linear(x, view["weight"].loc, view["bias"].loc)
        signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)  # (8, 3)
        patterns = F.linear(x[:, None] * signs, w - view["weight"].loc, b - view["bias"].loc)  # (B, 8, K)
        gap = torch.minimum((patterns - noise[:, None]).abs(), (patterns + noise[:, None]).abs()).min(1).values
        return int((gap < 1e-4).all())

    with local_reparameterization() as outer:
        step(model, guide, x)
        assert active_reparameterization() is outer
        assert rank_of_noise(*step(model, guide, x)) == 0
        with flipout() as inner:
            assert active_reparameterization() is inner
            assert rank_of_noise(*step(model, guide, x)) == 1
        assert active_reparameterization() is outer
        assert rank_of_noise(*step(model, guide, x)) == 0


def test_plain_torch_in_another_thread_is_untouched() -> None:
    x = torch.randn(6, 3)
    model, guide = bnn(nn.Sequential(nn.Linear(3, 3)), x)
    linear = F.linear
    seen: dict[str, object] = {}

    def beside(weight: Tensor) -> None:
        seen["depth"] = depth()
        seen["function"] = F.linear is linear
        seen["output"] = F.linear(x, weight)  # the sampled tensor itself

    with local_reparameterization():
        step(model, guide, x)
        trace = poutine.trace(guide).get_trace(x)
        weight = trace.nodes["net.0.weight"]["value"]
        thread = threading.Thread(target=beside, args=(weight,))
        thread.start()
        thread.join()
        run(model, trace, x)
    assert seen["depth"] == 0
    assert seen["function"]
    torch.testing.assert_close(seen["output"], x @ weight.T)
    assert F.linear is linear


@pytest.mark.parametrize(
    ("net", "shape", "warned"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)), (4, 1, 8, 8), True),
        (nn.Sequential(nn.Conv2d(1, 2, 8), nn.Flatten(), nn.Linear(2, 3)), (4, 1, 8, 8), False),  # one position
        (nn.Sequential(nn.Linear(5, 2), nn.Flatten(), nn.Linear(12, 3)), (4, 6, 5), True),
        (nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 3)), (4, 5), False),
    ],
)
def test_local_reparameterisation_says_once_where_it_is_biased(
    net: nn.Module, shape: tuple[int, ...], warned: bool
) -> None:
    x = torch.randn(*shape)
    model, guide = bnn(net, x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for handler in (local_reparameterization, local_reparameterization, flipout):
            for _ in range(2):
                with handler():
                    step(model, guide, x)
    assert [str(w.message).count("flipout() is exact") for w in said] == [1] * warned
