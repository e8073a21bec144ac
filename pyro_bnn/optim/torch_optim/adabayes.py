"""
AdaBayes: each weight's learning rate is its posterior variance under a Kalman filter (Aitchison, NeurIPS 2020).

With the summed minibatch objective L_t (log-likelihood plus log-prior, ascended), Algorithm 1 of the paper is

    g              <- grad L_t(mu)
    m              <- beta1 m + (1 - beta1) g,      <g> = m / (1 - beta1^t)
    sigma2_post    <- 1 / (1 / sigma2_prior + g^2)                                       (17a)
    sigma2_prior   <- (1 - eta^2 / (2 sigma2))^2 sigma2_post + eta^2                     (16b)
    mu             <- (1 - lambda) mu + sigma2_post <g>

    eta      `lr`, the rate of Adam, reached where gradients are large
    sigma2   `lr_sgd` / `batch_size`, the rate of SGD, reached where gradients are small
    lambda   `weight_decay`, decoupled and absolute: not multiplied by a learning rate

The loss we are handed is a mean over `batch_size` rows, so g = -batch_size * gradient. `m` holds the mean gradient's
average and is scaled when used. Only betas[0] enters; the pair is accepted so that AdaBayes and AdaBayesFP take the
same arguments.

Departures from the paper
- decay="exponential" (default): the process of eq. (13) does not have variance sigma2 but sigma2 / (1 - eta^2 / (4
  sigma2)), and needs eta^2 < 4 sigma2. The exact discretisation has no such limit:
  sigma2_prior <- exp(-eta^2 / sigma2) sigma2_post + sigma2 (1 - exp(-eta^2 / sigma2)). Equal to first order.
  decay="first_order" is Algorithm 1 as printed.
- The paper divides the learning rate by ten without saying what that scales. Here, as in the author's public code, a
  schedule that multiplies `lr` by f multiplies eta, sigma2 and lambda by f, so sigma2 stays tied to eta by lr_sgd / lr.
  What happens to the variance that has been learnt is `variance`:
  "scheduled" (default)  it follows the schedule: what is kept is sigma2_prior / sigma2, so the change acts at once, on
                         every weight alike.
  "absolute"             it stays what it was, as in the author's code, and follows sigma2 only within sigma2 / eta^2
                         steps (780 at the defaults, ten times as many after a tenfold drop). The noise of a step enters
                         before the step, with the step's own rate.
  With a constant rate the two are the same. lr = 0 stops both.
- `weight_decay_at`: "old_mean" (default) decays the mu at which the gradient was taken, as in Algorithm 1 (the filter
  of eq. 18 would decay first); "new_mean" decays after the step, mu <- (1 - lambda) (mu + sigma2_post <g>), as in the
  author's code. The two differ by lambda times a step.

For a constant gradient the fixed point of sigma2_post is sigma2 for |g| << eta / sigma2, eta / |g| in between, and
1 / g^2 for |g| >> 1 / eta, where the recursion leaves AdaBayesFP's eta / |g|.
"""

import math
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pyro_bnn.optim.torch_optim.arguments import check_arguments
from pyro_bnn.optim.torch_optim.base import Bucket, ForeachOptimizer, schedule_factor

__all__ = ["AdaBayes", "Decay", "Variance", "WeightDecayAt", "adabayes_step", "forgetting"]

Decay = Literal["exponential", "first_order"]
Variance = Literal["scheduled", "absolute"]
WeightDecayAt = Literal["old_mean", "new_mean"]


def forgetting(k: float, decay: Decay) -> tuple[float, float]:
    """Return (a, n) of sigma2_prior <- a sigma2_post + n sigma2, for k = eta^2 / sigma2."""
    if decay == "exponential":
        return math.exp(-k), -math.expm1(-k)
    return (1 - k / 2) ** 2, k


def adabayes_step(
    params: list[Tensor],
    grads: list[Tensor],
    m: list[Tensor],
    variance: list[Tensor],
    *,
    step: int,
    unit: float,
    before: tuple[float, float],
    after: tuple[float, float],
    batch_size: int,
    beta1: float,
    weight_decay: float,
    weight_decay_at: WeightDecayAt,
) -> None:
    """
    Do one step of Algorithm 1 in place; `grads` are of the mean loss, `variance` is in units of `unit`.

    `before` and `after` are (a, n) of variance <- a variance + n, from posterior to prior: one of them is (1, 0).
    """
    torch._foreach_lerp_(m, grads, 1 - beta1)
    _forget(variance, *before)
    # prior becomes post = prior / (1 + prior g^2)
    denominator = torch._foreach_mul(grads, grads)
    torch._foreach_mul_(denominator, variance)
    torch._foreach_mul_(denominator, unit * batch_size**2)
    torch._foreach_add_(denominator, 1.0)
    torch._foreach_div_(variance, denominator)
    if weight_decay and weight_decay_at == "old_mean":
        torch._foreach_mul_(params, 1 - weight_decay)
    torch._foreach_addcmul_(params, variance, m, value=-unit * batch_size / (1 - beta1**step))
    if weight_decay and weight_decay_at == "new_mean":
        torch._foreach_mul_(params, 1 - weight_decay)
    _forget(variance, *after)


