"""K members at once are K trainings: the same numbers from the same noise, whatever they differ in."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn.guides import AutoDropout, AutoFullRankNormal, AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint
from pyro_bnn.inference import FitResult, TraceLowRank_ELBO, fit, fit_many, flipout, kl, local_reparameterization
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import AdaBound, Adam, Cosine, PerSite, Plateau, YellowFin

SIZES = (23, 24, 20, 30)  # three batches of 8 rows, the last of another length each, and one member with four


def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    return x, x[:, 0] - 0.5 * x[:, 1].square() + 0.1 * torch.randn(n, generator=generator)


class Normed(nn.Module):
    """A network of a user's own, with a layer that is not random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))  # type: ignore[no-any-return]


def members(
    guide: Callable[[Any], Any] = AutoMeanFieldNormal,
    *,
    sizes: tuple[int, ...] = SIZES,
    likelihood: Any = None,
    net: Callable[[], nn.Module] | None = None,
) -> tuple[list[Any], list[Any]]:
    torch.manual_seed(3)
    law = likelihoods.HeteroscedasticGaussian() if likelihood is None else likelihood
    make = (lambda: MLP(3, law.outputs(1), [6])) if net is None else net
    models = [BNN(make(), priors.Normal(0.5 + 0.25 * k), law, num_data=n) for k, n in enumerate(sizes)]
    return models, [guide(model) for model in models]


def both(
    build: Callable[[], tuple[list[Any], list[Any]]],
    optim: Callable[[], Any],
    within: Callable[[], Any] = nullcontext,
    *,
    data: Any = None,
    each: dict[str, list[Any]] | None = None,
    **options: Any,
) -> tuple[list[Any], list[Any], list[FitResult], list[FitResult]]:
    """Train at once, and one after the other; return the guides and results of both."""
    models, guides = build()
    data = [rows(model.num_data, k) for k, model in enumerate(models)] if data is None else data
    each = each or {}
    with within():
        at_once = fit_many(models, guides, optim(), data, seed=7, **each, **options)
    looped_models, looped = build()
    one_by_one = []
    for k, (model, guide) in enumerate(zip(looped_models, looped, strict=True)):
        own = {name: values[k] for name, values in each.items()}
        with within():
            one_by_one.append(fit(model, guide, optim(), data[k], seed=7 + k, **own, **options))
    return [*models, *guides], [*looped_models, *looped], at_once, one_by_one


def assert_same(programs: list[Any], others: list[Any], tolerance: float = 1e-5) -> None:
    for program, other in zip(programs, others, strict=True):
        for (name, a), b in zip(program.named_parameters(), other.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), (name, float((a - b).detach().abs().max()))


def assert_same_lines(results: list[FitResult], others: list[FitResult]) -> None:
    for result, other in zip(results, others, strict=True):
        assert len(result.history) == len(other.history)
        assert (result.best_epoch, result.reason) == (other.best_epoch, other.reason)
        for line, expected in zip(result.history, other.history, strict=True):
            assert line.keys() == expected.keys()
            for name in line.keys() - {"seconds"}:
                assert line[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


def two_rates() -> PerSite:
    return PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 2e-2}), schedule=Cosine())


@pytest.mark.parametrize("guide", [AutoMeanFieldNormal, AutoPoint, AutoDropout])
def test_members_at_once_are_members_one_by_one(guide: Any) -> None:
    optim = two_rates if guide is AutoMeanFieldNormal else lambda: Adam({"lr": 1e-2}, schedule=Cosine())
    val = [rows(n, 50 + n) for n in (9, 12, 5, 7)]
    weights = [kl.tempered(0.1), kl.annealed(epochs=3), kl.blundell(), kl.geometric(0)]
    result = both(
        lambda: members(guide), optim, epochs=4, batch_size=8, val_samples=3, each={"val": val, "kl": weights}
    )
    assert_same(*result[:2])
    assert_same_lines(*result[2:])


