"""
Where data come from: the embedded mnist-mini and toys, .npz files, torchvision. Everything arrives as `Source` arrays.

Lookup of a name: the embedded set; `<root>/<name>.npz`; torchvision's files under the root; torchvision's download,
which is kept as `<root>/<name>.npz`. The root is the argument, else the environment variable PYRO_BNN_DATA, else the
user's cache. Two layouts of .npz are read:

    x_train, y_train, x_test, y_test   (optional: weights_train)
    x, y, split                        split (R, N), one row per split: 1 = train, 2 = test (optional: weights)

both with optional class_names (K strings) and task ("classification" or "regression").
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from pyro_bnn.common.files import cache_folder
from pyro_bnn.data.checks import suggest
from pyro_bnn.data.kept import arrays_of
from pyro_bnn.data.npz import Archive

__all__ = ["DATASETS", "OPTIONAL", "PARTS", "Source", "data_root", "read_source", "source_of"]

Array = npt.NDArray[Any]

_TORCHVISION = {
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "svhn": "SVHN",
}

_TOYS = ("and", "toy-line", "toy-cubic")
_EMBEDDED = ("mnist-mini", *_TOYS)

DATASETS: tuple[str, ...] = ("mnist-mini", *_TORCHVISION, *_TOYS)
"""The data sets that are known by name."""

_DIGITS = tuple("0123456789")
_CLASS_NAMES = {
    "mnist-mini": _DIGITS,
    "mnist": _DIGITS,
    "svhn": _DIGITS,
    "fashion-mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}

PARTS = ("x_train", "y_train", "x_test", "y_test")
_TABLE = ("x", "y", "split")
OPTIONAL = ("class_names", "task")
_REMEDY = "write it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...), numbers only"


@final
@dataclass(frozen=True, eq=False)
class Source:
    """
    Raw arrays, as they were stored.

    :param name: of the set.
    :param x_train: inputs (N, ...).
    :param y_train: labels or targets.
    :param x_test: inputs of the test rows.
    :param y_test: their labels or targets.
    :param weights_train: a weight per training row, (N,).
    :param class_names: the names of the classes.
    :param task: "classification" or "regression"; default what y looks like.
    :param columns: the names of the inputs' columns.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    weights_train: Array | None = None
    class_names: tuple[str, ...] | None = None
    task: str | None = None
    columns: tuple[str, ...] | None = None


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the data root: `root`, else the environment variable PYRO_BNN_DATA, else the user's cache."""
    chosen = root if root is not None else os.environ.get("PYRO_BNN_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return cache_folder()


def read_source(
    name_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    split: int | None = None,
    download: bool = True,
) -> Source:
    """Find and read a data set by name, or a .npz by its path. `split` chooses a row of a file that stores splits."""
    if isinstance(name_or_path, os.PathLike) or str(name_or_path).endswith(".npz"):
        return _read_npz(Path(name_or_path).expanduser(), split)
    name = str(name_or_path)
    folder = data_root(root)
    if name in _EMBEDDED:
        with resources.as_file(resources.files("pyro_bnn.data") / f"{name.replace('-', '_')}.npz") as path:
            source = _read_npz(path, split)
    elif name and os.sep not in name and (folder / f"{name}.npz").is_file():
        source = _read_npz(folder / f"{name}.npz", split)
    elif name in _TORCHVISION:
        if split is not None:
            raise ValueError(f"split={split} was given, but {name} has only its standard one: leave split out")
        source = _from_torchvision(name, folder, download)
    else:
        raise ValueError(
            f"unknown data set {name!r}{suggest(name, DATASETS)}. Known: {', '.join(DATASETS)}; "
            f"a path ending in .npz or .csv is data too, and so is a name whose file is there: {folder / f'{name}.npz'}"
        )
    return replace(source, name=name, class_names=source.class_names or _CLASS_NAMES.get(name))


def _checked(path: Path) -> dict[str, Array]:
    """Return the arrays of a file whose names are those of one of the two layouts."""
    with Archive(path, _REMEDY) as archive:
        layout = _TABLE if "split" in archive.names or "x" in archive.names else PARTS
        weights = "weights" if layout is _TABLE else "weights_train"
        allowed = (*layout, weights, *OPTIONAL)
        missing = [key for key in layout if key not in archive.names]
        unknown = [key for key in archive.names if key not in allowed]
        if missing or unknown:
            complaint = f"lacks {', '.join(missing)}" if missing else f"has the unknown key {unknown[0]!r}"
            held = ", ".join(archive.names[:20]) or "nothing"
            raise ValueError(
                f"{path} {complaint} (it holds {held}); allowed are {', '.join(PARTS)} and "
                f"optional weights_train, or {', '.join(_TABLE)} and optional weights, both with optional "
                f"{', '.join(OPTIONAL)}: rename or remove arrays"
            )
        return archive.read_all(archive.names)


def _read_npz(path: Path, split: int | None) -> Source:
    if not path.exists():
        raise FileNotFoundError(f"no data file {path}; give the path of a .npz with the keys {', '.join(PARTS)}")
    arrays = arrays_of(path, _checked)
    layout = _TABLE if "split" in arrays else PARTS
    names = arrays.get("class_names")
    if names is not None and names.size > arrays[layout[0]].size:
        raise ValueError(f"{path} holds {names.size} class_names, more than there are values: give K words")
    if layout is _TABLE:
        arrays = _apply_split(arrays, split, path)
    elif split is not None:
        raise ValueError(f"split={split} was given, but {path} stores one split (x_train, x_test): leave split out")
    return source_of(path.stem, arrays)


def source_of(name: str, arrays: Mapping[str, Array]) -> Source:
    """Return the data set of arrays by the names that an .npz has."""
    names = arrays.get("class_names")
    return Source(
        name=name,
        x_train=arrays["x_train"],
        y_train=arrays["y_train"],
        x_test=arrays["x_test"],
        y_test=arrays["y_test"],
        weights_train=arrays.get("weights_train"),
        class_names=None if names is None else tuple(str(n) for n in names.reshape(-1)),
        task=str(arrays["task"])[:80] if "task" in arrays else None,
    )


def _apply_split(arrays: dict[str, Array], split: int | None, path: Path) -> dict[str, Array]:
    x, y, table = arrays["x"], arrays["y"], arrays["split"]
    if table.ndim != 2 or x.ndim == 0 or y.ndim == 0 or not len(x) == len(y) == table.shape[1]:
        raise ValueError(
            f"{path}: x has shape {x.shape}, y {y.shape} and split {table.shape}; they must be (N, ...), (N, ...) "
            "and (R, N), one row of split per train/test split: store them so"
        )
    chosen = 0 if split is None else split
    if not 0 <= chosen < len(table):
        raise ValueError(
            f"split={chosen} is not in {path}; it stores the splits 0..{len(table) - 1}: choose one of them"
        )
    row = table[chosen]
    if not np.isin(row, (1, 2)).all():
        raise ValueError(
            f"{path}: split[{chosen}] holds {row[~np.isin(row, (1, 2))][0]}; every entry is 1 (train) or 2 (test)"
        )
    result = {key: arrays[key] for key in OPTIONAL if key in arrays}
    for part, code in (("train", 1), ("test", 2)):
        result[f"x_{part}"], result[f"y_{part}"] = x[row == code], y[row == code]
    if "weights" in arrays:
        weights = arrays["weights"]
        if weights.shape != (len(x),):
            raise ValueError(f"{path}: weights has shape {weights.shape}; give one number per row: shape ({len(x)},)")
        result["weights_train"] = weights[row == 1]
    return result


def _from_torchvision(name: str, folder: Path, download: bool) -> Source:
    try:
        return _torchvision_arrays(name, folder, download=False)
    except RuntimeError:  # torchvision's word for "not there"
        pass
    remedy = (
        f"put {name}.npz (keys {', '.join(PARTS)}) or torchvision's own files into the data root {folder}, "
        "or point --data-root or PYRO_BNN_DATA at a folder that has them; mnist-mini needs no download"
    )
    if not download:
        raise FileNotFoundError(f"{name} is not in the data root and downloading is off: {remedy}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # download beside the target and move one finished file into place: a broken download leaves nothing
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            source = _torchvision_arrays(name, Path(temporary), download=True)
            finished = Path(temporary) / f"{name}.npz"
            arrays = {part: getattr(source, part) for part in PARTS}
            np.savez(finished, class_names=np.array(source.class_names), **arrays)
            finished.replace(folder / f"{name}.npz")
    except (OSError, RuntimeError) as error:  # URLError and HTTPError are OSErrors
        reason = " ".join(str(error).split())[:160]
        raise FileNotFoundError(
            f"{name} is not in the data root and its download failed ({reason}): {remedy}"
        ) from error
    return source


def _torchvision_arrays(name: str, folder: Path, *, download: bool) -> Source:
    from torchvision import datasets

    kind = getattr(datasets, _TORCHVISION[name])
    labels = "labels" if name == "svhn" else "targets"
    if name == "svhn":
        parts = [kind(str(folder), split=part, download=download) for part in ("train", "test")]
    else:
        parts = [kind(str(folder), train=train, download=download) for train in (True, False)]
    (x_train, x_test) = (np.asarray(part.data) for part in parts)
    (y_train, y_test) = (np.asarray(getattr(part, labels)) for part in parts)
    names = _CLASS_NAMES.get(name) or tuple(parts[0].classes)
    return Source(name, x_train, y_train, x_test, y_test, class_names=names)
