"""Traces of the learning rate, against golden numbers."""

import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results
from pyro_bnn.studies.thesis_schedules import trace

GOLDEN = {  # rates at steps 0, 10, 20, 30, 50, 100, 299
    "constant": [0.2] * 7,
    "cyclic": [0.02, 0.11, 0.2, 0.11, 0.11, 0.2, 0.191],
    "warmup": [0.004, 0.0432, 0.0824, 0.1216, 0.2, 0.2, 0.2],
    "step": [0.2, 0.2, 0.2, 0.2, 0.2, 0.06, 0.0054],
    "cosine": [0.2, 0.1994795, 0.1979239, 0.1953504, 0.1872724, 0.1525, 0.0100052],
}


@pytest.mark.parametrize("name", list(GOLDEN))
def test_rates(name: str) -> None:
    found = trace(name, seed=0)
    assert [found["rates"][t] for t in (0, 10, 20, 30, 50, 100, 299)] == pytest.approx(GOLDEN[name], abs=1e-6)
    assert found["distance"] < 1e-12
    assert found["excess"] < 0.1


def test_the_plateau_halves_the_rate_when_the_loss_stands_still() -> None:
    found = trace("plateau", seed=0)
    assert found["distance"] < 1e-12
    assert found["falls"] >= 2
    assert found["last"] == pytest.approx(0.2 * 0.5 ** found["falls"])
    steps = [a for a, b in zip(found["rates"], found["rates"][1:], strict=False) if b < a]
    assert steps == pytest.approx([0.2 * 0.5**k for k in range(len(steps))])


def test_the_verdict_follows_the_numbers() -> None:
    study = find_study("thesis-schedules")
    trials = study.design("source")
    assert len({trial.seed for trial in trials if trial.cell == "cyclic"}) == 5
    right = {"distance": 1e-17, "excess": 0.5}
    results = Results(trials, {trial.key(): right for trial in trials})
    assert verdict_of(study.judge(results)) == "confirmed"
    results = Results(trials, {trial.key(): {**right, "distance": 1e-3 * trial.seed} for trial in trials})
    assert verdict_of(study.judge(results)) == "contradicted"
