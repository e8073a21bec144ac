"""
Ensembles: members by any method, trained apart (deep ensembles) or one after the other along one training (snapshots).

Snapshots begin the schedule of the learning rate anew for each member, which goes on from where the one before it
ended: the rate leaves the valley it ended in, and ends in the next. Members differ less than those trained
apart, and each has the training of all before it.

References: Lakshminarayanan, Pritzel, Blundell 2017 (deep ensembles); Huang et al. 2017 (snapshots). There a member is
a point; here it is any guide that SVI fits, or the average of such a guide.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import pyro

from pyro_bnn.common.renamed import renamed
from pyro_bnn.guides import Ensemble
from pyro_bnn.guides.flat import load_model_state, model_state
from pyro_bnn.methods.averages import Ema, Hwa, Swa
from pyro_bnn.methods.base import Method, Outcome, Work
from pyro_bnn.methods.points import Svi
from pyro_bnn.recipe import Recipe

if TYPE_CHECKING:
    from pyro_bnn.assemble import Assembly

__all__ = ["DeepEnsemble", "Members", "SnapshotEnsemble"]


@dataclass(frozen=True)
class Members(Method, ABC):
    """
    What ensembles have in common.

    :param of: the method of the members, a name or a table.
    :param members: how many; each trains for the recipe's epochs, member m from seed + m.
    """

    of: str | Mapping[str, Any] = "map"
    members: int = 5

    def __post_init__(self) -> None:
        if isinstance(self.members, bool) or not isinstance(self.members, int) or self.members < 1:
            raise ValueError(f"method.members={self.members!r} is not a number of members: pass at least 1")
        self.member()

    def resolved(self, recipe: Recipe) -> "Method":
        """Spell out the members' method."""
        name = self.of if isinstance(self.of, str) else self.of["name"]
        return replace(self, of={"name": name, **self.member().resolved(recipe).spec()})

    def make_guide(self, recipe: Recipe, model: Any) -> Any:
        """Return what a member trains."""
        return self.member().make_guide(recipe, model)

    def check(self, parts: "Assembly") -> None:
        """Refuse what does not fit the members."""
        self.member().check(parts)

    def trains_by_fit(self) -> bool:
        """Whether the members' does."""
        return self.member().trains_by_fit()

    def member(self) -> Method:
        """Return the members' method."""
        from pyro_bnn.methods import make_method  # which knows this method too

        return make_method(self.of)

    @abstractmethod
    def begin(self, parts: "Assembly", first: Mapping[str, Any], last: Any) -> Any:
        """
        Make ready for the next member and return the guide that it begins with.

        :param first: the model's own state before the first member.
        :param last: the guide of the member before; the model's own state is the one it was trained with.
        """

    def __call__(self, work: Work) -> Outcome:
        """Train one after the other."""
        parts = work.parts
        first = model_state(parts.model)
        guides: list[Any] = []
        states = []
        history, seconds = list(work.history), 0.0
        for m in range(self.members):
            done = self.train_member(replace(work, history=history), m, first, guides[-1] if m else None)
            history, seconds = done.history, seconds + done.seconds
            if done.interrupted:
                return Outcome(None, history, None, done.reason, seconds)
            guides.append(done.guide)
            states.append(model_state(parts.model))
        guide = Ensemble(parts.model, guides, states if first else None)
        return Outcome(guide, history, None, f"all {self.members} members done", seconds)

    def train_member(self, work: Work, m: int, first: Mapping[str, Any], last: Any) -> Outcome:
        """Train member m, counted from 0; `first` and `last` as in `begin`."""
        parts, method, seed = work.parts, self.member(), work.recipe.seed + m
        guide = parts.guide
        if m:  # the first member starts where its method alone would
            pyro.set_rng_seed(seed)
            guide = self.begin(parts, first, last)
        member = replace(parts, recipe=work.recipe.changed({"seed": seed}), guide=guide, method=method)
        return method(replace(work, parts=member, part=f"{work.part}/member-{m + 1}".strip("/")))


@final
@dataclass(frozen=True)
class DeepEnsemble(Members):
    """Members trained apart: each from the model's first state and a guide of its own."""

    def units(self) -> list[str]:
        """Return the members."""
        return [f"member-{m + 1}" for m in range(self.members)]

    def do_unit(self, work: Work, name: str) -> None:
        """Train a member."""
        if name not in self.units():
            super().do_unit(work, name)
        self.train_member(work, self.units().index(name), model_state(work.parts.model), None)

    def begin(self, parts: "Assembly", first: Mapping[str, Any], last: Any) -> Any:
        """Go back to the first state; return a new guide."""
        load_model_state(parts.model, first)
        return parts.new_guide()


@final
@dataclass(frozen=True)
class SnapshotEnsemble(Members):
    """Members along one training: each goes on from a copy of the one before, with the schedule begun anew."""

    of: str | Mapping[str, Any] = "svi"

    def member(self) -> Method:
        """Refuse methods that do not begin with a given guide."""
        method = super().member()
        point = isinstance(method, (Swa, Ema)) and method.of != "svi"
        if point or not isinstance(method, (Svi, Hwa, Swa, Ema)):
            raise ValueError(
                f"method.of={self.of!r} does not go on from a guide: snapshots are of 'svi', 'hwa', 'swa' or 'ema'"
            )
        return method

    def begin(self, parts: "Assembly", first: Mapping[str, Any], last: Any) -> Any:
        """Return a copy of the last guide; the model's own state stays."""
        return copy.deepcopy(last)


__getattr__ = renamed(__name__, {"Snapshots": "SnapshotEnsemble"})
