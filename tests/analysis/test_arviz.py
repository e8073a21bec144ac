import json
import subprocess
import sys
import warnings

import matplotlib as mpl
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

from pyro_bnn.analysis.arviz import (
    NotDefined,
    export_bytes,
    groups_of,
    import_arviz,
    loo,
    open_arviz,
    posterior_kind,
    save_arviz,
    to_arviz,
)
from pyro_bnn.analysis.arviz.versions import is_tree
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.posterior import Posterior
from tests.analysis.arviz_functions import HISTORY, KINDS, PAGE, outcome, part, refit, table

mpl.use("Agg")
az = import_arviz()

GROUPS = {
    *("posterior", "prior", "posterior_predictive", "prior_predictive", "predictions"),
    *("log_likelihood", "log_prior", "observed_data", "constant_data", "training"),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_exports_of_every_kind_have_the_groups(classes, kind):
    posterior = refit(classes, kind)
    idata = posterior.to_arviz(classes.x, classes.y, 40, split="train", history=HISTORY)
    renamed = {"log_likelihood": "log_density"} if kind in ("ensemble", "map") else {}  # where LOO is not defined
    expected = {renamed.get(group, group) for group in GROUPS}
    assert set(groups_of(idata)) == expected | ({"sample_stats"} if kind == "nuts" else set())
    assert idata.attrs["kind"] == posterior_kind(posterior) == kind
    assert idata.posterior.sizes["chain"] == (2 if kind == "nuts" else 1)


@pytest.mark.slow
def test_the_functions_of_arviz_run_where_the_page_says_so():
    """The page has a table for each of the two ArviZ; this is the installed one's."""
    page = PAGE.read_text()
    at, end = part(page)
    assert page[at:end] == table(), "python -m tests.analysis.arviz_functions writes it anew"


@pytest.mark.parametrize("kind", ["svi", "nuts"])
def test_the_usual_functions_of_arviz_run_as_the_page_says(classes, kind):
    page = PAGE.read_text()
    rows = [line.strip("| ").split(" | ") for line in page[slice(*part(page))].splitlines()]
    column = rows[0].index(kind)
    said = {row[0].strip("`"): row[column] for row in rows[2:]}
    idata = refit(classes, kind).to_arviz(classes.x, classes.y, 40, split="train", history=HISTORY)
    names = ("summary", "loo", "compare", "rhat", "bfmi", "plot_energy", "plot_forest", "plot_ppc", "plot_ppc_dist")
    assert {name: outcome(name, idata) for name in names} == {name: said[name] for name in names}
    assert said["summary"] == "yes"
    assert said["plot_energy"] == ("yes" if kind == "nuts" else "needs the energy of HMC")


def test_dims_and_coords_are_named(classes):
    idata = classes.posterior.to_arviz(classes.x, classes.y, 4, split="test", history=HISTORY)
    weight = idata.posterior["net.layers.0.weight"]
    assert weight.dims == ("chain", "draw", "net.layers.0.weight_out", "net.layers.0.weight_in")
    assert weight.shape == (1, 4, 8, 5)
    assert idata.predictions["probability"].dims == ("chain", "draw", "obs_id", "class")
    assert list(idata.predictions["class"].values) == ["ant", "bee", "cat"]
    assert idata.constant_data["x"].dims == ("obs_id", "feature")
    assert list(idata.observed_data["obs_id"].values) == list(range(40))
    assert list(idata.training["epoch"].values) == [1, 2, 3]
    np.testing.assert_allclose(idata.training["train_nll"], [[1, 1 / 2, 1 / 3]], rtol=1e-6)
    np.testing.assert_allclose(idata.training["val_nll"], [[1.1] * 3], rtol=1e-6)
    for group in groups_of(idata):
        floats = [v for v in idata[group].data_vars.values() if v.dtype.kind == "f"]
        assert all(v.dtype == np.float32 for v in floats), group


def test_the_trace_of_members_and_of_chains(classes):
    members = [{"part": p, "epoch": e, "nll": 10.0 * i + e} for i, p in enumerate("ab") for e in range(1, 3 + i)]
    stats = classes.posterior.to_arviz(classes.x, num_samples=2, history=members).training
    assert stats["train_nll"].dims == ("chain", "part", "epoch")
    assert list(stats["part"].values) == ["a", "b"]
    np.testing.assert_array_equal(stats["train_nll"], [[[1, 2, np.nan], [11, 12, 13]]])
    chains = [{"chain": c, "divergences": c, "acceptance": 0.5, "step_size": 0.1} for c in (1, 2)]
    stats = refit(classes, "nuts").to_arviz(classes.x, history=chains).training
    assert stats["divergences"].dims == ("chain",)
    assert list(stats["divergences"].values) == [1, 2]


@pytest.mark.skipif(is_tree(), reason="functions of ArviZ 0.x; xarray's do this in 1.x")
@pytest.mark.parametrize("kind", ["svi", "nuts"])
def test_exports_are_put_together_along_chains_and_turned_into_frames_and_json(classes, kind, tmp_path):
    posterior, file = refit(classes, kind), tmp_path / "posterior.nc"
    posterior.to_arviz(classes.x, classes.y, 40, split="train", history=HISTORY, path=file)
    one = az.from_netcdf(file)
    two = az.concat(one, one, dim="chain")
    chains = one.posterior.sizes["chain"]
    assert two.posterior.sizes["chain"] == 2 * chains
    np.testing.assert_allclose(two.training["train_nll"][-1], [1, 1 / 2, 1 / 3], rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this ArviZ calls pandas in ways that pandas 3 has words for
        frame = one.to_dataframe()
    drawn = frame[next(column for column in frame.columns if column[0] == "posterior")]
    assert drawn.notna().sum() == one.posterior.sizes["draw"] * chains
    assert ("training", "train_nll[2]", 3) in frame.columns
    one.to_json(tmp_path / "posterior.json")
    assert len(json.loads((tmp_path / "posterior.json").read_text())["posterior"]) == len(one.posterior)


class Pair(torch.nn.Module):
    """A network of two inputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(2, 1), torch.nn.Linear(3, 1)

    def forward(self, x1, x2):
        return self.left(x1) + self.right(x2)


def test_several_inputs_are_exported_by_name_and_reported(tmp_path):
    x = torch.randn(12, 2), torch.randn(12, 3)
    y = x[0][:, 0]
    model = BNN(Pair(), priors.FanIn(), likelihoods.Gaussian(0.5), num_data=12)
    posterior = Posterior(model, AutoMeanFieldNormal(model))
    idata = posterior.to_arviz(x, y, 6, seed=1, x_new=(x[0][:4] + 1, x[1][:4]))
    np.testing.assert_array_equal(idata.constant_data["x1"], x[0])
    np.testing.assert_array_equal(idata.constant_data["x2"], x[1])
    assert idata.constant_data["x2"].dims == ("obs_id", "x2_feature")
    np.testing.assert_array_equal(idata.predictions_constant_data["x1"], x[0][:4] + 1)
    want = posterior.draws((torch.cat([x[0], x[0][:4] + 1]), torch.cat([x[1], x[1][:4]])), 6, seed=1)
    np.testing.assert_allclose(idata.predictions["mean"][0], want[:, 12:], rtol=1e-5)
    np.testing.assert_allclose(
        idata.log_likelihood["obs"][0], dist.Normal(want[:, :12], 0.5).log_prob(y), rtol=1e-4, atol=1e-5
    )
    page = posterior.report(tmp_path, (x, y)).read_text()
    assert "left.weight" in page
    with pytest.raises(ValueError, match="x has 12 rows and y has 5"):
        posterior.to_arviz(x, y[:5], 6)


def test_numbers_agree_with_the_posterior(classes):
    idata = classes.posterior.to_arviz(classes.x, classes.y, 12, seed=5)
    p = classes.posterior.draws(classes.x, 12, seed=5)
    np.testing.assert_allclose(idata.predictions["probability"][0], p, atol=1e-6)
    own = p[:, torch.arange(40), classes.y].log()
    np.testing.assert_allclose(idata.log_likelihood["obs"][0], own, atol=1e-5)
    mean = idata.predictions["probability"].mean(("chain", "draw"))
    np.testing.assert_allclose(mean, classes.posterior.predict(classes.x, 12, seed=5), atol=1e-6)
    assert set(np.unique(idata.posterior_predictive["obs"])) <= {0, 1, 2}


def test_weights_belong_to_the_predictions_beside_them(classes):
    """Recompute every draw's probabilities from the exported weights."""
    idata = classes.posterior.to_arviz(classes.x, classes.y, 6)
    sites = {n: torch.tensor(v.values[0]) for n, v in idata.posterior.data_vars.items() if n.startswith("net.")}
    for s in range(6):
        fn = classes.posterior.model.observation(classes.x, {n: v[s] for n, v in sites.items()})
        np.testing.assert_allclose(idata.predictions["probability"][0, s], fn.probs.detach(), atol=1e-5)
        log_prior = sum(
            float(p.log_prob(sites[f"net.{n}"][s]).sum()) for n, p in classes.posterior.model.priors().items()
        )
        exported = sum(float(values[0, s]) for values in idata.log_prior.data_vars.values())
        assert exported == pytest.approx(log_prior, rel=1e-5)


def test_stored_draws_come_by_chain_each_once(classes):
    posterior = refit(classes, "nuts")
    idata = posterior.to_arviz(classes.x, classes.y, num_samples=3)  # all 2 x 20 are taken
    for name, values in posterior.guide.by_site().items():
        np.testing.assert_array_equal(idata.posterior[name], values)
    sites = posterior.guide.by_site()
    fn = posterior.model.observation(classes.x, {n: v[1, 7] for n, v in sites.items()})
    np.testing.assert_allclose(idata.predictions["probability"][1, 7], fn.probs.detach(), atol=1e-5)


@pytest.mark.parametrize("targets", [1, 2])
def test_regression_is_in_the_units_of_the_targets(make_regressor, targets):
    case = make_regressor(likelihoods.HeteroscedasticGaussian(), targets=targets)
    idata = case.posterior.to_arviz(case.x, case.y, 200, split="test")
    table = case.posterior.evaluate(case.x, case.y, 200)["s_draws"]
    pointwise = torch.tensor(idata["log_density"]["obs"].values[0]).double()  # of rows that were not trained on
    assert float(-(pointwise.logsumexp(0) - np.log(200)).mean()) == pytest.approx(table["pred_nll"], rel=1e-4)
    assert 40 < float(idata.observed_data["obs"].mean()) < 60
    assert idata.posterior_predictive["obs"].dims == ("chain", "draw", "obs_id", *(["target"] if targets > 1 else []))
    spread = float(idata.posterior_predictive["obs"].std(("chain", "draw")).mean())
    assert spread == pytest.approx(float(case.posterior.predict(case.x, 200, seed=0).sd.mean()), rel=0.1)


def test_a_hand_written_program_with_a_guide_of_pyro():
    def model(x, y=None):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        s = pyro.sample("s", dist.LogNormal(0.0, 0.3))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(a * x[:, 0], s), obs=y)

    x, y = torch.randn(20, 2), torch.randn(20)
    guide = AutoNormal(model)
    guide(x, y)
    idata = Posterior(model, guide).to_arviz(x, y, 30, split="train")
    assert idata.posterior["a"].dims == ("chain", "draw")
    assert set(idata.posterior.data_vars) == {"a", "s"}  # auxiliary sites stay out
    assert float(idata.posterior["s"].min()) > 0
    assert set(idata.prior.data_vars) == {"a", "s"}
    a, s = (torch.tensor(idata.posterior[n].values[0]) for n in ("a", "s"))
    own = torch.distributions.Normal(a[:, None] * x[:, 0], s[:, None]).log_prob(y)
    np.testing.assert_allclose(idata.log_likelihood["obs"][0], own, rtol=2e-4, atol=1e-4)
    for name, prior, values in (("a", dist.Normal(0.0, 1.0), a), ("s", dist.LogNormal(0.0, 0.3), s)):
        np.testing.assert_allclose(idata.log_prior[name][0], prior.log_prob(values), rtol=2e-4, atol=1e-5)


def test_large_sites_are_summaries_and_any_site_is_exported_on_request(make_classifier):
    case = make_classifier(hidden=60)
    idata = case.posterior.to_arviz(case.x, case.y, 5)
    assert "net.layers.0.weight" not in idata.posterior  # 300 values
    assert list(idata.posterior["site"].values) == ["net.layers.0.weight", "net.layers.1.weight"]
    full = case.posterior.to_arviz(case.x, case.y, 5, sites="net.layers.0.*")
    weight = full.posterior["net.layers.0.weight"]
    assert weight.shape == (1, 5, 60, 5)
    rms = np.sqrt((weight.values**2).mean((-1, -2)))
    np.testing.assert_allclose(idata.posterior["weight_rms"].sel(site="net.layers.0.weight"), rms, rtol=1e-5)
    with pytest.raises(ValueError, match="matches no site"):
        case.posterior.to_arviz(case.x, case.y, 5, sites="conv*")


def test_predictions_may_be_of_other_rows(classes):
    scale = classes.x.standardiser
    new = scale.mark(classes.x[:7] + 1)
    idata = classes.posterior.to_arviz(classes.x, classes.y, 5, split="train", x_new=new, seed=2)
    assert idata.predictions.sizes["obs_id"] == 7
    assert idata.posterior_predictive.sizes["obs_id"] == 40
    np.testing.assert_allclose(idata.predictions_constant_data["x"], scale.invert(new), rtol=1e-6)
    p = classes.posterior.draws(new, 5, seed=2)
    np.testing.assert_allclose(idata.predictions["probability"][0], p, atol=1e-6)


def test_without_labels_nothing_is_observed(classes):
    idata = classes.posterior.to_arviz(classes.x, num_samples=3)
    assert set(groups_of(idata)) == GROUPS - {"observed_data", "log_likelihood", "training"}


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_files_hold_what_memory_held_and_are_read_lazily_in_chunks(classes, tmp_path, suffix):
    if suffix == ".zarr":
        pytest.importorskip("zarr", reason="zarr 3 needs Python 3.11")
    options = {"split": "test", "history": HISTORY, "seed": 4}
    idata = classes.posterior.to_arviz(classes.x, classes.y, 8, **options)
    saved = save_arviz(idata, tmp_path / f"saved{suffix}")
    for other in (
        open_arviz(saved),
        to_arviz(classes.posterior, classes.x, classes.y, 8, path=tmp_path / f"streamed{suffix}", **options),
    ):
        assert other.attrs == idata.attrs
        assert set(groups_of(other)) == set(groups_of(idata))
        for group in groups_of(idata):
            for name, values in idata[group].data_vars.items():
                assert other[group][name].dims == values.dims
                assert other[group][name].encoding.get("preferred_chunks") or not values.ndim
                assert not isinstance(other[group][name].variable._data, np.ndarray)  # not read yet
                np.testing.assert_array_equal(other[group][name], values)
            for name, values in idata[group].coords.items():
                assert list(other[group][name].values) == list(values.values)
        other.close()


MEASURE = """
import resource, sys, torch
from pyro_bnn.analysis.arviz import to_arviz, export_bytes
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import Posterior
from tests.analysis.arviz_functions import HISTORY, KINDS, PAGE, outcome, part, refit, table
import arviz, h5netcdf, xarray
model = BNN(MLP(100, 10, hidden=(1000, 900)), priors.Kaiming(), likelihoods.Categorical(), 50)
posterior = Posterior(model, AutoMeanFieldNormal(model))
x, y = torch.randn(50, 100), torch.randint(0, 10, (50,))
to_arviz(posterior, x, y, 2, path=sys.argv[1] + "/warm.nc").close()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sites = None if sys.argv[2] == "summaries" else "*"
idata = to_arviz(posterior, x, y, 100, sites=sites, prior_samples=2, path=sys.argv[1] + "/export.nc")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights = sum(p.numel() for p in model.template.parameters())
print(weights, (after - before) * 1024, idata.posterior.nbytes)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["summaries", "full"])
def test_a_million_weights_export_in_the_memory_of_a_few_draws(tmp_path, what):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURE, str(tmp_path), what], capture_output=True, text=True, check=True
    )
    weights, grown, exported = (int(word) for word in run.stdout.split())
    assert weights > 1_000_000
    if what == "full":
        assert exported > 100 * 4 * weights  # all draws of all weights: 400 MB
    assert grown < 40 * 4 * weights  # at most 40 copies of the weights, 160 MB, whatever the number of draws


def test_exports_too_large_for_memory_ask_for_a_file(make_classifier, monkeypatch):
    case = make_classifier()
    size = export_bytes(case.posterior, case.x, 100)
    monkeypatch.setattr("pyro_bnn.analysis.arviz.export.MAX_BYTES", size // 2)
    with pytest.raises(ValueError, match=r"pass path='export.nc'"):
        case.posterior.to_arviz(case.x, case.y, 100)


def test_stated_size_is_the_size(classes):
    idata = classes.posterior.to_arviz(classes.x, num_samples=50)
    arrays = sum(v.nbytes for g in groups_of(idata) for v in idata[g].data_vars.values())
    assert export_bytes(classes.posterior, classes.x, 50) == arrays


def test_every_export_says_what_it_is(make_classifier):
    case = make_classifier(recipe={"name": "toy"}, eta=0.5)
    attrs = case.posterior.to_arviz(case.x, case.y, 2, split="validation").attrs
    assert (attrs["split"], attrs["eta"], attrs["temperature"], attrs["kind"]) == ("validation", 0.5, 1.0, "svi")
    assert json.loads(attrs["recipe"]) == {"name": "toy"}
    assert attrs["num_data"] == 40
    assert attrs["loo"].startswith("not defined: the posterior is tempered (eta = 0.5)")


def test_mistakes_are_named(classes, tmp_path):
    x, y = classes.x, classes.y
    for options, words in (
        ({"split": "training"}, "choose one of train"),
        ({"num_samples": 0}, "at least 1"),
        ({"path": tmp_path / "a.h5"}, "end it in .nc"),
    ):
        with pytest.raises(ValueError, match=words):
            classes.posterior.to_arviz(x, y, **options)
    with pytest.raises(ValueError, match="one label per row"):
        classes.posterior.to_arviz(x, y[:2])
    with pytest.raises(FileNotFoundError, match="no export"):
        open_arviz(tmp_path / "nothing.nc")


# -- where LOO is defined ------------------------------------------------------------------------------------------


def refused(case, **options):
    with pytest.raises(NotDefined) as error:
        loo(case.posterior.to_arviz(case.x, case.y, 5, **options))
    assert str(error.value).startswith("loo is not defined here: ")
    return str(error.value)


def test_loo_is_not_defined_for_a_tempered_posterior(make_classifier):
    assert "tempered (eta = 0.1)" in refused(make_classifier(eta=0.1), split="train")
    assert "cold (temperature = 0.5)" in refused(make_classifier(temperature=0.5), split="train")


@pytest.mark.parametrize("split", ["test", "validation", "other"])
def test_loo_is_not_defined_for_held_out_points(classes, split):
    assert "were not trained on" in refused(classes, split=split)


def test_loo_needs_to_know_the_split(classes):
    assert "pass split='train'" in refused(classes)


@pytest.mark.parametrize(("kind", "words"), [("map", "one point"), ("ensemble", "a few points")])
def test_loo_is_not_defined_for_points_and_ensembles(classes, kind, words):
    case = type(classes)(refit(classes, kind), classes.x, classes.y)
    assert words in refused(case, split="train")


def test_an_export_of_somebody_else_is_refused():
    a, likelihood = {"a": np.zeros((1, 4))}, {"y": np.zeros((1, 4, 3))}
    groups = {"posterior": a, "log_likelihood": likelihood}
    idata = az.from_dict(groups) if is_tree() else az.from_dict(**groups)
    with pytest.raises(NotDefined, match="does not state split"):
        loo(idata)
