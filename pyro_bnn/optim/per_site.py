"""
An optimizer each for the means, the standard deviations and the rest of a Bayesian network.

The two kinds of parameters of a mean-field posterior live on different scales and feel different parts of the loss, so
they want different learning rates, different schedules or different algorithms (thesis, section 5.4), or to be trained
in turns.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_bnn.common.adam import AdamNumbers
from pyro_bnn.optim.names import Names, matches, parameter_kind, site_path, unnamed
from pyro_bnn.optim.schedules import Constant, Schedule, TwinPlateau
from pyro_bnn.optim.torch_optim.arguments import check_arguments
from pyro_bnn.optim.wrappers import Plan, TorchOptim, check_distinct, check_length, check_state, remember

__all__ = ["PerSite"]

_KINDS = ("loc", "scale", "other")


@final
class PerSite(PyroOptim):
    """
    An optimizer each for the means, the standard deviations, the rest, and for chosen sites.

    :param loc: for the parameters whose name says mean; see :func:`parameter_kind`.
    :param scale: for those whose name says standard deviation.
    :param other: for all else (normalisation layers, learned noise, a user's own); None lets loc's optimizer take them.
    :param patterns: optimizers by glob pattern, e.g. `{"net.fc*": SGD({"lr": 0.1})}`. A pattern is compared with the
        full name of a parameter and with its site, and goes before loc, scale and other. It takes means and standard
        deviations alike, unless it is of the full name (`"*.fc1.weight.loc"`).
    :param frozen: groups that start frozen.
    :param alternate: train loc for this many epochs, then scale for as many, and so on; the other groups train always.
    :param schedule: a schedule for every group that has none of its own, or :class:`TwinPlateau`.

    The groups are called loc, scale, other and by their pattern. A group that matches no parameter is an error at the
    first step, as is a parameter that two patterns match. A frozen group, or one whose turn it is not, does not move
    and keeps its optimizer's state; its schedule goes on with the calendar.

    >>> from pyro_bnn.optim import Adam, AdaBound, Cosine
    >>> optim = PerSite(
    ...     loc=AdaBound({"lr": 1e-3, "final_lr": 0.1}), scale=Adam({"lr": 1e-2}), schedule=Cosine(), frozen=["scale"]
    ... )
    >>> sorted(optim.groups), optim.frozen
    (['loc', 'scale'], {'scale'})
    """

    def __init__(
        self,
        loc: TorchOptim | None = None,
        scale: TorchOptim | None = None,
        other: TorchOptim | None = None,
        patterns: Mapping[str, TorchOptim] | None = None,
        *,
        frozen: Iterable[str] = (),
        alternate: int | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__(torch.optim.Optimizer, {})
        given = {"loc": loc, "scale": scale, "other": other}
        self.groups: dict[str, TorchOptim] = {name: optim for name, optim in given.items() if optim is not None}
        self.patterns: tuple[str, ...] = tuple(patterns or ())
        for pattern, optim in (patterns or {}).items():
            if pattern in _KINDS:
                raise ValueError(f"PerSite: {pattern!r} is a group of its own: pass {pattern}=... instead of a pattern")
            self.groups[pattern] = optim
        self._check_groups()
        self.frozen: set[str] = set()
        for name in [frozen] if isinstance(frozen, str) else frozen:
            self.freeze(name)
        self._check_alternate(alternate)
        self.alternate = alternate
        self._share_schedule(schedule)
        self._epoch = 0
        self._prepared = False
        self._epoch_waits = False
        self.names = Names()
        for optim in self.groups.values():
            self.names.join(optim.names)
            optim.names = self.names
        self._group_of: dict[int, tuple[Tensor, str, str]] = {}
        self._plans: dict[frozenset[int], list[tuple[str, TorchOptim, Plan]]] = {}

    # -- construction --------------------------------------------------------------------------------------------------

    def _check_groups(self) -> None:
        if not self.groups:
            raise ValueError("PerSite: no group is given; pass loc=..., scale=... or patterns={...}")
        for name, optim in self.groups.items():
            if not isinstance(optim, TorchOptim):
                raise TypeError(
                    f"PerSite: {name} is a {type(optim).__name__}; pass an optimizer of pyro_bnn.optim, e.g. "
                    "Adam({'lr': 1e-3})"
                )
            for twin, same in self.groups.items():
                if twin != name and same is optim:
                    raise ValueError(f"PerSite: {name!r} and {twin!r} are the same object; build one for each")

    def _check_alternate(self, alternate: int | None) -> None:
        if alternate is None:
            return
        if not isinstance(alternate, int) or isinstance(alternate, bool) or alternate < 1:
            raise ValueError(f"PerSite: alternate={alternate!r} is not a number of epochs >= 1, or None")
        if not {"loc", "scale"} <= set(self.groups):
            raise ValueError(f"PerSite: alternate={alternate!r} needs both loc= and scale=")

    def _share_schedule(self, schedule: Schedule | None) -> None:
        if schedule is None:
            return
        if not isinstance(schedule, Schedule):
            raise TypeError(f"PerSite: schedule={schedule!r}; pass one of pyro_bnn.optim.schedules, e.g. Cosine()")
        if not isinstance(schedule, TwinPlateau):
            for optim in self.groups.values():
                if isinstance(optim.schedule, Constant):
                    optim.schedule = schedule
            return
        for name, plateau in (("loc", schedule.loc), ("scale", schedule.scale)):
            if name not in self.groups or not isinstance(self.groups[name].schedule, Constant):
                raise ValueError(f"PerSite: TwinPlateau needs {name}= with no schedule of its own")
            self.groups[name].schedule = plateau

    def _check_name(self, group: str) -> None:
        if group not in self.groups:
            raise ValueError(f"PerSite: no group is called {group!r}; there are {', '.join(map(repr, self.groups))}")

    # -- parameters ----------------------------------------------------------------------------------------------------

    def name_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Tell the names of parameters, for programs whose parameters Pyro's store does not know."""
        self.names.register(parameters)

    def group_of(self, name: str) -> str:
        """Return the group that takes a parameter of this name."""
        matching = [pattern for pattern in self.patterns if matches(pattern, name)]
        if len(matching) > 1:
            raise ValueError(
                f"PerSite: parameter {name!r} is matched by {' and '.join(map(repr, matching))}; narrow one of them"
            )
        if matching:
            return matching[0]
        kind = parameter_kind(name)
        group = "loc" if kind == "other" and "other" not in self.groups else kind
        if group not in self.groups:
            raise ValueError(f"PerSite: no group takes parameter {name!r}, which is {kind!r}; pass {kind}=...")
        return group

    def _admit(self, params: Sequence[Tensor]) -> list[tuple[str, TorchOptim, Plan]]:
        key = frozenset(map(id, params))
        if key in self._plans:
            return self._plans[key]
        assigned = dict(self._group_of)
        for name, param in self._named([param for param in params if id(param) not in assigned]):
            assigned = {i: known for i, known in assigned.items() if known[1] != name or i in key}
            assigned[id(param)] = (param, name, self.group_of(name))
        check_distinct([assigned[i][1] for i in key])
        if not self._group_of:
            self._check_all_match(assigned)
        plans = []
        for group, optim in self.groups.items():
            members = [param for param in params if assigned[id(param)][2] == group]
            if members:
                plans.append((group, optim, optim.admit(members)))
        if assigned.keys() != self._group_of.keys():
            self._group_of = assigned
            self._plans.clear()
        remember(self._plans, key, plans)
        return plans

    def _named(self, params: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        named = []
        for param in params:
            name = self.names.of(param)
            if name is None:
                raise unnamed(param, "PerSite")
            named.append((name, param))
        return sorted(named, key=lambda pair: pair[0])

    def _check_all_match(self, assigned: Mapping[int, tuple[Tensor, str, str]]) -> None:
        names = sorted(name for _, name, _ in assigned.values())
        matched = {group for _, _, group in assigned.values()}
        flat = [name for name in names if parameter_kind(name) != "other" and not site_path(name)]
        for group in self.groups:
            if group in matched:
                continue
            if group in self.patterns and flat:
                raise ValueError(
                    f"PerSite: pattern {group!r} matches no parameter, for the guide keeps all sites in one flat "
                    f"vector ({flat[0]!r}); build the guide with groups='site', or with a dict of groups"
                )
            remedy = "correct the pattern" if group in self.patterns else f"leave {group}= out"
            shown = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
            raise ValueError(f"PerSite: group {group!r} matches no parameter; {remedy} (the parameters are {shown})")

    # -- steps ---------------------------------------------------------------------------------------------------------

    def __call__(self, params: Iterable[Tensor]) -> None:
        """Take one step of every group that is not frozen and whose turn it is; advance all schedules."""
        params = list(params)
        if not params:
            return
        plans = self._admit(params)
        resting = self.resting()
        for group, optim, plan in plans:
            if group not in resting:
                optim.advance(plan)
        for optim in self.groups.values():
            optim.tick()

    def plain_adam(self, parameter: Tensor) -> AdamNumbers | None:
        """Return what the next step on a parameter is, if that is plain Adam; see :meth:`TorchOptim.plain_adam`."""
        known = self._group_of.get(id(parameter))
        if known is None or known[0] is not parameter or known[2] in self.resting():
            return None
        return self.groups[known[2]].plain_adam(parameter)

    def resting(self) -> set[str]:
        """Return the groups that do not move now."""
        if self.alternate is None:
            return self.frozen
        locs_turn = (self._epoch // self.alternate) % 2 == 0
        return self.frozen | {"scale" if locs_turn else "loc"}

    def freeze(self, group: str) -> None:
        """Stop training a group."""
        self._check_name(group)
        self.frozen.add(group)

    def unfreeze(self, group: str) -> None:
        """Train a group again."""
        self._check_name(group)
        self.frozen.discard(group)

    # -- many members at once ------------------------------------------------------------------------------------------

    def unstackable(self) -> str | None:
        """Return why a step is not that of every member by itself, which are rows of the parameters; None if it is."""
        return next((reason for optim in self.groups.values() if (reason := optim.unstackable())), None)

    def keep_rows(self, rows: Tensor) -> None:
        """Keep the state of some rows of every parameter; the caller shortens the parameters afterwards."""
        for optim in self.groups.values():
            optim.keep_rows(rows)

    # -- schedule ------------------------------------------------------------------------------------------------------

    def prepare(self, epochs: int, steps_per_epoch: int) -> None:
        """
        Start the schedules and the alternation of a training of this length.

        :param epochs: of the training.
        :param steps_per_epoch: minibatches of an epoch.
        """
        check_length(epochs, steps_per_epoch)
        for optim in self.groups.values():
            optim.prepare(epochs, steps_per_epoch)
        if not self._epoch_waits:
            self._epoch = 0
        self._epoch_waits = False
        self._prepared = True

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Show the schedules the metrics of an epoch, and pass the turn if it is time."""
        for optim in self.groups.values():
            optim.end_epoch(metrics)
        self._epoch += 1

    def learning_rates(self) -> dict[str, float]:
        """Return the current rate of every group; 0 for one that does not move now."""
        resting = self.resting()
        rates = {}
        for group, optim in self.groups.items():
            for name, rate in optim.learning_rates().items():
                rates[group if name == "all" else f"{group}: {name}"] = 0.0 if group in resting else rate
        return rates

    def set_learning_rate(self, lr: float, group: str | None = None) -> None:
        """
        Set the rate of one group, or of the first with the others kept in proportion.

        :param lr: the new rate.
        """
        if group is not None:
            self._check_name(group)
            self.groups[group].set_learning_rate(lr)
            return
        check_arguments("PerSite", {"lr": lr})
        rates = {name: optim.base_learning_rate() for name, optim in self.groups.items()}
        first = next(iter(rates.values()))
        for name, optim in self.groups.items():
            optim.set_learning_rate(lr * rates[name] / first)

    # -- state ---------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything an exact resumption needs, as copies and plain data."""
        return {
            "algorithm": "PerSite",
            "groups": {name: optim.get_state() for name, optim in self.groups.items()},
            "frozen": sorted(self.frozen),
            "epoch": self._epoch,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """
        Go back to where `get_state` was called; the parameters take up their part when they are next seen.

        :param state: what `state_dict` returned.
        """
        check_state(state, "PerSite")
        if list(state["groups"]) != list(self.groups):
            raise ValueError(
                f"the saved state has the groups {', '.join(map(repr, state['groups']))}, this optimizer "
                f"{', '.join(map(repr, self.groups))}: build the optimizer saved"
            )
        for name, optim in self.groups.items():
            check_state(state["groups"][name], type(optim).__name__)
        for name, optim in self.groups.items():
            optim.set_state(state["groups"][name])
        self.frozen = set(state["frozen"])
        self._epoch = state["epoch"]
        self._epoch_waits = not self._prepared
        self._group_of = {}
        self._plans = {}

    def save(self, filename: str) -> None:
        """
        Write the state to a file.

        :param filename: where to.
        """
        torch.save(self.get_state(), filename)

    def load(self, filename: str, map_location: Any = None) -> None:
        """
        Read the state from a file.

        :param filename: what `save` wrote.
        :param map_location: as in `torch.load`.
        """
        self.set_state(torch.load(filename, map_location=map_location, weights_only=True))
