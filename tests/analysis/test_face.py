"""What a posterior shows of itself: repr, summary, intervals, pictures, report."""

import matplotlib as mpl
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

import pyro_bnn as pb
from pyro_bnn.analysis.summary import summarise
from pyro_bnn.posterior import Posterior

mpl.use("Agg")


def test_repr_says_what_it_is_in_two_lines(classes):
    first, second = repr(classes.posterior).splitlines()
    assert first == "Posterior of MLP by AutoMeanFieldNormal: svi, 40 rows of made"
    assert second == "  inputs (5,), 3 classes"
    tempered = pb.load("lenet5-mnist-mini")
    assert repr(tempered).startswith(
        "Posterior of LeNet5 by AutoMeanFieldNormal: svi, eta = 0.1, 4,500 rows of mnist-mini"
    )


def line(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(a * x[:, 0], 1.0), obs=y)


def test_a_hand_written_program_has_a_face_too():
    guide, x = AutoNormal(line), torch.randn(6, 2)
    guide(x, torch.zeros(6))
    posterior = Posterior(line, guide)
    assert repr(posterior) == "Posterior of line by AutoNormal: svi\n  inputs of any shape"
    (site,) = posterior.summary(x).sites
    assert (site.name, site.shape, site.against_prior) == ("a", (), None)


def test_the_summary_is_that_of_the_guide(classes):
    summary = summarise(classes.posterior)
    by_name = {site.name: site for site in summary.sites}
    site = by_name["net.layers.0.weight"]
    loc, scale = classes.posterior.guide.site("net.layers.0.weight")
    prior = classes.posterior.model.priors()["layers.0.weight"].stddev.expand(scale.shape)
    assert site.shape == (8, 5)
    ends = np.quantile(loc.double().numpy(), [0.05, 0.95])
    np.testing.assert_allclose(site.mean, ends, rtol=1e-6)
    assert site.against_prior == pytest.approx(float((scale / prior).double().flatten().median()), rel=1e-5)
    assert site.below_one == pytest.approx(float((loc.abs() / scale < 1).double().mean()))
    lines = str(summary).splitlines()
    assert len(lines) == 2 + 1 + 1 + len(summary.sites)
    assert max(map(len, lines)) <= 120


def test_intervals_are_those_of_the_mixture(numbers, classes):
    posterior = numbers.posterior
    found = posterior.interval(numbers.x, 0.8, 400, seed=3)
    draws = list(posterior.stream(numbers.x, 400, seed=3))
    means, sds = (torch.stack([getattr(d, part) for d in draws]).double() for part in ("mean", "sd"))
    below = torch.special.ndtr((found.lower - means) / sds).mean(0)
    np.testing.assert_allclose(below, 0.1, atol=1e-6)
    with pytest.raises(ValueError, match="predicts classes, which have no interval"):
        classes.posterior.interval(classes.x)


def test_pictures_show_the_numbers(make_regressor, classes):
    case = make_regressor()
    axes = case.posterior.plot_predictions(case.x, case.y, num_samples=20)
    assert axes.get_xlabel() == "rows by predicted mean"
    over = case.posterior.plot_predictions(case.x, case.y, feature=0, num_samples=20)
    drawn = {str(shown.get_label()): shown for shown in over.lines}
    expected = case.posterior.predict(case.x, 20, seed=0).mean[case.x[:, 0].argsort()]
    np.testing.assert_allclose(drawn["mean"].get_ydata(), expected, rtol=1e-4)
    band = over.collections[0].get_paths()[0].vertices[:, 1]
    interval = case.posterior.interval(case.x, 0.9, 20, seed=0)
    assert band.min() == pytest.approx(float(interval.lower.min()))
    assert band.max() == pytest.approx(float(interval.upper.max()))
    ece = classes.posterior.evaluate(classes.x, classes.y, 10)["s_draws"]["ece"]
    assert f"ECE {ece:.4f}" in classes.posterior.plot_reliability(classes.x, classes.y, num_samples=10).get_title(
        "left"
    )
    scatter = classes.posterior.plot_uncertainty(classes.x, {"others": torch.rand(6, 5)}, num_samples=10)
    uncertainty = classes.posterior.uncertainty(classes.x, 10, seed=0)
    np.testing.assert_allclose(scatter.lines[0].get_xdata(), uncertainty.aleatoric, rtol=1e-6)
    assert [text.get_text() for text in scatter.get_legend().get_texts()] == ["these rows", "others"]
    held = case.posterior.plot_reliability(case.x, case.y, num_samples=10).lines[1]
    coverage = case.posterior.evaluate(case.x, case.y, 10)["s_draws"]["coverage_0.9"]
    assert held.get_ydata()[45] == pytest.approx(coverage)
    with pytest.raises(ValueError, match="one number over its input"):
        classes.posterior.plot_predictions(classes.x)
    with pytest.raises(ValueError, match="at most 4"):
        classes.posterior.plot_uncertainty(classes.x, {str(i): classes.x for i in range(4)})
    mpl.pyplot.close("all")


def test_the_style_stays_inside(classes):
    before = dict(mpl.rcParams)
    classes.posterior.plot_uncertainty(classes.x, num_samples=3)
    assert dict(mpl.rcParams) == before
    mpl.pyplot.close("all")


def test_any_posterior_reports_from_python(classes, tmp_path):
    written = classes.posterior.report(tmp_path / "page.html", (classes.x, classes.y), num_samples=5)
    assert written == tmp_path / "page.html"
    assert "40 test rows" in written.read_text()
    with pytest.raises(ValueError, match="pass the rows to score as"):
        classes.posterior.report(tmp_path, classes.x)
