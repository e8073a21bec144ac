"""
Random programs, changed at random between steps: what runs them must never differ from running them.

For every case, with the same noise in every step: (a) FlatMeanField_ELBO() under stock SVI, (b) the same with
trace=False, (c) Pyro's own TraceMeanField_ELBO, and (d) `fit`, where a callback or an augmentation makes the change,
with the default ELBO and with trace=False.

200 cases are run, and 2,000 with the slow tests or with RANDOM_PROGRAMS=2000 in the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import ELBO, SVI, TraceMeanField_ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.utils.data import Dataset

from pyro_bnn.inference import Callback, FitState, FlatMeanField_ELBO, fit
from pyro_bnn.optim import Adam
from tests.random_programs import FAMILIES, Case, random_case

CASES = int(os.environ.get("RANDOM_PROGRAMS", "200"))
STEPS = 8


@dataclass
class Run:
    """What a run showed: the loss and the gradient of all parameters at each step, or the error that ended it."""

    losses: list[float]
    gradients: list[Tensor]
    error: str = ""


class _Watched(PyroOptim):
    """Stochastic gradient descent that keeps the gradients it was called with."""

    def __init__(self) -> None:
        super().__init__(torch.optim.SGD, {"lr": 1e-4})
        self.gradients: dict[int, Tensor] = {}

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        params = list(params)
        self.gradients = {id(p): p.grad.detach().clone() for p in params if p.grad is not None}
        super().__call__(params, *args, **kwargs)


def _parameters(model: Any, guide: Any) -> list[Tensor]:
    store = pyro.get_param_store()
    modules = [p for program in (guide, model) if isinstance(program, nn.Module) for p in program.parameters()]
    stored = [store[name].unconstrained() for name in sorted(store.keys()) if not name.startswith(("Auto", "BNN"))]
    return list({id(p): p for p in [*modules, *stored]}.values())


def by_steps(case: Case, elbo: ELBO) -> Run:
    """Run a case under stock SVI, with the noise of a step fixed by its number."""
    pyro.clear_param_store()
    pyro.set_rng_seed(case.seed)
    model, guide, data, _ = case.make()
    optim = _Watched()
    svi = SVI(model, guide, optim, elbo)
    run = Run([], [])
    with torch.no_grad():
        guide(*case.batch(data, 0))
    for step in range(STEPS):
        pyro.set_rng_seed(10_000 + step)
        try:
            run.losses.append(svi.step(*case.batch(data, step)))
        except Exception as error:
            run.error = f"{type(error).__name__} at step {step}: {error}"
            break
        parts = [optim.gradients.get(id(p), torch.zeros_like(p)).reshape(-1) for p in _parameters(model, guide)]
        run.gradients.append(torch.cat(parts))
        case.change(model, guide, step)
    return run


def _apart(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether two results differ; numbers that overflow the same way do not."""
    if not torch.equal(a.isfinite(), b.isfinite()):
        return True
    a, b = a[a.isfinite()], b[b.isfinite()]
    return len(a) > 0 and bool((a - b).abs().max() > tolerance * a.abs().max().clamp(min=1.0))


def differ(one: Run, other: Run, tolerance: float) -> str:
    """Say where two runs part, or nothing."""
    for step, (a, b) in enumerate(zip(one.losses, other.losses, strict=False)):
        if _apart(torch.tensor([a]), torch.tensor([b]), tolerance):
            return f"step {step}: losses {a:.6g} and {b:.6g}"
    for step, (p, q) in enumerate(zip(one.gradients, other.gradients, strict=False)):
        if p.shape != q.shape:
            return f"step {step}: {len(p)} and {len(q)} parameters"
        if _apart(p, q, tolerance):
            return f"step {step}: gradients up to {float(p.abs().max()):.3g} are {float((p - q).abs().max()):.3g} apart"
    if one.error.partition(":")[0] != other.error.partition(":")[0]:
        return f"errors {one.error!r} and {other.error!r}"
    return ""


