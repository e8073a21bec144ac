"""
One training step of LeNet-5 (B = 100, 28x28) under local reparameterisation and Flipout, beside deterministic LeNet-5.

All candidates are timed in turns, round by round, in one process; each is judged by the median over rounds of its ratio
to the deterministic step of the same round (forward, cross-entropy, backward, Adam). The limits, for the fast ELBO, are
3.0 for local reparameterisation and 2.5 for Flipout.

    python -m benchmarks.reparam_step [--rounds 40] [--steps 10] [--threads 2]
    python -m benchmarks.reparam_step --variance [--draws 100]      gradient variance against plain sampling instead
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pyro
import torch
from pyro.infer import ELBO, SVI, TraceMeanField_ELBO
from torch import Tensor
from torch.nn import functional as F

from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.gradient_variance import GradientVariance, gradient_variance
from pyro_bnn.inference.kl import per_datum, scale_kl
from pyro_bnn.inference.reparam import flipout, local_reparameterization
from pyro_bnn.models import BNN, LeNet5, likelihoods, priors
from pyro_bnn.optim import Adam

N, B = 60_000, 100
LIMITS = {"local reparameterisation, fast ELBO": 3.0, "Flipout, fast ELBO": 2.5}
HANDLERS: dict[str, Callable[[], Any]] = {
    "plain": nullcontext,
    "local reparameterisation": local_reparameterization,
    "Flipout": flipout,
}


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(B, 1, 28, 28, generator=generator)
    return x, torch.randint(0, 10, (B,), generator=generator)


def program(**options: Any) -> tuple[BNN, AutoMeanFieldNormal]:
    torch.manual_seed(0)
    model = BNN(LeNet5(), priors.Kaiming(), likelihoods.Categorical(), N)
    return model, AutoMeanFieldNormal(model, **options)


def deterministic_step(x: Tensor, y: Tensor) -> Callable[[], object]:
    net = LeNet5()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def bayesian_step(elbo: ELBO, handler: Callable[[], Any], x: Tensor, y: Tensor) -> Callable[[], object]:
    model, guide = program()
    svi = SVI(model, guide, Adam({"lr": 1e-3}), elbo)

    def step() -> None:
        with per_datum(N), scale_kl(1.0), handler():
            svi.step(x, y)

    return step


def candidates() -> dict[str, Callable[[], object]]:
    x, y = batch()
    steps = {"deterministic": deterministic_step(x, y)}
    for label, elbo in (("stock ELBO", TraceMeanField_ELBO), ("fast ELBO", FlatMeanField_ELBO)):
        for name, handler in HANDLERS.items():
            steps[f"{name}, {label}"] = bayesian_step(elbo(), handler, x, y)
    return steps


def time_in_turns(steps: dict[str, Callable[[], object]], rounds: int, repeat: int) -> dict[str, list[float]]:
    """Milliseconds per step, round by round."""
    for step in steps.values():
        for _ in range(5):
            step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(repeat):
                step()
            found[name].append((time.perf_counter() - start) / repeat * 1e3)
    return found


def report_times(rounds: int, repeat: int) -> None:
    found = time_in_turns(candidates(), rounds, repeat)
    print(f"{'':42}{'ms':>8}{'ratio':>8}{'limit':>8}")
    for name, times in found.items():
        ratio = statistics.median(t / base for t, base in zip(times, found["deterministic"], strict=True))
        limit = LIMITS.get(name)
        verdict = "" if limit is None else f"{limit:8.1f}  {'ok' if ratio <= limit else 'ABOVE'}"
        print(f"{name:42}{statistics.median(times):8.2f}{ratio:8.2f}{verdict}")


def measure_variance(draws: int, init_scale: float) -> dict[str, GradientVariance]:
    data = batch()
    model, guide = program(init_scale=init_scale)
    found = {}
    for name, handler in HANDLERS.items():
        with per_datum(N), scale_kl(1.0), handler():
            found[name] = gradient_variance(model, guide, TraceMeanField_ELBO(), data, draws)
    return found


def report_variance(draws: int, scales: Sequence[float]) -> None:
    for scale in scales:
        pyro.clear_param_store()
        found = measure_variance(draws, scale)
        print(f"\nsigma = {scale:g}: gradient variance of plain sampling over that of the handler, {draws} draws")
        print(f"{'kind':8}{'site':22}{'local':>10}{'Flipout':>10}")
        tables = {name: [*result.by_kind().values(), *result.by_site()] for name, result in found.items()}
        for plain, local, flip in zip(*tables.values(), strict=True):
            ratios = plain.variance / local.variance, plain.variance / flip.variance
            print(f"{plain.kind:8}{plain.site or 'all':22}{ratios[0]:10.3g}{ratios[1]:10.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10, help="steps per round and candidate")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variance", action="store_true")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--scales", type=float, nargs="+", default=[4.54e-5, 1e-3, 1e-2, 5e-2, 1e-1])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.variance:
        report_variance(options.draws, options.scales)
    else:
        report_times(options.rounds, options.steps)


if __name__ == "__main__":
    main()