@pytest.mark.parametrize("guide", [lambda model: AutoLowRankNormal(model, rank=3), AutoFullRankNormal])
def test_guides_with_correlations_are_members_too(guide: Any) -> None:
    """The same as by fit with the KL in closed form, whose draws are from the same numbers."""
    models, guides = members(guide)
    data = [rows(model.num_data, k) for k, model in enumerate(models)]
    val, weights = [rows(n, 50 + n) for n in (9, 12, 5, 7)], [kl.tempered(0.1), *[kl.uniform()] * 3]
    common: dict[str, Any] = {"epochs": 4, "batch_size": 8, "val_samples": 2}
    results = fit_many(models, guides, two_rates(), data, seed=7, val=val, kl=weights, **common)
    others, looped = members(guide)
    expected = [
        fit(model, own, two_rates(), data[k], seed=7 + k, val=val[k], kl=weights[k], elbo=TraceLowRank_ELBO(), **common)
        for k, (model, own) in enumerate(zip(others, looped, strict=True))
    ]
    assert_same([*models, *guides], [*others, *looped])
    for result in (*results, *expected):
        for line in result.history:
            line["kl"] = line["elbo"] = 0.0  # of a draw by fit, exact here: see the next test
    assert_same_lines(results, expected)
    moved = dict(guides[0].named_parameters())
    fresh = dict(members(guide)[1][0].named_parameters())
    assert all(float((value - fresh[name]).detach().abs().max()) > 1e-3 for name, value in moved.items())


@pytest.mark.parametrize("guide", [lambda model: AutoLowRankNormal(model, rank=3), AutoFullRankNormal])
def test_the_kl_of_parameters_that_are_given_is_that_of_the_law(guide: Any) -> None:
    q = members(guide)[1][0]
    with torch.no_grad():
        for parameter in q.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    own = {name.removesuffix("_unconstrained"): value.detach() for name, value in q.named_parameters()}
    own = {name: own[name] for name in own if not name.startswith("model.")}
    m, s = torch.randn_like(own["loc"]), torch.rand_like(own["loc"]) + 0.5
    law = q.distribution()
    torch.testing.assert_close(q.kl_at(own, m, s), law.kl_to_normal(m, s).detach())
    both_at_once = {name: torch.stack([value, value]) for name, value in own.items()}
    torch.testing.assert_close(q.kl_at(both_at_once, m, s)[1], law.kl_to_normal(m, s).detach())
    torch.manual_seed(5)
    expected = law.rsample().detach()
    torch.testing.assert_close(q.draw_at(own, q.noise(own["loc"], torch.Generator().manual_seed(5))), expected)


def test_correlated_guides_are_not_drawn_by_outputs() -> None:
    with local_reparameterization(), pytest.raises(ValueError, match="has correlated weights"):
        fit_many(*members(AutoFullRankNormal), two_rates(), [rows(n, n) for n in SIZES], epochs=1)


def test_layers_are_reparameterised_locally_as_by_fit() -> None:
    result = both(members, two_rates, local_reparameterization, epochs=4, batch_size=8)
    assert_same(*result[:2])
    assert_same_lines(*result[2:])
    plain = both(members, two_rates, epochs=4, batch_size=8)
    assert not torch.allclose(result[0][-1].loc, plain[0][-1].loc, atol=1e-4)


@pytest.mark.parametrize(
    "law", [likelihoods.LearnedGaussian(0.5), likelihoods.Gaussian(0.3), likelihoods.StudentT(learn_df=True)]
)
def test_what_the_likelihood_learns_is_each_member_s_own(law: Any) -> None:
    result = both(lambda: members(likelihood=law), lambda: Adam({"lr": 1e-2}), epochs=3, batch_size=8)
    assert_same(*result[:2])


def test_a_network_of_ones_own_with_a_layer_that_is_not_random() -> None:
    result = both(lambda: members(net=Normed), lambda: AdaBound({"lr": 1e-3, "final_lr": 0.1}), epochs=3, batch_size=8)
    assert_same(*result[:2])


def test_rows_count_by_their_weights_and_are_standardised_by_their_own() -> None:
    weights = [torch.rand(n, generator=torch.Generator().manual_seed(n)) for n in SIZES]
    data = [(50 + 9 * x.numpy(), 1000 * y.numpy()) for x, y in (rows(n, n) for n in SIZES)]
    result = both(members, two_rates, data=data, each={"weights": weights}, epochs=3, batch_size=8, standardise=True)
    assert_same(*result[:2])
    for many, one in zip(result[2], result[3], strict=True):
        assert many.fitted is not None
        assert one.fitted is not None
        assert many.fitted.info() == one.fitted.info()


