"""
What the estimators have in common: rows in, training, the posterior, keeping it.

A fit is of an ensemble of mean-field guides (:mod:`pyro_bnn.sklearn.members`) on standardised columns, by Adam whose
rate falls to 0 along a cosine, for the KL weight eta. A small table is passed through many times per epoch of `fit`
(its rows repeated r times, with the KL weight eta r, which is the same loss), as an epoch has a cost of its own.

A weight says how often a row counts. Whole weights of small tables are taken at their word: the rows are repeated, and
the fit is to the bit that of the repeated rows, in whatever order rows come (up to `_EXACT_ROWS` rows are put in order
first). Other weights multiply the log-likelihood of their row.
"""

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from pyro_bnn.common.manifest import read_listed, staged
from pyro_bnn.common.randomness import RandomState
from pyro_bnn.common.turns import alone
from pyro_bnn.data import Standardiser
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import Callback, FitState, FlatMeanField_ELBO, fit, kl
from pyro_bnn.inference.checkpoint import parameters_of, restore_parameters, store_with
from pyro_bnn.models import BNN, priors
from pyro_bnn.models.likelihoods import Likelihood
from pyro_bnn.optim import Adam, Constant, Cosine, PerSite
from pyro_bnn.posterior import Posterior
from pyro_bnn.posterior.posterior import forget_later
from pyro_bnn.sklearn.members import SideBySide, put_together, taken_apart
from pyro_bnn.sklearn.plan import Plan, plan_for

__all__ = ["BaseBNN"]

Self = TypeVar("Self", bound="BaseBNN")

_EXACT_ROWS = 10_000
_STEPS_PER_EPOCH = 64
_WORTH_RECORDING = 200
"""Steps of a training from which recording one pays."""

_DESCRIPTION = "estimator.json"
_PLAIN = ("n_features_in_", "rows_seen_", "n_steps_", "seed_")


class _Best(Callback):
    """Hold the parameters of the best epoch on the validation rows."""

    def __init__(self) -> None:
        self.parameters: Any = None

    def epoch(self, state: FitState) -> None:
        if state.best is None or state.best["epoch"] == state.epoch:
            self.parameters = parameters_of(state.model, state.guide)


@contextmanager
def _apart(seed: int) -> Iterator[None]:
    """Draw from a seed and keep parameters in a store of their own; the process's are afterwards as they were."""
    with alone(), store_with({}, alone=True):
        before = RandomState.now()
        torch.manual_seed(seed)
        try:
            yield
        finally:
            before.restore()


