"""The contract of the torch optimizers: one table, every class meets every test."""

import copy
import io
import math

import pytest
import torch

from pyro_bnn.optim.torch_optim import AdaBayes, AdaBayesFP, AdaBound, AMSBound, YellowFin

TABLE = {
    "adabayes": (AdaBayes, {"batch_size": 8}),
    "adabayes_first_order": (AdaBayes, {"batch_size": 8, "decay": "first_order"}),
    "adabayes_fp": (AdaBayesFP, {"batch_size": 8}),
    "adabound": (AdaBound, {}),
    "amsbound": (AMSBound, {}),
    "yellowfin": (YellowFin, {"lr": 1e-3}),
}
every_class = pytest.mark.parametrize(("optimizer_class", "kwargs"), TABLE.values(), ids=TABLE.keys())


def make(dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    shapes = ((3,), (2, 4), (), (5, 1, 2))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def fill(params, step):
    generator = torch.Generator().manual_seed(100 + step)
    for i, p in enumerate(params):
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.grad = ((i + 1) * p.detach().double() + 0.3 * noise).to(p.dtype)


def train(optimizer, params, steps):
    for step in steps:
        fill(params, step)
        optimizer.step()


def values(params):
    return [p.detach().clone() for p in params]


def assert_same_bits(left, right):
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@every_class
def test_descends(optimizer_class, kwargs):
    w = torch.tensor([3.0, -2.0], requires_grad=True)
    optimizer = optimizer_class([w], **{**kwargs, "lr": 1e-2})
    for _ in range(300):
        w.grad = torch.tensor([1.0, 5.0]) * w.detach()
        optimizer.step()
    assert w.abs().max() < 1.5


@every_class
def test_one_tensor_at_a_time_gives_the_same_bits(optimizer_class, kwargs):
    together, alone = make(), make()
    train(optimizer_class(together, **kwargs), together, range(20))
    train(optimizer_class(alone, **kwargs, foreach=False), alone, range(20))
    assert_same_bits(values(together), values(alone))


def test_foreach_decides_how_many_tensors_go_together():
    for foreach, buckets in ((True, 1), (False, 4)):
        params = make()
        fill(params, 0)
        assert len(list(AdaBound(params, foreach=foreach)._buckets())) == buckets


@every_class
def test_saved_state_continues_to_the_same_bits(optimizer_class, kwargs):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        params = make(dtype)
        optimizer = optimizer_class([{"params": params[:2]}, {"params": params[2:], "lr": 2e-3}], **kwargs)
        train(optimizer, params, range(7))
        optimizer.param_groups[1]["lr"] *= 0.5
        file = io.BytesIO()
        torch.save({"optimizer": optimizer.state_dict(), "params": values(params)}, file)
        train(optimizer, params, range(7, 20))

        file.seek(0)
        saved = torch.load(file, weights_only=True)
        again = [p.requires_grad_() for p in saved["params"]]
        resumed = optimizer_class([{"params": again[:2]}, {"params": again[2:]}], **kwargs)
        resumed.load_state_dict(saved["optimizer"])
        train(resumed, again, range(7, 20))
        assert_same_bits(values(params), values(again))


@every_class
def test_loading_copies_the_state(optimizer_class, kwargs):
    params = make()
    optimizer = optimizer_class(params, **kwargs)
    train(optimizer, params, range(3))
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved)
    others = [p.detach().clone().requires_grad_() for p in params]
    other = optimizer_class(others, **kwargs)
    other.load_state_dict(saved)
    train(other, others, range(3, 6))
    for number, state in kept["state"].items():
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(saved["state"][number][name]), torch.as_tensor(value))


@every_class
def test_a_parameter_without_gradient_is_left_alone_and_keeps_its_own_count(optimizer_class, kwargs):
    params = make()
    start = values(params)
    optimizer = optimizer_class(params, **kwargs)
    fill(params, 0)
    params[1].grad = None
    optimizer.step()
    assert torch.equal(params[1], start[1])
    assert not torch.equal(params[0], start[0])
    assert params[1] not in optimizer.state
    fill(params, 1)
    optimizer.step()
    assert optimizer.state[params[0]]["step"] == 2
    assert optimizer.state[params[1]]["step"] == 1
    assert not torch.equal(params[1], start[1])


@every_class
def test_no_gradient_at_all_is_no_step(optimizer_class, kwargs):
    params = make()
    start = values(params)
    optimizer_class(params, **kwargs).step()
    assert_same_bits(values(params), start)


@every_class
def test_closure(optimizer_class, kwargs):
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = optimizer_class([w], **kwargs)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = (w**2).sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == 5.0
    assert calls == [5.0]
    assert w.tolist() != [1.0, 2.0]


