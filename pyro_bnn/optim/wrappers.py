"""
The optimizers of Pyro programs: one torch optimizer over all parameters, ordered by name.

Each class here is a `pyro.optim.PyroOptim`, so stock `pyro.infer.SVI` takes it, and has the name of a torch optimizer:
`AdaBound({"lr": 1e-3, "final_lr": 0.1})`. Where Pyro builds one torch optimizer per tensor, these build one for all
(one parameter group per distinct arguments), so that a step is a few fused calls and a gradient norm is the norm of the
whole gradient. SVI passes the parameters as a set, whose order changes from run to run; here the names decide.

:class:`pyro_bnn.optim.PerSite` puts several of them together. What a training loop calls, on all of them:

    name_parameters({name: tensor})         optional; see names.py
    prepare(epochs, steps_per_epoch)        once, for schedules that know their length
    optim(params)                           one step
    end_epoch(metrics)                      at the end of each epoch
    learning_rates()                        the current rates
    get_state(), set_state(state)           everything, plain data that torch.load(weights_only=True) reads
"""

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast, final

import torch
from pyro.optim import PyroOptim
from pyro.params.param_store import module_from_param_with_module_name, normalize_param_name, user_param_name
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from pyro_bnn.common.adam import AdamNumbers
from pyro_bnn.optim import torch_optim
from pyro_bnn.optim.names import Names, components, unnamed
from pyro_bnn.optim.schedules import Constant, Factor, Plateau, Schedule, TwinPlateau
from pyro_bnn.optim.torch_optim.arguments import check_arguments

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "AMSBound",
    "AMSGrad",
    "AdaBayes",
    "AdaBayesFP",
    "AdaBound",
    "Adagrad",
    "Adam",
    "AdamW",
    "RAdam",
    "RMSprop",
    "TorchOptim",
    "YellowFin",
]

