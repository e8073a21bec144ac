"""Several processes of one group train as one does: the same gradients, results, and bits on resumption."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pyro_bnn.data.streams import Loaded, Shard
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import DataParallel, TraceScoreFunction_ELBO, fit, kl
from pyro_bnn.inference.checkpoint import load_state, save_state
from pyro_bnn.inference.distributed import RankLost, Ranks, evaluating, fingerprint, rank_seed, synced_norm
from pyro_bnn.inference.fit_state import FitState
from pyro_bnn.inference.predictive import predictive_draws
from pyro_bnn.inference.svi import Callback
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import SGD, Adam, PerSite
from tests.ranks import on_ranks

N, K = 31, 3


def rows(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, 1, 6, 6, generator=generator).double(), torch.randint(K, (n,), generator=generator)


def network(norm: bool) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 3, 3), *([nn.BatchNorm2d(3)] if norm else []), nn.ReLU(), nn.Flatten(), nn.Linear(48, K)]
    return nn.Sequential(*layers).double()


def program(norm: bool = False, n: int = N) -> tuple[BNN, AutoMeanFieldNormal]:
    pyro.set_rng_seed(3)
    model = BNN(network(norm), priors.Normal(), likelihoods.Categorical(), num_data=n)
    return model, AutoMeanFieldNormal(model, init_scale=0.1)


def trained(norm: bool = False, data: Any = None, **options: Any) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Train, and return all tensors of model and guide, and the lines of the epochs without their seconds."""
    model, guide = program(norm)
    optim = options.pop("optim", None) or SGD({"lr": 1e-3})
    given = {"epochs": 2, "batch_size": 8, "seed": 0, "val": rows(10), "progress": False, **options}
    result = fit(model, guide, optim, rows() if data is None else data, **given)
    state = {**model.state_dict(), **guide.state_dict()}
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in result.history]
    return {name: value.detach().clone() for name, value in state.items()}, lines


