"""
Posterior: what training leaves. A fitted guide with its model; it predicts, is scored, saved and loaded.

Saved is a folder with `posterior.safetensors` (every tensor) and `posterior.json` (how model and guide were built, and
what the numbers mean), never a pickle. A posterior of a network that says how it was built loads on its own; that of a
hand-written program loads into the program: `Posterior.load(path, model=program)`.
"""

import json
import logging
import math
import weakref
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, final, overload, runtime_checkable

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from pyro.nn import PyroModule
from safetensors.torch import save as safetensors_save
from torch import Tensor, nn

from pyro_bnn.common.contract import Guide, contract_of
from pyro_bnn.common.errors import BadFile, border, is_own, summary
from pyro_bnn.common.files import atomic_write, make_folder
from pyro_bnn.common.manifest import NEXT, is_sealed, read_listed, staged
from pyro_bnn.common.mixtures import MixtureMoments, PredictiveAccumulator, check_moments
from pyro_bnn.common.modules import evaluation_mode
from pyro_bnn.common.own_state import KeepsTensors
from pyro_bnn.common.turns import alone
from pyro_bnn.data.arrays import Frame, Inputs, first_rows, frame_columns, named_columns
from pyro_bnn.data.checks import suggest
from pyro_bnn.data.standardise import Computed, Standardised, Standardiser, plain, same_scale
from pyro_bnn.guides.init import starts_overwritten
from pyro_bnn.inference.checkpoint import (
    is_serial,
    parameters_of,
    restore_parameters,
    store_with,
)
from pyro_bnn.inference.fitted import Fitted, fitted_of, leave_fitted
from pyro_bnn.inference.laws import in_units
from pyro_bnn.inference.predictive import ClassDraw, Draw, RealDraw, guide_trace, predictive_draws
from pyro_bnn.posterior import rebuild
from pyro_bnn.posterior.archive import pack
from pyro_bnn.posterior.compact import encode
from pyro_bnn.posterior.description import FORMAT, check_guide, check_kinds, read_description, read_tensors
from pyro_bnn.posterior.one_site import OneSite
from pyro_bnn.registry import described
from pyro_bnn.version import __version__

if TYPE_CHECKING:
    from pyro_bnn.analysis.checks import Diagnosis
    from pyro_bnn.analysis.scores.intervals import Interval
    from pyro_bnn.analysis.scores.selective import RejectionCurve
    from pyro_bnn.analysis.summary import Summary

log = logging.getLogger(__name__)

__all__ = ["INFO", "Posterior", "RealPrediction", "Uncertainty", "forget_later", "looks_standardised"]

INFO = {
    "recipe": "the recipe it was trained from, as a table",
    "data": "the name of the data",
    "task": "'classification' or 'regression'",
    "input_shape": "the shape of one input, a list",
    "class_names": "the names of the classes, a list",
    "columns": "the names of the inputs' columns, a list, where they came from a table",
    "standardiser": "of the inputs, as Standardiser.to_dict() gives it; None if there is none",
    "y_standardiser": "likewise of the targets",
    "num_data": "N, the rows that were trained on",
    "eta": "the tempering: the target is p(w) prod p(y|x,w)^(1/eta)",
    "temperature": "T of a cold posterior, whose target is (p(w) prod p(y|x,w))^(1/T)",
    "method": "how it was trained: 'svi', 'hwa', 'sgld', ...",
    "notes": "anything of your own that JSON holds",
}
"""The keys of a posterior's info, and what they say."""

TENSORS = "posterior.safetensors"
"""The file of a saved posterior's tensors."""
DESCRIPTION = "posterior.json"
"""The file of names and numbers, from which model and guide are built again."""


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
    """
    Mean and standard deviation of the predictive, (N,) or (N, D), in the units of the targets.

    :param mean: (N,) or (N, D).
    :param sd: in the same shape; the noise and the draws' disagreement together.
    """

    mean: Tensor
    sd: Tensor


@runtime_checkable
class SaysHowBuilt(Protocol):
    """A program that says how it was built, and is built again when it is loaded; others are handed in again."""

    def spec(self) -> dict[str, Any] | None:
        """Return the program as names and numbers."""


def _free_names(model: Any, guide: Any) -> tuple[str, ...]:
    """Return the names in Pyro's store that a hand-written program may own: no module of this library does."""
    own = tuple(f"{name}." for name in (getattr(p, "_pyro_name", "") for p in (model, guide)) if name)
    return tuple(n for n in pyro.get_param_store() if not is_serial(n) and not n.startswith(own))


def _check_info(info: Mapping[str, Any]) -> dict[str, Any]:
    for key in info:
        if key not in INFO:
            raise ValueError(
                f"info has no key {key!r}{suggest(str(key), INFO)}; the keys are {', '.join(INFO)}, and what is your "
                f"own goes into 'notes'"
            )
    for key in ("eta", "temperature"):
        value = info.get(key, 1.0)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            raise ValueError(f"info[{key!r}]={value!r} is not a tempering: pass a finite number, 1 for none")
    return dict(info)


