"""
One UCI set by one method, all of its splits as one batched program (`fit_many`).

For each of the set's own splits into train and test rows:

    1. a fifth of the train rows is put aside, chosen by the split's number; x and y are standardised by the others
    2. each eta of a grid trains one member on those others; the eta with the highest log-likelihood of the fifth is the
       split's own: neither another split nor a test row has a part in it
    3. M members train anew on all train rows, standardised by them, with that eta, from seeds of their own
    4. the test rows are scored once

The predictive law of a row is the even mixture of S = 100 normals, the draws of the members in equal shares, in the
units of the data:  p(y) = (1/S) sum_s N(y | mu_s(x), sd_s(x)^2). Of it, with F its distribution function,

    ll        mean of log p(y)                                   rmse    of the mixture's mean
    crps      E|Y - y| - E|Y - Y'| / 2, in closed form            cover   share of rows with |F(y) - 1/2| <= level / 2

E|N(m, v)| = 2 sqrt(v) phi(m / sqrt v) + m (2 Phi(m / sqrt v) - 1). The first member alone, with as many draws, is
scored as well (`single_*`): it is the same training without the ensemble.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.data.sources import read_source
from pyro_bnn.guides import AutoDropout, AutoMeanFieldNormal, AutoPoint
from pyro_bnn.inference import fit_many, kl, local_reparameterization
from pyro_bnn.inference.stacked import Stack
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite

__all__ = [
    "DRAWS",
    "GUIDES",
    "Part",
    "add_means",
    "crps",
    "inner",
    "log_density",
    "one_set",
    "read_split",
    "scores_of",
    "standardised",
]

GUIDES = ("local", "mean-field", "mc-dropout", "map")
"""Mean field with local reparameterisation, mean field, dropout (rate .05) and a point."""

LEVELS = (50, 90, 95)
DRAWS = 100
_CHUNK = 400


def one_set(
    data: str,
    guide: str = "local",
    noise: str = "input",
    hidden: Sequence[int] = (50,),
    splits: int = 20,
    etas: Sequence[float] = (0.1, 0.3, 1.0),
    members: int = 5,
    epochs: int = 400,
    batch_size: int = 64,
    rate: float = 1e-2,
    seed: int = 0,
) -> dict[str, Any]:
    """
    Return the scores of every split as lists, and the chosen etas.

    :param data: name of the set in the data root.
    :param guide: one of `GUIDES`.
    :param noise: "input" for noise that depends on the input, "learned" for one level.
    :param etas: what is chosen from; eta < 1 counts the rows more than once.
    :param rate: the learning rate of the means; that of the spreads is twice as large.
    """
    if guide not in GUIDES:
        raise ValueError(f"guide={guide!r} is unknown: pass one of {', '.join(GUIDES)}")
    tables = [read_split(data, s) for s in range(splits)]
    law = likelihoods.HeteroscedasticGaussian() if noise == "input" else likelihoods.LearnedGaussian(0.5)
    how = _How(guide, law, list(hidden), epochs, batch_size, rate)

    parts = [inner(table, s) for s, table in enumerate(tables) for _ in etas]
    tried = _trained(how, parts, list(etas) * splits, seed + 10_000)
    val = torch.tensor([float(log_density(*_mixture(tried, [k], parts[k])).mean()) for k in range(len(parts))]).view(
        splits, len(etas)
    )
    chosen = [etas[i] for i in val.argmax(1).tolist()] if len(etas) > 1 else list(etas) * splits

    whole = [standardised(*table) for table in tables]
    fitted = _trained(
        how, [part for part in whole for _ in range(members)], [e for e in chosen for _ in range(members)], seed
    )
    scores: dict[str, Any] = {"eta": chosen, "val_ll": val.max(1).values.tolist(), "rows": [len(t[0]) for t in tables]}
    for s, part in enumerate(whole):
        places = list(range(s * members, (s + 1) * members))
        for prefix, of in (("", places), ("single_", places[:1])):
            for name, value in scores_of(*_mixture(fitted, of, part)).items():
                scores.setdefault(prefix + name, []).append(value)
    add_means(scores)
    return scores


def add_means(scores: dict[str, Any]) -> None:
    """Add mean and standard error over the splits of every score that is compared."""
    for name in [n for n in scores if n.endswith(("ll", "rmse", "crps"))]:
        values = scores[name]
        scores[f"{name}_mean"] = float(np.mean(values))
        scores[f"{name}_se"] = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


# -- data --------------------------------------------------------------------------------------------------------------


@final
class Part:
    """Train rows and the rows to be scored, standardised by the train rows; y's scale."""

    def __init__(self, x: Any, y: Any, new_x: Any, new_y: Any) -> None:
        mean, sd = x.mean(0), x.std(0)
        sd = np.where(sd > 0, sd, 1.0)
        self.y_mean, self.y_sd = float(y.mean()), float(y.std())
        self.x = torch.tensor((x - mean) / sd, dtype=torch.float32)
        self.y = torch.tensor((y - self.y_mean) / self.y_sd, dtype=torch.float32)
        self.new_x = torch.tensor((new_x - mean) / sd, dtype=torch.float32)
        self.new_y = torch.tensor(new_y, dtype=torch.float64)  # as it was measured


