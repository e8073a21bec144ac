"""
Time this library beside its peers, on the same work, in one run.

    python -m benchmarks                          everything
    python -m benchmarks --resume                 go on where a run of everything was broken off
    python -m benchmarks --only lenet5 --rounds 40
    python -m benchmarks --quick                  a look, not a measurement

Training steps of eight networks, draws by layer, predictions with S = 100 draws on 10,000 images and those of a wide
network, the first three steps at 11 M weights, the cost of a weight from 10^4 to 10^8 weights with peak memory, import
times. Prints tables, writes results.json, chart.png and cost.png beside this file; what a run of everything has so far
is in unfinished.json. `python -m benchmarks.readme` puts the table into the README. A library that is not installed, or
does not run the work, is named with the reason.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor

from benchmarks.chart import draw
from benchmarks.contenders import BASE, CONTENDERS, LAYERS, WIDE, Contender
from benchmarks.cost import SIZES, draw_cost, one_size
from benchmarks.cost import as_text as cost_as_text
from benchmarks.processes import first_steps, import_times, prediction_memory, training_memory
from benchmarks.table import as_text
from benchmarks.timing import Step, Summary, rounds, summarise, warm_up
from benchmarks.work import digits, images, works
from pyro_bnn.common.machine import cpu_name
from pyro_bnn.common.memory import keep_freed_memory

FOLDER = Path(__file__).parent
KINDS = (
    *("lenet5", "resnet20", "mlp100", "wide-400", "wide-1200", "wide-3000", "encoder", "vgg16", "layers"),
    *("predict", "predict-wide", "first", "cost", "imports", "memory"),
)
Results = dict[str, Any]


def machine(threads: int) -> dict[str, Any]:
    """Say on what, and with which versions."""
    versions = {}
    for name in sorted({c.distribution for c in CONTENDERS}):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": os.getloadavg()[0],
        "versions": versions,
    }


def reason(error: BaseException) -> str:
    """Return the first line of an error, short enough for a table."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text if len(text) <= 160 else text[:157] + "..."


def prepare(
    build: Callable[[Contender], Step | None], calls: int, contenders: Sequence[Contender] = CONTENDERS
) -> tuple[dict[str, Step], dict[str, str]]:
    """Build everybody's step and take it a few times; return the steps, and why others have none."""
    pyro.clear_param_store()
    steps: dict[str, Step] = {}
    failed: dict[str, str] = {}
    for contender in contenders:
        try:
            step = build(contender)
            if step is not None:
                warm_up(step, calls)
                steps[contender.title] = step
        except Exception as error:  # a peer may fail in any way; it is named, with the reason
            failed[contender.title] = reason(error)
    return steps, failed


def entry(title: str, summaries: dict[str, Summary], failed: dict[str, str], **numbers: Any) -> Results:
    """Return one kind of work as plain data."""
    return {
        "title": title,
        "base": BASE.title,
        **numbers,
        "contenders": {name: asdict(summary) for name, summary in summaries.items()},
        "failed": failed,
    }


def training(
    name: str, count: int, calls: int, contenders: Sequence[Contender] = CONTENDERS, title: str = "Training step"
) -> Results:
    work = works()[name]
    steps, failed = prepare(lambda contender: contender.training_step(work), 5, contenders)
    summaries = summarise(rounds(steps, count, calls), BASE.title)
    return entry(f"{title}: {work.title}", summaries, failed, rounds=count, steps_per_round=calls)


def cost(sizes: Sequence[int], count: int, threads: int) -> Results:
    """Return what a weight costs beyond the deterministic step, by number of weights, each in its own process."""
    rows = []
    for size in sizes:
        rows.append(one_size(size, count, threads))
        print(cost_as_text({"rows": rows[-1:]}), flush=True)
    return {"title": "Cost of a weight by number of weights, MLP 784-W-W-10, batch 100", "rows": rows, "failed": {}}


def unfinished(path: Path, wanted: Results) -> Results | None:
    """Return what a run of everything on this machine, with these versions and options, has left; None if nothing."""
    if not path.exists():
        return None
    results: Results = json.loads(path.read_text())
    changing = ("load", "date")
    same = all(results["machine"].get(name) == value for name, value in wanted.items() if name not in changing)
    return results if same else None


def prediction(name: str, x: Tensor, samples: int, count: int, contenders: Sequence[Contender] = CONTENDERS) -> Results:
    work = works()[name]

    def build(contender: Contender) -> Step | None:
        if contender.predictor is None:
            return None
        predict = contender.predictor(work)

        def step() -> Tensor:
            return predict(x, samples)

        predict(x[:200], 2)  # fails, if it does, before the long work
        return step

    steps, failed = prepare(build, 0, contenders)
    summaries = summarise(rounds(steps, count, 1, warm=False), BASE.title)
    network = work.title.partition(", batch")[0]
    title = f"Predicting {len(x):,} images, {samples} draws: {network}"
    return entry(title, summaries, failed, rounds=count, draws=samples)


