"""
The ELBO of a joint normal guide, of low or full rank, with its KL in closed form.

For q = N(mu, S) over all weights and independent priors, KL(q || p) = -H(q) - E_q log p. The entropy is known, and so
is every site's E_q log p under a Normal prior, from q's marginals alone:

    -E_q log N(w_i; m_i, s_i^2) = 1/2 [ln 2 pi + ln s_i^2 + (S_ii + (mu_i - m_i)^2) / s_i^2]

With Normal priors throughout that is `kl_to_normal`, in O(P R^2) for S = D + W W' and in O(P^2) for S = L L'. Another
prior, or a Normal one whose mean or deviation was itself drawn or is learned, is taken at the draw: unbiased, and as
noisy as in Pyro's own ELBOs. So is a masked site, and the scales of model and guide are those of their own sites
wherever they differ.
"""

import math
from collections.abc import Mapping
from typing import Any, final

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.util import torch_item
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_bnn.common.sites import innermost, sample_sites

__all__ = ["TraceLowRank_ELBO"]


def _fixed_normal(fn: Any, size: int) -> tuple[Tensor, Tensor] | None:
    """Return mean and deviation (P_site,) of a prior that is Normal with given numbers, else None."""
    base = innermost(fn)
    if not isinstance(base, dist.Normal) or base.loc.requires_grad or base.scale.requires_grad:
        return None
    mean, sd = base.loc.expand(base.batch_shape).reshape(-1), base.scale.expand(base.batch_shape).reshape(-1)
    return (mean[:size], sd[:size]) if len(mean) >= size else None  # a particle plate repeats them


def _same(a: Any, b: Any) -> bool:
    """Whether two scales are one number."""
    return bool((torch.as_tensor(a) == torch.as_tensor(b)).all())


def _cross_entropy(mean: Tensor, variance: Tensor, m: Tensor, s: Tensor) -> Tensor:
    return 0.5 * (math.log(2 * math.pi) + 2 * s.log() + (variance + (mean - m).square()) / s.square()).sum()


@final
class _DrawsAreVariables(Messenger):
    """Let every draw require a gradient, that of a frozen guide too, so that a drawn prior is not taken as given."""

    def _pyro_post_sample(self, msg: Any) -> None:
        value = msg["value"]
        drawn = isinstance(value, Tensor) and value.is_floating_point() and not msg["is_observed"]
        if drawn and not value.requires_grad:
            value.requires_grad_()


@final
class TraceLowRank_ELBO(TraceMeanField_ELBO):
    """
    The analytic ELBO for `AutoLowRankNormal` and `AutoFullRankNormal`; for any other guide stock TraceMeanField_ELBO.

    A guide says that a site is joint normal by `infer={"joint_normal": places}` on it, with every model site's slice.
    """

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(poutine.unwrap(guide), Messenger):
            guide = _DrawsAreVariables()(guide)
        with torch.enable_grad():  # so that what was drawn can be told from what was given
            return super()._get_trace(model, guide, args, kwargs)  # type: ignore[no-untyped-call]

    def _differentiable_loss_particle(self, model_trace: Any, guide_trace: Any) -> tuple[Any, Any]:
        p_sites, q_sites = sample_sites(model_trace), sample_sites(guide_trace)
        joint = {
            name: site["infer"]["joint_normal"] for name, site in q_sites.items() if "joint_normal" in site["infer"]
        }
        if not joint:
            stock: Any = super()
            return stock._differentiable_loss_particle(model_trace, guide_trace)  # type: ignore[no-any-return]
        loss: Any = 0.0
        done: set[str] = set()
        for name, places in joint.items():
            loss = loss + self._kl(q_sites[name], places, p_sites)
            done |= {name, *places}
        for name, p in p_sites.items():
            if name not in done:
                loss = loss - p["log_prob_sum"]
        for name, q in q_sites.items():
            if name not in done:
                loss = loss + q["log_prob_sum"]
        return torch_item(loss), loss

    @staticmethod
    def _kl(q: Any, places: Mapping[str, Any], p_sites: Mapping[str, Any]) -> Any:
        """Return the scaled KL of a joint site to the priors of its model sites; sampled where no closed form is."""
        known = {}
        for name, place in places.items():
            p = p_sites[name]
            if place.transform is None and p["mask"] is None and torch.as_tensor(p["scale"]).dim() == 0:
                normal = _fixed_normal(p["fn"], place.size)
                if normal is not None:
                    known[name] = normal
        fn = q["fn"]
        if q["mask"] is not None:
            raise ValueError(
                "TraceLowRank_ELBO takes the guide's draw whole, and it is masked: mask sites of the model"
            )
        if len(known) == len(places) and all(_same(p_sites[name]["scale"], q["scale"]) for name in places):
            m, s = (torch.cat([pair[i] for pair in known.values()]) for i in range(2))
            return q["scale"] * fn.kl_to_normal(m, s).sum()
        repeats = fn.batch_shape.numel()
        mean, variance = (t.reshape(-1, t.shape[-1])[0] for t in (fn.mean, fn.variance))  # (P,)
        total = -q["scale"] * fn.entropy().sum()
        for name, place in places.items():
            if name in known:
                cut = slice(place.start, place.stop)
                cross = _cross_entropy(mean[cut], variance[cut], *known[name])
                total = total + p_sites[name]["scale"] * repeats * cross
            else:
                total = total - p_sites[name]["log_prob_sum"]
        return total