class BaseBNN(BaseEstimator):  # type: ignore[misc]
    """What both estimators do alike; see `BNNRegressor` for the parameters."""

    posterior_: Posterior

    def __init__(
        self,
        hidden: Any = "auto",
        activation: str = "relu",
        members: int = 5,
        eta: float = 0.3,
        prior_gain: float = 1.0,
        learning_rate: float = 0.02,
        steps: Any = "auto",
        batch_size: Any = "auto",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        num_samples: int = 50,
        device: Any = None,
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.members = members
        self.eta = eta
        self.prior_gain = prior_gain
        self.learning_rate = learning_rate
        self.steps = steps
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.num_samples = num_samples
        self.device = device
        self.random_state = random_state

    # -- what differs ------------------------------------------------------------------------------------------------

    def _targets(self, y: Any) -> Any:
        """Return targets as numbers, (N,), and remember what they stand for."""
        raise AssertionError("an estimator says what its targets are")

    def _likelihood(self, together: bool) -> Likelihood:
        """Return the likelihood of one member, or of all at once."""
        raise AssertionError("an estimator says what its likelihood is")

    def _outputs(self) -> int:
        """Return how many outputs a member has."""
        raise AssertionError("an estimator says what its network returns")

    def _info(self) -> dict[str, Any]:
        """Return what the posterior is to know besides."""
        return {}

    # -- fitting -----------------------------------------------------------------------------------------------------

    def fit(self: Self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """
        Fit the posterior anew.

        :param X: the table, (N, D): an array, or a frame of pandas or polars; numbers without missing values.
        :param y: targets or labels, (N,).
        :param sample_weight: how often each row counts, (N,).
        """
        X, y, weights = self._rows(X, y, sample_weight, reset=True)
        y = self._targets(y)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.rows_seen_ = len(X)
        train, val = self._held_out(X, y, weights)
        plan = plan_for(len(train[0]), self.hidden, self.batch_size, self.steps)
        self._scales(train[0], train[1])
        with _apart(self.seed_):
            repeats = max(1, round(_STEPS_PER_EPOCH * plan.batch_size / len(train[0])))
            repeats = min(repeats, max(1, plan.steps * plan.batch_size // len(train[0])))
            model = self._program(plan.hidden, len(train[0]) * repeats)
            guide = AutoMeanFieldNormal(model)
            self._train(model, guide, train, val, plan, repeats)
        return self

    def _more(self: Self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Take one pass over more rows."""
        first = not hasattr(self, "posterior_")
        X, y, weights = self._rows(X, y, sample_weight, reset=first)
        y = self._first_targets(y) if first else self._known_targets(y)
        if first:
            self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
            self.rows_seen_ = self.n_steps_ = 0
            self._scales(X, y)
        self.rows_seen_ += len(X)
        plan = plan_for(len(X), self.hidden, self.batch_size, self.steps)
        with _apart(self.seed_ + self.n_steps_):
            if first:
                model = self._program(plan.hidden, len(X))
                guide = AutoMeanFieldNormal(model)
            else:
                single: Any = self.posterior_.model
                ensemble: Any = self.posterior_.guide
                model = self._program(tuple(single.template.config["hidden"]), len(X))
                guide = put_together(model, single, ensemble)
            steps = -(-len(X) // min(plan.batch_size, len(X)))
            self._train(model, guide, (X, y, weights), None, replace(plan, steps=steps), 1, constant=True)
        return self

    def _first_targets(self, y: Any) -> Any:
        """Return the targets of the first rows of several; `_targets` where all are there."""
        return self._targets(y)

    def _known_targets(self, y: Any) -> Any:
        """Return the targets of further rows."""
        return self._targets(y)

    def _rows(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        """Return checked rows in float64 with their targets, and weights where they are not all 1."""
        self._check_parameters()
        options = {**self._y_options(), "ensure_min_samples": 2 if reset else 1}
        X, y = self._validated(X, reset=reset, y=y, **options)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
            if (weights < 0).any() or not (weights > 0).any():
                raise ValueError("sample_weight has numbers below 0, or none above 0: pass how often each row counts")
            kept = weights > 0
            X, y, weights = X[kept], y[kept], weights[kept]
            if (weights == np.round(weights)).all() and weights.sum() <= _EXACT_ROWS:
                often = weights.astype(np.int64)
                X, y, weights = np.repeat(X, often, axis=0), np.repeat(y, often), None
        if len(X) <= _EXACT_ROWS:
            order = np.lexsort((np.unique(y, return_inverse=True)[1], *X.T))
            X, y, weights = X[order], y[order], None if weights is None else weights[order]
        return X, y, weights

    def _validated(self, X: Any, *, reset: bool, **options: Any) -> Any:
        """Return X, or X and y, through scikit-learn's own checks, with a remedy where text is in the table."""
        try:
            return validate_data(self, X, reset=reset, dtype=np.float64, **options)
        except ValueError as error:
            if "could not convert string" in str(error) or "arrays of bytes/strings" in str(error):
                raise ValueError(
                    f"the table holds text ({error}): encode such columns first, with scikit-learn's OneHotEncoder in "
                    "a Pipeline"
                ) from error
            raise

    def _y_options(self) -> dict[str, Any]:
        return {}

    def _check_parameters(self) -> None:
        for name in ("eta", "prior_gain", "learning_rate"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r} is out of range: pass a finite number above 0")
        for name in ("members", "num_samples"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name}={value!r} is no number of them: pass a whole number from 1")
        if self.activation not in ("relu", "tanh", "silu"):
            raise ValueError(f"activation={self.activation!r} is unknown: pass 'relu', 'tanh' or 'silu'")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction={self.validation_fraction!r} is no part: pass a number in (0, 1)")
        plan_for(1, self.hidden, self.batch_size, self.steps)

    def _held_out(self, X: Any, y: Any, weights: Any) -> tuple[tuple[Any, Any, Any], Any]:
        """Take validation rows out, if training is to end on them."""
        if not self.early_stopping:
            return (X, y, weights), None
        held = max(1, round(self.validation_fraction * len(X)))
        if len(X) - held < 2:
            raise ValueError(f"early_stopping leaves {len(X) - held} of {len(X)} rows to train on: pass more rows")
        order = np.random.default_rng(self.seed_).permutation(len(X))
        out, kept = order[:held], np.sort(order[held:])
        return (X[kept], y[kept], None if weights is None else weights[kept]), (X[out], y[out])

    def _scales(self, X: Any, y: Any) -> None:
        try:
            self._x_scale = Standardiser.fit(torch.from_numpy(X))
            self._y_scale = Standardiser.fit(torch.from_numpy(y)) if y.dtype.kind == "f" else None
        except ValueError as error:  # what is not finite itself was refused before
            raise ValueError("X or y holds numbers so large that their deviation is infinite: rescale them") from error

    def _program(self, hidden: tuple[int, ...], num_data: int) -> BNN:
        net = SideBySide(int(self.members), self.n_features_in_, self._outputs(), hidden, self.activation)
        return BNN(net, priors.FanIn(self.prior_gain), self._likelihood(True), num_data)

    def _tensors(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Return rows on the model's scale, (N, D), and targets once for each member, (N, M)."""
        x = self._x_scale.apply(torch.from_numpy(X)).float()
        targets = torch.from_numpy(y)
        if self._y_scale is not None:
            targets = self._y_scale.apply(targets).float()
        return x.as_subclass(Tensor), targets.as_subclass(Tensor).unsqueeze(1).expand(-1, int(self.members))

    def _train(
        self, model: BNN, guide: Any, rows: tuple[Any, Any, Any], val: Any, plan: Plan, repeats: int,
        constant: bool = False,
    ) -> None:  # fmt: skip
        X, y, weights = rows
        x, targets = self._tensors(X, y)
        n = len(x) * repeats
        batch = min(plan.batch_size, n)
        epochs = max(1, round(plan.steps / -(-n // batch)))
        rate = self.learning_rate * (0.1 if constant else 1.0)
        optim = PerSite(
            loc=Adam({"lr": rate}),
            scale=Adam({"lr": rate}),
            other=Adam({"lr": rate}) if model.likelihood.parameters() else None,
            schedule=Constant() if constant else Cosine(),
        )
        best = _Best()
        result = fit(
            model,
            guide,
            optim,
            (x.repeat(repeats, 1), targets.repeat(repeats, 1)),
            epochs=epochs,
            batch_size=batch,
            weights=None if weights is None else torch.from_numpy(weights).float().repeat(repeats),
            elbo=FlatMeanField_ELBO(trace=None if epochs * -(-n // batch) > _WORTH_RECORDING else False),
            kl=kl.tempered(self.eta * n / self.rows_seen_ if constant else self.eta * repeats),
            val=None if val is None else self._tensors(*val),
            callbacks=[best] if val is not None else [],
            device=self.device,
        )
        if best.parameters is not None:
            restore_parameters(model, guide, best.parameters)
        self.history_ = result.history
        self.n_steps_ = (self.n_steps_ if constant else 0) + result.history[-1]["step"]
        single, ensemble = taken_apart(model, guide, self._likelihood(False))
        info: dict[str, Any] = {
            "num_data": self.rows_seen_,
            "eta": float(self.eta),
            "method": "svi",
            "input_shape": [self.n_features_in_],
            "standardiser": self._x_scale.to_dict(),
            "y_standardiser": None if self._y_scale is None else self._y_scale.to_dict(),
            **self._info(),
        }
        forget_later(single)
        forget_later(ensemble)
        self.posterior_ = Posterior(single.cpu().double(), ensemble.cpu().double(), info)

    # -- predicting --------------------------------------------------------------------------------------------------

    def _inputs(self, X: Any) -> Any:
        check_is_fitted(self, "posterior_")
        return self._validated(X, reset=False)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """
        Write the folder `path`: the posterior, and a description of the estimator; nothing is pickled.

        :param path: the folder; `load` reads it.
        """
        check_is_fitted(self, "posterior_")
        (Path(path) / _DESCRIPTION).unlink(missing_ok=True)  # of another posterior, if this is killed in between
        folder = self.posterior_.save(path)
        with staged(folder) as stage:
            (stage / _DESCRIPTION).write_text(json.dumps(self._described(), indent=2))
        return folder

    @classmethod
    def load(cls: type[Self], path: str | Path) -> Self:
        """
        Read a folder that `save` wrote.

        :param path: the folder.
        """
        file = Path(path) / _DESCRIPTION
        if not file.is_file():
            raise FileNotFoundError(
                f"{path} holds no estimator: it needs {_DESCRIPTION}, as {cls.__name__}.save writes"
            )
        description = json.loads(read_listed(Path(path), [_DESCRIPTION])[_DESCRIPTION])
        if description["estimator"] != cls.__name__:
            raise ValueError(f"{path} holds a {description['estimator']}: load it with {description['estimator']}.load")
        estimator = cls(**_parameters(description["parameters"]))
        estimator._restore(description["fitted"], Posterior.load(path))
        return estimator

    def _described(self) -> dict[str, Any]:
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], (int, type(None))):
            parameters["random_state"] = None
        parameters["device"] = None if parameters["device"] is None else str(parameters["device"])
        fitted: dict[str, Any] = {name: int(getattr(self, name)) for name in _PLAIN}
        fitted["history_"] = self.history_
        if hasattr(self, "feature_names_in_"):
            fitted["feature_names_in_"] = [str(name) for name in self.feature_names_in_]
        return {"estimator": type(self).__name__, "parameters": parameters, "fitted": fitted}

    def _restore(self, fitted: Mapping[str, Any], posterior: Posterior) -> None:
        for name, value in fitted.items():
            setattr(self, name, np.array(value, dtype=object) if name == "feature_names_in_" else value)
        self.posterior_ = posterior
        self._x_scale = Standardiser.from_dict(posterior.info["standardiser"])
        targets = posterior.info.get("y_standardiser")
        self._y_scale = None if targets is None else Standardiser.from_dict(targets)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the posterior as the bytes of its folder."""
        state = dict(super().__getstate__())
        if "posterior_" in state:
            with tempfile.TemporaryDirectory() as folder:
                self.posterior_.save(folder)
                state["posterior_"] = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up a state of `__getstate__`."""
        if "posterior_" in state:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in state["posterior_"].items():
                    (Path(folder) / name).write_bytes(bytes(content))
                state = {**state, "posterior_": Posterior.load(folder)}
        super().__setstate__(state)


def _parameters(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return constructor arguments as they were: JSON has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
