"""
Train a recipe and leave a run folder.

It holds `recipe.toml` (resolved: no default left implicit), `metrics.jsonl` (a line per epoch), `checkpoint/` (the last
two states), `posterior.safetensors` with `posterior.json`, `results.json`, and what people look at: `posterior.nc` for
ArviZ and `report.html`; `changes.json`, if learning rates were changed on the way; and `manifest.json`, with the size
and SHA-256 of each. Everything is built and checked before the folder is made, the posterior is written before it is
scored, and what is written is whole or not there: the run can be taken up from wherever it was killed.
"""

import errno
import json
import logging
import os
import platform
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, final

import pyro
import torch
from torch import distributed as dist

from pyro_bnn.analysis.arviz import draws_of
from pyro_bnn.analysis.scores.evaluation import Evaluation, evaluate_rows
from pyro_bnn.assemble import Assembly, assemble, load_rows
from pyro_bnn.common.errors import border
from pyro_bnn.common.machine import cpu_name
from pyro_bnn.common.manifest import damaged, read_listed, staged
from pyro_bnn.common.reading import parse_json, parse_json_lines
from pyro_bnn.common.turns import hold_interrupts
from pyro_bnn.data import Data
from pyro_bnn.inference.distributed import Ranks, evaluating, together
from pyro_bnn.inference.fit_state import Diverged
from pyro_bnn.inference.svi import Callback
from pyro_bnn.methods import Work
from pyro_bnn.methods.base import HISTORY, INTERRUPTED, Outcome, history_text
from pyro_bnn.posterior import Posterior
from pyro_bnn.recipe import Recipe, find_recipe
from pyro_bnn.registry import find_saved, look_up
from pyro_bnn.runs.doubts import doubts
from pyro_bnn.runs.folder import RECIPE, RESULTS, RESUMED, Place, change_of, identity, taken, with_rates
from pyro_bnn.runs.jobs import check_jobs
from pyro_bnn.runs.loading import load
from pyro_bnn.runs.units import check_units, train_units
from pyro_bnn.tracking.base import Tracker
from pyro_bnn.version import __version__

__all__ = ["Run", "evaluate", "resuming", "train"]

log = logging.getLogger(__name__)

ARVIZ, REPORT = "posterior.nc", "report.html"


def _info(parts: Assembly) -> dict[str, Any]:
    data, recipe = parts.data, parts.recipe
    return {
        "recipe": recipe.model_dump(),
        "data": data.name,
        "task": data.task,
        "input_shape": list(data.input_shape),
        "class_names": None if data.class_names is None else list(data.class_names),
        **({} if data.test.columns is None else {"columns": list(data.test.columns)}),
        "standardiser": None if data.standardiser is None else data.standardiser.to_dict(),
        "y_standardiser": None if data.y_standardiser is None else data.y_standardiser.to_dict(),
        "num_data": len(data.train),
        "eta": parts.kl.eta(epoch=max(recipe.epochs - 1, 0), num_data=len(data.train)),
        "temperature": recipe.temperature,
        "method": recipe.method["name"],
    }


@final
@dataclass
class Run:
    """
    A finished training: its folder, recipe, posterior, results table and history.

    :param path: its folder; None where none was asked for.
    :param recipe: the recipe that was trained.
    :param posterior: what came of it.
    :param results: the results on test, as in `results.json`.
    :param history: a line per epoch, as in `metrics.jsonl`.
    :param finished: False after an interruption: go on with `resume=True`.

    >>> import pyro_bnn as pb
    >>> run = pb.train("perceptron-and", epochs=1, num_samples=2, progress=False)
    >>> run.path, run.finished, run.posterior.info["task"]
    (None, True, 'classification')
    """

    path: Path | None
    recipe: Recipe
    posterior: Posterior
    results: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = True


