"""The and-perceptron: its exact ELBO against draws, its optima against the numbers in print, its gradients."""

import pytest
import torch

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results
from pyro_bnn.studies.thesis_and_perceptron import gradients, negative_elbo, optimum, predictions

MU, SD = torch.tensor([0.8, 0.5, -0.4], dtype=torch.float64), torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64)
X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
Y = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("link", ["relu", "sigmoid"])
def test_the_elbo_is_that_of_draws(link: str) -> None:
    """200,000 draws; each comparison within 5 standard errors."""
    torch.manual_seed(0)
    draws = 200_000
    w = MU + SD * torch.randn(draws, 3, dtype=torch.float64)
    z = w[:, :2] @ X.T + w[:, 2:]
    p = z.clamp(1e-3, 1 - 1e-3) if link == "relu" else torch.sigmoid(z)
    error = p.std(0) / draws**0.5
    assert ((p.mean(0) - predictions(MU, SD, link)).abs() < 5 * error).all()
    nll = -torch.distributions.Bernoulli(p).log_prob(Y).sum(1)
    kl = torch.distributions.kl_divergence(torch.distributions.Normal(MU, SD), torch.distributions.Normal(0.0, 1.0))
    expected = float(nll.mean() + 0.3 * kl.sum())
    assert float(negative_elbo(MU, SD, link, 0.3)) == pytest.approx(expected, abs=5 * float(nll.std()) / draws**0.5)


@pytest.mark.parametrize(
    ("link", "weight", "rows"),
    [
        ("relu", 1.0, (0.001, 0.207, 0.207, 0.714)),
        ("sigmoid", 1.0, (0.365, 0.408, 0.408, 0.442)),
        ("sigmoid", 0.1, (0.09, 0.28, 0.28, 0.58)),
    ],
)
def test_the_maximum_of_the_elbo(link: str, weight: float, rows: tuple[float, ...]) -> None:
    found = optimum(link, weight, seed=0)
    assert [found[name] for name in ("p00", "p01", "p10", "p11")] == pytest.approx(rows, abs=5e-3)
    assert found["solved"] == float(rows[-1] > 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_the_six_gradients(seed: int) -> None:
    found = gradients(seed)
    assert found["inside"] >= 2  # rows between the clamps, so that the likelihood has a gradient
    assert found["means"] < 1e-12
    assert found["deviations"] < 1e-12
    assert found["printed"] > 1


@pytest.mark.parametrize(("solved", "verdict"), [(16, "confirmed"), (9, "contradicted"), (14, "inconclusive")])
def test_the_verdict_follows_the_numbers(solved: int, verdict: str) -> None:
    study = find_study("thesis-and-perceptron")
    trials = study.design("source")
    cells = {cell: [t.seed for t in trials if t.cell == cell] for cell in ("8 draws a step", "1 draw a step")}
    assert cells["8 draws a step"] == cells["1 draw a step"] == list(range(20))
    exact = {"means": 0.0, "deviations": 0.0, "printed": 2.0, "dead": 0.0, "margin": 0.1}
    records = {}
    for trial in trials:
        at_end = trial.seed < solved if trial.cell == "8 draws a step" else trial.cell == "optimum, ReLU"
        records[trial.key()] = exact | {"solved": float(at_end)}
    findings = study.judge(Results(trials, records))
    assert verdict_of(findings) == verdict
    assert findings[0].estimate == solved / 20
    assert findings[2].verdict == "contradicted"
    assert not findings[2].decides
