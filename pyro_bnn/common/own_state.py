"""
What a model holds beside its latent sites: the parameters and buffers that a posterior keeps with its guide.

A model says with `kept_tensors` which names of its state dict these are (a BNN: all but the initial weights); of
another module it is the whole state dict, and of a function nothing.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

__all__ = ["KeepsTensors", "load_model_state", "model_state", "state_names"]


@runtime_checkable
class KeepsTensors(Protocol):
    """A model that says which of its tensors are its own, beside those that only start its latent sites."""

    def kept_tensors(self) -> set[str]:
        """Return the names in the state dict that a saved posterior keeps."""
        ...


def _trained(model: Any) -> dict[str, Tensor]:
    """Return what a model holds beside its latent sites, in the order of its names: the tensors themselves."""
    if not isinstance(model, nn.Module):
        return {}
    state = model.state_dict()
    return {name: state[name] for name in sorted(model.kept_tensors() if isinstance(model, KeepsTensors) else state)}


def state_names(model: Any) -> list[str]:
    """Return the names of the parameters and buffers that a model keeps beside its latent sites, sorted."""
    return list(_trained(model))


def model_state(model: Any) -> dict[str, Tensor]:
    """Return copies of the parameters and buffers that a model keeps beside its latent sites."""
    return {name: tensor.detach().clone() for name, tensor in _trained(model).items()}


@torch.no_grad()
def load_model_state(model: Any, state: Mapping[str, Tensor]) -> None:
    """Copy what `model_state` returned back into the model."""
    held = _trained(model)
    if set(held) != set(state):
        raise ValueError(f"the state is of another model: it has {sorted(state)[:5]}, the model {sorted(held)[:5]}")
    for name, tensor in held.items():
        tensor.copy_(state[name])
