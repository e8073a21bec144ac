import numpy as np
import pytest
import torch

from pyro_bnn.data import load_data
from pyro_bnn.data.make_mini import draw, main
from pyro_bnn.data.sources import DATASETS, Source, data_root, read_source
from pyro_bnn.data.split import subset


def images(n, k=3, seed=0, shape=(6, 5)):
    """Images whose pixels tell class and row, so that a mixed-up row shows."""
    y = np.arange(n) % k
    x = np.random.default_rng(seed).integers(0, 256, (n, *shape)).astype(np.uint8)
    return x, y


def write(path, **changes):
    x_train, y_train = images(60)
    x_test, y_test = images(30, seed=1)
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def table(path, n=50, d=3, **changes):
    random = np.random.default_rng(0)
    x = random.normal(3, 2, (n, d))
    split = np.ones((4, n), dtype=np.int8)
    for k in range(4):
        split[k, k * 5 : (k + 1) * 5] = 2
    np.savez(path, **({"x": x, "y": x.sum(1) * 10, "split": split} | changes))
    return path


# mnist-mini


def test_mnist_mini_is_balanced_and_whole():
    data = load_data("mnist-mini", standardise=False)
    assert data.train.y.bincount().tolist() == [500] * 10
    assert data.test.y.bincount().tolist() == [100] * 10
    assert data.train.x.shape == (5000, 1, 28, 28)
    assert data.test.x.shape == (1000, 1, 28, 28)
    assert data.train.x.dtype == torch.float32
    assert (float(data.train.x.min()), float(data.train.x.max())) == (0.0, 1.0)
    assert (data.num_classes, data.num_outputs, data.input_shape) == (10, 10, (1, 28, 28))
    assert (data.name, data.task, data.class_names) == ("mnist-mini", "classification", tuple("0123456789"))
    assert data.standardiser is None
    assert data.y_standardiser is None
    assert data.val is None
    # no image twice, so none in both train and test
    everything = torch.cat([data.train.x, data.test.x]).flatten(1)
    assert len(everything.unique(dim=0)) == 6000


def test_mnist_mini_looks_like_digits():
    """A nearest-class-mean rule on real MNIST gets 82 %; on anything mislabelled it gets 10 %."""
    data = load_data("mnist-mini")
    means = torch.stack([data.train.x[data.train.y == k].flatten(1).mean(0) for k in range(10)])
    guess = torch.cdist(data.test.x.flatten(1), means).argmin(1)
    assert float((guess == data.test.y).float().mean()) > 0.75


def test_mnist_mini_does_not_depend_on_the_data_root(tmp_path):
    write(tmp_path / "mnist-mini.npz")
    assert len(load_data("mnist-mini", root=tmp_path).train) == 5000


def test_drawing_is_balanced_repeats_and_keeps_rows_with_their_labels():
    y = np.arange(300) % 10
    x = np.repeat(np.arange(300) % 256, 4).reshape(300, 2, 2).astype(np.uint8)
    mnist = Source("mnist", x, y, 255 - x[:100], y[:100])
    arrays = draw(mnist, 100, 40)
    assert np.bincount(arrays["y_train"]).tolist() == [10] * 10
    assert np.bincount(arrays["y_test"]).tolist() == [4] * 10
    assert arrays["x_train"].dtype == arrays["y_train"].dtype == np.uint8
    rows = arrays["x_train"][:, 0, 0].astype(int)
    assert set(zip(rows, arrays["y_train"], strict=True)) <= {(i % 256, i % 10) for i in range(300)}
    rows = arrays["x_test"][:, 0, 0].astype(int)
    assert set(zip(rows, arrays["y_test"], strict=True)) <= {(255 - i, i % 10) for i in range(100)}
    again = draw(mnist, 100, 40)
    assert all(np.array_equal(arrays[key], again[key]) for key in arrays)


def test_the_tool_writes_the_file(tmp_path, capsys):
    x, y = images(6000, k=10, shape=(2, 2))
    write(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:1500], y_test=y[:1500])
    main(["--root", str(tmp_path), "--out", str(tmp_path / "mini.npz")])
    assert "mini.npz" in capsys.readouterr().out
    data = load_data(tmp_path / "mini.npz")
    assert (len(data.train), len(data.test)) == (5000, 1000)


# lookup


def test_known_names():
    embedded = {"mnist-mini", "and", "toy-line", "toy-cubic"}
    assert {*embedded, "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"} == set(DATASETS)
    assert [name for name in embedded if not len(load_data(name, root="nowhere", download=False).test)] == []


def test_root_is_the_argument_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("PYRO_BNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "pyro_bnn"
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path / "variable"))
    assert data_root() == tmp_path / "variable"
    assert data_root(tmp_path / "argument") == tmp_path / "argument"


