"""The report's sections on classes, curves, chains and on who does better."""

from dataclasses import replace

import pytest
import torch

from pyro_bnn.analysis.report import Twin, build_report
from pyro_bnn.analysis.report.closer import chains, curve_figure, glossary, honestly
from pyro_bnn.analysis.report.closer import classes as classes_of
from pyro_bnn.analysis.scores.evaluation import evaluate_rows
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import Posterior
from tests.analysis.arviz_functions import refit


@pytest.fixture
def rows(classes):
    return evaluate_rows(classes.posterior, classes.x, classes.y, 5)


def test_confusion_and_class_figures_are_counts_of_rows(classes, rows):
    section = classes_of(classes.posterior, rows)
    names = ["ant", "bee", "cat"]
    for i, row in enumerate(section["matrix"]["rows"]):
        assert row["name"] == names[i]
        for j, cell in enumerate(row["cells"]):
            assert cell["count"] == int(((rows.labels == i) & (rows.guess == j)).sum())
    for i, row in enumerate(section["rows"]):
        here, said = rows.labels == i, rows.guess == i
        right = int((here & said).sum())
        assert row["count"] == str(int(here.sum()))
        assert row["recall"] == f"{100 * right / int(here.sum()):.1f} %"
        assert row["precision"] == (f"{100 * right / int(said.sum()):.1f} %" if bool(said.any()) else "–")
        assert row["nll"] == f"{float(-rows.log_probs[here, i].mean()):.3f}"
    wrong = sum(int(pair["count"]) for pair in section["pairs"])
    assert wrong == int((~rows.correct).sum())


def worse(evaluation, better):
    """The same evaluation with figures that another one beats, or does not."""
    shift = 0.1 if better else -0.1
    own = {**evaluation.table["s_draws"]}
    other = {**own, "pred_nll": own["pred_nll"] - shift, "accuracy": own["accuracy"] + shift}
    return {**evaluation.table, "plug_in": other}


def test_it_says_where_the_plug_in_or_the_twin_wins(classes, rows):
    def without(evaluation):
        return replace(evaluation, table=worse(evaluation, better=False))

    assert honestly(without(rows), None, {}) == []
    (sentence,) = honestly(replace(rows, table=worse(rows, better=True)), None, {})
    own = rows.table["s_draws"]["pred_nll"]
    assert f"an NLL of {own - 0.1:.4f} against {own:.4f}" in sentence
    better = without(rows)
    better.table["s_draws"] = {**rows.table["s_draws"], "pred_nll": own - 0.2}
    moved = replace(better, log_probs=(rows.log_probs.exp() * 0.8 + 0.2 / 3).log())
    (sentence,) = honestly(without(rows), Twin("twin", classes.posterior, moved), {})
    difference = rows.log_density - moved.log_density
    assert f"an NLL of {own - 0.2:.4f} against {own:.4f}" in sentence
    assert f"differs by {float(difference.mean()):+.4f} ± {float(difference.std()) / 40**0.5:.4f}" in sentence
    scaled = {"twin, T = 1.20": {"pred_nll": own - 0.3}}
    (sentence,) = honestly(without(rows), Twin("twin", classes.posterior, without(rows)), scaled)
    assert "With its temperature fitted" in sentence


def test_the_curve_is_drawn_for_one_input_alone(make_regressor):
    case = make_regressor()
    rows = evaluate_rows(case.posterior, case.x, case.y, 5)
    assert curve_figure(case.posterior, case.x, rows, 0) is None
    model = BNN(MLP(1, 1, hidden=(3,)), priors.Kaiming(), likelihoods.Gaussian(0.5), 20)
    posterior, x = Posterior(model, AutoMeanFieldNormal(model)), torch.linspace(-1, 1, 20)[:, None]
    figure = curve_figure(posterior, x, evaluate_rows(posterior, x, x[:, 0], 5), 0)
    assert figure is not None
    assert figure.svg.count('class="area c0"') == 2
    assert figure.svg.count('class="dot c1"') == 20


def test_chains_are_judged_by_what_their_run_found_and_by_their_energy(classes):
    posterior = refit(classes, "nuts")
    history = [{"chain": c, "divergences": c, "acceptance": 0.8, "step_size": 0.01} for c in (1, 2)]
    section = chains(posterior, history, {"facts": {"rhat": 1.2, "ess_bulk": 31.4, "reference": False}})
    shown = {name: value for name, value, _ in section["shown"]}
    energy = posterior.guide.sample_stats()["energy"].double()
    lowest = min(float(e.diff().square().mean() / e.var(correction=0)) for e in energy)
    assert shown["R-hat of the predictions"] == "1.200"
    assert shown["Divergences"] == "0"
    assert shown["Lowest E-BFMI of a chain"] == f"{lowest:.2f}"
    assert section["rows"][1] == ["2", "0.8", "0.01", "2"]
    assert "may NOT stand" in section["words"]
    assert chains(classes.posterior, history, {}) is None


def test_the_glossary_has_the_words_of_the_page(make_regressor, rows):
    words = dict(glossary(rows, twin=False, chains=False))
    assert "Brier score" in words
    assert not {"RMSE", "Twin", "R-hat, ESS"} & set(words)
    case = make_regressor()
    other = evaluate_rows(case.posterior, case.x, case.y, 3)
    assert {"RMSE", "Twin", "R-hat, ESS"} <= set(dict(glossary(other, twin=True, chains=True)))


def test_the_page_has_them_and_hides_nothing_in_markup(classes):
    classes.posterior.info["class_names"] = ["ant", "<b>", "cat"]
    page = build_report(classes.posterior, (classes.x, classes.y), num_samples=3)
    assert "Class by class" in page
    assert "<b></th>" not in page
    assert "&lt;b&gt;" in page
    assert "<h2>Words</h2>" in page
