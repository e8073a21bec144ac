import pyro
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pyro_bnn.guides import AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint
from pyro_bnn.inference import EMA, HWA, SWA, Callback, RunningMoments, fit, refresh_batch_norm
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam
from tests.reference.hwa_moments import dense_low_rank, mixture_moments, printed_eq_4, two_pass

MODES = ["total", "within", "trajectory"]


def trajectory(n=17, p=11, seed=0):
    generator = torch.Generator().manual_seed(seed)
    start = 100 * torch.randn(p, dtype=torch.float64, generator=generator)  # far from 0: cancellation would show
    mus = start + torch.randn(n, p, dtype=torch.float64, generator=generator).cumsum(0)
    return mus, torch.rand(n, p, dtype=torch.float64, generator=generator) + 0.05


def run(moments, mus, sigmas):
    for mu, sigma in zip(mus, sigmas, strict=True):
        moments.update(mu, sigma)
    return moments


# --------------------------------------------------------------------------------------------------- moments


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(5))
def test_running_moments_are_the_two_pass_moments(mode, seed):
    mus, sigmas = trajectory(seed=seed)
    for n in (1, 2, len(mus)):
        moments = run(RunningMoments(mode), mus[:n], sigmas[:n])
        exact = two_pass(mus[:n], sigmas[:n])
        torch.testing.assert_close(moments.mean, exact["mean"], rtol=1e-10, atol=0)
        torch.testing.assert_close(moments.variance, exact[mode], rtol=1e-10, atol=1e-300)
        torch.testing.assert_close(moments.within, exact["within"], rtol=1e-10, atol=0)
        assert moments.count == n


def test_total_is_the_variance_of_the_mixture_of_snapshots():
    mus, sigmas = trajectory(n=6)
    mus = mus - mus.mean(0)
    moments = run(RunningMoments("total"), mus, sigmas)
    n = 200_000
    mean, variance = mixture_moments(mus, sigmas, n)
    # 22 numbers, 5 sd each; the variance of a sample variance is below 6 v^2 / n here
    assert bool(((mean - moments.mean).abs() < 5 * (moments.variance / n).sqrt()).all())
    assert bool(((variance - moments.variance).abs() < 5 * moments.variance * (6 / n) ** 0.5).all())


def test_constant_snapshots_have_no_variance_between_them_even_in_float32():
    moments = RunningMoments("trajectory")
    for _ in range(100):
        moments.update(torch.full((3,), 1e4), torch.full((3,), 1e-3))
    assert torch.equal(moments.between, torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(moments.within, torch.full((3,), 1e-6, dtype=torch.float64), rtol=1e-6, atol=0)


def test_literal_goes_negative_as_printed():
    for mus, expected in (([10.0] * 4, [0.0, -50.0, -100.0, -150.0]), ([1.0, 3.0], [0.0, 0.5])):
        moments, found = RunningMoments("literal"), []
        for mu in mus:
            moments.update(torch.tensor([mu]), torch.tensor([0.3]))
            found.append(moments.variance.item())
        assert found == expected == printed_eq_4(mus)
    noisy, _ = trajectory(n=30, p=1)
    moments = RunningMoments("literal")
    for mu in noisy:
        moments.update(mu)
    assert moments.variance.item() == pytest.approx(printed_eq_4(noisy[:, 0].tolist())[-1], rel=1e-12)
    assert moments.variance.item() < 0


@pytest.mark.parametrize("rank", [2, 5, 40])
def test_low_rank_covariance_is_the_dense_one(rank):
    mus, sigmas = trajectory()
    mean, diag, factor = run(RunningMoments(rank=rank), mus, sigmas).low_rank()
    torch.testing.assert_close(mean, mus.mean(0), rtol=1e-12, atol=0)
    # deviations are kept in float32
    torch.testing.assert_close(
        torch.diag(diag) + factor @ factor.T, dense_low_rank(mus, sigmas, rank), rtol=1e-5, atol=1e-5
    )
    assert factor.shape == (11, min(rank, len(mus)))


def test_literal_low_rank_halves_the_whole_diagonal():
    mus, sigmas = trajectory()
    moments = run(RunningMoments("total", rank=4), mus, sigmas)
    _, ours, factor = moments.low_rank()
    _, literal, same = moments.low_rank(literal=True)
    torch.testing.assert_close(literal, moments.variance / 2)
    torch.testing.assert_close(ours - literal, moments.within / 2)
    assert torch.equal(factor, same)


def test_moments_resume():
    mus, sigmas = trajectory()
    whole = run(RunningMoments(rank=3), mus, sigmas)
    half = run(RunningMoments(rank=3), mus[:8], sigmas[:8])
    resumed = RunningMoments(rank=3)
    resumed.load_state_dict(half.state_dict())
    run(resumed, mus[8:], sigmas[8:])
    for a, b in zip(whole.low_rank(), resumed.low_rank(), strict=True):
        assert torch.equal(a, b)


def test_moments_refuse():
    with pytest.raises(ValueError, match="variance='all'"):
        RunningMoments("all")
    with pytest.raises(ValueError, match="rank=1"):
        RunningMoments(rank=1)
    with pytest.raises(RuntimeError, match="no snapshot"):
        _ = RunningMoments().mean
    moments = RunningMoments(rank=3)
    moments.update(torch.zeros(3))
    with pytest.raises(RuntimeError, match="1 snapshots are kept"):
        moments.low_rank()
    with pytest.raises(ValueError, match="the trajectory"):
        moments.update(torch.zeros(4))


# --------------------------------------------------------------------------------------------- with a guide


def make(groups=None, net=None, **options):
    net = net or MLP(3, 2, hidden=[4])
    model = BNN(net, priors.Normal(), likelihoods.Categorical(), 40)
    guide = AutoMeanFieldNormal(model, groups=groups, init_scale=0.1, **options)
    return model, guide


def rows(n=40):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, generator=generator), torch.randint(0, 2, (n,), generator=generator)


