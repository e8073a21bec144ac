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
- The paper divides the learning rate by ten without saying what that scales. Here a schedule that multiplies `lr` by f
  multiplies eta, sigma2 and lambda by f, so sigma2 stays tied to eta by lr_sgd / lr. The state is sigma2_prior / sigma2
  and not sigma2_prior, so the change acts at once: an absolute sigma2_prior would follow only within sigma2 / eta^2
  steps (780 at the defaults), and never for f -> 0.
- Weight decay acts on the mu at which the gradient was taken, as in Algorithm 1 (the filter of eq. 18 would decay
  first); the two differ by lambda times a step.

For a constant gradient the fixed point of sigma2_post is sigma2 for |g| << eta / sigma2, eta / |g| in between, and
1 / g^2 for |g| >> 1 / eta, where the recursion leaves AdaBayesFP's eta / |g|.
"""

import math
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pyro_bnn.optim.torch_optim.arguments import check_arguments
from pyro_bnn.optim.torch_optim.base import Bucket, ForeachOptimizer

__all__ = ["AdaBayes", "Decay", "adabayes_step", "forgetting"]

Decay = Literal["exponential", "first_order"]


def forgetting(k: float, decay: Decay) -> tuple[float, float]:
    """Return (a, n) of sigma2_prior <- a sigma2_post + n sigma2, for k = eta^2 / sigma2."""
    if decay == "exponential":
        return math.exp(-k), -math.expm1(-k)
    return (1 - k / 2) ** 2, k


def adabayes_step(
    params: list[Tensor],
    grads: list[Tensor],
    m: list[Tensor],
    prior: list[Tensor],
    *,
    step: int,
    sigma2: float,
    k: float,
    batch_size: int,
    beta1: float,
    weight_decay: float,
    decay: Decay,
) -> None:
    """Do one step of Algorithm 1 in place; `prior` is sigma2_prior / sigma2, `grads` are of the mean loss."""
    torch._foreach_lerp_(m, grads, 1 - beta1)
    # prior becomes post / sigma2 = prior / (1 + prior sigma2 g^2)
    denominator = torch._foreach_mul(grads, grads)
    torch._foreach_mul_(denominator, prior)
    torch._foreach_mul_(denominator, sigma2 * batch_size**2)
    torch._foreach_add_(denominator, 1.0)
    torch._foreach_div_(prior, denominator)
    if weight_decay:
        torch._foreach_mul_(params, 1 - weight_decay)
    torch._foreach_addcmul_(params, prior, m, value=-sigma2 * batch_size / (1 - beta1**step))
    a, n = forgetting(k, decay)
    torch._foreach_mul_(prior, a)
    torch._foreach_add_(prior, n)


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
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_sgd": lr_sgd,
            "batch_size": batch_size,
            "betas": betas,
            "weight_decay": weight_decay,
            "decay": decay,
            "foreach": foreach,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group after checking what its numbers mean together."""
        numbers = {**self.defaults, **param_group}
        check_arguments("AdaBayes", {name: value for name, value in numbers.items() if name != "params"})
        if numbers["decay"] not in ("exponential", "first_order"):
            raise ValueError(f"AdaBayes: decay={numbers['decay']!r} is not 'exponential' (usual) or 'first_order'")
        if math.isinf(numbers["lr_sgd"]):
            raise ValueError("AdaBayes: lr_sgd must be finite; the limit lr_sgd = inf is AdaBayesFP's (it is AdamW)")
        if numbers["decay"] == "first_order":
            base_lr = numbers.get("base_lr", numbers["lr"])
            _check_first_order(numbers["lr"] * base_lr * numbers["batch_size"] / numbers["lr_sgd"], numbers["lr"])
        super().add_param_group(param_group)

    def _new_state(self, param: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "m": torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format),
            "prior": torch.ones_like(param, dtype=dtype, memory_format=torch.preserve_format),
        }

    def _update(self, group: dict[str, Any], bucket: Bucket, step: int) -> None:
        scale = group["lr"] / group["base_lr"]
        # k = eta^2 / sigma2, with eta = lr and sigma2 = scale lr_sgd / batch_size
        k = group["lr"] * group["base_lr"] * group["batch_size"] / group["lr_sgd"]
        if group["decay"] == "first_order":
            _check_first_order(k, group["lr"])
        adabayes_step(
            bucket.params,
            bucket.grads,
            bucket.of("m"),
            bucket.of("prior"),
            step=step,
            sigma2=scale * group["lr_sgd"] / group["batch_size"],
            k=k,
            batch_size=group["batch_size"],
            beta1=group["betas"][0],
            weight_decay=scale * group["weight_decay"],
            decay=group["decay"],
        )
