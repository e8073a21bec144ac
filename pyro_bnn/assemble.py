"""
Recipe -> what trains: the tables of names, and the one place that builds from them.

Everything a recipe names is built and checked here before anything runs or is written.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

import pyro
from pyro.infer import ELBO
from torch import nn

from pyro_bnn.common.calls import misfit
from pyro_bnn.common.contract import contract_of
from pyro_bnn.common.limits import check_memory
from pyro_bnn.common.sizing import entries_of
from pyro_bnn.data import DATASETS, Data, MappedRows, load_data
from pyro_bnn.inference.elbo import TraceColdPosterior_ELBO
from pyro_bnn.inference.kl import KL_WEIGHTS, KLWeight, from_spec, tempered
from pyro_bnn.inference.low_rank_elbo import TraceLowRank_ELBO
from pyro_bnn.methods import Method, make_method
from pyro_bnn.models import BNN
from pyro_bnn.models.likelihoods import Likelihood
from pyro_bnn.optim import PerSite, Schedule, TorchOptim, TwinPlateau, schedule_of
from pyro_bnn.posterior.rebuild import build_guide, build_model, build_prior, build_program
from pyro_bnn.recipe import Recipe, recipe_names
from pyro_bnn.registry import look_up, names

__all__ = [
    "Assembly",
    "assemble",
    "build_elbo",
    "build_guide",
    "build_model",
    "build_named_model",
    "build_optimizer",
    "build_prior",
    "catalogue",
    "load_rows",
    "resolve",
]


CLIPPING = ("clip_norm", "clip_value")


def catalogue() -> dict[str, list[str]]:
    """Return every name a recipe can use, by kind."""
    return {
        "recipes": recipe_names(),
        **{kind: names(kind) for kind in ("models", "data", "priors", "likelihoods")},
        "guides": [name for name in names("guides") if name not in _MADE_BY_METHODS],
        **{kind: names(kind) for kind in ("methods", "estimators", "layers")},
        "kl": sorted(KL_WEIGHTS),
        **{kind: names(kind) for kind in ("optimizers", "schedules", "augmentations", "trackers")},
    }


_MADE_BY_METHODS = ("dropout", "point", "stored_draws")


def _construct(kind: str, spec: Mapping[str, Any], *args: Any) -> Any:
    """Build what `spec` = {name, numbers...} describes."""
    return _called(kind, spec["name"], {key: value for key, value in spec.items() if key != "name"}, *args)


def _called(kind: str, name: str, numbers: Mapping[str, Any], *args: Any) -> Any:
    make = look_up(kind, name)
    wrong = misfit(make, numbers, args)
    if wrong is not None:
        raise ValueError(f"{kind.removesuffix('s')} {name!r} with {dict(numbers)}: {wrong}")
    try:
        return make(*args, **numbers)
    except TypeError as error:
        raise ValueError(f"{kind.removesuffix('s')} {name!r} with {dict(numbers)}: {error}") from error


@final
@dataclass
class Assembly:
    """
    Everything a recipe names, built and checked, ready to train.

    :param recipe: with every default spelled out.
    :param data: its rows.
    :param model: the program.
    :param guide: the guide to train.
    :param kl: the weight of the KL.
    :param augment: what is done to every batch; None for nothing.
    :param method: how the posterior is made.
    :param layers: the context of reparameterised layers that steps run in.
    """

    recipe: Recipe
    data: Data
    model: Any
    guide: Any
    kl: KLWeight
    augment: Callable[..., Any] | None
    method: Method
    layers: Callable[[], AbstractContextManager[Any]]

    def new_guide(self) -> Any:
        """Return another guide, as the method makes it, from the random state as it is."""
        return self.method.make_guide(self.recipe, self.model)

    def optimizer(self, guide: Any, recipe: Recipe | None = None, *, loc: TorchOptim | None = None) -> PerSite:
        """
        Return a new optimizer of the recipe's for what a guide has: means, deviations, and the model's own parameters.

        :param recipe: another recipe than this one's, with another schedule.
        :param loc: what moves the means, in the place of the recipe's.
        """
        chosen = self.recipe if recipe is None else recipe
        if loc is None:
            return build_optimizer(chosen, scale=contract_of(guide).trains_scales)
        own = isinstance(self.model, nn.Module) and any(p.requires_grad for p in self.model.parameters())
        return PerSite(loc=loc, other=_group_optimizer(chosen, chosen.optim.other, None) if own else None)

    def elbo(self, guide: Any) -> ELBO:
        """Return the recipe's ELBO; for `analytic` that with this guide's KL in closed form."""
        return build_elbo(self.recipe, guide)


def resolve(recipe: Recipe, data: Data) -> Recipe:
    """
    Return the recipe with what follows from the data spelled out: the network's sizes and the likelihood.

    :param recipe: the training's recipe.
    :param data: its rows.
    """
    if recipe.program:
        return recipe
    likelihood = dict(recipe.likelihood)
    if likelihood["name"] == "auto":
        likelihood["name"] = "categorical" if data.task == "classification" else "learned_gaussian"
    law: Likelihood = _construct("likelihoods", likelihood)
    if (law.task == "classification") != (data.task == "classification"):
        raise ValueError(
            f"likelihood {likelihood['name']!r} is for {law.task} and data {data.name!r} are for {data.task}: choose "
            "another likelihood (one of your own says what it is for by `task`), or say with data_args.task what the "
            "targets are"
        )
    sized_for = getattr(look_up("models", recipe.model), "sized_for", None)
    args = {} if sized_for is None else sized_for(data.input_shape, data.num_outputs)
    args.update({key: law.outputs(args[key]) for key in ("out_features", "num_classes") if key in args})
    return recipe.changed({"model_args": {**args, **recipe.model_args}, "likelihood": likelihood})


def _group_optimizer(recipe: Recipe, table: Mapping[str, Any], shared: Schedule | None) -> TorchOptim:
    """Return the optimizer of one group; its own schedule comes before the recipe's."""
    numbers = {key: value for key, value in table.items() if key not in ("name", "schedule", *CLIPPING)}
    clipping = {key: table[key] for key in CLIPPING if key in table}
    algorithm = look_up("optimizers", table["name"])
    if "batch_size" in algorithm.arguments():
        numbers.setdefault("batch_size", recipe.batch_size * recipe.accumulate)
    own = table.get("schedule")
    schedule = shared if own is None else _schedule(_table(own))
    return cast(TorchOptim, algorithm(numbers, clipping or None, schedule=schedule))


