"""The corollary's two functions, against quadrature and the numbers in print."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pyro_bnn.cli import app
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.penalties_corollary import by_quadrature, compare, printed
from pyro_bnn.studies.run import find_study
from pyro_bnn.studies.study import Results


def test_the_divergence_is_that_of_a_sum() -> None:
    z = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    q, p = torch.distributions.Normal(0.4, 0.3), torch.distributions.Normal(0.0, 0.7)
    w = 0.4 + 0.3 * z
    summed = (q.log_prob(w).exp() * (q.log_prob(w) - p.log_prob(w))).sum() * 0.3e-3
    assert by_quadrature(0.4, 0.3, 0.7) == pytest.approx(float(summed), abs=1e-6) == pytest.approx(0.6024, abs=5e-5)


def test_as_printed_and_exchanged() -> None:
    wrong, right = compare("printed", seed=0), compare("exchanged", seed=0)
    assert wrong["value"] == pytest.approx(1.0907, abs=1e-4)
    assert right["value"] == right["closed_form"] == pytest.approx(0.6024, abs=5e-5)
    assert right["distance"] < 1e-9
    assert wrong["distance"] > 1
    assert (wrong["priors"], right["priors"]) == (0, 3)
    assert float(printed(0.7)(torch.tensor(0.0), 0.3)) == pytest.approx(1 / 0.98)


def test_the_verdict_follows_the_numbers() -> None:
    study = find_study("penalties-corollary")
    trials = study.design("source")
    records = {trial.key(): compare(trial.cell, 0) for trial in trials}
    findings = study.judge(Results(trials, records))
    assert verdict_of(findings) == "contradicted"
    assert [f.verdict for f in findings if not f.decides] == ["confirmed"] * 3
    right = compare("exchanged", 0)
    assert verdict_of(study.judge(Results(trials, {t.key(): right for t in trials}))) == "confirmed"


def test_the_command_prints_the_brackets_of_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRO_BNN_STUDIES", str(tmp_path / "trials"))
    said = CliRunner().invoke(
        app, ["study", "penalties-corollary", "--scale", "smoke", "--jobs", "1", "--out", str(tmp_path)]
    )
    assert said.exit_code == 0
    assert "b = [s^2 / s0^2 + ln(s0^2 / s^2) - 1] / 2" in " ".join(said.output.split())
