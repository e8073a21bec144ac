"""
A Laplace approximation around a trained point, by laplace-torch.

    q(w) = N(theta, (H + diag(1 / s^2))^-1),     H the Gauss-Newton Hessian of sum_n -log p(y_n|x_n, w) / eta at theta

theta is the MAP of priors N(m, s^2) and the likelihood to the power 1/eta; H is kept as Kronecker factors, as a
diagonal or in full. The draws are those of that normal, put through the network itself (not its linearisation), which
is known to be wide: with few data per weight it underfits.

laplace-torch (Daxberger et al. 2021, Laplace Redux) is an optional package: `pip install laplace-torch`.
"""

import copy
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, cast, runtime_checkable

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn.common.sites import innermost
from pyro_bnn.data.split import as_split
from pyro_bnn.inference import laws
from pyro_bnn.inference.door import known_dtype

__all__ = ["import_laplace", "laplace_draws"]


def import_laplace() -> Any:
    """Return the package laplace-torch, or say how to get it."""
    try:
        return importlib.import_module("laplace")
    except ImportError as error:
        raise ValueError("a Laplace approximation needs laplace-torch: pip install laplace-torch") from error


def _precision(name: str, prior: Any) -> float:
    """Return 1 / s^2 of a prior that is one Normal for the whole parameter."""
    base = innermost(prior)
    if not isinstance(base, dist.Normal) or float(base.scale.max()) != float(base.scale.min()):
        raise ValueError(f"the prior of {name!r} is not N(m, s^2) with one s: Laplace needs Normal priors")
    return 1 / float(base.scale.reshape(-1)[0]) ** 2


def _family(likelihood: Any) -> tuple[str, dict[str, float]]:
    """Return what the package calls the law of outputs f, and its numbers: softmax(f), or N(f, s^2) with s fixed."""
    f = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)
    if not likelihood.parameters():
        with suppress(ValueError):  # of a likelihood for another number of outputs
            law = likelihood.distribution(f)
            log_probs, base = laws.class_log_probs(law), laws.peeled(law)
            if log_probs is not None and log_probs.shape == f.shape and torch.allclose(log_probs, f.log_softmax(-1)):
                return "classification", {}
            if laws.is_normal(law) and torch.equal(base.loc, f) and bool((base.scale == base.scale.max()).all()):
                return "regression", {"sigma_noise": float(base.scale.max())}
    raise ValueError(
        f"likelihood {likelihood.spec()['name']!r} has no Laplace approximation here: use categorical or gaussian"
    )


@runtime_checkable
class _Network(Protocol):
    """What is asked of a model: a network with random parameters, their priors, and the law of its outputs."""

    likelihood: Any
    template: nn.Module
    random_names: Sequence[str]
    deterministic_names: Sequence[str]

    def priors(self) -> Mapping[str, Any]:
        """Return the prior of every random parameter."""
        ...


def check_laplace(model: Any, structure: str = "kron", draws: int = 1) -> None:
    """Raise for what :func:`laplace_draws` does not take, without a trained point."""
    if structure not in ("kron", "diag", "full"):
        raise ValueError(f"structure={structure!r} is unknown: pass 'kron', 'diag' or 'full'")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ValueError(f"draws={draws!r}: pass an integer of at least 1")
    if not isinstance(model, _Network):
        raise ValueError(
            f"the model is a {type(model).__name__} written by hand: a Laplace approximation needs a network with a "
            "likelihood of its outputs, pb.BNN(network, prior, likelihood)"
        )
    _family(model.likelihood)
    priors = model.priors()
    for name in model.random_names:
        _precision(name, priors[name])
    if model.deterministic_names:
        raise ValueError(
            f"the parameters {model.deterministic_names[:3]} are not random: Laplace takes networks of random weights"
        )


def _point_network(model: Any, point: dict[str, Tensor]) -> nn.Module:
    """Return the network at the point, with gradients for its random weights alone."""
    network = cast(nn.Module, copy.deepcopy(model.template)).eval().requires_grad_(False)
    for name in model.random_names:
        parameter = network.get_parameter(name)
        parameter.data.copy_(point[f"net.{name}"])
        parameter.requires_grad_(True)
    return network


def laplace_draws(
    model: Any,
    guide: Callable[..., Any],
    data: Any,
    *,
    draws: int = 100,
    structure: Literal["kron", "diag", "full"] = "kron",
    eta: float = 1.0,
    batch_size: int = 100,
    seed: int = 0,
) -> Tensor:
    """
    Return draws (S, P) of the Laplace approximation in the flat order of `guide`, for `StoredDraws.from_flat`.

    :param model: a BNN with Normal priors and a categorical or Gaussian likelihood.
    :param guide: its trained AutoPoint.
    :param data: the training rows.
    :param structure: of the Hessian: 'kron', 'diag' or, for small networks, 'full'.
    :param eta: tempering, as in training.
    """
    check_laplace(model, structure, draws)
    kind, numbers = _family(model.likelihood)
    priors = model.priors()
    precisions = [_precision(name, priors[name]) for name in model.random_names]
    laplace = import_laplace()
    point: Any = guide
    network = _point_network(model, dict(point.median()))
    sizes = [network.get_parameter(name).numel() for name in model.random_names]
    per_site = torch.tensor(precisions)
    prior = per_site if structure == "kron" else per_site.repeat_interleave(torch.tensor(sizes))
    split = as_split(data, dtype=known_dtype(model, guide))
    if isinstance(split.x, tuple):
        raise ValueError(f"the Laplace approximation is of networks of one input, and the data have {len(split.x)}")
    y = split.y.reshape(len(split), -1) if kind == "regression" else split.y.long()
    loader = DataLoader(TensorDataset(split.x, y), batch_size=batch_size)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fitted = laplace.Laplace(
            network,
            kind,
            subset_of_weights="all",
            hessian_structure=structure,
            prior_precision=prior,
            temperature=eta,
            **numbers,
        )
        fitted.fit(loader)
        drawn = fitted.sample(draws).detach()  # (S, P), in the order of the network's parameters
    if not bool(torch.isfinite(drawn).all()) or not math.isfinite(float(drawn.abs().max())):
        raise ValueError("the Laplace approximation is not finite: is the point a minimum?")
    names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    named = dict(zip(names, drawn.split(sizes, -1), strict=True))
    values = {f"net.{n}": d.reshape(draws, *network.get_parameter(n).shape) for n, d in named.items()}
    return cast(Tensor, point.flatten(values))