def build_optimizer(recipe: Recipe, *, scale: bool = True) -> PerSite:
    """
    Build PerSite from a recipe's groups, without `scale` for a point.

    A twin plateau watches both, any other schedule goes to each group's optimizer.

    :param recipe: the training's recipe.
    """
    shared = _schedule(recipe.schedule)
    twin = shared if isinstance(shared, TwinPlateau) else None

    def one(table: Mapping[str, Any]) -> TorchOptim:
        return _group_optimizer(recipe, table, None if twin else shared)

    groups = recipe.optim
    return PerSite(
        loc=one(groups.loc),
        scale=one(groups.scale) if scale else None,
        other=None if groups.other == groups.loc else one(groups.other),
        schedule=twin,
        frozen=tuple(groups.frozen),
        alternate=groups.alternate or None,
    )


def _schedule(table: Mapping[str, Any]) -> Schedule:
    return schedule_of(table, lambda name: cast("Callable[..., Schedule]", look_up("schedules", name)))


def _table(value: Any) -> dict[str, Any]:
    return {"name": value} if isinstance(value, str) else dict(value)


def build_elbo(recipe: Recipe, guide: Any) -> ELBO:
    """
    Return a recipe's ELBO; `analytic` has this guide's KL in closed form.

    :param recipe: the training's recipe.
    :param guide: its guide.
    """
    if recipe.temperature != 1:
        if recipe.estimator["name"] != "analytic":
            raise ValueError(
                f"temperature={recipe.temperature} has a loss of its own and takes no estimator "
                f"{recipe.estimator['name']!r}: leave estimator at 'analytic'"
            )
        return TraceColdPosterior_ELBO(temperature=recipe.temperature)
    named = {key: value for key, value in recipe.estimator.items() if key != "layers"}
    elbo: ELBO = _construct("estimators", named)
    if named["name"] == "analytic" and contract_of(guide).analytic_elbo == "low_rank":
        return TraceLowRank_ELBO(num_particles=elbo.num_particles)  # type: ignore[no-untyped-call]
    return elbo


def _layers(recipe: Recipe) -> Callable[[], AbstractContextManager[Any]]:
    """Return how layers turn weight noise into outputs: `estimator = {name = "analytic", layers = "flipout"}`."""
    make = look_up("layers", recipe.estimator.get("layers", "plain"))
    return cast(Callable[[], AbstractContextManager[Any]], make)


def _bytes_of_a_weight(recipe: Recipe) -> int:
    """Return what a weight takes: mean, deviation, their gradients and moments of Adam, and the draws kept of it."""
    kept = math.prod(v for k, v in recipe.method.items() if k in ("draws", "chains", "members") and isinstance(v, int))
    return 4 * (8 + kept)


def build_named_model(recipe: Recipe, num_data: int) -> Any:
    """
    Return the program of a recipe, whose sizes and likelihood are spelled out (see :func:`resolve`).

    :param recipe: the recipe.
    :param num_data: N, the number of rows trained on.
    """
    if recipe.program:
        return build_program(look_up("models", recipe.program), recipe.program_args, num_data)
    name, numbers = cast(str, recipe.model), recipe.model_args
    entries = entries_of(look_up("models", name), numbers, f"model {name!r} with {numbers!s:.200}")
    if entries is not None:
        check_memory(entries * _bytes_of_a_weight(recipe), f"model {name!r} of {entries:,} parameters, in training,")
    net = _called("models", name, numbers)
    prior, likelihood = _construct("priors", recipe.prior), _construct("likelihoods", recipe.likelihood)
    return BNN(net, prior, likelihood, num_data, random=recipe.random or None)


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


