"""Rows in mapped files: the arrays of the file, the rows of a batch, and what is refused."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pyro_bnn.common.errors import BadFile
from pyro_bnn.data import MappedRows, Standardised, Standardiser, mapped
from pyro_bnn.data.on_disk import map_npy

RNG = np.random.default_rng(0)
X, Y = RNG.normal(2, 3, (50, 3)).astype(np.float32), np.arange(50) % 4
W = RNG.random(50)


def folder_of(path: Path, **arrays: Any) -> Path:
    path.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "rows", x=X, y=Y, weights=W)


@pytest.mark.parametrize("kind", ["folder", "npz", "npz of parts"])
def test_the_rows_are_those_of_the_arrays(kind: str, folder: Path, tmp_path: Path) -> None:
    path = folder
    if kind == "npz":
        np.savez(path := tmp_path / "a.npz", x=X, y=Y, weights=W, class_names=np.array(["a", "b", "c", "d"]))
    if kind == "npz of parts":
        np.savez(path := tmp_path / "a.npz", x_train=X, y_train=Y, weights_train=W, x_test=X[:2], y_test=Y[:2])
    rows = mapped(path)
    assert len(rows) == 50
    assert isinstance(rows.x, np.memmap)
    order = torch.tensor([7, 3, 49, 3, 0])
    taken = rows.take(order)
    assert torch.equal(taken.x, torch.from_numpy(X)[order])
    assert torch.equal(taken.y, torch.from_numpy(Y)[order])
    assert taken.weights is not None
    assert torch.equal(taken.weights, torch.from_numpy(W)[order])
    assert torch.equal(torch.cat([piece.x for piece in rows.pieces(7)]), torch.from_numpy(X))
    assert torch.equal(rows[2:5].y, torch.from_numpy(Y[2:5]))


@pytest.mark.parametrize("dtype", [">f4", "<f8", "u1", ">i8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_numbers_in_any_order_are_read(tmp_path: Path, dtype: str, order: Any) -> None:
    values = RNG.integers(0, 2, (6, 4)).astype(dtype, order=order)
    np.save(tmp_path / "x.npy", values)
    read = MappedRows(map_npy(tmp_path / "x.npy"), Y[:6]).take(torch.tensor([5, 0]))
    assert torch.equal(read.x.double(), torch.from_numpy(values[[5, 0]].astype(np.float64)))


def test_a_loader_reads_batches(folder: Path) -> None:
    loader = DataLoader(mapped(folder), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    x, y, weights = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert sorted(weights.tolist()) == sorted(W.tolist())
    found = {(*row.tolist(), int(label)) for row, label in zip(x, y, strict=True)}
    assert found == {(*map(float, row), int(label)) for row, label in zip(X, Y, strict=True)}


def test_inputs_are_standardised_as_rows_in_memory_are(folder: Path) -> None:
    rows = mapped(folder).standardised()
    wanted = Standardiser.fit(torch.from_numpy(X))
    assert rows.standardiser is not None
    assert torch.allclose(rows.standardiser.mean, wanted.mean, rtol=1e-12)
    assert torch.allclose(rows.standardiser.sd, wanted.sd, rtol=1e-12)
    batch = rows.take(torch.arange(9))
    assert isinstance(batch.x, Standardised)
    assert torch.allclose(
        batch.x.as_subclass(torch.Tensor), wanted.apply(torch.from_numpy(X[:9])).as_subclass(torch.Tensor)
    )


def test_images_become_floats_batch_by_batch(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (9, 1, 4, 4)).astype(np.uint8)
    rows = mapped(folder_of(tmp_path / "images", x=images, y=Y[:9])).as_images()
    assert torch.equal(rows[:3].x, torch.from_numpy(images[:3]).float() / 255)
    assert rows.standardised().take(torch.arange(9)).x.abs().max() < 10
    with pytest.raises(TypeError, match="as_images"):
        MappedRows(X, Y).as_images()


def test_what_is_no_data_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="give a folder"):
        mapped(tmp_path / "nothing")
    with pytest.raises(ValueError, match="it needs x and y"):
        mapped(folder_of(tmp_path / "half", x=X))
    with pytest.raises(ValueError, match="x has 50 rows and y has 49"):
        mapped(folder_of(tmp_path / "short", x=X, y=Y[:49]))
    with pytest.raises(ValueError, match="no rows"):
        MappedRows(X[:0], Y[:0])
    with pytest.raises(TypeError, match="no array of numbers"):
        MappedRows(X, np.array(["a"] * 50))
    np.savez_compressed(tmp_path / "packed.npz", x=X, y=Y)
    with pytest.raises(BadFile, match="compressed"):
        mapped(tmp_path / "packed.npz")
    whole = (folder / "x.npy").read_bytes()
    for damaged in (whole[:-4], whole + b"more", b"nonsense"):
        (folder / "x.npy").write_bytes(damaged)
        with pytest.raises(BadFile):
            mapped(folder)
    np.save(folder / "x.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(BadFile, match="not numbers"):
        mapped(folder)


def test_an_archive_whose_local_header_is_longer_is_mapped(tmp_path: Path) -> None:
    """The place of an array follows from the header before it, whose extra field the directory need not have."""
    np.savez(tmp_path / "plain.npz", x=X, y=Y)
    with zipfile.ZipFile(tmp_path / "plain.npz") as plain, zipfile.ZipFile(tmp_path / "longer.npz", "w") as longer:
        for name in plain.namelist():
            with longer.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(plain.read(name))
    assert torch.equal(mapped(tmp_path / "longer.npz")[:].x, torch.from_numpy(X))
