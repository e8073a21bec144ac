"""
From trained networks to posteriors: six networks trained plainly, and what `pb.bayesianize` makes of each.

    python -m benchmarks.bayesianize --data-root DATA [--only NAME ...] [--out docs/bayesianize.json]
    python -m benchmarks.bayesianize --table

Each network is trained by Adam on part of the rows of its data set, at rates that fall along a cosine, without
augmentation, and then handed to `pb.bayesianize` with no setting touched. Both are scored on the same test rows, which
nothing was chosen on: the network by its softmax, raw and with the temperature fitted on the validation rows (Guo et
al. 2017), the posterior by the average of its draws. Differences are posterior minus scaled network; their standard
errors are over test rows, paired: of the mean for accuracy and NLL, of 400 bootstrap resamples for ECE.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pyro_bnn as pb
from pyro_bnn.analysis.scores.calibration import fit_temperature, scale_temperature
from pyro_bnn.analysis.scores.metrics import ece
from pyro_bnn.data import Data, Split
from pyro_bnn.models import MLP, LeNet5, PatchTransformer, ResNet20, WideResNet

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "bayesianize.json"
RESAMPLES = 400


class RowLSTM(nn.Module):
    """An LSTM that reads an image row by row; it maps images (B, 1, H, W) to logits (B, K)."""

    def __init__(self, width: int = 28, hidden: int = 64, num_classes: int = 10) -> None:
        super().__init__()
        self.config = {"width": width, "hidden": hidden, "num_classes": num_classes}
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.flatten(1, 2))  # (B, H, hidden)
        return self.head(states[:, -1])


@dataclass(frozen=True)
class Job:
    """A network, its rows, and how it is trained before anything Bayesian happens."""

    title: str
    data: str
    net: Callable[[], nn.Module]
    train_size: int
    test_size: int | None
    epochs: int
    lr: float = 1e-3
    val_fraction: float = 0.1


JOBS = {
    "lenet5": Job("LeNet-5", "mnist", LeNet5, 20_000, None, 20),
    "tabular": Job("MLP 9-100-100-4", "protein", lambda: MLP(9, 4, [100, 100]), 20_000, None, 60),
    "lstm": Job("LSTM over rows, 64", "mnist", RowLSTM, 10_000, None, 20, lr=3e-3),
    "transformer": Job(
        "Patch transformer",
        "fashion-mnist",
        lambda: PatchTransformer(1, 10, image_size=28, patch_size=7, width=64, depth=3, hidden=128),
        10_000,
        None,
        30,
    ),
    "wide-resnet": Job("WRN-10-1", "cifar10", lambda: WideResNet(depth=10, widen=1), 3_500, 2_000, 20, 3e-3, 1 / 7),
    "resnet20": Job("ResNet-20, 8 maps", "cifar10", lambda: ResNet20(width=8), 3_500, 2_000, 20, 3e-3, 1 / 7),
}


def rows_of(job: Job, root: Path | None) -> Data:
    """Return the rows of a job; the table's target becomes four classes of equal count on the training rows."""
    if job.data != "protein":
        return pb.load_data(
            job.data,
            root=root,
            val_fraction=job.val_fraction,
            train_size=job.train_size,
            test_size=job.test_size,
            seed=0,
        )
    data = pb.load_data("protein", root=root, val_fraction=0.0, seed=0)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[: job.train_size]
    num_val = int(job.val_fraction * job.train_size)
    edges = data.train.y[order[num_val:]].as_subclass(Tensor).quantile(torch.tensor([0.25, 0.5, 0.75]))

    def classes(rows: Split) -> Split:
        return replace(rows, y=torch.bucketize(rows.y.as_subclass(Tensor), edges))

    train, val = classes(data.train.take(order[num_val:])), classes(data.train.take(order[:num_val]))
    return replace(
        data,
        task="classification",
        train=train,
        val=val,
        test=classes(data.test),
        num_classes=4,
        y_standardiser=None,
    )


