"""Damaged and hostile posteriors: tensors, descriptions, manifests."""

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

import pyro_bnn as pb
from pyro_bnn.common.manifest import MANIFEST, seal
from pyro_bnn.guides import AutoLowRankNormal, AutoMeanFieldNormal
from pyro_bnn.guides.draws import StoredDraws
from pyro_bnn.guides.ensemble import Ensemble
from pyro_bnn.models import BNN, MLP, LeNet5, likelihoods, priors
from pyro_bnn.posterior import DESCRIPTION, TENSORS, Posterior
from torture.mutations import altered, as_json, damaged
from torture.oracle import Tally, judge

_SCALE = {"mean": [0.5, 0.5, 0.5], "sd": [1.0, 2.0, 1.0]}


@cache
def whole() -> Path:
    """Make a folder of sound posteriors of several kinds, once per process."""
    home = Path(mkdtemp(prefix="torture-"))
    torch.manual_seed(0)

    def network(outputs: int, likelihood: Any) -> BNN:
        return BNN(MLP(3, outputs, hidden=[5]), priors.Normal(1.0), likelihood, 10)

    classes, numbers = network(3, likelihoods.Categorical()), network(1, likelihoods.LearnedGaussian())
    info = {"input_shape": [3], "standardiser": _SCALE, "num_data": 10}
    words = {**info, "task": "classification", "class_names": ["cat", "dog", "owl"]}
    Posterior(classes, AutoMeanFieldNormal(classes), words).save(home / "mean-field")
    Posterior(classes, AutoLowRankNormal(classes, rank=2), words).save(home / "low-rank")
    Posterior(classes, StoredDraws(classes, num_draws=4), words).save(home / "draws")
    members = [AutoMeanFieldNormal(classes) for _ in range(3)]
    Posterior(classes, Ensemble(classes, members), words).save(home / "ensemble")
    y_scale = {"task": "regression", "y_standardiser": {"mean": 1.0, "sd": 2.0}}
    Posterior(numbers, AutoMeanFieldNormal(numbers), {**info, **y_scale}).save(home / "numbers")
    images = BNN(LeNet5(1, 10, 28), priors.Kaiming(), likelihoods.Categorical(), 10)
    Posterior(images, AutoMeanFieldNormal(images), {"input_shape": [1, 28, 28]}).save(home / "compact", compact=True)
    return home


def _predictions(folder: Path) -> tuple[torch.Tensor, ...]:
    posterior = pb.load(folder)
    shape = posterior.info.get("input_shape") or [3]
    x = torch.linspace(-1, 1, 4)[:, None].expand(4, torch.Size(shape).numel()).reshape(4, *shape)
    return tuple(posterior.draws(x, num_samples=3, seed=0)), tuple(posterior.info.get("class_names") or ())


def _fuzz(count: int, seed: int, change: Callable[[Path, random.Random], str], *, resealed: bool) -> Tally:
    tally, rng = Tally(), random.Random(seed)
    kinds = sorted(path.name for path in whole().iterdir())
    expected = {kind: _predictions(whole() / kind) for kind in kinds}

    def same_as(kind: str) -> Callable[[Any], bool]:
        draws, names = expected[kind]
        return lambda got: names == got[1] and len(got[0]) == len(draws) and all(map(torch.equal, got[0], draws))

    folder = Path(mkdtemp(prefix="torture-")) / "posterior"
    for i in range(count):
        kind = rng.choice(kinds)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole() / kind, folder)
        what = change(folder, rng)
        if resealed:
            seal(folder)
        judge(tally, lambda: _predictions(folder), f"case {i} of {kind}, {what}", None if resealed else same_as(kind))
    shutil.rmtree(folder.parent)
    return tally


def _bytes_of(name: str) -> Callable[[Path, random.Random], str]:
    def change(folder: Path, rng: random.Random) -> str:
        path = folder / name
        path.write_bytes(damaged(path.read_bytes(), rng))
        return f"bytes of {name}"

    return change


def _values(folder: Path, rng: random.Random) -> str:
    path = folder / DESCRIPTION
    path.write_bytes(as_json(altered(json.loads(path.read_text()), rng), rng))
    return "values of the description"


def _any(folder: Path, rng: random.Random) -> str:
    changes = (_values, _bytes_of(DESCRIPTION), _bytes_of(MANIFEST), _manifest)
    return rng.choice(changes)(folder, rng)


def _manifest(folder: Path, rng: random.Random) -> str:
    path = folder / MANIFEST
    path.write_bytes(as_json(altered(json.loads(path.read_text()), rng), rng))
    return "values of the manifest"


def _hostile(folder: Path, rng: random.Random) -> str:
    return rng.choice((_values, _values, _values, _bytes_of(DESCRIPTION), _bytes_of(TENSORS), _header))(folder, rng)


def _header(folder: Path, rng: random.Random) -> str:
    """Change the header of the tensors and write its length anew."""
    path = folder / TENSORS
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = as_json(altered(json.loads(data[8 : 8 + size]), rng), rng)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    return "header of the tensors"


def tensors(count: int, seed: int) -> Tally:
    """Damage the bytes of the tensors."""
    return _fuzz(count, seed, _bytes_of(TENSORS), resealed=False)


def descriptions(count: int, seed: int) -> Tally:
    """Damage the description or the manifest."""
    return _fuzz(count, seed, _any, resealed=False)


def hostile(count: int, seed: int) -> Tally:
    """Change description or tensors and write a manifest that fits: whoever does so is its author."""
    return _fuzz(count, seed, _hostile, resealed=True)
