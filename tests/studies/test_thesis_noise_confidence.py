"""Confidence in front of noise: the pairs, and the verdicts on results that were never run."""

from typing import Any

import pytest
import torch

from pyro_bnn.analysis.scores.ood import accumulate
from pyro_bnn.data import load_data
from pyro_bnn.data.standardise import plain
from pyro_bnn.posterior import Posterior
from pyro_bnn.recipe import find_recipe
from pyro_bnn.studies import thesis_noise_confidence
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_noise_confidence import STUDY
from tests.studies.made_up import check_pairs, made_up

KINDS = ("digits", "noise", "shuffled", "sister")


def test_pairs() -> None:
    check_pairs(STUDY)


def test_arms() -> None:
    for trial in STUDY.design("cpu"):
        arguments = trial.arguments
        recipe = find_recipe("lenet5-mnist-thesis", arguments["variant"]).changed(arguments["changes"])
        if trial.cell == "frequentist":
            assert (recipe.method["name"], arguments["draws"]) == ("ml", 1)
        else:
            assert recipe.guide["init_rho"] == float(trial.cell.rpartition(" ")[2])
            assert (recipe.method["name"], arguments["draws"]) == ("svi", 10)


@pytest.mark.parametrize(("gain", "verdict"), [(0.2, "confirmed"), (-0.2, "contradicted"), (0.0, "inconclusive")])
def test_verdicts(gain: float, verdict: str) -> None:
    """What happens at other rho and on other inputs does not decide."""

    def record(trial: Trial) -> dict[str, float]:
        side = 1 if trial.cell == "frequentist" else -1
        wobble = side * (0.02 * (-1) ** trial.seed + 0.003 * trial.seed - 0.01)
        numbers = {f"{kind}_{what}": 0.5 + wobble for kind in KINDS for what in ("confidence", "share")}
        if trial.cell in ("frequentist", "Bayesian, rho -10"):
            numbers["noise_confidence"] += gain * side / 2
        return numbers

    findings = STUDY.judge(made_up(STUDY, record))
    assert verdict_of(findings) == verdict
    assert [finding.decides for finding in findings] == [True] + [False] * 14


def test_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs of each kind are what they are called, and the numbers those of the predictive."""
    raw = torch.rand(200, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    seen = []

    def kept(posterior: Posterior, x: torch.Tensor, draws: int, seed: int) -> Any:
        predictive = accumulate(posterior, x, draws, seed)
        seen.append((x, predictive, draws, posterior))
        return predictive

    monkeypatch.setattr(thesis_noise_confidence, "_sister", lambda: raw)
    monkeypatch.setattr(thesis_noise_confidence, "accumulate", kept)
    changes = {"data": "mnist-mini", "data_args": {"train_size": 100, "test_size": 200}, "epochs": 1}
    found = thesis_noise_confidence.confidences(None, {**changes, "guide.init_rho": -2.0}, 3, seed=0)
    assert [draws for _, _, draws, _ in seen] == [3] * 4
    inputs = dict(zip(KINDS, (plain(x) for x, *_ in seen), strict=True))
    standardiser = load_data("mnist-mini", **changes["data_args"], seed=0).standardiser
    assert standardiser is not None
    assert abs(float(inputs["noise"].mean())) < 0.02  # of 156,800 numbers: 8 standard errors
    assert float(inputs["noise"].std()) == pytest.approx(1, abs=0.02)
    assert not torch.equal(inputs["shuffled"], inputs["digits"])
    torch.testing.assert_close(inputs["shuffled"].flatten(1).sort(1).values, inputs["digits"].flatten(1).sort(1).values)
    torch.testing.assert_close(inputs["sister"], plain(standardiser.apply(raw)))
    for kind, (_, predictive, _, _) in zip(KINDS, seen, strict=True):
        p = predictive.log_probs.exp()
        assert float(p.sum(1).mean()) == pytest.approx(1, abs=1e-4)
        assert found[f"{kind}_confidence"] == pytest.approx(float(p.max(1).values.mean()))
        assert found[f"{kind}_share"] == pytest.approx(float((p.max(1).values > 0.9).double().mean()))
        assert found[f"{kind}_information"] == pytest.approx(float(predictive.epistemic.mean()))
        assert found[f"{kind}_information"] > 1e-4
