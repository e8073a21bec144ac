"""
Hamiltonian Monte Carlo with Pyro's kernels, for networks small enough to afford it; and whether to believe it.

The target is p(w) prod p(y|w)^(1/eta), or its power 1/T, over all rows at once, in float64. Chains run one after
another, each from its own seed and its own start. As a reference the draws count only with at least 4 chains whose
predictive quantities have rank-normalised split R-hat <= 1.01 and bulk ESS >= 400 (Vehtari et al. 2021). Weights are
not looked at: hidden units can be exchanged, so that chains that agree in every prediction may differ in every weight.

References: Hoffman and Gelman 2014 (NUTS); Neal 2011 (HMC).
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, final

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer import HMC, MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_sample, init_to_uniform
from pyro.infer.mcmc.util import initialize_model
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_bnn.common.sites import leaf_of, sample_sites
from pyro_bnn.data.arrays import Inputs, map_inputs
from pyro_bnn.data.split import as_split
from pyro_bnn.inference.graph import MISSING

__all__ = [
    "Chain",
    "Convergence",
    "MAX_WEIGHTS",
    "MIN_CHAINS",
    "MIN_DRAWS",
    "Potential",
    "STARTS",
    "Start",
    "check_sampled",
    "convergence",
    "run_chain",
]

MIN_CHAINS = 4
MIN_DRAWS = 4
"""Draws of a chain without which nothing can be said about its convergence."""
MAX_RHAT = 1.01
MIN_ESS = 400.0
Start = Literal["uniform", "prior"]
STARTS: dict[Start, Callable[..., Any]] = {"uniform": init_to_uniform, "prior": init_to_sample}
"""Where a chain begins: uniformly on (-2, 2) in unconstrained space, as Stan and Pyro do, or at a draw of the prior."""
MAX_WEIGHTS = 5000
"""More latent numbers than this are refused."""


@final
class _ScaleObserved(Messenger):
    """Multiply the scale of observed sites by `observed` and that of latent ones by `latent`."""

    def __init__(self, observed: float, latent: float) -> None:
        super().__init__()
        self.observed, self.latent = observed, latent

    def _pyro_sample(self, msg: Any) -> None:
        msg["scale"] = msg["scale"] * (self.observed if msg["is_observed"] else self.latent)


@final
@dataclass(frozen=True)
class Chain:
    """
    What one chain left: draws by site (S, *shape), and how it went.

    `divergences` counts the kept transitions that diverged, `acceptance` is the mean over the kept transitions of their
    acceptance probability min(1, exp(-dH)): HMC's own of its end point, NUTS' the average over its trajectory, which
    is what `target_accept` aims at. It is not the share of transitions that moved, which for NUTS is near 1.

    `energy` (S,) is H = U + K at the start of the trajectory that led to a draw, from which it departs by the
    integrator's error alone; `diverging` (S,) says whether that trajectory diverged.
    """

    samples: dict[str, Tensor]
    divergences: int
    acceptance: float
    step_size: float
    energy: Tensor
    diverging: Tensor


# ------------------------------------------------------------------------------------------------- potential


@final
class _Energy(torch.autograd.Function):
    """U(u) and its gradient in one call; what autograd then asks for is there already."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, evaluate: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        energy, gradient = evaluate(u.detach())
        ctx.save_for_backward(gradient)
        return energy

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        return outer * ctx.saved_tensors[0], None


@final
class Potential:
    """
    U(u) = -log of the target's density over the flat unconstrained vector u (P,), and its gradient.

    The program is run once and its tensor operations are replayed from then on (`compiled`) if only code of torch, Pyro
    and this library runs in it, or if `trace=True` asks for it, and if that reproduces energy and gradient at another
    point; every other program is run every time.

    :param trace: None (where it is certain), True (the contract of torch.jit.trace) or False (never).
    :param start: one of `STARTS`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        trace: bool | None = None,
        start: Start = "uniform",
    ) -> None:
        values, self._energy, self.transforms, _ = initialize_model(model, args, init_strategy=STARTS[start])
        self.shapes = {name: value.shape for name, value in values.items()}
        self.start = torch.cat([value.detach().reshape(-1) for value in values.values()])  # (P,)
        graph = self._recorded(trace)
        self.compiled = graph is not None
        self._evaluate: Callable[[Tensor], tuple[Tensor, Tensor]] = self._run if graph is None else graph

    def _split(self, u: Tensor) -> dict[str, Tensor]:
        pieces = u.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: piece.reshape(u.shape[:-1] + shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def _run(self, u: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            u = u.detach().requires_grad_(True)
            energy = self._energy(self._split(u))
            (gradient,) = torch.autograd.grad(energy, u)
        return energy.detach(), gradient

    def _recorded(self, trace: bool | None) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
        if trace is False or MISSING:
            return None
        from pyro_bnn.inference.graph.lowering import lower
        from pyro_bnn.inference.graph.origin import watching
        from pyro_bnn.inference.graph.recording import NotRecordable, record

        elsewhere = self.start + 0.5 * torch.randn_like(self.start)
        with watching() as foreign:
            expected = self._run(elsewhere)
        if trace is None and foreign() is not None:
            return None
        try:
            graph = lower(record(self._run, [self.start]), {}, fixed=True)
            same = all(torch.allclose(a, b) for a, b in zip(graph([elsewhere]), expected, strict=True))
        except (NotRecordable, RuntimeError, NotImplementedError):
            return None
        if not same:
            return None

        def replay(u: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = graph([u])
            return energy, gradient

        return replay

    def __call__(self, u: Mapping[str, Tensor]) -> Tensor:
        """Return U, as Pyro's kernels ask for it."""
        energy: Tensor = _Energy.apply(u["u"], self._evaluate)
        return energy

    def values(self, u: Tensor) -> dict[str, Tensor]:
        """Return the sites' values at unconstrained vectors (S, P)."""
        split = self._split(u)
        return {name: self.transforms[name].inv(v) if name in self.transforms else v for name, v in split.items()}


