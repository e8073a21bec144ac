"""The contract of a guide: what every guide of the library answers, and what is assumed of any other."""

import importlib

import pyro
import pyro.distributions as dist
import pytest
import torch
from programs import CLASSES, FEATURES, ROWS, classes
from pyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoNormal
from torch import nn

from pyro_bnn.analysis.arviz.export import posterior_kind
from pyro_bnn.analysis.scores.prior_check import PriorGuide
from pyro_bnn.analysis.scores.signal_to_noise import PrunedGuide, weight_summary
from pyro_bnn.guides import (
    AutoDropout,
    AutoFullRankNormal,
    AutoLowRankNormal,
    AutoMeanFieldNormal,
    AutoPoint,
    Ensemble,
    StoredDraws,
)
from pyro_bnn.guides.base import ForeignGuide, Guide, contract_of
from pyro_bnn.guides.flat import FlatGuide
from pyro_bnn.inference.predictive import predictive_draws
from pyro_bnn.inference.samplers.sgld import Snapshots
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim.names import parameter_kind
from pyro_bnn.posterior import Posterior


def network():
    net = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    return BNN(net, priors.Normal(1.0), likelihoods.Categorical(), num_data=ROWS)


def program(x=None, y=None):
    a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("k", 3):
        w = pyro.sample("w", dist.Gamma(2.0, 2.0))
    c = pyro.sample("c", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("data", 4):
        return pyro.sample("obs", dist.Normal(a.sum() + (w * c).sum(), s), obs=y)


def all_guides(model):
    return {
        "mean_field": AutoMeanFieldNormal(model),
        "grouped": AutoMeanFieldNormal(model, groups="site"),
        "low_rank": AutoLowRankNormal(model, rank=2),
        "full_rank": AutoFullRankNormal(model),
        "point": AutoPoint(model),
        "dropout": AutoDropout(model, sites="*0.weight"),
        "draws": StoredDraws(model, num_draws=3),
        "ensemble": Ensemble(model, [AutoPoint(model), AutoPoint(model)]),
    }


def test_every_guide_of_the_library_keeps_the_contract():
    model = network()
    for name, guide in all_guides(model).items():
        assert isinstance(guide, Guide)
        assert contract_of(guide) is guide
        assert guide.is_built
        assert guide.spec()["name"] == type(guide).__name__
        assert isinstance(guide.upgraded(guide.state_dict()), dict)
        guide.restart()
        assert len(guide.decks()) == (name in ("draws", "ensemble"))
        assert guide.moves_model() is False
        assert (guide.by_site() is not None) == (name == "draws")
        assert guide.has_moments == (name != "ensemble")
        assert guide.takes_moments == (name in ("mean_field", "grouped"))
        assert guide.has_median == (name not in ("draws", "ensemble"))
        if guide.has_median:
            assert list(guide.median()) == guide.site_names()
        else:
            with pytest.raises(NotImplementedError, match=r"has no median: predict by its draws"):
                guide.median()
    for guide in (PriorGuide(model), PrunedGuide(AutoPoint(model), {})):
        assert isinstance(guide, Guide)
        assert guide.spec() is None


def test_roles_are_what_the_optimizers_read_off_the_names():
    for name, guide in all_guides(network()).items():
        if name == "ensemble":
            continue
        for path, parameter in guide.named_parameters():
            if parameter.requires_grad:
                assert guide.role(path) == parameter_kind(parameter.pyro_bnn_name)
        assert guide.trains_scales == any(guide.role(path) == "scale" for path, _ in guide.named_parameters())
    assert contract_of(AutoNormal(program)).trains_scales


def test_a_guide_that_leaves_something_out_cannot_be_made():
    class Half(FlatGuide):
        def forward(self, *args, **kwargs):
            return {}

    with pytest.raises(TypeError, match="abstract"):
        Half(network())


@pytest.mark.parametrize("groups", [None, "site", {"last": "net.2.*"}, {"b": "*.bias", "w": "*.weight"}])
def test_groups_lie_one_after_the_other_in_the_flat_vector(groups):
    model = network()
    guide = AutoMeanFieldNormal(model, groups=groups)
    assert isinstance(guide, FlatGuide)
    mean, sd = guide.marginals()
    assert mean.shape == sd.shape == (model_size(guide),)
    covered = torch.zeros(len(mean), dtype=torch.long)
    for name in guide.site_names():
        cut, view = guide.slice_of(name), guide.site(name)
        covered[cut] += 1
        assert torch.equal(mean[cut].reshape(view.loc.shape), view.loc)
        assert torch.equal(sd[cut].reshape(view.scale.shape), view.scale)
    assert bool((covered == 1).all())
    u = torch.randn(2, len(mean))
    assert torch.equal(guide.flatten(guide.values(u)), u)
    torch.testing.assert_close(guide.flatten(guide.median()), mean)


def model_size(guide):
    return sum(guide.site(name).loc.numel() for name in guide.site_names())


@pytest.mark.parametrize("groups", [None, "site"])
def test_constrained_sites_and_plates_lie_there_as_well(groups):
    guide = AutoMeanFieldNormal(program, groups=groups)
    assert not guide.is_built
    guide()
    assert guide.is_built
    assert guide.site_names() == ["a", "s", "w", "c"]
    u = torch.randn(5, 2 + 1 + 3 + 2)  # three numbers that add up to one are two free ones
    torch.testing.assert_close(guide.flatten(guide.values(u)), u)


@pytest.mark.parametrize("name", ["mean_field", "low_rank", "full_rank", "point", "dropout"])
def test_a_median_does_not_move_with_the_training(name):
    guide = all_guides(network())[name]
    point = guide.median()
    before = {site: value.clone() for site, value in point.items()}
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(1)
    for site, value in point.items():
        assert torch.equal(value, before[site])


def test_a_function_is_asked_through_what_is_assumed_of_it():
    def guide(x=None, y=None):
        pyro.sample("a", dist.Normal(0.0, 1.0))

    promised = contract_of(guide)
    assert isinstance(promised, ForeignGuide)
    assert promised.kind is None
    assert promised.is_built
    assert promised.trains_scales
    assert not (promised.has_moments)
    assert not (promised.takes_moments)
    assert not (promised.has_median)
    assert promised.site_names() == []
    assert list(promised.decks()) == []
    assert promised.by_site() is None
    assert promised.spec() is None
    assert promised.moves_model() is False
    assert promised.fitted is None
    promised.restart()
    for ask in (lambda: promised.site("a"), promised.median, lambda: promised.quantiles([0.5])):
        with pytest.raises(NotImplementedError):
            ask()


def test_guides_of_pyro():
    x = torch.zeros(4)
    guide = AutoNormal(program)
    assert not contract_of(guide).is_built
    guide(x, torch.zeros(4))
    assert contract_of(guide).is_built
    assert contract_of(guide).has_median
    assert set(contract_of(guide).median()) == {"a", "s", "w", "c"}
    assert contract_of(AutoDelta(program)).kind == "map"

    class Point(AutoDelta):
        """A subclass is a point as well."""

    assert posterior_kind(Posterior(program, Point(program))) == "map"
    assert posterior_kind(Posterior(program, AutoLowRankMultivariateNormal(program))) == "svi"


class Rounds(nn.Module):
    """A guide of a user's own that has rounds, moments and nothing else of the contract."""

    def __init__(self, model):
        super().__init__()
        self.model, self.begun = [model], 0

    def restart(self):
        self.begun += 1

    def site_names(self):
        return [f"net.{name}" for name in self.model[0].random_names]

    def site(self, name):
        return torch.zeros(3), torch.ones(3)

    def forward(self, x, y=None):
        self.model[0].sample_weights()


def test_a_user_s_guide_begins_a_round_with_every_prediction():
    model = network()
    guide = Rounds(model)
    x = classes(ROWS)[0]
    list(predictive_draws(model, guide, x, 3))
    assert guide.begun == 1
    pruned = PrunedGuide(guide, {})
    list(predictive_draws(model, pruned, x, 3))
    assert guide.begun == 2
    assert contract_of(guide).has_moments
    assert not contract_of(guide).takes_moments
    summary = weight_summary(Posterior(model, guide), x)
    assert set(summary) == set(guide.site_names())
    assert torch.equal(summary["net.0.bias"].sd, torch.ones(3))


def test_a_guide_may_derive_from_the_contract():
    class Own(Guide):
        kind = "own"
        decks_asked = 0

        def __init__(self, model):
            self.model = model

        def __call__(self, x, y=None):
            self.model.sample_weights()

        def spec(self):
            return None

        def decks(self):
            type(self).decks_asked += 1
            return []

    model = network()
    guide = Own(model)
    posterior = Posterior(model, guide)
    assert posterior_kind(posterior) == "own"
    assert posterior.predict(classes(ROWS)[0], num_samples=2).shape[0] == ROWS
    assert Own.decks_asked


def test_draws_are_kept_of_a_point_that_has_not_seen_its_model():
    Snapshots(AutoPoint(program))  # built by the first step
    for other in (AutoMeanFieldNormal(program), AutoLowRankNormal(program), AutoNormal(program)):
        with pytest.raises(TypeError, match="not a flat point guide"):
            Snapshots(other)


def test_a_flat_guide_of_a_user_s_own_has_the_neutral_answers():
    class Cube(FlatGuide):
        """Uniform over a cube of unconstrained space."""

        def _register(self, loc, sites):
            self._add_parameter("middle", loc)

        def forward(self, *args, **kwargs):
            self.build(*args, **kwargs)
            return self._sample_at(self.middle + torch.rand_like(self.middle) - 0.5, *args, **kwargs)

        def marginals(self):
            return self.middle, torch.full_like(self.middle, 12**-0.5)

        def spec(self):
            return {"name": "Cube"}

    guide = Cube(network())
    guide()
    assert guide.trains_scales
    assert not guide.has_median
    with pytest.raises(NotImplementedError, match="Cube has no median"):
        guide.median()
    assert guide.site("net.0.bias").scale[0] == torch.tensor(12.0) ** -0.5


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("pyro_bnn.guides.mean_field", "Groups", "SiteGroups"),
        ("pyro_bnn.inference.svi", "Step", "MinibatchStep"),
        ("pyro_bnn.methods.points", "Laplace", "LaplaceApproximation"),
        ("pyro_bnn.methods.ensembles", "Snapshots", "SnapshotEnsemble"),
    ],
)
def test_old_names_say_the_new_one(module, old, new):
    home = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
        assert getattr(home, old) is getattr(home, new)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = home.Nothing