@pytest.mark.parametrize("groups", [None, "site"])
def test_hwa_averages_the_snapshots_of_a_fit(groups):
    model, guide = make(groups)
    seen = []

    class Watch(Callback):
        def step(self, state):
            views = [guide.site(name) for name in guide.site_names()]
            seen.append(
                (torch.cat([v.loc.reshape(-1) for v in views]), torch.cat([v.scale.reshape(-1) for v in views]))
            )

    hwa = HWA(guide, start=6, cycle=4)
    fit(model, guide, Adam({"lr": 0.05}), rows(), epochs=5, batch_size=10, callbacks=[Watch(), hwa], seed=0)
    assert hwa.steps == 20 == len(seen)
    taken = [seen[k - 1] for k in (10, 14, 18)]
    assert hwa.moments.count == 3
    exact = two_pass(torch.stack([t[0] for t in taken]).double(), torch.stack([t[1] for t in taken]).double())
    before = {name: guide.site(name) for name in guide.site_names()}
    with hwa.averaged():
        views = [guide.site(name) for name in guide.site_names()]
        torch.testing.assert_close(torch.cat([v.loc.reshape(-1) for v in views]), exact["mean"].float())
        sd = torch.cat([v.scale.reshape(-1) for v in views])
        torch.testing.assert_close(sd, exact["total"].sqrt().float(), rtol=1e-4, atol=1e-6)
    for name, view in before.items():
        assert torch.equal(guide.site(name).loc, view.loc)
        assert torch.equal(guide.site(name).scale, view.scale)


class Boom(Exception):
    pass


