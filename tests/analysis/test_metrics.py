import json
import math
import statistics

import pytest
import torch

from pyro_bnn.analysis.scores.metrics import (
    ClassificationAccumulator,
    PredictiveAccumulator,
    RegressionAccumulator,
    accuracy,
    bootstrap_interval,
    brier,
    classification_metrics,
    classification_table,
    confidence,
    ece,
    ece_null,
    entropy,
    gaussian_metrics,
    gibbs_nll,
    log_mean_exp,
    mixture_nll,
    nll,
    regression_table,
    rmse,
)

# two draws, three points, two classes; every number below can be checked by hand
P1 = [[0.8, 0.2], [0.4, 0.6], [0.5, 0.5]]
P2 = [[0.6, 0.4], [0.2, 0.8], [0.9, 0.1]]
DRAWS = torch.tensor([P1, P2], dtype=torch.float64).log()
LABELS = torch.tensor([0, 0, 1])
MEAN = torch.tensor([[0.7, 0.3], [0.3, 0.7], [0.7, 0.3]], dtype=torch.float64)


def random_draws(s, n, k, seed=0, scale=2.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((s, n, k), generator=generator, dtype=torch.float64) * scale
    labels = torch.randint(0, k, (n,), generator=generator)
    return logits.log_softmax(-1).to(dtype), labels


def filled(draws, labels):
    accumulator = ClassificationAccumulator(labels)
    for log_probs in draws:
        accumulator.update(log_probs)
    return accumulator


# by hand


def test_functions_by_hand():
    predictive = log_mean_exp(DRAWS)
    torch.testing.assert_close(predictive.exp(), MEAN, atol=1e-15, rtol=0)
    assert accuracy(predictive, LABELS) == pytest.approx(1 / 3)
    assert nll(predictive, LABELS) == pytest.approx(-(math.log(0.7) + 2 * math.log(0.3)) / 3)
    assert brier(predictive, LABELS) == pytest.approx((2 * 0.3**2 + 2 * 0.7**2 + 2 * 0.7**2) / 3)
    assert confidence(predictive) == pytest.approx(0.7)
    expected = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    torch.testing.assert_close(entropy(predictive), torch.full((3,), expected, dtype=torch.float64))
    # all three in one bin: accuracy 1/3, confidence 0.7
    assert ece(predictive, LABELS) == pytest.approx(0.7 - 1 / 3, abs=1e-6)
    terms = [0.8, 0.4, 0.5, 0.6, 0.2, 0.1]
    assert gibbs_nll(DRAWS, LABELS) == pytest.approx(-sum(map(math.log, terms)) / 6)


def test_accumulated_columns_by_hand():
    results = filled(DRAWS, LABELS).results()
    assert results["s_draws"]["accuracy"] == pytest.approx(1 / 3)
    assert results["s_draws"]["pred_nll"] == pytest.approx(-(math.log(0.7) + 2 * math.log(0.3)) / 3)
    # draw 1 is right on the first point (its third is a tie, given to class 0); draw 2 on the first alone
    assert results["one_draw"]["accuracy"] == pytest.approx(1 / 3)
    single = [-(math.log(a) + math.log(b) + math.log(c)) / 3 for a, b, c in ((0.8, 0.4, 0.5), (0.6, 0.2, 0.1))]
    assert results["one_draw"]["pred_nll"] == pytest.approx(statistics.mean(single))
    assert results["one_draw"]["pred_nll_sd"] == pytest.approx(statistics.stdev(single))
    assert results["one_draw"]["confidence"] == pytest.approx((0.8 + 0.6 + 0.5 + 0.6 + 0.8 + 0.9) / 6)
    assert results["s_draws"]["gibbs_nll"] == pytest.approx(statistics.mean(single))


def test_brier_of_sure_predictions():
    sure = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).log()
    assert brier(sure, torch.tensor([0, 1])) == 0
    assert brier(sure, torch.tensor([1, 0])) == 2
    assert torch.equal(entropy(sure), torch.zeros(2))
    assert nll(sure, torch.tensor([1, 0])) == math.inf


# limit identities