class Changing:
    """Makes a case's change while `fit` runs, through whatever of the user's the case says."""

    def __init__(self, case: Case, model: Any, guide: Any) -> None:
        self.case, self.model, self.guide = case, model, guide
        self.calls = 0

    def __call__(self, moment: str) -> None:
        if self.case.moment == moment:
            self.case.change(self.model, self.guide, self.calls)
            self.calls += 1


class _Calling(Callback):
    def __init__(self, changing: Changing) -> None:
        self.changing = changing

    def step(self, state: FitState) -> None:
        self.changing("step")

    def epoch(self, state: FitState) -> None:
        for _ in range(3):  # so that the change comes after the first or the second epoch
            self.changing("epoch")


class _Optimizing(PyroOptim):
    def __init__(self, changing: Changing) -> None:
        super().__init__(torch.optim.Adam, {"lr": 0.01})
        self.changing = changing

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        super().__call__(params, *args, **kwargs)
        self.changing("optimizer")


class _Rows(Dataset[Any]):
    def __init__(self, data: tuple[Tensor, Tensor], changing: Changing) -> None:
        self.data, self.changing = data, changing

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == 5:
            self.changing("rows")
        return self.data[0][row], self.data[1][row]


def by_fit(case: Case, elbo: ELBO | None) -> Any:
    """Return a fit's history without its times, or the error that ended it."""
    pyro.clear_param_store()
    pyro.set_rng_seed(case.seed)
    model, guide, data, _ = case.make()
    changing = Changing(case, model, guide)
    who: dict[str, dict[str, Any]] = {
        "step": {"callbacks": [_Calling(changing)]},
        "epoch": {"callbacks": [_Calling(changing)]},
        "augment": {"augment": lambda x: (changing("augment"), x)[1]},
    }
    optim = _Optimizing(changing) if case.moment == "optimizer" else Adam({"lr": 0.01})
    rows: Any = _Rows(data, changing) if case.moment == "rows" else data
    options = {"epochs": 3, "batch_size": 8, "elbo": elbo, "seed": case.seed, **who.get(case.moment, {})}
    try:
        result = fit(model, guide, optim, rows, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [(line["loss"], line["nll"], line["kl"]) for line in result.history]


def same_history(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return type(one) is type(other) and one.partition(":")[0] == other.partition(":")[0]
    pairs = [(a, b) for p, q in zip(one, other, strict=True) for a, b in zip(p, q, strict=True)]
    return all(abs(a - b) <= tolerance * max(abs(a), 1.0) for a, b in pairs)


def compare(seed: int) -> dict[str, str]:
    """Return what differs in the case of a seed, by the pair of runs compared."""
    case = random_case(seed)
    eager = by_steps(case, FlatMeanField_ELBO(trace=False))
    found = {
        "trace=False, TraceMeanField_ELBO": differ(eager, by_steps(case, TraceMeanField_ELBO()), 1e-4),
        "default, trace=False": differ(by_steps(case, FlatMeanField_ELBO()), eager, 1e-6),
    }
    ours, plain = by_fit(case, None), by_fit(case, FlatMeanField_ELBO(trace=False))
    found["fit, fit with trace=False"] = "" if same_history(ours, plain, 1e-6) else f"{ours} and {plain}"
    return {pair: text for pair, text in found.items() if text}


_STARTS = [
    *range(0, CASES, 50),
    *(pytest.param(start, marks=pytest.mark.slow) for start in range(CASES, 2000, 50)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", _STARTS)
def test_nothing_differs_from_running_the_program(start: int) -> None:
    wrong = {
        f"seed {seed}, {random_case(seed).family}": found
        for seed in range(start, start + 50)
        if (found := compare(seed))
    }
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())


def test_a_case_is_its_seed() -> None:
    """The same seed gives the same program, the same change and the same numbers."""
    for seed in (0, len(FAMILIES) // 2, len(FAMILIES) + 7):
        runs = [by_steps(random_case(seed), FlatMeanField_ELBO(trace=False)) for _ in range(2)]
        assert runs[0].losses == runs[1].losses
