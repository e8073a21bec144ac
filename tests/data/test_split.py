import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from pyro_bnn.data.split import Split, as_split, balanced_indices, batches, stratified_indices, subset
from pyro_bnn.data.standardise import Standardiser


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


# batches


@pytest.mark.parametrize(
    ("n", "size", "lengths"), [(10, 4, [4, 4, 2]), (10, 5, [5, 5]), (10, 10, [10]), (3, 1, [1, 1, 1])]
)
def test_every_row_once_and_the_short_last_batch_kept(n, size, lengths):
    epoch = batches(n, size, rng())
    assert [len(b) for b in epoch] == lengths
    assert torch.cat(epoch).sort().values.tolist() == list(range(n))


def test_order_follows_the_generator_alone():
    one, two, three = batches(100, 7, rng(1)), batches(100, 7, rng(1)), batches(100, 7, rng(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(torch.cat(one), torch.cat(three))
    before = torch.get_rng_state()
    batches(100, 7, rng())
    assert torch.equal(torch.get_rng_state(), before)


def test_one_generator_gives_another_order_each_epoch():
    generator = rng()
    assert not torch.equal(torch.cat(batches(50, 50, generator)), torch.cat(batches(50, 50, generator)))


def test_without_shuffle_in_order():
    assert torch.cat(batches(7, 3, shuffle=False)).tolist() == list(range(7))


@pytest.mark.parametrize("size", [0, -1, 11])
def test_batch_size_outside_1_to_n_error(size):
    with pytest.raises(ValueError, match=rf"batch_size is {size}; give a whole number from 1 to 10"):
        batches(10, size)


@pytest.mark.parametrize("size", [2.0, True, "4"])
def test_batch_size_not_a_whole_number_error(size):
    with pytest.raises(TypeError, match=r"batch_size is .* whole number from 1 to 10"):
        batches(10, size)


# as_split


X, Y, W = torch.arange(24.0).reshape(8, 3), torch.arange(8), torch.linspace(0, 1, 8)


class Rows(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], int(Y[i])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "data",
    [
        Split(X, Y),
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        TensorDataset(X, Y),
        Rows(),
        Subset(TensorDataset(X, Y), range(8)),
        DataLoader(Rows(), batch_size=3),
        DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
        DataLoader(TensorDataset(X, Y), batch_size=3, drop_last=True),
        DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, drop_last=True),
        DataLoader(Stream(), batch_size=3),
    ],
    ids=lambda data: type(data).__name__,
)
def test_all_forms_give_the_same_rows_in_order(data):
    split = as_split(data)
    assert torch.equal(split.x, X)
    assert torch.equal(split.y, Y)
    assert split.x.dtype == torch.float32
    assert split.y.dtype == torch.int64
    assert split.weights is None


@pytest.mark.parametrize("data", [(X, Y, W), TensorDataset(X, Y, W), DataLoader(TensorDataset(X, Y, W), batch_size=3)])
def test_weights_come_along(data):
    assert torch.equal(as_split(data).weights, W)


def test_a_loader_with_its_own_sampler_is_read_in_its_order():
    sampler = WeightedRandomSampler([0, 0, 1, 0, 0, 0, 0, 0], num_samples=5)
    split = as_split(DataLoader(TensorDataset(X, Y), batch_size=2, sampler=sampler))
    assert split.y.tolist() == [2] * 5
    data = TensorDataset(X, Y)
    assert len(as_split(DataLoader(data, batch_size=2, sampler=RandomSampler(data, num_samples=5)))) == 5


def test_the_collate_function_is_the_users():
    def flipped(rows):
        return torch.stack([x for x, _ in rows]).flip(1), torch.tensor([int(y) for _, y in rows])

    split = as_split(DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True, collate_fn=flipped))
    assert torch.equal(split.x, X.flip(1))


def test_reading_a_loader_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    as_split(DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True))
    as_split(Rows())
    assert torch.equal(torch.get_rng_state(), before)


def test_tensors_are_not_copied_but_arrays_are():
    assert as_split((X, Y)).x.data_ptr() == X.data_ptr()
    array = np.zeros((4, 2), dtype=np.float32)
    split = as_split((array, np.zeros(4, dtype=np.int64)))
    array[:] = 1
    assert float(split.x.sum()) == 0


