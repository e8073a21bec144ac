"""The contract of the PyroOptim twins: one table, every optimizer meets every test."""

import math
import random

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

from pyro_bnn.optim import (
    OPTIMIZERS,
    SGD,
    AdaBayes,
    AdaBound,
    Adam,
    AMSGrad,
    Cosine,
    Cyclic,
    PerSite,
    Plateau,
    YellowFin,
)

NUMBERS = {name: {"lr": 1e-2} for name in OPTIMIZERS}
NUMBERS["adabayes"] = {"lr": 1e-2, "lr_sgd": 0.1, "batch_size": 5}
NUMBERS["adabayes_fp"] = {"lr": 1e-2, "lr_sgd": 0.1, "batch_size": 5, "weight_decay": 1e-4}
NUMBERS["adabound"] = {"lr": 1e-2, "final_lr": 0.05}
NUMBERS["sgd"] = {"lr": 1e-2, "momentum": 0.9}
NUMBERS["yellowfin"] = {"lr": 1e-3, "window": 5}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def build(name, **kwargs):
    return OPTIMIZERS[name](NUMBERS[name], **kwargs)


def make(names=("a.loc", "a.rho", "b.noise")):
    generator = torch.Generator().manual_seed(2)
    return {n: torch.randn(3 + i, generator=generator).requires_grad_() for i, n in enumerate(names)}


def step(optim, params, t, order_seed=None):
    generator = torch.Generator().manual_seed(50 + t)
    for i, name in enumerate(sorted(params)):
        p = params[name]
        p.grad = (1 + i) * p.detach() + 0.2 * torch.randn(p.shape, generator=generator)
    tensors = list(params.values())
    random.Random(order_seed).shuffle(tensors)
    optim(tensors)


def values(params):
    return {name: p.detach().clone() for name, p in params.items()}


def assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


# -- one torch optimizer -----------------------------------------------------------------------------------------------


@every_optimizer
def test_one_torch_optimizer_over_all_parameters_in_the_order_of_names(name):
    params = make()
    optim = build(name)
    optim.name_parameters(params)
    step(optim, params, 0, order_seed=1)
    assert isinstance(optim, pyro.optim.PyroOptim)
    (group,) = optim.torch_optimizer.param_groups
    assert [id(p) for p in group["params"]] == [id(params[n]) for n in sorted(params)]


@every_optimizer
def test_the_order_in_which_parameters_arrive_does_not_matter(name):
    results = []
    for order in range(3):
        params = make()
        optim = build(name, clip_args={"clip_norm": 1.0})
        optim.name_parameters(params)
        for t in range(10):
            step(optim, params, t, order_seed=order)
        results.append(values(params))
    assert_same_bits(results[0], results[1])
    assert_same_bits(results[0], results[2])


@every_optimizer
def test_gradients_stay_until_the_loop_clears_them(name):
    """As with torch's and Pyro's optimizers: a second call is a second step, and who logs gradients has them."""
    moved = {}
    for optim in (build(name), PerSite(loc=build(name), scale=build(name), other=build(name), frozen=["other"])):
        params = make()
        optim.name_parameters(params)
        step(optim, params, 0)
        once, gradients = values(params), {n: p.grad.clone() for n, p in params.items()}
        assert all(g.any() for g in gradients.values())
        optim(params.values())
        moved[optim] = [n for n, p in params.items() if not torch.equal(p, once[n])]
        assert_same_bits(gradients, {n: p.grad for n, p in params.items()})
    assert list(moved.values()) == [["a.loc", "a.rho", "b.noise"], ["a.loc", "a.rho"]]


@every_optimizer
def test_a_parameter_that_appears_later_starts_fresh(name):
    params = make()
    late = params.pop("a.rho")
    optim = build(name)
    optim.name_parameters({**params, "a.rho": late})
    for t in range(3):
        step(optim, params, t)
    before = late.detach().clone()
    step(optim, {**params, "a.rho": late}, 3)
    assert not torch.equal(late, before)
    assert len(optim.torch_optimizer.param_groups) == 2
    steps = {
        int(s["step"]) for p, s in optim.torch_optimizer.state.items() if isinstance(p, torch.Tensor) and "step" in s
    }
    assert steps in ({1, 4}, set())


