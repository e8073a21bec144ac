"""
Recipe -> Run: the one file where all rooms meet, and the one with the tables of names.

A run folder holds `recipe.toml` (resolved: no default left implicit), `metrics.jsonl` (a line per epoch),
`checkpoint/` (last and best on validation), `posterior.safetensors` with `posterior.json`, `results.json`, and what
people look at: `posterior.nc` for ArviZ and `report.html`.
Everything is built and checked before the folder is made, and every file is replaced in one step.
"""

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any, cast, final

import pyro
import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import nn

from pyro_bnn.analysis.arviz import draws_of
from pyro_bnn.analysis.evaluation import Evaluation, evaluate_rows
from pyro_bnn.data import AUGMENTATIONS, DATASETS, Data, load_data
from pyro_bnn.guides import AutoDropout, AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint, Ensemble, StoredDraws
from pyro_bnn.inference.checkpoint import atomic_write
from pyro_bnn.inference.elbo import ESTIMATORS as PYRO_ESTIMATORS
from pyro_bnn.inference.elbo import TraceColdPosterior_ELBO
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.kl import KL_WEIGHTS, KLWeight, from_spec, tempered
from pyro_bnn.inference.reparam import flipout, local_reparameterization
from pyro_bnn.inference.svi import Callback
from pyro_bnn.machine import cpu_name
from pyro_bnn.models import (
    BNN,
    CVNN,
    MLP,
    VGG,
    DenseNet121,
    LeNet5,
    OneHiddenLayer,
    PatchTransformer,
    Perceptron,
    ResNet20,
    ResNet34,
    WideResNet,
    likelihoods,
    penalty_priors,
    priors,
)
from pyro_bnn.optim import OPTIMIZERS, SCHEDULES, PerSite, TorchOptim, TwinPlateau, make_schedule
from pyro_bnn.penalties import L1, L2, GroupLasso, PenaltyPrior, UsualPenaltyPrior
from pyro_bnn.posterior import Posterior, describe
from pyro_bnn.posteriors import POSTERIORS, Trainer, Work, make_trainer
from pyro_bnn.recipe import Recipe, find_recipe, recipe_names
from pyro_bnn.version import __version__

__all__ = ["Assembly", "Run", "assemble", "catalogue", "evaluate", "load", "train"]


# -- names -------------------------------------------------------------------------------------------------------


def _channel_args(data: Data) -> dict[str, Any]:
    if len(data.input_shape) != 3:
        raise ValueError(f"data {data.name!r} has inputs of shape {data.input_shape}, not images: use model='mlp'")
    return {"in_channels": data.input_shape[0], "num_classes": data.num_outputs}


def _image_args(data: Data) -> dict[str, Any]:
    channels = _channel_args(data)
    _, height, width = data.input_shape
    if height != width:
        raise ValueError(f"data {data.name!r} has images of {height}x{width}; this network takes square ones")
    return {**channels, "image_size": height}


def _flat_args(data: Data) -> dict[str, Any]:
    return {"in_features": int(torch.Size(data.input_shape).numel()), "out_features": data.num_outputs}


NETWORKS: dict[str, tuple[type[nn.Module], Callable[[Data], dict[str, Any]]]] = {
    "lenet5": (LeNet5, _image_args),
    "mlp": (MLP, _flat_args),
    "perceptron": (Perceptron, _flat_args),
    "cvnn": (CVNN, _image_args),
    "vgg": (VGG, _image_args),
    "one_hidden_layer": (OneHiddenLayer, _flat_args),
    "resnet20": (ResNet20, _channel_args),
    "resnet34": (ResNet34, _channel_args),
    "densenet121": (DenseNet121, _channel_args),
    "wide_resnet": (WideResNet, _channel_args),
    "patch_transformer": (PatchTransformer, _image_args),
}

PRIORS: dict[str, type[priors.Prior]] = {
    "normal": priors.Normal,
    "kaiming": priors.Kaiming,
    "xavier": priors.Xavier,
    "fan_in": priors.FanIn,
    "laplace": priors.Laplace,
    "scale_mixture": priors.ScaleMixture,
    "l2_penalty": penalty_priors.L2Prior,
    "l1_penalty": penalty_priors.L1Prior,
    "group_lasso": penalty_priors.GroupLassoPrior,
    "usual_penalty": UsualPenaltyPrior,
}

PENALTIES: dict[str, Callable[..., Any]] = {"L2": L2, "L1": L1, "GroupLasso": GroupLasso}

