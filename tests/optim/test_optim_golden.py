"""Numbers known beforehand: golden values, limits in which one algorithm is another, and the robust region."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from pyro_bnn.optim.torch_optim import AdaBayes, AdaBayesFP, AdaBound, AMSBound, YellowFin
from pyro_bnn.optim.torch_optim.adabayes import forgetting
from pyro_bnn.optim.torch_optim.adabound import bounds
from pyro_bnn.optim.torch_optim.yellowfin import cubic_root, robust_region, single_step

G = (1.28, 10.0, 100.0, 1000.0, 10000.0)
FIXED_POINT = (4.82839e-4, 9.38046e-5, 9.93620e-6, 9.99360e-7, 9.99936e-8)
RECURSION = (4.82803e-4, 9.33953e-5, 9.45762e-6, 6.17899e-7, 9.90195e-9)


def rate_under_constant_gradient(optimizer_class, steps, **kwargs):
    """Return movement / g, the learning rate of every weight, after many steps; eta 1e-3, sigma2 0.1 / 128."""
    g = torch.tensor(G, dtype=torch.float64)
    w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = optimizer_class([w], lr=1e-3, lr_sgd=0.1, batch_size=128, **kwargs)
    for _ in range(steps):
        w.grad = -g / 128
        before = w.detach().clone()
        optimizer.step()
    return ((w.detach() - before) / g).numpy()


def test_adabayes_fp_golden_rates():
    rates = rate_under_constant_gradient(AdaBayesFP, 2)
    np.testing.assert_allclose(rates, FIXED_POINT, rtol=2e-6)
    assert rates[0] / (0.1 / 128) == pytest.approx(0.618, abs=5e-4)


def test_adabayes_golden_rates_of_the_printed_recursion():
    np.testing.assert_allclose(rate_under_constant_gradient(AdaBayes, 8000, decay="first_order"), RECURSION, rtol=2e-6)


def test_adabayes_exponential_decay_is_the_printed_one_to_first_order():
    np.testing.assert_allclose(rate_under_constant_gradient(AdaBayes, 8000), RECURSION, rtol=1e-3)
    for k in (1e-3, 1e-4):
        exact, printed = forgetting(k, "exponential"), forgetting(k, "first_order")
        np.testing.assert_allclose(exact, printed, rtol=0, atol=k**2)
        assert exact != printed


def test_adabayes_decays_keep_their_own_stationary_variance():
    """Without data the exact process has variance sigma2, the printed one sigma2 / (1 - eta^2 / (4 sigma2))."""
    k = 1e-6 / (0.1 / 128)
    for decay, expected in (("exponential", 1.0), ("first_order", 1 / (1 - k / 4))):
        a, n = forgetting(k, decay)
        assert n / (1 - a) == pytest.approx(expected, rel=1e-12)
    assert 1 / (1 - k / 4) == pytest.approx(1.00032, abs=5e-6)


def test_adabound_golden_bounds():
    for step, lower, upper in ((1, 9.99e-5, 100.1), (500, 0.0333, 0.3), (5000, 0.0833, 0.12)):
        found = bounds(0.1, 1e-3, step)
        assert found[0] == pytest.approx(lower, rel=2e-3)
        assert found[1] == pytest.approx(upper, rel=2e-3)


def test_yellowfin_golden_single_step():
    assert cubic_root(0.5, 0.3, 2.0) == pytest.approx(0.25155, abs=5e-6)
    alpha, mu = single_step(h_max=2.0, h_min=2.0, variance=0.3, distance=0.5)
    assert mu == pytest.approx(0.25155**2, abs=5e-6)
    assert alpha == pytest.approx((1 - 0.25155) ** 2 / 2, abs=5e-6)


def test_yellowfin_cubic_against_brute_force():
    rng = np.random.default_rng(0)
    for distance, variance, h_min in 10 ** rng.uniform(-3, 3, (200, 3)):
        scale = max(distance**2, variance / h_min**2)

        def objective(x, d=distance, c=variance, h=h_min, s=scale):
            return (x**2 * d**2 + (1 - x) ** 4 * c / h**2) / s

        best = minimize_scalar(objective, bounds=(0, 1), method="bounded", options={"xatol": 1e-12})
        x = cubic_root(distance, variance, h_min)
        assert 0 <= x <= 1
        assert objective(x) <= best.fun * (1 + 1e-12)
        assert x == pytest.approx(best.x, abs=2e-6)


@pytest.mark.parametrize("p", [1e-30, 1e-9, 1.0, 1e9, 1e30])
def test_yellowfin_cubic_solves_its_equation_without_cancelling(p):
    x = cubic_root(math.sqrt(2 * p), 1.0, 1.0)
    assert p * x == pytest.approx((1 - x) ** 3, rel=1e-6, abs=1e-15 * max(p, 1))


def test_yellowfin_momentum_and_rate_lie_in_the_robust_region_of_both_curvatures():
    rng = np.random.default_rng(1)
    for spread, variance, distance in 10 ** rng.uniform((0, -2, -2), (3, 2, 2), (100, 3)):
        alpha, mu = single_step(h_max=0.7 * spread, h_min=0.7, variance=variance, distance=distance)
        for h in (0.7, 0.7 * spread):
            low, high = robust_region(h, mu)
            assert low * (1 - 1e-9) <= alpha <= high * (1 + 1e-9)


@pytest.mark.parametrize(
    ("lr", "kwargs", "losses"),
    [
        # the limit of a move keeps a first step that is far too long from growing without end
        (1.0, {}, {1: 4.648e5, 5: 4.648e5, 200: 4.645e5, 500: 4.64156e5}),
        (1.0, {"h_max_log_smooth": False}, {500: 4.64143e5}),
        (1.0, {"adaptive_clip": False}, {500: 1.985996e6}),
        (1e-2, {}, {500: 0.425118}),
        (1e-2, {"h_max_log_smooth": False}, {500: 0.432556}),
        (1e-4, {}, {5: 226.8, 50: 220.6, 200: 142.3, 500: 29.7178}),
    ],
)
def test_yellowfin_on_a_quadratic_has_the_losses_of_the_authors_code(lr, kwargs, losses):
    """The losses are what the authors' PyTorch code gives in float64 on sum(h w^2) / 2 from the same start."""
    h = torch.logspace(-1, 2, 7, dtype=torch.float64)
    w = torch.linspace(2, -2, 7, dtype=torch.float64).requires_grad_()
    optimizer = YellowFin([w], lr=lr, **kwargs)
    for step in range(501):
        if step in losses:
            assert float((h * w.detach() ** 2).sum() / 2) == pytest.approx(losses[step], rel=3e-4)
        w.grad = h * w.detach()
        optimizer.step()