def train(
    recipe: str | Path | Recipe,
    *,
    variant: str | None = None,
    out: str | Path | Callable[[], Path] | None = None,
    data_root: str | Path | None = None,
    resume: bool | None = None,
    progress: bool = True,
    report: bool = True,
    callbacks: Sequence[Callback] = (),
    jobs: int = 1,
    ray: str | None = None,
    trackers: Sequence[str] = (),
    **settings: Any,
) -> Run:
    """
    Train a recipe and leave a run folder; a folder with the same recipe, unfinished, is gone on with.

    :param recipe: a name of the catalogue, a .toml file, or a Recipe.
    :param variant: one of the recipe's variants; `pyro-bnn list variants` shows them.
    :param out: the run folder, or what makes one once everything is checked; None writes nothing.
    :param data_root: where data sets by name live; default PYRO_BNN_DATA, else the user's cache.
    :param resume: True goes on with an unfinished run in `out` even with other learning rates, as after a divergence;
        False refuses a folder with a run.
    :param progress: show a progress bar, or a line per epoch where there is no terminal.
    :param report: write `posterior.nc` and `report.html` into `out`, too: some seconds more.
    :param callbacks: what every fit of the training calls; see :class:`~pyro_bnn.inference.Callback`.
    :param trackers: where curves are shown as well, by name: "tensorboard", "mlflow", "wandb", or
        "my_package:MyTracker"; see :mod:`pyro_bnn.tracking`.
    :param jobs: members of an ensemble, or chains, that are trained at a time, in processes of their own with one
        thread each; the posterior is the same.
    :param ray: "local" or the address of a Ray cluster that trains them, whose machines all see `out`.
    :param settings: recipe keys to change, e.g. `epochs=3`; dotted ones as `**{"optim.loc.lr": 1e-3}`.

    >>> import pyro_bnn as pb
    >>> run = pb.train("mlp-toy-cubic", epochs=2, num_samples=5, progress=False)
    >>> len(run.history), run.recipe.epochs
    (2, 2)
    >>> sorted(run.results["test"])
    ['one_draw', 'plug_in', 's_draws']
    """
    ranks = Ranks.here()
    first = ranks is None or ranks.first
    with together(ranks):
        apart = _apart(jobs, ray, out, [*callbacks, *trackers], data_root, shown=progress)
        if resume and first and isinstance(out, (str, Path)) and not Path(out).is_dir():
            raise FileNotFoundError(
                f"there is no run folder {out} to go on with: leave out resume=True to begin one there"
            )
        parts = assemble(find_recipe(recipe, variant).changed(settings), data_root)
        if apart is not None:
            check_units(parts)
        if ranks is not None:
            _check_ranks(parts, ranks)
        # what is unknown is said before anything is made
        kinds = [look_up("trackers", name) for name in trackers if first]
    if ranks is not None:
        ranks.check_same({"the recipe": identity(parts.recipe)}, "the ranks cannot train together")
    watchers = list(callbacks)
    if progress and first:
        from pyro_bnn.runs.progress import ProgressReport

        watchers.append(ProgressReport())
    if out is None:
        with _tracked(kinds, parts.recipe, None) as tracked:
            return _train(parts, None, [*watchers, *tracked], data_root, report=False)
    if ranks is not None and not ranks.first:
        return _beside_first(parts, ranks, watchers, data_root)
    with _run_folder(out, parts.recipe, resume, ranks) as (place, wrong):
        path, finished = place.path, wrong is not None and not set(wrong) - {ARVIZ, REPORT}
        if ranks is not None:
            told = {"recipe": place.recipe.model_dump(), "changes": place.changes, "finished": finished}
            ranks.told({**told, "path": str(path.absolute())})
        if place.recipe.model_dump() != parts.recipe.model_dump():  # its rates were changed on the way
            parts = assemble(place.recipe, data_root)
        if finished:
            return _finished(path, parts, set(wrong or ()), report=report and place.writable)
        if wrong is not None:
            log.warning("%s: %s damaged or missing, made again", path, ", ".join(wrong))
        with _tracked(kinds, place.recipe, path) as tracked:
            return _train(parts, place, [*watchers, *tracked], data_root, report=report, apart=apart)


Apart: TypeAlias = Callable[[Place, Assembly], None]
"""Does the units of a training in processes of their own."""


