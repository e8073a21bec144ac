import io
import math
import warnings

import numpy as np
import pytest
import torch

from pyro_bnn.optim import (
    SCHEDULES,
    SGD,
    Constant,
    Cosine,
    Cyclic,
    LRRange,
    Plateau,
    Step,
    TwinPlateau,
    WarmUp,
    lr_range_test,
    make_schedule,
    plot_lr_range,
)
from pyro_bnn.optim.schedules import Factor


def walk(schedule, epochs, steps_per_epoch, extra=0):
    factor = Factor(schedule, epochs, steps_per_epoch)
    values = []
    for _ in range(epochs * steps_per_epoch + extra):
        values.append(factor.value)
        factor.step()
    return values


def test_constant():
    assert walk(Constant(), 2, 3) == [1.0] * 6


def test_cosine_falls_over_the_training_and_then_holds():
    found = walk(Cosine(final=0.2), 4, 5, extra=30)
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * t / 20)) / 2 for t in range(20)] + [0.2] * 30
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_step_every():
    found = walk(Step(every=1.5, factor=0.5), 4, 2)
    np.testing.assert_allclose(found, [0.5 ** (t // 3) for t in range(8)], rtol=1e-12)


def test_step_at_milestones():
    found = walk(Step(milestones=(1, 2.5), factor=0.1), 4, 2)
    np.testing.assert_allclose(found, [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01], rtol=1e-12)


def test_cyclic_goes_up_and_down():
    found = walk(Cyclic(period=2.0, low=0.2, high=1.0), 4, 4)
    cycle = [0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4]
    np.testing.assert_allclose(found, cycle * 2, rtol=1e-12)


def test_cyclic_halving():
    found = walk(Cyclic(period=2.0, low=0.2, high=1.0, mode="triangular2"), 4, 2)
    np.testing.assert_allclose(found, [0.2, 0.6, 1.0, 0.6, 0.2, 0.4, 0.6, 0.4], rtol=1e-12)


def test_warm_up_then_constant():
    found = walk(WarmUp(epochs=1, start=0.2), 2, 4)
    np.testing.assert_allclose(found, [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1], rtol=1e-12)


def test_warm_up_then_cosine_over_what_is_left():
    found = walk(WarmUp(epochs=1, start=0.2, then=Cosine()), 3, 4, extra=5)
    cosine = [(1 + math.cos(math.pi * t / 8)) / 2 for t in range(8)]
    np.testing.assert_allclose(found, [0.2, 0.4, 0.6, 0.8, *cosine, 0, 0, 0, 0, 0], rtol=0, atol=1e-12)


def test_plateau_waits_for_its_patience():
    factor = Factor(Plateau(patience=1, factor=0.1))
    found = []
    for nll in (3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0):
        factor.end_epoch({"nll": nll, "kl": 100.0})
        factor.step()
        found.append(factor.value)
    np.testing.assert_allclose(found, [1, 1, 1, 0.1, 0.1, 0.01, 0.01], rtol=1e-12)


def test_plateau_watches_validation_unless_told():
    epochs = [{"nll": 2.0, "val_nll": 1.0}, {"nll": 1.0, "val_nll": 2.0}]
    for plateau, expected in ((Plateau(patience=0), 0.1), (Plateau("nll", patience=0), 1.0)):
        factor = Factor(plateau)
        for metrics in epochs:
            factor.end_epoch(metrics)
        assert factor.value == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"watches 'kl', which this epoch's metrics \(nll, val_nll\) do not have"):
        Factor(Plateau("kl")).end_epoch(epochs[0])


def test_plateau_has_a_floor():
    factor = Factor(Plateau(patience=0, min_factor=0.05))
    for _ in range(5):
        factor.end_epoch({"nll": 1.0})
    assert factor.value == pytest.approx(0.05)


@pytest.mark.parametrize(
    "schedule",
    [
        Cosine(),
        Cyclic(period=1.5),
        Cyclic(period=1.0, mode="triangular2"),
        Step(every=1),
        Step(milestones=(1, 2)),
        WarmUp(epochs=1),
        WarmUp(epochs=1.2, then=Cosine()),
        WarmUp(epochs=1, then=Step(milestones=(1,))),
        WarmUp(epochs=1, then=Cyclic()),
        Plateau(patience=0),
        Constant(),
    ],
)
@pytest.mark.parametrize("at", [0, 3, 7])
def test_saved_schedule_continues_to_the_same_bits(schedule, at):
    def go(factor, steps):
        values = []
        for t in steps:
            values.append(factor.value)
            factor.step()
            if t % 3 == 2:
                factor.end_epoch({"nll": [1.0, 2.0, 0.5, 0.7, 0.6][t // 3]})
        return values

    whole, interrupted = Factor(schedule, 5, 3), Factor(schedule, 5, 3)
    expected = go(whole, range(15))
    first = go(interrupted, range(at))
    file = io.BytesIO()
    torch.save(interrupted.state_dict(), file)
    file.seek(0)
    resumed = Factor(schedule, 5, 3)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert first + go(resumed, range(at, 15)) == expected


def test_a_longer_training_walks_the_new_schedule_to_the_same_step():
    short = Factor(Cosine(), 2, 5)
    for _ in range(6):
        short.step()
    longer = Factor(Cosine(), 4, 5)
    longer.load_state_dict(short.state_dict())
    assert longer.value == pytest.approx((1 + math.cos(math.pi * 6 / 20)) / 2)


def test_schedules_act_on_the_rate_and_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = torch.zeros(1, requires_grad=True)
        optim = SGD({"lr": 0.5}, schedule=WarmUp(epochs=1, start=0.5, then=Step(every=1, factor=0.1)))
        optim.prepare(3, 2)
        moves = []
        for _ in range(6):
            before = p.item()
            p.grad = torch.ones(1)
            optim({p})
            moves.append(before - p.item())
    np.testing.assert_allclose(moves, [0.25, 0.375, 0.5, 0.5, 0.05, 0.05], rtol=1e-5)


BAD = [
    (lambda: Cosine(final=1.0), "final=1.0"),
    (lambda: Cosine(final=-0.1), "final=-0.1"),
    (lambda: Cyclic(period=0), "period=0"),
    (lambda: Cyclic(low=2.0), "low=2.0"),
    (lambda: Cyclic(mode="sine"), "mode='sine'"),
    (lambda: Step(), "exactly one"),
    (lambda: Step(every=1, milestones=(2,)), "exactly one"),
    (lambda: Step(every=-1), "every=-1"),
    (lambda: Step(every=1, factor=1.0), "factor=1.0"),
    (lambda: Step(milestones=(3, 2)), "rising"),
    (lambda: WarmUp(epochs=0), "epochs=0"),
    (lambda: WarmUp(start=0), "start=0"),
    (lambda: WarmUp(then=Plateau()), "cannot follow"),
    (lambda: Factor(WarmUp(epochs=3), 2, 10), "do not fit into 2 epochs"),
    (lambda: Factor(Cosine()), "prepare"),
    (lambda: Plateau(factor=1.0), "factor=1.0"),
    (lambda: Plateau(patience=-1), "patience=-1"),
    (lambda: TwinPlateau(factor=2.0), "factor=2.0"),
    (lambda: Factor(TwinPlateau()), "PerSite"),
    (lambda: make_schedule("sine"), "'sine' is unknown; there are constant, cosine"),
    (lambda: make_schedule("cosine", period=3), "'cosine' takes final, and was given period"),
]


@pytest.mark.parametrize(("make_one", "match"), BAD)
def test_bad_values_are_refused(make_one, match):
    with pytest.raises(ValueError, match=match) as error:
        make_one()
    assert "\n" not in str(error.value)


def test_schedules_by_name():
    made = {name: make_schedule(name, **({"every": 2} if name == "step" else {})) for name in SCHEDULES}
    assert {name: type(schedule) for name, schedule in made.items()} == dict(SCHEDULES)
    assert make_schedule("step", every=2, factor=0.3) == Step(2, 0.3)
    assert make_schedule("warmup", epochs=2, then={"name": "cosine", "final": 0.1}) == WarmUp(2, then=Cosine(0.1))
    assert make_schedule("warmup", then="cosine") == WarmUp(then=Cosine())


# -- range test --------------------------------------------------------------------------------------------------------


def quadratic_range_test(**kwargs):
    """SGD on h w^2 / 2 with h = 10: stable below 2 / h = 0.2, fastest at 1 / h = 0.1."""
    w = torch.full((1,), 3.0, dtype=torch.float64, requires_grad=True)
    optim = SGD({"lr": 1e-3})

    def step_fn():
        loss = 5 * (w**2).sum()
        (w.grad,) = torch.autograd.grad(loss, [w])
        optim({w})
        return loss.item()

    return lr_range_test(step_fn, optim.set_learning_rate, low=1e-5, high=10.0, **kwargs)


def test_range_test_suggests_a_rate_that_trains_and_stops_when_the_loss_explodes():
    result = quadratic_range_test(num_steps=200, smoothing=0.5)
    assert 1e-3 < result.suggestion < 0.2
    assert len(result.lrs) < 200
    assert 0.2 < result.lrs[-1] < 2.0
    assert len(result.lrs) == len(result.losses) == len(result.smoothed)
    np.testing.assert_allclose(np.diff(np.log(result.lrs)), math.log(1e6) / 199)


def test_range_test_smooths_with_a_corrected_average():
    losses = iter([4.0, 2.0, 1.0, 0.5, 0.25])
    result = lr_range_test(lambda: next(losses), lambda lr: None, low=1.0, high=16.0, num_steps=5, smoothing=0.5)
    assert result.lrs == pytest.approx((1, 2, 4, 8, 16))
    assert result.smoothed[0] == 4.0
    assert result.smoothed[1] == pytest.approx((0.25 * 4 + 0.5 * 2) / 0.75)
    assert result.suggestion is not None


def test_range_test_without_a_fall_suggests_nothing():
    rising = iter(range(1, 100))
    assert lr_range_test(lambda: next(rising), lambda lr: None, num_steps=10).suggestion is None


def test_range_test_stops_at_a_loss_that_is_not_finite():
    losses = iter([3.0, 2.0, 1.0, math.nan, 0.0])
    assert lr_range_test(lambda: next(losses), lambda lr: None, num_steps=5).losses == (3.0, 2.0, 1.0)
    with pytest.raises(ValueError, match="not finite"):
        lr_range_test(lambda: math.inf, lambda lr: None)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"low": 0.0}, "low=0.0"),
        ({"low": 2.0, "high": 1.0}, "high=1.0"),
        ({"num_steps": 2}, "2"),
        ({"smoothing": 1}, "1"),
    ],
)
def test_range_test_refuses_bad_values(kwargs, match):
    with pytest.raises(ValueError, match=match):
        lr_range_test(lambda: 1.0, lambda lr: None, **kwargs)


def test_range_plot():
    import matplotlib

    matplotlib.use("Agg")
    ax = plot_lr_range(LRRange((1e-3, 1e-2), (2.0, 1.0), (2.0, 1.5), 1e-3))
    assert ax.get_xscale() == "log"
    assert [line.get_label() for line in ax.get_lines()] == ["loss", "smoothed", "suggestion 0.001"]
    matplotlib.pyplot.close(ax.figure)
