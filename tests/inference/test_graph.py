"""Whose code runs decides what is recorded; what recording needs of torch and Pyro is there, or is done without."""

import importlib
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn

from pyro_bnn.guides.mc_dropout import AutoDropout
from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.guides.point import AutoPoint
from pyro_bnn.inference import kl
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.graph import private
from pyro_bnn.inference.graph import step as graph_step
from pyro_bnn.inference.graph.origin import is_library, watching
from pyro_bnn.inference.kl import scale_kl
from pyro_bnn.inference.svi import Callback, FitState, fit
from pyro_bnn.models import likelihoods, priors
from pyro_bnn.models.bnn import BNN
from pyro_bnn.models.networks.lenet5 import LeNet5
from pyro_bnn.optim import SGD, Adam, PerSite, schedules

N = 48


def rows(shape: tuple[int, ...] = (6,)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, *shape, generator=generator), torch.randint(3, (N,), generator=generator)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3))


class Own(nn.Sequential):
    """A user's network."""


def programs(net: nn.Module, guide: Callable[[Any], Any] = AutoMeanFieldNormal) -> tuple[Any, Any]:
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), N)
    return model, guide(model)


def run(
    trace: bool | None,
    make: Callable[[], tuple[Any, Any]] = lambda: programs(net()),
    *,
    optim: Callable[[], Any] = lambda: Adam({"lr": 1e-2}),
    epochs: int = 3,
    **options: Any,
) -> tuple[list[dict[str, Any]], int]:
    """Fit from one seed; return the history without its clock, and how many steps were recorded."""
    pyro.clear_param_store()
    pyro.set_rng_seed(1)
    model, guide = make()
    elbo = FlatMeanField_ELBO(trace=trace)
    callbacks = [make_callback(model, guide) for make_callback in options.pop("callbacks", [])]
    result = fit(
        model, guide, optim(), rows(), epochs=epochs, batch_size=1, seed=0, elbo=elbo, callbacks=callbacks, **options
    )
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in result.history]
    return lines, 0 if elbo._recorded is None else len(elbo._recorded)


@pytest.fixture(autouse=True)
def _says_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_step, "_SAID", set())


# ----------------------------------------------------------------------------------------------- what fit records


def plain_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3))


@pytest.mark.parametrize("guide", [AutoMeanFieldNormal, AutoPoint, AutoDropout])
def test_fit_records_what_is_made_of_libraries_code(guide: Callable[[Any], Any]) -> None:
    weight = kl.annealed("linear", epochs=2) * kl.geometric(0.99)
    make = partial(_make, guide)
    recorded, count = run(None, make, kl=weight)
    eager, none = run(False, make, kl=weight)
    assert recorded == eager
    assert (count, none) == (1, 0)


def _make(guide: Callable[[Any], Any]) -> tuple[Any, Any]:
    return programs(plain_net(), guide)


def test_fit_does_not_record_a_users_network_but_by_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyro_bnn")

    def make() -> tuple[Any, Any]:
        return programs(Own(*plain_net()))

    by_default, none = run(None, make)
    assert none == 0
    assert [r.getMessage() for r in caplog.records if "Own is not code of" in r.getMessage()]
    assert len(caplog.records) == 1
    by_name, count = run(True, make)
    eager, _ = run(False, make)
    assert count == 1
    assert by_default == by_name == eager


@dataclass(frozen=True)
class OwnClasses(likelihoods.Likelihood):
    task = "classification"

    def distribution(self, output: Tensor, parameters: Any = None) -> Any:
        return likelihoods.Categorical().distribution(output)

    def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
        return y


def test_what_is_not_recorded_is_called_by_its_whole_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyro_bnn")

    def make() -> tuple[Any, Any]:
        model = BNN(plain_net(), priors.Kaiming(), OwnClasses(), N)
        return model, AutoMeanFieldNormal(model)

    run(None, make)
    (said,) = (r.getMessage() for r in caplog.records)
    name = "OwnClasses.distribution" if sys.version_info >= (3, 11) else "distribution"
    assert f"for {__name__}.{name}() is not code of" in said


class _Prior(priors.Prior):
    def __call__(self, name: str, module: nn.Module, parameter: Tensor) -> Any:
        return priors.Normal(0.0, 1.0)(name, module, parameter)


def test_a_users_prior_is_asked_once_and_does_not_matter() -> None:
    def make() -> tuple[Any, Any]:
        model = BNN(plain_net(), _Prior(), likelihoods.Categorical(), N)
        return model, AutoMeanFieldNormal(model)

    recorded, count = run(None, make)
    assert count == 1
    assert recorded == run(False, make)[0]


class _EveryStep(Callback):
    def __init__(self, model: Any, change: Callable[[Any, int], None]) -> None:
        self.model, self.change = model, change

    def step(self, state: FitState) -> None:
        self.change(self.model, state.step)


class _EveryEpoch(Callback):
    def __init__(self, model: Any, change: Callable[[Any, int], None]) -> None:
        self.model, self.change = model, change

    def epoch(self, state: FitState) -> None:
        self.change(self.model, state.epoch)


def _drop_more(model: Any, step: int) -> None:
    model.template[3].p = 0.2 + 0.1 * (step % 5)


@pytest.mark.parametrize(("kind", "expected"), [(_EveryStep, 0), (_EveryEpoch, 0)])
def test_what_a_callback_changes_counts_at_once(kind: Any, expected: int) -> None:
    callbacks = [lambda model, guide: kind(model, _drop_more)]
    recorded, count = run(None, partial(_make, AutoMeanFieldNormal), callbacks=callbacks)
    assert recorded == run(False, partial(_make, AutoMeanFieldNormal), callbacks=callbacks)[0]
    assert recorded != run(False, partial(_make, AutoMeanFieldNormal))[0]
    assert count == expected  # those of the last epoch were forgotten after it


