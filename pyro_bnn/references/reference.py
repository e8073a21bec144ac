"""
A reference posterior of the package: rows, draws of the functions, and whether it may be called one.

    draws          10,000 or more, in all chains
    R-hat          below 1.01 of every quantity, rank-normalised and split
    divergences    none

which is posteriordb's rule (Magnusson et al. 2024, arXiv:2407.04967), applied to functions and not to weights.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from pyro_bnn.posterior import Posterior
from pyro_bnn.references.distance import distance_to
from pyro_bnn.references.programs import PROGRAMS, function_draws, program_of
from pyro_bnn.references.stored import SHIPPED, is_complete, read_tensors

__all__ = ["MARKS", "Reference", "load_reference", "reference_names"]

MARKS = {"draws": 10_000, "rhat": 1.01, "divergences": 0}
"""At least so many draws, an R-hat below, at most so many divergences."""


@final
@dataclass(frozen=True, eq=False)
class Reference:
    """
    A reference posterior.

    :param name: of its program; `pyro_bnn.references.program_of(name)` is that.
    :param x: the rows it is conditioned on, (N, D).
    :param y: their labels or targets, (N,).
    :param at: the inputs at which functions are compared, (A, D).
    :param functions: draws of what is compared, (S, Q): every tenth draw.
    :param quantiles: of all draws, (200, Q).
    :param mean: of all draws, (Q,).
    :param sd: of all draws, (Q,).
    :param weights: the draws of the unconstrained weights, (S, P), for programs of up to 100; else None.
    :param facts: how it was drawn, and what the chains say about themselves.
    """

    name: str
    x: Tensor
    y: Tensor
    at: Tensor
    functions: Tensor
    quantiles: Tensor
    mean: Tensor
    sd: Tensor
    weights: Tensor | None
    facts: dict[str, Any]

    def misses(self) -> list[str]:
        """Return what of the rule does not hold, in words; none for a reference."""
        draws, rhat, divergences = (self.facts[key] for key in MARKS)
        found = []
        if not draws >= MARKS["draws"]:
            found.append(f"{draws} draws, fewer than {MARKS['draws']}")
        if not rhat < MARKS["rhat"]:
            found.append(f"R-hat {rhat:.4f}, not below {MARKS['rhat']}")
        if not divergences <= MARKS["divergences"]:
            found.append(f"{divergences} divergences")
        return found

    def distance(self, posterior: Posterior, *, draws: int = 500, seed: int = 0) -> dict[str, float]:
        """
        Return how far a posterior of the same program is: `wasserstein`, `mean`, `sd_ratio`.

        :param posterior: of the reference's rows.
        :param draws: S, draws of it.
        :param seed: of the draws.
        """
        found = function_draws(posterior, self.at, draws, seed)
        return distance_to(found, self.quantiles.double(), self.mean, self.sd)


def reference_names(folder: Path = SHIPPED) -> list[str]:
    """
    Return the names of the references that are there.

    :param folder: where the references are.
    """
    return [name for name in PROGRAMS if is_complete(name, folder)]


def load_reference(name: str, folder: Path = SHIPPED) -> Reference:
    """
    Return a reference, checked against the SHA-256 of its files.

    :param name: of its program.
    :param folder: where the references are.

    >>> from pyro_bnn.references import load_reference
    >>> reference = load_reference("conjugate-regression")
    >>> reference.x.shape, reference.functions.shape, reference.misses()
    (torch.Size([30, 3]), torch.Size([1000, 32]), [])
    """
    rows, draws, facts = read_tensors(program_of(name).name, folder)
    return Reference(
        name,
        rows["x"],
        rows["y"],
        rows["at"],
        draws["functions"],
        draws["quantiles"],
        draws["mean"],
        draws["sd"],
        draws.get("weights"),
        facts,
    )
