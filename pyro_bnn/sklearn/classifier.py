"""A classifier: classes from a table, with their probabilities."""

from collections.abc import Mapping
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from pyro_bnn.inference.predictive import ClassDraw
from pyro_bnn.models.likelihoods import Categorical, Likelihood
from pyro_bnn.posterior import Posterior, Uncertainty
from pyro_bnn.sklearn.base import BaseBNN
from pyro_bnn.sklearn.members import EachMember

__all__ = ["BNNClassifier"]

Array = npt.NDArray[Any]
Self = TypeVar("Self", bound="BNNClassifier")


@final
class BNNClassifier(ClassifierMixin, BaseBNN):  # type: ignore[misc]
    """
    Classification by an ensemble of Bayesian neural networks.

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

    `classes_` are the labels; `posterior_` is what was fitted, a `pyro_bnn.Posterior`, whose classes are their places
    in `classes_`.

    >>> import numpy as np
    >>> from pyro_bnn.sklearn import BNNClassifier
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = np.where(x[:, 0] > 0, "right", "left")
    >>> model = BNNClassifier(members=2, steps=300, random_state=0).fit(x, y)
    >>> model.classes_.tolist(), model.predict([[2.0, 0.0], [-2.0, 0.0]]).tolist()
    (['left', 'right'], ['right', 'left'])
    >>> bool(model.predict_proba([[2.0, 0.0]])[0, 1] > 0.9)
    True
    """

    classes_: Array

    def _targets(self, y: Any) -> Any:
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_[0]}: a classifier needs rows of at least 2 classes")
        return places.astype(np.int64)

    def _known_targets(self, y: Any) -> Any:
        places = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[places] != y
        if unknown.any():
            raise ValueError(
                f"y has the class {np.asarray(y)[unknown][0]}, which was not among the first: pass classes= with all "
                "of them at the first partial_fit"
            )
        return places.astype(np.int64)

    def partial_fit(self: Self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """
        Take one pass over more rows, at a constant rate, from where the posterior is.

        The rows stand for all that were seen: the KL counts 1/N of all of them. Columns keep the scale of the rows that
        came first.

        :param X: rows of the table, (n, D).
        :param y: their labels, (n,).
        :param classes: all classes there will be, needed at the first call.
        :param sample_weight: how often each row counts, (n,).
        """
        if not hasattr(self, "posterior_"):
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit: all classes there will be")
            self._announced = np.unique(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={classes!r} are not those of the first call, {self.classes_.tolist()}")
        return self._more(X, y, sample_weight)

    def _first_targets(self, y: Any) -> Any:
        check_classification_targets(y)
        self.classes_ = self._announced
        return self._known_targets(y)

    def _outputs(self) -> int:
        return len(self.classes_)

    def _likelihood(self, together: bool) -> Likelihood:
        return EachMember(int(self.members)) if together else Categorical()

    def _info(self) -> dict[str, Any]:
        return {"task": "classification", "class_names": [str(name) for name in self.classes_]}

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """
        Return the probability of each class of `classes_`, (N, K).

        :param X: the table, (N, D).
        """
        X = self._inputs(X)
        total = np.zeros((len(X), len(self.classes_)))
        for draw in self.posterior_.stream(X, int(self.num_samples), seed=self.seed_, standardised=False):
            assert isinstance(draw, ClassDraw)
            total += draw.log_probs.double().exp().numpy()
        probabilities: npt.NDArray[np.float64] = total / total.sum(1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> Array:
        """
        Return the most probable class of each row, (N,).

        :param X: the table, (N, D).
        """
        guess: Array = self.classes_[self.predict_proba(X).argmax(1)]
        return guess

    def uncertainty(self, X: Any) -> Uncertainty:
        """
        Return total, aleatoric and epistemic uncertainty of each row in nats, (N,) each.

        :param X: the table, (N, D).
        """
        X = self._inputs(X)
        return self.posterior_.uncertainty(X, int(self.num_samples), seed=self.seed_, standardised=False)

    def _described(self) -> dict[str, Any]:
        described = super()._described()
        described["fitted"]["classes_"] = {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist()}
        return described

    def _restore(self, fitted: Mapping[str, Any], posterior: Posterior) -> None:
        classes = fitted["classes_"]
        values = np.array(classes["values"], dtype=np.dtype(classes["dtype"]))
        super()._restore({**fitted, "classes_": values}, posterior)
