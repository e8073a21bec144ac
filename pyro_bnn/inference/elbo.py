"""
Gradient estimators of the ELBO, one class per estimator, each named for what it is.

The loss is -ELBO = E_q[log q(w) - log p(w) - log p(y|w)]. With w = t(theta, eps), theta the guide's parameters,

    total       d/dtheta [log q(w|theta) - log p(w) - log p(y|w)]                      stock Trace_ELBO
    path        the same, theta inside log q held fixed: the score term               TracePathDerivative_ELBO
                  d log q(w|theta)/dtheta at fixed w, whose mean is 0, is dropped
    analytic    d/dtheta [KL(q || p) in closed form - log p(y|w)]                      stock TraceMeanField_ELBO
    score       [log q(w) - log p(w) - log p(y|w) - b] d log q(w|theta)/dtheta,        TraceScoreFunction_ELBO
                  w held fixed: REINFORCE with a baseline b

All are unbiased. For q = N(mu, sigma^2) and a posterior N(m, s^2) the mu-gradients have variances

    path (sigma/s^2 - 1/sigma)^2       total sigma^2/s^4

so that dropping the score lowers the variance if and only if sigma^2 > s^2/2: it takes all noise away at q = posterior,
and it adds a noise of 1/sigma to a narrow guide (98.01/s^2 against 0.01/s^2 at sigma = s/10).

Cold posteriors are another target, not another estimator: (p(w) p(y|w))^(1/T), whose loss is, up to a constant,

    T E_q log q(w) - E_q log p(w) - E_q log p(y|w)  =  E_q[-log p(y|w)] + T KL(q || p) - (1 - T) E_q log p(w)
                                                    =  E_q[-log p(y|w)] + KL(q || p) + (1 - T) H(q)

The last line is what `TraceColdPosterior_ELBO` evaluates where KL and the entropy H are known; T = 1 is the ELBO.

References: Roeder, Wu, Duvenaud 2017, Sticking the landing (path); Wingate and Weber 2013, Ranganath et al. 2014
(score); Kool, van Hoof, Welling 2019 (leave-one-out baseline); Wenzel et al. 2020 (cold posteriors).

Departures: "omitting the score function" means nothing once the KL is in closed form, so `path` samples the whole
KL. A REINFORCE baseline never contains the draw it is subtracted from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, final

import pyro.poutine as poutine
import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.util import MultiFrameTensor, is_validation_enabled, torch_item
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_if_enumerated, check_model_guide_match, check_site_shape, warn_if_nan
from torch import Tensor

from pyro_bnn.common.sites import closed_kl, innermost, is_point_mass, leaf_of, sample_sites
from pyro_bnn.inference.reparam import active_reparameterization

__all__ = [
    "ESTIMATORS",
    "TraceColdPosterior_ELBO",
    "TracePathDerivative_ELBO",
    "TraceScoreFunction_ELBO",
]


# --------------------------------------------------------------------------------------------- traces and checks


def _replayed(model: Callable[..., Any], guide_trace: Any, args: Any, kwargs: Any) -> Any:
    return poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)


def _with_log_probs(model_trace: Any, guide_trace: Any, max_plate_nesting: Any) -> tuple[Any, Any]:
    """Drop the plates' subsamples, evaluate both traces and check them, as stock Trace_ELBO does."""
    if is_validation_enabled():
        check_model_guide_match(model_trace, guide_trace, max_plate_nesting)
        check_if_enumerated(guide_trace)
    traces = prune_subsample_sites(model_trace), prune_subsample_sites(guide_trace)
    for trace in traces:
        trace.compute_log_prob()
        if is_validation_enabled():
            for site in sample_sites(trace).values():
                check_site_shape(site, max_plate_nesting)
    return traces


def _check_reparameterised(guide_trace: Any, estimator: str) -> None:
    for name, site in sample_sites(guide_trace).items():
        if not site["fn"].has_rsample:
            raise ValueError(
                f"{estimator} differentiates through the guide's draws, and site {name!r} ({site['fn']}) is not "
                "reparameterisable: use TraceScoreFunction_ELBO"
            )