def test_one_draw_equals_the_plain_functions():
    (log_probs,), labels = random_draws(1, 50, 4)
    results = filled([log_probs], labels).results()
    plain = classification_metrics(log_probs, labels)
    assert results["one_draw"] == plain  # and no _sd
    for name, value in plain.items():
        assert results["s_draws"][name] == pytest.approx(value, abs=1e-12)
    assert results["s_draws"]["gibbs_nll"] == pytest.approx(nll(log_probs, labels))
    assert results["s_draws"]["epistemic"] == pytest.approx(0, abs=1e-12)


def test_identical_draws_have_no_spread_and_no_epistemic_part():
    (log_probs,), labels = random_draws(1, 50, 4)
    accumulator = filled([log_probs] * 7, labels)
    results, plain = accumulator.results(), classification_metrics(log_probs, labels)
    for name, value in plain.items():
        assert results["s_draws"][name] == pytest.approx(value, abs=1e-12)
        assert results["one_draw"][name] == pytest.approx(value, abs=1e-12)
        assert results["one_draw"][f"{name}_sd"] == pytest.approx(0, abs=1e-12)
    assert float(accumulator.predictive.epistemic.abs().max()) < 1e-12


def test_streaming_equals_all_draws_at_once():
    draws, labels = random_draws(30, 40, 5)
    accumulator = filled(draws, labels)
    predictive = draws.exp().mean(0).log()
    torch.testing.assert_close(accumulator.predictive.log_probs, predictive, atol=1e-12, rtol=1e-12)
    results = accumulator.results()
    for name, value in classification_metrics(predictive, labels).items():
        assert results["s_draws"][name] == pytest.approx(value, abs=1e-9)
        single = [classification_metrics(draw, labels)[name] for draw in draws]
        assert results["one_draw"][name] == pytest.approx(statistics.mean(single), rel=1e-9)
        assert results["one_draw"][f"{name}_sd"] == pytest.approx(statistics.stdev(single), rel=1e-9)
    assert results["s_draws"]["gibbs_nll"] == pytest.approx(gibbs_nll(draws, labels), rel=1e-12)
    assert results["s_draws"]["pred_nll"] < results["s_draws"]["gibbs_nll"]  # Jensen
    assert accumulator.num_draws == 30


def test_the_order_of_draws_does_not_matter():
    draws, labels = random_draws(10, 20, 3)
    one, two = filled(draws, labels).results(), filled(draws.flip(0), labels).results()
    for column, values in one.items():
        assert values == pytest.approx(two[column], rel=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_epistemic_part_is_the_mean_kl_to_the_predictive(dtype, tolerance):
    draws, _ = random_draws(25, 30, 6, dtype=dtype)
    stream = PredictiveAccumulator()
    for log_probs in draws:
        stream.update(log_probs)
    p, mean = draws.double().exp(), draws.double().exp().mean(0)
    kl = (p * (draws.double() - mean.log())).sum(-1).mean(0)  # mean_s KL(p_s || p)
    torch.testing.assert_close(stream.epistemic, kl, atol=tolerance, rtol=0)
    torch.testing.assert_close(stream.total, stream.aleatoric + stream.epistemic, atol=1e-14, rtol=0)


def test_probabilities_far_below_float32_stay_finite_in_log_space():
    tiny = torch.tensor([[-2000.0, 0.0]])  # exp(-2000) is 0 even in float64
    accumulator = filled([tiny, tiny], torch.tensor([0]))
    assert accumulator.results()["s_draws"]["pred_nll"] == pytest.approx(2000)
    assert accumulator.results()["s_draws"]["entropy"] == 0


def test_a_thousand_draws_keep_their_digits():
    """One float32 draw in a thousand differs: the running sum, in float64, loses nothing."""
    a, b = (torch.tensor([[p, 1 - p]]).log() for p in (0.3, 0.9))
    stream = PredictiveAccumulator()
    for s in range(1000):
        stream.update(b if s == 500 else a)
    assert float(stream.log_probs.exp()[0, 0]) == pytest.approx((999 * 0.3 + 0.9) / 1000, rel=1e-7)


def test_memory_is_constant_in_draws():
    draws, labels = random_draws(20, 30, 4)
    accumulator = ClassificationAccumulator(labels)

    def held():
        inner = [vars(accumulator), vars(accumulator.predictive)]
        return sum(v.untyped_storage().nbytes() for values in inner for v in values.values() if torch.is_tensor(v))

    accumulator.update(draws[0])
    first = held()
    for log_probs in draws[1:]:
        accumulator.update(log_probs)
    assert held() == first > 0


def test_draws_are_not_kept_or_changed():
    draws, labels = random_draws(3, 10, 4)
    draws.requires_grad_()
    before = draws.detach().clone()
    accumulator = filled(draws, labels)
    assert torch.equal(draws, before)
    assert not accumulator.predictive.log_probs.requires_grad


# calibration


def literal_ece(p, labels, bins=15):
    """For each bin [b/bins, (b+1)/bins), the last with 1: n_b / N |accuracy - confidence|."""
    total = 0.0
    for b in range(bins):
        inside = []
        for row, label in zip(p.tolist(), labels.tolist(), strict=True):
            top = max(row)
            if b / bins <= top < (b + 1) / bins or (b == bins - 1 and top >= 1):
                inside.append((top, row.index(top) == label))
        if inside:
            right = sum(hit for _, hit in inside) / len(inside)
            sure = sum(top for top, _ in inside) / len(inside)
            total += len(inside) / len(labels) * abs(right - sure)
    return total


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [10, 15])
def test_ece_against_a_literal_loop(k, dtype, bins):
    (log_probs,), labels = random_draws(1, 400, k, seed=k, dtype=dtype)
    assert ece(log_probs, labels, bins) == pytest.approx(literal_ece(log_probs.double().exp(), labels, bins), abs=1e-9)


