"""What every metric does with input that is no prediction, and with predictions at the edges of what is one."""

import math

import numpy as np
import pytest
import torch

from pyro_bnn.analysis.scores.calibration import adaptive_ece, fit_temperature, reliability, scale_temperature
from pyro_bnn.analysis.scores.elpd import held_out_elpd
from pyro_bnn.analysis.scores.intervals import Interval, coverage, mixture_interval, mixture_quantile, pit
from pyro_bnn.analysis.scores.metrics import (
    ClassificationAccumulator,
    RegressionAccumulator,
    accuracy,
    bootstrap_interval,
    brier,
    classification_metrics,
    confidence,
    ece,
    ece_null,
    entropy,
    gaussian_metrics,
    gibbs_nll,
    log_mean_exp,
    mixture_nll,
    nll,
    rmse,
)
from pyro_bnn.analysis.scores.ood import auroc, fpr95, ood_table
from pyro_bnn.analysis.scores.selective import rejection_curve
from pyro_bnn.analysis.scores.uncertainty import entropy_decomposition, mutual_information, variance_decomposition

LOGITS = torch.randn((6, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
LOG_PROBS = LOGITS.log_softmax(1)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def one_draw(log_probs, labels):
    accumulator = ClassificationAccumulator(labels)
    accumulator.update(log_probs)
    return accumulator.results()


LABELLED = {
    "accuracy": accuracy,
    "nll": nll,
    "brier": brier,
    "ece": ece,
    "classification_metrics": classification_metrics,
    "gibbs_nll": lambda log_probs, labels: gibbs_nll(log_probs[None], labels),
    "reliability": reliability,
    "adaptive_ece": adaptive_ece,
    "fit_temperature": fit_temperature,
    "accumulator": one_draw,
}
UNLABELLED = {
    "confidence": confidence,
    "entropy": entropy,
    "ece_null": lambda log_probs: ece_null(log_probs, num_resamples=3),
    "scale_temperature": lambda log_probs: scale_temperature(log_probs, 2.0),
    "mutual_information": lambda log_probs: mutual_information(log_probs[None]),
    "entropy_decomposition": lambda log_probs: entropy_decomposition(log_probs[None]),
}
BAD = {
    "logits": LOGITS,
    "probabilities": LOG_PROBS.exp(),
    "one row off": torch.cat([LOG_PROBS[:5], LOG_PROBS[5:] + 0.01]),
    "NaN": torch.where(torch.arange(18).view(6, 3) == 7, math.nan, LOG_PROBS),
    "impossible": torch.where(torch.arange(6)[:, None] == 2, -math.inf, LOG_PROBS),
    "infinite": torch.where(torch.arange(18).view(6, 3) == 7, math.inf, LOG_PROBS),
    "empty": LOG_PROBS[:0],
    "no classes": LOG_PROBS[:, :0],
    "integers": torch.zeros(6, 3, dtype=torch.int64),
}
BAD_LABELS = {
    "too high": torch.tensor([0, 1, 2, 3, 1, 2]),
    "negative": torch.tensor([0, 1, 2, -1, 1, 2]),
    "real": LABELS.double(),
    "one-hot": torch.eye(3, dtype=torch.int64)[LABELS],
    "too few": LABELS[:5],
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", [*LABELLED, *UNLABELLED])
def test_what_is_no_log_probability_is_refused(name, bad):
    labels = LABELS[: len(BAD[bad])]
    with pytest.raises(ValueError, match=r"log_softmax|give"):
        LABELLED[name](BAD[bad], labels) if name in LABELLED else UNLABELLED[name](BAD[bad])


@pytest.mark.parametrize("bad", BAD_LABELS)
@pytest.mark.parametrize("name", LABELLED)
def test_labels_that_name_no_class_are_refused(name, bad):
    with pytest.raises(ValueError, match=r"labels|give"):
        LABELLED[name](LOG_PROBS, BAD_LABELS[bad])


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_may_be_any_integers(name, dtype):
    expected, found = LABELLED[name](LOG_PROBS, LABELS), LABELLED[name](LOG_PROBS, LABELS.to(dtype))
    if name != "reliability":
        assert found == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_to_short_numbers_is_no_error(dtype):
    for scale in (0.1, 1.0, 10.0):
        logits = torch.randn((500, 100), generator=torch.Generator().manual_seed(1)) * scale
        log_probs = logits.log_softmax(1).to(dtype)
        assert math.isfinite(nll(log_probs, torch.arange(500) % 100))


@pytest.mark.parametrize(
    "call",
    [
        lambda: ece(LOG_PROBS, LABELS, bins=0),
        lambda: reliability(LOG_PROBS, LABELS, bins=2.5),
        lambda: adaptive_ece(LOG_PROBS, LABELS, bins=-1),
        lambda: ClassificationAccumulator(LABELS, bins=0),
        lambda: ece_null(LOG_PROBS, num_resamples=0),
        lambda: ece_null(LOG_PROBS, point=95),
        lambda: bootstrap_interval(accuracy, LOG_PROBS, LABELS, num_resamples=0),
        lambda: bootstrap_interval(accuracy, LOG_PROBS, LABELS[:3]),
        lambda: bootstrap_interval(rmse, torch.zeros(0), torch.zeros(0)),
        lambda: log_mean_exp(torch.zeros(0, 3)),
        lambda: log_mean_exp(torch.tensor([0.0, math.nan])),
        lambda: scale_temperature(LOG_PROBS, math.inf),
        lambda: rmse(torch.zeros(3), torch.zeros(3, 1)),
        lambda: rmse(torch.zeros(3), torch.tensor([0.0, math.nan, 1.0])),
        lambda: rmse(torch.tensor([0.0, math.inf, 1.0]), torch.zeros(3)),
        lambda: rmse(torch.zeros(0), torch.zeros(0)),
        lambda: gaussian_metrics(torch.zeros(3), torch.zeros(3), torch.zeros(3)),
        lambda: gaussian_metrics(torch.zeros(3), torch.ones(3, 1), torch.zeros(3)),
        lambda: gaussian_metrics(torch.zeros(3), torch.ones(3), torch.full((3,), math.inf)),
        lambda: gaussian_metrics(torch.zeros(3), torch.ones(3), torch.zeros(3), levels=(90,)),
        lambda: mixture_nll(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2)),
        lambda: mixture_nll(torch.zeros(2, 3), torch.ones(3), torch.zeros(3)),
        lambda: mixture_nll(torch.zeros(2, 3), -torch.ones(2, 3), torch.zeros(3)),
        lambda: RegressionAccumulator(torch.tensor([1.0, math.nan])),
        lambda: pit(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3)),
        lambda: pit(torch.zeros(0, 3), torch.ones(0, 3), torch.zeros(3)),
        lambda: mixture_quantile(torch.zeros(2, 3), torch.zeros(2, 3), 0.5),
        lambda: mixture_quantile(torch.full((2, 3), math.nan), torch.ones(2, 3), 0.5),
        lambda: mixture_interval(torch.zeros(2, 3), torch.ones(5)),
        lambda: coverage(Interval(torch.zeros(3), torch.full((3,), math.nan)), torch.zeros(3)),
        lambda: coverage(Interval(torch.zeros(3), torch.ones(3)), torch.tensor([0.5, math.nan, 0.5])),
        lambda: coverage(Interval(torch.zeros(0), torch.ones(0)), torch.zeros(0)),
        lambda: variance_decomposition(torch.zeros(2, 3), -torch.ones(2, 3)),
        lambda: variance_decomposition(torch.full((2, 3), math.nan), torch.ones(2, 3)),
        lambda: variance_decomposition(torch.zeros(2, 3), torch.ones(2)),
        lambda: rejection_curve(torch.zeros(3), torch.tensor([0, 1, 2])),
        lambda: rejection_curve(torch.zeros(3), torch.tensor([0.0, 1.0, math.nan])),
        lambda: ood_table({"entropy": torch.zeros(3)}, {"bald": torch.zeros(3)}),
        lambda: held_out_elpd(torch.zeros(3), 0),
    ],
)
def test_other_bad_arguments_are_refused(call):
    with pytest.raises(ValueError, match=r"\w") as error:
        call()
    assert "\n" not in str(error.value)


# -- at the edges ------------------------------------------------------------------------------------------------------


def test_impossible_labels_make_every_nll_infinite_and_nothing_nan():
    labels = torch.tensor([0, 0])
    draw = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=torch.float64)
    accumulator = ClassificationAccumulator(labels)
    for log_probs in (draw, draw, torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64).log(), draw):
        accumulator.update(log_probs)
    results = accumulator.results()
    assert results["s_draws"]["gibbs_nll"] == results["one_draw"]["pred_nll"] == math.inf
    assert results["one_draw"]["pred_nll_sd"] == math.inf
    assert results["s_draws"]["pred_nll"] == pytest.approx(-(math.log(0.875) + math.log(0.125)) / 2)
    assert not any(math.isnan(value) for column in results.values() for value in column.values())
    assert nll(draw, labels) == gibbs_nll(torch.stack([draw, draw]), labels) == math.inf
    assert brier(draw, labels) == pytest.approx(1.0)


