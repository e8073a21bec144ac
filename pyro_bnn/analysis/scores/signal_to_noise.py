"""
Signal-to-noise of weights, and how much of a network is needed.

A weight's signal-to-noise is |mu| / sigma under the posterior. Weights are set to zero from the lowest up, in all
draws alike, and what is left is scored: a posterior whose uncertain weights do not matter keeps its accuracy until
most are gone. Graves 2011; Blundell et al. 2015, arXiv:1505.05424, section 5.1.

Mean and standard deviation are the guide's own where it states them (`guide.site(name)`), else estimated from draws.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from pyro_bnn.common.contract import Wrapper, contract_of
from pyro_bnn.common.modules import evaluation_mode
from pyro_bnn.common.moments import Welford
from pyro_bnn.common.sites import is_subsample
from pyro_bnn.common.turns import alone
from pyro_bnn.data.arrays import Inputs, first_rows, map_inputs
from pyro_bnn.data.standardise import plain
from pyro_bnn.posterior import Posterior

__all__ = ["PrunedGuide", "WeightSummary", "prune_by_signal_to_noise", "pruning_curve", "weight_summary"]

_DRAWS = 200


class WeightSummary(NamedTuple):
    """Posterior mean and standard deviation of one site, in its shape."""

    mean: Tensor
    sd: Tensor

    @property
    def signal_to_noise(self) -> Tensor:
        """|mean| / sd; infinite where sd is 0 and mean is not, 0 where both are."""
        return torch.where(self.mean == 0, torch.zeros_like(self.mean), self.mean.abs() / self.sd)


def latent_values(trace: Any) -> dict[str, Tensor]:
    """Return the values of a guide's trace by site, without auxiliary ones and the rows that plates subsample."""
    return {
        name: site["value"].detach()
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and not is_subsample(site)
        and not (site["infer"] or {}).get("is_auxiliary")
    }


def draw_sites(guide: Callable[..., Any], x: Inputs | None = None) -> dict[str, Tensor]:
    """Return one draw of every latent site; `x` is what a guide that looks at its input is called with."""
    with alone(), torch.no_grad(), evaluation_mode(guide), poutine.block():
        return latent_values(poutine.trace(guide).get_trace(*(() if x is None else (x,))))


def weight_summary(
    posterior: Posterior, x: Inputs | None = None, *, num_samples: int = _DRAWS
) -> dict[str, WeightSummary]:
    """
    Return mean and standard deviation of every site.

    :param posterior: the fitted posterior.
    :param x: one input, for a hand-written guide that needs it.
    :param num_samples: draws to estimate from, where the guide does not state its moments.
    """
    scaled = None if x is None else map_inputs(plain, posterior.standardise(x))
    with posterior.turn(scaled):
        return _summary(posterior.guide, scaled, num_samples)


def _summary(guide: Any, x: Inputs | None, num_samples: int) -> dict[str, WeightSummary]:
    promised = contract_of(guide)
    if promised.has_moments:
        return {name: WeightSummary(*promised.site(name)) for name in promised.site_names()}
    if num_samples < 2:
        raise ValueError(f"num_samples={num_samples} shows no spread: pass at least 2")
    promised.restart()
    sums: dict[str, Welford[Tensor]] = {}
    for _ in range(num_samples):
        for name, value in draw_sites(guide, x).items():
            sums.setdefault(name, Welford()).update(value.double())
    return {name: WeightSummary(sums_of.mean, sums_of.variance(1).sqrt()) for name, sums_of in sums.items()}


@final
class PrunedGuide(nn.Module, Wrapper):
    """
    A guide whose draws have some weights set to zero: sites and their boolean masks, True where a weight stays.

    :param keep: masks by site, in the shape of the site.
    """

    def __init__(self, guide: Callable[..., Any], keep: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.guide = guide
        self.keep = dict(keep)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw from the guide and prune."""
        values = self._pruned(draw_sites(self.guide, *args[:1]))
        return {n: pyro.sample(n, dist.Delta(v, event_dim=v.dim())) for n, v in values.items()}

    @property
    def has_median(self) -> bool:  # type: ignore[override]
        """Whether the guide inside has a median."""
        return self.inner.has_median

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the guide's median, pruned."""
        return self._pruned(self.inner.median(*args, **kwargs))

    def _pruned(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: v * self.keep[n] if n in self.keep else v for n, v in values.items()}


def prune_by_signal_to_noise(
    posterior: Posterior, fraction: float, *, summary: dict[str, WeightSummary] | None = None
) -> Posterior:
    """
    Return the posterior with this fraction of all weights, those of lowest signal-to-noise, set to zero.

    :param posterior: the fitted posterior.
    :param fraction: the share of weights to set to zero.
    :param summary: what `weight_summary` returned; default it is called.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction={fraction} is not a share of the weights: pass a number from 0 to 1")
    sites = weight_summary(posterior) if summary is None else summary
    ratios = {name: s.signal_to_noise for name, s in sites.items()}
    order = torch.cat([r.flatten() for r in ratios.values()]).argsort()  # (P,)
    keep = torch.ones(len(order), dtype=torch.bool, device=order.device)
    keep[order[: round(fraction * len(order))]] = False
    parts = keep.split([r.numel() for r in ratios.values()])
    masks = {name: part.view_as(r) for (name, r), part in zip(ratios.items(), parts, strict=True)}
    return posterior.with_guide(PrunedGuide(posterior.guide, masks))


def pruning_curve(
    posterior: Posterior,
    x: Inputs,
    y: Tensor,
    fractions: Sequence[float] = (0, 0.5, 0.75, 0.9, 0.95, 0.98),
    num_samples: int = 20,
    *,
    seed: int = 0,
) -> list[dict[str, float]]:
    """
    Return the metrics of the averaged predictive by the fraction of weights pruned, as one row per fraction.

    :param posterior: the fitted posterior.
    :param x: raw inputs (N, ...).
    :param y: labels (N,) or raw targets.
    :param fractions: shares of weights to set to zero.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; the global random state is left as it is.
    """
    summary = weight_summary(posterior, first_rows(x))
    rows = []
    for fraction in fractions:
        pruned = prune_by_signal_to_noise(posterior, fraction, summary=summary)
        rows.append({"fraction": float(fraction), **pruned.evaluate(x, y, num_samples, seed=seed)["s_draws"]})
    return rows
