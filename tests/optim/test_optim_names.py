import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoDiagonalNormal, AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal

from pyro_bnn.optim import parameter_kind, site_path
from pyro_bnn.optim.names import Names, matches

NAMES = [
    # name, kind, site
    ("AutoMeanFieldNormal1.loc", "loc", ""),
    ("AutoMeanFieldNormal12.rho", "scale", ""),
    ("AutoMeanFieldNormal1.net.0.weight.loc", "loc", "net.0.weight"),
    ("AutoMeanFieldNormal1.net.0.weight.rho", "scale", "net.0.weight"),
    ("AutoMeanFieldNormal1.conv.rho", "scale", "conv"),
    ("AutoMeanFieldNormal1.rho_unconstrained", "scale", ""),
    ("AutoLowRankNormal1.cov_factor", "scale", ""),
    ("AutoNormal.locs.net.0.weight", "loc", "net.0.weight"),
    ("AutoNormal.scales.net.0.weight", "scale", "net.0.weight"),
    ("scales.net.0.weight_unconstrained", "scale", "net.0.weight"),
    ("AutoGuideList.0.scales.net.loc", "scale", "net.loc"),
    ("AutoDiagonalNormal.loc", "loc", ""),
    ("AutoDiagonalNormal.scale", "scale", ""),
    ("AutoMultivariateNormal.scale_tril", "scale", ""),
    ("AutoDelta.net.0.weight", "other", "net.0.weight"),
    ("BNN1.net.norm.weight", "other", "net.norm.weight"),
    ("BNN1.noise", "other", "noise"),
    ("BNN1.likelihood.scale", "other", "likelihood.scale"),
    ("w_loc", "loc", ""),
    ("w_mu", "loc", ""),
    ("w_scale", "scale", ""),
    ("w_rho", "scale", ""),
    ("w_sigma", "scale", ""),
    ("w_log_sigma", "scale", ""),
    ("guide$$$layer.loc", "loc", "layer"),
    ("temperature", "other", ""),
    ("allocation", "other", ""),
]


@pytest.mark.parametrize(("name", "kind", "site"), NAMES)
def test_what_a_name_says(name, kind, site):
    assert parameter_kind(name) == kind
    assert site_path(name) == site


@pytest.mark.parametrize(
    ("guide_class", "loc", "scale"),
    [
        (AutoNormal, 2, 2),
        (AutoDiagonalNormal, 1, 1),
        (AutoMultivariateNormal, 1, 2),
        (AutoLowRankMultivariateNormal, 1, 2),
    ],
)
def test_the_parameters_of_pyros_guides(guide_class, loc, scale):
    def model():
        pyro.sample("net.weight", pyro.distributions.Normal(0.0, 1.0))
        pyro.sample("net.bias", pyro.distributions.Normal(0.0, 1.0))

    guide_class(model)()
    kinds = [parameter_kind(name) for name in pyro.get_param_store()]
    assert sorted(kinds) == ["loc"] * loc + ["scale"] * scale


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("net.fc*", "Guide1.net.fc1.weight.rho", True),
        ("*.net.fc*", "Guide1.net.fc1.weight.rho", True),
        ("*.fc1.weight.loc", "Guide1.net.fc1.weight.rho", False),
        ("net.conv*", "Guide1.net.fc1.weight.rho", False),
        ("net.fc*", "Guide1.loc", False),
        ("net.fc*", "AutoNormal.locs.net.fc1.weight", True),
    ],
)
def test_patterns_see_the_full_name_and_the_site(pattern, name, expected):
    assert matches(pattern, name) is expected


def test_where_names_come_from():
    names = Names()
    nobody, stored, marked, registered = (torch.zeros(1, requires_grad=True) for _ in range(4))
    pyro.param("stored", lambda: torch.zeros(1))
    stored = pyro.param("stored").unconstrained()
    marked.pyro_bnn_name = "marked"
    stored_name = names.of(stored)
    registered.pyro_bnn_name = "hidden"
    names.register({"registered": registered})
    assert (names.of(nobody), stored_name, names.of(marked), names.of(registered)) == (
        None,
        "stored",
        "marked",
        "registered",
    )
    with pytest.raises(TypeError, match="mapping of str to Tensor"):
        names.register({3: nobody})
