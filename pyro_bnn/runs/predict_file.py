"""
Predictions for files: tables, arrays and images from disk, and what a posterior says about each.

    .npy              one array
    .npz              its array `x`, else `x_test`, else its only one
    .png .jpg .jpeg   one image, in PNG or JPEG
    a folder          all its images, by name
    .csv .tsv         a table whose first line names the columns: those that were trained on, whatever else is there

Arrays may hold one input or many; images may come as (H, W), (N, H, W), channels first or last. Values in uint8 are
divided by 255, as they are when training, and grey images of 16 bits by 65535; others are taken as they are. Everything
is then standardised with the statistics of the training rows; an array that is standardised already says so with
`standardised=True`, and one that looks so without saying it is refused. An answer whose probability is below the
threshold is "don't know".
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.analysis.scores.intervals import predictive_interval
from pyro_bnn.analysis.scores.ood import accumulate
from pyro_bnn.common.errors import border
from pyro_bnn.common.limits import check_limit
from pyro_bnn.common.reading import read_bytes
from pyro_bnn.data.arrays import named_columns
from pyro_bnn.data.frames import csv_columns, is_csv
from pyro_bnn.data.npz import Archive, read_npy
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.posterior import Posterior, looks_standardised

__all__ = ["DONT_KNOW", "predict_files", "read_inputs"]

Array: TypeAlias = NDArray[Any]

DONT_KNOW = "don't know"
"""The answer to an input that no class is probable enough for."""

_IMAGES = (".png", ".jpg", ".jpeg")


def read_inputs(
    path: str | Path, input_shape: Sequence[int], columns: Sequence[str] | None = None
) -> tuple[list[str], Tensor]:
    """
    Return names and raw inputs (N, *input_shape) of a file or a folder of images.

    :param path: a file or a folder of images.
    :param input_shape: the shape of one input, without the rows.
    :param columns: the names of the columns that were trained on, in order, by which those of a table are found.
    """
    if str(path) in ("", "."):
        raise ValueError(
            f"{str(path)!r} is no file: give a .csv, .npz, .npy or image file, or a folder of images by its name"
        )
    path, shape = Path(path), tuple(input_shape)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in _IMAGES)
        check_limit("image_files", len(files), f"images in {path}")
        if not files:
            raise ValueError(f"{path} holds no image: put {', '.join(_IMAGES)} files there, or give a file")
        return [p.name for p in files], torch.cat([_scaled(_image(p, shape), shape, p) for p in files])
    if not path.exists():
        raise FileNotFoundError(f"no file {path}: give a .csv, .npz, .npy or image file, or a folder of images")
    suffix = path.suffix.lower()
    if suffix in _IMAGES:
        return [path.name], _scaled(_image(path, shape), shape, path)
    if is_csv(path):
        x = _scaled(_table(path, columns), shape, path)
        return [f"{path.name}[{i}]" for i in range(len(x))], x
    if suffix not in (".npy", ".npz"):
        raise ValueError(
            f"{path} is of no known kind: give .csv, .npz, .npy, {', '.join(_IMAGES)} or a folder of images"
        )
    x = _scaled(_array(path), shape, path)
    return [f"{path.name}[{i}]" for i in range(len(x))], x


def _table(path: Path, columns: Sequence[str] | None) -> Array:
    """Return the inputs (N, D) in a CSV file: the columns that are named, or all where no names are known."""
    held = csv_columns(path)
    return named_columns(held, list(held) if columns is None else columns, str(path))


def _array(path: Path) -> Array:
    """Return the array of inputs in a file; what else an archive holds is not read."""
    if path.suffix.lower() == ".npy":
        return read_npy(path)
    with Archive(path) as archive:
        for name in ("x", "x_test"):
            if name in archive.names:
                return archive.read(name)
        if len(archive.names) != 1:
            held = ", ".join(archive.names[:20]) or "nothing"
            raise ValueError(f"{path} holds {held}: name the array of inputs 'x'")
        return archive.read(archive.names[0])


def _image(path: Path, shape: tuple[int, ...]) -> Array:
    """Return the pixels (H, W) or (H, W, 3) of an image in 8 bits, or in [0, 1] where it has 16."""
    from PIL import Image

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(f"{path} is an image, but this posterior takes inputs of shape {shape}: give .npy or .npz")
    unread = border(f"{path} cannot be read as an image", "save it again as PNG")
    file = BytesIO(read_bytes(path))  # from which no more can be read than there is, whatever a chunk promises
    with unread, Image.open(file, formats=("PNG", "JPEG")) as image:
        width, height = image.size
        if (height, width) != shape[1:]:  # known before a pixel is inflated
            raise ValueError(
                f"{path.name} is {width} x {height} pixels; this posterior takes {shape[2]} x {shape[1]}: resize it "
                "first"
            )
        if image.mode.startswith("I"):  # 16 bits of grey, which convert("L") would cut off at 255
            grey = np.asarray(image).astype(np.float32) / 65535
            return grey if shape[0] == 1 else np.repeat(grey[:, :, None], 3, axis=2)
        return np.asarray(image.convert("L" if shape[0] == 1 else "RGB"))


def _scaled(values: Array, shape: tuple[int, ...], path: Path) -> Tensor:
    """Return (N, *shape) in float32, 8-bit values divided by 255."""
    if values.dtype.kind not in "uifb":
        raise ValueError(f"{path} holds {values.dtype}: give numbers")
    x = torch.from_numpy(np.array(values))
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    for candidate in _layouts(x, len(shape)):
        if tuple(candidate.shape[1:]) == shape and len(candidate):
            if not bool(torch.isfinite(candidate).all()):
                raise ValueError(f"{path} contains NaN or infinity: clean those rows first")
            return candidate.contiguous()
    raise ValueError(
        f"{path} holds an array of shape {tuple(values.shape)}; this posterior takes inputs of shape {shape}: give "
        f"(N, {', '.join(map(str, shape))})"
    )


def _layouts(x: Tensor, ndim: int) -> list[Tensor]:
    """Return the ways to read an array as rows of `ndim`-dimensional inputs, the plain one first."""
    layouts = [x] if x.ndim == ndim + 1 else [x[None]] if x.ndim == ndim else []
    if ndim == 3 and x.ndim == 3:
        layouts += [x[:, None], x.permute(2, 0, 1)[None]]  # (N, H, W), (H, W, C)
    if ndim == 3 and x.ndim == 4:
        layouts.append(x.permute(0, 3, 1, 2))  # (N, H, W, C)
    if ndim == 3 and x.ndim == 2:
        layouts.append(x[None, None])  # (H, W)
    return layouts


def predict_files(
    posterior: Posterior,
    path: str | Path,
    *,
    threshold: float = 0.5,
    num_samples: int = 100,
    seed: int = 0,
    standardised: bool | None = None,
) -> list[dict[str, Any]]:
    """
    Return a row per input, ready for JSON.

    Classes: `answer` (a class name or "don't know"), `probability` of the likeliest class, `entropy` and its
    `epistemic` part in nats, and `probabilities` by class. Numbers: `mean`, `sd`, its `epistemic` part, and `interval`,
    the central 90 %.

    :param posterior: the fitted posterior.
    :param path: a file or a folder of images.
    :param threshold: answers of lower probability become "don't know"; 0 answers always.
    :param num_samples: S, how many weight samples are drawn.
    :param seed: of the draws; the global random state is left as it is.
    :param standardised: whether the values are standardised already; default raw, and refused if they look otherwise.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold} is not a probability: pass a number from 0 to 1")
    shape = posterior.info.get("input_shape")
    if shape is None:
        raise ValueError("this posterior does not say what inputs it takes: use Posterior.predict(x)")
    names, raw = read_inputs(path, shape, posterior.info.get("columns"))
    scale = posterior.info.get("standardiser")
    if standardised is None and scale is not None and looks_standardised(raw, Standardiser.from_dict(scale)):
        raise ValueError(
            f"{path} looks standardised already, and is taken as raw: say --standardised (standardised=True), or --raw "
            f"(standardised=False) if it is"
        )
    x = posterior.standardise(raw, standardised=bool(standardised))
    if not isinstance(posterior.predict(x[:1], 1, seed=seed), Tensor):
        return _real_rows(posterior, names, x, num_samples, seed)
    predictive = accumulate(posterior, x, num_samples, seed)
    p = predictive.log_probs.exp()
    classes = [str(name) for name in posterior.info.get("class_names") or range(p.shape[1])]
    top, guess = p.max(1)
    return [
        {
            "input": name,
            "answer": classes[int(guess[i])] if float(top[i]) >= threshold else DONT_KNOW,
            "probability": float(top[i]),
            "entropy": float(predictive.total[i]),
            "epistemic": max(float(predictive.epistemic[i]), 0.0),
            "probabilities": dict(zip(classes, p[i].tolist(), strict=True)),
        }
        for i, name in enumerate(names)
    ]


def _real_rows(
    posterior: Posterior, names: Sequence[str], x: Tensor, num_samples: int, seed: int
) -> list[dict[str, Any]]:
    prediction: Any = posterior.predict(x, num_samples, seed=seed)
    epistemic = posterior.uncertainty(x, num_samples, seed=seed).epistemic.sqrt()
    interval = predictive_interval(posterior, x, 0.9, num_samples, seed=seed)
    return [
        {
            "input": name,
            "mean": prediction.mean[i].tolist(),
            "sd": prediction.sd[i].tolist(),
            "epistemic": epistemic[i].tolist(),
            "interval": [interval.lower[i].tolist(), interval.upper[i].tolist()],
        }
        for i, name in enumerate(names)
    ]