@pytest.mark.parametrize(
    "options",
    [
        {"augment": lambda x: x.flip(-1)},
        {"optim": lambda: Adam({"lr": 1e-2}, schedule=_Halving())},
    ],
)
def test_a_users_code_between_the_steps_ends_recording(options: dict[str, Any]) -> None:
    recorded, count = run(None, partial(_make, AutoMeanFieldNormal), **options)
    assert count == 0
    assert recorded == run(False, partial(_make, AutoMeanFieldNormal), **options)[0]


class _Halving(schedules.Schedule):
    """A user's schedule."""

    def build(self, unit: Any, epochs: float, steps_per_epoch: int) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(unit, lambda step: 1 / (1 + step))


def test_rates_by_name_are_asked_for_before_anything_is_recorded() -> None:
    def optim() -> Any:
        return PerSite(loc=Adam(lambda name: {"lr": 1e-2}), scale=SGD({"lr": 1e-3}))

    recorded, count = run(None, partial(_make, AutoMeanFieldNormal), optim=optim)
    assert count == 1
    assert recorded == run(False, partial(_make, AutoMeanFieldNormal), optim=optim)[0]


def test_stock_svi_records_nothing_by_itself() -> None:
    model, guide = programs(plain_net())
    elbo = FlatMeanField_ELBO()
    svi = pyro.infer.SVI(model, guide, Adam({"lr": 1e-2}), elbo)
    for _ in range(3):
        svi.step(*rows())
    assert len(elbo._recorded) == 0


# ------------------------------------------------------------------------------------------------ whose code runs


@pytest.mark.parametrize(
    "function",
    [
        lambda: time.time(),
        lambda: random.random(),
        lambda: os.environ.get("HOME"),
        partial(lambda: 1),
        lambda: Own(nn.Identity())(torch.zeros(1)),
        lambda: torch.zeros(2).apply_(lambda v: v + 1),
    ],
)
def test_foreign_code_is_seen(function: Callable[[], Any]) -> None:
    with watching() as foreign:
        function()
    assert foreign() is not None


def test_a_clock_behind_a_library_s_back_is_seen() -> None:
    layer = nn.Identity()
    layer.forward = time.perf_counter  # type: ignore[method-assign, assignment]
    with watching() as foreign:
        layer()
    assert foreign() == "perf_counter()"


def test_libraries_code_is_told_from_it() -> None:
    lenet = LeNet5()
    with watching() as foreign:
        lenet(torch.zeros(2, 1, 28, 28)).sum().backward()
    assert foreign() is None


def test_a_profiler_is_left_alone() -> None:
    sys.setprofile(lambda *_: None)
    try:
        with watching() as foreign:
            pass
        assert foreign() == "a profiler"
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)


def test_is_library() -> None:
    assert is_library(nn.Linear(1, 1))
    assert is_library(torch.relu)
    assert is_library(partial(torch.clamp, min=0))
    assert not is_library(lambda x: x)
    assert not is_library(partial(torch.nn.functional.relu, inplace=test_is_library))
    assert not is_library(Own())
    replaced = nn.Linear(1, 1)
    replaced.forward = lambda x: x  # type: ignore[method-assign]
    assert not is_library(replaced)
    assert is_library(schedules.Cosine(), deep=True)
    assert not is_library({"of": [_Halving()]}, deep=True)


# --------------------------------------------------------------------------------------------------- private names


@pytest.mark.parametrize("name", private.NAMES)
def test_private_name_is_there(name: str) -> None:
    """The test that names what a new version of torch or Pyro has taken away."""
    assert private.private(name) is not None


def test_all_private_imports_of_the_room_are_in_the_table() -> None:
    folder = os.path.dirname(private.__file__)
    for file in os.listdir(folder):
        if file.endswith(".py") and file != "private.py":
            with open(os.path.join(folder, file), encoding="utf-8") as source:
                text = source.read()
            for forbidden in ("torch._C", "torch.utils._", "pyro.poutine.runtime import _", "overrides import _"):
                assert forbidden not in text, (file, forbidden)


def test_without_a_private_name_everything_runs_eagerly_and_says_so_once() -> None:
    script = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import torch.utils._python_dispatch as dispatch
kept = dispatch._get_current_dispatch_mode_stack
del dispatch._get_current_dispatch_mode_stack
import pyro_bnn.inference.graph.private
dispatch._get_current_dispatch_mode_stack = kept
import torch
from torch import nn
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import Adam
for _ in range(2):
    model = BNN(nn.Linear(3, 2), priors.Kaiming(), likelihoods.Categorical(), 20)
    result = fit(model, AutoMeanFieldNormal(model), Adam({"lr": 1e-2}), (torch.randn(20, 3), torch.arange(20) % 2),
epochs=2, batch_size=5)
print("done", len(result.history))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = [line for line in found.stdout.splitlines() if line]
    assert lines == [
        "steps are not recorded: this installation has no "
        "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
        "done 2",
    ]
    importlib.import_module("pyro_bnn.inference.graph.private")


def test_an_interrupt_while_recording_takes_effect_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that is broken off would leave dispatch modes and foreign KL weights behind."""
    model, guide = programs(plain_net())
    elbo = FlatMeanField_ELBO(trace=True)
    lower = graph_step.lower

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return lower(*args, **kwargs)

    monkeypatch.setattr(graph_step, "lower", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), scale_kl(0.5) as handler:
            elbo.loss_and_grads(model, guide, *rows())
        assert handler.weight == 0.5
        assert not graph_step._dispatch_modes()
        assert len(elbo._recorded) == 1
    finally:
        signal.signal(signal.SIGINT, before)
