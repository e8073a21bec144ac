"""
Every method in one table: `python -m benchmarks.posteriors` writes docs/posteriors.md.

Two parts. On mnist-mini all methods train LeNet-5 for as many passes over the same rows, from the same starts,
on three seeds: accuracy, predictive NLL, ECE, Brier, OOD AUROC, held-out elpd, seconds. On a regression with 20 rows,
small enough for NUTS, the table says how far each posterior's function draws are from NUTS, with NUTS against NUTS as
the floor.

`--quick` runs both parts in a minute or two, to see that they run. `--rows "low rank 5 (SVI)"` makes some rows again in
the page that is there (with what they are paired with and NUTS, as often as they need it).
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from pyro_bnn.analysis.scores.metrics import classification_metrics
from pyro_bnn.analysis.scores.ood import accumulate, auroc, shuffled_pixels
from pyro_bnn.data import load_data
from pyro_bnn.inference import SGLD, lmc
from pyro_bnn.references.distance import distance
from pyro_bnn.runs.train import Run, train

ROOT = Path(__file__).parent.parent
DRAWS = 30
EPOCHS = 12
MEMBERS = 4
SEEDS = (0, 1, 2)

IMAGES: dict[str, dict[str, Any]] = {
    "maximum likelihood": {"method": "ml"},
    "MAP": {"method": "map"},
    "MC dropout, 0.05": {"method": {"name": "mc_dropout", "rate": 0.05}},
    "mean field (SVI)": {"method": "svi"},
    "low rank 5 (SVI)": {"method": "svi", "guide": {"name": "low_rank", "rank": 5}},
    "SWA of mean field": {"method": {"name": "swa", "start": 8, "cycle": 1, "low": 0.05}},
    "EMA of mean field": {"method": {"name": "ema", "decay": 0.95}},
    "HWA, total": {"method": {"name": "hwa", "start": 8, "cycle": 1, "low": 0.05}},
    "HWA, within": {"method": {"name": "hwa", "start": 8, "cycle": 1, "low": 0.05, "variance": "within"}},
    "HWA, trajectory": {"method": {"name": "hwa", "start": 8, "cycle": 1, "low": 0.05, "variance": "trajectory"}},
    "HWA, literal": {"method": {"name": "hwa", "start": 8, "cycle": 1, "low": 0.05, "variance": "literal"}},
    "low rank 4 (trajectory)": {"method": {"name": "low_rank", "start": 8, "cycle": 1, "low": 0.05}},
    "SGLD": {"method": {"name": "sgld", "lr": 0.1, "draws": DRAWS}},
    "preconditioned SGLD": {"method": {"name": "sgld", "lr": 4e-3, "draws": DRAWS, "precondition": 0.99}},
    "cyclic SGLD": {"method": {"name": "cyclic_sgld", "lr": 0.1, "draws": DRAWS, "cycles": 3, "explore": 0.7}},
    "LMC (full batch)": {"method": {"name": "lmc", "lr": 0.1, "draws": DRAWS}},
    f"ensemble of {MEMBERS} MAP": {
        "method": {"name": "ensemble", "of": "map", "members": MEMBERS},
        "epochs": EPOCHS // MEMBERS,
    },
    f"ensemble of {MEMBERS} mean field": {
        "method": {"name": "ensemble", "of": "svi", "members": MEMBERS},
        "epochs": EPOCHS // MEMBERS,
    },
}

# ------------------------------------------------------------------------------------------------ mnist-mini


def score(run: Run, seed: int) -> dict[str, float]:
    """Return a row of the table."""
    test = load_data("mnist-mini", val_fraction=0.1, seed=seed).test
    familiar = accumulate(run.posterior, test.x, DRAWS, 0)
    strange = accumulate(run.posterior, shuffled_pixels(test.x), DRAWS, 0)
    metrics = classification_metrics(familiar.log_probs, test.y)
    return {
        **{key: metrics[key] for key in ("accuracy", "pred_nll", "ece", "brier")},
        "auroc": auroc(familiar.total, strange.total),
        "elpd": -metrics["pred_nll"] * len(test),
        "seconds": run.results["seconds"]["train"],
    }


def images(seeds: Sequence[int], names: Sequence[str], **settings: Any) -> dict[str, list[dict[str, float]]]:
    """Train and score every method on every seed."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for seed in seeds:
        for name in names:
            run = train(
                "lenet5-mnist-mini",
                progress=False,
                **{"epochs": EPOCHS, "seed": seed, "num_samples": 1, **settings, **IMAGES[name]},
            )
            rows[name].append(score(run, seed))
            print(seed, name, json.dumps({k: round(v, 4) for k, v in rows[name][-1].items()}), flush=True)
    return rows