@every_optimizer
def test_parameters_that_are_not_passed_do_not_move(name):
    params = make()
    optim = build(name)
    optim.name_parameters(params)
    for t in range(3):
        step(optim, params, t)
    idle = params["a.rho"]
    idle.grad = torch.ones_like(idle)
    before, grad = idle.detach().clone(), idle.grad
    step(optim, {n: p for n, p in params.items() if n != "a.rho"}, 4)
    assert torch.equal(idle, before)
    assert idle.grad is grad


def test_a_new_tensor_under_a_known_name_replaces_the_old_one():
    optim = Adam({"lr": 1e-2})
    old, new = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optim.name_parameters({"w": old})
    step(optim, {"w": old}, 0)
    optim.name_parameters({"w": new})
    step(optim, {"w": new}, 1)
    (group,) = optim.torch_optimizer.param_groups
    assert group["params"][0] is new
    assert int(optim.torch_optimizer.state[new]["step"]) == 1
    assert old not in optim.torch_optimizer.state


def test_two_parameters_of_one_name_are_refused():
    first, second = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optim = Adam({"lr": 1e-2})
    optim.name_parameters({"w": first})
    second.pyro_bnn_name = "w"
    with pytest.raises(ValueError, match="2 parameters are called 'w'"):
        step(optim, {"1": first, "2": second}, 0)
    assert first.tolist() == [1.0, 1.0]


def test_no_parameters_is_no_step():
    optim = Adam({"lr": 1e-2}, schedule=Cosine())
    optim(set())
    assert optim.torch_optimizer is None


@every_optimizer
@pytest.mark.parametrize("clip", [None, {"clip_norm": 1.0, "clip_value": 0.3}])
def test_gradients_and_parameters_of_any_layout(name, clip):
    """Torch's fused CPU kernels take any memory for contiguous."""

    def go(layout):
        params = {"a": torch.ones(2, 3), "b": layout(torch.arange(6.0).reshape(2, 3))}
        params = {n: p.requires_grad_() for n, p in params.items()}
        optim = build(name, clip_args=clip)
        optim.name_parameters(params)
        for t in range(3):
            params["a"].grad = layout(torch.full((), t + 1.0).expand(2, 3))
            params["b"].grad = torch.arange(6.0).reshape(2, 3) - t
            optim(set(params.values()))
        return params

    expected = go(lambda x: x.clone(memory_format=torch.contiguous_format))
    strided = go(lambda x: x if x.stride() == (0, 0) else x.t().contiguous().t())
    for n in expected:
        torch.testing.assert_close(strided[n].detach(), expected[n].detach(), rtol=1e-6, atol=1e-6)


# -- arguments ---------------------------------------------------------------------------------------------------------


@every_optimizer
def test_the_dictionary_of_the_caller_is_not_changed(name):
    numbers = dict(NUMBERS[name])
    params = make()
    optim = OPTIMIZERS[name](numbers, {"clip_norm": 1.0})
    optim.name_parameters(params)
    step(optim, params, 0)
    assert numbers == NUMBERS[name]


@every_optimizer
def test_numbers_may_come_as_keyword_arguments(name):
    dictionary, keywords = make(), make()
    for params, optim in ((dictionary, build(name)), (keywords, OPTIMIZERS[name](**NUMBERS[name]))):
        optim.name_parameters(params)
        step(optim, params, 0)
    assert_same_bits(values(dictionary), values(keywords))


