"""Data sets and loaders, read anew in every epoch: their batches, their order, their transforms, N, resumption."""

import copy
from typing import Any

import pyro
import pytest
import torch
from programs import CLASSES, FEATURES, ROWS, Snapshots, Watch, batch_norm, classes, same_tensors, stock_fit
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference.checkpoint import parameters_of
from pyro_bnn.models import BNN, MLP, likelihoods, priors

X, Y = classes()
WHOLE = TensorDataset(X, Y)


class Noisy(Dataset):  # type: ignore[type-arg]
    """A data set with a random transform, and without one of the classes of torch around it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return X[i] + torch.rand(FEATURES), int(Y[i])


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(zip(X[: self.rows], Y[: self.rows], strict=True))


class Sized(Stream):
    def __len__(self) -> int:
        return ROWS


def fit(
    data: Any, n: int = ROWS, net: nn.Module | None = None, lr: float = 0.01, **options: Any
) -> tuple[list[Tensor], Any, Any]:
    """Train from one seed; return the inputs of every step, the result, and the parameters."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = BNN(net or MLP(FEATURES, CLASSES, [5]), priors.Kaiming(), likelihoods.Categorical(), n)
    guide = AutoMeanFieldNormal(model)
    seen: list[Tensor] = []
    result = stock_fit(
        model,
        guide,
        pyro.optim.SGD({"lr": lr}),
        data,
        augment=lambda x: seen.append(x) or x,
        **{"epochs": 2, "seed": 1, **options},
    )
    return seen, result, parameters_of(model, guide)


def row_of(x: Tensor) -> list[int]:
    """Which rows of X these are."""
    return [int(((X - row).abs().sum(1)).argmin()) for row in x]


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_loader_s_batches_are_the_steps() -> None:
    seen, result, _ = fit(DataLoader(WHOLE, batch_size=10))
    assert [row_of(x) for x in seen] == 2 * [list(range(10)), list(range(10, 20)), [20, 21, 22, 23]]
    assert [line["step"] for line in result.history] == [3, 6]


def test_shuffling_is_anew_in_every_epoch_and_follows_the_seed() -> None:
    loader = DataLoader(WHOLE, batch_size=10, shuffle=True)
    seen, _, parameters = fit(loader)
    orders = [sum((row_of(x) for x in seen[e : e + 3]), []) for e in (0, 3)]  # noqa: RUF017
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(ROWS))
    assert orders[0] != orders[1]
    assert same_tensors(parameters, fit(loader)[2])
    assert not same_tensors(parameters, fit(loader, seed=2)[2])


def test_a_sampler_a_collate_function_and_dropped_rows_are_the_loader_s() -> None:
    def mirrored(rows: Any) -> tuple[Tensor, Tensor]:
        return -torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    sampler = SubsetRandomSampler([3, 5, 7, 9])
    seen, _, _ = fit(DataLoader(WHOLE, batch_size=3, sampler=sampler, collate_fn=mirrored), n=4)
    assert [len(x) for x in seen] == [3, 1, 3, 1]
    assert sorted(row_of(-torch.cat(seen[:2]))) == [3, 5, 7, 9]
    seen, _, _ = fit(DataLoader(WHOLE, batch_size=10, drop_last=True), n=20)
    assert [len(x) for x in seen] == [10] * 4


@pytest.mark.parametrize("make", [Noisy, lambda: DataLoader(Noisy(), batch_size=100)])
def test_random_transforms_are_drawn_anew_in_every_epoch(make: Any) -> None:
    seen, _, parameters = fit(make())
    assert len(seen) == 2
    one, two = (x[torch.tensor(row_of(x.floor())).argsort()] for x in seen)
    assert not torch.equal(one, two)
    assert not torch.equal(one.sort(0).values, two.sort(0).values)
    assert same_tensors(parameters, fit(make())[2])


def test_a_data_set_comes_in_the_order_of_its_tensors() -> None:
    assert same_tensors(fit(Subset(WHOLE, range(ROWS)), batch_size=7)[2], fit((X, Y), batch_size=7)[2])

    class Doubled(TensorDataset):  # a TensorDataset, but not a plain one
        def __getitem__(self, i: Any) -> Any:
            x, y = super().__getitem__(i)
            return 2 * x, y

    assert same_tensors(fit(Doubled(X, Y), batch_size=7)[2], fit((2 * X, Y), batch_size=7)[2])