Arguments: TypeAlias = Mapping[str, Any] | Callable[..., Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class _Entry:
    """A parameter the optimizer knows."""

    tensor: Tensor
    name: str | None

    @property
    def order(self) -> tuple[bool, str, tuple[int, ...]]:
        return self.name is None, self.name or "", tuple(self.tensor.shape)


@dataclass(frozen=True, eq=False)
class Plan:
    """One set of parameters, put in order; `idle` are the known ones that this step leaves alone."""

    active: list[Tensor]
    idle: list[Tensor]


_MAX_PLANS = 64
_DIGITS = "0123456789"


def remember(plans: dict[frozenset[int], Any], key: frozenset[int], plan: Any) -> None:
    """Keep the plan of a set of parameters, and not too many of them."""
    if len(plans) >= _MAX_PLANS:
        plans.clear()
    plans[key] = plan


def _copy_state(state: Any, device: torch.device | None = None) -> Any:
    if isinstance(state, Tensor):
        return state.detach().to(device or state.device, copy=True)
    if isinstance(state, dict):
        return {name: _copy_state(value, device) for name, value in state.items()}
    return copy.deepcopy(state)


def check_state(state: Any, algorithm: str) -> None:
    """Raise for a saved state of another algorithm."""
    if not isinstance(state, Mapping) or "algorithm" not in state:
        raise ValueError(f"this is not a state that get_state() of {algorithm} returned")
    if state["algorithm"] != algorithm:
        raise ValueError(f"the saved state is of {state['algorithm']}, not of {algorithm}: build the optimizer saved")


def check_distinct(names: Sequence[str]) -> None:
    """Raise if two parameters have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{count} parameters are called {name!r}: give each its own name")


def check_length(epochs: int, steps_per_epoch: int) -> None:
    """Raise for an impossible length of training."""
    for name, value in (("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"prepare: {name}={value!r} is not an integer >= 1")


def _is_flat(tensor: Tensor, shape: torch.Size) -> bool:
    plain = tensor.dtype is torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()
    return plain and tensor.shape == shape


def _hooked(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether somebody listens to the optimizer's steps."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


@final
class _Waiting:
    """A saved state whose parameters have not been seen yet."""

    def __init__(self, parameters: Sequence[Mapping[str, Any]] = (), shared: Mapping[str, Any] | None = None) -> None:
        self.entries = [dict(entry) for entry in parameters]
        self.shared = dict(shared or {})

    def find(self, new: Sequence[_Entry]) -> dict[int, dict[str, Any]]:
        """Return the saved entries of these parameters, by id of the tensor."""
        taken: dict[int, dict[str, Any]] = {}
        entries = self.entries
        if not entries:
            return taken
        for same in (self._same_name, self._same_but_serial, self._same_shape):
            for entry in new:
                left = [other for other in new if id(other.tensor) not in taken]
                matching = [saved for saved in entries if same(saved, entry)]
                if entry in left and len(matching) == 1 and sum(same(matching[0], other) for other in left) == 1:
                    taken[id(entry.tensor)] = matching[0]
                    entries = [saved for saved in entries if saved is not matching[0]]
        if not taken:
            raise ValueError(
                f"the saved optimizer state is of {self._list(s['name'] for s in self.entries)}, the parameters are "
                f"{self._list(entry.name for entry in new)}: build model and guide as they were saved"
            )
        for entry in new:
            saved = taken.get(id(entry.tensor))
            if saved is not None and list(saved["shape"]) != list(entry.tensor.shape):
                raise ValueError(
                    f"parameter {entry.name!r} has shape {tuple(entry.tensor.shape)}, the saved optimizer state "
                    f"{tuple(saved['shape'])}: build model and guide as they were saved"
                )
        return taken

    def discard(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Drop entries that have been taken up."""
        gone = {id(entry) for entry in entries}
        self.entries = [entry for entry in self.entries if id(entry) not in gone]

    @staticmethod
    def _list(names: Iterable[str | None]) -> str:
        return ", ".join(repr(name) for name in names)

    @staticmethod
    def _same_name(saved: Mapping[str, Any], entry: _Entry) -> bool:
        return entry.name is not None and saved["name"] == entry.name

    @staticmethod
    def _same_but_serial(saved: Mapping[str, Any], entry: _Entry) -> bool:
        """Compare without the number at the end of the first component: guides count in the order they were built."""
        if entry.name is None or saved["name"] is None:
            return False
        (old, *old_rest), (new, *new_rest) = components(saved["name"]), components(entry.name)
        return old.rstrip(_DIGITS) == new.rstrip(_DIGITS) and old_rest == new_rest != []

    @staticmethod
    def _same_shape(saved: Mapping[str, Any], entry: _Entry) -> bool:
        return saved["name"] is None and entry.name is None and list(saved["shape"]) == list(entry.tensor.shape)


class TorchOptim(PyroOptim):
    """
    Abstract twin of a torch optimizer class; the subclasses say which.

    :param optim_args: the torch class's arguments as a dictionary, or a callable that returns it for a parameter's name
        (Pyro's form of two arguments, module name and parameter name, works too). The numbers may also be given as
        keyword arguments: `Adam(lr=1e-3)`.
    :param clip_args: `clip_norm`, the largest norm of the gradient of all parameters together, and `clip_value`, the
        largest absolute value of an entry.
    :param schedule: how the learning rates change; see :mod:`pyro_bnn.optim.schedules`.
    """

    torch_class: ClassVar[type[torch.optim.Optimizer]]
    fixed: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        optim_args: Arguments | None = None,
        clip_args: Mapping[str, float] | None = None,
        *,
        schedule: Schedule | None = None,
        **numbers: Any,
    ) -> None:
        if optim_args is not None and numbers:
            raise TypeError(
                f"{self._algorithm}: numbers come either as a dictionary or as keyword arguments, not as both "
                f"({', '.join(numbers)})"
            )
        if optim_args is not None and not isinstance(optim_args, Mapping) and not callable(optim_args):
            raise TypeError(
                f"{self._algorithm}: optim_args is a {type(optim_args).__name__}; pass a dictionary such as "
                "{'lr': 1e-3}, or a callable from a parameter's name to one"
            )
        if optim_args is None or isinstance(optim_args, Mapping):
            optim_args = {**self.fixed, **(numbers if optim_args is None else optim_args)}
            self._check(optim_args)
        clip_args = self._checked_clipping(clip_args)
        if schedule is not None and (not isinstance(schedule, Schedule) or isinstance(schedule, TwinPlateau)):
            raise TypeError(
                f"{self._algorithm}: schedule={schedule!r}; pass one of pyro_bnn.optim.schedules, e.g. Cosine() "
                "(TwinPlateau goes to PerSite)"
            )
        super().__init__(self.torch_class, cast(Any, optim_args), clip_args)
        self._clipping = clip_args
        self.schedule: Schedule = schedule or Constant()
        self.torch_optimizer: torch.optim.Optimizer | None = None
        self.names = Names()
        self._entries: dict[int, _Entry] = {}
        self._plans: dict[frozenset[int], Plan] = {}
        self._waiting = _Waiting()
        self._waiting_factor: Mapping[str, Any] | None = None
        self._made_factor: Factor | None = None
        self._new_lr: float | None = None

    # -- arguments -----------------------------------------------------------------------------------------------------

    @property
    def _algorithm(self) -> str:
        return type(self).__name__

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        """Return the names of the numbers this optimizer takes."""
        return tuple(name for name in inspect.signature(cls.torch_class).parameters if name != "params")

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Raise for what does not need a parameter to be seen wrong."""
        known = self.arguments()
        for name in arguments:
            if name not in known:
                raise ValueError(f"{self._algorithm} does not know {name!r}; it takes {', '.join(known)}")
        for name, parameter in inspect.signature(self.torch_class).parameters.items():
            if name != "params" and parameter.default is parameter.empty and name not in arguments:
                raise ValueError(f"{self._algorithm} needs {name!r}; it takes {', '.join(known)}")
        check_arguments(self._algorithm, arguments)
        self.torch_class([torch.zeros(1)], **arguments)

    def _checked_clipping(self, clip_args: Mapping[str, float] | None) -> dict[str, float]:
        if clip_args is None:
            return {}
        if not isinstance(clip_args, Mapping) or not set(clip_args) <= {"clip_norm", "clip_value"}:
            raise TypeError(
                f"{self._algorithm}: clip_args={clip_args!r}; pass a dictionary of clip_norm and clip_value (to clip "
                "some parameters differently, give them their own optimizer with PerSite)"
            )
        check_arguments(self._algorithm, clip_args)
        return dict(clip_args)

    def _arguments_of(self, entry: _Entry) -> dict[str, Any]:
        if not callable(self.pt_optim_args):
            return dict(self.pt_optim_args)
        if entry.name is None:
            raise unnamed(entry.tensor, "a callable of per-parameter arguments")
        if self.pt_optim_args_argc == 1:
            arguments = self.pt_optim_args(normalize_param_name(entry.name))
        else:
            arguments = self.pt_optim_args(module_from_param_with_module_name(entry.name), user_param_name(entry.name))
        if not isinstance(arguments, Mapping):
            raise TypeError(
                f"{self._algorithm}: the callable returned {arguments!r} for {entry.name!r}, not a dictionary"
            )
        arguments = {**self.fixed, **arguments}
        self._check(arguments)
        return arguments

    def _fastest(self, arguments: dict[str, Any], params: Sequence[Tensor]) -> dict[str, Any]:
        """Choose torch's fused kernel where there is one for these tensors, its list operations otherwise."""
        known = self.arguments()
        if "foreach" in arguments or arguments.get("fused") is not None or "foreach" not in known:
            return arguments
        plain = all(p.is_floating_point() and p.is_contiguous() and p.device.type in ("cpu", "cuda") for p in params)
        fused = "fused" in known and plain and not arguments.get("differentiable", False)
        return {**arguments, "fused": True} if fused else {**arguments, "foreach": True}

    # -- parameters ----------------------------------------------------------------------------------------------------

    def name_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Tell the names of parameters, for programs whose parameters Pyro's store does not know."""
        self.names.register(parameters)

    def admit(self, params: Sequence[Tensor]) -> Plan:
        """
        Take in parameters: build their part of the torch optimizer, check everything, move nothing.

        :param params: the parameters.
        """
        key = frozenset(map(id, params))
        plan = self._plans.get(key)
        if plan is None:
            self._admit_new(params)
            active = sorted((self._entries[i] for i in key), key=lambda entry: entry.order)
            idle = [entry.tensor for i, entry in self._entries.items() if i not in key]
            plan = Plan([entry.tensor for entry in active], idle)
            remember(self._plans, key, plan)
        return plan

    def _admit_new(self, params: Sequence[Tensor]) -> None:
        unknown = [p for p in params if id(p) not in self._entries]
        if not unknown:
            return
        new = sorted((_Entry(p, self.names.of(p)) for p in unknown), key=lambda entry: entry.order)
        together = [*new, *(self._entries[id(p)] for p in params if id(p) in self._entries)]
        check_distinct([entry.name for entry in together if entry.name is not None])
        saved = self._waiting.find(new)
        groups: list[tuple[dict[str, Any], list[_Entry]]] = []
        for entry in new:
            arguments = saved[id(entry.tensor)]["group"] if id(entry.tensor) in saved else self._arguments_of(entry)
            for known, members in groups:
                if known == arguments:
                    members.append(entry)
                    break
            else:
                groups.append((dict(arguments), [entry]))
        built = [self._build(arguments, [entry.tensor for entry in members], saved) for arguments, members in groups]
        # nothing can fail from here on
        self._forget({entry.name for entry in new if entry.name is not None})
        for fresh in built:
            self._join(fresh)
        self._waiting.discard(saved.values())
        self._entries.update((id(entry.tensor), entry) for entry in new)
        self._plans.clear()
        self._apply_factor()

    def _build(
        self, arguments: dict[str, Any], params: list[Tensor], saved: Mapping[int, dict[str, Any]]
    ) -> torch.optim.Optimizer:
        """Return a torch optimizer for some parameters: some algorithms make state when they are built."""
        numbers = self._fastest(arguments, params)
        known = {name: value for name, value in numbers.items() if name in self.arguments()}
        of_group = {name: value for name, value in numbers.items() if name not in known}
        fresh = self.torch_class([{"params": params, **of_group}], **known)
        group = fresh.param_groups[0]
        group["initial_lr"] = group["lr"] if self._new_lr is None else self._new_lr
        for param in params:
            if id(param) in saved:
                at = {} if group.get("fused") or group.get("capturable") else {"step": torch.device("cpu")}
                fresh.state[param] = {
                    name: _copy_state(value, at.get(name, param.device))
                    for name, value in saved[id(param)]["state"].items()
                }
        return fresh

    def _join(self, fresh: torch.optim.Optimizer) -> None:
        if self.torch_optimizer is None:
            self.torch_optimizer = fresh
            for name, value in self._waiting.shared.items():
                fresh.state[name] = _copy_state(value)  # type: ignore[index]
            self._waiting.shared = {}
            return
        (group,) = fresh.param_groups
        self.torch_optimizer.add_param_group(group)
        for param in group["params"]:
            if param in fresh.state:
                self.torch_optimizer.state[param] = fresh.state[param]

    def _forget(self, names: set[str]) -> None:
        """Drop the parameters of these names: other tensors have taken their place."""
        old = [entry for entry in self._entries.values() if entry.name in names]
        if not old or self.torch_optimizer is None:
            return
        gone = {id(entry.tensor) for entry in old}
        for group in self.torch_optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in gone]
        self.torch_optimizer.param_groups[:] = [g for g in self.torch_optimizer.param_groups if g["params"]]
        for entry in old:
            self.torch_optimizer.state.pop(entry.tensor, None)
        self._entries = {i: entry for i, entry in self._entries.items() if i not in gone}
        if not self._entries:
            self.torch_optimizer = None

    # -- steps ---------------------------------------------------------------------------------------------------------

    def __call__(self, params: Iterable[Tensor]) -> None:
        """
        Take one step with the gradients the parameters hold, and advance the schedule.

        As in torch and in Pyro, the gradients stay where they are: clearing them is up to the loop (`SVI.step` does).
        """
        params = list(params)
        if params:
            self.advance(self.admit(params))
            self.tick()

    def advance(self, plan: Plan) -> None:
        """Move the parameters of a plan."""
        assert self.torch_optimizer is not None
        for p in plan.active:
            # torch's fused kernels read memory in order, and an expanded gradient cannot be clipped in place
            if p.grad is not None and p.grad.layout == torch.strided and not p.grad.is_contiguous():
                p.grad = p.grad.contiguous()
        if "clip_norm" in self._clipping:
            clip_grad_norm_(plan.active, self._clipping["clip_norm"])
        if "clip_value" in self._clipping:
            clip_grad_value_(plan.active, self._clipping["clip_value"])
        if not plan.idle:
            self.torch_optimizer.step()
            return
        grads = [p.grad for p in plan.idle]
        for p in plan.idle:
            p.grad = None
        try:
            self.torch_optimizer.step()
        finally:
            for p, grad in zip(plan.idle, grads, strict=True):
                p.grad = grad

    def plain_adam(self, parameter: Tensor) -> AdamNumbers | None:
        """
        Return what the next step on a parameter is, if that is torch's fused Adam on a CPU and nothing else.

        None where it is another algorithm, clips or decays, has options that change it, or has not seen the parameter.
        Whoever takes the step by these numbers adds 1 to `steps`, moves both moments, and leaves no gradient.
        """
        optimizer = self.torch_optimizer
        if self.torch_class is not torch.optim.Adam or self._clipping or type(optimizer) is not torch.optim.Adam:
            return None
        state = optimizer.state.get(parameter)
        group = next((g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), None)
        if not state or group is None or _hooked(optimizer) or set(state) != {"step", "exp_avg", "exp_avg_sq"}:
            return None
        plain = group["fused"] and group["weight_decay"] == 0 and isinstance(group["lr"], (int, float))
        if not plain or any(group[option] for option in ("amsgrad", "maximize", "differentiable", "capturable")):
            return None
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if not all(_is_flat(t, parameter.shape) for t in (parameter, mean, square)):
            return None
        lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
        return AdamNumbers(float(lr), float(beta1), float(beta2), float(eps), state["step"], mean, square)

    def tick(self) -> None:
        """Advance the schedule by one step."""
        if self._factor.per_step:
            self._factor.step()
            self._apply_factor()

    # -- many members at once ------------------------------------------------------------------------------------------

    def unstackable(self) -> str | None:
        """Return why a step is not that of every member by itself, which are rows of the parameters; None if it is."""
        if "clip_norm" in self._clipping:
            return f"{self._algorithm}: clip_norm takes the norm over all members; pass clip_value"
        if self.torch_class is torch_optim.YellowFin:
            return "YellowFin has one rate for all parameters together"
        if isinstance(self.schedule, Plateau):
            return f"{self._algorithm}: Plateau follows one training's metrics"
        return None

    def keep_rows(self, rows: Tensor) -> None:
        """Keep the state of some rows of every parameter; the caller shortens the parameters afterwards."""
        if self.torch_optimizer is None:
            return
        for parameter, state in self.torch_optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape:
                    state[name] = value[rows].contiguous()

    # -- schedule ------------------------------------------------------------------------------------------------------

    @property
    def _factor(self) -> Factor:
        if self._made_factor is None:
            self._made_factor = Factor(self.schedule)
            self._restore_factor()
        return self._made_factor

    def _restore_factor(self) -> None:
        if self._waiting_factor is not None and self._made_factor is not None:
            self._made_factor.load_state_dict(self._waiting_factor)
            self._waiting_factor = None
            self._apply_factor()

    def _apply_factor(self) -> None:
        if self.torch_optimizer is not None:
            factor = self._factor.value
            for group in self.torch_optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor

    def prepare(self, epochs: int, steps_per_epoch: int) -> None:
        """
        Start the schedule of a training of this length.

        :param epochs: of the training.
        :param steps_per_epoch: minibatches of an epoch.
        """
        check_length(epochs, steps_per_epoch)
        self._made_factor = Factor(self.schedule, epochs, steps_per_epoch)
        self._restore_factor()
        self._apply_factor()

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Show the schedule the metrics of an epoch (nll, kl, val_nll, ... as far as they exist)."""
        self._factor.end_epoch(metrics)
        self._apply_factor()

    def learning_rates(self) -> dict[str, float]:
        """Return the current learning rate, under "all" or, with a callable of arguments, under each name."""
        if self.torch_optimizer is None:
            factor = 1.0 if self._made_factor is None else self._made_factor.value
            return {} if callable(self.pt_optim_args) else {"all": self.base_learning_rate() * factor}
        groups = self.torch_optimizer.param_groups
        if not callable(self.pt_optim_args):
            return {"all": self._rate(groups[0])}
        rates = {id(p): self._rate(group) for group in groups for p in group["params"]}
        return {str(entry.name): rates[i] for i, entry in sorted(self._entries.items(), key=lambda item: item[1].order)}

    def set_learning_rate(self, lr: float) -> None:
        """
        Set the rate a schedule starts from, for all parameters; rates tied to it (final_lr, lr_sgd) follow.

        :param lr: the new rate.
        """
        check_arguments(self._algorithm, {"lr": lr})
        if callable(self.pt_optim_args):
            raise TypeError(f"{self._algorithm}: the learning rates come from a callable; build another optimizer")
        self._new_lr = lr
        if self.torch_optimizer is not None:
            for group in self.torch_optimizer.param_groups:
                group["initial_lr"] = lr
            self._apply_factor()

    def base_learning_rate(self) -> float:
        """Return the rate a schedule starts from."""
        if callable(self.pt_optim_args):
            raise TypeError(f"{self._algorithm}: the learning rates come from a callable, there is not one for all")
        if self.torch_optimizer is not None:
            return float(self.torch_optimizer.param_groups[0]["initial_lr"])
        if self._new_lr is not None:
            return self._new_lr
        return float(self.pt_optim_args.get("lr", inspect.signature(self.torch_class).parameters["lr"].default))

    @staticmethod
    def _rate(group: Mapping[str, Any]) -> float:
        return float(group["lr"])

    # -- state ---------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything an exact resumption needs, as copies and plain data."""
        entries = list(self._waiting.entries)
        shared = dict(self._waiting.shared)
        if self.torch_optimizer is not None:
            state: Mapping[Any, Any] = self.torch_optimizer.state
            shared = {name: _copy_state(value) for name, value in state.items() if not isinstance(name, Tensor)}
            for group in self.torch_optimizer.param_groups:
                numbers = {k: copy.deepcopy(v) for k, v in group.items() if k not in ("params", "initial_lr")}
                numbers["lr"] = group["initial_lr"]
                for param in group["params"]:
                    entries.append(
                        {
                            "name": self._entries[id(param)].name,
                            "shape": list(param.shape),
                            "group": numbers,
                            "state": _copy_state(dict(self.torch_optimizer.state.get(param, {}))),
                        }
                    )
        shapes = [entry["shape"] for entry in entries if entry["name"] is None]
        for shape in shapes:
            if shapes.count(shape) > 1:
                raise ValueError(
                    f"two parameters of shape {tuple(shape)} have no name and could not be told apart later: call "
                    "optim.name_parameters({name: tensor}) before the first step"
                )
        factor = self._waiting_factor if self._made_factor is None else self._made_factor.state_dict()
        return {"algorithm": self._algorithm, "parameters": entries, "shared": shared, "schedule": factor}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """
        Go back to where `get_state` was called; the parameters take up their part when they are next seen.

        :param state: what `state_dict` returned.
        """
        check_state(state, self._algorithm)
        self.torch_optimizer = None
        self._entries = {}
        self._plans = {}
        self._waiting = _Waiting(state["parameters"], state["shared"])
        self._waiting_factor = state["schedule"]
        self._new_lr = None
        self._restore_factor()

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