def looks_standardised(x: Tensor, scale: Standardiser) -> bool:
    """
    Whether rows of x look as if they were on the scale of a standardiser already, which raw rows would not.

    They do if, in every channel or feature where that would make a difference, their mean and standard deviation are
    about 0 and 1 and are not about those of the training rows.

    :param x: inputs (N, ...).
    :param scale: that of the training rows.
    """
    rows = plain(x)[:1000].double().cpu()
    if len(rows) < 8 or rows.ndim < 2:
        return False
    over = [d for d in range(rows.ndim) if d != 1]
    mean, sd = rows.mean(over), rows.std(over, correction=0)
    m, s = scale.mean.double().cpu(), scale.sd.double().cpu()
    tells = (m.abs() > 2 * torch.maximum(s, torch.ones_like(s))) | (s.log().abs() > 1)
    unit = (mean.abs() < 0.5) & (sd > 0.5) & (sd < 2)
    raw = ((mean - m).abs() < s) & (sd > 0.5 * s) & (sd < 2 * s)
    return bool(tells.any()) and bool((unit & ~raw)[tells].all())


@final
class Posterior:
    """
    A fitted guide with its model.

    **What it knows.** `fit` leaves on the guide what it was fitted with (eta, temperature, the number of rows, the
    scales of inputs and targets), and the posterior reads it there; `info` adds to that or corrects it. Its keys:
    `recipe`, `data`, `task`, `input_shape`, `class_names`, `columns`, `standardiser`, `y_standardiser`, `num_data`,
    `eta`, `temperature`, `method`, and `notes` for what is your own; `pyro_bnn.posterior.INFO` says what each holds.
    What nobody says is taken as eta = 1, temperature = 1 and no standardiser.

    **Units.** Inputs and targets are handed in raw, as they were measured, and numbers come back in the same raw units:
    by `predict`, `draws`, `stream`, `uncertainty`, `evaluate`, `to_arviz`, the report and the command alike. Metrics of
    a regression are in raw units, too: rmse and sd in those of the target, and the predictive NLL is of raw targets, so
    that it contains log sd of the standardiser. What is standardised already says so: the rows of `pb.load_data`, and
    what `standardise` and `Standardiser.apply` return, are `Standardised` tensors, and are taken as they are; for
    arrays pass `standardised=True`, which holds for x and y. A tensor that was computed from standardised ones by
    arithmetic is of an unknown scale and is refused until `standardised` says it. A posterior that knows no
    standardiser takes everything as it is. Images in uint8 are divided by 255, as `pb.load_data` does. Of a frame the
    columns are taken that were trained on, by their names.

    **Threads.** Predictions in several threads give what they give alone, one draw at a time; see
    :mod:`pyro_bnn.common.turns`.

    :param model: the Pyro program; its observed site is called `obs`.
    :param guide: the fitted guide.
    :param info: plain data about both, see above; a key that does not exist is refused.

    >>> import pyro_bnn as pb
    >>> posterior = pb.load("lenet5-mnist-mini")
    >>> digits = pb.load_data("mnist-mini").test
    >>> p = posterior.predict(digits.x[:3], num_samples=5, seed=0)
    >>> p.shape, p.argmax(-1).tolist() == digits.y[:3].tolist()
    (torch.Size([3, 10]), True)
    >>> posterior.draws(digits.x[:3], num_samples=5).shape
    torch.Size([5, 3, 10])
    >>> posterior.info["eta"]
    0.1
    """

    def __init__(
        self, model: Callable[..., Any], guide: Callable[..., Any], info: Mapping[str, Any] | None = None
    ) -> None:
        self.model = model
        self.guide = guide
        self._given = _check_info(info or {})
        self._own: dict[str, tuple[Tensor, Any]] = {}
        self._lender: Posterior | None = None
        self._pending: dict[str, dict[str, Tensor]] | None = None
        self._saved_sites: list[str] | None = None
        self._read_from: Path | None = None
        self._warned = False

    @property
    def info(self) -> MutableMapping[str, Any]:
        """What is known about model and guide: what was given, and what the guide was fitted with."""
        fitted = fitted_of(self.guide)
        lent = {} if self._lender is None else dict(self._lender.info)
        return ChainMap(self._given, lent, {} if fitted is None else fitted.info())

    def with_guide(self, guide: Callable[..., Any]) -> "Posterior":
        """Return the same model and info with another guide, such as a wrapper of this guide."""
        other = Posterior(self.model, guide)
        other._lender = self
        return other

    def at(self, site: str) -> "Posterior":
        """
        Return the posterior that predicts and scores one observed site, of a program that has several.

        It knows no standardiser of targets, for that of several sites cannot be one.

        :param site: its name.
        """
        if self.info.get("y_standardiser") is not None:
            raise ValueError(
                f"the posterior has one y_standardiser, so its program has one observed site, and {site!r} is not apart"
            )
        other = Posterior(OneSite(self.model, site), self.guide)
        other._lender = self
        return other

    @contextmanager
    def turn(self, x: Any = None) -> Iterator[None]:
        """
        Have model and guide to oneself, with the parameters of this posterior in Pyro's store.

        :param x: an input, for a program that was loaded and has to be run once to take up its tensors.
        """
        with alone():
            if x is not None:
                self._take_up(plain(x))
            with self._store():
                yield

    @contextmanager
    def _store(self) -> Iterator[None]:
        """Let Pyro's store hold this posterior's own parameters; a loaded one's are nowhere else."""
        if self._lender is not None:
            with self._lender._store():
                yield
            return
        fitted = fitted_of(self.guide)
        tensors = self._own or (fitted.tensors if fitted is not None else {})
        if not tensors:
            yield
            return
        with store_with(tensors, alone=bool(self._own)):
            yield

    # -- predicting ----------------------------------------------------------------------------------------------

    @overload
    def standardise(self, x: tuple[Any, ...], *, standardised: bool | None = None) -> tuple[Tensor, ...]: ...

    @overload
    def standardise(self, x: Any, *, standardised: bool | None = None) -> Tensor: ...

    def standardise(self, x: Any, *, standardised: bool | None = None) -> Inputs:
        """
        Put raw inputs on the scale that the model was trained on; what is there already stays as it is.

        Several inputs, a tuple, stay as they are: a posterior knows the scale of one.

        :param standardised: whether x is on that scale; default what x says, and raw if it does not.
        """
        if isinstance(x, tuple):
            return tuple(_tensor(member, "x") for member in x)
        values, scale = self._rows(x), self._scale("standardiser")
        if scale is None:
            return values
        return scale.mark(self._on_scale(values, scale, standardised))

    def raw_targets(self, y: Any, *, standardised: bool | None = None) -> Tensor:
        """
        Return labels as they are, and targets in raw units; those that say they are standardised are turned back.

        :param y: labels (N,), or targets (N,) or (N, D).
        """
        values, scale = _tensor(y, "y"), self._scale("y_standardiser")
        if not values.is_floating_point() or scale is None:
            return plain(values)
        if standardised is None and isinstance(values, Computed):
            raise ValueError(_COMPUTED.format("y"))
        if isinstance(values, Standardised) and standardised is not False:
            return (values.standardiser or scale).invert(values)
        return scale.invert(values) if standardised else plain(values)

    @torch.no_grad()
    def predict(
        self,
        x: Any,
        num_samples: int = 100,
        *,
        chunk: int | None = None,
        seed: int | None = None,
        standardised: bool | None = None,
    ) -> Tensor | RealPrediction:
        """
        Return the averaged predictive for raw inputs; numbers in raw units.

        Probabilities (N, K) for classes; `.mean` and `.sd` for numbers. Memory does not grow with `num_samples`.

        :param x: inputs (N, ...), a tensor, an array or a list.
        :param num_samples: S, how many weight samples are averaged.
        :param chunk: rows per forward pass; default as many as are fast.
        :param seed: fixes the draws and leaves the global random state alone.
        :param standardised: whether x is on the model's scale already; default what x says, and raw if it does not.
        """
        probabilities: Tensor | None = None
        numbers: MixtureMoments | None = None
        for draw in self.stream(x, num_samples, chunk=chunk, seed=seed, standardised=standardised):
            if isinstance(draw, ClassDraw):
                p = draw.prediction  # (N, K)
                probabilities = p.double() if probabilities is None else probabilities.add_(p)
            else:
                numbers = _add(draw, numbers)
        if numbers is not None:
            return RealPrediction(numbers.mean.float(), numbers.sd.float())
        return (cast(Tensor, probabilities) / num_samples).float()

    @torch.no_grad()
    def draws(
        self,
        x: Any,
        num_samples: int = 20,
        *,
        chunk: int | None = None,
        seed: int | None = None,
        standardised: bool | None = None,
    ) -> Tensor:
        """
        Return one row of predictions per weight sample: probabilities (S, N, K), or means (S, N, D).

        :param x: raw inputs (N, ...), a tensor, an array or a frame.
        :param num_samples: S, how many weight samples are drawn.
        :param chunk: rows per forward pass; default as many as are fast.
        :param seed: fixes the draws and leaves the global random state alone.
        :param standardised: whether x is on the model's scale already; default what x says, and raw if it does not.
        """
        drawn = self.stream(x, num_samples, chunk=chunk, seed=seed, standardised=standardised)
        return torch.stack([draw.prediction for draw in drawn])

    def stream(
        self,
        x: Any,
        num_samples: int = 100,
        *,
        chunk: int | None = None,
        seed: int | None = None,
        plug_in: bool = False,
        standardised: bool | None = None,
    ) -> Iterator[Draw]:
        """
        Yield what one weight sample after another says about all rows, numbers in the units of the targets.

        A seed gives the draws that it gives `predict`, whatever is drawn elsewhere meanwhile.

        :param num_samples: S, how many weight samples are drawn.
        :param chunk: rows per forward pass; default as many as are fast.
        :param plug_in: use the guide's median in place of samples.
        :param standardised: whether x is on the model's scale already; default what x says, and raw if it does not.
        """
        x = self._inputs(x, standardised)
        if self._to_fill() is not None:
            with alone():
                self._take_up(x)
        draws = predictive_draws(
            self.model, self.guide, x, num_samples, chunk=chunk, plug_in=plug_in, seed=seed, within=self._store
        )
        shape = self.info.get("input_shape")
        try:
            for draw in draws:
                yield self._in_units(draw)
        except (RuntimeError, ValueError, IndexError) as error:
            if shape is not None and list(x.shape[1:]) != list(shape):
                raise _other_shape(x, shape) from error
            if self._read_from is not None and not is_own(error):
                raise BadFile(
                    f"{self._read_from} does not predict for these rows ({summary(error)}): its description does not "
                    f"fit its tensors, or these are no sensible numbers; save it again where it is from"
                ) from error
            raise

    @torch.no_grad()
    def uncertainty(
        self,
        x: Any,
        num_samples: int = 100,
        *,
        chunk: int | None = None,
        seed: int | None = None,
        standardised: bool | None = None,
    ) -> Uncertainty:
        """
        Return total, aleatoric and epistemic uncertainty of every row; variances in raw units.

        :param x: raw inputs (N, ...), a tensor, an array or a frame.
        :param num_samples: S, how many weight samples are drawn.
        :param chunk: rows per forward pass; default as many as are fast.
        :param seed: fixes the draws and leaves the global random state alone.
        :param standardised: whether x is on the model's scale already; default what x says, and raw if it does not.
        """
        classes = PredictiveAccumulator()
        numbers: MixtureMoments | None = None
        for draw in self.stream(x, num_samples, chunk=chunk, seed=seed, standardised=standardised):
            if isinstance(draw, ClassDraw):
                classes.update(draw.log_probs)
            else:
                numbers = _add(draw, numbers)
        if numbers is None:
            return Uncertainty(classes.total, classes.aleatoric, classes.epistemic)
        return Uncertainty(numbers.aleatoric + numbers.epistemic, numbers.aleatoric, numbers.epistemic)

    def evaluate(
        self,
        x: Any,
        y: Any,
        num_samples: int = 100,
        *,
        chunk: int | None = None,
        seed: int = 0,
        standardised: bool | None = None,
    ) -> dict[str, dict[str, float]]:
        """
        Return the results table: the columns plug_in (the guide's median), one_draw (mean and sd) and s_draws.

        Of several observed sites each is scored apart, `posterior.at("counts").evaluate(x, counts)`.

        :param y: labels (N,) as integers, or targets (N,) or (N, D), raw like x; tensors, arrays or lists.
        :param num_samples: S, how many weight samples are drawn.
        :param chunk: rows per forward pass; default as many as are fast.
        :param seed: of the draws; the global random state is left as it is.
        :param standardised: whether x and y are on the model's scale; default what they say, and raw if they do not.
        """
        from pyro_bnn.analysis.scores.evaluation import evaluate_rows

        if isinstance(y, Mapping):
            raise TypeError(
                f"y names the sites {', '.join(map(repr, y))}, and a table is of one: posterior.at(name).evaluate(x, y)"
            )
        return evaluate_rows(self, x, y, num_samples, chunk=chunk, seed=seed, standardised=standardised).table

    def interval(
        self,
        x: Any,
        level: float = 0.9,
        num_samples: int = 1000,
        *,
        seed: int | None = None,
        standardised: bool | None = None,
    ) -> "Interval":
        """
        Return the central predictive interval of each row, `.lower` and `.upper`, in raw units; regression alone.

        :param x: raw inputs (N, ...), a tensor, an array or a frame.
        :param level: the probability that an interval holds.
        :param num_samples: S, how many weight samples are drawn.
        :param seed: fixes the draws and leaves the global random state alone.
        :param standardised: whether x is on the model's scale already; default what x says, and raw if it does not.
        """
        from pyro_bnn.analysis.scores.intervals import predictive_interval

        return predictive_interval(self, x, level, num_samples, seed=seed, standardised=standardised)

    def detect(
        self, x: Any, unfamiliar: Any, num_samples: int = 100, *, seed: int | None = 0
    ) -> dict[str, dict[str, float]]:
        """
        Return how well scores of doubt tell unfamiliar inputs from familiar ones, AUROC and FPR95; classes alone.

        :param x: familiar inputs (N, ...), raw or as `Standardised` tensors.
        :param unfamiliar: likewise unfamiliar ones (M, ...).
        :param num_samples: S, how many weight samples are averaged.
        :param seed: of the draws; None draws from the random state as it is.

        >>> import pyro_bnn as pb, torch
        >>> posterior, digits = pb.load("lenet5-mnist-mini"), pb.load_data("mnist-mini", standardise=False).test.x[:50]
        >>> found = posterior.detect(digits, torch.rand(50, 1, 28, 28), num_samples=5)
        >>> sorted(found), found["entropy"]["auroc"] > 0.9
        (['entropy', 'max_probability', 'mutual_information'], True)
        """
        from pyro_bnn.analysis.scores.ood import detect

        return detect(self, x, unfamiliar, num_samples, seed=seed)

    def rejection_curve(
        self,
        x: Any,
        y: Any,
        num_samples: int = 100,
        *,
        seed: int | None = 0,
        standardised: bool | None = None,
    ) -> "RejectionCurve":
        """
        Return the accuracy on the rows that are kept, by the share refused, the least certain first; classes alone.

        Uncertain is what has a high entropy of the averaged predictive.

        :param x: inputs (N, ...), raw or as `Standardised` tensors.
        :param y: labels (N,).
        :param num_samples: S, how many weight samples are averaged.
        :param seed: of the draws; None draws from the random state as it is.
        :param standardised: whether x is on the model's scale already; default what x says, and raw if it does not.

        >>> import pyro_bnn as pb
        >>> digits = pb.load_data("mnist-mini").test
        >>> curve = pb.load("lenet5-mnist-mini").rejection_curve(digits.x[:200], digits.y[:200], num_samples=5)
        >>> curve.accuracy_at(0.2) >= curve.accuracy_at(0.0)
        True
        """
        from pyro_bnn.analysis.scores.selective import rejection_curve

        predicted = self.predict(x, num_samples, seed=seed, standardised=standardised)
        if isinstance(predicted, RealPrediction):
            raise ValueError(
                "the model predicts numbers, which are neither right nor wrong: use interval or uncertainty"
            )
        p = predicted.double()  # (N, K)
        labels = plain(_tensor(y, "y")).to(p.device)
        if labels.shape != p.shape[:1]:
            raise ValueError(f"y has shape {tuple(labels.shape)} and x {len(p)} rows: pass one label for each row")
        return rejection_curve(torch.special.entr(p).sum(-1), p.argmax(-1) == labels)

    # -- looking at it -------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        info = self.info
        net = getattr(self.model, "template", None)
        program = type(net if net is not None else self.model).__name__
        program = str(getattr(self.model, "__name__", program)) if net is None else program
        trained = [f"{info.get('method') or contract_of(self.guide).kind or 'svi'}"]
        trained += [f"{name} = {float(info[name]):g}" for name in ("eta", "temperature") if info.get(name, 1) != 1]
        rows = f"{info['num_data']:,} rows" if info.get("num_data") else ""
        of_data = f"of {info['data']}" if info.get("data") else ""
        trained += [" ".join(part for part in (rows, of_data) if part)] if rows or of_data else []
        shape, names = info.get("input_shape"), info.get("class_names")
        takes = f"inputs {tuple(shape)}" if shape is not None else "inputs of any shape"
        task = f", {len(names)} classes" if names else f", {info['task']}" if info.get("task") else ""
        guide = type(self.guide).__name__ if isinstance(self.guide, nn.Module) else _named(self.guide)
        return f"Posterior of {program} by {guide}: {', '.join(trained)}\n  {takes}{task}"

    def summary(self, x: Any = None, num_samples: int = 200) -> "Summary":
        """
        Return a small table: each site's shape, means and sds, its sd against the prior's, and its signal-to-noise.

        :param x: an input, for a hand-written program that has to be run.
        :param num_samples: draws to estimate from, where the guide does not state its moments.

        >>> import pyro_bnn as pb
        >>> print(pb.load("lenet5-mnist-mini").summary())  # doctest: +ELLIPSIS
        Posterior of LeNet5 by AutoMeanFieldNormal: svi, ...
        """
        from pyro_bnn.analysis.summary import summarise

        return summarise(self, x, num_samples=num_samples)

    def plot_predictions(self, x: Any, y: Any = None, **options: Any) -> Any:
        """
        Draw the bands of a regression at raw inputs x; see :func:`pyro_bnn.analysis.plots.plot_predictions`.

        :param y: raw targets to draw beside the bands.
        """
        from pyro_bnn.analysis.plots import plot_predictions

        return plot_predictions(self, x, y, **options)

    def plot_reliability(self, x: Any, y: Any, **options: Any) -> Any:
        """
        Draw whether its probabilities are right; see :func:`pyro_bnn.analysis.plots.plot_reliability`.

        :param x: raw inputs (N, ...).
        :param y: labels (N,) or raw targets.
        """
        from pyro_bnn.analysis.plots import plot_reliability

        return plot_reliability(self, x, y, **options)

    def plot_uncertainty(self, x: Any, others: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """
        Draw how uncertain rows are, and others; see :func:`pyro_bnn.analysis.plots.plot_uncertainty`.

        :param x: raw inputs (N, ...).
        """
        from pyro_bnn.analysis.plots import plot_uncertainty

        return plot_uncertainty(self, x, others, **options)

    def report(self, path: str | Path, data: Any, val: Any = None, **options: Any) -> Path:
        """
        Write the report of this posterior as one HTML page and return where it is.

        :param path: a file that ends in .html, or a folder, in which it is `report.html`.
        :param data: the rows to score it on: raw (x, y), or what `pb.load_data` gives, whose test rows are taken and
            whose validation rows fit the temperature.
        :param val: validation rows (x, y); without them no temperature is fitted.
        :param options: as in :func:`pyro_bnn.analysis.report.build_report`.
        """
        from pyro_bnn.analysis.report import report_of

        return report_of(self, path, data, val, **options)

    def diagnose(self, data: Any, **options: Any) -> "Diagnosis":
        """
        Return what speaks for and against this posterior, in words: `print(posterior.diagnose(data))`.

        :param data: what it was fitted to: `pb.load_data(...)`, or raw (x, y).
        :param options: as in `pyro_bnn.analysis.checks.diagnose`: `test=(x, y)`, `history=`, ...
        """
        from pyro_bnn.analysis.checks import diagnose

        return diagnose(self, data, **options)

    def _scale(self, key: str) -> Standardiser | None:
        saved = self.info.get(key)
        return None if saved is None else Standardiser.from_dict(saved)

    def _on_scale(self, x: Tensor, scale: Standardiser, standardised: bool | None) -> Tensor:
        """Return inputs as a plain tensor on the model's scale."""
        if standardised is None and isinstance(x, Computed):
            raise ValueError(_COMPUTED.format("x"))
        if isinstance(x, Standardised) and standardised is not False:
            own, x = x.standardiser, plain(x)
            return x if own is None or same_scale(own, scale) else plain(scale.apply(own.invert(x)))
        x = plain(x)
        if standardised:
            return x
        if not x.is_floating_point():
            x = x.float() / 255 if x.dtype == torch.uint8 and x.ndim == 4 else x.float()
        if standardised is None and not self._warned and looks_standardised(x, scale):
            self._warned = True
            log.warning(
                "x looks standardised already, but values that do not say so are taken as raw: pass standardised=True, "
                "or standardised=False to say that they are raw"
            )
        return plain(scale.apply(x))

    def _rows(self, x: Any) -> Tensor:
        """Return inputs as a tensor; of a frame the columns that were trained on, if they are known."""
        columns = self.info.get("columns")
        if columns is None or not isinstance(x, Frame):
            return _tensor(x, "x")
        return torch.from_numpy(named_columns(frame_columns(x, "x"), columns, "x"))

    def _inputs(self, x: Any, standardised: bool | None = None) -> Inputs:
        """Return inputs as plain tensors on the model's scale, checked, where the guide is; several as a tuple."""
        if isinstance(x, tuple):
            return tuple(self._at_guide(plain(_tensor(member, "x"))) for member in x)
        x = self._rows(x)
        shape: Any = self.info.get("input_shape")
        fixed = shape is not None and (self.info.get("recipe") is not None or x.ndim - 1 != len(shape))
        if fixed and list(x.shape[1:]) != list(shape):  # a network of a recipe; another program decides itself
            raise _other_shape(x, shape)
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise ValueError("x contains NaN or infinity: clean or mask those rows first")
        scale = self._scale("standardiser")
        return self._at_guide(plain(x) if scale is None else self._on_scale(x, scale, standardised))

    def _at_guide(self, rows: Tensor) -> Tensor:
        """Return values on the guide's device and in its dtype, checked."""
        if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
            raise ValueError("x contains NaN or infinity: clean or mask those rows first")
        like: Tensor | None = next(iter(self.guide.parameters()), None) if isinstance(self.guide, nn.Module) else None
        if like is None:
            return rows
        return rows.to(like.device, like.dtype if rows.is_floating_point() else rows.dtype)

    def _in_units(self, draw: Draw) -> Draw:
        """Mean and sd (N,) or (N, D) in the units of the targets."""
        if isinstance(draw, ClassDraw):
            return draw
        mean, sd = draw.mean, draw.sd.expand_as(draw.mean)
        if mean.shape[-1] == 1:
            mean, sd = mean.squeeze(-1), sd.squeeze(-1)
        scale = self._scale("y_standardiser")
        if scale is None:
            return RealDraw(mean, sd, draw.laws)
        laws = tuple(in_units(law, scale) for law in draw.laws)
        return RealDraw(scale.invert(mean), scale.invert_sd(sd), laws)

    def to_arviz(self, x: Any, y: Any = None, num_samples: int = 200, **options: Any) -> Any:
        """
        Return `arviz.InferenceData` at raw inputs x and labels or targets y, all in raw units.

        Of several observed sites y is a mapping by name, {"counts": counts, "labels": labels}, and the export that of
        `pyro_bnn.analysis.from_pyro_svi`, with its options.

        Options as in `pyro_bnn.analysis.arviz.to_arviz`.

        :param num_samples: S, how many weight samples are drawn.
        """
        if isinstance(y, Mapping):
            from pyro_bnn.analysis import from_pyro_svi

            inputs = self._inputs(x, options.pop("standardised", None))
            observed = {name: plain(_tensor(values, f"y[{name!r}]")) for name, values in y.items()}
            model = poutine.condition(self.model, data=observed)
            return from_pyro_svi(model, self.guide, inputs, num_samples=num_samples, **options)
        from pyro_bnn.analysis.arviz import to_arviz

        return to_arviz(self, x, y, num_samples, **options)

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, compact: bool = False) -> Path:
        """
        Write the folder `path` with all that `load` needs; a posterior that is there is replaced in one step.

        A `path` that ends in .zip is one file instead, of the same bytes for the same posterior; see
        :mod:`pyro_bnn.posterior.archive`.

        :param compact: standard deviations in 8 bits and means in 16 (:mod:`pyro_bnn.posterior.compact`), a third of
            the size;
            predictions stay the same for all practical purposes, but not to the last digits.
        """
        contents, folder = self.files(compact=compact), Path(path)
        if folder.suffix == ".zip" and not folder.is_dir():
            with atomic_write(folder) as file:
                file.write(pack(contents))
            return folder
        make_folder(folder)
        with staged(folder) as stage:
            for name, content in contents.items():
                (stage / name).write_bytes(content)
        return folder

    def push(
        self,
        address: str,
        *,
        card: str | Path | None = None,
        scores: Mapping[str, float] | None = None,
        license: str | None = None,
        private: bool | None = None,
        token: str | None = None,
        compact: bool = False,
    ) -> str:
        """
        Put it into a repository of the Hugging Face Hub and return its address there, with the commit.

        It needs the extra `hub`; see :mod:`pyro_bnn.posterior.hub`. `pyro-bnn push RUN ADDRESS` takes the card and the
        results of a run along.

        :param address: `hf://user/name`; the repository is made if it is not there.
        :param card: Markdown for the README, or the Path of a file of it; default what `info` knows.
        :param scores: of the test rows, for the README's metadata: a column of `evaluate`, such as `["s_draws"]`.
        :param license: the identifier of a licence, such as "mit"; left out by default.
        :param private: of a repository that is made; default what the user's settings say.
        :param token: default that of HF_TOKEN or of `hf auth login`.
        :param compact: as in `save`.
        """
        from pyro_bnn.posterior.hub import parse_address, push
        from pyro_bnn.posterior.readme import readme

        repository = f"hf://{parse_address(address).repo}"
        text = card.read_text(encoding="utf-8") if isinstance(card, Path) else card
        said = readme(self.info, repository, card=text, scores=scores, license=license)
        return push(self.files(compact=compact), address, said, private=private, token=token)

    def files(self, *, compact: bool = False) -> dict[str, bytes]:
        """
        Return what `save` writes, by the names of the files.

        :param compact: whether large tensors are rounded, 8 bits for a standard deviation and 16 for all else.
        """
        if self._pending is not None:
            raise RuntimeError(
                "this posterior waits for its first prediction to take up its tensors: predict once, then save"
            )
        with self.turn():
            state = parameters_of(self.model, self.guide, _free_names(self.model, self.guide))
        if isinstance(self.model, KeepsTensors):
            state["model"] = {n: t for n, t in state["model"].items() if n in self.model.kept_tensors()}
        flat = {f"{part}:{name}": t.contiguous() for part, tensors in state.items() for name, t in tensors.items()}
        flat, encoding = encode(flat) if compact else (flat, {})
        description = {
            "format": FORMAT,
            "library_version": __version__,
            "model": _spec(self.model),
            "guide": _described(self.guide),
            "sites": _sites(self.guide),
            "info": dict(self.info),
            **({"encoding": encoding} if encoding else {}),
        }
        text = json.dumps(description, indent=2, allow_nan=False)
        return {TENSORS: safetensors_save(flat), DESCRIPTION: text.encode()}

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: Callable[..., Any] | None = None,
        guide: Callable[..., Any] | None = None,
        *,
        build_model: Callable[[dict[str, Any]], Any] | None = None,
        build_guide: Callable[[dict[str, Any], Any], Any] | None = None,
        trust: Collection[str] = (),
    ) -> "Posterior":
        """
        Read a folder that `save` wrote.

        Its parameters are its own, even beside another posterior of the same program, and are freed with it.

        :param path: the folder.
        :param model: the program, where the folder does not say how to build it.
        :param guide: likewise the guide.
        :param build_model: makes a model from its description; default with the names that recipes use.
        :param build_guide: makes a guide from its description and the model; likewise.
        :param trust: packages whose modules the description may have imported; none but this library's by default.
        """
        with alone(), store_with({}, alone=True):
            return cls._load(Path(path), model, guide, build_model, build_guide, trust)

    @classmethod
    def _load(
        cls,
        folder: Path,
        model: Callable[..., Any] | None,
        guide: Callable[..., Any] | None,
        build_model: Callable[[dict[str, Any]], Any] | None,
        build_guide: Callable[[dict[str, Any], Any], Any] | None,
        trust: Collection[str],
    ) -> "Posterior":
        contents = _contents(folder, TENSORS, DESCRIPTION)
        description = read_description(contents[DESCRIPTION], folder / DESCRIPTION)
        state = read_tensors(contents[TENSORS], description, folder / TENSORS)
        entries = sum(tensor.numel() for part in state.values() for tensor in part.values())
        dtype = next((t.dtype for t in state["guide"].values() if t.is_floating_point()), torch.get_default_dtype())
        with torch.random.fork_rng(), starts_overwritten():  # what is built is filled below
            built = model is None
            if model is None:
                build = build_model or partial(rebuild.build_model, trust=trust, entries=entries)
                model = _obtain("model", description["model"], build, folder, dtype)
                forget_later(model)
            if guide is None:
                make = build_guide or partial(rebuild.build_guide, trust=trust)
                if build_guide is None and description["guide"] is not None:
                    check_guide(description["guide"], model, entries, folder / DESCRIPTION)
                guide = _obtain("guide", description["guide"], lambda s: make(s, model), folder, dtype)
                forget_later(guide)
        posterior = cls(model, guide, _under_new_keys(description["info"]))
        posterior._read_from = folder if built else None
        fitted = Fitted.from_info(posterior._given)
        if fitted is not None:
            leave_fitted(guide, fitted)
        posterior._pending = state
        posterior._saved_sites = description.get("sites")
        own = not state["store"] or isinstance(model, KeepsTensors)  # a BNN keeps nothing loose in Pyro's store
        if _is_known(guide) and own:
            posterior._fill(None)
        return posterior

    def _to_fill(self) -> "Posterior | None":
        """Return the posterior that still waits to take up its tensors: this one, or the one it is lent by."""
        at: Posterior | None = self
        while at is not None and at._pending is None:
            at = at._lender
        return at

    def _take_up(self, x: Inputs) -> None:
        """Put the saved tensors in place, if that is still to be done."""
        waiting = self._to_fill()
        if waiting is not None:
            waiting._fill(x)

    def _fill(self, x: Inputs | None) -> None:
        """Put the saved tensors in place; a program that builds itself on its first call is called on one row first."""
        assert self._pending is not None
        state = {**self._pending}
        with store_with({}, alone=True) as inside:
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
                    trace = guide_trace(self.guide, self.model, row)
                    poutine.replay(self.model, trace=trace)(row)
                state["store"] = {name: t for name, t in state["store"].items() if name in seen.trace.nodes}
            self._put(state)
        self._own = {
            name: (tensor, inside["constraints"][name])
            for name, tensor in inside["params"].items()
            if not is_serial(name)
        }
        self._pending = None

    def _put(self, state: dict[str, dict[str, Tensor]]) -> None:
        if isinstance(self.model, KeepsTensors) and isinstance(self.model, nn.Module):
            kept = self.model.kept_tensors()
            initial = {name: t for name, t in self.model.state_dict().items() if name not in kept}
            state["model"] = {**initial, **state["model"]}
        state["guide"] = contract_of(self.guide).upgraded(state["guide"])
        for part, program in (("model", self.model), ("guide", self.guide)):
            if isinstance(program, nn.Module):
                _check_names(part, set(program.state_dict()), set(state[part]))
                check_kinds(part, program.state_dict(), state[part])
        sites = _sites(self.guide)
        if self._saved_sites is not None and sites is not None and sites != self._saved_sites:
            raise ValueError(
                f"the saved guide is of another model: its sites are {self._saved_sites}, those of this one {sites}; "
                f"pass the model it was saved from"
            )
        with border("the saved tensors do not fit", "pass the model and the guide they were saved from"):
            restore_parameters(self.model, self.guide, state)


