"""Threads: predictions beside each other and beside a training are what they are alone; nothing stays broken."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, nn

from pyro_bnn.common.randomness import RandomState
from pyro_bnn.common.turns import Job, OwnRandomness, alone
from pyro_bnn.guides import AutoMeanFieldNormal, AutoPoint, Ensemble, StoredDraws
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.optim import Adam
from pyro_bnn.posterior import Posterior

ROWS = 40


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, 5, generator=generator), torch.randint(3, (ROWS,), generator=generator)


def network() -> BNN:
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    return BNN(net, priors.Kaiming(), likelihoods.Categorical(), ROWS)


def at_once(*work: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def train(model: Any, guide: Any, **options: Any) -> Any:
    return fit(
        model, guide, Adam({"lr": 1e-2}), rows(), epochs=4, batch_size=10, val=rows(), elbo=None, seed=5, **options
    )


def test_eight_threads_predict_and_one_trains_beside_them() -> None:
    x, _ = rows()
    model = network()
    posterior = Posterior(model, AutoMeanFieldNormal(model, init_scale=0.2))
    alone_ = [posterior.predict(x, 4, seed=i) for i in range(8)]
    other = network()
    start = copy.deepcopy(AutoMeanFieldNormal(other).state_dict())

    def trained() -> dict[str, Any]:
        again = copy.deepcopy(other)
        guide = AutoMeanFieldNormal(again)
        guide.load_state_dict(start)
        result = train(again, guide)
        return {**guide.state_dict(), **again.state_dict(), "nll": torch.tensor([h["nll"] for h in result.history])}

    expected, found = trained(), {}
    wrong = []

    def predict(i: int) -> None:
        for _ in range(6):
            if not torch.equal(posterior.predict(x, 4, seed=i), alone_[i]):
                wrong.append(i)
            posterior.draws(x, 1)  # from the global random state

    def fits() -> None:
        found.update(trained())

    at_once(fits, *(lambda i=i: predict(i) for i in range(8)))  # type: ignore[misc]
    assert not wrong
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert not _PYRO_STACK
    assert all(module.training for module in model.modules())
    assert isinstance(model.template[0].weight, nn.Parameter)
    assert torch.equal(posterior.predict(x, 4, seed=0), alone_[0])
    assert pyro.infer.util.is_validation_enabled() == torch.distributions.Distribution._validate_args


def test_two_trainings_in_threads_are_what_they_are_alone() -> None:
    models = [network() for _ in range(2)]
    guides = [AutoMeanFieldNormal(model) for model in models]

    def result(i: int, at: dict[int, Any]) -> None:
        model = copy.deepcopy(models[i])
        guide = AutoMeanFieldNormal(model)
        guide.load_state_dict(guides[i].state_dict())
        at[i] = [line["loss"] for line in train(model, guide).history]

    first: dict[int, Any] = {}
    together: dict[int, Any] = {}
    checks = pyro.infer.util.is_validation_enabled()
    for i in range(2):
        result(i, first)
    at_once(*(lambda i=i: result(i, together) for i in range(2)))  # type: ignore[misc]
    assert first == together
    assert pyro.infer.util.is_validation_enabled() == checks


@pytest.mark.parametrize("kind", ["stored", "ensemble"])
def test_streams_of_finitely_many_draws_do_not_mix(kind: str) -> None:
    """Two predictions that take turns deal from decks of their own, and leave the model's own state as it was."""
    x, _ = rows()
    model = network()
    points = [AutoPoint(model) for _ in range(4)]
    draws = torch.randn(4, points[0].loc.numel())
    states = [{**{n: t.clone() for n, t in model.state_dict().items() if n in model.kept_tensors()}} for _ in draws]
    for s, state in enumerate(states):
        state["net.1.running_mean"] += s
    guide: Any = (
        StoredDraws.from_flat(model, draws, states=states) if kind == "stored" else Ensemble(model, points, states)
    )
    posterior = Posterior(model, guide)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = [list(posterior.draws(x, 4, seed=seed)) for seed in (0, 1)]
    streams = [posterior.stream(x, 4, seed=seed) for seed in (0, 1)]
    for s in range(4):
        for stream, alone_ in zip(streams, expected, strict=True):
            assert torch.equal(next(stream).log_probs.exp(), alone_[s])  # type: ignore[union-attr]
    assert len({float(draw[0, 0]) for draw in expected[0]}) == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_turn_puts_handlers_and_random_state_back_after_an_error() -> None:
    before = RandomState.now().cpu
    randomness = OwnRandomness(3)
    block = pyro.poutine.block()

    def fails() -> None:
        block.__enter__()  # and never left
        torch.rand(3)
        raise KeyError

    with pytest.raises(KeyError), randomness.turn():
        fails()
    assert not _PYRO_STACK
    assert torch.equal(RandomState.now().cpu, before)


def test_a_job_goes_on_with_its_own_random_numbers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    job = Job()
    found = []
    for _ in range(4):
        with job.turn():
            found.append(torch.rand(()))
        at_once(lambda: _draw_in_a_turn())
    job.done()
    assert torch.equal(torch.stack(found), expected)


def _draw_in_a_turn() -> None:
    with alone():
        torch.rand(7)