def test_a_file_in_the_root_goes_before_torchvision(tmp_path, monkeypatch):
    write(tmp_path / "cifar10.npz", class_names=np.array(["a", "b", "c"]))
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))
    data = load_data("cifar10")
    assert len(data.train) == 60
    assert data.class_names == ("a", "b", "c")


def test_any_file_in_the_root_is_data_by_its_name(tmp_path):
    write(tmp_path / "mine.npz")
    assert load_data("mine", root=tmp_path).name == "mine"
    assert load_data(str(tmp_path / "mine.npz")).name == "mine"


def idx(path, array):
    """MNIST's own file format: two zero bytes, type 8 (uint8), number of dimensions, sizes as big-endian int32."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def test_torchvision_files_in_the_root_are_read(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", 40), ("t10k", 20)):
        x, y = images(n, k=10, shape=(28, 28))
        idx(raw / f"{part}-images-idx3-ubyte", x)
        idx(raw / f"{part}-labels-idx1-ubyte", y)
    data = load_data("fashion-mnist", root=tmp_path, download=False, standardise=False)
    x, y = images(40, k=10, shape=(28, 28))
    torch.testing.assert_close(data.train.x[:, 0], torch.from_numpy(x) / 255)
    assert data.train.y.tolist() == y.tolist()
    assert len(data.test) == 20
    assert data.class_names[9] == "Ankle boot"


class FakeSVHN:
    """torchvision's interface: NCHW images in .data, labels in .labels; RuntimeError when the files are not there."""

    downloads = 0

    def __init__(self, root, split, download):
        if not download:
            raise RuntimeError("Dataset not found or corrupted")
        type(self).downloads += 1
        n = {"train": 40, "test": 20}[split]
        self.data, self.labels = images(n, k=10, shape=(3, 8, 8))


def test_a_download_is_kept_in_the_root_and_read_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.SVHN", FakeSVHN)
    monkeypatch.setattr(FakeSVHN, "downloads", 0)
    root = tmp_path / "not" / "there"
    first = load_data("svhn", root=root)
    assert [path.name for path in root.iterdir()] == ["svhn.npz"]
    second = load_data("svhn", root=root)
    assert FakeSVHN.downloads == 2  # train and test, once
    assert torch.equal(first.train.x, second.train.x)
    assert first.class_names == second.class_names == tuple("0123456789")
    assert first.input_shape == (3, 8, 8)


@pytest.mark.parametrize("error", [OSError("no network"), RuntimeError("Error downloading x:\nTried y")])
def test_a_failed_download_gives_one_line_and_leaves_nothing(tmp_path, monkeypatch, error):
    def fail(root, split, download):
        raise error if download else RuntimeError("not found")

    monkeypatch.setattr("torchvision.datasets.SVHN", fail)
    with pytest.raises(
        FileNotFoundError, match=r"svhn .* download failed \(.*\): put svhn.npz .* --data-root"
    ) as caught:
        load_data("svhn", root=tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_no_download_wanted_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"mnist is not in the data root and downloading is off: put mnist.npz"):
        load_data("mnist", root=tmp_path / "none", download=False)
    assert not (tmp_path / "none").exists()


# shapes and dtypes


@pytest.mark.parametrize(
    ("stored", "loaded", "axes"),
    [
        ((60, 6, 5), (1, 6, 5), None),
        ((60, 6, 5, 3), (3, 6, 5), (0, 3, 1, 2)),
        ((60, 6, 5, 1), (1, 6, 5), (0, 3, 1, 2)),
        ((60, 3, 6, 5), (3, 6, 5), (0, 1, 2, 3)),
        ((60, 1, 6, 5), (1, 6, 5), (0, 1, 2, 3)),
        ((60, 3, 6, 3), (3, 6, 3), (0, 1, 2, 3)),
        ((60, 16, 6, 5), (16, 6, 5), (0, 1, 2, 3)),
    ],
)
def test_images_become_nchw(tmp_path, stored, loaded, axes):
    x = np.random.default_rng(0).integers(0, 256, stored).astype(np.uint8)
    data = load_data(write(tmp_path / "a.npz", x_train=x, x_test=x[:30]), standardise=False)
    assert data.input_shape == loaded
    expected = x[:, None] if axes is None else x.transpose(axes)
    torch.testing.assert_close(data.train.x, torch.from_numpy(expected.copy()) / 255)
    assert data.train.x.is_contiguous()


