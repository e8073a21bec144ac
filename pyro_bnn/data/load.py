"""
load_data: from a name, a file or a frame to tensors that are split, checked and standardised.

The order matters and is fixed: read, check, take `train_size` rows of train, take the validation rows out of train,
fit the standardisers on what is left of train, apply them to all three. The test rows are only ever transformed.

Shapes: a table x (N, D) stays; images (N, H, W) become (N, 1, H, W); of four dimensions the channels are the last if
that is 1, 3 or 4 and the second is not (NHWC), else the second (NCHW). Images in uint8 are divided by 255. Everything
becomes float32. Targets of shape (N, 1) become (N,).

Of a table (a .csv file, or a frame of pandas or polars) say the `target` column; see :mod:`pyro_bnn.data.frames`. Its
test rows are drawn once: `split` is the seed of the drawing, so that the same rows are left out whatever `seed` is.

Task: the file's `task`, or the argument; else integers are class labels and real numbers are regression targets, but
images always have labels, and so have files with class_names. K is the number of class names, or the largest label + 1.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, final, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyro_bnn.data.arrays import Frame
from pyro_bnn.data.checks import check_class_names, check_finite, check_labels, check_weights
from pyro_bnn.data.frames import Table, is_csv, table_of
from pyro_bnn.data.on_disk import MappedRows, mapped_arrays
from pyro_bnn.data.sources import OPTIONAL, PARTS, Source, data_root, read_source, source_of
from pyro_bnn.data.split import Split, stratified_indices, subset
from pyro_bnn.data.standardise import Standardiser, plain

__all__ = ["Data", "Task", "load_data"]

Task = Literal["classification", "regression"]

_CHANNELS = (1, 3, 4)


@final
@dataclass(frozen=True, eq=False)
class Data:
    """
    A data set ready to train on: train, validation (or None) and test rows that never mix.

    :param name: of the set.
    :param task: "classification" or "regression".
    :param train: the rows to train on; `MappedRows`, which stay in their files, of data that were loaded `on_disk`.
    :param val: validation rows, or None.
    :param test: test rows.
    :param num_classes: K; None for a regression.
    :param class_names: the names of the classes, if there are any.
    :param standardiser: the scale of the inputs, from the training rows; None if they are raw.
    :param y_standardiser: the scale of the targets, likewise.
    """

    name: str
    task: Task
    train: Split | MappedRows
    val: Split | None
    test: Split
    num_classes: int | None
    class_names: tuple[str, ...] | None
    standardiser: Standardiser | None
    y_standardiser: Standardiser | None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (C, H, W) or (D,)."""
        return tuple(self.test.x.shape[1:])

    @property
    def num_outputs(self) -> int:
        """K for classification, the number of targets for regression: what a network has to give."""
        if self.num_classes is not None:
            return self.num_classes
        return 1 if self.test.y.ndim == 1 else self.test.y.shape[1]

    def first_rows(self, n: int) -> Split:
        """Return the first n training rows, or all if there are fewer."""
        return self.train.take(torch.arange(min(n, len(self.train))))

    def train_targets(self) -> Tensor:
        """Return the targets of all training rows (N, ...)."""
        if isinstance(self.train, Split):
            return self.train.y
        y = torch.from_numpy(np.array(self.train.y))
        return y if self.y_standardiser is None else self.y_standardiser.mark(y)

    def to(self, device: torch.device | str) -> "Data":
        """Return the same data with all rows on another device, but for those in files, which go there in batches."""
        val = None if self.val is None else self.val.to(device)
        train = self.train.to(device) if isinstance(self.train, Split) else self.train
        return replace(self, train=train, val=val, test=self.test.to(device))