@every_class
def test_mixed_dtypes_are_grouped(optimizer_class, kwargs):
    params = [torch.ones(3, dtype=d, requires_grad=True) for d in (torch.float32, torch.float64, torch.bfloat16)]
    optimizer = optimizer_class(params, **{**kwargs, "lr": 5e-2})
    train(optimizer, params, range(30))
    for p in params:
        assert torch.isfinite(p).all()
        assert not torch.equal(p, torch.ones_like(p))
    state_dtypes = {t.dtype for t in optimizer.state[params[2]].values() if isinstance(t, torch.Tensor)}
    assert state_dtypes == {torch.float32}


@every_class
def test_bfloat16_follows_float32(optimizer_class, kwargs):
    """Same gradients, so the states agree; the parameters differ by the rounding of 30 steps."""
    exact, rounded = torch.ones(4, requires_grad=True), torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    optimizers = [optimizer_class([p], **{**kwargs, "lr": 3e-2}) for p in (exact, rounded)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        gradient = (1 + torch.rand(4, generator=generator)).bfloat16()
        exact.grad, rounded.grad = gradient.float(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=30 * 2**-9)
    assert (exact - 1).abs().max() > 0.05


@every_class
def test_complex_and_integer_parameters_are_refused(optimizer_class, kwargs):
    for dtype in (torch.complex64, torch.int64):
        with pytest.raises(TypeError, match="real floating-point"):
            optimizer_class([torch.zeros(2, dtype=dtype)], **kwargs)


@every_class
def test_sparse_gradients_are_refused_before_anything_moves(optimizer_class, kwargs):
    first, second = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer = optimizer_class([{"params": [first]}, {"params": [second]}], **kwargs)
    first.grad, second.grad = torch.ones(3), torch.ones(3).to_sparse()
    with pytest.raises(TypeError, match="dense gradients"):
        optimizer.step()
    assert first.tolist() == [1.0, 1.0, 1.0]


@every_class
def test_parameter_groups_keep_their_own_rates(optimizer_class, kwargs):
    params = make()
    optimizer = optimizer_class(params[:2], **kwargs)
    optimizer.add_param_group({"params": params[2:], "lr": 1e-4})
    assert [g["lr"] for g in optimizer.param_groups] == [optimizer.defaults["lr"], 1e-4]
    assert [g["base_lr"] for g in optimizer.param_groups] == [optimizer.defaults["lr"], 1e-4]
    with pytest.raises(ValueError, match="lr=-1"):
        optimizer.add_param_group({"params": [torch.zeros(1)], "lr": -1})
    assert len(optimizer.param_groups) == 2


BAD = [
    ("lr", -1e-3, ">= 0"),
    ("lr", math.nan, ">= 0"),
    ("lr", "fast", ">= 0"),
    ("weight_decay", -1.0, ">= 0"),
]
BAD_OF = {
    "adabayes": [
        ("betas", (1.0, 0.9), r"\[0, 1\)"),
        ("betas", (0.9, -0.1), r"\[0, 1\)"),
        ("betas", 0.9, r"\[0, 1\)"),
        ("lr_sgd", 0.0, "> 0"),
        ("lr_sgd", math.inf, "finite"),
        ("batch_size", 0, "integer >= 1"),
        ("batch_size", 2.5, "integer >= 1"),
        ("decay", "linear", "'exponential'"),
        ("variance", "relative", "'absolute'"),
        ("weight_decay_at", "mean", "'new_mean'"),
    ],
    "adabayes_first_order": [("lr", 1.0, "exponential")],
    "adabayes_fp": [
        ("betas", (0.9, 1.0), r"\[0, 1\)"),
        ("lr_sgd", -1.0, "> 0"),
        ("eps", -1e-8, ">= 0"),
        ("weight_decay_scheduled", 1, "True"),
    ],
    "adabound": [
        ("final_lr", -0.1, "> 0"),
        ("final_lr", 0.0, "> 0"),
        ("gamma", -1e-3, ">= 0"),
        ("betas", (0.9, 2.0), r"\[0, 1\)"),
    ],
    "amsbound": [("final_lr", -0.1, "> 0"), ("eps", math.nan, ">= 0")],
    "yellowfin": [
        ("momentum", 1.0, r"\[0, 1\)"),
        ("beta", 1.0, r"\[0, 1\)"),
        ("window", 0, "integer >= 1"),
        ("lr_factor", 0.0, "> 0"),
        ("momentum_factor", 1.5, r"\[0, 1\]"),
        ("clip_norm", -1.0, "> 0"),
        ("eps", 0.0, "variance"),
        ("stat_protect_fac", 0.0, "> 0"),
        ("catastrophic_move_thresh", -1.0, "> 0"),
        ("h_max_log_smooth", "yes", "True or False"),
        ("rate_in_velocity", None, "True or False"),
    ],
}


@pytest.mark.parametrize(
    ("row", "name", "value", "allowed"),
    [(row, *bad) for row in TABLE for bad in (*BAD, *BAD_OF[row])],
)
def test_bad_values_are_refused_with_value_and_range(row, name, value, allowed):
    optimizer_class, kwargs = TABLE[row]
    with pytest.raises(ValueError, match=allowed) as error:
        optimizer_class([torch.zeros(2)], **{**kwargs, name: value})
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_adabayes_first_order_refuses_a_schedule_that_leaves_its_range():
    w = torch.ones(1, requires_grad=True)
    optimizer = AdaBayes([w], lr=1e-2, lr_sgd=0.1, batch_size=100, decay="first_order")
    optimizer.param_groups[0]["lr"] = 1.0
    w.grad = torch.ones(1)
    with pytest.raises(ValueError, match="exponential"):
        optimizer.step()
    assert w.item() == 1.0


# -- YellowFin's guards ------------------------------------------------------------------------------------------------


def yellowfin_after(gradients, **kwargs):
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = YellowFin([w], **kwargs)
    moves = []
    for g in gradients:
        before = w.detach().clone()
        w.grad = torch.tensor([float(g), 0.0], dtype=torch.float64)
        optimizer.step()
        moves.append((w.detach() - before)[0].item())
    return optimizer, moves


def test_yellowfin_first_step_uses_the_given_rate():
    _, moves = yellowfin_after([2.0], lr=0.03)
    assert moves == [pytest.approx(-0.06)]


def test_yellowfin_slow_start_multiplies_the_rate():
    gradients = [1.0 + 0.1 * (t % 3) for t in range(10)]
    slow, _ = yellowfin_after(gradients, window=5)
    fast, _ = yellowfin_after(gradients, window=5, slow_start=False)
    ratio = slow.param_groups[0]["tuned_lr"] / fast.param_groups[0]["tuned_lr"]
    assert ratio == pytest.approx(10 / 50)


def test_yellowfin_clips_by_a_given_norm():
    optimizer, moves = yellowfin_after([50.0], lr=0.1, clip_norm=2.0)
    assert moves == [pytest.approx(-0.2)]
    assert optimizer.tuner["window"] == [pytest.approx(4.0)]


def test_yellowfin_adaptive_clipping_holds_back_an_outlier():
    usual = [1.0 + 0.1 * (t % 3) for t in range(50)]
    clipped, _ = yellowfin_after([*usual, 1e4])
    assert 11 < math.sqrt(clipped.tuner["window"][-1]) <= 12
    free, _ = yellowfin_after([*usual, 1e4], adaptive_clip=False)
    assert math.sqrt(free.tuner["window"][-1]) == pytest.approx(1e4)


def test_yellowfin_lr_factor_and_schedule_multiply_the_tuned_rate():
    gradients = [1.0, 2.0, 1.5, 1.2]
    plain, _ = yellowfin_after(gradients, lr=1e-4)
    scaled, _ = yellowfin_after(gradients, lr=1e-4, lr_factor=0.25, momentum_factor=0.5)
    assert scaled.param_groups[0]["tuned_lr"] == pytest.approx(0.25 * plain.param_groups[0]["tuned_lr"])
    assert scaled.param_groups[0]["tuned_momentum"] == pytest.approx(0.5 * plain.param_groups[0]["tuned_momentum"])


def test_yellowfin_refuses_a_gradient_that_is_not_finite_before_moving():
    w = torch.ones(2, requires_grad=True)
    optimizer = YellowFin([w])
    w.grad = torch.tensor([1.0, math.inf])
    with pytest.raises(FloatingPointError, match="lr_factor"):
        optimizer.step()
    assert w.tolist() == [1.0, 1.0]


def test_yellowfin_survives_zero_gradients():
    optimizer, moves = yellowfin_after([0.0] * 30 + [1.0] * 5)
    assert all(math.isfinite(m) for m in moves)
    assert math.isfinite(optimizer.param_groups[0]["tuned_lr"])


def test_yellowfin_groups_cannot_have_different_statistics():
    optimizer = YellowFin([torch.zeros(1)])
    with pytest.raises(ValueError, match="share beta"):
        optimizer.add_param_group({"params": [torch.zeros(1)], "beta": 0.9})
