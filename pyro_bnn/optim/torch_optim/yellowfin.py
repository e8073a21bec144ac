"""
YellowFin: momentum SGD that tunes its one learning rate and momentum (Zhang and Mitliagkas, arXiv:1706.03471).

Heavy ball, with alpha inside the velocity as in the paper (torch's SGD keeps it outside, which differs while alpha
changes):

    x_{t+1} = x_t + mu_t (x_t - x_{t-1}) - alpha_t g_t

On a quadratic of curvature h it contracts at rate sqrt(mu) exactly inside the robust region

    (1 - sqrt(mu))^2 / h <= alpha <= (1 + sqrt(mu))^2 / h

From the gradient of all parameters together, with <.> an average of factor `beta` corrected for its start at zero,

    h_t   = ||g_t||^2
    h_max = <max of h over the last `window` steps>,     h_min = exp <log of their min>
    C     = <h> - ||<g>||^2                              variance of the gradient
    D     = < <||g||> / <h> >                            distance to the optimum
    x     = argmin x^2 D^2 + (1 - x)^4 C / h_min^2       root of p x = (1 - x)^3, p = D^2 h_min^2 / (2 C)
    mu    = max(x^2, ((sqrt(h_max / h_min) - 1) / (sqrt(h_max / h_min) + 1))^2)
    alpha = (1 - sqrt(mu))^2 / h_min

The thesis (C.0.9 to C.0.11) writes C as <||g||^2> - <||g||>^2 and h as the norm of the largest entry; the above is the
paper's. The window of 20 steps, beta = 0.999 and the logarithm under h_min are those of the authors' public code, and
so are the guards:

- Slow start: alpha is multiplied by min(1, (t + 1) / (10 window)), t = 0, 1, ...
- The first step knows no curvature range; it uses the given `lr` and `momentum`, which serve for nothing else.
- Clipping: with `clip_norm` the gradient's norm is cut to that number before anything else. With `adaptive_clip` the
  statistics see a norm of at most 10 sqrt(h_max) (from the third step on), and the step one of at most sqrt(h_max)
  (from the second).
- `lr_factor` and `momentum_factor` multiply alpha and mu of a parameter group. A learning-rate schedule multiplies
  alpha too, by lr / base_lr.
- `weight_decay` is an L2 term added to the gradient, seen by the statistics.

Departures from the authors' code: h and C are floored at `eps` instead of having 1e-6 added in several places, so that
the formulas are exact above it, and the cubic is solved in its hyperbolic form, which does not cancel. alpha and mu
themselves are not averaged.

The statistics are Python numbers, since they steer Python-side coefficients of fused list operations: one transfer of
two numbers per tensor each step.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pyro_bnn.optim.torch_optim.base import Bucket, ForeachOptimizer

__all__ = ["YellowFin", "cubic_root", "robust_region", "single_step"]


def robust_region(h: float, momentum: float) -> tuple[float, float]:
    """Return the lowest and highest learning rate at which curvature `h` contracts at rate sqrt(momentum)."""
    x = math.sqrt(momentum)
    return (1 - x) ** 2 / h, (1 + x) ** 2 / h


def cubic_root(distance: float, variance: float, h_min: float) -> float:
    """Return x = sqrt(mu) in [0, 1] minimising x^2 D^2 + (1 - x)^4 C / h_min^2."""
    p = distance**2 * h_min**2 / (2 * variance)
    # y = x - 1 solves y^3 + p y + p = 0, which has one real root
    y = -2 * math.sqrt(p / 3) * math.sinh(math.asinh(1.5 * math.sqrt(3 / p)) / 3)
    return min(max(1 + y, 0.0), 1.0)


def single_step(h_max: float, h_min: float, variance: float, distance: float) -> tuple[float, float]:
    """Return (alpha, mu) of the noisy quadratic with these statistics."""
    x = cubic_root(distance, variance, h_min)
    root_of_range = math.sqrt(h_max / h_min)
    mu = max(x**2, ((root_of_range - 1) / (root_of_range + 1)) ** 2)
    return robust_region(h_min, mu)[0], mu


def new_tuner() -> dict[str, Any]:
    """Return the statistics before the first step: plain numbers, averages not yet corrected for starting at zero."""
    return {
        "step": 0,
        "window": [],
        "log_h_min": 0.0,
        "h_max": 0.0,
        "h": 0.0,
        "norm": 0.0,
        "distance": 0.0,
    }


def update_tuner(tuner: dict[str, Any], norm: float, *, beta: float, window: int, eps: float) -> None:
    """Take in the gradient norm of one step."""
    h = max(norm**2, eps)
    tuner["step"] += 1
    tuner["window"] = [*tuner["window"], h][-window:]
    tuner["log_h_min"] = beta * tuner["log_h_min"] + (1 - beta) * math.log(min(tuner["window"]))
    tuner["h_max"] = beta * tuner["h_max"] + (1 - beta) * max(tuner["window"])
    tuner["h"] = beta * tuner["h"] + (1 - beta) * h
    tuner["norm"] = beta * tuner["norm"] + (1 - beta) * math.sqrt(h)
    # the two corrections cancel inside the ratio
    tuner["distance"] = beta * tuner["distance"] + (1 - beta) * tuner["norm"] / tuner["h"]


def tune(tuner: dict[str, Any], norm_of_mean: float, *, beta: float, eps: float) -> tuple[float, float]:
    """Return (alpha, mu) from the statistics and ||<g>||, the latter not yet corrected for starting at zero."""
    correction = 1 - beta ** tuner["step"]
    variance = max(tuner["h"] / correction - (norm_of_mean / correction) ** 2, eps)
    h_min = math.exp(tuner["log_h_min"] / correction)
    # in exact arithmetic h_max >= h_min; rounding may say otherwise when all h are equal
    h_max = max(tuner["h_max"] / correction, h_min)
    return single_step(h_max, h_min, variance, tuner["distance"] / correction)


def total_norm(tensors: list[Tensor]) -> float:
    """Return the Euclidean norm of all tensors together; the sum over tensors does not depend on their order."""
    norms = torch.stack([norm.to(tensors[0].device) for norm in torch._foreach_norm(tensors)])
    return math.sqrt(math.fsum(norm * norm for norm in norms.double().tolist()))


@final
class YellowFin(ForeachOptimizer):
    """
    Self-tuning momentum SGD; see the module's docstring for the equations.

    Args:
        params: tensors or parameter groups; one alpha and mu for all of them.
        lr: learning rate of the first step only; `lr_factor` is the one to tune.
        momentum: momentum of the first step only.
        beta: averaging of all statistics.
        window: steps over which the curvature range is taken.
        lr_factor: multiplies the tuned learning rate.
        momentum_factor: multiplies the tuned momentum.
        clip_norm: largest norm of the gradient.
        adaptive_clip: clip by the largest curvature seen.
        slow_start: raise the learning rate from near zero over 10 windows.
        weight_decay: L2 coefficient, added to the gradient.
        eps: smallest squared gradient norm and gradient variance told apart from zero.
        foreach: update all tensors of a group together.
    """

    _shared = ("beta", "window", "clip_norm", "adaptive_clip", "slow_start", "eps")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        momentum: float = 0.0,
        beta: float = 0.999,
        window: int = 20,
        *,
        lr_factor: float = 1.0,
        momentum_factor: float = 1.0,
        clip_norm: float | None = None,
        adaptive_clip: bool = True,
        slow_start: bool = True,
        weight_decay: float = 0.0,
        eps: float = 1e-12,
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "beta": beta,
            "window": window,
            "lr_factor": lr_factor,
            "momentum_factor": momentum_factor,
            "clip_norm": clip_norm,
            "adaptive_clip": adaptive_clip,
            "slow_start": slow_start,
            "weight_decay": weight_decay,
            "eps": eps,
            "foreach": foreach,
        }
        super().__init__(params, defaults)
        if self.defaults["eps"] == 0:
            raise ValueError("YellowFin: eps=0 would divide by a zero variance; a usual value is 1e-12")
        self.state["tuner"] = new_tuner()  # type: ignore[index]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what belongs to the one tuner cannot differ between groups."""
        for name in self._shared:
            if name in param_group and param_group[name] != self.defaults[name]:
                raise ValueError(
                    f"YellowFin: {name}={param_group[name]!r} for one group, but all groups share "
                    f"{name}={self.defaults[name]!r}; give groups with their own {name} an optimizer each"
                )
        super().add_param_group(param_group)
        self.param_groups[-1].update(tuned_lr=self.param_groups[-1]["lr"], tuned_momentum=0.0)

    @property
    def tuner(self) -> dict[str, Any]:
        """The statistics so far."""
        return cast(dict[str, Any], self.state["tuner"])  # type: ignore[index]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, of which the statistics are copied."""
        super().load_state_dict(state_dict)
        self.state["tuner"] = copy.deepcopy(state_dict["state"]["tuner"])  # type: ignore[index]

    def _new_state(self, param: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        return {
            name: torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
            for name in ("velocity", "mean")
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; `closure`, if given, re-evaluates the loss and its gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        buckets = list(self._buckets())
        if not buckets:
            return loss
        for group, bucket, _ in buckets:
            if group["weight_decay"]:
                bucket.grads = list(torch._foreach_add(bucket.grads, bucket.params, alpha=group["weight_decay"]))
        shrink = self._observe([bucket for _, bucket, _ in buckets])
        for group, bucket, step in buckets:
            for state in bucket.states:
                state["step"] = step
            self._move(group, bucket, shrink)
        return loss

    def _observe(self, buckets: list[Bucket]) -> float:
        """Update the statistics; return the factor by which the step's gradient is to be shortened."""
        numbers, tuner = self.defaults, self.tuner
        beta, eps, t = numbers["beta"], numbers["eps"], tuner["step"]
        norm = total_norm([grad for bucket in buckets for grad in bucket.grads])
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"YellowFin: the gradient's norm is {norm} at step {t + 1}, which would spoil its statistics; "
                "no parameter was moved: lower lr_factor or set clip_norm"
            )
        limit = numbers["clip_norm"] or math.inf
        if numbers["adaptive_clip"] and t >= 2:
            limit = min(limit, 10 * math.sqrt(tuner["h_max"] / (1 - beta**t)))
        if norm > limit:
            for bucket in buckets:
                bucket.grads = list(torch._foreach_mul(bucket.grads, limit / norm))
            norm = limit
        update_tuner(tuner, norm, beta=beta, window=numbers["window"], eps=eps)
        means = [mean for bucket in buckets for mean in bucket.of("mean")]
        for bucket in buckets:
            torch._foreach_lerp_(bucket.of("mean"), bucket.grads, 1 - beta)
        if t == 0:
            return 1.0
        tuner["lr"], tuner["momentum"] = tune(tuner, total_norm(means), beta=beta, eps=eps)
        if numbers["slow_start"]:
            tuner["lr"] *= min(1.0, (t + 1) / (10 * numbers["window"]))
        largest = math.sqrt(tuner["h_max"] / (1 - beta ** (t + 1)))
        return min(1.0, largest / norm) if numbers["adaptive_clip"] and norm > 0 else 1.0

    def _move(self, group: dict[str, Any], bucket: Bucket, shrink: float) -> None:
        tuner = self.tuner
        schedule = group["lr"] / group["base_lr"]
        group["tuned_lr"] = group["lr_factor"] * schedule * tuner.get("lr", group["base_lr"])
        group["tuned_momentum"] = group["momentum_factor"] * tuner.get("momentum", group["momentum"])
        velocity = bucket.of("velocity")
        torch._foreach_mul_(velocity, group["tuned_momentum"])
        torch._foreach_add_(velocity, bucket.grads, alpha=-group["tuned_lr"] * shrink)
        torch._foreach_add_(bucket.params, velocity)

    def _update(self, group: dict[str, Any], bucket: Bucket, step: int) -> None:
        raise NotImplementedError("YellowFin moves all groups in one step, after seeing the whole gradient")
