"""Bad input at the door of the data: each one clear line that names the value, what is allowed and the remedy."""

import re

import numpy as np
import pytest

from pyro_bnn.data import load_data

Y = np.arange(60) % 3
X = np.random.default_rng(0).integers(0, 256, (60, 6, 5)).astype(np.uint8)
GOOD = {"x_train": X, "y_train": Y, "x_test": X[:30], "y_test": Y[:30]}
TABLE = {"x": X.reshape(60, -1) / 255, "y": np.linspace(0, 1, 60), "split": np.where(np.arange(60) < 50, 1, 2)[None]}


def changed(array, index, value):
    array = np.array(array, dtype=np.float64 if isinstance(value, float) else None)
    array[index] = value
    return array


def without(key):
    return {k: v for k, v in GOOD.items() if k != key}


BAD_FILES = {
    "missing key": (without("y_test"), "lacks y_test .*it holds x_train, y_train, x_test.*allowed are"),
    "no keys": ({}, "lacks x_train, y_train, x_test, y_test .*it holds nothing"),
    "misspelt weights": (GOOD | {"weight_train": np.ones(60)}, "unknown key 'weight_train'.*optional weights_train"),
    "both layouts": (GOOD | {"split": TABLE["split"]}, "lacks x, y"),
    "more labels": (GOOD | {"y_train": Y[:59]}, "x_train has 60 rows and y_train has 59; give one target per row"),
    "test length": (GOOD | {"x_test": X[:7]}, "x_test has 7 rows and y_test has 30"),
    "no rows": (GOOD | {"x_test": X[:0], "y_test": Y[:0]}, "x_test has no rows"),
    "other image size": (
        GOOD | {"x_test": X[:30, :4]},
        r"\(1, 6, 5\) and rows of x_test \(1, 4, 5\); they must be the same",
    ),
    "flat inputs": (GOOD | {"x_train": X[:, 0, 0]}, r"x_train has shape \(60,\); give a table \(N, D\) or images"),
    "empty dimension": (GOOD | {"x_train": X[:, :0]}, r"\(60, 0, 5\); every dimension needs at least one"),
    "text": (GOOD | {"x_train": X.astype(str)}, r"x_train holds <U3; give real numbers"),
    "complex": (GOOD | {"x_train": X * 1j}, r"x_train holds complex128; give real numbers"),
    "NaN pixel": (
        GOOD | {"x_train": changed(X, (7, 2, 2), np.nan)},
        r"x_train holds NaN or infinity in 1 of 60 .*row 7\)",
    ),
    "infinite pixel": (GOOD | {"x_test": changed(X[:30], (4, 0, 0), np.inf)}, "x_test holds NaN or infinity .*row 4"),
    "float64 beyond float32": (
        GOOD | {"x_train": changed(X, (3, 0, 0), 1e300)},
        "x_train holds NaN or infinity .*row 3",
    ),
    "NaN label": (GOOD | {"y_train": changed(Y, 5, np.nan)}, "y_train holds NaN or infinity .*row 5"),
    "fractional label": (
        GOOD | {"y_train": changed(Y, 5, 1.5)},
        r"y_train\[5\] is 1.5; class labels are whole numbers",
    ),
    "negative label": (GOOD | {"y_train": changed(Y, 5, -1)}, r"y_train\[5\] is -1; class labels must lie in 0..2"),
    "label out of range": (
        GOOD | {"y_test": changed(Y[:30], 5, 3)},
        r"y_test\[5\] is 3; class labels must lie in 0..2",
    ),
    "label beyond class_names": (
        GOOD | {"class_names": np.array(["a", "b"])},
        r"y_train\[2\] is 2; class labels must lie in 0..1.*class_names",
    ),
    "class name without rows": (GOOD | {"class_names": np.array(list("abcd"))}, "class 3 has no row in y_train"),
    "labels from 1": (GOOD | {"y_train": Y + 1}, "class 0 has no row in y_train .*relabel the classes 0..K-1"),
    "label gap": (
        GOOD | {"y_train": np.where(Y == 1, 3, Y)},
        r"class 1 has no row in y_train \(3 of 4 classes have one\)",
    ),
    "huge label": (GOOD | {"y_train": changed(Y, 0, 10**15)}, "has no row in y_train"),
    "one class": (GOOD | {"y_train": 0 * Y, "y_test": 0 * Y[:30]}, "single class 0; classification needs at least two"),
    "one-hot labels": (
        GOOD | {"y_train": np.eye(3, dtype=int)[Y], "y_test": np.eye(3, dtype=int)[Y[:30]]},
        r"argmax\(1\)",
    ),
    "labels of three dimensions": (
        GOOD | {"y_train": Y.reshape(60, 1, 1)},
        r"y_train has shape \(60, 1, 1\); give labels",
    ),
    "targets of two widths": (
        GOOD | {"y_train": np.eye(3)[Y]},
        r"rows of y_train have shape \(3,\) and rows of y_test \(\)",
    ),
    "negative weight": (GOOD | {"weights_train": changed(np.ones(60), 9, -2.0)}, r"weights_train\[9\] is -2.0; .*>= 0"),
    "NaN weight": (GOOD | {"weights_train": changed(np.ones(60), 9, np.nan)}, r"weights_train\[9\] is nan"),
    "too few weights": (GOOD | {"weights_train": np.ones(59)}, r"weights_train has shape \(59,\).*shape \(60,\)"),
    "unknown task": (GOOD | {"task": np.array("ranking")}, "task is 'ranking'; allowed are"),
    "table without targets": ({"x": TABLE["x"], "split": TABLE["split"]}, "lacks y "),
    "split of other length": (TABLE | {"split": TABLE["split"][:, :40]}, r"split \(1, 40\); they must be .*\(R, N\)"),
    "flat split": (TABLE | {"split": TABLE["split"][0]}, r"split \(60,\); they must be .*\(R, N\)"),
    "split code": (
        TABLE | {"split": changed(TABLE["split"], (0, 4), 0)},
        r"split\[0\] holds 0; every entry is 1 \(train\) or 2",
    ),
    "split without test": (TABLE | {"split": np.ones((1, 60), int)}, "x_test has no rows"),
    "table weights": (TABLE | {"weights": np.ones(3)}, r"weights has shape \(3,\).*\(60,\)"),
    "infinite in float32": (
        TABLE | {"x": changed(TABLE["x"].astype(float), (np.flatnonzero(TABLE["split"][0] == 2)[1], 0), 1e39)},
        r"x_test, in float32, holds NaN or infinity in 1 of .* \(first: row 1\)",
    ),
    "NaN target": (TABLE | {"y": changed(TABLE["y"], 8, np.nan)}, "y_train holds NaN or infinity .*row 8"),
}