@every_optimizer
def test_bad_values_are_refused_at_construction(name):
    for key, value, allowed in (("lr", -1.0, ">= 0"), ("weight_decay", -0.1, ">= 0")):
        with pytest.raises(ValueError, match=allowed) as error:
            OPTIMIZERS[name]({**NUMBERS[name], key: value})
        assert f"{key}={value}" in str(error.value)
        assert "usual" in str(error.value)
    if "betas" in OPTIMIZERS[name].arguments():
        with pytest.raises(ValueError, match=r"betas=.*\[0, 1\)"):
            OPTIMIZERS[name]({**NUMBERS[name], "betas": (0.9, 1.0)})
    if "momentum" in OPTIMIZERS[name].arguments():
        with pytest.raises(ValueError, match=r"momentum=1.*\[0, 1\)"):
            OPTIMIZERS[name]({**NUMBERS[name], "momentum": 1})
    with pytest.raises(ValueError, match=r"does not know 'learning_rate'.*lr"):
        OPTIMIZERS[name]({**NUMBERS[name], "learning_rate": 1e-3})


@pytest.mark.parametrize(
    ("make_one", "error", "match"),
    [
        (lambda: AdaBound({"lr": 1e-3, "final_lr": -0.1}), ValueError, "final_lr=-0.1"),
        (lambda: AdaBayes({"lr": 1e-3}), ValueError, "needs 'batch_size'"),
        (lambda: Adam(1e-3), TypeError, "dictionary"),
        (lambda: Adam({"lr": 1e-3}, lr=1e-3), TypeError, "not as both"),
        (lambda: Adam({"lr": 1e-3}, {"clip": 1.0}), TypeError, "clip_norm"),
        (lambda: Adam({"lr": 1e-3}, {"clip_norm": 0.0}), ValueError, "clip_norm=0.0"),
        (lambda: Adam({"lr": 1e-3}, {"clip_norm": -1.0}), ValueError, "clip_norm=-1.0"),
        (lambda: Adam({"lr": 1e-3}, schedule="cosine"), TypeError, "schedule='cosine'"),
        (lambda: SGD({"lr": 1e-3, "nesterov": True}), ValueError, "[Nn]esterov"),
    ],
)
def test_bad_arguments_are_refused_at_construction(make_one, error, match):
    with pytest.raises(error, match=match):
        make_one()


def test_callable_arguments_make_one_torch_group_per_distinct_arguments():
    params = make(("a.loc", "a.rho", "b.loc"))
    optim = Adam(lambda name: {"lr": 1e-2 if name.endswith("loc") else 1e-3})
    optim.name_parameters(params)
    before = values(params)
    step(optim, params, 0)
    groups = optim.torch_optimizer.param_groups
    assert [(g["lr"], len(g["params"])) for g in groups] == [(1e-2, 2), (1e-3, 1)]
    assert optim.learning_rates() == {"a.loc": 1e-2, "a.rho": 1e-3, "b.loc": 1e-2}
    for name, p in params.items():
        rate = 1e-2 if name.endswith("loc") else 1e-3
        torch.testing.assert_close((p.detach() - before[name]).abs(), torch.full_like(p, rate), rtol=1e-3, atol=0)


def test_callable_arguments_in_pyros_form_of_two():
    params = {"guide$$$loc": torch.ones(2, requires_grad=True)}
    optim = Adam(lambda module, name: {"lr": {"guide": 1e-2}[module] * {"loc": 3}[name]})
    optim.name_parameters(params)
    step(optim, params, 0)
    assert optim.learning_rates() == {"guide$$$loc": pytest.approx(3e-2)}


def test_bad_values_from_a_callable_are_refused_before_anything_moves():
    params = make()
    optim = Adam(lambda name: {"lr": -1.0 if name == "b.noise" else 1e-2})
    optim.name_parameters(params)
    before = values(params)
    with pytest.raises(ValueError, match="lr=-1"):
        step(optim, params, 0)
    assert_same_bits(values(params), before)


def test_a_callable_needs_names_and_says_how_to_give_them():
    optim = Adam(lambda name: {"lr": 1e-2})
    p = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match=r"shape \(3,\).*name_parameters"):
        step(optim, {"": p}, 0)
    assert p.tolist() == [1.0] * 3


def test_amsgrad_is_adam_with_the_maximum():
    left, right = make(), make()
    for params, optim in ((left, AMSGrad({"lr": 1e-2})), (right, Adam({"lr": 1e-2, "amsgrad": True}))):
        optim.name_parameters(params)
        for t in range(5):
            step(optim, params, t)
    assert_same_bits(values(left), values(right))


