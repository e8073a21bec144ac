"""
Rows per second of a training on one process and on two ranks, one thread each: `python -m benchmarks.ranks`.

ResNet-20 on random images of CIFAR-10's size. An epoch runs before the clock starts; rounds of all kinds are
interleaved, and a kind's figure is its fastest epoch and its median one. With --realtime (Linux, root) nothing else is
scheduled beside it, on a machine that does other things: ranks wait for each other, and so for whatever one waits for.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["main"]


def _train(batch_norm: str, batch_size: int, steps: int, epochs: int, realtime: bool) -> None:
    """Train; let rank 0 print the seconds of every epoch but the first."""
    import torch
    from torch import distributed

    from pyro_bnn.common.memory import keep_freed_memory
    from pyro_bnn.guides import AutoMeanFieldNormal
    from pyro_bnn.inference import DataParallel, fit
    from pyro_bnn.models import BNN, ResNet20, likelihoods, priors
    from pyro_bnn.optim import Adam, PerSite

    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    keep_freed_memory()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        where = f"file://{os.environ['STORE']}"
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=count)
    torch.manual_seed(0)
    n = batch_size * steps
    x, y = torch.randn(n, 3, 32, 32), torch.randint(10, (n,))
    model = BNN(ResNet20(), priors.Kaiming(), likelihoods.Categorical(), num_data=n)
    guide = AutoMeanFieldNormal(model)
    optim = PerSite(loc=Adam({"lr": 1e-3}), scale=Adam({"lr": 1e-3}))
    parallel = DataParallel(batch_norm=batch_norm)  # type: ignore[arg-type]
    options = {"epochs": epochs + 1, "batch_size": batch_size, "seed": 0, "progress": False, "distributed": parallel}
    seconds = [line["seconds"] for line in fit(model, guide, optim, (x, y), **options).history]  # type: ignore[arg-type]
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps([late - early for early, late in itertools.pairwise(seconds)]), flush=True)
    if "RANK" in os.environ:
        distributed.destroy_process_group()
        os._exit(0)  # threads of the group may outlive Python's own end


def main() -> None:
    """Measure all kinds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", nargs=3, help="for the processes themselves: batch_norm, batch_size, steps")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--only", action="append", help="a kind beside one process, such as '2 ranks, sync'; repeat")
    options = parser.parse_args()
    if options.kind is not None:
        _train(options.kind[0], int(options.kind[1]), int(options.kind[2]), options.epochs, options.realtime)
        return
    size = options.batch_size
    kinds = {
        "1 process": (1, "sync", size),
        "2 ranks, sync": (2, "sync", 2 * size),
        "2 ranks, sync, the same batch": (2, "sync", size),
        "2 ranks, local": (2, "local", 2 * size),
        "2 ranks, local, the same batch": (2, "local", size),
    }
    kinds = {name: kind for name, kind in kinds.items() if not options.only or name in ("1 process", *options.only)}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, (ranks, batch_norm, rows) in kinds.items():
            rates[name] += [rows * options.steps / s for s in _seconds(ranks, batch_norm, rows, options)]
    one = rates["1 process"]
    for name, found in rates.items():
        best, middle = max(found), statistics.median(found)
        ratios = f"{best / max(one):.2f} ({middle / statistics.median(one):.2f})"
        print(f"{name:32} {best:7.1f} rows/s, median {middle:7.1f}; times one process {ratios}")


def _seconds(ranks: int, batch_norm: str, rows: int, options: argparse.Namespace) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        place = {"STORE": str(Path(folder) / "store"), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        kind = ["--kind", batch_norm, str(rows), str(options.steps), "--epochs", str(options.epochs)]
        kind += ["--realtime"] if options.realtime else []
        command = [sys.executable, "-m", "benchmarks.ranks", *kind]
        outputs = [Path(folder) / str(rank) for rank in range(ranks)]
        children = []
        for rank, path in enumerate(outputs):
            own = {**os.environ, **place, "RANK": str(rank)} if ranks > 1 else {**os.environ, **place}
            with path.open("w") as output:
                children.append(subprocess.Popen(command, env=own, stdout=output))
        if any(child.wait() for child in children):
            raise RuntimeError(f"{ranks} ranks, {batch_norm}: a process failed")
        found: list[float] = json.loads(outputs[0].read_text())
        return found


if __name__ == "__main__":
    main()
