"""What a diagnosis says of posteriors that are right, and of those that are broken on purpose."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn.analysis.checks import Check, Diagnosis
from pyro_bnn.analysis.checks.of_fit import ALPHA, check_drift, check_num_data, drift
from pyro_bnn.analysis.checks.of_weights import pareto_k
from pyro_bnn.guides import AutoFullRankNormal, AutoMeanFieldNormal, AutoPoint, StoredDraws
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam, PerSite

N, NOISE = 400, 0.5


def rows(n=N, seed=0):
    """Two features without a mean, so that slopes and intercept are nearly independent."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    return x, x @ torch.tensor([1.0, -0.5]) + NOISE * torch.randn(n, generator=generator)


def diagnosed(model, guide, data, **options):
    """A quick look: few draws, and not fitted on."""
    return pb.Posterior(model, guide).diagnose(data, **{"num_samples": 20, "settle": False, **options})


def linear(num_data=N, noise=NOISE):
    return BNN(nn.Linear(2, 1), priors.Normal(0.0, 1.0), likelihoods.Gaussian(noise), num_data)


def exact():
    """The optimum of the mean-field ELBO itself."""
    x, y = rows()
    design = torch.cat([x, torch.ones(N, 1)], 1).double()
    precision = torch.eye(3).double() + design.T @ design / NOISE**2
    mean = torch.linalg.solve(precision, design.T @ y.double() / NOISE**2)
    guide = AutoMeanFieldNormal(linear())
    sd = precision.diag().rsqrt()
    guide.assign("net.weight", mean[:2].reshape(1, 2).float(), sd[:2].reshape(1, 2).float())
    guide.assign("net.bias", mean[2:].float(), sd[2:].float())
    return guide


def assign_widths(guide, factor):
    for name in guide.site_names():
        mean, sd = guide.site(name)
        guide.assign(name, mean, factor * sd)


def test_nothing_speaks_against_the_exact_optimum():
    guide = exact()
    found = pb.Posterior(guide.model, guide).diagnose(rows(), test=rows(1000, seed=1))
    assert found.verdict == "good", str(found)
    checked = {check.name for check in found.checks if check.verdict == "good"}
    expected = {"num_data", "deviations", "widths", "settled", "k-hat of q", "Pareto-k of LOO", "has learned"}
    assert expected | {"calibration", "replicated data"} <= checked
    assert found["widths"].value == pytest.approx(1.0, abs=0.4)
    assert str(found).endswith("Nothing speaks against this posterior.")


