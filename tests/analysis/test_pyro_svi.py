import matplotlib as mpl
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal

from pyro_bnn.analysis import from_pyro_svi
from pyro_bnn.analysis.arviz import groups_of, import_arviz, loo, open_arviz
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import Posterior

mpl.use("Agg")
az = import_arviz()

Y = torch.tensor([28.0, 8.0, -3.0, 7.0])
SCHOOLS = ["A", "B", "C", "D"]


def schools(y=None):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("school", 4):
        theta = pyro.deterministic("double", 2 * pyro.sample("theta", dist.Normal(mu, tau)))
        pyro.sample("y", dist.Normal(theta / 2, 10.0), obs=y)


def tensor(values):
    return torch.as_tensor(values.values)


@pytest.mark.parametrize("make", [AutoNormal, AutoMeanFieldNormal])
def test_plates_are_dimensions_and_densities_are_the_program_s(make):
    guide = make(schools)
    idata = from_pyro_svi(schools, guide, Y, num_samples=6, coords={"school": SCHOOLS}, split="train")
    assert idata.posterior["theta"].dims == ("chain", "draw", "school")
    assert list(idata.posterior["school"].values) == SCHOOLS
    assert set(idata.posterior.data_vars) == {"mu", "tau", "theta", "double"}
    mu, tau, theta = (tensor(idata.posterior[n])[0] for n in ("mu", "tau", "theta"))
    likelihood = dist.Normal(theta, 10.0).log_prob(Y)
    np.testing.assert_allclose(idata.log_likelihood["y"][0], likelihood, rtol=1e-5)
    np.testing.assert_allclose(idata.posterior["double"], 2 * idata.posterior["theta"], rtol=1e-6)
    prior = dist.Normal(mu[:, None], tau[:, None]).log_prob(theta).sum(1)
    np.testing.assert_allclose(idata.log_prior["theta"][0], prior, rtol=1e-4)
    assert set(idata.log_prior.data_vars) == {"mu", "tau", "theta"}
    assert idata.posterior_predictive["y"].shape == (1, 6, 4)
    np.testing.assert_array_equal(idata.observed_data["y"], Y)
    assert idata.posterior_predictive["y"].values.std() > 0
    assert idata.attrs["split"] == "train"


def two_sites(x, counts=None, pairs=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        rate = pyro.sample("counts", dist.Poisson((x @ w).exp()), obs=counts)
    with pyro.plate("groups", 3, dim=-2), pyro.plate("cells", 2, dim=-1):
        cells = pyro.sample("cell/level", dist.Normal(0.0, 1.0))
        mean = torch.stack([cells, cells + 1], -1)
        pyro.sample("pairs", dist.MultivariateNormal(mean, torch.eye(2)), obs=pairs)
    return rate


def by_hand(x, counts=None, pairs=None):
    loc = pyro.param("by_hand_loc", torch.zeros(2))
    pyro.sample("w", dist.Normal(loc, 0.1).to_event(1))
    with pyro.plate("groups", 3, dim=-2), pyro.plate("cells", 2, dim=-1):
        pyro.sample("cell/level", dist.Normal(0.5, 0.1))


X = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
COUNTS = torch.tensor([0.0, 1.0, 2.0, 1.0, 0.0])
PAIRS = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1))


