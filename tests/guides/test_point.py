import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO

from pyro_bnn.guides import AutoDropout, AutoMeanFieldNormal, AutoPoint, StoredDraws
from pyro_bnn.inference import fit, kl, per_datum
from pyro_bnn.models import BNN, likelihoods, priors
from tests.targets import LinearRegression


def linear(n=12, d=3):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(n, d, dtype=torch.float64, generator=generator)
    y = x.sum(-1) + torch.randn(n, dtype=torch.float64, generator=generator)
    return LinearRegression(x, y, noise=0.8, prior=0.6)


def trained(target, weight, elbo):
    guide = AutoPoint(target.model, init_loc="zeros")
    guide(target.x, target.y)
    optim = pyro.optim.SGD({"lr": 0.2})
    fit(target.model, guide, optim, (target.x, target.y), epochs=400, batch_size=12, kl=weight, elbo=elbo)
    return guide.median(target.x)["w"].reshape(-1)


@pytest.mark.parametrize("elbo", [Trace_ELBO(), TraceMeanField_ELBO()], ids=["total", "analytic"])
def test_map_of_a_linear_regression_is_ridge_and_ml_is_least_squares(elbo):
    target = linear()
    gram, moment = target.x.T @ target.x / 0.64, target.x.T @ target.y / 0.64
    ridge = torch.linalg.solve(gram + torch.eye(3) / 0.36, moment)
    torch.testing.assert_close(trained(target, kl.uniform(), elbo), ridge, rtol=1e-6, atol=1e-6)
    cold_ridge = torch.linalg.solve(gram + 0.1 * torch.eye(3) / 0.36, moment)
    torch.testing.assert_close(trained(target, kl.tempered(0.1), elbo), cold_ridge, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("eta", [1.0, 0.1])
def test_a_coins_map_is_taken_in_its_own_space(eta):
    """A Beta(3, 2) prior and one head in two: maximum likelihood 0.5, MAP 0.6 (not the 4/7 of the posterior mean)."""
    y = torch.tensor([0.0, 1.0])

    def model(y):
        p = pyro.sample("p", dist.Beta(3.0, 2.0))
        with pyro.plate("data", 2, subsample=torch.arange(2)):
            pyro.sample("obs", dist.Bernoulli(p), obs=y)

    guide = AutoPoint(model)
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 0.5}), Trace_ELBO())
    with per_datum(2), kl.scale_kl(eta):
        for _ in range(600):
            svi.step(y)
    # likelihood p (1 - p), prior p^(2 eta) (1 - p)^eta
    assert guide.median(y)["p"].item() == pytest.approx((1 + 2 * eta) / (2 + 3 * eta), abs=1e-4)


def make_model(n=30):
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    return BNN(net, priors.Normal(), likelihoods.Categorical(), n)


def test_a_point_starts_where_a_mean_field_guide_does():
    pyro.set_rng_seed(5)
    point = AutoPoint(make_model())
    pyro.set_rng_seed(5)
    mean_field = AutoMeanFieldNormal(make_model())
    for name in point.site_names():
        torch.testing.assert_close(point.median()[name], mean_field.site(name).loc, rtol=0, atol=0)


def test_flat_and_by_site_are_inverse():
    guide = AutoPoint(make_model())
    flat = torch.randn(2, 3, guide.loc.numel())
    values = guide.values(flat)
    assert values["net.0.weight"].shape[:2] == (2, 3)
    torch.testing.assert_close(guide.flatten(values), flat, rtol=0, atol=0)
    cut = guide.slice_of("net.0.weight")
    torch.testing.assert_close(values["net.0.weight"].reshape(2, 3, -1), flat[..., cut], rtol=0, atol=0)


