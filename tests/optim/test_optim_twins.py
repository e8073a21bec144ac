"""Every algorithm follows its literal float64 twin, through the wrappers, for 200 steps of a quadratic."""

import inspect
import math

import numpy as np
import pytest
import torch
from reference.optim_adabayes import AdaBayesFPTwin, AdaBayesTwin
from reference.optim_adabound import AdaBoundTwin
from reference.optim_classics import AdagradTwin, AdamTwin, AdamWTwin, AMSGradTwin, RAdamTwin, RMSpropTwin, SGDTwin
from reference.optim_yellowfin import YellowFinTwin

from pyro_bnn.optim import OPTIMIZERS, Cosine, PerSite, Step, torch_optim

STEPS = 200
CURVATURE = np.logspace(-1, 2, 7)
TARGET = np.linspace(-1, 1, 7)
SHAPES = ((3,), (2, 2))


class _AMSBoundTwin(AdaBoundTwin):
    def __init__(self, w, **numbers):
        super().__init__(w, ams=True, **numbers)


class _YellowFinTwin:
    def __init__(self, w, **numbers):
        shared = {k: v for k, v in numbers.items() if k in inspect.signature(YellowFinTwin).parameters}
        numbers = {k: v for k, v in numbers.items() if k not in shared}
        self.twin = YellowFinTwin([w], [numbers], **shared)

    def step(self, gradient, f=1.0):
        return self.twin.step([gradient], (f,))[0]


# name -> (twin, numbers of the first group, numbers of the second)
CASES = {
    "sgd": (SGDTwin, {"lr": 1e-3, "momentum": 0.9}, {"lr": 5e-3}),
    "adam": (AdamTwin, {"lr": 1e-2}, {"lr": 3e-2, "betas": (0.8, 0.99)}),
    "amsgrad": (AMSGradTwin, {"lr": 1e-2}, {"lr": 3e-2, "betas": (0.8, 0.9)}),
    "adamw": (AdamWTwin, {"lr": 1e-2}, {"lr": 3e-2, "betas": (0.8, 0.99)}),
    "radam": (RAdamTwin, {"lr": 1e-2}, {"lr": 3e-2, "betas": (0.8, 0.99)}),
    "adagrad": (AdagradTwin, {"lr": 1e-1}, {"lr": 3e-1}),
    # too slow to reach the optimum, where RMSprop jumps to and fro and magnifies every rounding
    "rmsprop": (RMSpropTwin, {"lr": 1e-3}, {"lr": 3e-3, "alpha": 0.9}),
    "adabayes": (
        AdaBayesTwin,
        {"lr": 1e-2, "lr_sgd": 0.1, "batch_size": 16},
        {"lr": 2e-2, "lr_sgd": 0.2, "batch_size": 3, "betas": (0.8, 0.9), "decay": "first_order"},
    ),
    "adabayes_fp": (
        AdaBayesFPTwin,
        {"lr": 1e-2, "lr_sgd": 0.1, "batch_size": 16},
        {"lr": 2e-2, "lr_sgd": 0.2, "batch_size": 3, "betas": (0.8, 0.9)},
    ),
    "adabayes, as the author's code": (
        AdaBayesTwin,
        {"lr": 1e-2, "lr_sgd": 0.1, "batch_size": 16, "variance": "absolute", "weight_decay_at": "new_mean"},
        {"lr": 2e-2, "lr_sgd": 0.2, "batch_size": 3, "decay": "first_order", "variance": "absolute"},
    ),
    "adabayes_fp, as the author's code": (
        AdaBayesFPTwin,
        {"lr": 1e-2, "lr_sgd": 0.1, "batch_size": 16, "weight_decay_at": "new_mean", "weight_decay_scheduled": False},
        {"lr": 2e-2, "lr_sgd": 0.2, "batch_size": 3, "weight_decay_scheduled": False},
    ),
    "adabound": (AdaBoundTwin, {"lr": 1e-2, "final_lr": 0.01}, {"lr": 3e-2, "final_lr": 0.01, "gamma": 0.05}),
    "amsbound": (_AMSBoundTwin, {"lr": 1e-2, "final_lr": 0.01}, {"lr": 3e-2, "final_lr": 0.01, "gamma": 0.05}),
    "yellowfin": (
        _YellowFinTwin,
        {"lr": 1e-3, "momentum": 0.3},
        {"lr": 1e-3, "window": 7, "lr_factor": 0.5, "momentum_factor": 0.9, "clip_norm": 20.0, "slow_start": False},
    ),
    "yellowfin, as the paper": (
        _YellowFinTwin,
        {"lr": 1e-3, "rate_in_velocity": True, "adaptive_clip": False, "h_max_log_smooth": False, "slow_start": False},
        {"lr": 1e-3, "h_min_log_smooth": False, "h_max_log_smooth": False, "adaptive_clip": False, "lr_factor": 0.1},
    ),
    "yellowfin, tight limits": (
        _YellowFinTwin,
        {"lr": 1.0, "catastrophic_move_thresh": 0.05, "stat_protect_fac": 1.5},
        {"lr": 1.0, "catastrophic_move_thresh": 0.05, "eps": 1e-3},
    ),
}


