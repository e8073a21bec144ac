"""Split-conformal intervals and sets: ranks by hand, and how often exchangeable rows are covered."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from pyro_bnn.analysis.conformal import (
    conformal_intervals,
    conformal_quantile,
    conformal_rank,
    cqr_scores,
    fewest_rows,
    normalised_scores,
)
from pyro_bnn.analysis.conformal_sets import class_scores, conformal_sets
from pyro_bnn.analysis.scores.intervals import coverage, predictive_interval
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.posterior import Posterior

SPLITS, CALIBRATION, TEST = 100, 400, 400


def linear(weight: torch.Tensor, likelihood: likelihoods.Likelihood, scale: float = 1e-3) -> Posterior:
    """Return a posterior whose network is x @ weight.T, all but certain."""
    net = nn.Linear(weight.shape[1], weight.shape[0])
    model = BNN(net, priors.Normal(), likelihood, num_data=10)
    guide = AutoMeanFieldNormal(model)
    guide.assign("net.weight", weight, torch.full_like(weight, scale))
    guide.assign("net.bias", torch.zeros(weight.shape[0]), torch.full((weight.shape[0],), scale))
    return Posterior(model, guide)


# -- the quantile ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.05, 0.1, 0.29, 0.57, 0.7, 0.9, 0.95, 0.99])
def test_ranks_are_those_of_exact_arithmetic(level: float) -> None:
    exact = Fraction(str(level))
    for n in range(1, 2001):
        k = conformal_rank(n, level)
        assert k - 1 < (n + 1) * exact <= k
        assert (k <= n) == (n >= fewest_rows(level))


def test_the_quantile_is_a_score_and_infinite_without_enough_of_them() -> None:
    scores = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])
    assert conformal_quantile(scores, 0.5) == 3.0  # k = ceil(6 * 0.5)
    assert conformal_quantile(scores, 0.51) == 4.0
    assert conformal_quantile(scores, 5 / 6) == 5.0
    assert conformal_quantile(scores, 0.84) == math.inf


def test_ties_are_counted_each() -> None:
    scores = torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0])
    assert [conformal_quantile(scores, k / 10) for k in (1, 3, 4, 8, 9)] == [1.0, 1.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("n", [9, 10, 40])
def test_coverage_is_the_rank_s_share_for_every_place_of_the_next_score(n: int) -> None:
    """Among n + 1 scores that all differ, each is the next one equally often: exactly k of n + 1 are covered."""
    scores = torch.randperm(n + 1).double()
    covered = sum(
        float(s) <= conformal_quantile(torch.cat([scores[:i], scores[i + 1 :]]), 0.9) for i, s in enumerate(scores)
    )
    assert covered == conformal_rank(n, 0.9)


@pytest.mark.parametrize("scores", [torch.zeros(0), torch.zeros(2, 2), torch.tensor([1.0, math.nan])])
def test_no_scores_are_refused(scores: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="scores have shape"):
        conformal_quantile(scores, 0.5)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0])
def test_no_levels_are_refused(level: float) -> None:
    with pytest.raises(ValueError, match="not the level of an interval"):
        conformal_rank(10, level)


def test_scores_by_hand() -> None:
    mean, sd, y = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.5]), torch.tensor([-2.0, 3.0])
    assert normalised_scores(mean, sd, y).tolist() == [2.0, 2.0]
    assert cqr_scores(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0]), y).tolist() == [1.0, -1.0]


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_intervals_by_hand() -> None:
    posterior = linear(torch.tensor([[1.0]]), likelihoods.Gaussian(0.5), scale=1e-6)
    x = torch.zeros(9, 1)
    y = torch.tensor([0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8, 0.9])
    normalised = conformal_intervals(posterior, x, y, 0.9)
    lower, upper = normalised(torch.tensor([[3.0]]))
    assert (normalised.quantile, float(lower), float(upper)) == pytest.approx((1.8, 2.1, 3.9), abs=1e-4)
    cqr = conformal_intervals(posterior, x, y, 0.9, "cqr")
    own = predictive_interval(posterior, torch.tensor([[3.0]]), 0.9, 100, seed=0)
    assert float(cqr(torch.tensor([[3.0]])).upper) == pytest.approx(3.9, abs=1e-4)
    assert cqr.quantile == pytest.approx(3.9 - float(own.upper), abs=1e-4)


def test_an_interval_that_would_turn_around_is_a_point() -> None:
    """The widest intervals stand for rows whose targets are all right in the middle: q is below minus their half."""
    model = BNN(nn.Linear(1, 2), priors.Normal(), likelihoods.HeteroscedasticGaussian(), num_data=10)
    guide = AutoMeanFieldNormal(model)
    guide.assign("net.weight", torch.tensor([[0.0], [5.0]]), torch.full((2, 1), 1e-6))
    guide.assign("net.bias", torch.zeros(2), torch.full((2,), 1e-6))
    intervals = conformal_intervals(Posterior(model, guide), torch.ones(19, 1), torch.zeros(19), 0.9, "cqr")
    assert intervals.quantile < -5
    lower, upper = intervals(torch.tensor([[-1.0], [1.0]]))  # a narrow one, and one as wide as those that calibrated
    assert lower[0] == upper[0] == pytest.approx(0, abs=1e-3)
    assert float(upper[1] - lower[1]) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("score", ["normalised", "cqr"])
def test_intervals_cover_exchangeable_rows_as_often_as_they_say(score: str) -> None:
    """
    Of a model with the wrong mean, the wrong noise and the wrong shape of it.

    The coverage of a split has a deviation of about sqrt(.09 / 400 + .09 / 400) = .021, their mean over 100 splits one
    of .0021: 1 point is 4.7 of them, a false alarm in 10^5 or rarer.
    """
    posterior = linear(torch.tensor([[0.5, 0.0]]), likelihoods.Gaussian(0.3), scale=0.1)
    generator = torch.Generator().manual_seed(1)
    covered, raw = [], 0.0
    for split in range(SPLITS):
        x = torch.randn(CALIBRATION + TEST, 2, generator=generator)
        noise = torch.empty(len(x)).exponential_(generator=generator)
        y = x[:, 0] + x[:, 1].abs() * noise
        intervals = conformal_intervals(posterior, x[:CALIBRATION], y[:CALIBRATION], 0.9, score, num_samples=1)
        covered.append(coverage(intervals(x[CALIBRATION:]), y[CALIBRATION:].double()))
        if split == 0:
            own = predictive_interval(posterior, x[CALIBRATION:], 0.9, 5, seed=0)
            raw = coverage(own, y[CALIBRATION:].double())
    assert raw < 0.7
    assert sum(covered) / SPLITS == pytest.approx(conformal_rank(CALIBRATION, 0.9) / (CALIBRATION + 1), abs=0.01)


def test_too_few_rows_are_refused_or_leave_nothing_out() -> None:
    posterior = linear(torch.tensor([[1.0]]), likelihoods.Gaussian(0.5))
    x, y = torch.zeros(8, 1), torch.zeros(8)
    with pytest.raises(ValueError, match=r"8 calibration rows cannot promise a level of 0\.9: pass at least 9"):
        conformal_intervals(posterior, x, y, 0.9)
    lower, upper = conformal_intervals(posterior, x, y, 0.9, too_few="infinite")(torch.zeros(3, 1))
    assert lower.tolist() == [-math.inf] * 3
    assert upper.tolist() == [math.inf] * 3


def test_what_has_no_interval_is_refused() -> None:
    classes = linear(torch.eye(2), likelihoods.Categorical())
    for score in ("normalised", "cqr"):
        with pytest.raises(ValueError, match="predicts classes"):
            conformal_intervals(classes, torch.zeros(9, 2), torch.zeros(9), 0.9, score)
    two = linear(torch.eye(2), likelihoods.Gaussian(0.5))
    with pytest.raises(ValueError, match="of one target"):
        conformal_intervals(two, torch.zeros(9, 2), torch.zeros(9, 2), 0.9)
    one = linear(torch.tensor([[1.0]]), likelihoods.Gaussian(0.5))
    with pytest.raises(ValueError, match="NaN or infinity"):
        conformal_intervals(one, torch.zeros(9, 1), torch.full((9,), math.nan), 0.9)
    with pytest.raises(ValueError, match="score='other' is unknown"):
        conformal_intervals(one, torch.zeros(9, 1), torch.zeros(9), 0.9, "other")


# -- sets --------------------------------------------------------------------------------------------------------------


def test_class_scores_by_hand() -> None:
    p = torch.tensor([[0.1, 0.6, 0.3]], dtype=torch.float64)
    u = torch.tensor([0.5])
    assert class_scores(p, "lac")[0].tolist() == pytest.approx([0.9, 0.4, 0.7])
    assert class_scores(p, "aps")[0].tolist() == pytest.approx([1.0, 0.6, 0.9])
    assert class_scores(p, "aps", u)[0].tolist() == pytest.approx([0.95, 0.3, 0.75])
    assert class_scores(p, "raps", u, penalty=0.2, free=1)[0].tolist() == pytest.approx([1.35, 0.3, 0.95])
    assert torch.equal(class_scores(p, "raps", u, penalty=0.0), class_scores(p, "aps", u))


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_sets_cover_exchangeable_rows_as_often_as_they_say(score: str) -> None:
    """Of a model that is much too sure of itself; the false-alarm rate is that of the intervals above."""
    weight = torch.tensor([[3.0, 0.0], [0.0, 3.0], [-3.0, 1.0], [1.0, -3.0]])
    posterior = linear(weight, likelihoods.Categorical(), scale=0.1)
    generator = torch.Generator().manual_seed(2)
    covered, sizes, raw = [], [], 0.0
    for split in range(SPLITS):
        x = torch.randn(CALIBRATION + TEST, 2, generator=generator)
        y = torch.multinomial((x @ weight.T / 3).softmax(1), 1, generator=generator)[:, 0]
        sets = conformal_sets(
            posterior, x[:CALIBRATION], y[:CALIBRATION], 0.9, score, penalty=0.05, free=2, num_samples=1
        )
        held = sets(x[CALIBRATION:])
        covered.append(float(held.gather(1, y[CALIBRATION:, None]).double().mean()))
        sizes.append(float(held.sum(1).double().mean()))
        if split == 0:
            p = posterior.predict(x[CALIBRATION:], 5, seed=0)
            raw = float((class_scores(p, "aps") <= 0.9).gather(1, y[CALIBRATION:, None]).double().mean())
    assert raw < 0.75
    assert sum(covered) / SPLITS == pytest.approx(conformal_rank(CALIBRATION, 0.9) / (CALIBRATION + 1), abs=0.01)
    assert 1 < sum(sizes) / SPLITS < 3.5


def test_sets_without_chance_and_without_empty_ones_only_grow() -> None:
    posterior = linear(3 * torch.eye(3), likelihoods.Categorical(), scale=0.1)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(600, 3, generator=generator)
    y = torch.multinomial(x.mul(3).softmax(1), 1, generator=generator)[:, 0]
    free = conformal_sets(posterior, x[:300], y[:300], 0.5, "lac", num_samples=5)(x[300:])
    full = conformal_sets(posterior, x[:300], y[:300], 0.5, "lac", num_samples=5, allow_empty=False)(x[300:])
    assert bool((free.sum(1) == 0).any())
    assert bool((full | ~free).all())
    assert bool((full.sum(1) >= 1).all())
    fixed = conformal_sets(posterior, x[:300], y[:300], 0.5, "aps", num_samples=5, randomised=False)
    assert torch.equal(fixed(x[300:]), fixed(x[300:].flip(0)).flip(0))  # no row's set depends on its place


def test_sets_of_too_few_rows_hold_every_class() -> None:
    posterior = linear(torch.eye(3), likelihoods.Categorical())
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    with pytest.raises(ValueError, match="5 calibration rows cannot promise"):
        conformal_sets(posterior, x, y, 0.9)
    assert bool(conformal_sets(posterior, x, y, 0.9, too_few="infinite")(torch.randn(4, 3)).all())


def test_what_has_no_sets_is_refused() -> None:
    numbers = linear(torch.tensor([[1.0]]), likelihoods.Gaussian(0.5))
    with pytest.raises(ValueError, match="predicts numbers"):
        conformal_sets(numbers, torch.zeros(9, 1), torch.zeros(9, dtype=torch.long), 0.9)
    classes = linear(torch.eye(3), likelihoods.Categorical())
    with pytest.raises(ValueError, match="pass one from 0 to 2"):
        conformal_sets(classes, torch.zeros(9, 3), torch.full((9,), 3), 0.9)
    with pytest.raises(ValueError, match="penalty=-1"):
        conformal_sets(classes, torch.zeros(9, 3), torch.zeros(9, dtype=torch.long), 0.9, "raps", penalty=-1)
