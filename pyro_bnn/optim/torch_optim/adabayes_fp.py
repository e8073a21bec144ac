"""
AdaBayes-FP: AdaBayes with the posterior variance put at its fixed point (Aitchison, NeurIPS 2020, Algorithm 2).

With g the gradient of the summed minibatch objective (ascended),

    m           <- beta1 m + (1 - beta1) g,      <g>   = m / (1 - beta1^t)
    v           <- beta2 v + (1 - beta2) g^2,    <g^2> = v / (1 - beta2^t)
    sigma2_post <- 1 / (1 / (2 sigma2) + sqrt(1 / (4 sigma2^2) + <g^2> / eta^2))         (20)
    mu          <- (1 - lambda) mu + sigma2_post <g>

    eta      `lr`, the rate of Adam, reached where gradients are large
    sigma2   `lr_sgd` / `batch_size`, the rate of SGD, reached where gradients are small
    lambda   `weight_decay`, decoupled and absolute: not multiplied by a learning rate

The loss we are handed is a mean over `batch_size` rows, so g = -batch_size * gradient; `m` and `v` hold averages of the
mean gradient and are scaled when used. The code uses the equal form

    sigma2_post = eta / (c + sqrt(c^2 + <g^2>) + eps),    c = eta / (2 sigma2) = lr batch_size / (2 lr_sgd)

Departures from the paper
- eps: the paper has none, which is 0/0 for sigma2 -> inf and a zero gradient. It stands outside the root, as Adam's
  does, so that lr_sgd = inf is AdamW with this eps (on the summed gradient) and lr * weight_decay = lambda.
  The author's code adds eps to <g^2>, inside the root.
- A schedule that multiplies `lr` by f multiplies eta and sigma2 by f (see AdaBayes), as in the author's code, so c does
  not move. No variance is kept that could follow late: what AdaBayes calls variance="scheduled" and "absolute" is one
  thing here. It multiplies lambda by f too, so that the whole step, decay included, is multiplied by f;
  `weight_decay_scheduled=False` leaves lambda as given, as the author's code does.
- `weight_decay_at`: "old_mean" (default) decays the mu at which the gradient was taken, as in Algorithm 2; "new_mean"
  decays after the step, mu <- (1 - lambda) (mu + sigma2_post <g>), as in the author's code.
"""

from typing import Any, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pyro_bnn.optim.torch_optim.adabayes import WeightDecayAt
from pyro_bnn.optim.torch_optim.base import Bucket, ForeachOptimizer, base_rate, schedule_factor

__all__ = ["AdaBayesFP", "adabayes_fp_step"]


def adabayes_fp_step(
    params: list[Tensor],
    grads: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    *,
    step: int,
    eta: float,
    c: float,
    batch_size: int,
    beta1: float,
    beta2: float,
    weight_decay: float,
    weight_decay_at: WeightDecayAt,
    eps: float,
) -> None:
    """Do one step of Algorithm 2 in place; `grads` are of the mean loss."""
    torch._foreach_lerp_(m, grads, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, grads, grads, value=1 - beta2)
    denominator = torch._foreach_mul(v, batch_size**2 / (1 - beta2**step))
    if c:
        torch._foreach_add_(denominator, c**2)
    torch._foreach_sqrt_(denominator)
    torch._foreach_add_(denominator, c + eps)
    if weight_decay and weight_decay_at == "old_mean":
        torch._foreach_mul_(params, 1 - weight_decay)
    torch._foreach_addcdiv_(params, m, denominator, value=-eta * batch_size / (1 - beta1**step))
    if weight_decay and weight_decay_at == "new_mean":
        torch._foreach_mul_(params, 1 - weight_decay)


@final
class AdaBayesFP(ForeachOptimizer):
    """
    AdaBayes at its fixed point; see the module's docstring for the equations.

    Args:
        params: tensors or parameter groups.
        lr: eta, the learning rate Adam would use.
        lr_sgd: the learning rate SGD would use; sigma2 = lr_sgd / batch_size. `math.inf` gives AdamW.
        batch_size: rows the loss is a mean over.
        betas: averaging of the gradient and of its square.
        weight_decay: lambda, the fraction of a weight removed at each step (at the unscheduled lr).
        weight_decay_at: the mean that decays: "old_mean" (default, the paper) or "new_mean" (the author's code).
        weight_decay_scheduled: whether a schedule multiplies lambda as well.
        eps: added to the root mean square of the summed gradient.
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
        weight_decay_at: WeightDecayAt = "old_mean",
        weight_decay_scheduled: bool = True,
        eps: float = 1e-8,
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_sgd": lr_sgd,
            "batch_size": batch_size,
            "betas": betas,
            "weight_decay": weight_decay,
            "weight_decay_at": weight_decay_at,
            "weight_decay_scheduled": weight_decay_scheduled,
            "eps": eps,
            "foreach": foreach,
        }
        super().__init__(params, defaults)

    def _new_state(self, param: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "m": torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format),
            "v": torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format),
        }

    def _update(self, group: dict[str, Any], bucket: Bucket, step: int) -> None:
        factor = schedule_factor(group)
        decay_factor = factor if group["weight_decay_scheduled"] else float(factor > 0)
        adabayes_fp_step(
            bucket.params,
            bucket.grads,
            bucket.of("m"),
            bucket.of("v"),
            step=step,
            eta=group["lr"],
            c=base_rate(group) * group["batch_size"] / (2 * group["lr_sgd"]),
            batch_size=group["batch_size"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"] * decay_factor,
            weight_decay_at=group["weight_decay_at"],
            eps=group["eps"],
        )
