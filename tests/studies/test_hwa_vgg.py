"""The study of HWA on a VGG: pairs, and the verdicts on results of all three kinds."""

import pytest

from pyro_bnn.studies.findings import verdict_of
from pyro_bnn.studies.hwa_vgg import STUDY
from pyro_bnn.studies.study import Results

NOISE = (0.0, 0.004, -0.003, 0.002, -0.001)


def _verdict(**accuracy):
    trials = STUDY.design("cpu")
    names = {"BBB": "bbb", "HWA": "hwa", "point, averaged": "point", "BBB, averaged": "raw"}
    records = {}
    for i, trial in enumerate(trials):
        value = accuracy.get(names[trial.cell], 0.5) + NOISE[(trial.seed + 2 * (i // 5)) % 5]
        loss = 4 - value
        records[trial.key()] = {"accuracy": value, "train_loss": loss, "train_nll": loss, "pred_nll": loss}
    return verdict_of(STUDY.judge(Results(trials, records)))


@pytest.mark.parametrize("scale", STUDY.scales)
def test_all_arms_have_the_same_seeds(scale):
    trials = STUDY.design(scale)
    results = Results(trials, {trial.key(): {} for trial in trials})
    assert len({tuple(results.seeds(cell)) for cell in results.cells}) == 1
    assert len(results.cells) == 4
    settled = {trial.cell: trial.settled() for trial in trials}
    assert settled["HWA"].estimator == {"name": "analytic", "layers": "flipout"}


def test_better_than_all_is_confirmed():
    assert _verdict(hwa=0.6) == "confirmed"


def test_worse_than_an_averaged_point_is_contradicted():
    assert _verdict(hwa=0.6, point=0.7) == "contradicted"


def test_as_good_as_averaged_parameters_is_inconclusive():
    assert _verdict(hwa=0.6, raw=0.6) == "inconclusive"
