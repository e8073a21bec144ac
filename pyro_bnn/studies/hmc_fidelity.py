"""
How near the predictions of posteriors are to those of Hamiltonian Monte Carlo, on the network that it was run on.

Nobody but the source has run HMC on a residual network for CIFAR-10. Its averaged predictions for the test rows are
public, so that any posterior of the same network, prior and rows can be compared with them: by the share of rows with
the same most probable class, and by the total variation distance. The source's order of methods is what is tested.
"""

import math
from typing import Any

import numpy as np

from pyro_bnn.studies._hmc_fidelity import ARMS, MEMBERS, digest_of_reference
from pyro_bnn.studies.findings import Finding, Verdict
from pyro_bnn.studies.study import Results, Scale, Study, Trial

_SIZES: dict[Scale, tuple[int, int, int, dict[str, Any]]] = {
    # epochs, test rows, draws, changes
    "smoke": (3, 40, 3, {"model_args": {"width": 1}, "data_args": {"train_size": 100}, "batch_size": 50}),
    "cpu": (9, 5000, 20, {}),
    "source": (300, 10_000, 50, {}),
}


def _design(scale: Scale) -> list[Trial]:
    epochs, rows, draws, changes = _SIZES[scale]
    numbers = {"epochs": epochs, "rows": rows, "draws": draws, "changes": changes, "reference": digest_of_reference()}
    return [
        Trial(name, 0, compute="pyro_bnn.studies._hmc_fidelity:arm", arguments={"arm": name, **numbers})
        for name in ARMS
    ]


def _nearer(statement: str, results: Results, near: str, far: str, *, decides: bool = True) -> Finding:
    """Compare two arms over the rows: d is the mean difference of total variation, s its standard error."""
    by_row = [np.asarray(results.record(name, 0)["by_row"], dtype=float) for name in (far, near)]
    difference = by_row[0] - by_row[1]
    d, s = float(difference.mean()), float(difference.std(ddof=1)) / math.sqrt(len(difference))
    verdict: Verdict = "confirmed" if d - 2 * s > 0 else "contradicted" if d + 2 * s < 0 else "inconclusive"
    return Finding(statement, verdict, d, d - 2 * s, d + 2 * s, None, len(difference), None, decides)


def _judge(results: Results) -> list[Finding]:
    ensemble = f"{MEMBERS} averaged points"
    findings = [
        _nearer("an ensemble of points is nearer to HMC than mean field", results, ensemble, "mean field"),
        _nearer("SGLD is nearer to HMC than mean field", results, "SGLD", "mean field"),
    ]
    pairs = [
        ("HWA", "mean field"),
        ("low rank", "mean field"),
        (f"{MEMBERS} mean field", "mean field"),
        (ensemble, "averaged point"),
        ("MC dropout", "averaged point"),
        ("SGLD", ensemble),
    ]
    findings += [_nearer(f"{a} nearer than {b}", results, a, b, decides=False) for a, b in pairs]
    return findings


STUDY = Study(
    name="hmc-fidelity",
    claim="Deep ensemble predictive distributions are similarly close to HMC as standard SGLD, and closer than "
    "standard variational inference.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, "
    "arXiv:2104.14421",
    place="abstract and section 6; HMC's probabilities from the data of the NeurIPS 2021 competition on approximate "
    "inference, data/cifar10",
    varied="how the posterior is made: mean field, HWA, low rank, an averaged point, three of either, MC dropout, "
    "SGLD; all have as many epochs, members together.",
    measured="agreement of the most probable class and total variation distance to HMC's probabilities, test rows.",
    rule="Confirmed if the total variation of the ensemble of averaged points, and that of SGLD, is below mean "
    "field's by more than two standard errors over the rows; contradicted if one is above it by as much. One training "
    "of each arm: the rows are the sample, and what another seed would give is not in the interval.",
    not_done="The source ensembles 50 networks of 500 epochs, draws SGLD for 10,000 epochs from 5 chains, and trains "
    "mean field for 300 from an SGD solution, with rates tuned for each. At cpu scale an arm has 9 epochs, three "
    "members 3 each, 20 draws and 5,000 test rows; rates are the recipe's, SGLD's the source's.",
    design=_design,
    judge=_judge,
    metric=("total_variation", "total variation distance to HMC"),
)