LIKELIHOODS: dict[str, type[likelihoods.Likelihood]] = {
    "categorical": likelihoods.Categorical,
    "bernoulli": likelihoods.Bernoulli,
    "gaussian": likelihoods.Gaussian,
    "learned_gaussian": likelihoods.LearnedGaussian,
    "heteroscedastic_gaussian": likelihoods.HeteroscedasticGaussian,
}

GUIDES: dict[str, Callable[..., Any]] = {"mean_field": AutoMeanFieldNormal, "low_rank": AutoLowRankNormal}

FITTED: dict[str, Callable[..., Any]] = {"dropout": AutoDropout, "point": AutoPoint, "stored_draws": StoredDraws}
"""Guides that only the kinds of posterior make."""

LAYERS: dict[str, Callable[[], Any]] = {
    "plain": nullcontext,
    "local": local_reparameterization,
    "flipout": flipout,
}

CLIPPING = ("clip_norm", "clip_value")

ESTIMATORS: dict[str, Callable[..., ELBO]] = {**PYRO_ESTIMATORS, "analytic": FlatMeanField_ELBO}


def catalogue() -> dict[str, list[str]]:
    """Return every name a recipe can use, by kind."""
    return {
        "recipes": recipe_names(),
        "models": sorted(NETWORKS),
        "data": list(DATASETS),
        "priors": sorted(PRIORS),
        "likelihoods": sorted(LIKELIHOODS),
        "guides": sorted(GUIDES),
        "kinds": sorted(POSTERIORS),
        "estimators": sorted(ESTIMATORS),
        "layers": sorted(LAYERS),
        "kl": sorted(KL_WEIGHTS),
        "optimizers": sorted(OPTIMIZERS),
        "schedules": sorted(SCHEDULES),
        "augmentations": sorted(AUGMENTATIONS),
        "posteriors": shipped_posteriors(),
    }


def _look_up(kind: str, name: Any, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}; choose one of {', '.join(sorted(table))}")
    return table[name]


def _construct(kind: str, spec: Mapping[str, Any], table: Mapping[str, Callable[..., Any]], *args: Any) -> Any:
    """Build what `spec` = {name, numbers...} describes."""
    numbers = {key: value for key, value in spec.items() if key != "name"}
    make = _look_up(kind, spec["name"], table)
    try:
        return make(*args, **numbers)
    except TypeError as error:
        raise ValueError(f"{kind} {spec['name']!r} with {numbers}: {error}") from error