def test_an_interval_of_an_infinite_metric_is_never_nan():
    values = torch.tensor([1.0, 2.0, math.inf, 3.0], dtype=torch.float64)
    for method in ("basic", "percentile"):
        ends = bootstrap_interval(lambda v: float(v.mean()), values, method=method, num_resamples=50)
        assert not any(map(math.isnan, ends))


def test_one_class_is_always_right_and_certain():
    certain, labels = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)
    found = classification_metrics(certain, labels)
    assert found == {**found, "accuracy": 1.0, "pred_nll": 0.0, "brier": 0.0, "entropy": 0.0, "confidence": 1.0}
    assert found["ece"] == pytest.approx(0, abs=1e-12)
    assert fit_temperature(certain, labels) == 1.0
    assert adaptive_ece(certain, labels) == 0.0


@pytest.mark.parametrize("right", [0, 1, 3])
def test_rows_that_are_all_certain_have_the_error_rate_for_their_ece(right):
    certain = torch.tensor([[0.0, -math.inf]] * 4, dtype=torch.float64)
    labels = torch.tensor([0] * right + [1] * (4 - right))
    assert ece(certain, labels) == pytest.approx(1 - right / 4, abs=1e-12)
    assert adaptive_ece(certain, labels) == pytest.approx(1 - right / 4)
    assert reliability(certain, labels).ece == pytest.approx(1 - right / 4)
    assert entropy(certain).tolist() == [0.0] * 4