def test_torchs_fused_kernel_is_used_where_there_is_one_and_not_against_the_users_will():
    for numbers, fused, foreach in (({}, True, None), ({"foreach": True}, None, True), ({"fused": False}, False, None)):
        optim = Adam({"lr": 1e-2, **numbers})
        params = make()
        step(optim, params, 0)
        assert optim.torch_optimizer.param_groups[0]["fused"] is fused
        assert optim.torch_optimizer.param_groups[0]["foreach"] is foreach


# -- clipping ----------------------------------------------------------------------------------------------------------


def test_clip_norm_is_of_the_whole_gradient():
    params = {"a": torch.zeros(2, requires_grad=True), "b": torch.zeros(1, requires_grad=True)}
    optim = SGD({"lr": 1.0}, {"clip_norm": 1.0})
    params["a"].grad, params["b"].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    optim(params.values())
    torch.testing.assert_close(params["a"].detach(), torch.tensor([-0.6, 0.0]))
    torch.testing.assert_close(params["b"].detach(), torch.tensor([-0.8]))


def test_clip_value_is_of_every_entry():
    p = torch.zeros(3, requires_grad=True)
    p.grad = torch.tensor([0.1, -5.0, 7.0])
    SGD({"lr": 1.0}, {"clip_value": 0.5})({p})
    torch.testing.assert_close(p.detach(), torch.tensor([-0.1, 0.5, -0.5]))


# -- state -------------------------------------------------------------------------------------------------------------


def schedules():
    return {"cosine": Cosine(), "cyclic": Cyclic(period=1.0), "plateau": Plateau(patience=0)}


@every_optimizer
@pytest.mark.parametrize("schedule", [None, *schedules()])
def test_saved_state_continues_to_the_same_bits(name, schedule, tmp_path):
    def fresh():
        optim = build(name, clip_args={"clip_norm": 2.0}, schedule=None if schedule is None else schedules()[schedule])
        optim.prepare(epochs=4, steps_per_epoch=5)
        return optim

    def go(optim, params, epochs):
        for epoch in epochs:
            for t in range(5):
                step(optim, params, 5 * epoch + t, order_seed=t)
            optim.end_epoch({"nll": [3.0, 2.0, 2.5, 2.4][epoch], "kl": 1.0})

    params = make()
    optim = fresh()
    optim.name_parameters(params)
    go(optim, params, range(2))
    kept = values(params)
    optim.save(tmp_path / "state.pt")
    go(optim, params, range(2, 4))

    again = {n: kept[n].clone().requires_grad_() for n in reversed(sorted(kept))}
    resumed = fresh()
    resumed.load(tmp_path / "state.pt")
    resumed.name_parameters(again)
    go(resumed, again, range(2, 4))
    assert_same_bits(values(params), values(again))
    assert resumed.learning_rates() == optim.learning_rates()


@every_optimizer
def test_state_set_on_a_used_optimizer_goes_back(name):
    params = make()
    optim = build(name)
    optim.name_parameters(params)
    for t in range(3):
        step(optim, params, t)
    state, kept = optim.get_state(), values(params)
    for t in range(3, 6):
        step(optim, params, t)
    first = values(params)
    with torch.no_grad():
        for n in params:
            params[n].copy_(kept[n])
    optim.set_state(state)
    for t in range(3, 6):
        step(optim, params, t)
    assert_same_bits(values(params), first)


def test_a_state_that_was_taken_up_is_not_kept_twice():
    params, optim = make(), Adam({"lr": 1e-2})
    optim.name_parameters(params)
    step(optim, params, 0)
    optim.set_state(optim.get_state())
    first = {"a.loc": params["a.loc"]}
    step(optim, first, 1)  # the other two still wait
    assert sorted(entry["name"] for entry in optim.get_state()["parameters"]) == sorted(params)
    step(optim, params, 2)
    assert sorted(entry["name"] for entry in optim.get_state()["parameters"]) == sorted(params)
    assert {int(s["step"]) for s in optim.torch_optimizer.state.values()} == {2, 3}


