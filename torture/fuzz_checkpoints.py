"""Damaged states of a training: the same state is read, or it is refused."""

import json
import random
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from pyro_bnn.inference.checkpoint import load_state, save_state
from torture.mutations import altered, as_json, damaged
from torture.oracle import Tally, judge


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and bool(a == b)


def checkpoints(count: int, seed: int) -> Tally:
    """Damage any file of a state, its manifest among them."""
    tally, rng = Tally(), random.Random(seed)
    home = Path(mkdtemp(prefix="torture-"))
    state = {
        "epoch": 7,
        "parameters": {"guide": {"loc": torch.randn(50), "rho": torch.randn(50)}, "model": {}},
        "optim": [{"step": 3, "exp_avg": torch.randn(50)}, {"lr": 0.001}],
        "rng": torch.get_rng_state(),
    }
    save_state(home / "whole", state)
    expected, folder = load_state(home / "whole"), home / "state"
    for i in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(home / "whole", folder)
        path = rng.choice(sorted(folder.iterdir()))
        if path.suffix == ".json" and rng.random() < 0.5:
            path.write_bytes(as_json(altered(json.loads(path.read_text()), rng), rng))
        else:
            path.write_bytes(damaged(path.read_bytes(), rng))
        judge(tally, lambda: load_state(folder), f"case {i}, {path.name}", lambda got: _equal(got, expected))
    shutil.rmtree(home)
    return tally
