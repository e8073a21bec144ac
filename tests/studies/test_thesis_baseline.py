"""The thesis' baseline: its trainings are those of another study, and its verdicts on results of all three kinds."""

import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_baseline import STUDY
from pyro_bnn.studies.thesis_estimators import STUDY as ESTIMATORS
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_the_bayesian_trainings_are_run_once_for_two_studies() -> None:
    other = {trial.key() for trial in ESTIMATORS.design("source") if "analytic" in trial.cell}
    assert {trial.key() for trial in STUDY.design("source") if "Bayesian" in trial.cell} == other
    assert len(other) == 10


def test_both_sides_differ_in_the_method_alone() -> None:
    settled = {trial.cell: trial.settled() for trial in STUDY.design("source") if trial.seed == 0}
    for data in ("mnist", "cifar10"):
        one, two = (settled[f"{data}, {side}"].model_dump() for side in ("Bayesian", "plain"))
        assert {key for key in one if one[key] != two[key]} <= {"name", "description", "source", "method"}
        assert (one["method"]["name"], two["method"]["name"]) == ("svi", "ml")


@pytest.mark.parametrize(
    ("mnist", "cifar", "verdict"),
    [(0.98, 0.62, "confirmed"), (0.98, 0.55, "contradicted"), (0.98, 0.5938, "inconclusive")],
)
def test_verdicts(mnist: float, cifar: float, verdict: str) -> None:
    noise = (0.0, 0.001, -0.001, 0.002, -0.002)

    def record(trial: Trial) -> dict[str, float]:
        base = mnist if trial.cell.startswith("mnist") else cifar
        return {"accuracy": base + noise[trial.seed] + (0.01 * (1 + trial.seed / 9) if "plain" in trial.cell else 0)}

    findings = STUDY.judge(made_up(STUDY, record, "source"))
    assert verdict_of(findings) == verdict
    assert [finding.verdict for finding in findings[2:]] == ["confirmed", "confirmed"]
    assert findings[0].estimate == pytest.approx(mnist - 0.9774)
    assert findings[0].statement == "MNIST: accuracy of the Bayesian network above 97.74%"