def paired_interval(differences: Sequence[float]) -> str:
    """Mean and half-width of the 95 % paired-t interval."""
    values = np.asarray(differences)
    if len(values) < 2:
        return f"{values.mean():+.4f}"
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{values.mean():+.4f} ± {half:.4f}"


COLUMNS = {
    "accuracy": ("accuracy %", 100, 2),
    "pred_nll": ("predictive NLL", 1, 4),
    "ece": ("ECE", 1, 4),
    "brier": ("Brier", 1, 4),
    "auroc": ("OOD AUROC", 1, 3),
    "elpd": ("held-out elpd", 1, 1),
    "seconds": ("seconds", 1, 1),
}


def cell(values: Sequence[float], factor: float, digits: int) -> str:
    array = factor * np.asarray(values)
    sd = f" ± {array.std(ddof=1):.{digits}f}" if len(array) > 1 else ""
    return f"{array.mean():.{digits}f}{sd}"


def image_table(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    base = rows.get("mean field (SVI)")
    lines = ["| posterior | " + " | ".join(label for label, _, _ in COLUMNS.values()) + " | NLL against mean field |"]
    lines.append("|---|" + "---:|" * (len(COLUMNS) + 1))
    for name, found in rows.items():
        cells = [cell([row[key] for row in found], factor, digits) for key, (_, factor, digits) in COLUMNS.items()]
        against = (
            ""
            if base is None
            else paired_interval([row["pred_nll"] - other["pred_nll"] for row, other in zip(found, base, strict=True)])
        )
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {against} |")
    return lines


# ------------------------------------------------------------------------------------------------- against NUTS

GRID = torch.linspace(-1.6, 1.6, 33)[:, None]
ROWS = 20

WAVE: dict[str, Any] = {
    "model": "mlp",
    "model_args": {"hidden": [8], "activation": "tanh"},
    "likelihood": {"name": "gaussian", "noise": 0.4},
    "prior": {"name": "normal", "scale": 1.0},
    "val_fraction": 0.0,
    "data_args": {},
    "eta": 1.0,
    "estimator": "total",
    "batch_size": ROWS,
    "epochs": 2000,
    "num_samples": 200,
    "optim": {"loc": {"name": "adam", "lr": 0.01}, "scale": {"name": "adam", "lr": 0.01}},
    "schedule": "cosine",
}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "maximum likelihood": {"method": "ml"},
    "MAP": {"method": "map"},
    "MC dropout, 0.1": {"method": {"name": "mc_dropout", "rate": 0.1}},
    "mean field (SVI)": {"method": "svi"},
    "low rank 5 (SVI)": {"method": "svi", "guide": {"name": "low_rank", "rank": 5}, "estimator": "analytic"},
    "HWA, total": {"method": {"name": "hwa", "start": 1000, "cycle": 40}},
    "low rank 10 (trajectory)": {"method": {"name": "low_rank", "start": 1000, "cycle": 40}},
    "SGLD, batches of 5": {
        "method": {"name": "sgld", "lr": 2e-3, "draws": 200, "burn_in": 250},
        "batch_size": 5,
        "epochs": 1250,
    },
    "preconditioned SGLD, batches of 5": {
        "method": {"name": "sgld", "lr": 5e-4, "draws": 200, "burn_in": 250, "precondition": 0.99},
        "batch_size": 5,
        "epochs": 1250,
    },
    "LMC": {"method": {"name": "lmc", "lr": 5e-3, "draws": 200, "burn_in": 1000}, "epochs": 5000},
    "ensemble of 5 MAP": {"method": {"name": "ensemble", "of": "map", "members": 5}, "epochs": 1000},
    "ensemble of 5 mean field": {"method": {"name": "ensemble", "of": "svi", "members": 5}, "epochs": 1000},
}