def test_yellowfin_moves_no_further_than_its_limit():
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = YellowFin([w], lr=1.0, catastrophic_move_thresh=0.5)
    w.grad = torch.tensor([300.0, 400.0], dtype=torch.float64)
    optimizer.step()
    assert w.tolist() == [pytest.approx(-0.3), pytest.approx(-0.4)]


def test_yellowfin_clips_an_outlier_by_the_curvature_before_it():
    def move(last, **kwargs):
        w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = YellowFin([w], lr=1e-3, momentum_factor=0.0, eps=1e-12, **kwargs)
        for g in [1.0] * 30 + [last]:
            before = w.item()
            w.grad = torch.tensor([g], dtype=torch.float64)
            optimizer.step()
        return abs(w.item() - before) / optimizer.param_groups[0]["tuned_lr"]

    assert move(5.0) == pytest.approx(1.0)  # h_max was 1 at each step before; with this step's it would be above
    assert move(0.5) == pytest.approx(0.5)
    assert move(5.0, adaptive_clip=False) == pytest.approx(5.0)


def test_yellowfin_refuses_statistics_of_another_version():
    optimizer = YellowFin([torch.zeros(1)])
    optimizer.state["tuner"] = {"step": 3, "log_h_min": 0.1, "h_max": 2.0}
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    with pytest.raises(ValueError, match="another version"):
        optimizer.step()


def spectral_radius(h, alpha, mu):
    return max(abs(np.linalg.eigvals(np.array([[1 - alpha * h + mu, -mu], [1, 0]]))))


