"""What is standardised says so, and what is computed from it does not pretend to."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from pyro_bnn.data import Standardised, Standardiser, as_split, load_data
from pyro_bnn.data.standardise import Computed, plain, same_scale, standardiser_of

RAW = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)) * 5 + 7
SCALE = Standardiser.fit(RAW)

MOVED: dict[str, Any] = {
    "a slice": lambda x: x[:4],
    "a row": lambda x: x[3],
    "an index": lambda x: x[torch.tensor([1, 2])],
    "a mask": lambda x: x[RAW[:, 0] > 7],
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x[0], x[1]]),
    "to": lambda x: x.to(torch.float64),
    "double": lambda x: x.double(),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "transpose": lambda x: x.T,
    "split": lambda x: x.split(5)[1],
    "iteration": lambda x: list(x)[2],
    "reshape": lambda x: x.reshape(-1, 3),
    "flip": lambda x: x.flip(0),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "collation": lambda x: default_collate([x[0], x[1]]),
}
COMPUTED: dict[str, Any] = {
    "noise": lambda x: x + torch.randn_like(x),
    "inverted by hand": lambda x: x * SCALE.sd.float() + SCALE.mean.float(),
    "made like it": torch.randn_like,
    "masked": lambda x: torch.where(x > 0, x, 0),
    "clamped": lambda x: x.clamp(-1, 1),
    "with raw rows": lambda x: torch.cat([x, RAW]),
    "two scales": lambda x: torch.cat([x, Standardiser.fit(RAW + 1).apply(RAW)]),
}


@pytest.mark.parametrize("way", MOVED)
def test_what_is_moved_is_still_standardised(way: str) -> None:
    found = MOVED[way](SCALE.apply(RAW))
    assert type(found) is Standardised
    assert standardiser_of(found) is not None
    assert same_scale(standardiser_of(found), SCALE)


@pytest.mark.parametrize("way", COMPUTED)
def test_what_is_computed_is_of_no_known_scale(way: str) -> None:
    assert type(COMPUTED[way](SCALE.apply(RAW))) is Computed


def test_changes_in_place_take_the_mark_away() -> None:
    for change in (lambda x: x.add_(1), lambda x: x.__setitem__(0, 3.0), lambda x: x.__imul__(2)):
        x = SCALE.apply(RAW)
        change(x)
        assert type(x) is Computed


def test_all_else_is_plain() -> None:
    x = SCALE.apply(RAW)
    for found in (x.mean(), x @ torch.ones(3, 2), x > 0, x.argmax(1), plain(x), SCALE.invert(x)):
        assert type(found) is Tensor
    assert plain(x).data_ptr() == x.data_ptr()
    assert f"{x[0, 0]:.2f}" == f"{float(x[0, 0]):.2f}"
    torch.testing.assert_close(SCALE.invert(x), RAW)
    with pytest.raises(ValueError, match="standardised already"):
        SCALE.apply(x)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_batches_of_a_loader_say_it(workers: int) -> None:
    loader = DataLoader(TensorDataset(SCALE.apply(RAW), torch.arange(20)), batch_size=7, num_workers=workers)
    for x, index in loader:
        assert type(x) is Standardised
        torch.testing.assert_close(x.standardiser.invert(x), RAW[index])
    assert type(as_split(loader).x) is Standardised


def test_loaded_rows_say_it() -> None:
    data = load_data("toy-cubic", val_fraction=0.2)
    assert data.val is not None
    for rows in (data.train, data.val, data.test):
        assert same_scale(standardiser_of(rows.x), data.standardiser)
        assert same_scale(standardiser_of(rows.y), data.y_standardiser)
    plain_rows = load_data("toy-cubic", standardise=False)
    assert type(plain_rows.test.x) is Tensor
    torch.testing.assert_close(data.test.x.standardiser.invert(data.test.x), plain_rows.test.x)  # type: ignore[attr-defined]
