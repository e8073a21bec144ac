"""
The report of a posterior: one self-contained HTML file.

What it says is collected first (`report_sections`, `report_figures`) and put into `templates/report.html`. The page
loads nothing from anywhere: style, figures and images are inside, and it has no scripts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from pyro_bnn.analysis.arviz import PointwiseEstimate, posterior_kind, refusal_of
from pyro_bnn.analysis.checks import Diagnosis
from pyro_bnn.analysis.report import closer, figures, sections
from pyro_bnn.analysis.report.sections import Twin
from pyro_bnn.analysis.scores.calibration import fit_temperature
from pyro_bnn.analysis.scores.evaluation import ClassEvaluation, Evaluation, RealEvaluation, evaluate_rows
from pyro_bnn.analysis.scores.metrics import ece_null
from pyro_bnn.analysis.scores.ood import accumulate, gaussian_noise, shuffled_pixels
from pyro_bnn.analysis.scores.signal_to_noise import WeightSummary, pruning_curve, weight_summary
from pyro_bnn.common.files import write_text
from pyro_bnn.common.shown import visible
from pyro_bnn.data import Data, Split
from pyro_bnn.data.arrays import Inputs, first_rows
from pyro_bnn.posterior import Posterior
from pyro_bnn.version import __version__

__all__ = ["Twin", "build_report", "default_outside", "fitted_temperature", "report_of", "write_report"]

Rows: TypeAlias = tuple[Inputs, Tensor]

_OUTSIDE_ROWS = 500
_VAL_ROWS = 2000
_NULL_RESAMPLES = 400
_PRUNING_ROWS = 500
_PRUNING_DRAWS = 5
_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)

_KINDS = {
    "svi": "variational, mean field",
    "mean_field": "variational, mean field",
    "low_rank": "variational, low rank",
    "hwa": "variational, averaged (HWA)",
    "swa": "variational, averaged (SWA)",
    "ema": "variational, averaged (EMA)",
    "map": "point, MAP",
    "ml": "point, maximum likelihood",
    "mc_dropout": "MC dropout",
    "ensemble": "ensemble",
    "snapshots": "snapshots of one training",
    "sgld": "sampled, SGLD",
    "cyclic_sgld": "sampled, cyclic SGLD",
    "lmc": "sampled, Langevin",
    "nuts": "sampled, NUTS",
    "hmc": "sampled, HMC",
}


def default_outside(x: Inputs, seed: int = 0, *, rows: int = _OUTSIDE_ROWS) -> dict[str, Tensor]:
    """
    Return `rows` unfamiliar inputs that need no other data set: noise and, for images, shuffled pixels.

    Of several inputs that belong together there are none.

    :param x: inputs (N, ...), whose shape is taken.
    :param seed: of the noise.
    """
    if isinstance(x, tuple):
        return {}
    x = x[:rows]
    inputs = {"Gaussian noise": gaussian_noise(x, seed=seed)}
    if sections.is_image(x):
        inputs["shuffled pixels"] = shuffled_pixels(x, seed=seed)
    return inputs


def fitted_temperature(posterior: Posterior, val: Rows, num_samples: int, seed: int = 0) -> float | None:
    """
    Return the temperature of the averaged predictive fitted on (at most 2,000) validation rows.

    None where a row gives its label probability 0, whose NLL is infinite at every temperature.

    :param posterior: the fitted posterior.
    :param val: validation rows (x, y).
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; the global random state is left as it is.
    """
    x, y = first_rows(val[0], _VAL_ROWS), val[1][:_VAL_ROWS]
    log_probs, labels = accumulate(posterior, x, num_samples, seed).log_probs, posterior.raw_targets(y)
    if bool(log_probs.gather(1, labels.long().cpu()[:, None]).isinf().any()):
        return None
    return fit_temperature(log_probs, labels.cpu())


def build_report(
    posterior: Posterior,
    test: Rows,
    val: Rows | None = None,
    *,
    history: Sequence[Mapping[str, Any]] = (),
    results: Mapping[str, Any] | None = None,
    evaluation: Evaluation | None = None,
    outside: Mapping[str, Tensor] | None = None,
    twin: Twin | None = None,
    loo: PointwiseEstimate | None = None,
    diagnosis: Diagnosis | None = None,
    recipe_toml: str = "",
    command: str = "",
    num_samples: int = 100,
    seed: int = 0,
) -> str:
    """
    Return the report as HTML.

    :param posterior: the fitted posterior.
    :param test: raw inputs and labels or targets, or Standardised ones; likewise `val`, on which the temperature is
        fitted.
    :param history: the training trace, one mapping per epoch.
    :param results: what `results.json` holds: seconds, best epoch, versions, machine.
    :param evaluation: what `evaluate_rows` gave on `test`; default it is asked here.
    :param outside: unfamiliar inputs by name, likewise; default noise and shuffled pixels.
    :param twin: another model on the same rows, shown beside.
    :param loo: leave-one-out at training rows, where it is defined; without it the page says why it is not.
    :param recipe_toml: the recipe, to be shown.
    :param command: the command that made it, to be shown.
    :param num_samples: draws to score with.
    :param seed: of the draws; the global random state is left as it is.
    :param diagnosis: what `posterior.diagnose` found; without it the page has no part of that.
    """
    from jinja2 import Environment, PackageLoader, select_autoescape

    results = results or {}
    test = posterior.standardise(test[0]), posterior.raw_targets(test[1])
    if evaluation is None:
        evaluation = evaluate_rows(posterior, *test, num_samples, seed=seed)
    if twin is not None and type(twin.evaluation) is not type(evaluation):
        raise ValueError(f"the twin {twin.name!r} predicts something else: give a twin trained on the same data")
    intervals = evaluation.intervals()
    null: dict[str, float] = {}
    temperature = None
    if isinstance(evaluation, ClassEvaluation):
        null = ece_null(evaluation.log_probs, num_resamples=_NULL_RESAMPLES, seed=seed)
        temperature = None if val is None else fitted_temperature(posterior, val, evaluation.num_samples, seed)
    summary = weight_summary(posterior, first_rows(test[0]))
    others = sections.other_columns(evaluation, temperature, twin)
    curve = closer.curve_figure(posterior, test[0], evaluation, seed)
    chains = closer.chains(posterior, history, results)
    context = {
        **_about(posterior, summary, len(test[1]), results),
        **_predictions(posterior, test[0], evaluation, outside, twin, seed),
        "verdict": sections.verdict(evaluation),
        "doubts": list(results.get("doubts", ())),
        "tiles": sections.tiles(evaluation, intervals, null, twin),
        "table": sections.result_table(evaluation, intervals, others),
        "temperature": temperature,
        "honest": closer.honestly(evaluation, twin, others),
        "classes": closer.classes(posterior, evaluation),
        "chains": chains,
        "glossary": closer.glossary(evaluation, twin=twin is not None, chains=chains is not None),
        "calibration": [
            *([] if curve is None else [curve]),
            *sections.calibration(evaluation, null),
            sections.rejection(evaluation),
        ],
        "training": figures.training_figures(history, results.get("best_epoch")) if history else [],
        "layers": sections.layers(posterior, summary),
        "weights": [
            figures.signal_figure(summary),
            _pruning(posterior, test, evaluation, seed),
            sections.prior_predictive(posterior, test[0], evaluation, seed),
        ],
        "diagnosis": diagnosis,
        "loo": loo,
        "no_loo": refusal_of(posterior, "train") or "nothing was computed at training rows",
        "recipe_toml": recipe_toml,
        "command": command,
    }
    environment = Environment(
        loader=PackageLoader("pyro_bnn.analysis.report", "templates"),
        autoescape=select_autoescape(),
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(context)


def _shown(value: Any) -> Any:
    """Return words without what would turn or hide other words of the page; markup of the page's own stays."""
    return visible(value, keep="\n\t") if type(value) is str else value


