"""
One way to name things: by a registered name, or as `"package.module:Name"`.

What a recipe can name lives in kinds (`models`, `guides`, `priors`, ...). A name of a kind is known because

    this library brings it           the table `BUILT_IN` below: one row for one addition
    a program registered it          `@register("models", "my_net")` above the class
    an installed package offers it   the entry-point group `pyro_bnn.models` (`.guides`, `.priors`, ...)

and `"my_package.nets:Net"` needs no registration at all. Nothing is imported before it is looked up; an unknown name is
answered with the known ones.

A saved description goes the other way: `path_of` says where a class comes from, `find_saved` gives it back, but only if
this library brings it, this program registered it, or the caller trusts its package: reading a file never imports a
module that the caller did not name.
"""

import difflib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "BUILT_IN",
    "KINDS",
    "NotTrusted",
    "described",
    "find_saved",
    "look_up",
    "names",
    "path_of",
    "register",
    "trusted_packages",
    "trusting",
]

T = TypeVar("T")


def _studies() -> dict[str, str]:
    """Return where the studies are: a file for each, and the harness under them."""
    harness = ("__init__", "__main__", "charts", "figures", "findings", "gallery", "picture", "run", "study", "trials")
    files = sorted(path.stem for path in (Path(__file__).parent / "studies").glob("*.py"))
    claims = [stem for stem in files if stem not in harness and not stem.startswith("_")]
    return {stem.replace("_", "-"): f"pyro_bnn.studies.{stem}:STUDY" for stem in claims}


BUILT_IN: dict[str, dict[str, str]] = {
    "models": {
        "cvnn": "pyro_bnn.models.networks.cvnn:CVNN",
        "densenet121": "pyro_bnn.models.networks.densenet121:DenseNet121",
        "frn_resnet20": "pyro_bnn.models.networks.frn_resnet20:FRNResNet20",
        "lenet5": "pyro_bnn.models.networks.lenet5:LeNet5",
        "mlp": "pyro_bnn.models.networks.mlp:MLP",
        "one_hidden_layer": "pyro_bnn.models.networks.one_hidden_layer:OneHiddenLayer",
        "patch_transformer": "pyro_bnn.models.networks.patch_transformer:PatchTransformer",
        "perceptron": "pyro_bnn.models.networks.perceptron:Perceptron",
        "resnet20": "pyro_bnn.models.networks.resnet20:ResNet20",
        "resnet34": "pyro_bnn.models.networks.resnet34:ResNet34",
        "vgg": "pyro_bnn.models.networks.vgg:VGG",
        "wide_resnet": "pyro_bnn.models.networks.wide_resnet:WideResNet",
    },
    "priors": {
        "fan_in": "pyro_bnn.models.priors:FanIn",
        "group_lasso": "pyro_bnn.models.penalty_priors:GroupLassoPrior",
        "kaiming": "pyro_bnn.models.priors:Kaiming",
        "l1_penalty": "pyro_bnn.models.penalty_priors:L1Prior",
        "l2_penalty": "pyro_bnn.models.penalty_priors:L2Prior",
        "laplace": "pyro_bnn.models.priors:Laplace",
        "normal": "pyro_bnn.models.priors:Normal",
        "scale_mixture": "pyro_bnn.models.priors:ScaleMixture",
        "usual_penalty": "pyro_bnn.penalties.network:UsualPenaltyPrior",
        "xavier": "pyro_bnn.models.priors:Xavier",
    },
    "likelihoods": {
        "bernoulli": "pyro_bnn.models.likelihoods:Bernoulli",
        "categorical": "pyro_bnn.models.likelihoods:Categorical",
        "gaussian": "pyro_bnn.models.likelihoods:Gaussian",
        "heteroscedastic_gaussian": "pyro_bnn.models.likelihoods:HeteroscedasticGaussian",
        "learned_gaussian": "pyro_bnn.models.likelihoods:LearnedGaussian",
        "negative_binomial": "pyro_bnn.models.likelihoods:NegativeBinomial",
        "poisson": "pyro_bnn.models.likelihoods:Poisson",
        "student_t": "pyro_bnn.models.likelihoods:StudentT",
    },
    "guides": {
        "dropout": "pyro_bnn.guides.mc_dropout:AutoDropout",
        "full_rank": "pyro_bnn.guides.full_rank:AutoFullRankNormal",
        "low_rank": "pyro_bnn.guides.low_rank:AutoLowRankNormal",
        "mean_field": "pyro_bnn.guides.mean_field:AutoMeanFieldNormal",
        "point": "pyro_bnn.guides.point:AutoPoint",
        "stored_draws": "pyro_bnn.guides.draws:StoredDraws",
    },
    "estimators": {
        "analytic": "pyro_bnn.inference.flat_elbo:FlatMeanField_ELBO",
        "path": "pyro_bnn.inference.elbo:TracePathDerivative_ELBO",
        "score": "pyro_bnn.inference.elbo:TraceScoreFunction_ELBO",
        "total": "pyro.infer:Trace_ELBO",
    },
    "layers": {
        "flipout": "pyro_bnn.inference.reparam:flipout",
        "local": "pyro_bnn.inference.reparam:local_reparameterization",
        "plain": "contextlib:nullcontext",
    },
    "methods": {
        "cyclic_sgld": "pyro_bnn.methods.langevin:CyclicSgld",
        "ema": "pyro_bnn.methods.averages:Ema",
        "ensemble": "pyro_bnn.methods.ensembles:DeepEnsemble",
        "hmc": "pyro_bnn.methods.hamiltonian:Hmc",
        "hwa": "pyro_bnn.methods.averages:Hwa",
        "laplace": "pyro_bnn.methods.points:LaplaceApproximation",
        "lmc": "pyro_bnn.methods.langevin:Lmc",
        "low_rank": "pyro_bnn.methods.averages:LowRank",
        "map": "pyro_bnn.methods.points:Map",
        "mc_dropout": "pyro_bnn.methods.points:McDropout",
        "ml": "pyro_bnn.methods.points:MaximumLikelihood",
        "nuts": "pyro_bnn.methods.hamiltonian:Nuts",
        "sgld": "pyro_bnn.methods.langevin:Sgld",
        "snapshots": "pyro_bnn.methods.ensembles:SnapshotEnsemble",
        "svi": "pyro_bnn.methods.points:Svi",
        "swa": "pyro_bnn.methods.averages:Swa",
    },
    "penalties": {
        "GroupLasso": "pyro_bnn.penalties.rules:GroupLasso",
        "L1": "pyro_bnn.penalties.rules:L1",
        "L2": "pyro_bnn.penalties.rules:L2",
    },
    "studies": _studies(),
    "trackers": {
        "mlflow": "pyro_bnn.tracking.mlflow:MLflow",
        "tensorboard": "pyro_bnn.tracking.tensorboard:TensorBoard",
        "wandb": "pyro_bnn.tracking.wandb:WandB",
    },
    "optimizers": {},
    "schedules": {},
    "data": {},
    "augmentations": {},
}
"""Kind -> name -> where it is. Rooms with a table of their own (optimizers, schedules, data) add it when looked up."""