def test_float_images_keep_their_scale(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 6, 5))
    data = load_data(write(tmp_path / "a.npz", x_train=x, x_test=x[:30]), standardise=False)
    torch.testing.assert_close(data.train.x[:, 0], torch.from_numpy(x).float())


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.uint16, np.int64, np.float32, np.float64, ">i4"])
def test_labels_of_any_integral_kind(tmp_path, dtype):
    _, y = images(60)
    data = load_data(write(tmp_path / "a.npz", y_train=y.astype(dtype), y_test=y[:30].astype(dtype)[:, None]))
    assert data.train.y.dtype == data.test.y.dtype == torch.int64
    assert data.train.y.tolist() == y.tolist()
    assert data.test.y.shape == (30,)
    assert (data.task, data.num_classes, data.class_names) == ("classification", 3, ("0", "1", "2"))


def test_task_is_told_by_the_targets_the_file_or_the_argument(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 4))
    whole, real = np.arange(60) % 3, np.linspace(0, 1, 60)

    def task(y, told=None, **keys):
        path = write(tmp_path / "a.npz", x_train=x, x_test=x[:30], y_train=y, y_test=y[:30], **keys)
        return load_data(path, task=told).task

    assert task(whole) == "classification"
    assert task(whole.astype(bool)) == "classification"
    assert task(real) == "regression"
    assert task(whole.astype(float)) == "regression"
    assert task(whole, told="regression") == "regression"
    assert task(whole.astype(float), told="classification") == "classification"
    assert task(whole, **{"task": np.array("regression")}) == "regression"
    assert task(whole.astype(float), class_names=np.array(["a", "b", "c"])) == "classification"


# splits


def test_standardised_by_train_without_validation_and_test(tmp_path):
    path = write(tmp_path / "a.npz")
    raw = load_data(path, val_fraction=0.25, seed=3, standardise=False)
    data = load_data(path, val_fraction=0.25, seed=3)
    mean, sd = raw.train.x.double().mean(), raw.train.x.double().std(correction=0)
    assert float(data.standardiser.mean[0]) == pytest.approx(float(mean), rel=1e-6)
    for one, other in ((data.train, raw.train), (data.val, raw.val), (data.test, raw.test)):
        torch.testing.assert_close(one.x, ((other.x - mean) / sd).float())
        assert torch.equal(one.y, other.y)
    assert float(data.train.x.mean()) == pytest.approx(0, abs=1e-6)
    assert abs(float(data.val.x.mean())) > 1e-4  # its own mean, not 0


