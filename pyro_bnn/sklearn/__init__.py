"""
Bayesian neural networks for tables, as estimators of scikit-learn.

`BNNRegressor` and `BNNClassifier` take part in pipelines, searches and cross-validation; what they fit is a `Posterior`
(`estimator.posterior_`), and everything else of the library works on it. scikit-learn is an extra of this package
(`pip install "pyro-bnn[sklearn]"`): nothing else here needs it.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError('pyro_bnn.sklearn needs scikit-learn: pip install "pyro-bnn[sklearn]"') from error

from pyro_bnn.sklearn.classifier import BNNClassifier
from pyro_bnn.sklearn.distribution import PredictiveDistribution
from pyro_bnn.sklearn.regressor import BNNRegressor

__all__ = ["BNNClassifier", "BNNRegressor", "PredictiveDistribution"]
