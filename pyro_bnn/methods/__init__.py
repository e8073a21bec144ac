"""
Methods: what a recipe can name (`method = {name = "hwa", start = 12}`): for each, how it is trained.

    svi            the recipe's guide by SVI; the best epoch on validation is kept (every method that says so below),
                   or with keep = "last" the last one
    map, ml        a point, with and without the prior; best epoch, or keep = "last"
    mc_dropout     one point and masks over it; best epoch
    laplace        draws of the normal that fits the curvature at the MAP; needs the package laplace-torch
    hwa            the means and deviations of the guide, averaged over the snapshots of its last epochs
    low_rank       the same snapshots as a low-rank normal (by SVI: guide = "low_rank")
    swa, ema       the raw parameters of the guide or, with of = "map", of a point, averaged
    ensemble       members by any of these methods, trained apart from seeds that follow one another
    snapshots      members along one training, whose schedule begins anew for each
    sgld, cyclic_sgld, lmc    the draws of Langevin dynamics; lmc at full batch
    nuts, hmc      the draws of chains over all rows, in float64; for small networks
"""

from collections.abc import Mapping
from typing import Any

from pyro_bnn.common.calls import misfit
from pyro_bnn.methods.base import Method, Outcome, RunFolder, Work
from pyro_bnn.registry import look_up

__all__ = ["Method", "Outcome", "RunFolder", "Work", "make_method"]


def make_method(spec: str | Mapping[str, Any]) -> Method:
    """Build the method that `{name, numbers...}` describes."""
    numbers = {"name": spec} if isinstance(spec, str) else dict(spec)
    if "name" not in numbers:
        raise ValueError(f"method {numbers} has no name: give e.g. {{name = 'svi'}}")
    name = numbers.pop("name")
    make = look_up("methods", name)
    wrong = misfit(make, numbers)
    if wrong is not None:
        raise ValueError(f"method {name!r} with {numbers}: {wrong}")
    try:
        method: Method = make(**numbers)
    except TypeError as error:
        raise ValueError(f"method {name!r} with {numbers}: {error}") from error
    return method