@contextmanager
def _doubles() -> Iterator[None]:
    """Make float64 the default, so that what a program makes itself is of the data's dtype."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)


def _check(warmup: int, draws: int, eta: float, temperature: float) -> None:
    if warmup < 1 or draws < 1:
        raise ValueError(f"warmup={warmup}, draws={draws}: pass at least 1 of each")
    if not (eta > 0 and temperature > 0) or (eta != 1 and temperature != 1):
        raise ValueError(
            f"eta={eta}, temperature={temperature}: pass numbers above 0, at least one of them 1; a posterior is "
            f"tempered or cold, not both"
        )


def _in_float64(model: Any) -> Any:
    """Return a copy of a module in float64 and evaluation mode; a function as it is."""
    return copy.deepcopy(model).double().eval() if isinstance(model, nn.Module) else model


def _check_model(model: Any, x: Inputs, y: Tensor) -> None:
    with torch.random.fork_rng(), torch.no_grad(), poutine.block(), _doubles():
        trace = poutine.trace(model).get_trace(x, y)
    size = sum(site["value"].numel() for site in sample_sites(trace).values() if not site["is_observed"])
    if size > MAX_WEIGHTS:
        raise ValueError(f"the model has {size} latent numbers, too many for HMC here: {MAX_WEIGHTS} or fewer")
    leaves = {n: s["value"] for n, s in trace.nodes.items() if s["type"] == "param"}
    leaves = {n: leaf_of(v) for n, v in leaves.items()}
    trained = [name for name, leaf in leaves.items() if leaf.requires_grad]
    if trained:
        raise ValueError(
            f"HMC samples latent sites and would leave the parameters {trained[:3]} as they are: give the noise as a "
            f"number (the gaussian likelihood), and leave out normalisation layers"
        )


def _in_doubles(data: Any) -> tuple[Inputs, Tensor]:
    """Return inputs and targets, numbers in float64."""
    split = as_split(data)
    x = map_inputs(lambda member: member.double() if member.is_floating_point() else member, split.x)
    return x, split.y.double() if split.y.is_floating_point() else split.y


def check_sampled(model: Any, data: Any) -> None:
    """Raise for a model that :func:`run_chain` does not sample, without running a chain."""
    _check_model(_in_float64(model), *_in_doubles(data))


def run_chain(
    model: Callable[..., Any],
    data: Any,
    *,
    kernel: Literal["nuts", "hmc"] = "nuts",
    warmup: int = 500,
    draws: int = 500,
    seed: int = 0,
    eta: float = 1.0,
    temperature: float = 1.0,
    max_tree_depth: int = 8,
    trajectory_length: float = 1.0,
    target_accept: float = 0.8,
    hook: Callable[[int], None] | None = None,
    trace: bool | None = None,
    start: Start = "uniform",
) -> Chain:
    """
    Run one chain in float64 and return its draws.

    :param model: any Pyro program without parameters of its own.
    :param data: all training rows, (x, y) or a Split.
    :param kernel: 'nuts', or 'hmc' with a fixed `trajectory_length`.
    :param warmup: adaptation steps, whose draws are thrown away.
    :param draws: S, draws after the warm-up.
    :param seed: of the chain; other chains take others.
    :param eta: tempering, the likelihood to the power 1 / eta.
    :param temperature: of a cold posterior, everything to the power 1 / temperature.
    :param max_tree_depth: NUTS doubles its trajectory at most so often.
    :param target_accept: the acceptance that the step size is adapted to.
    :param hook: called with the number of every transition.
    :param trace: whether to record the program: see :class:`Potential`.
    :param start: 'uniform' on (-2, 2) in unconstrained space, or 'prior', a draw of it: nearer for a network whose
        priors are as narrow as 1 / fan-in.
    """
    _check(warmup, draws, eta, temperature)
    if kernel not in ("nuts", "hmc"):
        raise ValueError(f"kernel={kernel!r} is unknown: pass 'nuts' or 'hmc'")
    if start not in STARTS:
        raise ValueError(f"start={start!r} is unknown: pass {' or '.join(map(repr, STARTS))}")
    x, y = _in_doubles(data)
    _check_model(_in_float64(model), x, y)
    unchecked = pyro.validation_enabled(False)
    with torch.random.fork_rng(), poutine.block(), _doubles(), unchecked, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pyro's, of its own deprecations
        pyro.set_rng_seed(seed)
        # another copy: distributions keep the checks they were made with, and checks cannot be traced
        tempered = _ScaleObserved(1 / (eta * temperature), 1 / temperature)(_in_float64(model))
        potential = Potential(tempered, (x, y), trace=trace, start=start)
        common: dict[str, Any] = dict(potential_fn=potential, target_accept_prob=target_accept)
        sampler: Any = (
            NUTS(max_tree_depth=max_tree_depth, **common)
            if kernel == "nuts"
            else HMC(trajectory_length=trajectory_length, **common)
        )
        accepted, diverged = float("nan"), list[int]()
        energies: list[float] = []
        started = _note_energy(sampler)

        def watch(kernel: Any, _params: Any, _stage: str, i: int) -> None:
            nonlocal accepted, diverged
            # both begin anew after the warm-up and are gone when the run is over; what Pyro reports then needs 4 draws
            accepted, diverged = float(kernel._mean_accept_prob), list(kernel._divergences)
            energies.append(started["energy"])
            if hook is not None:
                hook(i)

        run = MCMC(
            sampler,
            num_samples=draws,
            warmup_steps=warmup,
            initial_params={"u": potential.start},
            num_chains=1,
            disable_progbar=True,
            hook_fn=watch,
        )
        run.run()
        samples = {name: value.detach() for name, value in potential.values(run.get_samples()["u"]).items()}
    diverging = torch.zeros(draws, dtype=torch.bool)
    diverging[diverged] = True
    return Chain(
        samples,
        divergences=len(diverged),
        acceptance=accepted,
        step_size=float(sampler.step_size),
        energy=torch.tensor(energies[-draws:], dtype=torch.float64),
        diverging=diverging,
    )


def _note_energy(sampler: Any) -> dict[str, float]:
    """Return where the sampler leaves H at the start of its last trajectory: it draws a momentum there."""
    draw, last = sampler._sample_r, {"energy": float("nan")}

    def sample_momentum(name: str) -> Any:
        r, unscaled = draw(name=name)
        potential = sampler._potential_energy_last
        if potential is not None:
            last["energy"] = float(potential + sampler._kinetic_energy(unscaled))
        return r, unscaled

    sampler._sample_r = sample_momentum
    return last


@final
@dataclass(frozen=True)
class Convergence:
    """The worst R-hat and the smallest bulk ESS over some predictive quantities, and from how many chains."""

    rhat: float
    ess_bulk: float
    chains: int

    @property
    def is_reference(self) -> bool:
        """Whether the draws may stand for the posterior."""
        return self.chains >= MIN_CHAINS and self.rhat <= MAX_RHAT and self.ess_bulk >= MIN_ESS

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "rhat": self.rhat,
            "ess_bulk": self.ess_bulk,
            "chains": self.chains,
            "reference": self.is_reference,
        }


def convergence(quantities: Tensor | Mapping[str, Tensor]) -> Convergence:
    """
    Judge chains by what they predict.

    :param quantities: predictions (chains, draws, ...), for instance probabilities or means of some rows.
    """
    import arviz

    az: Any = arviz
    named = quantities if isinstance(quantities, Mapping) else {"prediction": quantities}
    arrays = {name: value.double().numpy() for name, value in named.items()}
    chains, draws = next(iter(arrays.values())).shape[:2]
    if draws < MIN_DRAWS:
        raise ValueError(f"{draws} draws per chain say nothing about convergence: take at least {MIN_DRAWS}")
    data = az.convert_to_dataset(arrays)
    rhat = max(float(v.max()) for v in az.rhat(data).values()) if chains > 1 else float("nan")
    return Convergence(rhat, min(float(v.min()) for v in az.ess(data, method="bulk").values()), chains)
