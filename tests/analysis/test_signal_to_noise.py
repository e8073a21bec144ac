import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_bnn.analysis.scores.signal_to_noise import (
    WeightSummary,
    prune_by_signal_to_noise,
    pruning_curve,
    weight_summary,
)
from pyro_bnn.guides import AutoPoint
from pyro_bnn.posterior import Posterior


def test_the_ratio_by_hand():
    summary = WeightSummary(torch.tensor([2.0, -3.0, 0.0, 1.0, 0.0]), torch.tensor([1.0, 0.5, 1.0, 0.0, 0.0]))
    assert summary.signal_to_noise.tolist() == [2, 6, 0, float("inf"), 0]


def test_a_guide_that_states_its_moments_is_believed(classes):
    summary = weight_summary(classes.posterior)
    site = classes.posterior.guide.site("net.layers.0.weight")
    assert torch.equal(summary["net.layers.0.weight"].mean, site.loc)
    assert torch.equal(summary["net.layers.0.weight"].sd, site.scale)


def test_another_guide_is_sampled(classes):
    guide = classes.posterior.guide
    plain = Posterior(classes.posterior.model, lambda *args: guide(*args), classes.posterior.info)
    sampled = weight_summary(plain, classes.x[:1], num_samples=400)
    stated = weight_summary(classes.posterior)
    for name, site in stated.items():
        # 5 standard errors of 400 draws, for the mean and (near enough) the standard deviation
        assert float(((sampled[name].mean - site.mean) / site.sd).abs().max()) < 5 / 20
        assert float((sampled[name].sd / site.sd - 1).abs().max()) < 5 / (2 * 400) ** 0.5


def test_pruning_sets_the_lowest_to_zero_in_every_draw(classes):
    ratio = {n: s.signal_to_noise for n, s in weight_summary(classes.posterior).items()}
    flat = torch.cat([r.flatten() for r in ratio.values()])
    pruned = prune_by_signal_to_noise(classes.posterior, 0.25)
    limit = flat.sort().values[round(0.25 * len(flat)) - 1]
    for values in (pruned.guide(classes.x), pruned.guide.median(classes.x)):
        for name, value in values.items():
            assert torch.equal(value == 0, ratio[name] <= limit)
    zeros = sum(int((v == 0).sum()) for v in pruned.guide(classes.x).values())
    assert zeros == round(0.25 * len(flat))


def test_nothing_pruned_is_the_posterior_itself_and_everything_leaves_the_uniform(classes):
    same = prune_by_signal_to_noise(classes.posterior, 0.0).predict(classes.x, 5, seed=0)
    torch.testing.assert_close(same, classes.posterior.predict(classes.x, 5, seed=0))
    empty = prune_by_signal_to_noise(classes.posterior, 1.0).predict(classes.x, 5, seed=0)
    torch.testing.assert_close(empty, torch.full_like(empty, 1 / 3))


def test_weights_that_are_noise_go_first_without_harm():
    """One weight of 20 is known, the others are pure noise around 0."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(20), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(x @ w, 0.1), obs=y)

    def guide(x):
        loc, scale = torch.zeros(20), torch.full((20,), 0.3)
        loc[0], scale[0] = 1.0, 0.01
        pyro.sample("w", dist.Normal(loc, scale).to_event(1))

    x = torch.randn(200, 20)
    rows = pruning_curve(Posterior(model, guide), x, x[:, 0].clone(), (0, 0.95, 1.0), num_samples=50)
    assert [r["fraction"] for r in rows] == [0, 0.95, 1]
    assert rows[1]["rmse"] < 0.05 < rows[0]["rmse"] < rows[2]["rmse"]
    assert rows[1]["pred_nll"] < rows[0]["pred_nll"]


def test_a_point_has_infinite_ratios(classes):
    model = classes.posterior.model
    ratios = weight_summary(Posterior(model, AutoPoint(model)), classes.x[:1], num_samples=3)
    assert all(bool(s.signal_to_noise[s.mean != 0].isinf().all()) for s in ratios.values())


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_fractions_outside_0_1_are_refused(classes, fraction):
    with pytest.raises(ValueError, match="share of the weights"):
        prune_by_signal_to_noise(classes.posterior, fraction)
