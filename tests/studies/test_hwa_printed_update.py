"""The printed update and its corrections, against the numbers worked out by hand."""

import pytest
from reference.hwa_moments import printed_eq_4

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.hwa_printed_update import _running, _with_old_mean, trajectory, variances
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results


def test_by_hand() -> None:
    constant, two = trajectory("constant", 0), trajectory("1 and 3", 0)
    assert _running(constant, "literal", 0.5) == pytest.approx([0, -50, -100, -150])
    assert _running(two, "literal", 0.5)[-1] == pytest.approx(0.5)
    assert _with_old_mean(constant[:3])[-1] == pytest.approx(-200 / 3)
    assert variances("1 and 3", 0)["exact"] == variances("1 and 3", 0)["trajectory"] == 1


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["noise around 0", "noise around 3"])
def test_noise(name: str, seed: int) -> None:
    found, mus = variances(name, seed), trajectory(name, seed)
    assert found["exact"] == pytest.approx(mus.var(ddof=0))
    assert found["literal"] == pytest.approx(printed_eq_4(mus.tolist())[-1])
    assert found["trajectory_distance"] < 1e-12
    assert found["total_distance"] < 1e-12
    assert found["literal_sees_sigma"] == 0
    assert found["literal_least"] < 0


def test_the_verdict_follows_the_numbers() -> None:
    study = find_study("hwa-printed-update")
    trials = study.design("source")
    records = {trial.key(): variances(trial.cell, trial.seed) for trial in trials}
    findings = study.judge(Results(trials, records))
    assert verdict_of(findings) == "contradicted"
    assert [f.verdict for f in findings[-3:]] == ["contradicted", "confirmed", "confirmed"]
    assert findings[1].estimate == pytest.approx(-150)
    right = {trial.key(): {k: 0.0 for k in records[trial.key()]} for trial in trials}
    assert verdict_of(study.judge(Results(trials, right))) == "confirmed"