def first(name: str, count: int, threads: int) -> Results:
    """Return the time of the first three steps, each in a process of its own, in interleaved rounds."""
    seconds: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for _ in range(count):
        for contender in WIDE:
            if contender.title not in failed:
                try:
                    seconds.setdefault(contender.title, []).append(first_steps(contender.title, name, threads))
                except RuntimeError as error:
                    failed[contender.title] = reason(error)
    done = {title: values for title, values in seconds.items() if len(values) == count}
    return entry(f"First three steps: {works()[name].title}", summarise(done, BASE.title), failed, rounds=count)


def imports(count: int) -> Results:
    modules = {c.title: c.imports for c in CONTENDERS if c.imports is not None}
    everything = "pyro_bnn.models.bnn, pyro_bnn.guides.mean_field, pyro_bnn.inference.svi, pyro_bnn.inference.flat_elbo"
    installed: dict[str, str] = {}
    failed: dict[str, str] = {}
    for contender in CONTENDERS:
        if contender.title in modules:
            try:
                importlib.metadata.version(contender.distribution)
                installed[contender.title] = modules[contender.title]
            except importlib.metadata.PackageNotFoundError as error:
                failed[contender.title] = reason(error)
    installed["pyro-bnn, with all it takes to fit"] = everything
    summaries = summarise(import_times(installed, count), BASE.title)
    return entry("Importing", summaries, failed, rounds=count)


def memory(rows: int, threads: int) -> Results:
    training_mb: dict[str, float] = {}
    failed: dict[str, str] = {}
    for contender in CONTENDERS:
        try:
            training_mb[contender.title] = training_memory(contender.title, threads)
        except Exception as error:  # as above
            failed[contender.title] = reason(error)
    ours = next(c.title for c in CONTENDERS if c.distribution == "pyro-bnn")
    by_draws = {str(s): prediction_memory(ours, rows, s, threads) for s in (1, 10, 100)}
    return {
        "title": "Peak memory of a process, MB",
        "training_mb": training_mb,
        "prediction_mb_by_draws": by_draws,
        "failed": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", action="append", choices=KINDS, help="measure this only; may be repeated")
    parser.add_argument("--rounds", type=int, default=60, help="paired rounds of a training step (default 60)")
    parser.add_argument("--predict-rounds", type=int, default=2, help="paired rounds of prediction (default 2)")
    parser.add_argument("--steps", type=int, default=3, help="steps per round (default 3)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--resume", action="store_true", help="go on with the rows that a broken run did not come to")
    parser.add_argument("--quick", action="store_true", help="few rounds and little data: a look, not a measurement")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for results.json and chart.png")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the peers' own
    keep_freed_memory()  # or chance decides which contender fetches its buffers anew in every step
    torch.set_num_threads(options.threads)
    count = 3 if options.quick else options.rounds
    rows, samples = (1_000, 10) if options.quick else (10_000, 100)
    measure: dict[str, Callable[[], Results]] = {
        "lenet5": lambda: training("lenet5", count, options.steps),
        "resnet20": lambda: training("resnet20", count, 1),
        "mlp100": lambda: training("mlp100", min(count, 40), options.steps),
        **{
            name: partial(training, name, min(count, rounds_), steps, contenders)
            for name, rounds_, steps, contenders in (
                ("wide-400", 40, options.steps, WIDE),
                ("wide-1200", 40, options.steps, WIDE),
                ("wide-3000", 20, 1, WIDE),
                ("encoder", 10, 1, WIDE),
                ("vgg16", 5, 1, WIDE),
            )
        },
        "layers": lambda: training("lenet5", min(count, 40), options.steps, LAYERS, "Draws by layer"),
        "cost": lambda: cost(SIZES[:4] if options.quick else SIZES, 3 if options.quick else 40, options.threads),
        "predict": lambda: prediction("lenet5", images(rows), samples, 2 if options.quick else options.predict_rounds),
        "predict-wide": lambda: prediction("wide-3000", digits(rows // 10), samples // 10, min(count, 3), WIDE),
        "first": lambda: first("wide-3000", min(count, 3), options.threads),
        "imports": lambda: imports(2 if options.quick else 3),
        "memory": lambda: memory(rows, options.threads),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path, begun = options.out / "results.json", options.out / "unfinished.json"
    about = {**machine(options.threads), "quick": options.quick}
    results: Results = {"work": {}}
    if options.only and path.exists():
        results = json.loads(path.read_text())
    elif options.resume:
        results = unfinished(begun, about) or results
    results["machine"] = about
    for kind in options.only or [kind for kind in KINDS if kind not in results["work"]]:
        start = time.perf_counter()
        found = measure[kind]()
        results["work"][kind] = {**found, "date": about["date"], "seconds": round(time.perf_counter() - start)}
        print(f"{as_text(results['work'][kind])}\n  {results['work'][kind]['seconds']} s", flush=True)
        (path if options.only else begun).write_text(json.dumps(results, indent=1) + "\n")
    if not options.only:
        os.replace(begun, path)
    draw(results, options.out / "chart.png")
    if "cost" in results["work"]:
        draw_cost(results, options.out / "cost.png")
    print(f"wrote {path} and {options.out / 'chart.png'}")


if __name__ == "__main__":
    main()