def test_workers_and_weights_and_several_inputs() -> None:
    weights = torch.linspace(0, 1, ROWS)
    loader = DataLoader(TensorDataset(X, Y, weights), batch_size=ROWS, num_workers=1)
    in_order = fit(loader, epochs=1)[2]
    assert same_tensors(in_order, fit(DataLoader(TensorDataset(X, Y, weights), batch_size=ROWS), epochs=1)[2])
    assert not same_tensors(in_order, fit(DataLoader(WHOLE, batch_size=ROWS), epochs=1)[2])

    class Pairs(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, i: int) -> Any:
            return (X[i, :1], X[i, 1:]), Y[i]

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = MLP(FEATURES, CLASSES, [5])

        def forward(self, *x: Tensor) -> Tensor:
            return self.net(torch.cat(x, -1))

    pairs: Any = fit(DataLoader(Pairs(), batch_size=7), net=Joined(), epochs=1)[2]
    whole: Any = fit(DataLoader(WHOLE, batch_size=7), net=Joined(), epochs=1)[2]
    assert all(torch.equal(pairs["guide"][name], value) for name, value in whole["guide"].items())


def test_float64_and_small_integers_from_a_data_set_are_cast() -> None:
    class Arrays(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, i: int) -> Any:
            return X[i].double().numpy(), Y[i].to(torch.uint8)

    assert same_tensors(fit(DataLoader(Arrays(), batch_size=7))[2], fit(DataLoader(WHOLE, batch_size=7))[2])


# -- N ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "n", "others"),
    [
        (DataLoader(WHOLE, batch_size=10), ROWS, [20]),
        (DataLoader(WHOLE, batch_size=10, drop_last=True), 20, [ROWS]),
        (DataLoader(WHOLE, batch_size=10, drop_last=True, shuffle=True), ROWS, [23]),
        (DataLoader(WHOLE, batch_size=10, drop_last=True, shuffle=True), 20, [23]),
        (DataLoader(WHOLE, batch_size=2, sampler=WeightedRandomSampler([1.0] * ROWS, 6)), 6, [ROWS]),
        (DataLoader(WHOLE, batch_size=5, sampler=SubsetRandomSampler(range(15))), 15, [ROWS]),
        (DataLoader(WHOLE, batch_sampler=BatchSampler(RandomSampler(WHOLE), 10, False)), ROWS, [20]),
        (DataLoader(Sized(), batch_size=10), ROWS, [20]),
    ],
)
def test_the_rows_of_a_loader(loader: Any, n: int, others: list[int]) -> None:
    _, result, _ = fit(loader, n=n, epochs=1, lr=0.0)
    line = result.history[0]
    assert line["loss"] == pytest.approx(line["nll"] + line["kl"], rel=1e-5)  # and kl is KL / n
    for other in others:
        with pytest.raises(ValueError, match=rf"size {other} but \d+ rows .* num_data={n}|num_data=.* or {n}"):
            fit(loader, n=other, epochs=1)


class OwnBatches(BatchSampler):
    def __init__(self) -> None:
        super().__init__(SequentialSampler(WHOLE), 10, False)

    def __iter__(self) -> Any:
        return iter([[0, 1, 2], [3, 4], [5, 6, 7, 8]])

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), batch_size=10),
        DataLoader(Stream(), batch_size=10, drop_last=True),
        DataLoader(WHOLE, batch_sampler=OwnBatches()),
        DataLoader(Subset([(X[:5], Y[:5]), (X[5:], Y[5:])], [0, 1]), batch_size=None),  # type: ignore[arg-type]
        Stream(),
    ],
)
def test_who_cannot_say_its_rows_is_asked_for_num_data(loader: Any) -> None:
    with pytest.raises(ValueError, match=r"nothing says how many rows .*num_data="):
        fit(loader)