def _forget(variance: list[Tensor], a: float, n: float) -> None:
    if (a, n) != (1.0, 0.0):
        torch._foreach_mul_(variance, a)
        torch._foreach_add_(variance, n)


def _check_first_order(k: float, lr: float) -> None:
    if k >= 4:
        raise ValueError(
            f"AdaBayes: decay='first_order' needs eta^2 < 4 sigma2, but at lr={lr!r} eta^2 / sigma2 is {k:.3g}; "
            "use decay='exponential' or a smaller lr"
        )


@final
class AdaBayes(ForeachOptimizer):
    """
    AdaBayes with the variance recursion; see the module's docstring for the equations.

    Args:
        params: tensors or parameter groups.
        lr: eta, the learning rate Adam would use.
        lr_sgd: the learning rate SGD would use; sigma2 = lr_sgd / batch_size.
        batch_size: rows the loss is a mean over.
        betas: betas[0] averages the gradient; betas[1] is not used.
        weight_decay: lambda, the fraction of a weight removed at each step (at the unscheduled lr).
        decay: "exponential" (default) or "first_order", the recursion as printed in the paper.
        variance: what a schedule does to the variances learnt so far: "scheduled" (default) or "absolute".
        weight_decay_at: the mean that decays: "old_mean" (default, the paper) or "new_mean" (the author's code).
        foreach: update all tensors of a group together.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        lr_sgd: float = 0.1,
        *,
        batch_size: int,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        decay: Decay = "exponential",
        variance: Variance = "scheduled",
        weight_decay_at: WeightDecayAt = "old_mean",
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_sgd": lr_sgd,
            "batch_size": batch_size,
            "betas": betas,
            "weight_decay": weight_decay,
            "decay": decay,
            "variance": variance,
            "weight_decay_at": weight_decay_at,
            "foreach": foreach,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group after checking what its numbers mean together."""
        numbers = {**self.defaults, **param_group}
        check_arguments("AdaBayes", {name: value for name, value in numbers.items() if name != "params"})
        if math.isinf(numbers["lr_sgd"]):
            raise ValueError("AdaBayes: lr_sgd must be finite; the limit lr_sgd = inf is AdaBayesFP's (it is AdamW)")
        if numbers["decay"] == "first_order":
            base_lr = numbers.get("base_lr", numbers["lr"])
            _check_first_order(numbers["lr"] * base_lr * numbers["batch_size"] / numbers["lr_sgd"], numbers["lr"])
        super().add_param_group(param_group)

    def _new_state(self, param: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "m": torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format),
            "variance": torch.ones_like(param, dtype=dtype, memory_format=torch.preserve_format),
        }

    def _update(self, group: dict[str, Any], bucket: Bucket, step: int) -> None:
        beta1 = group["betas"][0]
        scale = schedule_factor(group)
        if scale == 0:
            torch._foreach_lerp_(bucket.of("m"), bucket.grads, 1 - beta1)
            return
        # k = eta^2 / sigma2, with eta = lr and sigma2 = scale lr_sgd / batch_size
        k = group["lr"] * group["base_lr"] * group["batch_size"] / group["lr_sgd"]
        if group["decay"] == "first_order":
            _check_first_order(k, group["lr"])
        sigma2 = group["lr_sgd"] / group["batch_size"]  # before the schedule
        a, n = forgetting(k, group["decay"])
        stay = (1.0, 0.0)
        if group["variance"] == "scheduled":
            unit, before, after = scale * sigma2, stay, (a, n)
        else:
            unit, before, after = sigma2, stay if step == 1 else (a, n * scale), stay
        adabayes_step(
            bucket.params,
            bucket.grads,
            bucket.of("m"),
            bucket.of("variance"),
            step=step,
            unit=unit,
            before=before,
            after=after,
            batch_size=group["batch_size"],
            beta1=beta1,
            weight_decay=scale * group["weight_decay"],
            weight_decay_at=group["weight_decay_at"],
        )
