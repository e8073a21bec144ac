"""
Draw mnist-mini from real MNIST: `python -m pyro_bnn.data.make_mini --root DIR [--out FILE]`.

5,000 training images from MNIST's training rows and 1,000 test images from its test rows, every class equally often,
in MNIST's own order, chosen with a fixed seed. The same MNIST gives the same file.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_bnn.data.sources import Source, read_source
from pyro_bnn.data.split import balanced_indices

__all__ = ["draw", "main"]

SEED = 20_240_501
TRAIN_ROWS, TEST_ROWS = 5_000, 1_000


def draw(mnist: Source, train_rows: int = TRAIN_ROWS, test_rows: int = TEST_ROWS) -> dict[str, np.ndarray]:
    """Choose the rows of MNIST that make the small set; return its arrays (uint8)."""
    generator = torch.Generator().manual_seed(SEED)
    arrays: dict[str, np.ndarray] = {}
    for part, rows, x, y in (
        ("train", train_rows, mnist.x_train, mnist.y_train),
        ("test", test_rows, mnist.x_test, mnist.y_test),
    ):
        chosen = balanced_indices(torch.from_numpy(y.astype(np.int64)), rows, generator).numpy()
        arrays[f"x_{part}"] = x[chosen].astype(np.uint8)
        arrays[f"y_{part}"] = y[chosen].astype(np.uint8)
    return arrays


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Draw mnist-mini from real MNIST.")
    parser.add_argument("--root", required=True, help="data root that holds MNIST (downloaded if it does not)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("mnist_mini.npz"), help="file to write")
    options = parser.parse_args(arguments)
    arrays: Any = draw(read_source("mnist", root=options.root))
    np.savez_compressed(options.out, **arrays)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