@final
class SGD(TorchOptim):
    """
    torch's SGD: b <- momentum b + g, w <- w - lr b.

    The learning rate is outside the buffer, so that a new rate acts on all of it at once; the thesis' (3.1.2) has it
    inside.
    """

    torch_class = torch.optim.SGD


@final
class Adam(TorchOptim):
    """torch's Adam; for `amsgrad=True` see :class:`AMSGrad`."""

    torch_class = torch.optim.Adam


@final
class AMSGrad(TorchOptim):
    """
    torch's Adam with `amsgrad=True`: the largest second moment so far takes the place of the second moment.

    Both bias corrections stay, w <- w - lr m / (1 - beta1^t) / (sqrt(max v / (1 - beta2^t)) + eps). The thesis (C.0.6)
    has the maximum instead of the correction of v, and the paper (Reddi et al. 2018) corrects neither; without that of
    v the first steps are up to 1 / sqrt(1 - beta2) times as long.
    """

    torch_class = torch.optim.Adam
    fixed: ClassVar[Mapping[str, Any]] = {"amsgrad": True}


@final
class AdamW(TorchOptim):
    """torch's AdamW: the decay is lr * weight_decay * w."""

    torch_class = torch.optim.AdamW


@final
class RAdam(TorchOptim):
    """
    torch's RAdam: Adam's step times r_t once rho_t > 5, and SGD's with averaged momentum, lr m / (1 - beta1^t), before.

    With beta2 = 0.999 these are the first five steps. The paper (Liu et al. 2020) takes the threshold 4. The authors'
    code takes 5, inclusive, and by default (`degenerated_to_sgd=False`) leaves the parameters alone in these steps;
    torch's have the length of SGD's at this rate, so that large gradients make them long: a `WarmUp` shortens them.
    """

    torch_class = torch.optim.RAdam


