"""Files that were read before: read once, never stale, never changed by who uses them."""

import os
import time

import numpy as np
import pytest
import torch

from pyro_bnn.data import kept, load_data, sources

HOUR = 3600 * 10**9


def write(path, seed, age=HOUR):
    random = np.random.default_rng(seed)
    arrays = {f"x_{part}": random.integers(0, 256, (30, 6, 5)).astype(np.uint8) for part in ("train", "test")}
    np.savez(path, **arrays, y_train=np.arange(30) % 3, y_test=np.arange(30) % 3)
    at = time.time_ns() - age
    os.utime(path, ns=(at, at))
    return path


@pytest.fixture
def reads(monkeypatch):
    """How often a file was read."""
    kept._read.cache_clear()
    paths, read = [], sources._checked
    monkeypatch.setattr(sources, "_checked", lambda path: paths.append(path) or read(path))
    yield paths
    kept._read.cache_clear()


def test_a_file_is_read_once(tmp_path, reads):
    path = write(tmp_path / "a.npz", 0)
    first, second = (load_data(path, standardise=False) for _ in range(2))
    assert len(reads) == 1
    torch.testing.assert_close(first.train.x, second.train.x, rtol=0, atol=0)


def test_what_one_reader_changes_no_other_sees(tmp_path, reads):
    path = write(tmp_path / "a.npz", 0)
    first = load_data(path, standardise=False)
    before = first.train.x.clone(), first.train.y.clone()
    first.train.x.zero_()
    first.train.y.zero_()
    second = load_data(path, standardise=False)
    assert len(reads) == 1
    assert torch.equal(second.train.x, before[0])
    assert torch.equal(second.train.y, before[1])


def test_arrays_are_read_only(tmp_path, reads):
    arrays = kept.arrays_of(write(tmp_path / "a.npz", 0), sources._checked)
    with pytest.raises(ValueError, match="read-only"):
        arrays["x_train"][0] = 0
    arrays.clear()
    assert kept.arrays_of(tmp_path / "a.npz", sources._checked)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_changed_file_is_read_again(tmp_path, reads, replaced):
    """The new file has the same size; replaced, it has the same time as well, as after `cp -p`."""
    path = write(tmp_path / "a.npz", 0)
    before = load_data(path, standardise=False).train.x
    old = path.stat()
    if replaced:
        write(tmp_path / "b.npz", 1)
        os.utime(tmp_path / "b.npz", ns=(old.st_mtime_ns, old.st_mtime_ns))
        (tmp_path / "b.npz").replace(path)
    else:
        write(path, 1, age=HOUR // 2)
    new = path.stat()
    assert (new.st_size, new.st_mtime_ns == old.st_mtime_ns) == (old.st_size, replaced)
    assert not torch.equal(load_data(path, standardise=False).train.x, before)
    assert len(reads) == 2


def test_what_changed_just_now_is_not_kept(tmp_path, reads):
    """Two versions of one size, written within a tick of the disk's clock, look the same."""
    path = write(tmp_path / "a.npz", 0, age=0)
    before = load_data(path, standardise=False).train.x
    at = path.stat().st_mtime_ns
    write(path, 1)
    os.utime(path, ns=(at, at))
    assert not torch.equal(load_data(path, standardise=False).train.x, before)


def test_large_files_are_not_kept(tmp_path, reads, monkeypatch):
    path = write(tmp_path / "a.npz", 0)
    monkeypatch.setattr(kept, "_LARGEST", path.stat().st_size - 1)
    kept.arrays_of(path, sources._checked)
    kept.arrays_of(path, sources._checked)
    assert len(reads) == 2


def test_a_file_that_is_gone_is_gone(tmp_path, reads):
    path = write(tmp_path / "a.npz", 0)
    load_data(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        load_data(path)
