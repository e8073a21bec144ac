"""
The contract of a guide: what the rest of the library may ask of it, and what holds where it says nothing.

The guides of this library derive from :class:`Guide` and say where they differ from its neutral answers. Another guide,
one of Pyro's or a function, is asked through :func:`contract_of`, which puts a :class:`ForeignGuide` around it: the one
place that says what is assumed of it. It stands here, and not beside the guides, for those who ask do not import them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, cast, final

from pyro.infer.autoguide import AutoDelta, AutoGuide
from torch import Tensor

__all__ = ["Dealt", "ForeignGuide", "Guide", "Role", "SiteView", "Wrapper", "contract_of"]

Role: TypeAlias = Literal["loc", "scale", "other"]
"""What a parameter is to a guide: a mean or a point, a spread, or neither."""


class SiteView(NamedTuple):
    """Mean and standard deviation of one site, detached, in unconstrained space and in the site's shape."""

    loc: Tensor
    scale: Tensor


class Dealt(Protocol):
    """What a guide of finitely many draws takes them from; `left` are the numbers that are still to come."""

    left: list[int]


class Guide(ABC):
    """
    The abstract base of the guides of this library.

    A guide is called with the model's arguments and samples every latent site. The rest has neutral answers here.
    """

    kind: str | None = None
    """What its draws are, in one word ("map", "ensemble"); None where the method that trains it decides that."""

    chains: int = 1
    """How many independent chains the draws come from."""

    roles: ClassVar[Mapping[str, Role]] = {}
    """The role of every parameter, by the last word of its name; empty where the guide does not say."""

    analytic_elbo: ClassVar[Literal["mean_field", "low_rank"]] = "mean_field"
    """The ELBO that has the guide's KL in closed form: site by site, or that of one joint low-rank normal."""

    has_moments: bool = False
    """Whether `site` states the moments of every one of `site_names`."""

    takes_moments: bool = False
    """Whether `assign` sets them."""

    has_median: bool = False
    """Whether `median` gives a point to plug in."""

    fitted: Any = None
    """What the guide was fitted with, where `fit` left it."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Sample every latent site; takes the model's arguments."""

    @abstractmethod
    def spec(self) -> dict[str, Any] | None:
        """Return the guide as names and numbers, from which it is built again; None if it cannot say."""

    @property
    def is_built(self) -> bool:
        """Whether the guide has seen its model, and so has its parameters."""
        return True

    @property
    def trains_scales(self) -> bool:
        """Whether there are spreads among the parameters; yes, where the guide does not say."""
        return not self.roles or "scale" in self.roles.values()

    def role(self, name: str) -> Role:
        """Return the role of the parameter called `name`, with or without Pyro's `_unconstrained`."""
        return self.roles.get(name.rpartition(".")[2].removesuffix("_unconstrained"), "other")

    # -- what it says of the sites -------------------------------------------------------------------------------

    def site_names(self) -> list[str]:
        """Return the names of all sites, in the model's order; none where they show in the draws alone."""
        return []

    def site(self, name: str) -> SiteView:
        """Return mean and standard deviation of the site called `name`, detached, in unconstrained space."""
        raise NotImplementedError(f"{type(self).__name__} states no moments: take those of its draws")

    def assign(self, name: str, loc: Tensor, scale: Tensor) -> None:
        """
        Set mean and standard deviation of the site called `name`, in unconstrained space.

        :param loc: the new means, in the shape of the site.
        :param scale: the new standard deviations, in the shape of the site.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no moments: pass an AutoMeanFieldNormal")

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return a point of every site to plug in: the median, where there is one."""
        raise NotImplementedError(f"{type(self).__name__} has no median: predict by its draws")

    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return quantiles (Q, *shape) of every site, entry by entry."""
        raise NotImplementedError(f"{type(self).__name__} states no quantiles: take those of its draws")

    def by_site(self) -> dict[str, Tensor] | None:
        """Return the stored draws of every site by chain, (chains, S / chains, *shape); None if none are stored."""
        return None

    def sample_stats(self) -> dict[str, Tensor]:
        """Return what a sampler noted of each of its stored draws, (chains, S / chains), under ArviZ' names."""
        return {}

    # -- finitely many draws -------------------------------------------------------------------------------------

    def restart(self) -> None:  # noqa: B027
        """Begin a new round of finitely many draws or members."""

    def decks(self) -> Sequence[Dealt]:
        """Return what draws or members are dealt from; a prediction deals from decks of its own."""
        return []

    def moves_model(self) -> bool:
        """Whether a draw puts values of the model's own parameters in place."""
        return False

    # -- what was saved ------------------------------------------------------------------------------------------

    def upgraded(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """
        Return the saved tensors of any earlier version under today's names.

        :param state: saved tensors by name.
        """
        return dict(state)


class Wrapper(Guide):
    """
    The base of guides around another one, `guide`, whose draws they pass on.

    What it says of its sites is not passed on: the draws may be changed on the way.
    """

    guide: Any

    @property
    def inner(self) -> Guide:
        """What the guide inside promises."""
        return contract_of(self.guide)

    @property
    def is_built(self) -> bool:
        """Whether the guide inside has seen its model."""
        return self.inner.is_built

    def spec(self) -> dict[str, Any] | None:
        """Return None: a guide around another is not saved."""
        return None

    def restart(self) -> None:
        """Begin a new round of the guide inside."""
        self.inner.restart()

    def decks(self) -> Sequence[Dealt]:
        """Return what the guide inside deals from."""
        return self.inner.decks()

    def moves_model(self) -> bool:
        """Whether the guide inside puts values of the model's own parameters in place."""
        return self.inner.moves_model()


@final
class ForeignGuide(Guide):
    """
    A guide that is none of this library's, with what is assumed of it.

    It is a callable that samples every latent site, drawn anew at each call. A method of the contract that it has under
    the same name is used; one of Pyro's that only names `median` says so when it is asked. Of Pyro's AutoDelta it is
    known that it is a point.

    :param guide: the guide, any callable.
    """

    def __init__(self, guide: Callable[..., Any]) -> None:
        self.guide = guide

    def _own(self, name: str, default: Any) -> Any:
        """Return what the guide has under a name of the contract."""
        return getattr(self.guide, name, default)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Sample every latent site."""
        return self.guide(*args, **kwargs)

    def spec(self) -> dict[str, Any] | None:
        """Return what the guide says of itself, None if nothing."""
        return cast("dict[str, Any] | None", self._own("spec", lambda: None)())

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters: one of Pyro's makes them on its first call, another has them."""
        return not isinstance(self.guide, AutoGuide) or self.guide.prototype_trace is not None

    @property
    def kind(self) -> str | None:  # type: ignore[override]
        """Its own word, "map" for a point of Pyro's."""
        said = self._own("kind", None)
        if isinstance(said, str):
            return said
        return "map" if isinstance(self.guide, AutoDelta) else None

    @property
    def has_moments(self) -> bool:  # type: ignore[override]
        """Whether it has `site` and `site_names`."""
        return callable(self._own("site", None)) and callable(self._own("site_names", None))

    @property
    def takes_moments(self) -> bool:  # type: ignore[override]
        """Whether it has `assign` besides."""
        return self.has_moments and callable(self._own("assign", None))

    @property
    def has_median(self) -> bool:  # type: ignore[override]
        """Whether it has `median`, which may yet raise NotImplementedError."""
        return callable(self._own("median", None))

    @property
    def fitted(self) -> Any:
        """What `fit` left on it."""
        return self._own("fitted", None)

    def site_names(self) -> list[str]:
        """Return the names it gives."""
        return list(self._own("site_names", list)())

    def site(self, name: str) -> SiteView:
        """Return the moments it states."""
        return SiteView(*self._own("site", super().site)(name))

    def assign(self, name: str, loc: Tensor, scale: Tensor) -> None:
        """Set the moments of a site."""
        self._own("assign", super().assign)(name, loc, scale)

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return its median."""
        return dict(self._own("median", super().median)(*args, **kwargs))

    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return its quantiles; takes what its own method takes."""
        return cast("dict[str, Tensor]", self._own("quantiles", super().quantiles)(quantiles, *args, **kwargs))

    def by_site(self) -> dict[str, Tensor] | None:
        """Return its stored draws, if it has them."""
        return cast("dict[str, Tensor] | None", self._own("by_site", super().by_site)())

    def sample_stats(self) -> dict[str, Tensor]:
        """Return what it noted of its stored draws, if it did."""
        return dict(self._own("sample_stats", dict)())

    def restart(self) -> None:
        """Begin a new round, if it has rounds."""
        self._own("restart", super().restart)()

    def decks(self) -> Sequence[Dealt]:
        """Return its decks, none if it has none."""
        return list(self._own("decks", list)())

    def moves_model(self) -> bool:
        """Whether it says that its draws put values into the model."""
        return bool(self._own("moves_model", bool)())

    def upgraded(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the saved tensors as it wants them."""
        return dict(self._own("upgraded", dict)(state))


def contract_of(guide: Any) -> Guide:
    """Return what a guide promises: one of this library is asked itself, another through what is assumed of it."""
    return guide if isinstance(guide, Guide) else ForeignGuide(guide)