def test_several_observed_sites_of_a_hand_written_pair(tmp_path):
    options = {"num_samples": 30, "prior_samples": 3, "dims": {"pairs": ["coordinate"], "w": ["feature"]}}
    made = from_pyro_svi(two_sites, by_hand, X, COUNTS, PAIRS, **options)
    written = from_pyro_svi(two_sites, by_hand, X, COUNTS, PAIRS, path=tmp_path / "two.nc", **options)
    for idata in (made, open_arviz(tmp_path / "two.nc")):
        assert idata.posterior["w"].dims == ("chain", "draw", "feature")
        assert idata.posterior["cell.level"].dims == ("chain", "draw", "groups", "cells")
        assert idata.log_likelihood["counts"].dims == ("chain", "draw", "rows")
        assert idata.log_likelihood["pairs"].dims == ("chain", "draw", "groups", "cells")
        assert idata.posterior_predictive["pairs"].dims == ("chain", "draw", "groups", "cells", "coordinate")
        assert idata.prior_predictive["counts"].shape == (1, 3, 5)
        w, level = tensor(idata.posterior["w"])[0], tensor(idata.posterior["cell.level"])[0]
        own = dist.Poisson((w @ X.T).exp()).log_prob(COUNTS)
        np.testing.assert_allclose(idata.log_likelihood["counts"][0], own, rtol=1e-4)
        pairs = dist.MultivariateNormal(torch.stack([level, level + 1], -1), torch.eye(2)).log_prob(PAIRS)
        np.testing.assert_allclose(idata.log_likelihood["pairs"][0], pairs, rtol=1e-4)
        np.testing.assert_array_equal(idata.constant_data["x"], X)
        assert list(idata.constant_data.data_vars) == ["x"]
    made.attrs["split"] = "train"
    with pytest.raises(ValueError, match="pass var_name, one of counts, pairs"):
        loo(made)
    assert np.isfinite(loo(made, "pairs").value)
    assert set(groups_of(written)) == set(groups_of(made))


def test_plates_that_choose_rows_are_refused_and_given_rows_are_coordinates():
    def subsampled(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 4, subsample_size=2) as rows:
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows])

    def given(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 40, subsample=torch.tensor([3, 5, 7, 30])):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"the plate 'data' takes other rows at each call \(2 of 4\)"):
        from_pyro_svi(subsampled, AutoNormal(subsampled), Y)
    idata = from_pyro_svi(given, AutoNormal(given), Y, num_samples=3)
    assert list(idata.log_likelihood["data"].values) == [3, 5, 7, 30]
    own = dist.Normal(tensor(idata.posterior["mu"])[0][:, None], 1.0).log_prob(Y)  # without the plate's factor of 10
    np.testing.assert_allclose(idata.log_likelihood["y"][0], own, rtol=1e-5)


LOCS, WEIGHTS = torch.tensor([-1.0, 2.0]), torch.tensor([0.3, 0.7])


def mixture(y):
    shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(WEIGHTS))
        pyro.sample("y", dist.Normal(LOCS[z] + shift, 1.0), obs=y)


def test_discrete_sites_that_the_guide_leaves_out_are_summed_out_and_drawn_given_the_data():
    """Z is drawn from p(z | y, shift): off by 4.5 standard errors for one of 3 rows by chance once in 50,000 seeds."""
    y = torch.tensor([-1.5, 0.5, 3.0])
    guide = AutoDelta(pyro.poutine.block(mixture, hide=["z"]), init_loc_fn=lambda site: torch.tensor(0.2))
    idata = from_pyro_svi(mixture, guide, y, num_samples=800, prior_samples=2)
    joint = WEIGHTS.log() + dist.Normal(LOCS + 0.2, 1.0).log_prob(y[:, None])  # (N, 2)
    np.testing.assert_allclose(idata.log_density["y"][0, 0], joint.logsumexp(1), rtol=1e-5)
    assert idata.posterior["z"].dtype == np.int64
    share, expected = idata.posterior["z"].values.mean((0, 1)), joint.softmax(1)[:, 1].numpy()
    assert (abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 800)).all()


def test_discrete_sites_of_the_guide_and_lists_of_guides():
    def guide_of_z(y):
        with pyro.plate("rows of the guide", len(y)):  # a list of guides has each name once
            pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.5])))

    guide = AutoGuideList(mixture)
    guide.append(AutoNormal(pyro.poutine.block(mixture, hide=["z"])))
    guide.append(guide_of_z)
    y = torch.tensor([-1.5, 0.5, 3.0])
    idata = from_pyro_svi(mixture, guide, y, num_samples=4)
    shift, z = tensor(idata.posterior["shift"])[0], tensor(idata.posterior["z"])[0]
    own = dist.Normal(LOCS[z] + shift[:, None], 1.0).log_prob(y)
    np.testing.assert_allclose(idata.log_likelihood["y"][0], own, rtol=1e-5)


