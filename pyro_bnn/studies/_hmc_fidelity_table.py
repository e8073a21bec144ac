"""
The page of `hmc-fidelity`, from the trials that the study has run: every arm beside what was published.

    python -m pyro_bnn.studies._hmc_fidelity_table --scale cpu --out docs/fidelity.md

Published figures are of other trainings: 50 networks of 500 epochs each, five chains of SGLD, and so on. They are told
at second hand (to two or three digits, not compared with the paper itself), and stand there for orientation.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyro_bnn.common.files import write_text
from pyro_bnn.studies._hmc_fidelity import ARMS, MEMBERS
from pyro_bnn.studies.hmc_fidelity import STUDY
from pyro_bnn.studies.study import Scale
from pyro_bnn.studies.trials import default_store, stored

__all__ = ["PUBLISHED", "as_markdown", "main"]

PUBLISHED: dict[str, tuple[str, float, float]] = {
    "mean field": ("mean field", 0.888, 0.136),
    f"{MEMBERS} averaged points": ("50 networks", 0.915, 0.115),
    "SGLD": ("SGLD, 5 chains", 0.915, 0.110),
}
"""Arm -> what was published, its agreement and its total variation, at second hand."""
HMC = ("HMC, another chain", 0.94, 0.074)


def as_markdown(records: Mapping[str, Mapping[str, Any]]) -> str:
    """
    Return the page.

    :param records: what the arms left, by their words; an arm that was not run is shown as such.
    """
    lines = [
        "# Fidelity to Hamiltonian Monte Carlo\n",
        "Agreement of the most probable class with HMC's, and total variation distance to its probabilities, for test "
        "rows of CIFAR-10, on the network and under the prior that HMC was run on ([the source]"
        "(https://arxiv.org/abs/2104.14421)). Made by `pyro-bnn study hmc-fidelity --reference FILE`, where FILE holds "
        "HMC's probabilities, which are not part of this package.\n",
        "| posterior | agreement | total variation | accuracy | NLL | published: agreement, total variation |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for arm in ARMS:
        words = ""
        if arm in PUBLISHED:
            what, agreement, apart = PUBLISHED[arm]
            words = f"{what}: {agreement:.3f}, {apart:.3f}"
        record = records.get(arm)
        if record is None:
            lines.append(f"| {arm} | not run | | | | {words} |")
            continue
        by_row = np.asarray(record["by_row"], dtype=float)
        error = by_row.std(ddof=1) / math.sqrt(len(by_row))
        share = float(record["agreement"])
        spread = math.sqrt(share * (1 - share) / len(by_row))
        lines.append(
            f"| {arm} | {share:.3f} ± {spread:.3f} | {record['total_variation']:.4f} ± {error:.4f} "
            f"| {100 * record['accuracy']:.2f} % | {record['pred_nll']:.4f} | {words} |"
        )
    lines.append(f"| – | | | | | {HMC[0]}: {HMC[1]:.2f}, {HMC[2]:.3f} |")
    done = next(iter(records.values()), None)
    budget = ""
    if done is not None:
        budget = f" Each arm has {done['epochs']} epochs, members together, and {done['draws']} draws."
    note = (
        "Standard errors are over test rows; one training of each arm." + budget + " Published figures are of far "
        "longer trainings, at second hand."
    )
    return "\n".join([*lines, "", note]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="cpu", choices=STUDY.scales)
    parser.add_argument("--store", type=Path, default=None, help="where the trials are kept")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    scale: Scale = given.scale
    found = {trial.cell: stored(trial, given.store or default_store()) for trial in STUDY.design(scale)}
    write_text(given.out, as_markdown({arm: record for arm, record in found.items() if record is not None}))


if __name__ == "__main__":
    main()
