"""
Recipe -> what trains: the tables of names, and the one place that builds from them.

Everything a recipe names is built and checked here before anything runs or is written.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

import pyro
import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import nn

from pyro_bnn.data import AUGMENTATIONS, DATASETS, Data, load_data
from pyro_bnn.guides import AutoDropout, AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint, StoredDraws
from pyro_bnn.inference.elbo import ESTIMATORS as PYRO_ESTIMATORS
from pyro_bnn.inference.elbo import TraceColdPosterior_ELBO
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.kl import KL_WEIGHTS, KLWeight, from_spec, tempered
from pyro_bnn.inference.reparam import flipout, local_reparameterization
from pyro_bnn.methods import POSTERIORS, Trainer, make_trainer
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
from pyro_bnn.penalties import L1, L2, GroupLasso, UsualPenaltyPrior
from pyro_bnn.posterior.rebuild import build_guide, build_model, build_prior
from pyro_bnn.recipe import Recipe, recipe_names

__all__ = ["Assembly", "assemble", "build_guide", "build_model", "build_prior", "catalogue", "resolve"]


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