_COMPUTED = (
    "{0} was computed from standardised values, so its scale is not known: pass standardised=True if it is still on "
    "the model's scale, standardised=False if it is raw"
)


def _tensor(values: Any, name: str) -> Tensor:
    """Return values as a tensor: tensors, arrays, what turns into an array, and lists of numbers."""
    if isinstance(values, Tensor):
        return values
    listed = isinstance(values, (list, tuple)) and bool(values)
    if listed and all(isinstance(row, Tensor) for row in values):
        return torch.stack(list(values))
    if isinstance(values, np.ndarray) or listed or hasattr(values, "__array__"):
        try:
            array = np.array(values)
        except ValueError as error:
            raise ValueError(f"{name} does not make an array: its rows have different sizes ({error})") from error
        if array.dtype.kind in "biuf":
            return torch.from_numpy(array)
        raise TypeError(f"{name} holds {array.dtype}; pass numbers: encode text and dates first")
    kind = "of inputs (N, ...)" if name == "x" else "of labels or targets, one for each row"
    raise TypeError(f"{name} is a {type(values).__name__}; pass a tensor or a NumPy array {kind}")


def _named(program: Any) -> str:
    """Return a function's name, or that of the class of anything else."""
    return str(getattr(program, "__name__", type(program).__name__))