def test_classes_with_the_accuracy_of_validation() -> None:
    def build() -> tuple[list[Any], list[Any]]:
        law = likelihoods.Categorical()
        return members(likelihood=law, net=lambda: MLP(3, 4, [6]), sizes=(20, 21))

    def labelled(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x, y = rows(n, seed)
        return x, (y.abs() * 2).long().clamp(max=3)

    data, val = [labelled(n, n) for n in (20, 21)], [labelled(15, k) for k in (90, 91)]
    result = both(build, lambda: Adam({"lr": 1e-2}), data=data, each={"val": val}, epochs=3, batch_size=8)
    assert_same(*result[:2])
    assert_same_lines(*result[2:])
    assert "val_accuracy" in result[2][0].history[0]


def test_a_rate_multiplies_the_learning_rates() -> None:
    models, guides = members(sizes=(20, 20))
    data = [rows(20, 0)] * 2
    results = fit_many(models, guides, two_rates(), data, epochs=3, batch_size=8, rates=[0.5, 1.0], seed=[4, 4])
    others, expected = members(sizes=(20, 20))
    optim = PerSite(loc=Adam({"lr": 5e-3}), scale=Adam({"lr": 1e-2}), schedule=Cosine())
    fit(others[0], expected[0], optim, data[0], epochs=3, batch_size=8, seed=4)
    fit(others[1], expected[1], two_rates(), data[1], epochs=3, batch_size=8, seed=4)
    assert_same(guides, expected)
    assert results[0].history[0]["learning_rates"]["loc"] == results[1].history[0]["learning_rates"]["loc"] / 2


def test_a_member_stops_by_itself_and_the_others_go_on() -> None:
    torch.set_default_dtype(torch.float64)  # over many epochs rounding grows, and decides when to stop
    try:
        sizes = (20, 21, 22, 23)
        data = [(x.double(), y.double()) for x, y in (rows(n, n) for n in sizes)]
        val = [(x.double(), y.double()) for x, y in (rows(15, 60 + k) for k in range(4))]
        result = both(
            lambda: members(sizes=sizes),
            lambda: Adam({"lr": 5e-2}),
            data=data,
            each={"val": val},
            epochs=60,
            batch_size=8,
            patience=4,
        )
    finally:
        torch.set_default_dtype(torch.float32)
    lengths = [len(line.history) for line in result[2]]
    assert len(set(lengths)) > 2, "the members are to stop at different times, and the stack to shrink"
    assert_same(*result[:2], tolerance=1e-9)
    assert_same_lines(*result[2:])


def test_the_best_epoch_is_kept() -> None:
    sizes = (20, 21)
    models, guides = members(sizes=sizes)
    val = [rows(15, 60 + k) for k in range(2)]
    data = [rows(n, n) for n in sizes]
    results = fit_many(
        models, guides, Adam({"lr": 0.2}), data, epochs=12, batch_size=8, val=val, keep_best=True, history=False
    )
    for k, result in enumerate(results):
        assert len(result.history) == 1
        assert result.best_epoch is not None
        again, expected = members(sizes=sizes)
        fit(again[k], expected[k], Adam({"lr": 0.2}), data[k], epochs=result.best_epoch, batch_size=8, seed=k)
        assert_same([guides[k]], [expected[k]], tolerance=1e-3)
    assert {result.best_epoch for result in results} != {12}


def test_a_member_that_diverges_says_so_and_harms_no_other() -> None:
    models, guides = members(sizes=(20, 20))
    start = guides[0].loc.detach().clone()
    optim = Adam({"lr": 1e-2})
    results = fit_many(models, guides, optim, rows(20, 1), epochs=4, batch_size=8, rates=[1e36, 1.0], seed=[0, 1])
    assert results[0].reason.startswith("diverged")
    assert torch.equal(guides[0].loc, start)
    others, expected = members(sizes=(20, 20))
    fit(others[1], expected[1], Adam({"lr": 1e-2}), rows(20, 1), epochs=4, batch_size=8, seed=1)
    assert results[1].reason == "all epochs done"
    assert_same([guides[1]], [expected[1]])


def test_the_optimizer_handed_in_is_left_as_it_is() -> None:
    models, guides = members(sizes=(20,))
    optim = Adam({"lr": 1e-2})
    fit_many(models, guides, optim, [rows(20, 0)], epochs=1)
    assert optim.torch_optimizer is None


@pytest.mark.slow
def test_parts_in_processes_of_their_own_are_the_same() -> None:
    models, guides = members()
    data = [rows(n, n) for n in SIZES]
    results = fit_many(models, guides, two_rates(), data, epochs=3, batch_size=8, jobs=2)
    others, expected = members()
    again = fit_many(others, expected, two_rates(), data, epochs=3, batch_size=8)
    assert_same([*models, *guides], [*others, *expected])
    assert_same_lines(results, again)
    assert all(guide.fitted is not None for guide in guides)


# -- what is refused ---------------------------------------------------------------------------------------------------


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.1), nn.ReLU(), nn.Linear(6, 2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: members(net=batch_norm), "BatchNorm1d keeps buffers"),
        (lambda: members(net=dropout), "Dropout draws random numbers"),
        (lambda: members(AutoNormal), "AutoNormal, which cannot be batched"),
        (lambda: members(lambda model: AutoMeanFieldNormal(model, groups="site")), "lie in groups"),
        (lambda: ([lambda x, y: None, *members()[0][1:]], members()[1]), "model 0 is a function"),
    ],
)
def test_what_cannot_be_batched_is_refused_by_name(build: Any, message: str) -> None:
    models, guides = build()
    with pytest.raises((TypeError, ValueError), match=message):
        fit_many([*models], guides, Adam({"lr": 1e-2}), [rows(n, n) for n in SIZES], epochs=1)