def _about(
    posterior: Posterior, summary: Mapping[str, WeightSummary], num_test: int, results: Mapping[str, Any]
) -> dict[str, Any]:
    """What the page says about the run itself."""
    info, kind = posterior.info, posterior_kind(posterior)
    recipe: Mapping[str, Any] = info.get("recipe") or {}
    machine = [(key, str(results[key])) for key in ("date", "pyro_bnn", "torch", "pyro", "machine") if key in results]
    if "seconds" in results:
        machine.insert(0, ("trained in", f"{results['seconds']['train']:.0f} s"))
    return {
        "name": recipe.get("name") or "posterior",
        "description": recipe.get("description", ""),
        "source": recipe.get("source", ""),
        "facts": [
            ("Data", str(info.get("data", "–"))),
            ("Trained on", f"{info['num_data']:,} rows" if info.get("num_data") else "–"),
            ("Tested on", f"{num_test:,} rows"),
            ("Posterior", _KINDS.get(kind, kind)),
            ("Weights", f"{sum(site.sd.numel() for site in summary.values()):,}"),
            ("Tempering", f"eta = {float(info.get('eta', 1)):g}, T = {float(info.get('temperature', 1)):g}"),
        ],
        "machine": machine,
        "version": __version__,
    }


def _predictions(
    posterior: Posterior,
    x: Inputs,
    evaluation: Evaluation,
    outside: Mapping[str, Tensor] | None,
    twin: Twin | None,
    seed: int,
) -> dict[str, Any]:
    """What the page says about single predictions."""
    if isinstance(evaluation, RealEvaluation):
        errors = sections.largest_errors(evaluation)
        return {"outside": None, "errors": errors, "mistakes": [], "unsure": []}
    outside = default_outside(x, seed) if outside is None else outside
    return {
        "outside": sections.out_of_distribution(posterior, evaluation, outside, twin, seed) if outside else None,
        "mistakes": sections.mistakes(posterior, x, evaluation),
        "unsure": sections.most_uncertain(posterior, x, evaluation),
        "errors": [],
    }


