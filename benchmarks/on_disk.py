"""
Seconds of an epoch from memory, from mapped files and through DataLoaders: `python -m benchmarks.on_disk`.

LeNet-5 on random images of MNIST's size, one thread. Rounds of all kinds are interleaved; a kind's figure is its
fastest epoch, and beside it the ratio to that from memory, and whether the parameters are the same bits.
"""

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn.common.memory import keep_freed_memory
from pyro_bnn.data import mapped
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, LeNet5, likelihoods, priors
from pyro_bnn.optim import Adam, PerSite

__all__ = ["main"]

_BATCH = 100


def _train(data: Any, n: int, epochs: int) -> tuple[torch.Tensor, float]:
    """Return the means and the seconds of the fastest epoch."""
    torch.manual_seed(0)
    model = BNN(LeNet5(), priors.Kaiming(), likelihoods.Categorical(), num_data=n)
    guide = AutoMeanFieldNormal(model)
    optim = PerSite(loc=Adam({"lr": 1e-3}), scale=Adam({"lr": 1e-3}))
    size = None if isinstance(data, DataLoader) else _BATCH
    history = fit(model, guide, optim, data, epochs=epochs, batch_size=size, seed=0, progress=False).history
    ends = [0.0, *(line["seconds"] for line in history)]
    return guide.loc_unconstrained.detach(), min(late - early for early, late in itertools.pairwise(ends))


def main() -> None:
    """Measure all kinds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    x = random.normal(size=(options.rows, 1, 28, 28)).astype(np.float32)
    y = random.integers(0, 10, options.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        np.savez(folder / "rows.npz", x=x, y=y)
        memory = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        kinds: dict[str, Any] = {
            "memory": (x, y),
            "folder": mapped(folder),
            "npz": mapped(folder / "rows.npz"),
            "loader of tensors": DataLoader(memory, _BATCH, shuffle=True),
            "loader of mapped rows": DataLoader(mapped(folder), _BATCH, shuffle=True),
        }
        found = {kind: [_train(data, options.rows, options.epochs) for _ in range(1)] for kind, data in kinds.items()}
        for _ in range(options.rounds - 1):
            for kind, data in kinds.items():
                found[kind].append(_train(data, options.rows, options.epochs))
    wanted, base = found["memory"][0][0], min(seconds for _, seconds in found["memory"])
    for kind, runs in found.items():
        fastest = min(seconds for _, seconds in runs)
        same = "the same bits" if torch.equal(runs[0][0], wanted) else "another order"
        print(f"{kind:24} {fastest:6.3f} s, times memory {fastest / base:.2f}; {same}")


if __name__ == "__main__":
    main()
