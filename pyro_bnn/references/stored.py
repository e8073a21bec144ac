"""
The files of the references: rows, draws and diagnostics, each folder with the SHA-256 of what is in it.

    rows.safetensors     x (N, D), y (N,), at (A, D): what is conditioned on, and where functions are compared
    draws.safetensors    functions (S, Q): every tenth draw;  mean, sd (Q,), quantiles (200, Q): of all of them;
                         weights (S, P), up to 100 of them: the draws that the functions are of
    reference.json       how they were drawn, and what the chains say about themselves
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from pyro_bnn.common.files import atomic_write, write_text
from pyro_bnn.common.manifest import is_sealed, read_listed, seal
from pyro_bnn.common.reading import parse_json

__all__ = [
    "DRAWS",
    "FACTS",
    "ROWS",
    "SHIPPED",
    "digest_of",
    "is_complete",
    "read_rows",
    "read_tensors",
    "write_reference",
]

SHIPPED = Path(__file__).parent / "shipped"
"""Where the references of the package are."""
ROWS = "rows.safetensors"
DRAWS = "draws.safetensors"
FACTS = "reference.json"


def read_rows(name: str, folder: Path = SHIPPED) -> dict[str, Tensor]:
    """
    Return x, y and `at` of a program.

    :param name: of the program.
    :param folder: where the references are.
    """
    return load(read_listed(folder / name, [ROWS])[ROWS])


def read_tensors(name: str, folder: Path = SHIPPED) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """
    Return rows, draws and facts of a reference, as they were written.

    :param name: of the program.
    :param folder: where the references are.
    """
    if not is_complete(name, folder):
        raise ValueError(f"the reference {name!r} has no draws in {folder}: python -m pyro_bnn.references {name}")
    found = read_listed(folder / name, [ROWS, DRAWS, FACTS])
    return load(found[ROWS]), load(found[DRAWS]), parse_json(found[FACTS], FACTS, dict)


def digest_of(name: str, folder: Path = SHIPPED) -> str:
    """
    Return what tells the draws of a reference from others.

    :param name: of the program.
    :param folder: where the references are.
    """
    return hashlib.sha256(read_listed(folder / name, [DRAWS])[DRAWS]).hexdigest()[:20]


def is_complete(name: str, folder: Path = SHIPPED) -> bool:
    """
    Return whether a reference has its draws.

    :param name: of the program.
    :param folder: where the references are.
    """
    place = folder / name
    return is_sealed(place) and (place / DRAWS).is_file() and (place / FACTS).is_file()


def write_reference(
    name: str,
    folder: Path,
    rows: Mapping[str, Tensor] | None = None,
    draws: Mapping[str, Tensor] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """
    Write the files of a reference that are given, and the manifest of all.

    :param name: of the program.
    :param folder: where the references are.
    :param rows: x, y and `at`.
    :param draws: see above.
    :param facts: how they were drawn.
    """
    place = folder / name
    for file, tensors in ((ROWS, rows), (DRAWS, draws)):
        if tensors is not None:
            with atomic_write(place / file) as whole:
                whole.write(save({key: value.contiguous() for key, value in tensors.items()}))
    if facts is not None:
        write_text(place / FACTS, json.dumps(facts, indent=1, sort_keys=True) + "\n")
    seal(place)