_TABLES: dict[str, str] = {
    "optimizers": "pyro_bnn.optim:OPTIMIZERS",
    "schedules": "pyro_bnn.optim:SCHEDULES",
    "data": "pyro_bnn.data:DATASETS",
    "augmentations": "pyro_bnn.data:AUGMENTATIONS",
}

KINDS: tuple[str, ...] = tuple(BUILT_IN)
"""What can be registered: models, priors, guides, ..."""

_REGISTERED: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}


_ALSO_SAVED = frozenset(
    ["pyro_bnn.guides.ensemble:Ensemble", "pyro_bnn.models.priors:PerLayer", "pyro_bnn.penalties.network:PenaltyPrior"]
)
"""Classes that descriptions hold and recipes do not name."""

_SAVED_BEFORE = {
    "pyro_bnn.penalties.rules:PenaltyPrior": "pyro_bnn.penalties.network:PenaltyPrior",
    "pyro_bnn.penalties.rules:UsualPenaltyPrior": "pyro_bnn.penalties.network:UsualPenaltyPrior",
}
"""Where classes were when a description was saved -> where they are now."""


def _check_kind(kind: str) -> None:
    if kind not in BUILT_IN:
        raise ValueError(f"unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")


def register(kind: str, name: str) -> Callable[[T], T]:
    """
    Give a class or function a name that recipes can use: `@register("models", "my_net")`.

    A name that is taken is refused, unless by what is registered again (a cell of a notebook that is run twice).

    :param kind: one of `KINDS`: "models", "guides", ...
    :param name: the new name.

    >>> from torch import nn
    >>> @register("models", "two_layers")
    ... def two_layers(in_features: int, out_features: int) -> nn.Module:
    ...     return nn.Sequential(nn.Linear(in_features, 9), nn.Tanh(), nn.Linear(9, out_features))
    >>> "two_layers" in names("models"), look_up("models", "two_layers") is two_layers
    (True, True)
    """
    _check_kind(kind)
    if not isinstance(name, str) or not name or ":" in name or name.strip() != name:
        raise ValueError(f"{name!r} cannot be a name: pass a word such as 'my_net', without ':'")

    def keep(value: T) -> T:
        before = _REGISTERED[kind].get(name)
        same = before is not None and path_of(before) == path_of(value)
        if name in _built_in(kind) or (before is not None and not same):
            raise ValueError(f"{kind}: {name!r} is taken by {path_of(look_up(kind, name))}; choose another name")
        _REGISTERED[kind][name] = value
        return value

    return keep


