"""The betas of Adam: draws and pairs, the rank correlation, and verdicts on results that were never run."""

import numpy as np
import pytest
from scipy import stats

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_adam_betas import STUDY, spearman
from tests.studies.made_up import made_up


def test_draws() -> None:
    trials = [trial for trial in STUDY.design("source") if trial.cell.startswith("mnist, beta2 0")]
    betas = np.array([trial.changes["optim.loc.betas"] for trial in trials])
    assert betas.shape == (200, 2)
    assert betas.mean(0) == pytest.approx([0.5, 0.5], abs=0.06)
    assert betas.max(0) == pytest.approx([1, 1], abs=0.03)
    assert all(recipe.optim.loc == recipe.optim.scale for recipe in (trial.settled() for trial in trials[:9]))
    near = [trial for trial in STUDY.design("source") if trial.cell == "mnist, beta2 near 1"]
    assert len(near) == 50
    assert all(0.9 <= trial.changes["optim.loc.betas"][1] <= 0.9999 for trial in near)


def test_pairs_share_their_seeds() -> None:
    seeds = [
        sorted(trial.seed for trial in STUDY.design("cpu") if trial.cell == f"cifar10, (.9, {beta})")
        for beta in (0.5, 0.9, 0.999)
    ]
    assert seeds == [[0, 1, 2, 3, 4]] * 3


def test_spearman_is_scipys() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, (2, 20)).astype(float), rng.random((2, 20))
    assert spearman(x, y) == pytest.approx([stats.spearmanr(x[i], y[i]).statistic for i in range(2)])


@pytest.mark.parametrize(("slope", "verdict"), [(-0.3, "confirmed"), (0.3, "contradicted"), (0.0, "inconclusive")])
def test_verdicts(slope: float, verdict: str) -> None:
    def record(trial: Trial) -> dict[str, float]:
        noise = 0.01 * (int(trial.key(), 16) % 7 - 3)
        return {"accuracy": 0.5 + noise + slope * trial.changes["optim.loc.betas"][1]}

    assert verdict_of(STUDY.judge(made_up(STUDY, record))) == verdict
