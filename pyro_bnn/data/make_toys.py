"""
Write the embedded toy sets beside this file: `python -m pyro_bnn.data.make_toys`.

    and        the four rows of the logical and, for training and for test
    toy-line   y = 2 x - 1 + e, e ~ N(0, 0.3^2), x ~ U(-1, 1): 100 training and 100 test rows
    toy-cubic  y = x^3 + e, e ~ N(0, 3^2): 20 training rows with x ~ U(-4, 4), 200 test rows evenly over -6..6, where
               nothing is known beyond +-4 (Hernandez-Lobato and Adams 2015)
"""

from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

__all__ = ["main", "toys"]

SEED = 20_240_502


def toys() -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Return the arrays of every set by its name."""
    rng = np.random.default_rng(SEED)
    rows = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float32)
    both = np.array([0, 0, 0, 1], dtype=np.int64)
    sets: dict[str, dict[str, npt.NDArray[Any]]] = {}
    sets["and"] = {"x_train": rows, "y_train": both, "x_test": rows, "y_test": both}
    line = rng.uniform(-1, 1, (200, 1))
    on_line = 2 * line[:, 0] - 1 + 0.3 * rng.standard_normal(200)
    sets["toy-line"] = dict(x_train=line[:100], y_train=on_line[:100], x_test=line[100:], y_test=on_line[100:])
    near, far = rng.uniform(-4, 4, (20, 1)), np.linspace(-6, 6, 200)[:, None]
    cubic = [x[:, 0] ** 3 + 3 * rng.standard_normal(len(x)) for x in (near, far)]
    sets["toy-cubic"] = dict(x_train=near, y_train=cubic[0], x_test=far, y_test=cubic[1])
    return sets


def main() -> None:
    """Write the files."""
    for name, arrays in toys().items():
        path = Path(__file__).with_name(f"{name.replace('-', '_')}.npz")
        np.savez(path, **cast(Any, arrays))
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