def _other_shape(x: Tensor, shape: Any) -> ValueError:
    return ValueError(
        f"x has shape {tuple(x.shape)}; this posterior takes inputs of shape (N, {', '.join(map(str, shape))})"
    )


def _add(draw: RealDraw, numbers: MixtureMoments | None) -> MixtureMoments:
    """Add a draw of numbers to those before it."""
    numbers = MixtureMoments(draw.mean.shape, draw.mean.device) if numbers is None else numbers
    check_moments(draw.mean, draw.sd, any_law=bool(draw.laws))
    numbers.update(draw.mean, draw.sd)
    return numbers


def forget_later(program: Any) -> None:
    """Let Pyro's store forget the parameters of a module of this library once the module is gone."""
    if not isinstance(program, nn.Module):
        return
    for module in program.modules():
        name = str(getattr(module, "_pyro_name", "")) if isinstance(module, PyroModule) else ""
        if is_serial(f"{name}."):
            weakref.finalize(module, _forget, f"{name}.")


def _forget(prefix: str) -> None:
    store = pyro.get_param_store()
    for name in [name for name in store if name.startswith(prefix)]:
        del store[name]


def _is_known(guide: Any) -> bool:
    """Whether a guide has seen its model, so that it has its tensors."""
    return (
        isinstance(guide, Guide)
        and guide.is_built
        and isinstance(guide, nn.Module)
        and is_serial(f"{_serial_name(guide)}.")
    )