@final
class Adagrad(TorchOptim):
    """torch's Adagrad; eps is outside the root."""

    torch_class = torch.optim.Adagrad


@final
class RMSprop(TorchOptim):
    """torch's RMSprop; eps is outside the root."""

    torch_class = torch.optim.RMSprop


@final
class AdaBayes(TorchOptim):
    """:class:`pyro_bnn.optim.torch_optim.AdaBayes`; `batch_size` is required, and the loss is a mean over it."""

    torch_class = torch_optim.AdaBayes


@final
class AdaBayesFP(TorchOptim):
    """:class:`pyro_bnn.optim.torch_optim.AdaBayesFP`; `batch_size` is required, and the loss is a mean over it."""

    torch_class = torch_optim.AdaBayesFP


@final
class AdaBound(TorchOptim):
    """:class:`pyro_bnn.optim.torch_optim.AdaBound`; its rates are for a loss per datum."""

    torch_class = torch_optim.AdaBound


@final
class AMSBound(TorchOptim):
    """:class:`pyro_bnn.optim.torch_optim.AMSBound`; its rates are for a loss per datum."""

    torch_class = torch_optim.AMSBound


@final
class YellowFin(TorchOptim):
    """:class:`pyro_bnn.optim.torch_optim.YellowFin`; `lr` and `momentum` are those of the first step only."""

    torch_class = torch_optim.YellowFin

    @staticmethod
    def _rate(group: Mapping[str, Any]) -> float:
        return float(group["tuned_lr"])


OPTIMIZERS: Mapping[str, type[TorchOptim]] = {
    "adabayes": AdaBayes,
    "adabayes_fp": AdaBayesFP,
    "adabound": AdaBound,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
    "amsbound": AMSBound,
    "amsgrad": AMSGrad,
    "radam": RAdam,
    "rmsprop": RMSprop,
    "sgd": SGD,
    "yellowfin": YellowFin,
}
"""Optimizers by the name that a recipe gives."""
