"""The robust region: exact, so the study itself runs here, and its parts against fractions and brute force."""

from fractions import Fraction

import pytest

from pyro_bnn.optim.torch_optim.yellowfin import robust_region
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Results, Trial
from pyro_bnn.studies.thesis_robust_region import STUDY, contraction, convex, cycle, empty, heavy_ball, spectral_radius


def test_the_whole_study() -> None:
    trials = STUDY.design("source")
    assert trials == STUDY.design("smoke")
    functions = {"contraction": contraction, "convex": convex, "empty": empty}
    records = {t.key(): functions[t.compute.split(":")[1]](**t.arguments, seed=t.seed) for t in trials}
    findings = STUDY.judge(Results(trials, records))
    assert verdict_of(findings) == "confirmed"
    assert [finding.verdict for finding in findings] == ["confirmed", "confirmed", "contradicted", "contradicted"]


def test_a_radius_that_is_not_sqrt_mu_contradicts() -> None:
    def record(trial: Trial) -> dict[str, float]:
        wrong = 1e-9 if trial.cell.startswith("inside") else 0.1
        return {"ratio": 1.0, "more": wrong, "left": 0.0, "below": 0.0}

    trials = STUDY.design("source")
    findings = STUDY.judge(Results(trials, {trial.key(): record(trial) for trial in trials}))
    assert verdict_of(findings) == "contradicted"


@pytest.mark.parametrize("x", [Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)])
@pytest.mark.parametrize("h", [Fraction(1, 2), Fraction(3)])
def test_the_region_is_where_the_discriminant_is_not_positive(x: Fraction, h: Fraction) -> None:
    """In fractions: T^2 - 4 mu is 0 at both ends, below 0 between them and above 0 beyond."""
    mu, low, high = x**2, (1 - x) ** 2 / h, (1 + x) ** 2 / h

    def discriminant(alpha: Fraction) -> Fraction:
        return (1 + mu - alpha * h) ** 2 - 4 * mu

    assert discriminant(low) == discriminant(high) == 0
    assert all(discriminant(low + (high - low) * Fraction(k, 10)) < 0 for k in range(1, 10))
    assert discriminant(low * Fraction(9, 10)) > 0 < discriminant(high * Fraction(11, 10))
    assert robust_region(float(h), float(mu)) == pytest.approx((float(low), float(high)), rel=1e-13)


def test_golden_radii() -> None:
    # mu = 1/4, h = 1: outside, z^2 - T z + mu has the real roots (T +- sqrt(T^2 - 1)) / 2
    assert spectral_radius(1.0, 1.0, 0.25) == pytest.approx(0.5, abs=1e-15)
    assert spectral_radius(1.0, 0.0, 0.25) == pytest.approx(1.0, abs=1e-15)
    assert spectral_radius(1.0, 2.5, 0.25) == pytest.approx(1.0, abs=1e-15)
    assert spectral_radius(1.0, 3.0, 0.25) == pytest.approx((1.75 + 2.0625**0.5) / 2, abs=1e-14)


def test_the_cycle_on_a_convex_function() -> None:
    p, q, r = cycle()
    assert p >= 2
    assert q < 1 > r
    assert (heavy_ball(p, r), heavy_ball(q, p), heavy_ball(r, q)) == (q, r, p)
    low, high = robust_region(25.0, 4 / 9)
    assert low < high == pytest.approx(1 / 9, abs=1e-15)
    low, high = robust_region(1.0, 4 / 9)
    assert low == pytest.approx(1 / 9, abs=1e-15)
    assert low < high
    assert float(p) == pytest.approx(convex(seed=0)["left"], rel=0.5)


def test_where_the_region_of_figure_5_5_is_empty() -> None:
    below = empty(2.0, 0.45, seed=0)["below"]
    assert below == pytest.approx(0.0028, abs=5e-5)
    assert robust_region(2.0, below / 2)[0] > 0.45 * (1 - below / 2)
    assert robust_region(2.0, below * 2)[0] < 0.45 * (1 - below * 2)