def _apart(
    jobs: int,
    ray: str | None,
    out: object,
    watched: Sequence[object],
    data_root: str | Path | None,
    *,
    shown: bool,
) -> Apart | None:
    """Return what trains units side by side, if that is asked for; refuse it where they could not meet."""
    check_jobs(jobs)
    if jobs == 1 and ray is None:
        return None
    if dist.is_available() and dist.is_initialized():
        raise ValueError(f"jobs={jobs}, ray={ray!r} within a process group: leave them out, or start without torchrun")
    if out is None or watched:
        raise ValueError(
            f"jobs={jobs}, ray={ray!r}: processes of their own meet in a run folder and call no callbacks: give "
            f"out= and leave out callbacks= and trackers="
        )
    say = partial(print, flush=True) if shown else _nothing
    return partial(train_units, jobs=jobs, ray=ray, data_root=data_root, say=say)


def _nothing(line: str) -> None:
    """Say nothing."""


@contextmanager
def _run_folder(
    out: str | Path | Callable[[], Path], recipe: Recipe, resume: bool | None, ranks: Ranks | None
) -> Iterator[tuple[Place, list[str] | None]]:
    """
    Take the run folder, and yield it with the names of what is damaged in it, None for a run that is not finished.

    What the system refuses on the way is said as what it means for the run.
    """
    path: Path | None = None
    there = False
    try:
        with ExitStack() as stack:
            with together(ranks):
                path = out() if callable(out) else Path(out)
                there = path.is_dir()
                place = stack.enter_context(taken(path, recipe, resume=resume))
                there = True
                wrong = damaged(path) if (path / RESULTS).is_file() else None
            yield place, wrong
        if not path.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except OSError as error:
        if error.errno is None or path is None or (isinstance(error, FileNotFoundError) and path.is_dir()):
            raise
        raise RuntimeError(_refused_by_the_system(error, path, there)) from error


def _refused_by_the_system(error: OSError, path: Path, there: bool) -> str:
    """Return what an error of the system means for a run, whose folder was `there` or not."""
    what = f"{error.strerror or error}: {error.filename or path}"
    if path.is_dir():
        return (
            f"{what}; the run stays as it last was written: free or give room and rights there, and go on with "
            f"--resume (resume=True)"
        )
    if there:
        return (
            f"the run folder {path} is gone: it was moved or removed while it was trained; put it back and go on with "
            f"--resume (resume=True), or begin anew"
        )
    return f"{what}; the run folder {path} cannot be made: choose another one with out= (--out), or give rights there"


def _check_ranks(parts: Assembly, ranks: Ranks) -> None:
    """Refuse a method that several processes cannot train together."""
    if not parts.method.trains_by_fit():
        raise ValueError(
            f"method {parts.recipe.method['name']!r} trains in one process, and these are {ranks.count}: start it "
            "without torchrun, or take one that trains by SVI (svi, map, hwa, ...)"
        )


def _beside_first(parts: Assembly, ranks: Ranks, watchers: Sequence[Callback], data_root: str | Path | None) -> Run:
    """Train on a rank that writes nothing; rank 0 has the run folder."""
    with ranks.together():
        pass  # until rank 0 has its folder, or says why not
    told: dict[str, Any] = ranks.told({})
    recipe = Recipe.build(told["recipe"])
    if recipe.model_dump() != parts.recipe.model_dump():
        parts = assemble(recipe, data_root)
    if told["finished"]:
        return _finished(Path(told["path"]), parts, set(), report=False)
    return _train(parts, None, watchers, data_root, report=False, changes=told["changes"])


@contextmanager
def _tracked(kinds: Sequence[type[Tracker]], recipe: Recipe, folder: Path | None) -> Iterator[list[Tracker]]:
    """Yield trackers of a run, which stay open from one fit of it to the next."""
    facts = _flat(recipe.model_dump(exclude={"name", "description", "source", "paper"}))
    made = [kind.for_run(recipe.name, folder, facts) for kind in kinds]
    with ExitStack() as stack:
        for tracker in made:
            stack.enter_context(tracker.held_open())
        yield made
        for tracker in made:
            if not tracker.was_opened:
                log.warning(
                    "a training by %s has no epochs: %s shows none", recipe.method["name"], type(tracker).__name__
                )


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return tables in tables as one, with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat


