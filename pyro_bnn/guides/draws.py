"""
A finite set of draws as a posterior: q(w) = (1/S) sum_s delta(w - w_s), with w_s from a sampler.

Calls go through the draws in random order, each once before any comes again: S calls after `restart` average over
exactly the S draws. A sampler that trains a model's own parameters alongside (normalisation layers, a learned noise
level) leaves their values with every draw; a call then puts those of its draw into the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from pyro_bnn.common.own_state import load_model_state, model_state, state_names
from pyro_bnn.common.turns import in_turn
from pyro_bnn.guides.apart import apart
from pyro_bnn.guides.base import Role
from pyro_bnn.guides.flat import FlatGuide
from pyro_bnn.guides.quantiles import as_quantiles

__all__ = ["Deck", "StoredDraws"]


@final
class Deck:
    """The numbers below n in random order, again and again."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.left: list[int] = []

    def restart(self) -> None:
        """Shuffle all of them before the next one is taken."""
        self.left = []

    def take(self) -> int:
        """Return the next number."""
        if not self.left:
            self.left = torch.randperm(self.n).tolist()
        return self.left.pop()


@final
class StoredDraws(FlatGuide):
    """
    Draws of a sampler as a guide.

    :param model: the program they were drawn for.
    :param num_draws: how many draws there are, over all chains, which follow one another.
    :param chains: how many chains they come from; divides `num_draws`.
    :param kind: the sampler.
    :param states: whether every draw has its own values of the model's parameters and buffers.
    :param stats: what the sampler noted of every draw, by name: `energy`, `diverging`.
    """

    roles: ClassVar[Mapping[str, Role]] = {"draws": "other"}

    def __init__(
        self,
        model: Any,
        *,
        num_draws: int,
        chains: int = 1,
        kind: str = "draws",
        states: bool = False,
        stats: Sequence[str] = (),
    ) -> None:
        if num_draws < 1:
            raise ValueError(f"num_draws={num_draws} is no posterior: pass at least 1")
        if chains < 1 or num_draws % chains:
            raise ValueError(f"chains={chains} does not divide num_draws={num_draws}: pass as many draws of each chain")
        super().__init__(model)
        self.kind = kind
        self.chains = chains
        self.num_draws = num_draws
        self.states = states
        self.stats = list(stats)
        self._deck = Deck(num_draws)
        self._build_if_known()

    @classmethod
    def from_flat(
        cls,
        model: Any,
        draws: Tensor,
        *args: Any,
        chains: int = 1,
        kind: str = "draws",
        states: Sequence[Mapping[str, Tensor]] | None = None,
        **kwargs: Any,
    ) -> "StoredDraws":
        """
        Hold draws (S, P) in flat unconstrained space.

        :param chains: how many chains the draws are of, one after another.
        :param kind: what made them: "sgld", "nuts", ...
        :param states: `model_state` of the model at each draw; None if it keeps nothing, or the same for all.
        :param args: the model's arguments, for a program that has to be run to be known.
        """
        guide = cls(model, num_draws=len(draws), chains=chains, kind=kind, states=states is not None)
        guide.build(*args, **kwargs)
        if draws.shape != guide.draws.shape:
            raise ValueError(f"draws have shape {tuple(draws.shape)}, the model needs {tuple(guide.draws.shape)}")
        with torch.no_grad():
            guide.draws.copy_(draws)
            if states is not None:
                for i, name in enumerate(state_names(model)):
                    guide.get_buffer(f"state_{i}").copy_(torch.stack([state[name] for state in states]))
        return guide

    def spec(self) -> dict[str, Any]:
        """Return the guide as names and numbers."""
        return {
            "name": "StoredDraws",
            "num_draws": self.num_draws,
            "chains": self.chains,
            "kind": self.kind,
            "states": self.states,
            **({"stats": self.stats} if self.stats else {}),
        }

    def _register(self, loc: Tensor, sites: Mapping[str, Any]) -> None:
        self.draws = nn.Parameter(loc.new_zeros(self.num_draws, len(loc)), requires_grad=False)  # (S, P)
        for name in self.stats:
            dtype = torch.bool if name == "diverging" else loc.dtype
            self.register_buffer(f"stat_{name}", loc.new_zeros(self.num_draws, dtype=dtype))
        if self.states:
            for i, tensor in enumerate(model_state(self.model).values()):
                self.register_buffer(f"state_{i}", tensor.expand(self.num_draws, *tensor.shape).clone())

    def sample_stats(self) -> dict[str, Tensor]:
        """Return what the sampler noted of the draws, (chains, S / chains)."""
        return {name: self.get_buffer(f"stat_{name}").unflatten(0, (self.chains, -1)) for name in self.stats}

    def restart(self) -> None:
        """Begin a new round: the next S calls give each draw once."""
        self._deck.restart()

    def decks(self) -> list[Deck]:
        """Return what the draws are dealt from."""
        return [self._deck]

    def moves_model(self) -> bool:
        """Whether a draw puts values of the model's own parameters in place."""
        return self.states

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site: the values of the next draw."""
        self.build(*args, **kwargs)
        name = str(self._pyro_name)
        return apart(name, lambda: self._next(*args, **kwargs), moves_model=self.states)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _next(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        s = self._deck.take()
        if self.states:
            named = enumerate(state_names(self.model))
            load_model_state(self.model, {name: self.get_buffer(f"state_{i}")[s] for i, name in named})
        return self._sample_at(self.draws[s], *args, **kwargs)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (divisor S) of the draws."""
        return self.draws.mean(0), self.draws.std(0, correction=0)

    @in_turn
    @torch.no_grad()
    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return quantiles (Q, *shape) of the draws of every site, between two draws by linear interpolation."""
        self.build(*args, **kwargs)
        q = as_quantiles(quantiles, self.draws)
        return {name: torch.quantile(value, q, dim=0) for name, value in self.values(self.draws.detach()).items()}

    @torch.no_grad()
    def by_site(self) -> dict[str, Tensor]:
        """Return the draws of every site by chain, (chains, S / chains, *shape)."""
        self._check_built()
        return self.values(self.draws.detach().unflatten(0, (self.chains, -1)))
