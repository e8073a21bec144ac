"""Damaged and hostile files: data to train on (.npz, .csv), and what is to be predicted for (.npz, .npy, images)."""

import io
import random
import shutil
import zipfile
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from pyro_bnn.data import load_data
from pyro_bnn.runs.predict_file import read_inputs
from torture.mutations import damaged
from torture.oracle import Tally, judge

_TYPES = ("<f4", "<f8", "|u1", "<i8", "|b1", "<U3", "|S4", "<c16", "<M8[D]", "|V8", "<f2", ">i4", "|O", "<U0")


def _header(rng: random.Random) -> bytes:
    """Return the header of an .npy file with a promise in it, and a few bytes."""
    shape = tuple(rng.choice((0, 1, 3, 28, 10**6, 10**12, -1)) for _ in range(rng.randrange(5)))
    text = f"{{'descr': '{rng.choice(_TYPES)}', 'fortran_order': {rng.random() < 0.5}, 'shape': {shape}, }}"
    if rng.random() < 0.1:
        text = text.replace("(", "(" * 200, 1)
    raw = text.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw + rng.randbytes(rng.choice((0, 100, 3000)))


def _npz(arrays: dict[str, bytes], rng: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _sound(rng: random.Random) -> dict[str, bytes]:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 3
    table = {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9], "class_names": np.array(["a", "b", "c"])}
    arrays = {name: _npy(array) for name, array in table.items()}
    for _ in range(rng.randrange(3)):
        arrays[rng.choice((*arrays, "x", "split", "task", "weights_train", "../evil"))] = _header(rng)
    return arrays


def data(count: int, seed: int) -> Tally:
    """Load data sets."""
    tally, rng = Tally(), random.Random(seed)
    home = Path(mkdtemp(prefix="torture-"))
    csv = "a,b,target\n" + "".join(f"{i},{i * 0.5},{i % 3}\n" for i in range(40))
    for i in range(count):
        if rng.random() < 0.3:
            path = home / "data.csv"
            text = csv.encode() if rng.random() < 0.8 else b'"' * rng.randrange(200_000)
            path.write_bytes(damaged(text, rng))
            options = {
                "target": rng.choice(("target", "target", "b", "none")),
                "task": rng.choice((None, "regression")),
            }
        else:
            path, options = home / "data.npz", {}
            whole = _npz(_sound(rng), rng)
            path.write_bytes(damaged(whole, rng) if rng.random() < 0.6 else whole)
        split = rng.choice((0.0, 0.2))
        judge(tally, lambda: load_data(path, val_fraction=split, **options), f"case {i}, {path.name}")
    shutil.rmtree(home)
    return tally


def predicted(count: int, seed: int) -> Tally:
    """Read what is to be predicted for."""
    from PIL import Image

    tally, rng = Tally(), random.Random(seed)
    home = Path(mkdtemp(prefix="torture-"))
    pixels = (np.arange(784) % 256).astype(np.uint8).reshape(28, 28)
    pictures = {}
    for suffix, mode in ((".png", "PNG"), (".jpg", "JPEG"), (".jpeg", "GIF")):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, mode)
        pictures[suffix] = file.getvalue()
    wide = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint16) * 257).save(wide, "PNG")
    for i in range(count):
        suffix = rng.choice((".npz", ".npz", ".npy", ".png", ".jpg", ".jpeg"))
        if suffix == ".npz":
            content = _npz({rng.choice(("x", "x_test", "y")): _npy(pixels), "z": _header(rng)}, rng)
        elif suffix == ".npy":
            content = _npy(pixels) if rng.random() < 0.5 else _header(rng)
        else:
            content = wide.getvalue() if rng.random() < 0.2 else pictures[suffix]
        path = home / f"file{suffix}"
        path.write_bytes(damaged(content, rng) if rng.random() < 0.8 else content)
        judge(tally, lambda: read_inputs(path, (1, 28, 28)), f"case {i}, {path.name}")
    shutil.rmtree(home)
    return tally
