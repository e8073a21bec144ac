"""Normalisers of the two filters, against the roots of their fixed-point equations."""

import numpy as np
import pytest

from pyro_bnn.studies.adabayes_normaliser import ETA, SIGMA2, fading_memory, learning_rates
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results

GRADIENTS = np.array([1e-3, 1.28, 10, 100, 1000, 1e4])


def test_fixed_noise_stands_at_the_root_of_its_quadratic() -> None:
    a = 1 - ETA**2 / (2 * SIGMA2)
    roots = []
    for g in GRADIENTS:
        both = np.roots([a**2 * g**2, 1 - a**2 + ETA**2 * g**2, -(ETA**2)])
        roots.append(both[both > 0].item())
    found = learning_rates(GRADIENTS)
    np.testing.assert_allclose(found, roots, rtol=1e-6)
    # printed, to six digits: recursion at g = 1.28, 10, 100, 1000, 10000
    golden = [4.82803e-4, 9.33953e-5, 9.45762e-6, 6.17899e-7, 9.90195e-9]
    np.testing.assert_allclose(found[1:], golden, rtol=2e-6)


def test_fading_memory_divides_by_the_mean_square() -> None:
    g = np.geomspace(10, 1e4, 7)
    np.testing.assert_allclose(fading_memory(g), 1e-3 / g**2, rtol=1e-9)


@pytest.mark.parametrize(("slope", "verdict"), [(-1.02, "confirmed"), (-2.0, "contradicted")])
def test_the_verdict_follows_the_numbers(slope: float, verdict: str) -> None:
    study = find_study("adabayes-normaliser")
    trials = study.design("source")
    slopes = {"fixed, between": slope, "fixed, small gradients": 0.0}
    records = {trial.key(): {"slope": slopes.get(trial.cell, -2.0)} for trial in trials}
    findings = study.judge(Results(trials, records))
    assert verdict_of(findings) == verdict
    assert [f.decides for f in findings] == [True, True, True, False, False]
