"""
Posterior: what training leaves. A fitted guide with its model; it predicts, is scored, saved and loaded.

Saved is a folder with `posterior.safetensors` (every tensor) and `posterior.json` (how model and guide were built, and
what the numbers mean), never a pickle. A posterior of a network that says how it was built loads on its own; that of a
hand-written program loads into the program: `Posterior.load(path, model=program)`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

import pyro
import pyro.poutine as poutine
import torch
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor, nn

from pyro_bnn.analysis.metrics import (
    PredictiveAccumulator,
    RegressionAccumulator,
)
from pyro_bnn.compact import decode, encode
from pyro_bnn.data.arrays import as_inputs, first_rows
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.inference.checkpoint import atomic_write, parameters_of, restore_parameters
from pyro_bnn.inference.predictive import ClassDraw, Draw, RealDraw, evaluation_mode, predictive_draws
from pyro_bnn.version import __version__

__all__ = ["Posterior", "RealPrediction", "Uncertainty"]

FORMAT = 1
TENSORS = "posterior.safetensors"
DESCRIPTION = "posterior.json"


@final
@dataclass(frozen=True)
class Uncertainty:
    """
    What is uncertain about each row, in nats for classes (N,), as variances for numbers (N,) or (N, D).

    `total` is the entropy (variance) of the averaged predictive, `aleatoric` the mean entropy (noise variance) of
    single draws, `epistemic` the rest: the mutual information of label and weights (variance of the mean over draws).
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


@final
@dataclass(frozen=True)
class RealPrediction:
    """Mean and standard deviation of the predictive, (N,) or (N, D), in the units of the targets."""

    mean: Tensor
    sd: Tensor


def _free_names(model: Any, guide: Any) -> tuple[str, ...]:
    """Return the names in Pyro's store that a hand-written program may own: no module of this library does."""
    own = tuple(f"{name}." for name in (getattr(p, "_pyro_name", "") for p in (model, guide)) if name)
    return tuple(
        n for n in pyro.get_param_store() if not re.match(r"(BNN|Auto[A-Za-z]+)\d+\.", n) and not n.startswith(own)
    )