def test_num_data_is_what_an_epoch_gives() -> None:
    for data, n in ((DataLoader(Stream(), batch_size=10), ROWS), (DataLoader(WHOLE, batch_sampler=OwnBatches()), 9)):
        seen, result, _ = fit(data, n=n, num_data=n)
        assert sum(len(x) for x in seen) == 2 * n
        assert len(result.history) == 2
    assert len(fit(Stream(), num_data=ROWS, batch_size=5)[0]) == 10
    pairs: Any = DataLoader(Subset([(X[:5], Y[:5]), (X[5:], Y[5:])], [0, 1]), batch_size=None)  # type: ignore[arg-type]
    assert [len(x) for x in fit(pairs, num_data=ROWS)[0]] == [5, 19, 5, 19]
    with pytest.raises(ValueError, match="gave 3 batches with 24 rows, where 3 batches with 25 rows were announced"):
        fit(DataLoader(Stream(), batch_size=10), n=25, num_data=25)
    with pytest.raises(ValueError, match="gives more than 2 batches with 20 rows, where 2 batches with 20 rows"):
        fit(DataLoader(Stream(), batch_size=10), n=20, num_data=20)
    with pytest.raises(ValueError, match=r"gave 2 batches with 20 rows"):
        fit(DataLoader(Sized(20), batch_size=10))


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (
            DataLoader(WHOLE, batch_size=10),
            {"batch_size": 10},
            ValueError,
            "batch_size=10 was given beside a DataLoader",
        ),
        (DataLoader(WHOLE, batch_size=10), {"weights": torch.ones(ROWS)}, ValueError, "weights= needs all rows"),
        (DataLoader(WHOLE, batch_size=10), {"standardise": True}, ValueError, "standardise= needs all rows"),
        (DataLoader(WHOLE, batch_size=10), {"num_data": 0}, ValueError, "num_data=0"),
        (DataLoader(WHOLE, batch_size=30, drop_last=True), {}, ValueError, "no rows: give at least one, or leave drop"),
        (DataLoader(TensorDataset(X), batch_size=10), {}, ValueError, r"batches must be \(x, y\)"),
        (DataLoader(TensorDataset(X, Y, Y), batch_size=10), {}, ValueError, "third part"),
        (Noisy(), {"batch_size": 25}, ValueError, "batch_size=25 does not fit 24"),
        (DataLoader(WHOLE, batch_size=23), {"net": batch_norm()}, ValueError, "24 rows in batches of 23 leave a last"),
    ],
)
def test_what_is_refused(data: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit(data, **options)


def test_every_batch_is_checked() -> None:
    bad, high = X.clone(), Y.clone()
    bad[20, 0], high[20] = torch.nan, CLASSES
    with pytest.raises(ValueError, match="a batch x holds NaN"):
        fit(DataLoader(TensorDataset(bad, Y), batch_size=10))
    with pytest.raises(ValueError, match=r"y\[0\]=4 is no label"):
        fit(DataLoader(TensorDataset(X, high), batch_size=10))


def test_a_validation_loader_is_read_once() -> None:
    line = fit((X, Y), val=DataLoader(WHOLE, batch_size=10, shuffle=True))[1].history[-1]
    assert line["val_nll"] == fit((X, Y), val=(X, Y))[1].history[-1]["val_nll"]


# -- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Noisy(), batch_size=7, shuffle=True),
        lambda: DataLoader(Noisy(), batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(5)),
        lambda: DataLoader(Noisy(), batch_size=7, shuffle=True, num_workers=1),
        Noisy,
    ],
)
def test_resumed_is_uninterrupted(make: Any) -> None:
    snapshots = Snapshots()
    _, _, wanted = fit(make(), epochs=3, callbacks=[snapshots])
    data = make()
    torch.randn(3)
    found = fit(data, epochs=3, resume=copy.deepcopy(snapshots.states[1]))[2]
    assert same_tensors(found, wanted)


def test_looking_at_the_first_batch_leaves_every_random_state() -> None:
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(WHOLE, batch_size=ROWS, shuffle=True, generator=generator)
    first = next(iter(DataLoader(WHOLE, batch_size=ROWS, shuffle=True, generator=torch.Generator().manual_seed(5))))[0]
    assert torch.equal(fit(loader, epochs=1)[0][0], first)
    seen: list[Tensor] = []
    fit(loader, epochs=1, callbacks=[Watch(lambda state: seen.append(state.order))])
    assert seen[0] is generator
