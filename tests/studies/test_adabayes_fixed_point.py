"""Learning rates of AdaBayes and AdaBayes-FP, against the table in print and a filter of plain numbers."""

import pytest
import torch

from pyro_bnn.optim.torch_optim import AdaBayes
from pyro_bnn.studies.adabayes_fixed_point import GOLDEN, _posterior_variances, constant
from pyro_bnn.studies.adabayes_normaliser import BATCH, ETA, LR_SGD, SIGMA2
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results


@pytest.mark.parametrize("g", [1.28, 1e4])
def test_the_table(g: float) -> None:
    found = constant(g, seed=0)
    at_fixed_point, recursion = GOLDEN[g]
    assert found["fp"] == pytest.approx(at_fixed_point, rel=2e-6)
    assert found["formula"] == pytest.approx(at_fixed_point, rel=2e-6)
    assert found["recursion"] == pytest.approx(recursion, rel=2e-6)


def test_the_variance_that_is_read_off_the_optimizer_is_that_of_the_filter() -> None:
    w = torch.zeros(3, requires_grad=True)
    optim = AdaBayes([w], lr=ETA, lr_sgd=LR_SGD, batch_size=BATCH, decay="first_order")
    gradients = [[0.01, 0.3, 5.0], [0.02, -0.1, -20.0], [0.0, 0.2, 1.0]]
    prior = [SIGMA2] * 3
    for gradient in gradients:
        w.grad = torch.tensor(gradient) / BATCH
        optim.step()
        post = [1 / (1 / p + g**2) for p, g in zip(prior, gradient, strict=True)]
        prior = [(1 - ETA**2 / (2 * SIGMA2)) ** 2 * s + ETA**2 for s in post]
    assert _posterior_variances(optim, [w]).tolist() == pytest.approx(post, rel=1e-4)


@pytest.mark.parametrize(
    ("error", "spread", "verdict"),
    [(0.05, 1.0, "confirmed"), (0.5, 1.0, "contradicted"), (0.05, 10.0, "inconclusive")],
)
def test_the_verdict_follows_the_numbers(error: float, spread: float, verdict: str) -> None:
    study = find_study("adabayes-fixed-point")
    trials = study.design("cpu")
    noise = [0.03, -0.03, 0.02, -0.02, 0.0]
    records = {}
    for trial in trials:
        if trial.cell == "network":
            shift = spread * noise[trial.seed]
            numbers = {"error": error, "slope_low": 0.01 + shift, "slope_high": 0.99 + shift}
        else:
            g = float(trial.cell.removeprefix("g = "))
            numbers = {"fp": GOLDEN[g][0], "formula": GOLDEN[g][0], "recursion": GOLDEN[g][1], "limit": ETA / g}
        records[trial.key()] = numbers
    findings = study.judge(Results(trials, records))
    assert verdict_of(findings) == verdict
    assert [f.verdict for f in findings[-2:]] == ["contradicted", "confirmed"]
