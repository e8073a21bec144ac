"""The gradient-variance tool against exact variances, and that it leaves no trace."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from matplotlib.figure import Figure
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from scipy import stats
from targets import GaussianMean, MeanField, centred
from torch import nn

from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.inference.elbo import TracePathDerivative_ELBO
from pyro_bnn.inference.gradient_variance import gradient_variance, plot_gradient_variance
from pyro_bnn.inference.kl import per_datum
from pyro_bnn.models import BNN, likelihoods, priors

FALSE_ALARM = 1e-4
F64 = torch.float64


def guide(y: torch.Tensor) -> None:
    loc = pyro.param("m", torch.tensor(0.3, dtype=F64))
    pyro.sample("mu", dist.Normal(loc, pyro.param("s", torch.tensor(0.2, dtype=F64))))


def test_mean_and_variance_are_the_exact_ones() -> None:
    # total derivative, loc: g = (mu - m) / s^2 + sigma e / s^2 is normal with variance sigma^2 / s^4: a chi-square test
    target = GaussianMean(torch.tensor([0.5, 1.5, 1.0], dtype=F64))
    mean, s = (float(v) for v in target.posterior())
    draws = 2000
    result = gradient_variance(target.model, guide, Trace_ELBO(), (target.y,), draws)
    variance = 0.2**2 / s**4
    bounds = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], draws - 1) / (draws - 1)
    assert bounds[0] < float(result.variance["m"]) / variance < bounds[1]
    error = math.sqrt(variance / draws)
    assert float(result.standard_error()["m"]) == pytest.approx(error, rel=0.1)
    assert abs(float(result.mean["m"]) - (0.3 - mean) / s**2) < stats.norm.ppf(1 - FALSE_ALARM / 2) * error
    with per_datum(3):  # handlers around the call count
        scaled = gradient_variance(target.model, guide, Trace_ELBO(), (target.y,), draws)
    assert float(scaled.variance["m"]) == pytest.approx(float(result.variance["m"]) / 9)


def test_welford_is_the_two_pass_formula() -> None:
    target = centred()
    program = MeanField(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64))
    elbo, batch = TracePathDerivative_ELBO(), (target.x, target.y)
    result = gradient_variance(target.model, program, elbo, batch, 7)
    gradients = []
    for _ in range(7):  # the tool left the random state as it was, so these are the same draws
        elbo.loss_and_grads(target.model, program, *batch)
        gradients.append(pyro.param("loc").unconstrained().grad.clone())
        for name in ("loc", "rho"):
            pyro.param(name).unconstrained().grad = None
    torch.testing.assert_close(result.mean["loc"], torch.stack(gradients).mean(0))
    torch.testing.assert_close(result.variance["loc"], torch.stack(gradients).var(0))


def network() -> tuple[BNN, AutoMeanFieldNormal, tuple[torch.Tensor, torch.Tensor]]:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data=9)
    program = AutoMeanFieldNormal(model)
    batch = (torch.randn(9, 3), torch.randint(0, 2, (9,)))
    program(*batch)
    return model, program, batch


def test_kinds_and_sites_of_a_flat_guide() -> None:
    model, program, batch = network()
    result = gradient_variance(model, program, TraceMeanField_ELBO(), batch, 5)
    kinds = result.by_kind()
    assert {kind: row.size for kind, row in kinds.items()} == {"loc": 26, "scale": 26, "other": 8}
    rows = result.by_site()
    assert {(row.kind, row.site): row.size for row in rows} == {
        (kind, f"net.{name}"): model.template.get_parameter(name).numel()
        for kind in ("loc", "scale")
        for name in model.random_names
    }
    for kind in ("loc", "scale"):
        for quantity in ("variance", "squared_mean"):
            parts = sum(getattr(row, quantity) for row in rows if row.kind == kind)
            assert parts == pytest.approx(getattr(kinds[kind], quantity))
    per_site = AutoMeanFieldNormal(model, groups="site")
    per_site(*batch)
    again = gradient_variance(model, per_site, TraceMeanField_ELBO(), batch, 2)
    assert {(row.kind, row.site, row.size) for row in again.by_site()} == {(r.kind, r.site, r.size) for r in rows}


def test_kinds_of_other_guides() -> None:
    model, _, batch = network()
    for program in (AutoNormal(model), AutoLowRankMultivariateNormal(model, rank=2)):
        program(*batch)
        result = gradient_variance(model, program, Trace_ELBO(), batch, 2)
        assert result.by_kind()["loc"].size == 26
        assert result.by_kind()["other"].size == 8
        scales = {name for name, kind in result.kinds.items() if kind == "scale"}
        assert len(scales) == (4 if isinstance(program, AutoNormal) else 2)  # per site; or the deviation and the factor


def test_nothing_is_left_behind() -> None:
    model, program, batch = network()
    tensors = {**model.state_dict(), **program.state_dict()}
    before = {name: value.clone() for name, value in tensors.items()}
    for parameter in program.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    state = torch.get_rng_state()
    gradient_variance(model, program, TraceMeanField_ELBO(), batch, 3)
    assert torch.equal(state, torch.get_rng_state())
    after = {**model.state_dict(), **program.state_dict()}
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert all(bool((parameter.grad == 7).all()) for parameter in program.parameters())


def test_plot_shows_every_label_kind_and_site() -> None:
    model, program, batch = network()
    results = {
        name: gradient_variance(model, program, elbo, batch, 3)
        for name, elbo in (("analytic", TraceMeanField_ELBO()), ("path", TracePathDerivative_ELBO()))
    }
    figure = plot_gradient_variance(results)
    assert isinstance(figure, Figure)
    assert [axes.get_title() for axes in figure.axes] == ["loc", "scale", "other"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["analytic", "path"]
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == [*(f"net.{n}" for n in model.random_names), "all"]
    expected = [row.variance / row.size for row in results["path"].by_site() if row.kind == "loc"]
    assert list(panel.lines[1].get_xdata()) == pytest.approx(expected)


def test_bad_input() -> None:
    model, program, batch = network()
    with pytest.raises(ValueError, match="draws=1"):
        gradient_variance(model, program, TraceMeanField_ELBO(), batch, 1)
    with pytest.raises(ValueError, match="nothing to plot"):
        plot_gradient_variance({})
