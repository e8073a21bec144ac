"""
What the name of a variational parameter says: mean, standard deviation or something else, and of which site.

The guides of this package call their parameters `<Guide><n>.loc` and `<Guide><n>.rho`, one flat vector for the whole
network, or `<Guide><n>.<site or group>.loc` with one per site or group. Pyro's own guides and programs written by hand
have other habits, which the functions here know too.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import final

import pyro
from pyro.params.param_store import normalize_param_name
from torch import Tensor

__all__ = ["Names", "components", "matches", "parameter_kind", "site_path", "unnamed"]

_LOC = ("loc", "locs", "mu", "mean")
_SCALE = (
    "scale",
    "scales",
    "rho",
    "sigma",
    "std",
    "sd",
    "var",
    "log_scale",
    "log_sigma",
    "log_std",
    "log_var",
    "logvar",
    "scale_tril",
    "scale_trils",
    "cov_factor",
    "cov_diag",
)
_OTHER = ("likelihood", "noise")


def components(name: str) -> list[str]:
    """Return the parts of a parameter's name, without Pyro's and PyroModule's additions."""
    return normalize_param_name(name).removesuffix("_unconstrained").split(".")


def _kind_of_component(component: str) -> str:
    for kind, words in (("loc", _LOC), ("scale", _SCALE)):
        if component in words or component.endswith(tuple(f"_{word}" for word in words)):
            return kind
    return "other"


def parameter_kind(name: str) -> str:
    """
    Return "loc", "scale" or "other": what a parameter of this name is to a variational posterior.

    The last component of the name decides, by itself or after an underscore: loc, mu, mean are means; scale, rho,
    sigma, std, sd, var, their `log_` forms, scale_tril, cov_factor and cov_diag are spreads
    (`AutoMeanFieldNormal1.rho`, `w_sigma`). In Pyro's `<Guide>.locs.<site>` and `<Guide>.scales.<site>` the word before
    the site decides. All else is other (a normalisation layer's weights, an `AutoDelta`'s points), and so is
    anything with a component `likelihood` or `noise`.

    :param name: a parameter's name in Pyro's store or in a module.
    """
    parts = components(name)
    if any(component in _OTHER for component in parts):
        return "other"
    for component in parts[:-1]:
        if component in ("locs", "scales", "scale_trils"):
            return _kind_of_component(component)
    return _kind_of_component(parts[-1])


def site_path(name: str) -> str:
    """
    Return the site or group of sites in a parameter's name, "" if it is of the whole network.

    `AutoMeanFieldNormal1.net.0.weight.rho` and `AutoNormal.scales.net.0.weight` give `net.0.weight`,
    `AutoMeanFieldNormal1.rho` gives "".

    :param name: a parameter's name in Pyro's store or in a module.
    """
    parts = components(name)
    for place, component in enumerate(parts[:-1]):
        if component in ("locs", "scales", "scale_trils"):
            return ".".join(parts[place + 1 :])
    if parameter_kind(name) == "other":
        return ".".join(parts[1:])
    return ".".join(parts[1:-1])


def matches(pattern: str, name: str) -> bool:
    """Compare a glob pattern with a parameter's full name and with its site."""
    return fnmatchcase(".".join(components(name)), pattern) or fnmatchcase(site_path(name), pattern)


@final
class Names:
    """
    What each parameter is called.

    The first of these that knows it decides: `register`, Pyro's parameter store, the tensor's attribute
    `pyro_bnn_name`. The store knows nothing under `pyro.settings.set(module_local_params=True)`; the guides and models
    of this package set the attribute, and for others `name_parameters(dict(guide.named_parameters()))` registers.
    """

    def __init__(self) -> None:
        self._registered: dict[int, tuple[Tensor, str]] = {}

    def register(self, parameters: Mapping[str, Tensor]) -> None:
        """Name tensors; a later name for the same tensor replaces the earlier one."""
        for name, tensor in parameters.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise TypeError(f"name_parameters wants a mapping of str to Tensor, got {name!r}: {type(tensor)}")
            self._registered[id(tensor)] = (tensor, name)

    def join(self, other: "Names") -> None:
        """Take over what another one had registered."""
        self._registered.update(other._registered)

    def of(self, param: Tensor) -> str | None:
        """Return the name of a parameter, None if nothing names it."""
        if id(param) in self._registered:
            return self._registered[id(param)][1]
        name = pyro.get_param_store().param_name(param)
        return name if name is not None else getattr(param, "pyro_bnn_name", None)


def unnamed(param: Tensor, needed_by: str) -> ValueError:
    """Return the error of a parameter whose name is needed."""
    return ValueError(
        f"a parameter of shape {tuple(param.shape)} has no name, which {needed_by} needs: call "
        "optim.name_parameters({name: tensor}), e.g. with dict(guide.named_parameters()), before the first step"
    )