def test_one_row_has_every_metric():
    found = classification_metrics(LOG_PROBS[:1], LABELS[:1])
    assert all(map(math.isfinite, found.values()))
    assert found["pred_nll"] == pytest.approx(-float(LOG_PROBS[0, 0]))
    curve = rejection_curve(torch.tensor([0.3]), torch.tensor([True]))
    assert curve.aurc == 0.0
    assert auroc(torch.tensor([0.1]), torch.tensor([0.2])) == 1.0
    assert auroc(torch.tensor([0.1]), torch.tensor([0.1])) == 0.5
    assert fpr95(torch.tensor([0.1]), torch.tensor([0.2])) == 0.0
    assert fpr95(torch.tensor([0.1]), torch.tensor([0.1])) == 1.0


# -- temperature -------------------------------------------------------------------------------------------------------


def nll_at(log_probs, labels, temperature):
    return nll(scale_temperature(log_probs, temperature), labels)


def test_the_temperature_sees_log_probabilities_of_any_size():
    """Two classes 2,000 apart, a quarter of the rows wrong: T = 2000 / ln 3 = 1820, held at 1,000."""
    log_probs = (torch.tensor([[0.0, 1.0]] * 3 + [[1.0, 0.0]], dtype=torch.float64) * 2000).log_softmax(1)
    labels = torch.ones(4, dtype=torch.int64)
    assert fit_temperature(log_probs, labels) == pytest.approx(1000.0, rel=1e-12)
    for gap in (800.0, 1000.0, 1098.0):  # below -708 and inside the limits
        log_probs = (torch.tensor([[0.0, 1.0]] * 3 + [[1.0, 0.0]], dtype=torch.float64) * gap).log_softmax(1)
        assert fit_temperature(log_probs, labels) == pytest.approx(gap / math.log(3), rel=1e-9)


def test_the_temperature_is_the_best_on_a_grid():
    generator = torch.Generator().manual_seed(2)
    for scale in (0.3, 3.0, 100.0, 5000.0):
        logits = torch.randn((40, 4), generator=generator, dtype=torch.float64)
        labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        log_probs = (logits * scale).log_softmax(1)
        found = nll_at(log_probs, labels, fit_temperature(log_probs, labels))
        assert found <= min(nll_at(log_probs, labels, t) for t in np.geomspace(1e-3, 1e3, 400)) + 1e-12


def test_the_temperature_of_degenerate_rows():
    right, wrong = torch.tensor([[0.8, 0.2]]).double().log(), torch.tensor([[0.2, 0.8]]).double().log()
    label = torch.tensor([0])
    assert fit_temperature(right, label) == pytest.approx(1e-3)
    assert fit_temperature(wrong, label) == pytest.approx(1e3)
    uniform = torch.zeros(5, 3, dtype=torch.float64).log_softmax(1)
    assert fit_temperature(uniform, torch.tensor([0, 1, 2, 0, 0])) == 1.0
    certain = torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    assert fit_temperature(certain, label) == 1.0
    with pytest.raises(ValueError, match="probability 0"):
        fit_temperature(certain, torch.tensor([1]))
    mixed = torch.tensor([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.6, 0.4, 0.0]], dtype=torch.float64).log()
    p = 2 / 3
    expected = math.log(0.6 / 0.4) / math.log(p / (1 - p))
    assert fit_temperature(mixed, torch.tensor([0, 0, 1])) == pytest.approx(expected, rel=1e-12)
