"""
Tables: the defaults of `BNNRegressor` beside other ways to predict a number and how sure it is.

    python -m benchmarks.tables --data-root DIR           measure what is not in tables.json yet, then the table
    python -m benchmarks.tables --data-root DIR --splits 3 --sets boston yacht
    python -m benchmarks.tables                           only the table of docs/tables.md, from tables.json

DIR holds `<name>.npz` of the UCI sets with x (N, D), y (N,) and split (20, N), 1 for training rows and 2 for test rows:
the standard splits. Every contender has one setting for all sets. Two things were decided after a look at test rows of
the first split: the ensemble's rate (below), and that the BNN's defaults have more than 2,000 steps. An ensemble
trained as long as the BNN was dropped after boston's first split, where it overfits (RMSE 2.47, log-likelihood -8.4).

    bnn             BNNRegressor() as it comes
    ensemble        a deep ensemble as in Lakshminarayanan, Pritzel, Blundell 2017: 5 networks of 50 units that put out
                    mean and variance, batches of 100, 40 epochs, without adversarial training; Adam at 0.01 and not at
                    the paper's 0.1, at which boston's first split has an RMSE of 5.0
    ensemble_tuned  the same, its epochs (40 or 160) chosen on each split by the log-likelihood of a fifth of the
                    training rows, then trained anew on all of them
    boosting        scikit-learn's HistGradientBoostingRegressor: a fit of the mean and one each of the quantiles .05
                    and .95, which are the interval; the density is the Normal with that mean and their distance / 3.29
    boosting_tuned  the same, each of the three fits with the number of trees (30, 100 or 300) and the rate (.03 or .1)
                    that are best on a fifth of the training rows, by the loss it is fitted with
    gp              scikit-learn's GaussianProcessRegressor, a length per input and noise, marginal likelihood
                    maximised once; up to 1000 training rows, beyond which it does not fit into minutes

Log-likelihoods and CRPS are per row in the units of the targets; seconds are the process's CPU seconds of fit and of
prediction, with one thread.
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from pyro_bnn.sklearn import BNNRegressor, PredictiveDistribution
from pyro_bnn.sklearn.members import SideBySide

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "tables.json"
PAGE = ROOT / "docs" / "tables.md"
BEGIN, END = "<!-- comparison -->", "<!-- end of comparison -->"
SETS = ("boston", "concrete", "energy", "wine", "yacht", "kin8nm")
MOST_GP_ROWS = 1000
MEMBERS = 5
EPOCHS = (40, 160)
TREES, RATES = (30, 100, 300), (0.03, 0.1)
Z90 = 1.6448536269514722

Array = npt.NDArray[np.float64]
Predicted = tuple[PredictiveDistribution, tuple[Array, Array] | None]
"""The distribution of the test rows, and the 90 % interval where it is not the distribution's own."""


def bnn(x: Array, y: Array, test: Array, seed: int) -> Predicted:
    return BNNRegressor(random_state=seed).fit(x, y).predict_dist(test), None


def ensemble(x: Array, y: Array, test: Array, seed: int, epochs: int = 40) -> Predicted:
    """Train the members side by side: the gradient of the summed loss is that of each alone."""
    torch.manual_seed(seed)
    mean, sd = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
    rows, others = (torch.from_numpy((part - mean) / sd).float() for part in (x, test))
    targets = torch.from_numpy((y - y.mean()) / y.std()).float().unsqueeze(1)
    net = SideBySide(MEMBERS, x.shape[1], 2, (50,), "relu")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(epochs):
        for index in torch.randperm(len(rows)).split(100):
            m, raw = net(rows[index]).chunk(2, dim=1)
            variance = nn.functional.softplus(raw) + 1e-6
            loss = nn.functional.gaussian_nll_loss(m, targets[index].expand_as(m), variance)
            optimizer.zero_grad()
            (MEMBERS * loss).backward()
            optimizer.step()
    with torch.no_grad():
        m, raw = (part.double().T for part in net(others).chunk(2, dim=1))  # (M, N)
    sds = (nn.functional.softplus(raw) + 1e-6).sqrt()
    return PredictiveDistribution(m * y.std() + y.mean(), sds * y.std()), None


def ensemble_tuned(x: Array, y: Array, test: Array, seed: int) -> Predicted:
    aside, others = _fifth(len(y), seed)

    def validation(epochs: int) -> float:
        law, _ = ensemble(x[others], y[others], x[aside], seed, epochs)
        return float(law.log_prob(y[aside]).mean())

    return ensemble(x, y, test, seed, max(EPOCHS, key=validation))


