"""The optimizers: their draws, the truncation, and verdicts on results that were never run."""

import json

import numpy as np
import pytest
from scipy import stats

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_optimizers import STUDY, drawn
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_truncation() -> None:
    rng = np.random.default_rng(0)
    momenta = [drawn("momentum", 0.95, rng) for _ in range(4000)]
    expected = stats.truncnorm(-2, 0.05 / 0.475, 0.95, 0.475).mean()
    assert expected == pytest.approx(0.636, abs=1e-3)
    assert np.mean(momenta) == pytest.approx(expected, abs=0.02)
    assert 0 < min(momenta) < max(momenta) < 1
    assert drawn("momentum", 0.0, rng) == 0
    assert min(drawn("lr", 0.1, rng) for _ in range(4000)) > 0


def test_every_combination_is_drawn_about_equally_often() -> None:
    trials = STUDY.design("source")
    adam = [trial.settled().optim.loc["name"] for trial in trials if trial.cell == "Adam"]
    assert abs(adam.count("adam") - adam.count("amsgrad")) <= 3
    assert len(adam) == 97
    for trial in trials:
        recipe = trial.settled()
        assert recipe.optim.loc == recipe.optim.scale
    never = [trial for trial in trials if trial.cell == "SGD" and trial.settled().optim.loc["momentum"] == 0]
    assert len(never) == pytest.approx(97 / 5, abs=2)


def test_small_scale_keeps_the_weight_of_the_kl() -> None:
    recipe = STUDY.design("cpu")[0].settled()
    rows = recipe.data_args["train_size"] * (1 - recipe.val_fraction)
    assert recipe.eta / rows == pytest.approx(1 / 50_000)


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, "confirmed"), (-0.1, "contradicted"), (0.0, "inconclusive")])
def test_verdicts(gain: float, verdict: str) -> None:
    def record(trial: Trial) -> dict[str, object]:
        accuracy = 0.3 + 0.01 * (trial.seed % 7) + (gain if trial.cell in ("AdaBound", "YellowFin", "SGD") else 0)
        return {"accuracy": accuracy, "history": [{"val_accuracy": 0.2}]}

    findings = STUDY.judge(made_up(STUDY, record))
    assert verdict_of(findings) == verdict
    assert json.loads(json.dumps([finding.to_dict() for finding in findings]))
    ranks = [finding for finding in findings if "Holm" in finding.statement]
    assert len(ranks) == 6
    assert {finding.verdict for finding in ranks} == {verdict}


def test_failures_count_in_the_control_alone() -> None:
    """Of SGD's runs half diverge: the mean of successful runs does not see it, the mean of all runs does."""

    def record(trial: Trial) -> dict[str, object]:
        if trial.cell in ("AdaBound", "YellowFin", "SGD") and trial.seed % 2:
            return {"diverged": "the loss is nan"}
        last = 0.1 if trial.cell == "RAdam" and trial.seed == 0 else 0.3 + 0.001 * trial.seed
        return {"accuracy": last, "history": [{"val_accuracy": 0.3}]}

    filtered, of_all, rate, *_, collapses = STUDY.judge(made_up(STUDY, record))
    assert filtered.estimate == pytest.approx(0.008, abs=0.006)
    assert of_all.verdict == rate.verdict == "contradicted"
    assert (collapses.estimate, collapses.verdict) == (1, "confirmed")