def _check_repeated(replayed: Any, guide: Any) -> None:
    """Refuse a guide whose second run moved its point masses: what moved them is drawn outside of sample statements."""
    for name, site in sample_sites(replayed).items():
        if is_point_mass(site["fn"]):
            points, value = _point(site["fn"]), site["value"]
            if not bool(((points == value) | (value != value)).all()):
                raise ValueError(
                    f"TracePathDerivative_ELBO runs the guide twice at the same draws, and {type(guide).__name__} puts "
                    f"site {name!r} elsewhere the second time (masks or choices drawn outside of pyro.sample): use "
                    f"Trace_ELBO or TraceMeanField_ELBO"
                )


def _point(fn: Any) -> Tensor:
    point: Tensor = innermost(fn).v
    return point


def _check_program(guide: Any, why: str) -> None:
    if isinstance(poutine.unwrap(guide), Messenger):
        raise TypeError(
            f"{why}, and an effect handler as a guide (AutoNormalMessenger and its like) runs the model with it: use a "
            "guide that is a Pyro program"
        )


@contextmanager
def _held_fixed(trace: Any) -> Iterator[None]:
    """Stop gradients to the parameters of `trace` from whatever is computed inside."""
    leaves = [leaf_of(site["value"]) for site in trace.nodes.values() if site["type"] == "param"]
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    for leaf in trained:
        leaf.requires_grad_(False)
    try:
        with warnings.catch_warnings():  # pyro.module warns of parameters without a gradient: they are so on purpose
            warnings.filterwarnings("ignore", message=".*was not registered in the param store")
            yield
    finally:
        for leaf in trained:
            leaf.requires_grad_(True)


# ---------------------------------------------------------------------------------------------- path derivative


@final
class TracePathDerivative_ELBO(Trace_ELBO):
    """
    Sticking the landing: Monte Carlo KL whose gradient flows through the draws alone.

    log q is evaluated in a second pass of the guide, replayed at the same draws with its parameters held fixed, so that
    hierarchical guides, transformed sites and Jacobians keep every path through a draw. Every draw of the guide must be
    a sample statement, and every site reparameterisable.
    """

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        _check_program(guide, "TracePathDerivative_ELBO replays the guide")
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        _check_reparameterised(guide_trace, "TracePathDerivative_ELBO")
        model_trace = _replayed(model, guide_trace, args, kwargs)
        with _held_fixed(guide_trace):
            fixed_trace = _replayed(guide, guide_trace, args, kwargs)
            _check_repeated(fixed_trace, guide)
            for name, site in guide_trace.nodes.items():  # pyro.module registers only what has a gradient
                if site["type"] == "param" and name not in fixed_trace.nodes:
                    fixed_trace.add_node(name, **site.copy())
            return _with_log_probs(model_trace, fixed_trace, self.max_plate_nesting)

    def _differentiable_loss_particle(self, model_trace: Any, guide_trace: Any) -> tuple[Any, Any]:
        loss = guide_trace.log_prob_sum() - model_trace.log_prob_sum()
        return torch_item(loss), loss


# ----------------------------------------------------------------------------------------------- score function


@final
class _DetachDraws(Messenger):
    """Cut the gradient through every draw; a point mass is no draw and keeps its own."""

    def _pyro_post_sample(self, msg: Any) -> None:
        if not msg["is_observed"] and not is_point_mass(msg["fn"]):
            msg["value"] = msg["value"].detach()