def write_wave(folder: Path) -> str:
    """Two clusters of inputs and a gap between them."""
    generator = np.random.default_rng(1)
    x = np.concatenate([generator.uniform(-2, -0.7, ROWS // 2), generator.uniform(0.5, 2, ROWS // 2)])
    y = np.sin(2 * x) + 0.3 * generator.normal(size=ROWS)
    x, y = x[:, None].astype(np.float32), y.astype(np.float32)
    path = folder / "wave.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return str(path)


def functions(run: Run, draws: int) -> Tensor:
    """Return draws of the regression function on the grid, (S, N)."""
    return run.posterior.draws(GRID, num_samples=draws, seed=0).reshape(draws, -1).double()


def against_nuts(quick: bool, names: Sequence[str]) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Run NUTS twice and every other method of `names` once; return the distances and the verdict on NUTS."""
    chains: dict[str, Any] = {"name": "nuts", "chains": 4, "warmup": 300, "draws": 300, "max_tree_depth": 7}
    if quick:
        chains |= {"warmup": 30, "draws": 30, "max_tree_depth": 5}
    with tempfile.TemporaryDirectory() as folder:
        common = {**WAVE, "data": write_wave(Path(folder))}
        runs = [
            train("lenet5-mnist-mini", progress=False, **{**common, "method": chains, "seed": seed}) for seed in (0, 1)
        ]
        facts = [{**run.results["facts"], "seconds": run.results["seconds"]["train"]} for run in runs]
        print(json.dumps(facts), flush=True)
        total = chains["chains"] * chains["draws"]
        reference = functions(runs[0], total)
        found = {
            "NUTS, other seeds": {**distance(functions(runs[1], total), reference), "seconds": facts[1]["seconds"]}
        }
        for name in names:
            settings = FUNCTIONS[name]
            short = {"epochs": 20} if quick else {}
            if quick and not isinstance(settings["method"], str):
                settings = {**settings, "method": {k: v for k, v in settings["method"].items() if k not in _LONG}}
            run = train("lenet5-mnist-mini", progress=False, **{**common, **settings, **short})
            found[name] = {
                **distance(functions(run, 200), reference),
                "seconds": run.results["seconds"]["train"],
            }
            print(name, json.dumps({k: round(v, 4) for k, v in found[name].items()}), flush=True)
    return found, {"chains": chains, "runs": facts}


_LONG = ("start", "cycle", "burn_in")


def function_table(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = [
        "| posterior | Wasserstein-1 | error of the mean | ratio of deviations | seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in found.items():
        lines.append(
            f"| {name} | {row['wasserstein']:.3f} | {row['mean']:.3f} | {row['sd_ratio']:.2f} | {row['seconds']:.1f} |"
        )
    return lines


# ------------------------------------------------------------------------------------------- Langevin's biases


def _run_sgld(gradient: Callable[[Tensor], Tensor], chains: int, steps: int, **numbers: Any) -> Tensor:
    w = torch.nn.Parameter(torch.randn(chains, dtype=torch.float64))
    sampler = SGLD([w], **numbers)
    for _ in range(steps):
        w.grad = gradient(w.detach())
        sampler.step()
    return w.detach()


def langevin_table() -> list[str]:
    """Second moments on a unit quadratic: the target's, what theory says of the draws, and the draws'."""
    torch.manual_seed(0)
    chains, lines = 20_000, ["| sampler | target | theory | measured |", "|---|---:|---:|---:|"]
    for gamma in (0.1, 1.0):
        last = list(lmc(lambda w: w, torch.randn(chains, 1, dtype=torch.float64), gamma, 200, burn_in=199))[-1]
        lines.append(f"| LMC, step {gamma} | 1 | {1 / (1 - gamma / 2):.3f} | {last.square().mean():.3f} |")
    alpha, noise = 0.1, 2.0
    w = _run_sgld(lambda w: w + noise * torch.randn_like(w), chains, 200, lr=alpha, num_data=1)
    theory = (1 + alpha * noise**2 / 2) / (1 - alpha / 2)
    lines.append(f"| SGLD, step {alpha}, gradient noise of sd {noise:g} | 1 | {theory:.3f} | {w.square().mean():.3f} |")
    eps, grid = 0.5, torch.linspace(-12, 12, 100_001, dtype=torch.float64)
    bent = torch.softmax(torch.log(eps + grid.abs()) - grid.square() / 2, 0)
    for beta, theory_text in ((1e-12, f"{float((bent * grid.square()).sum()):.3f}"), (0.9, "-"), (0.9999, "-")):
        w = _run_sgld(lambda w: w, chains, 1500, lr=0.01, num_data=1, precondition=beta, eps=eps)
        lines.append(f"| preconditioned SGLD, beta = {beta:g} | 1 | {theory_text} | {w.square().mean():.3f} |")
    return lines


# ------------------------------------------------------------------------------------------------------- page


INTRODUCTION = """
LeNet-5 on mnist-mini (4,500 training rows, 1,000 test rows), eta = 0.1, {epochs} passes over the rows in all (members
of an ensemble share them), {seeds} paired seeds, {draws} draws. Mean ± sd over seeds; the last column is the paired
difference with its 95 % t interval, and below 0 is better than mean field. OOD: entropy on test images with shuffled
pixels. Step sizes of the Langevin samplers, the dropout rate and where averages begin were chosen among two or three
values each on the validation rows of another seed; all else is the recipe's. The table compares methods at this budget
and size and nothing else.
"""
BIASES = """
What the rows are biased by: SGLD by its step and the noise of its minibatches, preconditioned SGLD also by the missing
divergence of its preconditioner, cyclic SGLD by a step that never settles, LMC by its step and by having {epochs} of
them. HWA's `literal` variance is the printed one, taken as 0 where it is negative.
"""
LANGEVIN = """
Second moments of the draws on U = w^2 / 2, 20,000 chains. LMC and SGLD are too wide by their step, SGLD also by its
gradient noise; preconditioned SGLD without the divergence of its preconditioner follows exp(-U) / G, all of it where G
is of the present gradient (beta near 0), little where it is slow (beta near 1).
"""
REFERENCE = """
Regression on {rows} rows, one hidden layer of 8 units (25 weights), known noise, eta = 1. NUTS in float64, {chains}
chains of {draws} draws after {warmup} steps of warm-up, twice from other seeds: {judged}. {usable} Distances are
between draws of the regression function at 33 inputs, in units of NUTS's standard deviation there; the first line is
the floor. Nothing was tuned here: a kind far from NUTS may be so by its step size.
"""


def page(rows: Any, found: Any, verdict: Mapping[str, Any], seeds: Sequence[int], quick: bool) -> str:
    judged = [
        f"R-hat {run['rhat']:.4f}, bulk ESS {run['ess_bulk']:.0f}, {run['divergences']} divergences"
        for run in verdict["runs"]
    ]
    usable = all(run["reference"] for run in verdict["runs"])
    reference = REFERENCE.format(
        rows=ROWS,
        judged="; ".join(judged),
        usable="Both count as a reference."
        if usable
        else "They do NOT count as a reference (R-hat <= 1.01, ESS >= 400).",
        **{key: verdict["chains"][key] for key in ("chains", "draws", "warmup")},
    )
    command = f"python -m benchmarks.posteriors{' --quick' if quick else ''}"
    parts = [
        "# Posteriors compared\n",
        f"Made by `{command}`; every method is a line of a recipe (`method = ...`).\n",
        "## Digits, equal budgets",
        INTRODUCTION.format(epochs=EPOCHS, seeds=len(seeds), draws=DRAWS),
        *image_table(rows),
        BIASES.format(epochs=EPOCHS),
        "## The biases of Langevin samplers",
        LANGEVIN,
        *langevin_table(),
        "\n## Distance from NUTS",
        reference,
        *function_table(found),
    ]
    return "\n".join(parts) + "\n"


def with_rows(text: str, names: Sequence[str], rows: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The page with some rows of its two tables replaced, each by its name; the others stay as they are."""
    digits, heading, functions_ = text.partition("## Distance from NUTS")
    for lines, of_digits in (
        (image_table(rows) if rows else [], True),
        (function_table(found) if found else [], False),
    ):
        for line in lines[2:]:
            name = line.split("|")[1].strip()
            part = digits if of_digits else functions_
            old = [kept for kept in part.splitlines() if kept.startswith(f"| {name} |")]
            if name not in names:
                continue
            if len(old) != 1:
                raise ValueError(f"the page has {len(old)} rows {name!r} to be replaced: write it anew, without --rows")
            part = part.replace(old[0], line)
            digits, functions_ = (part, functions_) if of_digits else (digits, part)
    return digits + heading + functions_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    known = sorted({*IMAGES, *FUNCTIONS})
    parser.add_argument("--rows", nargs="+", choices=known, help="replace these rows alone, in the page that is there")
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures mean nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "posteriors.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = SEEDS[:1] if given.quick else SEEDS
    settings: dict[str, Any] = {"data_args": {"train_size": 400, "test_size": 100}} if given.quick else {}
    if given.rows:
        chosen = [name for name in FUNCTIONS if name in given.rows]
        found = against_nuts(given.quick, chosen)[0] if chosen else {}
        paired = [name for name in IMAGES if name in (*given.rows, "mean field (SVI)")]
        rows = images(seeds, paired, **settings) if len(paired) > 1 else {}
        given.out.write_text(with_rows(given.out.read_text(), given.rows, rows, found))
        print(f"wrote {given.out}")
        return
    found, verdict = against_nuts(given.quick, list(FUNCTIONS))
    rows = images(seeds, list(IMAGES), **settings)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(page(rows, found, verdict, seeds, given.quick))
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