def test_sites_state_mean_and_deviation():
    guide = AutoPoint(make_model())
    view = guide.site("net.0.weight")
    assert torch.equal(view.loc, guide.median()["net.0.weight"])
    assert torch.equal(view.scale, torch.zeros(5, 4))
    dropout = AutoDropout(make_model(), rate=0.3)
    with torch.no_grad():
        draws = torch.stack([dropout()["net.2.weight"] for _ in range(3000)])
    view = dropout.site("net.2.weight")
    torch.testing.assert_close(draws.std(0), view.scale, rtol=0.15, atol=0)
    torch.testing.assert_close(draws.mean(0), view.loc, rtol=0.08, atol=0)
    assert torch.equal(dropout.site("net.0.weight").scale, torch.zeros(5, 4))
    stored = StoredDraws.from_flat(make_model(), torch.randn(9, guide.loc.numel()))
    torch.testing.assert_close(stored.site("net.2.bias").loc, stored.by_site()["net.2.bias"][0].mean(0))
    torch.testing.assert_close(stored.site("net.2.bias").scale, stored.by_site()["net.2.bias"][0].std(0, correction=0))
    with pytest.raises(KeyError, match=r"no site 'net\.9'"):
        guide.site("net.9")


def test_what_is_refused():
    with pytest.raises(ValueError, match="kind='mle'"):
        AutoPoint(make_model(), kind="mle")
    with pytest.raises(ValueError, match="init_loc='far'"):
        AutoPoint(make_model(), init_loc="far")
    with pytest.raises(TypeError, match="pass a Pyro program"):
        AutoPoint(3)
    with pytest.raises(ValueError, match=r"rate=1\.0"):
        AutoDropout(make_model(), rate=1.0)
    with pytest.raises(ValueError, match="drops nothing"):
        AutoDropout(make_model(), sites="nothing*")

    def local(y):
        with pyro.plate("data", 5, subsample=torch.arange(5)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("obs", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(ValueError, match="local to the subsampled plate"):
        AutoPoint(local)(torch.zeros(5))


# -------------------------------------------------------------------------------------------------- dropout


def test_a_mask_drops_whole_inputs_and_rescales_the_rest():
    guide = AutoDropout(make_model(), rate=0.4)
    mean = guide.median()
    seen = torch.zeros(5)
    for _ in range(50):
        draw = guide()
        for name in ("net.0.weight", "net.0.bias", "net.2.bias"):
            torch.testing.assert_close(draw[name], mean[name], rtol=0, atol=0)
        ratio = draw["net.2.weight"] / mean["net.2.weight"]  # (out, in)
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
        kept = ratio[0] != 0
        torch.testing.assert_close(ratio[0][kept], torch.full((int(kept.sum()),), 1 / 0.6))
        seen += kept
    # 250 draws of probability 0.6: 5 sd is 0.155, false alarm under 1e-6
    assert abs(float(seen.mean()) / 50 - 0.6) < 0.155


def test_dropout_of_convolutions_is_by_channel():
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 2), torch.nn.Flatten())
    guide = AutoDropout(BNN(net, priors.Normal(), likelihoods.Categorical(), 10), rate=0.5)
    ratio = guide()["net.2.weight"] / guide.median()["net.2.weight"]  # (2, 4, 2, 2)
    torch.testing.assert_close(ratio, ratio[:1, :, :1, :1].expand_as(ratio))


def test_average_log_prior_is_the_closed_form():
    guide = AutoDropout(make_model(), rate=0.3, sites=["*.weight"])
    with torch.no_grad():
        log_p = [sum(dist.Normal(0, 1).log_prob(v).sum() for v in guide().values()) for _ in range(2000)]
    total = torch.tensor(log_p)
    mean = guide.median()
    exact = 0.0
    for name, value in mean.items():
        second = value.square() / 0.7 if name.endswith("weight") else value.square()
        exact += float((-0.5 * second - 0.5 * torch.log(torch.tensor(2 * torch.pi))).sum())
    assert abs(float(total.mean()) - exact) < 5 * float(total.std()) / 2000**0.5  # false alarm under 1e-6