def test_ece_counts_certainty_in_the_last_bin():
    """Half the points at exactly 1, half at .95, all wrong or all right in turn: one bin, so the errors cancel."""
    p = torch.tensor([[1.0, 0.0]] * 50 + [[0.95, 0.05]] * 50)
    labels = torch.tensor([1] * 3 + [0] * 97)
    assert ece(p.log(), labels) == pytest.approx(0.975 - 0.97, abs=1e-7)
    assert ece(p.log(), labels) == pytest.approx(literal_ece(p, labels), abs=1e-7)


def test_ece_when_rounding_puts_a_probability_above_one():
    """Torchmetrics takes a matrix with any entry outside [0, 1] for logits; ours must not get there."""
    p = torch.tensor([[1 + 2**-23, 0.0], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    assert ece(p.log(), labels) == pytest.approx(literal_ece(p, labels), abs=1e-7)


def test_ece_of_many_equal_confidences_keeps_its_digits():
    """In float32 the sum of ten thousand equal confidences is off by parts in 10^4."""
    p = torch.tensor([[0.95, 0.05]], dtype=torch.float64).expand(10_000, 2)
    labels = (torch.arange(10_000) >= 9_500).long()
    assert ece(p.log(), labels) == pytest.approx(0, abs=1e-9)


def test_ece_null_is_chance_for_a_true_predictive():
    (log_probs,), _ = random_draws(1, 500, 4, seed=3)
    null = ece_null(log_probs, num_resamples=300, seed=0)
    generator = torch.Generator().manual_seed(99)
    p = log_probs.exp()
    values = [ece(log_probs, torch.multinomial(p, 1, generator=generator)[:, 0]) for _ in range(300)]
    # two independent estimates of one mean; 5 standard errors of their difference: false alarms below 1e-6
    assert abs(null["mean"] - statistics.mean(values)) < 5 * statistics.stdev(values) * math.sqrt(2 / 300)
    below = sum(v <= null["upper"] for v in values)
    assert 255 <= below <= 300  # Binomial(300, .95), widened for the noise of the point itself: below 1e-4
    assert 0 < null["mean"] < null["upper"]
    assert null == ece_null(log_probs, num_resamples=300, seed=0)
    assert null != ece_null(log_probs, num_resamples=300, seed=1)


def test_ece_null_shrinks_with_more_points_and_is_zero_for_certainty():
    (few,), _ = random_draws(1, 100, 3)
    assert ece_null(few.repeat(16, 1), num_resamples=100)["mean"] < 0.5 * ece_null(few, num_resamples=100)["mean"]
    sure = torch.tensor([[1.0, 0.0]] * 10).log()
    assert ece_null(sure, num_resamples=5)["upper"] == pytest.approx(0, abs=1e-6)


# table


def test_table_has_three_columns_or_two():
    draws, labels = random_draws(4, 20, 3)
    accumulator = filled(draws[1:], labels)
    table = classification_table(draws[0], accumulator)
    assert list(table) == ["plug_in", "one_draw", "s_draws"]
    assert table["plug_in"] == classification_metrics(draws[0], labels)
    assert (
        {k: table[k] for k in ("one_draw", "s_draws")}
        == accumulator.results()
        == classification_table(None, accumulator)
    )
    assert json.loads(json.dumps(table)) == table
    names = {"accuracy", "pred_nll", "brier", "ece", "confidence", "entropy"}
    assert set(table["plug_in"]) == names
    assert set(table["one_draw"]) == names | {f"{name}_sd" for name in names}
    assert set(table["s_draws"]) == names | {"gibbs_nll", "aleatoric", "epistemic"}


# regression


def gaussian_draws(s=12, n=30, seed=0, shape=()):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn((s, n, *shape), generator=generator, dtype=torch.float64)
    sds = torch.rand((s, n, *shape), generator=generator, dtype=torch.float64) + 0.3
    y = torch.randn((n, *shape), generator=generator, dtype=torch.float64) * 1.5
    return means, sds, y


def filled_regression(means, sds, y, **options):
    accumulator = RegressionAccumulator(y, **options)
    for mean, sd in zip(means, sds, strict=True):
        accumulator.update(mean, sd)
    return accumulator


def density(y, mean, sd):
    return math.exp(-((y - mean) ** 2) / (2 * sd**2)) / (sd * math.sqrt(2 * math.pi))


def test_mixture_nll_against_a_literal_loop():
    means, sds, y = gaussian_draws(4, 6)
    total = 0.0
    for i in range(6):
        total -= math.log(sum(density(float(y[i]), float(means[s, i]), float(sds[s, i])) for s in range(4)) / 4)
    assert mixture_nll(means, sds, y) == pytest.approx(total / 6, rel=1e-12)
    assert filled_regression(means, sds, y).s_draws()["pred_nll"] == pytest.approx(total / 6, rel=1e-12)


def test_regression_by_hand():
    # one point, two draws: N(0, 1) and N(2, 3^2), at y = 1
    means, sds, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]]), torch.tensor([1.0])
    accumulator = filled_regression(means, sds, y)
    results = accumulator.results()
    assert float(accumulator.mean) == 1
    assert results["s_draws"]["rmse"] == 0
    assert results["s_draws"]["aleatoric"] == pytest.approx((1 + 9) / 2)
    assert results["s_draws"]["epistemic"] == pytest.approx(1)  # mean of (0 - 1)^2 and (2 - 1)^2
    assert results["s_draws"]["sd"] == pytest.approx(math.sqrt(6))
    assert results["one_draw"]["rmse"] == pytest.approx(1)
    assert results["one_draw"]["rmse_sd"] == pytest.approx(0)
    assert results["s_draws"]["pred_nll"] == pytest.approx(-math.log((density(1, 0, 1) + density(1, 2, 3)) / 2))
    single = [-math.log(density(1, 0, 1)), -math.log(density(1, 2, 3))]
    assert results["one_draw"]["pred_nll"] == results["s_draws"]["gibbs_nll"] == pytest.approx(statistics.mean(single))
    assert results["one_draw"]["pred_nll_sd"] == pytest.approx(statistics.stdev(single))