@final
class TraceScoreFunction_ELBO(Trace_ELBO):
    """
    REINFORCE for every site of the guide, reparameterisable or not, with a baseline that never sees its own draw.

    With several particles the baseline of each is the mean cost of the others (leave-one-out). With a single particle
    it is the average cost of earlier steps, decaying by `baseline_decay` a step, and 0 at the first; it is kept per
    site in this object, so use one object per fit (sharing it costs variance, not bias). As in stock Trace_ELBO a site
    pays only the costs of its own entries of the plates it stands in.

    :param num_particles: draws of the guide in a step.
    """

    def __init__(self, num_particles: int = 1, *, baseline_decay: float = 0.9, **kwargs: Any) -> None:
        if not 0 <= baseline_decay < 1:
            raise ValueError(f"baseline_decay={baseline_decay} is not allowed: give a number in [0, 1)")
        super().__init__(num_particles=num_particles, **kwargs)  # type: ignore[no-untyped-call]
        self.baseline_decay = baseline_decay
        self._averages: dict[str, tuple[Tensor, float]] = {}  # site -> (decaying sum, decaying weight)

    def state_dict(self) -> dict[str, Any]:
        """Return the average costs in the baselines, as plain data, for an exact resumption."""
        return {name: [total.clone(), weight] for name, (total, weight) in self._averages.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Take up what `state_dict` returned.

        :param state: what `state_dict` returned.
        """
        self._averages = {name: (total.clone(), float(weight)) for name, (total, weight) in state.items()}

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        handler = active_reparameterization()
        if handler is not None:
            raise ValueError(
                f"TraceScoreFunction_ELBO needs the likelihood at the sampled weights, and {handler} replaces them by "
                "noise on the layers' outputs: leave it, or use the analytic, total or path estimator"
            )
        _check_program(guide, "TraceScoreFunction_ELBO runs the guide by itself")
        with _DetachDraws():
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        model_trace = _replayed(model, guide_trace, args, kwargs)
        return _with_log_probs(model_trace, guide_trace, self.max_plate_nesting)

    def _loss_and_surrogate(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        pairs = list(self._get_traces(model, guide, args, kwargs))  # type: ignore[no-untyped-call]
        costs = [_costs_of_draws(model_trace, guide_trace) for model_trace, guide_trace in pairs]
        baselines = self._baselines(costs, [guide_trace for _, guide_trace in pairs])
        loss: Any = 0.0
        surrogate: Any = 0.0
        for (model_trace, guide_trace), cost, baseline in zip(pairs, costs, baselines, strict=True):
            loss = loss + torch_item(guide_trace.log_prob_sum() - model_trace.log_prob_sum())
            surrogate = surrogate - model_trace.log_prob_sum()  # the model's own parameters
            for name, site in sample_sites(guide_trace).items():
                if name in cost:
                    surrogate = surrogate + ((cost[name] - baseline[name]) * site["unscaled_log_prob"]).sum()
                else:
                    surrogate = surrogate + site["log_prob_sum"]  # point masses and factors: their own path
        return loss / self.num_particles, surrogate / self.num_particles

    def _baselines(self, costs: list[dict[str, Tensor]], guide_traces: list[Any]) -> list[dict[str, Any]]:
        if self.num_particles == 1:
            return [{name: self._earlier(name, cost) for name, cost in costs[0].items()}]
        others = self.num_particles - 1
        if self.vectorize_particles:
            leave_one_out = {}
            for name, cost in costs[0].items():
                dim = _particle_dim(guide_traces[0].nodes[name])
                leave_one_out[name] = (cost.sum(dim, keepdim=True) - cost) / others
            return [leave_one_out]
        totals = {name: sum(cost[name] for cost in costs) for name in costs[0]}
        return [{name: (totals[name] - cost[name]) / others for name in cost} for cost in costs]

    def _earlier(self, name: str, cost: Tensor) -> Tensor | float:
        """The average cost before this step; then take this step's into account."""
        total, weight = self._averages.get(name, (torch.zeros_like(cost).mean(), 0.0))
        decay = self.baseline_decay
        self._averages[name] = (decay * total + (1 - decay) * cost.mean(), decay * weight + (1 - decay))
        return total / weight if weight else 0.0

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        """
        The loss, with the estimator's gradient.

        :param model: the Pyro program.
        :param guide: its guide.
        """
        loss, surrogate = self._loss_and_surrogate(model, guide, args, kwargs)
        warn_if_nan(surrogate, "loss")
        return loss + (surrogate - torch_item(surrogate))

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        """
        The loss; the estimator's gradient is added to the parameters' .grad.

        :param model: the Pyro program.
        :param guide: its guide.
        """
        loss, surrogate = self._loss_and_surrogate(model, guide, args, kwargs)
        if getattr(surrogate, "requires_grad", False):
            surrogate.backward(retain_graph=self.retain_graph)
        warn_if_nan(loss, "loss")
        return loss


def _costs_of_draws(model_trace: Any, guide_trace: Any) -> dict[str, Tensor]:
    """Log q - log p - log p(y|.) seen by each draw, detached, summed over the plates the draw is not in."""
    cost = MultiFrameTensor()
    for site in sample_sites(guide_trace).values():
        cost.add((site["cond_indep_stack"], site["log_prob"].detach()))
    for site in sample_sites(model_trace).values():
        cost.add((site["cond_indep_stack"], -site["log_prob"].detach()))
    return {
        name: cost.sum_to(site["cond_indep_stack"])
        for name, site in sample_sites(guide_trace).items()
        if not site["is_observed"] and not is_point_mass(site["fn"])
    }


def _particle_dim(site: Any) -> int:
    dims = [frame.dim for frame in site["cond_indep_stack"] if frame.name == "num_particles_vectorized"]
    return int(dims[0])


# ------------------------------------------------------------------------------------------------ cold posterior


@final
class TraceColdPosterior_ELBO(TraceMeanField_ELBO):
    """
    The loss of the cold posterior (p(w) p(y|w))^(1/T): -log p(y|w) + T KL(q || p) - (1 - T) E_q log p(w).

    Site by site KL + (1 - T) H(q) where both have a closed form, else T log q - log p at the draw. `temperature` never
    goes with a tempering eta: that is another posterior, and only one of them can be the target. For N(0, s^2) priors
    it is the same as eta = T with the prior N(0, T s^2).

    :param num_particles: draws of the guide in a step.
    """

    def __init__(self, temperature: float, num_particles: int = 1, **kwargs: Any) -> None:
        if not (isinstance(temperature, (int, float)) and 0 < temperature < float("inf")):
            raise ValueError(f"temperature={temperature!r} is not allowed: give a finite number > 0 (1 is the ELBO)")
        super().__init__(num_particles=num_particles, **kwargs)  # type: ignore[no-untyped-call]
        self.temperature = float(temperature)

    def _differentiable_loss_particle(self, model_trace: Any, guide_trace: Any) -> tuple[Any, Any]:
        _check_reparameterised(guide_trace, "TraceColdPosterior_ELBO")
        loss: Any = 0.0
        model_sites, guide_sites = sample_sites(model_trace), sample_sites(guide_trace)
        for name, p in model_sites.items():
            loss = loss + (-p["log_prob_sum"] if p["is_observed"] else self._kl_site(guide_sites[name], p))
        for name, q in guide_sites.items():
            if name not in model_sites:  # auxiliary
                loss = loss + self.temperature * q["log_prob_sum"]
        return torch_item(loss), loss

    def _kl_site(self, q: Any, p: Any) -> Tensor:
        """T KL(q || p) - (1 - T) E_q log p of one site."""
        kl = None if is_point_mass(q["fn"]) else closed_kl(q["fn"], p["fn"])
        if kl is not None:
            with suppress(NotImplementedError):  # some laws have no entropy
                cold = kl + (1 - self.temperature) * q["fn"].entropy()
                return torch.as_tensor(scale_and_mask(cold, q["scale"], q["mask"])).sum()
        return torch.as_tensor(self.temperature * q["log_prob_sum"] - p["log_prob_sum"])


ESTIMATORS: dict[str, type[ELBO]] = {
    "analytic": TraceMeanField_ELBO,
    "total": Trace_ELBO,
    "path": TracePathDerivative_ELBO,
    "score": TraceScoreFunction_ELBO,
}
