"""
Deep ensembles: the even mixture q(w) = (1/M) sum_m q_m(w) of guides that were trained apart.

Members are points (Lakshminarayanan et al. 2017) or any other guides. A call draws from one of them; they come in
random order, each once before any comes again, so that M calls after `restart` take each member once. A model's own
parameters and buffers (normalisation layers, a learned noise level) belong to the member they were trained with: a
call puts those of its member into the model.

References: Lakshminarayanan, Pritzel, Blundell 2017; Wilson and Izmailov 2020 (mixtures of Gaussians).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from pyro_bnn.common.own_state import load_model_state, model_state
from pyro_bnn.guides.apart import apart
from pyro_bnn.guides.base import Dealt, Guide, contract_of
from pyro_bnn.guides.draws import Deck
from pyro_bnn.registry import described

__all__ = ["Ensemble"]


@final
class Ensemble(nn.Module, Guide):
    """
    Several trained guides as one posterior.

    :param model: the program they were trained for.
    :param members: the guides.
    :param states: `model_state` of the model after each training; None if the model keeps nothing.
    """

    kind = "ensemble"

    def __init__(
        self, model: Any, members: Sequence[nn.Module], states: Sequence[Mapping[str, Tensor]] | None = None
    ) -> None:
        super().__init__()
        if not members:
            raise ValueError("an ensemble of no members: pass at least one guide")
        for member in members:
            if not isinstance(member, nn.Module) or not callable(member):
                raise TypeError(f"a member is a {type(member).__name__}; pass guides")
        if states is not None and len(states) != len(members):
            raise ValueError(f"{len(states)} states of the model for {len(members)} members: pass one for each")
        self._model = (model,)
        self.members = nn.ModuleList(members)
        self._state_names: list[str] = [] if states is None else sorted(states[0])
        for i, name in enumerate(self._state_names):
            assert states is not None
            self.register_buffer(f"state_{i}", torch.stack([torch.as_tensor(state[name]) for state in states]))
        self._deck = Deck(len(members))
        self._fitted: Any = None

    def _contracts(self) -> list[Guide]:
        return [contract_of(member) for member in self.members]

    @property
    def is_built(self) -> bool:
        """Whether all members have seen the model."""
        return all(member.is_built for member in self._contracts())

    def spec(self) -> dict[str, Any] | None:
        """Return the ensemble as names and numbers, None if a member does not say how it was built."""
        specs = [spec for member in self._contracts() if (spec := member.spec()) is not None]
        if len(specs) < len(self.members):
            return None
        members = [described(member, spec) for member, spec in zip(self.members, specs, strict=True)]
        return {"name": "Ensemble", "members": members, "states": bool(self._state_names)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], model: Any, build: Callable[[Any, Any], nn.Module]) -> "Ensemble":
        """Build the ensemble that `spec` describes; `build` makes a member from its description and the model."""
        members = [build(member, model) for member in spec["members"]]
        return cls(model, members, [model_state(model) for _ in members] if spec["states"] else None)

    def restart(self) -> None:
        """Begin a new round: the next M calls take each member once."""
        self._deck.restart()
        for member in self._contracts():
            member.restart()

    def decks(self) -> list[Dealt]:
        """Return what the members are dealt from, and what those of finitely many draws deal from."""
        return [self._deck, *(deck for member in self._contracts() for deck in member.decks())]

    def moves_model(self) -> bool:
        """Whether a member puts values of the model's own parameters in place."""
        return bool(self._state_names) or any(member.moves_model() for member in self._contracts())

    @property
    def fitted(self) -> Any:
        """What the members were fitted with, where that is the same for all; or what was left here."""
        if self._fitted is not None:
            return self._fitted
        records = [member.fitted for member in self._contracts()]
        return records[0] if all(record == records[0] for record in records) else None

    @fitted.setter
    def fitted(self, value: Any) -> None:
        self._fitted = value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Sample every site from the next member."""
        return apart("Ensemble", lambda: self._next(*args, **kwargs), moves_model=self.moves_model())

    def _next(self, *args: Any, **kwargs: Any) -> Any:
        m = self._deck.take()
        if self._state_names:
            named = enumerate(self._state_names)
            load_model_state(self._model[0], {name: self.get_buffer(f"state_{i}")[m] for i, name in named})
        return self.members[m](*args, **kwargs)