def _check_on_disk(recipe: Recipe, method: Method, data: Data) -> None:
    """Refuse rows on disk for a method that needs them all at hand."""
    if isinstance(data.train, MappedRows) and not method.trains_by_fit():
        raise ValueError(
            f"data_args.on_disk=true is for methods that train by SVI, and {recipe.method['name']!r} needs all rows at "
            "hand: leave it out"
        )


def _check_parts(recipe: Recipe, method: Method, rows: int) -> None:
    """Refuse what only `fit` does for a method that trains otherwise, and steps of more batches than there are."""
    if not method.trains_by_fit():
        for key, usual in (("accumulate", 1), ("precision", "float32"), ("noise", "own")):
            if getattr(recipe, key) != usual:
                raise ValueError(
                    f"{key}={getattr(recipe, key)!r} is for methods that train by SVI, and {recipe.method['name']!r} "
                    f"does not: leave {key} out"
                )
    batches = -(-rows // recipe.batch_size)
    if recipe.accumulate > batches:
        raise ValueError(
            f"accumulate={recipe.accumulate} is more than the {batches} batches of {rows} rows: pass 1 to {batches}"
        )
    if recipe.precision != "float32" and recipe.program:
        raise ValueError(
            f"precision={recipe.precision!r} is for networks, and this recipe names a program: use torch.autocast in it"
        )


def load_rows(recipe: Recipe, data_root: str | Path | None = None, *, find: Callable[[str], Any] | None = None) -> Data:
    """
    Return the data of a recipe, split and standardised as it says.

    :param recipe: the training's recipe.
    :param data_root: folder of the data sets; default `PYRO_BNN_DATA`, else the cache.
    :param find: what "package.module:function" stands for; default the function, imported. A recipe that was read from
        a saved file gives `find_saved`, which imports nothing that is not trusted.
    """

    def known(kind: str, name: str) -> Any:
        return find(name) if find is not None and ":" in name else look_up(kind, name)

    arguments, source = dict(recipe.data_args), cast(Any, recipe.data)
    by_path = ":" in source and not source.endswith((".npz", ".csv"))
    if by_path or (source in names("data") and source not in DATASETS):
        make = known("data", source)
        own = {key: arguments.pop(key) for key in inspect.signature(make).parameters if key in arguments}
        source = make(**own)
    unit = {"standardise": "x"} if _of_counts(recipe, known) else {}  # counts stay counts
    settings = {"val_fraction": recipe.val_fraction, "seed": recipe.seed, **unit, **arguments}
    data = load_data(source, root=data_root, **settings)
    if unit and data.y_standardiser is not None:
        raise ValueError(
            f"data_args.standardise={recipe.data_args['standardise']!r} standardises the targets, and counts are never "
            "standardised: leave it out, or pass 'x' or False"
        )
    return data


def _of_counts(recipe: Recipe, known: Callable[[str, str], Any]) -> bool:
    """Return whether the recipe's likelihood is one of counts; 'auto' never is."""
    name = recipe.likelihood["name"]
    return name != "auto" and known("likelihoods", name).task == "counts"  # type: ignore[no-any-return]


def assemble(recipe: Recipe, data_root: str | Path | None = None) -> Assembly:
    """
    Build everything a recipe names; what does not exist or does not fit is refused here.

    :param recipe: the training's recipe.
    :param data_root: folder of the data sets; default `PYRO_BNN_DATA`, else the cache.
    """
    if recipe.model is not None:
        look_up("models", recipe.model)
        look_up("priors", recipe.prior["name"])
        if recipe.likelihood["name"] != "auto":
            look_up("likelihoods", recipe.likelihood["name"])
    look_up("guides", recipe.guide["name"])
    method = make_method(recipe.method).resolved(recipe)
    recipe = recipe.changed({"method": {"name": recipe.method["name"], **method.spec()}})
    augment = None if recipe.augment == "none" else look_up("augmentations", recipe.augment)
    build_optimizer(recipe)
    layers = _layers(recipe)
    kl = from_spec(recipe.kl) * tempered(recipe.eta)
    if _of_counts(recipe, look_up):  # they stay as they were counted
        recipe = recipe.changed({"data_args": {"standardise": "x", **recipe.data_args}})
    data = load_rows(recipe, data_root)
    if recipe.batch_size > len(data.train):
        raise ValueError(
            f"batch_size={recipe.batch_size} is more than the {len(data.train)} training rows of {data.name!r}: "
            f"pass 1 to {len(data.train)}"
        )
    _check_watched(recipe, data)
    _check_on_disk(recipe, method, data)
    _check_parts(recipe, method, len(data.train))
    recipe = resolve(recipe, data)
    pyro.set_rng_seed(recipe.seed)
    model = build_named_model(recipe, len(data.train))
    guide = method.make_guide(recipe, model)
    build_elbo(recipe, guide)
    parts = Assembly(recipe, data, model, guide, kl, augment, method, layers)
    method.check(parts)
    return parts
