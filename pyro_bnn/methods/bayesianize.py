"""
From a trained network to a posterior: `pb.bayesianize(net, data)`.

The rules, for the weights that become random variables (l is one parameter tensor of the network, w_l its values):

    prior        w_l ~ N(0, s_l^2), s_l the root mean square of the trained w_l: the variance that maximises their
                 density. A tensor of zeros (a bias that was never trained) has the scale of the other weights
    start        mean = the trained weights, sigma = 0.02 s_l
    target       eta = min(1, N / P) / 10 for N rows and P random weights
    training     a few epochs of SVI by Adam. The rates follow from the number of steps, so that a longer training goes
                 not further but more finely: a mean by 0.3 s at most (s the median of the s_l), a rho by 8
    calibration  one number, by the NLL of the averaged predictive on validation rows: the temperature that divides the
                 outputs of every draw, or for normal noise the level of the noise
    kept         the epoch with the lowest such NLL, the start included

Why a tempered target. Under eta = 1 the posterior of a network with more weights than rows is close to its prior, and a
training that gets there unlearns what the network knows. What is wanted is the posterior around the trained weights.

What is not random stays as it is: layers that were not chosen, and normalisation layers. Batch normalisation runs on
its running statistics as they are, in training as in prediction (torch's eval mode), as the trained network does:
statistics of a batch would undo what a draw does to the scale of a layer, and let deviations grow at no cost.

Validation rows must not be those that the network was trained on; on those it looks surer than it is. A `Data` has some
if it was loaded with `val_fraction`. From other data a tenth is held out, which is right only if the network has not
seen it, and is said in the log.

References: Guo et al. 2017 (temperature); Krishnan, Subedar and Tickoo 2020 (a prior and a start from a trained
network); Kristiadi, Hein and Hennig 2020 (the last layer alone).
"""

import glob
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from pyro_bnn.data import Data, Split, as_split
from pyro_bnn.data.arrays import first_rows, members, pieces
from pyro_bnn.data.standardise import plain
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import Callback, FitState, fit, kl
from pyro_bnn.inference.checkpoint import parameters_of, restore_parameters
from pyro_bnn.inference.predictive import ClassDraw, RealDraw, predictive_draws
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.models.bnn import NORM_LAYERS
from pyro_bnn.optim import Adam, Cosine, PerSite
from pyro_bnn.posterior import Posterior

log = logging.getLogger(__name__)

__all__ = ["Layers", "bayesianize"]

Layers: TypeAlias = Literal["all", "last"] | str | Sequence[str]
"""Which weights become random: all, those of the layer that runs last, or patterns of their names."""

START = 0.02
"""The first sigma as a share of the prior's."""
MEAN_TRAVEL = 0.3
"""How far a mean may go, as a share of the prior's deviation."""
RHO_TRAVEL = 8.0
"""How far a rho may go."""
LEAST_STEPS = 50
HELD_OUT = 0.1
MOST_VAL_ROWS = 2000
TEMPERATURES = (0.05, 20.0)


