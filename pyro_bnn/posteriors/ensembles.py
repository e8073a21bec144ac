"""Deep ensembles: members of any kind, trained apart."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import pyro

from pyro_bnn.guides import Ensemble
from pyro_bnn.guides.flat import load_model_state, model_state
from pyro_bnn.posteriors.work import Outcome, Trainer, Work
from pyro_bnn.recipe import Recipe

__all__ = ["DeepEnsemble"]


@final
@dataclass(frozen=True)
class DeepEnsemble(Trainer):
    """
    Members trained apart.

    :param of: the kind of the members, a name or a table.
    :param members: how many; each trains for the recipe's epochs, member m from seed + m.
    """

    of: str | Mapping[str, Any] = "map"
    members: int = 5

    def __post_init__(self) -> None:
        if isinstance(self.members, bool) or not isinstance(self.members, int) or self.members < 1:
            raise ValueError(f"posterior.members={self.members!r} is not a number of members: pass at least 1")
        self.member()

    def resolved(self, recipe: Recipe) -> "Trainer":
        """Spell out the members' kind."""
        name = self.of if isinstance(self.of, str) else self.of["name"]
        return replace(self, of={"name": name, **self.member().resolved(recipe).spec()})

    def member(self) -> Trainer:
        """Return the members' kind."""
        from pyro_bnn.posteriors import make_trainer  # which knows this kind too

        return make_trainer(self.of)

    def __call__(self, work: Work) -> Outcome:
        """Train one after the other, each from the model's first state and a guide of its own."""
        parts, trainer = work.parts, self.member()
        first = model_state(parts.model)
        guides, states = [], []
        history, seconds = list(work.history), 0.0
        for m in range(self.members):
            load_model_state(parts.model, first)
            seed = work.recipe.seed + m
            if m:  # the first member starts where its kind alone would
                pyro.set_rng_seed(seed)
            member = replace(
                parts,
                recipe=work.recipe.changed({"seed": seed}),
                guide=parts.new_guide() if m else parts.guide,
            )
            name = f"{work.part}/member-{m + 1}".strip("/")
            done = trainer(replace(work, parts=member, part=name, history=history))
            history, seconds = done.history, seconds + done.seconds
            if done.interrupted:
                return Outcome(None, history, None, done.reason, seconds)
            guides.append(done.guide)
            states.append(model_state(parts.model))
        guide = Ensemble(parts.model, guides, states if first else None)
        return Outcome(guide, history, None, f"all {self.members} members done", seconds)
