"""How noisy a gradient estimator is, by kind of parameter and by site.

The gradient g of one and the same loss, at fixed parameters and on a fixed batch, is drawn R times; with m_r, M_r the
running mean and sum of squared deviations, element by element (Welford 1962),

    m_r = m_{r-1} + (g_r - m_{r-1}) / r        M_r = M_{r-1} + (g_r - m_{r-1}) (g_r - m_r)        Var[g] = M_R / (R - 1)

Gradients are those of the unconstrained parameters (rho, not sigma), which is what an optimizer sees. Handlers around
the call, such as `per_datum`, `scale_kl` and `flipout`, count as part of the estimator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import pyro.poutine as poutine
import torch
from pyro.infer import ELBO
from torch import Tensor, nn

from pyro_bnn.common.moments import Welford
from pyro_bnn.common.sites import leaf_of, sample_sites
from pyro_bnn.inference.reparam import leaves_behind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GradientVariance", "Row", "gradient_variance", "plot_gradient_variance"]

KINDS = ("loc", "scale", "other")
_LOC_OR_SCALE = re.compile("^loc$|scale|cov_")  # the arguments of torch's distributions, cov_factor among them


@dataclass(frozen=True, slots=True)
class Row:
    """
    Part of the gradient: of one kind, and of one site where the guide tells which entries are whose.

    :param kind: "loc", "scale" or "other".
    :param site: the site, or None for all of the kind.
    :param size: how many parameters it has.
    :param squared_mean: the squared norm of the mean gradient.
    :param variance: the sum of the elementwise variances, the trace of the gradient's covariance.
    """

    kind: str
    site: str | None
    size: int
    squared_mean: float
    variance: float


@final
@dataclass(frozen=True)
class GradientVariance:
    """
    Mean and variance of the gradient over `draws` draws, elementwise by parameter name.

    :param draws: how often the gradient was drawn.
    :param mean: the mean, in the parameter's shape.
    :param variance: the variance, likewise.
    :param kinds: what each parameter is: "loc", "scale" or "other".
    :param slices: (kind, site) -> (parameter, start, stop).
    """

    draws: int
    mean: Mapping[str, Tensor]
    variance: Mapping[str, Tensor]
    kinds: Mapping[str, str]
    slices: Mapping[tuple[str, str], tuple[str, int, int]]

    def standard_error(self) -> dict[str, Tensor]:
        """Standard error of the mean gradient, elementwise."""
        return {name: (variance / self.draws).sqrt() for name, variance in self.variance.items()}

    def by_kind(self) -> dict[str, Row]:
        """One row per kind that has parameters."""
        rows = {}
        for kind in KINDS:
            names = [name for name, k in self.kinds.items() if k == kind]
            if names:
                parts = [(self.mean[name], self.variance[name]) for name in names]
                rows[kind] = _row(kind, None, parts)
        return rows

    def by_site(self) -> list[Row]:
        """One row per kind and site."""
        return [
            _row(kind, site, [(self.mean[name].flatten()[start:stop], self.variance[name].flatten()[start:stop])])
            for (kind, site), (name, start, stop) in self.slices.items()
        ]


def _row(kind: str, site: str | None, parts: Sequence[tuple[Tensor, Tensor]]) -> Row:
    return Row(
        kind=kind,
        site=site,
        size=sum(mean.numel() for mean, _ in parts),
        squared_mean=sum(float(mean.square().sum()) for mean, _ in parts),
        variance=sum(float(variance.sum()) for _, variance in parts),
    )


@contextmanager
def _untouched(*programs: Any) -> Iterator[None]:
    """Leave buffers (running statistics) and the random state as they were."""
    buffers = [b for p in programs if isinstance(p, nn.Module) for b in p.buffers()]
    kept = [b.clone() for b in buffers]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            for buffer, value in zip(buffers, kept, strict=True):
                buffer.copy_(value)


def gradient_variance(
    model: Callable[..., Any], guide: Callable[..., Any], elbo: ELBO, batch: Sequence[Any], draws: int
) -> GradientVariance:
    """
    Draw the gradient of `elbo` on `batch` (the program's arguments) `draws` times.

    Parameters, their .grad, buffers and the random state are left as they were.

    :param model: the Pyro program.
    :param guide: its guide.
    """
    if draws < 2:
        raise ValueError(f"draws={draws} is not allowed: a variance needs at least 2")
    with _untouched(model, guide):
        guide_trace, model_trace = _run(model, guide, batch)
    parameters = {**_parameters(guide_trace), **_parameters(model_trace)}
    kinds, slices = _layout(guide_trace, parameters)
    sums = {name: Welford(torch.zeros_like(p, dtype=torch.float64)) for name, p in parameters.items()}
    loss_and_grads: Callable[..., Any] = elbo.loss_and_grads  # type: ignore[attr-defined]
    kept = {name: p.grad for name, p in parameters.items()}
    try:
        with _untouched(model, guide):
            for _ in range(draws):
                for p in parameters.values():
                    p.grad = None
                loss_and_grads(model, guide, *batch)
                for name, p in parameters.items():
                    own = sums[name]
                    own.update(torch.zeros_like(own.mean) if p.grad is None else p.grad.double())
    finally:
        for name, p in parameters.items():
            p.grad = kept[name]
    mean = {name: own.mean for name, own in sums.items()}
    return GradientVariance(draws, mean, {n: own.variance(1) for n, own in sums.items()}, kinds, slices)


def _run(model: Callable[..., Any], guide: Callable[..., Any], batch: Sequence[Any]) -> tuple[Any, Any]:
    guide_trace = poutine.trace(guide).get_trace(*batch)
    return guide_trace, poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*batch)


def _parameters(trace: Any) -> dict[str, Tensor]:
    """Unconstrained parameters by name."""
    values = {name: site["value"] for name, site in trace.nodes.items() if site["type"] == "param"}
    return {name: leaf_of(v) for name, v in values.items()}


def _layout(
    guide_trace: Any, parameters: Mapping[str, Tensor]
) -> tuple[dict[str, str], dict[tuple[str, str], tuple[str, int, int]]]:
    """The kind of each parameter, and which entries belong to which site.

    A parameter is of kind "loc" or "scale" if that argument of a distribution of the guide is computed from it. A site
    owns the slice that its `infer["flat"]` tells, or else the whole of a parameter that no other site uses.
    """
    names = {id(p): name for name, p in parameters.items()}
    kinds = dict.fromkeys(parameters, "other")
    users: dict[str, list[tuple[str, str, Any]]] = {}
    for site_name, site in sample_sites(guide_trace).items():
        for kind, tensor in _arguments(site["fn"]):
            for leaf in leaves_behind(tensor):
                name = names.get(id(leaf))
                if name is not None and kinds[name] in ("other", kind):  # what its nearest site says
                    kinds[name] = kind
                    users.setdefault(name, []).append((kind, site_name, site["infer"].get("flat")))
    slices = {}
    for name, uses in users.items():
        for kind, site_name, flat in uses:
            if flat is not None:
                slices[kind, site_name] = (name, flat.start, flat.stop)
            elif len(uses) == 1:
                slices[kind, site_name] = (name, 0, parameters[name].numel())
    return kinds, slices


def _arguments(fn: Any) -> list[tuple[str, Tensor]]:
    """The location and the scale a distribution was built from, by kind, under any wrapping."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    names = filter(_LOC_OR_SCALE.search, {**vars(fn), **fn.arg_constraints})
    kinds = {name: "loc" if name == "loc" else "scale" for name in names}
    return [(kind, getattr(fn, name)) for name, kind in kinds.items() if isinstance(getattr(fn, name), Tensor)]


def plot_gradient_variance(results: Mapping[str, GradientVariance]) -> Figure:
    """The gradient's variance per parameter on a log axis, a panel per kind, a line per site, a mark per label.

    `results` maps a label, such as an estimator's name, to what `gradient_variance` returned for the same guide. Kinds
    without sites of their own have one line.
    """
    from matplotlib.figure import Figure

    if not results:
        raise ValueError("nothing to plot: pass at least one label with its GradientVariance")
    tables = {
        label: [row for kind in result.by_kind().values() for row in _rows_to_plot(result, kind)]
        for label, result in results.items()
    }
    rows = [row for table in tables.values() for row in table]
    kinds = [kind for kind in KINDS if any(row.kind == kind for row in rows)]
    lines = list(dict.fromkeys(row.site or "all" for row in rows))
    figure = Figure(figsize=(2 + 3.5 * len(kinds), 1.2 + 0.3 * len(lines)), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0], kinds, strict=True):
        for label, table in tables.items():
            shown = [row for row in table if row.kind == kind]
            heights = [lines.index(row.site or "all") for row in shown]
            axes.plot([row.variance / row.size for row in shown], heights, "o", alpha=0.8, label=label)
        axes.set(title=kind, xscale="log", xlabel="variance per parameter")
        axes.set_yticks(range(len(lines)), lines)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.grid(axis="y", alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(tables))
    return figure


def _rows_to_plot(result: GradientVariance, kind: Row) -> list[Row]:
    return [row for row in result.by_site() if row.kind == kind.kind] or [kind]