def load_data(
    name_or_path: Any,
    *,
    target: str | Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    weights: str | None = None,
    test_fraction: float | None = None,
    root: str | os.PathLike[str] | None = None,
    val_fraction: float = 0.0,
    seed: int = 0,
    standardise: bool | Literal["x"] | Standardiser = True,
    split: int | None = None,
    task: Task | None = None,
    train_size: int | None = None,
    test_size: int | None = None,
    download: bool = True,
    device: torch.device | str = "cpu",
    on_disk: bool = False,
) -> Data:
    """
    Load a data set by name (see `DATASETS`), from a .npz, a .csv, a frame or a `Source`, split and standardise it.

    :param name_or_path: a name, a path, a frame of pandas or polars, or a `Source`.
    :param target: the column of a table that is predicted, or several of numbers.
    :param features: the columns of a table that are inputs; default all others.
    :param weights: the column of a table that says how often each training row counts.
    :param test_fraction: share of a table, in (0, 1), that becomes the test rows; by class for classification; 0.2.
    :param root: the data root; default PYRO_BNN_DATA, else the user's cache.
    :param val_fraction: share of train, in [0, 1), that becomes the validation split; by class for classification.
    :param seed: chooses the rows of the validation split and of `train_size` and `test_size`.
    :param standardise: fit on train and apply to all; "x" leaves the targets (counts) as they are; False leaves all
        values as they are (uint8 images: in [0, 1]); a `Standardiser` is applied to x, and none is fitted
        (out-of-distribution data on the in-distribution scale).
    :param split: which of its train/test splits, for a file that stores several; default the first. Of a
        table, the seed of the test rows.
    :param task: "classification" or "regression", where the file leaves it open.
    :param train_size: train on so many rows only (before validation is taken out), classes equally often.
    :param test_size: likewise for test.
    :param download: whether torchvision may download what is not there.
    :param device: where the tensors are put.
    :param on_disk: leave the training rows in their files, from which `fit` reads batches: of a folder of .npy files
        x_train.npy, y_train.npy, ..., or of an .npz that numpy.savez wrote (not compressed), by path or by name from
        the data root. Rows, splits and scales are those of the same arrays in memory.

    >>> from pyro_bnn.data import load_data
    >>> digits = load_data("mnist-mini", val_fraction=0.1)
    >>> len(digits.train), len(digits.val), len(digits.test), digits.input_shape, digits.num_classes
    (4500, 500, 1000, (1, 28, 28), 10)
    """
    if not isinstance(standardise, (bool, Standardiser)) and standardise != "x":
        raise ValueError(f"standardise is {standardise!r}; allowed are True, 'x', False and a Standardiser")
    if not isinstance(val_fraction, (int, float)) or not 0 <= val_fraction < 1:
        raise ValueError(f"val_fraction is {val_fraction}; give a share of the training rows in [0, 1), such as 0.1")
    if on_disk:
        for_others = {"target": target, "features": features, "weights": weights, "test_fraction": test_fraction}
        for argument, value in {**for_others, "split": split}.items():
            if value is not None:
                raise ValueError(f"{argument}={value!r} is not for rows that stay on disk: leave out it or on_disk")
        source = _mapped_source(name_or_path, root)
    elif is_csv(name_or_path) or isinstance(name_or_path, Frame):
        table = table_of(name_or_path, target, features=features, weights=weights, task=task)
        name = Path(name_or_path).stem if is_csv(name_or_path) else "frame"
        source = _divide(name, table, 0.2 if test_fraction is None else test_fraction, 0 if split is None else split)
    else:
        for_tables = {"target": target, "features": features, "weights": weights, "test_fraction": test_fraction}
        for argument, value in for_tables.items():
            if value is not None:
                raise ValueError(
                    f"{argument}={value!r} is for tables, a .csv file or a frame, and the data are {name_or_path!r}: "
                    "leave it out"
                )
        if isinstance(name_or_path, Source):
            source = name_or_path
            if split is not None:
                raise ValueError(f"split={split} was given, and {source.name!r} are arrays split already: leave it out")
        else:
            source = read_source(name_or_path, root=root, split=split, download=download)
    train, test = _to_splits(source, on_disk=on_disk)
    chosen = _task(source, task, train.y, images=test.x.ndim > 2)
    train, test, num_classes = _check_targets(source, chosen, train, test)
    train = _scaled(_resize(train, train_size, seed, "train_size", num_classes or 1))
    test = _scaled(_resize(test, test_size, seed, "test_size", 1))
    train, val = _take_validation(train, val_fraction, seed, num_classes)
    there: MappedRows | None = None
    if on_disk:
        there, val = _rows_in_files(source, train, val)
        there, val, test, standardiser = _standardise_mapped(there, val, test, standardise)
    else:
        train, val, test, standardiser = _standardise_x(train, val, test, standardise)
    y_standardiser = None
    if chosen == "regression":
        if standardise is True:
            y_standardiser = Standardiser.fit(train.y)
        train, test = _standardise_y(train, y_standardiser), _standardise_y(test, y_standardiser)
        val = None if val is None else _standardise_y(val, y_standardiser)
    names = source.class_names
    if names is not None:
        check_class_names(names, source.name)
    if num_classes is not None and names is None:
        names = tuple(str(k) for k in range(num_classes))
    if there is not None:  # with its targets on their scale
        there = replace(there, y=plain(train.y).numpy(), y_standardiser=y_standardiser)
    data = Data(
        source.name,
        chosen,
        train if there is None else there,
        val,
        test,
        num_classes,
        names,
        standardiser,
        y_standardiser,
    )
    return data.to(device)


