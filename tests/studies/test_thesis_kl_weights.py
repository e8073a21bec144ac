"""The weights of the KL: pairs, the weights that the small scale keeps, and verdicts on results that were never run."""

import pytest

from pyro_bnn.inference.kl import pi_geometric
from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.thesis_kl_weights import STUDY
from tests.studies.made_up import check_pairs, made_up


def test_pairs() -> None:
    check_pairs(STUDY)


def test_small_scale_keeps_the_number_of_batches_and_the_weight_of_the_kl() -> None:
    trial = next(trial for trial in STUDY.design("cpu") if trial.cell == "cifar10, lambda 1/2")
    small, full = trial.settled(), STUDY.design("source")[-1].settled()
    assert small.data_args["train_size"] / small.batch_size == 50_000 / full.batch_size == 500
    assert small.eta / small.batch_size == full.eta / full.batch_size


def test_cells_are_what_they_are_called() -> None:
    lams = {"0": 0.0, "1/2": 0.5, ".97": 0.97, "1.03": 1.03, "2": 2.0}
    for trial in STUDY.design("source"):
        name = trial.cell.split("lambda ")[1]
        kl = trial.settled().kl
        assert kl == ("uniform" if name == "1" else {"name": "geometric", "lam": lams[name]})


@pytest.mark.parametrize(
    ("gain", "kl", "verdict"), [(0.05, 1.0, "confirmed"), (-0.05, 1.0, "contradicted"), (0.0, 1.0, "inconclusive")]
)
def test_verdicts(gain: float, kl: float, verdict: str) -> None:
    def record(trial: Trial) -> dict[str, float]:
        noise = 0.0005 * (int(trial.key(), 16) % 7 - 3)
        uneven = trial.cell.endswith((" 1/2", " 2"))
        return {"accuracy": 0.5 + noise + gain * uneven, "train_kl": 10 + noise + kl * uneven}

    assert verdict_of(STUDY.judge(made_up(STUDY, record))) == verdict


def test_shares_of_the_batches() -> None:
    shares = [
        finding for finding in STUDY.judge(made_up(STUDY, lambda trial: {})) if "batches weigh" in finding.statement
    ]
    assert [(finding.estimate, finding.verdict) for finding in shares] == [
        (0.016, "confirmed"),
        (0.178, "contradicted"),
    ]
    assert sum(pi_geometric(i, 500, 0.97) for i in range(500)) == pytest.approx(1)