def resuming(path: Path, data_root: str | Path | None = None, trackers: Sequence[str] = ()) -> str:
    """
    Return the command that goes on with a run.

    :param path: the run folder.
    :param data_root: folder of the data sets; default `PYRO_BNN_DATA`, else the cache.
    :param trackers: where its curves are shown, by name.
    """
    root = [] if data_root is None else ["--data-root", str(data_root)]
    logs = [word for name in trackers for word in ("--log", name)]
    return shlex.join(["pyro-bnn", "train", str(path / RECIPE), "--out", str(path), "--resume", *root, *logs])


def _train(
    parts: Assembly,
    place: Place | None,
    watchers: Sequence[Callback],
    data_root: str | Path | None,
    *,
    report: bool,
    changes: Sequence[Mapping[str, Any]] = (),
    apart: Apart | None = None,
) -> Run:
    """
    Train until all is done, lowering the rates after a divergence as often as the recipe allows.

    :param changes: the changes of the rates so far, where there is no place that knows them.
    """
    path, ranks = None if place is None else place.path, Ranks.here()
    while True:
        settled, runs = parts.recipe, ("",) if place is None else place.runs
        try:
            if place is not None and apart is not None:
                apart(place, parts)
            with parts.layers():
                outcome = parts.method(Work(parts, settled, path, watchers, runs=runs))
            break
        except KeyboardInterrupt:
            if apart is None:
                raise
            outcome = Outcome(None, [], None, INTERRUPTED, 0.0)
            break
        except Diverged as error:
            changes, allowed = changes if place is None else place.changes, settled.on_divergence
            if not allowed or _divergences(changes) >= allowed.get("retries", 1):
                if path is None:
                    raise
                rate = "method.lr" if "lr" in settled.method else "optim.loc.lr"
                raise Diverged(
                    f"{error}; to go on from the last epoch at another rate: {resuming(path, data_root)} --set "
                    f"{rate}=..., or let on_divergence do so by itself"
                ) from None
            lowered = with_rates(settled, allowed.get("factor", 0.3))
            log.warning("%s; going on from the last epoch that was whole at lower rates", error)
            if place is None:
                changes = [*changes, change_of(settled, lowered, str(error), 0)]
            else:
                place.change(lowered, str(error))
            parts = assemble(lowered, data_root)
    if ranks is not None and not outcome.interrupted:
        ranks.share(parts.model, outcome.guide)
    posterior = Posterior(parts.model, parts.guide if outcome.guide is None else outcome.guide, _info(parts))
    if outcome.interrupted:
        if path is not None and outcome.history and outcome.guide is not None:
            _write_posterior(path, posterior, outcome.history)
        return Run(path, settled, posterior, {}, outcome.history, finished=False)
    if path is not None:
        _write_posterior(path, posterior, outcome.history)
    started = time.perf_counter()
    changes = place.changes if place is not None else changes
    with evaluating(ranks):
        evaluation = _evaluation(posterior, parts)
    results = {
        "recipe": settled.name,
        "data": settled.data,
        "eta": posterior.info["eta"],
        "temperature": settled.temperature,
        "num_samples": evaluation.num_samples,
        "num_test": len(parts.data.test),
        "test": evaluation.table,
        "doubts": doubts(posterior, parts.data, evaluation) if ranks is None or ranks.first else [],
        "method": settled.method,
        "facts": outcome.facts,
        "changes": [{key: value for key, value in change.items() if key != "was"} for change in changes],
        "divergences": _divergences(changes),
        "epochs": len(outcome.history),
        "best_epoch": outcome.best_epoch,
        "ended": outcome.reason,
        "seconds": {"train": outcome.seconds, "evaluate": time.perf_counter() - started},
        **_circumstances(ranks),
    }
    if path is not None:
        with staged(path) as stage:
            (stage / RESULTS).write_text(json.dumps(results, indent=2))
        if report:
            _write_outputs(path, parts.data, posterior, outcome.history, results, evaluation)
    return Run(path, settled, posterior, results, outcome.history)


def _divergences(changes: Sequence[Mapping[str, Any]]) -> int:
    return sum(change["why"] != RESUMED for change in changes)