# -- rows that stay in their files -------------------------------------------------------------------------------------


def _mapped_source(path: Any, root: str | os.PathLike[str] | None) -> Source:
    """Return a data set whose training inputs are mapped."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"on_disk=True is for files, and the data are a {type(path).__name__}: give a path, or leave it"
        )
    place = Path(path).expanduser()
    if not place.exists():
        in_root = [data_root(root) / str(path), data_root(root) / f"{path}.npz"]
        place = next((there for there in in_root if there.exists()), place)
    arrays = mapped_arrays(place, (*PARTS, "weights_train", *OPTIONAL))
    missing = [name for name in PARTS if name not in arrays]
    if missing:
        raise ValueError(f"{place} lacks {', '.join(missing)}: rows that stay on disk need {', '.join(PARTS)}")
    return source_of(
        place.stem, {name: array if name == "x_train" else np.array(array) for name, array in arrays.items()}
    )


def _rows_in_files(source: Source, train: Split, val: Split | None) -> tuple[MappedRows, Split | None]:
    """Return the training rows, whose `x` says where they are in the file, and the validation rows, which are read."""

    def at(rows: Split) -> MappedRows:
        weights = None if rows.weights is None else rows.weights.numpy()
        return MappedRows(source.x_train, rows.y.numpy(), weights, (_batch_inputs,), places=rows.x.numpy())

    return at(train), None if val is None else replace(val, x=at(val)[:].x)


def _batch_inputs(x: Tensor) -> Tensor:
    """Return the inputs of a batch as those of rows in memory are: a table in float64, images with channels second."""
    inputs = _inputs(x.numpy(), "x_train")
    check_finite(inputs, "x_train")
    return inputs.contiguous().float().div_(255) if inputs.dtype == torch.uint8 else inputs


def _standardise_mapped(
    train: MappedRows, val: Split | None, test: Split, standardise: bool | Literal["x"] | Standardiser
) -> tuple[MappedRows, Split | None, Split, Standardiser | None]:
    chosen = standardise if isinstance(standardise, Standardiser) else None
    if chosen is None and standardise:
        chosen = Standardiser.fit_pieces(lambda: (piece.x for piece in train.pieces()))
    if chosen is not None:
        train = train.standardised(chosen)
    val = None if val is None else _on_scale(val, chosen, "val")
    return train.prepared(_single_inputs), val, _on_scale(test, chosen, "test"), chosen


def _single_inputs(x: Tensor) -> Tensor:
    return _single(x, "x_train")


def _divide(name: str, table: Table, test_fraction: float, seed: int) -> Source:
    """Draw the test rows of a table, by class for classification; both parts keep their order."""
    n = len(table.x)
    if isinstance(test_fraction, bool) or not isinstance(test_fraction, (int, float)) or not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction!r}; give a share of the rows in (0, 1), such as 0.2")
    k, least = round(test_fraction * n), len(table.class_names or "1")
    if not 1 <= k <= n - least:
        raise ValueError(
            f"test_fraction={test_fraction} of {n} rows is {k}; test needs at least 1 row and training at least {least}"
        )
    generator = torch.Generator().manual_seed(seed)
    if table.class_names is None:
        chosen = torch.randperm(n, generator=generator)[:k].sort().values
    else:
        chosen = stratified_indices(torch.from_numpy(table.y), k, generator)
    test = np.zeros(n, dtype=np.bool_)
    test[chosen.numpy()] = True
    return Source(
        name,
        *(table.x[~test], table.y[~test], table.x[test], table.y[test]),
        weights_train=None if table.weights is None else table.weights[~test],
        class_names=table.class_names,
        task="regression" if table.class_names is None else "classification",
        columns=table.columns,
    )


def _to_splits(source: Source, *, on_disk: bool = False) -> tuple[Split, Split]:
    """
    Arrays -> tensors with the channels second; x and y checked for shape and finiteness.

    :param on_disk: the training inputs are the numbers of their rows, (N,), and no more of them is read than one.
    """
    parts, shapes = [], []
    for part, x, y in (("train", source.x_train, source.y_train), ("test", source.x_test, source.y_test)):
        apart = on_disk and part == "train"
        inputs, targets = _inputs(x[:1] if apart else x, f"x_{part}"), _targets(y, f"y_{part}")
        shape = tuple(inputs.shape[1:])
        if apart:
            inputs = torch.arange(len(x))
        if len(inputs) != len(targets):
            raise ValueError(
                f"{source.name}: x_{part} has {len(inputs)} rows and y_{part} has {len(targets)}; "
                "give one target per row"
            )
        if len(inputs) == 0:
            raise ValueError(f"{source.name}: x_{part} has no rows; give at least one")
        check_finite(inputs, f"x_{part}")
        check_finite(targets, f"y_{part}")
        parts.append(Split(inputs, targets, columns=source.columns))
        shapes.append(shape)
    train, test = parts
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{source.name}: rows of x_train have shape {shapes[0]} and rows of x_test {shapes[1]}; they must be the "
            "same"
        )
    if train.y.shape[1:] != test.y.shape[1:]:
        raise ValueError(
            f"{source.name}: rows of y_train have shape {tuple(train.y.shape[1:])} and rows of y_test "
            f"{tuple(test.y.shape[1:])}; they must be the same"
        )
    if source.weights_train is not None:
        weights = _numbers(source.weights_train, "weights_train").float()
        check_weights(weights, len(train), "weights_train")
        train = replace(train, weights=weights)
    return train, test


def _numbers(values: npt.NDArray[Any], name: str) -> Tensor:
    """Array -> tensor: uint8 stays, other integers and booleans become int64, float32 stays, other floats float64."""
    if values.dtype == np.uint8 or values.dtype == np.float32:
        return torch.from_numpy(np.array(values))
    if np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_:
        return torch.from_numpy(values.astype(np.int64))
    if np.issubdtype(values.dtype, np.floating):
        return torch.from_numpy(values.astype(np.float64))
    raise TypeError(f"{name} holds {values.dtype}; give real numbers: encode text and dates first")


def _inputs(values: npt.NDArray[Any], name: str) -> Tensor:
    if values.ndim not in (2, 3, 4):
        raise ValueError(
            f"{name} has shape {values.shape}; give a table (N, D) or images (N, H, W), (N, H, W, C) or (N, C, H, W): "
            "reshape it"
        )
    if 0 in values.shape[1:]:
        raise ValueError(f"{name} has shape {values.shape}; every dimension needs at least one entry")
    x = _numbers(values, name)
    if x.ndim == 2:
        return x.double()  # tables stay in float64 until they are standardised
    if x.ndim == 3:
        x = x[:, None]  # (N, H, W) -> (N, 1, H, W)
    elif x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
        x = x.permute(0, 3, 1, 2)  # (N, H, W, C) -> (N, C, H, W)
    return x if x.dtype == torch.uint8 else x.contiguous().float()


def _scaled(rows: Split) -> Split:
    """Images in uint8 become floats in [0, 1], once the rows are taken: they need four times the memory."""
    return replace(rows, x=rows.x.contiguous().float().div_(255)) if rows.x.dtype == torch.uint8 else rows


def _targets(values: npt.NDArray[Any], name: str) -> Tensor:
    if values.ndim not in (1, 2):
        raise ValueError(f"{name} has shape {values.shape}; give labels (N,), or targets (N,) or (N, T)")
    y = _numbers(values, name)
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _task(source: Source, task: str | None, y: Tensor, *, images: bool) -> Task:
    declared = task if task is not None else source.task
    if declared is None:
        labels = not y.is_floating_point() or images or source.class_names is not None
        return "classification" if labels else "regression"
    for known in get_args(Task):
        if declared == known:
            return cast(Task, known)
    raise ValueError(f"task is {declared!r}; allowed are 'classification' and 'regression'")


def _check_targets(source: Source, task: Task, train: Split, test: Split) -> tuple[Split, Split, int | None]:
    if task == "regression":
        return replace(train, y=train.y.double()), replace(test, y=test.y.double()), None
    known = None if source.class_names is None else len(source.class_names)
    k = check_labels(train.y, "y_train", known, every_class=True)
    check_labels(test.y, "y_test", k)
    return replace(train, y=train.y.long()), replace(test, y=test.y.long()), k


def _resize(rows: Split, size: int | None, seed: int, name: str, least: int) -> Split:
    if size is None:
        return rows
    if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= len(rows):
        raise ValueError(
            f"{name} is {size!r}; give a whole number from {least} to {len(rows)}, or leave it out for all rows"
        )
    return subset(rows, size, seed=seed)


def _take_validation(train: Split, fraction: float, seed: int, num_classes: int | None) -> tuple[Split, Split | None]:
    """Move round(fraction * N) rows out of train, by class for classification; both keep their order."""
    if fraction == 0:
        return train, None
    n, k = len(train), round(fraction * len(train))
    least = num_classes or 1  # every class keeps a training row
    if not 1 <= k <= n - least:
        raise ValueError(
            f"val_fraction={fraction} of {n} rows is {k}; validation needs at least 1 row and training "
            f"at least {least} (one per class): choose a share from {1 / n:.2g} to {1 - least / n:.2g}"
        )
    generator = torch.Generator().manual_seed(seed)
    if num_classes is None:
        chosen = torch.randperm(n, generator=generator)[:k].sort().values
    else:
        chosen = stratified_indices(train.y, k, generator)
    stays = torch.ones(n, dtype=torch.bool)
    stays[chosen] = False
    return train.take(stays.nonzero()[:, 0]), train.take(chosen)


def _standardise_x(
    train: Split, val: Split | None, test: Split, standardise: bool | Literal["x"] | Standardiser
) -> tuple[Split, Split | None, Split, Standardiser | None]:
    standardiser: Standardiser | None
    if isinstance(standardise, Standardiser):
        standardiser = standardise
    else:
        standardiser = Standardiser.fit(train.x) if standardise else None

    on_scale = None if val is None else _on_scale(val, standardiser, "val")
    return _on_scale(train, standardiser, "train"), on_scale, _on_scale(test, standardiser, "test"), standardiser


def _on_scale(rows: Split, standardiser: Standardiser | None, part: str) -> Split:
    x = rows.x if standardiser is None else standardiser.apply(rows.x)
    return replace(rows, x=_single(x, f"x_{part}"))


def _single(values: Tensor, name: str) -> Tensor:
    """float64 -> float32, which takes what is beyond 3.4e38 as infinity."""
    single = values.float()
    if single is not values:
        check_finite(single.as_subclass(Tensor), f"{name}, in float32,")
    return single


def _standardise_y(rows: Split, standardiser: Standardiser | None) -> Split:
    y = rows.y if standardiser is None else standardiser.apply(rows.y)
    return replace(rows, y=_single(y, "y"))
