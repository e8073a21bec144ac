import matplotlib as mpl
import numpy as np
import pytest
import torch

from pyro_bnn.analysis.arviz.versions import elpd_of, is_tree
from pyro_bnn.analysis.scores.elpd import TITLE, compare_held_out, held_out_elpd, plot_held_out
from pyro_bnn.analysis.scores.evaluation import evaluate_rows

mpl.use("Agg")


def pointwise(seed, n=200, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return -torch.rand(n, generator=generator, dtype=torch.float64) - shift


def test_sum_and_standard_error():
    values = pointwise(0)
    elpd = held_out_elpd(values, 50)
    assert elpd_of(elpd) == pytest.approx(float(values.sum()))
    assert elpd["se"] == pytest.approx(float((200 * values.var(correction=0)).sqrt()))
    assert elpd["p" if is_tree() else "p_loo"] == 0
    assert elpd["n_data_points"] == 200


def test_differences_are_paired():
    common, small = pointwise(0), 0.01 * pointwise(1)
    table = compare_held_out({"b": held_out_elpd(common + small, 10), "a": held_out_elpd(common, 10)})
    assert table.attrs["title"] == TITLE
    assert list(table.index) == ["a", "b"]
    assert table.loc["b", "difference"] == pytest.approx(float(-small.sum()))
    assert table.loc["b", "se_difference"] == pytest.approx(float((200 * small.var(correction=0)).sqrt()))
    assert table.loc["b", "se_difference"] < 0.02 * table.loc["b", "se"]  # pairing removes what the runs share
    assert not any("loo" in column for column in table.columns)


def test_weights_favour_the_better_model():
    table = compare_held_out(
        {"bad": held_out_elpd(pointwise(0, shift=2.0), 10), "good": held_out_elpd(pointwise(0), 10)}
    )
    assert table.loc["good", "weight"] == pytest.approx(1, abs=1e-3)


def test_it_is_minus_n_times_the_predictive_nll(classes, numbers):
    for case in (classes, numbers):
        rows = evaluate_rows(case.posterior, case.x, case.y, 6)
        elpd = held_out_elpd(rows.log_density, 6)
        assert elpd_of(elpd) == pytest.approx(-len(case.x) * rows.table["s_draws"]["pred_nll"])


@pytest.mark.filterwarnings("ignore")
def test_the_plot_is_titled_for_what_it_is():
    axes = plot_held_out({name: held_out_elpd(pointwise(seed), 10) for seed, name in enumerate("ab")})
    assert axes.get_title().startswith("held-out elpd")
    assert "loo" not in (axes.get_title() + axes.get_xlabel()).lower()
    mpl.pyplot.close("all")


def test_mistakes_are_named():
    one = held_out_elpd(pointwise(0), 10)
    with pytest.raises(ValueError, match="at least two"):
        compare_held_out({"one": one})
    with pytest.raises(ValueError, match="different numbers of points"):
        compare_held_out({"one": one, "other": held_out_elpd(pointwise(0, n=100), 10)})
    with pytest.raises(ValueError, match="one finite number per point"):
        held_out_elpd(torch.tensor([0.0, -np.inf]), 10)
