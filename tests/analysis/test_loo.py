import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from pyro_bnn.analysis.arviz import NotDefined, loo, waic
from pyro_bnn.analysis.arviz.versions import is_tree
from pyro_bnn.posterior import Posterior
from tests.targets import LinearRegression, correlated


def exact_loo(target: LinearRegression) -> np.ndarray:
    """Log p(y_i | all other rows), each from the closed form of the other rows' posterior."""
    found = []
    for i in range(target.num_data):
        kept = torch.arange(target.num_data) != i
        rest = LinearRegression(target.x[kept], target.y[kept], target.noise, target.prior)
        mean, covariance = rest.posterior()
        sd = math.sqrt(float(target.x[i] @ covariance @ target.x[i]) + target.noise**2)
        found.append(stats.norm.logpdf(float(target.y[i]), float(target.x[i] @ mean), sd))
    return np.array(found)


def exact_posterior(target: LinearRegression, **info) -> Posterior:
    mean, covariance = target.posterior(info.get("eta", 1.0))
    root = torch.linalg.cholesky(covariance)

    def guide(x):
        pyro.sample("w", dist.MultivariateNormal(mean, scale_tril=root))

    return Posterior(target.model, guide, info)


@pytest.mark.parametrize("seed", [0, 2])
def test_loo_of_exact_draws_is_the_exact_loo(seed):
    target = correlated(num_data=40, seed=seed)
    idata = exact_posterior(target).to_arviz(target.x, target.y, 2000, split="train", prior_samples=2, seed=seed)
    found, exact = loo(idata), exact_loo(target)
    assert abs(found.value - exact.sum()) <= 0.15 * found.se
    assert found.se == pytest.approx(math.sqrt(40 * exact.var()), rel=0.05)
    np.testing.assert_allclose(np.asarray(found.elpd["elpd_i" if is_tree() else "loo_i"]), exact, atol=0.15)
    assert found.unusable is not None
    assert not found.unusable.any()
    assert "every point usable" in str(found)
    if is_tree():
        with pytest.raises(NotDefined, match="gone from ArviZ 1"):
            waic(idata)
    else:
        assert abs(waic(idata).value - exact.sum()) <= 0.3 * found.se


def test_a_tempered_posterior_would_have_given_a_wrong_number():
    """What the refusal is for: the plain formula on draws of eta = 0.02 is far from any leave-one-out."""
    target = correlated(num_data=40)
    options = {"split": "train", "prior_samples": 2, "log_likelihood": True}
    idata = exact_posterior(target, eta=0.02).to_arviz(target.x, target.y, 2000, **options)
    assert idata.attrs["loo"].startswith("not defined")
    idata.attrs["eta"] = 1.0
    lied = loo(idata)
    in_sample = torch.tensor(idata.log_likelihood["obs"].values[0]).double().logsumexp(0) - math.log(2000)
    assert lied.value > exact_loo(target).sum() + 0.3 * float(in_sample.sum() - exact_loo(target).sum())


def test_points_with_a_large_pareto_k_are_marked_unusable():
    target = correlated(num_data=12)
    target.y[3] += 25.0  # one outlier: the posterior without it is elsewhere
    idata = exact_posterior(target).to_arviz(target.x, target.y, 400, split="train", prior_samples=2)
    found = loo(idata)
    assert found.pareto_k is not None
    assert found.unusable is not None
    assert found.unusable[3]
    assert f"{found.unusable.sum()} of 12 points UNUSABLE (k > 0.7)" in str(found)
    assert found.pareto_k.shape == (12,)


def test_loo_needs_labels():
    target = correlated()
    idata = exact_posterior(target).to_arviz(target.x, num_samples=5, split="train")
    with pytest.raises(ValueError, match="pass y to to_arviz"):
        loo(idata)
