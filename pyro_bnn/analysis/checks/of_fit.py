"""
Checks of the fit: whether N is that of the rows, whether the loss was still falling, whether it falls when fitted on.

Drift: the losses of the last half of the epochs are regressed on the epoch's number. At a standstill the slope's
t-test is significant in 1 % of all fits if the losses of epochs are independent; that they are nearly so, and what
correlations do to it, is a test of this library.

Settling: the posterior is fitted on for some steps with Adam, half of them at a rate of 1e-3 and half at 1e-4, its ELBO
is compared on other rows, by the same draws, and it is put back to what it was. What it gains says how far from its
optimum the posterior is, whatever the reason: too few steps, a rate that keeps it jumping, parameters that were never
trained.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.optim import Adam  # type: ignore[attr-defined]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn.analysis.checks.check import Check
from pyro_bnn.analysis.checks.rows import Rows
from pyro_bnn.common.contract import Guide
from pyro_bnn.common.modules import evaluation_mode
from pyro_bnn.common.sites import sample_sites
from pyro_bnn.inference.checkpoint import parameters_of, restore_parameters
from pyro_bnn.inference.fitted import fitted_of, leave_fitted
from pyro_bnn.inference.kl import kl_divergence, tempered
from pyro_bnn.inference.predictive import observation_log_prob, predictive_draws
from pyro_bnn.inference.svi import fit
from pyro_bnn.posterior import Posterior

__all__ = ["check_drift", "check_num_data", "check_settled", "drift", "num_data_of"]

ALPHA = 0.01
"""How often the drift test calls a fit at a standstill falling."""
MIN_EPOCHS = 10
_SEEN = 1000
"""On how many rows, at most, the ELBO is compared before and after."""


def num_data_of(posterior: Posterior, rows: Rows) -> int | None:
    """Return N as the program counts it: what it scales the likelihood of these rows to."""
    with posterior.turn(rows.x[:1]), torch.random.fork_rng(), torch.no_grad(), poutine.block():
        sites = sample_sites(poutine.trace(posterior.model).get_trace(rows.x[:2]))
    observed = sites.get("obs")
    scale = None if observed is None else torch.as_tensor(observed["scale"])
    return None if scale is None or scale.numel() != 1 else round(float(scale) * 2)


def check_num_data(said: int | None, rows: int) -> Check:
    """Check the N that the program counts against the rows it was fitted to."""
    name = "num_data"
    if said is None:
        return Check(name, "not checked", "The program does not say how many rows it counts.")
    fitted_to = said
    threshold = "more than there are is doubtful; off by a factor of 1.5 is bad (own marks)"
    off = max(fitted_to, rows) / max(1, min(fitted_to, rows))
    if off < 1.01:
        return Check(name, "good", f"Fitted with N = {said}, as many as there are rows.", threshold, off)
    if fitted_to < rows and off < 1.5:
        words = f"Fitted with N = {said} of {rows} rows, as if {rows - fitted_to} were kept for validation."
        return Check(name, "good", words, threshold, off)
    eta = rows / max(fitted_to, 1)
    words = (
        f"Fitted with N = {said}, but there are {rows} rows: the KL counted {eta:.3g} times of what it should, which "
        f"is a tempering by eta = {eta:.3g}. Give the model num_data={rows}."
    )
    return Check(name, "bad" if off >= 1.5 else "doubtful", words, threshold, off)


def drift(losses: Sequence[float]) -> tuple[float, float]:
    """Return by how much the losses fell along their last half, and the one-sided p-value that they did not fall."""
    from scipy import stats

    half = list(losses)[len(losses) // 2 :]
    fit = stats.linregress(range(len(half)), half, alternative="less")
    return -float(fit.slope) * (len(half) - 1), float(fit.pvalue)


def check_drift(history: Sequence[Mapping[str, Any]]) -> Check:
    """Check whether the training loss was still falling when the training ended."""
    name = "drift"
    losses = [float(line["loss"]) for line in history if isinstance(line.get("loss"), (int, float))]
    if len(losses) < MIN_EPOCHS:
        words = f"Needs the losses of {MIN_EPOCHS} epochs and has {len(losses)}: pass history=, as fit returns it."
        return Check(name, "not checked", words)
    if not all(map(math.isfinite, losses)):
        return Check(name, "bad", "The loss was not finite.", "", math.nan)
    fall, p = drift(losses)
    threshold = "p below .01 and a fall of .01 nats a row is doubtful, of .1 bad (own marks)"
    words = f"Over the last half of the training the loss fell by {fall:.3g} nats a row (p = {p:.2g})."
    if p >= ALPHA or fall < 0.01:
        return Check(name, "good", words, threshold, fall)
    return Check(name, "bad" if fall >= 0.1 else "doubtful", words + " Train longer.", threshold, fall)


def _negative_elbo(posterior: Posterior, rows: Rows, num_data: int, draws: int, seed: int) -> torch.Tensor:
    """Return the expected NLL of every row plus eta KL / N, (n,)."""
    eta = float(posterior.info.get("eta", 1.0))
    with posterior.turn(rows.x[:1]), torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        kl = float(kl_divergence(posterior.model, posterior.guide, rows.x[:2], rows.y[:2])) / num_data
        drawn = predictive_draws(posterior.model, posterior.guide, rows.x, draws, seed=seed)
        nll = -torch.stack([observation_log_prob(d, rows.y, missing=True).double() for d in drawn]).mean(0)
    return nll + eta * kl


def check_settled(
    posterior: Posterior, train: Rows, num_data: int, *, steps: int, batch_size: int, draws: int, seed: int
) -> Check:
    """Check what the ELBO gains when the posterior is fitted on for some steps."""
    name = "settled"
    guide, model = posterior.guide, posterior.model
    own = isinstance(guide, Guide) and guide.trains_scales and not guide.decks()
    if not own or not isinstance(guide, nn.Module) or not isinstance(model, nn.Module):
        return Check(name, "not checked", "Asked of this library's variational guides of a BNN only.")
    if posterior.info.get("temperature", 1.0) != 1:
        return Check(name, "not checked", "The posterior is cold: its loss is another.")
    size = max(len(train) // 2, len(train) - _SEEN)
    fitted_to, seen_by = _halves(train, size)
    before = _negative_elbo(posterior, seen_by, num_data, draws, seed)
    with _fitted_on(posterior, fitted_to, num_data, steps, batch_size, seed):
        after = _negative_elbo(posterior, seen_by, num_data, draws, seed)
    gain = before - after  # (n,)
    mean, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain))
    threshold = "a gain of .01 nats a row is doubtful, of .1 bad, if it is 4 standard errors from 0 (own marks)"
    words = f"Fitted on for {steps} steps, the ELBO gains {mean:.3g} +- {error:.2g} nats a row."
    if mean < 0.01 or mean < 4 * error:
        return Check(name, "good", words, threshold, mean)
    words += (
        " It is far from its optimum: were all parameters trained, was the rate too high, was the training too short?"
        if mean >= 0.1
        else " It was ended before its optimum, which may be meant where validation ended it."
    )
    return Check(name, "bad" if mean >= 0.1 else "doubtful", words, threshold, mean)


def _halves(rows: Rows, size: int) -> tuple[Rows, Rows]:
    parts = (slice(0, size), slice(size, None))
    first, second = (Rows(rows.x[p], rows.y[p], rows.marked[p], rows.raw_y[p]) for p in parts)
    return first, second


@contextmanager
def _fitted_on(
    posterior: Posterior, rows: Rows, num_data: int, steps: int, batch_size: int, seed: int
) -> Iterator[None]:
    """Fit a posterior on, and put back what it was."""
    model, guide = posterior.model, posterior.guide
    batch = min(batch_size, len(rows))
    epochs = max(1, round(steps * batch / len(rows) / 2))
    eta = float(posterior.info.get("eta", 1.0))
    with posterior.turn(rows.x[:1]), evaluation_mode(model, guide), torch.random.fork_rng():
        kept, fitted = parameters_of(model, guide), fitted_of(guide)
        try:
            for rate in (1e-3, 1e-4):
                order = torch.Generator().manual_seed(seed)
                loader = DataLoader(TensorDataset(rows.x, rows.y), batch, shuffle=True, generator=order)
                optimizer: Any = Adam({"lr": rate})
                fit(model, guide, optimizer, loader, epochs=epochs, num_data=num_data, kl=tempered(eta), seed=seed)
            yield
        finally:
            restore_parameters(model, guide, kept)
            if fitted is not None:
                leave_fitted(guide, fitted)
