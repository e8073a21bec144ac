"""Penalties are priors: recovered priors, the conditions that fail, layer weights, and one objective in two guises."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.infer.autoguide.initialization import init_to_value
from reference.penalties_quadrature import gaussian, kl_from_normal, penalised_loss
from scipy.integrate import quad
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import cross_entropy

import pyro_bnn.penalties
from pyro_bnn.inference import fit, kl
from pyro_bnn.inference.kl import per_datum
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.models.networks.cvnn import CVNN
from pyro_bnn.models.penalty_priors import (
    GroupLassoDensity,
    GroupLassoPrior,
    L1Prior,
    L2Prior,
    SharedPrior,
    TabulatedDensity,
)
from pyro_bnn.penalties import (
    L1,
    L2,
    DependsOnScaleError,
    GroupLasso,
    NoPriorError,
    NotIntegrableError,
    Penalty,
    PenaltyPrior,
    QuadraticPenalty,
    SpectrumGrowsError,
    UnstableDeconvolutionError,
    UsualPenaltyPrior,
    bayesian_penalty_weights,
    gaussian_penalty,
    implied_prior,
    kl_normal_laplace,
    kl_normal_normal,
    lambda_theory,
    penalty_from_prior,
    plot_equivalence,
    prior_from_penalty,
    rules,
    total_penalty,
    usual_penalty_weights,
)
from pyro_bnn.penalties.pruning import group_sparsity
from pyro_bnn.posterior.rebuild import build_prior

PENALTIES = [L2(), L1(), GroupLasso("incoming"), GroupLasso("outgoing")]
KINDS = ["L2", "L1", "incoming", "outgoing"]


@pytest.fixture(autouse=True)
def float64() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # the tensors are small


def mixture(loc: float = 1.5, sd: float = 0.7, share: float = 0.5) -> Distribution:
    components = dist.Normal(torch.tensor([loc, -loc]), torch.tensor([sd, sd]))
    return dist.MixtureSameFamily(dist.Categorical(torch.tensor([share, 1 - share])), components)


def l1_distance(prior: Distribution, log_alpha: Callable[[Tensor], Tensor]) -> float:
    x = torch.linspace(-15, 15, 300_001)
    alpha = log_alpha(x).exp()
    alpha = alpha / (alpha.sum() * 1e-4)
    return ((prior.log_prob(x).exp() - alpha).abs().sum() * 1e-4).item()


def cosine_penalty(height: float, frequency: float) -> Callable[[Tensor, float], Tensor]:
    """The penalty of ln alpha = -w^2 / 2 + height cos(frequency w): a Gaussian damps the wave and lifts the square."""

    def r(mu: Tensor, sd: float) -> Tensor:
        damped = height * math.exp(-((frequency * sd) ** 2) / 2) * torch.cos(frequency * mu)
        return (mu**2 + sd**2) / 2 - damped - 0.5 * math.log(2 * math.pi * math.e * sd**2)

    return r


class TestRecoveredPriors:
    @pytest.mark.parametrize("sd", [0.05, 0.5, 2.0])
    def test_gaussian(self, sd: float) -> None:
        r = penalty_from_prior(dist.Normal(0.4, 0.7))
        solution = implied_prior(lambda mu, s: r(mu, s) + 1.25, sd)
        assert isinstance(solution.prior, TabulatedDensity)  # the numeric route, not the corollary
        assert l1_distance(solution.prior, dist.Normal(0.4, 0.7).log_prob) < 1e-5
        assert solution.constant == pytest.approx(1.25, abs=1e-10)
        assert solution.cutoff == (3.0,)  # the residual is noise: no reason to go further

    @pytest.mark.parametrize("sd", [0.1, 0.5, 1.0])
    def test_cosine_modulated(self, sd: float) -> None:
        solution = implied_prior(cosine_penalty(0.5, 3.0), sd)

        def log_alpha(w: Tensor) -> Tensor:
            return -(w**2) / 2 + 0.5 * torch.cos(3 * w)

        kappa = quad(lambda w: math.exp(-(w**2) / 2 + 0.5 * math.cos(3 * w)), -15, 15, epsabs=1e-13)[0]
        assert l1_distance(solution.prior, log_alpha) < 5e-5
        assert solution.constant == pytest.approx(-math.log(kappa), abs=1e-6)
        assert solution.log_kappa == -solution.constant

    @pytest.mark.parametrize(("share", "sd"), [(0.5, 0.1), (0.5, 0.3), (0.8, 0.2)])
    def test_mixture(self, share: float, sd: float) -> None:
        target = mixture(share=share)
        r = penalty_from_prior(target)
        solution = implied_prior(lambda mu, s: r(mu, s) - 0.3, sd)
        assert l1_distance(solution.prior, target.log_prob) < 5e-5
        assert solution.constant == pytest.approx(-0.3, abs=1e-8)
        assert 3 <= solution.cutoff[0] <= 5

    def test_a_trained_scale(self) -> None:
        solution = implied_prior(penalty_from_prior(mixture()), [0.15, 0.3])
        assert l1_distance(solution.prior, mixture().log_prob) < 5e-5
        assert solution.penalty.shape == (2, len(solution.points))
        assert solution.variational_sd == (0.15, 0.3)

    def test_heavy_tails(self) -> None:
        target = dist.StudentT(torch.tensor(7.0), torch.tensor(0.0), torch.tensor(1.0))
        assert l1_distance(implied_prior(penalty_from_prior(target), 0.4).prior, target.log_prob) < 1e-4

    def test_far_from_the_origin(self) -> None:
        prior = prior_from_penalty(lambda mu, sd: (mu - 1000) ** 2 / 2, 0.3)
        assert prior.mean.item() == pytest.approx(1000, abs=1e-6)
        assert prior.variance.item() == pytest.approx(1, abs=1e-5)

    def test_quartic(self) -> None:
        sd = 0.4  # the heat flow backwards: mu^4 -> w^4 - 6 sd^2 w^2 + 3 sd^4
        prior = prior_from_penalty(lambda mu, s: mu**4, sd)
        assert l1_distance(prior, lambda w: -(w**4) + 6 * sd**2 * w**2) < 1e-4

    def test_smoothing_the_solution_gives_the_penalty_back(self) -> None:
        r, sd = penalty_from_prior(mixture()), 0.3
        solution = implied_prior(r, sd)
        entropy = 0.5 * math.log(2 * math.pi * math.e * sd**2)
        z = torch.linspace(-9, 9, 20_001)
        shares = torch.tensor([gaussian(v, 0.0, 1.0) for v in z.tolist()]) * (z[1] - z[0])
        for mu in (-2.0, 0.0, 0.9):
            smoothed = (shares * solution.prior.log_prob(mu + sd * z)).sum().item()
            assert -entropy - smoothed + solution.constant == pytest.approx(r(torch.tensor(mu), sd).item(), abs=1e-4)

    def test_noise_of_the_penalty_is_not_amplified_beyond_the_tolerance(self) -> None:
        noise = torch.Generator().manual_seed(0)
        solution = implied_prior(lambda mu, sd: mu**2 + 1e-8 * torch.randn(mu.shape, generator=noise), 0.3)
        assert l1_distance(solution.prior, lambda w: -(w**2)) < 1e-4

    def test_is_usable_as_a_prior(self) -> None:
        prior = prior_from_penalty(cosine_penalty(0.5, 3.0), 0.3, shape=(4, 3))
        assert prior.event_shape == (4, 3)
        w = prior.sample()
        assert prior.log_prob(w).shape == ()
        layer = nn.Linear(3, 4)
        rule = SharedPrior(prior_from_penalty(cosine_penalty(0.5, 3.0), 0.3))
        torch.testing.assert_close(rule("weight", layer, layer.weight).log_prob(w), prior.log_prob(w))


class TestClosedForms:
    def test_corollary(self) -> None:
        a, b = gaussian_penalty(0.7).a, gaussian_penalty(0.7).b
        mu, sd = 0.4, 0.3
        assert a(sd**2) + b(sd**2) * mu**2 == pytest.approx(0.6024, abs=5e-5)
        solution = implied_prior(QuadraticPenalty(lambda v: a(v) + 0.9, b), [0.1, 0.5, 3.0])
        assert solution.prior.scale.item() == pytest.approx(0.7)
        assert solution.constant == pytest.approx(0.9)

    def test_corollary_as_printed_has_no_prior(self) -> None:
        a, b = gaussian_penalty(0.7).a, gaussian_penalty(0.7).b
        assert b(0.09) + a(0.09) * 0.16 == pytest.approx(1.0907, abs=5e-4)
        with pytest.raises(DependsOnScaleError, match="depends on nu"):
            implied_prior(QuadraticPenalty(a=b, b=a), [0.1, 0.5, 3.0])

    @pytest.mark.parametrize("sd", [0.05, 0.3, 1.0])
    def test_l2_at_a_fixed_scale(self, sd: float) -> None:
        closed, numeric = implied_prior(L2(2.0), sd), implied_prior(lambda mu, s: 2 * mu**2, sd)
        assert closed.prior.scale.item() == pytest.approx(0.5)
        assert closed.constant == pytest.approx(numeric.constant, abs=1e-9)
        assert l1_distance(numeric.prior, closed.prior.log_prob) < 1e-5
        mu = torch.linspace(-2, 2, 5)
        torch.testing.assert_close(penalty_from_prior(closed.prior)(mu, sd) + closed.constant, 2 * mu**2)

    @pytest.mark.parametrize(
        ("mu", "sd", "scale"), [(0.0, 1.0, 1.0), (0.4, 0.3, 0.7), (-3.0, 0.1, 2.0), (1.0, 5.0, 0.2)]
    )
    def test_kl_to_laplace_is_the_quadrature(self, mu: float, sd: float, scale: float) -> None:
        def log_laplace(w: float) -> float:
            return -abs(w - 0.25) / scale - math.log(2 * scale)

        expected = kl_from_normal(log_laplace, mu, sd, breaks=[0.25])
        ours = kl_normal_laplace(torch.tensor(mu), torch.tensor(sd), 0.25, scale).item()
        assert ours == pytest.approx(expected, abs=1e-8)

    def test_kl_to_normal_is_the_quadrature(self) -> None:
        expected = kl_from_normal(lambda w: -(w**2) / 0.98 - math.log(0.7 * math.sqrt(2 * math.pi)), 0.4, 0.3)
        ours = kl_normal_normal(torch.tensor(0.4), torch.tensor(0.3), 0.0, 0.7).item()
        assert ours == pytest.approx(expected, abs=1e-10)
        assert ours == pytest.approx(0.6024, abs=5e-5)

    def test_kl_to_a_mixture_is_the_quadrature(self) -> None:
        r = penalty_from_prior(mixture())
        for mu, sd in ((0.0, 0.3), (1.2, 1.0), (-4.0, 0.05)):
            expected = kl_from_normal(lambda w: mixture().log_prob(torch.tensor(w)).item(), mu, sd)
            assert r(torch.tensor(mu), sd).item() == pytest.approx(expected, abs=1e-9)

    def test_penalty_from_prior_broadcasts_and_differentiates(self) -> None:
        mu = torch.randn(3, 1, requires_grad=True)
        sd = torch.rand(4).requires_grad_()
        for prior in (dist.Normal(0.0, 1.0), dist.Laplace(0.0, 1.0), mixture()):
            r = penalty_from_prior(prior)
            assert r(mu, sd).shape == (3, 4)
            assert torch.autograd.gradcheck(r, (mu, sd), atol=1e-6)

    def test_dirac_family(self) -> None:
        mu = torch.linspace(-2, 2, 5)
        torch.testing.assert_close(penalty_from_prior(mixture(), "dirac")(mu), -mixture().log_prob(mu))
        back = implied_prior(lambda m, sd: penalty_from_prior(mixture(), "dirac")(m) + 0.5, 0.0)
        assert l1_distance(back.prior, mixture().log_prob) < 1e-5
        assert back.constant == pytest.approx(0.5, abs=1e-5)

    @pytest.mark.parametrize(("power", "weight"), [(0.5, 3.0), (0.4, 3.0), (0.3, 3.0), (0.3, 6.0)])
    @pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
    def test_dirac_family_keeps_its_tolerance_at_a_cusp(self, power: float, weight: float, tolerance: float) -> None:
        """exp(-lambda |w|^q) integrates to 2 Gamma(1/q + 1) lambda^(-1/q)."""
        found = implied_prior(lambda mu, sd: weight * mu.abs() ** power, 0.0, tolerance=tolerance)
        exact = math.log(2) + math.lgamma(1 / power + 1) - math.log(weight) / power
        assert found.log_kappa == pytest.approx(exact, abs=tolerance)
        assert 0 < found.change <= tolerance
        variance = math.exp(math.lgamma(3 / power) - math.lgamma(1 / power)) * weight ** (-2 / power)
        assert float(found.prior.variance) == pytest.approx(variance, rel=10 * tolerance)

    @pytest.mark.parametrize(("slab", "spike"), [(1.0, math.exp(-6)), (30.0, 1e-2), (100.0, 1e-3)])
    def test_dirac_family_sees_a_spike(self, slab: float, spike: float) -> None:
        def penalty(mu: Tensor, sd: float) -> Tensor:
            both = [dist.Normal(0.0, scale).log_prob(mu) for scale in (slab, spike)]
            return math.log(2) - torch.logaddexp(*both)

        assert implied_prior(penalty, 0.0).log_kappa == pytest.approx(0, abs=1e-3)

    def test_dirac_family_follows_a_jump(self) -> None:
        found = implied_prior(lambda mu, sd: 5.0 * (mu.abs() > 1) + mu.abs(), 0.0)
        assert found.log_kappa == pytest.approx(math.log(2 * (1 - math.exp(-1)) + 2 * math.exp(-6)), abs=1e-3)

    def test_dirac_family_refuses(self) -> None:
        with pytest.raises(NoPriorError, match="infinite at mu="):
            implied_prior(lambda mu, sd: torch.where(mu.abs() < 1, mu**2, math.inf), 0.0)
        with pytest.raises(ValueError, match="tolerance=0"):
            implied_prior(L1(1.0), 0.0, tolerance=0.0)

    def test_dirac_priors_of_the_penalties(self) -> None:
        assert prior_from_penalty(L2(2.0), 0.0).scale.item() == pytest.approx(0.5)
        assert prior_from_penalty(L1(4.0), 0.0).scale.item() == pytest.approx(0.25)
        assert isinstance(implied_prior(L1(4.0), 0.0).prior, dist.Laplace)
        assert implied_prior(L1(4.0), 0.0).constant == pytest.approx(math.log(4 / 2), abs=1e-10)
        group = prior_from_penalty(GroupLasso("outgoing", 3.0), 0.0, shape=(5, 2, 3, 3))
        assert isinstance(group, GroupLassoDensity)
        assert (group.num_groups, group.group_size, group.rate.item()) == (2, 45, 3.0)

    @pytest.mark.parametrize("penalty", PENALTIES, ids=KINDS)
    def test_log_prob_falls_by_the_penalty(self, penalty: Penalty) -> None:
        w, v = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
        prior = penalty.prior(w, 1.7)
        torch.testing.assert_close(
            prior.log_prob(w) - prior.log_prob(v), -1.7 * (penalty.value(w) - penalty.value(v)), rtol=1e-10, atol=1e-10
        )


class TestNoPrior:
    @pytest.mark.parametrize("sd", [0.05, 0.3, 3.0])
    @pytest.mark.parametrize("weight", [0.3, 2.0])
    def test_absolute_value_has_a_growing_spectrum(self, sd: float, weight: float) -> None:
        with pytest.raises(SpectrumGrowsError, match="less smooth than any function convolved with the family"):
            implied_prior(L1(weight), sd)

    def test_other_rough_penalties(self) -> None:
        for rough in (lambda mu, sd: mu.abs() ** 1.5, lambda mu, sd: mu**2 + (mu > 0)):
            with pytest.raises(SpectrumGrowsError):
                implied_prior(rough, 0.3)
        with pytest.raises(SpectrumGrowsError, match="spectrum of a group norm"):
            prior_from_penalty(GroupLasso(), 0.3, shape=(2, 3))

    @pytest.mark.parametrize("r", [L2(2.0), lambda mu, sd: 2 * mu**2], ids=["closed form", "numeric"])
    def test_l2_with_a_trained_scale_depends_on_nu(self, r: Any) -> None:
        assert implied_prior(r, 0.2).constant == pytest.approx(
            implied_prior(L2(2.0), 0.2).constant
        )  # a fixed one is fine
        with pytest.raises(DependsOnScaleError, match="depends"):
            implied_prior(r, [0.1, 0.2])

    def test_a_shape_that_depends_on_nu(self) -> None:
        good = cosine_penalty(0.5, 3.0)
        with pytest.raises(DependsOnScaleError, match=r"prior by 0\.\d+ \(L1\)"):
            implied_prior(lambda mu, sd: good(mu, sd) + sd * mu**2, [0.1, 0.3])

    @pytest.mark.parametrize(
        "r",
        [
            lambda mu, sd: -(mu**2),
            lambda mu, sd: mu,
            lambda mu, sd: 0 * mu,
            lambda mu, sd: 0.5 * torch.log1p(mu**2),  # exp(-r) falls like 1 / |mu|
            lambda mu, sd: torch.log(mu),
        ],
        ids=["concave", "one-sided", "flat", "logarithmic", "nan"],
    )
    @pytest.mark.parametrize("sd", [0.0, 0.3])
    def test_not_integrable(self, r: Any, sd: float) -> None:
        with pytest.raises(NotIntegrableError):
            implied_prior(r, sd)

    def test_the_entropy_of_a_point_is_infinite(self) -> None:
        with pytest.raises(NotIntegrableError, match="a is inf at sd 0"):
            implied_prior(gaussian_penalty(0.7), 0.0)

    def test_concave_quadratic(self) -> None:
        with pytest.raises(NotIntegrableError, match="b must be above 0"):
            implied_prior(QuadraticPenalty(lambda v: 0.0, lambda v: -1.0), 0.3)

    @pytest.mark.parametrize(("target", "sd"), [(mixture, 1.0), (lambda: mixture(sd=0.1), 0.3)], ids=["wide", "narrow"])
    def test_features_narrower_than_the_family(self, target: Callable[[], Distribution], sd: float) -> None:
        with pytest.raises(UnstableDeconvolutionError, match="features narrower than sd"):
            implied_prior(penalty_from_prior(target()), sd)

    def test_the_tolerance_decides(self) -> None:
        r = penalty_from_prior(mixture())
        assert 1e-4 < implied_prior(r, 0.5, tolerance=1e-3).change < 1e-3
        with pytest.raises(UnstableDeconvolutionError):
            implied_prior(r, 0.5, tolerance=1e-4)

    def test_a_coarse_grid(self) -> None:
        with pytest.raises(UnstableDeconvolutionError, match="too heavy or the scale too small"):
            implied_prior(penalty_from_prior(dist.Cauchy(0.0, 1.0)), 0.3)

    def test_noise(self) -> None:
        with pytest.raises(NoPriorError):
            implied_prior(lambda mu, sd: mu**2 + 0.01 * torch.rand_like(mu), 0.3)

    def test_every_one_is_a_value_error(self) -> None:
        for error in (DependsOnScaleError, NotIntegrableError, SpectrumGrowsError, UnstableDeconvolutionError):
            assert issubclass(error, NoPriorError)
            assert issubclass(error, ValueError)

    def test_bad_arguments(self) -> None:
        for sd in (-1.0, [], [0.0, 0.1], math.nan):
            with pytest.raises(ValueError, match="is no scale"):
                implied_prior(L2(), sd)
        with pytest.raises(TypeError, match="pass a Penalty or a function"):
            implied_prior(3.0, 0.1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="elementwise"):
            implied_prior(lambda mu, sd: mu.sum(), 0.1)
        with pytest.raises(ValueError, match="prior_sd=0"):
            gaussian_penalty(0.0)
        with pytest.raises(ValueError, match="weight=0"):
            L1(0.0)
        with pytest.raises(ValueError, match="family='cauchy'"):
            penalty_from_prior(dist.Normal(0.0, 1.0), "cauchy")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="prior of one weight"):
            penalty_from_prior(dist.Normal(0.0, 1.0).expand((2,)))
        with pytest.raises(ValueError, match="sd="):
            penalty_from_prior(dist.Normal(0.0, 1.0))(torch.zeros(2), 0.0)
        with pytest.raises(TypeError, match="acts on groups"):
            implied_prior(GroupLasso(), 0.0)
        with pytest.raises(ValueError, match="has no groups"):
            prior_from_penalty(GroupLasso(), 0.0, shape=(3,)).log_prob(torch.zeros(3))


class TestLayerWeights:
    def test_formulas_of_the_paper(self) -> None:
        net = CVNN(in_channels=3, width=4, hidden=5, image_size=8)  # fan-ins 27, 36, 32, 5
        conv, inputs = "features.3.weight", 4 * 9
        assert bayesian_penalty_weights(net, L2())[conv] == pytest.approx(inputs / 2)
        assert bayesian_penalty_weights(net, L1())[conv] == pytest.approx(math.sqrt(2 * inputs))
        incoming = bayesian_penalty_weights(net, GroupLasso("incoming"))
        assert incoming[conv] == pytest.approx(math.sqrt((inputs + 1) * inputs))
        assert incoming["classifier.2.weight"] == pytest.approx(math.sqrt(6 * 5))
        assert incoming["classifier.2.bias"] == pytest.approx(5 / 2)
        outgoing = bayesian_penalty_weights(net, GroupLasso("outgoing"))
        assert outgoing[conv] == pytest.approx(math.sqrt((8 * 9 + 1) * inputs))

    @pytest.mark.parametrize("penalty", PENALTIES, ids=KINDS)
    @pytest.mark.parametrize("variance", ["fan_in", "glorot", "kaiming", lambda n_in, n_out: 3 / (n_in * n_out)])
    def test_priors_have_the_target_variance(self, penalty: Penalty, variance: Any) -> None:
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        fans = {"0.weight": (18, 36), "0.bias": (18, 36), "3.weight": (16, 3), "3.bias": (16, 3)}
        schemes = {
            "fan_in": lambda i, o: 1 / i,
            "glorot": lambda i, o: 2 / (i + o),
            "kaiming": lambda i, o: 2 / i,
        }
        scheme = variance if callable(variance) else schemes[variance]
        weights = bayesian_penalty_weights(net, penalty, variance)
        assert list(weights) == list(fans)  # normalisation layers carry no penalty
        rule, draws = PenaltyPrior(penalty, weights), 4000
        for name, parameter in net.named_parameters():
            if name not in fans:
                continue
            w = rule(name, None, parameter).sample((draws,))  # (draws, *shape)
            target = scheme(*fans[name])
            per_draw = w.square().flatten(1).mean(1)  # independent over draws whatever the groups
            error = per_draw.std().item() / math.sqrt(draws)
            # 5 standard errors, 64 comparisons in all: false-alarm rate below 5e-5
            assert abs(per_draw.mean().item() - target) < 5 * error
            assert error < 0.03 * target

    def test_a_penalty_with_its_own_weight_ends_at_the_same_prior(self) -> None:
        net = nn.Linear(6, 4)
        for light, heavy in ((L2(), L2(7.0)), (L1(), L1(7.0)), (GroupLasso(), GroupLasso(weight=7.0))):
            w = torch.randn(4, 6)
            values = [
                total_penalty({"weight": w}, p, {"weight": bayesian_penalty_weights(net, p)["weight"]})
                for p in (light, heavy)
            ]
            torch.testing.assert_close(*values)

    def test_agrees_with_the_rules_by_variance(self) -> None:
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Linear(4, 3))
        rules = [L2Prior, L1Prior, partial(GroupLassoPrior, "incoming"), partial(GroupLassoPrior, "outgoing")]
        for penalty, rule in zip(PENALTIES, rules, strict=True):
            by_weight = PenaltyPrior(penalty, bayesian_penalty_weights(net, penalty, "glorot"))
            by_variance = rule(variance="glorot")
            for name, p in net.named_parameters():
                owner = net[int(name[0])]
                values = [prior(name, owner, p).log_prob(p) for prior in (by_weight, by_variance)]
                torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)

    def test_usual_weights(self) -> None:
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1))
        assert usual_penalty_weights(net, L1()) == dict.fromkeys(dict(net.named_parameters()), 1.0)
        assert usual_penalty_weights(net, GroupLasso("incoming"))["0.weight"] == pytest.approx(math.sqrt(18))
        assert usual_penalty_weights(net, GroupLasso("outgoing"))["0.weight"] == pytest.approx(math.sqrt(36))

    def test_the_usual_rule_needs_no_network(self) -> None:
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Linear(4, 3))
        rules = [
            UsualPenaltyPrior("l2"),
            UsualPenaltyPrior("l1"),
            UsualPenaltyPrior("group_lasso", "incoming"),
            UsualPenaltyPrior("group_lasso", "outgoing"),
        ]
        for penalty, rule in zip(PENALTIES, rules, strict=True):
            by_weight = PenaltyPrior(penalty, usual_penalty_weights(net, penalty))
            for name, p in net.named_parameters():
                values = [prior(name, None, p).log_prob(p) for prior in (by_weight, rule)]
                torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)
        assert rules[3].spec() == {"name": "UsualPenaltyPrior", "penalty": "group_lasso", "groups": "outgoing"}
        with pytest.raises(ValueError, match="penalty='l3' is unknown: pass one of"):
            UsualPenaltyPrior("l3")  # type: ignore[arg-type]

    def test_total_penalty_is_the_literal_sum(self) -> None:
        net = CVNN(1, 3, 8, width=2, hidden=5)
        arrays = {name: p.detach().numpy() for name, p in net.named_parameters()}
        for penalty, kind in zip(PENALTIES, KINDS, strict=True):
            weights = bayesian_penalty_weights(net, penalty, "glorot")
            expected = penalised_loss(0.0, arrays, kind, weights, 1.0)
            assert total_penalty(net, penalty, weights).item() == pytest.approx(expected, rel=1e-12)

    def test_lambda_theory(self) -> None:
        assert lambda_theory(50_000) == 1 / 50_000
        with pytest.raises(ValueError, match="num_data=0"):
            lambda_theory(0)

    def test_errors_name_the_parameters(self) -> None:
        net = nn.Linear(2, 2)
        with pytest.raises(ValueError, match=r"weights name \['nothing'\]"):
            total_penalty(net, L2(), {"nothing": 1.0})
        with pytest.raises(ValueError, match="no penalty weight for 'bias'"):
            PenaltyPrior(L2(), {"weight": 1.0})("bias", net, net.bias)

    def test_the_rule_is_written_down(self) -> None:
        spec = PenaltyPrior(GroupLasso("outgoing"), {"weight": 2.0}).spec()
        assert spec["penalty"] == {
            "name": "GroupLasso",
            "class": "pyro_bnn.penalties.rules:GroupLasso",
            "groups": "outgoing",
            "weight": 1.0,
        }
        assert spec["weights"] == {"weight": 2.0}

    @pytest.mark.parametrize("rule", [PenaltyPrior(L1(), {"weight": 2.0}), UsualPenaltyPrior("l1")])
    def test_a_rule_saved_where_it_was_is_built(self, rule: Any) -> None:
        spec = rule.spec()
        before = {**spec, "class": f"pyro_bnn.penalties.rules:{type(rule).__name__}"}
        assert build_prior(spec) == build_prior(before) == rule

    @pytest.mark.parametrize(
        ("name", "home"),
        [("implied_prior", "deconvolution"), ("ImpliedPrior", "deconvolution"), ("PenaltyPrior", "network")],
    )
    def test_names_of_the_rules_that_moved_work(self, name: str, home: str) -> None:
        with pytest.warns(DeprecationWarning, match=f"rules.{name} has moved to pyro_bnn.penalties.{home}"):
            before = getattr(rules, name)
        assert before is getattr(pyro_bnn.penalties, name)


ROWS, CLASSES = 12, 3


def small_problem() -> tuple[nn.Module, Tensor, Tensor]:
    net = CVNN(1, CLASSES, 4, width=2, hidden=4)
    return net, torch.randn(ROWS, 1, 4, 4), torch.arange(ROWS) % CLASSES


def point_guide(model: BNN, net: nn.Module) -> AutoDelta:
    start = {f"net.{name}": p.detach().clone() for name, p in net.named_parameters()}
    return AutoDelta(model, init_loc_fn=init_to_value(values=start))


class TestTraining:
    @pytest.mark.parametrize("factor", [1.0, 0.1])
    @pytest.mark.parametrize(("penalty", "kind"), list(zip(PENALTIES, KINDS, strict=True)), ids=KINDS)
    def test_map_is_the_penalised_loss(self, penalty: Penalty, kind: str, factor: float) -> None:
        """Stock AutoDelta and Trace_ELBO, per datum: nll + (eta / N) (sum_l lambda_l r + log Z), to rounding."""
        net, x, y = small_problem()
        weights = bayesian_penalty_weights(net, penalty)
        model = BNN(net, PenaltyPrior(penalty, weights), likelihoods.Categorical(), num_data=ROWS)
        guide = point_guide(model, net)
        with per_datum(ROWS), kl.scale_kl(factor):
            loss = Trace_ELBO().differentiable_loss(model, guide, x, y)
        arrays = {name: p.detach().numpy() for name, p in net.named_parameters()}
        nll = cross_entropy(net(x), y)
        literal = penalised_loss(nll.item(), arrays, kind, weights, factor * lambda_theory(ROWS))
        log_z = sum(-model.priors()[name].log_prob(torch.zeros_like(p)).item() for name, p in net.named_parameters())
        assert loss.item() == pytest.approx(literal + factor / ROWS * log_z, rel=1e-12)

        explicit = nll + factor * lambda_theory(ROWS) * total_penalty(net, penalty, weights)
        grads = torch.autograd.grad(loss, list(guide.parameters()))
        expected = torch.autograd.grad(explicit, list(net.parameters()))
        for ours, theirs in zip(grads, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)

    def test_fit_walks_the_path_of_the_penalised_loss(self) -> None:
        net, x, y = small_problem()
        penalty, eta, steps = GroupLasso("incoming"), 0.3, 10
        weights = bayesian_penalty_weights(net, penalty)
        model = BNN(net, PenaltyPrior(penalty, weights), likelihoods.Categorical(), num_data=ROWS)
        guide = point_guide(model, net)
        fit(
            model,
            guide,
            pyro.optim.Adam({"lr": 0.01}),
            (x, y),
            epochs=steps,
            batch_size=ROWS,
            kl=kl.tempered(eta),
            elbo=Trace_ELBO(),
            seed=0,
        )
        adam = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(steps):
            adam.zero_grad()
            loss = cross_entropy(net(x), y) + eta * lambda_theory(ROWS) * total_penalty(net, penalty, weights)
            loss.backward()
            adam.step()
        medians = guide.median()
        for name, p in net.named_parameters():
            torch.testing.assert_close(medians[f"net.{name}"], p.detach(), rtol=0, atol=1e-9)

    @pytest.mark.parametrize("penalty", [L2(), L1()], ids=["L2", "L1"])
    def test_vi_takes_the_penalty_from_the_prior(self, penalty: Penalty) -> None:
        """The KL term of stock TraceMeanField_ELBO is sum over weights of r(mu, sd) = KL(N || implied prior)."""
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES))
        x = torch.randn(ROWS, 4)
        weights = bayesian_penalty_weights(net, penalty)
        model = BNN(net, PenaltyPrior(penalty, weights), likelihoods.Categorical(), num_data=ROWS)
        loc = {name: torch.randn_like(p) for name, p in net.named_parameters()}
        sd = {name: torch.rand_like(p) + 0.1 for name, p in net.named_parameters()}

        def guide(x: Tensor, y: Tensor | None = None) -> None:
            for name in loc:
                pyro.sample(f"net.{name}", dist.Normal(loc[name], sd[name]).to_event(loc[name].dim()))

        silent = pyro.poutine.block(model, hide=["obs"])
        loss = TraceMeanField_ELBO().loss(silent, guide, x)
        expected = 0.0
        for name in loc:
            scale = (
                1 / weights[name] if penalty == L1() and loc[name].dim() >= 2 else math.sqrt(1 / (2 * weights[name]))
            )
            laplace = penalty == L1() and loc[name].dim() >= 2
            prior = dist.Laplace(0.0, scale) if laplace else dist.Normal(0.0, scale)
            expected += penalty_from_prior(prior)(loc[name], sd[name]).sum().item()
        assert loss == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(
        "prior",
        [
            lambda net: PenaltyPrior(L1(), bayesian_penalty_weights(net, L1())),
            lambda net: PenaltyPrior(GroupLasso(), bayesian_penalty_weights(net, GroupLasso())),
            lambda net: SharedPrior(prior_from_penalty(penalty_from_prior(mixture(0.6, 0.3)), 0.1)),
        ],
        ids=["laplace", "group lasso", "tabulated"],
    )
    def test_vi_trains_with_an_implied_prior(self, prior: Callable[[nn.Module], priors.Prior]) -> None:
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        x = torch.randn(100, 2)
        y = (x[:, 0] > 0).long()
        model = BNN(net, prior(net), likelihoods.Categorical(), num_data=100)
        guide = pyro.infer.autoguide.AutoNormal(model, init_scale=0.05)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), TraceMeanField_ELBO())
        losses = [svi.step(x, y) for _ in range(80)]
        assert all(math.isfinite(loss) for loss in losses)
        medians = {name.removeprefix("net."): value for name, value in guide.median().items()}
        accuracy = (model.output(x, medians).argmax(-1) == y).double().mean().item()
        assert accuracy > 0.9
        assert sum(losses[-20:]) < sum(losses[:20])

    def test_group_lasso_switches_units_off(self) -> None:
        x = torch.randn(100, 4)
        y = (x[:, 0] > 0).long()
        penalty = GroupLasso("incoming")
        dead = []
        for eta in (1.0, 1e-6):
            net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
            rule = PenaltyPrior(penalty, bayesian_penalty_weights(net, penalty))
            model = BNN(net, rule, likelihoods.Categorical(), num_data=100)
            guide = point_guide(model, net)
            adam = pyro.optim.Adam({"lr": 0.03})
            fit(model, guide, adam, (x, y), epochs=60, kl=kl.tempered(eta), elbo=Trace_ELBO(), seed=0)
            weight = {"0.weight": guide.median()["net.0.weight"]}
            dead.append(group_sparsity(weight, "incoming", threshold=0.05).fraction)
        assert dead[0] > 0.5
        assert dead[1] == 0


class TestPlot:
    def test_draws_penalty_a_and_prior(self) -> None:
        solution = implied_prior(gaussian_penalty(0.7), [0.1, 0.5])
        figure = plot_equivalence(solution, title="L2")
        left, middle, right = figure.axes
        assert len(left.lines) == 2
        x, r = left.lines[1].get_data()
        torch.testing.assert_close(torch.as_tensor(r), gaussian_penalty(0.7)(torch.as_tensor(x), 0.5))
        x, a = middle.lines[0].get_data()
        x, p = right.lines[0].get_data()
        torch.testing.assert_close(torch.as_tensor(p), dist.Normal(0.0, 0.7).log_prob(torch.as_tensor(x)).exp())
        torch.testing.assert_close(
            torch.as_tensor(p).log() - torch.as_tensor(a), torch.zeros(len(a)), atol=1e-9, rtol=0
        )
        figure.canvas.draw()


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_group_lasso_on_grouped_convolutions_counts_channels(kind: Any) -> None:
    """Of a network, of its tensors by name beside it, and as a prior: one group for each channel."""
    net = nn.Sequential(kind(8, 4, 3, groups=4), nn.ReLU())
    conv = net[0]
    with torch.no_grad():
        conv.weight.zero_()
        if kind is nn.Conv2d:
            conv.weight[2:, 0] = 1.0  # (out, in / g): the channels 4 and 6 feed the outputs 2 and 3
        else:
            conv.weight[4::2] = 1.0  # (in, out / g)
    penalty = GroupLasso("outgoing")
    weights = {"0.weight": 1.0}
    tensors = {"0.weight": conv.weight.detach()}
    expected = 2 * 3.0  # two channels of nine ones
    assert total_penalty(net, penalty, weights).item() == pytest.approx(expected)
    assert total_penalty(tensors, penalty, weights, net=net).item() == pytest.approx(expected)
    assert usual_penalty_weights(net, penalty)["0.weight"] == pytest.approx(3.0)  # the root of 9
    assert bayesian_penalty_weights(net, penalty)["0.weight"] == pytest.approx(math.sqrt((9 + 1) * 2 * 9))
    prior = PenaltyPrior(penalty, weights)("0.weight", conv, conv.weight)
    falls = prior.log_prob(conv.weight) - prior.log_prob(torch.zeros_like(conv.weight))
    assert falls.item() == pytest.approx(-expected)