def test_changing_test_or_validation_rows_changes_no_training_input(tmp_path):
    before = load_data(write(tmp_path / "a.npz"), val_fraction=0.25)
    x, _ = images(60)
    rows = {tuple(row.tolist()) for row in before.standardiser.invert(before.val.x).mul(255).round().int().flatten(1)}
    held_out = np.array([tuple(row.reshape(-1).tolist()) in rows for row in x])
    assert held_out.sum() == 15
    x[held_out] = 0
    after = load_data(write(tmp_path / "a.npz", x_train=x, x_test=images(30, seed=9)[0] // 2), val_fraction=0.25)
    assert torch.equal(after.train.x, before.train.x)
    assert not torch.equal(after.test.x, before.test.x)


def test_validation_comes_out_of_train_by_class_and_by_seed(tmp_path):
    path = write(tmp_path / "a.npz")
    whole = load_data(path, standardise=False).train
    data = load_data(path, val_fraction=0.2, seed=1, standardise=False)
    assert data.val.y.bincount().tolist() == [4, 4, 4]
    assert data.train.y.bincount().tolist() == [16, 16, 16]
    together = torch.cat([data.train.x, data.val.x]).flatten(1)
    assert torch.equal(together.unique(dim=0), whole.x.flatten(1).unique(dim=0))
    assert len(together) == len(together.unique(dim=0)) == 60
    assert len(data.test) == 30
    again, other = (load_data(path, val_fraction=0.2, seed=s, standardise=False) for s in (1, 2))
    assert torch.equal(again.val.x, data.val.x)
    assert not torch.equal(other.val.x, data.val.x)


def test_loading_leaves_the_global_random_state_alone(tmp_path):
    before = torch.get_rng_state()
    load_data(write(tmp_path / "a.npz"), val_fraction=0.2, train_size=30)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_stay_with_their_rows(tmp_path):
    x, _ = images(60)
    weights = x.reshape(60, -1).sum(1) / 1e4
    data = load_data(write(tmp_path / "a.npz", weights_train=weights), val_fraction=0.2, standardise=False)
    for rows in (data.train, data.val):
        torch.testing.assert_close(rows.weights, rows.x.flatten(1).sum(1) * 255 / 1e4)
    assert data.test.weights is None


def test_sizes_are_taken_before_validation_and_standardisation(tmp_path):
    path = write(tmp_path / "a.npz")
    data = load_data(path, train_size=30, test_size=6, val_fraction=0.2)
    assert data.train.y.bincount().tolist() == [8, 8, 8]
    assert data.val.y.bincount().tolist() == [2, 2, 2]
    assert data.test.y.bincount().tolist() == [2, 2, 2]
    assert float(data.train.x.mean()) == pytest.approx(0, abs=1e-6)
    assert float(data.train.x.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_out_of_distribution_images_on_the_other_sets_scale(tmp_path):
    home = load_data(write(tmp_path / "a.npz"))
    x, _ = images(60, seed=7)
    away = load_data(write(tmp_path / "b.npz", x_train=x, x_test=x[:30]), standardise=home.standardiser)
    raw = load_data(tmp_path / "b.npz", standardise=False)
    torch.testing.assert_close(away.test.x, home.standardiser.apply(raw.test.x))
    assert away.standardiser is home.standardiser


def test_to_moves_every_split(tmp_path):
    data = load_data(write(tmp_path / "a.npz", weights_train=np.ones(60)), val_fraction=0.2).to("meta")
    for rows in (data.train, data.val, data.test):
        assert rows.x.device.type == rows.y.device.type == "meta"


# regression


def test_table_with_stored_splits(tmp_path):
    path = table(tmp_path / "uci.npz")
    with np.load(path) as file:
        x, y, split = file["x"], file["y"], file["split"]
    for k in (0, 3):
        data = load_data(path, split=k)
        assert (data.task, data.num_classes, data.num_outputs, data.input_shape) == ("regression", None, 1, (3,))
        train_x, train_y = x[split[k] == 1], y[split[k] == 1]
        mean, sd = train_x.mean(0), train_x.std(0)
        np.testing.assert_allclose(data.test.x, (x[split[k] == 2] - mean) / sd, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            data.test.y, (y[split[k] == 2] - train_y.mean()) / train_y.std(), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(data.y_standardiser.invert(data.train.y), train_y, rtol=1e-5)
        assert data.train.x.dtype == data.train.y.dtype == torch.float32
    assert torch.equal(load_data(path).test.x, load_data(path, split=0).test.x)


def test_target_standardiser_is_fitted_after_validation_is_out(tmp_path):
    path = table(tmp_path / "uci.npz")
    raw = load_data(path, val_fraction=0.2, standardise=False)
    data = load_data(path, val_fraction=0.2)
    assert (len(data.train), len(data.val), len(data.test)) == (36, 9, 5)
    assert float(data.y_standardiser.mean) == pytest.approx(float(raw.train.y.mean()), rel=1e-5)
    torch.testing.assert_close(data.y_standardiser.invert(data.val.y), raw.val.y, rtol=1e-5, atol=1e-4)


def test_offsets_far_larger_than_the_spread_keep_their_digits(tmp_path):
    x = 1e8 + np.arange(50.0)[:, None]
    data = load_data(table(tmp_path / "a.npz", x=x), standardise=True)
    assert len(data.train.x.unique()) == 45


def test_weights_of_a_table_follow_its_split(tmp_path):
    data = load_data(table(tmp_path / "a.npz", weights=np.arange(50.0)), split=1)
    assert data.train.weights.tolist() == [w for w in range(50) if not 5 <= w < 10]


def test_several_targets(tmp_path):
    y = np.random.default_rng(0).normal(5, [1, 10], (50, 2))
    data = load_data(table(tmp_path / "a.npz", y=y))
    assert data.num_outputs == 2
    assert data.y_standardiser.mean.shape == (2,)
    torch.testing.assert_close(data.train.y.mean(0), torch.zeros(2), atol=1e-6, rtol=0)


def test_read_source_gives_what_was_stored(tmp_path):
    source = read_source(write(tmp_path / "a.npz"))
    assert source.x_train.dtype == np.uint8
    assert source.x_train.shape == (60, 6, 5)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3), (3, 6, 5)])
def test_images_become_floats_after_their_rows_are_taken(tmp_path, shape):
    """The same numbers, in the same layout, as rows taken from all images as floats."""
    x_train, y_train = images(60, shape=shape)
    x_test, y_test = images(30, seed=1, shape=shape)
    path = write(tmp_path / "a.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    everything = load_data(path, standardise=False)
    assert everything.train.x.is_contiguous()
    assert float(everything.train.x.max()) == 1
    few = load_data(path, train_size=24, test_size=12, seed=3, standardise=False)
    for part, k in (("train", 24), ("test", 12)):
        expected = subset(getattr(everything, part), k, seed=3)
        found = getattr(few, part)
        assert torch.equal(found.x, expected.x)
        assert torch.equal(found.y, expected.y)
        assert found.x.stride() == expected.x.contiguous().stride()