def test_priors_that_are_not_normal_are_refused() -> None:
    model = BNN(MLP(3, 2, [6]), priors.Laplace(1.0), likelihoods.HeteroscedasticGaussian(), num_data=20)
    with pytest.raises(ValueError, match="is a Laplace"):
        fit_many([model], [AutoMeanFieldNormal(model)], Adam({"lr": 1e-2}), [rows(20, 0)], epochs=1)


@pytest.mark.parametrize(
    ("optim", "message"),
    [
        (Adam({"lr": 1e-2}, {"clip_norm": 1.0}), "clip_norm"),
        (YellowFin({"lr": 1e-2}), "YellowFin"),
        (PerSite(loc=Adam({"lr": 1e-2}, schedule=Plateau())), "Plateau"),
        (pyro.optim.Adam({"lr": 1e-2}), "optim is a PyroOptim"),
    ],
)
def test_optimizers_that_look_at_all_members_are_refused(optim: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fit_many(*members(sizes=(20,)), optim, [rows(20, 0)], epochs=1)


def test_members_of_other_programs_are_refused() -> None:
    models, guides = members(sizes=(20, 20))
    models[1] = BNN(MLP(3, 2, [7]), priors.Normal(), likelihoods.HeteroscedasticGaussian(), num_data=20)
    guides[1] = AutoMeanFieldNormal(models[1])
    with pytest.raises(ValueError, match="model 1 has another network"):
        fit_many(models, guides, Adam({"lr": 1e-2}), rows(20, 0), epochs=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": [rows(20, 0)]}, "data has 1 for 2 models"),
        ({"rates": [1.0, -1.0]}, "rates: -1.0"),
        ({"jobs": 0}, "jobs=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"patience": 2}, "patience=2"),
        ({"data": [DataLoader(TensorDataset(*rows(20, 0)), 5)] * 2}, "read batch by batch"),
        ({"data": [(rows(20, 0)[0], torch.full((20,), torch.nan))] * 2}, "NaN"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"data": rows(20, 0), "epochs": 1, **changes}
    with pytest.raises((TypeError, ValueError), match=message):
        fit_many(*members(sizes=(20, 20)), Adam({"lr": 1e-2}), **arguments)


def test_flipout_is_refused() -> None:
    with flipout(), pytest.raises(ValueError, match="flipout"):
        fit_many(*members(sizes=(20,)), Adam({"lr": 1e-2}), [rows(20, 0)], epochs=1)


def test_one_object_for_two_members_is_refused() -> None:
    models, guides = members(sizes=(20, 20))
    with pytest.raises(ValueError, match="two of the guides are the same object"):
        fit_many(models, [guides[0], guides[0]], Adam({"lr": 1e-2}), rows(20, 0), epochs=1)


def test_a_prior_that_is_learned_is_not_batched() -> None:
    scale = nn.Parameter(torch.tensor(1.0))

    def prior(name: str, module: nn.Module, parameter: Tensor) -> Any:
        return dist.Normal(0.0, scale).expand(parameter.shape).to_event(parameter.dim())

    model = BNN(MLP(3, 2, [6]), prior, likelihoods.HeteroscedasticGaussian(), num_data=20)
    with pytest.raises(ValueError, match="batches normal priors"):
        fit_many([model], [AutoPoint(model)], Adam({"lr": 1e-2}), [rows(20, 0)], epochs=1)
