"""One observed site of a program that has several: the program as predictions ask for it."""

from typing import Any, cast, final

import pyro.poutine as poutine
from torch import Tensor
from torch.distributions import Distribution

from pyro_bnn.common.sites import sample_sites

__all__ = ["OneSite"]


@final
class OneSite:
    """
    A program of which one site is predicted; the other observed ones are left out.

    :param model: the program.
    :param name: its observed site.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""
        return self.model(*args, **kwargs)

    def observation(self, x: Any, latents: dict[str, Tensor]) -> Distribution:
        """Return the law of the site at inputs x (B, ...), given the values of the latent ones."""
        trace = poutine.trace(poutine.condition(self.model, data=latents)).get_trace(x)
        sites = sample_sites(trace)
        if self.name not in sites or self.name in latents:
            known = [name for name in sites if name not in latents]
            raise ValueError(
                f"the model observes no site {self.name!r}: it has {', '.join(map(repr, known)) or 'none'}"
            )
        return cast(Distribution, sites[self.name]["fn"])