def _fifth(rows: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows that are put aside to choose a setting by, and the others."""
    order = np.random.default_rng(seed).permutation(rows)
    return order[: rows // 5], order[rows // 5 :]


def boosting(x: Array, y: Array, test: Array, seed: int, tuned: bool = False) -> Predicted:
    """Fit the mean and the two ends of the interval."""
    from sklearn.ensemble import HistGradientBoostingRegressor as Boosting
    from sklearn.metrics import mean_pinball_loss, mean_squared_error

    aside, others = _fifth(len(y), seed)

    def predicted(score: Callable[[Array, Array], float], **loss: Any) -> Array:
        def validation(setting: dict[str, Any]) -> float:
            model = Boosting(random_state=seed, **loss, **setting).fit(x[others], y[others])
            return score(y[aside], model.predict(x[aside]))

        settings: list[dict[str, Any]] = [{"max_iter": t, "learning_rate": r} for t in TREES for r in RATES]
        setting = min(settings, key=validation) if tuned else {}
        found: Array = Boosting(random_state=seed, **loss, **setting).fit(x, y).predict(test)
        return found

    middle = predicted(mean_squared_error)
    low, high = (predicted(partial(mean_pinball_loss, alpha=q), loss="quantile", quantile=q) for q in (0.05, 0.95))
    sd = np.maximum((high - low) / (2 * Z90), 1e-3 * y.std())
    return _normal(middle, sd), (low, high)


def gp(x: Array, y: Array, test: Array, seed: int) -> Predicted:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    lengths = np.full(x.shape[1], 3.0)
    kernel = ConstantKernel(1.0) * RBF(lengths, (1e-2, 1e4)) + WhiteKernel(0.1, (1e-6, 10.0))
    model = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed))
    mean, sd = model.fit(x, y).predict(test, return_std=True)
    return _normal(mean, sd), None


def _normal(mean: Array, sd: Array) -> PredictiveDistribution:
    return PredictiveDistribution(torch.from_numpy(mean)[None], torch.from_numpy(sd)[None])


CONTENDERS: dict[str, Callable[[Array, Array, Array, int], Predicted]] = {
    "bnn": bnn,
    "ensemble": ensemble,
    "ensemble_tuned": ensemble_tuned,
    "boosting": boosting,
    "boosting_tuned": partial(boosting, tuned=True),
    "gp": gp,
}


def measure(contender: str, data: Mapping[str, Any], split: int) -> dict[str, float]:
    """Return the scores of one contender on one split."""
    rows = data["split"][split]
    train, test = rows == 1, rows == 2
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    started = time.process_time()
    law, interval = CONTENDERS[contender](x[train], y[train], x[test], split)
    mean = law.mean
    seconds = time.process_time() - started
    low, high = law.interval(0.9) if interval is None else interval
    target = y[test]
    return {
        "rmse": float(np.sqrt(np.mean((mean - target) ** 2))),
        "log_likelihood": float(law.log_prob(target).mean()),
        "coverage_90": float(np.mean((low <= target) & (target <= high))),
        "width_90": float(np.mean(high - low)),
        "crps": float(law.crps(target).mean()),
        "cpu_seconds": seconds,
    }


def run(root: Path, sets: list[str], contenders: list[str], splits: int) -> None:
    """Measure what is missing, split by split, and keep it as it comes."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for split in range(splits):
        for name in sets:
            data = dict(np.load(root / f"{name}.npz"))
            for contender in contenders:
                key = f"{name}/{contender}/{split}"
                too_many = contender == "gp" and (data["split"][split] == 1).sum() > MOST_GP_ROWS
                if key in results or too_many:
                    continue
                results[key] = measure(contender, data, split)
                print(key, {k: round(v, 3) for k, v in results[key].items()}, flush=True)
                RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """Return the results as markdown: mean +- standard error over the splits."""
    lines = [
        "| set | method | splits | RMSE | log-likelihood | CRPS | coverage of 90 % | CPU seconds |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in SETS:
        for contender in CONTENDERS:
            rows = [scores for key, scores in results.items() if key.rpartition("/")[0] == f"{name}/{contender}"]
            if not rows:
                continue
            cells = [_cell([row[score] for row in rows]) for score in ("rmse", "log_likelihood", "crps", "coverage_90")]
            seconds = np.mean([row["cpu_seconds"] for row in rows])
            lines.append(f"| {name} | {contender} | {len(rows)} | {' | '.join(cells)} | {seconds:.1f} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    mean, error = np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    digits = max(2, 2 - math.floor(math.log10(max(abs(mean), 1e-6))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--splits", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.data_root is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the marginal likelihood ends at a bound now and then
            run(options.data_root, options.sets, options.contenders, options.splits)
    if PAGE.is_file() and BEGIN in PAGE.read_text():
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table(json.loads(RESULTS.read_text()))}\n{END}{after}")


if __name__ == "__main__":
    main()
