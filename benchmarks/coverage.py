"""
How often conformal intervals and sets hold the truth on real rows: `python -m benchmarks.coverage --data-root DIR`.

A posterior is fitted once, with few steps, on 2000 rows of kin8nm and power (DIR as in `benchmarks.tables`) and on 600
rows of scikit-learn's digits. The other rows are split at random, half to calibrate and half to test, 100 times; every
score is computed once for all of them. Prints the mean coverage over the splits, its deviation between splits, what the
model's own interval or set held, and the mean width or size.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.analysis.conformal import conformal_quantile, cqr_scores, normalised_scores
from pyro_bnn.analysis.conformal_sets import class_scores
from pyro_bnn.sklearn import BNNClassifier, BNNRegressor

SPLITS = 100
STEPS = 1000


def report(name: str, scores: Tensor, sizes: Tensor | None, own: float, level: float) -> None:
    """Print the coverage of labels' scores (n,); sizes(q) is a width or size at scores of all classes (n, K)."""
    generator = torch.Generator().manual_seed(0)
    covered, widths = [], []
    for _ in range(SPLITS):
        order = torch.randperm(len(scores), generator=generator)
        calibration, test = order.tensor_split(2)
        q = conformal_quantile(scores[calibration], level)
        covered.append(float((scores[test] <= q).double().mean()))
        widths.append(float((sizes[test] <= q).double().sum(1).mean()) if sizes is not None else q)
    mean, sd = np.mean(covered), np.std(covered, ddof=1)
    what = "classes per set" if sizes is not None else "quantile"
    print(
        f"{name:24} level {level:.2f}: {100 * mean:.2f} % held, {100 * sd:.2f} between splits, own {100 * own:.1f} %, "
        f"{what} {np.mean(widths):.3f}",
        flush=True,
    )


def regression(root: Path, name: str) -> None:
    data = np.load(root / f"{name}.npz")
    order = np.random.default_rng(0).permutation(len(data["y"]))
    x, y = data["x"][order].astype(float), data["y"][order].astype(float)
    model = BNNRegressor(steps=STEPS, random_state=0).fit(x[:2000], y[:2000])
    law = model.predict_dist(x[2000:])
    rest = torch.from_numpy(y[2000:])
    mean, std = torch.from_numpy(law.mean), torch.from_numpy(law.std)
    for level in (0.5, 0.9):
        lower, upper = (torch.from_numpy(ends) for ends in law.interval(level))
        own = float(((lower <= rest) & (rest <= upper)).double().mean())
        report(f"{name} normalised", normalised_scores(mean, std, rest), None, own, level)
        report(f"{name} cqr", cqr_scores(lower, upper, rest), None, own, level)


def classification() -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] + 6 * np.random.default_rng(1).normal(size=x.shape), y[order]  # noisy, so that there is doubt
    model = BNNClassifier(steps=STEPS, random_state=0).fit(x[:600], y[:600])
    p, labels = torch.from_numpy(model.predict_proba(x[600:])), torch.from_numpy(y[600:])
    u = torch.rand(len(p), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for level in (0.9, 0.95):
        own = float((class_scores(p, "aps", u).gather(1, labels[:, None]) <= level).double().mean())
        for score in ("lac", "aps", "raps"):
            every = class_scores(p, score, u, penalty=0.05, free=2)
            report(f"digits {score}", every.gather(1, labels[:, None])[:, 0], every, own, level)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    root = parser.parse_args().data_root
    torch.set_num_threads(1)
    classification()
    for name in ("kin8nm", "power"):
        regression(root, name)


if __name__ == "__main__":
    main()
