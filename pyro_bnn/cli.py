"""The command pyro-bnn: one thin function per verb.

A mistake is one line and exit code 2; `--debug` shows the traceback.
"""

import json
import os
import shlex
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyro_bnn.common.errors import summary
from pyro_bnn.common.interrupts import stopping_signals
from pyro_bnn.common.limits import limits, parse_limits
from pyro_bnn.common.memory import keep_freed_memory
from pyro_bnn.common.shown import visible
from pyro_bnn.registry import NotTrusted, trusting
from pyro_bnn.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from pyro_bnn.recipe import Recipe

__all__ = ["app", "main"]

app = typer.Typer(
    name="pyro-bnn",
    help="Bayesian neural networks as Pyro programs: train, score, predict.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)

Variant = Annotated[
    str | None, typer.Option("--variant", help="One of the recipe's variants (see `pyro-bnn list variants`).")
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", help="Run on a Ray cluster: local, or the address of one. Needs the extra ray."),
]
_RUN = "A run folder, a saved posterior or archive, the name of a shipped one, hf://USER/NAME or https://HOST/FILE.zip."
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the data sets; default PYRO_BNN_DATA, else the cache.")]

_ROWS = {
    "accuracy": ("accuracy", "%"),
    "pred_nll": ("predictive NLL", ""),
    "brier": ("Brier score", ""),
    "ece": ("ECE (15 bins)", ""),
    "confidence": ("confidence", "%"),
    "rmse": ("RMSE", ""),
}
_COLUMNS = {"plug_in": "plug-in", "one_draw": "1 sample (mean ± sd)", "s_draws": "{s} samples"}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="A package of yours whose classes or program a saved run may name; repeat."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(help="Raise a limit of what is read or asked for, NAME=NUMBER; repeat. docs/trust.md has them."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Bayesian neural networks as Pyro programs: train, score, predict."""
    context.with_resource(trusting(*(trust or ())))
    context.with_resource(limits(**parse_limits(limit or [])))


def _console() -> "Console":
    from pyro_bnn.runs.terminal import PlainConsole

    return PlainConsole()


def _say(text: str) -> None:
    """Print a line, with what a terminal would obey written out."""
    typer.echo(visible(text, keep="\n\t"))


def _figure(column: dict[str, float], key: str, unit: str) -> str:
    if key not in column:
        return "-"
    factor, digits = (100, 2) if unit == "%" else (1, 4)
    text = f"{factor * column[key]:.{digits}f}"
    if f"{key}_sd" in column:
        text += f" ± {factor * column[f'{key}_sd']:.{digits}f}"
    return f"{text} %" if unit == "%" else text


def show_results(results: dict[str, Any]) -> None:
    """Print the results table."""
    from rich.table import Table

    table = Table(
        title=f"{results['recipe']} on {results['data']} (test), eta = {results['eta']:g}", title_style="bold"
    )
    table.add_column("")
    columns = [key for key in _COLUMNS if key in results["test"]]
    for key in columns:
        table.add_column(_COLUMNS[key].format(s=results["num_samples"]), justify="right")
    present = set(results["test"][columns[-1]])
    rows = {**_ROWS, **{k: (k.replace("_", " "), "%") for k in sorted(present) if k.startswith("coverage")}}
    for key, (label, unit) in rows.items():
        if key in present:
            table.add_row(label, *(_figure(results["test"][column], key, unit) for column in columns))
    _console().print(table)
    for doubt in results.get("doubts", ()):
        _console().print(f"in doubt: {doubt}", style="bold red", markup=False, highlight=False)


@app.command("list")
def list_names(
    kind: Annotated[str | None, typer.Argument(help="One kind only: recipes, models, optimizers, ...")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what there is: recipes, models, data, priors, guides, optimizers, posteriors, ..."""
    from pyro_bnn.assemble import catalogue
    from pyro_bnn.runs.loading import shipped_posteriors
    from pyro_bnn.studies.run import study_names

    names = {**catalogue(), "variants": _variants(), "posteriors": shipped_posteriors(), "studies": study_names()}
    if kind is not None:
        if kind not in names:
            raise ValueError(f"unknown kind {kind!r}; the kinds are {', '.join(names)}")
        names = {kind: names[kind]}
    if as_json:
        typer.echo(json.dumps({key: _details(key, values) for key, values in names.items()}, indent=2))
        return
    details = None if kind is None else _details(kind, names[kind])
    if not sys.stdout.isatty():
        _say("\n".join(_plain_list(kind, names, details)))
        return
    from rich.table import Table
    from rich.text import Text

    if isinstance(details, dict):
        columns = _LISTED[str(kind)]
        table = _table_of(details, columns)
        while len(columns) > 2 and _width(table) > _console().width:  # the first one says what most names say, too
            columns = dict(list(columns.items())[1:])
            table = _table_of(details, columns)
    elif kind is not None:
        _say("\n".join(names[kind]))
        return
    else:
        table = Table(show_header=False, box=None, padding=(0, 2))
        for key, values in names.items():
            listed = f"{len(values)}: see `pyro-bnn list variants`" if key == "variants" else None
            table.add_row(Text(key, style="bold"), listed or ", ".join(values) or "-")
    _wide_enough(table).print(table)


def _table_of(details: dict[str, dict[str, Any]], columns: dict[str, str]) -> Any:
    """Return a table of what is said about names: one text that wraps, or several cells that do not."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), show_header=len(columns) > 1)
    table.add_column("", no_wrap=True)
    for label in columns.values():
        table.add_column(label, no_wrap=len(columns) > 1, min_width=30 if len(columns) == 1 else None)
    for name, detail in details.items():
        table.add_row(Text(name, style="bold"), *(Text(_shown(detail, column)) for column in columns))
    return table


def _width(table: Any) -> int:
    """Return how wide a table has to be so that nothing that does not wrap is cut."""
    from rich.measure import Measurement

    console = _console()
    measured = Measurement.get(console, console.options.update(width=1000), table)
    return measured.maximum if all(column.no_wrap for column in table.columns) else measured.minimum


def _plain_list(kind: str | None, names: dict[str, list[str]], details: Any) -> list[str]:
    """Return lines for a pipe: a name first, and what is said about it after a tab."""
    if kind is None:
        return [f"{key}\t{name}" for key, values in names.items() for name in values]
    if not isinstance(details, dict):
        return names[kind]
    return ["\t".join([n, *(_shown(detail, column) for column in _LISTED[kind])]) for n, detail in details.items()]


def _wide_enough(table: Any) -> "Console":
    """Return a console on which no name of the table is cut or wrapped, as wide as the terminal or wider."""
    from pyro_bnn.runs.terminal import PlainConsole

    console, needed = _console(), _width(table)
    return console if needed <= console.width else PlainConsole(width=needed)


_LISTED = {
    "recipes": {"description": ""},
    "variants": {"description": ""},
    "studies": {"claim": ""},
    "posteriors": {
        "data": "data",
        "eta": "eta",
        "accuracy": "accuracy",
        "pred_nll": "NLL",
        "ece": "ECE",
        "bytes": "size",
    },
}


def _shown(details: dict[str, Any], key: str) -> str:
    value = details.get(key)
    if value is None:
        return "-"
    if key == "bytes":
        return f"{value / 1000:.0f} kB"
    if key == "accuracy":
        return f"{100 * value:.2f} %"
    return f"{value:g}" if key == "eta" else _cell(value)


def _variants() -> list[str]:
    """Return every variant as it is trained: RECIPE --variant NAME."""
    from pyro_bnn.recipe import recipe_names, variant_names

    return [f"{recipe} --variant {name}" for recipe in recipe_names() for name in variant_names(recipe)]


def _details(kind: str, names: list[str]) -> list[str] | dict[str, dict[str, Any]]:
    """Return what there is to say about each name, for the kinds that say something; else the names."""
    if kind == "recipes":
        from pyro_bnn.recipe import find_recipe, variant_names

        recipes = {name: find_recipe(name) for name in names}
        return {
            name: {
                **{key: getattr(recipe, key) for key in ("description", "source", "model", "data")},
                "method": recipe.method["name"],
                "budgets": [recipe.budget, *(["paper"] if recipe.paper else [])],
                "variants": variant_names(name),
            }
            for name, recipe in recipes.items()
        }
    if kind == "variants":
        from pyro_bnn.recipe import find_recipe

        varied = {name: find_recipe(*name.split(" --variant ")) for name in names}
        return {
            name: {**{key: getattr(recipe, key) for key in ("description", "source")}, "method": recipe.method["name"]}
            for name, recipe in varied.items()
        }
    if kind == "studies":
        from pyro_bnn.studies.run import find_study

        studies = [find_study(name) for name in names]
        return {s.name: {key: getattr(s, key) for key in ("claim", "source", "place", "scales")} for s in studies}
    if kind == "posteriors":
        from pyro_bnn.cards.make import headline

        return {name: headline(name) for name in names}
    return names


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (see `pyro-bnn list recipes`) or a .toml file.")],
    variant: Variant = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Change a key: --set optim.loc.lr=1e-3")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/RECIPE.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an unfinished run in --out, also at other rates.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the same as --set device=...")] = None,
    log: Annotated[
        list[str] | None, typer.Option(help="Also show curves in tensorboard, mlflow or wandb; repeat.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write posterior.nc and report.html, too.")
    ] = True,
    seeds: Annotated[
        str | None, typer.Option(help="Train several seeds, 0,1,2 or 0-4, into seed-N of the run folder.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Members, chains or seeds side by side, one thread each; the same bits.")
    ] = 1,
    ray: Ray = None,
    data_root: DataRoot = None,
    timeout: Annotated[float, typer.Option(help="Under torchrun: seconds that ranks wait for one another.")] = 600.0,
) -> None:
    """
    Train a recipe, or a variant of it; leave a run folder and print the results table.

    On several processes or machines: torchrun --nproc-per-node K -m pyro_bnn train RECIPE.
    """
    from pyro_bnn.recipe import find_recipe, parse_settings

    changes = parse_settings(settings or [])
    if device is not None:
        changes["device"] = device
    chosen = find_recipe(recipe, variant)
    chosen.changed(changes)
    if resume and out is None:
        raise ValueError("--resume needs the run folder to go on with: add --out DIR")
    from pyro_bnn.runs.ranks import check_restarts, is_first, launched, process_group, quiet_unless_first, restarted

    if seeds is not None and launched():
        raise ValueError(
            f"--seeds {seeds} under torchrun: start it without, with --jobs, or take one seed by --set seed="
        )
    if seeds is not None and log:
        raise ValueError(f"--log {log[0]} with --seeds: log the seeds one by one, with --set seed=N")
    if seeds is not None:
        out = out or Path("runs") / f"{chosen.name}-seeds"
        _train_seeds(chosen.changed(changes), seeds, out, jobs, ray, data_root, resume, report)
        return
    if resume and out is not None and not out.is_dir():
        raise FileNotFoundError(f"there is no run folder {out} to go on with: leave out --resume to begin one there")
    check_restarts(out)
    quiet_unless_first()
    from pyro_bnn.runs.folder import claim_next
    from pyro_bnn.runs.train import Run, resuming
    from pyro_bnn.runs.train import train as run_training

    claimed: list[Path] = []

    def claim() -> Path:
        claimed.append(claim_next(Path("runs"), chosen.name) if out is None else out)
        return claimed[0]

    run: Run | None = None
    with suppress(KeyboardInterrupt), process_group(device or chosen.changed(changes).device, timeout):
        resume = resume or (restarted() and out is not None and out.is_dir())
        options: dict[str, Any] = {"data_root": data_root, "resume": resume, "report": report, "jobs": jobs, "ray": ray}
        run = run_training(chosen, out=claim, trackers=log or (), **options, **changes)
    if not is_first():
        raise typer.Exit(0 if run is not None and run.finished else 130)
    if run is None or not run.finished:
        how_far = "" if run is None else f" after epoch {len(run.history)}" if run.history else " in the first epoch"
        go_on = f"; go on with: {resuming(claimed[0], data_root, log or ())}" if claimed else "; nothing was written"
        _say(f"interrupted{how_far}{go_on}")
        raise typer.Exit(130)
    show_results(run.results)
    seconds, doubtful = run.results["seconds"], run.results.get("doubts")
    _say(
        f"trained in {seconds['train']:.1f} s, scored in {seconds['evaluate']:.1f} s; run folder: {claimed[0]}"
        + (f"; IN DOUBT: {doubtful[0]}" if doubtful else "")
    )


def _train_seeds(
    recipe: "Recipe",
    seeds: str,
    out: Path,
    jobs: int,
    ray: str | None,
    data_root: Path | None,
    resume: bool,
    report: bool,
) -> None:
    """Train seeds side by side and print what each scored."""
    from statistics import fmean, stdev

    from rich.table import Table

    from pyro_bnn.runs.seeds import parse_seeds, seed_folder, train_seeds

    options: dict[str, Any] = {"jobs": jobs, "ray": ray, "data_root": data_root, "report": report}
    options["resume"] = True if resume else None
    chosen = parse_seeds(seeds)
    tables = train_seeds(recipe, chosen, out, **options, done=lambda name: _say(f"{name} done"))
    scores = {seed: table["test"]["s_draws"] for seed, table in tables.items()}
    shown = [(key, *_ROWS[key]) for key in _ROWS if key in next(iter(scores.values()))]
    table = Table(title=f"{recipe.name}: test rows, {recipe.num_samples} samples", title_style="bold")
    for label in ("seed", *(label for _, label, _ in shown)):
        table.add_column(label, justify="right")
    for seed, score in scores.items():
        table.add_row(str(seed), *(_figure({key: score[key]}, key, unit) for key, _, unit in shown))
    if len(scores) > 1:
        values = {key: [score[key] for score in scores.values()] for key, _, _ in shown}
        means = {key: {key: fmean(v), f"{key}_sd": stdev(v)} for key, v in values.items()}
        table.add_row("mean ± sd", *(_figure(means[key], key, unit) for key, _, unit in shown))
    _console().print(table)
    folders = shlex.join(["pyro-bnn", "card", *(str(seed_folder(out, seed)) for seed in chosen)])
    _say(f"run folders: {out}; a card of them: {folders}")


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help=_RUN)],
    num_samples: Annotated[int | None, typer.Option(min=1, help="Draws; default as in the recipe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    data_root: DataRoot = None,
) -> None:
    """Score a posterior once more on the test rows of its data."""
    from pyro_bnn.runs.train import evaluate as score

    results = score(run, data_root=data_root, num_samples=num_samples)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        show_results(results)


@app.command("lr-range")
def lr_range(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a .toml file.")],
    variant: Variant = None,
    group: Annotated[str, typer.Option(help="Whose rate rises: loc, scale or other.")] = "loc",
    low: Annotated[float, typer.Option(help="The lowest rate.")] = 1e-5,
    high: Annotated[float, typer.Option(help="The highest rate.")] = 10.0,
    steps: Annotated[int, typer.Option(help="Training steps of the sweep.")] = 200,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Change a key: --set batch_size=50")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the plot goes; default runs/lr-range-RECIPE-GROUP.png.")
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Train while the learning rate rises; suggest a tenth of the rate of the lowest loss, and draw the curve."""
    from pyro_bnn.recipe import find_recipe, parse_settings
    from pyro_bnn.runs.lr_range import lr_range as sweep
    from pyro_bnn.runs.lr_range import save_plot

    chosen = find_recipe(recipe, variant).changed(parse_settings(settings or []))
    result = sweep(chosen, group=group, low=low, high=high, num_steps=steps, data_root=data_root)
    path = out or Path("runs") / f"lr-range-{chosen.name}-{group}.png"
    save_plot(result, path, f"{chosen.name}: learning rate of {group}")
    lowest = result.lrs[result.smoothed.index(min(result.smoothed))]
    advice = "the loss never fell" if result.suggestion is None else f"suggested {result.suggestion:.2g}"
    _say(f"{advice} (lowest loss at {lowest:.2g}; {len(result.lrs)} of {steps} steps taken); plot: {path}")


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="A study's name (see `pyro-bnn list studies`).")],
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), cpu (minutes) or source (the source's own size).")
    ] = "cpu",
    jobs: Annotated[int | None, typer.Option(min=1, help="Trials side by side; default the cores.")] = None,
    ray: Ray = None,
    show: Annotated[
        bool, typer.Option("--list", help="Show the trials and the commands that train them; run none.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the outcome and its picture.")] = Path("runs/studies/outcomes"),
    reference: Annotated[
        Path | None, typer.Option(help="Reference probabilities that hmc-fidelity compares with, an .npz.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    data_root: DataRoot = None,
) -> None:
    """Test a claim of the literature: run what is missing of its trials and give the verdict."""
    from typing import cast

    from pyro_bnn.runs.jobs import environment
    from pyro_bnn.studies.run import find_study, run_study, trials_of
    from pyro_bnn.studies.study import Scale

    given: dict[str, str | None] = {}
    if reference is not None:
        if not reference.is_file():
            raise ValueError(f"--reference {reference} is no file: pass an .npz with `probs` (N, K)")
        given = {"PYRO_BNN_REFERENCE": str(reference.absolute())}
    chosen, size = find_study(name), cast(Scale, scale)
    data = None if data_root is None else str(data_root)
    with environment(PYRO_BNN_DATA=data, **given):
        trials = trials_of(chosen, size)
    if show:
        for trial in trials:
            _say(f"{trial.cell}, seed {trial.seed}: {trial.command()}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with environment(**given), Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"{name}, {scale}", total=len(trials))
        outcome = run_study(
            name,
            scale=size,
            jobs=jobs or os.cpu_count() or 1,
            ray=ray,
            out=out,
            data_root=data_root,
            done=lambda finished, total: progress.update(task, completed=finished, total=total),
        )
    if as_json:
        typer.echo(json.dumps(outcome, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    title = f"{name}, {scale} scale: {outcome['verdict']}"  # claims have square brackets, which are no markup
    table = Table(title=title, title_style="bold", caption=Text(outcome["claim"]))
    for label in ("finding", "estimate", "interval", "pairs", "verdict"):
        table.add_column(label, justify="left" if label in ("finding", "verdict") else "right")
    for finding in outcome["findings"]:
        low, high = finding["low"], finding["high"]
        interval = "-" if low is None or low == high else f"{low:.3g} to {high:.3g}"
        estimate = "-" if finding["estimate"] is None else f"{finding['estimate']:.4g}"
        said = finding["verdict"] if finding["decides"] else f"({finding['verdict']})"
        table.add_row(Text(finding["statement"]), estimate, interval, str(finding["pairs"] or "-"), said)
    _console().print(table)
    for line in outcome["diverged"]:
        _say(f"diverged: {line}")
    _say(f"{outcome['trials']} trials, {outcome['seeds']} seeds; outcome and picture: {out}")


@app.command("sweep")
def sweep_settings(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a .toml file.")],
    vary: Annotated[
        list[str],
        typer.Option(help="KEY=LAW(NUMBERS) or KEY=A,B,C; repeat. uniform, loguniform, normal, lognormal, integers."),
    ],
    runs: Annotated[
        int | None, typer.Option(min=1, help="Trials to draw; default all combinations, if only lists are varied.")
    ] = None,
    variant: Variant = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Change a key in every trial.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Trials side by side; default the cores.")] = None,
    ray: Annotated[
        str,
        typer.Option(help="local, none, or the address of a Ray cluster; default local where Ray is installed."),
    ] = "auto",
    asha: Annotated[bool, typer.Option("--asha", help="Let ASHA stop bad trials early; needs Ray.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/sweep-RECIPE. The same sweep goes on.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    data_root: DataRoot = None,
) -> None:
    """Train a recipe with many settings; compare them on validation rows."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from pyro_bnn.recipe import parse_settings
    from pyro_bnn.runs.jobs import ray_is_there
    from pyro_bnn.runs.sweep import METRIC, sweep, trial_folder

    engine = ("local" if ray_is_there() else None) if ray == "auto" else None if ray == "none" else ray
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"sweep of {recipe}", total=runs)
        swept = sweep(
            recipe,
            vary,
            runs=runs,
            variant=variant,
            settings=parse_settings(settings or []),
            seed=seed,
            jobs=jobs,
            ray=engine,
            asha=asha,
            out=out,
            data_root=data_root,
            done=lambda finished, total: progress.update(task, completed=finished, total=total),
        )
    if as_json:
        typer.echo(json.dumps(swept.rows, indent=2))
        return
    from collections import Counter

    from rich.table import Table

    scored = sorted((row for row in swept.rows if row.get(METRIC) is not None), key=lambda row: float(row[METRIC]))
    keys = [one.partition("=")[0].strip() for one in vary]
    shown = ["trial", *keys, "status", METRIC, *(key for key in ("val_accuracy", "val_rmse") if key in scored[0])]
    table = Table(title=f"the best of {len(swept.rows)} trials, on validation rows", title_style="bold")
    for key in shown:
        table.add_column(key, justify="right")
    for row in scored[:5]:
        table.add_row(*(f"{v:.5g}" if isinstance(v := row.get(key), float) else _cell(v) for key in shown))
    _console().print(table)
    counts = ", ".join(f"{count} {status}" for status, count in Counter(row["status"] for row in swept.rows).items())
    for row in swept.rows:
        if row["status"] == "failed":
            _say(f"failed: trial {row['trial']}: {row['error']}")
    best = "" if swept.best is None else f"; the best is in {trial_folder(swept.folder, swept.best['trial'])}"
    _say(f"{counts}; table and picture: {swept.folder / 'trials.csv'}, {swept.folder / 'sweep.svg'}{best}")


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help=_RUN)],
    file: Annotated[Path, typer.Argument(help="A .csv, .npz, .npy, .png or .jpg file, or a folder of images.")],
    threshold: Annotated[float, typer.Option(help='Answers less probable than this become "don\'t know".')] = 0.5,
    num_samples: Annotated[int, typer.Option(min=1, help="Draws.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    standardised: Annotated[
        bool | None,
        typer.Option("--standardised/--raw", help="Whether the values are standardised already; default raw."),
    ] = None,
) -> None:
    """Predict for files: probabilities, uncertainty, and "don't know"."""
    from pyro_bnn.runs.loading import load
    from pyro_bnn.runs.predict_file import predict_files

    rows = predict_files(load(run), file, threshold=threshold, num_samples=num_samples, standardised=standardised)
    text = json.dumps(rows, indent=2)
    if out is not None:
        out.write_text(text + "\n")
    if as_json:
        typer.echo(text)
        return
    from rich.table import Table

    columns = [key for key in rows[0] if key != "probabilities"]
    table = Table()
    for key in columns:
        table.add_column(key, justify="left" if key in ("input", "answer") else "right", no_wrap=True)
    if "probabilities" in rows[0]:
        table.add_column("likeliest classes")
    for row in rows:
        cells = [_cell(row[key]) for key in columns]
        likeliest = sorted(row.get("probabilities", {}).items(), key=lambda pair: -pair[1])[:3]
        table.add_row(*cells, *([", ".join(f"{name} {p:.2f}" for name, p in likeliest)] if likeliest else []))
    _wide_enough(table).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_cell(v) for v in value)
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.1f}"


@app.command()
def report(
    run: Annotated[str, typer.Argument(help=_RUN)],
    out: Annotated[Path | None, typer.Option(help="Folder for report.html; default the run folder.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set or file to score it on; default the recipe's. Of any posterior.")
    ] = None,
    twin: Annotated[
        str | None, typer.Option(help="Another run to show beside; default RUN/twin, if it exists.")
    ] = None,
    ood: Annotated[list[str] | None, typer.Option(help="A data set to tell apart from the test rows; repeat.")] = None,
    num_samples: Annotated[int | None, typer.Option(min=1, help="Draws; default as in the recipe.")] = None,
    data_root: DataRoot = None,
) -> None:
    """Write report.html: results, curves, calibration, what it does not know, its mistakes, its weights."""
    from pyro_bnn.runs.finished import report as write

    path = write(run, out=out, twin=twin, ood=ood or (), num_samples=num_samples, data_root=data_root, data=data)
    _say(f"wrote {path}")


@app.command()
def diagnose(
    run: Annotated[str, typer.Argument(help=_RUN)],
    num_samples: Annotated[int | None, typer.Option(min=10, help="Draws; default as in the recipe.")] = None,
    settle: Annotated[bool, typer.Option(help="Fit on for 200 steps to see what they gain.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    data_root: DataRoot = None,
) -> None:
    """Say what speaks for and against a posterior; exit code 1 if it is not to be trusted."""
    from pyro_bnn.runs.finished import diagnose as check

    found = check(run, num_samples=num_samples, settle=settle, data_root=data_root)
    _say(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    if found.verdict == "bad":
        raise typer.Exit(1)


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Two or more run folders or shipped posteriors, same test rows.")],
    ood: Annotated[str | None, typer.Option(help="A data set to tell apart from the test rows.")] = None,
    num_samples: Annotated[int | None, typer.Option(min=1, help="Draws; default as in each recipe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    data_root: DataRoot = None,
) -> None:
    """Compare runs on the same test rows by held-out elpd, with paired differences and standard errors."""
    from pyro_bnn.runs.finished import compare as score

    rows = score(runs, num_samples=num_samples, ood=ood, data_root=data_root).rows
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    title = "held-out elpd: sum over test rows, higher is better; differences to the best, paired"
    table = Table(title=title, title_style="bold")
    table.add_column("")
    for row in rows:
        table.add_column(row["run"], justify="right")
    names = {"num_samples": "draws", "ood_auroc": f"AUROC, {rows[0].get('ood')}", "se_difference": "se of difference"}
    for key in (k for k in rows[0] if k not in ("run", "rank", "ood", "weight")):
        table.add_row(names.get(key, key.replace("_", " ")), *(_cell(row[key]) for row in rows))
    _console().print(table)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help=_RUN)],
    out: Annotated[Path, typer.Option(help="The archive to write; a name that ends in .zip.")],
) -> None:
    """Write a posterior with its recipe, results and card as one archive, of the same bytes each time."""
    from pyro_bnn.runs.sharing import export as write

    sha256 = write(run, out)
    _say(f"wrote {out} and {out}.sha256; wherever it is put: https://HOST/{out.name}#sha256={sha256}")


@app.command()
def push(
    run: Annotated[str, typer.Argument(help=_RUN)],
    address: Annotated[str, typer.Argument(help="hf://USER/NAME, made if it is not there.")],
    card: Annotated[Path | None, typer.Option(help="Markdown for the README; default the run's card.md.")] = None,
    license: Annotated[str | None, typer.Option(help="The identifier of a licence, such as mit.")] = None,
    private: Annotated[bool | None, typer.Option("--private/--public", help="Of a repository that is made.")] = None,
) -> None:
    """Put a posterior with its recipe, results and card into a repository of the Hugging Face Hub."""
    from pyro_bnn.runs.sharing import push as put

    _say(f"pushed: {put(run, address, card=card, license=license, private=private)}")


@app.command()
def card(
    runs: Annotated[list[str], typer.Argument(help="Run folders of one recipe with different seeds; ships the first.")],
    twin: Annotated[
        list[str] | None, typer.Option(help="A deterministic run for a seed; repeat for every seed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default the recipe's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default cards/NAME.")] = None,
    num_samples: Annotated[int | None, typer.Option(min=1, help="Draws; default as in the recipe.")] = None,
    tried: Annotated[
        list[str] | None, typer.Option(help="A run of another setting tried on validation; repeat for every setting.")
    ] = None,
    twin_tried: Annotated[list[str] | None, typer.Option(help="Likewise of the twin.")] = None,
    data_root: DataRoot = None,
) -> None:
    """Make a model card and a compact posterior from finished runs."""
    from pyro_bnn.cards.make import make_card

    folder = make_card(
        runs,
        twins=twin or (),
        name=name,
        out=out,
        num_samples=num_samples,
        tried=tried or (),
        twin_tried=twin_tried or (),
        data_root=data_root,
    )
    _say(f"wrote {folder / 'card.md'}, card.json and the compact posterior")


def _say_in_a_line() -> None:
    """Let what is out of date (names of recipes, folders of earlier versions) be said in a line."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        renamed = issubclass(category, DeprecationWarning) and str(message).startswith("the recipe")
        if renamed or issubclass(category, FutureWarning):
            print(f"pyro-bnn: {message}", file=sys.stderr)
        else:
            shown(message, category, *place, **options)

    warnings.filterwarnings("default", message="the recipe", category=DeprecationWarning)
    warnings.showwarning = show


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    keep_freed_memory()
    with stopping_signals() as came:
        code = _run(given, debug=debug)
    from pyro_bnn.runs.ranks import leave

    return leave(128 + came[-1] if came and code else code)


def _is_first() -> bool:
    from pyro_bnn.runs.ranks import is_first

    return is_first()


def _say_wrong(line: str, error: BaseException) -> None:
    """Print what went wrong; of several ranks, each what no other one says."""
    from pyro_bnn.runs.ranks import is_first, launched, record

    kind = type(error).__name__
    if is_first() or kind not in ("SaidElsewhere", "Diverged"):
        who = "pyro-bnn" if is_first() else f"pyro-bnn (rank {os.environ['RANK']})"
        print(f"{who}: {line}", file=sys.stderr)
    if launched() and kind not in ("SaidElsewhere", "RankLost") and not isinstance(error, (ValueError, TypeError)):
        record(error)


def _run(given: list[str], *, debug: bool) -> int:
    try:
        with warnings.catch_warnings():
            _say_in_a_line()
            code = app(given, prog_name="pyro-bnn", standalone_mode=True)
    except SystemExit as stop:
        code = stop.code
    except BrokenPipeError:
        os._exit(0)
    except NotTrusted as error:
        if debug:
            raise
        again = shlex.join(["pyro-bnn", "--trust", error.package, *given])
        print(
            f"pyro-bnn: this was saved from {error.path!r}, which is not part of this library; if you trust that "
            f"package: {visible(again)}",
            file=sys.stderr,
        )
        return 2
    except (ValueError, TypeError, FileNotFoundError, RuntimeError, OSError) as error:
        if debug:
            raise
        line = " ".join(str(error).split()) or type(error).__name__
        _say_wrong(visible(line), error)
        return 2
    except Exception as error:
        if debug:
            raise
        if not _is_first():
            _say_wrong(visible(summary(error)), error)
            return 2
        print(
            f"pyro-bnn: {visible(summary(error))}: this should have been refused in words of its own; --debug shows "
            "where it comes from",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("pyro-bnn: interrupted", file=sys.stderr)
        return 130
    return code if isinstance(code, int) else 0