def _pruning(posterior: Posterior, test: Rows, evaluation: Evaluation, seed: int) -> figures.Figure:
    x, y = first_rows(test[0], _PRUNING_ROWS), test[1][:_PRUNING_ROWS]
    curve = pruning_curve(posterior, x, y, _FRACTIONS, _PRUNING_DRAWS, seed=seed)
    metric = next(name for name in ("accuracy", "rmse", "pred_nll") if name in evaluation.table["s_draws"])
    return figures.pruning_figure(curve, metric, len(y))


def report_of(posterior: Posterior, path: str | Path, data: Any, val: Any = None, **options: Any) -> Path:
    """
    Write the page to a .html file or into a folder; see `Posterior.report`.

    :param posterior: the fitted posterior.
    :param path: where to.
    :param data: the rows to score it on.
    :param val: validation rows (x, y); without them no temperature is fitted.
    """
    path = Path(path)
    file = path if path.suffix == ".html" else path / "report.html"
    if isinstance(data, Data):
        val = val if val is not None or data.val is None else (data.val.x, data.val.y)
        data = (data.test.x, data.test.y)
    elif isinstance(data, Split):
        data = (data.x, data.y)
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ValueError(
            f"data is a {type(data).__name__}: pass the rows to score as (x, y), or what load_data returns"
        )
    page = build_report(posterior, (data[0], data[1]), None if val is None else (val[0], val[1]), **options)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, page)
    return file


def write_report(
    folder: str | Path,
    posterior: Posterior,
    test: Rows,
    val: Rows | None = None,
    *,
    run: Path | None = None,
    **options: Any,
) -> Path:
    """
    Write `report.html` into a folder; options as in `build_report`.

    :param posterior: the fitted posterior.
    :param test: the rows to score it on, (x, y).
    :param val: validation rows (x, y); without them no temperature is fitted.
    :param run: the run folder whose recipe is shown; default `folder`.
    """
    folder = Path(folder)
    run = folder if run is None else run
    recipe = run / "recipe.toml"
    if recipe.is_file():
        options.setdefault("recipe_toml", recipe.read_text())
        options.setdefault("command", f"pyro-bnn train {run.name}/recipe.toml --out {run.name}-again")
    page = build_report(posterior, test, val, **options)
    write_text(folder / "report.html", page)
    return folder / "report.html"
