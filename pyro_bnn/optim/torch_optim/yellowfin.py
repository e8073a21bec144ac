"""
YellowFin: momentum SGD that tunes its one learning rate and momentum (Zhang and Mitliagkas, arXiv:1706.03471).

Heavy ball, with alpha inside the velocity as in the paper (torch's SGD keeps it outside, which differs while alpha
changes):

    x_{t+1} = x_t + mu_t (x_t - x_{t-1}) - alpha_t g_t

On a quadratic of curvature h it contracts at rate sqrt(mu) exactly inside the robust region

    (1 - sqrt(mu))^2 / h <= alpha <= (1 + sqrt(mu))^2 / h

From the gradient of all parameters together, with <.> an average of factor `beta` corrected for its start at zero,

    h_t   = ||g_t||^2
    h_max = exp <log of the max of h over the last `window` steps>,     h_min likewise with the min
    C     = <h> - ||<g>||^2                              variance of the gradient
    D     = < <||g||> / <h> >                            distance to the optimum
    x     = argmin x^2 D^2 + (1 - x)^4 C / h_min^2       root of p x = (1 - x)^3, p = D^2 h_min^2 / (2 C)
    mu    = max(x^2, ((sqrt(h_max / h_min) - 1) / (sqrt(h_max / h_min) + 1))^2)
    alpha = (1 - sqrt(mu))^2 / h_min

The thesis (C.0.9 to C.0.11) writes C as <||g||^2> - <||g||>^2 and h as the norm of the largest entry; the above is the
paper's. What follows is the authors' public code for PyTorch, not the paper, and each of it has a switch:

- `h_max_log_smooth`, `h_min_log_smooth`: the logarithms under the averages of h_max and h_min. Without them one outlier
  stays in h_max for about 1 / (1 - beta) steps.
- `rate_in_velocity=False`: alpha stands outside the velocity, as in torch's SGD: v <- mu v + g, x <- x - alpha v. True
  is the paper's heavy ball above; they differ while alpha changes.
- `slow_start`: alpha is multiplied by min(1, (t + 1) / (10 window)), t = 0, 1, ...
- `adaptive_clip`: (a) from the third step on the statistics see a norm of at most sqrt(stat_protect_fac h_max);
  (b) from the second step on the step takes a gradient of norm at most sqrt(h_max); (c) alpha is at most
  catastrophic_move_thresh / ||g||, so that no gradient, the first included, moves the parameters further than that.
  h_max in (a) and (b) is the one before this step, so an outlier does not raise its own limit; ||g|| in (c) is the norm
  after (a) and before (b).
- `clip_norm`: the gradient's norm is cut to that number before anything else.
- `eps` = 1e-6 is added in the code's places: h + eps under the logarithms, D = < <||g||> / (<h> + eps) >, C at least
  eps, p = (D + eps)^2 (h_min + eps)^2 / (2 (C + eps)), (h_max + eps) / (h_min + eps) at least 1 + eps, alpha =
  (1 - sqrt(mu))^2 / (h_min + eps), and each limit of a norm.
- The first step knows no curvature range; it uses the given `lr` and `momentum`, which serve for nothing else (lr = 0
  leaves the parameters alone at every step).
- `lr_factor` (the code's set_lr_factor) and `momentum_factor` multiply alpha and mu of a parameter group. A
  learning-rate schedule multiplies alpha too, by lr / base_lr.

Departures from the authors' code
- `weight_decay` is an L2 term added to the gradient and seen by the statistics and the clipping. The code computes the
  sum for them and drops it, so that there only the step sees it.
- The cubic is solved in its hyperbolic form, which does not cancel; the code's form adds eps to a denominator.
- A gradient that is not finite raises before any parameter moves; the code goes back to a checkpoint.
- Its options that are off by default (sparsity_debias, auto_clip_fac, force_non_inc_step, no zero_debias) do not exist.

Departures from the paper: all the switches above. With h_max_log_smooth, h_min_log_smooth, slow_start and adaptive_clip
off, rate_in_velocity on and a small eps the equations above are the paper's. alpha and mu themselves are not averaged
over steps (the code computes such averages and does not use them).

The statistics are Python numbers, since they steer Python-side coefficients of fused list operations: one transfer of
two numbers per tensor each step.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pyro_bnn.optim.torch_optim.base import Bucket, ForeachOptimizer, schedule_factor

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


def single_step(h_max: float, h_min: float, variance: float, distance: float, eps: float = 0.0) -> tuple[float, float]:
    """Return (alpha, mu) of the noisy quadratic with these statistics."""
    h_max, h_min = h_max + eps, h_min + eps
    x = cubic_root(distance + eps, variance + eps, h_min)
    root_of_range = math.sqrt(max(h_max / h_min, 1 + eps))
    mu = max(x**2, ((root_of_range - 1) / (root_of_range + 1)) ** 2)
    return robust_region(h_min, mu)[0], mu


def new_tuner() -> dict[str, Any]:
    """Return the statistics before the first step: plain numbers, averages not yet corrected for starting at zero."""
    averages = dict.fromkeys(("h_min_average", "h_max_average", "h", "norm", "distance"), 0.0)
    return {"step": 0, "window": [], **averages, "lr": None, "momentum": None}


def check_tuner(tuner: dict[str, Any]) -> None:
    """Raise for statistics that something else has saved."""
    if tuner.keys() != new_tuner().keys():
        raise ValueError(
            f"YellowFin: these statistics hold {', '.join(tuner)} instead of {', '.join(new_tuner())}; they were saved "
            "by another version: start the optimizer anew"
        )


def update_tuner(tuner: dict[str, Any], norm: float, numbers: Mapping[str, Any]) -> None:
    """Take in the gradient norm of one step."""
    beta, eps = numbers["beta"], numbers["eps"]

    def average(name: str, value: float) -> None:
        tuner[name] = beta * tuner[name] + (1 - beta) * value

    tuner["step"] += 1
    tuner["window"] = [*tuner["window"], norm**2][-numbers["window"] :]
    for name, extreme, log_smooth in (
        ("h_min_average", min(tuner["window"]), numbers["h_min_log_smooth"]),
        ("h_max_average", max(tuner["window"]), numbers["h_max_log_smooth"]),
    ):
        average(name, math.log(extreme + eps) if log_smooth else extreme)
    average("h", norm**2)
    average("norm", norm)
    # the two corrections cancel inside the ratio
    average("distance", tuner["norm"] / (tuner["h"] + eps))


def curvature_range(tuner: dict[str, Any], numbers: Mapping[str, Any]) -> tuple[float, float]:
    """Return (h_min, h_max) from the statistics of at least one step."""
    correction = 1 - numbers["beta"] ** tuner["step"]
    low, high = tuner["h_min_average"] / correction, tuner["h_max_average"] / correction
    return (
        math.exp(low) if numbers["h_min_log_smooth"] else low,
        math.exp(high) if numbers["h_max_log_smooth"] else high,
    )


def tune(tuner: dict[str, Any], norm_of_mean: float, numbers: Mapping[str, Any]) -> tuple[float, float]:
    """Return (alpha, mu) from the statistics and ||<g>||, the latter not yet corrected for starting at zero."""
    correction = 1 - numbers["beta"] ** tuner["step"]
    variance = max(tuner["h"] / correction - (norm_of_mean / correction) ** 2, numbers["eps"])
    h_min, h_max = curvature_range(tuner, numbers)
    return single_step(h_max, h_min, variance, tuner["distance"] / correction, numbers["eps"])


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
        lr: learning rate of the first step only; `lr_factor` is the one to tune. 0 leaves the parameters alone.
        momentum: momentum of the first step only.
        beta: averaging of all statistics.
        window: steps over which the curvature range is taken.
        lr_factor: multiplies the tuned learning rate.
        momentum_factor: multiplies the tuned momentum.
        clip_norm: largest norm of the gradient.
        adaptive_clip: clip by the largest curvature seen, and limit how far one gradient may move the parameters.
        stat_protect_fac: the statistics see at most this many times h_max (with `adaptive_clip`).
        catastrophic_move_thresh: the furthest one gradient may move the parameters (with `adaptive_clip`).
        h_max_log_smooth: average the logarithm of the largest curvature, not the curvature.
        h_min_log_smooth: the same for the smallest.
        slow_start: raise the learning rate from near zero over 10 windows.
        rate_in_velocity: the paper's heavy ball; False is torch's SGD, as in the authors' code.
        weight_decay: L2 coefficient, added to the gradient.
        eps: smallest squared gradient norm and gradient variance told apart from zero.
        foreach: update all tensors of a group together.
    """

    _shared = (
        "beta",
        "window",
        "clip_norm",
        "adaptive_clip",
        "stat_protect_fac",
        "catastrophic_move_thresh",
        "h_max_log_smooth",
        "h_min_log_smooth",
        "slow_start",
        "rate_in_velocity",
        "eps",
    )

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
        stat_protect_fac: float = 100.0,
        catastrophic_move_thresh: float = 100.0,
        h_max_log_smooth: bool = True,
        h_min_log_smooth: bool = True,
        slow_start: bool = True,
        rate_in_velocity: bool = False,
        weight_decay: float = 0.0,
        eps: float = 1e-6,
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
            "stat_protect_fac": stat_protect_fac,
            "catastrophic_move_thresh": catastrophic_move_thresh,
            "h_max_log_smooth": h_max_log_smooth,
            "h_min_log_smooth": h_min_log_smooth,
            "slow_start": slow_start,
            "rate_in_velocity": rate_in_velocity,
            "weight_decay": weight_decay,
            "eps": eps,
            "foreach": foreach,
        }
        super().__init__(params, defaults)
        if self.defaults["eps"] == 0:
            raise ValueError("YellowFin: eps=0 would divide by a zero variance; a usual value is 1e-6")
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
        longest_rate = self._observe([bucket for _, bucket, _ in buckets])
        for group, bucket, step in buckets:
            for state in bucket.states:
                state["step"] = step
            self._move(group, bucket, longest_rate)
        return loss

    def _observe(self, buckets: list[Bucket]) -> float:
        """Update the statistics from the gradient of all buckets, cut it, tune; return the largest rate allowed."""
        numbers, tuner = self.defaults, self.tuner
        check_tuner(tuner)
        t, eps = tuner["step"], numbers["eps"]
        norm = total_norm([grad for bucket in buckets for grad in bucket.grads])
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"YellowFin: the gradient's norm is {norm} at step {t + 1}, which would spoil its statistics; "
                "no parameter was moved: lower lr_factor or set clip_norm"
            )
        # the curvature seen before this step limits this step
        h_max = curvature_range(tuner, numbers)[1] if t >= 1 and numbers["adaptive_clip"] else math.inf
        limit = numbers["clip_norm"] or math.inf
        if t >= 2:
            limit = min(limit, math.sqrt(numbers["stat_protect_fac"] * h_max) + eps)
        norm = self._cut(buckets, norm, limit)
        update_tuner(tuner, norm, numbers)
        means = [mean for bucket in buckets for mean in bucket.of("mean")]
        for bucket in buckets:
            torch._foreach_lerp_(bucket.of("mean"), bucket.grads, 1 - numbers["beta"])
        if t >= 1:
            tuner["lr"], tuner["momentum"] = tune(tuner, total_norm(means), numbers)
            if numbers["slow_start"]:
                tuner["lr"] *= min(1.0, (t + 1) / (10 * numbers["window"]))
        self._cut(buckets, norm, math.sqrt(h_max) + eps)
        return numbers["catastrophic_move_thresh"] / norm if numbers["adaptive_clip"] and norm > 0 else math.inf

    @staticmethod
    def _cut(buckets: list[Bucket], norm: float, limit: float) -> float:
        """Shorten the gradient of norm `norm` to `limit`; return its norm."""
        if norm <= limit:
            return norm
        for bucket in buckets:
            bucket.grads = list(torch._foreach_mul(bucket.grads, limit / norm))
        return limit

    def _move(self, group: dict[str, Any], bucket: Bucket, longest_rate: float) -> None:
        tuner = self.tuner
        lr = group["base_lr"] if tuner["lr"] is None else tuner["lr"]
        lr = min(group["lr_factor"] * schedule_factor(group) * lr, longest_rate)
        mu = group["momentum_factor"] * (group["momentum"] if tuner["momentum"] is None else tuner["momentum"])
        group["tuned_lr"], group["tuned_momentum"] = lr, mu
        inside, outside = (lr, 1.0) if group["rate_in_velocity"] else (1.0, lr)
        velocity = bucket.of("velocity")
        torch._foreach_mul_(velocity, mu)
        torch._foreach_add_(velocity, bucket.grads, alpha=-inside)
        torch._foreach_add_(bucket.params, velocity, alpha=outside)

    def _update(self, group: dict[str, Any], bucket: Bucket, step: int) -> None:
        raise NotImplementedError("YellowFin moves all groups in one step, after seeing the whole gradient")