@pytest.mark.parametrize("h", [0.1, 2.0, 30.0])
@pytest.mark.parametrize("mu", [0.1, 0.5, 0.95])
def test_heavy_ball_contracts_at_sqrt_mu_exactly_inside_the_robust_region(h, mu):
    low, high = robust_region(h, mu)
    for inside in np.linspace(low, high, 9)[1:-1]:
        assert spectral_radius(h, inside, mu) == pytest.approx(math.sqrt(mu), abs=1e-12)
    for outside in (0.9 * low, 1.1 * high):
        assert spectral_radius(h, outside, mu) > math.sqrt(mu) + 1e-3


def test_a_trajectory_inside_the_robust_region_shrinks_at_sqrt_mu():
    """The velocity carries the learning rate: torch's SGD is the same heavy ball while the rate is constant."""
    h, mu = 3.0, 0.8
    low, high = robust_region(h, mu)
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=(low + high) / 2, momentum=mu)
    trajectory = []
    for _ in range(400):
        w.grad = h * w.detach()
        optimizer.step()
        trajectory.append(abs(w.item()))
    rate = (max(trajectory[-20:]) / max(trajectory[:20])) ** (1 / 380)
    assert rate == pytest.approx(math.sqrt(mu), rel=2e-3)


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", ["scheduled", "absolute"])
def test_what_a_falling_rate_does_to_the_variance_of_adabayes(variance):
    """Tiny gradients keep the variance at sigma2; after a drop to a tenth it follows at once or within sigma2/eta^2."""
    lr, batch_size = 1e-2, 10
    sigma2 = 0.1 / batch_size
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = AdaBayes([w], lr=lr, lr_sgd=0.1, batch_size=batch_size, betas=(0.0, 0.999), variance=variance)
    rates = []
    for t in range(40):
        optimizer.param_groups[0]["lr"] = lr if t < 20 else lr / 10
        w.grad = torch.tensor([1e-9], dtype=torch.float64)
        before = w.item()
        optimizer.step()
        rates.append((before - w.item()) / (1e-9 * batch_size))
    assert rates[:20] == [pytest.approx(sigma2)] * 20
    k = (lr / 10) ** 2 / (sigma2 / 10)
    expected = {
        "scheduled": [sigma2 / 10] * 20,
        "absolute": [sigma2 / 10 + (sigma2 - sigma2 / 10) * math.exp(-k * (t + 1)) for t in range(20)],
    }
    np.testing.assert_allclose(rates[20:], expected[variance], rtol=1e-6)


@pytest.mark.parametrize("optimizer_class", [AdaBayes, AdaBayesFP])
def test_weight_decay_at_the_new_mean_takes_the_step_with_it(optimizer_class):
    moved = {}
    for at in ("old_mean", "new_mean"):
        w = torch.full((1,), 2.0, dtype=torch.float64, requires_grad=True)
        optimizer = optimizer_class([w], lr=1e-2, batch_size=4, weight_decay=0.1, weight_decay_at=at)
        w.grad = torch.tensor([0.3], dtype=torch.float64)
        optimizer.step()
        moved[at] = w.item()
    move = moved["old_mean"] - 0.9 * 2.0
    assert move < 0
    assert moved["new_mean"] == pytest.approx(0.9 * (2.0 + move), rel=1e-12)


@pytest.mark.parametrize("scheduled", [True, False])
def test_whether_a_schedule_scales_the_decay_of_adabayes_fp(scheduled):
    w = torch.full((1,), 2.0, dtype=torch.float64, requires_grad=True)
    optimizer = AdaBayesFP([w], batch_size=4, weight_decay=0.1, weight_decay_scheduled=scheduled)
    optimizer.param_groups[0]["lr"] *= 0.5
    w.grad = torch.zeros(1, dtype=torch.float64)
    optimizer.step()
    assert w.item() == pytest.approx(2.0 * (0.95 if scheduled else 0.9), rel=1e-12)


