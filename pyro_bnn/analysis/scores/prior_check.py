"""
Prior predictive check: what a model says before it has seen any data.

    w_s ~ p(w),   p(y | x, w_s),   s = 1..S

A prior that is fit for its purpose spreads over what the modeller would believe possible. For classes the check shows
how sure single networks of the prior are (mean max_k p_sk; near 1 means networks that are certain for no reason), the
entropy of their average, and how often each class comes out on top. For numbers it shows the spread of the mean
functions and of the data, and, if targets are given, where they lie in the prior predictive (F(y), see `intervals`):
values piled up at 0 or 1 contradict the prior.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, cast, final

import pyro.poutine as poutine
import torch
from torch import Tensor

from pyro_bnn.analysis.scores.intervals import pit
from pyro_bnn.analysis.scores.laws import Scorer
from pyro_bnn.analysis.scores.metrics import Scored, randomised_pit
from pyro_bnn.common.contract import Guide
from pyro_bnn.common.mixtures import PredictiveAccumulator
from pyro_bnn.common.sites import is_subsample
from pyro_bnn.inference.predictive import RealDraw
from pyro_bnn.posterior import Posterior

__all__ = ["PriorCheck", "PriorGuide", "prior_posterior", "prior_predictive_check"]


@final
class PriorGuide(Guide):
    """
    The latent part of a model as a guide: its draws are the prior's, and `Posterior` takes it like any other.

    :param model: the program whose prior it is.
    :param latents: the sites that are drawn; default all that are not observed.
    """

    kind = "prior"

    def __init__(self, model: Callable[..., Any], latents: Container[str] | None = None) -> None:
        self.model = model
        self.latents = latents  # None: all sites but the one called obs

    def spec(self) -> dict[str, Any] | None:
        """Return None: a prior is not saved as a posterior."""
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Sample every latent site from its prior."""
        latent = getattr(self.model, "sample_weights", None)
        if latent is not None:
            latent()
            return
        with poutine.block(hide_fn=self._hidden):
            self.model(*args)

    def _hidden(self, site: Any) -> bool:
        return _not_latent(site) or (self.latents is not None and site["name"] not in self.latents)


def _not_latent(site: Any) -> bool:
    return site["type"] != "sample" or site["is_observed"] or site["name"] == "obs" or is_subsample(site)


def prior_posterior(posterior: Posterior) -> Posterior:
    """
    Return a posterior's model with its prior in place of the fitted guide.

    :param posterior: the fitted posterior.
    """
    return posterior.with_guide(PriorGuide(posterior.model))


@final
@dataclass(frozen=True)
class PriorCheck:
    """
    Figures of the prior predictive over the rows of x.

    Classes: `confidence` of single draws and `class_shares` (K,), how often each class is the most probable one.
    Numbers: `mean_sd` (spread of the mean functions) and `data_sd` (noise included), each averaged over rows, and
    `pit` (N,) of the targets if there are any.

    :param num_samples: S, draws from the prior.
    :param entropy: mean entropy of single draws, in nats; of classes alone.
    """

    num_samples: int
    confidence: float | None = None
    entropy: float | None = None
    class_shares: Tensor | None = None
    mean_sd: float | None = None
    data_sd: float | None = None
    pit: Tensor | None = None

    def __str__(self) -> str:
        text = f"prior predictive, {self.num_samples} draws: "
        if self.class_shares is not None:
            shares = ", ".join(f"{100 * float(s):.0f} %" for s in self.class_shares)
            return (
                f"{text}a single network is {100 * cast(float, self.confidence):.1f} % sure, their average has "
                f"{self.entropy:.3f} nats of entropy; classes on top: {shares}"
            )
        text += f"sd of functions {self.mean_sd:.3g}, of data {self.data_sd:.3g}"
        if self.pit is None:
            return text
        outside = float(((self.pit < 0.025) | (self.pit > 0.975)).double().mean())
        return f"{text}; {100 * outside:.1f} % of targets outside its central 95 %"


def prior_predictive_check(
    model: Callable[..., Any] | Posterior,
    x: Tensor,
    y: Tensor | None = None,
    num_samples: int = 200,
    *,
    seed: int | None = 0,
) -> PriorCheck:
    """
    Check a model's prior on inputs x, and on targets y if given.

    :param model: a Pyro program, or a posterior, whose model is checked in raw units.
    :param x: inputs (N, ...), raw as `Posterior.predict` takes them.
    :param y: likewise targets (N,) or (N, D).
    :param num_samples: S, draws from the prior.
    :param seed: of the draws; the global random state is left as it is.
    """
    prior = prior_posterior(model) if isinstance(model, Posterior) else Posterior(model, PriorGuide(model))
    confidences, means, sds = [], [], []
    scorer: Scorer | None = None
    scored: list[Scored] = []
    predictive, shares = PredictiveAccumulator(), torch.zeros(0)
    for draw in prior.stream(x, num_samples, seed=seed):
        if isinstance(draw, RealDraw):
            means.append(draw.mean.cpu())
            sds.append(draw.sd.cpu())
            if y is not None and draw.laws:
                scorer = Scorer(prior.raw_targets(y)) if scorer is None else scorer
                scored.append(scorer.of(draw))
            continue
        top, guess = draw.log_probs.cpu().max(1)
        confidences.append(float(top.exp().mean()))
        count = torch.bincount(guess, minlength=draw.log_probs.shape[1])
        shares = count if len(confidences) == 1 else shares + count
        predictive.update(draw.log_probs.cpu())
    if confidences:
        return PriorCheck(
            num_samples,
            confidence=sum(confidences) / num_samples,
            entropy=float(predictive.total.mean()),
            class_shares=shares / shares.sum(),
        )
    mean, sd = torch.stack(means), torch.stack(sds)  # (S, N, ...)
    spread = mean.double().var(0, correction=0)
    return PriorCheck(
        num_samples,
        mean_sd=float(spread.sqrt().mean()),
        data_sd=float((spread + sd.double().square().mean(0)).sqrt().mean()),
        pit=_randomised(scored) if scored else None if y is None else pit(mean, sd, prior.raw_targets(y)),
    )


def _randomised(scored: list[Scored]) -> Tensor:
    """Return the probability integral transform of the mixture, randomised for counts."""
    cdf, below = (torch.stack(parts).mean(0) for parts in ([s.cdf for s in scored], [s.below for s in scored]))
    return randomised_pit(Scored(scored[0].log_density, cdf, below))