@final
class Posterior:
    """
    A fitted guide with its model.

    :param model: the Pyro program; its observed site is called `obs`.
    :param guide: the fitted guide.
    :param info: plain data about both: recipe, data, class names, standardisers, eta, temperature, ...
    """

    def __init__(
        self, model: Callable[..., Any], guide: Callable[..., Any], info: Mapping[str, Any] | None = None
    ) -> None:
        self.model = model
        self.guide = guide
        self.info: dict[str, Any] = dict(info or {})
        self._pending: dict[str, dict[str, Tensor]] | None = None
        self._saved_sites: list[str] | None = None

    # -- predicting ----------------------------------------------------------------------------------------------

    def standardise(self, x: Tensor) -> Tensor:
        """Put raw inputs on the scale that the model was trained on."""
        saved = self.info.get("standardiser")
        return x if saved is None else Standardiser.from_dict(saved).apply(x)

    @torch.no_grad()
    def predict(
        self, x: Any, num_samples: int = 100, *, chunk: int | None = None, seed: int | None = None
    ) -> Tensor | RealPrediction:
        """
        Return the averaged predictive for inputs on the model's scale (see `standardise`).

        Probabilities (N, K) for classes; `.mean` and `.sd` for numbers. Memory does not grow with `num_samples`.

        :param chunk: rows per forward pass; default as many as are fast.
        :param seed: fixes the draws and leaves the global random state alone.
        """
        probabilities: Tensor | None = None
        numbers: RegressionAccumulator | None = None
        with self._seeded(seed):
            for draw in self._draws(x, num_samples, chunk):
                if isinstance(draw, ClassDraw):
                    p = draw.log_probs.exp()  # (N, K)
                    probabilities = p.double() if probabilities is None else probabilities.add_(p)
                else:
                    numbers = self._add(draw, numbers)
        if numbers is not None:
            return RealPrediction(numbers.mean.float(), numbers.sd.float())
        return (cast(Tensor, probabilities) / num_samples).float()

    @torch.no_grad()
    def draws(self, x: Any, num_samples: int = 20, *, chunk: int | None = None, seed: int | None = None) -> Tensor:
        """Return one row of predictions per weight sample: probabilities (S, N, K), or means (S, N, D)."""
        with self._seeded(seed):
            found = [
                d.log_probs.exp() if isinstance(d, ClassDraw) else self._real(d)[0]
                for d in self._draws(x, num_samples, chunk)
            ]
        return torch.stack(found)

    def stream(
        self,
        x: Any,
        num_samples: int = 100,
        *,
        chunk: int | None = None,
        seed: int | None = None,
        plug_in: bool = False,
    ) -> Iterator[Draw]:
        """
        Yield what one weight sample after another says about all rows, numbers in the units of the targets.

        A seed gives the draws that it gives `predict`, whatever is drawn elsewhere meanwhile.

        :param plug_in: use the guide's median in place of samples.
        """
        draws = self._draws(x, num_samples, chunk, plug_in=plug_in)
        if seed is None:
            yield from map(self._in_units, draws)
            return
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            state = _random_state()
        for _ in range(num_samples):
            with torch.random.fork_rng():
                _set_random_state(state)
                draw = next(draws)
                state = _random_state()
            yield self._in_units(draw)

    @torch.no_grad()
    def uncertainty(
        self, x: Any, num_samples: int = 100, *, chunk: int | None = None, seed: int | None = None
    ) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty of every row."""
        classes = PredictiveAccumulator()
        numbers: RegressionAccumulator | None = None
        with self._seeded(seed):
            for draw in self._draws(x, num_samples, chunk):
                if isinstance(draw, ClassDraw):
                    classes.update(draw.log_probs)
                else:
                    numbers = self._add(draw, numbers)
        if numbers is None:
            return Uncertainty(classes.total, classes.aleatoric, classes.epistemic)
        return Uncertainty(numbers.aleatoric + numbers.epistemic, numbers.aleatoric, numbers.epistemic)

    def evaluate(
        self, x: Any, y: Any, num_samples: int = 100, *, chunk: int | None = None, seed: int = 0
    ) -> dict[str, dict[str, float]]:
        """Return the results table: the columns plug_in (the guide's median), one_draw (mean and sd) and s_draws."""
        from pyro_bnn.analysis.evaluation import evaluate_rows

        return evaluate_rows(self, x, y, num_samples, chunk=chunk, seed=seed).table

    def _draws(self, x: Any, num_samples: int, chunk: int | None, *, plug_in: bool = False) -> Any:
        x = self._inputs(x)
        if self._pending is not None:
            self._fill(x)
        return predictive_draws(self.model, self.guide, x, num_samples, chunk=chunk, plug_in=plug_in)

    def _inputs(self, x: Any) -> Any:
        """Return inputs as a tensor, or a tuple of several, on the guide's device and in its dtype."""
        x = as_inputs(x)
        if isinstance(x, tuple):
            return tuple(self._input(member) for member in x)
        return self._input(x)

    def _input(self, x: Tensor) -> Tensor:
        shape = self.info.get("input_shape")
        if shape is not None and list(x.shape[1:]) != list(shape):
            raise ValueError(
                f"x has shape {tuple(x.shape)}; this posterior takes inputs of shape (N, {', '.join(map(str, shape))})"
            )
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise ValueError("x contains NaN or infinity: clean or mask those rows first")
        like = next(iter(self.guide.parameters()), None) if isinstance(self.guide, nn.Module) else None
        return x if like is None else x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)

    def _add(self, draw: Draw, numbers: RegressionAccumulator | None) -> RegressionAccumulator:
        """Add a draw of numbers to those before it."""
        mean, sd = self._real(draw)
        if numbers is None:
            numbers = RegressionAccumulator(torch.zeros_like(mean))
        numbers.update(mean, sd)
        return numbers

    def _seeded(self, seed: int | None) -> Any:
        return _Seeded(seed)

    def _in_units(self, draw: Draw) -> Draw:
        return draw if isinstance(draw, ClassDraw) else RealDraw(*self._real(draw), draw.laws)

    def _real(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Mean and sd (N,) or (N, D) in the units of the targets."""
        if not isinstance(draw, RealDraw):
            raise ValueError("the targets are numbers but the model predicts classes: pass integer labels")
        mean, sd = draw.mean, draw.sd.expand_as(draw.mean)
        if mean.shape[-1] == 1:
            mean, sd = mean.squeeze(-1), sd.squeeze(-1)
        saved = self.info.get("y_standardiser")
        if saved is None:
            return mean, sd
        scale = Standardiser.from_dict(saved)
        return scale.invert(mean), scale.invert_sd(sd)

    def to_arviz(self, x: Any, y: Any = None, num_samples: int = 200, **options: Any) -> Any:
        """Return `arviz.InferenceData` at inputs x and labels y; options as in `pyro_bnn.analysis.arviz.to_arviz`."""
        from pyro_bnn.analysis.arviz import to_arviz

        return to_arviz(self, self._inputs(x), y, num_samples, **options)

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, compact: bool = False) -> Path:
        """
        Write the folder `path` with all that `load` needs.

        :param compact: standard deviations in 8 bits and means in 16 (:mod:`pyro_bnn.compact`), a third of the size;
            predictions stay the same for all practical purposes, but not to the last digits.
        """
        if self._pending is not None:
            raise RuntimeError(
                "this posterior waits for its first prediction to take up its tensors: predict once, then save"
            )
        folder = Path(path)
        state = parameters_of(self.model, self.guide, _free_names(self.model, self.guide))
        if hasattr(self.model, "kept_tensors"):
            state["model"] = {n: t for n, t in state["model"].items() if n in self.model.kept_tensors()}
        flat = {f"{part}:{name}": t.contiguous() for part, tensors in state.items() for name, t in tensors.items()}
        flat, encoding = encode(flat) if compact else (flat, {})
        description = {
            "format": FORMAT,
            "library_version": __version__,
            "model": _spec(self.model),
            "guide": _spec(self.guide),
            "sites": _sites(self.guide),
            "info": self.info,
            **({"encoding": encoding} if encoding else {}),
        }
        text = json.dumps(description, indent=2, allow_nan=False)
        with atomic_write(folder / TENSORS) as file:
            file.write(safetensors_save(flat))
        with atomic_write(folder / DESCRIPTION) as file:
            file.write(text.encode())
        return folder

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: Callable[..., Any] | None = None,
        guide: Callable[..., Any] | None = None,
        *,
        build_model: Callable[[dict[str, Any]], Any] | None = None,
        build_guide: Callable[[dict[str, Any], Any], Any] | None = None,
    ) -> "Posterior":
        """
        Read a folder that `save` wrote.

        :param model: the program, where the folder does not say how to build it.
        :param guide: likewise the guide.
        :param build_model: makes a model from its description.
        :param build_guide: makes a guide from its description and the model.
        """
        folder = Path(path)
        description = describe(folder)
        state: dict[str, dict[str, Tensor]] = {"model": {}, "guide": {}, "store": {}}
        held = decode(safetensors_load((folder / TENSORS).read_bytes()), description.get("encoding", {}))
        for key, tensor in held.items():
            part, _, name = key.partition(":")
            state[part][name] = tensor
        dtype = next((t.dtype for t in state["guide"].values() if t.is_floating_point()), torch.get_default_dtype())
        with torch.random.fork_rng():  # what is built starts at random, and is filled below
            if model is None:
                model = _obtain("model", description["model"], build_model, folder, dtype)
            if guide is None:
                guide = _obtain("guide", description["guide"], lambda s: _build(build_guide, s, model), folder, dtype)
        posterior = cls(model, guide, description["info"])
        posterior._pending = state
        posterior._saved_sites = description.get("sites")
        own = not state["store"] or hasattr(model, "kept_tensors")  # a BNN keeps nothing loose in Pyro's store
        if getattr(guide, "prototype_trace", None) is not None and own:
            posterior._fill(None)
        return posterior

    def _fill(self, x: Any) -> None:
        """Put the saved tensors in place; a program that builds itself on its first call is called on one row first."""
        assert self._pending is not None
        state = {**self._pending}
        if x is None:
            state["store"] = {}
        else:
            with (
                torch.random.fork_rng(),
                torch.no_grad(),
                evaluation_mode(self.model, self.guide),
                poutine.block(),
                poutine.trace(param_only=True) as seen,
            ):
                row = first_rows(x)
                trace = poutine.trace(self.guide).get_trace(row)
                poutine.replay(self.model, trace=trace)(row)
            state["store"] = {name: t for name, t in state["store"].items() if name in seen.trace.nodes}
        if hasattr(self.model, "kept_tensors") and isinstance(self.model, nn.Module):
            kept = cast(Any, self.model).kept_tensors()
            initial = {name: t for name, t in self.model.state_dict().items() if name not in kept}
            state["model"] = {**initial, **state["model"]}
        if hasattr(self.guide, "upgraded"):
            state["guide"] = self.guide.upgraded(state["guide"])
        for part, program in (("model", self.model), ("guide", self.guide)):
            if isinstance(program, nn.Module):
                _check_names(part, set(program.state_dict()), set(state[part]))
        sites = _sites(self.guide)
        if self._saved_sites is not None and sites is not None and sites != self._saved_sites:
            raise ValueError(
                f"the saved guide is of another model: its sites are {self._saved_sites}, those of this one {sites}; "
                f"pass the model it was saved from"
            )
        restore_parameters(self.model, self.guide, state)
        self._pending = None


@final
class _Seeded:
    """Draw from a seed and put the global random state back; with None, draw from the global one."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._fork: Any = None

    def __enter__(self) -> None:
        if self.seed is not None:
            self._fork = torch.random.fork_rng()
            self._fork.__enter__()
            torch.manual_seed(self.seed)

    def __exit__(self, *exception: Any) -> None:
        if self._fork is not None:
            self._fork.__exit__(*exception)


def _random_state() -> tuple[Tensor, list[Tensor]]:
    """The random state of the CPU and of every CUDA device."""
    return torch.random.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.random.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def describe(folder: Path) -> dict[str, Any]:
    """Return the description of a saved posterior; say plainly if `folder` is not one."""
    if not (folder / DESCRIPTION).is_file() or not (folder / TENSORS).is_file():
        raise FileNotFoundError(
            f"{folder} holds no posterior: it needs {DESCRIPTION} and {TENSORS}, as Posterior.save or a finished "
            f"training writes them"
        )
    description = json.loads((folder / DESCRIPTION).read_text())
    if description.get("format") != FORMAT:
        raise ValueError(f"{folder} has format {description.get('format')!r}; this version reads format {FORMAT}")
    return description  # type: ignore[no-any-return]


def _spec(program: Any) -> dict[str, Any] | None:
    return program.spec() if hasattr(program, "spec") else None


def _sites(guide: Any) -> list[str] | None:
    """Return the names of the sites that lie one after the other in a guide's flat tensors."""
    built = hasattr(guide, "site_names") and getattr(guide, "prototype_trace", None) is not None
    return list(guide.site_names()) if built else None


def _build(build_guide: Any, spec: dict[str, Any], model: Any) -> Any:
    return None if build_guide is None else build_guide(spec, model)


def _obtain(
    what: str, spec: Any, build: Callable[[dict[str, Any]], Any] | None, folder: Path, dtype: torch.dtype
) -> Any:
    built = None if spec is None or build is None else build(spec)
    if built is None:
        raise ValueError(
            f"{folder} does not say how its {what} was built, as a hand-written one cannot: pass {what}= the program"
        )
    return built.to(dtype) if isinstance(built, nn.Module) else built


def _check_names(part: str, expected: set[str], found: set[str]) -> None:
    if expected != found:
        missing, extra = sorted(expected - found), sorted(found - expected)
        raise ValueError(
            f"the saved {part} is another one: missing {missing[:5]}, unexpected {extra[:5]}; pass the {part} it was "
            f"saved from"
        )