def run(optimizer_class, steps=100, dtype=torch.float64, schedule=None, **kwargs):
    generator = torch.Generator().manual_seed(3)
    h = torch.logspace(-1, 2, 6, dtype=dtype)
    w = torch.linspace(2, -1, 6, dtype=dtype).requires_grad_()
    optimizer = optimizer_class([w], **kwargs)
    scheduler = None if schedule is None else torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for _ in range(steps):
        w.grad = h * w.detach() + 0.3 * torch.randn(6, generator=generator, dtype=dtype)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return w.detach()


def halving(t):
    return 0.5 ** (t // 30)


@pytest.mark.parametrize("schedule", [None, halving])
def test_adabayes_fp_without_a_prior_is_adamw(schedule):
    """The absolute lambda is lr times AdamW's weight decay, and eps is AdamW's own."""
    fp = run(AdaBayesFP, lr=1e-2, lr_sgd=math.inf, batch_size=1, weight_decay=1e-2 * 0.3, schedule=schedule)
    adamw = run(torch.optim.AdamW, lr=1e-2, weight_decay=0.3, schedule=schedule)
    torch.testing.assert_close(fp, adamw, rtol=0, atol=1e-12)


def test_adabayes_fp_with_a_wide_prior_approaches_adamw():
    fp = run(AdaBayesFP, lr=1e-3, lr_sgd=1e12, batch_size=1)
    torch.testing.assert_close(fp, run(torch.optim.AdamW, lr=1e-3, weight_decay=0.0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer_class", [AdaBayes, AdaBayesFP])
def test_adabayes_with_small_gradients_is_sgd(optimizer_class):
    """sigma2 g^2 and sigma2 |g| / eta near zero: the variance stays at sigma2, the step is lr_sgd g / batch_size."""
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = optimizer_class([w], lr=1e-2, lr_sgd=1e-2, batch_size=10, betas=(0.0, 0.999))
    gradient = torch.tensor([1e-7, -2e-6, 3e-6], dtype=torch.float64)
    for _ in range(50):
        w.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(w.detach(), -50 * 1e-2 * gradient, rtol=1e-5, atol=0)


def test_adabound_with_open_bounds_is_adam():
    bound = run(AdaBound, lr=1e-2, gamma=0.0, eps=0.0)
    torch.testing.assert_close(bound, run(torch.optim.Adam, lr=1e-2, eps=0.0), rtol=0, atol=1e-12)
    nearly = run(AdaBound, lr=1e-2, gamma=1e-12, eps=0.0)
    torch.testing.assert_close(nearly, run(torch.optim.Adam, lr=1e-2, eps=0.0), rtol=0, atol=1e-12)


def test_adabound_with_closed_bounds_is_sgd_with_averaged_momentum():
    bound = run(AdaBound, lr=1e-3, final_lr=1e-2, gamma=math.inf, betas=(0.8, 0.999))
    sgd = run(torch.optim.SGD, lr=1e-2 * (1 - 0.8), momentum=0.8)
    torch.testing.assert_close(bound, sgd, rtol=0, atol=1e-12)


def test_amsbound_differs_from_adabound_only_once_a_second_moment_falls():
    def one(optimizer_class, gradients):
        w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = optimizer_class([w], lr=1e-2, betas=(0.9, 0.5))
        for g in gradients:
            w.grad = torch.tensor([g], dtype=torch.float64)
            optimizer.step()
        return w.item()

    assert one(AMSBound, [1.0, 2.0, 4.0]) == one(AdaBound, [1.0, 2.0, 4.0])
    assert abs(one(AMSBound, [4.0, 1.0, 0.1])) < abs(one(AdaBound, [4.0, 1.0, 0.1]))


@pytest.mark.parametrize("optimizer_class", [AdaBayes, AdaBayesFP, AdaBound, AMSBound, YellowFin])
def test_a_schedule_at_zero_stops_new_steps(optimizer_class):
    kwargs = {"batch_size": 4} if optimizer_class in (AdaBayes, AdaBayesFP) else {}
    w = torch.ones(3, requires_grad=True)
    optimizer = optimizer_class([w], weight_decay=0.1, **kwargs)
    optimizer.param_groups[0]["lr"] = 0.0
    for _ in range(3):
        w.grad = torch.tensor([1.0, -2.0, 3.0])
        optimizer.step()
    assert w.tolist() == [1.0, 1.0, 1.0]