def test_moments_are_those_of_the_mixture():
    means, sds, y = gaussian_draws()
    accumulator = filled_regression(means, sds, y)
    torch.testing.assert_close(accumulator.mean, means.mean(0))
    torch.testing.assert_close(accumulator.epistemic, means.var(0, correction=0))
    second = (means.square() + sds.square()).mean(0)
    torch.testing.assert_close(accumulator.sd.square(), second - means.mean(0).square())


def test_coverage_is_that_of_the_mixtures_own_quantiles():
    """Quantiles by bisection on each point's mixture, against the streamed rule."""
    means, sds, y = gaussian_draws(8, 200)
    draws = [
        [statistics.NormalDist(*pair) for pair in zip(*rows, strict=True)]
        for rows in zip(means.T.tolist(), sds.T.tolist(), strict=True)
    ]

    def quantile(i, q):
        low, high = -20.0, 20.0
        for _ in range(40):
            middle = (low + high) / 2
            cdf = sum(draw.cdf(middle) for draw in draws[i]) / 8
            low, high = (middle, high) if cdf < q else (low, middle)
        return low

    results = filled_regression(means, sds, y, levels=(0.5, 0.9)).s_draws()
    for level in (0.5, 0.9):
        inside = [quantile(i, (1 - level) / 2) <= float(y[i]) <= quantile(i, (1 + level) / 2) for i in range(200)]
        assert results[f"coverage_{level}"] == pytest.approx(sum(inside) / 200)
        assert 0.2 < results[f"coverage_{level}"] < 1