def bayesianize(
    net: nn.Module,
    data: Any,
    layers: Layers = "all",
    *,
    val: Any = None,
    epochs: int | None = None,
    likelihood: likelihoods.Likelihood | None = None,
    batch_size: int = 100,
    num_samples: int = 8,
    seed: int = 0,
) -> Posterior:
    """
    Return a posterior around the weights of a trained network, by the rules at the top of the module.

    :param net: a trained network, x (B, ...) to logits (B, K) or to means (B, D); it is copied and stays as it is.
    :param data: the rows it was trained on, as it was shown them: a `Data`, (x, y), a Split, a Dataset or a DataLoader.
    :param layers: 'all' (but normalisation layers), 'last', or patterns of parameter names, such as 'fc*'.
    :param val: rows that it was not trained on; default those of a `Data`, else a tenth of the rows.
    :param epochs: default 2, or as many as make 50 steps: a tenth of a training of 20 epochs or 500 steps.
    :param likelihood: default `Categorical` for integer labels (`Bernoulli` if there is one output), and
        `LearnedGaussian` for numbers.
    :param batch_size: rows of a step.
    :param num_samples: draws by which epochs are compared and the temperature is fitted.
    :param seed: of the training and of the draws.
    :return: the posterior; `info["notes"]["bayesianize"]` says what was done, and what it brought on validation.

    >>> import torch
    >>> import pyro_bnn as pb
    >>> from pyro_bnn.models import MLP
    >>> x = torch.randn(400, 2)
    >>> y = (x.sum(-1) > 0).long()
    >>> net = MLP(2, 2, [8])
    >>> optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    >>> for _ in range(200):
    ...     optimizer.zero_grad()
    ...     torch.nn.functional.cross_entropy(net(x[:300]), y[:300]).backward()
    ...     optimizer.step()
    >>> posterior = pb.bayesianize(net, (x[:300], y[:300]), val=(x[300:], y[300:]))
    >>> posterior.predict(x[:3], seed=0).shape
    torch.Size([3, 2])
    >>> sorted(posterior.info["notes"]["bayesianize"]["val_nll"])
    ['network', 'posterior', 'scaled network']
    """
    started = time.perf_counter()
    _check(net, epochs, num_samples)
    train, held = _rows(data, val, seed)
    batch_size = min(batch_size, len(train))
    steps_per_epoch = -(-len(train) // batch_size)
    epochs = max(2, -(-LEAST_STEPS // steps_per_epoch)) if epochs is None else epochs

    likelihood = _likelihood_of(net, train, held) if likelihood is None else likelihood
    selected = _select(net, layers, train)
    model = BNN(net, _prior_of(net, selected), likelihood, num_data=len(train), random=selected)
    model._modules["deterministic"].requires_grad_(False)  # type: ignore[union-attr]
    guide = AutoMeanFieldNormal(model, init_loc="net", relative_scale=START)
    eta = _eta(len(train), model)
    optim, rates = _optimizer(model, epochs * steps_per_epoch)
    score = _Score(model, guide, held, num_samples, seed)
    network = score.of(plug_in=True)
    kept = _Kept(score)
    fit(
        model,
        guide,
        optim,
        train,
        epochs=epochs,
        batch_size=batch_size,
        kl=kl.tempered(eta),
        callbacks=[kept],
        seed=seed,
    )
    assert kept.best is not None
    restore_parameters(model, guide, kept.best.parameters)
    _calibrate(model, kept.best.fitted)
    notes = {
        "layers": layers if isinstance(layers, str) else list(layers),
        "weights": int(guide.marginals()[0].numel()),
        "eta": eta,
        "rates": rates,
        "epochs": epochs,
        "steps": epochs * steps_per_epoch,
        "kept_epoch": kept.best.epoch,
        "temperature": kept.best.fitted.factor,
        "val_nll": {
            "network": network.nll,
            "scaled network": network.scaled_nll,
            "posterior": kept.best.fitted.scaled_nll,
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    log.info("bayesianize: %s", notes)
    info = {"method": "svi", "notes": {"bayesianize": notes}}
    return Posterior(model, guide, info)


# -- rows ------------------------------------------------------------------------------------------------------------


def _check(net: Any, epochs: Any, num_samples: Any) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net is a {type(net).__name__}: pass the trained torch.nn.Module")
    for name, value in (("epochs", epochs), ("num_samples", num_samples)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name}={value!r} is not allowed: pass an integer of at least 1")


def _rows(data: Any, val: Any, seed: int) -> tuple[Split, Split]:
    """Return the rows to train on and those held out."""
    if isinstance(data, Data):
        val = data.val if val is None else val
        data = data.train
    train = as_split(data)
    if val is not None:
        return train, _first(as_split(val))
    count = max(1, round(HELD_OUT * len(train)))
    if len(train) < 10:
        raise ValueError(f"{len(train)} rows leave none to hold out: pass val=(x, y)")
    log.warning(
        "%s of the %s rows are held out to choose on, which is right only if the network was not trained on them: pass "
        "val=(x, y), or data loaded with val_fraction",
        count,
        len(train),
    )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed)).to(train.y.device)
    return train.take(order[count:]), _first(train.take(order[:count]))


def _first(rows: Split) -> Split:
    """Return the validation rows, at most so many of them."""
    if len(rows) <= MOST_VAL_ROWS:
        return rows
    return rows.take(torch.arange(MOST_VAL_ROWS, device=rows.y.device))


@torch.no_grad()
def _outputs(net: nn.Module, x: Any) -> Tensor:
    """Return what the network says as it predicts (N, K)."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        return torch.cat([net(*members(part)) for part in pieces(_plain(x), 250)])
    finally:
        for module, training in modes:
            module.training = training


def _plain(x: Any) -> Any:
    return tuple(map(plain, x)) if isinstance(x, tuple) else plain(x)


# -- what is trained ---------------------------------------------------------------------------------------------------


def _likelihood_of(net: nn.Module, train: Split, held: Split) -> likelihoods.Likelihood:
    if not train.y.is_floating_point():
        one = _outputs(net, first_rows(train.x)).shape[-1] == 1
        return likelihoods.Bernoulli() if one else likelihoods.Categorical()
    outputs = _outputs(net, held.x)
    error = plain(held.y).reshape(outputs.shape) - outputs
    return likelihoods.LearnedGaussian(max(float(error.square().mean().sqrt()), 1e-6))


def _candidates(net: nn.Module) -> dict[str, nn.Module]:
    """Return the module of every parameter that may become random, by its first name."""
    modules = dict(net.named_modules())
    owners = {name: modules[name.rpartition(".")[0]] for name, _ in net.named_parameters()}
    return {name: owner for name, owner in owners.items() if not isinstance(owner, NORM_LAYERS)}


def _select(net: nn.Module, layers: Layers, train: Split) -> list[str]:
    """Return exact patterns of the weights that become random."""
    owners = _candidates(net)
    if layers == "all":
        return [glob.escape(name) for name in owners]
    if layers != "last":
        return [layers] if isinstance(layers, str) else list(layers)
    last = _runs_last(net, set(owners.values()), train)
    return [glob.escape(name) for name, owner in owners.items() if owner is last]


def _runs_last(net: nn.Module, owners: set[nn.Module], train: Split) -> nn.Module:
    """Return the module with weights of its own whose forward begins last."""
    called: list[nn.Module] = []
    handles = [owner.register_forward_pre_hook(lambda module, _: called.append(module)) for owner in owners]
    try:
        _outputs(net, first_rows(train.x))
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise ValueError("layers='last': no layer with weights was called: name its weights by patterns, as 'head.*'")
    return called[-1]


@torch.no_grad()
def _prior_of(net: nn.Module, selected: Sequence[str]) -> priors.PerLayer:
    """Return N(0, s_l^2) for every parameter, with the root mean square of its values."""
    owners = _candidates(net)
    scales = {name: float(p.double().square().mean().sqrt()) for name, p in net.named_parameters() if name in owners}
    usable = [scale for scale in scales.values() if scale > 0]
    if not usable or not all(math.isfinite(scale) for scale in scales.values()):
        raise ValueError("the network's weights are all 0, or not finite: pass a trained network")
    usual = sorted(usable)[len(usable) // 2]
    rules = {glob.escape(name): priors.Normal(0.0, scale or usual) for name, scale in scales.items()}
    return priors.PerLayer(rules, default=priors.Normal(0.0, usual))


def _eta(num_data: int, model: BNN) -> float:
    size: int = sum(prior.event_shape.numel() for prior in model.priors().values())
    return min(1.0, num_data / size) / 10


def _optimizer(model: BNN, steps: int) -> tuple[PerSite, dict[str, float]]:
    """Return the optimizer, and its rates; under a cosine a parameter goes at most half of rate times steps."""
    scales = sorted(float(prior.stddev.reshape(-1)[0]) for prior in model.priors().values())
    rates = {"loc": 2 * MEAN_TRAVEL * scales[len(scales) // 2] / steps, "scale": 2 * RHO_TRAVEL / steps}
    return PerSite(loc=Adam({"lr": rates["loc"]}), scale=Adam({"lr": rates["scale"]}), schedule=Cosine()), rates


# -- validation --------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class _Fitted:
    """The factor with the lowest validation NLL, and the NLL with and without it."""

    factor: float
    scaled_nll: float
    nll: float


@final
@dataclass(frozen=True)
class _Score:
    """The validation NLL of model and guide, and what one number more makes of it."""

    model: BNN
    guide: AutoMeanFieldNormal
    rows: Split
    num_samples: int
    seed: int

    def of(self, *, plug_in: bool = False) -> _Fitted:
        """Return the factor and the NLLs of the averaged predictive, or of the median."""
        count = 1 if plug_in else self.num_samples
        x, y = _plain(self.rows.x), plain(self.rows.y)
        draws = list(predictive_draws(self.model, self.guide, x, count, seed=self.seed, plug_in=plug_in))
        if isinstance(draws[0], ClassDraw):
            values = torch.stack([d.log_probs.double() for d in draws if isinstance(d, ClassDraw)])  # (S, N, K)
            labels = y.long().reshape(-1)

            def nll(factor: float) -> float:
                scaled = (values / factor).log_softmax(-1)[:, torch.arange(len(labels)), labels]  # (S, N)
                return float(math.log(count) - scaled.logsumexp(0).mean())

        elif isinstance(self.model.likelihood, likelihoods.LearnedGaussian):
            mean = torch.stack([d.mean.double() for d in draws if isinstance(d, RealDraw)])  # (S, N, D)
            sd = torch.stack([d.sd.double().expand_as(d.mean) for d in draws if isinstance(d, RealDraw)])
            target = y.double().reshape(mean.shape[1:])

            def nll(factor: float) -> float:
                log_prob = torch.distributions.Normal(mean, factor * sd).log_prob(target).sum(-1)  # (S, N)
                return float(math.log(count) - log_prob.logsumexp(0).mean())

        else:
            log_probs = torch.stack([d.log_prob(y).double() for d in draws])  # (S, N)
            value = float(math.log(count) - log_probs.logsumexp(0).mean())
            return _Fitted(1.0, value, value)

        return _lowest(nll)


def _lowest(nll: Callable[[float], float]) -> _Fitted:
    from scipy.optimize import minimize_scalar

    low, high = map(math.log, TEMPERATURES)
    found = minimize_scalar(lambda u: nll(math.exp(u)), bounds=(low, high), method="bounded", options={"xatol": 1e-4})
    factor, lowest, unscaled = math.exp(float(found.x)), float(found.fun), nll(1.0)
    return _Fitted(1.0, unscaled, unscaled) if unscaled <= lowest else _Fitted(factor, lowest, unscaled)


@final
@dataclass(frozen=True)
class _Best:
    epoch: int
    fitted: _Fitted
    parameters: Mapping[str, Mapping[str, Tensor]]


@final
class _Kept(Callback):
    """Lets the network run as it predicts, and holds the parameters of the best epoch, the start included."""

    def __init__(self, score: _Score) -> None:
        self.score = score
        self.best: _Best | None = None

    def start(self, state: FitState) -> None:
        """Put normalisation and dropout into eval mode; a recurrent layer on a GPU has no gradient there."""
        net = self.score.model.template
        on_gpu = any(p.is_cuda for p in net.parameters())
        for module in net.modules():
            module.training = isinstance(module, nn.RNNBase) and on_gpu
        self.epoch(state)

    def epoch(self, state: FitState) -> None:
        """Score what there is."""
        fitted = self.score.of()
        if self.best is None or fitted.scaled_nll < self.best.fitted.scaled_nll:
            kept = parameters_of(state.model, state.guide, state.store_names)
            self.best = _Best(state.epoch, fitted, {part: dict(values) for part, values in kept.items()})


@torch.no_grad()
def _calibrate(model: BNN, fitted: _Fitted) -> None:
    """Put the temperature into the likelihood, or the factor into the level of the noise."""
    if isinstance(model.likelihood, likelihoods.Categorical):
        model.likelihood = replace(model.likelihood, temperature=fitted.factor * model.likelihood.temperature)
    elif isinstance(model.likelihood, likelihoods.LearnedGaussian):
        noise: Any = model._modules["noise"]
        noise.noise = noise.noise * fitted.factor
