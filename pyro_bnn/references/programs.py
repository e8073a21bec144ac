"""
Six small programs whose posteriors are known well: what they are, as recipes, and their rows.

    logistic-regression     y ~ Bernoulli(sigma(w'x + b)),                      w, b ~ N(0, 1)                 P = 5
    conjugate-regression    y ~ N(w'x + b, .5^2),                               w, b ~ N(0, 1)                 P = 4
    one-layer-regression    y ~ N(v' tanh(W x + b) + c, .4^2),  8 units,        all ~ N(0, 1)                  P = 25
    one-layer-classes       y ~ Bernoulli(sigma(v' tanh(W x + b) + c)), 6,      all ~ N(0, 1)                  P = 25
    gamma-network           y ~ N(v' tanh(W x + b) / sqrt 6 + c, 1 / gamma),    weights ~ N(0, 1 / lambda)     P = 21
                            lambda ~ Gamma(3, 3), gamma ~ Gamma(6, .6)
    last-layer              y ~ Categorical(softmax(W f + b)), f of LeNet-5,    W, b ~ N(0, 1 / 84)            P = 850

Of conjugate-regression the posterior is also known in closed form, so that it tests whatever is compared with it. What
is compared are functions of the weights (`quantities`), since hidden units can be exchanged: the mean of y where y is a
number, and for classes the logits less their mean over classes, all but the last class's, at inputs `at` (Q in all).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.data.sources import Source
from pyro_bnn.inference.draws import Draw, RealDraw, draw_of
from pyro_bnn.inference.predictive import observation
from pyro_bnn.posterior import Posterior
from pyro_bnn.references.stored import read_rows

__all__ = [
    "NOISE",
    "PROGRAMS",
    "Program",
    "function_draws",
    "gamma_network",
    "program_of",
    "quantities",
    "quantities_of",
    "source",
]

NOISE = {"conjugate-regression": 0.5, "one-layer-regression": 0.4}
"""The known standard deviations of the targets."""

UNITS = 6
"""Of the network under a Gamma prior."""


@final
@dataclass(frozen=True)
class Program:
    """
    A program as a recipe.

    :param name: what it is called.
    :param words: a line that says what it is.
    :param recipe: the recipe's keys, without its rows and its method.
    :param nuts: how its reference is drawn: numbers of the method `nuts`.
    :param langevin: the learning rate, per datum, of samplers that follow the gradient with noise.
    """

    name: str
    words: str
    recipe: Mapping[str, Any]
    nuts: Mapping[str, Any] = field(default_factory=dict)
    langevin: float = 1e-2

    def settings(self) -> dict[str, Any]:
        """Return the recipe's keys, the rows among them; all rows are a batch, and nothing is tempered."""
        return {
            "name": self.name,
            "data": "pyro_bnn.references.programs:source",
            "data_args": {"reference": self.name, "standardise": False},
            "val_fraction": 0.0,
            "eta": 1.0,
            **self.recipe,
        }


def _network(hidden: list[int], likelihood: Mapping[str, Any], prior: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": "mlp",
        "model_args": {"hidden": hidden, "activation": "tanh"},
        "likelihood": dict(likelihood),
        "prior": dict(prior),
    }


_UNIT = {"name": "normal", "scale": 1.0}

PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        Program(
            "logistic-regression",
            "logistic regression on 60 rows of 4 correlated inputs",
            _network([], {"name": "bernoulli"}, _UNIT),
            langevin=0.3,
        ),
        Program(
            "conjugate-regression",
            "linear regression on 30 rows of 3 inputs with known noise; its posterior is known in closed form",
            _network([], {"name": "gaussian", "noise": NOISE["conjugate-regression"]}, _UNIT),
            langevin=3e-2,
        ),
        Program(
            "one-layer-regression",
            "8 hidden units, 20 rows in two clusters, known noise",
            _network([8], {"name": "gaussian", "noise": NOISE["one-layer-regression"]}, _UNIT),
            nuts={"target_accept": 0.9},
            langevin=5e-3,
        ),
        Program(
            "one-layer-classes",
            "6 hidden units, 60 rows in two bent classes",
            _network([6], {"name": "bernoulli"}, _UNIT),
            nuts={"target_accept": 0.9},
            langevin=0.1,
        ),
        Program(
            "gamma-network",
            "6 hidden units, 25 rows; the precisions of weights and noise have Gamma priors",
            {"program": "pyro_bnn.references.programs:gamma_network"},
            nuts={"target_accept": 0.99},
            langevin=3e-3,
        ),
        Program(
            "last-layer",
            "the last layer of LeNet-5 on the features of 200 digits",
            _network([], {"name": "categorical"}, {"name": "fan_in"}),
            langevin=0.1,
        ),
    )
}
"""The programs by name."""


def program_of(name: str) -> Program:
    """
    Return a program by its name.

    :param name: one of `PROGRAMS`.
    """
    if name not in PROGRAMS:
        raise ValueError(f"{name!r} is no reference: choose one of {', '.join(PROGRAMS)}")
    return PROGRAMS[name]


def gamma_network(x: Tensor, y: Tensor | None = None) -> None:
    """
    Run a network of one hidden layer whose weights' precision and noise's precision have Gamma priors.

    :param x: inputs (N, D).
    :param y: targets (N,).
    """
    one, inputs = x.new_ones(()), x.shape[-1]
    sd = pyro.sample("precision", dist.Gamma(3 * one, 3 * one)).rsqrt()
    noise = pyro.sample("noise_precision", dist.Gamma(6 * one, 0.6 * one)).rsqrt()

    def weights(name: str, *shape: int) -> Tensor:
        drawn: Tensor = pyro.sample(name, dist.Normal(0 * one, sd).expand(shape).to_event(len(shape)))
        return drawn

    hidden = torch.tanh(x @ weights("w1", inputs, UNITS) + weights("b1", UNITS))  # (N, H)
    mean = hidden @ weights("w2", UNITS) / UNITS**0.5 + weights("b2", 1)  # (N,)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(mean, noise), obs=y)


def source(reference: str) -> Source:
    """
    Return the rows of a reference, as recipes name them; the test rows are the training rows.

    :param reference: the program's name.
    """
    rows = read_rows(program_of(reference).name)
    x, y = rows["x"].numpy(), rows["y"].numpy()
    return Source(reference, x, y, x, y)


def quantities_of(draw: Draw) -> Tensor:
    """
    Return what of a predictive draw is compared, (Q,) in float64.

    :param draw: what one draw of the weights says about y at inputs.
    """
    if isinstance(draw, RealDraw):
        return draw.mean.reshape(-1).double()
    log_probs = draw.log_probs.double()  # (A, K)
    return (log_probs - log_probs.mean(-1, keepdim=True))[:, :-1].reshape(-1)


@torch.no_grad()
def quantities(model: Callable[..., Any], latents: Mapping[str, Tensor], at: Tensor) -> Tensor:
    """
    Return what is compared of the values of a program's sites, (Q,).

    :param model: the program.
    :param latents: the values by site.
    :param at: the inputs, (A, D).
    """
    return quantities_of(draw_of(observation(model, dict(latents), at)))


def function_draws(posterior: Posterior, at: Tensor, draws: int, seed: int = 0) -> Tensor:
    """
    Return draws of what is compared from any posterior, (S, Q).

    :param posterior: the posterior.
    :param at: the inputs, (A, D).
    :param draws: S.
    :param seed: of the draws.
    """
    return torch.stack([quantities_of(draw) for draw in posterior.stream(at, draws, seed=seed)])
