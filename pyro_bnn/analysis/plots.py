"""
A posterior's predictions drawn with matplotlib, for notebooks: one style, in the colours of the report.

Each function draws into `axes`, or into a new figure, and returns the axes; `axes.figure` is the figure.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.analysis.report.figures import wilson
from pyro_bnn.analysis.scores.calibration import reliability
from pyro_bnn.analysis.scores.evaluation import ClassEvaluation, evaluate_rows
from pyro_bnn.analysis.scores.intervals import interval_of
from pyro_bnn.analysis.scores.metrics import ece_null
from pyro_bnn.data.standardise import plain, standardiser_of
from pyro_bnn.inference.predictive import ClassDraw, RealDraw
from pyro_bnn.posterior import Posterior

__all__ = ["COLOURS", "plot_predictions", "plot_reliability", "plot_uncertainty", "style"]

COLOURS = ("#2f5fd0", "#d2691e", "#0f8a7a", "#8a4fbf")
"""Blue, orange, green and purple, as in the report."""

_INK, _SOFT, _HAIR = "#1d1f24", "#5b616e", "#e3e1db"
_STYLE: dict[str, Any] = {
    "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _HAIR,
    "grid.linewidth": 0.8,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of these functions within the block."""
    import matplotlib as mpl

    settings: Any = _STYLE
    with mpl.rc_context(settings):
        yield


def _new_axes(axes: Any, size: tuple[float, float] = (6.4, 3.8)) -> Any:
    if axes is not None:
        return axes
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def plot_predictions(
    posterior: Posterior,
    x: Any,
    y: Any = None,
    *,
    levels: Sequence[float] = (0.5, 0.9),
    feature: int | None = None,
    num_samples: int = 200,
    seed: int | None = 0,
    axes: Any = None,
) -> Any:
    """
    Draw the mean and central predictive intervals of a regression, and the targets if given, in raw units.

    Over the input where there is one; else row by row, in the order of the predicted mean, as bars. The dashed lines
    are the widest interval of the mean alone: what the draws disagree about, without the noise.

    :param posterior: the fitted posterior.
    :param x: raw inputs (N, ...), as many as the curve shall have points.
    :param y: raw targets (N,).
    :param levels: of the intervals.
    :param feature: the column of x to draw over; default the only one.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; the global random state is left as it is.
    :param axes: matplotlib's axes to draw on; default new ones.
    """
    draws = []
    for draw in posterior.stream(x, num_samples, seed=seed):
        if not isinstance(draw, RealDraw) or draw.mean.ndim > 1:
            raise ValueError(
                "plot_predictions draws one number over its input: use plot_reliability or plot_uncertainty for "
                "classes and for several targets"
            )
        draws.append(draw)
    means = torch.stack([draw.mean.cpu().double() for draw in draws])  # (S, N)
    bands = {level: interval_of(draws, level) for level in sorted(levels, reverse=True)}
    widest = max(levels)
    ends = torch.tensor([(1 - widest) / 2, (1 + widest) / 2], dtype=torch.float64)
    low, high = means.quantile(ends, dim=0)
    inputs = _inputs(posterior, x)
    single = inputs.shape[1] == 1 or feature is not None
    places = inputs[:, feature or 0] if single else means.mean(0)
    order = places.argsort()
    over = places[order] if single else torch.arange(len(order), dtype=torch.float64)
    with style():
        axes = _new_axes(axes)
        for i, (level, band) in enumerate(bands.items()):
            lower, upper = (end.cpu().reshape(-1)[order].numpy() for end in band)
            shade: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.16 + 0.14 * i, "linewidth": 0}
            shade["label"] = f"{100 * level:g} % interval"
            if single:
                axes.fill_between(over.numpy(), lower, upper, **shade)
            else:
                axes.bar(over.numpy(), upper - lower, bottom=lower, width=1.0, **shade)
        if single:
            for end in (low, high):
                words = f"{100 * widest:g} % of the means" if end is low else None
                axes.plot(over.numpy(), end[order].numpy(), color=COLOURS[0], linewidth=1, linestyle="--", label=words)
        axes.plot(over.numpy(), means.mean(0)[order].numpy(), color=COLOURS[0], linewidth=2, label="mean")
        if y is not None:
            observed = posterior.raw_targets(y).cpu().double().reshape(-1)[order]
            marks: dict[str, Any] = {"color": COLOURS[1], "markersize": 3.5, "alpha": 0.8, "label": "observed"}
            axes.plot(over.numpy(), observed.numpy(), "o", **marks)
        axes.set_xlabel(("input" if feature is None else f"input {feature}") if single else "rows by predicted mean")
        axes.set_ylabel("target")
        axes.set_title("Predictions")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return axes


def _inputs(posterior: Posterior, x: Any) -> Tensor:
    """Return raw inputs as a table (N, D)."""
    given = posterior.standardise(x)
    scale = standardiser_of(given)
    raw = plain(given) if scale is None else scale.invert(given)
    return raw.detach().cpu().double().reshape(len(raw), -1)


