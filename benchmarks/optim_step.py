"""
One optimizer step beside torch's foreach Adam.

Two shapes: 200 small tensors, a network with a parameter per site, and two flat vectors of 61,706, a Bayesian LeNet-5.
All optimizers of one shape are timed in turns, round by round, in one process; a ratio compares an optimizer with
foreach Adam by the minimum and by the median over rounds. The limits (200 tensors, minima) are 1.5 for AdaBayes,
AdaBayesFP, AdaBound and AMSBound and 2.5 for YellowFin. For the flat vectors the wrappers of pyro_bnn.optim, stock
Pyro's Adam and the bare torch optimizer show what a call through PyroOptim adds.

    python -m benchmarks.optim_step [--rounds 200] [--threads 1]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import pyro
import torch
from torch import Tensor

from pyro_bnn.optim import OPTIMIZERS, PerSite
from pyro_bnn.optim import torch_optim as ours

LIMITS = {"AdaBayes": 1.5, "AdaBayesFP": 1.5, "AdaBound": 1.5, "AMSBound": 1.5, "YellowFin": 2.5}
BASE = "torch Adam foreach"


def tensors(count: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(size, generator=generator).requires_grad_() for _ in range(count)]
    for p in params:
        p.grad = torch.randn(size, generator=generator)
    return params


def torch_steps(count: int, size: int) -> dict[str, Callable[[], object]]:
    return {
        BASE: torch.optim.Adam(tensors(count, size), lr=1e-6, foreach=True).step,
        "torch Adam fused": torch.optim.Adam(tensors(count, size), lr=1e-6, fused=True).step,
        "AdaBayes": ours.AdaBayes(tensors(count, size), lr=1e-6, lr_sgd=1e-6, batch_size=100).step,
        "AdaBayesFP": ours.AdaBayesFP(tensors(count, size), lr=1e-6, lr_sgd=1e-6, batch_size=100).step,
        "AdaBound": ours.AdaBound(tensors(count, size), lr=1e-6, final_lr=1e-6).step,
        "AMSBound": ours.AMSBound(tensors(count, size), lr=1e-6, final_lr=1e-6).step,
        "YellowFin": ours.YellowFin(tensors(count, size), lr_factor=1e-6).step,
    }


def pyro_steps(size: int) -> dict[str, Callable[[], object]]:
    def named(optim: object) -> Callable[[], object]:
        params = tensors(2, size)
        optim.name_parameters({"guide.loc": params[0], "guide.rho": params[1]})  # type: ignore[attr-defined]
        return lambda: optim(set(params))  # type: ignore[operator]

    stock, stock_params = pyro.optim.Adam({"lr": 1e-6}), tensors(2, size)
    steps: dict[str, Callable[[], object]] = {"pyro.optim.Adam": lambda: stock(set(stock_params))}
    for name, optimizer in OPTIMIZERS.items():
        extra = {"batch_size": 100} if "batch_size" in optimizer.arguments() else {}
        steps[f"optim.{optimizer.__name__}"] = named(optimizer({"lr": 1e-6, **extra}))
        if name == "adam":
            both = PerSite(loc=optimizer({"lr": 1e-6}), scale=optimizer({"lr": 1e-6}))
            steps["optim.PerSite(Adam, Adam)"] = named(both)
    return steps


def measure(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    for step in steps.values():
        for _ in range(5):
            step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def report(title: str, seconds: dict[str, list[float]], limits: dict[str, float]) -> bool:
    base = seconds[BASE]
    print(f"\n{title}\n{'':28}{'min us':>9}{'median us':>11}{'ratio min':>11}{'ratio median':>14}{'limit':>7}")
    within = True
    for name, times in seconds.items():
        ratio = min(times) / min(base)
        median = statistics.median(a / b for a, b in zip(times, base, strict=True))
        limit = limits.get(name)
        within = within and (limit is None or ratio <= limit)
        print(
            f"{name:28}{min(times) * 1e6:9.0f}{statistics.median(times) * 1e6:11.0f}{ratio:11.2f}{median:14.2f}"
            f"{'' if limit is None else limit:>7}"
        )
    return within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), {arguments.rounds} paired rounds")
    within = report("200 tensors of 1,000", measure(torch_steps(200, 1000), arguments.rounds), LIMITS)
    flat = torch_steps(2, 61_706) | pyro_steps(61_706)
    report("2 tensors of 61,706", measure(flat, arguments.rounds), {})
    print(f"\n200 tensors: {'within' if within else 'NOT within'} the limits")


if __name__ == "__main__":
    main()