NAN = X.clone()
NAN[5, 1] = float("nan")


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ((X, Y[:7]), ValueError, "x has 8 rows and y has 7"),
        ((X,), ValueError, "1 parts; give two"),
        (X, TypeError, r"data is a Tensor; give \(x, y\)"),
        (None, TypeError, "data is a NoneType"),
        ((X, [1] * 8), TypeError, "a list; give tensors or NumPy arrays"),
        ((X[:0], Y[:0]), ValueError, "no rows"),
        ((NAN, Y), ValueError, r"x holds NaN or infinity in 1 of 8 rows \(first: row 5\)"),
        ((X, torch.tensor([0.0] * 7 + [float("inf")])), ValueError, "y holds NaN or infinity .*row 7"),
        ((X, Y, W[:5]), ValueError, r"weights has shape \(5,\).*\(8,\)"),
        ((X, Y, W - 0.5), ValueError, r"weights\[0\] is -0.5; .*>= 0"),
        ((X, Y, W / 0), ValueError, r"weights\[0\] is nan"),
        (DataLoader(TensorDataset(X), batch_size=2), ValueError, r"batches must be \(x, y\)"),
        (DataLoader(X, batch_size=2), ValueError, r"batches must be \(x, y\)"),
        ((X, torch.tensor(1.0)), ValueError, "first dimension"),
    ],
)
def test_bad_data_error(data, kind, message):
    with pytest.raises(kind, match=message):
        as_split(data)


# Split


def test_take_and_to_keep_rows_together():
    rows = Split(X, Y, W).take(torch.tensor([5, 1])).to("cpu")
    assert len(rows) == 2
    assert torch.equal(rows.x, X[[5, 1]])
    assert rows.y.tolist() == [5, 1]
    assert torch.equal(rows.weights, W[[5, 1]])


def test_a_split_holds_tensors_error():
    with pytest.raises(TypeError, match="x is a ndarray; a Split holds tensors"):
        Split(X.numpy(), Y)


# choosing rows


LABELS = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100, generator=rng(3))]


@pytest.mark.parametrize(("k", "counts"), [(3, [1, 1, 1]), (30, [10, 10, 10]), (60, [20, 20, 20]), (80, [30, 30, 20])])
def test_balanced_takes_classes_equally_while_they_last(k, counts):
    chosen = balanced_indices(LABELS, k, rng())
    assert LABELS[chosen].bincount().tolist() == counts
    assert torch.equal(chosen, chosen.unique())


def test_balanced_with_a_remainder_differs_by_one():
    assert sorted(LABELS[balanced_indices(LABELS, 10, rng())].bincount().tolist()) == [3, 3, 4]


def test_a_larger_balanced_choice_only_adds_rows():
    small, large = (set(balanced_indices(LABELS, k, rng()).tolist()) for k in (17, 41))
    assert small < large


@pytest.mark.parametrize("k", [1, 10, 33, 50])
def test_stratified_follows_the_shares_within_one_row(k):
    counts = LABELS[stratified_indices(LABELS, k, rng())].bincount(minlength=3)
    assert int(counts.sum()) == k
    assert (counts - k * torch.tensor([0.5, 0.3, 0.2])).abs().max() <= 1


def test_stratified_never_takes_the_last_row_of_a_class():
    labels = torch.tensor([0] * 10 + [1] + [2] * 2)
    left = torch.ones(13, dtype=torch.bool)
    left[stratified_indices(labels, 10, rng())] = False
    assert labels[left].tolist() == [0, 1, 2]


def test_subset_of_real_targets_and_of_classes():
    rows = Split(torch.arange(100.0)[:, None], torch.arange(100.0))
    small = subset(rows, 10, seed=1)
    assert torch.equal(small.x[:, 0], small.y)
    assert torch.equal(small.y, small.y.unique())
    assert torch.equal(small.y, subset(rows, 10, seed=1).y)
    assert not torch.equal(small.y, subset(rows, 10, seed=2).y)
    assert subset(Split(torch.zeros(100, 1), LABELS), 9).y.bincount().tolist() == [3, 3, 3]


@pytest.mark.parametrize("k", [0, 101])
def test_subset_size_error(k):
    with pytest.raises(ValueError, match=f"a subset of {k} rows .* 1 to 100"):
        subset(Split(torch.zeros(100, 1), LABELS), k)


@pytest.mark.parametrize(
    "indices",
    [
        torch.tensor([3, 0, 3]),
        torch.tensor([-1, 2]),
        torch.arange(6) % 2 == 0,
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([], dtype=torch.int64),
    ],
)
@pytest.mark.parametrize("layout", ["rows", "columns first", "channels last", "one number", "standardised"])
def test_taken_rows_are_those_of_indexing(layout: str, indices: torch.Tensor) -> None:
    x = torch.randn(6, 3, 4, 5)
    x = {
        "rows": x,
        "columns first": x.transpose(1, 3),
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "one number": x[:, 0, 0, 0].contiguous(),
        "standardised": Standardiser.fit(x).apply(x),
    }[layout]
    taken = Split(x, torch.arange(6)).take(indices)
    assert torch.equal(taken.x, x[indices])
    assert taken.x.stride() == x[indices].stride()
    assert type(taken.x) is type(x)
    with pytest.raises(IndexError):
        Split(x, torch.arange(6)).take(torch.tensor([6]))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_rows_on_another_device_are_taken_without_looking_at_the_indices(device: str) -> None:
    """The device without values stands for all of them: a look at a number on it raises."""
    rows = Split(torch.empty(6, 3, device="meta"), torch.empty(6, device="meta"))
    assert rows.take(torch.tensor([3, 0], device=device)).x.shape == (2, 3)
