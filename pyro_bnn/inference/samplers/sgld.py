"""
Langevin dynamics on minibatches, as a torch optimizer, and the callback that keeps the draws.

With L the loss per datum of a batch at a point guide (mean NLL - c log p(w)), its gradient g, step alpha and N data,

    SGLD     w <- w - alpha g + sqrt(2 alpha T / N) xi                 xi ~ N(0, I)
    pSGLD    v <- beta v + (1 - beta) g^2,   G = 1 / (eps + sqrt(v / (1 - beta^k)))
             w <- w - alpha G g + sqrt(2 alpha T G / N) xi
    cSGLD    alpha_k = alpha_0 / 2 [cos(pi mod(k - 1, K) / K) + 1],  K steps to a cycle; the first share of every cycle
             explores without noise, draws are taken in the rest

In the usual letters, U = N L and step epsilon = 2 alpha / N: w <- w - (epsilon / 2) grad U + N(0, epsilon I). The
target is exp(-N L / T): the posterior at T = 1. A loss tempered by eta, whose prior has weight eta, has N L = eta U for
the U of p(w) prod p(y|w)^(1/eta), and T = eta samples that; a cold posterior exp(-U / T) has the plain loss and T = T.

What these draws are biased by, at any step that is not tiny (no Metropolis test):

  - discretisation: on U = w' A w / 2 the stationary covariance is A^-1 (I - alpha A / (2 N))^-1, too wide;
  - the minibatch's gradient noise, of covariance S per step in g, comes on top of xi: with H = A / N the covariance V
    solves V = (I - alpha H) V (I - alpha H) + 2 alpha T I / N + alpha^2 S, which is
    (I T / N + alpha S / 2) H^-1 (I - alpha H / 2)^-1 only where S and H commute (then they have one eigenbasis, and
    this holds for each direction); alpha < 2 / the largest eigenvalue of H, or it has none;
  - pSGLD leaves out Gamma = sum_i dG_i / dw_i (Li et al. 2016 do, and so does everybody): with G(w) a function of the
    present w the draws follow exp(-U) / G instead of exp(-U); a beta near 1 makes G slow and the error small;
  - cSGLD's step is never constant, so that its draws are of a mixture of stationary laws;
  - what is in the model but not in the guide (normalisation layers, learned noise) is trained by its own optimizer, not
    sampled, and every draw keeps the values it had.

Departure: v is corrected for its start at 0, as in Adam; pSGLD's first steps would be enormous otherwise.

References: Welling and Teh 2011; Li, Chen, Carlson, Carin 2016 (preconditioned); Zhang et al. 2020 (cyclical).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from pyro_bnn.common.contract import contract_of
from pyro_bnn.common.own_state import model_state
from pyro_bnn.inference.checkpoint import synchronise
from pyro_bnn.inference.svi import Callback, FitState

__all__ = ["SGLD", "Snapshots", "cyclical_step", "langevin_step", "takes_draw"]


def langevin_step(
    w: Tensor, g: Tensor, lr: float, num_data: int, noise: Tensor, scale: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """Return w - alpha G g + sqrt(2 alpha T G / N) xi."""
    width = math.sqrt(2 * lr * temperature / num_data)
    if scale is None:
        return w - lr * g + width * noise
    return w - lr * scale * g + width * scale.sqrt() * noise


def cyclical_step(k: int, cycle: int, lr: float) -> float:
    """Return alpha_k for step k = 1, 2, ... with `cycle` steps to a cycle."""
    return lr / 2 * (math.cos(math.pi * ((k - 1) % cycle) / cycle) + 1)


def explores(k: int, cycle: int, share: float) -> bool:
    """Whether step k = 1, 2, ... is in the first `share` of its cycle."""
    return ((k - 1) % cycle) / cycle < share


def takes_draw(step: int, burn_in: int, thin: int, cycle: int = 0, explore: float = 0.0) -> bool:
    """Whether step 1, 2, ... gives a draw: every `thin` steps after the burn-in, but for what explores."""
    after = step - burn_in
    return after > 0 and after % thin == 0 and not (cycle and explores(step, cycle, explore))


@final
class SGLD(Optimizer):
    """
    Stochastic gradient Langevin dynamics for a loss per datum.

    :param params: the parameters, as for every torch optimizer.
    :param lr: alpha.
    :param num_data: N.
    :param temperature: T.
    :param precondition: beta of the preconditioner; 0 is without preconditioning.
    :param eps: of the preconditioner.
    :param cycle: K, steps to a cycle; 0 is a constant step.
    :param explore: the share of every cycle that goes without noise.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        num_data: int = 0,
        temperature: float = 1.0,
        precondition: float = 0.0,
        eps: float = 1e-5,
        cycle: int = 0,
        explore: float = 0.25,
    ) -> None:
        if not (lr > 0 and math.isfinite(lr)):
            raise ValueError(f"lr={lr} is not a learning rate: pass a finite number above 0")
        if num_data < 1:
            raise ValueError(f"num_data={num_data} is not a number of rows: pass the size of the training set")
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature={temperature} is not allowed: pass a finite number, at least 0")
        if not 0 <= precondition < 1:
            raise ValueError(f"precondition={precondition} is not a decay: pass a number in [0, 1), 0 for none")
        if not eps > 0:
            raise ValueError(f"eps={eps} is not allowed: pass a number above 0")
        if cycle < 0:
            raise ValueError(f"cycle={cycle} is not a number of steps: pass at least 1, or 0 for a constant step")
        if not 0 <= explore < 1:
            raise ValueError(f"explore={explore} is not a share of a cycle: pass a number in [0, 1)")
        defaults = dict(
            lr=lr,
            num_data=num_data,
            temperature=temperature,
            precondition=precondition,
            eps=eps,
            cycle=cycle,
            explore=explore,
        )
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """
        Move every parameter that has a gradient.

        :param closure: evaluates the loss anew, as in torch; may be None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._move(w, w.grad, group)
        return loss

    def _move(self, w: Tensor, g: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[w]
        k = state["step"] = state.get("step", 0) + 1
        lr, temperature, cycle = group["lr"], group["temperature"], group["cycle"]
        if cycle:
            lr = cyclical_step(k, cycle, lr)
            temperature = 0.0 if explores(k, cycle, group["explore"]) else temperature
        scale = None
        if group["precondition"]:
            beta = group["precondition"]
            if "square" not in state:
                state["square"] = torch.zeros_like(w)
            v = state["square"].mul_(beta).addcmul_(g, g, value=1 - beta)
            scale = 1 / (group["eps"] + (v / (1 - beta**k)).sqrt())
        w.copy_(langevin_step(w, g, lr, group["num_data"], torch.randn_like(w), scale, temperature))


@final
class Snapshots(Callback):
    """
    Keep the point of a flat point guide every `thin` steps from step `burn_in` on.

    :param guide: the guide, with a flat parameter `loc`.
    :param burn_in: steps that come before the first draw.
    :param thin: steps between draws.
    :param cycle: steps to a cycle of the sampler; its exploring share gives no draws.
    :param explore: that share.
    """

    def __init__(self, guide: Any, burn_in: int = 0, thin: int = 1, *, cycle: int = 0, explore: float = 0.25) -> None:
        if burn_in < 0 or thin < 1:
            raise ValueError(f"burn_in={burn_in}, thin={thin}: pass numbers of steps, at least 0 and at least 1")
        if dict(contract_of(guide).roles) != {"loc": "loc"}:
            raise TypeError(f"{type(guide).__name__} is not a flat point guide: pass an AutoPoint")
        self.guide = guide
        self.burn_in, self.thin, self.cycle, self.explore = burn_in, thin, cycle, explore
        self._draws: list[Tensor] = []
        self._states: list[dict[str, Tensor]] = []

    def takes(self, step: int) -> bool:
        """Whether step 1, 2, ... gives a draw."""
        return takes_draw(step, self.burn_in, self.thin, self.cycle, self.explore)

    @torch.no_grad()
    def step(self, state: FitState) -> None:
        """Take a draw if it is time."""
        if not self.takes(state.step):
            return
        self._draws.append(self.guide.get_parameter("loc_unconstrained").detach().clone())
        synchronise(state.model)
        own = model_state(state.model)
        if own:
            self._states.append(own)

    @property
    def draws(self) -> Tensor:
        """The draws, (S, P)."""
        if not self._draws:
            raise RuntimeError(f"no draw was taken: burn_in={self.burn_in} steps is beyond the end of the training")
        return torch.stack(self._draws)

    @property
    def states(self) -> Sequence[Mapping[str, Tensor]] | None:
        """What the model held beside its latent sites at every draw; None if nothing."""
        return self._states or None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumption needs."""
        return {"draws": self._draws, "states": self._states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self._draws, self._states = list(state["draws"]), list(state["states"])
