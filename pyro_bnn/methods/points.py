"""Guides by SVI, points with and without a prior, masks over a point, and the curvature around a point."""

import time
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from pyro_bnn.common.renamed import renamed
from pyro_bnn.guides import AutoDropout, AutoPoint, StoredDraws
from pyro_bnn.inference.kl import geometric
from pyro_bnn.inference.samplers.laplace import check_laplace, import_laplace, laplace_draws
from pyro_bnn.methods.base import INTERRUPTED, Method, Outcome, Work, check_number, recipe_point, start_of_means
from pyro_bnn.recipe import Recipe

if TYPE_CHECKING:
    from pyro_bnn.assemble import Assembly

__all__ = ["Fitted", "LaplaceApproximation", "Map", "MaximumLikelihood", "McDropout", "Svi"]


@dataclass(frozen=True)
class Fitted(Method, ABC):
    """
    What trainings of a single guide have in common.

    :param keep: with validation rows, the parameters of the epoch that is best on them ("best"), or of the last one
        ("last"). To keep the best is a choice on validation rows; for a comparison where not every side makes it, keep
        the last. Without validation rows there is nothing to choose by, and the last is kept.
    """

    keep: Literal["best", "last"] = "best"

    def __post_init__(self) -> None:
        if self.keep not in ("best", "last"):
            raise ValueError(f"method.keep={self.keep!r} is unknown: pass 'best' or 'last'")

    def spec(self) -> dict[str, Any]:
        """Return the numbers that are given; the best is what a recipe means that says nothing."""
        return {key: value for key, value in super().spec().items() if (key, value) != ("keep", "best")}

    def trains_by_fit(self) -> bool:
        """Yes."""
        return True

    def fitted(self, work: Work, **options: Any) -> Outcome:
        """
        Fit the guide, and return what is kept.

        :param work: the training that is under way.
        """
        guide, best = work.parts.guide, self.keep == "best"
        return work.outcome(guide, work.fit(guide, keep_best=best, **options), best=best)


@final
@dataclass(frozen=True)
class Svi(Fitted):
    """The recipe's guide."""

    def __call__(self, work: Work) -> Outcome:
        """Fit it."""
        return self.fitted(work)


@final
@dataclass(frozen=True)
class Map(Fitted):
    """A point, with the prior."""

    def make_guide(self, recipe: Recipe, model: Any) -> AutoPoint:
        """Return a point."""
        return recipe_point(recipe, model)

    def __call__(self, work: Work) -> Outcome:
        """Fit it."""
        return self.fitted(work)


@final
@dataclass(frozen=True)
class MaximumLikelihood(Fitted):
    """A point, without the prior."""

    def make_guide(self, recipe: Recipe, model: Any) -> AutoPoint:
        """Return a point."""
        return recipe_point(recipe, model, kind="ml")

    def __call__(self, work: Work) -> Outcome:
        """Fit it, with no weight on the KL."""
        return self.fitted(work, kl=geometric(0))


@final
@dataclass(frozen=True)
class McDropout(Method):
    """Masks over a point; `rate` and `sites` as those of AutoDropout."""

    rate: float = 0.1
    sites: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_number("rate", self.rate, "between 0 and 1, both excluded", lambda v: 0 < v < 1)

    def trains_by_fit(self) -> bool:
        """Yes."""
        return True

    def make_guide(self, recipe: Recipe, model: Any) -> AutoDropout:
        """Return masks over a point."""
        return AutoDropout(model, rate=self.rate, sites=self.sites, init_loc=start_of_means(recipe))

    def __call__(self, work: Work) -> Outcome:
        """Fit it."""
        guide = work.parts.guide
        return work.outcome(guide, work.fit(guide, keep_best=True), best=True)


@final
@dataclass(frozen=True)
class LaplaceApproximation(Method):
    """
    A MAP and the draws of a Laplace approximation around it; `structure` as in `laplace_draws`.

    :param draws: how many draws are made.
    """

    structure: Literal["kron", "diag", "full"] = "kron"
    draws: int = 100

    def make_guide(self, recipe: Recipe, model: Any) -> AutoPoint:
        """Return the point whose surroundings are looked at."""
        return recipe_point(recipe, model)

    def resolved(self, recipe: Recipe) -> "Method":
        """Refuse what has no curvature of this kind, and a package that is not there, before anything is trained."""
        if recipe.temperature != 1 or recipe.kl != "uniform":
            raise ValueError(
                f"temperature={recipe.temperature}, kl={recipe.kl!r}: a Laplace approximation knows eta, no more"
            )
        import_laplace()
        return self

    def check(self, parts: "Assembly") -> None:
        """Refuse a model whose curvature is not taken here."""
        check_laplace(parts.model, self.structure, self.draws)

    def __call__(self, work: Work) -> Outcome:
        """Fit the point, then look at its surroundings."""
        parts, recipe = work.parts, work.recipe
        guide = parts.guide
        result = work.fit(guide, keep_best=True)
        if result.reason == INTERRUPTED:
            return work.outcome(None, result)
        started = time.perf_counter()
        drawn = laplace_draws(
            parts.model,
            guide,
            work.rows_at_hand,
            draws=self.draws,
            structure=self.structure,
            eta=recipe.eta,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
        )
        stored = StoredDraws.from_flat(parts.model, drawn, kind="laplace")
        return work.outcome(stored, result, best=True, laplace_seconds=time.perf_counter() - started)


__getattr__ = renamed(__name__, {"Laplace": "LaplaceApproximation"})