def _serial_name(guide: Any) -> str:
    first = next((m for m in guide.modules() if isinstance(m, PyroModule)), None)
    return "" if first is None else str(first._pyro_name)


def describe(folder: Path) -> dict[str, Any]:
    """Return the description of a saved posterior; say plainly if `folder` holds none."""
    return read_description(_contents(folder, DESCRIPTION)[DESCRIPTION], folder / DESCRIPTION)


def _contents(folder: Path, *names: str) -> dict[str, bytes]:
    """Return files of a saved posterior, as its manifest lists them."""
    there = [name for name in (DESCRIPTION, TENSORS) if any((at / name).is_file() for at in (folder, folder / NEXT))]
    if not there or (len(there) < 2 and not is_sealed(folder)):
        raise FileNotFoundError(
            f"{folder} holds no posterior: it needs {DESCRIPTION} and {TENSORS}, as Posterior.save or a finished "
            f"training writes them"
        )
    again = f"`pyro-bnn train {folder / 'recipe.toml'} --out {folder} --resume` makes it again from its checkpoint"
    return read_listed(folder, names, again if (folder / "checkpoint").is_dir() else "")


def _under_new_keys(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved info under the keys of today: what was called 'posterior' is the method."""
    renamed = {"method" if key == "posterior" else key: value for key, value in info.items()}
    recipe = renamed.get("recipe")
    if isinstance(recipe, Mapping):
        renamed["recipe"] = {"method" if key == "posterior" else key: value for key, value in recipe.items()}
    return renamed


def _described(guide: Any) -> dict[str, Any] | None:
    spec = contract_of(guide).spec()
    return None if spec is None else described(guide, spec)


def _spec(program: Any) -> dict[str, Any] | None:
    return program.spec() if isinstance(program, SaysHowBuilt) else None


def _sites(guide: Any) -> list[str] | None:
    """Return the names of the sites that lie one after the other in a guide's flat tensors."""
    promised = contract_of(guide)
    return (promised.site_names() or None) if promised.is_built else None


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
