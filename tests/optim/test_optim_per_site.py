"""Groups of parameters: who goes where, freezing, alternation, and what is refused before anything moves."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from torch import nn

from pyro_bnn.optim import (
    OPTIMIZERS,
    SGD,
    AdaBound,
    Adam,
    Constant,
    Cosine,
    PerSite,
    Plateau,
    TwinPlateau,
)

SITES = ("G1.conv.loc", "G1.conv.rho", "G1.fc.loc", "G1.fc.rho", "M1.norm.weight")
FLAT = ("G1.loc", "G1.rho")


def make(names=SITES):
    return {name: torch.ones(2, requires_grad=True) for name in names}


def sgd(lr=1.0, **kwargs):
    return SGD({"lr": lr}, **kwargs)


def step(optim, params):
    for p in params.values():
        p.grad = torch.ones_like(p)
    optim(set(params.values()))


def moved(params):
    """Return by how much each parameter has gone down: the rate it was trained with, summed over steps."""
    return {name: round(1 - p[0].item(), 6) for name, p in params.items()}


def persite(params, *args, **kwargs):
    optim = PerSite(*args, **kwargs)
    optim.name_parameters(params)
    return optim


def test_loc_scale_and_the_rest_have_their_own_optimizers():
    params = make()
    step(persite(params, loc=sgd(0.1), scale=sgd(0.01), other=sgd(0.5)), params)
    assert moved(params) == dict(zip(SITES, (0.1, 0.01, 0.1, 0.01, 0.5), strict=True))


def test_the_rest_goes_with_loc_by_default():
    params = make()
    optim = persite(params, loc=sgd(0.1), scale=sgd(0.01))
    step(optim, params)
    assert moved(params)["M1.norm.weight"] == 0.1
    assert len(optim.groups["loc"].torch_optimizer.param_groups) == 1


def test_patterns_go_first():
    params = make()
    optim = persite(params, loc=sgd(0.1), scale=sgd(0.01), patterns={"fc": sgd(0.3), "*.conv.rho": sgd(0.7)})
    with pytest.raises(ValueError, match="group 'scale' matches no parameter; leave scale= out"):
        step(optim, params)
    optim = persite(params, loc=sgd(0.1), patterns={"fc": sgd(0.3), "*.conv.rho": sgd(0.7)})
    step(optim, params)
    assert moved(params) == dict(zip(SITES, (0.1, 0.7, 0.3, 0.3, 0.1), strict=True))
    assert optim.learning_rates() == {"loc": 0.1, "fc": 0.3, "*.conv.rho": 0.7}


def test_each_group_has_its_own_schedule():
    params = make(FLAT)
    optim = persite(params, loc=sgd(1.0, schedule=Cosine()), scale=sgd(1.0))
    optim.prepare(epochs=1, steps_per_epoch=4)
    for _ in range(2):
        step(optim, params)
    assert optim.learning_rates() == {"loc": pytest.approx(0.5), "scale": 1.0}


def test_a_common_schedule_goes_to_the_groups_without_one():
    optim = PerSite(loc=sgd(schedule=Plateau()), scale=sgd(), schedule=Cosine())
    assert (type(optim.groups["loc"].schedule), type(optim.groups["scale"].schedule)) == (Plateau, Cosine)


def test_groups_clip_their_own_norm():
    params = make(FLAT)
    optim = persite(params, loc=SGD({"lr": 1.0}, {"clip_norm": 2**0.5 / 4}), scale=sgd(1.0))
    step(optim, params)
    assert moved(params) == {"G1.loc": 0.25, "G1.rho": 1.0}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_one", "error", "match"),
    [
        (lambda: PerSite(), ValueError, "no group is given"),
        (lambda: PerSite(loc={"lr": 1e-3}), TypeError, "loc is a dict"),
        (lambda: PerSite(loc=pyro.optim.Adam({"lr": 1e-3})), TypeError, "pyro_bnn.optim"),
        (lambda: PerSite(loc=sgd(), patterns={"scale": sgd()}), ValueError, "pass scale=..."),
        (lambda: PerSite(loc=sgd(), frozen=("sigma",)), ValueError, "no group is called 'sigma'; there are 'loc'"),
        (lambda: PerSite(loc=sgd(), scale=sgd()).freeze("other"), ValueError, "no group is called 'other'"),
        (lambda: PerSite(loc=sgd(), scale=sgd()).unfreeze("fc*"), ValueError, "no group is called"),
        (lambda: PerSite(loc=sgd(), alternate=2), ValueError, "both loc= and scale="),
        (lambda: PerSite(loc=sgd(), scale=sgd(), alternate=0), ValueError, "alternate=0"),
        (lambda: PerSite(loc=sgd(), schedule=TwinPlateau()), ValueError, "needs scale="),
        (lambda: PerSite(loc=sgd(schedule=Cosine()), scale=sgd(), schedule=TwinPlateau()), ValueError, "needs loc="),
        (lambda: PerSite(loc=sgd(), schedule="cosine"), TypeError, "schedule='cosine'"),
        (lambda: PerSite(loc=sgd(), scale=sgd()).set_learning_rate(-1.0), ValueError, "lr=-1.0"),
        (lambda: PerSite(loc=sgd(), scale=sgd()).set_learning_rate(0.1, "mu"), ValueError, "no group is called 'mu'"),
        (lambda: PerSite(loc=sgd()).prepare(0, 10), ValueError, "epochs=0"),
    ],
)
def test_bad_groups_are_refused_at_construction(make_one, error, match):
    with pytest.raises(error, match=match):
        make_one()


def test_one_optimizer_object_for_two_groups_is_refused():
    one = sgd()
    with pytest.raises(ValueError, match="'loc' and 'scale' are the same object"):
        PerSite(loc=one, scale=one)


@pytest.mark.parametrize(
    ("names", "kwargs", "match"),
    [
        (SITES, {"loc": 1, "scale": 1, "patterns": {"f*": 1, "*.fc.*": 1}}, "'G1.fc.loc' is matched by 'f.' and '..fc"),
        (SITES, {"loc": 1, "scale": 1, "patterns": {"lstm*": 1}}, "'lstm.' matches no parameter; correct the pattern"),
        (FLAT, {"loc": 1, "scale": 1, "patterns": {"fc*": 1}}, "one flat vector .'G1.loc'.; build .* groups='site'"),
        (FLAT, {"loc": 1, "scale": 1, "other": 1}, "'other' matches no parameter; leave other= out"),
        (("G1.loc",), {"loc": 1, "scale": 1}, "'scale' matches no parameter"),
        (FLAT, {"loc": 1}, "no group takes parameter 'G1.rho', which is 'scale'; pass scale="),
        (SITES, {"scale": 1, "patterns": {"*.loc": 1}}, "no group takes parameter 'M1.norm.weight'.* pass other="),
    ],
)
def test_groups_that_do_not_fit_the_parameters_are_refused_before_anything_moves(names, kwargs, match):
    params = make(names)
    kwargs = {
        key: {pattern: sgd() for pattern in value} if key == "patterns" else sgd() for key, value in kwargs.items()
    }
    optim = persite(params, **kwargs)
    for _ in range(2):  # the second attempt is refused like the first
        with pytest.raises(ValueError, match=match):
            step(optim, params)
    assert set(moved(params).values()) == {0.0}


def test_bad_arguments_of_the_last_group_leave_the_first_unmoved():
    params = make(FLAT)
    optim = persite(params, loc=sgd(), scale=Adam(lambda name: {"lr": -1.0}))
    with pytest.raises(ValueError, match="lr=-1"):
        step(optim, params)
    assert moved(params) == {"G1.loc": 0.0, "G1.rho": 0.0}


def test_names_are_needed():
    p = torch.ones(2, requires_grad=True)
    p.grad = torch.ones(2)
    with pytest.raises(ValueError, match="name_parameters"):
        PerSite(loc=sgd())({p})


def test_names_registered_on_a_member_count():
    params = make(FLAT)
    loc = sgd(0.1)
    loc.name_parameters(params)
    step(PerSite(loc=loc, scale=sgd(0.2)), params)
    assert moved(params) == {"G1.loc": 0.1, "G1.rho": 0.2}


def test_no_parameters_is_no_step():
    PerSite(loc=sgd())(set())


# -- freezing and alternation ------------------------------------------------------------------------------------------


def test_a_frozen_group_does_not_move_and_keeps_its_state():
    params = make(FLAT)
    optim = persite(params, loc=SGD({"lr": 0.1, "momentum": 0.5}), scale=sgd(0.1), frozen=("scale",))
    step(optim, params)
    assert moved(params) == {"G1.loc": 0.1, "G1.rho": 0.0}
    assert optim.learning_rates() == {"loc": 0.1, "scale": 0.0}
    optim.unfreeze("scale")
    optim.freeze("loc")
    step(optim, params)
    assert moved(params) == {"G1.loc": 0.1, "G1.rho": 0.1}
    optim.unfreeze("loc")
    step(optim, params)  # the momentum buffer is 0.5 * 1 + 1, as if the frozen step had not been
    assert moved(params) == {"G1.loc": 0.25, "G1.rho": 0.2}


def test_a_frozen_groups_schedule_goes_on():
    params = make(FLAT)
    optim = persite(params, loc=sgd(), scale=sgd(1.0, schedule=Cosine()), frozen="scale")
    optim.prepare(1, 4)
    for _ in range(2):
        step(optim, params)
    optim.unfreeze("scale")
    assert optim.learning_rates()["scale"] == pytest.approx(0.5)


def test_alternation_trains_loc_then_scale():
    params = make()
    optim = persite(params, loc=sgd(1.0), scale=sgd(1.0), other=sgd(1.0), alternate=2)
    seen = []
    for _ in range(8):
        before = moved(params)
        step(optim, params)
        seen.append([after - before[name] > 0 for name, after in moved(params).items()])
        optim.end_epoch({})
    loc, scale = [True, False, True, False, True], [False, True, False, True, True]
    assert seen == [loc, loc, scale, scale] * 2
    optim.prepare(4, 1)
    assert optim.resting() == {"scale"}


def test_twin_plateau_nll_steers_loc_and_kl_steers_scale():
    params = make(FLAT)
    optim = persite(params, loc=sgd(1.0), scale=sgd(1.0), schedule=TwinPlateau())
    optim.prepare(10, 1)
    rates = []
    #         nll falls throughout, then stalls; the KL stalls from the start
    for nll, kl in ((5, 3), (4, 3), (3, 3), (3, 2), (3, 1), (3, 0.5)):
        step(optim, params)
        optim.end_epoch({"nll": nll, "kl": kl})
        rates.append((optim.learning_rates()["loc"], optim.learning_rates()["scale"]))
    assert rates == [
        (1.0, 1.0),
        (1.0, 1.0),
        (1.0, pytest.approx(0.1)),
        (1.0, pytest.approx(0.1)),
        (pytest.approx(0.1), pytest.approx(0.1)),
        (pytest.approx(0.1), pytest.approx(0.1)),
    ]


def test_twin_plateau_prefers_the_validation_nll():
    params = make(FLAT)
    optim = persite(params, loc=sgd(1.0), scale=sgd(1.0), schedule=TwinPlateau(patience=0))
    for val_nll in (1.0, 2.0):
        step(optim, params)
        optim.end_epoch({"nll": 3 - val_nll, "val_nll": val_nll, "kl": 3 - val_nll})
    assert optim.learning_rates() == {"loc": pytest.approx(0.1), "scale": 1.0}


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_saved_state_continues_to_the_same_bits(name, tmp_path):
    numbers = {"lr": 1e-2, **({"batch_size": 4} if name.startswith("adabayes") else {})}

    def fresh():
        optim = PerSite(
            loc=OPTIMIZERS[name](numbers, schedule=Cosine(final=0.1)),
            scale=OPTIMIZERS[name](numbers, schedule=Plateau("kl", patience=0)),
            other=Adam({"lr": 1e-3}),
            patterns={"fc": AdaBound({"lr": 1e-3, "final_lr": 0.1}, {"clip_norm": 1.0})},
            alternate=1,
        )
        optim.prepare(6, 3)
        return optim

    def go(optim, params, epochs):
        for epoch in epochs:
            for t in range(3):
                generator = torch.Generator().manual_seed(10 * epoch + t)
                for key in sorted(params):
                    params[key].grad = params[key].detach() + torch.randn(2, generator=generator)
                optim(set(params.values()))
            if epoch == 1:
                optim.freeze("other")
            optim.end_epoch({"nll": 1.0, "kl": [3.0, 2.0, 2.5, 2.4, 2.6, 2.0][epoch]})

    params, optim = make(), fresh()
    optim.name_parameters(params)
    go(optim, params, range(3))
    optim.save(tmp_path / "optim.pt")
    again = {key: p.detach().clone().requires_grad_() for key, p in params.items()}
    go(optim, params, range(3, 6))
    resumed = fresh()
    resumed.name_parameters(again)
    resumed.load(tmp_path / "optim.pt")
    assert resumed.frozen == {"other"}
    go(resumed, again, range(3, 6))
    for key in params:
        assert torch.equal(params[key], again[key])
    assert resumed.learning_rates() == optim.learning_rates()


def test_the_turn_is_kept_when_prepare_comes_after_loading():
    params = make(FLAT)
    optim = persite(params, loc=sgd(), scale=sgd(), alternate=1)
    step(optim, params)
    optim.end_epoch({})
    resumed = persite(params, loc=sgd(), scale=sgd(), alternate=1)
    resumed.set_state(optim.get_state())
    resumed.prepare(4, 1)
    assert resumed.resting() == {"loc"}


def test_state_of_other_groups_is_refused():
    state = PerSite(loc=sgd(), scale=sgd()).get_state()
    with pytest.raises(ValueError, match="has the groups 'loc', 'scale', this optimizer 'loc'"):
        PerSite(loc=sgd()).set_state(state)
    with pytest.raises(ValueError, match="of SGD, not of Adam"):
        PerSite(loc=sgd(), scale=Adam({"lr": 1e-3})).set_state(state)
    with pytest.raises(ValueError, match="of PerSite, not of SGD"):
        sgd().set_state(state)


def test_setting_the_rate_keeps_the_groups_in_proportion():
    optim = PerSite(loc=sgd(0.1), scale=sgd(0.02))
    optim.set_learning_rate(1.0)
    assert optim.learning_rates() == {"loc": 1.0, "scale": pytest.approx(0.2)}
    optim.set_learning_rate(0.5, "scale")
    assert optim.learning_rates() == {"loc": 1.0, "scale": 0.5}


def test_per_parameter_rates_are_reported_under_group_and_name():
    params = make(FLAT)
    optim = persite(params, loc=SGD(lambda name: {"lr": 0.3}), scale=sgd(0.1))
    step(optim, params)
    assert optim.learning_rates() == {"loc: G1.loc": 0.3, "scale": 0.1}


# -- with a guide and stock SVI ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [False, True], ids=["param_store", "module_local_params"])
@pytest.mark.parametrize("groups", [None, "site"])
def test_the_mean_field_guide_under_stock_svi(local, groups):
    from pyro_bnn.guides import AutoMeanFieldNormal
    from pyro_bnn.models import BNN, likelihoods, priors

    with pyro.settings.context(module_local_params=local):
        net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        model = BNN(net, prior=priors.Normal(1.0), likelihood=likelihoods.LearnedGaussian(), num_data=20)
        guide = AutoMeanFieldNormal(model, groups=groups)
        x = torch.randn(20, 2)
        y = x.sum(-1, keepdim=True)
        patterns = None if groups is None else {"net.2*": SGD({"lr": 1e-4})}
        optim = PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 1e-2}), patterns=patterns, schedule=Constant())
        svi = SVI(model, guide, optim, TraceMeanField_ELBO())
        losses = [svi.step(x, y) for _ in range(30)]
        assert sum(losses[-10:]) < sum(losses[:10])
        counts = {
            name: sum(len(g["params"]) for g in o.torch_optimizer.param_groups) for name, o in optim.groups.items()
        }
        # the noise level goes with loc
        assert counts == ({"loc": 2, "scale": 1} if groups is None else {"loc": 3, "scale": 2, "net.2*": 4})


def test_a_hand_written_program():
    def model():
        pyro.sample("w", dist.Normal(3.0, 1.0))

    def guide():
        loc = pyro.param("w_loc", torch.tensor(0.0))
        sigma = pyro.param("w_sigma", torch.tensor(0.5), constraint=dist.constraints.positive)
        pyro.sample("w", dist.Normal(loc, sigma))

    svi = SVI(model, guide, PerSite(loc=Adam({"lr": 5e-2}), scale=Adam({"lr": 1e-2})), TraceMeanField_ELBO())
    for _ in range(600):
        svi.step()
    assert pyro.param("w_loc").item() == pytest.approx(3.0, abs=1e-2)
    assert pyro.param("w_sigma").item() == pytest.approx(1.0, abs=1e-2)
