"""Data sets whose training rows stay in their files: the rows, splits and scales of the same arrays in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn.data import Data, MappedRows, Split, load_data

RNG = np.random.default_rng(0)
TABLE = {
    "x_train": RNG.normal(3, 2, (60, 4)),
    "y_train": RNG.normal(5, 3, (60, 1)),
    "x_test": RNG.normal(3, 2, (9, 4)),
    "y_test": RNG.normal(5, 3, (9, 1)),
    "weights_train": RNG.random(60),
}
IMAGES = {
    "x_train": RNG.integers(0, 256, (50, 5, 6, 3)).astype(np.uint8),
    "y_train": np.arange(50) % 3,
    "x_test": RNG.integers(0, 256, (7, 5, 6, 3)).astype(np.uint8),
    "y_test": np.arange(7) % 3,
    "class_names": np.array(["a", "b", "c"]),
}


def kept(folder: Path, arrays: dict[str, Any]) -> Path:
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder.with_suffix(".npz"), **arrays)
    return folder


def rows_of(data: Data) -> list[Split]:
    train = data.train[:] if isinstance(data.train, MappedRows) else data.train
    return [train, data.test, *([] if data.val is None else [data.val])]


@pytest.mark.parametrize("arrays", [TABLE, IMAGES], ids=["table", "images"])
@pytest.mark.parametrize(
    "options", [{}, {"val_fraction": 0.2, "train_size": 30, "seed": 3}, {"standardise": False}, {"standardise": "x"}]
)
def test_rows_splits_and_scales_are_those_of_arrays_in_memory(
    tmp_path: Path, arrays: dict[str, Any], options: Any
) -> None:
    folder = kept(tmp_path / "set", arrays)
    memory = load_data(tmp_path / "set.npz", **options)
    for path in (folder, tmp_path / "set.npz"):
        disk = load_data(path, on_disk=True, **options)
        assert isinstance(disk.train, MappedRows)
        assert (disk.task, disk.class_names, disk.input_shape, disk.num_outputs) == (
            *(memory.task, memory.class_names, memory.input_shape),
            memory.num_outputs,
        )
        for one, other in zip(rows_of(memory), rows_of(disk), strict=True):
            for name in ("x", "y", "weights"):
                a, b = getattr(one, name), getattr(other, name)
                assert type(a) is type(b), name
                assert a is None or (a.dtype == b.dtype and torch.equal(a, b)), name
        index = torch.tensor([7, 0, 12])
        assert torch.equal(disk.train.take(index).x, memory.train.take(index).x)
        assert torch.equal(disk.first_rows(5).x, memory.first_rows(5).x)
        assert torch.equal(disk.train_targets(), memory.train_targets())


def test_what_cannot_stay_on_disk_is_refused(tmp_path: Path) -> None:
    folder = kept(tmp_path / "set", TABLE)
    np.savez_compressed(tmp_path / "packed.npz", **TABLE)
    for path, options, said in (
        (folder, {"target": "y"}, "target='y' is not for rows that stay on disk"),
        (tmp_path / "packed.npz", {}, "is compressed"),
        (tmp_path / "nothing", {}, "there is no"),
        ((1, 2), {}, "on_disk=True is for files"),
    ):
        with pytest.raises((ValueError, TypeError, FileNotFoundError), match=said):
            load_data(path, on_disk=True, **options)
    (folder / "y_test.npy").unlink()
    with pytest.raises(ValueError, match="lacks y_test"):
        load_data("set", root=tmp_path, on_disk=True)


def test_a_row_that_is_no_number_is_named_when_it_is_read(tmp_path: Path) -> None:
    x = TABLE["x_train"].copy()
    x[17] = np.nan
    folder = kept(tmp_path / "set", {**TABLE, "x_train": x})
    with pytest.raises(ValueError, match="x_train holds NaN"):
        load_data(folder, on_disk=True)