def _by_class(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same constructors by the names of their classes, as specs of fitted objects use them."""
    return {value.__name__: value for value in table.values()}


def build_prior(spec: Mapping[str, Any]) -> priors.Prior:
    """Build a prior from the description a posterior carries."""
    if spec["name"] == "PenaltyPrior":
        penalty = _construct("penalty", spec["penalty"], PENALTIES)
        return PenaltyPrior(penalty, spec["weights"])
    if spec["name"] == "PerLayer":
        rules = {pattern: build_prior(rule) for pattern, rule in spec["rules"].items()}
        return priors.PerLayer(rules, build_prior(spec["default"]))
    return _construct("prior", spec, _by_class(PRIORS))  # type: ignore[no-any-return]


def build_model(spec: Mapping[str, Any]) -> BNN:
    """Build a BNN from the description a posterior carries."""
    return BNN(
        _construct("model", spec["net"], _by_class({name: cls for name, (cls, _) in NETWORKS.items()})),
        build_prior(spec["prior"]),
        _construct("likelihood", spec["likelihood"], _by_class(LIKELIHOODS)),
        spec["num_data"],
        random=spec["random"],
    )


def build_guide(spec: Mapping[str, Any], model: Any) -> Any:
    """Build a guide for `model` from the description a posterior carries."""
    if spec["name"] == "Ensemble":
        return Ensemble.from_spec(spec, model, build_guide)
    return _construct("guide", spec, _by_class({**GUIDES, **FITTED}), model)


# -- assembling --------------------------------------------------------------------------------------------------


@final
@dataclass
class Assembly:
    """Everything a recipe names, built and checked, ready to train."""

    recipe: Recipe
    data: Data
    model: BNN
    guide: Any
    optim: PyroOptim
    elbo: ELBO
    kl: KLWeight
    augment: Callable[..., Any] | None
    trainer: Trainer
    layers: Callable[[], AbstractContextManager[Any]]

    def new_guide(self) -> Any:
        """Return another guide, as the recipe describes it, from the random state as it is."""
        return _construct("guide", self.recipe.guide, GUIDES, self.model)


def resolve(recipe: Recipe, data: Data) -> Recipe:
    """Return the recipe with what follows from the data spelled out: the network's sizes and the likelihood."""
    _, sizes = _look_up("model", recipe.model, NETWORKS)
    likelihood = dict(recipe.likelihood)
    if likelihood["name"] == "auto":
        likelihood["name"] = "categorical" if data.task == "classification" else "learned_gaussian"
    args = sizes(data)
    if likelihood["name"] == "heteroscedastic_gaussian" and "out_features" in args:
        args["out_features"] *= 2
    if likelihood["name"] == "bernoulli" and "out_features" in args:
        args["out_features"] = 1
    return recipe.changed({"model_args": {**args, **recipe.model_args}, "likelihood": likelihood})


def _optimizer(recipe: Recipe, *, scale: bool = True) -> PyroOptim:
    """
    Build PerSite from the groups, without `scale` for a point.

    A twin plateau watches both, any other schedule goes to each group's optimizer.
    """
    shared = make_schedule(**recipe.schedule)
    twin = shared if isinstance(shared, TwinPlateau) else None

    def one(table: Mapping[str, Any]) -> TorchOptim:
        numbers = {key: value for key, value in table.items() if key not in ("name", "schedule", *CLIPPING)}
        clipping = {key: table[key] for key in CLIPPING if key in table}
        algorithm = _look_up("optimizer", table["name"], OPTIMIZERS)
        if "batch_size" in algorithm.arguments():
            numbers.setdefault("batch_size", recipe.batch_size)
        own = table.get("schedule")
        schedule = (None if twin else shared) if own is None else make_schedule(**_table(own))
        return cast(TorchOptim, algorithm(numbers, clipping or None, schedule=schedule))

    groups = recipe.optim
    other = None if groups.other == groups.loc else one(groups.other)
    turns: dict[str, Any] = {"frozen": tuple(groups.frozen), "alternate": groups.alternate or None}
    spread = one(groups.scale) if scale else None
    return PerSite(loc=one(groups.loc), scale=spread, other=other, schedule=twin, **turns)


def _table(value: Any) -> dict[str, Any]:
    return {"name": value} if isinstance(value, str) else dict(value)


def _estimator(recipe: Recipe) -> ELBO:
    if recipe.temperature != 1:
        if recipe.estimator["name"] != "analytic":
            raise ValueError(
                f"temperature={recipe.temperature} has a loss of its own and takes no estimator "
                f"{recipe.estimator['name']!r}: leave estimator at 'analytic'"
            )
        return TraceColdPosterior_ELBO(temperature=recipe.temperature)
    named = {key: value for key, value in recipe.estimator.items() if key != "layers"}
    return _construct("estimator", named, ESTIMATORS)  # type: ignore[no-any-return]


def _layers(recipe: Recipe) -> Callable[[], AbstractContextManager[Any]]:
    """Return how layers turn weight noise into outputs: `estimator = {name = "analytic", layers = "flipout"}`."""
    make = _look_up("layers", recipe.estimator.get("layers", "plain"), LAYERS)
    return cast(Callable[[], AbstractContextManager[Any]], make)


def _check_watched(recipe: Recipe, data: Data) -> None:
    """Refuse a plateau whose metric no epoch will have, or that gets better as it rises."""
    watched = ("nll", "kl", "loss", *(() if data.val is None else ("val_nll",)))
    tables = [
        recipe.schedule,
        *(getattr(recipe.optim, group).get("schedule", {}) for group in ("loc", "scale", "other")),
    ]
    for table in map(_table, tables):
        metric = table.get("metric") if table.get("name") == "plateau" else None
        if metric is not None and metric not in watched:
            raise ValueError(
                f"schedule.metric={metric!r} is nothing that falls from epoch to epoch here: pass one of "
                f"{', '.join(watched)}, or set val_fraction above 0 for val_nll"
            )


def assemble(recipe: Recipe, data_root: str | Path | None = None) -> Assembly:
    """Build everything a recipe names; what does not exist or does not fit is refused here."""
    _look_up("model", recipe.model, NETWORKS)
    _look_up("guide", recipe.guide["name"], GUIDES)
    _look_up("prior", recipe.prior["name"], PRIORS)
    if recipe.likelihood["name"] != "auto":
        _look_up("likelihood", recipe.likelihood["name"], LIKELIHOODS)
    trainer = make_trainer(recipe.posterior).resolved(recipe)
    recipe = recipe.changed({"posterior": {"name": recipe.posterior["name"], **trainer.spec()}})
    augment = _look_up("augment", recipe.augment, AUGMENTATIONS)
    optim = _optimizer(recipe)
    elbo = _estimator(recipe)
    layers = _layers(recipe)
    kl = from_spec(recipe.kl) * tempered(recipe.eta)
    data = load_data(
        recipe.data, root=data_root, val_fraction=recipe.val_fraction, seed=recipe.seed, **recipe.data_args
    )
    if recipe.batch_size > len(data.train):
        raise ValueError(
            f"batch_size={recipe.batch_size} is more than the {len(data.train)} training rows of {data.name!r}: "
            f"pass 1 to {len(data.train)}"
        )
    _check_watched(recipe, data)
    recipe = resolve(recipe, data)
    pyro.set_rng_seed(recipe.seed)
    network, _ = NETWORKS[recipe.model]
    net = _construct("model", {"name": recipe.model, **recipe.model_args}, {recipe.model: network})
    prior = _construct("prior", recipe.prior, PRIORS)
    likelihood = _construct("likelihood", recipe.likelihood, LIKELIHOODS)
    model = BNN(net, prior, likelihood, len(data.train), random=recipe.random or None)
    guide = _construct("guide", recipe.guide, GUIDES, model)
    augment = None if recipe.augment == "none" else augment
    parts = Assembly(recipe, data, model, guide, optim, elbo, kl, augment, trainer, layers)
    trainer.check(parts)
    return parts


def _info(parts: Assembly) -> dict[str, Any]:
    data, recipe = parts.data, parts.recipe
    return {
        "recipe": recipe.model_dump(),
        "data": data.name,
        "task": data.task,
        "input_shape": list(data.input_shape),
        "class_names": None if data.class_names is None else list(data.class_names),
        "standardiser": None if data.standardiser is None else data.standardiser.to_dict(),
        "y_standardiser": None if data.y_standardiser is None else data.y_standardiser.to_dict(),
        "num_data": len(data.train),
        "eta": recipe.eta,
        "temperature": recipe.temperature,
        "posterior": recipe.posterior["name"],
    }


# -- the run folder ----------------------------------------------------------------------------------------------


@final
@dataclass
class Run:
    """A finished training: its folder, recipe, posterior, results table and history."""

    path: Path | None
    recipe: Recipe
    posterior: Posterior
    results: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = True


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


def _held_recipe(path: Path) -> Recipe | None:
    held = path / "recipe.toml"
    return Recipe.from_toml(held.read_text(), path.name) if held.is_file() else None


def _check_same(held: Recipe, wanted: Recipe, path: Path) -> None:
    old, new = held.model_dump(), wanted.model_dump()
    changed = [f"{key}: {old[key]!r} there, {new[key]!r} now" for key in new if old[key] != new[key]]
    if changed:
        raise ValueError(
            f"{path} holds a run of another recipe ({'; '.join(changed)}): choose another folder with out="
        )


def train(
    recipe: str | Path | Recipe,
    *,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
    report: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Run:
    """
    Train a recipe and leave a run folder; a folder with the same recipe, unfinished, is gone on with.

    :param recipe: a name of the catalogue, a .toml file, or a Recipe.
    :param out: the run folder; without one nothing is written.
    :param data_root: where data sets by name live; default PYRO_BNN_DATA, else the user's cache.
    :param resume: go on with an unfinished run in `out`; False refuses a folder that holds one.
    :param progress: show a progress bar, or a line per epoch where there is no terminal.
    :param report: write `posterior.nc` and `report.html` into `out`, too: some seconds more.
    :param settings: recipe keys to change, e.g. `epochs=3`; dotted ones as `**{"optim.loc.lr": 1e-3}`.
    """
    path = None if out is None else Path(out)
    parts = assemble(find_recipe(recipe).changed(settings), data_root)
    posterior = Posterior(parts.model, parts.guide, _info(parts))
    if path is not None and (held := _held_recipe(path)) is not None:
        if not resume:
            raise ValueError(f"{path} holds a run already: resume it (--resume) or choose another folder (--out)")
        _check_same(held, parts.recipe, path)
        if (path / "results.json").is_file():
            return _finished(path, held)
    elif path is not None and path.exists() and any(path.iterdir()):
        raise ValueError(f"{path} is a folder with other things in it: choose a new or empty one with out=")
    watchers = list(callbacks)
    if progress:
        from pyro_bnn.progress import ProgressReport

        watchers.append(ProgressReport())
    settled = parts.recipe
    with parts.layers():
        outcome = parts.trainer(Work(parts, settled, _optimizer, path, watchers))
    if outcome.guide is not None:
        posterior = Posterior(parts.model, outcome.guide, _info(parts))
    if outcome.interrupted:
        if path is not None and outcome.history and outcome.guide is not None:
            posterior.save(path)
        return Run(path, settled, posterior, {}, outcome.history, finished=False)
    started = time.perf_counter()
    test = parts.data.test.to(settled.device)
    draws = draws_of(posterior, settled.num_samples)
    evaluation = evaluate_rows(posterior, test.x, test.y, draws, seed=settled.seed)
    results = {
        "recipe": settled.name,
        "data": settled.data,
        "eta": settled.eta,
        "temperature": settled.temperature,
        "num_samples": draws,
        "num_test": len(test),
        "test": evaluation.table,
        "posterior": settled.posterior,
        "facts": outcome.facts,
        "epochs": len(outcome.history),
        "best_epoch": outcome.best_epoch,
        "ended": outcome.reason,
        "seconds": {"train": outcome.seconds, "evaluate": time.perf_counter() - started},
        **_circumstances(),
    }
    if path is not None:
        posterior.save(path)
        _write(path / "results.json", json.dumps(results, indent=2))
        if report:
            _write_outputs(path, parts.data, posterior, outcome.history, results, evaluation)
    return Run(path, settled, posterior, results, outcome.history)


def _write_outputs(
    path: Path,
    data: Data,
    posterior: Posterior,
    history: Sequence[Mapping[str, Any]],
    results: Mapping[str, Any],
    evaluation: Evaluation,
) -> None:
    from pyro_bnn.analysis.outputs import write_outputs

    write_outputs(
        path,
        posterior,
        (data.train.x, data.train.y),
        (data.test.x, data.test.y),
        None if data.val is None else (data.val.x, data.val.y),
        history=history,
        results=results,
        evaluation=evaluation,
    )


def _circumstances() -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "pyro_bnn": __version__,
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "python": platform.python_version(),
        "machine": f"{cpu_name()}, {torch.get_num_threads()} threads",
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def _finished(path: Path, recipe: Recipe) -> Run:
    results = json.loads((path / "results.json").read_text())
    return Run(path, recipe, load(path), results, _lines(path))


# -- loading -----------------------------------------------------------------------------------------------------


def _weights() -> Path:
    return Path(str(files("pyro_bnn") / "weights"))


def shipped_posteriors() -> list[str]:
    """Return the names of the posteriors in the package."""
    return sorted(folder.parent.name for folder in _weights().glob("*/posterior.json"))


def posterior_folder(path: str | Path) -> Path:
    """Return the folder of a posterior: a run folder, one that `Posterior.save` wrote, or that of a shipped name."""
    name, folder = str(path), Path(path)
    if folder.exists():
        return folder
    if name not in shipped_posteriors():
        known = ", ".join(shipped_posteriors()) or "none are shipped"
        raise FileNotFoundError(f"no run folder {name!r} and no shipped posterior of that name (there are: {known})")
    return _weights() / name


def load(path: str | Path, model: Callable[..., Any] | None = None, guide: Any = None) -> Posterior:
    """
    Load a posterior: the name of a shipped one, a run folder, or a folder that `Posterior.save` wrote.

    :param model: the program, for a posterior of a hand-written one.
    :param guide: likewise the guide, if it is hand-written too.
    """
    return Posterior.load(posterior_folder(path), model, guide, build_model=build_model, build_guide=build_guide)


def evaluate(
    path: str | Path, *, data_root: str | Path | None = None, num_samples: int | None = None
) -> dict[str, Any]:
    """Score the posterior in `path` once more on the test rows of its own data."""
    posterior = load(path)
    recipe = posterior.info.get("recipe")
    if recipe is None:
        raise ValueError(
            f"{path} was not trained from a recipe, so its test rows are unknown: use Posterior.evaluate(x, y)"
        )
    settled = Recipe.build(recipe)
    data = load_data(
        settled.data, root=data_root, val_fraction=settled.val_fraction, seed=settled.seed, **settled.data_args
    )
    samples = draws_of(posterior, num_samples or settled.num_samples)
    table = posterior.evaluate(data.test.x, data.test.y, samples, seed=settled.seed)
    return {"recipe": settled.name, "data": settled.data, "eta": settled.eta, "num_samples": samples, "test": table}


__all__ += [
    "build_guide",
    "build_model",
    "build_prior",
    "describe",
    "posterior_folder",
    "resolve",
    "shipped_posteriors",
]