def _built_in(kind: str) -> dict[str, Any]:
    if kind not in _TABLES:
        return dict(BUILT_IN[kind])
    table = _load(_TABLES[kind])
    return dict(table) if isinstance(table, Mapping) else {name: name for name in table}


def _offered(kind: str) -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=f"pyro_bnn.{kind}")}


def names(kind: str) -> list[str]:
    """
    Return every name of a kind, sorted.

    :param kind: one of `KINDS`: "models", "guides", ...
    """
    _check_kind(kind)
    return sorted({*_built_in(kind), *_REGISTERED[kind], *_offered(kind)})


def look_up(kind: str, name: Any) -> Any:
    """
    Return what a registered name, or `"package.module:Name"`, stands for.

    :param kind: one of `KINDS`: "models", "guides", ...
    :param name: the name, or `"package.module:Name"`.
    """
    _check_kind(kind)
    if not isinstance(name, str):
        raise ValueError(f"{kind}: {name!r} is no name; pass one of {', '.join(names(kind))}, or 'package.module:Name'")
    if ":" in name:
        return _load(name)
    if name in _REGISTERED[kind]:
        return _REGISTERED[kind][name]
    built_in = _built_in(kind)
    if name in built_in:
        return _load(built_in[name]) if name in BUILT_IN[kind] else built_in[name]
    offered = _offered(kind)
    if name in offered:
        return offered[name].load()
    known = names(kind)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"unknown {_one(kind)} {name!r}{hint}; choose one of {', '.join(known)}, or 'package.module:Name'")


def _one(kind: str) -> str:
    return {"data": "data", "layers": "layers", "studies": "study"}.get(kind, kind.removesuffix("s"))


def _load(path: str) -> Any:
    """Return what `package.module:Name` is; Name may be dotted."""
    module, _, qualified = path.partition(":")
    if not module or not qualified:
        raise ValueError(f"{path!r} is not of the form 'package.module:Name'")
    try:
        value: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{path!r}: there is no module {error.name!r}; is it installed, or its folder on PYTHONPATH (PYTHONPATH=. "
            "is the working directory)?"
        ) from None
    for part in qualified.split("."):
        if not hasattr(value, part):
            raise ValueError(f"{path!r}: {module} has no {qualified!r}")
        value = getattr(value, part)
    return value


def path_of(value: Any) -> str:
    """
    Return the `package.module:Name` of a class or function.

    :param value: the class or function.
    """
    return f"{value.__module__}:{value.__qualname__}"


def described(value: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the description of an object together with where its class comes from.

    :param value: the object.
    :param spec: its own description.
    """
    return {**spec, "class": path_of(type(value))}


class NotTrusted(ValueError):
    """
    A file names a class or function of a package that the caller does not trust; `package` is its name.

    :param path: the `package.module:Name` in the file.
    :param known: whether there is such a package here.
    """

    def __init__(self, path: str, package: str, known: bool) -> None:
        told = " (it is imported here, but a file may not choose what runs)" if known else ""
        super().__init__(
            f"this was saved from {path!r}, which is not part of this library{told}: pass the object itself (model=, "
            f"guide=), or trust=[{package!r}] if you trust that package"
        )
        self.path, self.package = path, package


_TRUSTED: ContextVar[frozenset[str]] = ContextVar("trusted", default=frozenset())


@contextmanager
def trusting(*packages: str) -> Iterator[None]:
    """Within the block, let saved descriptions import the modules of these packages."""
    token = _TRUSTED.set(_TRUSTED.get() | frozenset(packages))
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def trusted_packages() -> frozenset[str]:
    """Return the packages that are trusted at present."""
    return _TRUSTED.get()


def find_saved(path: str, *, trust: Collection[str] = ()) -> Any:
    """
    Return the class that a saved description names by its path.

    :param path: the `package.module:Name`.
    :param trust: packages whose modules may be imported for it.
    """
    if not isinstance(path, str) or path.count(":") != 1:
        raise ValueError(f"{path!r} is not of the form 'package.module:Name'")
    path = _SAVED_BEFORE.get(path, path)
    for kind in KINDS:
        for value in _REGISTERED[kind].values():
            if path_of(value) == path:
                return value
        for where in BUILT_IN[kind].values():
            if where == path:
                return _load(where)
    if path in _ALSO_SAVED:
        return _load(path)
    module, _, qualified = path.partition(":")
    top = module.partition(".")[0]
    trust = {*trust, *_TRUSTED.get()}
    if top in trust or module in trust:
        if "<locals>" in qualified:
            raise ValueError(f"{path!r} was defined inside a function and cannot be found again: pass model=")
        return _load(path)
    raise NotTrusted(path, top, module in sys.modules)
