"""
One optimization step on one minibatch, with any ELBO.

`undisturbed` says that nobody's Python but libraries' runs between two steps, which is what the ELBO must know before
it records one; see :mod:`pyro_bnn.inference.graph`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import pyro.poutine as poutine
import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_bnn.common.sites import leaf_of
from pyro_bnn.inference.divergence import NotFinite
from pyro_bnn.inference.fit_state import Callback
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO
from pyro_bnn.inference.graph.origin import is_library
from pyro_bnn.inference.kl import KLWeight, per_datum, scale_kl
from pyro_bnn.inference.native.mean_field import Deferred, KnowsAdam

__all__ = ["MinibatchStep", "between_steps_is_library"]


@final
class _NllRecorder(Messenger):
    """Add up minus the scaled log-probability of the observed sites: the batch's expected NLL under `per_datum`."""

    def __init__(self) -> None:
        super().__init__()
        self.nll: Tensor | None = None

    @torch.no_grad()
    def _pyro_post_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            return
        log_prob = msg["fn"].log_prob(msg["value"])
        if msg["mask"] is not None:
            log_prob = torch.where(torch.as_tensor(msg["mask"]), log_prob, torch.zeros_like(log_prob))
        nll = -(log_prob * msg["scale"]).sum()
        self.nll = nll if self.nll is None else self.nll + nll


@final
class MinibatchStep:
    """One optimization step with any ELBO, without a read-back from the device when the ELBO returns tensors."""

    def __init__(
        self, model: Any, guide: Any, optim: PyroOptim, elbo: ELBO, num_data: int, *, undisturbed: bool = False
    ) -> None:
        self.model, self.guide, self.optim = model, guide, optim
        self.elbo: Any = elbo
        self.per_datum = per_datum(num_data)
        self.flat = isinstance(elbo, FlatMeanField_ELBO)
        self.undisturbed = undisturbed
        """Whether nobody's Python but libraries' runs between two steps, so that the ELBO may record them."""
        self.first = True
        self.knows_adam: KnowsAdam | None = optim if isinstance(optim, KnowsAdam) else None

    def __call__(self, kl_weight: float, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Take one step; return the batch's loss and NLL, per datum."""
        loss, nll, params, deferred = self._gradients(kl_weight, batch, may_defer=self.knows_adam is not None)
        if loss.device.type == "cpu" and not math.isfinite(loss):  # elsewhere to look is to wait
            raise NotFinite(str(float(loss)))
        if deferred is not None and not (self.knows_adam and deferred.step(self.knows_adam)):
            deferred.loc.grad, deferred.rho.grad = deferred.gradients()
        self.update(params)  # what has moved already has no gradient
        return loss, nll

    def gradients(self, kl_weight: float, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the batch's loss and NLL, per datum, and the parameters, which have their gradients."""
        loss, nll, params, _ = self._gradients(kl_weight, batch, may_defer=False)
        return loss, nll, params

    def _gradients(
        self, kl_weight: float, batch: Sequence[Tensor], *, may_defer: bool
    ) -> tuple[Tensor, Tensor, list[Tensor], Deferred | None]:
        with self.per_datum, scale_kl(kl_weight):
            return self._tensors(batch, may_defer) if self.flat else self._traced(batch)

    def update(self, params: list[Tensor]) -> None:
        """Let the optimizer move parameters by their gradients, and leave none."""
        self.optim(params)
        for parameter in params:
            parameter.grad = None

    def _tensors(
        self, batch: Sequence[Tensor], may_defer: bool
    ) -> tuple[Tensor, Tensor, list[Tensor], Deferred | None]:
        self.elbo.undisturbed = self.undisturbed and not self.first  # the optimizer asks its arguments after the first
        self.elbo.may_defer = may_defer
        try:
            result = self.elbo.step_tensors(self.model, self.guide, *batch)
        finally:
            self.elbo.undisturbed, self.elbo.may_defer, self.first = False, False, False
        return result["loss"], result["nll"], result["params"], result["deferred"]

    def _traced(self, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor], None]:
        recorder = _NllRecorder()
        with recorder, poutine.trace(param_only=True) as capture:
            loss = self.elbo.loss_and_grads(self.model, self.guide, *batch)
        sites: list[tuple[str, Any]] = sorted(capture.trace.nodes.items())
        params = list({id(p): p for p in (leaf_of(site["value"]) for _, site in sites)}.values())
        nll = torch.zeros(()) if recorder.nll is None else recorder.nll / self.elbo.num_particles
        return torch.as_tensor(loss, dtype=torch.float64), nll, params, None


def _optim_is_library(optim: PyroOptim) -> bool:
    """Return whether a step of an optimizer runs libraries' code only; it asks for arguments at its first step."""
    held = [value for name, value in vars(optim).items() if name != "pt_optim_args"]
    parts = [part for value in held for part in (value.values() if isinstance(value, dict) else [value])]
    return is_library(type(optim)) and all(
        _optim_is_library(part) if isinstance(part, PyroOptim) else is_library(part, deep=True) for part in parts
    )


def between_steps_is_library(
    callbacks: Sequence[Callback], optim: PyroOptim, kl: KLWeight, augment: Callable[[Tensor], Tensor] | None
) -> bool:
    """Return whether what `fit` calls between two steps is libraries' code."""
    return (
        _optim_is_library(optim)
        and is_library(kl, deep=True)
        and (augment is None or is_library(augment, deep=True))
        and all(is_library(getattr(callback.step, "__func__", callback.step)) for callback in callbacks)
    )
