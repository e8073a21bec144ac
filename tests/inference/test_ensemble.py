"""Posteriors of finitely many members or draws: what they average, and that a model's own parameters follow."""

import pytest
import torch
from torch import nn

from pyro_bnn.guides import AutoDropout, AutoMeanFieldNormal, AutoPoint, Ensemble, StoredDraws
from pyro_bnn.guides.draws import Deck
from pyro_bnn.guides.flat import load_model_state, model_state
from pyro_bnn.inference import predictive_draws
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.posterior import Posterior


def make_model(norm=False):
    layers = [nn.Linear(3, 4), *([nn.BatchNorm1d(4)] if norm else []), nn.ReLU(), nn.Linear(4, 2)]
    return BNN(nn.Sequential(*layers), priors.Normal(), likelihoods.Categorical(), 30)


X = torch.randn(9, 3, generator=torch.Generator().manual_seed(2))


def probabilities(model, guide):
    (draw,) = predictive_draws(model, guide, X, 1)
    return draw.log_probs.exp()


def test_a_deck_gives_each_number_once_a_round():
    deck = Deck(5)
    rounds = [sorted(deck.take() for _ in range(5)) for _ in range(3)]
    assert rounds == [list(range(5))] * 3
    deck.take()
    deck.restart()
    assert sorted(deck.take() for _ in range(5)) == list(range(5))


def test_an_ensemble_of_points_is_the_mean_of_its_members_exactly():
    model = make_model()
    members = [AutoPoint(model) for _ in range(3)]
    expected = torch.stack([probabilities(model, member) for member in members]).mean(0)
    ensemble = Ensemble(model, members)
    for rounds in (1, 2):
        torch.testing.assert_close(Posterior(model, ensemble).predict(X, num_samples=3 * rounds), expected)
    assert ensemble.kind == "ensemble"


def test_one_member_is_the_member():
    model = make_model()
    member = AutoMeanFieldNormal(model)
    torch.manual_seed(1)
    alone = Posterior(model, member).draws(X, num_samples=1)
    torch.manual_seed(1)
    torch.randperm(1)  # the deck's
    together = Posterior(model, Ensemble(model, [member])).draws(X, num_samples=1)
    assert torch.equal(alone, together)


def test_stored_draws_are_an_ensemble_of_points():
    model = make_model()
    members = [AutoPoint(model) for _ in range(4)]
    flat = torch.stack([member.loc.detach() for member in members])
    stored = StoredDraws.from_flat(model, flat, chains=2, kind="sgld")
    torch.testing.assert_close(
        Posterior(model, stored).predict(X, num_samples=4), Posterior(model, Ensemble(model, members)).predict(X, 4)
    )
    assert stored.by_site()["net.0.weight"].shape == (2, 2, 4, 3)
    torch.testing.assert_close(stored.by_site()["net.0.weight"][1, 0], members[2].median()["net.0.weight"])


def trained_states(model, count):
    states = []
    for _ in range(count):
        with torch.no_grad():
            for tensor in (t for t in model.state_dict().values() if t.is_floating_point()):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
        states.append(model_state(model))
    return states


@pytest.mark.parametrize("kind", ["ensemble", "draws"])
def test_normalisation_follows_the_member(kind):
    model = make_model(norm=True)
    members = [AutoPoint(model) for _ in range(3)]
    states = trained_states(model, 3)
    expected = []
    for member, state in zip(members, states, strict=True):
        load_model_state(model, state)
        expected.append(probabilities(model, member))
    if kind == "ensemble":
        guide = Ensemble(model, members, states)
    else:
        guide = StoredDraws.from_flat(model, torch.stack([m.loc.detach() for m in members]), states=states)
    found = Posterior(model, guide).draws(X, num_samples=3)
    for f in found:
        assert sum(torch.allclose(f, e, atol=1e-6) for e in expected) == 1
    torch.testing.assert_close(found.mean(0), torch.stack(expected).mean(0))


@pytest.mark.parametrize("make", ["ensemble", "mixed", "draws", "dropout", "nested"])
@pytest.mark.parametrize("norm", [False, True])
def test_saved_and_loaded_it_predicts_the_same(tmp_path, make, norm):
    from pyro_bnn.assemble import build_guide

    def build(model):
        states = trained_states(model, 2) if norm else None
        points = [AutoPoint(model) for _ in range(2)]
        draws = torch.stack([p.loc.detach() for p in points])
        if make == "ensemble":
            return Ensemble(model, points, states)
        if make == "mixed":
            return Ensemble(model, [AutoMeanFieldNormal(model), AutoDropout(model, rate=0.3)], states)
        if make == "draws":
            return StoredDraws.from_flat(model, draws, states=states)
        if make == "dropout":
            return AutoDropout(model, rate=0.3)
        stored = [StoredDraws.from_flat(model, draws + m, states=states) for m in range(2)]
        return Ensemble(model, stored, states)

    model = make_model(norm)
    before = Posterior(model, build(model))
    before.save(tmp_path / "saved")
    after = Posterior.load(tmp_path / "saved", make_model(norm), build_guide=build_guide)
    for samples in (1, 4):
        a, b = (p.draws(X, num_samples=samples, seed=5) for p in (before, after))
        assert torch.equal(a, b)
    u = after.uncertainty(X, num_samples=4, seed=5)
    torch.testing.assert_close(u.total, u.aleatoric + u.epistemic)


def test_a_seed_fixes_the_draws_whatever_came_before():
    model = make_model()
    guide = StoredDraws.from_flat(model, torch.randn(7, 26))
    posterior = Posterior(model, guide)
    first = posterior.draws(X, num_samples=5, seed=3)
    posterior.draws(X, num_samples=2, seed=8)
    assert torch.equal(posterior.draws(X, num_samples=5, seed=3), first)
    assert len({tuple(d.reshape(-1).tolist()) for d in first}) == 5  # none twice


def test_a_dropout_mask_is_one_draw_for_all_rows_however_they_are_chunked():
    model = make_model()
    posterior = Posterior(model, AutoDropout(model, rate=0.5))
    whole = posterior.draws(X, num_samples=3, seed=1)
    torch.testing.assert_close(posterior.draws(X, num_samples=3, seed=1, chunk=2), whole)
    assert not torch.allclose(whole[0], whole[1])


def test_what_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="at least one guide"):
        Ensemble(model, [])
    with pytest.raises(TypeError, match="a member is a function"):
        Ensemble(model, [lambda x: x])
    with pytest.raises(ValueError, match="1 states of the model for 2 members"):
        Ensemble(model, [AutoPoint(model), AutoPoint(model)], [{}])
    with pytest.raises(ValueError, match="num_draws=0"):
        StoredDraws(model, num_draws=0)
    with pytest.raises(ValueError, match="chains=2 does not divide num_draws=5"):
        StoredDraws(model, num_draws=5, chains=2)
    with pytest.raises(ValueError, match="the model needs"):
        StoredDraws.from_flat(model, torch.zeros(3, 5))