def test_what_has_no_rows_or_no_draws_is_refused():
    def common_choice(y):
        z = pyro.sample("z", dist.Bernoulli(0.5))
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(w + z, 1.0), obs=y)

    with pytest.raises(ValueError, match="the discrete site 'z' is not in the plates of 'y'"):
        from_pyro_svi(common_choice, AutoNormal(pyro.poutine.block(common_choice, hide=["z"])), Y)
    with pytest.raises(ValueError, match="the guide leaves out the latent site 'tau'"):
        from_pyro_svi(schools, AutoNormal(pyro.poutine.block(schools, hide=["tau"])), Y)


def test_predictions_at_other_arguments_and_without_observations():
    def line(x, y=None):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(a * x, 1e-6), obs=y)

    x, new = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])
    guide = AutoNormal(line)
    guide(x, x)
    idata = from_pyro_svi(line, guide, x, x, num_samples=4, predict_args=(new,))
    np.testing.assert_allclose(
        idata.predictions["obs"][0], tensor(idata.posterior["a"])[0][:, None] * new, rtol=1e-3, atol=1e-4
    )
    unseen = from_pyro_svi(line, guide, x, num_samples=4)
    assert not {"observed_data", "log_likelihood"} & set(groups_of(unseen))
    assert unseen.posterior_predictive["obs"].shape == (1, 4, 2)


def test_a_network_and_arvizs_own_functions():
    net = BNN(MLP(2, 1, hidden=(3,)), priors.Normal(1.0), likelihoods.Gaussian(0.5), 5)
    idata = from_pyro_svi(net, AutoMeanFieldNormal(net), X, COUNTS[:, None], num_samples=40, split="train")
    assert idata.posterior["net.layers.0.weight"].dims[2:] == ("net.layers.0.weight_out", "net.layers.0.weight_in")
    assert len(az.summary(idata)) == 13
    assert np.isfinite(loo(idata).value)


def test_mistakes_are_named():
    guide = AutoNormal(schools)
    for options, words in (
        ({"num_samples": 0}, "at least 1"),
        ({"coords": {"schol": SCHOOLS}}, "coords names 'schol'"),
        ({"coords": {"school": ["A"]}}, "has 1 entries and the dimension 4"),
        ({"dims": {"thet": ["a"]}}, "no site"),
        ({"dims": {"theta": ["a", "b"]}}, "names 2 dimensions; the site has 1"),
        ({"sites": "w*"}, "matches no site"),
    ):
        with pytest.raises(ValueError, match=words):
            from_pyro_svi(schools, guide, Y, **options)


def test_each_of_several_observed_sites_is_predicted_scored_and_exported():
    posterior = Posterior(two_sites, by_hand)
    with pytest.raises(ValueError, match=r"say which, posterior.at\('counts'\)"):
        posterior.predict(X)
    found = posterior.at("counts")
    predicted = found.predict(X, 50, seed=0)
    draws = torch.stack([draw.mean for draw in found.stream(X, 50, seed=0)])
    torch.testing.assert_close(predicted.mean, draws.mean(0))
    table = found.evaluate(X, COUNTS, 50)
    logs = torch.stack([draw.log_prob(COUNTS, wide=True) for draw in found.stream(X, 50, seed=0)])
    nll = -(logs.logsumexp(0) - np.log(50)).mean()
    assert table["s_draws"]["pred_nll"] == pytest.approx(float(nll), rel=1e-5)
    idata = posterior.to_arviz(X, {"counts": COUNTS, "pairs": PAIRS}, 5)
    assert set(idata.log_likelihood.data_vars) == set(idata.observed_data.data_vars) == {"counts", "pairs"}
    np.testing.assert_array_equal(idata.observed_data["counts"], COUNTS)
    one = found.to_arviz(X, COUNTS, 5)
    assert one.log_likelihood["obs"].shape == (1, 5, 5)
    assert set(one.posterior.data_vars) == set(one.log_prior.data_vars) == {"w", "cell.level"}
    assert bool(np.isfinite(one.log_prior["cell.level"]).all())
    with pytest.raises(TypeError, match=r"posterior.at\(name\).evaluate"):
        posterior.evaluate(X, {"counts": COUNTS})
    with pytest.raises(ValueError, match=r"observes no site 'count': it has 'counts', 'pairs'"):
        posterior.at("count").predict(X)