def _evaluation(posterior: Posterior, parts: Assembly) -> Evaluation:
    """Score the test rows."""
    recipe, test = parts.recipe, parts.data.test.to(parts.recipe.device)
    return evaluate_rows(posterior, test.x, test.y, draws_of(posterior, recipe.num_samples), seed=recipe.seed)


def _write_posterior(path: Path, posterior: Posterior, history: Sequence[Mapping[str, Any]]) -> None:
    """Write the posterior and the lines of its training, both or neither."""
    contents = posterior.files()
    with hold_interrupts(), staged(path) as stage:
        (stage / HISTORY).write_text(history_text(history))
        for name, content in contents.items():
            (stage / name).write_bytes(content)


def _write_outputs(
    path: Path,
    data: Data,
    posterior: Posterior,
    history: Sequence[Mapping[str, Any]],
    results: Mapping[str, Any],
    evaluation: Evaluation,
) -> None:
    from pyro_bnn.analysis.report.outputs import TRAIN_ROWS, write_outputs

    train = data.first_rows(TRAIN_ROWS)
    with staged(path) as stage:
        write_outputs(
            stage,
            posterior,
            (train.x, train.y),
            (data.test.x, data.test.y),
            None if data.val is None else (data.val.x, data.val.y),
            history=history,
            results=results,
            evaluation=evaluation,
            run=path,
        )


def _circumstances(ranks: Ranks | None) -> dict[str, Any]:
    count = {} if ranks is None else {"ranks": ranks.count}
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "pyro_bnn": __version__,
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "python": platform.python_version(),
        "machine": f"{cpu_name()}, {torch.get_num_threads()} threads",
        **count,
    }


def _finished(path: Path, parts: Assembly, wrong: Collection[str], *, report: bool) -> Run:
    """
    Return a run that was finished before, and write what it lacks of its report.

    What the recipe handed in names is imported already, and so trusted.
    """
    names = [name for name in (RESULTS, HISTORY) if (path / name).is_file()]
    held = read_listed(path, names)
    results: dict[str, Any] = parse_json(held[RESULTS], str(path / RESULTS), dict)
    history = parse_json_lines(held.get(HISTORY, b""), path / HISTORY)
    trust = {type(part).__module__ for part in (parts.guide, parts.method)}
    trust.add(look_up("guides", parts.recipe.guide["name"]).__module__)
    posterior = load(path, parts.model, trust=trust)
    lacking = [name for name in (ARVIZ, REPORT) if name in wrong or not (path / name).is_file()]
    if report and lacking:
        log.warning("%s lacks %s, which is written now", path, " and ".join(lacking))
        _write_outputs(path, parts.data, posterior, history, results, _evaluation(posterior, parts))
    return Run(path, parts.recipe, posterior, results, history)


@border("the posterior cannot be scored", "give a run folder as it was written")
def evaluate(
    path: str | Path, *, data_root: str | Path | None = None, num_samples: int | None = None
) -> dict[str, Any]:
    """
    Score a posterior once more on the test rows of its own data.

    :param path: a run folder, or the name of a shipped posterior.
    :param data_root: folder of the data sets; default `PYRO_BNN_DATA`, else the cache.
    :param num_samples: draws to score with; default the recipe's.
    :return: the results table under `test`, beside the recipe's name, the data's, and eta.

    >>> import pyro_bnn as pb
    >>> scores = pb.evaluate("lenet5-mnist-mini", num_samples=2)
    >>> scores["data"], scores["eta"], scores["test"]["s_draws"]["accuracy"] > 0.95
    ('mnist-mini', 0.1, True)
    """
    posterior = load(path)
    recipe = posterior.info.get("recipe")
    if recipe is None:
        raise ValueError(
            f"{path} was not trained from a recipe, so its test rows are unknown: use Posterior.evaluate(x, y)"
        )
    settled = Recipe.from_saved(recipe)
    data = load_rows(settled, data_root, find=find_saved)
    samples = draws_of(posterior, num_samples or settled.num_samples)
    table = posterior.evaluate(data.test.x, data.test.y, samples, seed=settled.seed)
    eta = posterior.info.get("eta", settled.eta)
    return {"recipe": settled.name, "data": settled.data, "eta": eta, "num_samples": samples, "test": table}
