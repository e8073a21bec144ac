"""
One UCI set by a method whose trainings are not batched: one split after the other, one network.

The rules are those of :mod:`pyro_bnn.studies._uci`: the same network, rows, standardisation, choice of eta on a fifth
of the split's own train rows, epochs, rates and scores. What differs is the method:

    hwa        a mean-field normal, weights drawn, whose means and variances are averaged over the second half of the
               training, a snapshot every epoch; the rate falls to a tenth within each of these epochs
    low-rank   N(mu, D + W W') of rank 5, trained with its exact KL
    nuts       150 transitions of warm-up and 100 draws of one chain of NUTS, trees of at most 7 doublings, from the
               posterior itself (eta = 1: nothing is chosen), begun at a draw of the prior; too short to be a reference

"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.guides import AutoLowRankNormal, AutoMeanFieldNormal, StoredDraws
from pyro_bnn.inference import HWA, FlatMeanField_ELBO, TraceLowRank_ELBO, fit, kl, predictive_draws, run_chain
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam, Cosine, PerSite, make_schedule
from pyro_bnn.studies._uci import DRAWS, Part, add_means, inner, log_density, read_split, scores_of, standardised

__all__ = ["METHODS", "one_set"]

RANK = 5
WARMUP, TREE_DEPTH = 150, 7


def one_set(
    data: str,
    method: str,
    hidden: Sequence[int] = (50,),
    splits: int = 20,
    etas: Sequence[float] = (0.1, 0.3, 1.0),
    epochs: int = 400,
    batch_size: int = 64,
    rate: float = 1e-2,
    seed: int = 0,
) -> dict[str, Any]:
    """
    Return the scores of every split as lists, and the chosen etas.

    :param data: name of the set in the data root.
    :param method: one of `METHODS`.
    :param etas: what is chosen from; "nuts" takes the last of them.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown: pass one of {', '.join(METHODS)}")
    train = functools.partial(METHODS[method], epochs=epochs, batch_size=batch_size, rate=rate)
    candidates = list(etas) if method != "nuts" else [etas[-1]]
    scores: dict[str, Any] = {"eta": [], "rows": []}
    for s in range(splits):
        table = read_split(data, s)
        part, eta = inner(table, s), candidates[0]
        if len(candidates) > 1:
            found = [
                _validation(train, part, hidden, eta, seed + 10_000 + s * len(candidates) + i)
                for i, eta in enumerate(candidates)
            ]
            eta = candidates[max(range(len(found)), key=found.__getitem__)]
            scores.setdefault("val_ll", []).append(max(found))
        scores["eta"].append(eta)
        scores["rows"].append(len(table[0]))
        whole = standardised(*table)
        model = _model(whole, hidden)
        for name, value in scores_of(*_mixture(model, train(model, whole, eta, seed + s), whole)).items():
            scores.setdefault(name, []).append(value)
    add_means(scores)
    return scores


def _validation(train: Callable[..., Any], part: Part, hidden: Sequence[int], eta: float, seed: int) -> float:
    """Return the log-likelihood of the rows put aside."""
    model = _model(part, hidden)
    return float(log_density(*_mixture(model, train(model, part, eta, seed), part)).mean())


def _model(part: Part, hidden: Sequence[int]) -> BNN:
    law = likelihoods.HeteroscedasticGaussian()
    return BNN(MLP(part.x.shape[1], law.outputs(1), list(hidden)), priors.FanIn(), law, num_data=len(part.y))


# -- training: each returns a guide ------------------------------------------------------------------------------------


def _hwa(model: BNN, part: Part, eta: float, seed: int, *, epochs: int, batch_size: int, rate: float) -> Any:
    torch.manual_seed(seed)
    guide = AutoMeanFieldNormal(model, init_rho=-4.0)
    batch_size = min(batch_size, len(part.y))
    per_epoch = -(-len(part.y) // batch_size)
    average = HWA(guide, start=epochs // 2 * per_epoch, cycle=per_epoch)
    falling = make_schedule("sawtooth", start=epochs // 2, cycle=1.0, low=0.1)
    optim = PerSite(loc=Adam({"lr": rate}), scale=Adam({"lr": 2 * rate}), schedule=falling)
    _fit(model, guide, optim, part, epochs, batch_size, eta, seed, elbo=FlatMeanField_ELBO(), callbacks=[average])
    average.apply()
    return guide


def _low_rank(model: BNN, part: Part, eta: float, seed: int, *, epochs: int, batch_size: int, rate: float) -> Any:
    torch.manual_seed(seed)
    guide = AutoLowRankNormal(model, rank=RANK)
    optim = PerSite(loc=Adam({"lr": rate}), scale=Adam({"lr": 2 * rate}), schedule=Cosine(0.01))
    elbo = TraceLowRank_ELBO()  # type: ignore[no-untyped-call]
    _fit(model, guide, optim, part, epochs, min(batch_size, len(part.y)), eta, seed, elbo=elbo)
    return guide


def _fit(
    model: BNN, guide: Any, optim: Any, part: Part, epochs: int, batch_size: int, eta: float, seed: int, **how: Any
) -> None:
    fit(
        model,
        guide,
        optim,
        (part.x, part.y),
        epochs=epochs,
        batch_size=batch_size,
        kl=kl.tempered(eta),
        seed=seed,
        progress=False,
        **how,
    )


def _nuts(model: BNN, part: Part, eta: float, seed: int, *, epochs: int, batch_size: int, rate: float) -> Any:
    chain = run_chain(
        model,
        (part.x, part.y),
        warmup=WARMUP,
        draws=DRAWS,
        seed=seed,
        eta=eta,
        max_tree_depth=TREE_DEPTH,
        start="prior",
    )
    guide = StoredDraws(model, num_draws=DRAWS, kind="nuts")
    with torch.no_grad():
        guide.draws.copy_(guide.flatten(chain.samples))  # (S, P)
    return guide


METHODS: dict[str, Callable[..., Any]] = {"hwa": _hwa, "low-rank": _low_rank, "nuts": _nuts}
"""How each is trained: program, rows, eta and seed in, guide out."""


# -- prediction --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _mixture(model: BNN, guide: Any, part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Return means and deviations of the S normals (S, N) in the units of the data, and the targets (N,)."""
    draws: list[Any] = list(predictive_draws(model, guide, part.new_x, DRAWS, seed=1))
    mean = torch.stack([draw.mean.reshape(-1) for draw in draws]).double()
    sd = torch.stack([draw.sd.reshape(-1) for draw in draws]).double()
    return mean * part.y_sd + part.y_mean, sd * part.y_sd, part.new_y
