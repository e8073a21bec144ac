"""
Which of its weights a network's output depends on, read off autograd's graph.

A network is run with draws in the place of the parameters that its modules hold. A layer that it reaches in another
way (a closure, a parameter in a plain list) runs with other weights, and a `detach` or `no_grad` cuts the gradient: the
guide would learn the prior there, and nobody would say so.
"""

from collections.abc import Mapping
from typing import Any, final

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["LayerWatch", "reached"]

_LAYERS = frozenset([F.linear, F.conv1d, F.conv2d, F.conv3d])


def reached(output: Tensor, weights: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the weights that a backward pass from `output` comes to."""
    wanted: dict[Any, str] = {}
    for name, weight in weights.items():
        wanted[id(weight) if weight.grad_fn is None else (weight.grad_fn, weight.output_nr)] = name
    found: set[str] = set()
    todo: list[tuple[Any, int]] = [(output.grad_fn, output.output_nr)]
    seen: set[Any] = set()
    while todo and len(found) < len(wanted):
        node, number = todo.pop()
        if node is None or (node, number) in seen:
            continue
        seen.add((node, number))
        edge = id(node.variable) if hasattr(node, "variable") else (node, number)
        if edge in wanted:
            found.add(wanted[edge])
        else:
            todo.extend(node.next_functions)
    return found


@final
class LayerWatch(TorchFunctionMode):
    """
    Notes the weights that a handler answers for, as local reparameterisation does.

    A layer is called with them, and what it returns has a gradient, but not through them.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = {id(weight): name for name, weight in weights.items()}
        self.replaced: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function of torch."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _LAYERS:
            given = (value for value in (*args, *kwargs.values()) if id(value) in self.names)
            held = {self.names[id(weight)]: weight for weight in given}
            if held and result.requires_grad:
                self.replaced |= held.keys() - reached(result, held)
        return result