@pytest.mark.parametrize(("arrays", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_file_error(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        load_data(tmp_path / "bad.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"val_fraction": 1.0}, r"val_fraction is 1.0; give a share .* in \[0, 1\)"),
        ({"val_fraction": -0.1}, "val_fraction is -0.1"),
        ({"val_fraction": float("nan")}, "val_fraction is nan"),
        ({"val_fraction": "half"}, "val_fraction is half"),
        ({"val_fraction": 0.001}, r"val_fraction=0.001 of 60 rows is 0; validation needs at least 1 row"),
        ({"val_fraction": 0.99}, r"val_fraction=0.99 of 60 rows is 59; .*at least 3 \(one per class\)"),
        ({"train_size": 2}, "train_size is 2; give a whole number from 3 to 60"),
        ({"train_size": 61}, "train_size is 61; give a whole number from 3 to 60"),
        ({"test_size": 0}, "test_size is 0; give a whole number from 1 to 30"),
        ({"test_size": 2.5}, "test_size is 2.5; give a whole number"),
        ({"split": 1}, "split=1 was given, but .* stores one split"),
        ({"task": "ranking"}, "task is 'ranking'; allowed are 'classification' and 'regression'"),
    ],
)
def test_bad_argument_error(tmp_path, call, message):
    np.savez(tmp_path / "good.npz", **GOOD)
    with pytest.raises(ValueError, match=message):
        load_data(tmp_path / "good.npz", **call)


@pytest.mark.parametrize("split", [-1, 1])
def test_split_out_of_range_error(tmp_path, split):
    np.savez(tmp_path / "uci.npz", **TABLE)
    with pytest.raises(ValueError, match=rf"split={split} is not in .*; it stores the splits 0..0"):
        load_data(tmp_path / "uci.npz", split=split)


def test_split_of_a_named_set_error():
    with pytest.raises(ValueError, match="split=2 was given, but cifar10 has only its standard one"):
        load_data("cifar10", root="nowhere", split=2)


def test_missing_file_error(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no data file .*none.npz; give the path of a .npz with the keys x_train"
    ):
        load_data(tmp_path / "none.npz")


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 broken"])
def test_unreadable_file_error(tmp_path, content):
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad.npz cannot be read as .npz .*numpy.savez"):
        load_data(tmp_path / "bad.npz")


def test_truncated_file_error(tmp_path):
    np.savez_compressed(tmp_path / "bad.npz", **GOOD)
    content = bytearray((tmp_path / "bad.npz").read_bytes())
    content[100:400] = bytes(300)  # a bad sector in the middle of the pixels
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be read as .npz"):
        load_data(tmp_path / "bad.npz")


def test_one_array_or_objects_in_the_file_error(tmp_path):
    with open(tmp_path / "one.npz", "wb") as file:
        np.save(file, X)
    with pytest.raises(ValueError, match="single array"):
        load_data(tmp_path / "one.npz")
    np.savez(tmp_path / "objects.npz", **(GOOD | {"y_train": np.array([None] * 60)}))
    with pytest.raises(ValueError, match=r"cannot be read as .npz .*numbers only"):
        load_data(tmp_path / "objects.npz")


@pytest.mark.parametrize(
    ("name", "near"), [("mnsit", "mnist"), ("fashion_mnist", "fashion-mnist"), ("CIFAR10", "cifar10")]
)
def test_unknown_name_lists_the_known_and_the_nearest_error(tmp_path, name, near):
    expected = rf"unknown data set '{name}'; did you mean '{re.escape(near)}'\?.* Known: mnist-mini, mnist, .*\.npz"
    with pytest.raises(ValueError, match=expected):
        load_data(name, root=tmp_path)


def test_unknown_name_far_from_all_error(tmp_path):
    with pytest.raises(ValueError, match=r"unknown data set 'xyz'\. Known: mnist-mini, "):
        load_data("xyz", root=tmp_path)