def numbers(state: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors as what goes through a pipe."""
    return {name: value.numpy() for name, value in state.items()}


def sent(norm: bool = False, **options: Any) -> Any:
    state, lines = trained(norm, **options)
    return numbers(state), lines


def furthest(a: dict[str, Any], b: dict[str, Any]) -> float:
    assert a.keys() == b.keys()
    return max(float(abs(torch.as_tensor(a[name]) - torch.as_tensor(b[name])).max()) for name in a)


# -- the same as one process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_with_shared_noise_ranks_train_as_one_process(count: int, norm: bool) -> None:
    """31 rows in batches of 8 leave 7 for the last, which no number of ranks divides; in float64, to rounding."""
    schedule = {"kl": kl.annealed("linear", epochs=3) * kl.geometric(1.5)}
    one, lines = trained(norm, **schedule)
    for state, theirs in on_ranks(count, lambda: sent(norm, noise="shared", **schedule)):
        assert furthest(numbers(one), state) < 1e-12
        for mine, other in zip(lines, theirs, strict=True):
            for name in ("nll", "loss", "kl", "kl_weight", "elbo", "val_nll", "val_accuracy"):
                assert math.isclose(mine[name], other[name], rel_tol=1e-9), name


def test_ranks_hold_the_same_and_have_noise_of_their_own() -> None:
    one = numbers(trained()[0])
    first, second = on_ranks(2, sent)
    assert furthest(first[0], second[0]) == 0
    assert first[1] == second[1]
    assert furthest(first[0], one) > 1e-6


def test_sample_weights_missing_targets_and_other_elbos_count_as_in_one_process() -> None:
    def regression(**options: Any) -> Any:
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(21, 2, generator=generator).double()
        y = torch.where(torch.rand(21, 1, generator=generator) < 0.2, math.nan, x.sum(1, keepdim=True).double())
        pyro.set_rng_seed(3)
        model = BNN(MLP(2, 1, [4]).double(), priors.Normal(), likelihoods.Gaussian(0.5), num_data=21)
        guide = AutoMeanFieldNormal(model, init_scale=0.1)
        weights = torch.linspace(0, 2, 21).double()
        data = {"weights": weights, "epochs": 2, "batch_size": 7, "seed": 0, "progress": False}
        fit(model, guide, PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 1e-2})), (x, y), **data, **options)  # type: ignore[arg-type]
        return numbers(guide.state_dict())

    for elbo in (None, Trace_ELBO()):
        one = regression(elbo=elbo)
        for state in on_ranks(2, lambda: regression(elbo=elbo, noise="shared")):  # noqa: B023
            assert furthest(one, state) < 1e-10


# -- the expectation of the gradient -----------------------------------------------------------------------------------


class Keep(Callback):
    """Keep the means after every step."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []

    def step(self, state: FitState) -> None:
        tensors = [value for name, value in sorted(state.parameters.items())]
        self.steps.append(torch.cat([t.detach().reshape(-1) for t in tensors]).clone())


def gradients(steps: int) -> Any:
    """The gradient of the whole set at one place, `steps` times: the steps are so small that nothing moves."""
    model, guide = program()
    keep, rate = Keep(), 1e-9
    before = torch.cat([guide.loc_unconstrained.detach(), guide.rho_unconstrained.detach()]).clone()
    fit(model, guide, SGD({"lr": rate}), rows(), epochs=steps, batch_size=N, seed=1, callbacks=[keep], progress=False)
    path = torch.stack([before, *keep.steps])
    return ((path[:-1] - path[1:]) / rate).numpy()


def test_two_ranks_have_the_expected_gradient_of_one_process() -> None:
    """
    Means over 250 gradients, element by element, at 5 standard errors of their difference.

    Under the null a normal element is outside with probability 6e-7, one of 354 with 2e-4. A KL that is counted twice
    would be outside, and so would rows that count half.
    """
    one, two = torch.as_tensor(gradients(250)), torch.as_tensor(on_ranks(2, gradients, 250)[0])
    error = (one.var(0) / len(one) + two.var(0) / len(two)).sqrt().clamp(min=1e-12)
    assert len(error) == 2 * sum(p.numel() for p in network(False).parameters())

    def z(off: Tensor | float) -> float:
        return float(((one.mean(0) + off - two.mean(0)) / error).abs().max())

    _, guide = program()
    of_kl = torch.cat([guide.loc_unconstrained.detach() / N, torch.zeros(len(error) // 2)])  # of N(0, 1), by the means
    assert z(0.0) < 5
    assert z(of_kl) > 10
    assert z(-one.mean(0) / 2) > 10


# -- states ------------------------------------------------------------------------------------------------------------


class Stop(Callback):
    """Keep the state after an epoch, and end there."""

    def __init__(self, at: int) -> None:
        self.at, self.kept = at, {}  # type: ignore[var-annotated]

    def epoch(self, state: FitState) -> None:
        if state.epoch == self.at:
            self.kept = state.state_dict()
            state.stop = "enough"


def half_way(elbo: Any = None) -> Any:
    stop = Stop(2)
    trained(epochs=4, callbacks=[stop], optim=Adam({"lr": 1e-2}), elbo=elbo)
    return stop.kept


@pytest.mark.parametrize("elbo", [None, "score"])
def test_a_resumed_training_goes_on_to_the_same_bits_on_as_many_ranks(elbo: str | None, tmp_path: Path) -> None:
    def make() -> Any:
        return TraceScoreFunction_ELBO() if elbo else None

    def cut() -> int:
        state = half_way(make())
        if Ranks().first:
            save_state(tmp_path / "state", state)
        return len(state.get("ranks", ()))

    def go_on() -> Any:
        return sent(epochs=4, optim=Adam({"lr": 1e-2}), elbo=make(), resume=load_state(tmp_path / "state"))

    assert on_ranks(2, cut) == [1, 1]
    whole = on_ranks(2, lambda: sent(epochs=4, optim=Adam({"lr": 1e-2}), elbo=make()))
    resumed = on_ranks(2, go_on)
    assert furthest(whole[0][0], resumed[0][0]) == 0
    assert resumed[0][1] == whole[0][1]
    for other in (on_ranks(3, go_on)[2], go_on()):  # on another number of ranks with other noise
        assert len(other[1]) == 4
        assert furthest(whole[0][0], other[0]) > 0
        assert other[1][:2] == whole[0][1][:2]


def test_a_rank_s_own_reason_to_stop_stops_all() -> None:
    class StopOnOne(Callback):
        def epoch(self, state: FitState) -> None:
            if state.rank == 1:
                state.stop = "rank 1 has had enough"

    def work() -> Any:
        model, guide = program()
        result = fit(model, guide, SGD({"lr": 1e-3}), rows(), epochs=5, callbacks=[StopOnOne()], seed=0, progress=False)
        return len(result.history), result.reason

    assert on_ranks(2, work) == [(1, "rank 1 has had enough")] * 2


def test_parameters_begin_as_those_of_the_first_rank() -> None:
    def work() -> Any:
        model, guide = program()
        with torch.no_grad():
            guide.loc_unconstrained.add_(Ranks().rank)
        fit(model, guide, SGD({"lr": 1e-3}), rows(), epochs=1, seed=0, progress=False)
        return numbers(guide.state_dict())

    first, second = on_ranks(2, work)
    assert furthest(first, second) == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(work: Callable[[], Any], count: int = 2) -> list[str]:
    def caught() -> str:
        try:
            work()
        except (ValueError, RuntimeError) as error:
            return str(error)
        return ""

    return on_ranks(count, caught)


def test_what_cannot_be_divided_or_is_not_the_same_is_refused() -> None:
    def different() -> None:
        trained(batch_size=8 + Ranks().rank)

    assert all("batch_size is 8 on rank 0 and 9 on rank 1" in said for said in refused(different))
    assert all("cannot be divided among 3 ranks" in said for said in refused(lambda: trained(batch_size=2), 3))
    local = DataParallel(batch_norm="local")
    for batch_norm, said in (("refuse", "batch_norm='refuse'"), ("sync", "the last batch has 1 rows")):
        parallel = DataParallel(batch_norm=batch_norm)  # type: ignore[arg-type]
        words = refused(lambda: trained(True, batch_size=10, distributed=parallel))  # noqa: B023
        assert all(said in word for word in words), words
    assert all("a single row" in said for said in refused(lambda: trained(True, batch_size=10, distributed=local)))
    loader = DataLoader(TensorDataset(*rows()), 8, sampler=DistributedSampler(TensorDataset(*rows()), 2, 0))
    assert all("DistributedSampler" in said for said in refused(lambda: trained(data=loader, batch_size=None)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accumulate": 0}, "accumulate=0"),
        ({"noise": "none"}, "noise='none'"),
        ({"precision": "fp8"}, "precision='fp8'"),
    ],
)
def test_numbers_that_are_none_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trained(**options)


def test_an_unknown_way_of_batch_normalisation_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_norm='mean'"):
        DataParallel(batch_norm="mean")  # type: ignore[arg-type]


def test_a_loss_that_is_no_number_ends_all_ranks_alike() -> None:
    def work() -> Any:
        data = rows()
        if Ranks().rank == 1:  # its own rows alone are infinite
            data[0][:] = 1e200
        return trained(data=data, noise="own")

    words = refused(work)
    assert all("the loss is" in said and "epoch 1" in said for said in words), words
    assert words[0] == words[1]


def test_a_rank_that_is_gone_ends_the_others_with_words() -> None:
    class Leave(Callback):
        def step(self, state: FitState) -> None:
            if state.rank == 1 and state.step == 2:
                raise ValueError("rank 1 leaves")

    def work() -> str:
        try:
            trained(callbacks=[Leave()])
        except RankLost as error:
            return f"lost: {error}"
        except ValueError as error:
            return str(error)
        return "done"

    first, second = on_ranks(2, work)
    assert second == "rank 1 leaves"
    assert first.startswith("lost: rank 0 of 2: another rank is gone")


# -- rows --------------------------------------------------------------------------------------------------------------


class Table(Dataset[Any]):
    """Rows one by one; notes which were read."""

    def __init__(self) -> None:
        self.x, self.y = rows()
        self.read: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        self.read.append(i)
        return self.x[i], self.y[i]


def test_of_a_data_set_every_rank_reads_its_own_rows_alone() -> None:
    def work() -> Any:
        table = Table()
        state, _ = trained(data=table, epochs=1, noise="shared", val=None)
        return numbers(state), table.read[8:]  # the first batch is looked at before

    one = numbers(trained(epochs=1, val=None)[0])
    ranks = on_ranks(2, work)
    assert sorted([*ranks[0][1], *ranks[1][1]]) == list(range(N))
    assert all(furthest(one, state) < 1e-12 for state, _ in ranks)


def test_a_shuffling_loader_has_one_order_on_all_ranks() -> None:
    def work() -> Any:
        seen: list[Any] = []
        loader = DataLoader(TensorDataset(torch.arange(N)[:, None, None, None].double(), rows()[1]), 8, shuffle=True)
        stream = Loaded(loader, None, None, None, None)
        for _, batch in stream.shards(torch.Generator().manual_seed(4), Ranks().shard):
            seen += [] if batch is None else batch[0].flatten().tolist()
        return seen

    first, second = on_ranks(2, work)
    assert sorted([*first, *second]) == list(range(N))


@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_shards_divide_any_number_of_rows(n: int) -> None:
    places = [Shard(rank, 3).of(n) for rank in range(3)]
    assert [i for place in places for i in range(n)[place]] == list(range(n))
    assert max(len(range(n)[p]) for p in places) - min(len(range(n)[p]) for p in places) <= 1


# -- evaluation, normalisation, words ----------------------------------------------------------------------------------


def test_shared_predictions_are_those_of_one_process_bit_for_bit() -> None:
    def draws(ranks: Ranks | None) -> Any:
        model, guide = program(True)
        with evaluating(ranks):
            return [d.prediction.numpy() for d in predictive_draws(model, guide, rows()[0], 3, chunk=5, seed=1)]

    one = draws(None)
    for found in on_ranks(3, lambda: draws(Ranks())):
        assert all((a == b).all() for a, b in zip(one, found, strict=True))


class _Copies(TorchDispatchMode):
    """Notes operations that copy so many numbers or more."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.seen = numel, []  # type: ignore[var-annotated]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default) and args[0].numel() >= self.numel:
            self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_synchronised_normalisation_is_that_of_all_rows(layout: torch.memory_format) -> None:
    """
    Values, running statistics and gradients of unequal parts, against one layer on all rows; in float64.

    Whatever the layout of the gradient that arrives, outputs and gradients have that of the inputs, and nothing is
    copied where they agree: kernels take far longer over tensors that are laid out differently.
    """
    x = torch.randn(7, 3, 2, 2, generator=torch.Generator().manual_seed(0)).double().contiguous(memory_format=layout)
    goal = torch.randn(7, 3, 2, 2, generator=torch.Generator().manual_seed(1)).double()

    def layer() -> nn.BatchNorm2d:
        norm = nn.BatchNorm2d(3).double()
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([1.0, 2.0, -1.0]))
        return norm

    whole, leaf = layer(), x.clone().requires_grad_()
    output = whole(leaf)
    ((output - goal).square().sum((1, 2, 3)).mean()).backward()  # type: ignore[no-untyped-call]

    def part() -> Any:
        ranks, norm = Ranks(), layer()
        place = ranks.shard.of(7)
        own = x[place].clone().requires_grad_()
        with synced_norm(ranks):
            out = norm(own)
        slope = 2 * (out - goal[place]).detach() / len(own)  # of the mean over its rows
        with _Copies(own.numel()) as copies:
            torch.autograd.grad(out, own, slope.contiguous(memory_format=layout), retain_graph=True)
        assert not copies.seen
        grad, of_weight = torch.autograd.grad(out, (own, norm.weight), slope.contiguous())
        assert out.is_contiguous(memory_format=layout)
        assert grad.is_contiguous(memory_format=layout)
        share = len(own) / 7
        weight = of_weight * share
        ranks.add_up(weight)
        return [t.detach().numpy() for t in (out, grad * share, weight, norm.running_mean, norm.running_var)]

    parts = on_ranks(2, part)
    assert torch.allclose(torch.cat([torch.as_tensor(p[0]) for p in parts]), output.detach(), atol=1e-12)
    assert torch.allclose(torch.cat([torch.as_tensor(p[1]) for p in parts]), leaf.grad, atol=1e-12)  # type: ignore[arg-type]
    for mine, theirs in zip((whole.weight.grad, whole.running_mean, whole.running_var), parts[0][2:], strict=True):
        assert torch.allclose(torch.as_tensor(theirs), mine, atol=1e-12)  # type: ignore[arg-type]


def test_local_normalisation_averages_the_running_statistics() -> None:
    def work() -> Any:
        return sent(True, distributed=DataParallel(batch_norm="local"))

    first, second = on_ranks(2, work)
    assert furthest(first[0], second[0]) == 0
    assert float(first[0]["net.1.running_var"].sum()) != 3.0


def test_an_error_of_one_rank_is_told_by_the_first() -> None:
    def work() -> str:
        ranks = Ranks()
        try:
            with ranks.together():
                if ranks.rank == 1:
                    raise FileNotFoundError("no rows here")
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"
        return "fine"

    assert on_ranks(2, work) == ["RuntimeError: rank 1: no rows here", "SaidElsewhere: rank 1: no rows here"]


def test_seeds_and_checksums() -> None:
    seeds = {rank_seed(base, rank, step) for base in range(3) for rank in range(5) for step in range(5)}
    assert len(seeds) == 75
    assert all(0 <= seed < 2**32 for seed in seeds)
    value = {"a": torch.arange(3), "b": [1.5, "name"]}
    assert fingerprint(value) == fingerprint({"c": torch.arange(3), "d": [1.5, "other"]})
    assert fingerprint(value) != fingerprint({"a": torch.tensor([0, 2, 1]), "b": [1.5]})


def test_one_process_is_no_group() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        trained(distributed=True)
    assert DataParallel().ranks() is None
    assert on_ranks(1, lambda: DataParallel().ranks()) == [None]