def train_plainly(net: nn.Module, rows: Split, job: Job, *, batch_size: int = 100) -> float:
    """Minimise the cross-entropy; return the seconds it took."""
    started = time.perf_counter()
    x, y = rows.x.as_subclass(Tensor), rows.y.as_subclass(Tensor)
    steps = job.epochs * -(-len(y) // batch_size)
    optim = torch.optim.Adam(net.parameters(), lr=job.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optim, steps)
    net.train()
    for _ in range(job.epochs):
        for batch in torch.randperm(len(y)).split(batch_size):
            optim.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optim.step()
            schedule.step()
    net.eval()
    return time.perf_counter() - started


@torch.no_grad()
def log_probs_of(net: nn.Module, x: Tensor) -> Tensor:
    """Return (N, K)."""
    return torch.cat([net(part) for part in x.as_subclass(Tensor).split(500)]).double().log_softmax(-1)


def trained(name: str, job: Job, data: Data, work: Path) -> tuple[nn.Module, float]:
    """Return the network of a job, trained now or in an earlier run, and the seconds that took."""
    torch.manual_seed(0)
    net = job.net()
    file = work / f"{name}.pt"
    if file.is_file():
        saved = torch.load(file, weights_only=True)
        net.load_state_dict(saved["net"])
        return net.eval(), float(saved["seconds"])
    seconds = train_plainly(net, data.train, job)
    work.mkdir(parents=True, exist_ok=True)
    torch.save({"net": net.state_dict(), "seconds": seconds}, file)
    return net, seconds


def columns(log_probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the scores of (N, K) log-probabilities."""
    right = log_probs.argmax(-1) == labels
    nll = -log_probs.gather(1, labels[:, None])
    return {"accuracy": float(right.double().mean()), "nll": float(nll.mean()), "ece": ece(log_probs, labels)}


def differences(ours: Tensor, theirs: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Return for every score its difference and the standard error of that, over test rows, paired."""
    right = [(p.argmax(-1) == labels).double() for p in (ours, theirs)]
    nll = [-p.gather(1, labels[:, None])[:, 0] for p in (ours, theirs)]
    found = {}
    for key, (a, b) in {"accuracy": right, "nll": nll}.items():
        found[key] = [float((a - b).mean()), float((a - b).std() / len(labels) ** 0.5)]
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        rows = torch.from_numpy(random.integers(0, len(labels), len(labels)))
        drawn.append(ece(ours[rows], labels[rows]) - ece(theirs[rows], labels[rows]))
    found["ece"] = [ece(ours, labels) - ece(theirs, labels), float(np.std(drawn))]
    return found


def measure(name: str, job: Job, root: Path | None, work: Path, num_samples: int) -> dict[str, Any]:
    """Train a network, make its posterior, and score both."""
    data = rows_of(job, root)
    net, seconds = trained(name, job, data, work)
    assert data.val is not None
    labels = data.test.y
    plain = log_probs_of(net, data.test.x)
    temperature = fit_temperature(log_probs_of(net, data.val.x), data.val.y)
    scaled = scale_temperature(plain, temperature)
    posterior = pb.bayesianize(copy.deepcopy(net), data)
    notes = posterior.info["notes"]["bayesianize"]
    ours = posterior.predict(data.test.x, num_samples, seed=0).double().clamp_min(1e-300).log()
    steps = job.epochs * -(-len(data.train) // 100)
    return {
        "network": job.title,
        "data": job.data,
        "rows": [len(data.train), len(data.val), len(data.test)],
        "own_training": {"epochs": job.epochs, "steps": steps, "seconds": round(seconds, 1)},
        "bayesianize": {**notes, "share_of_steps": notes["steps"] / steps},
        "temperature_of_the_network": temperature,
        "plain": columns(plain, labels),
        "scaled": columns(scaled, labels),
        "posterior": columns(ours, labels),
        "difference": differences(ours, scaled, labels),
    }


def verdicts(row: dict[str, Any]) -> list[str]:
    """Return which of the three promises a network keeps: accuracy within .3 points, NLL and ECE within two errors."""
    missed = []
    if row["difference"]["accuracy"][0] < -0.003:
        missed.append("accuracy")
    for key in ("nll", "ece"):
        value, error = row["difference"][key]
        if value > 2 * error:
            missed.append(key)
    return missed


def table(results: dict[str, Any]) -> str:
    """Return the results in Markdown."""
    head = [
        "| network | rows: train, validation, test | accuracy: network, posterior | NLL: network, scaled, posterior "
        "| difference to scaled (its error) | ECE: network, scaled, posterior | difference to scaled (its error) "
        "| own training, bayesianize | kept |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines = []
    for row in results.values():
        plain, scaled, ours, gap = (row[key] for key in ("plain", "scaled", "posterior", "difference"))
        own, made = row["own_training"], row["bayesianize"]
        lines.append(
            f"| {row['network']}, {row['data']} | {', '.join(f'{n:,}' for n in row['rows'])} "
            f"| {100 * plain['accuracy']:.2f} %, {100 * ours['accuracy']:.2f} % "
            f"| {plain['nll']:.4f}, {scaled['nll']:.4f}, {ours['nll']:.4f} "
            f"| {gap['nll'][0]:+.4f} ({gap['nll'][1]:.4f}) "
            f"| {plain['ece']:.4f}, {scaled['ece']:.4f}, {ours['ece']:.4f} "
            f"| {gap['ece'][0]:+.4f} ({gap['ece'][1]:.4f}) "
            f"| {own['steps']:,} steps, {own['seconds']:.0f} s; {made['steps']:,} steps, {made['seconds']:.0f} s "
            f"| {'all three' if not verdicts(row) else 'not ' + ' and '.join(verdicts(row))} |"
        )
    return "\n".join([*head, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1] if __doc__ else None)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--work", type=Path, default=Path("runs/bayesianize"), help="where trained networks are kept")
    parser.add_argument("--num-samples", type=int, default=30)
    parser.add_argument("--train-only", action="store_true", help="train the networks and stop")
    parser.add_argument("--table", action="store_true", help="print what the file holds, and measure nothing")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.is_file() else {}
    if options.table:
        print(table(results))
        return
    for name in options.only:
        if options.train_only:
            _, seconds = trained(name, JOBS[name], rows_of(JOBS[name], options.data_root), options.work)
            print(name, f"{seconds:.0f} s", flush=True)
            continue
        results[name] = measure(name, JOBS[name], options.data_root, options.work, options.num_samples)
        options.out.write_text(json.dumps({key: results[key] for key in JOBS if key in results}, indent=1) + "\n")
        print(table({name: results[name]}).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