def test_gaussian_coverage_at_the_known_quantiles():
    y = torch.tensor([0.0, 0.67, 0.68, -1.64, -1.65, 1.95, 1.97])  # 50 % at .6745, 90 % at 1.6449, 95 % at 1.9600
    metrics = gaussian_metrics(torch.zeros(7), torch.ones(7), y)
    assert [metrics[f"coverage_{level}"] for level in (0.5, 0.9, 0.95)] == pytest.approx([2 / 7, 4 / 7, 6 / 7])


def test_one_gaussian_draw_equals_the_plain_functions():
    means, sds, y = gaussian_draws(1)
    results = filled_regression(means, sds, y).results()
    plain = gaussian_metrics(means[0], sds[0], y)
    assert results["one_draw"] == plain
    assert {name: results["s_draws"][name] for name in plain} == pytest.approx(plain, rel=1e-12)
    assert results["s_draws"]["epistemic"] == 0
    assert plain["rmse"] == rmse(means[0], y)


def test_targets_of_a_row_multiply():
    means, sds, y = gaussian_draws(5, 7, shape=(2,))
    total = 0.0
    for i in range(7):
        rows = [
            density(float(y[i, 0]), float(means[s, i, 0]), float(sds[s, i, 0]))
            * density(float(y[i, 1]), float(means[s, i, 1]), float(sds[s, i, 1]))
            for s in range(5)
        ]
        total -= math.log(sum(rows) / 5)
    assert filled_regression(means, sds, y).s_draws()["pred_nll"] == pytest.approx(total / 7)
    assert mixture_nll(means, sds, y) == pytest.approx(total / 7)


def test_one_number_as_sd_and_units():
    means, _, y = gaussian_draws(3)
    results = filled_regression(means, [torch.tensor(0.5)] * 3, y).s_draws()
    assert results == filled_regression(means, torch.full_like(means, 0.5), y).s_draws()
    # y' = 10 y: the density falls by log 10 per row
    scaled = filled_regression(10 * means, [torch.tensor(5.0)] * 3, 10 * y).s_draws()
    assert scaled["pred_nll"] == pytest.approx(results["pred_nll"] + math.log(10))
    assert scaled["rmse"] == pytest.approx(10 * results["rmse"])
    assert scaled["coverage_0.9"] == results["coverage_0.9"]


def test_regression_table():
    means, sds, y = gaussian_draws(4)
    accumulator = filled_regression(means[1:], sds[1:], y)
    table = regression_table((means[0], sds[0]), accumulator)
    assert list(table) == ["plug_in", "one_draw", "s_draws"]
    assert table["plug_in"] == gaussian_metrics(means[0], sds[0], y)
    assert regression_table(None, accumulator) == accumulator.results()


# bootstrap


def test_bootstrap_of_a_mean_agrees_with_its_standard_error():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(400, generator=generator, dtype=torch.float64)
    for method in ("basic", "percentile"):
        low, high = bootstrap_interval(lambda r: float(r.mean()), rows, method=method, num_resamples=2000)
        error = float(rows.std()) / 20
        # a bootstrap quantile of 2000 resamples is good to about 4 % of the half-width: 15 % is beyond 3 sigma
        assert low == pytest.approx(float(rows.mean()) - 1.96 * error, abs=0.15 * 1.96 * error)
        assert high == pytest.approx(float(rows.mean()) + 1.96 * error, abs=0.15 * 1.96 * error)


