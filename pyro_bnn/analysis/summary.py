"""
A posterior in a small table: its sites, how far they moved from the prior, how sure it is of them.

    mean, sd     5 % to 95 % of the posterior means and standard deviations over the numbers of a site
    sd / prior   the median over the site of sd over the prior's sd: 1 where the data said nothing
    SNR          the median of |mean| / sd, and the share of numbers where it is below 1
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from pyro_bnn.analysis.scores.signal_to_noise import WeightSummary, weight_summary
from pyro_bnn.posterior import Posterior

__all__ = ["SiteSummary", "Summary", "summarise"]

_HEAD = ("site", "shape", "mean 5 % .. 95 %", "sd 5 % .. 95 %", "sd / prior", "SNR", "SNR < 1")
_MOST = 10**6


@final
@dataclass(frozen=True)
class SiteSummary:
    """
    One site: 5 % and 95 % quantiles of means and sds, medians of sd / prior sd and of |mean| / sd.

    :param name: of the site.
    :param shape: of the site.
    :param mean: two quantiles of its means.
    :param sd: two quantiles of its standard deviations.
    :param against_prior: median of sd / prior sd; None where the prior has none.
    :param signal_to_noise: median of |mean| / sd.
    :param below_one: the share of weights with |mean| < sd.
    """

    name: str
    shape: tuple[int, ...]
    mean: tuple[float, float]
    sd: tuple[float, float]
    against_prior: float | None
    signal_to_noise: float
    below_one: float


@final
@dataclass(frozen=True)
class Summary:
    """
    What a posterior says of itself, and its sites; print it, or take the rows.

    :param title: one line about the posterior.
    :param sites: a row for each.
    """

    title: str
    sites: tuple[SiteSummary, ...]

    def __str__(self) -> str:
        rows = [_HEAD, *(_cells(site) for site in self.sites)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        lines = []
        for row in rows:
            left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
            lines.append("  ".join([*left, *right]).rstrip())
        return "\n".join([self.title, "", *lines])

    __repr__ = __str__


def _cells(site: SiteSummary) -> tuple[str, ...]:
    return (
        site.name,
        " x ".join(map(str, site.shape)) or "1",
        f"{site.mean[0]:.3g} .. {site.mean[1]:.3g}",
        f"{site.sd[0]:.3g} .. {site.sd[1]:.3g}",
        "-" if site.against_prior is None else f"{site.against_prior:.3g}",
        f"{site.signal_to_noise:.3g}",
        f"{100 * site.below_one:.0f} %",
    )


def summarise(posterior: Posterior, x: Any = None, *, num_samples: int = 200) -> Summary:
    """
    Return the table of a posterior's sites.

    :param posterior: the fitted posterior.
    :param x: one input or more, for a hand-written program that has to be run.
    :param num_samples: draws to estimate from, where the guide does not state its moments.
    """
    first = None if x is None else posterior.standardise(x)[:1]
    found = weight_summary(posterior, first, num_samples=num_samples)
    priors: Mapping[str, Any] = getattr(posterior.model, "priors", dict)()
    sites = [_site(name, summary, priors.get(name.removeprefix("net."))) for name, summary in found.items()]
    return Summary(repr(posterior), tuple(sites))


def _site(name: str, summary: WeightSummary, prior: Any) -> SiteSummary:
    mean, sd, ratio = (_some(values) for values in (summary.mean, summary.sd, summary.signal_to_noise))
    against = None
    if prior is not None:
        spread = prior.stddev.detach().double().cpu().expand(summary.sd.shape)
        against = float((sd / _some(spread)).median())
    return SiteSummary(
        name,
        tuple(summary.mean.shape),
        _ends(mean),
        _ends(sd),
        against,
        float(ratio.median()),
        float((ratio < 1).double().mean()),
    )


def _some(values: Tensor) -> Tensor:
    """At most a million of the values, evenly spaced."""
    flat = values.detach().reshape(-1)
    return flat[:: -(-len(flat) // _MOST)].double().cpu()


def _ends(values: Tensor) -> tuple[float, float]:
    low, high = torch.quantile(values, torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    return low, high
