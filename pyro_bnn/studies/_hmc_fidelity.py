"""
One arm of `hmc-fidelity`: a posterior of the network that HMC was run on, and how near its predictions are.

The reference is a file of probabilities for the test rows of CIFAR-10 in their usual order, `probs` (N, K), which the
package does not have: `pyro-bnn study hmc-fidelity --reference FILE`, else PYRO_BNN_REFERENCE, else `cifar10_hmc.npz`
in the data root. Every arm has the same epochs over the same rows, members all together, the same prior and eta = 1. A
training is kept in its folder, so that it goes on where it was killed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.analysis.scores.fidelity import agreement, total_variations
from pyro_bnn.data import load_data
from pyro_bnn.data.npz import Archive
from pyro_bnn.data.sources import data_root
from pyro_bnn.recipe import find_recipe
from pyro_bnn.runs.train import train
from pyro_bnn.studies.trials import default_store

__all__ = ["ARMS", "arm", "digest_of_reference", "read_reference", "reference_path"]

MEMBERS = 3
ARMS = (
    "mean field",
    "HWA",
    "low rank",
    "averaged point",
    f"{MEMBERS} mean field",
    f"{MEMBERS} averaged points",
    "MC dropout",
    "SGLD",
)
"""Words for the arms, in the order of the table."""


def settings(arm: str, epochs: int) -> dict[str, Any]:
    """
    Return what an arm changes in the recipe.

    :param arm: one of `ARMS`.
    :param epochs: of the arm, members all together.
    """
    half, each = epochs / 2, max(1, epochs // MEMBERS)
    averaged = {"start": half, "cycle": min(0.5, half)}
    member = {"name": "swa", "of": "map", "start": each / 2, "cycle": min(0.5, each / 2)}
    changes: Mapping[str, Mapping[str, Any]] = {
        "mean field": {"method": {"name": "svi", "keep": "last"}},
        "HWA": {"method": {"name": "hwa", "variance": "within", **averaged}},
        "low rank": {"method": {"name": "svi", "keep": "last"}, "guide": _low_rank()},
        "averaged point": {"method": {"name": "swa", "of": "map", **averaged}},
        f"{MEMBERS} mean field": {
            "method": {"name": "ensemble", "of": {"name": "svi", "keep": "last"}, "members": MEMBERS},
            "epochs": each,
        },
        f"{MEMBERS} averaged points": {
            "method": {"name": "ensemble", "of": member, "members": MEMBERS},
            "epochs": each,
        },
        "MC dropout": {"method": {"name": "mc_dropout", "rate": 0.05}},
        # the source's step of 1e-6 for a sum over 50,000 rows
        "SGLD": {"method": {"name": "sgld", "lr": 0.05, "draws": 20, "burn_in": half}},
    }
    if arm not in changes:
        raise ValueError(f"arm={arm!r} is unknown: choose one of {', '.join(ARMS)}")
    return {"epochs": epochs, **changes[arm]}


def _low_rank() -> dict[str, Any]:
    return {"name": "low_rank", "rank": 5, "init_loc": "net", "init_scale": 0.01}


# -- the reference -----------------------------------------------------------------------------------------------------


def reference_path() -> Path:
    """Return where the reference probabilities are."""
    given = os.environ.get("PYRO_BNN_REFERENCE")
    return Path(given).expanduser() if given else data_root() / "cifar10_hmc.npz"


def digest_of_reference() -> str:
    """Return what tells one reference from another, "" if there is none."""
    path = reference_path()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20] if path.is_file() else ""


def read_reference() -> Tensor:
    """Return the reference probabilities, (N, K)."""
    path = reference_path()
    if not path.is_file():
        raise ValueError(
            f"{path} is not there: the study compares with a file of reference probabilities, `probs` (N, K) for the "
            f"test rows; pass --reference FILE, or put it there"
        )
    with Archive(path) as archive:
        if "probs" not in archive.names:
            raise ValueError(f"{path} holds {', '.join(archive.names)} and no `probs` (N, K)")
        return torch.as_tensor(archive.read("probs")).double()


# -- an arm ------------------------------------------------------------------------------------------------------------


def arm(
    arm: str,
    epochs: int,
    rows: int,
    draws: int,
    changes: Mapping[str, Any] | None = None,
    reference: str = "",
    seed: int = 0,
) -> dict[str, Any]:
    """
    Return agreement and total variation, also by row, and the scores of an arm on the test rows.

    :param arm: one of `ARMS`.
    :param epochs: of the arm, members all together.
    :param rows: of the test set, its first ones.
    :param draws: of the posterior.
    :param changes: of the recipe, beside.
    :param reference: which one it is: what `digest_of_reference` says; it is read from `reference_path`.
    :param seed: of the training.
    """
    expected = read_reference()[:rows]
    given = {**settings(arm, epochs), **(changes or {}), "seed": seed, "num_samples": 1}
    recipe = find_recipe("frn-resnet20-cifar10").changed(given)
    content = json.dumps(recipe.model_dump(), sort_keys=True)
    folder = default_store() / "trained" / f"hmc-fidelity-{hashlib.sha256(content.encode()).hexdigest()[:20]}"
    run = train(recipe, out=folder, data_root=data_root(), progress=False, report=False)
    if not run.finished:
        raise KeyboardInterrupt
    test = load_data(recipe.data, root=data_root(), **{"seed": seed, **recipe.data_args}).test
    if len(expected) > len(test):
        raise ValueError(f"the reference has {len(expected)} rows and the test set {len(test)}: they are of other rows")
    p = run.posterior.predict(test.x[: len(expected)], draws, seed=0)
    if not isinstance(p, Tensor):
        raise TypeError("the study is of classes, and the posterior predicts numbers")
    apart = total_variations(p, expected)
    true = test.y[: len(expected)]
    return {
        "agreement": agreement(p, expected),
        "total_variation": float(apart.mean()),
        "by_row": [round(float(value), 5) for value in apart],
        "accuracy": float((p.argmax(1) == true).double().mean()),
        "pred_nll": float(-p.double().clamp_min(1e-12).log().gather(1, true[:, None]).mean()),
        "epochs": epochs,
        "draws": draws,
    }