def read_split(data: str, s: int) -> tuple[Any, Any, Any, Any]:
    """Return x and y of a split's train rows, and of its test rows."""
    source: Any = read_source(data, split=s)
    x, y, new_x, new_y = (
        np.asarray(a, dtype=float) for a in (source.x_train, source.y_train, source.x_test, source.y_test)
    )
    return x, y.reshape(-1), new_x, new_y.reshape(-1)


def standardised(x: Any, y: Any, new_x: Any, new_y: Any) -> Part:
    """Return all train rows and the test rows."""
    return Part(x, y, new_x, new_y)


def inner(table: tuple[Any, Any, Any, Any], s: int) -> Part:
    """Put a fifth of the train rows aside."""
    x, y = table[:2]
    order = np.random.default_rng(s).permutation(len(y))
    aside, others = order[: len(y) // 5], order[len(y) // 5 :]
    return Part(x[others], y[others], x[aside], y[aside])


# -- training ----------------------------------------------------------------------------------------------------------


class _How:
    """What all members of one training have in common."""

    def __init__(self, guide: str, law: Any, hidden: list[int], epochs: int, batch_size: int, rate: float) -> None:
        self.guide, self.law, self.hidden = guide, law, hidden
        self.epochs, self.batch_size, self.rate = epochs, batch_size, rate

    def model(self, part: Part) -> BNN:
        net = MLP(part.x.shape[1], self.law.outputs(1), self.hidden)
        return BNN(net, priors.FanIn(), self.law, num_data=len(part.y))

    def new_guide(self, model: BNN) -> Any:
        if self.guide == "map":
            return AutoPoint(model)
        return (
            AutoDropout(model, rate=0.05) if self.guide == "mc-dropout" else AutoMeanFieldNormal(model, init_rho=-4.0)
        )

    def optim(self) -> Any:
        if self.guide in ("map", "mc-dropout"):
            return Adam({"lr": self.rate}, schedule=Cosine(0.01))
        return PerSite(loc=Adam({"lr": self.rate}), scale=Adam({"lr": 2 * self.rate}), schedule=Cosine(0.01))


def _trained(how: _How, parts: Sequence[Part], etas: Sequence[float], seed: int) -> Stack:
    """Return a trained member for each part and eta, as one stack."""
    torch.manual_seed(seed)
    models = [how.model(part) for part in parts]
    guides = [how.new_guide(model) for model in models]
    with local_reparameterization() if how.guide == "local" else nullcontext():
        fit_many(
            models,
            guides,
            how.optim(),
            [(part.x, part.y) for part in parts],
            epochs=how.epochs,
            batch_size=min(how.batch_size, *(len(part.y) for part in parts)),
            kl=[kl.tempered(eta) for eta in etas],
            seed=seed,
            history=False,
        )
    return Stack.of(models, guides)


# -- prediction and scores ---------------------------------------------------------------------------------------------


@torch.no_grad()
def _mixture(stack: Stack, members: Sequence[int], part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Return means and deviations of the S normals (S, N) in the units of the data, and the targets (N,)."""
    stack = stack.selected(members)
    generator = torch.Generator().manual_seed(1)
    x = part.new_x.expand(len(members), *part.new_x.shape)
    means, sds = [], []
    for _ in range(DRAWS // len(members)):
        noise = torch.stack([stack.guide.noise(stack.prior_loc[0], generator) for _ in members])
        mean, sd = stack.moments(x, noise)  # (M, N, 1) each
        means.append(mean[..., 0])
        sds.append(sd.expand_as(mean)[..., 0])
    mean, sd = torch.cat(means).double(), torch.cat(sds).double()
    return mean * part.y_sd + part.y_mean, sd * part.y_sd, part.new_y


def log_density(mean: Tensor, sd: Tensor, y: Tensor) -> Tensor:
    """Return log p(y), (N,), of even mixtures of normals (S, N)."""
    z = (y - mean) / sd
    return (-0.5 * z.square() - sd.log()).logsumexp(0) - 0.5 * math.log(2 * math.pi) - math.log(len(mean))


def _expected_size(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E|N(mean, variance)|."""
    sd = variance.sqrt()
    z = mean / sd
    return sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()) + mean * torch.erf(z / math.sqrt(2))


def crps(mean: Tensor, sd: Tensor, y: Tensor) -> Tensor:
    """Return the continuous ranked probability score (N,) of even mixtures of normals (S, N), in closed form."""
    scores = []
    for rows in torch.arange(len(y)).split(_CHUNK):
        m, v, t = mean[:, rows], sd[:, rows].square(), y[rows]
        apart = _expected_size(m.unsqueeze(0) - m.unsqueeze(1), v.unsqueeze(0) + v.unsqueeze(1))  # (S, S, rows)
        scores.append(_expected_size(m - t, v).mean(0) - 0.5 * apart.mean((0, 1)))
    return torch.cat(scores)


def scores_of(mean: Tensor, sd: Tensor, y: Tensor) -> dict[str, float]:
    """Return the scores of even mixtures of normals (S, N) at targets (N,)."""
    below = (0.5 * (1 + torch.erf((y - mean) / (sd * math.sqrt(2))))).mean(0)  # F(y), (N,)
    covered = {f"cover{c}": float(((below - 0.5).abs() <= c / 200).double().mean()) for c in LEVELS}
    return {
        "ll": float(log_density(mean, sd, y).mean()),
        "rmse": float((mean.mean(0) - y).square().mean().sqrt()),
        "crps": float(crps(mean, sd, y).mean()),
        **covered,
    }