def test_prepare_after_loading_keeps_the_schedules_place():
    optim = Adam({"lr": 1.0}, schedule=Cosine())
    optim.prepare(2, 10)
    p = torch.zeros(1, requires_grad=True)
    for t in range(5):
        step(optim, {"": p}, t)
    rate = optim.learning_rates()["all"]
    assert rate == pytest.approx((1 + math.cos(math.pi * 5 / 20)) / 2)
    after = Adam({"lr": 1.0}, schedule=Cosine())
    after.set_state(optim.get_state())
    after.prepare(2, 10)
    assert after.learning_rates()["all"] == rate


def test_state_survives_before_the_parameters_are_seen():
    params = make()
    optim = Adam({"lr": 1e-2})
    optim.name_parameters(params)
    step(optim, params, 0)
    waiting = Adam({"lr": 1e-2})
    waiting.set_state(optim.get_state())
    assert str(waiting.get_state()) == str(optim.get_state())


def test_state_finds_its_parameters_under_another_serial_number():
    params = make(("Guide3.loc", "Guide3.rho"))
    optim = Adam({"lr": 1e-2})
    optim.name_parameters(params)
    for t in range(3):
        step(optim, params, t)
    renamed = {"Guide12.loc": params["Guide3.loc"], "Guide12.rho": params["Guide3.rho"]}
    again = {n: p.detach().clone().requires_grad_() for n, p in renamed.items()}
    resumed = Adam({"lr": 1e-2})
    resumed.name_parameters(again)
    resumed.set_state(optim.get_state())
    step(optim, params, 3)
    step(resumed, again, 3)
    assert torch.equal(params["Guide3.loc"], again["Guide12.loc"])
    assert torch.equal(params["Guide3.rho"], again["Guide12.rho"])


def test_state_of_unnamed_parameters_is_told_apart_by_shape_or_refused():
    def unnamed():
        return {str(i): torch.full((i + 1,), 2.0, requires_grad=True) for i in range(2)}

    params, optim = unnamed(), Adam({"lr": 1e-2})
    for t in range(2):
        step(optim, params, t)
    again = {n: p.detach().clone().requires_grad_() for n, p in params.items()}
    resumed = Adam({"lr": 1e-2})
    resumed.set_state(optim.get_state())
    step(optim, params, 2)
    step(resumed, again, 2)
    assert_same_bits(values(params), values(again))

    twins = Adam({"lr": 1e-2})
    step(twins, {"1": torch.ones(2, requires_grad=True), "2": torch.ones(2, requires_grad=True)}, 0)
    with pytest.raises(ValueError, match="name_parameters"):
        twins.get_state()


def test_state_that_does_not_fit_is_refused_before_anything_moves():
    params, optim = make(), Adam({"lr": 1e-2})
    optim.name_parameters(params)
    step(optim, params, 0)
    state = optim.get_state()
    with pytest.raises(ValueError, match="of Adam, not of SGD"):
        SGD({"lr": 1e-2}).set_state(state)
    with pytest.raises(ValueError, match="not a state"):
        Adam({"lr": 1e-2}).set_state({"w": {}})
    for other in ({"x": torch.ones(3)}, {"a.loc": torch.ones(9)}):
        wrong = Adam({"lr": 1e-2})
        tensors = {n: t.requires_grad_() for n, t in other.items()}
        wrong.name_parameters(tensors)
        wrong.set_state(state)
        for _ in range(2):  # the second attempt is refused like the first
            with pytest.raises(ValueError, match="as they were saved"):
                step(wrong, tensors, 0)
        assert all((t == 1).all() for t in tensors.values())


# -- learning rates ----------------------------------------------------------------------------------------------------


def test_learning_rates_before_and_after_the_first_step():
    optim = AdaBound({"lr": 1e-2, "final_lr": 0.1})
    assert optim.learning_rates() == {"all": 1e-2}
    optim.set_learning_rate(5e-3)
    assert optim.learning_rates() == {"all": 5e-3}
    step(optim, make(), 0)
    assert optim.learning_rates() == {"all": 5e-3}
    (group,) = optim.torch_optimizer.param_groups
    assert (group["lr"], group["base_lr"]) == (5e-3, 1e-2)
    optim.set_learning_rate(2e-2)
    assert group["lr"] == 2e-2
    with pytest.raises(ValueError, match="lr=-1"):
        optim.set_learning_rate(-1)


