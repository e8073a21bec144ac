import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_bnn.analysis.report import Twin, build_report, write_report
from pyro_bnn.analysis.report.outputs import write_outputs
from pyro_bnn.analysis.scores.evaluation import evaluate_rows
from pyro_bnn.data.standardise import Standardiser, plain
from pyro_bnn.guides import AutoMeanFieldNormal, AutoPoint
from pyro_bnn.models import likelihoods
from pyro_bnn.posterior import Posterior

HISTORY = [
    {"epoch": e, "nll": 2.0 / e, "kl": 5.0 - e, "val_nll": 2.5 / e, "val_accuracy": 0.3 + 0.1 * e} for e in (1, 2, 3)
]
RESULTS = {"best_epoch": 2, "seconds": {"train": 12.0}, "date": "2020-01-01", "machine": "a machine"}
RECIPE = {"name": "toy & co", "description": "A <toy>", "source": "Nobody 2020"}

VOID = {"meta", "img", "br", "path", "circle", "rect", "link"}
SVG_LEAVES = {"path", "circle", "rect"}


class Page(HTMLParser):
    """What a page is made of, and whether its tags nest."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or tag in SVG_LEAVES:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words)).replace("\u00a0", " ")

    def of(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def page_and_case():
    from tests.analysis.conftest import classifier

    torch.manual_seed(0)
    case = classifier((1, 6, 6), n=60, recipe=RECIPE, eta=0.1)
    html = build_report(
        case.posterior,
        (case.x, case.y),
        (case.x[:20], case.y[:20]),
        history=HISTORY,
        results=RESULTS,
        recipe_toml="eta = 0.1\n",
        command="pyro-bnn train toy",
        num_samples=12,
    )
    return html, Page(html), case


def test_it_holds_everything_it_should(page_and_case):
    _, page, _ = page_and_case
    for words in (
        "toy & co",
        "A <toy>",
        "Results",
        "Training",
        "Are its probabilities right?",
        "Does it know what it does not know?",
        "Most certain mistakes",
        "Most uncertain inputs",
        "Weights",
        "Recipe",
        "Reliability",
        "Refusing to answer",
        "Confidence in and out of distribution",
        "Gaussian noise",
        "shuffled pixels",
        "mutual information",
        "Signal-to-noise of the weights",
        "Pruning by signal-to-noise",
        "net.layers.0.weight",
        "eta = 0.1",
        "pyro-bnn train toy",
        "validation NLL",
        "Divergence from the prior",
        "by chance",
        "LOO and WAIC: not defined",
        "tempered (eta = 0.1)",
        "a machine",
    ):
        assert words in page.text, words


def test_the_figures_are_those_of_the_evaluation(page_and_case):
    _, page, case = page_and_case
    rows = evaluate_rows(case.posterior, case.x, case.y, 12)
    table, intervals = rows.table["s_draws"], rows.intervals()
    assert f"{100 * table['accuracy']:.2f} %" in page.text
    assert f"{table['pred_nll']:.4f}" in page.text
    low, high = intervals["pred_nll"]
    assert f"{low:.4f} – {high:.4f}" in page.text
    assert f"{rows.table['plug_in']['brier']:.4f}" in page.text


def test_nothing_comes_from_outside(page_and_case):
    html, page, _ = page_and_case
    assert not page.of("script")
    assert not page.of("link")
    assert not re.search(r"https?:|@import|url\(", html)
    assert all(attrs["src"].startswith("data:image/png;base64,") for attrs in page.of("img"))


def test_everything_seen_is_also_said(page_and_case):
    _, page, _ = page_and_case
    images = page.of("img")
    assert len(images) == 24
    assert all(re.match(r"Test row \d+, labelled \w+, predicted \w+ with", attrs["alt"]) for attrs in images)
    charts = [attrs for attrs in page.of("svg") if attrs.get("class") == "chart"]
    assert len(charts) == 11
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    for attrs in charts:
        assert attrs["role"] == "img"
        assert set(attrs["aria-labelledby"].split()) <= ids
    assert page.of("html")[0]["lang"] == "en"
    assert any(attrs.get("name") == "viewport" for attrs in page.of("meta"))
    assert len(page.of("h1")) == 1


def test_images_are_the_inputs(page_and_case):
    _, page, case = page_and_case
    rows = evaluate_rows(case.posterior, case.x, case.y, 12)
    wrong = (~rows.correct).nonzero()[:, 0]
    surest = int(wrong[rows.log_probs[wrong].amax(1).argmax()])
    data = page.of("img")[0]["src"].removeprefix("data:image/png;base64,")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert page.of("img")[0]["alt"].startswith(f"Test row {surest}, ")
    generator = torch.Generator().manual_seed(0)
    raw = torch.rand(60, 1, 6, 6, generator=generator)  # what `classifier` standardised
    np.testing.assert_allclose(pixels, 255 * raw[surest, 0], atol=1.0)


def test_a_twin_stands_beside(make_classifier):
    case = make_classifier(recipe=RECIPE)
    point = Posterior(case.posterior.model, AutoPoint(case.posterior.model), case.posterior.info)
    rows = evaluate_rows(point, case.x, case.y, 1)
    twin = Twin("the twin", point, rows, temperature=2.0)
    page = Page(build_report(case.posterior, (case.x, case.y), twin=twin, num_samples=5))
    assert "the twin, T = 2.00" in page.text
    assert f"the twin {100 * rows.table['s_draws']['accuracy']:.2f} %" in page.text
    assert "Gaussian noise, the twin" in page.text


@pytest.mark.parametrize("targets", [1, 2])
def test_regression(make_regressor, targets):
    case = make_regressor(likelihoods.HeteroscedasticGaussian(), targets=targets, recipe=RECIPE)
    history = [{k: v for k, v in line.items() if k != "val_accuracy"} for line in HISTORY]
    page = Page(build_report(case.posterior, (case.x, case.y), history=history, num_samples=6))
    table = case.posterior.evaluate(case.x, case.y, 6)["s_draws"]
    assert f"{table['rmse']:.4f}" in page.text
    for words in ("Coverage", "Predicted against observed", "Largest surprises", "RMSE", "Prior predictive"):
        assert words in page.text
    assert "Most certain mistakes" not in page.text


def test_a_point_posterior_and_one_that_is_always_right(make_classifier):
    case = make_classifier()
    point = Posterior(case.posterior.model, AutoPoint(case.posterior.model), case.posterior.info)
    labels = point.predict(case.x, 1).argmax(1)
    page = Page(build_report(point, (case.x, labels), num_samples=1))
    assert "100.00 %" in page.text
    assert "Most certain mistakes" not in page.text
    assert "point, MAP" in page.text


def test_histories_of_members_and_of_samplers(classes):
    rows = (classes.x, classes.y)
    members = [{"part": part, **line} for part in ("member-1", "member-2") for line in HISTORY]
    page = Page(build_report(classes.posterior, rows, history=members, num_samples=2))
    assert "validation NLL goes from 2.5 to 0.833 (mean of 2 members)" in page.text
    chains = [{"chain": c, "divergences": 0} for c in (1, 2)]
    assert "Training" not in Page(build_report(classes.posterior, rows, history=chains, num_samples=2)).text


def test_a_twin_of_another_task_is_refused(classes, numbers):
    twin = Twin("numbers", numbers.posterior, evaluate_rows(numbers.posterior, numbers.x, numbers.y, 2))
    with pytest.raises(ValueError, match="predicts something else"):
        build_report(classes.posterior, (classes.x, classes.y), twin=twin, num_samples=2)


def test_outputs_of_a_run(make_classifier, tmp_path):
    from pyro_bnn.analysis.arviz import loo, open_arviz

    case = make_classifier()
    (tmp_path / "recipe.toml").write_text('model = "mlp"\n')
    rows = (case.x, case.y)
    export, report = write_outputs(tmp_path, case.posterior, rows, rows, rows, history=HISTORY, num_samples=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["posterior.nc", "recipe.toml", "report.html"]
    assert 'model = "mlp"' in Page(report.read_text()).text
    idata = open_arviz(export)
    assert idata.attrs["split"] == "train"
    assert idata.predictions_constant_data.sizes["obs_id"] == 40
    assert f"elpd {loo(idata).value:.2f}" in Page(report.read_text()).text  # untempered, on training rows: defined
    idata.close()


def test_a_network_without_a_known_prior_or_site(tmp_path):
    import pyro
    import pyro.distributions as dist

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)

    def guide(x):
        pyro.sample("w", dist.Normal(torch.tensor([1.0, -1.0]), 0.3).to_event(1))

    x = torch.randn(50, 2)
    path = write_report(tmp_path, Posterior(model, guide), (x, (x[:, 0] > 0).long()), num_samples=5)
    assert "<td>2</td>" in path.read_text()


def test_the_mean_field_of_a_report_is_the_guides(make_classifier):
    case = make_classifier()
    assert isinstance(case.posterior.guide, AutoMeanFieldNormal)
    page = Page(build_report(case.posterior, (case.x, case.y), num_samples=2))
    sigma = float(case.posterior.guide.site("net.layers.1.bias").scale.median())
    assert f"{sigma:.3g}" in page.text


def test_numbers_of_thousands_are_written_as_people_write_them(make_regressor):
    case = make_regressor()
    y = 250_000 + 60_000 * plain(case.y).double()
    case.posterior.info["y_standardiser"] = Standardiser.fit(y).to_dict()
    page = build_report(case.posterior, (case.x, y), num_samples=10)
    table = page[page.index("Largest surprises") :]
    assert re.search(r"<td[^>]*>\s*\d{3},\d{3}\s*</td>", table)
    assert not re.search(r"\d\.\d+e\+0[3-6]", page)