def plot_reliability(
    posterior: Posterior, x: Any, y: Any, *, num_samples: int = 100, seed: int = 0, axes: Any = None
) -> Any:
    """
    Draw accuracy over confidence for classes, and for numbers the share of targets that central intervals hold.

    The diagonal is where probabilities are right. The size of a point grows with the rows in its bin.

    :param posterior: the fitted posterior.
    :param x: raw inputs (N, ...).
    :param y: labels (N,) or raw targets.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; the global random state is left as it is.
    :param axes: matplotlib's axes to draw on; default new ones.
    """
    rows = evaluate_rows(posterior, x, y, num_samples, seed=seed)
    with style():
        axes = _new_axes(axes, (4.6, 4.2))
        axes.plot([0, 1], [0, 1], color=_SOFT, linewidth=1, linestyle="--", label="exact")
        if isinstance(rows, ClassEvaluation):
            bins = reliability(rows.log_probs, rows.labels)
            filled = bins.count > 0
            share = bins.count[filled] / bins.count.sum()
            places = bins.confidence[filled].numpy(), bins.accuracy[filled].numpy()
            ends = [wilson(*pair) for pair in zip(places[1].tolist(), bins.count[filled].tolist(), strict=True)]
            axes.vlines(places[0], *zip(*ends, strict=True), color=COLOURS[0], alpha=0.45, label="95 % of a bin's rows")
            axes.scatter(*places, s=(14 + 200 * share).numpy(), color=COLOURS[0], zorder=3, clip_on=False)
            chance = ece_null(rows.log_probs, seed=seed)["upper"]
            axes.set_xlabel("confidence")
            axes.set_ylabel("accuracy")
            axes.set_title(f"ECE {bins.ece:.4f} (by chance up to {chance:.4f})")
        else:
            levels = torch.linspace(0, 1, 51, dtype=torch.float64)
            distance = (2 * rows.pit.double() - 1).abs().reshape(-1)
            held = [(distance <= level).double().mean().item() for level in levels]
            axes.plot(levels.numpy(), held, color=COLOURS[0], linewidth=2)
            axes.set_xlabel("level of the interval")
            axes.set_ylabel("targets that it holds")
            axes.set_title(f"90 % intervals hold {100 * held[45]:.1f} %")
        axes.set_xlim(0, 1.01)
        axes.set_ylim(0, 1.01)
        axes.set_aspect("equal")
        axes.legend(loc="upper left")
    return axes


def plot_uncertainty(
    posterior: Posterior,
    x: Any,
    others: Mapping[str, Any] | None = None,
    *,
    name: str = "these rows",
    num_samples: int = 100,
    seed: int = 0,
    axes: Any = None,
) -> Any:
    """
    Draw how uncertain the rows are: epistemic uncertainty, on which draws disagree, over aleatoric.

    In nats for classes; as standard deviations in the targets' units for numbers.

    :param posterior: the fitted posterior.
    :param x: raw inputs (N, ...).
    :param others: further inputs by name, such as another data set, to see whether they stand apart.
    :param name: what x is called beside them.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; the global random state is left as it is.
    :param axes: matplotlib's axes to draw on; default new ones.
    """
    sets = {name: x, **(others or {})}
    if len(sets) > len(COLOURS):
        raise ValueError(f"{len(sets)} sets of rows cannot be told apart: draw at most {len(COLOURS)}")
    if others and name in others:
        raise ValueError(f"others has {name!r}, as x is called: give x another name=")
    with style():
        axes = _new_axes(axes)
        parts = {words: _parts(posterior, rows, num_samples, seed) for words, rows in sets.items()}
        alike = all(float(a.max() - a.min()) <= 1e-3 * float(a.max()) for a, _, _ in parts.values())
        if alike and not next(iter(parts.values()))[2]:
            _histograms(axes, {words: epistemic for words, (_, epistemic, _) in parts.items()})
            axes.set_title(f"Uncertainty beside a noise of sd {float(next(iter(parts.values()))[0].max()):.3g}")
            return axes
        classes = next(iter(parts.values()))[2]
        for i, (words, (aleatoric, epistemic, _)) in enumerate(parts.items()):
            marks: dict[str, Any] = {
                "color": COLOURS[i],
                "markersize": 3,
                "alpha": 0.45,
                "markeredgewidth": 0,
            }
            axes.plot(aleatoric, epistemic, "o", label=words, clip_on=False, **marks)
        unit = "nats" if classes else "sd"
        axes.set_xlabel(f"aleatoric ({unit}): the noise that each draw sees")
        axes.set_ylabel(f"epistemic ({unit})")
        axes.set_ylim(bottom=0)
        axes.set_title("Uncertainty")
        if len(sets) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=2)
    return axes


def _histograms(axes: Any, sets: Mapping[str, Any]) -> None:
    """Draw epistemic uncertainty alone, where the noise is the same everywhere."""
    most = max(float(values.max()) for values in sets.values())
    for i, (words, values) in enumerate(sets.items()):
        shade: dict[str, Any] = {"color": COLOURS[i], "alpha": 0.5, "density": True}
        axes.hist(values, bins=24, range=(0, most or 1.0), label=words, **shade)
    axes.set_xlabel("epistemic (sd)")
    axes.set_ylabel("share of rows")
    axes.set_yticks([])
    if len(sets) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _parts(posterior: Posterior, x: Any, num_samples: int, seed: int) -> tuple[Any, Any, bool]:
    found = posterior.uncertainty(x, num_samples, seed=seed)
    first = next(posterior.stream(x[:1], 1, seed=seed))
    parts = [part.detach().cpu().double().clamp(min=0) for part in (found.aleatoric, found.epistemic)]
    classes = isinstance(first, ClassDraw)
    parts = parts if classes else [part.sqrt() for part in parts]
    return parts[0].reshape(-1).numpy(), parts[1].reshape(-1).numpy(), classes