@every_optimizer
def test_a_rate_of_zero_leaves_the_parameters_alone(name):
    for at in ("construction", "later"):
        optim = OPTIMIZERS[name]({**NUMBERS[name], "lr": 0.0} if at == "construction" else NUMBERS[name])
        if at == "later":
            optim.set_learning_rate(0)
        params = make()
        start = values(params)
        for t in range(5):
            step(optim, params, t)
        assert_same_bits(values(params), start)
        assert set(optim.learning_rates().values()) == {0.0}
        optim.set_learning_rate(1e-2)
        for t in range(5):
            step(optim, params, t)
        for key, after in values(params).items():
            assert bool(torch.isfinite(after).all())
            assert not torch.equal(start[key], after)


def test_yellowfin_reports_the_rate_it_tuned():
    optim = YellowFin({"lr": 1e-3, "window": 3})
    params = make()
    for t in range(5):
        step(optim, params, t)
    assert optim.learning_rates() == {"all": optim.torch_optimizer.param_groups[0]["tuned_lr"]}
    assert optim.learning_rates()["all"] != 1e-3


def test_a_schedule_that_needs_the_length_says_so_before_anything_moves():
    p = torch.ones(2, requires_grad=True)
    optim = Adam({"lr": 1e-2}, schedule=Cosine())
    with pytest.raises(ValueError, match="prepare"):
        step(optim, {"": p}, 0)
    assert p.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="steps_per_epoch=0"):
        optim.prepare(3, 0)


# -- stock Pyro --------------------------------------------------------------------------------------------------------


class Regression(PyroModule):
    """y = x w + b with noise 0.5, as stock Pyro writes it."""

    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](2, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 1.0).expand([1]).to_event(1))

    def forward(self, x, y=None):
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Normal(mean, 0.5), obs=y)


def fit_regression(optim, steps=300):
    pyro.set_rng_seed(0)
    x = torch.randn(20, 2)
    y = x @ torch.tensor([1.0, -0.5]) + 0.3
    model = Regression()
    guide = AutoNormal(model, init_scale=0.05)
    svi = SVI(model, guide, optim, TraceMeanField_ELBO())
    with pyro.poutine.scale(scale=1 / 20):
        losses = [svi.step(x, y) for _ in range(steps)]
    return losses, guide


@pytest.mark.parametrize("local", [False, True], ids=["param_store", "module_local_params"])
@every_optimizer
def test_stock_svi_with_stock_elbo(name, local):
    with pyro.settings.context(module_local_params=local):
        losses, guide = fit_regression(build(name), steps=150)
    assert all(np.isfinite(losses))
    assert np.mean(losses[-20:]) < 0.7 * np.mean(losses[:5])
    assert len(list(guide.parameters())) == 4


def test_adam_with_stock_svi_finds_the_solution():
    _, guide = fit_regression(Adam({"lr": 2e-2}), steps=600)
    weight = guide.median()["linear.weight"]
    torch.testing.assert_close(weight, torch.tensor([[1.0, -0.5]]), rtol=0, atol=0.1)


def test_a_hand_written_program_with_global_parameters():
    def model():
        pyro.sample("w", dist.Normal(3.0, 1.0))

    def guide():
        loc = pyro.param("w_loc", torch.tensor(0.0))
        sigma = pyro.param("w_sigma", torch.tensor(0.5), constraint=dist.constraints.positive)
        pyro.sample("w", dist.Normal(loc, sigma))

    svi = SVI(model, guide, Adam({"lr": 5e-2}), TraceMeanField_ELBO())
    for _ in range(400):
        svi.step()
    assert pyro.param("w_loc").item() == pytest.approx(3.0, abs=1e-3)
    assert pyro.param("w_sigma").item() == pytest.approx(1.0, abs=1e-3)