def test_every_optimizer_has_a_twin():
    assert {name.partition(",")[0] for name in CASES} == OPTIMIZERS.keys()


def tensors(vector):
    first, second = (torch.tensor(part, dtype=torch.float64) for part in (vector[:3], vector[3:]))
    return [first.requires_grad_(), second.reshape(2, 2).requires_grad_()]


def flat(params):
    return torch.cat([p.detach().reshape(-1) for p in params]).numpy()


def gradient(w, noise):
    return CURVATURE * (np.asarray(w) - TARGET) + noise


def set_gradient(params, noise):
    g = torch.from_numpy(gradient(flat(params), noise))
    params[0].grad, params[1].grad = g[:3].clone(), g[3:].reshape(2, 2).clone()


@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "scheduled"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("noise_scale", [0.0, 0.5], ids=["exact", "noisy"])
@pytest.mark.parametrize("name", CASES)
def test_two_groups_follow_their_twins(name, noise_scale, weight_decay, scheduled):
    twin_class, *numbers = CASES[name]
    numbers = [{**n, "weight_decay": weight_decay} for n in numbers]
    schedules = [Cosine(final=0.1), Step(every=7, factor=0.5)] if scheduled else [None, None]
    loc, scale = (OPTIMIZERS[name.partition(",")[0]](n, schedule=s) for n, s in zip(numbers, schedules, strict=True))
    optim = PerSite(loc=loc, scale=scale)
    start = np.linspace(2, -2, 7)
    groups = [tensors(start), tensors(start[::-1].copy())]
    for kind, params in zip(("loc", "scale"), groups, strict=True):
        optim.name_parameters({f"q.{i}.{kind}": p for i, p in enumerate(params)})
    optim.prepare(epochs=20, steps_per_epoch=STEPS // 20)
    twins = [twin_class(flat(params), **n) for params, n in zip(groups, numbers, strict=True)]
    noise = np.random.default_rng(0).normal(0, noise_scale, (STEPS, 2, 7))
    expected = [flat(params) for params in groups]
    for t in range(STEPS):
        factors = (0.1 + 0.9 * (1 + math.cos(math.pi * t / STEPS)) / 2, 0.5 ** (t // 70)) if scheduled else (1.0, 1.0)
        for k in range(2):
            expected[k] = twins[k].step(gradient(expected[k], noise[t, k]), factors[k])
            set_gradient(groups[k], noise[t, k])
        optim({p for params in groups for p in params})
        for k in range(2):
            np.testing.assert_allclose(flat(groups[k]), expected[k], rtol=0, atol=1e-10)
    moved = max(np.abs(np.asarray(e) - s).max() for e, s in zip(expected, (start, start[::-1]), strict=True))
    assert moved > 0.1


@pytest.mark.parametrize("noise_scale", [0.0, 0.5], ids=["exact", "noisy"])
def test_yellowfin_tunes_two_torch_groups_together(noise_scale):
    numbers = [{"lr_factor": 1.0, "weight_decay": 0.02}, {"lr_factor": 0.3, "momentum_factor": 0.5, "lr": 1e-3}]
    groups = [tensors(np.linspace(2, -2, 7)), tensors(np.linspace(-1, 3, 7))]
    optimizer = torch_optim.YellowFin([{"params": p, **n} for p, n in zip(groups, numbers, strict=True)], window=10)
    twin = YellowFinTwin([flat(p) for p in groups], numbers, window=10)
    noise = np.random.default_rng(1).normal(0, noise_scale, (STEPS, 2, 7))
    noise[120] += 300.0 * (noise_scale > 0)  # an outlier, which both clippings hold back
    for t in range(STEPS):
        f = 1.0 if t < 100 else 0.1
        expected = twin.step([gradient(x, n) for x, n in zip(twin.x, noise[t], strict=True)], (1.0, f))
        optimizer.param_groups[1]["lr"] = f * 1e-3
        for params, n in zip(groups, noise[t], strict=True):
            set_gradient(params, n)
        optimizer.step()
        for params, vector in zip(groups, expected, strict=True):
            np.testing.assert_allclose(flat(params), vector, rtol=0, atol=1e-10)


def test_torch_groups_with_their_own_numbers_follow_their_twins():
    numbers = [{"lr": 1e-2, "lr_sgd": 0.1}, {"lr": 3e-2, "lr_sgd": 0.3, "weight_decay": 1e-3}]
    groups = [tensors(np.linspace(2, -2, 7)), tensors(np.linspace(-1, 3, 7))]
    optimizer = torch_optim.AdaBayes([{"params": p, **n} for p, n in zip(groups, numbers, strict=True)], batch_size=4)
    twins = [AdaBayesTwin(flat(p), batch_size=4, **n) for p, n in zip(groups, numbers, strict=True)]
    for _ in range(STEPS):
        expected = [twin.step(gradient(twin.mu, 0.0)) for twin in twins]
        for params in groups:
            set_gradient(params, 0.0)
        optimizer.step()
        for params, vector in zip(groups, expected, strict=True):
            np.testing.assert_allclose(flat(params), vector, rtol=0, atol=1e-10)