def test_basic_mirrors_percentile_about_the_value():
    (log_probs,), labels = random_draws(1, 60, 3)
    value = nll(log_probs, labels)
    basic = bootstrap_interval(nll, log_probs, labels, seed=4, num_resamples=200)
    low, high = bootstrap_interval(nll, log_probs, labels, seed=4, num_resamples=200, method="percentile")
    assert basic == pytest.approx((2 * value - high, 2 * value - low))
    assert high - value != pytest.approx(value - low, rel=1e-3)  # skewed, so that the mirror shows


def test_bootstrap_keeps_rows_together():
    x = torch.arange(50.0)
    low, high = bootstrap_interval(lambda a, b: float((a - b).abs().max()), x, x, num_resamples=20)
    assert (low, high) == (0, 0)


def test_percentile_interval_of_the_calibration_error_is_refused_error():
    (log_probs,), labels = random_draws(1, 60, 3)
    with pytest.raises(ValueError, match="biased upward for ece; use method='basic'"):
        bootstrap_interval(ece, log_probs, labels, method="percentile")
    with pytest.raises(ValueError, match="method is 'bca'; allowed are 'basic' and 'percentile'"):
        bootstrap_interval(nll, log_probs, labels, method="bca")
    with pytest.raises(ValueError, match="level is 95"):
        bootstrap_interval(nll, log_probs, labels, level=95)


# bad use


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (torch.zeros(3, 2), r"row 0 of log_probs sums to exp\(0.6931\) and not to 1; .*log_softmax"),
        (torch.tensor(P1), r"row 0 of log_probs sums"),
        (torch.full((3, 2), math.nan), "row 0 of log_probs sums"),
        (DRAWS[0][:2], r"shape \(2, 2\); one draw covers the whole set: give \(N, K\) with N = 3"),
        (DRAWS, r"shape \(2, 3, 2\); one draw covers the whole set"),
        (torch.zeros(3, 1), r"labels lie in 0..1; log_probs have 1 classes"),
        (torch.zeros(3, 2, dtype=torch.int64), "give log-probabilities"),
    ],
)
def test_bad_draw_error(log_probs, message):
    with pytest.raises(ValueError, match=message):
        ClassificationAccumulator(LABELS).update(log_probs)


def test_a_refused_draw_is_not_counted():
    accumulator = filled(DRAWS, LABELS)
    before = accumulator.results()
    with pytest.raises(ValueError, match="every draw must cover the same rows and classes"):
        accumulator.update(torch.zeros(3, 4).log_softmax(1))
    with pytest.raises(ValueError, match="not to 1"):
        accumulator.update(torch.zeros(3, 2))
    assert accumulator.num_draws == 2
    assert accumulator.results() == before


def test_nothing_added_error():
    for call in (ClassificationAccumulator(LABELS).results, RegressionAccumulator(torch.zeros(3)).results):
        with pytest.raises(ValueError, match="no draw has been added"):
            call()
    with pytest.raises(ValueError, match="no draw has been added"):
        _ = PredictiveAccumulator().log_probs


def test_bad_labels_and_targets_error():
    for labels in (torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64), LABELS[:0]):
        with pytest.raises(ValueError, match="give integers of shape"):
            ClassificationAccumulator(labels)
    with pytest.raises(ValueError, match="give real numbers of shape"):
        RegressionAccumulator(LABELS)
    with pytest.raises(ValueError, match="level is 90"):
        RegressionAccumulator(torch.zeros(3), levels=(90,))


@pytest.mark.parametrize(
    ("mean", "sd", "message"),
    [
        (torch.zeros(3, 1), torch.ones(3), r"mean has shape \(3, 1\)"),
        (torch.zeros(3), torch.ones(2), r"sd \(2,\)"),
        (torch.zeros(3), torch.zeros(3), "not finite and > 0"),
        (torch.full((3,), math.inf), torch.ones(3), "mean that is not finite"),
    ],
)
def test_bad_gaussian_draw_error(mean, sd, message):
    with pytest.raises(ValueError, match=message):
        RegressionAccumulator(torch.zeros(3)).update(mean, sd)
