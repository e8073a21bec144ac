"""A regressor: numbers from a table, with their distribution."""

from collections.abc import Iterator
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin

from pyro_bnn.common.mixtures import MixtureMoments
from pyro_bnn.inference.predictive import RealDraw
from pyro_bnn.models.likelihoods import HeteroscedasticGaussian, LearnedGaussian, Likelihood
from pyro_bnn.sklearn.base import BaseBNN
from pyro_bnn.sklearn.distribution import PredictiveDistribution

__all__ = ["BNNRegressor"]

Array = npt.NDArray[np.float64]

_ROWS_AT_ONCE = 20_000


@final
class BNNRegressor(RegressorMixin, BaseBNN):  # type: ignore[misc]
    """
    Regression by an ensemble of Bayesian neural networks, with noise that depends on the inputs.

    :param hidden: widths of the hidden layers; "auto" chooses by the number of rows.
    :param activation: "relu", "tanh" or "silu".
    :param members: how many mean-field posteriors the ensemble has; they are trained at once.
    :param eta: the weight on the KL; 1 is the ELBO itself, less is surer of itself and fits more closely.
    :param prior_gain: weights have the prior N(0, gain / fan-in).
    :param learning_rate: of Adam, at the start; it falls to 0.
    :param steps: steps of the training; "auto" chooses by the number of rows.
    :param batch_size: rows per step; likewise.
    :param early_stopping: whether to hold rows out and keep the best epoch on them.
    :param validation_fraction: the part of the rows that is then held out.
    :param num_samples: draws of the weights in a prediction, shared out among the members.
    :param device: where to train; predictions run on the CPU.
    :param random_state: a number for the same fit again.
    :param noise: "input" for a noise level that depends on the inputs, "constant" for one level.

    `posterior_` is what was fitted, a `pyro_bnn.Posterior`; `history_` has a line per epoch.

    >>> import numpy as np
    >>> from pyro_bnn.sklearn import BNNRegressor
    >>> x = np.linspace(-1, 1, 200)[:, None]
    >>> y = x[:, 0] ** 2 + np.random.default_rng(0).normal(0, 0.05, 200)
    >>> model = BNNRegressor(members=2, steps=300, random_state=0).fit(x, y)
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - 0.25) < 0.1), bool(0.02 < std[0] < 0.2)
    (True, True)
    >>> lower, upper = model.predict_interval([[0.5]], level=0.9)
    >>> bool(lower[0] < 0.25 < upper[0])
    True
    """

    def __init__(
        self,
        hidden: Any = "auto",
        activation: str = "relu",
        members: int = 5,
        eta: float = 0.3,
        prior_gain: float = 1.0,
        learning_rate: float = 0.01,
        steps: Any = "auto",
        batch_size: Any = "auto",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        num_samples: int = 50,
        device: Any = None,
        random_state: Any = None,
        noise: str = "input",
    ) -> None:
        super().__init__(
            hidden, activation, members, eta, prior_gain, learning_rate, steps, batch_size, early_stopping,
            validation_fraction, num_samples, device, random_state,
        )  # fmt: skip
        self.noise = noise

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.noise not in ("input", "constant"):
            raise ValueError(f"noise={self.noise!r} is unknown: pass 'input' or 'constant'")

    def _y_options(self) -> dict[str, Any]:
        return {"y_numeric": True}

    def _targets(self, y: Any) -> Any:
        return np.ascontiguousarray(y, dtype=np.float64)

    def _outputs(self) -> int:
        return 2 if self.noise == "input" else 1

    def _likelihood(self, together: bool) -> Likelihood:
        return HeteroscedasticGaussian() if self.noise == "input" else LearnedGaussian(0.5)

    def _info(self) -> dict[str, Any]:
        return {"task": "regression"}

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BNNRegressor":
        """
        Take one pass over more rows, at a constant rate, from where the posterior is.

        The rows stand for all that were seen: the KL counts 1/N of all of them. Columns keep the scale of the rows that
        came first.

        :param X: rows of the table, (n, D).
        :param y: their targets, (n,).
        :param sample_weight: how often each row counts, (n,).
        """
        return self._more(X, y, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """
        Return the mean of each row, (N,), and its standard deviation if asked for.

        :param X: the table, (N, D).
        :param return_std: whether to return (mean, std).
        """
        X = self._inputs(X)
        moments = MixtureMoments(torch.Size([len(X)]))
        for mean, sd in self._draws(X):
            moments.update(mean, sd)
        return (moments.mean.numpy(), moments.sd.numpy()) if return_std else moments.mean.numpy()

    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """
        Return the whole predictive distribution of each row; its memory grows as `num_samples` times N.

        :param X: the table, (N, D).
        """
        return self._dist(self._inputs(X))

    def _dist(self, X: Any) -> PredictiveDistribution:
        means, sds = zip(*self._draws(X), strict=True)
        return PredictiveDistribution(torch.stack(means), torch.stack(sds))

    def _draws(self, X: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield mean and deviation of the rows under one draw of the weights after another, in float64."""
        for draw in self.posterior_.stream(X, int(self.num_samples), seed=self.seed_, standardised=False):
            assert isinstance(draw, RealDraw)
            yield draw.mean, draw.sd

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Array, Array]:
        """
        Return the ends of the central predictive interval of each row, (N,) each.

        The model's own interval, which is as right as the model is; `pyro_bnn.analysis.conformal` calibrates it.

        :param X: the table, (N, D).
        :param level: how much probability lies between the ends.
        """
        X = self._inputs(X)
        parts = [self._dist(X[i : i + _ROWS_AT_ONCE]).interval(level) for i in range(0, len(X), _ROWS_AT_ONCE)]
        lower, upper = (np.concatenate(ends) for ends in zip(*parts, strict=True))
        return lower, upper