def test_the_posterior_is_left_as_it_was():
    guide = exact()
    posterior = pb.Posterior(guide.model, guide)
    before = {name: tensor.clone() for name, tensor in guide.state_dict().items()}
    state = torch.get_rng_state()
    posterior.diagnose(rows(), rows=50, num_samples=10)
    assert all(torch.equal(tensor, before[name]) for name, tensor in guide.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert guide.training


@pytest.mark.parametrize(("factor", "way"), [(0.2, "narrower"), (4.0, "wider")])
def test_wrong_widths_are_seen_with_their_factor(factor, way):
    guide = exact()
    assign_widths(guide, factor)
    check = diagnosed(guide.model, guide, rows())["widths"]
    assert check.verdict == "bad"
    assert way in check.words
    # with deviations off by f the ratio of this quadratic target is f^2, here by 100 pairs of draws of 3 weights
    assert check.value == pytest.approx(factor**2, rel=0.5)


def digits(epochs=6, scale=1e-2, lr=1e-2):
    data = pb.load_data("mnist-mini")
    train = data.train.x[:1000], data.train.y[:1000]
    model = BNN(MLP(784, 10, [16]), priors.FanIn(), likelihoods.Categorical(), 1000)
    guide = AutoMeanFieldNormal(model, init_scale=0.05)
    rates = {"loc": Adam({"lr": lr}), "scale": Adam({"lr": scale})}
    result = fit(model, guide, PerSite(**rates), train, epochs=epochs, seed=0)
    return pb.Posterior(model, guide), train, (data.test.x[:500], data.test.y[:500]), result


def test_deviations_that_never_moved_are_named():
    posterior, train, test, result = digits(scale=1e-12)
    found = posterior.diagnose(train, test=test, history=result.history, num_samples=20)
    assert found["deviations"].verdict == "bad"
    assert "have not moved from their start" in found["deviations"].words
    assert found["settled"].verdict == "bad"
    assert found.verdict == "bad"
    assert found.summary.startswith("Not to be trusted: deviations")


def test_a_rate_ten_times_too_high_is_named():
    posterior, train, test, _ = digits(lr=1.0, scale=1.0)
    found = posterior.diagnose(train, test=test, num_samples=20)
    assert found["settled"].verdict == "bad"
    assert "was the rate too high" in found["settled"].words


def test_a_wrong_num_data_is_named():
    pyro.set_rng_seed(0)
    x, y = rows()
    guide = AutoMeanFieldNormal(linear(num_data=40))  # forty of four hundred
    svi = SVI(guide.model, guide, pyro.optim.Adam({"lr": 0.02}), TraceMeanField_ELBO())
    for _ in range(50):
        svi.step(x, y)
    found = diagnosed(guide.model, guide, (x, y))
    assert found["num_data"].verdict == "bad"
    assert "N = 40, but there are 400 rows" in found["num_data"].words
    assert "eta = 10" in found["num_data"].words


def test_num_data_may_leave_out_validation_rows():
    assert check_num_data(90, 100).verdict == "good"
    assert check_num_data(110, 100).verdict == "doubtful"
    assert check_num_data(10, 100).verdict == "bad"
    assert check_num_data(None, 100).verdict == "not checked"


def test_correlated_weights_have_a_high_k_hat_under_mean_field_and_none_under_full_rank():
    """Both guides at their exact optimum."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(40, 1, generator=generator)
    x = common + 0.03 * torch.randn(40, 4, generator=generator)
    y = x.sum(1) + 0.5 * torch.randn(40, generator=generator)
    design = torch.cat([x, torch.ones(40, 1)], 1).double()
    precision = torch.eye(5).double() + design.T @ design / 0.25
    mean = torch.linalg.solve(precision, design.T @ y.double() / 0.25)
    model = BNN(nn.Linear(4, 1), priors.Normal(0.0, 1.0), likelihoods.Gaussian(0.5), 40)
    independent, joint = AutoMeanFieldNormal(model), AutoFullRankNormal(model)
    sd, lower = precision.diag().rsqrt(), torch.linalg.cholesky(torch.linalg.inv(precision))
    with torch.no_grad():
        for guide, diagonal in ((independent, sd), (joint, lower.diagonal())):
            guide.loc.copy_(mean)
            guide.rho.copy_(diagonal.expm1().log())
        joint.whitened_scale_tril.copy_((lower / lower.diagonal()[:, None])[tuple(torch.tril_indices(5, 5, -1))])
    assert diagnosed(model, joint, (x, y), num_samples=400)["k-hat of q"].verdict == "good"
    assert diagnosed(model, independent, (x, y), num_samples=400)["k-hat of q"].verdict in ("doubtful", "bad")


def test_too_small_a_noise_is_seen_in_the_predictive():
    x, y = rows()
    guide = exact()
    sure = linear(noise=0.25)
    found = diagnosed(sure, guide, (x, y), test=rows(1000, seed=2))
    assert found["calibration"].verdict == "bad"
    assert "too sure" in found["calibration"].words
    assert found["replicated data"].verdict == "bad"


def test_chains_that_disagree_are_named():
    x, y = rows()
    model = linear()
    apart = torch.cat([torch.randn(50, 3) * 0.01, 3 + torch.randn(50, 3) * 0.01])
    found = pb.Posterior(model, StoredDraws.from_flat(model, apart, chains=2, kind="nuts")).diagnose((x, y))
    assert found["chains"].verdict == "bad"
    assert "Sample longer" in found["chains"].words
    assert found["settled"].verdict == "not checked"


def test_a_point_has_little_to_check():
    x, y = rows()
    model = linear()
    found = pb.Posterior(model, AutoPoint(model)).diagnose((x, y))
    assert {found[name].verdict for name in ("deviations", "widths", "settled", "k-hat of q")} == {"not checked"}


def test_drift_has_the_false_alarms_it_declares():
    """2,000 standstills of 20 epochs: 1 % alarms within 4 sd if independent, below 8 % if neighbours correlate .5."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2000, 20))
    alarms = np.mean([drift(line)[1] < ALPHA for line in noise])
    assert abs(alarms - ALPHA) < 4 * math.sqrt(ALPHA * (1 - ALPHA) / 2000)
    related = noise.copy()
    for t in range(1, 20):
        related[:, t] = 0.5 * related[:, t - 1] + math.sqrt(0.75) * noise[:, t]
    assert np.mean([drift(line)[1] < ALPHA for line in related]) < 0.08


def test_a_falling_loss_is_seen():
    lines = [{"loss": math.exp(-epoch / 10)} for epoch in range(20)]
    check = check_drift(lines)
    assert check.verdict == "bad"
    assert check.value == pytest.approx(math.exp(-1.0) - math.exp(-1.9), rel=0.1)
    assert check_drift(lines[:5]).verdict == "not checked"
    assert check_drift([{"loss": math.nan}] * 12).verdict == "bad"


def test_pareto_k_of_a_known_tail():
    """Ratios with P(r > t) = t^(-1/k) have the shape k; 4,000 of them tell it to about .15."""
    u = np.random.default_rng(0).uniform(size=4000)
    for k in (0.3, 1.0):
        assert pareto_k(-k * np.log(u)) == pytest.approx(k, abs=0.15)


def test_a_diagnosis_is_words_and_plain_data():
    diagnosis = Diagnosis((Check("a", "good", "fine"), Check("b", "doubtful", "so so", ".1", 0.2)))
    assert diagnosis.verdict == "doubtful"
    assert diagnosis["b"].value == 0.2
    assert diagnosis.summary == "To be used with care: b."
    assert diagnosis.to_dict()["checks"][1]["words"] == "so so"
    assert all(len(line) <= 79 for line in str(diagnosis).splitlines())
    with pytest.raises(KeyError, match="no check 'c'"):
        _ = diagnosis["c"]
    assert Diagnosis((Check("a", "not checked", "no"),)).summary == "Nothing could be checked."


def test_hand_written_programs_are_checked_as_far_as_they_can_be():
    x, y = rows()

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(x @ w, NOISE), obs=y)

    guide = AutoMeanFieldNormal(model)
    guide(x, y)
    found = diagnosed(model, guide, (x, y))
    assert found["deviations"].verdict == "good"
    assert found["widths"].verdict == "bad"  # it was never trained
    assert found["k-hat of q"].verdict == "bad"
