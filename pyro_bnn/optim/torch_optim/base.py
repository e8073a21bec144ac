"""
The walk over parameters that the elementwise optimizers of this room share.

A subclass states its numbers, the tensors it keeps per parameter, and one update of a list of tensors; this base
collects the parameters that have a gradient, so that a whole parameter group is updated by a handful of `foreach`
calls. Tensors of one device, one dtype and one age go together. With `foreach=False` every tensor goes alone, which
needs less memory for intermediate results.

Parameters in half precision keep their state in float32: an average with beta = 0.999 stands still in bfloat16, whose
steps are coarser than 1 - beta.

A learning-rate schedule changes a group's `lr`; the group's `base_lr` remembers the value it was given with, so that
algorithms with more than one rate can scale the others by lr / base_lr. A rate of 0, given or scheduled, leaves the
parameters alone, whatever the other rates and the weight decay; the averages go on. A group given with lr = 0 takes the
first other value it sees for its base.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from pyro_bnn.optim.torch_optim.arguments import check_arguments

__all__ = ["Bucket", "ForeachOptimizer", "base_rate", "schedule_factor", "state_dtype"]


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the state of a parameter of `dtype` is kept: never coarser than float32."""
    return torch.promote_types(dtype, torch.float32)


def base_rate(group: dict[str, Any]) -> float:
    """Return base_lr of a parameter group; 1 while it and lr are 0, when nothing moves."""
    if group["base_lr"] == 0:
        group["base_lr"] = group["lr"]
    return float(group["base_lr"] or 1.0)


def schedule_factor(group: dict[str, Any]) -> float:
    """Return lr / base_lr of a parameter group, what a schedule has multiplied its rates by; 0 where lr is 0."""
    return float(group["lr"]) / base_rate(group)


@dataclass
class Bucket:
    """Tensors of one parameter group, device, dtype and age; `grads` are in the state's dtype."""

    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)

    def of(self, name: str) -> list[Tensor]:
        """Return one state tensor of every parameter."""
        return [state[name] for state in self.states]


class ForeachOptimizer(Optimizer, ABC):
    """Abstract optimizer whose update is one function of lists of tensors."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        check_arguments(type(self).__name__, defaults)
        super().__init__(params, defaults)

    @abstractmethod
    def _new_state(self, param: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        """Return the tensors kept for one parameter before its first step."""

    @abstractmethod
    def _update(self, group: dict[str, Any], bucket: Bucket, step: int) -> None:
        """Move `bucket.params` by their step number `step` (1, 2, ...)."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group after checking its numbers and its tensors."""
        check_arguments(type(self).__name__, {k: v for k, v in param_group.items() if k != "params"})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for param in group["params"]:
            if not param.is_floating_point():
                self.param_groups.pop()
                raise TypeError(
                    f"{type(self).__name__} optimizes real floating-point tensors, not {param.dtype}; "
                    "keep complex parameters as two real ones (torch.view_as_real)"
                )
        group.setdefault("base_lr", group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; `closure`, if given, re-evaluates the loss and its gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, bucket, step in list(self._buckets()):
            for state in bucket.states:
                state["step"] = step
            self._update(group, bucket, step)
        return loss

    def _buckets(self) -> Iterator[tuple[dict[str, Any], Bucket, int]]:
        for group in self.param_groups:
            buckets: dict[tuple[object, ...], Bucket] = {}
            foreach = group["foreach"]
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                if grad.layout != torch.strided:
                    raise TypeError(
                        f"{type(self).__name__} needs dense gradients, got layout {grad.layout}; "
                        "build the embedding with sparse=False"
                    )
                dtype = state_dtype(param.dtype)
                state = self.state[param]
                if not state:
                    state["step"] = 0
                    state.update(self._new_state(param, dtype))
                key = (param.device, param.dtype, state["step"], None if foreach else id(param))
                bucket = buckets.get(key)
                if bucket is None:
                    bucket = buckets[key] = Bucket()
                bucket.params.append(param)
                bucket.grads.append(grad if grad.dtype == dtype else grad.to(dtype))
                bucket.states.append(state)
            for bucket in buckets.values():
                yield group, bucket, bucket.states[0]["step"] + 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load as torch does, but copy the tensors and leave them in the dtype they were saved in."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for number, param in zip(numbers, params, strict=True):
            saved = state_dict["state"].get(number)
            if saved:
                self.state[param] = {
                    name: value.detach().to(param.device, copy=True) if isinstance(value, Tensor) else value
                    for name, value in saved.items()
                }