@pytest.mark.parametrize("kind", [HWA, SWA, EMA])
def test_the_iterate_comes_back_even_after_an_exception(kind):
    model, guide = make(net=nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    average = kind(guide, cycle=3, model=model, data=rows())
    fit(model, guide, Adam({"lr": 0.05}), rows(), epochs=3, batch_size=10, callbacks=[average], seed=0)
    before = {**guide.state_dict(), **model.state_dict()}
    before = {name: tensor.clone() for name, tensor in before.items()}
    changed = {}

    def fail():
        changed.update({name: tensor.clone() for name, tensor in {**guide.state_dict(), **model.state_dict()}.items()})
        raise Boom

    with pytest.raises(Boom), average.averaged():
        fail()
    for name in ("loc_unconstrained", "net.1.running_mean", "deterministic.1.weight_unconstrained"):
        assert not torch.equal(changed[name], before[name])
    for name, tensor in {**guide.state_dict(), **model.state_dict()}.items():
        assert torch.equal(tensor, before[name]), name
    average.update()  # and training can go on


def test_one_snapshot_at_the_end_is_the_iterate():
    """The limit: n = 1 changes nothing."""
    model, guide = make()
    hwa = HWA(guide, start=0, cycle=4)
    fit(model, guide, Adam({"lr": 0.05}), rows(), epochs=1, batch_size=10, callbacks=[hwa], seed=0)
    before = [guide.site(name) for name in guide.site_names()]
    with hwa.averaged():
        for name, view in zip(guide.site_names(), before, strict=True):
            torch.testing.assert_close(guide.site(name).loc, view.loc, rtol=0, atol=0)
            torch.testing.assert_close(guide.site(name).scale, view.scale, rtol=1e-5, atol=0)


def test_a_capped_guide_says_so_when_the_average_is_wider():
    _, guide = make(max_scale=0.2)
    hwa = HWA(guide, cycle=1)
    hwa.update()
    with torch.no_grad():
        for name in guide.site_names():
            view = guide.site(name)
            guide.assign(name, view.loc + 1.0, view.scale)
    hwa.update()
    with pytest.raises(ValueError, match=r"max_scale=0\.2"), hwa.averaged():
        pass
    assert guide.site(guide.site_names()[0]).scale.max() < 0.2


def test_swa_and_ema_average_raw_parameters():
    model, guide = make()
    swa, ema = SWA(guide, start=2, cycle=2, model=model), EMA(guide, cycle=1, decay=0.8)
    raw = []

    class Watch(Callback):
        def step(self, state):
            raw.append(guide.get_parameter("rho_unconstrained").detach().clone())

    fit(model, guide, Adam({"lr": 0.05}), rows(), epochs=2, batch_size=10, callbacks=[Watch(), swa, ema], seed=0)
    expected = raw[0]
    for tensor in raw[1:]:
        expected = 0.8 * expected + 0.2 * tensor
    with swa.averaged():
        torch.testing.assert_close(
            guide.get_parameter("rho_unconstrained"), torch.stack([raw[3], raw[5], raw[7]]).mean(0)
        )
    with ema.averaged():
        torch.testing.assert_close(guide.get_parameter("rho_unconstrained"), expected)


def test_any_guide_takes_swa_and_only_mean_field_ones_hwa():
    model, _ = make()
    point = AutoPoint(model)
    SWA(point).update()
    with pytest.raises(TypeError, match="AutoPoint has no means and deviations"):
        HWA(point)
    with pytest.raises(ValueError, match="cycle=0"):
        SWA(point, cycle=0)
    with pytest.raises(ValueError, match="start=-1"):
        SWA(point, start=-1)
    with pytest.raises(ValueError, match=r"decay=1\.0"):
        EMA(point, decay=1.0)
    swa = SWA(point, start=100)
    swa.update()
    with pytest.raises(RuntimeError, match="no snapshot"), swa.averaged():
        pass


def test_the_average_is_not_trained_on():
    _, guide = make()
    hwa = HWA(guide)
    hwa.update()
    with hwa.averaged():
        with pytest.raises(RuntimeError, match="holds the average"):
            hwa.update()
        with pytest.raises(RuntimeError, match="inside averaged"), hwa.averaged():
            pass


def test_batch_norm_is_refreshed_with_the_weights_used_at_prediction():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model, guide = make(net=net)
    x, y = rows()
    guide.freeze("scale")
    for name in guide.site_names():
        view = guide.site(name)
        guide.assign(name, view.loc, torch.full_like(view.scale, 1e-8))
    state = torch.get_rng_state()
    refresh_batch_norm(model, guide, (x, y), batch_size=20)
    assert torch.equal(torch.get_rng_state(), state)
    loc = guide.median()
    hidden = F.linear(x, loc["net.0.weight"], loc["net.0.bias"])
    torch.testing.assert_close(model.template[1].running_mean, hidden.mean(0), rtol=1e-4, atol=1e-5)
    expected = torch.stack([h.var(0) for h in hidden.split(20)]).mean(0)
    torch.testing.assert_close(model.template[1].running_var, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="pass data="):
        HWA(guide, model=model)


def test_hwa_resumes_to_the_same_bits():
    def once(stop):
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        model, guide = make()
        hwa = HWA(guide, start=3, cycle=2, rank=3)
        states = {}

        class Keep(Callback):
            def epoch(self, state):
                states[state.epoch] = state.state_dict()

        fit(model, guide, Adam({"lr": 0.05}), rows(), epochs=stop, batch_size=10, callbacks=[hwa, Keep()], seed=0)
        return model, guide, hwa, states

    _, _, whole, _ = once(4)
    model, guide, _, states = once(2)
    resumed = HWA(guide, start=3, cycle=2, rank=3)
    fit(
        model, guide, Adam({"lr": 0.05}), rows(), epochs=4, batch_size=10, callbacks=[resumed], seed=0, resume=states[2]
    )
    for a, b in zip(whole.moments.low_rank(), resumed.moments.low_rank(), strict=True):
        assert torch.equal(a, b)


def test_a_trajectory_makes_a_low_rank_guide():
    model, guide = make("site")
    hwa = HWA(guide, cycle=2, rank=3)
    fit(model, guide, Adam({"lr": 0.05}), rows(), epochs=3, batch_size=10, callbacks=[hwa], seed=0)
    mean, diag, factor = hwa.moments.low_rank()
    made = AutoLowRankNormal.from_moments(model, mean, diag, factor)
    with hwa.averaged():
        for name in guide.site_names():  # the same means, in the same places
            torch.testing.assert_close(made.site(name).loc, guide.site(name).loc)
    q = made.distribution()
    torch.testing.assert_close(q.variance.double(), diag + factor.square().sum(-1), rtol=1e-4, atol=1e-8)
