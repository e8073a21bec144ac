import json

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_bnn.runs.predict_file import DONT_KNOW, predict_files, read_inputs


def pixels(n=3, shape=(6, 5), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


@pytest.fixture
def images(make_classifier):
    return make_classifier((1, 6, 5)).posterior


def expected(values):
    return torch.from_numpy(values.astype(np.float32))[:, None] / 255


def test_every_way_to_store_grey_images(tmp_path):
    x = pixels()
    np.save(tmp_path / "rows.npy", x)
    np.save(tmp_path / "one.npy", x[0])
    np.save(tmp_path / "channels.npy", x[:, None])
    np.save(tmp_path / "last.npy", x[..., None])
    np.save(tmp_path / "float.npy", x.astype(np.float64) / 255)
    np.savez(tmp_path / "x.npz", x=x, other=np.zeros(3))
    np.savez(tmp_path / "dataset.npz", x_test=x, y_test=np.zeros(3), x_train=x, y_train=np.zeros(3))
    np.savez(tmp_path / "single.npz", pictures=x)
    for name in ("rows.npy", "channels.npy", "last.npy", "float.npy", "x.npz", "dataset.npz", "single.npz"):
        names, found = read_inputs(tmp_path / name, (1, 6, 5))
        torch.testing.assert_close(found, expected(x))
        assert names == [f"{name}[{i}]" for i in range(3)]
    assert read_inputs(tmp_path / "one.npy", (1, 6, 5))[1].shape == (1, 1, 6, 5)


def test_images_and_folders(tmp_path):
    x = pixels()
    for i in (2, 0, 1):
        Image.fromarray(x[i]).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").write_text("not an image")
    names, found = read_inputs(tmp_path, (1, 6, 5))
    assert names == ["0.png", "1.png", "2.png"]
    torch.testing.assert_close(found, expected(x))
    names, found = read_inputs(tmp_path / "1.png", (1, 6, 5))
    torch.testing.assert_close(found, expected(x[1:2]))
    names, colour = read_inputs(tmp_path / "1.png", (3, 6, 5))
    assert colour.shape == (1, 3, 6, 5)


def test_colour_images_come_channels_first(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(x).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", x)
    one = torch.from_numpy(x).permute(2, 0, 1)[None] / 255
    torch.testing.assert_close(read_inputs(tmp_path / "a.png", (3, 6, 5))[1], one)
    torch.testing.assert_close(read_inputs(tmp_path / "a.npy", (3, 6, 5))[1], one)


def test_tables(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(8.0).reshape(2, 4))
    assert read_inputs(tmp_path / "t.npy", (4,))[1].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    np.save(tmp_path / "row.npy", np.arange(4.0))
    assert read_inputs(tmp_path / "row.npy", (4,))[1].shape == (1, 4)


def test_answers_are_those_of_the_posterior_on_standardised_inputs(images, tmp_path):
    x = pixels()
    np.save(tmp_path / "x.npy", x)
    rows = predict_files(images, tmp_path / "x.npy", threshold=0, num_samples=15, seed=2)
    inputs = images.standardise(expected(x))
    p = images.predict(inputs, 15, seed=2)
    parts = images.uncertainty(inputs, 15, seed=2)
    for i, row in enumerate(rows):
        assert list(row["probabilities"]) == ["ant", "bee", "cat"]
        assert list(row["probabilities"].values()) == pytest.approx(p[i].tolist(), abs=1e-6)
        assert row["answer"] == ["ant", "bee", "cat"][int(p[i].argmax())]
        assert row["probability"] == pytest.approx(float(p[i].max()), abs=1e-6)
        assert row["entropy"] == pytest.approx(float(parts.total[i]), abs=1e-6)
        assert row["epistemic"] == pytest.approx(float(parts.epistemic[i]), abs=1e-6)
    json.dumps(rows)


def test_below_the_threshold_it_does_not_know(images, tmp_path):
    np.save(tmp_path / "x.npy", pixels(20))
    sure = [r["probability"] for r in predict_files(images, tmp_path / "x.npy", threshold=0, num_samples=5)]
    middle = sorted(sure)[10]
    rows = predict_files(images, tmp_path / "x.npy", threshold=middle, num_samples=5)
    assert [r["answer"] == DONT_KNOW for r in rows] == [p < middle for p in sure]
    assert sum(r["answer"] == DONT_KNOW for r in rows) == 10


def test_numbers(numbers, tmp_path):
    np.save(tmp_path / "x.npy", numbers.x.numpy())
    rows = predict_files(numbers.posterior, tmp_path / "x.npy", num_samples=20, seed=1)
    prediction = numbers.posterior.predict(numbers.x, 20, seed=1)
    assert [r["mean"] for r in rows] == pytest.approx(prediction.mean.tolist())
    assert [r["sd"] for r in rows] == pytest.approx(prediction.sd.tolist())
    assert all(r["interval"][0] < r["mean"] < r["interval"][1] and r["epistemic"] < r["sd"] for r in rows)
    json.dumps(rows)


def test_mistakes_are_named(images, numbers, tmp_path):
    Image.fromarray(pixels(shape=(8, 9))[0]).save(tmp_path / "large.png")
    np.save(tmp_path / "wrong.npy", np.zeros((2, 7, 5)))
    np.save(tmp_path / "nan.npy", np.full((6, 5), np.nan))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    (tmp_path / "broken.npy").write_bytes(b"no array")
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "data.txt").write_text("1,2")
    (tmp_path / "data.csv").write_text("1,2")
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("large.png", "large.png is 9 x 8 pixels; this posterior takes 5 x 6"),
        ("wrong.npy", r"shape \(2, 7, 5\); this posterior takes inputs of shape \(1, 6, 5\)"),
        ("nan.npy", "NaN"),
        ("text.npy", "give numbers"),
        ("two.npz", "name the array of inputs 'x'"),
        ("broken.npy", "cannot be read"),
        ("broken.png", "cannot be read as an image"),
        ("data.txt", "no known kind"),
        ("data.csv", "its first line names the columns: add such a line"),
        ("empty", "holds no image"),
    ):
        with pytest.raises(ValueError, match=words):
            predict_files(images, tmp_path / name, num_samples=1)
    with pytest.raises(FileNotFoundError, match="no file"):
        predict_files(images, tmp_path / "nothing.png")
    with pytest.raises(ValueError, match="is an image, but"):
        predict_files(numbers.posterior, tmp_path / "large.png")
    with pytest.raises(ValueError, match="threshold"):
        predict_files(images, tmp_path / "wrong.npy", threshold=2)
